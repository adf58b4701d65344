"""Affinity that people declare: annotations that say what a container is to run near, or far from.

A declaration counts both ways: the terms of the container that is placed, and the terms of those already there
that mean it. Containers without terms of their own are drawn to their pod or namespace where the configuration
says so (``colocate_pods``, ``colocate_namespaces``).

The cost of a place is the sum, over the peers, of weight times distance: from a CPU of the place, in the mean,
to the nearest CPU of the peer. Distance is 0 in one leaf (an L3), 1 in one NUMA node, and a tenth of the SLIT
distance between nodes: 1.6 to 3.2 as a rule. An anti-affinity's weight is negative: far away costs less.
"""

from __future__ import annotations

from collections.abc import Container as Keys
from collections.abc import Iterable, Mapping
from typing import Callable, Optional

from policies.affinity.pull.expressions import predicate_of
from policies.machine.topology import LOCAL_DISTANCE, Topology
from policies.model import Affinity, AffinityTerm, Container, MatchExpression, Resident
from policies.node import Node
from policies.settings import PlacementSettings

#: What cri-resource-manager and nri-plugins give colocation by configuration.
COLOCATION_WEIGHT = 10


class DeclaredAffinity:
    """The pull of one container's peers. ``weights``: by the CPUs a peer runs on, how much it pulls, summed up."""

    def __init__(self, topology: Topology, weights: Iterable[tuple[frozenset[int], int]]) -> None:
        leaf_of = {cpu: index for index, leaf in enumerate(topology.leaves) for cpu in leaf.cpus}
        pull = _pull_by_leaf(topology, leaf_of, weights)
        self._pull = {cpu: pull[index] for cpu, index in leaf_of.items()}

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        """Weight times distance of these CPUs from the peers; lower is better, 0 = all of them are here."""
        pull = self._pull
        # Whole numbers until the end: the order of the CPUs makes no difference.
        return sum([pull.get(cpu, 0) for cpu in cpus]) / (len(cpus) * LOCAL_DISTANCE) if cpus else 0.0


class Combined:
    """Two affinities as one: their costs are added."""

    def __init__(self, first: Affinity, second: Affinity) -> None:
        self.first = first
        self.second = second

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        return self.first.cost(container, cpus) + self.second.cost(container, cpus)


def peers_of(node: Node, container: Container, settings: PlacementSettings) -> Optional[Affinity]:
    """The pull of those in the books on a container that is not (or on its next attempt); None = there is none."""
    weights = declared_weights(node, container, settings)
    return DeclaredAffinity(node.topology, weights.items()) if weights else None


def declared_weights(
    node: Node, container: Container, settings: PlacementSettings
) -> dict[frozenset[int], int]:
    """By the CPUs that peers run on: how much they pull a container by declaration, or push it away."""
    weights: dict[frozenset[int], int] = {}
    # 1. Containers that its own terms mean; without terms, those of its pod or namespace.
    for resident, weight in _meant(node, container, settings):
        weights[resident.cpus] = weights.get(resident.cpus, 0) + weight
    # 2. Containers with terms that mean it.
    for resident, weight in _meaning(node, container):
        weights[resident.cpus] = weights.get(resident.cpus, 0) + weight
    # 3. A place that draws and pushes a container alike does not move it.
    return {cpus: weight for cpus, weight in weights.items() if weight and cpus}


def _meant(node: Node, container: Container, settings: PlacementSettings) -> Iterable[tuple[Resident, int]]:
    for term in terms_of(container, settings):
        matches = predicate_of(term.match)
        for key in in_scope(node, term.scope):
            resident = node.residents[key]
            peer = resident.container
            if peer is not None and matches(peer) and not is_same(peer, container):
                yield resident, term.weight


def terms_of(container: Container, settings: PlacementSettings) -> tuple[AffinityTerm, ...]:
    """The terms of a container; without its own, those of the configuration for it."""
    return container.preferences.affinity or _implicit_terms(container, settings)


def in_scope(node: Node, scope: MatchExpression) -> list[str]:
    """The keys of the containers in the books that a scope holds."""
    pod_uid = _only_pod(scope)
    residents = node.residents if pod_uid is None else node.of_pod(pod_uid)
    found = [(key, each.container) for key, each in residents.items() if each.container is not None]
    if pod_uid is not None or scope.operator == "AlwaysTrue":
        return [key for key, _ in found]
    is_in = predicate_of(scope)
    return [key for key, peer in found if is_in(peer)]


def _meaning(node: Node, container: Container) -> Iterable[tuple[Resident, int]]:
    # Replicas repeat each other's terms: a condition is held against the container once.
    known: dict[MatchExpression, bool] = {}

    def means(condition: MatchExpression) -> bool:
        if condition not in known:
            known[condition] = predicate_of(condition)(container)
        return known[condition]

    for resident, peer, terms in _with_terms(node):
        for term in terms:
            if (
                _scope_has(term.scope, container, means)
                and means(term.match)
                and not is_same(peer, container)
            ):
                yield resident, term.weight


def _with_terms(node: Node) -> list[tuple[Resident, Container, tuple[AffinityTerm, ...]]]:
    return [
        (resident, resident.container, resident.container.preferences.affinity)
        for resident in node.with_terms.values()
        if resident.container is not None
    ]


def _scope_has(
    scope: MatchExpression, container: Container, means: Callable[[MatchExpression], bool]
) -> bool:
    pod_uid = _only_pod(scope)
    return means(scope) if pod_uid is None else pod_uid == container.pod.uid


def _only_pod(scope: MatchExpression) -> Optional[str]:
    """The uid of the one pod a scope names, as the default scope does; the books can be asked for that."""
    if scope.key == "pod/uid" and scope.operator == "Equals" and scope.values != ("*",):
        return scope.values[0] if len(scope.values) == 1 else None
    return None


def is_same(peer: Container, container: Container) -> bool:
    """Whether one is another attempt of the other, or its record while it is being resized."""
    return peer.name == container.name and peer.pod.uid == container.pod.uid


def _implicit_terms(container: Container, settings: PlacementSettings) -> tuple[AffinityTerm, ...]:
    everybody = MatchExpression("", "AlwaysTrue")
    terms = []
    if settings.colocate_pods:
        scope = MatchExpression("pod/uid", "Equals", (container.pod.uid,))
        terms.append(AffinityTerm(scope, everybody, COLOCATION_WEIGHT))
    if settings.colocate_namespaces:
        scope = MatchExpression("pod/namespace", "Equals", (container.pod.namespace,))
        terms.append(AffinityTerm(scope, everybody, COLOCATION_WEIGHT))
    return tuple(terms)


def _pull_by_leaf(
    topology: Topology, leaf_of: Mapping[int, int], weights: Iterable[tuple[frozenset[int], int]]
) -> list[int]:
    """For each leaf: the sum of weight times distance (as in the SLIT) from there to the nearest CPU of each peer."""
    # 1. Peers by the leaves they run in, and by the nodes of these: few, however many peers there are.
    by_leaves: dict[frozenset[int], int] = {}
    for cpus, weight in weights:
        where = frozenset([leaf_of[cpu] for cpu in cpus])
        by_leaves[where] = by_leaves.get(where, 0) + weight
    nodes = [leaf.nodes for leaf in topology.leaves]
    by_nodes: dict[frozenset[int], int] = {}
    for where, weight in by_leaves.items():
        theirs = frozenset().union(*[nodes[index] for index in where])
        by_nodes[theirs] = by_nodes.get(theirs, 0) + weight
    # 2. From every leaf to each of them by the distance between nodes; only in a shared leaf there is none.
    near = {(mine, theirs): _distance(topology, mine, theirs) for mine in set(nodes) for theirs in by_nodes}
    pull = [sum([weight * near[mine, theirs] for theirs, weight in by_nodes.items()]) for mine in nodes]
    # 3. Where leaves are clusters of cores: half of the distance from the others of the same L3.
    around = {i: cache.leaves for cache in topology.caches for i in cache.leaves if len(cache.leaves) > 1}
    for where, weight in by_leaves.items():
        theirs = frozenset().union(*[nodes[index] for index in where])
        for index in where:
            pull[index] -= weight * near[nodes[index], theirs]
        for index in {i for mine in where for i in around.get(mine, ())} - where:
            pull[index] -= weight * near[nodes[index], theirs] // 2
    return pull


def _distance(topology: Topology, mine: frozenset[int], theirs: frozenset[int]) -> int:
    """Between the two nearest nodes. A leaf is in one node, except where it is an L3 that nodes share."""
    return min([topology.distance(a, b) for a in mine for b in theirs])


# ---------------------------------------------------------------------- edges


#: A term that means more containers than this says little about any place, and would make edges by the square.
MOST_MEANT = 50


class DeclaredEdges:
    """The weights that are declared between some containers in the books; built one container after another."""

    def __init__(self, node: Node, settings: PlacementSettings, keys: Iterable[str]) -> None:
        self._node = node
        self._settings = settings
        self._known = frozenset(keys)
        # Replicas repeat each other's terms: what one means is found out once.
        self._means: dict[tuple[MatchExpression, MatchExpression], list[tuple[str, Container]]] = {}
        self._found: dict[tuple[str, str], int] = {}
        self._by_configuration: set[tuple[str, str, MatchExpression]] = set()

    def add(self, key: str) -> None:
        """Add the terms of one of them, or of the configuration for it."""
        container = self._node.residents[key].container
        for term in () if container is None else terms_of(container, self._settings):
            name = (term.scope, term.match)
            if name not in self._means:
                self._means[name] = _meant_among(self._node, self._known, *name)
            if container is None or len(self._means[name]) > MOST_MEANT:
                continue
            for other, peer in self._means[name]:
                if not is_same(peer, container):
                    self._add(key, other, container, term)

    def _add(self, key: str, other: str, container: Container, term: AffinityTerm) -> None:
        pair = (key, other) if key < other else (other, key)
        # What the configuration declares for both of them counts once, as when one of them is placed.
        if not container.preferences.affinity:
            if (*pair, term.scope) in self._by_configuration:
                return
            self._by_configuration.add((*pair, term.scope))
        self._found[pair] = self._found.get(pair, 0) + term.weight

    @property
    def weights(self) -> dict[tuple[str, str], int]:
        """Each pair once, lesser key first."""
        return {pair: weight for pair, weight in sorted(self._found.items()) if weight}


def declares_any(node: Node, settings: PlacementSettings) -> bool:
    """Whether anything is declared at all."""
    return bool(node.with_terms or settings.colocate_pods or settings.colocate_namespaces)


def _meant_among(
    node: Node, known: Keys[str], scope: MatchExpression, match: MatchExpression
) -> list[tuple[str, Container]]:
    matches = predicate_of(match)
    found = []
    for key in in_scope(node, scope):
        peer = node.residents[key].container
        if key in known and peer is not None and matches(peer):
            found.append((key, peer))
    return found
