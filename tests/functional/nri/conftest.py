"""One runtime and one daemon for the tests of a module; each test has its own pods and plugins."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.agent import Agent
from tests.cri_client import CriClient, Pod
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import StartAgent, start_in_front_of
from tests.functional.nri.support import hosting, until_no_plugin
from tests.machines import HYGON_7285_2S, machine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_runtime() -> AsyncIterator[FakeRuntime]:
    with tempfile.TemporaryDirectory(prefix="crn-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_agent(shared_runtime: FakeRuntime) -> AsyncIterator[Agent]:
    settings = {"nri": hosting()}
    agent = await start_in_front_of(shared_runtime, machine(HYGON_7285_2S), settings)
    yield agent
    try:
        assert agent.process is not None and agent.process.returncode is None, agent.log()
        assert await agent.terminate() == 0, agent.log()
        assert "Traceback" not in agent.log()
    finally:
        await agent.close()


@pytest_asyncio.fixture(loop_scope="module")
async def agent(shared_agent: Agent) -> AsyncIterator[Agent]:
    """A daemon that hosts plugins; none is there, also not one of the test before: see ``runtime``."""
    yield shared_agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(shared_agent: Agent) -> AsyncIterator[CriClient]:
    async with CriClient(shared_agent.socket) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct(shared_runtime: FakeRuntime) -> AsyncIterator[CriClient]:
    async with CriClient(shared_runtime.socket) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def runtime(
    shared_runtime: FakeRuntime, shared_agent: Agent, client: CriClient
) -> AsyncIterator[FakeRuntime]:
    """A runtime that has nothing, and has been asked for nothing."""
    shared_runtime.calls.clear()
    yield shared_runtime
    shared_runtime.scripts.clear()
    # Then what becomes of this test's pods is told nobody, also not the next test's plugins.
    await until_no_plugin(shared_agent)
    for pod_id in list(shared_runtime.pods):
        await client.remove_pod(pod_id)


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """A file that plugins wait for; not there yet."""
    return tmp_path / "go-on"


@pytest_asyncio.fixture(loop_scope="module")
async def pod(runtime: FakeRuntime, agent: Agent, client: CriClient) -> Pod:
    """A pod from before the plugins."""
    return await client.run_pod("p")


@pytest_asyncio.fixture(loop_scope="module")
async def start_agent(shared_runtime: FakeRuntime) -> AsyncIterator[StartAgent]:
    """Starts daemons with settings of their own; they end with the test."""
    started: list[Agent] = []

    async def start(**config: Any) -> Agent:
        started.append(await start_in_front_of(shared_runtime, machine(HYGON_7285_2S), config))
        return started[-1]

    yield start
    for agent in started:
        await agent.close()
