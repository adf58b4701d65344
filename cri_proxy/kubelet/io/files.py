"""Kubelet's files: read where they are, written as a whole or not at all, with a copy of what they were."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from cri_proxy.kubelet.record import SwitchRecord, decode, encode, read_record, write_record
from cri_proxy.kubelet.settings import BadKubeletFile, paths_wanted
from cri_proxy.kubelet.switch import Edit
from cri_proxy.kubelet.units import is_pattern

#: In the state directory; only root looks into it.
FOLDER = "kubelet"
RECORD = "record.json"
#: Rounds of "this file names another": units, environment files, configuration, its drop-ins.
_ROUNDS = 6


class CannotWrite(Exception):
    """A file could not be written, and the others are as they were. The message names it and why."""


class KubeletFiles:
    """The files under one root, and the record of what we changed, in the state directory under the same root."""

    def __init__(self, root: Path, state_directory: Path) -> None:
        self.root = root.resolve()
        self.folder = self._under(str(state_directory)) / FOLDER

    # ------------------------------------------------------------------ reading

    def read(self, argv: Sequence[str] = (), more: Iterable[str] = ()) -> dict[str, Optional[str]]:
        """Every file that can matter, and ``more``, by its path without the root; None: it is not there.

        :raises BadKubeletFile: one is there and cannot be read.
        """
        files: dict[str, Optional[str]] = {path: self._text(path) for path in more}
        for _ in range(_ROUNDS):
            missing = paths_wanted(files, argv) - files.keys()
            if not missing:
                break
            for path in sorted(missing):
                if is_pattern(path):
                    files.update({found: self._text(found) for found in self._matching(path)})
                    files[path] = None
                else:
                    files[path] = self._text(path)
        return files

    def _under(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _matching(self, pattern: str) -> list[str]:
        folder, name = os.path.split(pattern)
        if is_pattern(folder):
            return [f"/{p.relative_to(self.root)}" for p in sorted(self.root.glob(pattern.lstrip("/")))]
        try:
            return sorted(f"{folder}/{one}" for one in fnmatch.filter(os.listdir(self._under(folder)), name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise BadKubeletFile(f"{folder} cannot be listed: {error.strerror}") from None

    def _text(self, path: str) -> Optional[str]:
        try:
            return decode(self._under(path).read_bytes())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise BadKubeletFile(f"{path} cannot be read: {error.strerror}") from None

    # ------------------------------------------------------------------ writing

    def write(self, edits: Sequence[Edit]) -> None:
        """Make all edits, or none of them.

        :raises CannotWrite: one cannot be made; those before it are taken back.
        """
        done: list[Edit] = []
        try:
            for edit in edits:
                if self._text(edit.path) != edit.before:
                    raise OSError(0, "another program has just changed it; try again")
                self._write(edit.path, edit.after)
                done.append(edit)
        except (OSError, BadKubeletFile) as error:
            for edit in reversed(done):
                with contextlib.suppress(OSError):
                    self._write(edit.path, edit.before)
            reason = getattr(error, "strerror", None) or str(error)
            raise CannotWrite(f"{edits[len(done)].path} cannot be written: {reason}") from None

    def _write(self, path: str, text: Optional[str]) -> None:
        # A link stays, and what it leads to is written; out of the root it must not lead.
        target = self._under(path).resolve()
        if self.root not in target.parents:
            raise OSError(0, f"it is a link that leads out of {self.root}, to {target}")
        if text is None:
            target.unlink(missing_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, encode(text))
        _sync_folder(target.parent)

    # ------------------------------------------------------------------ the record

    def load(self) -> Optional[SwitchRecord]:
        """What we have changed; None: nothing, or all of it is undone.

        :raises BadKubeletFile: the record cannot be read.
        """
        path = self.folder / RECORD
        try:
            return read_record(str(path), path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise BadKubeletFile(f"{path} cannot be read: {reason}") from None

    def backups(self, record: SwitchRecord) -> dict[str, str]:
        """The copies there are, by the path of what they are copies of."""
        found = {}
        for change in record.changes:
            with contextlib.suppress(OSError):
                found[change.path] = decode((self.folder / change.backup).read_bytes())
        return found

    def save(self, record: SwitchRecord, edits: Iterable[Edit]) -> None:
        """Keep the record and copies of the files before these edits. Called before they are made.

        :raises CannotWrite: there is no place for it.
        """
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            for edit in edits:
                if edit.before is not None:
                    replace_file(self.folder / edit.change.backup, encode(edit.before), mode=0o600)
            replace_file(self.folder / RECORD, encode(write_record(record)), mode=0o600)
            _sync_folder(self.folder)
        except OSError as error:
            raise CannotWrite(
                f"the copies of kubelet's files cannot be kept in {self.folder}: {error.strerror}"
            ) from None

    def switch(self, record: SwitchRecord, edits: Sequence[Edit], older: Optional[SwitchRecord]) -> None:
        """Keep a record and make its edits; ``older``: what was kept so far, and is again if they cannot be made.

        :raises CannotWrite: there is no place for it, or one cannot be made.
        """
        self.save(record, edits)
        self._make(edits, older)

    def give_back(self, record: Optional[SwitchRecord], edits: Sequence[Edit], now: float) -> None:
        """Make the edits that undo a record, and keep that they are made (at ``now``, in Unix seconds).

        :raises CannotWrite: one cannot be made.
        """
        if record is not None:
            # A disk without room for it must not keep kubelet with us.
            with contextlib.suppress(CannotWrite):
                self.save(replace(record, undone_at=now), ())
        self._make(edits, record)

    def _make(self, edits: Sequence[Edit], older: Optional[SwitchRecord]) -> None:
        try:
            self.write(edits)
        except CannotWrite:
            if older is None:
                self.forget()
            else:
                with contextlib.suppress(CannotWrite):
                    self.save(older, ())
            raise

    def forget(self) -> None:
        """Nothing of ours is in kubelet's files any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def replace_file(path: Path, data: bytes, mode: Optional[int] = None) -> None:
    """Write a file so that it is there either as it was or as it shall be, with the owner, mode and labels it had.

    ``mode``: that of a private file of ours; None: as it was, 0644 for a new one.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            try:
                status = path.stat()
                os.fchmod(file.fileno(), status.st_mode & 0o7777 if mode is None else mode)
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
                _copy_labels(path, file.fileno())
            except FileNotFoundError:
                os.fchmod(file.fileno(), 0o644 if mode is None else mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _copy_labels(source: Path, descriptor: int) -> None:
    """Extended attributes, the SELinux context among them; where a file system has none, or allows none, without."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(source, name))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
