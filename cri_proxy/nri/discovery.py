"""Which files of a directory are plugins to be launched, and why others are not.

Unlike NRI's own host: a file with a name that is none is passed over, not the end of the start; and what others than
root could have written is never run.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import Union

from cri_proxy.nri.dispatch import registration_problem

#: WebAssembly: a plugin for a runtime that has an interpreter.
WASM = b"\0asm\1\0\0\0"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class DirectoryEntry:
    """A directory's entry: mode and owner of what it leads to, the beginning of the file.

    ``problem``: why it could not be looked at.
    """

    name: str
    path: str
    mode: int
    uid: int
    head: bytes = b""
    problem: str = ""


@dataclass(frozen=True)
class Preregistered:
    """A plugin to be launched, with its configuration."""

    index: str
    name: str
    path: str
    config: str = ""

    @property
    def title(self) -> str:
        return f"{self.index}-{self.name}"


@dataclass(frozen=True)
class PassedOver:
    """What is not launched; a sentence about it, "" for what is no mistake."""

    path: str
    reason: str


def judge(entry: DirectoryEntry, own_uid: int = 0) -> Union[Preregistered, PassedOver]:
    """Whether an entry is a plugin. ``own_uid``: files of this user are trusted as well as root's."""
    if entry.problem:
        return PassedOver(entry.path, entry.problem)
    if stat.S_ISDIR(entry.mode):
        return PassedOver(entry.path, "")
    if not stat.S_ISREG(entry.mode):
        return PassedOver(entry.path, "it is not a file")
    if not entry.mode & 0o111:
        return PassedOver(entry.path, "it is not executable")
    index, dash, name = entry.name.partition("-")
    if not dash or registration_problem(name, index):
        return PassedOver(entry.path, "its name is not like 10-NAME, two digits and a name")
    unsafe = insecurity(entry.mode, entry.uid, own_uid)
    if unsafe:
        return PassedOver(entry.path, unsafe)
    if entry.head.startswith(WASM):
        return PassedOver(entry.path, "it is WebAssembly, which is not run here")
    return Preregistered(index, name, entry.path)


def insecurity(mode: int, uid: int, own_uid: int, may_be_sticky: bool = False) -> str:
    """Why a file or directory is not to be trusted; "" if only root can write to it.

    ``may_be_sticky``: a directory on the way, in which others may make files but not replace ours.
    """
    if uid not in (0, own_uid):
        return f"it belongs to user {uid}, not to root"
    if mode & _OTHERS_WRITE and not (may_be_sticky and mode & stat.S_ISVTX):
        return f"others may write to it (mode {stat.S_IMODE(mode):04o})"
    return ""


def config_names(plugin: Preregistered) -> tuple[str, str]:
    """The files that may hold a plugin's configuration; the first that exists does."""
    return f"{plugin.title}.conf", f"{plugin.name}.conf"
