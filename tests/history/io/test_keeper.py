"""The history is written beside the calls: what its disk does holds nothing up, and costs what is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cri_proxy.history.entries import Query
from cri_proxy.history.io import keeper as keepers
from cri_proxy.history.io.file import Bounds, HistoryFile, HistoryUnusable
from cri_proxy.history.io.keeper import HistoryKeeper
from tests.history.records import record
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on, make_container, make_pod, run


class GatedFile(HistoryFile):
    """Its disk answers only while the gate is open; what it was given, transaction by transaction."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()
        self.given: list[list[int]] = []
        self.failure = ""

    def add(self, handed: Any, bounds: Bounds) -> None:
        self.began.set()
        self.gate.wait()
        if self.failure:
            raise HistoryUnusable(self.failure)
        handed = list(handed)
        self.given.append([one.record.number for one in handed])
        super().add(handed, bounds)


class Keeping:
    def __init__(self, folder: Path) -> None:
        self.dropped: list[int] = []
        self.notes: list[str] = []
        self.keeper = HistoryKeeper(folder, self.dropped.append, self.notes.append, "boot")
        self.file = GatedFile(folder)
        self.keeper._file = self.file

    async def numbers(self, **query: Any) -> list[int]:
        return [row["number"] for row in (await self.keeper.page(Query(**query)))["entries"]]


@pytest_asyncio.fixture
async def keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keeping]:
    # Nothing is written or tried again by itself: pages have it done.
    monkeypatch.setattr(keepers, "GATHER_S", 3600.0)
    monkeypatch.setattr(keepers, "RETRY_S", 3600.0)
    monkeypatch.setattr(keepers, "END_S", 60.0)
    keeping = Keeping(tmp_path / "state")
    yield keeping
    keeping.file.gate.set()
    await keeping.keeper.close()


async def test_an_answer_has_what_was_decided_a_moment_ago(keeping) -> None:
    keeping.keeper.add([record(1), record(2)], {})
    keeping.keeper.add([record(2, outcome="created")], {})
    assert await keeping.numbers() == [2, 1]
    # Once each: what is amended soon is written as it is then.
    assert keeping.file.given == [[1, 2]]


async def test_what_happens_beside_decisions_is_an_entry_of_all_that_it_is_about(
    keeping, monkeypatch
) -> None:
    engine, (first, second) = engine_on(HYGON_7285_2S), ("c1", "c2")
    for name in (first, second):
        run(engine, make_container(name, 1, pod=make_pod(name)), name)
    grants = engine.grants
    keeping.keeper.tell("isolation", "L3 0: less", [first, second], False, grants)
    keeping.keeper.tell("isolation", "its class is batch", [second], True, grants)
    of_second = (await keeping.keeper.page(Query(name=second)))["entries"]
    assert [row["why"] for row in of_second] == ["its class is batch", "L3 0: less"]
    assert [row["id"] for row in of_second] == [second, ""]
    [row] = (await keeping.keeper.page(Query(name=first)))["entries"]
    assert [one["id"] for one in row["about"]] == [first, second]


async def test_what_waits_is_written_a_moment_later_by_itself(keeping, monkeypatch) -> None:
    monkeypatch.setattr(keepers, "GATHER_S", 0.0)
    keeping.keeper.add([record(1)], {})
    await asyncio.to_thread(keeping.file.began.wait)
    assert await keeping.numbers() == [1]


async def test_a_disk_that_hangs_holds_nothing_up(keeping, monkeypatch) -> None:
    monkeypatch.setattr(keepers, "ANSWER_S", 0.01)
    keeping.file.gate.clear()
    keeping.keeper.add([record(1)], {})
    with pytest.raises(HistoryUnusable, match="does not answer"):
        await keeping.numbers()
    keeping.keeper.add([record(number) for number in range(2, 10)], {})
    for _ in range(keepers.ASKING - 1):
        with pytest.raises(HistoryUnusable, match="does not answer"):
            await keeping.numbers()
    # No more wait for that disk than may.
    with pytest.raises(HistoryUnusable, match=f"{keepers.ASKING} others ask"):
        await keeping.numbers()
    monkeypatch.setattr(keepers, "ANSWER_S", 60.0)
    keeping.file.gate.set()
    while keeping.keeper._asking:
        await asyncio.sleep(0)
    assert await keeping.numbers() == list(range(9, 0, -1))
    assert keeping.dropped == []


async def test_what_is_too_much_while_it_hangs_is_dropped_and_counted(keeping, monkeypatch) -> None:
    monkeypatch.setattr(keepers, "WAITING", 5)
    keeping.file.failure = "the disk is full"
    for number in range(1, 9):
        keeping.keeper.add([record(number)], {})
    assert keeping.dropped == [1, 1, 1]
    await keeping.numbers()
    assert keeping.notes == ["the disk is full"]
    keeping.file.failure = ""
    keeping.keeper._ring()  # the time to try again
    assert await keeping.numbers() == [8, 7, 6, 5, 4]
    assert keeping.notes == ["the disk is full", ""]


async def test_a_failed_write_is_not_tried_again_with_each_question(keeping) -> None:
    keeping.file.failure = "the disk is full"
    keeping.keeper.add([record(1)], {})
    await keeping.numbers()
    keeping.file.began.clear()
    keeping.keeper.add([record(2)], {})
    await keeping.numbers()
    assert not keeping.file.began.is_set()


async def test_the_end_writes_what_waits(keeping) -> None:
    keeping.keeper.add([record(1)], {})
    await keeping.keeper.close()
    assert keeping.file.given == [[1]]


async def test_nothing_is_kept_where_that_is_configured(keeping) -> None:
    keeping.keeper.entries = 0
    keeping.keeper.add([record(1)], {})
    assert await keeping.numbers() == []
    assert not keeping.file.path.exists()


async def test_a_bug_in_writing_is_told_and_ends_nothing(keeping) -> None:
    keeping.keeper.add([record(1, why=object())], {})
    assert await keeping.numbers() == []
    assert "TypeError" in keeping.notes[0]
