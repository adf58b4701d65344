"""From the engine to the planner's question: the machine with what is left of it, the containers, what they exchange.

A container can be moved among domains of its level that it would have been given at its create. All others are
fixed: what they are charged is taken off the capacities, and those that talk to another stand where they are, so
that they pull. What is declared counts as traffic. The answer is read in ``moves.py``.

For 1,000 containers that takes some ten milliseconds, so it is done in slices between which calls can pass (design
rule 13). They all read one state: their caller starts anew when the engine has changed in between.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cri_proxy.affinity.moves import describe, plan_of
from cri_proxy.affinity.problem_snapshot import PlanningSnapshot, StayingContainer
from cri_proxy.affinity.settings import AffinitySettings, affinity_settings
from cri_proxy.affinity.sites import CandidateDomains
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.moves import being_resized, may_move
from cri_proxy.engine.records import Grant, Life
from policies.affinity.graph.traffic import LEAST_TRUST, Traffic
from policies.affinity.planner.problem import Problem, Tree, Vertex
from policies.affinity.pull.declared_edges import DeclaredEdges, declares_any
from policies.affinity.pull.observed import keys_of
from policies.model import used_milli
from policies.node import NANO_PER_MILLI, Node

__all__ = [
    "AffinitySettings",
    "PlanningSnapshot",
    "affinity_settings",
    "describe",
    "plan_of",
    "snapshot_of",
    "snapshot_slices",
]

#: What a container that asks for nothing counts, lest any number of them is put into one L3: kubelet runs 110 pods a
#: node by default, so that as many fill eleven CPUs.
NOMINAL_MILLI = 100
#: Containers, those whose terms are read, and edges that are looked at in one slice: about a millisecond.
SLICE, TERMS_SLICE, EDGES_SLICE = 100, 20, 1000

NO_SIZES: Mapping[str, int] = {}

_T = TypeVar("_T")
#: What is done in slices: it yields after each, and returns what comes of all.
Slices = Generator[None, None, _T]
#: By key in the books: the site a container is at, and those it may have.
Movable = Mapping[str, tuple[int, tuple[int, ...]]]
#: Lines a second by key in the books, and by the greater key of the pair.
Weights = dict[str, dict[str, float]]


@dataclass(frozen=True)
class _Ground:
    """What all of a question is made from. By key in the books, ``memory``: bytes; ``fills``: lines a second from memory."""

    engine: Engine
    settings: AffinitySettings
    at_s: float
    sites: CandidateDomains
    memory: Mapping[str, int]
    fills: Mapping[str, int]


@dataclass(frozen=True)
class _Vertices:
    """The containers of a question while it is made, by their keys in the books."""

    movable: Movable
    fixed: Mapping[str, int]


@dataclass(frozen=True)
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
    fills: Mapping[str, int] = NO_SIZES,
) -> Slices[PlanningSnapshot]:
    """What the planner is to be asked about the engine, and the traffic it knows of, as they are now.

    ``memory_in_use``: bytes by id; of those not in it the memory limit is taken, or the request. ``fills``: lines a second
    that containers fetch from memory, by id, as far as that was counted.
    """
    traffic = engine.traffic
    counted = {
        key: count
        for key, count in fills.items()
        if settings.repel and count >= settings.least_fills
        if key in engine.grants and key in engine.node.residents
    }
    ground = _Ground(
        engine,
        settings,
        now_s,
        CandidateDomains(engine.host.topology),
        _memory(engine, memory_in_use),
        counted,
    )
    yield
    # 1. Which may be moved, and where to.
    movable, kept = yield from _movable(ground)
    # 2. Which pulls which; those that may not be moved pull, and push, from where they are.
    weights = yield from _weights(engine, traffic, settings)
    vertices = _Vertices(movable, _fixed(ground, weights, movable))
    yield
    # 3. What the others leave of each leaf.
    capacities = yield from _capacities(ground, movable)
    tree = replace(ground.sites.tree(capacities, settings), free_bytes=dict(engine.node.free_memory))
    yield
    # 4. All of it as the planner knows it, and what is needed to understand its answer.
    problem = yield from _problem(ground, vertices, weights, tree)
    near = yield from _near(problem)
    rates = yield from _rates(traffic, settings)
    return PlanningSnapshot(
        engine.version,
        now_s,
        problem,
        paths={
            key: engine.grants[key].container.path
            for key in (*[vertex.key for vertex in problem.vertices], *kept.distrusted)
        },
        was={key: engine.grants[key].placement for key in movable},
        homes=tuple(ground.sites.homes),
        rates=rates,
        near=near,
        move_exclusive=settings.move_exclusive,
        cooling=tuple(kept.cooling),
        distrusted=tuple(kept.distrusted),
        staying=kept.staying,
    )


def snapshot_of(
    engine: Engine,
    settings: AffinitySettings,
    now_s: float,
    memory_in_use: Mapping[str, int] = NO_SIZES,
    fills: Mapping[str, int] = NO_SIZES,
) -> PlanningSnapshot:
    """The same in one go."""
    slices = snapshot_slices(engine, settings, now_s, memory_in_use, fills)
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
    resized = being_resized(engine.ledger)
    survey = engine.node.survey()
    found = {}
    kept = _Kept([], [], {})
    for keys in _sliced(sorted(engine.grants)):
        for key in keys:
            grant = engine.grants[key]
            is_ours = may_move(engine.ledger, grant, settings.move_exclusive, resized)
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
    """The sites that those that pull or push others, and may not be moved, stand in."""
    pulling = weights.keys() | {key for row in weights.values() for key in row} | ground.fills.keys()
    residents = ground.engine.node.residents
    return {
        key: ground.sites.around(residents[key].cpus)
        for key in pulling
        if key not in movable and residents[key].cpus
    }


def _demand_milli(grant: Grant) -> int:
    container = grant.container
    return max(container.resources.milli_request, used_milli(container)) or NOMINAL_MILLI


def _capacities(ground: _Ground, movable: Movable) -> Slices[list[int]]:
    """What the movable containers may fill of each leaf, in milli-CPUs."""
    node = ground.engine.node
    survey = node.survey()
    # 1. What is charged on the shared CPUs of each leaf, without the movable ones.
    charged = list(survey.charge_nano)
    by_set: dict[frozenset[int], int] = {}
    owned: dict[int, int] = {}
    leaf_of = node.leaf_of
    for key in movable:
        resident = node.resident(key)
        for cpus, nano, _ in resident.charges():
            by_set[cpus] = by_set.get(cpus, 0) + nano
        for cpu in resident.exclusive:
            owned[leaf_of[cpu]] = owned.get(leaf_of[cpu], 0) + 1000
    for cpus, nano in by_set.items():
        for leaf in {leaf_of[cpu] for cpu in cpus}:
            charged[leaf] -= nano * len(survey.cpus[leaf] & cpus)
    # A milli-CPU more, for what is lost in rounding.
    capacities = [
        max(0, cap * 1000 - charge // NANO_PER_MILLI) + owned.get(leaf, 0) + 1
        for leaf, (cap, charge) in enumerate(zip(survey.caps, charged))
    ]
    yield
    # 2. A leaf that only what is not requested overfills is not overfull.
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


def _weights(engine: Engine, traffic: Traffic, settings: AffinitySettings) -> Slices[Weights]:
    """Of each pair of containers that pull each other, or are to be kept apart."""
    node, resized = engine.node, {t.key for t in engine.tickets.values() if t.target}
    weights: Weights = {}
    for ends in _sliced(list(traffic.edges) if settings.enabled else []):
        for end in ends:
            _add_seen(weights, node, end, traffic.edges[end])
        yield
    if not declares_any(node, engine.policy.settings):
        return weights
    known = [key for key in sorted(engine.grants) if key not in resized]
    declared = DeclaredEdges(node, engine.policy.settings, known)
    for keys in _sliced(known, TERMS_SLICE):
        for key in keys:
            declared.add(key)
        yield
    for (a, b), count in declared.weights.items():
        row = weights.setdefault(a, {})
        row[b] = row.get(b, 0.0) + count * settings.declared_weight
    yield
    return weights


def _add_seen(weights: Weights, node: Node, a: str, others: Mapping[str, float]) -> None:
    """Add the traffic of one endpoint with those that come after it: each pair is there both ways."""
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


def _problem(ground: _Ground, vertices: _Vertices, weights: Weights, tree: Tree) -> Slices[Problem]:
    grants = ground.engine.grants
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
                listed.append(Vertex(key, milli, here, choice, memory, shares, ground.fills.get(key, 0)))
            else:
                # What it is charged is not there to be filled.
                here = vertices.fixed[key]
                listed.append(Vertex(key, 0, here, (here,), fills=ground.fills.get(key, 0)))
            row = weights.get(key, {})
            edges += [(index[key], index[b], row[b]) for b in sorted(row) if row[b] and b in index]
        yield
    return Problem(tree, tuple(listed), tuple(edges), ground.settings.plan)


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
