"""The log beside a state file: what is durable and not in the file yet, one line for each flush.

A line is a checksum (CRC-32, eight hex digits), a space and a JSON document. The first line names the log, by a mark; the
others have changes: ``{"records": [[KIND, KEY, RECORD or null], ...], "meta": {KEY: TEXT}}``, null = removed. A line is
appended by one ``write``, which ends with its newline. What the end of the process leaves of one has none: that line is
torn, its change was never reported durable, and it is left out. A line with a newline and another checksum is damaged.

Changes are states, not steps: to read a log over a file that has taken in a part of it, or all, gives the same records.

**A log is of one file, in one condition.** The file's ``meta`` has the same mark (key ``log``). Triggers in the file remove
it with any change of a row: what an older version of this program writes, which knows no log, or a person with ``sqlite3``.
Only taking in a log enters the mark again, in its own transaction. So a log whose mark is not in the file is older than
what is in the file, and is not read. A mark counts only beside its triggers. A clean end takes the log in, removes the
mark, then the log: a mark without a log says that the log is lost.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Any, Optional, TypeVar

from cri_proxy import effects
from cri_proxy.engine.state import JournalKey
from policies.frozen import frozen

#: The log's name after the file's, and that of one which is being begun.
SUFFIX, NEW_SUFFIX = "-log", "-log.new"
#: The key of the mark in ``meta``, and in the log's first line.
MARK = "log"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_UNMARK = f"BEGIN DELETE FROM meta WHERE key = '{MARK}'; END"
#: What removes the mark, by name. ``INSERT OR REPLACE`` is an insert for them.
_TRIGGERS = {
    f"unmark_{table}_{event}": f"AFTER {event} ON {table} {condition} {_UNMARK}"
    for table, event, condition in (
        ("records", "INSERT", ""),
        ("records", "UPDATE", ""),
        ("records", "DELETE", ""),
        ("meta", "INSERT", f"WHEN NEW.key <> '{MARK}'"),
        ("meta", "UPDATE", ""),
        ("meta", "DELETE", f"WHEN OLD.key <> '{MARK}'"),
    )
}


@dataclass
class Changes:
    """Records by kind and key as texts (None: removed), and meta, each with its last value."""

    records: dict[JournalKey, Optional[str]] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.records or self.meta)

    def add(self, later: Changes) -> None:
        """Have what came later take the place of what is there."""
        self.records.update(later.records)
        self.meta.update(later.meta)

    def copy(self) -> Changes:
        return Changes(dict(self.records), dict(self.meta))

    def remove(self, taken: Changes) -> None:
        """Leave out what is the same there: a copy of this, before later changes were added."""
        self.records = _without(self.records, taken.records)
        self.meta = _without(self.meta, taken.meta)


def _without(values: dict[_Key, _Value], taken: dict[_Key, _Value]) -> dict[_Key, _Value]:
    return {key: value for key, value in values.items() if key not in taken or taken[key] is not value}


@frozen
class LogFound:
    """What a log held. ``mark``: that of the file, "" = it has none. ``note``, ``lost``: sentences about what was left out
    that had not been reported durable or is outdated, and about what had been and is gone; "" = nothing was.
    """

    mark: str = ""
    changes: Changes = field(default_factory=Changes)
    note: str = ""
    lost: str = ""


class StateLog:
    """The log at a path, in place of any that is there. Of one thread at a time.

    :raises OSError: it cannot be begun; the one that was there still is.
    """

    def __init__(self, path: Path, mark: str, changes: Changes) -> None:
        self.path = path
        #: How long it is without a line that was not written whole.
        self.size_bytes = 0
        #: Whether such a line may be at its end, so that none that comes after it would be read.
        self.is_torn = False
        new = path.with_name(path.name + NEW_SUFFIX[len(SUFFIX) :])
        self._file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            self._write(_line({MARK: mark}) + (_changes_line(changes) if changes else b""))
            effects.before(effects.STATE, path.name)
            os.rename(new, path)
        except BaseException:
            os.close(self._file)
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        status = os.fstat(self._file)
        #: What file it is: device and inode. Another one at its path is not this log any more.
        self.identity = status.st_dev, status.st_ino

    def append(self, changes: Changes) -> None:
        """Make changes durable: when this returns they survive the end of the process at any instant.

        :raises OSError: they are not in the log.
        """
        line = _changes_line(changes)
        effects.before(effects.STATE, self.path.name)
        self._write(line)

    def _write(self, line: bytes) -> None:
        self.is_torn = True
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._file, self.size_bytes)
            self.is_torn = False
            raise
        self.size_bytes += len(line)
        self.is_torn = False

    def close(self) -> None:
        os.close(self._file)


def log_of(file: Path) -> Path:
    """Where the log of a state file is."""
    return file.with_name(file.name + SUFFIX)


def _line(document: dict[str, Any]) -> bytes:
    return _checked(json.dumps(document, separators=(",", ":")))


def _changes_line(changes: Changes) -> bytes:
    # The records' texts are JSON already.
    records = ",".join(
        f"[{_quoted(kind)},{_quoted(key)},{'null' if text is None else text}]"
        for (kind, key), text in changes.records.items()
    )
    return _checked(f'{{"records":[{records}],"meta":{json.dumps(changes.meta)}}}')


def _checked(text: str) -> bytes:
    content = text.encode()
    return b"%08x %b\n" % (binascii.crc32(content), content)


def mark(db: sqlite3.Connection, text: str) -> None:
    """Enter a log's mark in its file, or ("") remove it; the last statement of a transaction.

    :raises sqlite3.Error: that cannot be done.
    """
    if not text:
        db.execute("DELETE FROM meta WHERE key = ?", (MARK,))
        return
    for name, trigger in _TRIGGERS.items():
        db.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {trigger}")
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (MARK, text))


def read_log(db: sqlite3.Connection, file: Path) -> LogFound:
    """What the log of a file holds that is to be read over it. ``db``: that file, or a copy with a copy of the log.

    :raises sqlite3.Error, OSError: it cannot be read.
    """
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
    row = db.execute("SELECT value FROM meta WHERE key = ?", (MARK,)).fetchone()
    expected = str(row[0]) if row and names >= _TRIGGERS.keys() else ""
    name = log_of(file).name
    try:
        content = log_of(file).read_bytes()
    except FileNotFoundError:
        return LogFound(expected, lost=f"{name} is gone" if expected else "")
    *lines, torn = content.split(b"\n")
    documents = [_document(line) for line in lines]
    if not expected:
        is_used = len(documents) > 1 or bool(torn)
        return LogFound(note=f"{name} is older than {file.name} and is not used" if is_used else "")
    if not content.strip(b"\0"):  # what a power cut leaves, which has ended all containers
        return LogFound(expected, note=f"{name} is empty")
    if not documents or not isinstance(documents[0], dict) or documents[0].get(MARK) != expected:
        return LogFound(expected, lost=f"{name} is not the log of {file.name}, or its beginning is damaged")
    changes, damaged = Changes(), 0
    for document in documents[1:]:
        try:
            changes.add(_read_changes(document))
        except (KeyError, TypeError, ValueError, AttributeError):
            damaged += 1
    note = f"the last change in {name} was not written whole and is left out" if torn else ""
    lost = f"{damaged} of {len(documents) - 1} changes in {name} could not be read" if damaged else ""
    return LogFound(expected, changes, note, lost)


def _document(line: bytes) -> Any:
    """What a line has; None: it is damaged."""
    checksum, _, content = line.partition(b" ")
    if checksum != b"%08x" % binascii.crc32(content):
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _read_changes(document: Any) -> Changes:
    """:raises KeyError, TypeError, ValueError, AttributeError: there are none."""
    return Changes(dict(_records(document["records"])), {str(k): str(v) for k, v in document["meta"].items()})


def _records(rows: Any) -> Iterator[tuple[JournalKey, Optional[str]]]:
    for kind, key, value, *_ in rows:
        yield (str(kind), str(key)), None if value is None else json.dumps(value, separators=(",", ":"))
