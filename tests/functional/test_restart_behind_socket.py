"""Behind the socket unit a restart is a pause: calls wait for the next daemon, none fails that is not a long one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Optional

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.greeting import SETTINGS
from tests.cri_client import CriClient, Pod
from tests.functional.activation import Units
from tests.functional.conftest import ask
from tests.functional.support import broken_module, eventually, message_with

#: kubelet's own (remote_runtime.go): 5 s for a connection to be answered, 0.1 to 3 s between attempts.
KUBELETS = (
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.use_local_subchannel_pool", 1),
)
STOPPING = "cri-resmgr is stopping; call again"


class Kubelet(CriClient):
    """A client with kubelet's patience; grpc's transparent retries are on, as they are in grpc-go."""

    async def __aenter__(self) -> Kubelet:
        self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=KUBELETS)
        return self


class Load:
    """Clients that call without a pause. ``failed``: what each call ended with that did not end well."""

    def __init__(self) -> None:
        self.done = 0
        self.failed: list[str] = []
        self.created: list[str] = []
        self.is_over = False

    async def call(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except grpc.aio.AioRpcError as error:
            self.failed.append(f"{error.code().name}: {error.details()}")
        finally:
            self.done += 1

    async def reached(self, count: int) -> None:
        await eventually(lambda: self.done >= count, f"{count} calls")

    async def run_containers(self, client: CriClient, name: str) -> None:
        """The life of one container after another, over one connection."""
        pod = await self.call(client.run_pod(name))
        attempt = 0
        while not self.is_over and isinstance(pod, Pod):
            container = await self.call(client.create(pod, "app", attempt=attempt, cpu_limit=2000))
            if container:
                self.created.append(container)
                await self.call(client.start(container))
                await self.call(client.status(container))
                await self.call(client.update(container, cpu_quota=100_000, cpu_period=100_000))
                await self.call(client.stop(container))
            attempt += 1

    async def ask_with_new_connections(self, path: str) -> None:
        """As crictl does: a connection a call."""
        while not self.is_over:
            async with Kubelet(path) as client:
                await self.call(client.list_containers())

    async def ask_many_at_once(self, client: CriClient) -> None:
        """Several calls over one connection at a time."""
        while not self.is_over:
            await asyncio.gather(*(self.call(client.list_containers()) for _ in range(5)))


@contextlib.asynccontextmanager
async def load_on(units: Units) -> AsyncIterator[Load]:
    """Six clients on both sockets."""
    load = Load()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Kubelet(units.paths[at % 2])) for at in range(4)]
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                *(load.run_containers(client, f"pod{at}") for at, client in enumerate(clients[:3])),
                load.ask_many_at_once(clients[3]),
                *(load.ask_with_new_connections(path) for path in units.paths),
            )
        ]
        try:
            yield load
        finally:
            load.is_over = True
            await asyncio.gather(*tasks)


async def ended(call: Any) -> tuple[str, Optional[str]]:
    """The status of a call that was made, and its details."""
    code = await call.code()
    return code.name, await call.details()


# ---------------------------------------------------------------------- under load


async def test_no_call_of_a_thousand_fails_and_no_create_goes_unplaced(runtime) -> None:
    async with Units(runtime) as units:
        await units.start()
        async with load_on(units) as load:
            for restart in range(1, 5):
                await load.reached(restart * 250)
                await units.restart()
            await load.reached(load.done + 250)
        status = await ask(units.agent, "status")
        assert (load.failed, status["degraded"], status["invariants"]) == ([], {}, [])
        assert load.done >= 1000
        assert [key for key in load.created if not runtime.cpuset(key)] == []


async def test_calls_shorter_than_the_drain_end_well_and_hold_nobody_up(runtime) -> None:
    async with Units(runtime, constants={"relay_drain_s": 10}) as units:
        await units.start()
        hold = asyncio.Event()
        async with Kubelet(units.paths[0]) as slow, Kubelet(units.paths[1]) as other:
            runtime.script("ImageStatus", hold=hold)
            call = asyncio.ensure_future(slow.call("ImageStatus", cri.ImageStatusRequest()))
            await runtime.wait_for_call("ImageStatus")
            restart = asyncio.ensure_future(units.restart())
            await units.agent.logged("stopping")
            # While an old call is awaited everybody is served, on new connections too.
            await asyncio.wait_for(other.list_containers(), 5)
            async with Kubelet(units.paths[0]) as new:
                await asyncio.wait_for(new.list_containers(), 5)
            hold.set()
            await call
            await restart
            assert await other.list_containers() == []


@pytest.mark.parametrize("method", ["GetContainerEvents", "PullImage", "StopContainer"])
async def test_a_call_longer_than_the_drain_is_told_to_call_again(runtime, method) -> None:
    async with Units(runtime, constants={"relay_drain_s": 0.2, "relay_drain_stops_s": 0.5}) as units:
        await units.start()
        requests = {
            "GetContainerEvents": cri.GetEventsRequest(),
            "PullImage": cri.PullImageRequest(image=cri.ImageSpec(image="large:1")),
            "StopContainer": cri.StopContainerRequest(container_id="c", timeout=30),
        }
        if method != "GetContainerEvents":
            runtime.script(method, then_hang=True, times=1)
        async with Kubelet(units.paths[0]) as client:
            call = client.stream(method, requests[method])
            reading = asyncio.ensure_future(call.read())
            await runtime.wait_for_call(method)
            await units.restart()
            with pytest.raises(grpc.aio.AioRpcError):
                await reading
            assert await ended(call) == ("UNAVAILABLE", STOPPING)
            # And again works, over the same channel.
            again = client.stream(method, requests[method])
            await runtime.wait_for_call(method, 2)
            again.cancel()


async def test_a_stop_of_a_container_is_waited_for_beyond_the_drain_while_others_are_served(runtime) -> None:
    async with Units(runtime, constants={"relay_drain_s": 0.1}) as units:
        await units.start()
        hold = asyncio.Event()
        runtime.script("StopContainer", hold=hold)
        request = cri.StopContainerRequest(container_id="c", timeout=600)
        async with Kubelet(units.paths[0]) as slow, Kubelet(units.paths[1]) as other:
            call = asyncio.ensure_future(slow.call("StopContainer", request))
            await runtime.wait_for_call("StopContainer")
            restart = asyncio.ensure_future(units.restart())
            # Sent each second, in which every other call has had its time.
            await units.agent.wait_notified("STOPPING=1")
            await units.agent.wait_notified("EXTEND_TIMEOUT_USEC=")
            assert (await other.list_containers(), call.done(), restart.done()) == ([], False, False)
            hold.set()
            await call
            await restart
            assert await other.list_containers() == []


async def test_a_stop_of_a_container_that_hangs_is_waited_for_as_long_as_it_was_to_take(runtime) -> None:
    constants = {"relay_drain_s": 0.1, "relay_drain_stops_s": 3600}
    async with Units(runtime, constants=constants) as units:
        await units.start()
        runtime.script("StopContainer", then_hang=True)
        async with Kubelet(units.paths[0]) as client:
            call = client.stream("StopContainer", cri.StopContainerRequest(container_id="c", timeout=1))
            reading = asyncio.ensure_future(call.read())
            await runtime.wait_for_call("StopContainer")
            await units.restart()
            with pytest.raises(grpc.aio.AioRpcError):
                await reading
            assert await ended(call) == ("UNAVAILABLE", STOPPING)


async def test_an_open_event_stream_and_a_long_pull_cost_no_other_call(runtime) -> None:
    async with Units(runtime) as units:
        await units.start()
        runtime.script("PullImage", then_hang=True)
        async with Kubelet(units.paths[0]) as client, load_on(units) as load:
            for restart in range(1, 3):
                events = client.stream("GetContainerEvents", cri.GetEventsRequest())
                first = asyncio.ensure_future(events.read())
                await first  # the load makes events
                image = cri.ImageSpec(image="large:1")
                pull = client.stream("PullImage", cri.PullImageRequest(image=image))
                await runtime.wait_for_call("PullImage", restart)
                await units.restart()
                assert await ended(pull) == ("UNAVAILABLE", STOPPING)
                await asyncio.gather(_read_to_the_end(events), return_exceptions=True)
                assert await ended(events) == ("UNAVAILABLE", STOPPING)
                await load.reached(load.done + 100)
        assert load.failed == []


async def _read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


# ---------------------------------------------------------------------- who waits


async def test_who_calls_while_no_daemon_runs_is_answered_by_the_next(runtime) -> None:
    async with Units(runtime) as units, Kubelet(units.paths[1]) as client:
        calls = [asyncio.ensure_future(client.list_containers()) for _ in range(20)]
        await units.start()
        assert await asyncio.gather(*calls) == [[]] * 20


#: Stands for a module that takes long to load: until a file is there. Then it is the real one.
SLOW_MODULE = """
import os, sys, time
while not os.path.exists({go!r}):
    time.sleep(0.01)
sys.path = [path for path in sys.path if "broken" not in path]
del sys.modules["structlog"]
import structlog
"""


async def test_while_a_daemon_is_being_loaded_connections_are_there_and_calls_wait(runtime) -> None:
    async with Units(runtime) as units:
        go = units.agent.folder / "go"
        with broken_module(units.agent.folder, "structlog", SLOW_MODULE.format(go=str(go))) as environment:
            starting = asyncio.ensure_future(units.start(**environment))
            reader, writer = await asyncio.open_unix_connection(units.paths[1])
            assert await asyncio.wait_for(reader.readexactly(9), 20) == SETTINGS
            writer.close()
            # This client gives up a connection that is not answered within 0.1 s.
            async with CriClient(units.paths[0]) as impatient:
                calls = [asyncio.ensure_future(impatient.run_pod(f"pod{at}")) for at in range(3)]
                await eventually(lambda: _connections(units.paths[0]) == 1, "it is connected")
                go.touch()
                await starting
                pods = await asyncio.gather(*calls)
                container = await impatient.create(pods[0], "app", cpu_limit=8000)
                # Its connection lives on, through what is said at a stop, too.
                assert _connections(units.paths[0]) == 1
                await units.agent.terminate()
        assert runtime.cpuset(container) != ""


def _connections(path: str) -> int:
    """How many connections to a socket have been accepted: they have an inode (unix(7), /proc/net)."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sum(words[7:] == [path] and words[5] == "03" and words[6] != "0" for words in lines)


async def test_a_daemon_that_was_killed_leaves_the_socket_and_calls_wait_for_the_next(runtime) -> None:
    async with Units(runtime) as units:
        await units.start()
        await units.agent.kill()
        async with Kubelet(units.paths[0]) as client:
            pod = asyncio.ensure_future(client.run_pod("web"))
            await units.start()
            container = await client.create(await pod, "app", cpu_limit=8000)
        assert runtime.cpuset(container) != ""


async def test_a_client_that_never_speaks_does_not_keep_a_restart_waiting_for_ever(runtime) -> None:
    async with Units(runtime) as units:
        await units.start()
        with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as noise:
            silent.connect(units.paths[0])
            noise.connect(units.paths[0])
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
            async with Kubelet(units.paths[0]) as client:
                assert await client.list_containers() == []
                await units.restart()
                assert await client.list_containers() == []


async def test_the_program_that_passes_bytes_takes_systemds_sockets_over(runtime) -> None:
    async with Units(runtime) as units:
        flags = ("--relay-socket", units.paths[0], "--runtime-socket", runtime.socket)
        with broken_module(units.agent.folder, "structlog") as environment:
            await units.start(*flags, **environment)
        assert message_with(units.agent, "degraded: passing bytes only") is not None
        for path in units.paths:
            async with Kubelet(path) as client:
                assert await client.list_containers() == []
        # Mended: the next start is a daemon again.
        await units.restart()
        assert (await ask(units.agent, "status"))["mode"] == "enforce"
