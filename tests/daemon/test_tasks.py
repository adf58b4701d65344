"""A background task that fails is begun again; its failure is seen until the same work goes well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cri_proxy.daemon.tasks import Tasks
from cri_proxy.metrics import Metrics
from cri_proxy.services.health import Health

#: Nobody waits longer than this for what must come.
HANG_S = 20.0
TOPIC = "task watch"
REASON = "the background task 'watch' has failed: OSError: [Errno 24] Too many open files"


class Log:
    """Keeps what it is told, and wakes who waits for a line."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.recovered = asyncio.Event()

    def warning(self, line: str, **fields: Any) -> None:
        pass

    def info(self, line: str, **fields: Any) -> None:
        if line == "recovered":
            self.recovered.set()

    def error(self, line: str, **fields: Any) -> None:
        self.errors.append(fields["task"])


class Site:
    """The tasks of a daemon that has no others, and its health."""

    def __init__(self) -> None:
        self.log = Log()
        self.health = Health(Metrics("test"), self.log, lambda: "enforce")
        self.tasks = Tasks(self.health, self.log)

    async def wait(self, event: asyncio.Event) -> None:
        await asyncio.wait_for(event.wait(), HANG_S)


class Work:
    """Fails so many times, then does well: it returns, or goes on for ever."""

    def __init__(self, failures: int, returns: bool) -> None:
        self.failures = failures
        self.returns = returns
        self.failed, self.goes_well = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        if self.failures:
            self.failures -= 1
            self.failed.set()
            raise OSError(24, "Too many open files")
        self.goes_well.set()
        if not self.returns:
            await asyncio.Event().wait()


@pytest.mark.parametrize("returns", [True, False], ids=["returns", "goes on"])
async def test_what_has_failed_is_begun_again_until_it(returns: bool) -> None:
    site, work = Site(), Work(failures=2, returns=returns)
    site.tasks.keep("watch", work.run)
    await site.wait(work.failed)
    await asyncio.sleep(0)
    assert site.health.reasons == {TOPIC: REASON}
    await site.wait(work.goes_well)
    await site.wait(site.log.recovered)
    assert site.health.reasons == {}
    # The same failure again and again is one traceback.
    assert site.log.errors == ["watch"]
    await site.tasks.end()


async def test_the_failure_of_what_is_done_once_is_seen_until_it_is_done_well() -> None:
    site = Site()
    failing = site.tasks.begin("watch", Work(failures=1, returns=True).run())
    with pytest.raises(OSError, match="Too many open files"):
        await failing
    assert site.health.reasons == {TOPIC: REASON}
    await site.tasks.begin("another", Work(failures=0, returns=True).run())
    assert site.health.reasons == {TOPIC: REASON}
    await site.tasks.begin("watch", Work(failures=0, returns=True).run())
    assert site.health.reasons == {}


async def test_the_end_is_told_again_to_who_has_not_heard_it() -> None:
    site, begun, swallowed = Site(), asyncio.Event(), asyncio.Event()

    async def hard_of_hearing() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.Event().wait()

    task = site.tasks.begin("watch", hard_of_hearing())
    await site.wait(begun)
    await asyncio.wait_for(site.tasks.end(), HANG_S)
    assert (swallowed.is_set(), task.cancelled(), site.health.reasons) == (True, True, {})
