"""The affinity service over gRPC (affinity.proto), its health and reflection, on a unix socket and, if asked for, TCP
with TLS.

A reader of WatchGraph costs one number, the version it has: its difference is worked out when it is ready for it.
One that is slow gets several samples' changes at once, or everything anew, and holds no other up.

Requests that are none are refused with a sentence (``cri_api.checked_requests``).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import time
from pathlib import Path
from typing import Any, Callable, Optional

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.health.service import Health
from grpclib.protocol import H2Protocol
from grpclib.reflection.service import ServerReflection
from grpclib.server import Server
from h2.errors import ErrorCodes
from h2.events import PingReceived, PriorityUpdated, RemoteSettingsChanged, StreamReset
from h2.exceptions import ProtocolError

from bpf.kernel.procfs import read_text
from bpf.service.log import log
from bpf.service.options import BadOptions, Options
from bpf.service.wire import write_changes, write_graph, write_groups, write_whole
from cri_api import affinity_pb2 as pb
from cri_api.checked_requests import CheckedRequests
from cri_api.socket_paths import SocketTaken, listen_at
from cri_api.waiting import wait_within
from policies.affinity.graph.graph import Graph
from policies.affinity.graph.remote import RemoteRates
from policies.machine.cpus import BadCpuList, format_cpus, parse_cpus

_SERVICE = "/cri_resmgr.affinity.v1.Affinity"
#: More readers than this are more than this service is for.
MOST_WATCHERS = 64
_CLOSE_TIMEOUT_S = 2.0
#: Connections at a time: one more ends the first without a call, or is ended itself.
MOST_CONNECTIONS = 2 * MOST_WATCHERS
#: Frames without work that a connection may send at once (resets, pings, settings), and a second in the long run.
MOST_IDLE_FRAMES, IDLE_FRAMES_PER_S = 100, 10.0
_IDLE_EVENTS = (StreamReset, PingReceived, RemoteSettingsChanged, PriorityUpdated)
_PIECE_BYTES = 4096


def read_weight(name: str, weight: float) -> float:
    """A weight of a request.

    :raises GRPCError: it is out of range.
    """
    if math.isfinite(weight) and weight >= 0:
        return weight
    raise GRPCError(Status.INVALID_ARGUMENT, f"{name}: {weight:g} is not a finite number of 0 or more")


class AffinityService:
    """Serves a graph. ``announce()`` after every sample; ``status``: sent with it."""

    def __init__(
        self,
        graph: Graph,
        status: Callable[[], pb.Status],
        sysfs: str = "/sys",
        remote: Optional[RemoteRates] = None,
    ) -> None:
        self._graph = graph
        self._remote = remote or RemoteRates()
        self._status = status
        self._sysfs = sysfs
        self._next_sample = asyncio.Event()
        self._watchers = 0

    def announce(self) -> None:
        """Tell the watching clients that there was a sample."""
        ended, self._next_sample = self._next_sample, asyncio.Event()
        ended.set()

    async def get_graph(self, stream: Any) -> None:
        request = await stream.recv_message()
        least_weight = read_weight("least_weight", request.least_weight)
        await stream.send_message(write_graph(self._graph, self._remote, self._status(), least_weight))

    async def watch_graph(self, stream: Any) -> None:
        await stream.recv_message()
        if self._watchers >= MOST_WATCHERS:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{MOST_WATCHERS} watch the graph already")
        self._watchers += 1
        try:
            next_sample, version = self._next_sample, self._graph.version
            await stream.send_message(write_whole(self._graph, self._remote, self._status()))
            while True:
                await next_sample.wait()
                next_sample = self._next_sample
                delta = write_changes(self._graph, self._remote, self._status(), version)
                version = self._graph.version
                await stream.send_message(delta)
        finally:
            self._watchers -= 1

    async def get_groups(self, stream: Any) -> None:
        request = await stream.recv_message()
        least_weight = read_weight("least_weight", request.least_weight)
        await stream.send_message(write_groups(self._graph, least_weight))

    async def get_node_topology(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(await asyncio.to_thread(read_machine, self._sysfs))

    def __mapping__(self) -> dict[str, Handler]:
        unary, streaming = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        return {
            f"{_SERVICE}/GetGraph": Handler(self.get_graph, unary, pb.GetGraphRequest, pb.Graph),
            f"{_SERVICE}/WatchGraph": Handler(
                self.watch_graph, streaming, pb.WatchGraphRequest, pb.GraphDelta
            ),
            f"{_SERVICE}/GetGroups": Handler(self.get_groups, unary, pb.GetGroupsRequest, pb.Groups),
            f"{_SERVICE}/GetNodeTopology": Handler(
                self.get_node_topology, unary, pb.GetNodeTopologyRequest, pb.NodeTopology
            ),
        }


class _BoundedConnection(H2Protocol):
    """One client's. It is ended once it makes much work of nothing: calls that it resets, pings, settings."""

    def __init__(self, like: H2Protocol, others: dict[_BoundedConnection, None]) -> None:
        super().__init__(like.handler, like.config, like.h2_config)
        self._others = others
        self._transport: Any = None
        self._left = float(MOST_IDLE_FRAMES)
        self._at_s = time.monotonic()
        self._is_over = False

    @property
    def is_idle(self) -> bool:
        return not self.processor.streams

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        super().connection_made(transport)
        if len(self._others) >= MOST_CONNECTIONS:
            idle = next((each for each in self._others if each.is_idle), self)
            idle.end(f"{MOST_CONNECTIONS} connections are open, and this one has no call")
        if not self._is_over:
            self._others[self] = None

    def connection_lost(self, exc: Optional[BaseException]) -> None:
        self._is_over = True
        self._others.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Some at a time: what is read at once may be thousands of calls, each of which would be begun.
        for start in range(0, len(data), _PIECE_BYTES):
            if self._is_over:
                return
            try:
                events = self.connection.feed(data[start : start + _PIECE_BYTES])
            except ProtocolError:
                self.end("the connection's frames are not HTTP/2")
                return
            self.connection.flush()
            for event in events:
                self.processor.process(event)
            self.connection.flush()
            self._count(sum(isinstance(event, _IDLE_EVENTS) for event in events))

    def _count(self, frames: int) -> None:
        now_s = time.monotonic()
        self._left = min(MOST_IDLE_FRAMES, self._left + IDLE_FRAMES_PER_S * (now_s - self._at_s)) - frames
        self._at_s = now_s
        if self._left < 0:
            self.end("too many calls were reset, or pings and settings sent")

    def end(self, why: str) -> None:
        """Say why, and close it."""
        self._is_over = True
        self._others.pop(self, None)
        log("warning", "a connection was ended", reason=why)
        with contextlib.suppress(ProtocolError):
            self.connection._connection.close_connection(ErrorCodes.ENHANCE_YOUR_CALM, why.encode())
            self.connection.flush()
        self.processor.close(why)


class _BoundedServer(Server):
    """A server that gives each client a bounded connection, and has a bounded number of them."""

    def __init__(self, handlers: Any) -> None:
        super().__init__(handlers)
        #: In the order in which they came.
        self._connections: dict[_BoundedConnection, None] = {}

    def _protocol_factory(self) -> H2Protocol:
        return _BoundedConnection(super()._protocol_factory(), self._connections)


class ServiceSockets:
    """The sockets that a service is reached on. Claim them before anything else is done: they may be taken."""

    def __init__(self, options: Options) -> None:
        """:raises BadOptions: a socket cannot be had; the sentence says why."""
        self._path = options.socket
        try:
            self._unix = listen_at(Path(self._path), "affinity.socket", "does an observer run already?")
        except SocketTaken as error:
            raise BadOptions(str(error)) from None
        self._inode = os.stat(self._path).st_ino
        self._options = options
        self._servers: list[Server] = []

    async def start(self, service: AffinityService) -> None:
        """Serve.

        :raises BadOptions: TCP cannot be served; the sentence says why.
        """
        services: list[Any] = ServerReflection.extend([service, Health({service: []})])
        handlers = [CheckedRequests(each) for each in services]
        await self._start(_BoundedServer(handlers), sock=self._unix)
        if self._options.listen:
            host, _, port = self._options.listen.rpartition(":")
            context = _tls(self._options)
            try:
                await self._start(
                    _BoundedServer(handlers), host=host.strip("[]"), port=int(port), ssl=context
                )
            except OSError as error:
                raise BadOptions(
                    f"{self._options.listen} cannot be served: {error.strerror or error}"
                ) from None

    async def _start(self, server: Server, **where: Any) -> None:
        await server.start(**where)
        self._servers.append(server)

    async def close(self) -> None:
        """End all calls; the socket's file goes if it is still ours."""
        for server in self._servers:
            server.close()
        self.release()
        for server in self._servers:
            # Python 3.12 waits for connections, which clients keep open.
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(_CLOSE_TIMEOUT_S, server.wait_closed())

    def release(self) -> None:
        """Give the unix socket up."""
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        self._unix.close()


def _tls(options: Options) -> Optional[Any]:
    """Mutual TLS. ``ssl`` is imported only here: it takes 5 MB."""
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    name = "tls_certificate"
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key)
        name = "tls_client_ca"
        context.load_verify_locations(options.tls_client_ca)
    except (OSError, ValueError) as error:
        raise BadOptions(f"{name} {getattr(options, name)} cannot be used: {error}") from None
    context.set_alpn_protocols(["h2"])
    return context


# ---------------------------------------------------------------------- machine

# The machine's sockets, NUMA nodes and L3s as the affinity service tells them, from sysfs.
# For clients of the service that place by themselves; cri-resmgr has a reader of its own that forgives more.
# An L3 is the set of CPUs that share it, never its id (Documentation/ABI/testing/sysfs-devices-system-cpu).

_L3 = "3"


def read_machine(sysfs: str = "/sys") -> pb.NodeTopology:
    """The machine's domains; a level unknown to sysfs has none."""
    base = f"{sysfs}/devices/system"
    sockets: dict[int, set[int]] = {}
    l3s: set[frozenset[int]] = set()
    for cpu in sorted(_list(f"{base}/cpu/online")):
        package = _text(f"{base}/cpu/cpu{cpu}/topology/physical_package_id")
        if package.isdigit():
            sockets.setdefault(int(package), set()).add(cpu)
        shared = _l3_of(f"{base}/cpu/cpu{cpu}/cache")
        l3s |= {shared} if shared else set()
    nodes = _numbers(f"{base}/node", r"node(\d+)")
    found = pb.NodeTopology()
    for package_id, cpus in sorted(sockets.items()):
        found.sockets.add(name=f"socket {package_id}", id=package_id, cpus=format_cpus(frozenset(cpus)))
    for node in nodes:
        cpus_of_node = format_cpus(_list(f"{base}/node/node{node}/cpulist"))
        found.numa_nodes.add(name=f"NUMA node {node}", id=node, cpus=cpus_of_node)
        found.distances.add(
            to=[int(d) for d in _text(f"{base}/node/node{node}/distance").split() if d.isdigit()]
        )
    for number, shared in enumerate(sorted(l3s, key=min)):
        found.l3s.add(name=f"L3 {number}", id=number, cpus=format_cpus(shared))
    return found


def _l3_of(folder: str) -> frozenset[int]:
    for index in _numbers(folder, r"index(\d+)"):
        if _text(f"{folder}/index{index}/level") == _L3:
            return _list(f"{folder}/index{index}/shared_cpu_list")
    return frozenset()


def _numbers(folder: str, pattern: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(found[1]) for found in (re.fullmatch(pattern, name) for name in names) if found)


def _list(path: str) -> frozenset[int]:
    try:
        return parse_cpus(_text(path))
    except BadCpuList:
        return frozenset()


def _text(path: str) -> str:
    return (read_text(path) or "").strip()
