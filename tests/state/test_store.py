"""The state file, with its log, gives back what was written; one that cannot be read is set aside, never deleted."""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Callable

import pytest

from cri_proxy import machine_root
from cri_proxy.config.io.files import LAST
from cri_proxy.engine.model import DecisionRecord
from cri_proxy.engine.snapshot import everything
from cri_proxy.engine.state import HISTORY, JournalKey, JournalValue
from cri_proxy.state.file import FILE, PAGE_BYTES, StateLocked
from cri_proxy.state.log import log_of
from cri_proxy.state.store import RETRY_S, Store
from policies.model import Placement
from tests.machines import VM_NO_CACHE_INFO
from tests.scenes import constraint, engine_on, make_container, make_pod, run

POD = make_pod("web", annotations={"a": "b"}, size=(1, 2))
NOBODY = 65534
ONE_POD: dict[JournalKey, JournalValue] = {("pod", POD.id): POD}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    # Whenever it looks, the time is there to try again.
    store = Store(tmp_path / "state", clock=itertools.count(0.0, RETRY_S).__next__)
    yield store
    store.close()


def records_in(directory: Path) -> dict[JournalKey, object]:
    """What another daemon finds there."""
    other = Store(directory)
    loaded = other.load()
    other.close()
    return {(kind, key): value for kind, table in loaded.records.items() for key, value in table.items()}


def history(number: int) -> DecisionRecord:
    return DecisionRecord(
        number, 1.0, "create", "default/web/app", "uid-web", "c1", "placed", Placement(), "why"
    )


# ---------------------------------------------------------------------- what is kept


def test_what_is_written_is_read_back_by_the_next_daemon(store: Store) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    engine.add_pod(POD)
    run(engine, make_container("a", limit=2, pod=POD), "id-a")
    engine.admit(make_container("b", limit=1), constraint("1"), 3.0)
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


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("has_last", [True, False])
def test_a_file_is_missed_where_a_daemon_has_left_what_it_always_leaves_with_it(
    store, has_file, has_last
) -> None:
    store.directory.mkdir()
    if has_file:
        store.load()
        store.write(ONE_POD)
    if has_last:
        (store.directory / LAST).write_text("{}")
    loaded = store.load()
    assert (loaded.lost == f"{store.path} is gone") is (has_last and not has_file)
    assert bool(loaded.notes) is (has_last and not has_file)


def test_changes_that_wait_are_dropped_with_the_file_they_belong_to(store: Store) -> None:
    store.directory.write_text("in the way")
    store.load()
    assert not store.write(ONE_POD)
    store.set_aside()
    store.directory.unlink()
    assert store.write({("distrust", "a"): 1.0})
    assert records_in(store.directory) == {("distrust", "a"): 1.0}


def test_records_that_make_no_sense_are_set_aside_and_begun_anew(store: Store) -> None:
    store.load()
    store.write(ONE_POD, {"mode": "off"})
    loaded = store.start_over()
    assert (loaded.records, loaded.notes) == ({}, (f"set aside as {FILE}.aside-1",))
    assert "mode" not in loaded.meta
    assert store.write({("distrust", "a"): 1.0})
    assert records_in(store.directory) == {("distrust", "a"): 1.0}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which becomes nobody")
def test_records_that_make_no_sense_wait_to_be_set_aside_where_that_fails(store: Store) -> None:
    store.load()
    store.write(ONE_POD)
    os.seteuid(NOBODY)
    try:
        loaded = store.start_over()
    finally:
        os.seteuid(0)
    assert (loaded.records, loaded.meta, loaded.notes) == ({}, {}, (store.problem,))
    assert store.problem.endswith(f"{store.directory}: Permission denied")
    assert store.write({("distrust", "a"): 1.0}, {"boot_id": "x"})
    assert records_in(store.directory) == {("distrust", "a"): 1.0}
    assert (store.directory / f"{FILE}.aside-1").exists()


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


def test_a_record_that_cannot_be_written_does_not_keep_others_from_it(store: Store) -> None:
    store.load()
    assert store.write(ONE_POD)
    odd = replace(POD, labels={"a": b"not a text"})  # type: ignore[dict-item]
    assert not store.write({("pod", POD.id): odd, ("distrust", "a"): 1.0})
    assert store.problem.startswith(
        f"pod {POD.id} is not being kept in the state, so a restart would lose it: "
    )
    # Not as it was, either: what is left out is found anew, what is outdated is believed.
    assert records_in(store.directory) == {("distrust", "a"): 1.0} and not store.waiting
    assert not store.write({}) and not store.write({("distrust", "b"): 1.0}) and store.problem
    assert records_in(store.directory) == {("distrust", "a"): 1.0, ("distrust", "b"): 1.0}


@pytest.mark.parametrize("value", [POD, None], ids=["changes", "goes"])
def test_all_is_well_when_a_record_that_could_not_be_written(store: Store, value: JournalValue) -> None:
    store.load()
    odd = replace(POD, labels={"a": b"not a text"})  # type: ignore[dict-item]
    assert not store.write({("pod", POD.id): odd})
    assert store.write({("pod", POD.id): value}) and store.problem == ""
    assert records_in(store.directory) == ({} if value is None else ONE_POD)


def test_the_first_changes_wait_for_another_programs_lock(store: Store) -> None:
    store.load()
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not store.write(ONE_POD)
    assert "locked" in store.problem
    other.execute("COMMIT")
    other.close()
    assert store.write({("distrust", "a"): 1.0})
    assert records_in(store.directory) == {**ONE_POD, ("distrust", "a"): 1.0}


def test_after_a_failure_nothing_is_tried_for_a_moment(tmp_path: Path) -> None:
    now_s = [0.0]
    store = Store(tmp_path / "state", clock=lambda: now_s[0])
    store.directory.write_text("in the way")
    assert not store.write(ONE_POD)
    store.directory.unlink()
    assert not store.write({})
    now_s[0] = RETRY_S
    assert store.write({})
    store.close()


def test_what_still_waits_is_written_at_the_end(tmp_path: Path) -> None:
    store = Store(tmp_path / "state", clock=lambda: 0.0)
    store.directory.write_text("in the way")
    assert not store.write(ONE_POD)
    store.directory.unlink()
    store.close()
    assert records_in(store.directory) == ONE_POD


def test_what_waits_does_not_grow_with_the_containers_that_have_come_and_gone(store: Store) -> None:
    store.load()
    store.write({("record", "1"): history(1), **ONE_POD})
    kept = store.directory.rename(store.directory.with_name("kept"))
    store.directory.write_text("in the way")
    last = 2 * HISTORY + 5
    for number in range(2, last + 1):
        key = f"id-{number}"
        assert not store.write({("record", str(number)): history(number), ("distrust", key): 1.0})
        assert not store.write({("distrust", key): None, ("pod", POD.id): None})
    assert store.waiting <= HISTORY + 2
    store.directory.unlink()
    kept.rename(store.directory)
    assert store.write({})
    found = records_in(store.directory)
    assert {kind for kind, _ in found} == {"record"}
    assert sorted(int(key) for _, key in found) == list(range(last - HISTORY + 1, last + 1))


#: Reads the file as a person does, and leaves it open until its standard input ends.
READER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("SELECT count(*) FROM records").fetchone()
print("open", flush=True)
sys.stdin.read()
"""


def test_a_file_that_another_program_has_open_is_left_alone_until_it_is_closed(store: Store) -> None:
    store.load()
    store.write(ONE_POD, {"mode": "off"})
    store.close()
    command = [sys.executable, "-c", READER, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdin is not None
        reader.stdout.readline()
        with pytest.raises(StateLocked, match=f"{store.path} is locked"):
            store.load()
        assert not store.write({("distrust", "a"): 1.0})
        reader.stdin.close()
        reader.wait()
    loaded = store.load()
    assert (loaded.of("pod").keys(), loaded.meta["mode"], loaded.notes) == ({POD.id}, "off", ())
    assert store.write({})
    assert records_in(store.directory) == {**ONE_POD, ("distrust", "a"): 1.0}


def test_a_file_that_vanishes_is_begun_anew_with_all_records(store: Store) -> None:
    store.load()
    store.write({**ONE_POD, ("distrust", "a"): 1.0}, {"boot_id": "x"})
    for path in store.directory.iterdir():
        path.unlink()
    assert store.write({("distrust", "a"): None})
    assert records_in(store.directory) == ONE_POD
    assert store.load().meta["boot_id"] == "x"


def test_a_file_that_loses_its_tables_is_set_aside_and_begun_anew_with_all_records(store: Store) -> None:
    store.load()
    store.write({**ONE_POD, ("distrust", "a"): 1.0}, {"boot_id": "x"})
    sql(store.path, "DROP TABLE meta")
    log_of(store.path).unlink()  # what the next change is written to is begun with a mark in the file
    assert not store.write({("distrust", "a"): None})
    assert str(store.path) in store.problem
    assert store.flush()
    assert store.problem == ""
    assert records_in(store.directory) == ONE_POD
    assert store.load().meta["boot_id"] == "x"
    assert any(path.name.startswith(f"{FILE}.") for path in store.directory.iterdir())


@pytest.mark.parametrize(("name", "mode"), [("cri-resmgr", 0o700), ("others-too", 0o755)])
def test_the_usual_folder_that_kubelet_has_made_is_roots_alone(tmp_path, monkeypatch, name, mode) -> None:
    monkeypatch.setenv(machine_root.VARIABLE, str(tmp_path))
    folder = tmp_path / "var/lib" / name
    folder.mkdir(mode=0o755, parents=True)
    Store(folder).load()
    assert stat.S_IMODE(folder.stat().st_mode) == mode
