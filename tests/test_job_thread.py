"""A job that raises ends neither the thread nor the jobs after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cri_api.supervisor import Supervisor
from cri_proxy.job_thread import JobThread

HANG_S = 30.0


def raises() -> Any:
    raise OSError(24, "Too many open files")


def exits() -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize("job", [raises, exits])
async def test_a_job_that_raises_is_over_and_those_after_it_are_done(job: Any) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    thread = JobThread("disk", Supervisor(lambda worker, error: error and told.put_nowait(worker.name)))
    thread.put(job)
    assert await asyncio.wait_for(thread.begin(lambda: "done"), HANG_S) == "done"
    assert told.get_nowait() == "disk thread"
    thread.end()


async def test_what_ends_the_thread_is_told_to_what_waits_for_the_job() -> None:
    thread = JobThread("disk")
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await asyncio.wait_for(thread.begin(exits), HANG_S)
    assert await asyncio.wait_for(thread.begin(lambda: "done"), HANG_S) == "done"
    thread.end()


async def test_jobs_that_wait_when_the_thread_ends_are_done() -> None:
    thread = JobThread("disk")
    thread.put(raises)
    last = thread.begin(lambda: "done")
    thread.end()
    assert await asyncio.wait_for(last, HANG_S) == "done"
    # And it can begin anew.
    assert await asyncio.wait_for(thread.begin(lambda: "again"), HANG_S) == "again"
    thread.end()
