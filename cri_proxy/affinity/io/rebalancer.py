"""Affinity in the daemon: the graph goes to the engine, and now and then a plan is made and carried out.

The rules of the pace: a plan every ``affinity_rebalance_interval_s``, of which as much is done at once as the token
buckets allow (``MoveRateLimit``). The rest of an accepted plan goes on as tokens come, without being weighed again, as
long as its moves still hold; what a person asks for by ``rebalance`` is done at once. The more was moved lately, the more
a plan must save (``MoveRateLimit.unrest``). Nothing moves by itself while
the picture of the traffic is old: without an observer every container stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional, Protocol

from cri_api.waiting import wait_within
from cri_proxy.affinity.effect.io.effect_meter import EffectMeter, Measured
from cri_proxy.affinity.io.executor import NOTHING, Accepted, Carrier, Last, Mover, followed_bytes
from cri_proxy.affinity.io.planner_process import PlannerFailed, PlannerWorker
from cri_proxy.affinity.moves import PendingMove, describe, pending_moves, waits_for
from cri_proxy.affinity.pressure_guard import forbid
from cri_proxy.affinity.problem import PlanningSnapshot, Slices, snapshot_slices
from cri_proxy.affinity.settings import AffinitySettings, affinity_settings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord
from cri_proxy.engine.moves import being_resized, may_move
from cri_proxy.engine.place import FROZEN
from cri_proxy.services.services import Services
from cri_proxy.text.ages import PLAN, TRAFFIC, Old
from policies.affinity.graph.remote import RemotePeer
from policies.affinity.graph.traffic import Traffic
from policies.affinity.planner.problem import Proposal
from policies.model import BATCH
from policies.reasons import plain


class TrafficSource(Protocol):
    """The known traffic and its source (``AffinityClient``)."""

    @property
    def traffic(self) -> Traffic: ...

    @property
    def remote(self) -> tuple[tuple[RemotePeer, ...], int]: ...

    def old(self) -> Optional[Old]: ...

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
    last: Optional[Last] = None
    #: What a better placement waits for, as the last plan has found it.
    waits_for: list[str] = field(default_factory=list)
    #: The moves that the last plan has found, by id, each with the reason why it waits.
    pending: Mapping[str, PendingMove] = field(default_factory=dict)
    #: When it was made, by the daemon's clock and as Unix time; why there was none since, "" = it is not known.
    _planned: tuple[float, float] = (0.0, 0.0)
    _no_plan: str = ""
    _rest: Optional[Accepted] = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Set when the next round may be due earlier.
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _pace: Optional[MoveRateLimit] = None
    _settings: Optional[AffinitySettings] = None
    #: The domains that one batch container each is to leave by the next plan, by their CPUs.
    _strained: frozenset[frozenset[int]] = frozenset()

    def __post_init__(self) -> None:
        self._carrier = Carrier(self.services, self.mover, self.meter)

    # ------------------------------------------------------------------ traffic

    @property
    def settings(self) -> AffinitySettings:
        """The settings of the configuration in force."""
        return affinity_settings(self.services.config)

    def traffic(self) -> Traffic:
        """The picture that counts: none where affinity is off."""
        return self.source.traffic if self.services.config["affinity.enabled"] else Traffic()

    def remote(self) -> tuple[tuple[RemotePeer, ...], int]:
        """The containers' traffic with other nodes, heaviest first, and the number of rows left out."""
        return self.source.remote if self.services.config["affinity.enabled"] else ((), 0)

    def follow(self, engine: Optional[Engine] = None) -> None:
        """The graph or the engine is another one: give the engine the traffic known now."""
        engine = engine or self.services.node_state.engine
        traffic, metrics = self.traffic(), self.services.metrics
        if engine is not None:
            engine.set_traffic(traffic)
        said = self.source.status()
        metrics.observer_up.set(0 if said.get("problem") else 1)
        # What is old is no value of now: the series end until there is one.
        metrics.edges.end()
        metrics.observer_counts.end()
        if not said.get("problem"):
            metrics.edges.set(len(traffic.listed))
            for name, count in said.get("counters", {}).items():
                metrics.observer_counts.labels(name).set(count)

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
        if not node_state.gives_cpus:
            return node_state.still()
        return f"the picture of the traffic is old: {frozen}" if (frozen := self.traffic().frozen) else ""

    def ask_apart(self, cpus: frozenset[int]) -> bool:
        """Have one batch container leave a domain, by its CPUs, with the next plan, whatever traffic says. What is declared,
        room and the pace of moves hold as ever.

        False: nothing moves by itself now, or no batch container that runs there could be moved.
        """
        engine = self.services.node_state.active()
        if engine is None or self.still(self.settings):
            return False
        resized = being_resized(engine)
        there = [
            grant
            for grant in engine.grants.values()
            if grant.isolation == BATCH and not grant.cpus.isdisjoint(cpus)
        ]
        if not any(may_move(engine, grant, resized) for grant in there):
            return False
        self._strained |= {cpus}
        self._wake.set()
        return True

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
                await self._plan(engine, settings, pace.unrest(now_s))
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

    async def _plan(self, engine: Engine, settings: AffinitySettings, unrest: float) -> None:
        """A plan, if one is accepted. A planner that fails is no reason to stop."""
        strained = self._strained
        try:
            question, proposal = await self._ask(engine, settings, unrest)
        except PlannerFailed as error:
            self.services.metrics.plans.labels("failed").inc()
            self.services.log.warning("no plan", why=str(error))
            self._no_plan = f"the planner does not work: {error}"
            self.services.health.warn("planner", [self._no_plan])
            return
        except CannotRebalance as error:
            self.services.log.info("no plan", why=str(error))
            return
        self.services.health.warn("planner", [])
        self._strained -= strained
        if proposal is not None and proposal.accepted:
            measured = await self.meter.before(engine, question, proposal, settings)
            self._rest = self._accept(question, proposal, settings, measured)

    async def _ask(
        self, engine: Engine, settings: AffinitySettings, unrest: float = 1.0
    ) -> tuple[PlanningSnapshot, Optional[Proposal]]:
        """The question as things are now and the planner's answer; None where no container talks to another.

        :raises PlannerFailed: it has no answer.
        :raises CannotRebalance: the engine is never still.
        """
        memory = await self.mover.memory(engine)
        clock = self.services.node_state.clock
        strained = sorted(self._strained, key=min)
        question = await ask_in_slices(
            engine, lambda: snapshot_slices(engine, settings, clock(), memory, strained)
        )
        if question is None:
            raise CannotRebalance("containers come and go faster than they can be looked at; ask again later")
        if not (question.problem.edges or question.problem.has_meetings or strained):
            self._know([], {})
            return question, None
        problem = forbid(question.problem, question.homes, self._carrier.bans(question.at_s))
        problem = replace(problem, settings=replace(problem.settings, unrest=unrest))
        began = time.perf_counter()
        proposal = await self.planner.plan(problem)
        self.services.metrics.plan_seconds.observe(time.perf_counter() - began)
        self.services.metrics.plans.labels("accepted" if proposal.accepted else "rejected").inc()
        self.services.log.debug("plan", accepted=proposal.accepted, why=proposal.why)
        pending = await asyncio.to_thread(pending_moves, question, proposal)
        self._know(waits_for(question, proposal), pending)
        return question, proposal

    def _know(self, sentences: list[str], pending: Mapping[str, PendingMove]) -> None:
        """What a plan has found."""
        self.waits_for, self.pending = sentences, pending
        self._planned, self._no_plan = (self.services.node_state.clock(), time.time()), ""

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
        """A command's plan: now, and all its moves at once; token buckets are for plans without a command.

        Hysteresis, minimum age and the cost of moves count as always; how much was moved lately does not.

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
        if not (dry_run or node_state.gives_cpus):
            raise CannotRebalance(f"{node_state.still()}; --dry-run shows what would be")
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
            "why": plain(why),
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

    def would_move(self, grant: ContainerRecord) -> Optional[dict[str, Any]]:
        """For ``explain``: where a container would move, and why it waits; None where no such move is known."""
        pending = self.pending.get(grant.key)
        if pending is None or not self.settings.enabled:
            return None
        return pending.row(grant, self._turn(), self.services.node_state.clock())

    def _turn(self) -> str:
        """The reason why a move that pays still waits."""
        settings = self.settings
        if still := self.still(settings):
            return f"for cri-resmgr rebalance: {still}"
        if self._rest is not None:
            return f"for its turn: affinity.moves_per_minute is {settings.moves_per_minute}"
        return "for the next plan: this one could not make it"

    def old(self) -> dict[str, Optional[Old]]:
        """What is not of now: the traffic, and what the last plan has found, once another one would have been due."""
        settings = self.settings
        if not settings.enabled:
            return {}
        plan, (at_s, since_s) = None, self._planned
        is_due = self.services.node_state.clock() - at_s > 2 * settings.interval_s
        if (self.waits_for or self.pending) and self._rest is None and is_due:
            plan = Old(since_s, self._no_plan or self.still(settings) or "no plan was made since")
        return {TRAFFIC: self.source.old(), PLAN: plan}

    def status(self) -> dict[str, Any]:
        """For ``status`` and ``affinity``."""
        settings, traffic, last = self.settings, self.traffic(), self.last
        still = self.still(settings)
        pace = f"containers are not moved: {still}" if still else f"a plan every {settings.interval_s:g} s"
        return {
            "enabled": settings.enabled,
            "observer": self.source.status(),
            "edges": len(traffic.listed),
            "frozen": traffic.frozen,
            "rebalance": pace,
            "guard": self._guard_sentence(settings, bool(still)),
            "effect": self.meter.status(settings),
            "waits_for": self.waits_for,
            "last_plan": None
            if last is None
            else {
                "age_s": round(self.services.node_state.clock() - last.at_s, 1),
                "why": plain(last.why),
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


# ---------------------------------------------------------------------- slices

# The engine is read for the planner's question in slices, between which calls pass, so that the loop is not held up.
# All slices must have read one state. When a call has changed it in between, they begin anew a little later.

#: How often it begins anew, and how long after the change: in a rush of creates there are gaps.
TRIES, PAUSE_S = 20, 0.25


async def ask_in_slices(
    engine: Engine, begin: Callable[[], Slices[PlanningSnapshot]], pause_s: float = PAUSE_S
) -> Optional[PlanningSnapshot]:
    """The question (``question_slices`` of this engine) as things are at its end.

    None: the engine changes faster than it can be read.
    """
    for _ in range(TRIES):
        slices = begin()
        read = _state(engine)
        while _state(engine) == read:
            try:
                next(slices)
            except StopIteration as end:
                question: PlanningSnapshot = end.value
                return question
            await asyncio.sleep(0)
        await asyncio.sleep(pause_s)
    return None


def _state(engine: Engine) -> tuple[object, ...]:
    # Another node is another machine, or another configuration.
    return engine.version, engine.node


# ---------------------------------------------------------------------- rate limit

# How fast plans are carried out: token buckets for containers moved and for memory that follows them. A bucket
# holds one minute's worth at most and starts full, so that the first plan after a quiet time goes on at once and none goes
# on for long.

MINUTE_S = 60.0


class Bucket:
    """Tokens that come at a steady rate. Times in seconds, given by the caller; they never go back."""

    def __init__(self, per_minute: float, now_s: float = 0.0) -> None:
        self.per_minute = per_minute
        self._tokens = float(per_minute)
        self._at_s = now_s

    def tokens(self, now_s: float) -> float:
        """How many there are; negative while tokens taken in advance have not come yet."""
        passed_s = max(0.0, now_s - self._at_s)
        self._tokens = min(self.per_minute, self._tokens + passed_s * self.per_minute / MINUTE_S)
        self._at_s = max(self._at_s, now_s)
        return self._tokens

    def take(self, count: float, now_s: float) -> None:
        """Take tokens out, also more than there are."""
        self._tokens = self.tokens(now_s) - count

    def wait_s(self, count: float, now_s: float) -> float:
        """How long until there are so many (or as many as it ever holds); infinite if none ever come."""
        missing = min(count, self.per_minute) - self.tokens(now_s)
        if not self.per_minute:
            return float("inf")
        return max(0.0, missing) * MINUTE_S / self.per_minute


# Where containers come and go, or flows burst, there is always something a little better than what is there, a part of it by
# the chances of what was measured. Each plan for it pays, and the node is never still. So moves are held against the plans
# after them, less and less: half after an hour.

UNREST_HALF_LIFE_S = 3600.0
#: So many moves double what a plan must save, as many more add as much again; that is never more than so many times.
RESTLESS_MOVES, MOST_UNREST = 3.0, 4.0


class MoveRateLimit:
    """The moves allowed now: ``affinity.moves_per_minute`` containers, ``affinity.most_memory_moved`` GiB a minute."""

    def __init__(self, settings: AffinitySettings, now_s: float = 0.0) -> None:
        self.moves = Bucket(settings.moves_per_minute, now_s)
        self.memory = Bucket(settings.most_memory_bytes, now_s)
        self._unrest, self._spent_s = 1.0, now_s

    def allowed(self, now_s: float) -> int:
        """How many containers may be moved now; 0 as well while memory is still following those before."""
        return max(0, int(self.moves.tokens(now_s) + 1e-9)) if self.memory.tokens(now_s) >= 0 else 0

    def spend(self, moves: int, memory_bytes: float, now_s: float) -> None:
        """So many were moved, and so much memory may follow them to other NUMA nodes."""
        self.moves.take(moves, now_s)
        self.memory.take(memory_bytes, now_s)
        self._unrest = min(self.unrest(now_s) + moves / RESTLESS_MOVES, MOST_UNREST)
        self._spent_s = max(self._spent_s, now_s)

    def unrest(self, now_s: float) -> float:
        """How many times as much as after hours without moves a plan must save now: 1 to ``MOST_UNREST``."""
        passed_s = max(0.0, now_s - self._spent_s)
        keep: float = 2.0 ** (-passed_s / UNREST_HALF_LIFE_S)
        return 1.0 + keep * (self._unrest - 1.0)
