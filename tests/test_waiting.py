"""Waiting for a time: neither a cancellation nor a result is lost to what comes in the same turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Callable

import pytest

from cri_api.waiting import wait_within

LONG_S = 60.0

#: What is waited for, made of a future that the test completes.
KINDS: dict[str, Callable[[asyncio.Future[int]], Awaitable[int]]] = {
    "a future": lambda future: future,
    "a coroutine": lambda future: _result_of(future),
    "a task": lambda future: asyncio.ensure_future(_result_of(future)),
}


async def _result_of(future: asyncio.Future[int]) -> int:
    return await future


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Callable[[asyncio.Future[int]], Awaitable[int]]:
    return KINDS[request.param]


Kind = Callable[[asyncio.Future[int]], Awaitable[int]]


def a_future() -> asyncio.Future[int]:
    return asyncio.get_running_loop().create_future()


async def turns(count: int) -> None:
    """So many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_result_is_returned_and_an_exception_raised(kind: Kind) -> None:
    inner = a_future()
    waiting = asyncio.ensure_future(wait_within(LONG_S, kind(inner)))
    await turns(2)
    inner.set_result(7)
    assert await waiting == 7
    inner = a_future()
    inner.set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await wait_within(LONG_S, kind(inner))


@pytest.mark.parametrize("between", range(4))
async def test_a_cancellation_that_comes_with_the_result_is_raised(kind: Kind, between: int) -> None:
    """``asyncio.wait_for`` of Python 3.9 to 3.11 goes on."""
    inner = a_future()
    went_on = asyncio.Event()

    async def caller() -> None:
        await wait_within(LONG_S, kind(inner))
        went_on.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(caller())
    await turns(3)
    inner.set_result(1)
    await turns(between)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Where it did go on, it had its result before.
    assert between or not went_on.is_set()


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9])
async def test_what_is_late_is_cancelled_and_has_ended(kind: Kind, seconds: float) -> None:
    inner = a_future()
    with pytest.raises(asyncio.TimeoutError):
        await wait_within(seconds, kind(inner))
    assert inner.cancelled()


async def test_a_result_that_comes_with_the_end_of_the_time_is_not_lost() -> None:
    """``asyncio.wait_for`` from Python 3.12 on raises TimeoutError."""
    inner = a_future()
    waiting = asyncio.ensure_future(wait_within(1e-9, inner))
    await turns(1)
    # The time ends first, and in the same turn of the loop.
    asyncio.get_running_loop().call_later(0, inner.set_result, 3)
    assert await waiting == 3


async def test_a_done_future_has_its_result_also_without_time() -> None:
    inner = a_future()
    inner.set_result(5)
    assert await wait_within(0.0, inner) == 5
    assert await wait_within(-1.0, inner) == 5


async def test_what_ends_with_a_result_when_it_is_cancelled_has_that_returned() -> None:
    """A coroutine that has acquired something hands it over."""

    async def acquires() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 9
        return 0

    assert await wait_within(0.0, acquires()) == 9
    assert await wait_within(0.0, asyncio.ensure_future(acquires())) == 9


async def test_a_cancelled_caller_leaves_nothing_running(kind: Kind) -> None:
    inner = a_future()
    waiting = asyncio.ensure_future(wait_within(LONG_S, kind(inner)))
    await turns(3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert inner.cancelled()


async def test_a_shielded_future_goes_on_after_the_time() -> None:
    inner = a_future()
    with pytest.raises(asyncio.TimeoutError):
        await wait_within(0.0, asyncio.shield(inner))
    assert not inner.done()


async def test_what_is_cancelled_by_others_is_no_timeout(kind: Kind) -> None:
    inner = a_future()
    waiting = asyncio.ensure_future(wait_within(LONG_S, kind(inner)))
    await turns(3)
    inner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_without_a_limit_it_waits(kind: Kind) -> None:
    inner = a_future()
    asyncio.get_running_loop().call_soon(inner.set_result, 4)
    assert await wait_within(None, kind(inner)) == 4


async def test_one_wait_inside_another_ends_at_the_shorter_time(kind: Kind) -> None:
    inner = a_future()
    with pytest.raises(asyncio.TimeoutError):
        await wait_within(0.0, wait_within(LONG_S, kind(inner)))
    assert inner.cancelled()
    inner = a_future()
    with pytest.raises(asyncio.TimeoutError):
        await wait_within(LONG_S, wait_within(0.0, kind(inner)))


async def test_the_end_of_the_time_does_not_hide_a_cancellation(kind: Kind) -> None:
    inner = a_future()
    waiting = asyncio.ensure_future(wait_within(1e-9, kind(inner)))
    await turns(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
