"""Affinity in the daemon: the graph goes to the engine, and now and then a plan is made and carried out.

The rules of the pace: a plan every ``affinity.rebalance_interval``, of which as much is done at once as the token
buckets allow (affinity/rate_limit.py). The rest of an accepted plan goes on as tokens come, without being weighed again, as
long as its moves still hold; what a person asks for by ``rebalance`` is done at once. Nothing moves by itself while
the picture of the traffic is old: without an observer every container stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

from cri_api.waiting import wait_within
from cri_proxy.affinity.build_problem import (
    AffinitySettings,
    PlanningSnapshot,
    affinity_settings,
    describe,
    snapshot_slices,
)
from cri_proxy.affinity.effect.io.effect_meter import EffectMeter, Measured
from cri_proxy.affinity.effect.io.fill_meter import FillMeter
from cri_proxy.affinity.io.executor import Accepted, Carrier, Last, followed_bytes
from cri_proxy.affinity.io.mover import Mover
from cri_proxy.affinity.io.planner_process import PlannerFailed, PlannerWorker
from cri_proxy.affinity.io.pressure import NOTHING
from cri_proxy.affinity.io.slices import ask_in_slices
from cri_proxy.affinity.moves import waits_for
from cri_proxy.affinity.pending_moves import PendingMove, pending_moves
from cri_proxy.affinity.pressure_guard import forbid
from cri_proxy.affinity.rate_limit import MoveRateLimit
from cri_proxy.affinity.repelling import apart_row
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.pins import FROZEN
from cri_proxy.engine.records import Grant
from cri_proxy.services.services import Services
from policies.affinity.graph.remote import RemotePeer
from policies.affinity.graph.traffic import Traffic
from policies.affinity.planner.problem import Proposal


class TrafficSource(Protocol):
    """What is known of the traffic, and what knows it (``AffinityClient``)."""

    @property
    def traffic(self) -> Traffic: ...

    @property
    def remote(self) -> tuple[tuple[RemotePeer, ...], int]: ...

    def status(self) -> dict[str, Any]: ...


class CannotRebalance(Exception):
    """There can be no plan now. The message is one sentence that says why."""


@dataclass
class AffinityController:
    """Affinity of one daemon. ``run`` is the part that goes on by itself."""

    services: Services
    source: TrafficSource
    planner: PlannerWorker
    mover: Mover
    meter: EffectMeter
    fill_meter: FillMeter
    last: Optional[Last] = None
    #: What a better placement waits for, as the last plan has found it.
    waits_for: list[str] = field(default_factory=list)
    #: The moves that the last plan has found, by id, each with what it waits for.
    pending: Mapping[str, PendingMove] = field(default_factory=dict)
    _rest: Optional[Accepted] = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Set when the next round may be due earlier.
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _pace: Optional[MoveRateLimit] = None
    _settings: Optional[AffinitySettings] = None

    def __post_init__(self) -> None:
        self._carrier = Carrier(self.services, self.mover, self.meter)

    # ------------------------------------------------------------------ what is known

    @property
    def settings(self) -> AffinitySettings:
        """Those of the configuration in force."""
        return affinity_settings(self.services.config)

    def traffic(self) -> Traffic:
        """The picture that counts: none where affinity is off."""
        return self.source.traffic if self.services.config["affinity.enabled"] else Traffic()

    def remote(self) -> tuple[tuple[RemotePeer, ...], int]:
        """What containers exchange with other nodes, heaviest first, and how many more there are."""
        return self.source.remote if self.services.config["affinity.enabled"] else ((), 0)

    def follow(self, engine: Optional[Engine] = None) -> None:
        """The graph or the engine is another one: let the engine know what is known now."""
        engine = engine or self.services.node_state.engine
        traffic, metrics = self.traffic(), self.services.metrics
        if engine is not None:
            engine.set_traffic(traffic)
        metrics.edges.set(len(traffic.listed))
        said = self.source.status()
        metrics.observer_up.set(0 if said.get("problem") else 1)
        for what, count in said.get("counters", {}).items():
            metrics.observer_counts.labels(what).set(count)

    def reconfigured(self) -> None:
        """The configuration is another one."""
        self.follow()
        self._wake.set()

    def still(self, settings: AffinitySettings) -> str:
        """Why nothing moves by itself now; "" = it does."""
        node_state = self.services.node_state
        if not settings.enabled:
            return "affinity.enabled is off"
        if not settings.is_automatic:
            return "affinity.rebalance is manual"
        if not settings.moves_per_minute:
            return "affinity.moves_per_minute is 0"
        if node_state.orders.freeze:
            return FROZEN
        if not node_state.enforcing or node_state.engine is None:
            return f"mode {node_state.mode}" if node_state.engine is not None else "the daemon is degraded"
        return f"the picture of the traffic is old: {frozen}" if (frozen := self.traffic().frozen) else ""

    # ------------------------------------------------------------------ by itself

    async def run(self) -> None:
        """Make plans and carry them out until cancelled. A round that fails is logged and shown in the status."""
        loop = asyncio.get_running_loop()
        next_at = loop.time() + self.settings.interval_s
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(max(0.0, next_at - loop.time()), self._wake.wait())
            if self._wake.is_set():
                self._wake.clear()
                next_at = min(next_at, loop.time() + self.settings.interval_s)
                continue
            next_at = loop.time() + await self._round_or_note()

    async def _round_or_note(self) -> float:
        try:
            wait_s = await self._round()
        except Exception as error:
            self._rest = None  # it would fail again, and no other plan be made
            self.services.log.error("a round of affinity failed", exc_info=True)
            self.services.health.note(
                "affinity", f"containers are not moved: {type(error).__name__}: {error}"
            )
            return self.settings.interval_s
        self.services.health.note("affinity", "")
        return wait_s

    async def _round(self) -> float:
        """One plan, or a further part of one; returns the seconds until the next round."""
        settings, engine = self.settings, self.services.node_state.active()
        if engine is not None and settings.pressure_guard and self._rest is None:
            await self.mover.look(engine)  # also for moves that people ask for
        if engine is None or self.still(settings):
            self._rest = None
            return settings.interval_s
        pace, now_s = self._paced(settings), self.services.node_state.clock()
        if self._rest is None:
            if settings.pressure_guard and not self.mover.can_guard:
                return settings.interval_s
            async with self._lock:
                await self._plan(engine, settings)
        if self._rest is not None and pace.allowed(now_s):
            await self._go_on(engine, self._rest, pace)
        if self._rest is None:
            return settings.interval_s
        return max(1.0, pace.moves.wait_s(1, self.services.node_state.clock()))

    def _paced(self, settings: AffinitySettings) -> MoveRateLimit:
        """The buckets; new ones (full) where the configuration has changed."""
        if self._pace is None or self._settings != settings:
            self._pace, self._settings = MoveRateLimit(settings, self.services.node_state.clock()), settings
        return self._pace

    async def _plan(self, engine: Engine, settings: AffinitySettings) -> None:
        """A plan, if one is accepted. A planner that fails is no reason to stop."""
        try:
            question, proposal = await self._ask(engine, settings)
        except PlannerFailed as error:
            self.services.metrics.plans.labels("failed").inc()
            self.services.log.warning("no plan", why=str(error))
            self.services.health.warn("planner", [f"the planner does not work: {error}"])
            return
        except CannotRebalance as error:
            self.services.log.info("no plan", why=str(error))
            return
        self.services.health.warn("planner", [])
        if proposal is not None and proposal.accepted:
            measured = await self.meter.before(engine, question, proposal, settings)
            self._rest = self._accept(question, proposal, settings, measured)

    async def _ask(
        self, engine: Engine, settings: AffinitySettings
    ) -> tuple[PlanningSnapshot, Optional[Proposal]]:
        """The question as things are now and the planner's answer; None where no container talks to another.

        :raises PlannerFailed: it has no answer.
        :raises CannotRebalance: the engine is never still.
        """
        memory = await self.mover.memory(engine)
        fills = await self.fill_meter.count(engine, settings)
        clock = self.services.node_state.clock
        question = await ask_in_slices(
            engine, lambda: snapshot_slices(engine, settings, clock(), memory, fills)
        )
        if question is None:
            raise CannotRebalance("containers come and go faster than they can be looked at; ask again later")
        if not question.problem.edges and not any(vertex.fills for vertex in question.problem.vertices):
            self.waits_for, self.pending = [], {}
            return question, None
        problem = forbid(question.problem, question.homes, self._carrier.bans(question.at_s))
        began = time.perf_counter()
        proposal = await self.planner.plan(problem)
        self.services.metrics.plan_seconds.observe(time.perf_counter() - began)
        self.services.metrics.plans.labels("accepted" if proposal.accepted else "rejected").inc()
        self.services.log.debug("plan", accepted=proposal.accepted, why=proposal.why)
        pending = await asyncio.to_thread(pending_moves, question, proposal)
        self.waits_for, self.pending = waits_for(question, proposal), pending
        return question, proposal

    def _accept(
        self,
        question: PlanningSnapshot,
        proposal: Proposal,
        settings: AffinitySettings,
        measured: Optional[Measured],
    ) -> Accepted:
        gain = proposal.cost_before - proposal.cost_after
        moves = len({move.key for move in proposal.moves})
        self.last = Last(self.services.node_state.clock(), proposal.why, moves, gain)
        return Accepted(question, proposal, settings, self.last, measured)

    async def _go_on(self, engine: Engine, rest: Accepted, pace: MoveRateLimit) -> None:
        """Make as many of the moves that are left as tokens allow; when none is left, the plan is done."""
        node_state = self.services.node_state
        async with self._lock:
            if why := self._overtaken(rest):
                self._rest = None
                self.services.log.info("the rest of a plan is dropped", why=why)
                return
            now_s = node_state.clock()
            outcome = await self._carrier.part(engine, rest, pace.allowed(now_s))
            tried = len(outcome.made) + len(outcome.failed)
            pace.spend(tried, followed_bytes(engine, rest.question, outcome), now_s)
        if outcome.stopped or not outcome.has_tried:
            self._rest = None
        if self.settings.pressure_guard and await self._carrier.guard(engine, outcome, rest):
            self._rest = None
        if self._rest is None:
            await self._carrier.measure(engine, rest)

    def _overtaken(self, rest: Accepted) -> str:
        """Why a plan is not to be carried on: much can have happened while the planner thought or others had the lock."""
        settings = self.settings
        if self._rest is not rest:
            return "a command has asked for another plan"
        return self.still(settings) or ("the configuration has changed" if settings != rest.settings else "")

    # ------------------------------------------------------------------ by command

    async def rebalance(self, dry_run: bool) -> dict[str, Any]:
        """What a command asks for: a plan now, and all its moves at once; token buckets are for what no command asked for.

        Hysteresis, minimum age and the cost of moves count as always.

        :raises CannotRebalance: there can be none now; says why.
        """
        settings, engine = self.settings, self._engine(dry_run)
        async with self._lock:
            try:
                question, proposal = await self._ask(engine, settings)
            except PlannerFailed as error:
                raise CannotRebalance(str(error)) from None
            document = self._document(question, proposal, dry_run)
            if dry_run or proposal is None or not proposal.accepted:
                return document
            measured = await self.meter.before(engine, question, proposal, settings)
            if engine is not self._engine(dry_run):
                raise CannotRebalance("the engine was replaced meanwhile; ask again")
            self._rest, accepted = None, self._accept(question, proposal, settings, measured)
            outcome = await self._carrier.all(engine, accepted)
        if outcome.made:
            self._carrier.watch(engine, outcome, accepted)
        failed = [{"id": f.id, "container": f.path, "error": f.error} for f in outcome.failed]
        notes = document["notes"] + ([f"not all was tried: {outcome.stopped}"] if outcome.stopped else [])
        return {**document, "moved": len(outcome.made), "failed": failed, "notes": notes}

    def _engine(self, dry_run: bool) -> Engine:
        """The engine that people may have moves made in (or shown).

        :raises CannotRebalance: there is none now; says why.
        """
        node_state = self.services.node_state
        engine = node_state.active()
        if engine is None:
            raise CannotRebalance("the daemon passes bytes only: see cri-resmgr status")
        if not (dry_run or node_state.enforcing):
            raise CannotRebalance(
                f"in mode {node_state.mode} nothing is moved; --dry-run shows what would be"
            )
        if node_state.orders.freeze and not dry_run:
            raise CannotRebalance(f"{FROZEN}; --dry-run shows what would be moved")
        return engine

    def _document(
        self, question: PlanningSnapshot, proposal: Optional[Proposal], dry_run: bool
    ) -> dict[str, Any]:
        traffic = self.traffic()
        why = proposal.why if proposal is not None else "no container is known to talk to another"
        return {
            "accepted": proposal is not None and proposal.accepted,
            "why": why,
            "dry_run": dry_run,
            "cost_before": proposal.cost_before if proposal is not None else 0.0,
            "cost_after": proposal.cost_after if proposal is not None else 0.0,
            "moves": [] if proposal is None else list(describe(question, proposal)),
            "notes": [
                *([f"the picture of the traffic is old: {traffic.frozen}"] if traffic.frozen else []),
                *[f"waits {sentence}" for sentence in self.waits_for if not sentence.endswith(why)],
            ],
            "moved": 0,
            "failed": [],
        }

    async def close(self) -> None:
        """End the planner and whatever still looks."""
        await self._carrier.close()
        await self.planner.close()

    # ------------------------------------------------------------------ the status

    def would_move(self, grant: Grant) -> Optional[dict[str, Any]]:
        """For ``explain``: where a container would move, and what that waits for; None where nothing is known of that."""
        pending = self.pending.get(grant.key)
        if pending is None or not self.settings.enabled:
            return None
        return pending.row(grant, self._turn(), self.services.node_state.clock())

    def apart(self, engine: Engine, grant: Grant) -> Optional[dict[str, Any]]:
        """For ``explain``: from which others a container is kept apart; None where that is not asked for, or from none."""
        if not self.settings.enabled:
            return None
        return apart_row(engine, grant.key, self.fill_meter.rates, self.settings, self.fill_meter.why_not)

    def _turn(self) -> str:
        """What a move waits for that a plan has found to pay."""
        settings = self.settings
        if still := self.still(settings):
            return f"for cri-resmgr rebalance: {still}"
        if self._rest is not None:
            return f"for its turn: affinity.moves_per_minute is {settings.moves_per_minute}"
        return "for the next plan: this one could not make it"

    def status(self) -> dict[str, Any]:
        """For ``status`` and ``affinity``."""
        settings, traffic, last = self.settings, self.traffic(), self.last
        still = self.still(settings)
        how = f"containers are not moved: {still}" if still else f"a plan every {settings.interval_s:g} s"
        return {
            "enabled": settings.enabled,
            "observer": self.source.status(),
            "edges": len(traffic.listed),
            "frozen": traffic.frozen,
            "rebalance": how,
            "guard": self._guard_sentence(settings, bool(still)),
            "effect": self.meter.status(settings),
            "repelling": self.fill_meter.status(settings),
            "waits_for": self.waits_for,
            "last_plan": None
            if last is None
            else {
                "age_s": round(self.services.node_state.clock() - last.at_s, 1),
                "why": last.why,
                "moves": last.moves,
                "moved": last.moved,
                "taken_back": last.taken_back,
                "gain_cpus": last.gain,
                "is_under_way": self._rest is not None,
            },
        }

    def _guard_sentence(self, settings: AffinitySettings, is_still: bool) -> str:
        if is_still or not self.mover.guarded_by:
            return ""
        if not settings.pressure_guard:
            return "moves are not guarded: affinity.pressure_guard is off"
        if not self.mover.can_guard:
            return "the first plan waits for a second look at how long containers wait for CPUs"
        if self.mover.guarded_by == NOTHING:
            return "moves are not guarded: no container's cgroup tells pressure or throttling"
        return f"moves are guarded by {self.mover.guarded_by}"


__all__ = ["AffinityController", "CannotRebalance", "TrafficSource"]
