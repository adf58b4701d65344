"""Quota turbo in the daemon: looks at containers with a quota each five seconds, and changes what their records want.

A raise is a change of a record, and goes through the one sender like any other; the limit in the record stays what its
caller said. Before the first raise the record says that it may come, so that the pod's own quota, which is the sum of its
containers', is out of the way; that comes back when the container is known to have its own quota.

In the modes observe and off nothing is raised, and what was raised has been taken back by the sender. What a daemon before
this one has raised it takes back as it restores the records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from cri_api.waiting import wait_within
from cri_proxy.affinity.demand.estimate import DemandSample
from cri_proxy.affinity.demand.io.sizer import UsageReader
from cri_proxy.bounded_files import read_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import UNKNOWN_QUOTA, ContainerRecord, Life, Management, Told
from cri_proxy.engine.resources import CgroupReading
from cri_proxy.isolation.model import ENFORCE, OBSERVE, OFF, PROTECTED
from cri_proxy.isolation.turbo import (
    OPTION,
    ROUND_S,
    Turbo,
    TurboChange,
    TurboContainer,
    idle_domain,
    read_cpu_times,
    read_most,
)
from cri_proxy.job_thread import JobThread
from cri_proxy.machine_root import below, machine_root
from cri_proxy.services.services import Services
from policies.frozen import frozen

#: Rounds in which a container has its own quota before that counts as known, and its pod has its own quota again.
SETTLED_ROUNDS = 3


@frozen
class _Look:
    """What was read in one round."""

    samples: Mapping[str, DemandSample]
    quotas: Mapping[str, CgroupReading]
    times: Mapping[int, tuple[int, int]]


_NOTHING = _Look({}, {}, {})


class QuotaTurbo:
    """The turbo of one daemon. ``run`` is the part that goes on by itself."""

    def __init__(self, services: Services, cgroup_root: Path, proc: Path = Path("/proc")) -> None:
        self.turbo = Turbo()
        self._services = services
        self._proc = proc
        self._files = UsageReader(cgroup_root, services.node_state.clock)
        self._jobs = JobThread("turbo", services.supervisor)
        self._last = _NOTHING
        #: What would be done in mode observe.
        self._told: tuple[TurboChange, ...] = ()
        #: Why each container has the quota it has, by its key.
        self._whys: dict[str, str] = {}
        #: For how many rounds containers with a mark have had their own quota.
        self._settled: dict[str, int] = {}
        self._wake = asyncio.Event()

    # ------------------------------------------------------------------ by itself

    async def run(self) -> None:
        """Look and raise until the option is off and all have their own quota again.

        A round that fails is logged and shown in the status; the next one is made.
        """
        while self._most > 1 or self._has_raised:
            try:
                await self.round()
            except Exception as error:
                self._services.log.error("a round of quota turbo failed", exc_info=True)
                self._services.health.note("turbo", f"quotas are not raised: {type(error).__name__}: {error}")
            else:
                self._services.health.note("turbo", "")
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(ROUND_S, self._wake.wait())
            self._wake.clear()

    def reconfigured(self) -> None:
        """The configuration, or the mode, is another one: the next round is now."""
        self._wake.set()

    async def close(self) -> None:
        """Give all descriptors back; ``run`` has ended."""
        closed = self._jobs.begin(self._files.close)
        self._jobs.end()
        await closed

    @property
    def _most(self) -> float:
        return read_most(self._services.config[OPTION])

    @property
    def _has_raised(self) -> bool:
        engine = self._services.node_state.engine
        return engine is not None and bool(engine.raised)

    @property
    def mode(self) -> str:
        """Whether quotas are raised, only said, or neither."""
        if self._most <= 1:
            return OFF
        return ENFORCE if self._services.node_state.enforcing else OBSERVE

    async def round(self) -> None:
        """One look, and what follows from it."""
        node_state = self._services.node_state
        engine = node_state.engine
        if engine is None or not node_state.has_compared:
            return
        records = self._eligible(engine)
        cgroup_of = self._services.reconciler.cgroup_of
        marked = [key for key in engine.raised if key in engine.grants]
        paths = {key: path for key in {*records, *marked} if (path := cgroup_of(key)) is not None}
        earlier, told = (
            self._last,
            {key: engine.told.get(key) for key in marked if key not in engine.under_way},
        )
        self._last = await self._jobs.begin(lambda: self._look(paths, marked))
        if engine is not node_state.engine:
            self._last = _NOTHING
            return
        l3s = {number: l3.cpus for number, l3 in enumerate(engine.host.topology.at("l3"))}
        domains = {number: idle_domain(cpus, earlier.times, self._last.times) for number, cpus in l3s.items()}
        if not earlier.times:
            domains = {}
        # Of those that were looked at: a record may be another one since.
        known = {key: engine.grants[key] for key in records if key in engine.grants}
        containers = [self._container(record, earlier, l3s) for record in known.values() if record.quota]
        most, now_s = self._most, node_state.clock()
        if node_state.enforcing or most <= 1:
            changes, self._told = self.turbo.decide(containers, domains, most, now_s), ()
        else:
            changes = [
                TurboChange(each.key, 0, "nothing is raised in this mode")
                for each in containers
                if each.now_us
            ]
            self._told = tuple(Turbo().decide(containers, domains, most, now_s))
        self._carry_out(engine, changes)
        self._follow(engine, told)
        node_state.save()

    def _eligible(self, engine: Engine) -> dict[str, ContainerRecord]:
        """The containers that may have turbo, and those that have it."""
        asked = {ticket.target for ticket in engine.tickets.values()}
        return {
            key: record
            for key, record in engine.grants.items()
            if key not in asked and _is_able(record) and (_may(record) or record.turbo_us)
        }

    def _look(self, paths: Mapping[str, str], marked: Sequence[str]) -> _Look:
        """Read everything once. Blocks."""
        self._files.keep(paths.keys())
        samples = self._files.look(paths, paths.keys())
        limits = self._services.cgroups.limits
        quotas = {key: limits(paths[key], key) for key in marked if key in paths}
        return _Look(samples, quotas, read_cpu_times(read_text(self._proc / "stat")))

    def _container(
        self, record: ContainerRecord, earlier: _Look, l3s: Mapping[int, frozenset[int]]
    ) -> TurboContainer:
        quota, cpus = record.quota, record.cpus
        assert quota is not None
        before, now = earlier.samples.get(record.key), self._last.samples.get(record.key)
        throttled = used = None
        if before is not None and now is not None and now.time_ns > before.time_ns:
            span = now.time_ns - before.time_ns
            throttled = max(now.throttled_ns - before.throttled_ns, 0) / span
            used = max(now.usage_ns - before.usage_ns, 0) / span
        return TurboContainer(
            record.key,
            quota.quota_us,
            quota.period_us,
            len(cpus),
            tuple(number for number, here in l3s.items() if not here.isdisjoint(cpus)),
            record.turbo_us,
            throttled,
            used,
            _may(record),
        )

    # ------------------------------------------------------------------ what follows

    def _carry_out(self, engine: Engine, changes: Sequence[TurboChange]) -> None:
        for change in changes:
            record = engine.grants[change.key]
            if change.quota_us and not record.turbo_top_us:
                # Its pod's quota goes first; the next round raises it.
                record = replace(record, turbo_top_us=change.quota_us)
            else:
                top_us = max(record.turbo_top_us, change.quota_us)
                record = replace(record, turbo_us=change.quota_us, turbo_top_us=top_us)
                self._services.log.info(
                    "quota turbo", id=change.key, container=record.container.path, why=change.why,
                    quota_us=change.quota_us or (record.quota.quota_us if record.quota else 0),
                )  # fmt: skip
            self._whys[change.key] = change.why
            self._settled.pop(change.key, None)
            engine.amend(record)
        self._whys = {key: why for key, why in self._whys.items() if key in engine.grants}

    def _follow(self, engine: Engine, told_before: Mapping[str, Optional[Told]]) -> None:
        """Compare what was raised with what is there; forget the mark of what has its own quota for some rounds.

        ``told_before``: what containers had been told before their quotas were read.
        """
        for key in [key for key in engine.raised if key in engine.grants]:
            record, told, seen = engine.grants[key], engine.told.get(key), self._last.quotas.get(key)
            if told is None or told is not told_before.get(key) or key in engine.under_way:
                continue
            has_turbo = seen is not None and record.is_turbo(seen.quota_us, seen.period_us)
            is_read = seen is not None and seen.quota_us > 0 and told.turbo_us != UNKNOWN_QUOTA
            if is_read and has_turbo != bool(told.turbo_us):
                engine.saw(key, turbo_us=UNKNOWN_QUOTA, cause="its CPU quota was another one")
                self._services.node_state.updates.hurry((key,))
            if record.turbo_us or told.turbo_us or has_turbo:
                self._settled.pop(key, None)
                continue
            self._settled[key] = self._settled.get(key, 0) + 1
            if self._settled[key] >= SETTLED_ROUNDS:
                del self._settled[key]
                engine.amend(replace(record, turbo_top_us=0))
                self._services.node_state.give_back_quotas({record.container.pod.cgroup_parent})
        self._settled = {key: rounds for key, rounds in self._settled.items() if key in engine.raised}

    # ------------------------------------------------------------------ the status

    def status(self) -> dict[str, Any]:
        """``containers``: those whose quota is raised, or (mode observe) would be, with both quotas and why."""
        engine = self._services.node_state.engine
        rows = [] if engine is None else [engine.grants[key] for key in engine.raised if key in engine.grants]
        found = [self._row(record, record.raised_us) for record in rows if record.raised_us]
        told = [
            self._row(engine.grants[each.key], each.quota_us)
            for each in self._told
            if engine is not None and each.key in engine.grants and each.quota_us
        ]
        return {"most": self._services.config[OPTION], "mode": self.mode, "containers": found or told}

    def _row(self, record: ContainerRecord, quota_us: int) -> dict[str, Any]:
        quota = record.quota
        return {
            "container": record.container.path,
            "quota_us": quota_us,
            "own_us": 0 if quota is None else quota.quota_us,
            "period_us": 0 if quota is None else quota.period_us,
            "why": self._whys.get(record.key, ""),
        }


def machine_proc() -> Path:
    """The folder with the times of this machine's CPUs; that of a daemon of the tests may be another one."""
    own = below(machine_root(), "/proc")
    return own if (own / "stat").exists() else Path("/proc")


def _is_able(record: ContainerRecord) -> bool:
    """Whether the quota of a container is there, and ours to change."""
    is_ours = record.stance in (Management.PLACED, Management.ADOPTED)
    return is_ours and record.life is Life.RUNNING and not record.lifted and record.quota is not None


def _may(record: ContainerRecord) -> bool:
    """Whether a container is of a class that may have turbo."""
    asked = record.container.preferences.quota_turbo
    return record.isolation == PROTECTED if asked is None else asked
