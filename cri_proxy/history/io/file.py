"""The file with the history: SQLite, apart from the state, so that nothing that befalls it costs a placement.

All in here waits for the disk: in the daemon a thread of its own does it (``keeper.py``). The log's index is in our own
memory, as with the state file (``cri_proxy/state/file.py``): no other process can read it while the daemon runs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from cri_proxy.engine.model import DecisionRecord
from cri_proxy.history.entries import Entry, EntryKey, Query, entry_row, write_entry
from policies.frozen import frozen

FILE = "history.db"
#: Grows when a version that knows only those before would misread the file.
FORMAT = 1
#: The most that all entries have together, whatever their number: one that changed 500 containers has 60 KB.
MOST_BYTES = 64 << 20
#: So much of the disk is left to the state and to others.
LEFT_BYTES = 32 << 20
#: An answer ends with the entry that brings it to this.
ANSWER_BYTES = 1 << 20
#: How long another program's lock is waited for.
LOCK_WAIT_S = 1.0


class HistoryUnusable(Exception):
    """The history cannot be read or written: a sentence with what to do."""


class Handed(NamedTuple):
    """A record on its way into the file. ``paths``: names of the containers it is about, by id, as far as known.

    ``about``: ids of containers that it is about, too, without a change of their places.
    """

    record: DecisionRecord
    boot: str
    time_s: float
    paths: Mapping[str, str]
    about: Sequence[str] = ()


@frozen
class Bounds:
    """What is kept: so many entries, none of before ``oldest_s`` (since 1970)."""

    entries: int
    oldest_s: float = 0.0


class HistoryFile:
    """One file, opened when it is first used. Of one thread."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._db: Optional[sqlite3.Connection] = None
        self._inode = (0, 0)

    def add(self, handed: Iterable[Handed], bounds: Bounds) -> None:
        """Enter records, or amend what there is of them; what is beyond the bounds goes. All of it or nothing.

        :raises HistoryUnusable: they are not entered.
        """
        try:
            self._require_room()
            db = self._connected()
            with _transaction(db):
                for one in handed:
                    _enter(db, one)
                _prune(db, bounds)
        except sqlite3.DatabaseError as error:
            self.close()
            if "malformed" in str(error) or "not a database" in str(error):
                raise HistoryUnusable(self._set_aside(error)) from None
            raise _unusable(self.path, error) from None
        except OSError as error:
            self.close()
            raise _unusable(self.path, error) from None

    def page(self, query: Query) -> dict[str, Any]:
        """As ``read_page``; nothing where there is no file yet."""
        if self._db is None and not self.path.exists():
            return dict(NOTHING)
        try:
            return read_page(self._connected(), query)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise _unusable(self.path, error) from None

    def _require_room(self) -> None:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = os.statvfs(folder)
        if there.f_bavail * there.f_frsize < LEFT_BYTES:
            left = f"less than {LEFT_BYTES >> 20} MiB are free, which are left to the state"
            raise HistoryUnusable(f"the history is not being kept: {folder}: {left}; free some of that disk")

    def _connected(self) -> sqlite3.Connection:
        """A connection to the file that is at our path now."""
        if self._db is not None and _inode(self.path) != self._inode:
            self.close()
        if self._db is None:
            self._db = connect(self.path, "rwc")
            self._inode = _inode(self.path)
        return self._db

    def _set_aside(self, error: Exception) -> str:
        """A file that cannot be read makes room for a new one; the last such is kept."""
        aside = self.path.with_name(f"{FILE}.damaged")
        self.path.replace(aside)
        for end in ("-wal", "-shm"):
            self.path.with_name(FILE + end).unlink(missing_ok=True)
        return f"the history was damaged ({error}): it is {aside} now, and a new one is begun"

    def close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None


NOTHING: Mapping[str, Any] = {"entries": [], "before": None, "newest": 0}


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """``mode``: "rwc" makes a file where there is none, "rw" does not.

    :raises sqlite3.Error, OSError: it cannot be opened.
    :raises HistoryUnusable: it is of a version that this one does not know, or another program's.
    """
    address = f"file:{urllib.parse.quote(str(path))}?mode={mode}&vfs=unix-excl"
    db = sqlite3.connect(
        address, uri=True, isolation_level=None, timeout=LOCK_WAIT_S, check_same_thread=False
    )
    try:
        os.chmod(path, 0o600)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version > FORMAT or (tables and not version):
            raise HistoryUnusable(
                f"the history is not being kept: {path} is of a later version or another program's; "
                "rename it to begin a new one"
            )
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        if not tables:
            db.executescript(
                "BEGIN IMMEDIATE;"
                "CREATE TABLE entries (place INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL,"
                " number INTEGER NOT NULL, at_s REAL NOT NULL, time_s REAL NOT NULL, names TEXT NOT NULL,"
                " value TEXT NOT NULL);"
                "CREATE UNIQUE INDEX keys ON entries (boot, number, at_s);"
                "CREATE INDEX times ON entries (time_s);"
                f"PRAGMA user_version={FORMAT};"
                "COMMIT"
            )
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Any:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _enter(db: sqlite3.Connection, handed: Handed) -> None:
    record = handed.record
    key = EntryKey(handed.boot, record.number, record.at_s)
    known = db.execute(
        "SELECT place, time_s, names, value FROM entries WHERE boot = ? AND number = ? AND at_s = ?", key
    ).fetchone()
    place, time_s, names, value = known or (None, handed.time_s, "", "")
    entry = write_entry(record, handed.boot, time_s, handed.paths, names, handed.about)
    if (entry.names, entry.value) == (names, value):
        return
    # A later place: what reads on from a place sees that it was amended.
    if place is not None:
        db.execute("DELETE FROM entries WHERE place = ?", (place,))
    db.execute(
        "INSERT INTO entries (boot, number, at_s, time_s, names, value) VALUES (?, ?, ?, ?, ?, ?)",
        (*key, time_s, entry.names, entry.value),
    )


def _prune(db: sqlite3.Connection, bounds: Bounds) -> None:
    """Take the oldest out, by their place: at most so many, none that is too old, and not too much in all."""
    db.execute("DELETE FROM entries WHERE time_s < ?", (bounds.oldest_s,))
    db.execute(
        "DELETE FROM entries WHERE place <= (SELECT place FROM entries ORDER BY place DESC LIMIT 1 OFFSET ?)",
        (bounds.entries,),
    )
    size = _bytes(db)
    while size > MOST_BYTES:
        db.execute("DELETE FROM entries WHERE place IN (SELECT place FROM entries ORDER BY place LIMIT 100)")
        size = _bytes(db)


def _bytes(db: sqlite3.Connection) -> int:
    """What of the file is in use."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def read_page(db: sqlite3.Connection, query: Query) -> dict[str, Any]:
    """``entries``: as ``entry_row``. ``before``: where to read on for older ones, None = that was all. ``newest``: the
    place of the last entry there is, from which a later query reads on (``after``).

    With ``after`` they come in the order of their places, and ``before`` is None.
    """
    wanted = ["time_s >= ?"]
    values: list[Union[float, str]] = [query.since_s]
    if query.name:
        patterns = _patterns(db, query)
        wanted.append(f"({' OR '.join(['instr(names, ?)'] * len(patterns))})")
        values += patterns
    order = "DESC"
    if query.after is not None:
        wanted.append("place > ?")
        values.append(query.after)
        order = "ASC"
    elif query.before is not None:
        wanted.append("place < ?")
        values.append(query.before)
    found = db.execute(
        "SELECT place, boot, number, at_s, time_s, names, value FROM entries"
        f" WHERE {' AND '.join(wanted)} ORDER BY place {order} LIMIT ?",
        (*values, query.most + 1),
    )
    rows: list[dict[str, Any]] = []
    size, is_more = 0, False
    for place, boot, number, at_s, time_s, names, value in found:
        if len(rows) >= query.most or size >= ANSWER_BYTES:
            is_more = True
            break
        rows.append(entry_row(place, Entry(EntryKey(boot, number, at_s), time_s, names, value)))
        size += len(names) + len(value)
    found.close()
    newest = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
    before = rows[-1]["place"] if is_more and query.after is None else None
    if query.after is not None and is_more:
        # So that the next question goes on here.
        return {"entries": rows, "before": None, "newest": rows[-1]["place"]}
    return {"entries": rows, "before": before, "newest": newest[0] if newest else 0}


def _patterns(db: sqlite3.Connection, query: Query) -> tuple[str, ...]:
    """What the names of the entries hold that are meant: the name itself, or where none has it that of a workload."""
    found = db.execute(
        "SELECT 1 FROM entries WHERE instr(names, ?) OR instr(names, ?) LIMIT 1", query.patterns
    )
    return query.patterns if found.fetchone() else (query.beginning,)


def read_file(path: Path, query: Query) -> dict[str, Any]:
    """A page of a file that no daemon has open.

    :raises HistoryUnusable: there is none, or it cannot be read.
    """
    if not path.exists():
        raise HistoryUnusable(f"no history is kept: there is no {path}")
    try:
        # To be written: what a daemon that was killed has left in the log is taken over.
        with contextlib.closing(connect(path, "rw")) as db:
            return read_page(db, query)
    except (sqlite3.Error, OSError) as error:
        if "locked" in str(error):
            raise HistoryUnusable(
                f"{path} is in use by a process that does not answer; see: fuser {path}"
            ) from None
        raise HistoryUnusable(f"{path} cannot be read: {error}; try again as root") from None


def _unusable(path: Path, error: Exception) -> HistoryUnusable:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return HistoryUnusable(f"the history is not being kept: {path}: {reason}; it is tried again")


def _inode(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino
