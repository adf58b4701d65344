"""The state file: the engine's records in SQLite, one small transaction for each change.

Nearly all in here waits for the disk: the daemon's ``StateWriter`` has it done by a thread. ``add`` does not wait.

WAL with ``synchronous=NORMAL``: a committed change survives ``kill -9`` of the daemon at any instant (it is
in the page cache), without an fsync in the path of a pod start. After a power cut the last changes may be
missing; all containers are then gone too, and the boot id sends the records away. Checkpoints, which do
fsync, run outside the event loop (``checkpoint``).

A file that is corrupt, empty or foreign is set aside (renamed, never deleted); of any other all is read that can
be, record by record, whatever version has written it. One that another program has open is neither used nor set
aside. Without a directory that can be written the daemon runs on without durability, says so in its status and
keeps trying. A file that vanishes under it, or could not be read at its start, is begun anew with all records.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

from cri_proxy.config.io.files import LAST
from cri_proxy.engine.snapshot import FORMAT, RecordWriter, UnreadableRecord
from cri_proxy.engine.state import HISTORY, JournalKey, JournalValue
from cri_proxy.state.file import (
    FILE,
    LOCK_WAIT_S,
    LoadedState,
    StateLocked,
    address_of,
    connect,
    identity_of,
    is_environment,
    is_lock,
    read_all,
    read_unwritable,
)

#: How long a lock is waited for at a start: callers wait as long for that (``START_BEHIND_S`` of the relays).
LOAD_WAIT_S = 2.0
#: How long after a failure the next write is tried: what waits by then may take some 10 ms to write.
RETRY_S = 1.0

Journal = Mapping[JournalKey, JournalValue]


class Store:
    """One state file. ``problem`` is "" while changes are durable, else one sentence."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self.path = directory / FILE
        self.problem = ""
        self._writer = RecordWriter()
        self._db: Optional[sqlite3.Connection] = None
        #: What file the connection is of: (device, inode).
        self._file = (0, 0)
        #: Whether what is on disk, if anything, is not what the changes were made from.
        self._begin_anew = False
        #: What became of the last that was set aside.
        self._aside = ""
        #: Changes that are not written yet, the last value of each.
        self._pending: dict[JournalKey, JournalValue] = {}
        self._pending_meta: dict[str, str] = {}
        #: Changes that are being written.
        self._leaving: dict[JournalKey, JournalValue] = {}
        #: How often all was forgotten.
        self._age = 0
        #: Records that no text can be made of, and why: they are not in the file.
        self._unwritable: dict[JournalKey, str] = {}
        #: All records in the file, for one that has to be begun anew. What is not among them need not be removed from
        #: it. None: one that was not read.
        self._stored: dict[JournalKey, JournalValue] = {}
        self._stored_meta: dict[str, str] = {}
        self._clock = clock
        self._retry_at_s = 0.0
        #: Held while changes are moved about, never while the disk is waited for.
        self._moving = threading.Lock()
        #: Held while the file is read or written, which may hang with the disk.
        self._in_use = threading.Lock()

    # ------------------------------------------------------------------ opening

    def load(self) -> LoadedState:
        """Open the file, making it if there is none, and read all of it. May wait: call it from a thread.

        Changes that are made meanwhile wait. Never raises for anything else that it finds:

        :raises StateLocked: another program has it open; nothing has changed.
        """
        with self._in_use:
            loaded = self._load()
            self._know(loaded)
            return loaded

    def _know(self, loaded: LoadedState) -> None:
        """What is in the file now."""
        known = {(kind, key): value for kind, table in loaded.records.items() for key, value in table.items()}
        with self._moving:
            removed = dict.fromkeys([*loaded.dropped, *loaded.leftover])
            self._stored = {**removed, **dict.fromkeys(loaded.unknown), **known}
            self._stored_meta = dict(loaded.meta)
            # What cannot be read is found anew, and must not be there for the next daemon.
            self._pending = {**removed, **self._pending}
            if loaded.meta.get("format", str(FORMAT)) != str(FORMAT):
                self._pending_meta["format"] = str(FORMAT)

    def _load(self) -> LoadedState:
        self._disconnect()
        notes: list[str] = []
        # A daemon leaves both behind.
        if not os.path.exists(self.path) and os.path.exists(self.directory / LAST):
            notes.append(f"{self.path} is gone")
        for attempt in range(2):
            try:
                loaded = read_all(self._open(LOAD_WAIT_S), self.path)
                self.problem = ""
                self._begin_anew = False
                lost = "; ".join(filter(None, [*notes, loaded.lost]))
                return replace(loaded, notes=(*notes, *loaded.notes), lost=lost)
            except (sqlite3.Error, UnreadableRecord, UnicodeDecodeError, OSError) as error:
                self._disconnect()
                if is_lock(error):
                    reason = f"{self.path} is locked (fuser {self.path} names the process that has it open)"
                    self.problem = f"no container is placed until the state can be read: {reason}"
                    raise StateLocked(reason) from None
                problem = self._sentence(error)
                if is_environment(error) or attempt:
                    break
                try:
                    notes.append(f"{self.path} could not be read ({error}); {self.set_aside()}")
                except OSError as obstacle:
                    problem = self._sentence(obstacle)
                    break
        self.problem = problem
        loaded = read_unwritable(self.path)
        self._begin_anew = not loaded.meta
        is_lost = self._begin_anew and os.path.exists(self.path)
        lost = f"{self.path} could not be read at the start" if is_lost else "; ".join([*notes, loaded.lost])
        return replace(loaded, notes=(*notes, *loaded.notes, problem), lost=lost)

    def _sentence(self, error: Exception) -> str:
        reason = str(error)
        if isinstance(error, FileExistsError):
            reason = "it is not a directory"
        elif isinstance(error, OSError):
            reason = error.strerror or str(error)
        where = self.directory if isinstance(error, OSError) else self.path
        return f"state is not being kept, so a restart would lose it: {where}: {reason}"

    def _open(self, wait_s: float) -> sqlite3.Connection:
        """Connect, waiting that long for a lock; what was made on the way to a failure is removed again."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        existed = self.path.exists()
        try:
            self._db = connect(self.path, wait_s)
        except BaseException:
            for path in [] if existed else self._files():
                path.unlink(missing_ok=True)
            raise
        self._file = identity_of(self.path)
        return self._db

    def _files(self) -> list[Path]:
        return [self.path.with_name(FILE + suffix) for suffix in ("", "-wal", "-shm")]

    def set_aside(self) -> str:
        """Rename the file out of the way; a phrase that says where to.

        Changes that were waiting to be written belong to what is set aside.

        :raises OSError: it cannot be renamed; nothing has changed then.
        """
        phrase = self._move_away()
        self._forget()
        return phrase

    def move_away(self) -> str:
        """The same for a file that was forgotten (``forget``), if that was not done by now. May wait for the disk.

        :raises OSError: it cannot be renamed; it will be before anything is written.
        """
        with self._in_use:
            return self._move_away() if self._begin_anew else self._aside

    def _move_away(self) -> str:
        self._disconnect()
        self._aside = self._rename()
        return self._aside

    def start_over(self) -> LoadedState:
        """Have what was loaded set aside, now or as soon as that works; what to go on with instead."""
        try:
            phrase = self.set_aside()
        except OSError as error:
            self.problem = self._sentence(error)
            self.forget()
            return LoadedState(
                notes=(self.problem,), lost=f"the records in {self.path} made no sense together"
            )
        loaded = self.load()
        lost = f"the records in {self.path} made no sense together; {phrase}"
        return replace(loaded, notes=(phrase,), lost=lost)

    def forget(self) -> None:
        """What there is belongs to nothing any more: the next ``flush`` sets it aside. Never waits for the disk."""
        self._forget()
        self._begin_anew = True

    def _forget(self) -> None:
        with self._moving:
            self._leaving = {}
            self._age += 1
            for known in (self._stored, self._pending, self._unwritable):
                known.clear()
            self._stored_meta.clear()
            self._pending_meta.clear()

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
        """Make changes durable in one transaction.

        False: they wait in memory for a later call, or there is a record that cannot be written.
        """
        self.add(journal, meta)
        return self.flush()

    def add(self, journal: Journal, meta: Optional[Mapping[str, str]] = None) -> None:
        """Let changes wait for the next ``flush``. From any thread; never waits for the disk."""
        with self._moving:
            for (kind, key), value in journal.items():
                self._add((kind, key), value)
                if kind == "record" and value is not None:
                    self._add((kind, str(int(key) - HISTORY)), None)
            self._pending_meta.update(meta or {})

    def _add(self, key: JournalKey, value: JournalValue) -> None:
        """Let one change wait; on a disk that is full for days only what there is to be kept does."""
        is_known = key in self._stored or key in self._leaving or key in self._unwritable
        if value is None and not is_known:
            self._pending.pop(key, None)
        else:
            self._pending[key] = value

    @property
    def waiting(self) -> int:
        """How many changes wait to be written, or are just being written."""
        return len(self._pending) + len(self._pending_meta) + len(self._leaving)

    @property
    def unsaved(self) -> frozenset[JournalKey]:
        """The records that are not in the file as they are."""
        with self._moving:
            return frozenset([*self._pending, *self._leaving, *self._unwritable])

    def flush(self, is_last: bool = False) -> bool:
        """Write what waits, in one transaction; as ``write``. ``is_last``: also a moment after a failure.

        May wait for the disk.
        """
        with self._in_use:
            if not self.waiting:
                return not self._unwritable
            if not is_last and self._clock() < self._retry_at_s:
                return False
            return self._try_to_write()

    def _try_to_write(self) -> bool:
        try:
            self._reopen()
            self._write_pending()
        except (sqlite3.Error, OSError, UnreadableRecord) as error:
            self.problem = self._sentence(error)
            if self._db is not None and self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            if is_environment(error):
                self._retry_at_s = self._clock() + RETRY_S
            else:
                self._disconnect()
                self._begin_anew = True
            return False
        self.problem = ""
        for (kind, key), why in self._unwritable.items():
            self.problem = f"{kind} {key} is not being kept in the state, so a restart would lose it: {why}"
        return not self.problem

    def _reopen(self) -> None:
        """Have a connection to the file that is at our path now."""
        if self._db is not None and identity_of(self.path) != self._file:
            # Removed or replaced under us: what we have written since went nowhere.
            self._disconnect()
            self._begin_anew = True
        if self._begin_anew:
            self._move_away()
        elif self._db is not None:
            return
        self._open(LOCK_WAIT_S)
        if self._begin_anew:
            self._write_all_again()

    def _write_all_again(self) -> None:
        """Let all wait that was in the file before, which is not there any more."""
        with self._moving:
            known = {key: value for key, value in self._stored.items() if value is not None}
            meta = {key: value for key, value in self._stored_meta.items() if key != "format"}
            self._pending = {**known, **self._pending}
            self._pending_meta = {**meta, **self._pending_meta}
            self._stored, self._stored_meta = {}, {}
            self._begin_anew = False

    def _write_pending(self) -> None:
        with self._moving:
            journal, self._pending = self._pending, {}
            meta, self._pending_meta = self._pending_meta, {}
            self._leaving, age = journal, self._age
        try:
            gone, kept = self._texts(journal)
            self._commit(gone, kept, meta)
        except BaseException:
            self._arrive(age, {}, {}, journal, meta)
            raise
        there = {**dict.fromkeys(gone), **{(kind, key): journal[kind, key] for kind, key, _ in kept}}
        self._arrive(age, there, meta, {}, {})

    def _arrive(
        self, age: int, written: Journal, meta: Mapping[str, str], back: Journal, back_meta: Mapping[str, str]
    ) -> None:
        """What was being written is in the file now (None: is not in it any more), or waits again."""
        with self._moving:
            if age != self._age:
                return  # it was forgotten meanwhile
            for key, value in written.items():
                if value is None:
                    self._stored.pop(key, None)
                else:
                    self._stored[key] = value
            self._stored_meta.update(meta)
            self._pending = {**back, **self._pending}
            self._pending_meta = {**back_meta, **self._pending_meta}
            self._leaving = {}

    def _commit(
        self, gone: list[JournalKey], kept: list[tuple[str, str, str]], meta: Mapping[str, str]
    ) -> None:
        assert self._db is not None
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if gone:
            db.executemany("DELETE FROM records WHERE kind = ? AND key = ?", gone)
        if kept:
            db.executemany("INSERT OR REPLACE INTO records (kind, key, value) VALUES (?, ?, ?)", kept)
        if meta:
            db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", list(meta.items()))
        db.execute("COMMIT")

    def _texts(self, journal: Journal) -> tuple[list[JournalKey], list[tuple[str, str, str]]]:
        """What is to be removed, and what to be written."""
        gone: list[JournalKey] = []
        kept: list[tuple[str, str, str]] = []
        for (kind, key), value in journal.items():
            self._unwritable.pop((kind, key), None)
            try:
                if value is not None:
                    kept.append((kind, key, self._writer.text(value)))
                    continue
            except Exception as error:  # of one record, which must not keep all others from being written
                self._unwritable[kind, key] = f"{type(error).__name__}: {error}"
            gone.append((kind, key))
        return gone, kept

    def checkpoint(self) -> None:
        """Move the WAL into the file. May wait for the disk: call it from a thread."""
        address = address_of(self.path, "rw")  # never makes a file
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Write what still waits, if that works by now, and let go of the file. May wait for the disk."""
        self.flush(is_last=True)
        with self._in_use:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
