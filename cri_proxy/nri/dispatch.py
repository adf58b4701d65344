"""What a host of NRI plugins knows and decides: events and their calls, names, masks, pauses; which files are plugins.

Unlike in NRI's own host, a file with a bad name is passed over and does not end the start; a file that users other than
root could have written is never run.

Sources: containerd/nri pkg/adaptation/plugin.go (calls, fallback), pkg/api/plugin.go (names, indices).
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Union

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.subscription import MASK_ALL

_NAMES = {
    number: "".join(part.capitalize() for part in name.split("_")) for name, number in nri.Event.items()
}
#: WebAssembly: a plugin for a runtime that has an interpreter.
WASM = b"\0asm\1\0\0\0"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_INDEX = re.compile(r"[0-9]{2}")
#: Before 0.12 plugins had one call for all of these: StateChange.
_FALLS_BACK = frozenset(
    (
        nri.RUN_POD_SANDBOX,
        nri.POST_UPDATE_POD_SANDBOX,
        nri.STOP_POD_SANDBOX,
        nri.REMOVE_POD_SANDBOX,
        nri.POST_CREATE_CONTAINER,
        nri.START_CONTAINER,
        nri.POST_START_CONTAINER,
        nri.POST_UPDATE_CONTAINER,
        nri.REMOVE_CONTAINER,
    )
)
#: The first pause before a launched plugin that has ended is launched again, and the longest.
FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0


def mask_of(events: Iterable[int]) -> int:
    """The bits of events."""
    mask = 0
    for event in events:
        mask |= 1 << (event - 1)
    return mask


def event_name(event: int) -> str:
    """``PostCreateContainer`` for POST_CREATE_CONTAINER: the event as its RPC is called; the number if it is unknown."""
    return _NAMES.get(event) or str(event)


@dataclass(frozen=True)
class Rpc:
    """The call of an event. ``has_fallback``: StateChange, for a plugin that does not know the call."""

    method: str
    has_fallback: bool


def rpc_of(event: int) -> Rpc:
    """The call of an event. Its request is ``METHODRequest``, its reply ``METHODResponse``."""
    return Rpc(event_name(event), event in _FALLS_BACK)


def subscribes(mask: int, event: int) -> bool:
    """Whether a mask has an event's bit."""
    return bool(mask & (1 << (event - 1)))


def effective_mask(asked: int) -> tuple[int, int]:
    """The known events of a mask, and its bits that stand for none; 0 asks for all events."""
    return (asked & MASK_ALL, asked & ~MASK_ALL) if asked else (MASK_ALL, 0)


def registration_problem(name: str, index: str) -> str:
    """Why a plugin cannot be called so, in NRI's own words; "" if it can."""
    if not name:
        return "invalid (empty) plugin name"
    odd = next((character for character in name if not _NAME.fullmatch(character)), "")
    if odd:
        reason = f"contains invalid character '{odd}'"
        return f'invalid plugin name: invalid plugin name "{name}": {reason}'
    if len(index) != 2:
        return f'invalid plugin index: invalid plugin index "{index}", must be 2 digits'
    if not _INDEX.fullmatch(index):
        return f'invalid plugin index: invalid plugin index "{index}" (not [0-9][0-9])'
    return ""


def is_meant(patterns: Iterable[str], index: str, name: str) -> bool:
    """Whether one of the names or globs is a plugin's, with its index or without."""
    return any(fnmatchcase(name, p) or fnmatchcase(f"{index}-{name}", p) for p in patterns)


def missing(required: Iterable[str], connected: Iterable[tuple[str, str]]) -> list[str]:
    """The required plugins, ``NAME`` or ``NN-NAME``, that are not among the connected, (index, name)."""
    present = {called for index, name in connected for called in (name, f"{index}-{name}")}
    return [wanted for wanted in required if wanted not in present]


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** max(0, failures - 1), MOST_PAUSE_S)


@dataclass(frozen=True)
class DirectoryEntry:
    """A directory's entry: mode and owner of its file, links followed; the file's first bytes.

    ``problem``: why it cannot be read.
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
    """A file that is not launched, and why; "" where that is no mistake."""

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

    ``may_be_sticky``: a directory above it, where others may make files but not replace ours.
    """
    if uid not in (0, own_uid):
        return f"it belongs to user {uid}, not to root"
    if mode & _OTHERS_WRITE and not (may_be_sticky and mode & stat.S_ISVTX):
        return f"others may write to it (mode {stat.S_IMODE(mode):04o})"
    return ""


def config_names(plugin: Preregistered) -> tuple[str, str]:
    """The files that may hold a plugin's configuration; the first that exists does."""
    return f"{plugin.title}.conf", f"{plugin.name}.conf"
