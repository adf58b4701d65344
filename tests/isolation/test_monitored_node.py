"""Monitoring beside treatments, on one kernel: groups come and go under it, and in the end all is as it was."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cri_proxy.isolation.io import monitoring_groups
from cri_proxy.isolation.io.watcher import Watcher
from cri_proxy.isolation.model import CacheDomain
from cri_proxy.isolation.monitoring import Plan, Seen, Source, Watch, domains_of, group_name
from cri_proxy.isolation.treatment import BATCH_GROUP
from tests.isolation.kernel import KernelModel
from tests.isolation.monitored import refusal
from tests.isolation.node import IsolatedNode, l3s

DOMAINS = tuple(CacheDomain(number, cpus) for number, cpus in l3s().items())


class Monitors:
    """The monitoring groups of a model's control groups; a thread that leaves its control group leaves them."""

    def __init__(self, model: KernelModel) -> None:
        self.model = model
        self._of: dict[int, tuple[str, str]] = {}

    def groups(self) -> tuple[str, ...]:
        return tuple(sorted(self.model.monitors))

    def monitors(self, group: str) -> tuple[str, ...]:
        return tuple(sorted(self._names(group)))

    def make_monitor(self, group: str, name: str) -> None:
        self._names(group).add(name)

    def remove_monitor(self, group: str, name: str) -> None:
        self._names(group).remove(name)

    def monitored(self, group: str, name: str) -> frozenset[int]:
        inside = self.model.tasks(group) if name in self._names(group) else frozenset()
        return frozenset(thread for thread in inside if self._of.get(thread) == (group, name))

    def move_monitored(self, group: str, name: str, thread: int) -> None:
        if self.model.group_of[thread] != group:
            raise refusal(errno.EINVAL)
        self._of[thread] = (group, name)

    def read(self, source: Source, value: str) -> bytes:
        self._names(source.group)
        return b"4096\n"

    def close(self) -> None:
        pass

    def _names(self, group: str) -> set[str]:
        if group not in self.model.monitors:
            raise refusal(errno.ENOENT)
        return self.model.monitors[group]


async def test_a_container_is_watched_in_whatever_group_it_is_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = IsolatedNode(tmp_path, monkeypatch)
    model, monitors = node.kernel, Monitors(node.kernel)
    monitors.make_monitor("", "kepler")
    before = model.picture()
    batch, protected = node.batch(), node.protected()
    threads = {batch: 1, protected: 2}
    for thread in threads.values():
        model.start(thread)
    watcher = Watcher(monitors, lambda cgroup: {threads[cgroup]}, lambda: 0.0, lambda: 0.0)

    def look() -> Seen:
        """A round of tasks and one of monitoring."""
        for key, thread in threads.items():
            if model.group_of[thread] != node.isolation.group_of(key):
                model.move(node.isolation.group_of(key), thread)
        watches = (
            Watch(key, node.isolation.group_of(key), key, domains_of(node.engine.grants[key].cpus, DOMAINS))
            for key in threads
        )
        return watcher.round(Plan(tuple(watches), DOMAINS))

    def inside(group: str) -> dict[str, frozenset[int]]:
        return {
            name: monitors.monitored(group, name) for name in monitors.monitors(group) if name != "kepler"
        }

    monitoring_groups.mark(tmp_path)
    # 1. Where a protected container is, batch has a group, and is watched in it.
    await node.begin()
    assert look().watched == {batch, protected}
    assert inside(BATCH_GROUP) == {group_name(batch): {1}}
    assert inside("") == {group_name(protected): {2}}
    # 2. Without a treatment the group goes, and what was watched in it is watched in the root's.
    node.configure(caches="off", bandwidth="off")
    await node.isolation.round()
    assert BATCH_GROUP not in model.monitors
    assert look().watched == {batch, protected}
    assert inside("") == {group_name(batch): {1}, group_name(protected): {2}}
    # 3. The way back.
    assert monitoring_groups.put_back(tmp_path, monitors) == []
    assert model.picture() == before and not monitoring_groups.is_marked(tmp_path)
    node.isolation.close()
