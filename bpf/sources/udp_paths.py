"""The receivers of datagrams whose two addresses NAT rewrites: read from conntrack, told to the programs (traffic_udp.h).

A NodePort, or a ClusterIP with masquerade: the receiver sees an address of the node, the sender that of a service, and
nothing in the kernel's sockets joins the two. Conntrack has both. It is read only while datagrams wait for a receiver,
and as long as that finds some (SearchPace). A flow not listed any more is taken back at once, as the next flow with
these addresses may reach another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Callable, Optional, Protocol

from bpf.identity.networks import mapped
from bpf.kernel import syscalls
from bpf.kernel.netlink import Address, Conntrack, TranslatedFlow
from bpf.kernel.procfs import namespace_of
from bpf.service.log import log

#: Flows of UDP looked at, of each family: as many as the programs keep senders. A flow takes 20 us.
MOST_FLOWS = 16_384
#: From here on it is cheaper to look where packets come in.
_MANY_FLOWS = 4096


class Translations(Protocol):
    """A list of the flows of UDP that NAT changes."""

    def translated_udp(self, most: int) -> Iterable[TranslatedFlow]:
        """:raises OSError: they cannot be listed."""
        ...

    def close(self) -> None: ...


class UdpPaths:
    """The paths that the programs know. ``problem``: why there are none though they are needed, a sentence; "" = well."""

    def __init__(self, program_fd: int, map_fd: int, open_translations: Callable[[], Translations]) -> None:
        self._program_fd = program_fd
        self._map_fd = map_fd
        self._open = open_translations
        self._translations: Optional[Translations] = None
        self._pace = SearchPace()
        self._known: set[bytes] = set()
        self._looked_at = 0
        self.problem = ""
        #: How often conntrack could not be read while datagrams waited.
        self.counters = {"conntrack_unread": 0}

    def follow(self, now_s: float, waiting: int, found: int) -> None:
        """Look if it is time to; once a sample, before the sums are taken. The numbers are those of ``SearchPace``."""
        # What a long look has not found it would not find now; and what it has found has another search from then on.
        if self._pace.decide(now_s, waiting, self._pace.found if self.is_dear else found):
            self._look()
        else:
            self._looked_at = 0
            self._keep(set())

    @property
    def is_dear(self) -> bool:
        """Whether conntrack has so much that to look where packets come in would be better."""
        return self._looked_at >= _MANY_FLOWS

    def close(self) -> None:
        """Let go of conntrack; the paths go with the programs."""
        if self._translations is not None:
            self._translations.close()
            self._translations = None

    def _look(self) -> None:
        known = set()
        self._looked_at = 0
        try:
            if self._translations is None:
                self._translations = self._open()
            for flow in self._translations.translated_udp(MOST_FLOWS):
                self._looked_at += 1
                there = _key(flow.source) + _key(flow.target)
                back = _key(flow.answer_source) + _key(flow.answer_target)
                if syscalls.run_on_packet(self._program_fd, there + back):
                    known |= {there, back}
            self.problem = ""
        except OSError as error:
            self.counters["conntrack_unread"] += 1
            problem = f"UDP through NAT of both addresses is not seen, as conntrack cannot be read: {error}"
            if problem != self.problem:
                log("warning", "UDP through NAT of both addresses is not seen", reason=error)
            self.problem = problem
            self.close()
        self._keep(known)

    def _keep(self, known: set[bytes]) -> None:
        for ends in self._known - known:
            with suppress(FileNotFoundError):
                syscalls.delete(self._map_fd, ends)
        self._known = known


def hosts_conntrack(proc: str = "/proc") -> Conntrack:
    """Conntrack where the node's services are rewritten: in the namespace of the host's first process.

    :raises OSError: there is none.
    """
    first = namespace_of(proc, 1)
    is_ours = first is None or first == namespace_of(proc, os.getpid())
    return Conntrack(proc, 0 if is_ours else 1)


def _key(address: Address) -> bytes:
    """struct udp_key; of an address that is no loopback's."""
    return bytes(8) + mapped(address[0]) + address[1].to_bytes(2, "big") + bytes(6)


# ---------------------------------------------------------------------- pace

# Receivers of datagrams are searched for in ways that cost while datagrams wait for one that shows in no other way. What a
# datagram was for shows when the receiver answers, and when it calls recvfrom or recvmsg for the sender's
# address. One that does neither has to be found where the packet comes in, and that costs every packet of the
# node, TCP's too; one behind NAT that rewrites both addresses in conntrack, which may be long. So either is tried when
# much waits, kept on while it finds something, and tried more and more seldom where it does not: those datagrams leave
# the node.

#: Messages that came to wait since the last look; a resolver or a clock's are fewer.
_MUCH = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0


class SearchPace:
    """Decides from the counters of traffic.c, once a sample."""

    def __init__(self) -> None:
        self.is_on = False
        self.found = 0
        self._waiting = 0
        self._pause_s = _FIRST_PAUSE_S
        self._not_before_s = float("-inf")

    def decide(self, now_s: float, waiting: int, found: int, other_is_dear: bool = False) -> bool:
        """Whether it is to be on until the next look.

        ``waiting``: messages whose receiver has not shown so far; ``found``: how often the search has found one.
        ``other_is_dear``: another search finds them, at a price that this one has not.
        """
        more, self._waiting = waiting - self._waiting, waiting
        has_found, self.found = found > self.found, found
        if other_is_dear:
            self.is_on = True
        elif not self.is_on:
            self.is_on = more >= _MUCH and now_s >= self._not_before_s
        elif has_found:
            self._pause_s = _FIRST_PAUSE_S
        else:
            self.is_on = False
            self._not_before_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return self.is_on
