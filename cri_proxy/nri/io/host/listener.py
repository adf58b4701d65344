"""The sockets of NRI: root's only, in a directory of their own; and the plugins that connect by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any, Optional

from cri_proxy.nri.io.host.peer import EXTERNAL, PluginIdentity
from cri_proxy.nri.io.host.registration import Registrar
from cri_proxy.unix_sockets import is_served

_BACKLOG = 64
#: Of root's processes alone; more of them is a mistake.
MOST_CONNECTIONS = 128


def listening_socket(path: Path) -> socket.socket:
    """A socket of mode 0600; its directory is made with 0700. One that no process serves is replaced.

    :raises OSError: a process serves it, or it cannot be made.
    """
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} exists and is not a socket")
        if is_served(path):
            raise OSError(f"{path} is served by another process (a runtime with an NRI of its own?)")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def peer_pid(connection: Any) -> int:
    """The process at the other end of a unix socket, when it connected."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])


class PluginListener:
    """Lets plugins connect, each of which is served until it goes."""

    def __init__(self, path: Path, registrar: Registrar, log: Any) -> None:
        self._path = path
        self._registrar = registrar
        self._log = log
        self._server: Optional[asyncio.AbstractServer] = None
        self._tasks: set[asyncio.Task[str]] = set()

    async def open(self) -> None:
        """:raises OSError: the socket cannot be had."""
        self._server = await asyncio.start_unix_server(self._connected, sock=listening_socket(self._path))

    def stop(self) -> None:
        """Let nothing connect any more."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Close what is connected."""
        self.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            self._log.warning("too many NRI connections", most=MOST_CONNECTIONS)
            writer.transport.abort()
            return
        origin = PluginIdentity("", "", EXTERNAL, peer_pid(writer.get_extra_info("socket")))
        task = asyncio.ensure_future(self._registrar.serve((reader, writer), origin))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("an NRI connection failed", exc_info=task.exception())
