"""What is left when all else is broken: it finds its sockets, passes bytes, and lets the daemon in when that can run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy import passthrough
from cri_proxy.runtime import WELL_KNOWN
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.support import eventually
from tests.functional.test_restart_behind_socket import Kubelet

# ---------------------------------------------------------------------- which sockets


def test_the_launcher_looks_for_the_same_runtimes() -> None:
    assert passthrough.RUNTIMES == WELL_KNOWN


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (passthrough.SOCKET, [], WELL_KNOWN[0])),
        ("--relay-socket /a --runtime-socket unix:///b", ("/a", [], "/b")),
        ("-relay-socket=/a -runtime-socket=/b", ("/a", [], "/b")),
        ("--relay-socket /a --runtime-socket unix:/b", ("/a", [], "/b")),
        ("--relay-socket /a --relay-socket /c", ("/c", [], WELL_KNOWN[0])),
    ],
)
def test_flags_tell_the_launcher_where_to_serve(words: str, expected: Any, tmp_path: Path) -> None:
    if any(Path(path).exists() for path in WELL_KNOWN):
        expected = (*expected[:2], passthrough.endpoints(words.split(), str(tmp_path))[2])
    assert passthrough.endpoints(words.split(), str(tmp_path)) == expected


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{", '{"socket": ""}'])
def test_a_broken_note_of_endpoints_is_no_harm(text: str, tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(text)
    assert passthrough.endpoints([], str(tmp_path))[0] == passthrough.SOCKET


def test_folders_of_sockets_are_open(folder: Path) -> None:
    before = os.umask(0o177)
    try:
        passthrough._claim(str(folder / "run/crio/crio.sock"))
    finally:
        os.umask(before)
    assert [(folder / name).stat().st_mode & 0o777 for name in ("run", "run/crio")] == [0o755, 0o755]


# ---------------------------------------------------------------------- the daemon is let in again

#: As systemd starts it: descriptor 3 listens. It does not wait for minutes.
PROGRAM = """
import asyncio, os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "cri_proxy"))
os.dup2(int(sys.argv[2]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
import passthrough
passthrough.SHORTEST_S, passthrough.DRAIN_S = 0, float(sys.argv[5])
asyncio.run(passthrough.serve("it is broken", ["--relay-socket", sys.argv[3], "--runtime-socket", sys.argv[4]]))
"""
TRIED = "with open({mark!r}, 'a') as file: file.write('x')\n"


class Installation:
    """A program beside a daemon that cannot be imported, behind systemd's socket; the runtime says what it hears."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.runtime, self.mark = (folder / name for name in ("k.sock", "r.sock", "tried"))
        self._site = folder / "site"
        package = self._site / "cri_proxy"
        (package / "daemon").mkdir(parents=True)
        shutil.copy(passthrough.__file__, package)
        for folder in (package, package / "daemon"):
            (folder / "__init__.py").touch()
        self.install("raise ImportError('it is broken')")

    def install(self, text: str) -> None:
        """Another daemon."""
        beside = self._site / "new"
        beside.write_text(TRIED.format(mark=str(self.mark)) + text)
        beside.replace(self._site / "cri_proxy" / "daemon" / "daemon.py")

    @property
    def tried(self) -> int:
        """How often somebody tried to import it."""
        return self.mark.stat().st_size if self.mark.exists() else 0

    @contextlib.asynccontextmanager
    async def served(self, drain_s: float = 30) -> AsyncIterator[Served]:
        async with FakeRuntime(str(self.runtime)) as runtime:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self.socket))
                listener.listen()
                paths = (str(self._site), str(listener.fileno()), str(self.socket), str(self.runtime))
                command = (sys.executable, "-I", "-c", PROGRAM, *paths, str(drain_s))
                served = Served(runtime, command, listener.fileno())
                try:
                    await served.start()
                    yield served
                finally:
                    await served.end()


class Served:
    """The program, which may be started again on the same socket, as systemd starts the daemon then."""

    def __init__(self, runtime: FakeRuntime, command: Sequence[str], listening: int) -> None:
        self.runtime = runtime
        self._command = command
        self._listening = listening
        self._started: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        self._started.append(await asyncio.create_subprocess_exec(*self._command, pass_fds=[self._listening]))

    async def ended(self) -> int:
        """The exit code of the last one that was started, once it ends."""
        return await asyncio.wait_for(self._started[-1].wait(), 60)

    async def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def version(client: CriClient) -> None:
    assert (await client.call("Version", cri.VersionRequest())).runtime_name


async def test_it_stays_while_the_daemon_cannot_be_imported_and_ends_once_it_can(folder: Path) -> None:
    installation = Installation(folder)
    async with installation.served() as served, Kubelet(str(installation.socket)) as client:
        await version(client)
        await eventually(lambda: installation.tried > 1, "a second trial")
        await version(client)
        installation.install("")
        assert await served.ended() == 0


async def test_it_ends_on_a_busy_node_and_no_call_is_cut_for_the_daemon(folder: Path) -> None:
    """The calls never pause; those that the old process does not take wait at the socket for the next one."""
    installation = Installation(folder)
    async with installation.served() as served, contextlib.AsyncExitStack() as clients:
        busy = [await clients.enter_async_context(Kubelet(str(installation.socket))) for _ in range(4)]
        is_over, done = asyncio.Event(), [0]

        async def call(client: CriClient) -> None:
            while not is_over.is_set():
                await version(client)
                done[0] += 1

        calls = asyncio.gather(*map(call, busy))
        await eventually(lambda: done[0] > 100, "a hundred calls")
        installation.install("")
        assert await served.ended() == 0
        installation.install("raise ImportError('it is broken again')")
        await served.start()
        before = done[0]
        await eventually(lambda: done[0] > before + 100, "a hundred calls of the next process")
        is_over.set()
        await calls


async def test_a_call_under_way_has_its_time_when_the_daemon_is_let_in(folder: Path) -> None:
    installation = Installation(folder)
    async with installation.served() as served, Kubelet(str(installation.socket)) as client:
        release = asyncio.Event()
        served.runtime.script("Version", hold=release, times=1)
        held = asyncio.ensure_future(version(client))
        await served.runtime.wait_for_call("Version", 1)
        is_loaded = folder / "loaded"
        installation.install(f"open({str(is_loaded)!r}, 'w').close()")
        await eventually(is_loaded.exists, "the daemon can be imported")
        release.set()
        await held
        assert await served.ended() == 0


async def test_a_call_that_does_not_end_keeps_the_daemon_out_for_a_limited_time(folder: Path) -> None:
    installation = Installation(folder)
    async with installation.served(drain_s=0.1) as served, Kubelet(str(installation.socket)) as client:
        served.runtime.script("Version", hold=asyncio.Event(), times=1)
        held = asyncio.ensure_future(version(client))
        await served.runtime.wait_for_call("Version", 1)
        installation.install("")
        assert await served.ended() == 0
        held.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await held


# ---------------------------------------------------------------------- where a frame may be put in


def frame(kind: int, flags: int = 0, stream: int = 0, size: int = 0) -> bytes:
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + b"x" * size


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_goodbye_comes_between_frames_after_the_settings_and_never_inside_a_block_of_headers(
    step: int,
) -> None:
    link = passthrough._Link(None)
    link.say_goodbye()
    settings, begun = frame(passthrough.SETTINGS, size=6), frame(passthrough.HEADERS, 0, 1, 20)
    more, data = (
        frame(passthrough.CONTINUATION, passthrough.END_HEADERS, 1, 5),
        frame(passthrough.DATA, 1, 1, 9),
    )
    text = settings + begun + more + data
    sent = b"".join(link.answered(text[at : at + step]) for at in range(0, len(text), step))
    goodbye = passthrough._goaway(passthrough.LARGEST)
    assert sent.replace(goodbye, b"") == text and sent.count(goodbye) == 1
    assert sent.index(goodbye) in (len(settings), len(settings + begun + more), len(text))
    if step == 1:
        assert sent.index(goodbye) == len(settings)


def test_a_stream_is_open_from_its_headers_until_the_runtime_ends_it_or_either_resets_it() -> None:
    link = passthrough._Link(None)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    link.asked(preface + b"".join(frame(passthrough.HEADERS, 5, number, 3) for number in (1, 3, 5, 7)))
    assert link.streams == {1, 3, 5, 7}
    link.answered(
        frame(passthrough.SETTINGS) + frame(passthrough.HEADERS, 4, 1) + frame(passthrough.DATA, 0, 1, 4)
    )
    assert link.streams == {1, 3, 5, 7}
    link.answered(frame(passthrough.HEADERS, 5, 1) + frame(passthrough.RST_STREAM, 0, 3, 4))
    link.asked(frame(passthrough.RST_STREAM, 0, 5, 4))
    assert link.streams == {7}


@pytest.mark.parametrize(
    ("since_s", "expected_s"),
    [(None, 120), (10, 120), (1000, 1000), (10_000, 3600), (100_000, 120), (-1000, 120)],
    ids=["the first time", "a moment", "a while", "hours", "days ago", "a clock that was set back"],
)
def test_the_longer_it_is_needed_the_longer_it_waits(
    since_s: Any, expected_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    note = tmp_path / "passing-bytes-since"
    if since_s is not None:
        note.touch()
        then = note.stat().st_mtime - since_s
        os.utime(note, (then, then))
    assert round(passthrough._first_pause_s(), -1) == expected_s
    assert note.exists()


def test_without_a_folder_of_its_own_it_waits_as_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    assert passthrough._first_pause_s() == passthrough.SHORTEST_S
