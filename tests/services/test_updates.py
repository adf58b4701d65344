"""The one sender: each container is told the newest that it should have, and a wait for that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Optional

import pytest
import pytest_asyncio
import structlog

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.metrics import Metrics
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.services import updates as sender
from cri_proxy.services.updates import AT_A_TIME, Updates
from policies.hygon import Hygon
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import Placement, Qos
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, constraint, host_of, make_container, run

WAIT_S = 20.0
UNAVAILABLE, INTERNAL, NOT_FOUND = Code.UNAVAILABLE, Code.INTERNAL, Code.NOT_FOUND
DEADLINE = Code.DEADLINE_EXCEEDED


class Runtime:
    """Takes what is sent when the test has it answer; notes it, as ``ID: CPUS``."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.answers: dict[str, asyncio.Future[None]] = {}

    async def update(self, update: CpusetUpdate) -> None:
        self.got.append(f"{update.id}: {format_cpus(update.placement.cpus)}")
        answer = asyncio.get_running_loop().create_future()
        assert update.id not in self.answers, "two at a time"
        self.answers[update.id] = answer
        try:
            await answer
        finally:
            del self.answers[update.id]

    def answer(self, container_id: str, code: Optional[Code] = None) -> None:
        answer = self.answers[container_id]
        if code is None:
            answer.set_result(None)
        else:
            answer.set_exception(RpcError(code, code.name.lower(), in_doubt=code is DEADLINE))


class Scene:
    """An engine with containers, and the sender that tells them."""

    def __init__(self) -> None:
        self.runtime: Any = Runtime()
        self.updates = Updates(self.runtime, Metrics("test"), structlog.get_logger())
        host = host_of(HYGON_7285_2S)
        self.engine = Engine(host, Hygon(host.topology, TOPOLOGY_AWARE), EngineOptions())
        self.updates.engine = self.engine

    def add(self, *names: str) -> None:
        for name in names:
            run(self.engine, make_container(name, limit=2), name)
        self.take_all()

    def take_all(self) -> None:
        """Containers have what they should."""
        for update in self.engine.lacking():
            self.engine.begin_update(update.id)
            self.engine.took(update.id)

    def owns(self, key: str, cpu: int) -> None:
        """It should have this CPU for itself from now on."""
        cpus = frozenset([cpu])
        place = Placement(cpus, level="core", home=cpus, exclusive=cpus)
        self.engine.amend(replace(self.engine.grants[key], placement=place), self.engine.told[key])

    def wants(self, key: str, cpus: str) -> None:
        """It should have these CPUs from now on."""
        grant = self.engine.grants[key]
        place = Placement(parse_cpus(cpus), level="ccx", home=parse_cpus(cpus))
        self.engine.put(replace(grant, placement=place))
        self.updates.wake()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.updates.close()


async def turn() -> None:
    """All that can be done now is done."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_container_that_changes_while_it_is_told_hears_only_the_last_of_it(scene) -> None:
    scene.add("c")
    for cpus in ("0-1", "2-3", "4-5", "6-7"):
        scene.wants("c", cpus)
        await turn()
    scene.runtime.answer("c")
    await turn()
    assert scene.runtime.got == ["c: 0-1", "c: 6-7"]
    scene.runtime.answer("c")
    await turn()
    assert scene.updates.pending == frozenset() and scene.engine.told["c"].cpus == parse_cpus("6-7")


async def test_no_more_than_some_at_a_time_and_those_behind_are_told_what_they_should_have_by_then(
    scene,
) -> None:
    slow = [f"slow{n}" for n in range(AT_A_TIME)]
    scene.add(*slow, "behind", "gone")
    for key in slow:
        scene.wants(key, "9")
    await turn()
    scene.wants("behind", "0-3")
    scene.wants("gone", "4")
    await turn()
    assert len(scene.runtime.answers) == AT_A_TIME
    scene.wants("behind", "0")
    scene.engine.remove("gone")
    scene.updates.wake()
    for key in slow:
        scene.runtime.answer(key)
    await turn()
    assert scene.runtime.got[AT_A_TIME:] == ["behind: 0"]


@pytest.mark.parametrize("code", [None, INTERNAL, UNAVAILABLE, DEADLINE])
async def test_what_it_should_have_by_then_is_told_however_the_one_before_ends(
    scene, code, monkeypatch
) -> None:
    monkeypatch.setattr(sender, "FIRST_PAUSE_S", 0.01)
    scene.add("c")
    scene.wants("c", "0-1")
    await turn()
    scene.wants("c", "0")
    waits = asyncio.ensure_future(until(lambda: scene.runtime.got == ["c: 0-1", "c: 0"]))
    scene.runtime.answer("c", code)
    await asyncio.wait_for(waits, WAIT_S)
    scene.runtime.answer("c")
    await turn()
    assert scene.updates.pending == frozenset() and scene.updates.refusal("c") == ""


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def test_one_that_is_refused_is_tried_again_after_a_pause_that_grows(scene) -> None:
    scene.add("c")
    scene.wants("c", "0")
    await turn()
    scene.runtime.answer("c", INTERNAL)
    await turn()
    assert scene.runtime.got == ["c: 0"] and scene.updates.pending == {"c"}
    assert scene.updates.refusal("c") == "internal"
    scene.updates.hurry({"another"})
    await turn()
    assert len(scene.runtime.got) == 1
    pauses = [scene.updates._next_pause_s["c"]]
    scene.updates.hurry()
    await turn()
    scene.runtime.answer("c", INTERNAL)
    await turn()
    pauses.append(scene.updates._next_pause_s["c"])
    assert pauses[1] == 2 * pauses[0] <= sender.LONGEST_PAUSE_S
    scene.updates.hurry({"c"})
    await turn()
    scene.runtime.answer("c")
    await turn()
    assert scene.updates.pending == frozenset() and scene.updates.refusal("c") == ""


async def test_while_the_runtime_is_away_it_is_not_asked_for_each_container(scene) -> None:
    names = [f"c{n}" for n in range(3 * AT_A_TIME)]
    scene.add(*names)
    for key in names:
        scene.wants(key, "9")
    await turn()
    for key in list(scene.runtime.answers):
        scene.runtime.answer(key, UNAVAILABLE)
    await turn()
    assert len(scene.runtime.got) == AT_A_TIME
    waits = asyncio.ensure_future(scene.updates.tried(names, WAIT_S))
    await turn()
    scene.updates.hurry()
    await turn()
    assert len(scene.runtime.got) == 2 * AT_A_TIME
    waits.cancel()


async def test_a_container_that_is_gone_is_told_nothing_more(scene) -> None:
    scene.add("c")
    scene.wants("c", "0")
    await turn()
    scene.runtime.answer("c", NOT_FOUND)
    await turn()
    assert scene.updates.pending == frozenset() and not scene.updates._pauses


async def test_nothing_is_sent_before_it_is_written_and_what_changes_meanwhile_is_written_first(
    scene,
) -> None:
    written: list[asyncio.Future[None]] = []

    async def wait() -> None:
        written.append(asyncio.get_running_loop().create_future())
        await written[-1]

    scene.add("c")
    scene.updates.written = wait
    scene.wants("c", "0-1")
    await turn()
    scene.wants("c", "0")
    written[0].set_result(None)
    await turn()
    assert scene.runtime.got == []
    written[-1].set_result(None)
    await turn()
    assert scene.runtime.got == ["c: 0"]
    scene.runtime.answer("c")


async def test_when_it_is_closed_nothing_is_on_its_way(scene) -> None:
    scene.add(*(f"c{n}" for n in range(AT_A_TIME + 1)))
    for n in range(AT_A_TIME + 1):
        scene.wants(f"c{n}", "0")
    await turn()
    await scene.updates.close()
    assert not scene.runtime.answers and not scene.engine.under_way
    scene.updates.wake()
    await turn()
    assert len(scene.runtime.got) == AT_A_TIME


async def test_what_was_on_its_way_when_it_was_closed_may_not_have_been_taken(scene) -> None:
    scene.add("c")
    scene.wants("c", "0-1")
    await turn()
    await scene.updates.close()
    assert scene.runtime.got == ["c: 0-1"]
    assert scene.engine.lacks("c")


async def test_no_wait_for_others_outlives_the_news_that_the_runtime_is_away(scene) -> None:
    names = [f"c{n}" for n in range(AT_A_TIME + 1)]
    scene.add(*names)
    for key in names:
        scene.wants(key, "0")
    await turn()
    (last,) = set(names) - scene.runtime.answers.keys()
    waiting = asyncio.ensure_future(scene.updates.tried([last], WAIT_S))
    await turn()
    assert not waiting.done()
    scene.runtime.answer(min(scene.runtime.answers), UNAVAILABLE)
    await turn()
    assert waiting.done()
    await waiting


async def test_many_are_not_looked_for_anew_after_each(scene, monkeypatch) -> None:
    names = [f"c{n}" for n in range(100)]
    scene.add(*names)
    looks: list[int] = []
    pending = scene.engine.pending
    monkeypatch.setattr(scene.engine, "pending", lambda *how: looks.append(1) or pending(*how))
    for key in names:
        scene.wants(key, "9")
    while scene.updates.pending:
        await turn()
        for key in list(scene.runtime.answers):
            scene.runtime.answer(key)
    assert len(scene.runtime.got) == len(names) and len(looks) <= 2 * AT_A_TIME


# ---------------------------------------------------------------------- waits


async def test_a_wait_for_containers_ends_when_each_has_it_or_was_tried(scene) -> None:
    scene.add("told", "refused", "goes")
    for key in ("told", "refused", "goes"):
        scene.wants(key, "0")
    waits = asyncio.ensure_future(scene.updates.tried(["told", "refused", "goes", "unknown"], WAIT_S))
    await turn()
    scene.runtime.answer("told")
    scene.runtime.answer("refused", INTERNAL)
    await turn()
    assert not waits.done()
    scene.engine.remove("goes")
    scene.updates.wake()
    scene.runtime.answer("goes")
    await asyncio.wait_for(waits, WAIT_S)


async def test_a_wait_ends_after_its_time(scene) -> None:
    scene.add("c")
    scene.wants("c", "0")
    await scene.updates.tried(["c"], 0.01)
    assert scene.updates.pending == {"c"}


OWNER = make_container("own", limit=1, qos=Qos.GUARANTEED)


@pytest.mark.parametrize("end", ["told", "gone", "refused", "no answer"])
async def test_an_owner_waits_until_others_have_left_its_cpus(scene, end) -> None:
    scene.add("app")
    cpus = scene.engine.grants["app"].cpus
    run(scene.engine, OWNER, "own", within=constraint(str(min(cpus))))
    assert scene.engine.grants["own"].exclusive and scene.engine.not_alone("own") == ("app",)
    alone = asyncio.ensure_future(
        scene.updates.alone("own", 0.05 if end in ("refused", "no answer") else WAIT_S)
    )
    await turn()
    assert not alone.done()
    if end == "gone":
        scene.engine.remove("app")
        scene.updates.wake()
    else:
        scene.runtime.answer("app", {"told": None, "refused": INTERNAL, "no answer": DEADLINE}[end])
    others = await asyncio.wait_for(alone, WAIT_S)
    assert others == (() if end in ("told", "gone") else ("app",))


async def test_no_owner_waits_for_one_that_was_refused_again(scene) -> None:
    scene.add("app")
    run(scene.engine, OWNER, "own", within=constraint(str(min(scene.engine.grants["app"].cpus))))
    for _ in range(2):
        scene.updates.hurry()
        await turn()
        scene.runtime.answer("app", INTERNAL)
        await turn()
    assert await asyncio.wait_for(scene.updates.alone("own", 1e9), WAIT_S) == ("app",)


@pytest.mark.parametrize("answer", [None, INTERNAL])
async def test_one_that_gains_what_others_own_waits_for_these_to_leave(scene, answer) -> None:
    """An owner that goes elsewhere, and one that shares what it leaves: in this order, unless the owner cannot go."""
    scene.add("app")
    cpus = scene.engine.grants["app"].cpus
    run(scene.engine, OWNER, "own")
    scene.owns("own", min(cpus))
    scene.take_all()
    scene.owns("own", 40)
    assert scene.engine.grants["app"].cpus == cpus > scene.engine.told["app"].cpus
    scene.updates.wake()
    await turn()
    assert scene.runtime.got == ["own: 40"]
    scene.runtime.answer("own", answer)
    await turn()
    assert scene.runtime.got == ["own: 40", f"app: {format_cpus(cpus)}"]
    scene.runtime.answer("app")


# ---------------------------------------------------------------------- while nothing may be placed


async def test_only_what_gives_back_is_sent_and_the_rest_when_it_may_be(scene) -> None:
    scene.add("moved", "released")
    scene.updates.switch(gives_back=True)
    scene.wants("moved", "0-1")
    scene.engine.release("released")
    scene.updates.wake()
    await turn()
    assert [line.split(":")[0] for line in scene.runtime.got] == ["released"]
    assert scene.updates.pending == {"released"}
    scene.runtime.answer("released")
    await turn()
    scene.updates.switch(gives_back=False)
    scene.updates.wake()
    await turn()
    assert scene.runtime.got[-1] == "moved: 0-1"


async def test_what_a_quota_must_find_changed_is_waited_for_before_that_is_sent(scene) -> None:
    scene.add("lifted")
    told, answers, quotas = scene.engine.told["lifted"], asyncio.Event(), list[tuple[str, int]]()
    scene.engine.amend(scene.engine.grants["lifted"], told._replace(is_lifted=True))

    async def before_quota(key: str, quota_us: int) -> None:
        quotas.append((key, quota_us))
        await answers.wait()

    scene.updates.before_quota = before_quota
    scene.updates.wake()
    await turn()
    assert quotas == [("lifted", 200_000)] and scene.runtime.got == []
    answers.set()
    await turn()
    assert len(scene.runtime.got) == 1
    scene.runtime.answer("lifted")


async def test_until_the_first_comparison_only_what_gives_back_is_sent(scene) -> None:
    scene.add("moved", "released")
    scene.updates.hold()
    scene.wants("moved", "0-1")
    scene.engine.release("released")
    scene.updates.wake()
    await turn()
    assert scene.runtime.got == []
    scene.updates.switch(gives_back=True)
    await turn()
    assert [line.split(":")[0] for line in scene.runtime.got] == ["released"]
    scene.runtime.answer("released")
    scene.updates.switch(gives_back=False)
    await turn()
    assert len(scene.runtime.got) == 1
    scene.updates.let_go()
    await turn()
    assert scene.runtime.got[1:] == ["moved: 0-1"]


async def test_while_it_is_held_nothing_begins(scene) -> None:
    scene.add("c")
    with scene.updates.held():
        scene.wants("c", "0")
        await turn()
        assert scene.runtime.got == []
    await turn()
    assert scene.runtime.got == ["c: 0"]


async def test_what_is_on_its_way_during_a_look_is_known_afterwards(scene) -> None:
    scene.add("before", "during", "after")
    scene.wants("before", "0")
    await turn()
    with scene.updates.watched() as seen:
        scene.runtime.answer("before")
        scene.wants("during", "0")
        await turn()
        scene.runtime.answer("during")
        await turn()
        assert seen >= {"before", "during"} and "after" not in seen
    scene.wants("after", "0")
    await turn()
    assert "after" not in seen
