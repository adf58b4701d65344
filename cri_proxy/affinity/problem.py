"""From the engine to the planner's question: the machine's free room, the containers, their traffic.

A container can be moved among domains of its level that it would have been given at its create. All others are
fixed: what they are charged is taken off the capacities, and the peers of movable ones stand where they are, so
that they pull. Declared affinity counts as traffic; what is declared to be apart, or required to be near, is held
whatever the traffic, and between two that are to be apart there is none. The answer is read in ``moves.py``.

For 1,000 containers that takes some ten milliseconds, so it is done in slices between which calls can pass (design
rule 13). They all read one state: their caller starts anew when the engine has changed in between.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Optional, TypeVar

from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, Life
from cri_proxy.engine.moves import being_resized, may_move
from policies.affinity.graph.traffic import LEAST_TRUST, Traffic
from policies.affinity.planner.distances import distance_ns, tree_of
from policies.affinity.planner.problem import HeldPair, Problem, Tree, Vertex
from policies.affinity.pull.declared import DeclaredEdges, declares_any
from policies.affinity.pull.observed import keys_of
from policies.frozen import frozen
from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology
from policies.model import BATCH, PROTECTED, Placement, used_milli, wanted_milli
from policies.node import NANO_PER_MILLI, Capacity, Node, charges
from policies.settings import PlacementSettings
from policies.wanted import hinted_nodes, missed_hints


@frozen
class StayingContainer:
    """A container that could be moved but stays: ``at``, ``sites`` and ``milli`` as in ``Vertex``, where it has but the
    present site and a demand of nothing. ``until_s``: the end of its cooldown; 0 = it waits for trust."""

    at: int
    sites: tuple[int, ...]
    milli: int
    until_s: float


@frozen
class PlanningSnapshot:
    """Made by ``question_of`` at ``at_s`` from the engine's state of ``version``.

    The planner needs ``problem`` alone. ``paths``: namespace/pod/container by the vertices' keys; ``was``: the
    placements of movable containers; ``homes``: the CPUs of the sites; ``rates``: bytes a second by pair;
    ``near``: the edges of each vertex, as weight and index of the other end. ``cooling``: the keys of containers that
    stay since a plan has moved them; ``distrusted``: of containers that stay since too little of their traffic was seen.
    ``staying``: those of both that there is another site for.
    """

    version: int
    at_s: float
    problem: Problem
    paths: Mapping[str, str] = field(default_factory=dict)
    was: Mapping[str, Placement] = field(default_factory=dict)
    homes: tuple[frozenset[int], ...] = ()
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    near: Sequence[Sequence[tuple[float, int]]] = ()
    cooling: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    staying: Mapping[str, StayingContainer] = field(default_factory=dict)


#: What a container that asks for nothing counts, lest any number of them is put into one L3: kubelet runs 110 pods a
#: node by default, so that as many fill eleven CPUs.
NOMINAL_MILLI = 100
#: Containers, containers with terms to read, and edges that are looked at in one slice: about a millisecond.
SLICE, TERMS_SLICE, EDGES_SLICE = 100, 20, 1000
#: For so long the search takes the same chances. The weights of steady flows stand still, so that with the same ones it
#: would find the same as the last time.
CHANCES_S = 60.0

#: What begins the key of a vertex that is no container: it stands for a domain.
DOMAIN = "domain:"
NO_SIZES: Mapping[str, int] = {}

_T = TypeVar("_T")
#: Work in slices: it yields after each, and returns the result of all.
Slices = Generator[None, None, _T]
#: By key in the books: the site a container is at, and those it may have.
Movable = Mapping[str, tuple[int, tuple[int, ...]]]
#: Lines a second by key in the books, and by the greater key of the pair.
Weights = dict[str, dict[str, float]]


@frozen
class _Ground:
    """The ground of a question. By key in the books, ``memory``: bytes."""

    engine: Engine
    settings: AffinitySettings
    at_s: float
    sites: CandidateDomains
    memory: Mapping[str, int]


@frozen
class _Pulls:
    """``weights``: of pairs that pull each other, or push each other away. By pair, lesser key first, ``apart`` and
    ``near``: the declared weights that traffic does not outvote."""

    weights: Weights
    apart: Mapping[tuple[str, str], int]
    near: Mapping[tuple[str, str], int]


@frozen
class _Vertices:
    """The containers of a question while it is made, by their keys in the books."""

    movable: Movable
    fixed: Mapping[str, int]


@frozen
class _Kept:
    """Containers that could be moved, and stay: as in ``PlanningSnapshot``."""

    cooling: list[str]
    distrusted: list[str]
    staying: dict[str, StayingContainer]


def snapshot_slices(
    engine: Engine,
    settings: AffinitySettings,
    now_s: float,
    memory_in_use: Mapping[str, int] = NO_SIZES,
    strained: Collection[frozenset[int]] = (),
) -> Slices[PlanningSnapshot]:
    """The planner's question about the engine, and the traffic it knows of, as they are now.

    ``memory_in_use``: bytes by id; of those not in it the memory limit is taken, or the request. ``strained``: domains
    that one batch container each is to leave, by their CPUs.
    """
    traffic = engine.traffic
    ground = _Ground(
        engine,
        settings,
        now_s,
        CandidateDomains(engine.host.topology),
        _memory(engine, memory_in_use),
    )
    yield
    # 1. Which may be moved, and where to.
    movable, kept = yield from _movable(ground)
    # 2. The pulls; containers that may not be moved pull from where they are.
    pulls = yield from _pulls(engine, traffic, settings)
    vertices = _Vertices(movable, {**_fixed(ground, pulls.weights, movable), **_company(ground, movable)})
    yield
    # 3. What the others leave of each leaf.
    capacities = yield from _capacities(ground, movable)
    tree = replace(ground.sites.tree(capacities, settings), free_bytes=dict(engine.node.free_memory))
    yield
    # 4. All of it as the planner knows it, and the facts needed to read its answer.
    problem = yield from _problem(ground, vertices, pulls, tree)
    for cpus in strained:
        problem = _relieved(ground, problem, movable, cpus)
    near = yield from _near(problem)
    rates = yield from _rates(traffic, settings)
    return PlanningSnapshot(
        engine.version,
        now_s,
        problem,
        paths={
            key: engine.grants[key].container.path
            for key in (*[vertex.key for vertex in problem.vertices], *kept.distrusted)
            if not key.startswith(DOMAIN)
        },
        was={key: engine.grants[key].placement for key in movable},
        homes=tuple(ground.sites.homes),
        rates=rates,
        near=near,
        cooling=tuple(kept.cooling),
        distrusted=tuple(kept.distrusted),
        staying=kept.staying,
    )


def snapshot_of(
    engine: Engine,
    settings: AffinitySettings,
    now_s: float,
    memory_in_use: Mapping[str, int] = NO_SIZES,
    strained: Collection[frozenset[int]] = (),
) -> PlanningSnapshot:
    """The same in one go."""
    slices = snapshot_slices(engine, settings, now_s, memory_in_use, strained)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            question: PlanningSnapshot = end.value
            return question


def _sliced(items: Sequence[_T], size: int = SLICE) -> Iterator[Sequence[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _memory(engine: Engine, in_use: Mapping[str, int]) -> dict[str, int]:
    sizes = {}
    for key, grant in engine.grants.items():
        asked = grant.container.resources
        sizes[key] = in_use.get(key, asked.memory_limit_bytes or asked.memory_request_bytes)
    return sizes


# ---------------------------------------------------------------------- what may be moved


def _movable(ground: _Ground) -> Slices[tuple[Movable, _Kept]]:
    """Of those that may be moved the site they are at, and those they may have, of which there are several; and those
    that are kept where they are."""
    engine, settings = ground.engine, ground.settings
    resized = being_resized(engine)
    survey = engine.node.capacity()
    found = {}
    kept = _Kept([], [], {})
    for keys in _sliced(sorted(engine.grants)):
        for key in keys:
            grant = engine.grants[key]
            is_ours = may_move(engine, grant, resized)
            is_young = ground.at_s - grant.since_s < settings.minimum_age_s
            if not is_ours or is_young or grant.life is Life.CREATING:
                continue
            cool_s = grant.moved_s + settings.cooldown_s
            is_distrusted = engine.traffic.trust.get(key, 1.0) < LEAST_TRUST
            is_cooling = not is_distrusted and grant.moved_s and ground.at_s < cool_s
            if is_distrusted:
                kept.distrusted.append(key)
            elif is_cooling:
                kept.cooling.append(key)
            here = ground.sites.of(grant)
            if here is None:
                continue
            stays = ground.memory[key] > settings.most_memory_bytes
            choice = ground.sites.choice(grant, here, survey, engine.policy.settings, stays)
            if len(choice) < 2:
                continue
            if is_distrusted or is_cooling:
                until_s = cool_s if is_cooling else 0.0
                kept.staying[key] = StayingContainer(here, choice, _demand_milli(grant), until_s)
            else:
                found[key] = (here, choice)
        yield
    return found, kept


def _fixed(ground: _Ground, weights: Weights, movable: Movable) -> dict[str, int]:
    """The sites of containers that pull others and may not be moved."""
    pulling = weights.keys() | {key for row in weights.values() for key in row}
    residents = ground.engine.node.residents
    return {
        key: ground.sites.around(residents[key].cpus)
        for key in pulling
        if key not in movable and residents[key].cpus
    }


def _class_of(engine: Engine, key: str) -> str:
    """The class of a container that is to be kept out of the others' L3s; "" = it is not."""
    kind = engine.grants[key].isolation if engine.options.keeps_apart else ""
    return kind if kind in (PROTECTED, BATCH) else ""


def _company(ground: _Ground, movable: Movable) -> dict[str, int]:
    """The sites of protected and batch containers that stay where they are."""
    engine = ground.engine
    return {
        key: ground.sites.around(engine.node.residents[key].cpus)
        for key in (engine.grants if engine.options.keeps_apart else ())
        if key not in movable and _class_of(engine, key) and engine.node.residents[key].cpus
    }


def _relieved(ground: _Ground, problem: Problem, movable: Movable, domain: frozenset[int]) -> Problem:
    """The same problem where one batch container is to leave a domain: it and what stands there are to be apart.

    Of those that another place holds it is the one with the least traffic, and of these the one with the least memory.
    """
    homes = ground.sites.homes
    pull = [0.0] * len(problem.vertices)
    for a, b, weight in problem.edges:
        pull[a] += abs(weight)
        pull[b] += abs(weight)
    there = [
        (pull[index], ground.memory[vertex.key], vertex.key, index)
        for index, vertex in enumerate(problem.vertices)
        if vertex.key in movable
        and ground.engine.grants[vertex.key].isolation == BATCH
        and not homes[vertex.at].isdisjoint(domain)
        and any(homes[site].isdisjoint(domain) for site in vertex.sites)
    ]
    if not there:
        return problem
    site = ground.sites.around(domain)
    pair = HeldPair(min(there)[3], len(problem.vertices), 1)
    stands = Vertex(f"{DOMAIN}{format_cpus(domain)}", 0, site, (site,))
    return replace(problem, vertices=(*problem.vertices, stands), held=(*problem.held, pair))


def _demand_milli(grant: ContainerRecord) -> int:
    container = grant.container
    return max(container.resources.milli_request, used_milli(container)) or NOMINAL_MILLI


def _capacities(ground: _Ground, movable: Movable) -> Slices[list[int]]:
    """The room for movable containers in each leaf, in milli-CPUs."""
    node = ground.engine.node
    survey = node.capacity()
    # 1. The charges on the shared CPUs of each leaf, without movable containers.
    charged = list(survey.charge_nano)
    by_set: dict[frozenset[int], int] = {}
    owned: dict[int, int] = {}
    leaf_of = node.leaf_of
    for key in movable:
        resident = node.residents[key]
        for cpus, nano, _ in charges(resident):
            by_set[cpus] = by_set.get(cpus, 0) + nano
        for cpu in resident.exclusive:
            owned[leaf_of[cpu]] = owned.get(leaf_of[cpu], 0) + 1000
    for cpus, nano in by_set.items():
        for leaf in {leaf_of[cpu] for cpu in cpus}:
            charged[leaf] -= nano * len(survey.cpus[leaf] & cpus)
    # A milli-CPU more, for losses in rounding.
    capacities = [
        max(0, cap * 1000 - charge // NANO_PER_MILLI) + owned.get(leaf, 0) + 1
        for leaf, (cap, charge) in enumerate(zip(survey.caps, charged))
    ]
    yield
    # 2. A leaf overfilled only beyond requests is not overfull.
    return (yield from _stretched(ground, movable, capacities))


def _stretched(ground: _Ground, movable: Movable, capacities: Sequence[int]) -> Slices[list[int]]:
    """The capacities, larger where what containers count for beyond their requests would overfill a leaf."""
    grants = ground.engine.grants
    load = [0.0] * len(capacities)
    nominal = [0.0] * len(capacities)
    for keys in _sliced(list(movable)):
        for key in keys:
            asks, counts_for = grants[key].container.resources.milli_request, _demand_milli(grants[key])
            for leaf, share in ground.sites.shares(movable[key][0], capacities):
                load[leaf] += counts_for * share
                nominal[leaf] += max(0, counts_for - asks) * share
        yield
    return [
        capacity + int(min(nominal[leaf], max(0.0, load[leaf] - capacity)) + 1)
        if nominal[leaf] and load[leaf] > capacity
        else capacity
        for leaf, capacity in enumerate(capacities)
    ]


# ---------------------------------------------------------------------- what pulls what


def _pulls(engine: Engine, traffic: Traffic, settings: AffinitySettings) -> Slices[_Pulls]:
    """Of each pair of containers that pull each other, or are to be kept apart."""
    node, resized = engine.node, {t.key for t in engine.tickets.values() if t.target}
    weights: Weights = {}
    for ends in _sliced(list(traffic.edges) if settings.enabled else []):
        for end in ends:
            _add_seen(weights, node, end, traffic.edges[end])
        yield
    if not declares_any(node, engine.policy.settings):
        return _Pulls(weights, {}, {})
    known = [key for key in sorted(engine.grants) if key not in resized]
    declared = DeclaredEdges(node, engine.policy.settings, known)
    for keys in _sliced(known, TERMS_SLICE):
        for key in keys:
            declared.add(key)
        yield
    apart = {}
    near = dict(declared.required)
    for (a, b), count in declared.weights.items():
        row = weights.setdefault(a, {})
        seen = row.get(b, 0.0) if count > 0 else 0.0
        row[b] = seen + count * settings.declared_weight
        if count < 0:
            apart[a, b] = -count
        elif (_class_of(engine, a) or _class_of(engine, b)) and _asks(engine, a, b):
            # What a meeting costs outvotes no annotation.
            near.setdefault((a, b), count)
    yield
    return _Pulls(weights, apart, near)


def _asks(engine: Engine, *keys: str) -> bool:
    return any(engine.grants[key].container.preferences.affinity for key in keys)


def _add_seen(weights: Weights, node: Node, a: str, others: Mapping[str, float]) -> None:
    """Add the traffic of one endpoint with the ones after it: each pair is there both ways."""
    residents = node.residents
    mine = keys_of(node, a)
    for b, weight in others.items() if mine else ():
        if a >= b:
            continue
        if a in residents and b in residents:
            row = weights.setdefault(a, {})
            row[b] = row.get(b, 0.0) + weight
            continue
        # An endpoint that is a pod stands for its containers.
        theirs = keys_of(node, b)
        for one in mine:
            for other in theirs:
                if one != other:
                    row = weights.setdefault(min(one, other), {})
                    pair_with = max(one, other)
                    row[pair_with] = row.get(pair_with, 0.0) + weight / (len(mine) * len(theirs))


def _problem(ground: _Ground, vertices: _Vertices, pulls: _Pulls, tree: Tree) -> Slices[Problem]:
    grants, weights = ground.engine.grants, pulls.weights
    all_keys = sorted([*vertices.movable, *vertices.fixed])
    index = {key: number for number, key in enumerate(all_keys)}
    listed: list[Vertex] = []
    edges: list[tuple[int, int, float]] = []
    for keys in _sliced(all_keys):
        for key in keys:
            if key in vertices.movable:
                here, choice = vertices.movable[key]
                shares = not grants[key].exclusive
                memory, milli = ground.memory[key], _demand_milli(grants[key])
                kind = _class_of(ground.engine, key)
                listed.append(Vertex(key, milli, here, choice, memory, shares, isolation=kind))
            else:
                # Its charge is not there to be filled.
                here = vertices.fixed[key]
                listed.append(Vertex(key, 0, here, (here,), isolation=_class_of(ground.engine, key)))
            row = weights.get(key, {})
            edges += [(index[key], index[b], row[b]) for b in sorted(row) if row[b] and b in index]
        yield
    held = tuple(
        HeldPair(index[a], index[b], weight, is_near)
        for pairs, is_near in ((pulls.apart, False), (pulls.near, True))
        for (a, b), weight in pairs.items()
        if a in index and b in index and (a in vertices.movable or b in vertices.movable)
    )
    settings = replace(ground.settings.plan, seed=int(ground.at_s / CHANCES_S))
    return Problem(tree, tuple(listed), tuple(edges), settings, held)


def _near(problem: Problem) -> Slices[tuple[list[tuple[float, int]], ...]]:
    """The edges of each vertex: weight, and index of the other end."""
    near: tuple[list[tuple[float, int]], ...] = tuple([] for _ in problem.vertices)
    for edges in _sliced(problem.edges, EDGES_SLICE):
        for a, b, weight in edges:
            near[a].append((weight, b))
            near[b].append((weight, a))
        yield
    return near


def _rates(traffic: Traffic, settings: AffinitySettings) -> Slices[dict[tuple[str, str], float]]:
    """Bytes a second by pair of endpoints."""
    rates: dict[tuple[str, str], float] = {}
    for edges in _sliced(traffic.listed if settings.enabled else (), EDGES_SLICE):
        rates.update({(edge.a, edge.b): edge.bytes_per_s for edge in edges})
        yield
    return rates


# ---------------------------------------------------------------------- sites

# The planner's sites as placements know them: the one that a container is in, and the others that it could have.

#: The levels of placements that are one domain, as the topology calls it. Containers that own CPUs are in the
#: smallest domain around them.
_DOMAINS = {
    "core": "l3",
    "cluster": "cluster",
    "ccx": "l3",
    "numa": "numa",
    "socket": "socket",
    "machine": "machine",
}


class CandidateDomains:
    """The sites of one machine, by their leaves. Made anew for each question; answers are kept while it is made."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        count = len(topology.leaves)
        zeros = tuple([(0.0,) * count] * count)
        self._sites = tree_of(topology, [0] * count, zeros).sites
        self._at = {frozenset(site.leaves): index for index, site in enumerate(self._sites)}
        #: The CPUs of each site.
        self.homes = [
            frozenset().union(*[topology.leaves[leaf].cpus for leaf in site.leaves]) for site in self._sites
        ]
        self.nodes = [topology.nodes_of(home) for home in self.homes]
        self._leaf_of = {cpu: index for index, leaf in enumerate(topology.leaves) for cpu in leaf.cpus}
        self._of_level = {
            level: tuple(sorted({self._at[frozenset(d.leaves)] for d in topology.at(kind)}))
            for level, kind in _DOMAINS.items()
        }
        self._around: dict[frozenset[int], int] = {}
        self._choices: dict[object, tuple[int, ...]] = {}
        self._of: dict[object, Optional[int]] = {}

    def tree(self, capacities: Sequence[int], settings: AffinitySettings) -> Tree:
        """The machine for the planner."""
        distances = distance_ns(self.topology, settings.l3_ns, settings.slit_ns, settings.cluster_ns)
        return tree_of(self.topology, capacities, distances)

    def around(self, cpus: frozenset[int]) -> int:
        """The smallest site that holds some CPUs."""
        if cpus not in self._around:
            leaves = self._leaves_of(cpus)
            holding = [
                (len(site.leaves), i) for i, site in enumerate(self._sites) if leaves <= {*site.leaves}
            ]
            self._around[cpus] = min(holding)[1]
        return self._around[cpus]

    def of(self, grant: ContainerRecord) -> Optional[int]:
        """The site a container was given; None if it is none of them (pairs of domains, parts of one)."""
        home, level, constraint = grant.placement.home, grant.placement.level, grant.constraint.cpus
        key = (home, level, constraint, bool(grant.exclusive))
        if key not in self._of:
            self._of[key] = self._find(grant)
        return self._of[key]

    def _find(self, grant: ContainerRecord) -> Optional[int]:
        home, constraint = grant.placement.home, grant.constraint.cpus
        equals = self._of_level.get(grant.placement.level, ())
        if grant.exclusive:
            held = home | grant.placement.exclusive
            return next((i for i in equals if held <= self.homes[i]), None)
        leaves = self._leaves_of(home)
        site = self._at.get(leaves)
        if site is None or site not in equals:
            return None
        whole = self.homes[site] if constraint is None else self.homes[site] & constraint
        return site if home == whole else None

    def choice(
        self,
        grant: ContainerRecord,
        here: int,
        survey: Capacity,
        settings: PlacementSettings,
        stays_in_node: bool,
    ) -> tuple[int, ...]:
        """The sites of a container's level that hold its CPUs, the present one among them.

        ``stays_in_node``: none on other NUMA nodes. A site that a caller's cpuset cuts is none; nor is one farther
        from the devices of the container.
        """
        hinted = hinted_nodes(grant.container, settings) if grant.container.hints else ()
        wanted = 0 if grant.exclusive else wanted_milli(grant.container)
        choice = self._holding(grant.placement.level, wanted, grant.constraint.cpus, survey)
        if hinted:
            missed = missed_hints(hinted, self.nodes[here])
            choice = tuple([site for site in choice if missed_hints(hinted, self.nodes[site]) <= missed])
        if stays_in_node:
            choice = tuple([site for site in choice if self.nodes[site] <= self.nodes[here]])
        return choice if here in choice else (here, *choice)

    def _holding(
        self, level: str, wanted: int, constraint: Optional[frozenset[int]], survey: Capacity
    ) -> tuple[int, ...]:
        """The sites of a level that hold so many milli-CPUs, and that a constraint does not cut."""
        key = (level, wanted, constraint)
        if key not in self._choices:
            usable = {site: survey.allowed(self._sites[site].leaves) for site in self._of_level[level]}
            self._choices[key] = tuple(
                site
                for site, cpus in usable.items()
                if len(cpus) * 1000 >= max(wanted, 1) and (constraint is None or cpus <= constraint)
            )
        return self._choices[key]

    def shares(self, site: int, capacities: Sequence[int]) -> list[tuple[int, float]]:
        """How the demand of a container at a site is spread over leaves: as their capacities are."""
        leaves = self._sites[site].leaves
        total = sum([capacities[leaf] for leaf in leaves])
        return [(leaf, capacities[leaf] / total if total else 1 / len(leaves)) for leaf in leaves]

    def _leaves_of(self, cpus: frozenset[int]) -> frozenset[int]:
        return frozenset([self._leaf_of[cpu] for cpu in cpus if cpu in self._leaf_of])
