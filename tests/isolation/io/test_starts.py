"""A container is in its group before it starts, where that can be; its start waits for no more, and never fails for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.isolation.io import starts as module
from cri_proxy.isolation.io.starts import Starts
from cri_proxy.services.services import Services
from policies.model import NO_CONSTRAINT
from tests.daemon.parts import parts
from tests.scenes import make_container, make_pod

BATCH = "cri-resmgr.batch"
POD = replace(make_pod("p"), cgroup_parent="/kubepods/besteffort/podp")
CGROUP = "/kubepods/besteffort/podp"


class TasksOfStarts:
    """What is done at starts. ``has_threads``: the container waits for its start; ``has_shim``: its pod has one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.has_threads = False
        self.has_shim = False
        self.cgroup = ""
        #: How many looks it takes until a cgroup that is there has threads.
        self.looks = 0
        self.caught = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        #: While it is cleared nothing can be moved.
        self.may = threading.Event()
        self.may.set()

    def begin(self, key: str, pod: str, group: str) -> bool:
        self.may.wait(20)
        self.calls.append(("begin", key, pod, group))
        return self.has_threads

    def begin_by_shim(self, key: str, pod: str, sandbox_id: str, group: str) -> bool:
        self.calls.append(("shim", key, pod, sandbox_id, group))
        return self.has_shim

    def cgroup_of(self, key: str, pod: str) -> str:
        return self.cgroup

    def catch(self, key: str, path: str, group: str) -> bool:
        self.looks -= 1
        if self.looks > 0:
            return False
        self.calls.append(("catch", key, path, group))
        self._loop.call_soon_threadsafe(self.caught.set)
        return True


class Scene:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.tasks = TasksOfStarts()
        self.groups: dict[str, str] = {}
        tasks: Any = self.tasks
        self.starts = Starts(services, tasks, self.settled, lambda key: self.groups.get(key, ""))
        self.is_settled: Optional[asyncio.Event] = None

    async def settled(self, key: str) -> str:
        if self.is_settled is not None:
            await self.is_settled.wait()
        return self.groups.get(key, "")

    def add(self, name: str, group: str) -> str:
        engine = self.services.node_state.engine
        assert engine is not None
        key = f"id-{name}"
        engine.bind(engine.admit(make_container(name, pod=POD), NO_CONSTRAINT, 0.0).ticket, key, 0.0)
        self.groups[key] = group
        return key


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(module, "START_S", 20.0)
    made = Scene(parts(tmp_path, monkeypatch))
    yield made
    await made.starts.close()


async def test_what_waits_for_its_start_is_moved_and_the_shim_for_what_comes_later(scene: Scene) -> None:
    key = scene.add("a", BATCH)
    scene.tasks.has_threads = True
    await scene.starts.before(key)
    assert scene.tasks.calls == [
        ("begin", key, CGROUP, BATCH),
        ("shim", key, CGROUP, "sandbox-p", BATCH),
    ]


@pytest.mark.parametrize("others", ["", "cri-resmgr.gold"])
async def test_where_containers_of_a_pod_are_of_several_groups_the_shim_is_none_and_the_cgroup_is_looked_for(
    scene: Scene, others: str
) -> None:
    key = scene.add("a", BATCH)
    scene.add("b", others)
    scene.tasks.has_shim, scene.tasks.looks = True, 3
    await scene.starts.before(key)
    assert scene.tasks.calls == [("begin", key, CGROUP, BATCH), ("shim", key, CGROUP, "sandbox-p", "")]
    scene.tasks.cgroup = f"{CGROUP}/{key}"
    await asyncio.wait_for(scene.tasks.caught.wait(), 20)
    assert scene.tasks.calls[2:] == [("catch", key, f"{CGROUP}/{key}", BATCH)]


async def test_where_the_shim_is_in_the_group_nothing_is_looked_for(scene: Scene) -> None:
    key = scene.add("a", BATCH)
    other = scene.add("gone", "")
    engine = scene.services.node_state.engine
    assert engine is not None
    engine.exited(other, 1, 0.0)
    scene.tasks.has_shim, scene.tasks.cgroup = True, f"{CGROUP}/{key}"
    await scene.starts.before(key)
    await scene.starts.close()
    assert scene.tasks.calls == [("begin", key, CGROUP, BATCH), ("shim", key, CGROUP, "sandbox-p", BATCH)]


async def test_a_container_of_no_group_is_not_looked_for(scene: Scene) -> None:
    key = scene.add("a", "")
    scene.tasks.cgroup = f"{CGROUP}/{key}"
    await scene.starts.before(key)
    await scene.starts.close()
    assert [call[0] for call in scene.tasks.calls] == ["begin", "shim"]


@pytest.mark.parametrize("what", ["the plan", "a write"])
async def test_a_start_waits_no_longer_than_it_may(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(module, "START_S", 0.0)
    key = scene.add("a", BATCH)
    if what == "the plan":
        scene.is_settled = asyncio.Event()
    else:
        scene.tasks.may.clear()
    scene.tasks.cgroup = f"{CGROUP}/{key}"
    await scene.starts.before(key)
    assert scene.starts.status() == {"late": 1}
    # It is moved all the same, as soon as that can be.
    scene.tasks.may.set()
    if scene.is_settled is not None:
        assert not scene.tasks.caught.is_set()
        scene.is_settled.set()
    await asyncio.wait_for(scene.tasks.caught.wait(), 20)
    # By the shim first: its container may have no process yet.
    shim = scene.tasks.calls.index(("shim", key, CGROUP, "sandbox-p", BATCH))
    assert ("catch", key, f"{CGROUP}/{key}", BATCH) in scene.tasks.calls[shim:]


async def test_a_failure_of_ours_is_logged_and_the_start_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: str) -> bool:
        raise ValueError("a bug")

    monkeypatch.setattr(scene.tasks, "begin", fail)
    await scene.starts.before(scene.add("a", BATCH))
    log: Any = scene.services.log
    assert log.events == ["a container starts outside its group"]


async def test_what_is_not_known_or_in_no_cgroup_of_kubelets_is_let_be(scene: Scene) -> None:
    await scene.starts.before("unknown")
    engine = scene.services.node_state.engine
    assert engine is not None
    engine.bind(engine.admit(make_container("x"), NO_CONSTRAINT, 0.0).ticket, "x", 0.0)
    await scene.starts.before("x")
    assert scene.tasks.calls == []
