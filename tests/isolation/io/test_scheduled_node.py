"""A node whose containers have scheduling classes: rounds of the daemon, its restarts and its end, with real threads in real
cgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.config.config import read_config
from cri_proxy.engine.snapshot import read_record, write_record
from cri_proxy.isolation.io import originals
from cri_proxy.isolation.io.reconciler import Isolation
from cri_proxy.isolation.io.scheduling import Scheduling, ThreadScheduling
from cri_proxy.isolation.report import isolation_text, treatment_lines
from cri_proxy.text.sources import SettingsSource
from policies.model import PlacementPreferences, Qos
from tests.isolation.io.hierarchy import STORM, Hierarchy, Node, cgroup_roots, node, seen_attributes
from tests.isolation.kernel import KernelModel
from tests.isolation.node import IsolatedNode, Threads
from tests.scenes import make_container, make_pod, run

CLASSES = [
    {"name": "batch", "policy": "batch", "nice": "9"},
    {"name": "ours", "nice": "3", "ioClass": "idle"},
]
PLAIN, BATCH, OURS = "other nice=0 io=none:0", "batch nice=9 io=none:0", "other nice=3 io=idle:0"


class ScheduledNode(IsolatedNode):
    """One node whose containers are processes."""

    def __init__(self, real: Node, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real = real
        super().__init__(folder, monkeypatch, KernelModel({}), scheduling="enforce")

    def _make(self) -> None:
        self.threads = Threads()
        self.subject = Scheduling(self.services)
        self.subject.threads = ThreadScheduling(self.real.cgroups, clock=lambda: self.now_s)
        self.isolation = Isolation(
            self.services, self.kernel, self.boot_id, self.threads, [self.subject], clock=lambda: self.now_s
        )

    def _configure(self, isolation: Mapping[str, Any]) -> None:
        values = {
            "state": {"directory": str(self.folder)},
            "isolation": dict(isolation),
            "control": {"scheduling": {"schedulingClasses": CLASSES}},
        }
        self.services.config = read_config([SettingsSource("test", values=values)]).config

    def add(self, letter: str, qos: Qos = Qos.BESTEFFORT, program: str = "", **asked: str) -> str:
        """A container with two threads, or with what a program does; its cgroup."""
        key = letter * 64
        pod = replace(make_pod(letter), cgroup_parent=self.real.pod)
        limit = None if qos is Qos.BESTEFFORT else 2
        preferences = PlacementPreferences(**asked)
        run(self.engine, make_container(letter, limit, qos=qos, pod=pod, preferences=preferences), key)
        path = self.real.cgroup(key)
        self.first = self.real.run(path, *([program, 4] if program else [])).pid
        return path

    async def looks(self, path: str, wanted: str) -> None:
        """Rounds until all that a storm forks has this: what forks without end may be ahead of one on a busy machine, and
        what a process was forking shows by the time that it has ended."""
        forking: frozenset[int] = frozenset()
        for _ in range(10_000):
            await self.look()
            if self.seen(path) != [wanted]:
                continue
            there = self.real.cgroups.threads(path) - {self.first}
            if forking and not forking & there:
                return
            forking = forking & there or there
        pytest.fail(f"still {self.seen(path)}")

    def seen(self, path: str) -> list[str]:
        return seen_attributes(self.real.cgroups, path)


@pytest.fixture(params=["v1", "v2"])
def scheduled(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScheduledNode]:
    root = cgroup_roots().get(request.param)
    if root is None:
        pytest.skip(f"no cgroups of {request.param} can be made here")
    with node(root, Hierarchy(tmp_path)) as real:
        made = ScheduledNode(real, tmp_path / "state", monkeypatch)
        yield made
        made.isolation.close()


async def test_classes_are_set_over_restarts_and_what_was_there_comes_back_when_it_is_off(
    scheduled: ScheduledNode,
) -> None:
    batch, standard, asks = (
        scheduled.add("a"),
        scheduled.add("b", Qos.BURSTABLE),
        scheduled.add("c", Qos.BURSTABLE, scheduling_class="ours"),
    )
    await scheduled.begin()
    assert [scheduled.seen(path) for path in (batch, standard, asks)] == [[BATCH], [PLAIN], [OURS]]
    status = scheduled.isolation.status()
    assert "default/a/a: 2 threads as batch nice=9" in isolation_text(status)
    assert treatment_lines(status, "default/c/c") == ["2 threads as nice=3 io=idle"]
    # The daemon is killed; meanwhile a thread comes that no parent of its has set.
    late = scheduled.real.run(batch)
    assert scheduled.seen(batch) == [BATCH, PLAIN]
    await scheduled.restart()
    assert scheduled.seen(batch) == [BATCH]
    scheduled.real.stop(late)
    scheduled.configure(scheduling="observe")
    await scheduled.look()
    assert [scheduled.seen(path) for path in (batch, asks)] == [[PLAIN], [PLAIN]]
    assert "batch nice=9 would be set, as default/a/a is of the scheduling class batch" in isolation_text(
        scheduled.isolation.status()
    )
    scheduled.configure(scheduling="enforce")
    await scheduled.look()
    assert scheduled.seen(asks) == [OURS]
    await scheduled.restart()
    scheduled.configure(scheduling="off")
    assert not await scheduled.look()  # others may have been forked meanwhile
    assert await scheduled.look()
    assert [scheduled.seen(path) for path in (batch, asks)] == [[PLAIN], [PLAIN]]
    assert not (scheduled.folder / originals.FILE_NAME).exists()


async def test_another_configuration_and_a_plugin_change_what_threads_have(scheduled: ScheduledNode) -> None:
    path = scheduled.add("a", program=STORM)
    await scheduled.begin()
    await scheduled.looks(path, BATCH)
    scheduled.engine.heard("a" * 64, {"scheduling": "nice=3 io=be:7"})
    record = scheduled.engine.grants["a" * 64]
    assert read_record("grant", write_record(record)).asked == (("scheduling", "nice=3 io=be:7"),)
    await scheduled.looks(path, "other nice=3 io=be:7")
    scheduled.engine.release("a" * 64)
    await scheduled.looks(path, PLAIN)


async def test_refusals_of_a_class_are_one_sentence(scheduled: ScheduledNode) -> None:
    if not scheduled.real.cgroups.is_v1:
        pytest.skip("cpusets are those of v1 here")
    words = "deadline runtime=1000 deadline=20000 period=20000"
    for letter in "abc":
        path = scheduled.add(letter)
        (scheduled.real.cgroups.base / path.strip("/") / "cpuset.cpus").write_text("0")
        scheduled.engine.heard(letter * 64, {"scheduling": words})
    await scheduled.begin()
    await scheduled.look()
    notes = [note for note in scheduled.isolation.status()["notes"] if "deadline" in note]
    assert len(notes) == 1 and notes[0].startswith(
        f"3 containers cannot be scheduled as {words}: the policy deadline"
    )
    assert scheduled.isolation.status()["refusals"] == []


async def test_the_removal_of_the_package_puts_all_back(scheduled: ScheduledNode, tmp_path: Path) -> None:
    path = scheduled.add("a")
    await scheduled.begin()
    boot = tmp_path / "boot_id"
    boot.write_text(f"{scheduled.boot_id}\n")
    assert originals.put_back(scheduled.folder, scheduled.kernel, boot, scheduled.real.cgroups) == []
    assert scheduled.seen(path) == [PLAIN]
    assert not (scheduled.folder / originals.FILE_NAME).exists()
