"""The daemon's life as systemd and its clients see it: ready, alive, stopping; sockets it makes and is given."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import IMAGE, CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, until
from tests.functional.support import broken_module, ended, eventually, new_agent, run_pod_with, start

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


# ---------------------------------------------------------------------- ready and alive


async def test_ready_comes_only_once_the_socket_serves(runtime) -> None:
    async with new_agent(runtime) as agent:
        await agent.start()
        # No retry: the first connection is the one that counts.
        reader, writer = await asyncio.open_unix_connection(agent.socket)
        writer.close()
        assert [message for message in agent.messages if "READY=1" not in message] == []
        assert agent.messages[0] == "READY=1\nSTATUS=enforce, serving"


async def test_ready_waits_for_kubelets_socket_though_others_cannot_be_served(runtime) -> None:
    async with new_agent(runtime) as agent:
        taken = agent.folder / "taken"
        taken.write_text("a file")
        agent.write_config({"relay": {"extra_sockets": [str(taken)]}})
        await agent.start()
        assert agent.messages[0].startswith(f"READY=1\nSTATUS=degraded: {taken} is not served: ")
        async with CriClient(agent.socket) as client:
            assert await client.list_containers() == []
        assert (await ask(agent, "status"))["sockets"] == [agent.socket]
        assert await agent.terminate() == 0
        assert taken.read_text() == "a file"


async def test_the_watchdog_is_told_twice_in_its_time(runtime) -> None:
    async with new_agent(runtime) as agent:
        await agent.start(environment={"WATCHDOG_USEC": "200000"})
        for _ in range(3):
            await agent.wait_notified("WATCHDOG=1")


async def test_without_a_watchdog_none_is_told(agent) -> None:
    await agent.terminate()
    agent.receive_all()
    assert not [message for message in agent.messages if "WATCHDOG" in message]


# ---------------------------------------------------------------------- stopping


async def test_a_call_under_way_is_finished_before_the_end(runtime) -> None:
    hold = asyncio.Event()
    runtime.script("CreateContainer", hold=hold)
    async with new_agent(runtime, constants={"relay_drain_s": 20}) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            pod = await client.run_pod("web")
            create = asyncio.ensure_future(client.create(pod, "web", cpu_limit=8000))
            await runtime.wait_for_call("CreateContainer")
            agent.signal(signal.SIGTERM)
            await agent.wait_notified("STOPPING=1")
            hold.set()
            container_id = await create
        assert await ended(agent) == 0
        assert runtime.cpuset(container_id) != ""
        assert (await start(agent))["containers"] == {"placed": 1}


async def test_a_call_that_outlasts_the_drain_is_ended_and_left_in_doubt(runtime) -> None:
    runtime.script("CreateContainer", hold=asyncio.Event(), act_before_error=True, times=1)
    async with new_agent(runtime, constants={"relay_drain_s": 0.1}) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            pod = await client.run_pod("web")
            create = asyncio.ensure_future(client.create(pod, "web", cpu_limit=8000))
            await runtime.wait_for_call("CreateContainer")
            assert await agent.terminate() == 0
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await create
        assert error.value.code() is UNAVAILABLE
        # The runtime has made it: the next daemon finds it where this one put it.
        assert (await start(agent))["containers"] == {"placed": 1}


async def test_a_second_sigterm_ends_it_at_once(runtime) -> None:
    runtime.script("CreateContainer", hold=asyncio.Event())
    async with new_agent(runtime, constants={"relay_drain_s": 3600}) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            pod = await client.run_pod("web")
            create = asyncio.ensure_future(client.create(pod, "web", cpu_limit=8000))
            await runtime.wait_for_call("CreateContainer")
            agent.signal(signal.SIGTERM)
            await agent.wait_notified("STOPPING=1")
            agent.signal(signal.SIGTERM)
            assert await ended(agent) == 1
            with pytest.raises(grpc.aio.AioRpcError):
                await create


async def test_an_orderly_stop_leaves_no_sockets(runtime) -> None:
    async with new_agent(runtime) as agent:
        more = agent.folder / "more.sock"
        agent.write_config({"relay": {"extra_sockets": [str(more)]}})
        await start(agent)
        assert more.is_socket()
        assert await agent.terminate() == 0
        assert not [path for path in (Path(agent.socket), agent.control, more) if path.exists()]


# ---------------------------------------------------------------------- its sockets


async def test_sockets_that_were_left_behind_are_replaced(agent) -> None:
    await agent.kill()
    assert Path(agent.socket).is_socket()
    assert agent.control.is_socket()
    await start(agent)
    async with CriClient(agent.socket) as client:
        assert await client.list_containers() == []


async def test_a_socket_that_is_served_is_not_stolen(runtime) -> None:
    async with new_agent(runtime) as agent, new_agent(runtime) as second:
        await start(agent)
        second.write_config({"relay": {"socket": agent.socket}})
        await second.start(ready=False)
        assert await ended(second) == 1
        assert f"{agent.socket} is served by another process; stop it first" in second.log()
        assert "Traceback" not in second.log()
        async with CriClient(agent.socket) as client:
            assert await client.list_containers() == []


async def test_the_control_socket_of_another_daemon_is_left_alone(runtime) -> None:
    async with new_agent(runtime) as agent, new_agent(runtime) as second:
        await start(agent)
        second.write_config({"control": {"socket": str(agent.control)}})
        await second.start()
        assert f"{agent.control} is served by another process" in second.messages[0]
        assert await second.terminate() == 0
        assert (await ask(agent, "status"))["sockets"] == [agent.socket]


async def test_the_launcher_does_not_steal_either(runtime) -> None:
    async with new_agent(runtime) as agent, new_agent(runtime) as second:
        await start(agent)
        with broken_module(second.folder, "structlog") as environment:
            flags = ("--relay-socket", agent.socket, "--runtime-socket", runtime.socket)
            await second.start(*flags, environment=environment, ready=False)
            assert await ended(second) == 1
        assert f"{agent.socket} cannot be served: it is served by another process" in second.log()
        async with CriClient(agent.socket) as client:
            assert await client.list_containers() == []


async def test_streams_and_pulls_are_ended_at_once_with_unavailable(runtime) -> None:
    pull_request = cri.PullImageRequest(image=cri.ImageSpec(image=IMAGE))
    runtime.script("PullImage", hold=asyncio.Event())
    async with new_agent(runtime, constants={"relay_drain_s": 3600}) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            events = client.events()
            next_event = asyncio.ensure_future(events.next(30))
            pull = asyncio.ensure_future(client.call("PullImage", pull_request))
            await runtime.wait_until(lambda: runtime.subscribers == 1 and bool(runtime.calls_of("PullImage")))
            assert await agent.terminate() == 0
            for call in (next_event, pull):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call
                assert error.value.code() is UNAVAILABLE


@pytest.mark.parametrize("degraded", [False, True], ids=["daemon", "launcher"])
async def test_sockets_are_as_accessible_as_the_runtimes(runtime, degraded) -> None:
    os.chmod(runtime.socket, 0o620)
    os.chown(runtime.socket, 1, 12)
    async with new_agent(runtime) as agent:
        if degraded:
            with broken_module(agent.folder, "structlog") as environment:
                flags = ("--relay-socket", agent.socket, "--runtime-socket", runtime.socket)
                await agent.start(*flags, environment=environment)
        else:
            await start(agent)
            assert stat.S_IMODE(agent.control.stat().st_mode) == 0o600
        status = os.stat(agent.socket)
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o620, 1, 12)


async def test_a_signal_turns_debugging_on_and_off_and_ends_nothing(runtime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        assert agent.process is not None
        for sentence in ("debugging on", "debugging off"):
            agent.process.send_signal(signal.SIGUSR1)
            await agent.logged(sentence)
        async with CriClient(agent.socket) as client:
            assert await client.list_containers() == []


async def test_one_socket_under_two_names_is_served_once(runtime) -> None:
    async with new_agent(runtime) as agent:
        (agent.folder / "link").symlink_to(agent.folder)
        agent.write_config(
            {"relay": {"extra_sockets": [str(agent.folder / "link" / "k.sock"), agent.socket]}}
        )
        assert (await start(agent))["degraded"] == {}
        async with CriClient(agent.socket) as client:
            assert await client.list_containers() == []


async def test_a_reload_does_not_end_the_launcher(runtime) -> None:
    async with new_agent(runtime) as agent:
        with broken_module(agent.folder, "structlog") as environment:
            flags = ("--relay-socket", agent.socket, "--runtime-socket", runtime.socket)
            await agent.start(*flags, environment={**environment, "WATCHDOG_USEC": "200000"})
        agent.reload()
        for _ in range(2):
            await agent.wait_notified("WATCHDOG=1")
        async with CriClient(agent.socket) as client:
            assert await client.list_containers() == []


async def test_sockets_follow_a_runtime_that_appears_later(runtime) -> None:
    await runtime.stop()
    Path(runtime.socket).unlink(missing_ok=True)
    async with new_agent(runtime) as agent:
        await agent.start()
        assert stat.S_IMODE(os.stat(agent.socket).st_mode) == 0o660
        mask = os.umask(0o117)
        try:
            await runtime.start()
        finally:
            os.umask(mask)
        wanted = stat.S_IMODE(os.stat(runtime.socket).st_mode)
        await until(agent, lambda status: status["runtime"]["name"] != "")
        assert stat.S_IMODE(os.stat(agent.socket).st_mode) == wanted


# ---------------------------------------------------------------------- socket activation

#: What systemd does: binds the socket, and starts the service with it as file descriptor 3.
SYSTEMD = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
os.dup2(listener.fileno(), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "cri_proxy", *sys.argv[2:]])
"""


class Systemd:
    """Holds a listening socket, and starts daemons with it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.listener = socket.socket(socket.AF_UNIX)
        # As with /var/run and /run, the configuration's name for it is another.
        real = agent.folder / "real"
        real.mkdir()
        (agent.folder / "link").symlink_to(real)
        self.listener.bind(str(real / "k.sock"))
        self.listener.listen(16)
        self.path = real / "k.sock"
        agent.write_config({"relay": {"socket": str(agent.folder / "link" / "k.sock")}})

    async def start(self, *arguments: str, **environment: str) -> None:
        command = (sys.executable, "-c", SYSTEMD, str(self.listener.fileno()))
        await self.agent.start(
            *arguments, environment=environment, command=command, keep=(self.listener.fileno(),)
        )


@asynccontextmanager
async def systemd(runtime: FakeRuntime) -> AsyncIterator[Systemd]:
    async with new_agent(runtime) as agent:
        manager = Systemd(agent)
        try:
            yield manager
        finally:
            manager.listener.close()


def _is_waiting(path: Path) -> bool:
    """Whether a connection to a socket was made that nobody has accepted: no inode yet (unix(7), /proc/net)."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return any(words[7:] == [str(path)] and words[6] == "0" for words in lines)


@asynccontextmanager
async def patient(path: Path) -> AsyncIterator[Any]:
    """A call of ListContainers that waits for its first connection as long as kubelet does (20 s)."""
    options = (("grpc.min_reconnect_backoff_ms", 20_000), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        reply = cri.ListContainersResponse.FromString
        method = channel.unary_unary("/runtime.v1.RuntimeService/ListContainers", response_deserializer=reply)
        call = method(b"")
        await eventually(lambda: _is_waiting(path), "the connection waits to be accepted")
        yield call


async def test_a_socket_of_systemd_is_served(runtime) -> None:
    async with systemd(runtime) as manager:
        await manager.start()
        async with CriClient(str(manager.path)) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        assert runtime.cpuset(container_id) != ""
        assert (await ask(manager.agent, "status"))["sockets"] == [manager.agent.config["relay"]["socket"]]


@pytest.mark.parametrize("degraded", [False, True], ids=["daemon", "launcher"])
async def test_who_calls_while_the_daemon_is_down_is_served_by_the_next(runtime, degraded) -> None:
    async with systemd(runtime) as manager:
        agent = manager.agent
        arguments: list[str] = []
        environment: dict[str, str] = {}
        if degraded:
            arguments = [
                "--relay-socket",
                agent.config["relay"]["socket"],
                "--runtime-socket",
                runtime.socket,
            ]
            with broken_module(agent.folder, "structlog") as environment:
                pass
        await manager.start(*arguments, **environment)
        assert agent.messages[-1].startswith(
            "READY=1\nSTATUS=degraded" if degraded else "READY=1\nSTATUS=enforce"
        )
        assert await agent.terminate() == 0
        assert manager.path.is_socket()
        async with patient(manager.path) as call:
            await manager.start(*arguments, **environment)
            assert list((await call).containers) == []
