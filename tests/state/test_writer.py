"""What the event loop sees of the disk: changes are written in order by a thread, and no wait is longer than told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Callable, Optional

import pytest_asyncio
import structlog

from cri_proxy.engine.state import JournalKey
from cri_proxy.metrics import Metrics
from cri_proxy.state.store import Store
from cri_proxy.state.writer import StateWriter

LONG_S, SHORT_S = 3600.0, 0.01


def change(key: str) -> dict[JournalKey, Any]:
    return {("distrust", key): 1.0}


class GatedStore(Store):
    """Its disk answers only while the gate is open; counts its transactions."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()
        self.transactions: list[list[JournalKey]] = []

    def hang(self) -> None:
        self.gate.clear()
        self.began.clear()

    def _wait(self) -> None:
        self.began.set()
        self.gate.wait()

    def flush(self, is_last: bool = False) -> bool:
        self._wait()
        return super().flush(is_last)

    def load(self) -> Any:
        self._wait()
        return super().load()

    def _texts(self, journal: Any) -> Any:
        self.transactions.append(list(journal))
        return super()._texts(journal)


class Writing:
    """A writer that has loaded, and what it has told."""

    def __init__(self, folder: Path) -> None:
        self.store = GatedStore(folder / "state")
        self.metrics = Metrics("test")
        self.writer = StateWriter(self.store, self.metrics, structlog.get_logger())
        self.problems: list[str] = []
        self.writer.on_change = lambda: self.problems.append(self.writer.problem)

    async def until(self, condition: Callable[[], bool]) -> None:
        async def holds() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        await asyncio.wait_for(holds(), 20)

    def counted(self, name: str) -> Optional[float]:
        return self.metrics.registry.get_sample_value(f"cri_resmgr_{name}")


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Writing]:
    it = Writing(tmp_path)
    it.writer.wait_s = LONG_S
    await it.writer.load()
    yield it
    it.store.gate.set()
    await it.writer.close()


def records_in(directory: Path) -> set[str]:
    other = Store(directory)
    loaded = other.load()
    other.close()
    return set(loaded.of("distrust"))


async def test_when_a_wait_is_over_the_change_is_in_the_file(it) -> None:
    it.writer.write(change("a"))
    await it.writer.settled()
    assert records_in(it.store.directory) == {"a"} and it.problems == []


async def test_what_comes_while_the_disk_is_busy_goes_together_in_the_order_of_its_coming(it) -> None:
    it.store.hang()
    ended: list[str] = []

    async def one(key: str) -> None:
        it.writer.write(change(key))
        await it.writer.settled()
        ended.append(key)

    first = asyncio.ensure_future(one("0"))
    await asyncio.to_thread(it.store.began.wait)
    others = [asyncio.ensure_future(one(str(number))) for number in range(1, 50)]
    await asyncio.sleep(0)
    assert ended == []
    it.store.gate.set()
    await asyncio.gather(first, *others)
    keys = [str(number) for number in range(50)]
    assert ended == keys
    assert [key for transaction in it.store.transactions for _, key in transaction] == keys
    assert len(it.store.transactions) <= 2


async def test_what_no_call_waits_for_goes_with_what_comes_then(it) -> None:
    for key in ("stopped", "pod ended", "removed"):
        it.writer.write_together(change(key))
    await asyncio.sleep(0)
    assert it.store.transactions == []
    it.writer.write(change("the next create"))
    await it.writer.settled()
    assert [key for transaction in it.store.transactions for _, key in transaction] == [
        "stopped", "pod ended", "removed", "the next create",
    ]  # fmt: skip
    assert len(it.store.transactions) == 1


async def test_what_no_call_waits_for_is_written_where_nothing_follows(it) -> None:
    it.writer.write_together(change("stopped"))
    it.writer.write_together(change("removed"))
    # Not by a second look at the file again and again: a store that opens it while another writes is what no daemon meets.
    await it.until(lambda: not it.writer.waiting)
    assert records_in(it.store.directory) == {"stopped", "removed"}
    assert len(it.store.transactions) == 1


async def test_the_end_of_the_service_writes_what_no_call_waits_for(it) -> None:
    it.writer.write_together(change("stopped"))
    await it.writer.close()
    assert records_in(it.store.directory) == {"stopped"}


async def test_past_its_time_a_call_goes_on_and_later_ones_do_not_wait_until_all_is_written(it) -> None:
    it.writer.wait_s = SHORT_S
    it.store.hang()
    it.writer.write(change("a"))
    await it.writer.settled()
    assert it.writer.is_late and "does not answer" in it.writer.problem
    assert it.writer.unsaved == {("distrust", "a")} and it.counted("state_unsaved") == 1
    it.writer.wait_s = LONG_S
    it.writer.write(change("b"))
    await it.writer.settled()
    assert it.counted("state_late_total") == 2
    it.store.gate.set()
    await it.until(lambda: not it.writer.is_late)
    assert (it.writer.problem, it.writer.unsaved, it.problems[-1]) == ("", frozenset(), "")
    assert len(it.problems) == 2  # told once, and once that it is over
    assert records_in(it.store.directory) == {"a", "b"}


async def test_those_who_have_waited_go_on_before_those_who_do_not(it) -> None:
    """What calls tell the runtime after it keeps the order of their decisions."""
    it.writer.wait_s = SHORT_S
    it.store.hang()
    ended: list[str] = []

    async def one(key: str) -> None:
        it.writer.write(change(key))
        await it.writer.settled()
        ended.append(key)

    waiting = [asyncio.ensure_future(one(key)) for key in ("a", "b")]
    await asyncio.sleep(0)
    it.writer._run_out()
    await asyncio.gather(*waiting, one("c"))
    assert ended == ["a", "b", "c"]


async def test_what_cannot_be_written_ends_the_wait_and_is_tried_again(it) -> None:
    it.store._disconnect()
    kept = it.store.directory.rename(it.store.directory.with_name("kept"))
    it.store.directory.write_text("in the way")
    it.writer.write(change("a"))
    await it.writer.settled()
    assert "not a directory" in it.writer.problem and not it.writer.is_late
    assert it.counted("state_write_failures_total") == 1
    it.store.directory.unlink()
    kept.rename(it.store.directory)
    it.store._retry_at_s = 0.0
    it.writer.write({})
    await it.writer.settled()
    await it.until(lambda: not it.writer.problem)
    assert records_in(it.store.directory) == {"a"}


async def test_a_start_that_takes_long_says_so_until_it_is_over(tmp_path) -> None:
    it = Writing(tmp_path)
    it.writer.wait_s = SHORT_S
    it.store.hang()
    loading = asyncio.ensure_future(it.writer.load())
    await it.until(lambda: bool(it.problems))
    assert it.problems[0].startswith("no container is placed until the state can be read")
    it.store.gate.set()
    await loading
    await it.until(lambda: it.problems[-1] == "")
    await it.writer.close()


async def test_the_end_waits_a_limited_time(it, monkeypatch) -> None:
    monkeypatch.setattr("cri_proxy.state.writer.END_S", SHORT_S)
    it.store.hang()
    it.writer.write(change("a"))
    await it.writer.close()
    assert it.store.waiting == 1


async def test_what_is_set_aside_takes_with_it_what_was_being_written(it) -> None:
    it.writer.write(change("old"))
    await it.writer.settled()
    it.store.hang()
    it.writer.write(change("late"))
    await asyncio.to_thread(it.store.began.wait)
    moved = it.writer.set_aside()
    it.writer.write(change("new"))
    it.store.gate.set()
    assert await moved == "set aside as state.db.aside-1"
    await it.writer.settled()
    assert records_in(it.store.directory) == {"new"}


async def test_other_files_are_kept_in_their_turn_and_one_that_fails_stops_nothing(it) -> None:
    done: list[str] = []
    it.writer.later(lambda: done.append("first"))
    it.writer.later(lambda: 1 / 0)
    it.writer.write(change("a"))
    it.writer.later(lambda: done.append("last"))
    await it.writer.settled()
    assert done == ["first", "last"]
    await it.writer.settled()
    assert records_in(it.store.directory) == {"a"}


async def test_a_log_that_has_grown_is_taken_in_beside_the_calls(it, monkeypatch) -> None:
    monkeypatch.setattr("cri_proxy.state.store.LONG_BYTES", 100)
    lines = 0
    for number in range(100):
        it.writer.write(change(str(number)))
        await it.writer.settled()
        lines += 1
    log = it.store.directory / "state.db-log"
    await it.until(lambda: log.read_bytes().count(b"\n") < lines)
    assert records_in(it.store.directory) == {str(number) for number in range(100)}


async def test_a_checkpoint_takes_in_what_was_written_before_it_was_asked_for(it, monkeypatch) -> None:
    begun, go, real = threading.Event(), threading.Event(), it.store._commit_logged

    def commit_logged(changes: Any) -> Any:
        begun.set()
        go.wait()
        return real(changes)

    monkeypatch.setattr(it.store, "_commit_logged", commit_logged)
    it.writer.write(change("a"))
    await it.writer.settled()
    first = asyncio.ensure_future(it.writer.checkpoint())
    await asyncio.to_thread(begun.wait)
    it.writer.write(change("b"))
    await it.writer.settled()
    second = asyncio.ensure_future(it.writer.checkpoint())
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, second)
    assert not it.store._logged


async def test_a_bug_in_the_thread_is_a_problem_and_does_not_end_it(it, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(it.store, "_reopen", lambda: 1 / 0)
        it.writer.write(change("a"))
        await it.writer.settled()
        assert "ZeroDivisionError" in it.writer.problem
    it.writer.write(change("b"))
    await it.writer.settled()
    assert it.writer.problem == "" and records_in(it.store.directory) == {"a", "b"}
