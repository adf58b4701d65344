"""A plugin that a runtime launches succeeds the one it launched before, which may still wait for it to come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from cri_proxy.config.config import Config
from cri_proxy.node.lock import FILE, NodeLock
from cri_proxy.nri.io.plugin.launched import SOCKET_VARIABLE

#: How long the other may take to stop; the runtime is spoken to meanwhile (launched.py).
WAIT_S = 3.0
_LOOK_S = 0.05


async def take_over(config: Config, log: Any, proc: Path = Path("/proc")) -> None:
    """Have the plugin before us stop, if it owns the node: a new launch says that its runtime is gone.

    Of any other owner of the node nothing is asked.
    """
    # Taken and given up again: the daemon takes it for itself in a moment.
    trial = NodeLock(config, "nri-plugin")
    if not trial.take():
        trial.give_up()
        return
    pid = launched_owner(Path(config["control.socket"]).with_name(FILE), proc)
    if not pid:
        return
    log.info("the plugin that was launched before is told to stop", pid=pid)
    os.kill(pid, signal.SIGTERM)
    deadline_s = asyncio.get_running_loop().time() + WAIT_S
    while trial.take() and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(_LOOK_S)
    trial.give_up()


def launched_owner(lock: Path, proc: Path = Path("/proc")) -> int:
    """The process that holds the lock, if it is a plugin that a runtime has launched; else 0."""
    try:
        said = json.loads(lock.read_text())
        pid, is_plugin = int(said["pid"]), said["front_end"] == "nri-plugin"
        environment = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except (OSError, ValueError, LookupError, TypeError):
        return 0
    launched = any(entry.startswith(f"{SOCKET_VARIABLE}=".encode()) for entry in environment)
    return pid if is_plugin and launched and pid != os.getpid() else 0
