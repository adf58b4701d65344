"""The state file: the engine's records in SQLite, one small transaction for each change.

WAL with ``synchronous=NORMAL``: a committed change survives ``kill -9`` of the daemon at any instant (it is
in the page cache), without an fsync in the path of a pod start. After a power cut the last changes may be
missing; all containers are then gone too, and the boot id sends the records away. Checkpoints, which do
fsync, run outside the event loop (``checkpoint``).

A file that is corrupt, empty, foreign or from another format is set aside (renamed, never deleted). Without
a directory that can be written the daemon runs on without durability, says so in its status and keeps
trying. A file that vanishes under it, or could not be read at its start, is begun anew with all records.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy.core.books import HISTORY, JournalKey, JournalValue
from cri_proxy.core.snapshot import FORMAT, RecordWriter, UnreadableRecord, read_record

FILE = "state.db"
#: Somebody else's lock (a sqlite3 shell, a backup) may cost a request this much, not more.
LOCK_WAIT_S = 0.1
#: A change writes whole pages. At SQLite's own 4,096 bytes a create takes three times as much to the log.
PAGE_BYTES = 1024

Journal = Mapping[JournalKey, JournalValue]


@dataclass
class Loaded:
    """What a state file held, by kind and key, and sentences about what was wrong with it."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, kind: str) -> dict[str, Any]:
        """The records of one kind."""
        return self.records.get(kind, {})


class Store:
    """One state file. ``problem`` is "" while changes are durable, else one sentence."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE
        self.problem = ""
        #: All records and meta there are, for a file that has to be begun anew; set by whoever has them.
        self.everything: Callable[[], tuple[Journal, Mapping[str, str]]] = lambda: ({}, {})
        self._writer = RecordWriter()
        self._db: Optional[sqlite3.Connection] = None
        #: What file the connection is of: (device, inode).
        self._file = (0, 0)
        #: Whether what is on disk, if anything, is not what the changes were made from.
        self._begin_anew = False
        #: Changes that could not be written yet, the last value of each.
        self._pending: dict[JournalKey, JournalValue] = {}
        self._pending_meta: dict[str, str] = {}

    # ------------------------------------------------------------------ opening

    def load(self) -> Loaded:
        """Open the file, making it if there is none, and read all of it. Never raises for what it finds."""
        self.close()
        notes: list[str] = []
        for attempt in range(2):
            try:
                self._open()
                loaded = Loaded(*self._read(), tuple(notes))
                self.problem = ""
                self._begin_anew = False
                return loaded
            except (sqlite3.Error, UnreadableRecord, UnicodeDecodeError, OSError) as error:
                self.close()
                problem = self._sentence(error)
                if _is_environment(error) or attempt:
                    break
                try:
                    notes.append(f"{self.path} could not be read ({error}); {self.set_aside()}")
                except OSError as obstacle:
                    problem = self._sentence(obstacle)
                    break
        self.problem = problem
        records, meta = self._read_only()
        self._begin_anew = not meta
        return Loaded(records, meta, (*notes, problem))

    def _read_only(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """All that is in a file that cannot be opened to be written; nothing if that cannot be told."""
        try:
            if self.path.with_name(f"{FILE}-wal").exists():  # in which the last changes are
                return {}, {}
            self._db = sqlite3.connect(_address(self.path, "ro") + "&immutable=1", uri=True)
            self._tables(self._db)
            return self._read()
        except (sqlite3.Error, UnreadableRecord, UnicodeDecodeError, OSError):
            return {}, {}
        finally:
            self.close()

    def _sentence(self, error: Exception) -> str:
        reason = str(error)
        if isinstance(error, FileExistsError):
            reason = "it is not a directory"
        elif isinstance(error, OSError):
            reason = error.strerror or str(error)
        where = self.directory if isinstance(error, OSError) else self.path
        return f"state is not being kept, so a restart would lose it: {where}: {reason}"

    def _open(self) -> None:
        """Connect; what was made on the way to a failure is removed again."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        existed = self.path.exists()
        try:
            self._connect(existed)
        except BaseException:
            self.close()
            for path in [] if existed else self._files():
                path.unlink(missing_ok=True)
            raise

    def _files(self) -> list[Path]:
        return [self.path.with_name(FILE + suffix) for suffix in ("", "-wal", "-shm")]

    def _connect(self, existed: bool) -> None:
        if existed:
            if not os.access(self.path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not self.path.stat().st_size:
                raise UnreadableRecord("it is empty")
        db = sqlite3.connect(
            _address(self.path, "rwc"),
            uri=True,
            isolation_level=None,
            timeout=LOCK_WAIT_S,
            check_same_thread=False,
        )
        self._db = db
        os.chmod(self.path, 0o600)
        self._file = _identity(self.path)
        tables = self._tables(db)
        if not tables:
            db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        if not tables:
            db.executescript(
                "BEGIN IMMEDIATE;"
                "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
                "CREATE TABLE records (kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
                " PRIMARY KEY (kind, key)) WITHOUT ROWID;"
                f"INSERT INTO meta VALUES ('format', '{FORMAT}');"
                "COMMIT"
            )

    def _tables(self, db: sqlite3.Connection) -> set[str]:
        """What is in a database of ours; nothing in a new one.

        :raises UnreadableRecord: it is somebody else's, or another version's; it must not be changed.
        """
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not {"meta", "records"} <= tables:
            raise UnreadableRecord("it is another program's database")
        row = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() if tables else None
        if tables and (row is None or row[0] != str(FORMAT)):
            raise UnreadableRecord(f"format {row[0] if row else 'unknown'}, this version reads {FORMAT}")
        return tables

    def _read(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        assert self._db is not None
        damage = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise UnreadableRecord(damage)
        records: dict[str, dict[str, Any]] = {}
        for kind, key, text in self._db.execute("SELECT kind, key, value FROM records"):
            records.setdefault(kind, {})[key] = read_record(kind, text)
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        return records, meta

    def set_aside(self) -> str:
        """Rename the file out of the way; a phrase that says where to.

        Changes that were waiting to be written belong to what is set aside.

        :raises OSError: it cannot be renamed; nothing has changed then.
        """
        self.close()
        phrase = self._rename()
        self._pending.clear()
        self._pending_meta.clear()
        return phrase

    def _rename(self) -> str:
        if not self.path.exists():
            return "there was none"
        number = 1
        while (target := self.path.with_name(f"{FILE}.aside-{number}")).exists():
            number += 1
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                path.rename(target.with_name(path.name.replace(FILE, target.name)))
        return f"set aside as {target.name}"

    # ------------------------------------------------------------------ writing

    def write(self, journal: Journal, meta: Optional[Mapping[str, str]] = None) -> bool:
        """Make changes durable in one transaction. False: they wait in memory for the next call."""
        self._pending.update(journal)
        self._pending_meta.update(meta or {})
        if not self._pending and not self._pending_meta:
            return True
        try:
            self._reopen()
            self._write_pending()
        except (sqlite3.Error, OSError, UnreadableRecord) as error:
            self.problem = self._sentence(error)
            if self._db is not None and self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            if not _is_environment(error):
                self.close()
                self._begin_anew = True
            return False
        self.problem = ""
        return True

    def _reopen(self) -> None:
        """Have a connection to the file that is at our path now."""
        if self._db is not None and _identity(self.path) != self._file:
            # Removed or replaced under us: what we have written since went nowhere.
            self.close()
            self._begin_anew = True
        if self._db is not None:
            return
        if self._begin_anew:
            self._rename()
        self._open()
        if self._begin_anew:
            records, meta = self.everything()
            self._pending = {**records, **self._pending}
            self._pending_meta = {**meta, **self._pending_meta}
            self._begin_anew = False

    def _write_pending(self) -> None:
        assert self._db is not None
        changes = self._pending.items()
        gone = [(kind, key) for (kind, key), value in changes if value is None]
        kept = [(kind, key, self._writer.text(value)) for (kind, key), value in changes if value is not None]
        old = [("record", str(int(key) - HISTORY)) for kind, key, _ in kept if kind == "record"]
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if gone or old:
            db.executemany("DELETE FROM records WHERE kind = ? AND key = ?", gone + old)
        if kept:
            db.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", kept)
        if self._pending_meta:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(self._pending_meta.items()))
        db.execute("COMMIT")
        self._pending.clear()
        self._pending_meta.clear()

    def checkpoint(self) -> None:
        """Move the WAL into the file. May wait for the disk: call it from a thread."""
        address = _address(self.path, "rw")  # never makes a file
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _address(path: Path, mode: str) -> str:
    """For SQLite: the log's index is in our own memory, not in a file that is mapped.

    Where a file system gives a mapped page its place on the disk late (btrfs, ext4 with small blocks), writing to one
    on a full disk ends the process (SIGBUS, seen). So no other process can read the file while the daemon runs.
    """
    return f"file:{urllib.parse.quote(str(path))}?mode={mode}&vfs=unix-excl"


def _identity(path: Path) -> tuple[int, int]:
    """What file a path is; (0, 0) for none."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _is_environment(error: Exception) -> bool:
    """Errors of the disk or of permissions, which a fresh file would not cure (sqlite.org/rescode.html)."""
    if isinstance(error, OSError):
        return True
    # Not "disk": a corrupt file is "database disk image is malformed".
    words = ("unable to open", "disk i/o", "is full", "readonly", "permission", "locked")
    return isinstance(error, sqlite3.Error) and any(word in str(error).lower() for word in words)
