"""Makes the moves of a plan: in the engine, in the state, at the runtime; and undoes those that were a mistake.

Two can be: a container whose update the runtime refuses goes back at once, and those that came into a place whose
containers then wait for CPUs (affinity/pressure_guard.py) go back after a look. Containers that change places go back
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy.affinity.io.memory_use import memory_in_use
from cri_proxy.affinity.io.pressure import NOTHING, PressureReader, PressureSample
from cri_proxy.affinity.moves import in_exchanges
from cri_proxy.affinity.pressure_guard import SHORTEST_S, PressureReading, shares, worse_places
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.notable import MOVED
from cri_proxy.engine.pins import FROZEN
from cri_proxy.engine.records import CpusetUpdate, Life, Move, Plan
from cri_proxy.services.services import Services

#: How long the runtime may take for the updates of a plan, seconds.
WAIT_S = 30.0
#: How long containers are left in their new places before they are compared: within the 10 to 30 seconds in which
#: PSI says anything, and long enough that caches are warm again.
GUARD_S = 20.0

Wait = Callable[[float], Awaitable[Any]]


@dataclass(frozen=True)
class FailedMove:
    """A move that was made and could not be kept: what the runtime, or the guard, said."""

    id: str
    path: str
    error: str


@dataclass(frozen=True)
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
        """What the guard reads; ``pressure.NOTHING`` = there is no guard, "" = it was not looked at yet."""
        return self._looks[1].source

    async def make(self, engine: Engine, plan: Plan) -> MoveOutcome:
        """Make those moves that still hold and wait for the runtime. What it refuses is back at its old place then."""
        node_state = self._services.node_state
        # Here, and with nothing waited for before it is sent: else the engine has moved what the runtime never will.
        if stopped := self._stopped(engine):
            return MoveOutcome(stopped=stopped)
        updates = engine.apply(plan)
        node_state.save()
        made = [move for move in plan.moves if is_made(engine, move)]
        kept = await self._send(updates, made)
        failed = []
        for together in in_exchanges(made):
            failed += self._undo_refused(engine, together, kept)
        node_state.send(kept.values())
        node_state.save()
        refused = {failure.id for failure in failed}
        for move in [] if plan.is_order else made:
            if move.id not in refused and move.id in engine.grants:
                engine.notable.add(MOVED, engine.grants[move.id].container, move.why)
        self._services.metrics.moves.labels("made").inc(len(made) - len(failed))
        self._services.metrics.moves.labels("refused").inc(len(failed))
        stands = tuple(move for move in made if move.id not in refused)
        return MoveOutcome(stands, tuple(failed), self._stopped(engine) or self._unanswered(stands))

    async def _send(self, updates: Sequence[CpusetUpdate], made: Sequence[Move]) -> dict[str, CpusetUpdate]:
        """Send updates and wait for the runtime. Those of an exchange go one after another, so that no more containers
        are in one place than the plan has reckoned with; after one that is refused, the rest of it is kept: returned,
        by id."""
        sender = self._services.node_state.updates
        exchange_of = {move.id: move.exchange for move in made if move.exchange}
        kept: dict[str, CpusetUpdate] = {}
        refused: set[int] = set()
        wait_s = WAIT_S
        for one_id, group in groupby(
            updates, key=lambda update: update.id if update.id in exchange_of else ""
        ):
            listed = list(group)
            exchange = exchange_of.get(one_id, 0)
            if exchange in refused:
                kept[one_id] = listed[0]
                continue
            await sender.send_and_wait(listed, wait_s)
            if any(update.id in sender.pending and not sender.refusal(update.id) for update in listed):
                wait_s = 0.0  # the runtime does not answer: one wait is enough
            if exchange and sender.refusal(one_id):
                refused.add(exchange)
        return kept

    def _undo_refused(
        self, engine: Engine, together: Sequence[Move], kept: dict[str, CpusetUpdate]
    ) -> list[FailedMove]:
        """Take a move, or an exchange, back if the runtime has refused a part of it; takes those out of ``kept``."""
        updates = self._services.node_state.updates
        errors = {move.id: error for move in together if (error := updates.refusal(move.id))}
        if not errors:
            return []
        [error, *_] = errors.values()
        back = self._take_back(engine, together, f"the runtime refused it: {error}")
        if not back:
            return []
        # Those that have never left their old places need not be told; others may have made room for them.
        untold = {*errors, *(move.id for move in together if kept.pop(move.id, None))}
        for key in untold:
            updates.forget(key)
        self._services.node_state.send(update for update in back if update.id not in untold)
        paths = {move.id: path_of(engine, move.id) for move in together}
        other = f"{paths[next(iter(errors))]}, with which it was to change places, was refused: {error}"
        return [FailedMove(move.id, paths[move.id], errors.get(move.id, other)) for move in together]

    def _stopped(self, engine: Engine) -> str:
        """Why nothing may be moved in this engine (any more); "" = it may."""
        node_state = self._services.node_state
        if not node_state.enforcing:
            return f"in mode {node_state.mode} nothing is moved"
        if node_state.orders.freeze:
            return FROZEN
        return "" if engine is node_state.active() else "the engine was replaced meanwhile"

    def _unanswered(self, made: tuple[Move, ...]) -> str:
        updates = self._services.node_state.updates
        waiting = [move for move in made if move.id in updates.pending and not updates.refusal(move.id)]
        return "the runtime does not answer" if waiting else ""

    def _take_back(self, engine: Engine, together: Sequence[Move], why: str) -> tuple[CpusetUpdate, ...]:
        """What has to be sent for a move or an exchange; nothing = the containers have to stay where they are."""
        back = engine.take_back(together, why) if engine is self._services.node_state.engine else ()
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
        """Wait, compare, and take back what went into places whose containers now wait longer. Returns those."""
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
        updates: list[CpusetUpdate] = []
        groups = list(in_exchanges(made))
        for worse in worse_places(places, cpus_of, before, shares(start, end)):
            for together in reversed(
                [group for group in groups if any(m.home == worse.place for m in group)]
            ):
                back = self._take_back(engine, together, worse.sentence)
                if back:
                    groups.remove(together)
                    updates += back
                    failed += [FailedMove(m.id, path_of(engine, m.id), worse.sentence) for m in together]
        return await self._taken_back(failed, updates)

    async def take_back(self, engine: Engine, made: Sequence[Move], why: str) -> tuple[FailedMove, ...]:
        """Take moves back, the last one first, as far as their places before hold. Returns those."""
        if self._stopped(engine):
            return ()
        failed: list[FailedMove] = []
        updates: list[CpusetUpdate] = []
        for together in reversed(list(in_exchanges(made))):
            if back := self._take_back(engine, together, why):
                updates += back
                failed += [FailedMove(move.id, path_of(engine, move.id), why) for move in together]
        return await self._taken_back(failed, updates)

    async def _taken_back(
        self, failed: Sequence[FailedMove], updates: Sequence[CpusetUpdate]
    ) -> tuple[FailedMove, ...]:
        self._services.node_state.save()
        self._services.metrics.moves.labels("taken_back").inc(len(failed))
        await self._services.node_state.updates.send_and_wait(updates, WAIT_S)
        return tuple(failed)


def is_made(engine: Engine, move: Move) -> bool:
    """Whether a move that was to be made has been: one that finds no room any more is not."""
    grant = engine.grants.get(move.id)
    return grant is not None and move.was is not None and grant.placement.home != move.was.home


def path_of(engine: Engine, container_id: str) -> str:
    """``namespace/pod/container``; the id of one that is gone."""
    grant = engine.grants.get(container_id)
    return container_id[:13] if grant is None else grant.container.path
