"""A limit of time beside cancellations."""

from __future__ import annotations

import asyncio

import pytest

from cluster.kube.io.within import within


async def test_a_cancellation_that_comes_with_the_result_is_kept() -> None:
    result = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(result, 60))
    await asyncio.sleep(0)
    result.set_result(1)
    await asyncio.sleep(0)  # the result is there, and what waits for it has not run yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_takes_too_long_has_ended_when_that_is_told() -> None:
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    with pytest.raises(asyncio.TimeoutError):
        await within(endless(), 0.01)
    assert ended == [1]


async def test_an_error_in_time_is_that_error() -> None:
    async def fails() -> None:
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        await within(fails(), 60)
