"""The token is good as long as its socket is open, which the service manager keeps over a restart.

The manager here does what systemd does with ``FDSTORE=1``; tests/packaging/test_page_port.py has systemd itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.agent import Agent
from tests.functional.activation import handed_over
from tests.view.web.browser import BY_HAND, MODULE, WebProcess
from tests.view.web.test_server import Client


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


@pytest.fixture
def manager(busy: Agent) -> Iterator[Manager]:
    found = Manager(busy.folder)
    yield found
    found.close()


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


@pytest_asyncio.fixture
async def unit(busy: Agent, manager: Manager) -> AsyncIterator[Unit]:
    found = Unit(busy, manager)
    await found.start()
    yield found
    await found.stop()


async def _status(web: WebProcess, token: str) -> int:
    async with Client(web) as client:
        header = f"Authorization: Bearer {token}"
        return (await client.ask("/api/explain?container=web", header, token=False))[0]


def _can_bind(port: int) -> bool:
    """Whether a process of another user can listen where the page does."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError), socket.socket() as rival:
            os.setuid(65534)
            rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rival.bind(("127.0.0.1", port))
            rival.listen()
            os.write(writer, b"y")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        found = said.read() == "y"
    os.waitpid(child, 0)
    return found


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
async def test_while_the_unit_restarts_no_other_user_can_listen_there_and_pages_go_on(
    unit: Unit, manager: Manager
) -> None:
    token, port = unit.token, unit.port
    for end in (unit.stop, unit.kill):
        await end()
        assert not _can_bind(port)
        await unit.start(port)
        assert (unit.token, unit.port) == (token, port)
        assert await _status(unit, token) == 200
    # A unit that is stopped: systemd gives the socket up.
    await unit.stop()
    manager.close_kept()
    assert _can_bind(port)
    await unit.start(port)
    assert unit.port == port and unit.token != token
    assert (await _status(unit, token), await _status(unit, unit.token)) == (401, 200)


async def test_another_address_has_another_token_and_its_old_port_is_given_up(
    unit: Unit, manager: Manager
) -> None:
    token, port = unit.token, unit.port
    await unit.stop()
    await unit.start(0)
    assert unit.port != port and unit.token != token
    assert len(manager.kept) == 1
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


async def test_a_port_that_another_process_has_leaves_no_address_to_open(web: WebProcess) -> None:
    token, port = web.token, web.port
    await web.stop()
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", port))
        rival.listen()
        code, error = await web.fail(port)
    assert code == 1 and "Address already in use" in error
    assert not web.url_file.exists()
    await web.start(port)
    assert web.token != token


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST"])
async def test_localhost_is_opened_by_number(busy: Agent, name: str) -> None:
    """By the name a browser tries ``[::1]`` too, which another process may have."""
    web = WebProcess(busy)
    await web.start(listen=f"{name}:0")
    try:
        assert web.address.startswith("http://127.0.0.1:")
    finally:
        await web.stop()
