"""A log that is not read: a full pipe where the journal should be holds up no call."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import AsyncIterator

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import HANG_S
from tests.machines import HYGON_7285_2S, machine

#: The least a pipe holds: some 30 lines.
PIPE_BYTES = 4096
PODS = 200


@pytest.fixture
async def unread(runtime: FakeRuntime) -> AsyncIterator[tuple[Agent, int]]:
    """A daemon whose stderr is a pipe, and the end of it that should be read."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    agent = Agent(runtime.socket, machine(HYGON_7285_2S))
    command = ("bash", "-c", f'exec "$0" "$@" 2>&{writing}', sys.executable, "-m", "cri_proxy")
    try:
        await agent.start(command=command, keep=[writing])
        os.close(writing)
        yield agent, reading
    finally:
        await agent.close()
        os.close(reading)


async def test_calls_go_on_while_the_log_is_not_read_and_no_line_is_lost_or_out_of_order(
    runtime, unread
) -> None:
    agent, reading = unread
    async with CriClient(agent.socket) as client, CriClient(agent.socket) as probe:
        for number in range(PODS):
            await asyncio.wait_for(client.run_pod(f"pod-{number}"), HANG_S)
        await asyncio.wait_for(probe.call("Version", cri.VersionRequest()), HANG_S)
        assert (await asyncio.wait_for(agent.ask("status"), HANG_S))["mode"] == "enforce"
    agent.signal(15)
    with os.fdopen(os.dup(reading), "rb") as stream:
        text = (await asyncio.to_thread(stream.read)).decode()
    lines = [line for line in text.splitlines() if "pod=default/pod-" in line]
    assert [line.split("pod=default/")[1].split()[0] for line in lines] == [f"pod-{n}" for n in range(PODS)]
