"""Places containers that come unannounced, and tells them from those that ran before.

Rule: nothing that goes wrong in here stops anything. A container that cannot be decided upon stays as it is, with
one log line and a counter, as in front_ends/cri_calls.py; it runs already, so no call is refused.

The reply to RestorePod (a pod made from a checkpoint) names its containers, created and not started: they are placed before
it is passed on. What it does not tell, since it was lost or could not be understood, is placed by the next comparison with
the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from bpf.kernel.clock import boot_time_s
from cri_api.waiting import wait_within
from cri_proxy import effects
from cri_proxy.bounded_files import SMALL_FILE_S, within
from cri_proxy.cri.device_hints import Use, counted
from cri_proxy.cri.messages import CreateRequest
from cri_proxy.engine import resync as core
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.resources import wants_lift, with_quota_kept
from cri_proxy.engine.resync import UnannouncedContainer
from cri_proxy.front_ends.placer import Placer
from cri_proxy.relay.status import RpcError
from cri_proxy.runtime import gather_limited
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.services import Services
from policies.machine.cpus import format_cpus
from policies.model import MOUNTS, RESOURCES, BudgetSpent, Constraint, Container, PlacementRefused

#: Touched by looks: what starts while the daemon is restarted is told by it from what ran before.
LOOKED = "standalone.looked"
#: After a longer pause nothing is known of what has come meanwhile, and it has settled where it runs.
LONGEST_PAUSE_S = 600.0
#: How long the runtime may take to tell when a container has started, and how many it is asked about at a time.
START_S, AT_A_TIME = 1.0, 8


async def look_up(
    node_state: NodeState, engine: Engine, container: Container, constraint: Constraint, uses: tuple[Use, ...]
) -> Container:
    """The container with the hints of what it uses, and with its quota kept where that cannot be lifted. A line of the log
    says which of its annotations are ignored. ``constraint``: the cpuset of its request, which may be kubelet's own.

    Waits only for what was never asked before; most containers use nothing that there is to ask about. Kubelet is asked
    where devices are that are CDI's, or whose place the system does not know. The
    pod's cgroup is there by now: kubelet, or else the runtime, has made it for the sandbox.
    """
    await node_state.know_whose(constraint)
    if ignored := engine.policy.ignored(container):
        node_state.log.warning("annotations", container=container.path, ignored=list(ignored))
    settings = engine.policy.settings
    counting = counted(uses, container, settings)
    seen = tuple(use for use in counting if use[0] != RESOURCES)
    if seen:
        container = replace(container, hints=await node_state.devices.hints(seen, engine.host.topology))
    told = {hint.path for hint in container.hints}
    is_open = any(kind != MOUNTS and path not in told for kind, path in counting)
    if is_open or engine.policy.asks_kubelet(engine.node, container):
        given = await node_state.devices_given(container)
        container = replace(container, hints=(*container.hints, *given))
    if node_state.quotas is not None and wants_lift(container, settings):
        refusal = node_state.quotas.refusal(container.pod.cgroup_parent)
        if refusal:
            node_state.log.warning("a CPU quota is not lifted", container=container.path, reason=refusal)
            container = with_quota_kept(container, refusal)
    return container


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
            if unannounced.id in engine.grants:  # another look has found it as well
                continue
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
        looked_up = await look_up(node_state, engine, container, unannounced.constraint, unannounced.uses)
        return replace(unannounced, container=looked_up)

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


class Arrivals:
    """What ran before us keeps what it has; what has started since is placed.

    So it is wherever starts are not announced, or not all of them. One for a daemon, whose comparisons ask it.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._late_placement = LatePlacement(services)
        #: The engine that has taken over what ran before; None while there is none, or it is not to be asked.
        self._engine: Optional[Engine] = None
        self._ran_before: frozenset[str] = frozenset()
        self._first = asyncio.Lock()
        self._looked = Path(services.config["state.directory"]) / LOOKED
        self._since_ns = _recent_ns(self._looked)
        services.reconciler.welcome = self.welcome
        services.reconciler.place_late = self.place_late

    @property
    def count(self) -> int:
        """How many were placed after their start."""
        return self._late_placement.count

    def unasked(self) -> None:
        """Containers come that the engine is not asked about: they are as those that ran before."""
        self._engine = None

    def note_look(self) -> None:
        """All that has started until now is known."""
        self._services.store.later(self._touch)

    def end(self) -> None:
        """The daemon ends in order."""
        if self._engine is not None:
            self.note_look()

    def _touch(self) -> None:
        with contextlib.suppress(OSError):  # then all that is not known after a restart is adopted
            effects.before(effects.STATE, LOOKED)
            self._looked.touch()

    async def welcome(
        self, engine: Engine, found: Mapping[str, UnannouncedContainer]
    ) -> Mapping[str, UnannouncedContainer]:
        """Those that ran before, which are to be adopted."""
        running = {key: each for key, each in found.items() if each.is_running}
        async with self._first:
            if engine is not self._engine:
                since_ns, self._since_ns = self._since_ns, None
                # What the daemon before has placed and not saved is not to be told from what came after it.
                if since_ns is None or self._services.node_state.books.are_behind:
                    older = list(running)
                else:
                    older = await self._older(running, since_ns)
                self._engine, self._ran_before = engine, frozenset(older)
        adopted = {key: each for key, each in running.items() if key in self._ran_before}
        if adopted:
            self._services.log.info("what ran before keeps what it has", containers=len(adopted))
        return adopted

    async def place_late(self, engine: Engine, found: Mapping[str, UnannouncedContainer]) -> None:
        """Place those that run and did not before. Created ones are waited for."""
        await self._late_placement.place(engine, [each for each in found.values() if each.is_running])

    async def _older(self, running: Mapping[str, UnannouncedContainer], since_ns: int) -> list[str]:
        """Those that started before a time. Where that is not known the runtime is asked; 0: it is not told either."""
        untold = [key for key, each in running.items() if not each.started_at_ns]
        told = dict(
            zip(untold, await gather_limited(AT_A_TIME, [self._started_at_ns(key) for key in untold]))
        )
        return [key for key, each in running.items() if told.get(key, each.started_at_ns) < since_ns]

    async def _started_at_ns(self, container_id: str) -> int:
        with contextlib.suppress(RpcError, asyncio.TimeoutError):
            status, _ = await wait_within(START_S, self._services.runtime.container_status(container_id))
            return int(status.started_at)
        return 0


def _recent_ns(looked: Path) -> Optional[int]:
    """When a daemon before this one has looked last (Unix time), if that was in this boot and not long ago."""
    try:
        at_ns = within(SMALL_FILE_S, looked.stat).st_mtime_ns
    except OSError:
        return None
    now_ns = time.time_ns()
    pause_s = min(LONGEST_PAUSE_S, boot_time_s())
    return at_ns if 0 <= now_ns - at_ns <= pause_s * 1e9 else None


def _reason(error: Exception) -> str:
    if isinstance(error, PlacementRefused):
        return "refused"
    return "budget" if isinstance(error, BudgetSpent) else "bug"


def _late_ms(started_at_ns: int) -> Optional[int]:
    """How long a container has run unplaced; None if the runtime does not say when it started."""
    return round((time.time_ns() - started_at_ns) / 1e6) if started_at_ns else None


class Restores:
    """Which pods are being restored, by uid, and of which it is not known what became of them."""

    def __init__(self, late_placement: LatePlacement) -> None:
        self._late_placement = late_placement
        self._under_way: set[str] = set()
        self._left: set[str] = set()

    def begun(self, pod_uid: str) -> None:
        """A RestorePod is about to be sent; ``ended`` must follow."""
        self._under_way.add(pod_uid)

    def ended(self, pod_uid: str, is_known: bool) -> None:
        """It is over; ``is_known``: the runtime has made nothing, or what it has made was placed."""
        self._under_way.discard(pod_uid)
        if is_known:
            self._left.discard(pod_uid)
        else:
            self._left.add(pod_uid)

    async def place(self, engine: Engine, made: Mapping[str, CreateRequest]) -> None:
        """Place the containers that a reply names, by their ids, before they are started."""
        await self._late_placement.place(
            engine,
            [
                UnannouncedContainer(
                    key,
                    c.container,
                    c.constraint,
                    c.uses,
                    c.constraint.cpus,
                    c.constraint.mems,
                    is_running=False,
                )
                for key, c in made.items()
            ],
        )

    async def welcome(
        self, engine: Engine, found: Mapping[str, UnannouncedContainer]
    ) -> Mapping[str, UnannouncedContainer]:
        """Of the containers without a record those to adopt: all but those of restores."""
        restored = self._left | self._under_way
        return {key: each for key, each in found.items() if each.container.pod.uid not in restored}

    async def place_left(self, engine: Engine, found: Mapping[str, UnannouncedContainer]) -> None:
        """Place what restores have left. Those of a pod that is being restored are placed when the reply comes."""
        over = self._left - self._under_way
        left = [each for each in found.values() if each.container.pod.uid in over]
        await self._late_placement.place(engine, left)
        self._left -= {each.container.pod.uid for each in left}
