"""The log beside the state file: an appended change survives any end of the process; no log is read over another file.

A killed daemon is a copy of its folder, made while the store is open: nothing is taken in or written at an end.
"""

from __future__ import annotations

import itertools
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.engine.snapshot import FORMAT, write_record
from cri_proxy.engine.state import JournalKey
from cri_proxy.state.file import FILE, LoadedState, read_unwritable
from cri_proxy.state.log import SUFFIX, Changes, log_of
from cri_proxy.state.store import RETRY_S, Store
from tests.agent import ROOT
from tests.scenes import make_pod

POD = make_pod("web")
Values = dict[JournalKey, Any]


def change(key: str, value: Any = 1.0) -> Values:
    return {("distrust", key): value}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "state", clock=itertools.count(0.0, RETRY_S).__next__)
    store.load()
    yield store
    store.close()


def killed(store: Store, name: str = "killed") -> Path:
    """What a daemon leaves that is killed now."""
    folder = store.directory.with_name(name)
    shutil.copytree(store.directory, folder)
    return folder


def load(folder: Path) -> LoadedState:
    """What the next daemon finds."""
    store = Store(folder)
    try:
        return store.load()
    finally:
        store.close()


def values(loaded: LoadedState) -> Values:
    return {(kind, key): value for kind, table in loaded.records.items() for key, value in table.items()}


def read_by_sqlite(folder: Path) -> tuple[set[str], dict[str, str]]:
    """What an older version finds, which knows no log."""
    db = sqlite3.connect(folder / FILE)
    found = {key for (key,) in db.execute("SELECT key FROM records")}, dict(db.execute("SELECT * FROM meta"))
    db.close()
    return found


def log_in(folder: Path) -> Path:
    return folder / f"{FILE}{SUFFIX}"


# ---------------------------------------------------------------------- what is appended


def test_what_was_appended_is_there_after_a_kill(store: Store) -> None:
    store.write({**change("a"), ("pod", POD.id): POD}, {"mode": "off"})
    store.write(change("b", 2.0))
    store.write(change("a", None))
    loaded = load(killed(store))
    assert values(loaded) == {**change("b", 2.0), ("pod", POD.id): POD}
    assert (loaded.meta["mode"], loaded.notes, loaded.is_outdated) == ("off", (), False)
    assert "log" not in loaded.meta


def test_a_flush_is_one_line_and_does_not_touch_the_file(store: Store) -> None:
    store.write(change("a"))
    before, lines = read_by_sqlite(killed(store, "before")), log_of(store.path).read_bytes().count(b"\n")
    store.write({**change("b"), ("pod", POD.id): POD})
    assert read_by_sqlite(killed(store, "after")) == before
    assert log_of(store.path).read_bytes().count(b"\n") == lines + 1
    assert log_of(store.path).stat().st_mode & 0o777 == 0o600


def test_a_clean_end_leaves_all_of_it_to_an_older_version(store: Store) -> None:
    store.write(change("a"), {"mode": "off"})
    store.write(change("b"))
    store.close()
    assert [path.name for path in store.directory.iterdir()] == [FILE]
    assert read_by_sqlite(store.directory) == ({"a", "b"}, {"format": str(FORMAT), "mode": "off"})


#: Reports each change once it is durable; another thread has the file take the log in all the while.
WRITES = """
import sys, threading
from pathlib import Path
from cri_proxy.state.store import Store

store = Store(Path(sys.argv[1]))
store.load()
is_over = threading.Event()


def take_in():
    while not is_over.is_set():
        store.checkpoint()


threading.Thread(target=take_in, daemon=True).start()
for number in range(100_000):
    before = {("distrust", str(number - 3)): None} if number % 2 else {}
    assert store.write({**before, ("distrust", str(number)): 1.0, ("distrust", "last"): float(number)}), store.problem
    print(number, flush=True)
"""


@pytest.mark.parametrize("reported", [1, 40, 41, 200, 503])
def test_a_kill_at_any_instant_loses_nothing_that_was_durable(reported: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES, str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        last = -1
        for line in itertools.islice(process.stdout, reported):
            last = int(line)
        process.kill()
    loaded = load(tmp_path / "state")
    found = loaded.of("distrust")
    written = int(found["last"])
    removed = {number - 3 for number in range(1, written + 1, 2)}
    assert written >= last and not loaded.lost
    assert set(found) == {str(number) for number in range(written + 1) if number not in removed} | {"last"}


# ---------------------------------------------------------------------- a log that is not whole


def test_a_torn_line_is_left_out_wherever_it_ends_and_all_before_it_is_read(store: Store) -> None:
    store.write({**change("a"), ("pod", POD.id): POD})
    store.write(change("b"))
    beginning = log_of(store.path).stat().st_size
    store.write({**change("a", None), **change("c")}, {"mode": "off"})
    whole = log_of(store.path).read_bytes()
    for length in range(beginning, len(whole) + 1):
        folder = killed(store, f"killed-{length}")
        log_in(folder).write_bytes(whole[:length])
        loaded = load(folder)
        if length == len(whole):
            assert values(loaded) == {**change("b"), **change("c"), ("pod", POD.id): POD}
        else:
            assert values(loaded) == {**change("a"), **change("b"), ("pod", POD.id): POD}
            assert "mode" not in loaded.meta
        is_torn = beginning < length < len(whole)
        said = (f"the last change in {FILE}-log was not written whole and is left out",) if is_torn else ()
        assert (loaded.notes, loaded.lost, loaded.is_outdated) == (said, "", False)
        # It is over: nothing is left out at the next start.
        assert load(folder).notes == ()


def test_a_damaged_line_costs_no_other_and_what_runs_is_right(store: Store) -> None:
    for key in ("a", "b", "c"):
        store.write(change(key))
    whole = log_of(store.path).read_bytes()
    lines = whole.splitlines(keepends=True)
    begins = sum(map(len, lines[:2]))
    for place in range(begins, begins + len(lines[2]) - 1):
        folder = killed(store, f"killed-{place}")
        damaged = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        log_in(folder).write_bytes(damaged)
        loaded = load(folder)
        assert set(loaded.of("distrust")) == {"a", "c"}
        assert loaded.lost.endswith(f"changes in {FILE}-log could not be read") and loaded.is_outdated
        assert (folder / f"{FILE}.aside-1-log").read_bytes() == damaged
        assert (set(load(folder).of("distrust")), load(folder).lost) == ({"a", "c"}, "")


LOST = {
    "gone": (lambda log: log.unlink(), f"{FILE}-log is gone"),
    "another's": (
        lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:])),
        "not the log of",
    ),
    "no log": (lambda log: log.write_bytes(b"cache: {}\n" * 9), "not the log of"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_log_that_should_be_there_and_is_not_is_a_loss(case: str, store: Store) -> None:
    store.write(change("a"))
    store.checkpoint()
    store.write(change("b"))
    folder = killed(store)
    spoil, sentence = LOST[case]
    spoil(log_in(folder))
    loaded = load(folder)
    assert (set(loaded.of("distrust")), loaded.is_outdated) == ({"a"}, True)
    assert sentence in loaded.lost and loaded.notes == (loaded.lost,)
    assert load(folder).lost == ""


def test_a_loss_is_told_by_the_load_that_comes_after_a_change(store: Store) -> None:
    store.write(change("a"))
    folder = killed(store)
    log_in(folder).unlink()
    again = Store(folder)
    assert again.write({}, {"mode": "off"})
    loaded = again.load()
    again.close()
    assert (loaded.lost, loaded.meta["mode"]) == (f"{FILE}-log is gone", "off")


def test_what_a_power_cut_leaves_of_a_log_is_no_loss(store: Store) -> None:
    store.write(change("a"))
    folder = killed(store)
    log_in(folder).write_bytes(bytes(4096))
    loaded = load(folder)
    assert (loaded.notes, loaded.lost) == ((f"{FILE}-log is empty",), "")


# ---------------------------------------------------------------------- the file taken in, and others that write to it


def sequence() -> list[Values]:
    """Changes in which records come, change, go and come again."""
    return [
        change("a"),
        {**change("b"), **change("c")},
        {**change("a", None), **change("b", 2.0)},
        {**change("c", None), **change("d")},
        {**change("a", 3.0), **change("d", None)},
    ]


def test_what_was_taken_in_is_left_out_of_what_waits_and_what_came_later_is_not() -> None:
    waiting = Changes({("distrust", "a"): "1", ("distrust", "b"): "1"}, {"mode": "off", "number": "1"})
    taken = waiting.copy()
    waiting.add(Changes({("distrust", "b"): "2", ("distrust", "c"): None}, {"number": "2", "boot_id": "x"}))
    waiting.remove(taken)
    assert waiting.records == {("distrust", "b"): "2", ("distrust", "c"): None}
    assert waiting.meta == {"number": "2", "boot_id": "x"}
    waiting.remove(waiting.copy())
    assert not waiting


def test_a_kill_between_taking_in_and_shortening_the_log_changes_nothing(store: Store) -> None:
    """Wherever the log was taken in: then the file has a part of what the log has, or all."""
    for number, changes in enumerate(sequence()):
        store.write(changes, {"number": str(number)})
    whole, expected = log_of(store.path).read_bytes(), values(load(killed(store, "expected")))
    for taken in range(1, len(sequence()) + 1):
        folder = store.directory.with_name(f"after-{taken}")
        other = Store(folder)
        other.load()
        for number, changes in enumerate(sequence()[:taken]):
            other.write(changes, {"number": str(number)})
        other.checkpoint()
        # The mark is of this file's log, the lines are those of the whole.
        header = log_of(other.path).read_bytes().splitlines(keepends=True)[0]
        cut = killed(other, f"cut-{taken}")
        other.close()
        log_in(cut).write_bytes(header + whole.split(b"\n", 1)[1])
        loaded = load(cut)
        assert values(loaded) == expected == {**change("a", 3.0), **change("b", 2.0)}
        assert (loaded.meta["number"], loaded.notes) == (str(len(sequence()) - 1), ())


def test_a_checkpoint_shortens_the_log_to_what_came_meanwhile(store: Store) -> None:
    store.write({("pod", POD.id): POD})
    store.checkpoint()
    assert log_of(store.path).read_bytes().count(b"\n") == 1
    assert read_by_sqlite(killed(store, "checked"))[0] == {POD.id}
    store.write(change("b"))
    assert values(load(killed(store))) == {**change("b"), ("pod", POD.id): POD}


class Meanwhile(Store):
    """Changes come while the file takes the log in."""

    changes: Values = {}

    def _commit(self, changes: Changes, mark_text: str) -> None:
        super()._commit(changes, mark_text)
        if changes:
            coming, self.changes = self.changes, {}
            assert self.write(coming)


def test_what_comes_while_the_file_takes_the_log_in_stays_in_the_log(tmp_path: Path) -> None:
    store = Meanwhile(tmp_path / "state")
    store.load()
    store.write({**change("a"), **change("b"), **change("c")})
    store.changes = {**change("a", None), **change("b", 2.0), **change("d")}
    store.checkpoint()
    expected = {**change("b", 2.0), **change("c"), **change("d")}
    assert values(load(killed(store))) == expected
    assert read_by_sqlite(killed(store, "seen"))[0] == {"a", "b", "c"}
    store.checkpoint()
    assert values(load(killed(store, "later"))) == expected
    assert log_of(store.path).read_bytes().count(b"\n") == 1
    store.close()


def test_while_another_program_locks_the_file_appends_go_on_and_it_takes_them_in_later(store: Store) -> None:
    store.write(change("a"))
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert store.write(change("b"))
    store.checkpoint()
    assert store.write(change("c")) and store.problem == ""
    assert set(load_copy_of_log(store)) == {"a", "b", "c"}
    other.execute("COMMIT")
    other.close()
    store.checkpoint()
    assert read_by_sqlite(killed(store))[0] == {"a", "b", "c"}


def load_copy_of_log(store: Store) -> dict[str, Any]:
    return load(killed(store, "meanwhile")).of("distrust")


#: What an older version does, each time in one transaction, with the statements it has.
OTHERS = {
    "a record": ("INSERT OR REPLACE INTO records (kind, key, value) VALUES ('distrust', 'theirs', '5.0')",),
    "a record changed": (
        "INSERT OR REPLACE INTO records (kind, key, value) VALUES ('distrust', 'a', '5.0')",
    ),
    "a record removed": ("DELETE FROM records WHERE kind = 'distrust' AND key = 'a'",),
    # Each start of a daemon enters its boot id, the machine's hash and the mode, changed or not.
    "its start": ("INSERT OR REPLACE INTO meta (key, value) VALUES ('boot_id', 'x')",),
    "by hand": ("UPDATE meta SET value = 'y' WHERE key = 'boot_id'",),
    "a record by hand": ("UPDATE records SET value = '5.0' WHERE key = 'a'",),
    "meta removed": ("DELETE FROM meta WHERE key = 'boot_id'",),
    # It remembers all of meta, and begins a file that has vanished with it.
    "a file begun anew": (
        *(
            f"DROP TRIGGER unmark_{table}_{event}"
            for table in ("records", "meta")
            for event in ("INSERT", "UPDATE", "DELETE")
        ),
        "INSERT OR REPLACE INTO meta (key, value) VALUES ('boot_id', 'x')",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_log_is_not_read_over_what_another_version_has_written_since(case: str, store: Store) -> None:
    store.write(change("a"), {"boot_id": "x"})
    store.checkpoint()
    store.write({**change("a", 2.0), **change("ours")})
    folder = killed(store)
    db = sqlite3.connect(folder / FILE)
    for statement in OTHERS[case]:
        db.execute(statement)
    db.commit()
    db.close()
    theirs = read_by_sqlite(folder)[0]
    loaded = load(folder)
    assert set(loaded.of("distrust")) == theirs and "ours" not in theirs
    assert loaded.notes == (f"{FILE}-log is older than {FILE} and is not used",)
    assert (loaded.lost, loaded.is_outdated) == ("", False)
    # From then on there is a log of that file.
    again = Store(folder)
    again.load()
    again.write(change("new"))
    assert set(load(killed(again, "again")).of("distrust")) == {*theirs, "new"}
    again.close()


def test_another_version_that_reads_only_leaves_the_log_its_file(store: Store) -> None:
    store.write(change("a"))
    folder = killed(store)
    read_by_sqlite(folder)
    assert values(load(folder)) == change("a")


def test_a_kill_between_a_clean_ends_steps_loses_nothing(store: Store) -> None:
    store.write(change("a"))
    log = log_of(store.path).read_bytes()
    store.close()
    folder = killed(store)
    log_in(folder).write_bytes(log)
    loaded = load(folder)
    assert (values(loaded), loaded.lost) == (change("a"), "")


def test_a_kill_between_a_logs_beginning_and_its_mark_is_nothing(store: Store) -> None:
    store.write(change("a"))
    header = log_of(store.path).read_bytes().splitlines(keepends=True)[0]
    store.close()
    folder = killed(store)
    log_in(folder).write_bytes(header)
    loaded = load(folder)
    assert (values(loaded), loaded.notes) == (change("a"), ())


# ---------------------------------------------------------------------- what befalls it while the daemon runs


def test_a_log_that_vanishes_is_begun_anew_with_what_it_held(store: Store) -> None:
    store.write(change("a"))
    store.checkpoint()
    store.write(change("b"))
    log_of(store.path).unlink()
    assert store.write(change("c"))
    loaded = load(killed(store))
    assert (set(loaded.of("distrust")), loaded.notes) == ({"a", "b", "c"}, ())
    assert not list(store.directory.glob("*aside*"))


def test_a_log_that_is_replaced_is_begun_anew_with_what_it_held(store: Store) -> None:
    store.write(change("a"))
    log_of(store.path).rename(store.directory / "theirs")
    log_of(store.path).write_bytes(b"")
    assert store.write(change("b"))
    assert set(load(killed(store)).of("distrust")) == {"a", "b"}


def test_a_line_for_which_there_is_no_room_leaves_no_trace_and_is_written_later(store: Store) -> None:
    store.write(change("a"))
    before = log_of(store.path).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        assert not store.write(change("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "full" in store.problem and store.unsaved == {("distrust", "b")}
    assert log_of(store.path).read_bytes() == before
    assert store.write(change("c")) and store.problem == ""
    assert set(load(killed(store)).of("distrust")) == {"a", "b", "c"}


def test_a_file_that_can_only_be_read_is_read_with_its_log(store: Store) -> None:
    store.write(change("a"))
    store.checkpoint()
    store.write(change("b"))
    folder = killed(store)
    (folder / f"{FILE}-wal").unlink()
    assert set(read_unwritable(folder / FILE).of("distrust")) == {"a", "b"}


def test_a_log_is_set_aside_with_its_file(store: Store) -> None:
    store.write(change("a"))
    log = log_of(store.path).read_bytes()
    folder = killed(store)
    (folder / f"{FILE}-wal").unlink()
    (folder / FILE).write_text("no database" * 1000)
    loaded = load(folder)
    assert f"set aside as {FILE}.aside-1" in loaded.lost and loaded.records == {}
    assert (folder / f"{FILE}.aside-1-log").read_bytes() == log


def test_a_line_can_be_read_by_a_person(store: Store) -> None:
    store.write({("pod", POD.id): POD}, {"mode": "off"})
    [_, line] = log_of(store.path).read_text().splitlines()
    written = write_record(POD)
    assert line[9:] == f'{{"records":[["pod","{POD.id}",{written}]],"meta":{{"mode": "off"}}}}'


# ---------------------------------------------------------------------- any of it, in any order

KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"), st.dictionaries(KEYS, st.none() | st.integers(0, 9).map(float), min_size=1)
        ),
        st.tuples(
            st.sampled_from(
                ("take in", "kill", "kill before the log is shortened", "end", "log gone", "an older version")
            ),
            st.just({}),
        ),
    ),
    max_size=12,
)


@given(STEPS)
def test_whatever_happens_to_a_daemon_the_next_finds_what_was_written_last(steps: list[Any]) -> None:
    expected: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as root:
        folders = (Path(root) / str(number) for number in itertools.count())
        store = Store(next(folders))
        store.load()
        for step, changes in steps:
            log, before = log_of(store.path), b""
            if step == "write":
                assert store.write({("distrust", key): value for key, value in changes.items()})
                expected = {k: v for k, v in {**expected, **changes}.items() if v is not None}
            elif step == "log gone":
                log.unlink(missing_ok=True)
                assert store.write({}, {"seen": "1"})
            if step == "kill before the log is shortened":
                before = log.read_bytes() if log.exists() else b""
            if step in ("take in", "kill before the log is shortened", "an older version"):
                store.checkpoint()
            if step.startswith("kill") or step in ("end", "an older version"):
                if step == "end":
                    store.close()
                folder = next(folders)
                shutil.copytree(store.directory, folder)
                store.close()
                if before:
                    log_in(folder).write_bytes(before)
                if step == "an older version":
                    db = sqlite3.connect(folder / FILE)
                    db.execute("INSERT OR REPLACE INTO records VALUES ('distrust', 'a', '5.0')")
                    db.commit()
                    db.close()
                    expected["a"] = 5.0
                store = Store(folder)
                loaded = store.load()
                assert (loaded.of("distrust"), loaded.lost) == (expected, "")
        store.close()
