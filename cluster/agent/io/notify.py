"""What is said to systemd of this process (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


def notify(message: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send lines such as ``READY=1`` to the service manager, if there is one; a full queue is not waited for."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    address = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(message.encode(), address)
