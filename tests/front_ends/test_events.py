"""A client's stream of events is read along: what it tells is entered, kept, and counted while it lasts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.engine.model import Life
from cri_proxy.front_ends.events import EventStream
from cri_proxy.relay.interception import CallEnd
from cri_proxy.services.services import EventCount
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on, make_container, run

CREATED, STARTED = cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STARTED_EVENT
STOPPED, DELETED = cri.CONTAINER_STOPPED_EVENT, cri.CONTAINER_DELETED_EVENT


class Scene:
    """An engine with a container that was created, and a stream that tells of it."""

    def __init__(self) -> None:
        self.engine = engine_on(HYGON_7285_2S)
        run(self.engine, make_container("app", limit=2, request=1), "c")
        self.saved, self.started, self.errors = 0, list[str](), list[str]()
        self.now: Optional[Any] = self.engine
        log = SimpleNamespace(error=lambda said, **_: self.errors.append(said), info=lambda *_, **__: None)
        node_state: Any = SimpleNamespace(
            active=lambda: self.now,
            clock=lambda: 50.0,
            save=self._save,
            on_started=self.started.append,
            log=log,
        )
        self.count = EventCount(lambda: None)
        self.stream = EventStream(node_state, self.count)

    def _save(self) -> None:
        self.saved += 1

    async def tell(self, kind: int, *statuses: cri.ContainerStatus) -> None:
        event = cri.ContainerEventResponse(
            container_id="c", container_event_type=kind, containers_statuses=statuses
        )
        await self.stream.replied(event.SerializeToString())


def status(exit_code: int, container_id: str = "c", finished_at: int = 1) -> cri.ContainerStatus:
    return cri.ContainerStatus(id=container_id, exit_code=exit_code, finished_at=finished_at)


@pytest.mark.parametrize(
    ("statuses", "hold_s"),
    [
        # Once it has ended well it is not held as long as when it may come again.
        ([status(0)], 30.0),
        ([status(1)], 300.0),
        ([status(0, "another"), status(1)], 300.0),
        ([status(0, finished_at=0)], 300.0),
        ([], 300.0),
    ],
)
async def test_a_container_that_has_stopped_is_held_as_its_own_exit_code_says(statuses, hold_s) -> None:
    scene = Scene()
    await scene.tell(STOPPED, *statuses)
    (held,) = scene.engine.grants.values()
    assert held.life is Life.HELD
    assert scene.saved == 1
    scene.engine.tick(50.0 + hold_s - 1)
    assert scene.engine.grants
    scene.engine.tick(50.0 + hold_s + 1)
    assert not scene.engine.grants


async def test_one_that_has_started_is_told_on_and_one_that_is_deleted_is_gone_and_both_are_kept() -> None:
    scene = Scene()
    await scene.tell(STARTED)
    assert (scene.started, scene.saved) == (["c"], 1)
    await scene.tell(DELETED)
    assert (dict(scene.engine.grants), scene.saved) == ({}, 2)


async def test_nothing_is_kept_of_what_changes_nothing_or_comes_while_there_is_no_engine() -> None:
    scene = Scene()
    await scene.tell(CREATED)
    scene.now = None
    await scene.tell(STOPPED, status(0))
    assert (scene.saved, scene.engine.grants["c"].life) == (0, Life.RUNNING)


async def test_what_is_no_event_is_told_and_ends_nothing() -> None:
    scene = Scene()
    await scene.stream.replied(b"\xff")
    assert scene.errors == ["event not understood"]
    await scene.tell(STARTED)
    assert scene.saved == 1


async def test_a_stream_counts_from_its_request_to_its_end() -> None:
    scene = Scene()
    await scene.stream.ended(CallEnd.REFUSED, 1, "never begun")
    assert not scene.count.streams
    await scene.stream.request(b"")
    assert scene.count.streams == 1
    await scene.stream.ended(CallEnd.REFUSED, 1, "over")
    assert not scene.count.streams
