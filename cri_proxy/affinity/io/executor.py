"""Carries out accepted plans: some moves at a time, in the engine, in the state, at the runtime; each is looked after.

Two kinds of moves are undone: a container whose update the runtime refuses goes back at once, and containers that came
into a place where containers then wait for CPUs (affinity/pressure_guard.py) go back after a look. Containers that change
places go back together. A move that was taken back (the runtime has refused it, containers wait for CPUs, or counters say
that it made things worse) is banned for a while: neither the rest of this plan nor the next one makes it again.

How long containers have waited for CPUs is read from PSI where cgroups have it, else from throttling. PSI (``cpu.pressure``,
line ``some``, ``total=`` in microseconds; Documentation/accounting/psi.rst) is what we want: the time in which a task could
have run and did not. It is a file of the v2 hierarchy, also of the one that hybrid hosts mount at ``unified``; openEuler's
kernels have it in v1's ``cpuacct`` as well (booted with ``psi=1 psi_v1=1``). Elsewhere on v1 only throttling is told
(``cpu.stat``: ``throttled_time`` in nanoseconds; v2 says ``throttled_usec``), which a container without a CPU limit never
suffers: then there is less to guard by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy.affinity.effect.io.effect_meter import EffectMeter, Measured
from cri_proxy.affinity.moves import in_exchanges, plan_of, without_banned
from cri_proxy.affinity.pressure_guard import SHORTEST_S, Ban, Bans, PressureReading, shares, worse_places
from cri_proxy.affinity.problem import PlanningSnapshot
from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.bounded_files import read_number, read_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import MOVED, Life, Move, Plan
from cri_proxy.engine.place import FROZEN
from cri_proxy.services.services import Services
from policies.affinity.planner.problem import Proposal
from policies.frozen import frozen

PSI, THROTTLING, NOTHING = "pressure (PSI)", "throttling", "nothing"
_PRESSURE = ("", "unified", "cpu,cpuacct", "cpuacct")
_CPU = ("", "cpu", "cpu,cpuacct")
#: How long the runtime may take for the updates of a plan, seconds.
WAIT_S = 30.0
#: How long containers are left in their new places before they are compared: within the 10 to 30 seconds in which
#: PSI says anything, and long enough that caches are warm again.
GUARD_S = 20.0

Wait = Callable[[float], Awaitable[Any]]


@frozen
class PressureSample:
    """One look at many containers: what could be read, and on what."""

    readings: Mapping[str, PressureReading]
    source: str


class PressureReader:
    """Reads below one cgroup root (/sys/fs/cgroup)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def look(self, paths: Mapping[str, str], now_s: float) -> PressureSample:
        """Read all containers of ``paths`` (cgroup path by id), each in the best way it has. Blocks: files are read."""
        readings: dict[str, PressureReading] = {}
        sources = set()
        for key, path in paths.items():
            for source, read in ((PSI, self._stalled_us), (THROTTLING, self._throttled_us)):
                waited_us = read(path)
                if waited_us is not None:
                    readings[key] = PressureReading(now_s, waited_us)
                    sources.add(source)
                    break
        return PressureSample(readings, " and ".join(sorted(sources)) or NOTHING)

    def _stalled_us(self, path: str) -> Optional[int]:
        for mount in _PRESSURE:
            text = self._read(mount, path, "cpu.pressure")
            for line in text.splitlines():
                if line.startswith("some "):
                    return _number(line.rpartition("total=")[2])
        return None

    def _throttled_us(self, path: str) -> Optional[int]:
        for mount in _CPU:
            for line in self._read(mount, path, "cpu.stat").splitlines():
                name, _, value = line.partition(" ")
                if name == "throttled_usec":
                    return _number(value)
                if name == "throttled_time":
                    nanoseconds = _number(value)
                    return None if nanoseconds is None else nanoseconds // 1000
        return None

    def _read(self, mount: str, path: str, name: str) -> str:
        try:
            return read_text(self._root / mount / path.lstrip("/") / name)
        except OSError:  # reading cpu.pressure of a kernel booted with psi=0: EOPNOTSUPP
            return ""


def _number(text: str) -> Optional[int]:
    try:
        return read_number(text)
    except ValueError:
        return None


@frozen
class FailedMove:
    """A move that was made and could not be kept: what the runtime, or the guard, said."""

    id: str
    path: str
    error: str


@frozen
class MoveOutcome:
    """``made``: the moves that stand. ``failed``: those taken back. ``stopped``: why there is no use in trying more."""

    made: tuple[Move, ...] = ()
    failed: tuple[FailedMove, ...] = ()
    stopped: str = ""

    @property
    def has_tried(self) -> bool:
        """Whether there was a move to make."""
        return bool(self.made or self.failed)


class Mover:
    """Makes moves of one daemon."""

    def __init__(self, services: Services, cgroup_root: Path, wait: Optional[Wait] = None) -> None:
        """``wait``: for so many seconds, before containers are compared."""
        self._services = services
        self._root = cgroup_root
        self._pressure = PressureReader(cgroup_root)
        self._wait = wait or asyncio.sleep
        #: The last two looks at how long containers wait, the older one first.
        self._looks = (PressureSample({}, ""), PressureSample({}, ""))
        self._looked_s = float("-inf")

    @property
    def can_guard(self) -> bool:
        """Whether there is something to compare with after moves, or never will be."""
        earlier, later = self._looks
        return bool(earlier.readings) or later.source == NOTHING

    @property
    def guarded_by(self) -> str:
        """The guard's source; ``pressure.NOTHING`` = there is no guard, "" = it was not looked at yet."""
        return self._looks[1].source

    async def make(self, engine: Engine, plan: Plan) -> MoveOutcome:
        """Make the moves that still hold and wait for the runtime. A container it refuses is back at its old place then."""
        node_state = self._services.node_state
        # Here, and with nothing waited for before it is sent: else the engine has moved what the runtime never will.
        if stopped := self._stopped(engine):
            return MoveOutcome(stopped=stopped)
        engine.apply(plan)
        node_state.save()
        made = [move for move in plan.moves if is_made(engine, move)]
        await node_state.updates.tried([move.id for move in made], WAIT_S)
        failed = []
        for together in in_exchanges(made):
            failed += self._undo_refused(engine, together)
        node_state.save()
        refused = {failure.id for failure in failed}
        for move in [] if plan.is_order else made:
            if move.id not in refused and move.id in engine.grants:
                engine.notable.add(MOVED, engine.grants[move.id].container, move.why)
        self._services.metrics.moves.labels("made").inc(len(made) - len(failed))
        self._services.metrics.moves.labels("refused").inc(len(failed))
        stands = tuple(move for move in made if move.id not in refused)
        return MoveOutcome(stands, tuple(failed), self._stopped(engine) or self._unanswered(stands))

    def _undo_refused(self, engine: Engine, together: Sequence[Move]) -> list[FailedMove]:
        """Take a move, or an exchange, back if the runtime has refused a part of it."""
        updates = self._services.node_state.updates
        errors = {move.id: error for move in together if (error := updates.refusal(move.id))}
        if not errors:
            return []
        [error, *_] = errors.values()
        if not self._take_back(engine, together, f"the runtime refused it: {error}"):
            return []
        paths = {move.id: path_of(engine, move.id) for move in together}
        other = f"{paths[next(iter(errors))]}, with which it was to change places, was refused: {error}"
        return [FailedMove(move.id, paths[move.id], errors.get(move.id, other)) for move in together]

    def _stopped(self, engine: Engine) -> str:
        """Why nothing may be moved in this engine (any more); "" = it may."""
        node_state = self._services.node_state
        if still := node_state.still():
            return still
        if node_state.orders.freeze:
            return FROZEN
        return "" if engine is node_state.active() else "the engine was replaced meanwhile"

    def _unanswered(self, made: tuple[Move, ...]) -> str:
        updates = self._services.node_state.updates
        waiting = [move for move in made if move.id in updates.pending and not updates.refusal(move.id)]
        return "the runtime does not answer" if waiting else ""

    def _take_back(self, engine: Engine, together: Sequence[Move], why: str) -> bool:
        """Have a move or an exchange undone; False = the containers have to stay where they are."""
        back = engine is self._services.node_state.engine and engine.take_back(together, why)
        said = "a move was taken back" if back else "a move could not be taken back"
        for move in together:
            self._services.log.warning(said, container=path_of(engine, move.id), why=why)
        return back

    # ------------------------------------------------------------------ the guard

    async def look(self, engine: Engine) -> None:
        """Read how long containers have waited so far; what comes between two looks is the time before a plan."""
        now_s = self._services.node_state.clock()
        if now_s - self._looked_s >= SHORTEST_S:  # between two that are nearer nothing can be said
            self._looked_s = now_s
            self._looks = (self._looks[1], await self._read(engine))

    async def _read(self, engine: Engine) -> PressureSample:
        return await asyncio.to_thread(
            self._pressure.look, self._paths(engine), self._services.node_state.clock()
        )

    def _paths(self, engine: Engine) -> dict[str, str]:
        """The cgroups of the containers that run, as far as they are known."""
        of = self._services.reconciler.cgroup_of
        running = [key for key, grant in engine.grants.items() if grant.life is Life.RUNNING]
        return {key: path for key in running if (path := of(key)) is not None}

    async def memory(self, engine: Engine) -> dict[str, int]:
        """Bytes in use, by id, where cgroups tell."""
        return await asyncio.to_thread(memory_in_use, self._root, self._paths(engine))

    async def guard(self, engine: Engine, made: tuple[Move, ...]) -> tuple[FailedMove, ...]:
        """Wait, compare, and take back moves into places where containers now wait longer. Returns these moves."""
        before = shares(self._looks[0].readings, self._looks[1].readings)
        if not before or not made:
            return ()
        start = await self._read(engine)
        await self._wait(GUARD_S)
        end = await self._read(engine)
        if self._stopped(engine):
            return ()
        return await self._compare(engine, made, before, start.readings, end.readings)

    async def _compare(
        self,
        engine: Engine,
        made: tuple[Move, ...],
        before: Mapping[str, float],
        start: Mapping[str, PressureReading],
        end: Mapping[str, PressureReading],
    ) -> tuple[FailedMove, ...]:
        cpus_of = {key: grant.cpus for key, grant in engine.grants.items()}
        places = [move.home for move in made]
        failed: list[FailedMove] = []
        groups = list(in_exchanges(made))
        for worse in worse_places(places, cpus_of, before, shares(start, end)):
            for together in reversed(
                [group for group in groups if any(m.home == worse.place for m in group)]
            ):
                if self._take_back(engine, together, worse.sentence):
                    groups.remove(together)
                    failed += [FailedMove(m.id, path_of(engine, m.id), worse.sentence) for m in together]
        self._services.node_state.save()
        self._services.metrics.moves.labels("taken_back").inc(len(failed))
        await self._services.node_state.updates.tried([failure.id for failure in failed], WAIT_S)
        return tuple(failed)


def is_made(engine: Engine, move: Move) -> bool:
    """Whether a move that was to be made has been: one that finds no room any more is not."""
    grant = engine.grants.get(move.id)
    return grant is not None and move.was is not None and grant.placement.home != move.was.home


def path_of(engine: Engine, container_id: str) -> str:
    """``namespace/pod/container``; the id of one that is gone."""
    grant = engine.grants.get(container_id)
    return container_id[:13] if grant is None else grant.container.path


#: Where it is told: cgroup v2, and v1 with its own mount for memory. Page cache is part of it; it moves as well.
_FILES = (("", "memory.current"), ("memory", "memory.usage_in_bytes"))


def memory_in_use(root: Path, paths: Mapping[str, str]) -> dict[str, int]:
    """Bytes by id for the cgroups of ``paths`` below ``root``; cgroups without a figure are left out. Blocks."""
    found = {}
    for key, path in paths.items():
        for mount, name in _FILES:
            try:
                found[key] = read_number(read_text(root / mount / path.lstrip("/") / name))
            except (OSError, ValueError):
                continue
            break
    return found


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


@frozen
class Accepted:
    """A plan that is being carried out. ``settings``: of its making; ``measured``: the counts before it."""

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
        """The moves not to be tried again yet."""
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
        """Compare the counts before a plan with now, its moves being made, and note the effect for ``status``."""
        if accepted.measured is not None and accepted.measured.made:
            await self.meter.after(engine, accepted.measured, accepted.settings)

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
        after = self._look_after(engine, outcome, accepted)
        task = self.services.supervisor.begin("looking after moves", after)
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
    """Bytes of the containers in another NUMA node now."""
    topology = engine.host.topology
    sizes = {vertex.key: vertex.memory_bytes for vertex in question.problem.vertices}
    return sum(
        sizes.get(move.id, 0)
        for move in outcome.made
        if move.was is not None and not topology.nodes_of(move.home) <= topology.nodes_of(move.was.cpus)
    )
