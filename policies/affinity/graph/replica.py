"""The daemon's picture of the graph, put together from what the observer tells, and kept when it does not. Pure.

The rule for an observer that has just started: until its graph has been observed for one half-life of its rates,
the old graph stays beside it, and of an edge that both know the heavier weight counts. So nothing is moved
because an observer was restarted. After that the old edges go, and what the new graph says counts alone; an observer
that has kept its own graph over the restart is not new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from policies.affinity.graph.traffic import Edge, Key, Traffic, read_amount, traffic_of
from policies.frozen import dataclass


@dataclass(frozen=True)
class News:
    """The observer's news: edges that are new, changed or gone. ``is_whole``: forget the edges before."""

    edges: tuple[Edge, ...] = ()
    owners: Mapping[Key, float] = field(default_factory=dict)
    gone_edges: tuple[Key, ...] = ()
    gone_owners: tuple[Key, ...] = ()
    is_whole: bool = False
    #: For how long its graph has been observed, in half-lives.
    half_lives: float = 1.0
    #: Of endpoints of whose traffic some was lost, the part that was seen; all of them, each time.
    trust: Mapping[str, float] = field(default_factory=dict)


class GraphReplica:
    """The graph as it was told last."""

    def __init__(self) -> None:
        self._edges: dict[Key, Edge] = {}
        self._owners: dict[Key, float] = {}
        #: Of the time before an observer's start, while that is new.
        self._old_edges: dict[Key, Edge] = {}
        self._old_owners: dict[Key, float] = {}
        self._trust: Mapping[str, float] = {}
        self._traffic = Traffic()

    @property
    def is_waiting(self) -> bool:
        """Whether the observer is new, and the old edges still count."""
        return bool(self._old_edges or self._old_owners)

    def take(self, news: News) -> bool:
        """Take in what the observer says; returns whether the picture is another one now."""
        was_waiting = self.is_waiting
        if news.is_whole:
            if news.half_lives < 1.0:
                # A second new observer finds what the first one was waited for with.
                self._old_edges, self._old_owners = self._both()
            self._edges, self._owners = {}, {}
        if news.half_lives >= 1.0:
            self._old_edges, self._old_owners = {}, {}
        self._edges.update(((edge.a, edge.b), edge) for edge in news.edges)
        self._owners.update(news.owners)
        for key in news.gone_edges:
            self._edges.pop(key, None)
        for key in news.gone_owners:
            self._owners.pop(key, None)
        told = (news.edges, news.owners, news.gone_edges, news.gone_owners)
        if not (any(told) or news.is_whole or was_waiting != self.is_waiting or news.trust != self._trust):
            return False
        self._trust = news.trust
        self._rebuild()
        return True

    def traffic(self, frozen: str) -> Traffic:
        """The picture for the rest of the program; ``frozen``: why it is old, "" = it is not."""
        known = self._traffic
        if known.frozen != frozen:
            known = replace(known, version=known.version + 1, frozen=frozen)
            self._traffic = known
        return known

    def _rebuild(self) -> None:
        edges, owners = self._both()
        known = self._traffic
        self._traffic = traffic_of(known.version + 1, edges.values(), owners, known.frozen, self._trust)

    def _both(self) -> tuple[dict[Key, Edge], dict[Key, float]]:
        """The edges that count: new ones, and old ones that are heavier or not known to it."""
        edges, owners = dict(self._old_edges), dict(self._old_owners)
        for key, edge in self._edges.items():
            if key not in edges or edges[key].weight < edge.weight:
                edges[key] = edge
        for key, weight in self._owners.items():
            owners[key] = max(weight, owners.get(key, 0.0))
        return edges, owners

    # ------------------------------------------------------------------ over restarts of the daemon

    def state(self) -> dict[str, Any]:
        """The edges that count, as JSON."""
        edges, owners = self._both()
        return {
            "edges": [
                [
                    *(e.a, e.b, e.weight, e.bytes_per_s, e.messages_per_s, list(e.kinds), e.is_pod_level),
                    e.steady_weight,
                ]
                for _, e in sorted(edges.items())
            ],
            "owners": [[a, b, weight] for (a, b), weight in sorted(owners.items())],
        }

    def restore(self, state: Any) -> None:
        """Begin with what ``state()`` gave.

        :raises ValueError: it is something else; nothing is taken over then.
        """
        try:
            edges = dict(map(_read_edge, state["edges"]))
            owners = {(str(a), str(b)): read_amount(weight) for a, b, weight in state["owners"]}
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not the state of a graph: {error!r}") from None
        self._edges, self._owners = edges, owners
        self._rebuild()


def _read_edge(row: Any) -> tuple[Key, Edge]:
    a, b, weight, bytes_per_s, messages_per_s, kinds, is_pod_level, *steady = row
    edge = Edge(
        str(a),
        str(b),
        read_amount(weight),
        read_amount(bytes_per_s),
        read_amount(messages_per_s),
        tuple(map(str, kinds)),
        bool(is_pod_level),
        *map(read_amount, steady),
    )
    return (edge.a, edge.b), edge
