"""The moves that a plan would make and that are not made, each with what it waits for: for ``explain``. Pure.

Four things keep a container where a plan would move it: the plan does not pay (``affinity.hysteresis``,
``affinity.least_gain``), the place is taken, a plan has moved the container lately (``affinity.cooldown``), or too
little of its traffic was seen. The last two are decided before the planner is asked: where such a container would go
is worked out here, as if it alone moved after the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional

from cri_proxy.affinity.moves import gains_of
from cri_proxy.affinity.problem_snapshot import PlanningSnapshot, StayingContainer
from cri_proxy.engine.peer_text import NAMED
from cri_proxy.engine.records import Grant
from policies.affinity.graph.traffic import LEAST_TRUST
from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.problem import Proposal, ProposedMove

_MICRO_IN_MILLI = 1000


@dataclass(frozen=True)
class PendingMove:
    """Where a container would move. ``home``: the CPUs of the domain it is in; ``beside``: the peers that it would have
    there, heaviest first; ``waits``: what follows "waits", "" = for its turn; ``until_s``: till then, 0 = not known."""

    home: frozenset[int]
    target: str
    beside: tuple[str, ...]
    gain: float
    waits: str = ""
    until_s: float = 0.0

    def row(self, grant: Grant, turn: str, now_s: float) -> Optional[dict[str, Any]]:
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
    # 1. Those that stay whatever the planner says.
    for key, staying in question.staying.items():
        site = after.best_site(key, staying)
        if site != staying.at:
            waits = "for affinity.cooldown" if staying.until_s else _TRUST
            found[key] = after.pending(key, site, after.gain(key, site), waits, staying.until_s)
    # 2. Those whose place is taken, and those that do not pay.
    for blocked in proposal.blocked:
        behind = ", ".join([question.paths.get(other, other) for other in blocked.behind])
        waits = f"for room: the place of {behind}, and {blocked.why}"
        gain = wanted.gain(blocked.key, blocked.target)
        found[blocked.key] = wanted.pending(blocked.key, blocked.target, gain, waits)
    found.update(wanted.listed(proposal.held, f"until it pays (affinity.hysteresis): {proposal.why}"))
    # 3. Those of the plan.
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
        """What the container saves at a site, if it alone moves on from here: CPU-seconds a second."""
        index, rows, at = self._index[key], self._instance.rows, self._there.at
        here = self._question.problem.vertices[index].at
        near = self._instance.near[index]
        gain = sum([weight * (rows[here][at[other]] - rows[site][at[other]]) for other, weight in near])
        if fills := self._instance.fills[index]:
            crowding = self._there.crowding_row(fills, at[index])
            gain += crowding[here] - crowding[site]
        return gain

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
