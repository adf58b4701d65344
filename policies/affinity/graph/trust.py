"""How much of an endpoint's traffic was seen, where a provider says that it had no room for some. Pure.

*Trust*: the part of the messages that was seen, both smoothed as the graph's rates are. A connection that found no room
had two messages at least, a request and its response; how many more is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from policies.affinity.graph.graph import SeenFlow

MESSAGES_OF_A_CONNECTION = 2
#: Of what is so near to all there is nothing to tell.
_NEARLY_ALL = 0.95
_LEAST_RATE = 1e-3


class SeenParts:
    """Messages seen and lost by endpoint, of those that have lost some."""

    def __init__(self) -> None:
        self._rates: dict[str, list[float]] = {}

    def observe(
        self, seconds: float, flows: Iterable[SeenFlow], lost: Mapping[str, int], half_life_s: float
    ) -> None:
        """Take in an interval. ``lost``: connections without room, by endpoint."""
        if seconds <= 0:
            return
        keep = 2.0 ** (-seconds / half_life_s)
        part = (1.0 - keep) / seconds
        # 1. All fade; what has nothing lost any more is forgotten.
        self._rates = {
            end: [seen * keep, missed * keep]
            for end, (seen, missed) in self._rates.items()
            if missed * keep >= _LEAST_RATE or end in lost
        }
        # 2. What was lost and seen is added.
        for end, connections in lost.items():
            rates = self._rates.setdefault(end, [0.0, 0.0])
            rates[1] += part * MESSAGES_OF_A_CONNECTION * connections
        for flow in flows:
            for end in {flow.a, flow.b} & self._rates.keys():
                self._rates[end][0] += part * flow.messages

    def forget(self, endpoints: Iterable[str]) -> None:
        """Drop containers that have ended."""
        for end in endpoints:
            self._rates.pop(end, None)

    @property
    def trust(self) -> dict[str, float]:
        """The seen part, in tenths, of those of which it is not nearly all."""
        parts = {end: seen / (seen + missed) for end, (seen, missed) in sorted(self._rates.items())}
        return {end: round(part, 1) for end, part in parts.items() if part < _NEARLY_ALL}
