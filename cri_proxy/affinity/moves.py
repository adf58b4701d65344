"""The planner's answer, read: as moves for the engine, and in words for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from heapq import nsmallest
from itertools import groupby
from typing import Any, Optional, TypeVar

from cri_proxy.affinity.pressure_guard import Ban
from cri_proxy.affinity.problem_snapshot import PlanningSnapshot
from cri_proxy.affinity.repelling import fills_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.moves import MOST_PEERS, being_resized, may_move
from cri_proxy.engine.peer_text import NAMED, bytes_text
from cri_proxy.engine.records import Life, Move, Plan
from policies.affinity.graph.traffic import LEAST_TRUST, LINE_BYTES
from policies.affinity.planner.problem import NOTHING_BETTER, Proposal, ProposedMove

#: A move of a proposal, or of a plan.
AnyMove = TypeVar("AnyMove", ProposedMove, Move)


def plan_of(
    engine: Engine,
    question: PlanningSnapshot,
    proposal: Proposal,
    most_moves: int,
    now_s: Optional[float] = None,
) -> Plan:
    """The first ``most_moves`` moves of a proposal that still hold: the container is where the move begins.

    Moves that are made already do not hold any more, so that asking again gives the next ones. ``now_s``: for the
    records; else when the question was asked. A container that goes by way of a third place is one move here. An
    exchange is never cut: it is there whole, though it be more than ``most_moves`` by itself, or not at all.
    """
    words = _Words(question, proposal)
    ledger, resized = engine.ledger, being_resized(engine.ledger)
    at, gains = _positions(engine, question, proposal), gains_of(proposal.moves)
    chosen: dict[str, Move] = {}

    def holds(move: ProposedMove) -> bool:
        grant = engine.grants.get(move.key)
        return (
            grant is not None
            and at.get(move.key) == move.source
            and grant.life is not Life.CREATING
            and may_move(ledger, grant, question.move_exclusive, resized)
        )

    for together in in_exchanges(proposal.moves):
        if not all(map(holds, together)):
            continue
        more = sum([move.key not in chosen for move in together])
        # A container that has moved before it changes places, or moves on after it, does so the next time.
        if any(m.key in chosen and (m.exchange or chosen[m.key].exchange) for m in together):
            break
        if more and len(chosen) + more > most_moves and (chosen or most_moves < 1):
            break
        for move in together:
            at[move.key] = move.target
            was = engine.grants[move.key].placement
            home, exchange = question.homes[move.target], move.exchange
            chosen[move.key] = Move(
                move.key,
                home,
                was.level,
                words.of(move.key),
                was,
                exchange,
                gains[move.key],
                words.peers(move.key),
            )
    moves = tuple(chosen.values())
    version = engine.version
    at_s = question.at_s if now_s is None else now_s
    return Plan(version, moves, f"plan: {proposal.why}", at_s, question.move_exclusive)


def without_banned(question: PlanningSnapshot, proposal: Proposal, bans: Collection[Ban]) -> Proposal:
    """The same proposal without the containers that it would bring to where they must not go."""
    keys = {
        move.key
        for together in in_exchanges(proposal.moves)
        if any((one.key, question.homes[one.target]) in bans for one in together)
        for move in together
    }
    return replace(proposal, moves=tuple(move for move in proposal.moves if move.key not in keys))


def gains_of(moves: Iterable[ProposedMove]) -> dict[str, float]:
    """What the moves of each container save, as CPU-seconds a second; of those of an exchange, what all of it saves."""
    gains: dict[str, float] = {}
    for together in in_exchanges(moves):
        gain = sum([move.gain for move in together])
        for move in together:
            gains[move.key] = gains.get(move.key, 0.0) + gain
    return gains


def in_exchanges(moves: Iterable[AnyMove]) -> Iterator[tuple[AnyMove, ...]]:
    """The moves as they are to be made: those of an exchange together, every other one by itself."""
    for _, together in groupby(enumerate(moves), lambda each: -each[1].exchange or each[0] + 1):
        yield tuple([move for _, move in together])


def _positions(engine: Engine, question: PlanningSnapshot, proposal: Proposal) -> dict[str, int]:
    """The sites of those the proposal moves, as far as they are where the question has them, or where it moves them."""
    first = {vertex.key: vertex.at for vertex in question.problem.vertices}
    found: dict[str, int] = {}
    for move in proposal.moves:
        grant = engine.grants.get(move.key)
        if grant is None or move.key not in question.was:
            continue
        fence, home = grant.fence.cpus, grant.placement.home
        target = question.homes[move.target] if fence is None else question.homes[move.target] & fence
        if home == question.was[move.key].home:
            found.setdefault(move.key, first[move.key])
        elif home == target or (grant.exclusive and home <= target):
            found[move.key] = move.target
    return found


def waits_for(question: PlanningSnapshot, proposal: Optional[Proposal]) -> list[str]:
    """What a better placement waits for (cooldown, trust, room, that it pays): what follows "waits", of each."""
    sentences = []
    if question.cooling:
        count = len(question.cooling)
        sentences.append(f"for affinity.cooldown: {count} container{'s' if count > 1 else ''} moved lately")
    if question.distrusted:
        count = len(question.distrusted)
        first_path = question.paths.get(question.distrusted[0], question.distrusted[0])
        which = f"{count} container{'s' if count > 1 else ''}"
        sentences.append(
            f"for trust: less than {LEAST_TRUST:.0%} of the traffic of {which} was seen, "
            f"as tables were full: {first_path}{' and others' if count > 1 else ''}"
        )
    if proposal is not None and proposal.blocked:
        paths = question.paths
        first = proposal.blocked[0]
        behind = ", ".join(paths.get(key, key) for key in first.behind)
        sentences.append(
            f"for room: {proposal.out_of_reach * 1000:.1f} mCPU more could be saved if {len(proposal.blocked)} could move; "
            f"{paths.get(first.key, first.key)} waits for the place of {behind}, and {first.why}"
        )
    if proposal is not None and not proposal.accepted and not proposal.why.startswith(NOTHING_BETTER):
        sentences.append(f"until it pays: {proposal.why}")
    return sentences


def describe(question: PlanningSnapshot, proposal: Proposal) -> list[dict[str, Any]]:
    """The moves for people: container, from, to, gain (CPU-seconds a second), why."""
    words, sites = _Words(question, proposal), question.problem.tree.sites
    return [
        {
            "id": move.key,
            "container": question.paths.get(move.key, move.key),
            "from": sites[move.source].name if move.source >= 0 else "",
            "to": sites[move.target].name,
            "gain": move.gain,
            "exchange": move.exchange,
            "why": words.of(move.key),
        }
        for move in proposal.moves
    ]


def _caches(question: PlanningSnapshot) -> list[frozenset[int]]:
    """By site, the L3s that it has CPUs of."""
    leaves = question.problem.tree.leaves
    numbers = [leaf.cache if leaf.cache >= 0 else -1 - index for index, leaf in enumerate(leaves)]
    return [frozenset([numbers[leaf] for leaf in site.leaves]) for site in question.problem.tree.sites]


class _Words:
    """Why each container is moved: what it is near afterwards, and what it is kept apart from."""

    def __init__(self, question: PlanningSnapshot, proposal: Proposal) -> None:
        self._question = question
        vertices, sites = question.problem.vertices, question.problem.tree.sites
        after = {move.key: move.target for move in proposal.moves}
        self._leaves = [frozenset(site.leaves) for site in sites]
        self._at = [after.get(vertex.key, vertex.at) for vertex in vertices]
        self._caches = _caches(question)
        self._filling = [number for number, vertex in enumerate(vertices) if vertex.fills]
        self._index = {vertex.key: index for index, vertex in enumerate(vertices) if vertex.key in after}
        self._with = {
            move.key: [question.paths.get(other.key, other.key) for other in together if other is not move]
            for together in in_exchanges(proposal.moves)
            for move in together
        }

    def of(self, key: str) -> str:
        """``to be near default/web-1/nginx (12.3 MB/s)``, for the three strongest of those it is near then; and the
        containers it changes places with."""
        partners = f"; it changes places with {', '.join(self._with[key])}" if self._with.get(key) else ""
        return self._why(self._index[key]) + partners

    def peers(self, key: str) -> tuple[str, ...]:
        """Those that a container is moved for or from, heaviest first."""
        edges, vertices = self._question.near[self._index[key]], self._question.problem.vertices
        strongest = nsmallest(MOST_PEERS, edges, key=lambda edge: (-abs(edge[0]), edge[1]))
        chosen = [other for _, other in strongest]
        chosen += [other for other in self._apart_from(self._index[key]) if other not in chosen]
        return tuple([vertices[other].key for other in chosen[:MOST_PEERS]])

    def _why(self, index: int) -> str:
        apart = self._apart_from(index)
        if not apart:
            return self._near(index)
        vertices, paths = self._question.problem.vertices, self._question.paths
        names = [
            f"{paths.get(vertices[other].key, vertices[other].key)} ({fills_text(vertices[other].fills)} from memory)"
            for other in apart[:NAMED]
        ]
        near = self._near(index)
        text = f"kept apart: from {', '.join(names)}"
        return f"{near}; {text}" if self._question.near[index] and near.startswith("to be near ") else text

    def _apart_from(self, index: int) -> list[int]:
        """Those that saturate with a container the L3s that it leaves, heaviest first."""
        problem = self._question.problem
        vertex, caches = problem.vertices[index], self._caches
        if not vertex.fills or not problem.settings.repel_ns or vertex.at < 0:
            return []
        left = caches[vertex.at] - caches[self._at[index]]
        there = [other for other in self._filling if other != index and left & caches[self._at[other]]]
        fills = [problem.vertices[other].fills for other in there]
        if vertex.fills + sum(fills) <= problem.settings.saturated_fills:
            return []
        return sorted(there, key=lambda other: (-problem.vertices[other].fills, other))

    def _near(self, index: int) -> str:
        edges, here = self._question.near[index], self._leaves[self._at[index]]
        near = [
            edge for edge in edges if edge[0] > 0 and not here.isdisjoint(self._leaves[self._at[edge[1]]])
        ]
        if near:
            strongest = sorted(near, key=lambda edge: (-edge[0], edge[1]))[:NAMED]
            return f"to be near {', '.join(self._peer(index, other, weight) for weight, other in strongest)}"
        if any(weight < 0 for weight, _ in edges):
            return "to be far from those it is to be kept apart from"
        return "to be nearer to its peers" if edges else "to make room for others"

    def _peer(self, index: int, other: int, weight: float) -> str:
        vertices, rates = self._question.problem.vertices, self._question.rates
        a, b = vertices[index].key, vertices[other].key
        rate = rates.get((a, b)) or rates.get((b, a))
        shown = bytes_text(rate) if rate else f"about {bytes_text(weight * LINE_BYTES)}"
        return f"{self._question.paths.get(b, b)} ({shown})"
