"""A daemon with a container, to be looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.support import new_agent, run_pod_with, start
from tests.functional.test_affinity import MANUAL


@pytest_asyncio.fixture
async def busy(runtime: FakeRuntime) -> AsyncIterator[Agent]:
    """A daemon on a two-socket Hygon with a container."""
    async with new_agent(runtime, **MANUAL) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            await run_pod_with(client, "web", cpu_limit=2000)
        yield agent
