"""Messages to systemd (sd_notify(3)) and its watchdog's period, of the observer and of the daemon."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Optional

#: A manager whose queue is full (it holds some ten messages) must not stop our event loop.
PATIENCE_S = 0.1


def notify(message: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send lines such as ``READY=1`` to the service manager, if there is one and it reads what it is sent."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    # First of all: a process without descriptors cannot even make the socket.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE_S)
        sender.sendto(message.encode(), address)


def watchdog_period_s(environment: Mapping[str, str] = os.environ) -> Optional[float]:
    """Half the time after which systemd takes the service for hung; None without a watchdog."""
    micros = environment.get("WATCHDOG_USEC", "")
    return int(micros) / 2e6 if micros.isdigit() and int(micros) > 0 else None
