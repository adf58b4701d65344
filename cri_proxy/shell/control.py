"""The control socket: what the command line talks to. Only root may connect (mode 0600)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.control import (
    MAX_REQUEST,
    ControlError,
    read_reply,
    read_request,
    write_error,
    write_request,
    write_result,
)
from cri_proxy.shell.listen import claim

Command = Callable[[dict[str, Any]], Awaitable[Any]]


class DaemonAbsent(Exception):
    """Nobody answers on the control socket. The message says what to do."""


class ControlServer:
    """Serves the daemon's commands by name."""

    def __init__(self, path: Path, commands: Mapping[str, Command], log: Any) -> None:
        self.path = path
        self._commands = commands
        self._log = log
        self._server: Optional[asyncio.AbstractServer] = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """:raises SocketTaken, OSError: the socket cannot be had."""
        claim(self.path)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._connected, str(self.path), limit=MAX_REQUEST)
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while line := await reader.readline():
                writer.write(await self._answer(line))
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass  # gone, a line that is too long, or we are stopping
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> bytes:
        try:
            name, arguments = read_request(line)
            command = self._commands.get(name)
            if command is None:
                raise ControlError(f"this daemon does not know the command {name!r}")
            return write_result(await command(arguments))
        except ControlError as error:
            return write_error(str(error))
        except Exception as error:
            self._log.error("control command failed", exc_info=True)
            return write_error(f"the daemon failed: {type(error).__name__}: {error}")


def ask(path: Path, command: str, arguments: Optional[dict[str, Any]] = None, timeout_s: float = 60.0) -> Any:
    """Ask a running daemon, from the command line.

    :raises DaemonAbsent: nobody serves the socket.
    :raises ControlError: the daemon's refusal.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
        except PermissionError:
            raise DaemonAbsent(f"no permission for {path}; try again as root") from None
        except OSError:
            raise DaemonAbsent(
                f"cri-resmgr is not running (nobody serves {path}); start it with: systemctl start cri-resource-manager"
            ) from None
        connection.sendall(write_request(command, arguments or {}))
        with connection.makefile("rb") as lines:
            return read_reply(lines.readline())
