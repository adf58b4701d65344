"""Where the self-test of the eBPF programs makes its cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpf.kernel.ebpf_self_test import own_cgroup


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0::/system.slice/observer.service\n", "system.slice/observer.service"),
        ("4:cpuset:/a\n0::/system.slice/observer.service\n", "system.slice/observer.service"),
        ("0::/\n", ""),
        ("0::/not.seen\n", ""),
        ("0::/../elsewhere\n", ""),
        ("4:cpuset:/a\n", ""),
    ],
    ids=["a unit", "hybrid", "the root", "another namespace", "above this namespace", "v1 only"],
)
def test_the_own_cgroup_is_found_and_else_the_root(tmp_path: Path, text: str, found: str) -> None:
    root, own = tmp_path / "root", tmp_path / "cgroup"
    (root / "system.slice" / "observer.service").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    own.write_text(text)
    assert own_cgroup(str(root), str(own)) == root / found
