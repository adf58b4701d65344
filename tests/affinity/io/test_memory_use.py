"""Memory in use, read from cgroup files of both versions."""

from __future__ import annotations

import pytest

from cri_proxy.affinity.io.executor import memory_in_use

POD = "/kubepods/pod1/c1"


@pytest.mark.parametrize("name", ["memory.current", "memory:memory.usage_in_bytes"])
def test_memory_is_read_from_either_version(tmp_path, name) -> None:
    mount, _, file = name.rpartition(":")
    folder = tmp_path / mount / POD.lstrip("/")
    folder.mkdir(parents=True)
    (folder / file).write_text("4096\n")
    assert memory_in_use(tmp_path, {"c1": POD, "gone": "/kubepods/none"}) == {"c1": 4096}


def test_rubbish_is_left_out(tmp_path) -> None:
    folder = tmp_path / POD.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "memory.current").write_text("much\n")
    assert memory_in_use(tmp_path, {"c1": POD}) == {}
