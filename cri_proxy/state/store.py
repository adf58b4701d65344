"""The state file: the engine's records in SQLite, and beside it a log (``log.py``) to which each flush appends a line.

Nearly all in here waits for the disk: the daemon's ``StateWriter`` has it done by a thread. ``add`` does not wait.

An appended change survives ``kill -9`` of the daemon at any instant (it is in the page cache), without an fsync in the
path of a pod start. After a power cut the last changes may be missing; all containers are then gone too, and the boot
id sends the records away. The file takes the log in beside the appends (``checkpoint``, which does fsync), after a start
and at a clean end; where it cannot, the log grows. Both are read, the log over the file.

A file that is corrupt, empty or foreign is set aside with its log (renamed, never deleted); of any other all is read that
can be, record by record, whatever version has written it. One that another program has open is neither used nor set
aside. Without a directory that can be written the daemon runs on without durability, says so in its status and
keeps trying. A file that vanishes under it, or could not be read at its start, is begun anew with all records.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

from cri_proxy import effects
from cri_proxy.config.io.files import LAST
from cri_proxy.config.options.table import BY_KEY
from cri_proxy.engine.snapshot import FORMAT, RecordWriter, UnreadableRecord
from cri_proxy.engine.state import HISTORY, JournalKey, JournalValue
from cri_proxy.machine_root import below, machine_root
from cri_proxy.state.file import (
    FILE,
    LOCK_WAIT_S,
    LoadedState,
    StateLocked,
    connect,
    identity_of,
    is_environment,
    is_lock,
    read_all,
    read_unwritable,
)
from cri_proxy.state.log import NEW_SUFFIX, SUFFIX, Changes, LogFound, StateLog, log_of, mark, read_log

#: How long a lock is waited for at a start: callers wait as long for that (``START_BEHIND_S`` of the relays).
LOAD_WAIT_S = 2.0
#: How long after a failure the next write is tried: what waits by then may take some 10 ms to write.
RETRY_S = 1.0
#: How much the log grows before the file takes it in: some 40 creates. Until then its texts are in memory as well.
LONG_BYTES = 256 << 10
#: What SQLite's files are called after the first.
OWN = ("", "-wal", "-shm")

Journal = Mapping[JournalKey, JournalValue]


def _keep_to_root(directory: Path) -> None:
    """Kubelet makes the folder of a pod's hostPath for every user. One that is not the usual may be others' as well."""
    usual = below(machine_root(), BY_KEY["state.directory"].default)
    with contextlib.suppress(OSError):
        if directory == usual and directory.stat().st_mode & 0o077:
            directory.chmod(0o700)


class Store:
    """One state file and its log. ``problem`` is "" while changes are durable, else one sentence."""

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
        #: None: it is begun before the next change is written.
        self._log: Optional[StateLog] = None
        #: What the log holds and the file does not, and the mark that both have; "": there is no log.
        self._logged = Changes()
        self._mark = ""
        #: What was missing of logs that were opened, until it is told by ``load``.
        self._lost = ""
        #: The length at which the log is to be taken in.
        self._long_bytes = LONG_BYTES
        #: What became of the last that was set aside.
        self._aside = ""
        #: Changes that are not written yet, the last value of each.
        self._pending: dict[JournalKey, JournalValue] = {}
        self._pending_meta: dict[str, str] = {}
        #: Changes that are being written.
        self._leaving: dict[JournalKey, JournalValue] = {}
        #: How often all was forgotten.
        self._age = 0
        #: Records that no text can be made of, and why: they are not kept.
        self._unwritable: dict[JournalKey, str] = {}
        #: All records in file and log, for one that has to be begun anew. What is not among them need not be removed from
        #: them. None: one that was not read.
        self._stored: dict[JournalKey, JournalValue] = {}
        self._stored_meta: dict[str, str] = {}
        self._clock = clock
        self._retry_at_s = 0.0
        #: Held while changes are moved about, never while the disk is waited for.
        self._moving = threading.Lock()
        #: Held while the file is opened, taken from its place or takes the log in; before ``_in_use``.
        self._in_file = threading.Lock()
        #: Held while the log is written, or is another one. Both may be held as long as the disk hangs.
        self._in_use = threading.Lock()

    # ------------------------------------------------------------------ opening

    def load(self) -> LoadedState:
        """Open the file, making it if there is none, and read all of it. May wait: call it from a thread.

        Changes that are made meanwhile wait. Never raises for anything else that it finds:

        :raises StateLocked: another program has it open; nothing has changed.
        """
        with self._in_file, self._in_use:
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
                log = self._open(LOAD_WAIT_S)
                assert self._db is not None
                loaded = read_all(self._db, self.path, replace(log, lost=self._lost))
                self._take_in_found(log)
                self.problem = self._lost = ""
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
                    notes.append(f"{self.path} could not be read ({error}); {self._move_away()}")
                    self._forget()
                except OSError as obstacle:
                    problem = self._sentence(obstacle)
                    break
        self.problem = problem
        loaded = read_unwritable(self.path)
        self._begin_anew = not loaded.meta
        is_lost = self._begin_anew and os.path.exists(self.path)
        lost = f"{self.path} could not be read at the start" if is_lost else "; ".join([*notes, loaded.lost])
        return replace(loaded, notes=(*notes, *loaded.notes, problem), lost=lost)

    def _take_in_found(self, log: LogFound) -> None:
        """Have the file take in what was found in the log, if it can be changed; a damaged log is kept aside then."""
        if self._commit_logged(self._logged) is not None:
            return
        self._logged = Changes()
        if log.lost:
            with contextlib.suppress(OSError):
                effects.before(effects.STATE, log_of(self.path).name)
                log_of(self.path).rename(self._free_name(SUFFIX))

    def _sentence(self, error: Exception) -> str:
        reason = str(error)
        if isinstance(error, FileExistsError):
            reason = "it is not a directory"
        elif isinstance(error, OSError):
            reason = error.strerror or str(error)
        where = self.directory if isinstance(error, OSError) else self.path
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            where, reason = self.path, "the disk is full"
        return f"state is not being kept, so a restart would lose it: {where}: {reason}"

    def _open(self, wait_s: float) -> LogFound:
        """Connect, waiting that long for a lock, and read the log; what was made on the way to a failure goes again."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _keep_to_root(self.directory)
        existed = self.path.exists()
        try:
            self._db = connect(self.path, wait_s)
            with contextlib.suppress(FileNotFoundError):
                os.chmod(log_of(self.path), 0o600)
            found = read_log(self._db, self.path)
        except BaseException:
            self._disconnect()
            for path in [] if existed else self._files(OWN):
                path.unlink(missing_ok=True)
            raise
        self._file = identity_of(self.path)
        self._logged, self._mark = found.changes, found.mark
        self._lost = self._lost or found.lost
        return found

    def _files(self, suffixes: tuple[str, ...] = (*OWN, SUFFIX, NEW_SUFFIX)) -> list[Path]:
        return [self.path.with_name(FILE + suffix) for suffix in suffixes]

    def set_aside(self) -> str:
        """Rename the file out of the way; a phrase that says where to.

        Changes that were waiting to be written belong to what is set aside.

        :raises OSError: it cannot be renamed; nothing has changed then.
        """
        with self._in_file, self._in_use:
            phrase = self._move_away()
        self._forget()
        return phrase

    def move_away(self) -> str:
        """The same for a file that was forgotten (``forget``), if that was not done by now. May wait for the disk.

        :raises OSError: it cannot be renamed; it will be before anything is written.
        """
        with self._in_file, self._in_use:
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
        target = self._free_name()
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                effects.before(effects.STATE, path.name)
                path.rename(target.with_name(path.name.replace(FILE, target.name)))
        return f"set aside as {target.name}"

    def _free_name(self, suffix: str = "") -> Path:
        number = 1
        while (target := self.path.with_name(f"{FILE}.aside-{number}{suffix}")).exists():
            number += 1
        return target

    # ------------------------------------------------------------------ writing

    def write(self, journal: Journal, meta: Optional[Mapping[str, str]] = None) -> bool:
        """Make changes durable together.

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
        """The records that are not on disk as they are."""
        with self._moving:
            return frozenset([*self._pending, *self._leaving, *self._unwritable])

    @property
    def is_long(self) -> bool:
        """Whether the log has grown so much that ``checkpoint`` should be called."""
        log = self._log
        return log is not None and log.size_bytes >= self._long_bytes

    def flush(self, is_last: bool = False) -> bool:
        """Write what waits, by one append; as ``write``. ``is_last``: also a moment after a failure.

        May wait for the disk.
        """
        with self._in_use:
            if not self.waiting:
                return not self._unwritable
            if not is_last and self._clock() < self._retry_at_s:
                return False
            if self._is_in_place():
                return self._try_to_write()
        with self._in_file, self._in_use:
            return self._try_to_write(reopens=True)

    def _is_in_place(self) -> bool:
        """Whether an append goes to the log at our path, beside its file; else ``_reopen`` says why not."""
        try:
            return not self._begin_anew and self._has_file() and self._has_log()
        except OSError:
            return False

    def _has_file(self) -> bool:
        return self._db is not None and identity_of(self.path) == self._file

    def _has_log(self) -> bool:
        log = self._log
        return log is not None and not log.is_torn and identity_of(log.path) == log.identity

    def _try_to_write(self, reopens: bool = False) -> bool:
        try:
            if reopens:
                self._reopen()
            self._write_pending()
        except (sqlite3.Error, OSError, UnreadableRecord) as error:
            self._note_failure(error)
            return False
        self.problem = ""
        for (kind, key), why in self._unwritable.items():
            self.problem = f"{kind} {key} is not being kept in the state, so a restart would lose it: {why}"
        return not self.problem

    def _note_failure(self, error: Exception) -> None:
        self.problem = self._sentence(error)
        if is_environment(error):
            self._retry_at_s = self._clock() + RETRY_S
        else:
            self._disconnect()
            self._begin_anew = True

    def _reopen(self) -> None:
        """Have a connection to the file that is at our path now, and its log."""
        if self._db is not None and not self._has_file():
            # Removed or replaced under us: what we have written since went nowhere.
            self._begin_anew = True
        if self._begin_anew:
            self._move_away()
        if self._db is None:
            self._open(LOCK_WAIT_S)
            if self._begin_anew:
                self._write_all_again()
        if not self._has_log():
            self._begin_log()

    def _begin_log(self) -> None:
        """In place of one that is gone, torn or another's, and with what that held."""
        self._let_go_of_log()
        self._mark = self._mark or os.urandom(8).hex()
        log = StateLog(log_of(self.path), self._mark, self._logged)
        try:
            # Last: a mark without its log says that the log is lost.
            self._commit(Changes(), self._mark)
        except BaseException:
            log.close()
            raise
        self._log, self._long_bytes = log, log.size_bytes + LONG_BYTES

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
        assert self._log is not None
        with self._moving:
            journal, self._pending = self._pending, {}
            meta, self._pending_meta = self._pending_meta, {}
            self._leaving, age = journal, self._age
        try:
            changes = Changes(self._texts(journal), meta)
            self._log.append(changes)
        except BaseException:
            self._arrive(age, {}, {}, journal, meta)
            raise
        self._logged.add(changes)
        there = {key: None if text is None else journal[key] for key, text in changes.records.items()}
        self._arrive(age, there, meta, {}, {})

    def _arrive(
        self, age: int, written: Journal, meta: Mapping[str, str], back: Journal, back_meta: Mapping[str, str]
    ) -> None:
        """What was being written is on disk now (None: is not there any more), or waits again."""
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

    def _texts(self, journal: Journal) -> dict[JournalKey, Optional[str]]:
        """What is to be written, None: to be removed."""
        texts: dict[JournalKey, Optional[str]] = {}
        for key, value in journal.items():
            self._unwritable.pop(key, None)
            try:
                texts[key] = None if value is None else self._writer.text(value)
            except Exception as error:  # of one record, which must not keep all others from being written
                self._unwritable[key] = f"{type(error).__name__}: {error}"
                texts[key] = None
        return texts

    # ------------------------------------------------------------------ the log taken in

    def checkpoint(self) -> None:
        """Have the file take the log in, on the disk. Appends go on meanwhile; where the file cannot be changed the log
        stays. May wait for the disk: call it from a thread.
        """
        with self._in_file, contextlib.suppress(OSError, sqlite3.Error):
            # One that is not at its path any more is put right by the next change.
            if self._has_file():
                self._take_in()

    def _take_in(self) -> None:
        with self._in_use:
            taken = self._logged.copy()
            self._writer.forget()
        error = self._commit_logged(taken)
        with self._in_use:
            if error is None:
                self._logged.remove(taken)
            elif not is_environment(error):
                self._note_failure(error)
                self._try_to_write(reopens=True)
                return
            if taken:
                self._shorten_log()
        if self._db is not None:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _shorten_log(self) -> None:
        """Leave out of the log what the file has taken in and what later changes replace. One that cannot be begun anew
        is as good, and longer.
        """
        if self._log is None:
            return
        with contextlib.suppress(OSError):
            log = StateLog(self._log.path, self._mark, self._logged)
            self._let_go_of_log()
            self._log = log
        self._long_bytes = self._log.size_bytes + LONG_BYTES

    def _commit_logged(self, changes: Changes) -> Optional[sqlite3.Error]:
        """Enter changes in the file, if there are any; what keeps them out of it."""
        try:
            if changes and self._db is not None:
                self._commit(changes, self._mark)
        except sqlite3.Error as error:
            return error
        return None

    def _commit(self, changes: Changes, mark_text: str) -> None:
        assert self._db is not None
        db = self._db
        gone = [key for key, text in changes.records.items() if text is None]
        kept = [(*key, text) for key, text in changes.records.items() if text is not None]
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany("DELETE FROM records WHERE kind = ? AND key = ?", gone)
            db.executemany("INSERT OR REPLACE INTO records (kind, key, value) VALUES (?, ?, ?)", kept)
            meta = list(changes.meta.items())
            db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", meta)
            mark(db, mark_text)
            effects.before(effects.STATE, FILE)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Write what still waits, if that works by now, have the file take the log in and let go of both. May wait for
        the disk. An older version, which reads the file only, then finds all of it.
        """
        self.flush(is_last=True)
        with self._in_file, self._in_use:
            with contextlib.suppress(sqlite3.Error, OSError):
                if self._mark and self._has_file():
                    self._commit(self._logged, "")
                    effects.before(effects.STATE, log_of(self.path).name)
                    os.unlink(log_of(self.path))
            self._disconnect()

    def _disconnect(self) -> None:
        self._let_go_of_log()
        self._logged, self._mark = Changes(), ""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _let_go_of_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
