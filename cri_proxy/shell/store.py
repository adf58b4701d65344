"""The state file: the engine's records in SQLite, one small transaction for each change.

WAL with ``synchronous=NORMAL``: a committed change survives ``kill -9`` of the daemon at any instant (it is in
the page cache), without an fsync in the path of a pod start. After a power cut the last changes may be
missing; all containers are then gone too, and the boot id sends the records away. Checkpoints, which do
fsync, run outside the event loop (``checkpoint``).

A file that is corrupt, foreign or from another format is set aside (renamed, never deleted). A directory that
cannot be written leaves the daemon running without durability; it says so in its status and keeps trying.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from cri_proxy.core.engine import HISTORY, JournalKey, JournalValue
from cri_proxy.core.snapshot import FORMAT, UnreadableRecord, read_record, write_record

FILE = "state.db"


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
        self._db: Optional[sqlite3.Connection] = None
        #: Changes that could not be written yet, the last value of each.
        self._pending: dict[JournalKey, JournalValue] = {}
        self._pending_meta: dict[str, str] = {}

    # ------------------------------------------------------------------ opening

    def load(self) -> Loaded:
        """Open the file, making it if there is none, and read all of it. Never raises for what it finds."""
        notes: list[str] = []
        for attempt in range(2):
            try:
                self._open()
                return Loaded(*self._read(), tuple(notes))
            except (sqlite3.DatabaseError, UnreadableRecord, UnicodeDecodeError) as error:
                self.close()
                if _is_environment(error) or attempt:
                    self.problem = f"state is not being kept: {self.path}: {error}"
                    break
                notes.append(f"{self.path} could not be read ({error}); {self.set_aside()}")
            except OSError as error:
                self.close()
                self.problem = f"state is not being kept: {error}"
                break
        return Loaded(notes=(*notes, self.problem))

    def _open(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.exists() and not os.access(self.path, os.R_OK):
            raise PermissionError(f"{self.path} cannot be read")
        db = sqlite3.connect(self.path, isolation_level=None, timeout=1.0, check_same_thread=False)
        self._db = db
        os.chmod(self.path, 0o600)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute(
            "CREATE TABLE IF NOT EXISTS records (kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
            " PRIMARY KEY (kind, key)) WITHOUT ROWID"
        )
        row = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if row is not None and row[0] != str(FORMAT):
            raise UnreadableRecord(f"format {row[0]}, this version reads {FORMAT}")
        db.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (str(FORMAT),))

    def _read(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        assert self._db is not None
        records: dict[str, dict[str, Any]] = {}
        for kind, key, text in self._db.execute("SELECT kind, key, value FROM records"):
            records.setdefault(kind, {})[key] = read_record(kind, text)
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        return records, meta

    def set_aside(self) -> str:
        """Rename the file (and its WAL) out of the way; a phrase that says where to."""
        self.close()
        number = 1
        while (target := self.path.with_name(f"{FILE}.aside-{number}")).exists():
            number += 1
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(target)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(FILE + suffix).rename(target.with_name(target.name + suffix))
        return f"set aside as {target.name}"

    # ------------------------------------------------------------------ writing

    def write(self, journal: Mapping[JournalKey, JournalValue], meta: Optional[Mapping[str, str]] = None) -> bool:
        """Make changes durable in one transaction. False: they are kept in memory and tried again with the next call."""
        self._pending.update(journal)
        self._pending_meta.update(meta or {})
        if not self._pending and not self._pending_meta:
            return True
        try:
            if self._db is None:
                self._open()
            self._write_pending()
        except (sqlite3.Error, OSError, UnreadableRecord) as error:
            self.problem = f"state is not being kept: {self.path}: {error}"
            if self._db is not None and self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            return False
        self.problem = ""
        return True

    def _write_pending(self) -> None:
        assert self._db is not None
        gone = [(kind, key) for (kind, key), value in self._pending.items() if value is None]
        kept = [(kind, key, write_record(value)) for (kind, key), value in self._pending.items() if value is not None]
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
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self.path, timeout=1.0)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _is_environment(error: Exception) -> bool:
    """Errors of the disk or of permissions, which a fresh file would not cure."""
    text = str(error).lower()
    return any(word in text for word in ("unable to open", "disk", "readonly", "permission", "locked", "full"))
