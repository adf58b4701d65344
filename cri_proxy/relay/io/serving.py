"""The sockets that clients connect to: claimed, or taken over from systemd; served by one relay."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc

from cri_proxy import greeting
from cri_proxy.relay.io.grpc_server import SERVER_OPTIONS, Relay
from cri_proxy.relay.io.splice import Splice
from cri_proxy.unix_sockets import SocketTaken, bind_wanted, claim, copy_access

#: How long calls wait at a start. kubelet waits 5 s for an answer to its connection.
START_BEHIND_S = 2.0
#: How long clients have to take the last bytes of their calls.
LAST_BYTES_S = 1.0
#: What a stop of the daemon takes at most besides the calls under way.
STOP_S = 5.0


@contextlib.asynccontextmanager
async def behind(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """A block that begins as soon as ``work`` is done, or it has taken too long; it ends with the work.

    What is waited for is the engine: no create of those that wait since a restart goes unplaced.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=START_BEHIND_S)
        yield
        await task
    finally:
        task.cancel()


class Serving:
    """Serves one relay. ``sockets`` are the paths that clients may use.

    ``inner``: what connections on given sockets are spliced to.
    """

    def __init__(self, relay: Relay, inner: Path) -> None:
        self.sockets: list[Path] = []
        self._inner = inner
        self._relay = relay
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((relay,))
        #: What we have made, and so may remove.
        self._made: list[Path] = []
        self._splices: list[Splice] = []

    async def open(self, wanted: Sequence[Path], given: Sequence[socket.socket]) -> dict[Path, str]:
        """Bind ``wanted`` (the first must be had), take the listening sockets we were ``given``.

        Returns why others are not served, by path. What connects from here on waits for ``start_behind``.

        :raises SocketTaken, OSError: the first cannot be had.
        """
        self.sockets, problems = bind_wanted(wanted, given, self._bind)
        if given:
            bind_wanted([self._inner], [], self._bind)
        self._splices = [Splice(listener, str(self._inner)) for listener in given]
        return problems

    async def start_behind(self, work: Coroutine[Any, Any, object]) -> None:
        """Serve as soon as ``work`` is done, or it has taken too long; then wait for it."""
        async with behind(work):
            await self._server.start()
            greeted = greeting.take()
            for splice in self._splices:
                splice.start(greeted)
                greeted = []

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

    async def close(self, drain_s: float, stops_s: float = 0.0) -> None:
        """Take no new calls, let those under way end (``Relay.settle``, ``drain``), remove what we have made.

        On sockets we were given no call fails that ends within ``drain_s``: others wait for the next daemon.
        """
        await self._relay.settle(drain_s, stops_s, only_stops=not self._splices)
        if self._splices:
            await asyncio.gather(*(splice.turn_away() for splice in self._splices))
            await self._relay.drain(drain_s, lambda: any(splice.is_busy for splice in self._splices))
            await asyncio.gather(*(splice.stop(LAST_BYTES_S) for splice in self._splices))
        stopped = asyncio.ensure_future(self._server.stop(drain_s + 1))
        await self._relay.drain(drain_s)
        await stopped
        for path in self._made:
            path.unlink(missing_ok=True)


def longest_stop_us(drain_s: float) -> int:
    """For systemd, which kills what takes longer. Before the drain there may be a wait as long as it."""
    return int((2 * drain_s + STOP_S) * 1e6)


def _why_not(path: Path) -> str:
    """grpc keeps to itself why it cannot bind; the kernel says."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(str(path))
        except OSError as error:
            return error.strerror or str(error)
    path.unlink()
    return "grpc cannot bind it"
