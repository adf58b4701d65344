"""From the engine to the planner's question: the machine with what is left of it, the containers, who talks to whom.

A container can be moved among domains of its level that it would have been given at its create. All others are
fixed: what they are charged is taken off the capacities, and those who talk to somebody stand where they are, so
that they pull. What is declared counts as traffic. The answer is read in ``proposals.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

from cri_proxy.core.affinity_settings import AffinitySettings, affinity_settings
from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Grant, Life
from cri_proxy.core.moves import being_resized, may_move
from cri_proxy.core.proposals import describe, plan_of
from cri_proxy.core.question import Question
from cri_proxy.core.sites import Sites
from policies.affinity.declared_edges import declared_edges
from policies.affinity.observed import keys_of
from policies.affinity.problem import Problem, Tree, Vertex
from policies.affinity.traffic import Traffic
from policies.node import NANO_PER_MILLI

__all__ = ["AffinitySettings", "Question", "affinity_settings", "describe", "plan_of", "question_of"]

#: What a container that asks for nothing counts, lest any number of them is put into one L3: kubelet runs 110 pods a
#: node by default, so that as many fill eleven CPUs.
NOMINAL_MILLI = 100


@dataclass
class _Vertices:
    """The containers of a question while it is made, by their keys in the books."""

    movable: dict[str, tuple[int, tuple[int, ...]]]
    fixed: dict[str, int] = field(default_factory=dict)


def question_of(
    engine: Engine,
    traffic: Traffic,
    settings: AffinitySettings,
    now_s: float,
    fixed: Iterable[str] = (),
    memory_in_use: Optional[Mapping[str, int]] = None,
) -> Question:
    """What the planner is to be asked about the engine as it is now.

    ``fixed``: ids that are not to be moved, for whatever reason. ``memory_in_use``: bytes by id; of those not in it
    the memory limit is taken, or the request.
    """
    sites = Sites(engine.host.topology)
    memory = _memory(engine, memory_in_use or {})
    # 1. Who may be moved, and where to.
    movable = _movable(engine, sites, settings, now_s, frozenset(fixed), memory)
    # 2. Who pulls whom; those who may not be moved pull from where they are.
    vertices = _Vertices(movable)
    weights = _weights(engine, traffic, settings)
    for key in sorted({key for pair in weights for key in pair} - movable.keys()):
        cpus = engine.node.residents[key].cpus
        if cpus:
            vertices.fixed[key] = sites.around(cpus)
    # 3. What the others leave of each leaf.
    tree = sites.tree(_capacities(engine, sites, movable), settings)
    problem = _problem(engine, vertices, weights, memory, tree, settings)
    return Question(
        engine.version,
        now_s,
        problem,
        paths={vertex.key: engine.grants[vertex.key].container.path for vertex in problem.vertices},
        was={key: engine.grants[key].placement for key in movable},
        homes=tuple(sites.homes),
        rates={(edge.a, edge.b): edge.bytes_per_s for edge in traffic.listed if settings.enabled},
        move_exclusive=settings.move_exclusive,
    )


def _memory(engine: Engine, in_use: Mapping[str, int]) -> dict[str, int]:
    sizes = {}
    for key, grant in engine.grants.items():
        asked = grant.container.resources
        sizes[key] = in_use.get(key, asked.memory_limit_bytes or asked.memory_request_bytes)
    return sizes


# ---------------------------------------------------------------------- who may be moved


def _movable(
    engine: Engine,
    sites: Sites,
    settings: AffinitySettings,
    now_s: float,
    fixed: frozenset[str],
    memory: Mapping[str, int],
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """By key: the site a container is at, and those it may have, of which there are several."""
    books = engine.books
    resized = being_resized(books)
    survey = engine.node.survey()
    found = {}
    for key, grant in sorted(engine.grants.items()):
        is_ours = may_move(books, grant, settings.move_exclusive, resized)
        is_young = now_s - grant.since_s < settings.minimum_age_s
        if not is_ours or is_young or grant.life is Life.CREATING or key in fixed:
            continue
        here = sites.of(grant)
        if here is None:
            continue
        stays = memory[key] > settings.most_memory_bytes
        choice = sites.choice(grant, here, survey, engine.policy.settings, stays)
        if len(choice) > 1:
            found[key] = (here, choice)
    return found


def _demand_milli(grant: Grant) -> int:
    return grant.container.resources.milli_request or NOMINAL_MILLI


def _capacities(
    engine: Engine, sites: Sites, movable: Mapping[str, tuple[int, tuple[int, ...]]]
) -> list[int]:
    """What the movable containers may fill of each leaf, in milli-CPUs."""
    survey, grants = engine.node.survey(), engine.grants
    # 1. What is charged on the shared CPUs of each leaf, without the movable ones.
    charged = list(survey.charge_nano)
    by_set: dict[frozenset[int], int] = {}
    owned: dict[int, int] = {}
    leaf_of = engine.node.leaf_of
    for key in movable:
        resident = engine.node.residents[key]
        by_set[resident.cpus] = by_set.get(resident.cpus, 0) + resident.nano_per_cpu()[0]
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
    # 2. A leaf that only containers without a request overfill is not overfull.
    load = [0.0] * len(capacities)
    nominal = [0.0] * len(capacities)
    for key, (here, _) in movable.items():
        shares = sites.shares(here, capacities)
        asks = grants[key].container.resources.milli_request
        for leaf, share in shares:
            load[leaf] += _demand_milli(grants[key]) * share
            nominal[leaf] += 0 if asks else NOMINAL_MILLI * share
    return [
        capacity + int(min(nominal[leaf], max(0.0, load[leaf] - capacity)) + 1)
        if nominal[leaf] and load[leaf] > capacity
        else capacity
        for leaf, capacity in enumerate(capacities)
    ]


# ---------------------------------------------------------------------- who pulls whom


def _weights(engine: Engine, traffic: Traffic, settings: AffinitySettings) -> dict[tuple[str, str], float]:
    """Lines a second by pair of keys in the books, the lesser first."""
    node, resized = engine.node, {t.key for t in engine.tickets.values() if t.target}
    residents = node.residents
    weights: dict[tuple[str, str], float] = {}
    for a, others in traffic.edges.items() if settings.enabled else ():
        mine = keys_of(node, a)
        for b, weight in others.items() if mine else ():
            if a >= b:  # each pair is there both ways
                continue
            if a in residents and b in residents:
                weights[a, b] = weights.get((a, b), 0.0) + weight
                continue
            # An endpoint that is a pod stands for its containers.
            theirs = keys_of(node, b)
            for one in mine:
                for other in theirs:
                    if one != other:
                        pair = (one, other) if one < other else (other, one)
                        weights[pair] = weights.get(pair, 0.0) + weight / (len(mine) * len(theirs))
    known = [key for key in sorted(engine.grants) if key not in resized]
    for pair, count in declared_edges(node, engine.policy.settings, known).items():
        weights[pair] = weights.get(pair, 0.0) + count * settings.declared_weight
    return weights


def _problem(
    engine: Engine,
    vertices: _Vertices,
    weights: Mapping[tuple[str, str], float],
    memory: Mapping[str, int],
    tree: Tree,
    settings: AffinitySettings,
) -> Problem:
    keys = sorted([*vertices.movable, *vertices.fixed])
    index = {key: number for number, key in enumerate(keys)}
    listed = []
    for key in keys:
        if key in vertices.movable:
            here, choice = vertices.movable[key]
            listed.append(Vertex(key, _demand_milli(engine.grants[key]), here, choice, memory[key]))
        else:
            # What it is charged is not there to be filled.
            here = vertices.fixed[key]
            listed.append(Vertex(key, 0, here, (here,)))
    edges = sorted(
        (index[a], index[b], weight)
        for (a, b), weight in weights.items()
        if weight and a in index and b in index
    )
    return Problem(tree, tuple(listed), tuple(edges), settings.plan)
