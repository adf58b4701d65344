"""The kernel kills the daemon for its memory (MemoryMax) while a create is under way: nothing is lost by that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cri_proxy.relay.http2.frames import PREFACE, write_settings
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.cgroups import killed_for_memory, leave_memory, make_memory_cgroup, remove_cgroup
from tests.functional.conftest import cpus_of, create_exclusive, run_guaranteed
from tests.functional.support import HANG_S, cpusets, new_agent, placed, start
from tests.relay.http2.hand import data, headers

#: What the daemon has left, and what a client has it hold.
SPARE_BYTES, PIECE, PIECES, STREAMS = 4 << 20, 16_000, 900, 4
OWN = "8-9,72-73"
#: Enters the cgroup whose folder comes first, and becomes the rest.
ENTER = ("/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"')


@pytest.fixture
def cgroup() -> Iterator[Path]:
    found = make_memory_cgroup(f"cri-oom-{os.getpid()}")
    if found is None:
        pytest.skip("no cgroup for memory can be made here")
    yield found
    remove_cgroup(found, time.monotonic() + HANG_S)


async def flood(path: str) -> None:
    """Requests that are not whole, which the daemon must hold; until it is gone."""
    reader, writer = await asyncio.open_unix_connection(path)
    with contextlib.suppress(ConnectionError):
        writer.write(PREFACE + write_settings())
        for stream in range(1, 2 * STREAMS, 2):
            writer.write(headers(stream) + data(stream, (15 << 20).to_bytes(5, "big")))
            for _ in range(PIECES):
                writer.write(data(stream, bytes(PIECE)))
                await writer.drain()
        await reader.read()
    writer.close()


async def killed(agent: Agent, cgroup: Path) -> None:
    """The daemon has no memory for what a client has it hold."""
    assert agent.process is not None
    leave_memory(cgroup, SPARE_BYTES)
    flooding = asyncio.ensure_future(flood(agent.socket))
    assert await asyncio.wait_for(agent.process.wait(), HANG_S) == -9
    assert killed_for_memory(cgroup) >= 1
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


@pytest.mark.parametrize("done", [False, True], ids=["before the runtime did it", "when it was done"])
async def test_a_daemon_that_is_killed_for_its_memory_in_the_middle_of_a_create_loses_nothing(
    runtime, cgroup, done
) -> None:
    async with new_agent(runtime) as agent:
        await start(agent, command=(*ENTER, str(cgroup), sys.executable, "-m", "cri_proxy"))
        async with CriClient(agent.socket) as client:
            owner = await create_exclusive(client, await run_guaranteed(client, "db"), "db", OWN)
            pod = await client.run_pod("web")
            before = cpusets(runtime)
            script = runtime.script("CreateContainer", hold=asyncio.Event(), act_before_error=done, times=1)
            create = asyncio.ensure_future(client.create(pod, "web", cpu_limit=8000))
            await runtime.wait_until(lambda: script.used == 1)
            await killed(agent, cgroup)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await create
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE  # after which kubelet tries again
        await start(agent)
        made = set(cpusets(runtime)) - set(before)
        known = await placed(agent)
        assert len(made) == done and made | {owner} == set(known)
        assert all(known[key]["cpus"] == runtime.cpuset(key) for key in made)
        async with CriClient(agent.socket) as client:
            again = await client.create(pod, "web", attempt=1, cpu_limit=8000)
            await client.start(again)
        known = await placed(agent)
    assert known[owner]["cpus"] == before[owner] == OWN
    assert known[again]["stance"] == "placed" and known[again]["cpus"] == runtime.cpuset(again)
    for key in (*made, again):
        assert not cpus_of(runtime, key) & cpus_of(runtime, owner)
