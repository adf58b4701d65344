"""Messages to systemd (sd_notify(3)) and its watchdog's period, of observer, daemon and page."""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from collections.abc import Mapping, Sequence
from typing import Optional

#: A manager whose queue is full (it holds some ten messages) must not stop our event loop.
PATIENCE_S = 0.1


def notify(
    message: str, environment: Mapping[str, str] = os.environ, descriptors: Sequence[int] = ()
) -> None:
    """Send lines such as ``READY=1`` to the service manager, if there is one and it reads what it is sent.

    ``descriptors``: for ``FDSTORE=1``, which has it keep them over a restart.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    # First of all: a process without descriptors cannot even make the socket.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE_S)
        sender.connect(address)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        sender.sendmsg([message.encode()], rights)


def watchdog_period_s(environment: Mapping[str, str] = os.environ) -> Optional[float]:
    """Half the time after which systemd takes the service for hung; None without a watchdog."""
    micros = environment.get("WATCHDOG_USEC", "")
    return int(micros) / 2e6 if micros.isdigit() and int(micros) > 0 else None
