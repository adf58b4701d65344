"""Carries out accepted plans: some moves at a time, none that was a mistake before, and each looked after.

What was taken back (the runtime has refused it, containers wait for CPUs, or counters say that it made things worse) is
banned for a while: neither the rest of this plan nor the next one makes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Optional

from cri_proxy.affinity.effect.comparison import WORSE
from cri_proxy.affinity.effect.io.effect_meter import EffectMeter, Measured
from cri_proxy.affinity.effect.text import worse_sentence
from cri_proxy.affinity.io.mover import FailedMove, MoveOutcome, Mover
from cri_proxy.affinity.moves import plan_of, without_banned
from cri_proxy.affinity.pressure_guard import Ban, Bans
from cri_proxy.affinity.problem_snapshot import PlanningSnapshot
from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Move, Plan
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
    """A plan that is being carried out. ``settings``: those it was made with; ``measured``: what was counted before it."""

    question: PlanningSnapshot
    proposal: Proposal
    settings: AffinitySettings
    last: Last
    measured: Optional[Measured] = None


@dataclass
class Carrier:
    """Carries out the plans of one daemon."""

    services: Services
    mover: Mover
    meter: EffectMeter
    _bans: Bans = field(default_factory=Bans)
    _guards: set[asyncio.Task[None]] = field(default_factory=set)

    def bans(self, now_s: float) -> Collection[Ban]:
        """What is not to be tried again yet."""
        return self._bans.at(now_s)

    async def part(self, engine: Engine, accepted: Accepted, most_moves: int) -> MoveOutcome:
        """Make as many of the moves that are left, at most ``AT_ONCE``. Nothing made and nothing failed = none is left."""
        now_s = self.services.node_state.clock()
        question = accepted.question
        proposal = without_banned(question, accepted.proposal, self.bans(now_s))
        plan = plan_of(engine, question, proposal, min(most_moves, AT_ONCE), now_s)
        return await self._make(engine, plan, accepted) if plan.moves else MoveOutcome()

    async def all(self, engine: Engine, accepted: Accepted) -> MoveOutcome:
        """Make all moves, or as many as can be made."""
        whole = MoveOutcome()
        for _ in accepted.proposal.moves:  # each time one of them at least
            part = await self.part(engine, accepted, AT_ONCE)
            whole = MoveOutcome(whole.made + part.made, whole.failed + part.failed, part.stopped)
            if part.stopped or not part.has_tried:
                break
        return whole

    async def _make(self, engine: Engine, plan: Plan, accepted: Accepted) -> MoveOutcome:
        outcome = await self.mover.make(engine, plan)
        last = accepted.last
        last.moved += len(outcome.made)
        if accepted.measured is not None:
            accepted.measured.note_made(outcome.made, self.services.node_state.clock())
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

    async def guard(self, engine: Engine, outcome: MoveOutcome, accepted: Accepted) -> bool:
        """Look whether the moves were a mistake; returns whether some were, and have been taken back."""
        failed = await self.mover.guard(engine, outcome.made)
        self._note_taken_back(failed, outcome.made, accepted)
        return bool(failed)

    async def measure(self, engine: Engine, accepted: Accepted) -> None:
        """Compare what was counted before a plan with now, its moves being made; take it back if that is to be."""
        measured, settings = accepted.measured, accepted.settings
        if measured is None or not measured.made:
            return
        effect = await self.meter.after(engine, measured, settings)
        if effect is None or effect.verdict != WORSE or not settings.take_back_measured:
            return
        made = tuple(measured.made)
        failed = await self.mover.take_back(engine, made, worse_sentence(effect, self.meter.per_words))
        self._note_taken_back(failed, made, accepted)
        self.meter.note_taken_back(len(failed))

    def _note_taken_back(
        self, failed: Collection[FailedMove], made: Collection[Move], accepted: Accepted
    ) -> None:
        self._ban(failed, {move.id: move.home for move in made})
        accepted.last.moved -= len(failed)
        accepted.last.taken_back += len(failed)
        if accepted.measured is not None:
            accepted.measured.note_gone({failure.id for failure in failed})

    def watch(self, engine: Engine, outcome: MoveOutcome, accepted: Accepted) -> None:
        """Look after moves whose command has its answer already."""
        task = asyncio.get_running_loop().create_task(self._look_after(engine, outcome, accepted))
        self._guards.add(task)
        task.add_done_callback(self._guards.discard)

    async def _look_after(self, engine: Engine, outcome: MoveOutcome, accepted: Accepted) -> None:
        if accepted.settings.pressure_guard:
            await self.guard(engine, outcome, accepted)
        await self.measure(engine, accepted)

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
