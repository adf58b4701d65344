"""What is left when all else is broken: it finds its sockets, passes bytes, and lets the daemon in when that can run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cri_proxy import passthrough
from cri_proxy.shell.runtime import WELL_KNOWN
from tests.functional.support import eventually

# ---------------------------------------------------------------------- which sockets


def test_the_launcher_looks_for_the_same_runtimes() -> None:
    assert passthrough.RUNTIMES == WELL_KNOWN


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ("/var/run/cri-resmgr.sock", [], WELL_KNOWN[0])),
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
    assert passthrough.endpoints([], str(tmp_path))[0] == "/var/run/cri-resmgr.sock"


def test_folders_of_sockets_are_open(folder: Path) -> None:
    before = os.umask(0o177)
    try:
        passthrough._claim(str(folder / "run/crio/crio.sock"))
    finally:
        os.umask(before)
    assert [(folder / name).stat().st_mode & 0o777 for name in ("run", "run/crio")] == [0o755, 0o755]


# ---------------------------------------------------------------------- the daemon is let in again

#: As systemd starts it: descriptor 3 listens. It does not wait for minutes, and knows quiet from a slow machine.
PROGRAM = """
import asyncio, os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "cri_proxy"))
os.dup2(int(sys.argv[2]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
import passthrough
passthrough.SHORTEST_S, passthrough.QUIET_S = 0, 2
asyncio.run(passthrough.serve("it is broken", ["--relay-socket", sys.argv[3], "--runtime-socket", sys.argv[4]]))
"""
TRIED = "with open({mark!r}, 'a') as file: file.write('x')\n"


class Installation:
    """A program beside a daemon that cannot be imported, behind systemd's socket; the runtime says what it hears."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.runtime, self.mark = (folder / name for name in ("k.sock", "r.sock", "tried"))
        self._site = folder / "site"
        package = self._site / "cri_proxy"
        package.mkdir(parents=True)
        shutil.copy(passthrough.__file__, package)
        (package / "__init__.py").touch()
        self.install("raise ImportError('it is broken')")

    def install(self, text: str) -> None:
        """Another daemon."""
        beside = self._site / "new"
        beside.write_text(TRIED.format(mark=str(self.mark)) + text)
        beside.replace(self._site / "cri_proxy" / "daemon.py")

    @property
    def tried(self) -> int:
        """How often somebody tried to import it."""
        return self.mark.stat().st_size if self.mark.exists() else 0

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[asyncio.subprocess.Process]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        runtime = await asyncio.start_unix_server(echo, str(self.runtime))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.socket))
            listener.listen()
            paths = (str(self._site), str(listener.fileno()), str(self.socket), str(self.runtime))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", PROGRAM, *paths, pass_fds=[listener.fileno()]
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                runtime.close()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """Call what is given for each round trip."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket))

        async def call() -> None:
            writer.write(b"x")
            assert await reader.read(100) == b"x"

        yield call
        writer.close()


async def test_it_stays_while_the_daemon_cannot_be_imported_and_ends_once_it_can(folder: Path) -> None:
    installation = Installation(folder)
    async with installation.served() as process, installation.client() as call:
        await call()
        await eventually(lambda: installation.tried > 1, "a second trial")
        await call()
        installation.install("")
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_no_call_is_cut_for_the_daemon(folder: Path) -> None:
    installation = Installation(folder)
    installation.install("")
    async with installation.served() as process, installation.client() as call:
        while not installation.tried:
            await call()
        for _ in range(1000):
            await call()
        assert await asyncio.wait_for(process.wait(), 30) == 0


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
