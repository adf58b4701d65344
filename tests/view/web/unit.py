"""The page as a unit of a service manager, which does what systemd does with ``FDSTORE=1``."""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from pathlib import Path

from tests.agent import Agent
from tests.functional.activation import handed_over
from tests.view.web.browser import BY_HAND, MODULE, WebProcess


class Manager:
    """Keeps what it is sent, by the name it is given."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(self.address)
        self._inbox.setblocking(False)
        self.kept: list[int] = []

    def read(self) -> None:
        """Take in what came; a message is sent before the address is told."""
        with contextlib.suppress(BlockingIOError):
            while True:
                message, rights, _, _ = self._inbox.recvmsg(4096, socket.CMSG_SPACE(4))
                if b"FDSTOREREMOVE=1" in message:
                    self.close_kept()
                elif b"FDSTORE=1" in message:
                    assert b"FDNAME=page" in message
                    self.kept += [fd for _, _, data in rights for fd in array("i", data[:4])]

    def close_kept(self) -> None:
        while self.kept:
            os.close(self.kept.pop())

    def close(self) -> None:
        self.close_kept()
        self._inbox.close()


class Unit(WebProcess):
    """The page as a unit of the manager's."""

    def __init__(self, agent: Agent, manager: Manager) -> None:
        super().__init__(agent)
        self._manager = manager

    async def start(self, port: int = 0, listen: str = "") -> None:
        manager = self._manager
        self.environment = {"NOTIFY_SOCKET": manager.address}
        self.command = handed_over(manager.kept, MODULE) if manager.kept else BY_HAND
        self.keep = tuple(manager.kept)
        await super().start(port, listen)
        manager.read()
