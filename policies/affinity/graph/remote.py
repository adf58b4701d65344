"""Traffic between endpoints of this node and addresses of others: samples in, smoothed rates out. Pure.

Bounded, whatever addresses come: of an endpoint ``MOST_KEPT`` rates are kept and the ``MOST_OF_ENDPOINT`` largest told,
of all ``MOST_TOLD``; the others are counted. More are kept than told, so that an address that has just begun, whose
rate is still small, may grow. Smoothing and expiry are those of the graph (graph.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from policies.affinity.graph.traffic import Key, read_amount

MOST_OF_ENDPOINT, MOST_TOLD = 32, 256
MOST_KEPT, MOST_KEPT_IN_ALL = 128, 4096
#: Less than this is neither told nor counted.
LEAST_BYTES_PER_S = 1000.0
EXPIRES_AFTER_HALF_LIVES = 10


class SeenRemote(Protocol):
    """An endpoint and an address in one interval (``bpf.sources.samples.RemoteFlow``)."""

    @property
    def a(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def bytes(self) -> int: ...


class RemotePeer(NamedTuple):
    """``end``: a container's id. ``bytes_per_s``: both directions."""

    end: str
    address: str
    bytes_per_s: float


class RemoteRates:
    """Rates by endpoint and address. ``told``: the largest, heaviest first; ``left_out``: how many others there are."""

    def __init__(self) -> None:
        self.told: tuple[RemotePeer, ...] = ()
        self.left_out = 0
        #: The rate, and for how long nothing was seen.
        self._rates: dict[Key, tuple[float, float]] = {}

    def observe(self, seconds: float, flows: Iterable[SeenRemote], half_life_s: float) -> None:
        """Take in all flows of an interval; of 0 seconds nothing is known."""
        if seconds <= 0:
            return
        part = 1.0 - 2.0 ** (-seconds / half_life_s)
        seen: dict[Key, int] = {}
        for flow in flows:
            key = flow.a, flow.address
            seen[key] = seen.get(key, 0) + flow.bytes
        rates = {}
        for key, (rate, silent_s) in self._rates.items():
            if key not in seen and silent_s + seconds < EXPIRES_AFTER_HALF_LIVES * half_life_s:
                rates[key] = rate * (1.0 - part), silent_s + seconds
        for key, count in seen.items():
            rate = self._rates.get(key, (0.0, 0.0))[0]
            rates[key] = rate + part * (count / seconds - rate), 0.0
        self._choose(rates)

    def forget(self, endpoints: Iterable[str]) -> None:
        """Drop those of containers that have ended."""
        ended = frozenset(endpoints)
        if ended:
            self._rates = {key: kept for key, kept in self._rates.items() if key[0] not in ended}
            self.told = tuple(peer for peer in self.told if peer.end not in ended)

    def state(self) -> list[list[Any]]:
        """The rates told, as JSON."""
        return [list(peer) for peer in self.told]

    def restore(self, state: Any) -> None:
        """Take over what ``state()`` gave; nothing fades for the time in between.

        :raises ValueError: it is something else; nothing is taken over then.
        """
        try:
            rates = {(str(end), str(address)): (read_amount(rate), 0.0) for end, address, rate in state}
        except TypeError as error:
            raise ValueError(f"not rates of remote traffic: {error!r}") from None
        self._choose(rates)

    def _choose(self, rates: dict[Key, tuple[float, float]]) -> None:
        kept: dict[Key, tuple[float, float]] = {}
        told: list[RemotePeer] = []
        counts: dict[str, int] = {}
        self.left_out = 0
        # Heaviest first; by name where they are equal, so that the same input tells the same.
        for key, (rate, silent_s) in sorted(rates.items(), key=lambda item: (-item[1][0], item[0])):
            count = counts[key[0]] = counts.get(key[0], 0) + 1
            if count <= MOST_KEPT and len(kept) < MOST_KEPT_IN_ALL:
                kept[key] = rate, silent_s
            if rate < LEAST_BYTES_PER_S:
                continue
            if count <= MOST_OF_ENDPOINT and len(told) < MOST_TOLD:
                told.append(RemotePeer(*key, rate))
            else:
                self.left_out += 1
        self._rates, self.told = kept, tuple(told)
