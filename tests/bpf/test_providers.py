"""Whose a cgroup is, or was a moment ago."""

from __future__ import annotations

from pathlib import Path

from bpf.attribution import Attribution
from bpf.providers import Owners

CONTAINER = "5" * 64


def test_a_container_that_has_ended_keeps_its_name_for_one_sample(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    cgroup = tmp_path / "kubepods" / "pod6b1e4c1e" / CONTAINER
    cgroup.mkdir(parents=True)
    cgroup_id = cgroup.stat().st_ino
    owners = Owners(Attribution(str(tmp_path), str(tmp_path)))
    assert owners.container_of_cgroup(cgroup_id) == CONTAINER
    cgroup.rmdir()
    assert owners.refresh() == {CONTAINER}
    assert owners.container_of_cgroup(cgroup_id) == CONTAINER
    assert owners.refresh() == frozenset()
    assert owners.container_of_cgroup(cgroup_id) is None
