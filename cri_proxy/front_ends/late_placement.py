"""Places containers that come unannounced.

Rule: nothing that goes wrong in here stops anything. A container that cannot be decided upon stays as it is, with
one log line and a counter, as in front_ends/cri_calls.py; it runs already, so no call is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Optional

from cri_proxy.engine import resync as core
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.resync import UnannouncedContainer
from cri_proxy.front_ends.lookup import look_up
from cri_proxy.front_ends.placer import Placer
from cri_proxy.services.services import Services
from policies.machine.cpus import format_cpus
from policies.model import BudgetSpent, PlacementRefused


class LatePlacement:
    """``count``: how many were placed, or decided upon in mode observe."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.count = 0

    async def place(self, engine: Engine, found: Iterable[UnannouncedContainer]) -> None:
        """Decide about all of them in the order of their starts, and have them told: those that make room first.

        Those that were not started yet have been told when this returns, if the runtime is not too slow.
        """
        node_state = self._services.node_state
        waiting: list[str] = []
        for unannounced in core.in_order(found):
            unannounced = await self._looked_up(engine, unannounced)
            if node_state.active() is not engine:  # it was replaced meanwhile
                return
            self._decide(engine, unannounced)
            node_state.save()
            if not unannounced.is_running:
                waiting.append(unannounced.id)
        if waiting and node_state.enforcing:
            await node_state.updates.tried(waiting, node_state.shrink_wait_s)
            if node_state.engine is engine:
                self._note_untold(engine, node_state.updates.pending.intersection(waiting))

    def _note_untold(self, engine: Engine, ids: Iterable[str]) -> None:
        """Containers that may start before they have their CPUs: those come with the update, which is sent again."""
        node_state = self._services.node_state
        for grant in [engine.grants[key] for key in sorted(ids) if key in engine.grants]:
            node_state.log.warning("not told before its start", container=grant.container.path, id=grant.key)
            why = f"{grant.why}; the runtime could not be told before its start"
            engine.amend(replace(grant, why=why), engine.told.get(grant.key))
        node_state.save()

    async def _looked_up(self, engine: Engine, unannounced: UnannouncedContainer) -> UnannouncedContainer:
        node_state, container = self._services.node_state, unannounced.container
        if container.pod.id not in engine.pods:
            engine.add_pod(container.pod)
            await node_state.on_pod(container.pod)
        return replace(unannounced, container=await look_up(node_state, engine, container, unannounced.uses))

    def _decide(self, engine: Engine, unannounced: UnannouncedContainer) -> None:
        node_state, started = self._services.node_state, time.perf_counter()
        now_s = node_state.clock()
        fields: dict[str, Any] = {}
        try:
            Placer(engine).create_late(unannounced, now_s, node_state.enforcing)
            outcome = engine.grants[unannounced.id].stance.value
            self.count += 1
        except Exception as error:
            reason = _reason(error)
            outcome = "untouched: refused" if reason == "refused" else f"failed open: {reason}"
            if reason != "refused":
                node_state.metrics.failed_open.labels(reason).inc()
                fields["exc_info"] = reason == "bug"
            core.leave_untouched(engine, unannounced, now_s, f"not placed: {error}")
        elapsed_s = time.perf_counter() - started
        node_state.metrics.decision_seconds.observe(elapsed_s)
        node_state.metrics.requests.labels("arrival", outcome).inc()
        grant = engine.grants[unannounced.id]
        node_state.log.info(
            "arrival", container=grant.container.path, id=unannounced.id, cpus=format_cpus(grant.placement.cpus),
            mems=format_cpus(grant.placement.mems), rung=grant.placement.level, why=grant.why, outcome=outcome,
            us=round(elapsed_s * 1e6), late_ms=_late_ms(unannounced.started_at_ns), **fields,
        )  # fmt: skip


def _reason(error: Exception) -> str:
    if isinstance(error, PlacementRefused):
        return "refused"
    return "budget" if isinstance(error, BudgetSpent) else "bug"


def _late_ms(started_at_ns: int) -> Optional[int]:
    """How long a container has run unplaced; None if the runtime does not say when it started."""
    return round((time.time_ns() - started_at_ns) / 1e6) if started_at_ns else None
