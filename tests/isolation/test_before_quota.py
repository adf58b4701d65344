"""Before a container gets another CPU quota what stands in its way is changed, after the round that is under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.isolation.io import reconciler
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.model import Setting
from policies.model import Qos
from tests.functional.support import eventually
from tests.isolation.node import IsolatedNode

Make = Callable[..., IsolatedNode]


class Follower:
    """A subject with one value. ``told``: what it was told of quotas; a round of it goes on while ``may_end`` is not set."""

    name = "cpu"

    def __init__(self, file: Path) -> None:
        self.file = file
        self.told: list[tuple[str, int, str, str]] = []
        self.is_inside, self.may_end = False, threading.Event()
        self.may_end.set()
        self.error: Optional[Exception] = None

    def settings(self, sight: Sight) -> Iterator[Setting]:
        self.is_inside = True
        self.may_end.wait(20.0)
        self.is_inside = False
        yield Setting(self.name, f"file:{self.file}", "100")

    def before_quota(self, path: str, quota_us: int, ours: Collection[str], pod: str = "") -> None:
        self.told.append((path, quota_us, pod, self.file.read_text().split()[0]))
        if self.error is not None:
            raise self.error

    def is_same(self, place: str, seen: str, value: str) -> bool:
        return False

    def notes(self) -> Sequence[str]:
        return ()


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    made: list[IsolatedNode] = []

    def one(**isolation: Any) -> IsolatedNode:
        follower = Follower(tmp_path / "burst")
        follower.file.write_text("0\n")
        options = {"caches": "off", "bandwidth": "off", "cpu": "enforce", **isolation}
        node = IsolatedNode(tmp_path, monkeypatch, subjects=lambda services: [follower], **options)
        node.follower = follower  # type: ignore[attr-defined]
        made.append(node)
        return node

    yield one
    for node in made:
        node.isolation.close()


def follower_of(node: IsolatedNode) -> Follower:
    found = node.follower  # type: ignore[attr-defined]
    assert isinstance(found, Follower)
    return found


async def running(node: IsolatedNode) -> asyncio.Future[None]:
    task = asyncio.ensure_future(node.isolation.run())
    await node.isolation.settled("")
    await eventually(lambda: follower_of(node).file.read_text().startswith("100"), "the value is there")
    return task


async def ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def test_the_cgroup_of_the_container_or_of_the_pod_is_told(make: Make) -> None:
    node = make()
    key = node.start(Qos.GUARANTEED)
    grant = node.engine.grants[key]
    pod = replace(grant.container.pod, cgroup_parent="/kubepods/pod1")
    node.engine.add_pod(pod)
    node.engine.put(replace(grant, container=replace(grant.container, pod=pod)))
    node.services.reconciler._paths[key] = "/kubepods/pod1/c"
    task = await running(node)
    await node.isolation.before_quota(key, 50)
    await node.isolation.before_quota(pod.id, 70)
    await node.isolation.before_quota("another", 50)
    assert follower_of(node).told == [
        ("/kubepods/pod1/c", 50, "/kubepods/pod1", "100"),
        ("/kubepods/pod1", 70, "", "100"),
    ]
    await ended(task)


async def test_a_round_that_is_under_way_ends_first(make: Make) -> None:
    node = make()
    key = node.start(Qos.GUARANTEED)
    node.services.reconciler._paths[key] = "/c"
    task, follower = await running(node), follower_of(node)
    follower.may_end.clear()
    follower.file.write_text("30\n")
    node.now_s += 1000.0
    node.isolation.wake()
    await eventually(lambda: follower.is_inside, "a round begins")
    told = asyncio.ensure_future(node.isolation.before_quota(key, 50))
    await asyncio.sleep(0)
    assert not follower.told and not told.done()
    follower.may_end.set()
    await told
    assert follower.told == [("/c", 50, "", "100")]
    await ended(task)


async def test_no_call_waits_for_long_and_none_fails(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    key = node.start(Qos.GUARANTEED)
    node.services.reconciler._paths[key] = "/c"
    task, follower = await running(node), follower_of(node)
    follower.error = RuntimeError("a bug")
    await node.isolation.before_quota(key, 50)
    assert len(follower.told) == 1
    follower.error = None
    follower.may_end.clear()
    node.now_s += 1000.0
    node.isolation.wake()
    await eventually(lambda: follower.is_inside, "a round begins")
    monkeypatch.setattr(reconciler, "QUOTA_S", 0.0)
    await node.isolation.before_quota(key, 50)
    assert len(follower.told) == 1
    follower.may_end.set()
    await ended(task)


async def test_where_the_subject_is_off_and_nothing_is_left_no_quota_waits(make: Make) -> None:
    node = await make(cpu="off").begin()
    key = node.start(Qos.GUARANTEED)
    node.services.reconciler._paths[key] = "/c"
    await node.isolation.before_quota(key, 50)
    assert not follower_of(node).told
