"""A round: what is looked at, in which order, what may change by it, and when the next one is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.daemon import maintenance
from cri_proxy.daemon.maintenance import (
    ABSENT_S,
    BOOKS_AGAIN_S,
    FIND_S,
    IDENTIFY_AGAIN_S,
    RETRY_S,
    Maintenance,
)
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Life
from cri_proxy.front_ends.placer import Placer
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.runtime import NoRuntime, RuntimeClient
from policies.model import NO_CONSTRAINT
from tests.daemon.parts import parts
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on, make_container, make_pod, run


class Ended(BaseException):
    """There are no more turns."""


class Scene:
    """Rounds whose parts tell what they are asked to do."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.services = services = parts(folder, monkeypatch)
        self.done: list[str] = []
        self.fails: Optional[Exception] = None
        self.comes_up, self.broken = False, [()]
        self.waits: list[float] = []
        self.turns: list[str] = []
        assembly: Any = SimpleNamespace(follow_machine=self._async("machine"))
        services.reconciler.run = self._compare  # type: ignore[method-assign]
        services.store.checkpoint = self._async("checkpoint")  # type: ignore[method-assign]
        services.node_state.updates.hurry = self._plain("hurry")  # type: ignore[method-assign]
        services.node_state.save = self._plain("save")  # type: ignore[method-assign]
        services.runtime.api = "runtime.v1"
        for name in ("tick", "relieve"):
            monkeypatch.setattr(Engine, name, self._of_engine(name))
        monkeypatch.setattr(Engine, "mend_slices", lambda engine, now_s: self._mend())
        self.rounds = Maintenance(services, assembly, self._bring_up, self._async("afterwards"))
        monkeypatch.setattr(maintenance, "wait_within", self._wait)

    def _async(self, name: str) -> Any:
        async def step() -> None:
            self.done.append(name)

        return step

    def _plain(self, name: str) -> Any:
        return lambda *_: self.done.append(name)

    def _of_engine(self, name: str) -> Any:
        return lambda engine, now_s: self.done.append(
            name if engine is self.services.node_state.engine else f"{name} of another"
        )

    def _mend(self) -> Iterator[tuple[str, ...]]:
        for broken in self.broken:
            self.done.append("mend")
            yield broken

    async def _compare(self, with_cpusets: bool = True) -> None:
        self.done.append("compare all" if with_cpusets else "compare")
        if self.fails is not None:
            raise self.fails

    async def _bring_up(self) -> bool:
        self.done.append("bring up")
        if self.comes_up:
            self.services.node_state.engine = engine_on(HYGON_7285_2S)
        return self.comes_up

    async def _wait(self, seconds: float, waited: Awaitable[Any]) -> None:
        waited.close()  # type: ignore[attr-defined]
        self.waits.append(seconds)
        if not self.turns:
            raise Ended
        if self.turns.pop(0) == "look":
            self.services.look.set()
        else:
            raise asyncio.TimeoutError

    async def once(self, full: bool) -> tuple[bool, list[str]]:
        """Whether a round has left nothing open, and what it has done."""
        self.done = []
        return await self.rounds._reconcile_once(full), self.done

    async def run(self, *turns: str) -> None:
        self.turns = [*turns]
        with pytest.raises(Ended):
            await self.rounds.reconcile()


FULL = ["machine", "hurry", "checkpoint", "compare all", "tick"]


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


# ---------------------------------------------------------------------- what one does


async def test_containers_move_from_an_engines_second_round_on(scene) -> None:
    assert await scene.once(True) == (True, [*FULL, "save"])
    assert await scene.once(True) == (True, [*FULL, "relieve", "save", "mend", "save", "save"])
    scene.services.node_state.engine = engine_on(HYGON_7285_2S)
    assert await scene.once(True) == (True, [*FULL, "save"])


@pytest.mark.parametrize("why", ["books", "observe", "list"])
async def test_none_moves_while_it_is_not_known_what_runs_or_nothing_is_to_be_placed(scene, why) -> None:
    await scene.once(True)
    if why == "books":
        scene.services.node_state.books.why = "it was said"
    elif why == "observe":
        scene.services.node_state.mode = "observe"
    else:
        scene.fails = RpcError(Code.INTERNAL, "broken")
    _, done = await scene.once(True)
    assert "relieve" not in done and ("mend" in done) is (why == "list")
    scene.services.node_state.books.why, scene.services.node_state.mode, scene.fails = "", "enforce", None
    _, done = await scene.once(True)
    # A round by books that were not true is none that an engine has gone through.
    assert ("relieve" in done) is (why != "books")


@pytest.mark.parametrize(
    ("streams", "own", "compares"), [(0, False, True), (1, False, False), (0, True, False)]
)
async def test_between_full_rounds_the_list_is_read_where_no_events_tell(
    scene, streams, own, compares
) -> None:
    scene.services.events.streams, scene.services.events.own_stream = streams, own
    is_settled, done = await scene.once(False)
    assert (is_settled, done) == (True, [*["compare"] * compares, "tick", "save"])
    assert "compare all" in (await scene.once(True))[1]


async def test_a_runtime_that_is_not_known_yet_is_not_asked(scene) -> None:
    scene.services.runtime.api = ""
    assert "compare all" not in (await scene.once(True))[1]


@pytest.mark.parametrize("connected", [True, False])
async def test_a_list_that_cannot_be_had_is_a_reason_unless_the_runtime_is_away(
    scene, monkeypatch, connected
) -> None:
    monkeypatch.setattr(RuntimeClient, "is_connected", connected)
    compared = []
    scene.services.node_state.note_compared = lambda is_done=True: compared.append(is_done)
    scene.fails = RpcError(Code.INTERNAL, "broken")
    is_settled, done = await scene.once(True)
    # One that is away is looked at when it is back.
    assert is_settled is not connected and "tick" in done and compared == [False]
    reason = {"list": "the runtime does not list its containers: broken"} if connected else {}
    assert scene.services.health.reasons == reason and scene.rounds.listed_s is None
    assert scene.services.metrics.resyncs.labels("failed").value == 1
    scene.fails = None
    await scene.once(True)
    assert not scene.services.health.reasons and scene.rounds.listed_s is not None


@pytest.mark.parametrize("connected", [True, False])
async def test_a_request_in_doubt_leaves_something_open_while_the_runtime_is_there(
    scene, monkeypatch, connected
) -> None:
    monkeypatch.setattr(RuntimeClient, "is_connected", connected)
    creation = Placer(scene.services.node_state.engine).create(
        make_container("app", 2), NO_CONSTRAINT, 0.0, True
    )
    assert (await scene.once(True))[0] is True
    creation.unknown()
    assert (await scene.once(True))[0] is not connected


@pytest.mark.parametrize("how", ["degraded", "comes up", "off", "comes up off"])
async def test_without_an_engine_one_is_brought_up_and_what_is_off_is_left(scene, how) -> None:
    scene.comes_up = "comes up" in how
    if "off" in how:
        scene.services.node_state.mode = "off"
    if how != "off":
        scene.services.node_state.engine = None
    is_settled, done = await scene.once(True)
    assert is_settled and done == (
        [*["bring up"] * (how != "off"), *([*FULL, "save"] if how == "comes up" else [])]
    )


async def test_an_engine_that_comes_while_the_list_is_read_is_the_one_that_goes_on(scene) -> None:
    async def compare(with_cpusets: bool = True) -> None:
        scene.services.node_state.engine = engine_on(HYGON_7285_2S)

    await scene.once(True)
    scene.services.reconciler.run = compare
    _, done = await scene.once(True)
    assert "tick" in done and "relieve" not in done and "mend" not in done


async def test_what_is_broken_is_mended_a_slice_at_a_time_as_long_as_that_may_be(scene) -> None:
    def observe() -> None:
        if scene.done[-1] == "mend":
            scene.services.node_state.mode = "observe"

    await scene.once(True)
    scene.broken = [("it is broken",), (), ()]
    _, done = await scene.once(True)
    assert done[-7:] == [*["mend", "save"] * 3, "save"]
    assert scene.services.log.events.count("invariants were broken") == 1
    scene.services.node_state.save = observe
    _, done = await scene.once(True)
    assert done.count("mend") == 1


async def test_the_newest_pod_tells_where_kubelets_cgroup_is(scene, monkeypatch) -> None:
    noted = []
    monkeypatch.setattr(type(scene.services.machine), "note_cgroup", lambda _, p: noted.append(p) or True)
    engine = scene.services.node_state.engine
    for name in ("old", "new"):
        engine.add_pod(make_pod(name))
    await scene.once(False)
    assert noted == [engine.pods["sandbox-new"].cgroup_parent] and scene.done.count("machine") == 1
    monkeypatch.setattr(type(scene.services.machine), "note_cgroup", lambda _, p: False)
    await scene.once(False)
    assert scene.done.count("machine") == 0


async def test_quotas_that_have_drifted_are_lifted_again_but_of_what_is_being_told(
    scene, monkeypatch
) -> None:
    engine = scene.services.node_state.engine
    for key in ("a", "b"):
        run(engine, make_container(key, 2), key)
    seen = []
    monkeypatch.setattr(Engine, "saw", lambda _, key, **what: seen.append((key, what)))
    engine.under_way["b"] = None
    scene.services.node_state.quotas = SimpleNamespace(
        drifted=lambda grants, where: [("a", False, "limited"), ("b", False, "limited")],
        sentences=lambda pods: ["look"],
        follow=lambda *_, **__: scene.done.append("quotas"),
        taken={},
    )
    _, done = await scene.once(True)
    assert "quotas" in done and seen == [("a", {"is_lifted": False, "cause": "limited"})]
    assert scene.services.health.warnings == ["look"]


# ---------------------------------------------------------------------- when


async def test_the_first_round_is_full_and_so_is_one_that_something_asks_for(scene, monkeypatch) -> None:
    fulls = []

    async def once(full: bool) -> bool:
        fulls.append(full)
        return True

    now_s = 1000.0
    monkeypatch.setattr(type(asyncio.get_running_loop()), "time", lambda loop: now_s)
    monkeypatch.setattr(scene.rounds, "_reconcile_once", once)
    poll_s = scene.services.config.constants.reconcile_poll_s
    await scene.run("", "", "look", "")
    assert fulls == [True, False, True, False] and scene.waits == [poll_s] * 5
    assert not scene.services.look.is_set() and scene.done.count("afterwards") == 4


async def test_a_full_round_is_made_again_after_its_interval(scene, monkeypatch) -> None:
    now_s, fulls = 1000.0, list[bool]()
    interval_s = scene.services.config.constants.reconcile_interval_s

    async def once(full: bool) -> bool:
        nonlocal now_s
        fulls.append(full)
        now_s += interval_s / 2
        return True

    monkeypatch.setattr(type(asyncio.get_running_loop()), "time", lambda loop: now_s)
    monkeypatch.setattr(scene.rounds, "_reconcile_once", once)
    await scene.run("", "", "", "", "")
    assert fulls == [True, False, True, False, True]


async def test_while_it_is_not_known_what_is_owned_rounds_are_full_and_soon(scene) -> None:
    scene.services.node_state.books.why = "it was said"
    scene.rounds._reconcile_once = scene_round(scene)
    await scene.run("", "")
    assert scene.waits == [BOOKS_AGAIN_S] * 3 and scene.fulls == [True, True]


async def test_without_an_engine_rounds_are_seldom(scene) -> None:
    scene.services.node_state.engine = None
    scene.rounds._reconcile_once = scene_round(scene)
    await scene.run("")
    assert scene.waits == [RETRY_S] * 2


def scene_round(scene: Any) -> Any:
    scene.fulls = []

    async def once(full: bool) -> bool:
        scene.fulls.append(full)
        return True

    return once


async def test_a_round_that_fails_is_a_reason_and_the_next_one_is_made(scene) -> None:
    compared = []
    scene.services.node_state.note_compared = lambda is_done=True: compared.append(is_done)
    looks = []
    scene.rounds._looks = SimpleNamespace(compared=lambda is_settled, most_s: looks.append(is_settled))
    scene.fails = ValueError("a bug")
    await scene.run("")
    reason = "comparing with the runtime fails: ValueError: a bug"
    assert scene.services.health.reasons == {"reconcile": reason} and compared == [False]
    assert "a comparison with the runtime failed" in scene.services.log.events
    scene.fails = None
    await scene.run("")
    assert not scene.services.health.reasons and looks == [False, True]


# ---------------------------------------------------------------------- the runtime


class Sleeps:
    """Stands in for the module asyncio: its sleeps are counted, and end what goes on by themselves at last."""

    def __init__(self, most: int) -> None:
        self.slept: list[float] = []
        self._most = most

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) > self._most:
            raise Ended
        await asyncio.sleep(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


async def test_a_runtime_is_asked_what_it_is_each_time_it_is_there(scene, monkeypatch) -> None:
    said: list[Any] = []
    answers = iter([RpcError(Code.UNIMPLEMENTED, "unknown service"), None, None])
    sleeps = Sleeps(5)

    async def identify() -> None:
        said.append(scene.services.runtime.api)
        if (error := next(answers)) is not None:
            raise error
        scene.services.runtime.api = "runtime.v1"

    async def ready() -> None:
        said.append("ready")

    async def lost() -> None:
        said.append(("lost", dict(scene.services.health.reasons), scene.services.look.is_set()))
        scene.services.look.clear()
        if said.count("returned") == 2:
            raise Ended

    monkeypatch.setattr(maintenance, "asyncio", sleeps)
    runtime = scene.services.runtime
    runtime.identify, runtime.wait_ready, runtime.wait_lost = identify, ready, lost
    with pytest.raises(Ended):
        await scene.rounds.follow_runtime(lambda: said.append("returned"))
    over = ["ready", "", "returned", ("lost", {}, True)]
    assert said == ["ready", "", *over, *over] and sleeps.slept == [IDENTIFY_AGAIN_S]
    assert "degraded" in scene.services.log.events and "recovered" in scene.services.log.events


async def test_a_runtime_that_is_away_for_a_while_is_a_reason_unless_there_is_one(scene, monkeypatch) -> None:
    timers: list[Any] = []

    class Loop:
        def call_later(self, seconds: float, then: Any) -> Any:
            timers.append([seconds, then, False])
            return SimpleNamespace(cancel=lambda: timers[-1].__setitem__(2, True))

    monkeypatch.setattr(maintenance, "asyncio", SimpleNamespace(get_running_loop=Loop))

    async def ready() -> None:
        pass

    scene.services.runtime.wait_ready = ready
    await scene.rounds._until_connected()
    [(seconds, then, is_cancelled)] = timers
    assert (seconds, is_cancelled) == (ABSENT_S, True)
    then()
    assert "none.sock" in scene.services.health.reasons["runtime"]
    scene.services.health.note("runtime", "a sentence that says more")
    then()
    assert scene.services.health.reasons["runtime"] == "a sentence that says more"


async def test_a_runtime_is_looked_for_until_there_is_one(scene, monkeypatch) -> None:
    answers, found = iter([NoRuntime("none"), NoRuntime("none"), "/there"]), []

    def discover(endpoint: str, candidates: tuple[str, ...]) -> str:
        assert (endpoint, candidates) == ("", ("/here", "/there"))
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(maintenance, "asyncio", sleeps := Sleeps(5))
    monkeypatch.setattr(maintenance, "discover", discover)
    await scene.rounds.find_runtime(("/here", "/there"), found.append)
    assert found == ["/there"] and sleeps.slept == [FIND_S] * 3


async def test_the_watchdog_is_told_before_each_pause(scene, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(maintenance, "asyncio", sleeps := Sleeps(2))
    monkeypatch.setattr(maintenance, "notify", said.append)
    with pytest.raises(Ended):
        await scene.rounds.watchdog(7.5)
    assert said == ["WATCHDOG=1"] * 3 and sleeps.slept == [7.5] * 3


# ---------------------------------------------------------------------- events


class Events:
    """A runtime's stream of events: a container stops in each."""

    def __init__(self, scene: Scene, *ids: str, error: Optional[Exception] = None) -> None:
        self.read: list[tuple[str, bool]] = []
        self.opened = 0
        self._scene, self._ids, self._error = scene, ids, error
        scene.services.runtime.events = self.events  # type: ignore[method-assign]
        scene.services.runtime.events_can_be_shared = lambda: True  # type: ignore[method-assign]

    async def events(self) -> AsyncIterator[cri.ContainerEventResponse]:
        self.opened += 1
        for key in self._ids:
            self.read.append((key, self._scene.services.events.own_stream))
            yield cri.ContainerEventResponse(
                container_id=key, container_event_type=cri.CONTAINER_STOPPED_EVENT
            )
        if self._error is not None:
            raise self._error


async def read(scene: Scene, monkeypatch: pytest.MonkeyPatch, turns: int = 1) -> None:
    monkeypatch.setattr(maintenance, "asyncio", Sleeps(turns))
    with pytest.raises(Ended):
        await scene.rounds.read_events()
    assert not scene.services.events.own_stream


def running(scene: Scene, *keys: str) -> Engine:
    engine = scene.services.node_state.engine
    assert engine is not None
    for key in keys:
        run(engine, make_container(key, 2), key)
    return engine


def lives(engine: Engine) -> dict[str, Life]:
    return {key: grant.life for key, grant in engine.grants.items()}


async def test_an_event_stream_of_our_own_is_read_where_no_client_has_one(scene, monkeypatch) -> None:
    engine = running(scene, "a", "b")
    events = Events(scene, "a", "b")
    await read(scene, monkeypatch)
    assert events.read == [("a", True), ("b", True)] and set(lives(engine).values()) == {Life.HELD}


@pytest.mark.parametrize("why", ["off", "client", "not shared"])
async def test_no_stream_is_read_where_that_is_a_clients_or_takes_from_one(scene, monkeypatch, why) -> None:
    events = Events(scene, "a")
    if why == "off":
        scene.services.node_state.mode = "off"
    elif why == "client":
        scene.services.events.streams = 1
    else:
        scene.services.runtime.events_can_be_shared = lambda: False
    await read(scene, monkeypatch, 3)
    assert not events.opened


@pytest.mark.parametrize("why", ["client", "engine"])
async def test_a_stream_ends_when_a_client_has_one_or_another_engine_is_there(
    scene, monkeypatch, why
) -> None:
    engine = running(scene, "a", "b")
    events = Events(scene, "a", "b")

    def come(node_state: Any, of: Engine, event: Any) -> None:
        assert of is engine
        if why == "client":
            scene.services.events.streams = 1
        else:
            scene.services.node_state.engine = engine_on(HYGON_7285_2S)

    monkeypatch.setattr(maintenance, "note_event", come)
    await read(scene, monkeypatch)
    assert [key for key, _ in events.read] == ["a"]


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [(RpcError(Code.UNAVAILABLE, "away"), False), (ValueError("rubbish"), False), (KeyError("a bug"), True)],
)
async def test_a_stream_that_fails_is_opened_again(scene, monkeypatch, error, is_logged) -> None:
    events = Events(scene, error=error)
    await read(scene, monkeypatch, 3)
    assert events.opened == 3
    assert ("an event could not be followed" in scene.services.log.events) is is_logged
