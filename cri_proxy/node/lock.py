"""One owner a node: the process that places containers holds a lock (flock) beside the control socket.

The kernel gives it back when the process ends, however it ends. The file names its holder, for the other's message.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Optional

from cri_proxy.config.config import Config

FILE = "owner.lock"
#: What to call a front end in a sentence, by its name.
COMMANDS = {
    "proxy": "cri-resmgr run",
    "nri-plugin": "cri-resmgr nri run",
    "standalone": "cri-resmgr run --standalone",
}
_MOST_BYTES = 4096


class NodeLock:
    """The lock of one daemon. ``front_end``: what it tells others it is."""

    def __init__(self, config: Config, front_end: str) -> None:
        self.path = Path(config["control.socket"]).with_name(FILE)
        #: Why the lock cannot be had although no process holds it: we own the node, and no process is kept off.
        self.problem = ""
        self._front_end = front_end
        self._descriptor: Optional[int] = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def take(self) -> str:
        """Own the node from now on; else the sentence that names its owner. Again: nothing happens."""
        if self.is_held:
            return ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            self.problem = (
                f"{self.path} cannot be locked ({error.strerror}): a second owner would not be noticed"
            )
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sentence = self._others(descriptor)
            os.close(descriptor)
            return sentence
        self._descriptor, self.problem = descriptor, ""
        # On a full disk the lock holds as well; a process that finds it taken is told less.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "front_end": self._front_end}).encode(), 0)
        return ""

    def give_up(self) -> None:
        """Let another take it. The file stays: a process that has it open would else lock one without a name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _others(self, descriptor: int) -> str:
        try:
            said: Any = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
            who = f"process {int(said['pid'])} ({COMMANDS.get(said['front_end'], said['front_end'])})"
        except (OSError, ValueError, LookupError, TypeError):
            who = "another process"  # it has the lock, and has not written yet
        return f"{who} places containers on this node already ({self.path} is locked); stop it first"
