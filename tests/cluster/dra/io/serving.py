"""Test support: the plugin's pauses, its claims in an API server, and the fixtures that tests of it share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.claims import CLAIMS, ClaimName
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from tests.cluster.api_server import ApiServer
from tests.cluster.dra.objects import claim


class Rounds:
    """The plugin's pauses end when a test says so."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.monotonic = 1000.0
        self._turn = asyncio.Condition()

    async def sleep(self, _seconds: float) -> None:
        async with self._turn:
            await self._turn.wait()

    async def next(self, seconds: float = 0.0) -> None:
        self.monotonic += seconds
        async with self._turn:
            self._turn.notify_all()

    def clock(self) -> Clock:
        return Clock(lambda: self.monotonic, lambda: self.wall, self.sleep)


@pytest.fixture
async def api_server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


def put(server: ApiServer, *results: dict[str, Any], name: str = "four") -> ClaimName:
    """A claim that was allocated; kubelet's words for it, with the UID that the server has given it."""
    stored = server.put(CLAIMS, claim(*results, name=name))
    return ClaimName("shop", name, stored["metadata"]["uid"])


@pytest.fixture
def four(api_server: ApiServer) -> ClaimName:
    return put(api_server)


@pytest.fixture
async def api_client(api_server: ApiServer, folder: Path) -> AsyncIterator[Client]:
    made = Client(Access.kubeconfig(api_server.kubeconfig(folder / "kubeconfig")), user_agent="test")
    yield made
    await made.close()


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until_done(rounds: Rounds, reading: asyncio.Future[Any], seconds: float = 0.0) -> Any:
    """Go on by so many seconds a round until something was read."""

    async def go_on() -> None:
        while not reading.done():
            await rounds.next(seconds)
            await asyncio.sleep(0)

    await asyncio.wait_for(go_on(), 60)
    return reading.result()
