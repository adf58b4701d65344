"""Tells when CPUs or memory nodes come or go: kernel uevents, and a look now and then if they are lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Callable, Optional

from cri_api.waiting import wait_within

#: NETLINK_KOBJECT_UEVENT (linux/netlink.h); group 1 are the kernel's own messages.
NETLINK_KOBJECT_UEVENT, KERNEL_GROUP = 15, 1
#: Devices whose coming and going may change what a topology says.
DEVICES = (b"/devices/system/cpu/", b"/devices/system/node/", b"/devices/system/memory/")


class TopologyWatch:
    """Calls ``changed`` (in the event loop) when ``signature`` differs from the one before."""

    def __init__(
        self, signature: Callable[[], str], changed: Callable[[], object], interval_s: float
    ) -> None:
        self._signature = signature
        self._changed = changed
        self._interval_s = interval_s
        self._wake = asyncio.Event()
        self._seen: Optional[str] = None

    def set_interval(self, interval_s: float) -> None:
        """Look this often from now on."""
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self._wake.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            uevents = _open_uevents()
            if uevents is not None:
                stack.enter_context(contextlib.closing(uevents))
                loop.add_reader(uevents.fileno(), self._uevent, uevents)
                stack.callback(loop.remove_reader, uevents.fileno())
            # Begun again after a failure it compares with what it has seen before.
            if self._seen is None:
                self._seen = await asyncio.to_thread(self._signature)
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await wait_within(self._interval_s, self._wake.wait())
                self._wake.clear()
                now = await asyncio.to_thread(self._signature)
                if now != self._seen:
                    self._seen = now
                    self._changed()

    def _uevent(self, source: socket.socket) -> None:
        try:
            message = source.recv(65536)
        except OSError:
            return
        if any(device in message for device in DEVICES):
            self._wake.set()


def _open_uevents() -> Optional[socket.socket]:
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    try:
        source = socket.socket(socket.AF_NETLINK, kind, NETLINK_KOBJECT_UEVENT)
    except OSError:
        return None
    try:
        source.bind((0, KERNEL_GROUP))
    except OSError:
        source.close()
        return None
    return source
