"""A node with a real daemon on the two-socket Hygon, an API server, and the agent, which a test starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent import Agent
from tests.cluster.agent.io.node import NodeAgent
from tests.cluster.api_server import ApiServer
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import agent as agent  # fixtures, of these tests too
from tests.functional.conftest import client as client
from tests.functional.conftest import start_agent as start_agent


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def node(
    api: ApiServer, agent: Agent, runtime: FakeRuntime, tmp_path: Path
) -> AsyncIterator[NodeAgent]:
    made = NodeAgent(api, agent, tmp_path)
    try:
        yield made
    finally:
        await made.stop()
        print(made.log if (tmp_path / "log").exists() else "")
