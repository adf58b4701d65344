"""Starts the scripted plugin (plugin.py) and reads its log."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Callable, Optional

REPOSITORY = Path(__file__).resolve().parents[4]
HANG_S = 30.0
#: All events and requests but ValidateContainerAdjustment: a plugin that judges holds up or fails creates.
NO_VALIDATOR = 0x1FFF
#: The events of a pod with one container, from its start to its removal, in containerd's order.
A_WHOLE_LIFE = [
    "RunPodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
]
#: All that a pre-registered plugin's first lines need, whose environment is empty.
_WRAPPER = """#!{python}
import sys
sys.path.insert(0, {repository!r})
from tests.nri.io.host.plugin import main
main(["--script", {script!r}, "--log", {log!r}])
"""


class Log:
    """What a plugin has noted so far, and waiting for more."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, Any]]:
        """Whole lines only."""
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def events(self) -> list[str]:
        """The calls of the host after the handshake, in order."""
        handshake = {"started", "closed", "Configure", "Synchronize"}
        names = [line["event"] for line in self.lines()]
        return [name for name in names if name not in handshake and not name.endswith(" answered")]

    def containers(self) -> list[dict[str, Any]]:
        """Those that the calls of the host were about, in order."""
        about: list[dict[str, Any]] = [
            line["message"].get("container") for line in self.lines() if "message" in line
        ]
        return [container for container in about if container]

    async def become(self, *events: str) -> None:
        """Return once these are ``events``."""
        await eventually(lambda: self.events() == [*events], lambda: f"{events}, but {self.events()}")

    async def line(self, event: str, count: int = 1) -> dict[str, Any]:
        """The ``count``-th line of an event, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines() if line["event"] == event]

        await eventually(lambda: len(found()) >= count, lambda: f"{count} × {event} in {self.lines()}")
        return found()[count - 1]


class Plugin:
    """An external plugin that runs."""

    def __init__(
        self, pid: int, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], log: Log
    ) -> None:
        self.pid = pid
        self.log = log
        self._reader, self._writer = streams

    def order(self, method: str, **message: Any) -> None:
        """Have it call the host."""
        self._writer.write(json.dumps({"method": method, "message": message}).encode() + b"\n")

    async def wait(self) -> None:
        """Return once the process has ended: only it holds the other end of its standard input."""
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(self._reader.read(), HANG_S)

    async def kill(self) -> None:
        """As by the kernel."""
        if not self._reader.at_eof():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await self.wait()


class _Zygote:
    """The process that plugins are forked from; started with the first of them."""

    def __init__(self) -> None:
        self._control: Optional[socket.socket] = None

    async def fork(self, words: list[str]) -> tuple[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A new plugin: its process, and what its standard input is connected to."""
        if self._control is None:
            self._start()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [json.dumps(words).encode()], [theirs.fileno()])
        streams = await asyncio.open_connection(sock=ours)
        return int(await asyncio.wait_for(streams[0].readline(), HANG_S)), streams

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.nri.io.host.zygote"],
                stdin=theirs.fileno(),
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )

        def end() -> None:
            assert self._control is not None
            self._control.close()
            process.wait()

        atexit.register(end)


_ZYGOTE = _Zygote()


async def eventually(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Return once ``condition`` holds; for what nothing tells of."""
    deadline = asyncio.get_running_loop().time() + HANG_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what()}"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def external(
    folder: Path, socket_path: Path, title: str, script: Optional[dict[str, Any]] = None, wait: bool = True
) -> AsyncIterator[Plugin]:
    """A plugin ``NN-name`` that connects to a socket; ``wait``: until it has been synchronized."""
    index, _, name = title.partition("-")
    count = len(list(folder.glob("*.json")))
    script_file, log_file = folder / f"{title}.{count}.json", folder / f"{title}.{count}.jsonl"
    script_file.write_text(json.dumps(script or {}))
    words = ["--socket", str(socket_path), "--name", name, "--index", index]
    pid, streams = await _ZYGOTE.fork([*words, "--script", str(script_file), "--log", str(log_file)])
    plugin = Plugin(pid, streams, Log(log_file))
    try:
        if wait:
            await plugin.log.line("Synchronize")
        yield plugin
    finally:
        await plugin.kill()
        streams[1].close()
        with contextlib.suppress(OSError):
            await streams[1].wait_closed()


def preregister(directory: Path, title: str, script: Optional[dict[str, Any]] = None) -> Log:
    """Put a plugin ``NN-name`` into a directory; its log lies beside that."""
    directory.mkdir(parents=True, exist_ok=True)
    script_file = directory.parent / f"{title}.json"
    script_file.write_text(json.dumps(script or {}))
    log = Log(directory.parent / f"{title}.jsonl")
    program = directory / title
    program.write_text(
        _WRAPPER.format(
            python=sys.executable, repository=str(REPOSITORY), script=str(script_file), log=str(log.path)
        )
    )
    program.chmod(0o755)
    return log
