"""Unix sockets that kubelet calls, each with its gRPC server (grpclib)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from grpclib.protocol import H2Protocol
from grpclib.server import Server

from cri_api.checked_requests import CheckedRequests
from cri_api.socket_paths import listen_at


class ServedSocket:
    """One socket, for root only. A file that a dead process has left is replaced; one that is served is not."""

    def __init__(self, path: Path, service: Any) -> None:
        """``service``: as grpclib has it; it is given requests that can be read."""
        self.path = path
        self._services = [CheckedRequests(service)]
        self._server: Optional[_EndingServer] = None
        self._file: Optional[tuple[int, int]] = None

    async def start(self) -> None:
        """:raises SocketTaken: it cannot be served, or is served by another process."""
        bound = listen_at(self.path, other="does another agent run?", folder_mode=0o750)
        self._file = _file_of(self.path)
        self._server = _EndingServer(self._services)
        await self._server.serve(bound)

    def is_there(self) -> bool:
        """Whether the file is still the one that is served here."""
        return self._file is not None and _file_of(self.path) == self._file

    def close(self) -> None:
        """End all calls and connections; the file goes if it is still ours."""
        if self.is_there():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._file = None
        if self._server is not None:
            self._server.end()
            self._server = None


class _Connection(H2Protocol):
    """A client's, which the server can end: grpclib's own stay for as long as the client likes."""

    def __init__(self, like: H2Protocol, others: set[_Connection]) -> None:
        super().__init__(like.handler, like.config, like.h2_config)
        self._others = others

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._others.add(self)

    def connection_lost(self, exc: Optional[BaseException]) -> None:
        self._others.discard(self)
        super().connection_lost(exc)


class _EndingServer(Server):
    """grpclib's, which can be ended at any moment, whatever it has come to."""

    def __init__(self, services: Sequence[Any]) -> None:
        super().__init__(services)
        self._connections: set[_Connection] = set()
        self._listening: Optional[asyncio.AbstractServer] = None

    async def serve(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # Two steps: the first waits for nothing, so that no cancellation loses what has been made.
        self._listening = await loop.create_server(self._protocol_factory, sock=bound, start_serving=False)
        await self._listening.start_serving()

    def _protocol_factory(self) -> H2Protocol:
        return _Connection(super()._protocol_factory(), self._connections)

    def end(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for connection in tuple(self._connections):
            connection.processor.close("the plugin has ended")


def _file_of(path: Path) -> Optional[tuple[int, int]]:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
