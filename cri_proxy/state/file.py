"""What a state file is in SQLite: how it is opened, what is in it and its log, and what an error says of it."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cri_proxy import effects
from cri_proxy.engine.snapshot import FORMAT, GROUP, WITH_GROUPS, UnreadableRecord, read_records
from cri_proxy.engine.state import JournalKey
from cri_proxy.state.log import MARK, LogFound, read_log

FILE = "state.db"
#: Another program's lock (a sqlite3 shell, a backup) may cost a request this much, not more.
LOCK_WAIT_S = 0.1
#: What takes the log in writes whole pages. At SQLite's own 4,096 bytes it writes three times as much.
PAGE_BYTES = 1024
#: Pages are read once, and written when the log is taken in: of SQLite's own 2 MB the rest stays for nothing.
CACHE_KIB = 128

Records = dict[str, dict[str, Any]]


@dataclass
class LoadedState:
    """What a state file and its log held, by kind and key, and sentences about what was wrong with them.

    ``dropped``: the records that could not be read, and why. ``unknown``: keys of kinds that a later version writes; they
    stay in the file. ``leftover``: keys of records that an earlier version has not kept up, to be removed. ``lost``: a
    sentence about what there should have been and is not; "" if nothing is missing. ``is_outdated``: the last changes are
    missing, so what runs is right where a record says otherwise.
    """

    records: Records = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    dropped: dict[JournalKey, str] = field(default_factory=dict)
    unknown: tuple[JournalKey, ...] = ()
    leftover: tuple[JournalKey, ...] = ()
    lost: str = ""
    is_outdated: bool = False

    def of(self, kind: str) -> dict[str, Any]:
        """The records of one kind."""
        return self.records.get(kind, {})


class StateLocked(Exception):
    """Another program has the state file open. The message names the file and how to find that program."""


def connect(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open the file, making it if there is none. ``wait_s``: how long a lock is waited for, this time.

    :raises sqlite3.Error, UnreadableRecord, OSError: it cannot be used.
    """
    existed = path.exists()
    if existed:
        os.chmod(path, 0o600)  # whatever it was made
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not path.stat().st_size:
            raise UnreadableRecord("it is empty")
    address = address_of(path, "rwc")
    db = sqlite3.connect(address, uri=True, isolation_level=None, timeout=wait_s, check_same_thread=False)
    try:
        if not existed:
            os.chmod(path, 0o600)
        is_new = not read_tables(db)
        if is_new:
            db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        if is_new:
            effects.before(effects.STATE, path.name)
            db.executescript(
                "BEGIN IMMEDIATE;"
                "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
                "CREATE TABLE records (kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
                " PRIMARY KEY (kind, key)) WITHOUT ROWID;"
                f"INSERT INTO meta VALUES ('format', '{FORMAT}');"
                "COMMIT"
            )
        db.execute(f"PRAGMA busy_timeout={LOCK_WAIT_S * 1000:.0f}")
    except BaseException:
        db.close()
        raise
    return db


def read_tables(db: sqlite3.Connection) -> set[str]:
    """The tables of a database of ours, whatever version it is of; none in a new one.

    :raises UnreadableRecord: it is another program's; it must not be changed.
    """
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not {"meta", "records"} <= tables:
        raise UnreadableRecord("it is another program's database")
    return tables


def read_all(db: sqlite3.Connection, path: Path, log: LogFound) -> LoadedState:
    """All that can be read, record by record. ``log``: what is read over what the file has.

    :raises sqlite3.Error, UnreadableRecord, UnicodeDecodeError: the file is damaged.
    """
    damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise UnreadableRecord(damage)
    # As bytes: a text that is none must not keep the others from being read.
    rows = db.execute("SELECT kind, key, CAST(value AS BLOB) FROM records")
    in_file = {(kind, key): _text(value) for kind, key, value in rows}
    found = sorted(
        (key, text) for key, text in {**in_file, **log.changes.records}.items() if text is not None
    )
    meta = {**dict(db.execute("SELECT key, value FROM meta")), **log.changes.meta}
    meta.pop(MARK, None)
    # Of any other version those of groups were left by one before it, and containers' own records have changed since.
    has_groups = meta.get("format") == WITH_GROUPS
    leftover = tuple(key for key, _ in found if key[0] == GROUP)
    read = read_records((*key, text) for key, text in found if has_groups or key[0] != GROUP)
    lost = read.sentence(str(path))
    notes = [note for note in (_about_version(path, meta, read.unknown), lost, log.note, log.lost) if note]
    lost = "; ".join(filter(None, [lost, log.lost]))
    return LoadedState(
        read.records, meta, tuple(notes), read.dropped, read.unknown, leftover, lost, bool(log.lost)
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)  # which no reader takes for a record


def _about_version(path: Path, meta: dict[str, str], unknown: tuple[JournalKey, ...]) -> str:
    """What is to be said of a file that another version has written; "" if nothing is."""
    form = meta.get("format", "unknown")
    kinds = ", ".join(sorted({kind for kind, _ in unknown}))
    number = f"{len(unknown)} record{'s' if len(unknown) > 1 else ''} of a kind that is not known ({kinds})"
    kept = f"{number} stay in it for the version that has written them" if unknown else ""
    if form in ("1", WITH_GROUPS, str(FORMAT)):
        return kept and f"{path}: {kept}"
    known = f"{path} is of format {form}, this version writes {FORMAT}: what it knows of it is used"
    return f"{known}; {kept}" if kept else known


def read_unwritable(path: Path) -> LoadedState:
    """All that is in a file that cannot be opened to be written; nothing if that cannot be told."""
    try:
        if path.with_name(f"{path.name}-wal").exists():  # in which the last changes are
            return LoadedState()
        with contextlib.closing(sqlite3.connect(address_of(path, "ro") + "&immutable=1", uri=True)) as db:
            read_tables(db)
            return read_all(db, path, read_log(db, path))
    except (sqlite3.Error, UnreadableRecord, UnicodeDecodeError, OSError):
        return LoadedState()


def address_of(path: Path, mode: str) -> str:
    """For SQLite: the index of its WAL is in our own memory, not in a file that is mapped.

    Where a file system gives a mapped page its place on the disk late (btrfs, ext4 with small blocks), writing to one
    on a full disk ends the process (SIGBUS, seen). So no other process can read the file while the daemon runs.
    """
    return f"file:{urllib.parse.quote(str(path))}?mode={mode}&vfs=unix-excl"


def identity_of(path: Path) -> tuple[int, int]:
    """What file a path is: device and inode; (0, 0) for none.

    :raises OSError: it cannot be looked at.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return status.st_dev, status.st_ino


def is_lock(error: Exception) -> bool:
    """Whether another program's lock is all that is in the way."""
    return isinstance(error, sqlite3.Error) and "locked" in str(error)


def is_environment(error: Exception) -> bool:
    """Errors of the disk or of permissions, which a fresh file would not cure (sqlite.org/rescode.html)."""
    if isinstance(error, OSError):
        return True
    # Not "disk": a corrupt file is "database disk image is malformed".
    words = ("unable to open", "disk i/o", "is full", "readonly", "permission", "locked")
    return isinstance(error, sqlite3.Error) and any(word in str(error).lower() for word in words)
