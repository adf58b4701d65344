"""Looks for unix sockets and shared memory between containers: a millisecond for some 100 open files, so once a minute.

Wakes are counted only while there is such a pair (ebpf.py), so that wakes cannot tell where to look: all containers
are looked at. What was found is believed until the next look.
"""

from __future__ import annotations

from typing import Callable

from bpf.identity.attribution import Attribution
from bpf.service.log import log
from bpf.sources.shared_memory import find_memory_peers
from bpf.sources.unix_peers import find_unix_peers
from bpf.sources.wakeups import Pair, Peers

#: At a sample each 10 s, what begins to share something is seen after a minute, which is the graph's half-life.
LOOK_EVERY = 6


class PeerSearch:
    """Remembers what ``find`` has found."""

    def __init__(self, find: Callable[[], Peers]) -> None:
        self._find = find
        self._found = Peers()
        self._samples_since = LOOK_EVERY

    def peers(self) -> Peers:
        """What containers share; to be asked once a sample."""
        self._samples_since += 1
        if self._samples_since >= LOOK_EVERY:
            self._found, self._samples_since = self._find(), 0
        return self._found


def find_peers(attribution: Attribution) -> Peers:
    """Which containers share a socket or memory; what cannot be looked at is taken for none, and logged."""
    found: list[frozenset[Pair]] = []
    for what, find in (("unix sockets", find_unix_peers), ("shared memory", find_memory_peers)):
        try:
            found.append(find(attribution))
        except OSError as error:
            log("warning", f"{what} not seen", reason=error)
            found.append(frozenset())
    return Peers(*found)
