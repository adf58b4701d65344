"""When to look for unix sockets and shared memory: looking takes a millisecond for some 100 open files. Pure.

Only for those that wake each other for no reason seen in bytes (wakeups.py), and what was found is believed for some
samples, as long as no other is among them: connections of a server that has 10,000 are quiet most of the time,
so that many samples have wakes without bytes.
"""

from __future__ import annotations

from typing import Callable

from bpf.sources.wakeups import Peers

#: At a sample each 10 s, what begins to share something is seen after a minute, which is the graph's half-life.
LOOK_EVERY = 6


class PeerSearch:
    """Remembers what ``find`` has found among the endpoints that it was given."""

    def __init__(self, find: Callable[[frozenset[str]], Peers]) -> None:
        self._find = find
        self._looked_among: frozenset[str] = frozenset()
        self._found = Peers()
        self._samples_since = LOOK_EVERY

    def peers_of(self, among: frozenset[str]) -> Peers:
        """Which of these, the next sample's, shares what."""
        self._samples_since += 1
        if among and (self._samples_since >= LOOK_EVERY or not among <= self._looked_among):
            self._found, self._looked_among, self._samples_since = self._find(among), among, 0
        return self._found
