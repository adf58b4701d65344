"""The state file gives back what was written; one that cannot be read is set aside, never deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from cri_proxy.core.books import HISTORY, JournalKey, JournalValue
from cri_proxy.core.grants import Record
from cri_proxy.core.snapshot import everything
from cri_proxy.shell.store import FILE, PAGE_BYTES, Store
from policies.model import Placement
from tests.machines import VM_NO_CACHE_INFO
from tests.scenes import engine_on, fence, make_container, make_pod, run

POD = make_pod("web", annotations={"a": "b"}, size=(1, 2))
ONE_POD: dict[JournalKey, JournalValue] = {("pod", POD.id): POD}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "state")
    yield store
    store.close()


def records_in(directory: Path) -> dict[JournalKey, object]:
    """What another daemon finds there."""
    other = Store(directory)
    loaded = other.load()
    other.close()
    return {(kind, key): value for kind, table in loaded.records.items() for key, value in table.items()}


def history(number: int) -> Record:
    return Record(number, 1.0, "create", "default/web/app", "uid-web", "c1", "placed", Placement(), "why")


# ---------------------------------------------------------------------- what is kept


def test_what_is_written_is_read_back_by_the_next_daemon(store: Store) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    engine.add_pod(POD)
    run(engine, make_container("a", limit=2, pod=POD), "id-a")
    engine.admit(make_container("b", limit=1), fence("1"), 3.0)
    records = everything(engine)
    assert {kind for kind, _ in records} == {"pod", "grant", "ticket", "record"}
    store.load()
    assert store.write({**records, ("distrust", "uid\napp"): 7.5}, {"boot_id": "x"})
    assert records_in(store.directory) == {**records, ("distrust", "uid\napp"): 7.5}
    assert store.load().meta["boot_id"] == "x"


def test_a_new_file_is_empty_private_and_without_notes(store: Store) -> None:
    loaded = store.load()
    assert (loaded.records, loaded.notes, store.problem) == ({}, (), "")
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.directory.stat().st_mode & 0o777 == 0o700


def test_a_value_of_none_removes_the_record(store: Store) -> None:
    store.load()
    store.write({("distrust", "a"): 1.0, ("distrust", "b"): 2.0})
    store.write({("distrust", "a"): None})
    assert records_in(store.directory) == {("distrust", "b"): 2.0}


def test_nothing_to_write_is_written(store: Store) -> None:
    assert store.write({})
    assert not store.path.exists()


def test_the_history_is_pruned_to_its_length(store: Store) -> None:
    store.load()
    last = HISTORY + 2
    for number in (1, 2, 3, last - 1, last):
        assert store.write({("record", str(number)): history(number)})
    kept = sorted(int(key) for _, key in records_in(store.directory))
    assert kept == [3, last - 1, last]


def test_a_checkpoint_moves_the_changes_into_the_file(store: Store) -> None:
    store.load()
    store.write(ONE_POD)
    store.checkpoint()
    assert POD.id.encode() in store.path.read_bytes()


def test_a_checkpoint_of_a_file_that_is_gone_makes_none(store: Store) -> None:
    store.checkpoint()
    assert not store.path.exists()


# ---------------------------------------------------------------------- what cannot be read


def sql(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def ours_but(*statements: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        store = Store(path.parent)
        store.load()
        store.write(ONE_POD)
        store.close()
        sql(path, *statements)

    return spoil


def garble_page(path: Path) -> None:
    ours_but()(path)
    content = bytearray(path.read_bytes())
    content[PAGE_BYTES:] = b"\xff" * (len(content) - PAGE_BYTES)
    path.write_bytes(content)


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), "it is empty"),
    "text": (lambda path: path.write_text("state: none\n" * 1000), "not a database"),
    "garbled pages": (garble_page, ""),
    "another program's": (lambda path: sql(path, "CREATE TABLE songs (name TEXT)"), "another program's"),
    "a later format": (ours_but("UPDATE meta SET value = '999' WHERE key = 'format'"), "format 999"),
    "no format": (ours_but("DELETE FROM meta WHERE key = 'format'"), "format unknown"),
    "a garbled record": (ours_but("UPDATE records SET value = '{'"), "pod record '{'"),
    "an unknown kind": (ours_but("UPDATE records SET kind = 'song'"), "song record"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_cannot_be_read_is_set_aside_whole(case: str, store: Store) -> None:
    spoil, reason = UNREADABLE[case]
    store.directory.mkdir()
    spoil(store.path)
    content = store.path.read_bytes()
    loaded = store.load()
    assert loaded.records == {}
    assert store.problem == ""
    [note] = loaded.notes
    assert reason in note
    assert note.endswith(f"set aside as {FILE}.aside-1")
    assert (store.directory / f"{FILE}.aside-1").read_bytes() == content
    assert store.write(ONE_POD)
    assert records_in(store.directory) == ONE_POD


def test_what_was_set_aside_before_stays(store: Store) -> None:
    store.directory.mkdir()
    for text in ("first", "second"):
        store.close()
        store.path.write_text(text * 1000)
        store.load()
    aside = [(store.directory / f"{FILE}.aside-{number}").read_text()[:5] for number in (1, 2)]
    assert aside == ["first", "secon"]


def test_nothing_to_set_aside_is_said(store: Store) -> None:
    assert store.set_aside() == "there was none"


def test_changes_that_wait_are_dropped_with_the_file_they_belong_to(store: Store) -> None:
    store.directory.write_text("in the way")
    store.load()
    assert not store.write(ONE_POD)
    store.set_aside()
    store.directory.unlink()
    assert store.write({("distrust", "a"): 1.0})
    assert records_in(store.directory) == {("distrust", "a"): 1.0}


# ---------------------------------------------------------------------- what cannot be written

# Root may write anywhere, so a file in the directory's place is what cannot be written here.


def test_changes_wait_until_the_directory_can_be_written(store: Store) -> None:
    store.directory.write_text("in the way")
    loaded = store.load()
    assert loaded.notes == (store.problem,)
    assert store.problem.endswith(f"{store.directory}: it is not a directory")
    assert not store.write(ONE_POD, {"boot_id": "x"})
    assert not store.write({("distrust", "a"): 1.0})
    assert not store.write({("distrust", "a"): 2.0})
    store.directory.unlink()
    assert store.write({})
    assert store.problem == ""
    assert records_in(store.directory) == {**ONE_POD, ("distrust", "a"): 2.0}
    assert store.load().meta["boot_id"] == "x"


def test_changes_wait_for_somebody_elses_lock(store: Store) -> None:
    store.load()
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not store.write(ONE_POD)
    assert "locked" in store.problem
    other.execute("COMMIT")
    other.close()
    assert store.write({("distrust", "a"): 1.0})
    assert records_in(store.directory) == {**ONE_POD, ("distrust", "a"): 1.0}


def test_a_file_that_vanishes_is_begun_anew_with_all_records(store: Store) -> None:
    store.load()
    store.write(ONE_POD)
    store.everything = lambda: ({**ONE_POD, ("distrust", "a"): 1.0}, {"boot_id": "x"})
    for path in store.directory.iterdir():
        path.unlink()
    assert store.write({("distrust", "a"): None})
    assert records_in(store.directory) == ONE_POD
    assert store.load().meta["boot_id"] == "x"
