"""Carries out accepted plans: some moves at a time, none that was a mistake before, and each looked after.

What was taken back (the runtime has refused it, or containers wait for CPUs) is banned for a while: neither the rest
of this plan nor the next one makes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from cri_proxy.affinity.io.mover import FailedMove, MoveOutcome, Mover
from cri_proxy.affinity.moves import plan_of, without_banned
from cri_proxy.affinity.pressure_guard import Ban, Bans
from cri_proxy.affinity.problem_snapshot import PlanningSnapshot
from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Plan
from cri_proxy.services.services import Services
from policies.affinity.planner.problem import Proposal

#: So many moves take the engine ten milliseconds, and no call is relayed meanwhile.
AT_ONCE = 20


@dataclass
class Last:
    """The last plan that was accepted, for the status. ``moves``: as many it had; ``moved``: that stand so far."""

    at_s: float
    why: str
    moves: int
    gain: float
    moved: int = 0
    taken_back: int = 0


@dataclass(frozen=True)
class Accepted:
    """A plan that is being carried out. ``settings``: those it was made with."""

    question: PlanningSnapshot
    proposal: Proposal
    settings: AffinitySettings
    last: Last


@dataclass
class Carrier:
    """Carries out the plans of one daemon."""

    services: Services
    mover: Mover
    _bans: Bans = field(default_factory=Bans)
    _guards: set[asyncio.Task[bool]] = field(default_factory=set)

    def bans(self, now_s: float) -> Collection[Ban]:
        """What is not to be tried again yet."""
        return self._bans.at(now_s)

    async def part(self, engine: Engine, accepted: Accepted, most_moves: int) -> MoveOutcome:
        """Make as many of the moves that are left, at most ``AT_ONCE``. Nothing made and nothing failed = none is left."""
        now_s = self.services.node_state.clock()
        question = accepted.question
        proposal = without_banned(question, accepted.proposal, self.bans(now_s))
        plan = plan_of(engine, question, proposal, min(most_moves, AT_ONCE), now_s)
        return await self._make(engine, plan, accepted.last) if plan.moves else MoveOutcome()

    async def all(self, engine: Engine, accepted: Accepted) -> MoveOutcome:
        """Make all moves, or as many as can be made."""
        whole = MoveOutcome()
        for _ in accepted.proposal.moves:  # each time one of them at least
            part = await self.part(engine, accepted, AT_ONCE)
            whole = MoveOutcome(whole.made + part.made, whole.failed + part.failed, part.stopped)
            if part.stopped or not part.has_tried:
                break
        return whole

    async def _make(self, engine: Engine, plan: Plan, last: Last) -> MoveOutcome:
        outcome = await self.mover.make(engine, plan)
        last.moved += len(outcome.made)
        self._ban(outcome.failed, {move.id: move.home for move in plan.moves})
        self.services.log.info(
            "containers moved", moved=len(outcome.made), refused=len(outcome.failed), why=last.why
        )
        if outcome.stopped:
            self.services.log.warning("the rest of a plan is dropped", why=outcome.stopped)
        return outcome

    def _ban(self, failed: Collection[FailedMove], homes: dict[str, frozenset[int]]) -> None:
        for each in failed:
            self._bans.add(each.id, homes[each.id], self.services.node_state.clock())

    # ------------------------------------------------------------------ afterwards

    async def guard(self, engine: Engine, outcome: MoveOutcome, last: Last) -> bool:
        """Look whether the moves were a mistake; returns whether some were, and have been taken back."""
        failed = await self.mover.guard(engine, outcome.made)
        self._ban(failed, {move.id: move.home for move in outcome.made})
        last.moved -= len(failed)
        last.taken_back += len(failed)
        return bool(failed)

    def watch(self, engine: Engine, outcome: MoveOutcome, last: Last) -> None:
        """Guard moves whose command has its answer already."""
        task = asyncio.get_running_loop().create_task(self.guard(engine, outcome, last))
        self._guards.add(task)
        task.add_done_callback(self._guards.discard)

    async def close(self) -> None:
        """End whatever still looks."""
        for task in tuple(self._guards):
            task.cancel()
        await asyncio.gather(*self._guards, return_exceptions=True)


def followed_bytes(engine: Engine, question: PlanningSnapshot, outcome: MoveOutcome) -> int:
    """Memory of those that are in another NUMA node now."""
    topology = engine.host.topology
    sizes = {vertex.key: vertex.memory_bytes for vertex in question.problem.vertices}
    return sum(
        sizes.get(move.id, 0)
        for move in outcome.made
        if move.was is not None and not topology.nodes_of(move.home) <= topology.nodes_of(move.was.cpus)
    )
