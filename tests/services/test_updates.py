"""Updates of other containers: the last that is wanted is sent, and a caller that waits for it returns once it is made."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import structlog

from cri_proxy.engine.records import CpusetUpdate
from cri_proxy.metrics import Metrics
from cri_proxy.services.updates import AT_A_TIME, Updates
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import Placement

WAIT_S = 20.0


class Runtime:
    """Takes what is sent when the test has it answer; notes it, as ``ID: CPUS``."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.answers: dict[str, asyncio.Future[None]] = {}

    async def update(self, update: CpusetUpdate) -> None:
        self.got.append(f"{update.id}: {format_cpus(update.placement.cpus)}")
        answer = asyncio.get_running_loop().create_future()
        self.answers[update.id] = answer
        await answer

    def answer(self, container_id: str, code: Optional[grpc.StatusCode] = None) -> None:
        answer = self.answers.pop(container_id)
        if code is None:
            answer.set_result(None)
        else:
            nothing = grpc.aio.Metadata()
            answer.set_exception(grpc.aio.AioRpcError(code, nothing, nothing, details=code.name.lower()))


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest_asyncio.fixture
async def updates(runtime: Any) -> Updates:
    """Made in a loop: before Python 3.10 its gate belongs to the one it is made in."""
    return Updates(runtime, Metrics("test"), structlog.get_logger())


def update(container_id: str, cpus: str) -> CpusetUpdate:
    return CpusetUpdate(container_id, Placement(cpus=parse_cpus(cpus)), False, "a test")


async def turn() -> None:
    """All that can be done now is done."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_that_is_wanted_as_the_one_before_it_ends_is_sent(updates, runtime) -> None:
    updates.send([update("c", "0-1")])
    await turn()
    answered = runtime.answers["c"]

    async def make_room() -> None:
        await answered  # woken in the same turn as the delivery, and behind it
        await updates.send_and_wait([update("c", "0")], WAIT_S)

    room = asyncio.ensure_future(make_room())
    await turn()
    runtime.answer("c")
    await turn()
    assert runtime.got == ["c: 0-1", "c: 0"] and not room.done()
    runtime.answer("c")
    await room
    assert updates.pending == frozenset()


async def test_what_has_waited_behind_others_is_sent_as_it_is_wanted_by_then(updates, runtime) -> None:
    updates.send(update(f"slow{n}", "9") for n in range(AT_A_TIME))
    updates.send([update("grows", "0-3"), update("gone", "4")])
    await turn()
    updates.send([update("grows", "0")])
    updates.forget("gone")
    for n in range(AT_A_TIME):
        runtime.answer(f"slow{n}")
    await turn()
    assert runtime.got[AT_A_TIME:] == ["grows: 0"]
    runtime.answer("grows")
    await turn()
    assert updates.pending == frozenset()


ENDS = {"is done": None, "fails": grpc.StatusCode.INTERNAL, "is not answered": grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
async def test_a_later_one_is_tried_however_the_earlier_ends(updates, runtime, code) -> None:
    updates.send([update("c", "0-1")])
    await turn()
    room = asyncio.ensure_future(updates.send_and_wait([update("c", "0")], WAIT_S))
    await turn()
    runtime.answer("c", code)
    await turn()
    assert runtime.got == ["c: 0-1", "c: 0"] and not room.done()
    runtime.answer("c")
    await room
    assert updates.pending == frozenset() and updates.refusal("c") == ""


async def test_the_same_again_is_sent_again(updates, runtime) -> None:
    updates.send([update("c", "0")])
    await turn()
    updates.send([update("c", "0")])
    for _ in range(2):
        runtime.answer("c")
        await turn()
    assert runtime.got == ["c: 0", "c: 0"] and updates.pending == frozenset()


async def test_one_that_fails_waits_for_a_retry_and_what_was_refused_is_known(updates, runtime) -> None:
    updates.send([update("c", "0")])
    await turn()
    runtime.answer("c", grpc.StatusCode.INTERNAL)
    await turn()
    assert runtime.got == ["c: 0"] and updates.pending == {"c"} and updates.refusal("c") == "internal"
    updates.retry()
    await turn()
    assert runtime.got == ["c: 0", "c: 0"] and updates.refusal("c") == ""
    runtime.answer("c")
    await turn()
    assert updates.pending == frozenset()


async def test_a_container_that_is_gone_is_wanted_nowhere(updates, runtime) -> None:
    updates.send([update("c", "0")])
    await turn()
    runtime.answer("c", grpc.StatusCode.NOT_FOUND)
    await turn()
    assert updates.pending == frozenset()


async def test_when_it_is_closed_nothing_is_on_its_way(updates, runtime) -> None:
    updates.send(update(f"c{n}", "0") for n in range(AT_A_TIME + 1))
    await turn()
    await updates.close()
    assert updates._sending == {}


# ---------------------------------------------------------------------- while nothing may be sent


async def test_what_waits_is_dropped_and_what_comes_is_not_sent(updates, runtime) -> None:
    flying = [f"flying{n}" for n in range(AT_A_TIME)]
    updates.send(update(key, "1") for key in (*flying, "behind"))
    await turn()
    updates.park(True)
    updates.send([update("later", "1"), update(flying[0], "2")])
    updates.overtaken(update(flying[1], "3"))
    for key in flying:
        runtime.answer(key, grpc.StatusCode.UNAVAILABLE)
    await turn()
    updates.retry()
    await asyncio.wait_for(updates.send_and_wait([update("later", "1")], WAIT_S), WAIT_S)
    assert sorted(runtime.got) == sorted(f"{key}: 1" for key in flying)
    assert updates.pending == frozenset()
    updates.park(False)
    updates.send([update("later", "1")])
    await turn()
    assert runtime.got[-1] == "later: 1"


async def test_what_a_command_asks_for_is_sent_all_the_same(updates, runtime) -> None:
    updates.park(True)
    asked = asyncio.ensure_future(updates.send_and_wait([update("c", "0-7")], WAIT_S, by_command=True))
    await turn()
    runtime.answer("c", grpc.StatusCode.UNAVAILABLE)
    await asked
    updates.retry()
    await turn()
    runtime.answer("c")
    await turn()
    assert (runtime.got, updates.pending) == (["c: 0-7", "c: 0-7"], frozenset())
