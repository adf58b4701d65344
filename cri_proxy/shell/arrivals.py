"""Places containers that nobody announced, and follows those that were resized past us.

Rule: nothing that goes wrong in here stops anything. A container that cannot be decided upon stays as it is, with
one log line and a counter, as in shell/interceptor.py; it runs already, so nobody is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Optional

from cri_proxy.core import arrivals as core
from cri_proxy.core.arrivals import Arrival, Steps
from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Life, Stance, Update
from cri_proxy.shell.lookup import look_up
from cri_proxy.shell.parts import Parts
from cri_proxy.shell.reconciler import linux_resources
from cri_proxy.shell.runtime import gather_limited
from policies.cpus import format_cpus
from policies.model import BudgetSpent, PlacementRefused, Resources

AT_A_TIME = 8


class Arrivals:
    """``count``: how many were placed, or decided upon in mode observe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.count = 0

    async def place(self, engine: Engine, found: Iterable[Arrival]) -> None:
        """Decide about all of them in the order of their starts, then tell the runtime: who makes room first."""
        keeper = self._parts.keeper
        decided: list[Arrival] = []
        before: list[Update] = []
        after: list[Update] = []
        for arrival in core.in_order(found):
            arrival = await self._looked_up(engine, arrival)
            if keeper.active() is not engine:  # it was replaced meanwhile
                return
            steps = self._decide(engine, arrival)
            keeper.save()
            decided.append(arrival)
            before += steps.before
            after += steps.after
        if not decided:
            return
        await keeper.make_room(before)
        if keeper.engine is engine:
            own = [update for arrival in decided for update in core.own_update(engine, arrival)]
            keeper.send([*own, *after])

    async def _looked_up(self, engine: Engine, arrival: Arrival) -> Arrival:
        keeper, container = self._parts.keeper, arrival.container
        if container.wishes.notes:
            keeper.log.warning("annotations", container=container.path, ignored=list(container.wishes.notes))
        if container.pod.id not in engine.pods:
            engine.add_pod(container.pod)
            await keeper.on_pod(container.pod)
        return replace(arrival, container=await look_up(keeper, engine, container, arrival.uses))

    def _decide(self, engine: Engine, arrival: Arrival) -> Steps:
        keeper, started = self._parts.keeper, time.perf_counter()
        now_s = keeper.clock()
        fields: dict[str, Any] = {}
        try:
            steps = core.place(engine, arrival, now_s, keeper.enforcing)
            outcome = engine.grants[arrival.id].stance.value
            self.count += 1
        except Exception as error:
            reason = _reason(error)
            outcome = "untouched: refused" if reason == "refused" else f"failed open: {reason}"
            if reason != "refused":
                keeper.metrics.failed_open.labels(reason).inc()
                fields["exc_info"] = reason == "bug"
            steps = Steps(after=core.leave_untouched(engine, arrival, now_s, f"not placed: {error}"))
        elapsed_s = time.perf_counter() - started
        keeper.metrics.decision_seconds.observe(elapsed_s)
        keeper.metrics.requests.labels("arrival", outcome).inc()
        grant = engine.grants[arrival.id]
        keeper.log.info(
            "arrival", container=grant.container.path, id=arrival.id, cpus=format_cpus(grant.placement.cpus),
            mems=format_cpus(grant.placement.mems), rung=grant.placement.level, why=grant.why, outcome=outcome,
            us=round(elapsed_s * 1e6), late_ms=_late_ms(arrival.started_at_ns), **fields,
        )  # fmt: skip
        return steps

    # ------------------------------------------------------------------ resizes

    async def follow_resizes(self, engine: Engine) -> None:
        """Ask the runtime for everybody's resources; who was resized is decided upon anew."""
        keeper, runtime = self._parts.keeper, self._parts.runtime
        then = {key: grant for key, grant in engine.grants.items() if self._is_followed(key, engine)}
        answers = await gather_limited(AT_A_TIME, [runtime.container_status(key) for key in then])
        silent = [
            key
            for key, got in zip(then, answers)
            if not isinstance(got, BaseException) and not got[0].resources.linux.ByteSize()
        ]
        # containerd before 1.7 tells it among the verbose information only.
        more = await gather_limited(
            AT_A_TIME, [runtime.container_status(key, verbose=True) for key in silent]
        )
        found = {**dict(zip(then, answers)), **dict(zip(silent, more))}
        for key, got in found.items():
            if isinstance(got, BaseException) or keeper.active() is not engine:
                continue
            # It may have been moved, or its quota lifted, since the runtime was asked.
            if engine.grants.get(key) is then[key] and self._is_followed(key, engine):
                resources = core.resources_now(then[key], linux_resources(*got))
                if resources is not None:
                    await self._resize(engine, key, resources)

    def _is_followed(self, key: str, engine: Engine) -> bool:
        keeper, grant = self._parts.keeper, engine.grants[key]
        ours = keeper.enforcing or grant.stance is Stance.OBSERVED
        alive = grant.life in (Life.CREATED, Life.RUNNING)
        resizing = any(ticket.target == key for ticket in engine.tickets.values())
        return ours and alive and not resizing and key not in keeper.updates.unsettled

    async def _resize(self, engine: Engine, key: str, resources: Resources) -> None:
        keeper, container = self._parts.keeper, engine.grants[key].container
        was = container.resources
        steps: Optional[Steps] = None
        try:
            steps = core.resize(engine, key, resources, keeper.clock())
            outcome = engine.grants[key].stance.value
        except Exception as error:
            reason = _reason(error)
            outcome = f"failed open: {reason}"
            keeper.log.warning(
                "a resize could not be followed", container=container.path, why=str(error),
                exc_info=reason == "bug",
            )  # fmt: skip
        keeper.metrics.requests.labels("resize", outcome).inc()
        if steps is None:
            return
        keeper.save()
        grant = engine.grants[key]
        keeper.log.info(
            "resize", container=container.path, id=key, milli_limit=resources.milli_limit,
            was=was.milli_limit, cpus=format_cpus(grant.cpus), why=grant.why, outcome=outcome,
        )  # fmt: skip
        await keeper.make_room(steps.before)
        keeper.send(steps.after)
        await asyncio.sleep(0)


def _reason(error: Exception) -> str:
    if isinstance(error, PlacementRefused):
        return "refused"
    return "budget" if isinstance(error, BudgetSpent) else "bug"


def _late_ms(started_at_ns: int) -> Optional[int]:
    """How long a container has run unplaced; None if the runtime does not say when it started."""
    return round((time.time_ns() - started_at_ns) / 1e6) if started_at_ns else None
