"""The sockets that clients connect to: claimed, or taken over from systemd; served by one relay."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import grpc

from cri_proxy.shell.listen import SocketTaken, Splice, claim, copy_access
from cri_proxy.shell.relay import SERVER_OPTIONS, Relay


class Serving:
    """Serves one relay. ``sockets`` are the paths that clients may use."""

    def __init__(self, relay: Relay) -> None:
        self.sockets: list[Path] = []
        self._relay = relay
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((relay,))
        #: What we have made, and so may remove.
        self._made: list[Path] = []
        self._splices: list[Splice] = []

    async def open(
        self, wanted: Sequence[Path], given: Sequence[socket.socket], inner: Path
    ) -> dict[Path, str]:
        """Serve ``wanted`` (the first must be had) and the listening sockets we were ``given``.

        ``inner``: what connections on given sockets are spliced to. Returns why others are not served, by
        path.

        :raises SocketTaken, OSError: the first cannot be had.
        """
        taken_over = {os.path.realpath(listener.getsockname()) for listener in given}
        # /var/run is /run: one socket may be wanted by two names.
        others = {os.path.realpath(path): path for path in reversed(wanted)}
        own = [path for real, path in reversed(others.items()) if real not in taken_over]
        problems = {}
        mask = os.umask(0o177)
        try:
            for path in own:
                try:
                    self._bind(path)
                except (SocketTaken, OSError) as error:
                    if path == wanted[0]:
                        raise
                    problems[path] = str(error)
            if given:
                self._bind(inner)
        finally:
            os.umask(mask)
        await self._server.start()
        self._splices = [Splice(listener, str(inner)) for listener in given]
        for splice in self._splices:
            await splice.start()
        self.sockets = [path for path in wanted if path not in problems]
        self.sockets += [Path(name) for name in sorted(taken_over - {os.path.realpath(p) for p in wanted})]
        return problems

    def _bind(self, path: Path) -> None:
        claim(path)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            raise SocketTaken(f"{path} cannot be served: {_why_not(path)}") from None
        self._made.append(path)

    def copy_access(self, runtime: Path) -> None:
        """Give clients' sockets the mode and owner of the runtime's."""
        copy_access(runtime, [path for path in self._made if path in self.sockets])

    async def close(self, drain_s: float) -> None:
        """Take no new calls, let those under way end (``Relay.drain``), remove what we have made."""
        # systemd's sockets first: from here on callers queue there for the next daemon.
        for splice in self._splices:
            splice.pause()
        stopped = asyncio.ensure_future(self._server.stop(drain_s + 1))
        await self._relay.drain(drain_s)
        await stopped
        for splice in self._splices:
            await splice.stop()
        for path in self._made:
            path.unlink(missing_ok=True)


def _why_not(path: Path) -> str:
    """grpc keeps to itself why it cannot bind; the kernel says."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(str(path))
        except OSError as error:
            return error.strerror or str(error)
    path.unlink()
    return "grpc cannot bind it"
