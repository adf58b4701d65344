"""A launched plugin is registered before anything heavy is loaded, and is spoken for until the daemon is there."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.io.plugin.launched import Launched, Taken, read_configure
from cri_proxy.nri.subscription import STARTS, WANTED
from tests.functional.nri_host import ScriptedHost, make_container, make_pod, running
from tests.nri.io.host.plugins import HANG_S, REPOSITORY

#: The command, up to its first import that is not of the standard library; then what is loaded.
UNTIL_CLICK = """
import sys
before = set(sys.modules)
class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            print(*set(sys.modules) - before, flush=True)
            sys.stdin.read()
            sys.exit(0)
sys.meta_path.insert(0, Gate())
sys.argv = ["cri-resmgr", "nri", "run"]
from cri_proxy.launcher import main
main()
"""
HEAVY = {
    "asyncio",
    "dataclasses",
    "grpc",
    "google.protobuf",
    "structlog",
    "click",
    "yaml",
    "logging",
    "subprocess",
}
#: Of the standard library and ours; all that the daemon is made of are some 570.
MOST_MODULES = 60


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[ScriptedHost]:
    async with ScriptedHost(tmp_path / "nri.sock", nri_version="v0.12.2") as host:
        host.known = WANTED
        yield host


async def launch(given: socket.socket, program: str = UNTIL_CLICK) -> asyncio.subprocess.Process:
    environment = {
        "NRI_PLUGIN_SOCKET": str(given.fileno()),
        "NRI_PLUGIN_NAME": "mine",
        "NRI_PLUGIN_IDX": "42",
        "PYTHONPATH": str(REPOSITORY),
    }
    with given:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, env=environment, pass_fds=[given.fileno()],
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip


async def test_it_is_registered_configured_and_synchronized_before_anything_heavy_is_loaded(
    host: ScriptedHost,
) -> None:
    host.pods = [make_pod(f"p{i}") for i in range(9)]
    host.containers = [running(make_container(pod)) for pod in host.pods]
    host.chunks = 3
    process = await launch(await host.launch())
    assert process.stdout is not None
    try:
        loaded = set((await asyncio.wait_for(process.stdout.readline(), HANG_S)).decode().split())
        await host.ready()
        [registered] = host.registered
        assert (registered.plugin_name, registered.plugin_idx) == ("mine", "42")
        assert host.masks == [WANTED]
        assert [reply.more for reply in host.replies] == [True, True, False]
        assert HEAVY & loaded == set()
        assert len(loaded) <= MOST_MODULES
    finally:
        _, said = await process.communicate(b"")
    lines = said.decode().splitlines()
    assert lines[0] == "cri-resmgr: [info] launched by a runtime as 42-mine"


async def test_a_launch_that_was_missed_is_told(host: ScriptedHost) -> None:
    ours, given = socket.socketpair()
    ours.close()
    process = await launch(given)
    _, said = await process.communicate(b"")
    assert "the runtime that launched 42-mine: the launch was missed" in said.decode().splitlines()[1]


@pytest.mark.parametrize("environment", [{}, {"NRI_PLUGIN_SOCKET": "three"}, {"NRI_PLUGIN_SOCKET": "77"}])
async def test_what_no_runtime_has_launched_goes_on_as_ever(environment: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", UNTIL_CLICK, env={**environment, "PYTHONPATH": str(REPOSITORY)},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    loaded, _ = await process.communicate()
    assert process.returncode == 0
    assert ("cri_proxy.nri.io.plugin.launched" in loaded.decode().split()) is True


# ---------------------------------------------------------------------- until the daemon takes it over


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def launched(host: ScriptedHost, clock: Clock) -> AsyncIterator[Launched]:
    made = Launched(await host.launch(), "mine", "42", clock)
    made.start()
    await is_held(made)
    clock.now_s += HANG_S
    await host.ready()
    yield made
    (await asyncio.to_thread(made.stop)).connection.close()


def ask(host: ScriptedHost, method: str, timeout_s: float = HANG_S) -> asyncio.Task[bytes]:
    """An event that may wait for long."""
    assert host.connection is not None
    pod = make_pod("p")
    request = nri.CreateContainerRequest(pod=pod, container=make_container(pod)).SerializeToString()
    return asyncio.ensure_future(host.connection.call(method, request, timeout_s))


async def is_held(launched: Launched) -> None:
    while launched._held is None:
        await asyncio.sleep(0.001)


async def is_there(launched: Launched) -> None:
    while not launched._waiting:
        await asyncio.sleep(0.001)


async def test_an_event_waits_for_the_daemon_and_is_answered_with_nothing_before_it_is_too_late(
    host: ScriptedHost, launched: Launched, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ask(host, "CreateContainer")
    await is_there(launched)
    clock.now_s += 0.7 * HANG_S
    other = ask(host, "StopContainer")
    assert await asyncio.wait_for(ask(host, "Shutdown"), HANG_S) == b""
    assert not asked.done()
    clock.now_s += 0.06 * HANG_S
    assert await asyncio.wait_for(asked, HANG_S) == b""
    assert not other.done()
    clock.now_s += HANG_S
    assert await asyncio.wait_for(other, HANG_S) == b""
    said = capsys.readouterr().err.splitlines()
    assert (
        said[0]
        == "cri-resmgr: [warning] CreateContainer was answered with nothing: 42-mine is not loaded yet"
    )


@pytest.fixture
async def starting(host: ScriptedHost, clock: Clock) -> AsyncIterator[Launched]:
    """One whose host tells how long it waits: 2 s."""
    host.configure.request_timeout = 2000
    made = Launched(await host.launch(), "mine", "42", clock)
    made.start()
    await is_held(made)
    yield made
    (await asyncio.to_thread(made.stop)).connection.close()


async def test_a_host_that_starts_waits_for_the_daemon_twice_as_long_as_it_may(
    host: ScriptedHost, starting: Launched, clock: Clock
) -> None:
    """Until it is answered, a runtime serves no client: the first create finds a daemon that has been loaded."""
    clock.now_s += 1.4
    assert await asyncio.wait_for(ask(host, "Shutdown"), HANG_S) == b""
    assert host.masks == []
    clock.now_s += 0.2
    while not host.masks or starting._held is None:
        await asyncio.sleep(0.001)
    clock.now_s += 1.4
    assert await asyncio.wait_for(ask(host, "Shutdown"), HANG_S) == b""
    assert host.replies == []
    clock.now_s += 0.2
    await host.ready()
    assert (host.masks, [reply.more for reply in host.replies]) == ([WANTED], [False])


@pytest.mark.parametrize("synchronized", [False, True])
async def test_a_host_that_starts_is_answered_once_the_daemon_is_there(
    host: ScriptedHost, starting: Launched, clock: Clock, synchronized: bool
) -> None:
    if synchronized:
        clock.now_s += 1.6
        while not host.masks or starting._held is None:
            await asyncio.sleep(0.001)
    taken = await asyncio.to_thread(starting.stop)
    while not (host.replies if synchronized else host.masks):
        await asyncio.sleep(0.001)
    assert host.masks == [WANTED]
    assert (taken.configure, len(taken.told)) == (host.configure.SerializeToString(), int(synchronized))


@pytest.mark.parametrize("configured", [False, True])
async def test_the_event_before_each_start_is_asked_for_if_the_daemon_is_there_in_time_to_say_so(
    host: ScriptedHost, starting: Launched, clock: Clock, configured: bool
) -> None:
    host.known = WANTED | STARTS
    if configured:
        clock.now_s += 1.6
        while not host.masks:
            await asyncio.sleep(0.001)
    taken = await asyncio.to_thread(starting.stop, True)
    while not host.masks:
        await asyncio.sleep(0.001)
    assert host.masks == [taken.mask] == [WANTED if configured else WANTED | STARTS]


async def test_a_host_before_nri_0_7_is_configured_at_once(
    host: ScriptedHost, launched: Launched, clock: Clock
) -> None:
    """It tells no timeouts, and may not start if a plugin that it launches is not configured in time."""
    assert (host.masks, host.configure.request_timeout) == ([WANTED], 0)


async def test_what_waits_and_what_was_told_are_handed_over(
    host: ScriptedHost, launched: Launched, clock: Clock
) -> None:
    asked = ask(host, "CreateContainer")
    await is_there(launched)
    taken: Taken = await asyncio.to_thread(launched.stop)
    [event] = taken.waiting
    assert event.method == "CreateContainer"
    assert clock.now_s + HANG_S - 1 < event.until_s <= clock.now_s + HANG_S
    assert nri.CreateContainerRequest.FromString(event.payload).container.name == "app"
    assert taken.configure == host.configure.SerializeToString()
    assert [nri.SynchronizeRequest.FromString(told) for told in taken.told] == [nri.SynchronizeRequest()]
    asked.cancel()


async def test_a_host_that_goes_or_speaks_another_language_leaves_nothing_to_hand_over(
    host: ScriptedHost, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    for said, reason in ((b"", "it has closed the connection"), (b"\xff" * 8, "it does not speak ttRPC")):
        ours, theirs = socket.socketpair()
        launched = Launched(theirs, "mine", "42", clock)
        launched.start()
        with ours:
            assert b"RegisterPlugin" in ours.recv(1 << 16)
            ours.sendall(said)
            if said:
                while ours.recv(1 << 16):  # until it has given up
                    pass
        while launched._thread.is_alive():
            await asyncio.sleep(0.001)
        taken = launched.stop()
        assert (taken.configure, taken.told, taken.waiting) == (None, (), ())
        taken.connection.close()
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "told",
    [
        nri.ConfigureRequest(),
        nri.ConfigureRequest(config="a: ä", runtime_name="r", runtime_version="v", NRI_version="n"),
        nri.ConfigureRequest(request_timeout=2500, registration_timeout=5000),
    ],
)
def test_configure_is_read_as_protobuf_reads_it(told: Any) -> None:
    read = read_configure(told.SerializeToString())
    assert tuple(read) == (
        told.config,
        told.runtime_name,
        told.runtime_version,
        told.request_timeout / 1000,
        told.NRI_version,
    )
