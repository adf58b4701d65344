"""What the functional tests share: a runtime, the real daemon in front of it, and clients of both.

A test waits for what it is about: a call at the runtime (``FakeRuntime.wait_until``), or an answer of the
daemon's control socket (``until``). Never for a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Callable

import pytest_asyncio

from cri_api.control import read_reply, write_request
from policies.machine.cpus import parse_cpus
from policies.machine.topology import TopologyData
from tests.agent import Agent, kubelet_gives
from tests.cri_client import CriClient, Pod, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine

#: Nobody waits longer than this for what must come; a test that gets here has failed.
HANG_S = 60.0
CREATE = "/runtime.v1.RuntimeService/CreateContainer"
UPDATE = "/runtime.v1.RuntimeService/UpdateContainerResources"
VERSION = "/runtime.v1.RuntimeService/Version"

#: How the daemon's own calls introduce themselves.
OURS = "grpc-python-cri-resmgr/"

StartAgent = Callable[..., Awaitable[Agent]]


# ---------------------------------------------------------------------- fixtures


@pytest_asyncio.fixture
async def start_agent(runtime: FakeRuntime) -> AsyncIterator[StartAgent]:
    """Starts daemons in front of ``runtime`` on a named machine, with settings; they end with the test."""
    started: list[Agent] = []

    async def start(machine_name: str = HYGON_7285_2S, **config: Any) -> Agent:
        agent = await start_in_front_of(runtime, machine(machine_name), config)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        await agent.close()


@pytest_asyncio.fixture
async def agent(start_agent: StartAgent) -> Agent:
    """The daemon on a two-socket Hygon, with nothing set."""
    return await start_agent()


@pytest_asyncio.fixture
async def client(agent: Agent) -> AsyncIterator[CriClient]:
    async with CriClient(agent.socket) as client:
        yield client


@pytest_asyncio.fixture
async def direct(runtime: FakeRuntime) -> AsyncIterator[CriClient]:
    """A client that goes past the daemon."""
    async with CriClient(runtime.socket) as client:
        yield client


# ---------------------------------------------------------------------- helpers


async def start_in_front_of(runtime: FakeRuntime, topology: TopologyData, config: Any) -> Agent:
    """A daemon that has compared its records with the runtime's once; it does nothing more by itself."""
    agent = Agent(runtime.socket, topology=topology, config=config)
    try:
        await agent.start()
        await until(agent, lambda status: resyncs(status) > 0 or status["mode"] == "off")
    except BaseException:
        await agent.close()
        raise
    return agent


async def ask(agent: Agent, command: str, **arguments: Any) -> Any:
    """What the command line would ask, without the half second a new process takes."""
    reader, writer = await asyncio.open_unix_connection(str(agent.control), limit=1 << 24)
    try:
        writer.write(write_request(command, arguments))
        return read_reply(await reader.readline())
    finally:
        writer.close()
        await writer.wait_closed()


async def until(agent: Agent, holds: Callable[[Any], bool], command: str = "status") -> Any:
    """The daemon's answer to a command, as soon as it satisfies ``holds``."""
    answer: Any = None

    async def wait() -> Any:
        nonlocal answer
        while not holds(answer := await ask(agent, command)):
            pass
        return answer

    try:
        return await asyncio.wait_for(wait(), HANG_S)
    except asyncio.TimeoutError:
        raise AssertionError(f"{command} stays {answer}\n{agent.log()}") from None


async def resync(agent: Agent, runtime: FakeRuntime) -> Any:
    """A comparison with the runtime that has begun after this call and is over; the status after it."""

    def listings() -> int:
        # The daemon's own calls have a deadline, the tests' clients set none.
        return sum(call.time_remaining is not None for call in runtime.calls_of("ListContainers"))

    before, done = listings(), resyncs(await ask(agent, "status"))
    began = asyncio.ensure_future(runtime.wait_until(lambda: listings() > before))
    await ask(agent, "mode", mode=(await ask(agent, "status"))["mode_wanted"])
    await began
    # One that was under way may end first: as many ends as there have been beginnings.
    wanted = max(done + 1, listings() - failures(await ask(agent, "status")))
    return await until(agent, lambda status: resyncs(status) >= wanted)


def resyncs(status: Any) -> int:
    return int(status["counters"].get("cri_resmgr_resyncs_total{result=ok}", 0))


def failures(status: Any) -> int:
    return int(status["counters"].get("cri_resmgr_resyncs_total{result=failed}", 0))


def counter(status: Any, name: str) -> int:
    return int(status["counters"].get(f"cri_resmgr_{name}", 0))


async def rows(agent: Agent) -> dict[str, Any]:
    """The placements by container name, which the tests keep unique."""
    return {row["container"]: row for row in await ask(agent, "placements")}


def charged_milli(status: Any) -> int:
    """The requests charged on the whole machine."""
    [machine_row] = [row for row in status["domains"] if row["level"] == "machine"]
    return int(machine_row["charged_milli"])


def cpus_of(runtime: FakeRuntime, container_id: str) -> frozenset[int]:
    """The cpuset a container has at the runtime."""
    return parse_cpus(runtime.cpuset(container_id))


async def run_guaranteed(client: CriClient, name: str) -> Pod:
    """A pod in the cgroup that kubelet gives to Guaranteed ones."""
    uid = f"uid-of-{name}"
    return await client.run_pod(name, uid=uid, cgroup_parent=cgroup_parent("guaranteed", uid))


async def create_exclusive(client: CriClient, pod: Pod, name: str, cpus: str, attempt: int = 0) -> str:
    """A create as kubelet's static CPU manager sends it: Guaranteed, whole CPUs, and as many of its own.

    ``client`` is one of an agent, whose kubelet's folder is beside its socket.
    """
    kubelet_gives(Path(client.socket).parent, pod.uid, name, cpus)
    count = len(parse_cpus(cpus))
    return await client.create(
        pod,
        name,
        attempt=attempt,
        cpu_limit=count * 1000,
        memory_limit=1 << 30,
        qos="guaranteed",
        cpuset=cpus,
    )
