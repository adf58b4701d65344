"""The two ends of TCP connections, found in lists of sockets of several network namespaces. Pure.

Only the passive end of a connection counts (the one whose port is listened on): its counters say what went
each way, exactly, and nothing is counted twice. The other end gives the name of the peer. It is found

1. by the reversed addresses (on loopback: of the same namespace);
2. where the destination was rewritten (DNAT: a Service), by the client's address and port alone;
3. where the source was rewritten too, by a hint from where the connection was made.

A connection whose other end is not found yet is tried again, and what it carries is not lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Optional, Protocol

from bpf.kernel.netlink import TCP_LISTEN, Address, InetSocket
from policies.affinity.graph.traffic import POD_PREFIX

#: Whether and when the two ends are listed differs by one sample; a third look would find nothing new.
_MOST_TRIES = 2
_ANYWHERE = 0
_NOWHERE: Address = (b"", 0)
_NOTHING = (0, 0, 0)
#: Sockets that are followed, of 0.6 KB each: 32,768 connections with both ends here. eBPF has room for as many pairs.
MOST_SOCKETS = 65_536


class Hints(Protocol):
    """Makers of connections (``ConnectionHints``). Containers; None = not seen, or not known any more."""

    def refresh(self) -> None:
        """Take in the latest connections."""
        ...

    def opener(self, local: Address, remote: Address) -> Optional[str]:
        """The container of the socket with these addresses."""
        ...

    def client_behind(self, local: Address, remote: Address) -> Optional[str]:
        """The client of the server's socket with these addresses, whatever was rewritten on the way."""
        ...

    def close(self) -> None:
        """Leave nothing behind in the kernel."""
        ...


class Exchange(NamedTuple):
    """Bytes that the passive end ``server`` sent and received since the last time."""

    server: str
    client: str
    sent: int
    received: int
    segments: int


class _End:
    """One socket, followed as long as it lives. ``is_settled``: its other end is known, or given up (``peer`` "").

    ``totals``: bytes acknowledged, bytes received, segments; ``counted``: the ones that ``take`` has returned.
    """

    __slots__ = (
        "counted",
        "has_ended",
        "is_passive",
        "is_settled",
        "local",
        "namespace",
        "other",
        "owner",
        "peer",
        "remote",
        "seen_in",
        "totals",
        "tries",
    )

    def __init__(self, namespace: int, seen: InetSocket) -> None:
        self.namespace = namespace
        self.local = seen.local
        self.remote = seen.remote
        self.owner: Optional[str] = None
        self.peer: Optional[str] = None
        self.other: Optional[_End] = None
        self.is_passive: Optional[bool] = None
        self.is_settled = False
        self.has_ended = False
        self.totals = self.counted = _NOTHING
        self.seen_in = 0
        self.tries = 0

    def settle(self) -> None:
        """Its other end needs no more looking for. There are many of these: memory that is not needed is let go."""
        self.is_settled = True
        self.local = self.remote = _NOWHERE

    def take(self) -> tuple[int, int, int]:
        """Bytes sent and received, and segments, since the last take."""
        sent, received, segments = self.totals
        if self.other is not None:
            # Bytes received are known at once, bytes acknowledged only with the next acknowledgement.
            sent = max(sent, self.other.totals[1])
        before = self.counted
        self.counted = sent, received, segments
        return sent - before[0], received - before[1], segments - before[2]


class TcpEnds:
    """Follows sockets from sample to sample: ``see`` each, then ``exchanges``. ``most_sockets``: what there is room for.

    ``find_owner(namespace, socket)`` names the container of a socket: "" = the host's own, None = not known.
    ``counters``: resolved, missed (both ends are here, bytes went, and the other was not found), outside (other
    machines). ``lost``: sockets of the last sample without room, by container; ``not_followed``: those of all samples.
    """

    def __init__(
        self,
        find_owner: Callable[[int, InetSocket], Optional[str]],
        hints: Optional[Hints] = None,
        most_sockets: int = MOST_SOCKETS,
    ) -> None:
        self.counters = {"resolved": 0, "missed": 0, "outside": 0}
        self.not_followed = 0
        self.lost: dict[str, int] = {}
        self._not_followed: dict[str, int] = {}
        self._most_sockets = most_sockets
        self._find_owner = find_owner
        self._hints = hints
        self._ends: dict[tuple[int, int], _End] = {}
        self._listeners: dict[tuple[int, int], tuple[Optional[str], int]] = {}
        self._sample = 0

    @property
    def followed(self) -> int:
        """How many sockets are followed now."""
        return len(self._ends)

    def take_hints_of(self, hints: Hints) -> None:
        """From now on ask these, of connections that come."""
        self._hints = hints

    def see(self, namespace: int, seen: InetSocket, has_ended: bool = False) -> None:
        """A socket as it is now, or its last counters."""
        if seen.state == TCP_LISTEN:
            self._see_listener(namespace, seen)
            return
        if not seen.remote[1]:
            # A listener that has ended.
            return
        end = self._ends.get((namespace, seen.cookie))
        if end is None:
            if len(self._ends) >= self._most_sockets:
                self._pass_over(namespace, seen)
                return
            end = self._ends[namespace, seen.cookie] = _End(namespace, seen)
        end.totals = seen.bytes_acked, seen.bytes_received, seen.segments
        end.has_ended = has_ended
        end.seen_in = self._sample
        if end.owner is None:
            # Only while it is not known: a socket that has ended says less of itself than it did while it lived.
            end.owner = self._find_owner(namespace, seen)

    def _pass_over(self, namespace: int, seen: InetSocket) -> None:
        self.not_followed += 1
        owner = self._find_owner(namespace, seen)
        if owner:
            self._not_followed[owner] = self._not_followed.get(owner, 0) + 1

    def begin_here(self) -> None:
        """Forget the bytes so far: only bytes from now on count."""
        self.exchanges(frozenset())
        for end in self._ends.values():
            end.take()

    def exchanges(self, local_addresses: frozenset[bytes]) -> list[Exchange]:
        """The bytes exchanged since the last call, by connection."""
        # 1. Which is the passive end, and whose it is if its listener has to say.
        for end in self._ends.values():
            if end.is_passive is None:
                self._classify(end)
        # 2. Peers of connections that have none yet.
        self._find_peers(local_addresses)
        # 3. Their bytes; a connection that waits for its peer keeps them.
        found = [exchange for end in self._ends.values() for exchange in self._carried(end, local_addresses)]
        # 4. Ended ones stay for one sample: the news of their other end may come later.
        self._forget()
        self._sample += 1
        self.lost, self._not_followed = self._not_followed, {}
        return found

    def _see_listener(self, namespace: int, seen: InetSocket) -> None:
        key = namespace, seen.local[1]
        owner = self._listeners[key][0] if key in self._listeners else None
        self._listeners[key] = owner or self._find_owner(namespace, seen), self._sample

    def _classify(self, end: _End) -> None:
        listener = self._listeners.get((end.namespace, end.local[1]))
        end.is_passive = listener is not None
        if end.owner and not end.owner.startswith(POD_PREFIX):
            return
        if listener:
            end.owner = listener[0] or end.owner
        elif self._hints:
            end.owner = self._hints.opener(end.local, end.remote) or end.owner

    def _find_peers(self, local_addresses: frozenset[bytes]) -> None:
        lonely = []
        clients = {}
        for end in self._ends.values():
            if end.is_passive and end.peer is None:
                lonely.append(end)
            elif not end.is_passive and not end.is_settled:
                clients[_scope(end), end.local, end.remote] = end
        for end in lonely:
            _join(end, clients.pop((_scope(end), end.remote, end.local), None))
        self._join_without_listener(clients)
        halves: dict[tuple[int, Address], Optional[_End]] = {}
        for (scope, local, _), client in clients.items():
            other = halves.get((scope, local), client)
            # Two that use one address and port towards different targets: it cannot be told which one.
            halves[scope, local] = client if other is not None and other.owner == client.owner else None
        for end in lonely:
            if end.peer is None:
                _join(end, halves.get((_scope(end), end.remote)))
        if self._hints:
            self._take_hints(lonely, clients.values(), local_addresses, self._hints)

    def _take_hints(
        self, lonely: list[_End], clients: Iterable[_End], local_addresses: frozenset[bytes], hints: Hints
    ) -> None:
        """Peers in whose thread a connection arrived.

        A packet from outside interrupts any task. So the hint counts only where the client's address is one of this
        machine, and its container has a connection whose other end is no other.
        """
        waiting: dict[str, list[_End]] = {}
        for client in clients:
            if client.owner and not client.is_settled:
                waiting.setdefault(client.owner, []).append(client)
        for end in lonely:
            if end.peer is not None or end.remote[0] not in local_addresses:
                continue
            container = hints.client_behind(end.local, end.remote)
            if container and waiting.get(container):
                waiting[container].pop().settle()
                end.peer = container

    def _join_without_listener(self, clients: dict[tuple[int, Address, Address], _End]) -> None:
        """Both ends are here and neither listens any more: the lower port is taken as the passive one."""
        for (scope, local, remote), end in list(clients.items()):
            other = clients.get((scope, remote, local))
            if other is not None and (local[1], local[0]) < (remote[1], remote[0]):
                end.is_passive = True
                _join(end, other)
                del clients[scope, local, remote], clients[scope, remote, local]

    def _carried(self, end: _End, local_addresses: frozenset[bytes]) -> Iterator[Exchange]:
        if not end.is_passive:
            return
        if not end.is_settled and not self._settle(end, local_addresses):
            return
        sent, received, segments = end.take()
        if end.owner and end.peer and (sent or received):
            yield Exchange(end.owner, end.peer, sent, received, segments)

    def _settle(self, end: _End, local_addresses: frozenset[bytes]) -> bool:
        """Whether it is known now what to do with this passive end's bytes."""
        if end.peer is None or end.owner is None:
            end.tries += 1
            # A connection that a killed process left behind carries nothing: nothing of it is missing.
            if end.tries < _MOST_TRIES or end.totals[:2] == end.counted[:2]:
                return False
            is_local = end.remote[0] in local_addresses
            self.counters["missed" if is_local else "outside"] += 1
            end.peer = ""
        elif end.owner and end.peer:
            self.counters["resolved"] += 1
        end.settle()
        return True

    def _forget(self) -> None:
        last = self._sample
        gone = [
            key
            for key, end in self._ends.items()
            # Ended: kept until the next sample, or until its peer is found. Silent for two: its end was not told.
            if (end.seen_in < last and (end.has_ended or end.seen_in < last - 1))
        ]
        for key in gone:
            del self._ends[key]
        closed = [key for key, (_, seen_in) in self._listeners.items() if seen_in < last - 1]
        for key in closed:
            del self._listeners[key]


def _scope(end: _End) -> int:
    """Loopback addresses mean something inside one namespace only, all others are taken as unique."""
    address = end.local[0]
    is_loopback = address[0] == 127 if len(address) == 4 else address == bytes(15) + b"\x01"
    return end.namespace if is_loopback else _ANYWHERE


def _join(server: _End, client: Optional[_End]) -> None:
    if client is not None and client.owner is not None and not client.is_settled:
        server.peer = client.owner
        server.other = client
        client.settle()


def total(exchanges: list[Exchange]) -> Mapping[tuple[str, str], tuple[int, int, int]]:
    """By the pair of ends (in order): bytes from the first, from the second, segments. Not within one end."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for server, client, sent, received, segments in exchanges:
        if server == client:
            continue
        pair = (server, client) if server < client else (client, server)
        if pair[0] != server:
            sent, received = received, sent
        before = sums.get(pair, (0, 0, 0))
        sums[pair] = before[0] + sent, before[1] + received, before[2] + segments
    return sums
