"""What watches over this process: systemd (sd_notify(3)), or a probe that looks at a file's age."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

#: A health file that is older is of a process that hangs. A round takes at most two time limits of the daemon's.
HEALTHY_S = 120.0


def notify(message: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send lines such as ``READY=1`` to the service manager, if there is one; a full queue is not waited for."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    address = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(message.encode(), address)


class Alive:
    """``beat`` with every round of the process."""

    def __init__(self, health_file: Optional[Path]) -> None:
        self._file = health_file

    def beat(self) -> None:
        notify("WATCHDOG=1")
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.touch()


def is_healthy(health_file: Path) -> bool:
    """Whether the process that touches the file has done so lately."""
    try:
        return time.time() - health_file.stat().st_mtime < HEALTHY_S
    except OSError:
        return False
