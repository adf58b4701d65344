"""The cluster's policy on this node's disk: one JSON file in the state directory, read as a layer of the configuration.

A disk may hang: a write that was given up does not take effect later, or is undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy import effects
from cri_proxy.bounded_files import read_bytes
from cri_proxy.config.cluster_policy import MAX_CHARACTERS, BadPolicy, ClusterPolicy, read_policy
from policies.frozen import frozen

FILE = "cluster-policy.json"


@frozen
class StoredPolicy:
    """What is on disk. ``problem``: why a policy that is there is not used. ``held_off``: the node takes none.

    ``is_unread``: the disk has not answered; ``policy`` is the one that was in force, and is to be read again.
    """

    policy: Optional[ClusterPolicy] = None
    problem: str = ""
    held_off: bool = False
    is_unread: bool = False


NOTHING = StoredPolicy()


def read_kept(folder: Path) -> StoredPolicy:
    """What a state directory has. A policy that this version does not take is a problem, and no policy. Never raises."""
    path = folder / FILE
    try:
        document: Any = json.loads(read_bytes(path, 8 * MAX_CHARACTERS))
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        return StoredPolicy(problem=f"{path}: the cluster's policy cannot be read: {error.strerror or error}")
    except ValueError:
        return StoredPolicy(problem=f"{path}: the cluster's policy cannot be read: it is not JSON")
    if not isinstance(document, Mapping):
        return StoredPolicy(problem=f"{path}: the cluster's policy cannot be read: it is no object")
    if document.get("held_off") is True:
        return StoredPolicy(held_off=True)
    try:
        return StoredPolicy(read_policy(document))
    except BadPolicy as error:
        return StoredPolicy(problem=str(error))


def write_kept(
    folder: Path,
    kept: StoredPolicy,
    may: Callable[[], bool] = lambda: True,
    replace: Callable[[Path, Path], None] = os.replace,
) -> None:
    """Keep a policy, or that there is to be none. ``may`` is asked once, just before it takes effect.

    :raises OSError: the directory cannot be written; what was there is there still.
    """
    path = folder / FILE
    if kept == NOTHING:
        if may():
            effects.before(effects.STATE, FILE)
            path.unlink(missing_ok=True)
        return
    document: dict[str, Any] = {"held_off": kept.held_off}
    if kept.policy is not None:
        document |= {**kept.policy.document, "config": kept.policy.values}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(document), encoding="utf-8")
    if may():
        effects.before(effects.STATE, FILE)
        replace(beside, path)
    else:
        beside.unlink()


class PolicyFile:
    """Writes the policy of one daemon, one write at a time. For one event loop; ``write`` runs in a thread."""

    def __init__(self, write: Callable[[Path, StoredPolicy, Callable[[], bool]], None] = write_kept) -> None:
        self._write = write
        self._writing: Optional[asyncio.Future[None]] = None

    async def keep(self, folder: Path, kept: StoredPolicy, before: StoredPolicy, seconds: float) -> None:
        """Keep ``kept`` in the place of ``before``.

        :raises asyncio.TimeoutError: the disk has not answered for ``seconds``, or still owes an earlier write;
            ``before`` is there, or will be once the disk answers. :raises OSError: it cannot be written.
        """
        if self._writing is not None and not await _has_ended(self._writing, seconds):
            raise asyncio.TimeoutError
        turn = _Turn()
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, folder, kept, turn.write))
        self._writing = writing
        try:
            if await _has_ended(writing, seconds):
                return writing.result()
            raise asyncio.TimeoutError
        finally:
            # Given up, by the time limit or a cancellation, and too late to keep the thread from it.
            if not writing.done() and not turn.give_up():
                self._writing = asyncio.ensure_future(self._undo(writing, folder, before))

    async def _undo(self, writing: asyncio.Future[None], folder: Path, before: StoredPolicy) -> None:
        with contextlib.suppress(OSError):
            await writing
        # A file that could not be read is no policy to go back to.
        is_one = before.policy is not None or before.held_off
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._write, folder, before if is_one else NOTHING, lambda: True)


class _Turn:
    """Of a thread that writes and its caller, the first to say so decides whether the write takes effect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: Optional[bool] = None

    def write(self) -> bool:
        return self._decided(True)

    def give_up(self) -> bool:
        """Whether the write does not take effect."""
        return not self._decided(False)

    def _decided(self, writes: bool) -> bool:
        with self._lock:
            if self._writes is None:
                self._writes = writes
            return self._writes


async def _has_ended(writing: asyncio.Future[None], seconds: float) -> bool:
    await asyncio.wait({writing}, timeout=seconds)
    if writing.done() and not writing.cancelled():
        writing.exception()  # looked at: a late failure is no complaint in the log
    return writing.done()
