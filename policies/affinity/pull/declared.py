"""Affinity that people declare: annotations that say what a container is to run near, or far from.

A declaration counts both ways: the terms of the container that is placed, and the terms of those already there
that mean it. Containers without terms of their own are drawn to their pod or namespace where the configuration
says so (``colocate_pods``, ``colocate_namespaces``).

The cost of a place is the sum, over the peers, of weight times distance: from a CPU of the place, in the mean,
to the nearest CPU of the peer. Distance is 0 in one leaf (an L3), 1 in one NUMA node, and a tenth of the SLIT
distance between nodes: 1.6 to 3.2 as a rule. An anti-affinity's weight is negative: far away costs less.

Before any cost comes what holds: a place is at fault where the weights declared for the containers in its L3s are below
0 in all, and by how far it is from those that are required to be near.
"""

from __future__ import annotations

from collections.abc import Container as Keys
from collections.abc import Iterable, Mapping
from typing import Callable, Optional

from policies.affinity.pull.expressions import predicate_of
from policies.frozen import dataclass
from policies.machine.topology import LOCAL_DISTANCE, Topology
from policies.model import Affinity, AffinityTerm, Container, MatchExpression
from policies.node import Node
from policies.settings import PlacementSettings

#: What cri-resource-manager and nri-plugins give colocation by configuration.
COLOCATION_WEIGHT = 10


@dataclass(frozen=True)
class Declaration:
    """What is declared between a container and those in the books. ``weights``: by the CPUs that peers run on, how much
    they pull it, or push it away; ``required``: of those that it is to be near in any case. Keys in the books, ``apart``: of
    those that push it away; ``near``: of the required ones."""

    weights: Mapping[frozenset[int], int]
    required: Mapping[frozenset[int], int]
    apart: frozenset[str]
    near: frozenset[str]


class HeldPlaces:
    """How badly what is declared for a container is kept on some CPUs."""

    def __init__(self, topology: Topology, declaration: Declaration) -> None:
        self._topology = topology
        self._known: dict[frozenset[int], int] = {}
        #: Whether anything is declared that traffic does not outvote; else no place is at fault.
        self._holds = bool(declaration.apart or declaration.required)
        weights = declaration.weights if self._holds else {}
        self._weights = [(self._l3s(cpus), weight) for cpus, weight in weights.items()]
        self._required = list(declaration.required.items())

    def fault(self, cpus: frozenset[int]) -> int:
        """0 = all of it is kept."""
        if not self._holds:
            return 0
        found = self._known.get(cpus)
        if found is None:
            here = self._l3s(cpus)
            total = sum([weight for l3s, weight in self._weights if not here.isdisjoint(l3s)])
            far = sum(
                [weight * steps_apart(self._topology, cpus, theirs) for theirs, weight in self._required]
            )
            found = self._known[cpus] = max(0, -total) + far
        return found

    def _l3s(self, cpus: frozenset[int]) -> frozenset[int]:
        caches = enumerate(self._topology.caches)
        return frozenset([index for index, cache in caches if not cache.cpus.isdisjoint(cpus)])


#: The domains that two containers can have in common, nearest first.
STEPS = ("l3", "numa", "socket")


def steps_apart(topology: Topology, cpus: frozenset[int], others: frozenset[int]) -> int:
    """The first of ``STEPS`` that some CPUs have in common, by its index; as many as there are = none."""
    if not cpus or not others:
        return 0
    for index, level in enumerate(STEPS):
        boxes = topology.caches if level == "l3" else topology.at(level)
        if any(not box.cpus.isdisjoint(cpus) and not box.cpus.isdisjoint(others) for box in boxes):
            return index
    return len(STEPS)


class DeclaredAffinity:
    """The pull of one container's peers. ``weights``: by the CPUs a peer runs on, how much it pulls, summed up; ``held``:
    what holds whatever they are."""

    def __init__(
        self,
        topology: Topology,
        weights: Iterable[tuple[frozenset[int], int]],
        held: Optional[HeldPlaces] = None,
    ) -> None:
        self._held = held
        leaf_of = {cpu: index for index, leaf in enumerate(topology.leaves) for cpu in leaf.cpus}
        pull = _pull_by_leaf(topology, leaf_of, weights)
        self._pull = {cpu: pull[index] for cpu, index in leaf_of.items()}

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        """Weight times distance of these CPUs from the peers; lower is better, 0 = all of them are here."""
        pull = self._pull
        # Whole numbers until the end: the order of the CPUs makes no difference.
        return sum([pull.get(cpu, 0) for cpu in cpus]) / (len(cpus) * LOCAL_DISTANCE) if cpus else 0.0

    def fault(self, container: Container, cpus: frozenset[int]) -> int:
        """How badly what holds is kept on these CPUs."""
        return 0 if self._held is None else self._held.fault(cpus)


class Combined:
    """Two affinities as one: their costs are added."""

    def __init__(self, first: Affinity, second: Affinity) -> None:
        self.first = first
        self.second = second

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        return self.first.cost(container, cpus) + self.second.cost(container, cpus)

    def fault(self, container: Container, cpus: frozenset[int]) -> int:
        return self.first.fault(container, cpus) + self.second.fault(container, cpus)


def peers_of(node: Node, container: Container, settings: PlacementSettings) -> Optional[Affinity]:
    """The pull of those in the books on a container that is not (or on its next attempt); None = there is none."""
    declaration = declaration_of(node, container, settings)
    if not declaration.weights:
        return None
    return DeclaredAffinity(
        node.topology, declaration.weights.items(), HeldPlaces(node.topology, declaration)
    )


def declaration_of(node: Node, container: Container, settings: PlacementSettings) -> Declaration:
    """What is declared between a container and those in the books that run somewhere."""
    by_key: dict[str, int] = {}
    required: dict[frozenset[int], int] = {}
    near: set[str] = set()
    # 1. Containers that its own terms mean; without terms, those of its pod or namespace. 2. Those with terms that
    #    mean it.
    for key, term in (*_meant(node, container, settings), *_meaning(node, container)):
        cpus = node.residents[key].cpus
        if cpus:
            by_key[key] = by_key.get(key, 0) + term.weight
            if term.required:
                required[cpus] = required.get(cpus, 0) + term.weight
                near.add(key)
    # 3. A place that draws and pushes a container alike does not move it.
    weights: dict[frozenset[int], int] = {}
    for key, weight in by_key.items():
        cpus = node.residents[key].cpus
        weights[cpus] = weights.get(cpus, 0) + weight
    return Declaration(
        {cpus: weight for cpus, weight in weights.items() if weight},
        required,
        frozenset([key for key, weight in by_key.items() if weight < 0]),
        frozenset(near),
    )


def _meant(
    node: Node, container: Container, settings: PlacementSettings
) -> Iterable[tuple[str, AffinityTerm]]:
    for term in terms_of(container, settings):
        matches = predicate_of(term.match)
        for key in in_scope(node, term.scope):
            peer = node.residents[key].container
            if peer is not None and matches(peer) and not is_same(peer, container):
                yield key, term


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


def _meaning(node: Node, container: Container) -> Iterable[tuple[str, AffinityTerm]]:
    # Replicas repeat each other's terms: a condition is held against the container once.
    known: dict[MatchExpression, bool] = {}

    def means(condition: MatchExpression) -> bool:
        if condition not in known:
            known[condition] = predicate_of(condition)(container)
        return known[condition]

    for key, peer, terms in _with_terms(node):
        for term in terms:
            if (
                _scope_has(term.scope, container, means)
                and means(term.match)
                and not is_same(peer, container)
            ):
                yield key, term


def _with_terms(node: Node) -> list[tuple[str, Container, tuple[AffinityTerm, ...]]]:
    return [
        (key, resident.container, resident.container.preferences.affinity)
        for key, resident in node.with_terms.items()
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
#: The same of a term that traffic does not outvote.
MOST_HELD = 200


class DeclaredEdges:
    """The weights that are declared between some containers in the books; built one container after another."""

    def __init__(self, node: Node, settings: PlacementSettings, keys: Iterable[str]) -> None:
        self._node = node
        self._settings = settings
        self._known = frozenset(keys)
        # Replicas repeat each other's terms: what one means is found out once.
        self._means: dict[tuple[MatchExpression, MatchExpression], list[tuple[str, Container]]] = {}
        self._found: dict[tuple[str, str], int] = {}
        self._required: dict[tuple[str, str], int] = {}
        self._by_configuration: set[tuple[str, str, MatchExpression]] = set()

    def add(self, key: str) -> None:
        """Add the terms of one of them, or of the configuration for it."""
        container = self._node.residents[key].container
        for term in () if container is None else terms_of(container, self._settings):
            name = (term.scope, term.match)
            if name not in self._means:
                self._means[name] = _meant_among(self._node, self._known, *name)
            most = MOST_HELD if term.required or term.weight < 0 else MOST_MEANT
            if container is None or len(self._means[name]) > most:
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
        if term.required:
            self._required[pair] = self._required.get(pair, 0) + term.weight

    @property
    def required(self) -> dict[tuple[str, str], int]:
        """The pairs that are required to be near, in the same way."""
        return dict(sorted(self._required.items()))

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
