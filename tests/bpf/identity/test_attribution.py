"""Containers by cgroup and by process, in real cgroup trees."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from bpf.identity.attribution import Attribution, walk
from tests.bpf.pods import UNIFIED, Host, container_id, needs_hybrid, pod_uid

pytestmark = needs_hybrid


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


@pytest.fixture
def v1_host() -> Iterator[Host]:
    made = Host(v2=False)
    yield made
    made.close()


def v2_id(host: Host, path: str) -> int:
    cgroup = next(c for c in host.cgroups(path) if UNIFIED in c.parents)
    return cgroup.stat().st_ino


def test_a_cgroup_id_names_the_container_and_so_does_that_of_a_cgroup_inside_it(host, tmp_path) -> None:
    container, uid = container_id(), pod_uid()
    host.start(container, uid)
    inside = host.start(container, uid, below="init.scope")
    attribution = Attribution(host.root(tmp_path))
    path = f"kubepods/burstable/pod{uid}"
    assert attribution.has_v2_ids
    assert attribution.containers == {container: uid}
    assert attribution.container_of_cgroup(v2_id(host, f"{path}/{container}")) == container
    assert attribution.container_of_cgroup(v2_id(host, f"{path}/{container}/init.scope")) == container
    assert attribution.container_of_cgroup(v2_id(host, path)) == ""
    assert attribution.container_of_cgroup(1) is None
    assert attribution.container_of_pid(inside.pid) == container
    assert attribution.container_of_pid(os.getpid()) == ""
    assert inside.pid in attribution.pids_of(container)
    assert len(attribution.pids_of(container)) == 2
    assert attribution.pod_of(container) == uid


def test_a_new_container_is_known_after_a_refresh_and_a_removed_one_is_not(host, tmp_path) -> None:
    attribution = Attribution(host.root(tmp_path))
    assert attribution.has_v2_ids
    container, uid = container_id(), pod_uid()
    path = f"kubepods/burstable/pod{uid}/{container}"
    cgroup_id = v2_id(host, path)
    assert attribution.container_of_cgroup(cgroup_id) is None
    attribution.refresh()
    assert attribution.container_of_cgroup(cgroup_id) == container
    for cgroup in host.cgroups(path):
        cgroup.rmdir()
    attribution.refresh()
    assert attribution.container_of_cgroup(cgroup_id) is None
    assert attribution.pids_of(container) == []
    assert attribution.container_of_pid(2**22 + 1) is None


def test_a_host_whose_containers_are_in_v1_only_has_no_ids_but_knows_its_processes(v1_host, tmp_path) -> None:
    container, uid = container_id(), pod_uid()
    talker = v1_host.start(container, uid)
    (tmp_path / "unified").symlink_to(UNIFIED / "does-not-matter")
    attribution = Attribution(v1_host.root(tmp_path))
    assert not attribution.has_v2_ids
    assert attribution.containers == {container: uid}
    assert attribution.pids_of(container) == [talker.pid]
    assert attribution.container_of_pid(talker.pid) == container
    assert attribution.container_of_cgroup(1) is None


def test_a_v2_tree_without_the_containers_gives_no_ids(v1_host, tmp_path) -> None:
    v1_host.start(container_id(), pod_uid())
    elsewhere = Host()
    try:
        (tmp_path / "unified").symlink_to(elsewhere.cgroups("kubepods")[0])
        assert not Attribution(v1_host.root(tmp_path)).has_v2_ids
    finally:
        elsewhere.close()


def test_a_pause_process_is_no_container(host, tmp_path) -> None:
    container, sandbox, uid = container_id(), container_id(), pod_uid()
    host.start(container, uid)
    pause = host.start(sandbox, uid)
    attribution = Attribution(host.root(tmp_path))
    assert set(attribution.containers) == {container, sandbox}
    pause.do("open('/proc/self/comm', 'w').write('pause')")
    attribution = Attribution(str(tmp_path))
    assert set(attribution.containers) == {container}
    cgroup_id = v2_id(host, f"kubepods/burstable/pod{uid}/{sandbox}")
    assert attribution.container_of_cgroup(cgroup_id) == ""


def test_a_container_that_its_runtime_still_starts_is_not_taken_for_good(host, tmp_path) -> None:
    sandbox, uid = container_id(), pod_uid()
    pause = host.start(sandbox, uid)
    pause.do("open('/proc/self/comm', 'w').write('runc:[2:INIT]')")
    attribution = Attribution(host.root(tmp_path))
    assert set(attribution.containers) == {sandbox}
    pause.do("open('/proc/self/comm', 'w').write('pause')")
    attribution.refresh()
    assert not attribution.containers


def test_the_real_trees_of_this_host_can_be_scanned() -> None:
    attribution = Attribution()
    assert attribution.container_of_pid(os.getpid()) is not None
    assert attribution.cgroup_ids


def test_a_cgroup_that_goes_while_it_is_looked_at_hides_no_other(tmp_path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
    order = [entry.name for entry in os.scandir(tmp_path)]
    folders = walk(str(tmp_path))
    assert [next(folders).path for _ in range(2)] == [str(tmp_path), str(tmp_path / order[0])]
    (tmp_path / order[1]).rmdir()
    assert [folder.path for folder in folders] == [str(tmp_path / name) for name in order[2:]]


def test_no_cgroup_tree_at_all_is_no_container(tmp_path) -> None:
    attribution = Attribution(str(tmp_path))
    assert not attribution.containers
    assert not attribution.has_v2_ids
    shutil.rmtree(tmp_path)
    attribution.refresh()
    assert not attribution.containers
