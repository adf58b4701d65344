"""The daemon, as the agent asks it: one command a connection over a control or view socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cluster.api.names import NAMESPACE
from cri_api.control import ControlError, read_reply, write_request
from cri_api.waiting import wait_within

#: A report of thousands of containers is one line.
MOST_REPLY = 64 << 20
#: A daemon that is busy with its runtime still answers within milliseconds.
PATIENCE_S = 20.0
#: ``doctor`` looks at the whole node, in a process of its own.
DOCTOR_PATIENCE_S = 90.0
#: Events are numbered from one: a number that none has.
NO_EVENTS = 1 << 62
#: What says whether a node is as its spec has it.
SUMMARY = ("instance", "mode_wanted", "mode_from", "degraded", "machine", "cluster")


class DaemonAway(Exception):
    """The daemon gave no answer. The message says which socket, and why."""


class FolderGone(Exception):
    """The socket's folder was removed from the host while this process has it mounted: no daemon can be there again."""


def daemon_trouble(node: str, error: Exception) -> str:
    """In words of a status, for a cluster: sockets and errno are of the node, and stand in the agent's log."""
    if isinstance(error, DaemonAway):
        return (
            f"the daemon of {node} does not answer; its log says why: journalctl -u 'cri-res*' on the node, "
            f"or kubectl -n {NAMESPACE} logs of its pod"
        )
    return f"the daemon of {node} says: {error}"


class DaemonClient:
    """One socket of the daemon."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def ask(self, command: str, patience_s: float = PATIENCE_S, **arguments: Any) -> Any:
        """The result of a command.

        :raises DaemonAway: no answer; whether the command was carried out is not known.
        :raises FolderGone: nor will there be one; a pod has to be given the host's folder anew.
        :raises ControlError: the daemon's own sentence.
        """
        try:
            line = await wait_within(patience_s, self._line(command, arguments))
        except asyncio.TimeoutError:
            raise DaemonAway(f"{self._socket} gave no answer within {patience_s:.0f} s") from None
        except (OSError, ValueError) as error:
            if self._is_folder_gone():
                raise FolderGone(
                    f"{self._socket.parent} was removed from the host and is empty for ever: "
                    "this container ends, to be started with the folder that is there now"
                ) from None
            raise DaemonAway(f"{self._socket}: {_said(error)}") from None
        if not line.endswith(b"\n"):
            raise DaemonAway(f"{self._socket}: the connection was closed before the answer")
        return read_reply(line)

    async def report(self, since: Any = None) -> dict[str, Any]:
        """The node's report; events from the number ``since`` on, None = all that the daemon still has."""
        return _document(await self.ask("report", events_since=since))

    async def summary(self) -> dict[str, Any]:
        """The report without rows and events, from a daemon that knows of parts; an older one gives all of it."""
        return _document(await self.ask("report", events_since=NO_EVENTS, parts=SUMMARY))

    def _is_folder_gone(self) -> bool:
        try:
            return self._socket.parent.stat().st_nlink == 0
        except OSError:
            return False

    async def _line(self, command: str, arguments: dict[str, Any]) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=MOST_REPLY)
        try:
            writer.write(write_request(command, arguments))
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()


def _document(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ControlError("the daemon's report is no object")
    return found


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
