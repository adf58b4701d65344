"""Waiting for something no longer than a time, in place of ``asyncio.wait_for``.

Before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that comes together with the result: its caller goes
on as if it had never been cancelled, and what has cancelled it waits for ever (bpo-37658, bpo-42130,
https://github.com/python/cpython/issues/86296). It makes a task of each coroutine, too. From 3.12 it raises a
TimeoutError though the future that it waited for is done, if the time ends in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from functools import partial
from typing import Optional, TypeVar

_Result = TypeVar("_Result")


async def wait_within(seconds: Optional[float], awaitable: Awaitable[_Result]) -> _Result:
    """Its result, if that is there in time; None = whenever it is. What is late is cancelled, and has ended by then.

    A cancellation of the caller is always raised, also where the result comes with it. The result of a future that is
    done is never lost to the end of the time.

    :raises asyncio.TimeoutError: it has taken longer.
    """
    if seconds is None:
        return await awaitable
    if sys.version_info >= (3, 11) and not asyncio.isfuture(awaitable):
        # A coroutine runs in the caller's task, where 3.11 counts cancellations: the caller's are told from the timer's.
        async with asyncio.timeout(seconds):
            return await awaitable
    return await _wait_for_future(seconds, asyncio.ensure_future(awaitable))


async def _wait_for_future(seconds: float, future: asyncio.Future[_Result]) -> _Result:
    # 1. Until it is done or the time is over. By hand: ``asyncio.wait`` takes half as long again.
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _release, waiter)
    release = partial(_release, waiter)
    future.add_done_callback(release)
    is_late = False
    try:
        if not future.done():
            await waiter
        is_late = not future.done()
    finally:
        timer.cancel()
        future.remove_done_callback(release)
        # 2. What is late, or wanted no more, ends.
        if not future.done():
            future.cancel()
            await asyncio.wait((future,))
        if not future.cancelled():
            future.exception()  # it has been looked at: no complaint in the log where the caller is cancelled
    if is_late and future.cancelled():
        raise asyncio.TimeoutError
    return future.result()


def _release(waiter: asyncio.Future[None], _: object = None) -> None:
    if not waiter.done():
        waiter.set_result(None)
