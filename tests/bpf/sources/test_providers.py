"""Whose a cgroup is, or was a moment ago."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpf.identity.attribution import Attribution
from bpf.sources.fallback import Owners
from bpf.sources.samples import ProviderLost

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


def test_ids_of_cgroups_are_no_use_once_containers_turn_out_to_be_in_v1_only(tmp_path: Path) -> None:
    for file in ("unified/cgroup.controllers", "cpuset/cgroup.procs"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    owners = Owners(Attribution(str(tmp_path), str(tmp_path)))
    # No pod yet: nothing speaks against it.
    assert owners.container_of_cgroup(1) is None
    (tmp_path / "cpuset/kubepods/pod6b1e4c1e" / CONTAINER).mkdir(parents=True)
    owners.refresh()
    with pytest.raises(ProviderLost, match="containers have no cgroup v2 of their own here"):
        owners.container_of_cgroup(1)
