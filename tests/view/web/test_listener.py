"""The token is good as long as its socket is open, which the service manager keeps over a restart.

tests/packaging/test_page_port.py has the same under systemd itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.agent import Agent
from tests.view.web.browser import WebProcess
from tests.view.web.test_server import Client
from tests.view.web.unit import Manager, Unit


@pytest.fixture
def manager(busy: Agent) -> Iterator[Manager]:
    found = Manager(busy.folder)
    yield found
    found.close()


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
