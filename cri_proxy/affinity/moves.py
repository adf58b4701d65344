"""The planner's answer, read: as moves for the engine, and in words for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from heapq import nsmallest
from itertools import groupby
from typing import Any, Optional, TypeVar

from cri_proxy.affinity.pressure_guard import Ban
from cri_proxy.affinity.problem import PlanningSnapshot, StayingContainer
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, Life, Move, Plan
from cri_proxy.engine.moves import MOST_PEERS, NAMED, being_resized, bytes_text, may_move
from policies.affinity.graph.traffic import LEAST_TRUST, LINE_BYTES
from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.problem import NOTHING_BETTER, BlockedMove, Proposal, ProposedMove
from policies.frozen import frozen

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
    state, resized = engine, being_resized(engine)
    at, gains = _positions(engine, question, proposal), gains_of(proposal.moves)
    chosen: dict[str, Move] = {}

    def holds(move: ProposedMove) -> bool:
        grant = engine.grants.get(move.key)
        return (
            grant is not None
            and at.get(move.key) == move.source
            and grant.life is not Life.CREATING
            and may_move(state, grant, resized)
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
    return Plan(version, moves, f"plan: {proposal.why}", at_s)


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
    """The saving by the moves of each container, as CPU-seconds a second; for an exchange, that of all of it."""
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
        constraint, home = grant.constraint.cpus, grant.placement.home
        target = (
            question.homes[move.target] if constraint is None else question.homes[move.target] & constraint
        )
        if home == question.was[move.key].home:
            found.setdefault(move.key, first[move.key])
        elif home == target or (grant.exclusive and home <= target):
            found[move.key] = move.target
    return found


def waits_for(question: PlanningSnapshot, proposal: Optional[Proposal]) -> list[str]:
    """The reasons why a better placement waits (cooldown, trust, room, that it pays): the words after "waits"."""
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
        place = _place(question, first)
        reason = f" for {place}, and {first.why}" if place else f": {first.why}"
        sentences.append(
            f"for room: {proposal.out_of_reach * 1000:.1f} mCPU more could be saved if {len(proposal.blocked)} could move; "
            f"{paths.get(first.key, first.key)} waits{reason}"
        )
    if proposal is not None and not proposal.accepted and not proposal.why.startswith(NOTHING_BETTER):
        sentences.append(f"until it pays: {proposal.why}")
    return sentences


def _place(question: PlanningSnapshot, blocked: BlockedMove) -> str:
    """The place that a blocked move waits for; "" where there is room."""
    names = ", ".join([question.paths.get(key, key) for key in blocked.behind])
    return f"the place of {names}" if names else ""


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


class _Words:
    """Why each container is moved: its neighbours afterwards."""

    def __init__(self, question: PlanningSnapshot, proposal: Proposal) -> None:
        self._question = question
        vertices, sites = question.problem.vertices, question.problem.tree.sites
        after = {move.key: move.target for move in proposal.moves}
        self._leaves = [frozenset(site.leaves) for site in sites]
        self._at = [after.get(vertex.key, vertex.at) for vertex in vertices]
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
        return self._near(self._index[key]) + partners

    def peers(self, key: str) -> tuple[str, ...]:
        """The peers that a container is moved for or from, heaviest first."""
        edges, vertices = self._question.near[self._index[key]], self._question.problem.vertices
        strongest = nsmallest(MOST_PEERS, edges, key=lambda edge: (-abs(edge[0]), edge[1]))
        return tuple([vertices[other].key for _, other in strongest])

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


# ---------------------------------------------------------------------- pending moves

# The moves that a plan would make and that are not made, each with the reason: for ``explain``.
# Four things keep a container where a plan would move it: the plan does not pay (``affinity.hysteresis``,
# ``affinity_least_gain``), the place is taken, a plan has moved the container lately (``affinity.cooldown``), or too
# little of its traffic was seen. The last two are decided before the planner is asked: where such a container would go
# is worked out here, as if it alone moved after the plan.

_MICRO_IN_MILLI = 1000


@frozen
class PendingMove:
    """Where a container would move. ``home``: the CPUs of the domain it is in; ``beside``: the peers that it would have
    there, heaviest first; ``waits``: what follows "waits", "" = for its turn; ``until_s``: till then, 0 = not known."""

    home: frozenset[int]
    target: str
    beside: tuple[str, ...]
    gain: float
    waits: str = ""
    until_s: float = 0.0

    def row(self, grant: ContainerRecord, turn: str, now_s: float) -> Optional[dict[str, Any]]:
        """For ``explain``; None where it holds no more. ``turn``: what a move that has been accepted waits for."""
        is_there = grant.placement.home <= self.home
        if not is_there or (self.until_s and self.until_s <= now_s):
            return None
        return {
            "to": self.target,
            "beside": list(self.beside),
            "gain": self.gain,
            "waits": self.waits or turn,
            "left_s": round(self.until_s - now_s, 3) if self.until_s else None,
        }


def pending_moves(question: PlanningSnapshot, proposal: Proposal) -> dict[str, PendingMove]:
    """By id, the moves that are wanted when the planner has answered; those of its plan wait for their turn."""
    instance = Instance(question.problem)
    after = _Places(question, instance, proposal.moves)
    wanted = _Places(question, instance, (*proposal.moves, *proposal.held))
    found: dict[str, PendingMove] = {}
    # 1. Containers that stay whatever the planner says.
    for key, staying in question.staying.items():
        site = after.best_site(key, staying)
        if site != staying.at:
            waits = "for affinity.cooldown" if staying.until_s else _TRUST
            found[key] = after.pending(key, site, after.gain(key, site), waits, staying.until_s)
    # 2. Moves to a taken place, and moves that do not pay.
    for blocked in proposal.blocked:
        place = _place(question, blocked)
        waits = f"for room: {place}, and {blocked.why}" if place else f"for room: {blocked.why}"
        gain = wanted.gain(blocked.key, blocked.target)
        found[blocked.key] = wanted.pending(blocked.key, blocked.target, gain, waits)
    found.update(wanted.listed(proposal.held, f"until it pays (affinity.hysteresis): {proposal.why}"))
    # 3. Moves of the plan.
    found.update(after.listed(proposal.moves, ""))
    return found


_TRUST = f"for trust: less than {LEAST_TRUST:.0%} of its traffic was seen, as tables were full"


class _Places:
    """Where all containers are once some moves are made."""

    def __init__(self, question: PlanningSnapshot, instance: Instance, moves: Iterable[ProposedMove]) -> None:
        vertices = question.problem.vertices
        target = {move.key: move.target for move in moves}
        self._question, self._instance = question, instance
        self._index = {vertex.key: index for index, vertex in enumerate(vertices)}
        self._there = Arrangement(instance, [target.get(vertex.key, vertex.at) for vertex in vertices])

    def gain(self, key: str, site: int) -> float:
        """The container's saving at a site, if it alone moves on from here: CPU-seconds a second."""
        index, rows, at = self._index[key], self._instance.rows, self._there.at
        here = self._question.problem.vertices[index].at
        near = self._instance.near[index]
        return sum([weight * (rows[here][at[other]] - rows[site][at[other]]) for other, weight in near])

    def best_site(self, key: str, staying: StayingContainer) -> int:
        """Where a container that stays would save most, of the sites with room for it; the present one, unless it pays."""
        if key not in self._index:  # it has no peers
            return staying.at
        # Its memory is not known here: the price of a move is the same wherever it goes.
        paying = [
            (-gain, site)
            for site in staying.sites
            if site != staying.at
            and (gain := self.gain(key, site)) > self._instance.least_worth()
            and self._has_room(site, staying.milli)
        ]
        return min(paying)[1] if paying else staying.at

    def _has_room(self, site: int, milli: int) -> bool:
        load, capacities = self._there.load, self._instance.capacities
        parts = self._instance.parts(milli * _MICRO_IN_MILLI, site)
        return all(load[leaf] + part <= capacities[leaf] for leaf, part in parts)

    def listed(self, moves: Iterable[ProposedMove], waits: str) -> dict[str, PendingMove]:
        """By id, the moves of a plan."""
        gains = gains_of(moves)
        return {key: self.pending(key, self._there.at[self._index[key]], gains[key], waits) for key in gains}

    def pending(self, key: str, target: int, gain: float, waits: str, until_s: float = 0.0) -> PendingMove:
        """The move of one container, and the peers that it would have there."""
        question, index = self._question, self._index[key]
        vertices, sites = question.problem.vertices, question.problem.tree.sites
        leaves = frozenset(sites[target].leaves)
        beside = sorted(
            (-weight, vertices[other].key)
            for weight, other in question.near[index]
            if weight > 0 and not leaves.isdisjoint(sites[self._there.at[other]].leaves)
        )
        names = tuple([question.paths.get(other, other) for _, other in beside[:NAMED]])
        home = question.homes[vertices[index].at]
        return PendingMove(home, sites[target].name, names, gain, waits, until_s)
