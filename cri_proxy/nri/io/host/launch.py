"""Finds pre-registered plugins and their configurations, and launches them.

As children of the daemon, or as systemd units of their own, outside our sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional, Protocol, Union

from cri_api.supervisor import Supervisor
from cri_api.waiting import wait_within
from cri_proxy.nri.dispatch import (
    WASM,
    DirectoryEntry,
    PassedOver,
    Preregistered,
    config_names,
    insecurity,
    judge,
)
from cri_proxy.nri.io import launcher as nri_launcher
from cri_proxy.nri.io.host.registration import listening_socket, peer_pid

#: How long a plugin may take to end by itself, before and after SIGTERM.
GRACE_S = 1.0
#: How long systemd may take to start a unit.
UNIT_S = 10.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: A configuration goes to the plugin in one message.
MOST_CONFIG_BYTES = 1 << 20


class LaunchedPlugin(Protocol):
    """A plugin that was launched."""

    pid: int
    streams: Streams
    #: The pipe of its standard error, for its launcher to read; None: systemd has it.
    said: Optional[int]

    async def end(self) -> None:
        """End it; returns once it has ended."""


class Launcher(Protocol):
    """A way to launch plugins."""

    async def launch(self, plugin: Preregistered) -> LaunchedPlugin:
        """:raises OSError: it cannot be launched."""

    async def close(self) -> None:
        """Launch no more."""


def environment_of(plugin: Preregistered) -> dict[str, str]:
    """All that is in a plugin's environment (containerd/nri pkg/adaptation/plugin.go)."""
    return {
        "NRI_PLUGIN_NAME": plugin.name,
        "NRI_PLUGIN_IDX": plugin.index,
        "NRI_PLUGIN_SOCKET": str(nri_launcher.PLUGIN_FD),
    }


class Child:
    """A plugin that is a child of ours."""

    def __init__(self, process: asyncio.subprocess.Process, streams: Streams, said: int) -> None:
        self._process = process
        self.pid = process.pid
        self.streams = streams
        self.said: Optional[int] = said

    async def end(self) -> None:
        # Its connection is closed: most end by themselves.
        for act in (self._process.terminate, self._process.kill, None):
            try:
                await wait_within(None if act is None else GRACE_S, self._process.wait())
                return
            except asyncio.TimeoutError:
                if act is not None:
                    with contextlib.suppress(ProcessLookupError):
                        act()


class ChildLauncher:
    """Launches children. They are killed by the kernel if we are."""

    async def launch(self, plugin: Preregistered) -> Child:
        ours, theirs = socket.socketpair()
        said, says = os.pipe()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", nri_launcher.__file__, "child"),
                    *(str(os.getpid()), str(theirs.fileno()), plugin.path),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=says,
                    env=environment_of(plugin),
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                os.close(said)
                raise
            finally:
                os.close(says)
        return Child(process, await asyncio.open_connection(sock=ours), said)

    async def close(self) -> None:
        pass


class Unit:
    """A plugin that is a systemd unit."""

    def __init__(self, stop: Sequence[str], pid: int, streams: Streams) -> None:
        self._stop = stop
        self.pid = pid
        self.streams = streams
        self.said: Optional[int] = None

    async def end(self) -> None:
        with contextlib.suppress(OSError):
            await _run(self._stop)


class UnitLauncher:
    """Has systemd start ``cri-resmgr-nri@NN-NAME.service``, whose program fetches its connection from us."""

    def __init__(
        self,
        address: str = nri_launcher.SOCKET,
        systemctl: Sequence[str] = ("systemctl",),
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        self._address = Path(address)
        self._systemctl = systemctl
        self._supervisor = supervisor or Supervisor()
        self._listener: Optional[socket.socket] = None
        #: Plugins being launched: their connections, and futures of their process ids.
        self._wanted: dict[str, tuple[Preregistered, socket.socket, asyncio.Future[int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """With the first launch, and with each after one for which it could not be had."""
        if self._listener is None:
            listener = self._listener = listening_socket(self._address)
            self._tasks.add(self._supervisor.keep("NRI launcher", lambda: self._accept(listener)))

    async def launch(self, plugin: Preregistered) -> Unit:
        self.open()
        ours, theirs = socket.socketpair()
        fetched: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._wanted[plugin.title] = (plugin, theirs, fetched)
        unit = nri_launcher.unit_name(plugin.title)
        try:
            # Not waiting: the job may be queued behind our own start. Restart: a former daemon's may run.
            await _run([*self._systemctl, "--no-block", "restart", unit])
            pid = await wait_within(UNIT_S, fetched)
        except asyncio.TimeoutError:
            ours.close()
            raise OSError(f"{unit} did not ask for its connection within {UNIT_S:g} s") from None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            self._wanted.pop(plugin.title, None)
        stop = [*self._systemctl, "--no-block", "stop", unit]
        return Unit(stop, pid, await asyncio.open_connection(sock=ours))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._listener is not None:
            self._listener.close()
            self._address.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            task = self._supervisor.begin("NRI unit", self._hand_out(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hand_out(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, asyncio.TimeoutError):
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            asked = await wait_within(UNIT_S, loop.sock_recv(connection, 4096))
            wanted = self._wanted.pop(asked.decode(errors="replace").strip(), None)
            if wanted is None:
                return
            plugin, theirs, fetched = wanted
            told = {"path": plugin.path, "environment": environment_of(plugin)}
            socket.send_fds(connection, [json.dumps(told).encode()], [theirs.fileno()])
            if not fetched.done():
                fetched.set_result(peer_pid(connection))


async def _run(command: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    if process.returncode:
        words = said.decode(errors="replace").strip() or f"exit code {process.returncode}"
        raise OSError(f"{' '.join(command)}: {words}")


def discover(plugin_path: str, config_path: str) -> tuple[list[Preregistered], list[PassedOver]]:
    """The plugins of a directory in order, and files passed over. A path may be "", or missing."""
    if not plugin_path or not os.path.isdir(plugin_path):
        return [], []
    problem = _unsafe_way(Path(plugin_path))
    if problem:
        return [], [PassedOver(plugin_path, problem)]
    found: list[Preregistered] = []
    passed_over: list[PassedOver] = []
    for name in sorted(os.listdir(plugin_path)):
        judged = judge(_entry(Path(plugin_path, name)), os.geteuid())
        if isinstance(judged, Preregistered):
            judged = _with_config(judged, config_path)
        if isinstance(judged, Preregistered):
            found.append(judged)
        elif judged.reason:
            passed_over.append(judged)
    return found, passed_over


def _entry(path: Path) -> DirectoryEntry:
    try:
        status = path.stat()
        head = b""
        problem = ""
        if path.is_file():
            # Through a link: the file it leads to, and every directory on the way.
            problem = _unsafe_way(path.resolve().parent)
            with path.open("rb") as file:
                head = file.read(len(WASM))
    except OSError as error:
        return DirectoryEntry(path.name, str(path), 0, 0, problem=error.strerror or str(error))
    return DirectoryEntry(path.name, str(path), status.st_mode, status.st_uid, head, problem)


def _with_config(plugin: Preregistered, config_path: str) -> Union[Preregistered, PassedOver]:
    for name in config_names(plugin) if config_path else ():
        path = Path(config_path, name)
        try:
            status = path.stat()
            unsafe = insecurity(status.st_mode, status.st_uid, os.geteuid()) or _unsafe_way(
                path.resolve().parent
            )
            if unsafe:
                return PassedOver(plugin.path, f"its configuration {path} is not used: {unsafe}")
            if status.st_size > MOST_CONFIG_BYTES:
                return PassedOver(plugin.path, f"its configuration {path} has {status.st_size} bytes")
            return replace(plugin, config=path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            return PassedOver(plugin.path, f"its configuration {path} cannot be read: {error}")
    return plugin


def _unsafe_way(folder: Path) -> str:
    """Why a directory, or one above it, is not to be trusted."""
    inner: Optional[Path] = folder.resolve()
    is_innermost = True
    while inner is not None:
        status = inner.stat()
        unsafe = insecurity(status.st_mode, status.st_uid, os.geteuid(), may_be_sticky=not is_innermost)
        if unsafe:
            return f"its directory {inner}: {unsafe}"
        is_innermost = False
        inner = inner.parent if inner.parent != inner else None
    return ""
