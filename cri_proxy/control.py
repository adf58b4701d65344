"""The control socket: what the command line talks to. Only root may connect (mode 0600)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Collection, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.control import (
    MAX_REQUEST,
    ControlError,
    read_reply,
    read_request,
    write_error,
    write_request,
    write_result_in_pieces,
)
from cri_api.socket_paths import listen_at
from cri_api.supervisor import Supervisor
from cri_proxy.door import BACKLOG, IDLE_S, REQUEST_S, Door, Refused, Visitor

#: A release of many containers may wait for the runtime.
ANSWER_S = 60.0
#: A daemon that the launcher has replaced by its simplest self has no control socket either.
ABSENT_HINT = (
    "start it with: systemctl start cri-resource-manager; if it passes bytes only, see why: "
    "systemctl status cri-resource-manager"
)

Command = Callable[[dict[str, Any]], Awaitable[Any]]


class DaemonAbsent(Exception):
    """No daemon serves the control socket: a sentence, and what to do."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint


class NoPermission(ControlError):
    """A daemon may be there, and its socket may not be used."""


class ControlServer:
    """Serves the daemon's commands by name."""

    def __init__(
        self,
        path: Path,
        commands: Mapping[str, Command],
        log: Any,
        key: str = "control.socket",
        note: Callable[[str], object] = lambda why: None,
        supervisor: Optional[Supervisor] = None,
        is_busy: Callable[[], bool] = lambda: True,
        calls: Collection[str] = (),
    ) -> None:
        """``key``: the option that says where it is; the rest as of ``Door``.

        ``calls``: the commands that the start or the end of a pod waits for. They give way to nothing.
        """
        self.path = path
        self._key = key
        self._commands = commands
        self._calls = calls
        self._log = log
        self._is_open = False
        self._door = Door(key, self._serve, write_error, note, supervisor, is_busy)

    async def start(self) -> None:
        """:raises SocketTaken: the socket cannot be had."""
        self._door.open([listen_at(self.path, self._key, backlog=BACKLOG)])
        self._is_open = True

    async def stop(self) -> None:
        await self._door.close()
        if self._is_open:  # else the path is another's
            self.path.unlink(missing_ok=True)

    async def _serve(self, visitor: Visitor) -> None:
        idle_s = REQUEST_S
        while True:
            try:
                line = await visitor.request(b"\n", MAX_REQUEST, idle_s)
            except EOFError:
                raise Refused(write_error(f"a request has at most {MAX_REQUEST} bytes")) from None
            except asyncio.TimeoutError:
                raise Refused(write_error("no request has come for long")) from None
            if line is None:
                return
            is_call = self._is_call(line)
            work, line = self._answer(line), b""  # else the request stays in memory until the next one
            await visitor.answer(await (work if is_call else self._door.answers.run(work)))
            idle_s = IDLE_S

    def _is_call(self, line: bytes) -> bool:
        with contextlib.suppress(ControlError):
            return bool(self._calls) and read_request(line)[0] in self._calls
        return False

    async def _answer(self, line: bytes) -> list[bytes]:
        try:
            name, arguments = read_request(line)
            command = self._commands.get(name)
            if command is None:
                raise ControlError(f"this daemon does not know the command {name!r}")
            pieces = []
            for piece in write_result_in_pieces(await command(arguments)):
                pieces.append(piece)
                await asyncio.sleep(0)  # calls are relayed in between
            return pieces
        except ControlError as error:
            return [write_error(str(error))]
        except Exception as error:
            self._log.error("control command failed", exc_info=True)
            return [write_error(f"the daemon failed: {type(error).__name__}: {error}")]


def ask(
    path: Path, command: str, arguments: Optional[dict[str, Any]] = None, timeout_s: float = ANSWER_S
) -> Any:
    """Ask a running daemon, from the command line.

    :raises DaemonAbsent: no daemon serves the socket.
    :raises ControlError: the daemon's refusal, or it does not answer (``NoPermission``: it may not be asked).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
        except PermissionError:
            raise NoPermission(f"no permission for {path}; try again as root") from None
        except OSError:
            raise DaemonAbsent(f"the daemon is not running: nothing serves {path}", ABSENT_HINT) from None
        try:
            connection.sendall(write_request(command, arguments or {}))
            with connection.makefile("rb") as lines:
                line = lines.readline()
        except socket.timeout:
            hint = "see its log: journalctl -u cri-resource-manager"
            raise ControlError(f"the daemon has not answered within {timeout_s:.0f} s; {hint}") from None
        except OSError:
            line = b""
    return read_reply(line)
