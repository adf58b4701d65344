"""Whom datagrams reach whose two addresses NAT rewrites: read from conntrack, told to the programs (traffic_udp.h).

A NodePort, or a ClusterIP with masquerade: the receiver sees an address of the node, the sender that of a service, and
nothing in the kernel's sockets joins the two. Conntrack has both. It is read only while datagrams wait for a receiver,
and as long as that finds some (SearchPace). What it does not list any more is taken back at once, as the next flow with
these addresses may reach another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Callable, Optional, Protocol

from bpf.identity.networks import mapped
from bpf.kernel import syscalls
from bpf.kernel.conntrack import Conntrack, TranslatedFlow
from bpf.kernel.netlink import Address
from bpf.kernel.procfs import namespace_of
from bpf.service.log import log
from bpf.sources.search_pace import SearchPace

#: Flows of UDP looked at, of each family.
MOST_FLOWS = 4096


class Translations(Protocol):
    """What lists the flows of UDP that NAT changes."""

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
        self.problem = ""
        #: How often conntrack could not be read while datagrams waited.
        self.counters = {"conntrack_unread": 0}

    def follow(self, now_s: float, waiting: int, found: int) -> None:
        """Look if it is time to; once a sample, before the sums are taken. The numbers are those of ``SearchPace``."""
        if self._pace.decide(now_s, waiting, found):
            self._look()
        else:
            self._keep(set())

    def close(self) -> None:
        """Let go of conntrack; the paths go with the programs."""
        if self._translations is not None:
            self._translations.close()
            self._translations = None

    def _look(self) -> None:
        known = set()
        try:
            if self._translations is None:
                self._translations = self._open()
            for flow in self._translations.translated_udp(MOST_FLOWS):
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
