"""Reads what the doctor must know of the state: its folder, its file, and whether that is sound. Changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Optional, Union

from cri_proxy.doctor.facts import StateFacts
from cri_proxy.doctor.io.host import read_file_facts
from cri_proxy.engine.snapshot import UnreadableRecord
from cri_proxy.state.file import FILE, is_environment, read_tables

_CHECK_S = 1.0
#: Where a copy may be made: where temporary files are (None), else in memory, as the disk may be full.
_COPIES = (None, "/dev/shm", "/run")


def read_state_facts(directory: Path, is_up: bool) -> StateFacts:
    """``is_up``: whether the daemon has it open.

    :raises OSError: the folder cannot be looked at.
    """
    folder, path = read_file_facts(directory), directory / FILE
    if folder.kind != "directory":
        return StateFacts(folder)
    space, file = os.statvfs(directory), read_file_facts(path)
    written = path.stat().st_mtime if file.kind else 0.0
    size = sum(one.stat().st_size for one in directory.glob(f"{FILE}*") if ".aside" not in one.name)
    check = unchecked = ""
    if file.kind:
        try:
            check = _check(path, is_up)
        except (OSError, sqlite3.Error) as error:
            unchecked = str(error)
    return StateFacts(
        folder,
        space.f_bavail * space.f_frsize,
        size,
        os.access(directory, os.W_OK) and not space.f_flag & os.ST_RDONLY,
        check,
        max(written - time.time(), 0.0),
        file,
        unchecked,
    )


def _check(file: Path, is_up: bool) -> str:
    if not is_up:
        return _check_copy(file)
    # The daemon lets no other process in. A copy that was made while it moved its log into the file may be torn.
    found = _check_copy(file)
    return found if found == "ok" else _check_copy(file)


def _check_copy(file: Path) -> str:
    # SQLite would first repair what a killed daemon left, and that is not ours to do.
    obstacle: Optional[Union[OSError, sqlite3.Error]] = None
    for place in _COPIES:
        try:
            with tempfile.TemporaryDirectory(prefix="cri-resmgr-doctor-", dir=place) as folder:
                for path in file.parent.glob(f"{file.name}*"):
                    if path.name in (file.name, f"{file.name}-wal"):
                        shutil.copyfile(path, Path(folder) / path.name)
                return _quick_check(Path(folder) / file.name)
        except (OSError, sqlite3.Error) as error:
            obstacle = obstacle or error
    assert obstacle is not None
    raise obstacle


def _quick_check(file: Path) -> str:
    """What the daemon would say of it."""
    deadline = time.monotonic() + _CHECK_S
    db = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=_CHECK_S)
    try:
        db.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
        found = " ".join(str(row[0]) for row in db.execute("PRAGMA quick_check(1)"))
        return found if found != "ok" or read_tables(db) else "it is empty"
    except UnreadableRecord as error:
        return str(error)
    except sqlite3.DatabaseError as error:
        if time.monotonic() > deadline or is_environment(error):
            raise
        return str(error)
    finally:
        db.close()
