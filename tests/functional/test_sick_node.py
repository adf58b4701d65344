"""What is missing, stuck or in the way on a sick node is a reason in the status, and over by itself when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_api.socket_paths import is_served
from cri_proxy.daemon.maintenance import absence_of
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import VERSION, ask, until
from tests.functional.support import ended, eventually, message_with, new_agent, run_pod_with, start
from tests.machines import HYGON_7285_2S, machine

# ---------------------------------------------------------------------- a disk that does not answer


#: A daemon that waits for a FIFO where it reads kubelet's files, as for a disk; argv is that, and then the command's.
HANGING = """
import os, sys
from cri_proxy.cli import main
from cri_proxy.kubelet.io import cpu_manager
disk, read = sys.argv.pop(1), cpu_manager.read_bytes
def read_bytes(path, limit):
    if os.path.exists(disk):
        open(disk, "rb").read()
    return read(path, limit)
cpu_manager.read_bytes = read_bytes
main.cli()
"""


@contextlib.contextmanager
def hanging_disk(agent: Agent) -> Iterator[tuple[str, ...]]:
    """The command of a daemon that waits for kubelet's record until the block is left."""
    disk = agent.folder / "disk"
    os.mkfifo(disk)
    try:
        yield (sys.executable, "-c", HANGING, str(disk))
    finally:
        waiting = os.open(disk, os.O_RDWR)
        disk.unlink()
        os.close(waiting)


async def test_a_disk_that_hangs_at_the_start_holds_up_neither_ready_nor_calls(runtime) -> None:
    async with new_agent(runtime) as agent:
        with hanging_disk(agent) as command:
            await agent.start(environment={"WATCHDOG_USEC": "200000"}, command=command)
            assert "STATUS=degraded: it is starting" in (message_with(agent, "READY=1") or "")
            await agent.wait_notified("WATCHDOG=1")
            async with CriClient(agent.socket) as client:
                assert (await client.call_bytes(VERSION, b"")).code == 0
            status = await ask(agent, "status")
            assert (status["mode"], status["degraded"].keys()) == ("off", {"start"})
        await until(agent, lambda status: (status["mode"], status["degraded"]) == ("enforce", {}))
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        assert runtime.cpuset(container_id) != ""


async def test_while_a_disk_hangs_it_can_be_stopped(runtime) -> None:
    async with new_agent(runtime) as agent:
        with hanging_disk(agent) as command:
            await agent.start(ready=False, command=command)
            await eventually(lambda: is_served(agent.control), "the control socket is served")
            assert (await ask(agent, "status"))["mode"] == "off"
            assert await agent.terminate() == 0
        assert not Path(agent.socket).exists()


# ---------------------------------------------------------------------- a runtime that is not there, or stuck


#: ``run``, on a node where runtimes listen at other places: argv is these, with commas, and then "run --config FILE".
ELSEWHERE = """
import sys
from pathlib import Path
from cri_proxy.daemon.daemon import RunOptions, main
from cri_proxy.config.io.files import Files

files = Files(config=Path(sys.argv[4]), root=Path("/nonexistent"))
sys.exit(main(RunOptions(files, runtimes=tuple(sys.argv[1].split(",")))))
"""


def endpoint_kept(agent: Agent) -> str:
    return str(json.loads((agent.state / "endpoints.json").read_text())["runtime"])


@pytest.mark.parametrize("is_as_guessed", [True, False], ids=["where it was guessed to be", "elsewhere"])
async def test_a_runtime_that_is_installed_later_is_found(folder, is_as_guessed) -> None:
    places = [str(folder / name) for name in ("containerd.sock", "crio.sock")]
    command = (sys.executable, "-c", ELSEWHERE, ",".join(places))
    agent = Agent("", topology=machine(HYGON_7285_2S))
    try:
        await agent.start(command=command)
        reason = (await ask(agent, "status"))["degraded"]["runtime"]
        assert reason.startswith(f"no container runtime found: none of {places[0]}, {places[1]} is a socket")
        assert endpoint_kept(agent) == ""
        place = places[0 if is_as_guessed else 1]
        async with FakeRuntime(place):
            if not is_as_guessed:
                # Sockets and channels are made for one runtime: who starts it again is systemd.
                assert await ended(agent) == 1
                assert f"path={place}" in agent.log()
                await agent.start(command=command)
            await until(agent, lambda status: status["runtime"]["connected"] and not status["degraded"])
            assert (await ask(agent, "status"))["runtime"]["socket"] == place
            await eventually(lambda: endpoint_kept(agent) == place, "the endpoint is kept")
    finally:
        await agent.close()


async def test_a_runtime_that_stays_away_is_a_reason_until_it_is_there(runtime) -> None:
    await runtime.stop()
    async with new_agent(runtime) as agent:
        await agent.start()
        status = await until(agent, lambda status: "runtime" in status["degraded"])
        reason = f"the runtime is not there: {runtime.socket}: No such file or directory"
        assert {key: why for key, why in status["degraded"].items() if key != "books"} == {"runtime": reason}
        await runtime.start()
        await until(agent, lambda status: not status["degraded"])


async def test_a_runtime_that_accepts_and_says_nothing_is_told_from_one_that_is_not_there(runtime) -> None:
    await runtime.stop()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(runtime.socket)
        silent.listen(100)
        async with new_agent(runtime) as agent:
            await agent.start()
            status = await until(agent, lambda status: "runtime" in status["degraded"])
            where = f"it accepts connections at {runtime.socket} and says nothing"
            assert status["degraded"]["runtime"] == f"the runtime does not answer: {where}"


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("missing", "the runtime is not there: {path}: No such file or directory"),
        ("refusing", "the runtime is not there: nothing accepts connections at {path}"),
        ("full", "the runtime does not answer: it accepts no further connections at {path}"),
        ("silent", "the runtime does not answer: it accepts connections at {path} and says nothing"),
    ],
)
def test_why_there_is_no_runtime_is_found_out_at_its_socket(state, sentence, folder) -> None:
    path = str(folder / "r.sock")
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX))
        if state != "missing":
            listener.bind(path)
        if state in ("full", "silent"):
            listener.listen(0 if state == "full" else 10)
        if state == "full":
            opened.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        assert absence_of(path) == sentence.format(path=path)


async def test_a_runtime_that_answers_and_does_not_list_is_a_reason_until_it_does(runtime, agent) -> None:
    stuck = runtime.script("ListContainers", error=(13, "the metadata is locked"), times=None)
    await ask(agent, "mode", mode="enforce")  # which has it look
    status = await until(agent, lambda status: status["degraded"])
    reason = "the runtime does not list its containers: the metadata is locked"
    assert (status["runtime"]["connected"], status["degraded"]) == (True, {"list": reason})
    runtime.scripts.remove(stuck)
    await ask(agent, "mode", mode="enforce")
    await until(agent, lambda status: not status["degraded"])


# ---------------------------------------------------------------------- sockets that somebody is in the way of


async def test_the_control_socket_is_served_once_nothing_is_in_its_way(runtime) -> None:
    async with new_agent(runtime) as agent:
        agent.control.write_text("in the way")
        await agent.start()
        sentence = (
            f"{agent.control} exists and is not a socket; remove it or set control.socket to another path"
        )
        assert sentence in agent.last_status()
        agent.control.unlink()
        agent.reload()  # which has it look
        await eventually(
            lambda: agent.control.is_socket() and is_served(agent.control), "the control socket is served"
        )
        await until(agent, lambda status: not status["degraded"])


async def test_metrics_are_served_once_their_address_is_free(runtime) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with new_agent(runtime, metrics={"listen": f"127.0.0.1:{port}"}) as agent:
            status = await start(agent)
            assert status["degraded"].keys() == {"metrics"}
            other.close()
            await ask(agent, "mode", mode="enforce")
            await until(agent, lambda status: not status["degraded"])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()


# ---------------------------------------------------------------------- a folder that may not be searched


#: ``run`` with the usual files below a folder: argv is that, and "run --config FILE", which is not read.
USUAL_FILES = """
import sys
from pathlib import Path
from cri_proxy.daemon.daemon import RunOptions, main
from cri_proxy.config.io.files import Files

sys.exit(main(RunOptions(Files(root=Path(sys.argv[1]), overrides={overrides}))))
"""


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv of util-linux"
)
async def test_a_configuration_folder_that_may_not_be_searched_is_said_and_read_once_it_may(runtime) -> None:
    async with new_agent(runtime) as agent:
        overrides = {
            f"{part}.{key}": value for part, found in agent.config.items() for key, value in found.items()
        }
        closed = agent.folder / "etc/cri-resmgr"
        closed.mkdir(parents=True)
        (closed / "config.yaml").write_text("placement: {ladder: fine}\n")
        os.chown(closed, 1234, 1234)
        closed.chmod(0o700)
        rights = ("setpriv", "--bounding-set", "-all,+chown,+fowner", "--no-new-privs")
        program = USUAL_FILES.format(overrides=overrides)
        await agent.start(command=(*rights, sys.executable, "-c", program, str(agent.folder)))
        reason = f"{closed}/fallback.cfg: cannot be read: Permission denied"
        assert reason in (await ask(agent, "status"))["degraded"]["config"]
        async with CriClient(agent.socket) as client:
            assert (await client.call_bytes(VERSION, b"")).code == 0
        os.chown(closed, 0, 0)
        await until(agent, lambda status: (status["mode"], status["degraded"]) == ("enforce", {}))
        os.chown(closed, 1234, 1234)
        agent.reload()
        await agent.wait_notified("RELOADING=1")
        await agent.wait_notified("READY=1")
        assert (await ask(agent, "status"))["degraded"].keys() == {"config"}


# ---------------------------------------------------------------------- too few descriptors


@pytest.mark.parametrize("most", [128, 256])
async def test_a_daemon_that_can_serve_no_connection_is_degraded_from_the_start(runtime, most) -> None:
    async with new_agent(runtime) as agent:
        command = ("prlimit", f"--nofile={most}:{most}", sys.executable, "-m", "cri_proxy")
        await agent.start(command=command)
        assert "STATUS=degraded: " in (message_with(agent, "READY=1") or "")
        reasons = (await ask(agent, "status"))["degraded"]
        assert "LimitNOFILE of the unit must be" in reasons["connections"]
