"""Affinity that was seen: which containers in the books a container talks to, and how much that pulls.

A container that the graph knows is pulled by its own edges. One that it does not know yet, since it is about to be
created, is pulled by what its owner's replicas have talked to: an edge between two owners is the traffic of all
replicas of both, and is divided over the pairs in the books now. An endpoint ``pod:UID`` stands
for all containers of a pod, where no more is known.

The cost of a place is counted as for declared affinity (declared.py): weight times distance to the nearest CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Optional

from policies.affinity.graph.traffic import POD_PREFIX, Edge, Traffic
from policies.affinity.pull.declared import Declaration, DeclaredAffinity, HeldPlaces, is_same
from policies.affinity.pull.owners import owner_of
from policies.frozen import dataclass
from policies.model import Container
from policies.node import Node


@dataclass(frozen=True)
class Peer:
    """One that pulls: its key in the books, its weight in cache lines a second.

    ``is_remembered``: the container itself has not been seen, its owner's other replicas have; the rates are then
    not known (0).
    """

    key: str
    weight: float
    bytes_per_s: float = 0.0
    messages_per_s: float = 0.0
    is_remembered: bool = False


class Observed:
    """A picture of the traffic, with its indices."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.is_empty = not traffic.edges and not traffic.owners
        self._rates: Optional[dict[tuple[str, str], Edge]] = None

    def rates(self, a: str, b: str) -> Optional[Edge]:
        """The edge between two endpoints with its rates, if it is listed."""
        if self._rates is None:
            self._rates = {(edge.a, edge.b): edge for edge in self.traffic.listed}
        return self._rates.get((a, b)) or self._rates.get((b, a))

    def peers(
        self, node: Node, replicas: Mapping[str, Collection[str]], container: Container, key: str = ""
    ) -> tuple[Peer, ...]:
        """The pulls on a container by the books, the strongest first.

        ``replicas``: keys by owner, also of containers not in the books. ``key``: the container's own, if it has one.
        """
        traffic = self.traffic
        if self.is_empty:
            return ()
        pod = POD_PREFIX + container.pod.uid
        if key in traffic.edges or pod in traffic.edges:
            found = self._seen(node, container, key, pod)
        else:
            found = self._remembered(node, replicas, container)
        return tuple(sorted(found, key=lambda peer: (-peer.weight, peer.key)))

    def _seen(self, node: Node, container: Container, key: str, pod: str) -> list[Peer]:
        found: dict[str, Peer] = {}
        siblings = len(node.of_pod(container.pod.uid)) or 1
        for end, share in ((key, 1.0), (pod, 1.0 / siblings)):
            for other, weight in self.traffic.edges.get(end, {}).items():
                those = keys_of(node, other)
                for each in those:
                    peer = node.residents[each].container
                    if each == key or peer is None or is_same(peer, container):
                        continue
                    edge = self.rates(end, other)
                    part = share / len(those)
                    known = found.get(each, Peer(each, 0.0))
                    found[each] = Peer(
                        each,
                        known.weight + weight * part,
                        known.bytes_per_s + (edge.bytes_per_s * part if edge else 0.0),
                        known.messages_per_s + (edge.messages_per_s * part if edge else 0.0),
                    )
        return list(found.values())

    def _remembered(
        self, node: Node, replicas: Mapping[str, Collection[str]], container: Container
    ) -> list[Peer]:
        owner = owner_of_container(container)
        edges = self.traffic.owners.get(owner, {})
        count = 1 + len(_others(node, replicas.get(owner, ()), container)) if edges else 1
        found = []
        for other, weight in edges.items():
            theirs = _others(node, replicas.get(other, ()), container)
            # Among replicas of one owner each pair is one; the new one is in as many pairs as there are others.
            pairs = count * (count - 1) / 2 if other == owner else count * len(theirs)
            found += [Peer(key, weight / pairs, is_remembered=True) for key in theirs]
        return found


def keys_of(node: Node, endpoint: str) -> tuple[str, ...]:
    """The containers in the books that an endpoint of the graph stands for."""
    if endpoint in node.residents:
        return (endpoint,)
    if endpoint.startswith(POD_PREFIX):
        return tuple(sorted(node.of_pod(endpoint[len(POD_PREFIX) :])))
    return ()


def owner_of_container(container: Container) -> str:
    """The workload a container is a replica of, as the graph calls it."""
    pod = container.pod
    return owner_of(pod.namespace, pod.name, pod.labels, container.name)


def _others(node: Node, keys: Iterable[str], container: Container) -> list[str]:
    """The replicas of an owner in the books, without the container itself; one record for each."""
    found: dict[tuple[str, str], str] = {}
    for key in sorted(keys):
        resident = node.residents.get(key)
        if (
            resident is not None
            and resident.container is not None
            and not is_same(resident.container, container)
        ):
            found[resident.pod_uid, resident.container.name] = key
    return list(found.values())


def pull_of(
    node: Node,
    peers: Iterable[Peer],
    declared: Declaration,
    declared_weight: float,
) -> Optional[DeclaredAffinity]:
    """Observed and declared weights as one affinity; a declared weight of 1 counts ``declared_weight``.

    Those that are declared to be apart do not draw each other, whatever they say to each other.
    """
    weights = {cpus: round(weight * declared_weight) for cpus, weight in declared.weights.items()}
    for peer in peers:
        cpus = node.residents[peer.key].cpus
        if cpus and peer.key not in declared.apart:
            weights[cpus] = weights.get(cpus, 0) + max(1, round(peer.weight))
    pulls = [(cpus, weight) for cpus, weight in weights.items() if weight]
    return DeclaredAffinity(node.topology, pulls, HeldPlaces(node.topology, declared)) if pulls else None
