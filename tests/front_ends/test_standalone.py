"""When the front end without calls looks for containers, and what it says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.front_ends import standalone
from cri_proxy.front_ends.late_placement import LOOKED
from cri_proxy.front_ends.standalone import HOW, POLL_S, Standalone
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.runtime import RuntimeClient
from tests.daemon.parts import parts
from tests.scenes import make_container, run


class Ended(BaseException):
    """There are no more turns."""


class Scene:
    """A front end with the parts of a daemon, whose waiting and looking is the test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.services = parts(folder, monkeypatch)
        self.looks: list[bool] = []
        self.fails: Optional[Exception] = None
        self.services.reconciler.run = self._look  # type: ignore[method-assign]
        self.front = Standalone(self.services)
        self.waits: list[float] = []
        #: What happens in each turn: nothing, or a container starts.
        self.turns: list[str] = []
        monkeypatch.setattr(standalone, "wait_within", self._wait)

    async def _look(self, with_cpusets: bool = True) -> None:
        self.looks.append(with_cpusets)
        if self.fails is not None:
            raise self.fails

    async def _wait(self, seconds: float, waited: Awaitable[Any]) -> None:
        waited.close()  # type: ignore[attr-defined]
        self.waits.append(seconds)
        if not self.turns:
            raise Ended
        turn = self.turns.pop(0)
        if not turn:
            raise asyncio.TimeoutError
        self.services.node_state.on_started(turn)

    async def run(self, *turns: str) -> None:
        self.turns = [*turns]
        with pytest.raises(Ended):
            await self.front.run()


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


async def test_a_list_is_read_often_where_no_events_tell(scene) -> None:
    await scene.run("", "", "")
    assert scene.waits == [POLL_S] * 4 and scene.looks == [False] * 3


async def test_where_events_tell_it_is_read_once_more_after_each_start_and_seldom_then(scene) -> None:
    poll_s = scene.services.config.constants.reconcile_poll_s
    assert poll_s > POLL_S
    scene.services.events.own_stream = True
    await scene.run("", "", "one", "", "")
    # After the stream has begun, and after a start, what was not there yet in the list is looked for once more.
    assert scene.waits == [POLL_S, poll_s, poll_s, POLL_S, poll_s, poll_s]
    assert len(scene.looks) == 5


async def test_once_the_stream_has_ended_the_list_is_read_often_again(scene) -> None:
    scene.services.events.own_stream = True
    await scene.run("", "")
    scene.services.events.own_stream = False
    before = len(scene.waits)
    await scene.run("")
    assert scene.waits[before:] == [POLL_S, POLL_S]


async def test_a_start_of_what_is_known_hurries_nothing(scene) -> None:
    engine = scene.services.node_state.engine
    run(engine, make_container("app", 2), "known")
    scene.services.node_state.on_started("known")
    assert not scene.front._hint.is_set()
    scene.services.node_state.on_started("new")
    assert scene.front._hint.is_set()
    scene.front._hint.clear()
    scene.services.node_state.engine = None
    scene.services.node_state.on_started("known")
    assert scene.front._hint.is_set()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RpcError(Code.UNAVAILABLE, "away"), None),
        (ValueError("a bug"), "looking for new containers fails: ValueError: a bug"),
    ],
)
async def test_a_look_that_fails_is_a_reason_if_it_is_a_bug_until_one_does_not(scene, error, reason) -> None:
    scene.fails = error
    await scene.run("")
    assert scene.services.health.reasons.get("standalone") == reason
    assert ("containers could not be looked for" in scene.services.log.events) is (reason is not None)
    scene.fails = None
    await scene.run("")
    assert "standalone" not in scene.services.health.reasons


@pytest.mark.parametrize("why", ["off", "degraded", "away"])
async def test_nothing_is_looked_for_while_there_is_no_one_to_be_asked(scene, monkeypatch, why) -> None:
    unasked = []
    monkeypatch.setattr(scene.front._arrivals, "unasked", lambda: unasked.append(why))
    if why == "off":
        scene.services.node_state.mode = "off"
    elif why == "degraded":
        scene.services.node_state.engine = None
    else:
        monkeypatch.setattr(RuntimeClient, "is_connected", False)
    await scene.run("")
    assert not scene.looks and unasked == ([] if why == "away" else [why])


async def test_that_it_has_looked_is_noted_now_and_then(scene, monkeypatch) -> None:
    noted = []
    monkeypatch.setattr(scene.front._arrivals, "note_look", lambda: noted.append(scene.now_s))
    monkeypatch.setattr(type(asyncio.get_running_loop()), "time", lambda loop: scene.now_s)
    interval_s = scene.services.config.constants.reconcile_interval_s
    for at_s in (1000.0, 1000.0 + interval_s / 2, 1000.0 + interval_s, 1001.0 + interval_s):
        scene.now_s = at_s
        await scene.front._look()
    assert noted == [1000.0, 1000.0 + interval_s]


async def test_what_it_says(scene, monkeypatch, tmp_path) -> None:
    assert (scene.front.name, scene.front.must_serve, scene.front.is_busy) == ("standalone", False, False)
    await scene.front.open()
    assert scene.services.health.doing == HOW and not scene.services.health.warnings
    assert scene.front.status() == {
        "sockets": [], "how": f"{HOW}, found by its list, read every 500 ms", "arrivals": 0
    }  # fmt: skip
    scene.services.events.own_stream = True
    assert scene.front.status()["how"] == f"{HOW}, found by the runtime's events"
    await scene.front._arrivals.welcome(scene.services.node_state.engine, {})
    await scene.front.close(1.0, 1.0)
    assert (tmp_path / LOOKED).exists()


async def test_sockets_that_it_is_given_are_closed_with_a_warning(scene, monkeypatch) -> None:
    class Listener:
        closed = 0

        def close(self) -> None:
            Listener.closed += 1

    monkeypatch.setattr(standalone, "activated", lambda environment, pid: [Listener(), Listener()])
    await scene.front.open()
    assert Listener.closed == 2
    assert any("nothing serves them" in sentence for sentence in scene.services.health.warnings)


async def test_what_is_to_be_brought_up_is_before_it_begins(scene) -> None:
    done = []

    async def work() -> None:
        done.append(scene.services.log.events[-1:])

    await scene.front.start_behind(work())
    assert done == [[HOW]]
