"""The file of the history: entered once, amended in place, bounded, read in pages, and never in the way."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.engine.model import DecisionRecord
from cri_proxy.history.entries import Query
from cri_proxy.history.io import file as files
from cri_proxy.history.io.file import FILE, Bounds, Handed, HistoryFile, HistoryUnusable, read_file
from tests.agent import ROOT
from tests.history.records import id_of, record, shrunk

ALL = Bounds(1000)
DB = "shop/db/db"


def handed(one: DecisionRecord, boot: str = "boot", time_s: float = 0.0, **paths: str) -> Handed:
    return Handed(one, boot, time_s or 1000.0 + one.number, {id_of(path): path for path in paths.values()})


@pytest.fixture
def history(tmp_path: Path) -> Any:
    file = HistoryFile(tmp_path / "state")
    yield file
    file.close()


def numbers(page: dict[str, Any]) -> list[int]:
    return [row["number"] for row in page["entries"]]


def test_entries_come_in_pages_the_latest_first(history) -> None:
    history.add([handed(record(number)) for number in range(1, 8)], ALL)
    first = history.page(Query(most=3))
    assert (numbers(first), first["newest"]) == ([7, 6, 5], 7)
    second = history.page(Query(most=3, before=first["before"]))
    third = history.page(Query(most=3, before=second["before"]))
    assert (numbers(second), numbers(third), third["before"]) == ([4, 3, 2], [1], None)


def test_one_reads_on_from_where_one_was_and_sees_what_was_amended(history) -> None:
    history.add([handed(record(1)), handed(record(2))], ALL)
    seen = history.page(Query())["newest"]
    assert history.page(Query(after=seen))["entries"] == []
    history.add([handed(record(1, outcome="created")), handed(record(3))], ALL)
    page = history.page(Query(after=seen, most=1))
    assert [(row["number"], row["outcome"]) for row in page["entries"]] == [(1, "created")]
    rest = history.page(Query(after=page["newest"]))
    assert (numbers(rest), history.page(Query(after=rest["newest"]))["entries"]) == ([3], [])
    assert sorted(numbers(history.page(Query()))) == [1, 2, 3]


def test_the_same_again_changes_nothing(history) -> None:
    one = handed(record(1, changes=(shrunk(DB),)), db=DB)
    history.add([one], ALL)
    before = history.page(Query())
    # After a restart: the container it has changed is gone, its name is not.
    history.add([one._replace(paths={}, time_s=5.0)], ALL)
    assert history.page(Query()) == before


def test_numbers_that_begin_anew_are_other_entries(history) -> None:
    history.add([handed(record(1)), handed(record(1), boot="next"), handed(record(1, at_s=9.5))], ALL)
    assert numbers(history.page(Query())) == [1, 1, 1]


def test_what_a_name_is_about_is_found(history) -> None:
    history.add(
        [handed(record(1)), handed(record(2, DB)), handed(record(3, "a/b/c", changes=(shrunk(DB),)), db=DB)],
        ALL,
    )
    assert numbers(history.page(Query("db"))) == [3, 2]
    assert numbers(history.page(Query("default/web"))) == [1]
    assert numbers(history.page(Query(id_of("a/b/c")))) == [3]
    assert numbers(history.page(Query("%"))) == []
    assert numbers(history.page(Query(since_s=1002.0))) == [3, 2]


def test_the_oldest_go_where_there_are_too_many(history) -> None:
    for number in range(1, 30):
        history.add([handed(record(number))], Bounds(10))
    assert numbers(history.page(Query())) == list(range(29, 19, -1))


def test_what_is_too_old_goes(history) -> None:
    history.add([handed(record(number)) for number in range(1, 6)], ALL)
    history.add([handed(record(6))], Bounds(1000, oldest_s=1004.0))
    assert numbers(history.page(Query())) == [6, 5, 4]


def test_all_together_have_a_size_at_most(history, monkeypatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    for number in range(1, 400, 50):
        history.add([handed(record(n, why="x" * 10_000)) for n in range(number, number + 50)], ALL)
        assert history.path.stat().st_size + history.path.with_name(f"{FILE}-wal").stat().st_size < 8 << 20
    kept = numbers(history.page(Query(most=1000)))
    assert kept[0] == 400 and 20 <= len(kept) <= 110


def test_an_answer_has_a_size_at_most(history) -> None:
    history.add([handed(record(number, why="x" * 100_000)) for number in range(1, 31)], ALL)
    found, page = [], history.page(Query(most=1000))
    while page["before"] is not None:
        assert len(page["entries"]) <= 11
        found += numbers(page)
        page = history.page(Query(most=1000, before=page["before"]))
    assert found + numbers(page) == list(range(30, 0, -1))


def test_a_file_that_is_damaged_makes_room_and_stays(history) -> None:
    history.path.parent.mkdir()
    history.path.write_bytes(b"no database at all" * 500)
    with pytest.raises(HistoryUnusable, match=f"it is .*{FILE}.damaged now, and a new one is begun"):
        history.add([handed(record(1))], ALL)
    history.add([handed(record(1))], ALL)
    assert numbers(history.page(Query())) == [1]
    assert history.path.with_name(f"{FILE}.damaged").read_bytes().startswith(b"no database")


@pytest.mark.parametrize(
    "script", ["PRAGMA user_version=2; CREATE TABLE entries (x)", "CREATE TABLE other (x)"]
)
def test_a_file_of_a_later_version_is_left_alone(history, script) -> None:
    history.path.parent.mkdir()
    other = sqlite3.connect(history.path)
    other.executescript(script)
    other.close()
    before = history.path.read_bytes()
    with pytest.raises(HistoryUnusable, match="of a later version or another program's; rename it"):
        history.add([handed(record(1))], ALL)
    with pytest.raises(HistoryUnusable):
        history.page(Query())
    assert history.path.read_bytes() == before


def test_a_file_that_vanishes_is_begun_anew(history) -> None:
    history.add([handed(record(1))], ALL)
    for path in history.path.parent.iterdir():
        path.unlink()
    history.add([handed(record(2))], ALL)
    assert numbers(history.page(Query())) == [2]


def test_what_is_left_of_the_disk_is_left_to_the_state(history, monkeypatch) -> None:
    monkeypatch.setattr(files, "LEFT_BYTES", 1 << 60)
    with pytest.raises(HistoryUnusable, match="MiB are free, which are left to the state; free some"):
        history.add([handed(record(1))], ALL)
    assert not history.path.exists()


def test_where_there_is_no_file_there_is_nothing(history) -> None:
    assert history.page(Query()) == {"entries": [], "before": None, "newest": 0}
    assert not history.path.parent.exists()
    with pytest.raises(HistoryUnusable, match="no history is kept: there is no"):
        read_file(history.path, Query())
    assert not history.path.exists()


def test_a_file_that_a_process_has_open_says_so(history, monkeypatch) -> None:
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.01)
    history.add([handed(record(1))], ALL)
    script = (
        "import sys; from pathlib import Path; from cri_proxy.history.entries import Query\n"
        "from cri_proxy.history.io import file; file.LOCK_WAIT_S = 0.01\n"
        "try: file.read_file(Path(sys.argv[1]), Query())\n"
        "except file.HistoryUnusable as error: print(error)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, str(history.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "is in use by a process that does not answer; see: fuser" in told.stdout
    history.add([handed(record(2))], ALL)


def test_what_a_killed_writer_has_entered_is_there(history) -> None:
    script = (
        "import os, sys; from pathlib import Path; from tests.history.io.test_file import *\n"
        "HistoryFile(Path(sys.argv[1])).add([handed(record(1)), handed(record(2))], ALL); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(history.path.parent)], cwd=ROOT, check=False)
    assert numbers(read_file(history.path, Query())) == [2, 1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a disk")
def test_a_full_disk_loses_none_that_were_entered(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "LEFT_BYTES", 0)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=True)
    try:
        history = HistoryFile(tmp_path)
        history.add([handed(record(1))], ALL)
        with pytest.raises(HistoryUnusable, match="is full; it is tried again"):
            history.add([handed(record(n, why="x" * 100_000)) for n in range(2, 20)], ALL)
        history.add([handed(record(2))], ALL)
        assert numbers(history.page(Query())) == [2, 1]
        history.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_workload_stands_for_its_pods_where_no_pod_has_its_name(history) -> None:
    paths = ("default/web-x7k2p/app", "default/web-9bqzl/app", "default/website/app", "shop/web-x7k2p/app")
    history.add([handed(record(n, path)) for n, path in enumerate(paths, 1)], ALL)
    assert numbers(history.page(Query("default/web"))) == [2, 1]
    assert numbers(history.page(Query("default/web", before=2))) == [1]
    history.add([handed(record(9, "default/web/app"))], ALL)
    assert numbers(history.page(Query("default/web"))) == [9]
    assert numbers(history.page(Query("default/web", after=0))) == [9]
