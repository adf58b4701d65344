"""A frame relay in front of a runtime, for the tests of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cri_proxy.relay.io.server import FrameRelay
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.relay.io.frames import Recorder, relaying


@pytest.fixture
def calls() -> Recorder:
    return Recorder()


@pytest_asyncio.fixture
async def relay(folder: Path, calls: Recorder) -> AsyncIterator[FrameRelay]:
    async with relaying(f"{folder}/r.sock", f"{folder}/k.sock", calls) as relay:
        yield relay


@pytest_asyncio.fixture
async def client(runtime: FakeRuntime, relay: FrameRelay) -> AsyncIterator[CriClient]:
    async with CriClient(str(relay.sockets[0])) as client:
        yield client
