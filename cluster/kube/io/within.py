"""A limit of time that keeps cancellations: ``asyncio.wait_for`` before Python 3.12 loses one that comes with the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_Result = TypeVar("_Result")


async def within(awaitable: Awaitable[_Result], seconds: float) -> _Result:
    """Its result; what it was doing has ended when this returns or raises.

    :raises asyncio.TimeoutError: it has taken longer.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it has been looked at: no complaint in the log
