"""The folder of CDI files. Only files of claims' own names are looked at, written and removed; other vendors' never."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from cri_proxy import effects
from cri_proxy.bounded_files import NotRead, read_bytes
from cri_proxy.claims.cdi import file_name, read_file_name

#: A file of 32 parts has 8 KiB.
MOST_BYTES = 1 << 18
#: What a file is called until it is whole: runtimes read ``*.json`` and ``*.yaml``.
UNFINISHED = ".new"


class CdiUnusable(Exception):
    """A file could not be written or removed. The message is a sentence that names it."""


@dataclass
class CdiFolder:
    """All of it blocks, for as long as that file system does."""

    path: Path

    def put(self, uid: str, text: Optional[str]) -> bool:
        """Have the file of a claim as it should be; None: there is to be none. Whether it was not so.

        :raises CdiUnusable: it is not.
        """
        file = self.path / file_name(uid)
        try:
            if text is None:
                return self._remove(file)
            is_right = self._read(file) == text.encode()
            if not is_right:
                self._write(file, text)
            return not is_right
        except OSError as error:
            what = "be removed" if text is None else "be written"
            raise CdiUnusable(f"{error.filename or file} cannot {what}: {error.strerror or error}") from None

    def follow(self, wanted: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Have a file for each of these claims and no other of ours. The UIDs of those that were missing or were others'
        work, and of those that were too much.

        :raises CdiUnusable: some of it is not so; the rest was tried.
        """
        made: list[str] = []
        removed: list[str] = []
        problems: list[str] = []
        try:
            found = set(self._uids())
        except OSError as error:
            raise CdiUnusable(f"{self.path} cannot be read: {error.strerror or error}") from None
        for uid in sorted(found | wanted.keys()):
            text = wanted.get(uid)
            try:
                if self.put(uid, text):
                    (removed if text is None else made).append(uid)
            except CdiUnusable as error:
                problems.append(str(error))
        if problems:
            raise CdiUnusable("; ".join(problems[:2]))
        return tuple(made), tuple(removed)

    def _uids(self) -> Iterator[str]:
        """The claims that have a file, whole or not."""
        if not self.path.is_dir():
            return
        for name in sorted(os.listdir(self.path)):
            uid = read_file_name(name.removesuffix(UNFINISHED) if name.endswith(UNFINISHED) else name)
            if uid is not None:
                yield uid

    def _read(self, file: Path) -> Optional[bytes]:
        try:
            return read_bytes(file, MOST_BYTES)
        except (FileNotFoundError, NotRead):
            return None

    def _write(self, file: Path, text: str) -> None:
        self._make()
        unfinished = file.with_name(file.name + UNFINISHED)
        effects.before(effects.CDI, unfinished.name)
        try:
            unfinished.write_text(text)
            unfinished.chmod(0o644)
            effects.before(effects.CDI, file.name)
            os.replace(unfinished, file)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def _make(self) -> None:
        """Whatever the umask is: other programs of the node read what is there."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            self.path.chmod(0o755)

    def _remove(self, file: Path) -> bool:
        there = [path for path in (file.with_name(file.name + UNFINISHED), file) if os.path.lexists(path)]
        for path in there:
            effects.before(effects.CDI, path.name)
            path.unlink(missing_ok=True)
        return bool(there)
