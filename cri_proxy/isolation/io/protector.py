"""Measured protection in the daemon: looks at protected containers each ten seconds, and steers what batch has beside them.

Only containers beside batch are looked at, and for a while those without, as a baseline is learnt there. Of each: a counter
of its cgroup on each of its CPUs, where the hardware and ``affinity_measure_descriptors`` let it, else how long its tasks
have waited (PSI). Counters are opened, read and closed and files are read in a thread; what follows is decided by the
controller (isolation/protection.py). Its steps begin again at what is configured when the daemon starts; the baselines of
workloads are kept in the state directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

from bpf.service.json_file import write_json
from cri_api.waiting import wait_within
from cri_proxy import effects
from cri_proxy.affinity.demand.io.sizer import UsageReader
from cri_proxy.affinity.effect.comparison import Counts, Subject
from cri_proxy.affinity.effect.events import misses_of
from cri_proxy.affinity.effect.io.counting import Countable, Counting, read_countable
from cri_proxy.bounded_files import read_beginning
from cri_proxy.config.config import Config
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import PROTECTION_AT_FLOOR
from cri_proxy.isolation import bandwidth, caches
from cri_proxy.isolation.baselines import Baselines
from cri_proxy.isolation.changes import MOST_TOLD
from cri_proxy.isolation.io.resctrl import L3_MONITORS
from cri_proxy.isolation.model import (
    ENFORCE,
    OFF,
    PROTECTED,
    CacheDomain,
    IsolatedContainer,
    ResctrlInfo,
    Step,
)
from cri_proxy.isolation.protection import (
    ASKED,
    WINDOW_S,
    Change,
    Protection,
    ProtectionSettings,
    Watched,
)
from cri_proxy.isolation.treatment import L3_CACHES, Meeting, l3_domains, meetings
from cri_proxy.isolation.windows import (
    WARM_S,
    Reading,
    Sessions,
    Wanting,
    batch_ran,
    in_budget,
    values_of,
)
from cri_proxy.job_thread import JobThread
from cri_proxy.services.services import Services
from policies.affinity.pull.observed import owner_of_container
from policies.frozen import frozen

#: Where baselines are kept, and how often they are written, seconds.
FILE = "baselines.json"
SAVE_S = 600.0
#: More than a thousand workloads take.
_MOST_BYTES = 1 << 20


class Steered(Protocol):
    """What carries the steps out (``Isolation``).

    ``steps``: what batch has, by domain; ``step_whys``: why protection has set it so; ``info``: what the kernel offers, as
    it was read last, None = it has no resctrl; ``containers``: those of the ledger, as isolation sees them.
    """

    steps: Mapping[int, Step]
    step_whys: Mapping[int, str]
    info: Optional[ResctrlInfo]

    def containers(self) -> Sequence[IsolatedContainer]: ...

    def wake(self) -> None: ...


#: Has one batch container moved away from these CPUs by the planner; False: that is not possible now.
Ask = Callable[[frozenset[int]], bool]


@frozen
class _Target:
    """A container to look at in this round."""

    each: IsolatedContainer
    cgroup: str
    domains: frozenset[int]
    workload: str


class Protector:
    """Protects the containers of one daemon. ``run`` is the part that goes on by itself."""

    def __init__(
        self,
        services: Services,
        cgroup_root: Path,
        steered: Steered,
        ask: Optional[Ask] = None,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        countable: Optional[Countable] = None,
    ) -> None:
        """``ask`` None: containers are not moved. ``countable``: in the place of the counters in ``sys`` and ``proc``."""
        self._services, self._steered, self._ask = services, steered, ask
        self._cgroup_root, self._sys, self._proc = cgroup_root, sys, proc
        self._countable = countable
        self._problem = ""
        self._files = UsageReader(cgroup_root, services.node_state.clock)
        #: The counters of each container, with where they were opened.
        self._counting: dict[str, tuple[Subject, Counting]] = {}
        self._readings: dict[str, Reading] = {}
        self._batch_used: dict[str, tuple[float, int]] = {}
        self.protection = Protection()
        self._sessions = Sessions()
        #: What waits for files, the disk and other CPUs.
        self._jobs = JobThread("protection", services.supervisor)
        self._left_out = 0
        self._path = Path(services.config["state.directory"]) / FILE
        #: When baselines were written, and how much was known then; negative: they were not read yet.
        self._saved_s, self._saved = services.node_state.clock(), -1
        self._domains: dict[int, CacheDomain] = {}
        self._wake = asyncio.Event()

    # ------------------------------------------------------------------ by itself

    async def run(self) -> None:
        """Look and steer until ``isolation.protection`` is off; batch has what is configured again then.

        A round that fails is logged and shown in the status; the next one is made.
        """
        while self._mode != OFF:
            try:
                await self.round()
            except Exception as error:
                self._services.log.error("a round of measured protection failed", exc_info=True)
                self._services.health.note(
                    "protection", f"protection is not measured: {type(error).__name__}: {error}"
                )
            else:
                self._services.health.note("protection", "")
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(WINDOW_S, self._wake.wait())
            self._wake.clear()
        await self._rest()

    def reconfigured(self) -> None:
        """The configuration is another one."""
        if self._mode == OFF:
            self._wake.set()

    @property
    def _mode(self) -> str:
        return str(self._services.config["isolation.protection"])

    async def round(self) -> None:
        """One window: look, decide, and have the steps carried out."""
        node_state = self._services.node_state
        engine = node_state.engine
        if self._mode == OFF:
            await self._rest()
            return
        if engine is None:
            return  # nothing is known of the containers; what batch has stays
        if self._countable is None:
            found = await self._jobs.begin(lambda: read_countable(self._sys, self._proc, misses_of))
            self._countable = replace(found, l3_type=0, l3_cpus=())
        await self._remember()
        containers = self._steered.containers()
        self._domains = {each.id: each for each in self._l3s(engine)}
        met = meetings(containers, self._domains.values())
        targets = self._targets(engine, containers, met)
        batch = {key: path for each in met.values() for key in each.batch if (path := self._cgroup(key))}
        earlier, batch_before = self._readings, self._batch_used
        began = time.perf_counter()
        await self._jobs.begin(lambda: self._look(targets, batch))
        self._services.metrics.isolation_look_seconds.inc(time.perf_counter() - began)
        watched = [self._watched(target, earlier, batch_before, met) for target in targets]
        if engine is not node_state.engine or self._mode == OFF:
            return
        settings, now_s = self._settings(), node_state.clock()
        changes = self.protection.round(watched, settings, now_s)
        self._carry_out(self.protection.steps(settings), changes)

    async def _rest(self) -> None:
        """Nothing is measured: give everything back."""
        if self._counting or self._readings:
            await self._jobs.begin(lambda: self._keep(()))
        self.protection, self._sessions = Protection(), Sessions()
        self._readings, self._batch_used, self._saved = {}, {}, -1
        self._carry_out({}, ())

    # ------------------------------------------------------------------ over restarts

    async def _remember(self) -> None:
        """Read what was known, at first; write it now and then where there is more."""
        baselines, now_s = self.protection.baselines, self._services.node_state.clock()
        if self._saved < 0:
            self._saved, self._saved_s = 0, now_s
            baselines.recall(await self._jobs.begin(self._read))
        elif baselines.learnt != self._saved and now_s - self._saved_s >= SAVE_S:
            self._saved, self._saved_s = baselines.learnt, now_s
            rows = baselines.rows()
            await self._jobs.begin(lambda: self._write(rows))

    def _read(self) -> list[list[Any]]:
        try:
            rows = json.loads(read_beginning(self._path, _MOST_BYTES))["workloads"]
            Baselines().recall(rows)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._services.log.warning(
                "baselines are learnt anew, as those of before cannot be read",
                file=str(self._path),
                error=str(error),
            )
            return []
        return list(rows)

    def _write(self, rows: list[list[Any]]) -> None:
        try:
            effects.before(effects.STATE, FILE)
            write_json(str(self._path), {"workloads": rows})
        except OSError as error:
            self._services.log.warning("baselines could not be kept", file=str(self._path), error=str(error))

    def _settings(self) -> ProtectionSettings:
        info = self._steered.info
        return protection_settings(self._services.config, info, self._services.node_state.enforcing)

    # ------------------------------------------------------------------ what is looked at

    def _l3s(self, engine: Engine) -> Sequence[CacheDomain]:
        info = self._steered.info
        if info is not None and (found := l3_domains(info) or info.domains.get(L3_MONITORS)):
            return found
        return [CacheDomain(l3.ids[l3.levels.index("l3")], l3.cpus) for l3 in engine.host.topology.at("l3")]

    def _cgroup(self, key: str) -> Optional[str]:
        return self._services.reconciler.cgroup_of(key)

    def _targets(
        self, engine: Engine, containers: Sequence[IsolatedContainer], met: Mapping[int, Meeting]
    ) -> list[_Target]:
        """The protected containers that meet batch, and some of the others, to learn of them what is usual."""
        now_s = self._services.node_state.clock()
        protected = [each for each in containers if each.cls == PROTECTED and not each.rdt_class]
        self.protection.keep({each.key for each in protected})
        warm = [
            each
            for each in protected
            if each.runs and (grant := engine.grants.get(each.key)) and now_s - grant.since_s >= WARM_S
        ]
        meets: dict[str, set[int]] = {}
        for number, meeting in met.items():
            for key in meeting.protected:
                meets.setdefault(key, set()).add(number)
        has = self.protection.baselines.has
        alone = {each.key: has(each.key) for each in warm if each.key not in meets}
        chosen = meets.keys() | self._sessions.chosen(alone, now_s)
        return [
            _Target(
                each,
                cgroup,
                frozenset(meets.get(each.key, ())),
                owner_of_container(engine.grants[each.key].container),
            )
            for each in warm
            if each.key in chosen and (cgroup := self._cgroup(each.key)) is not None
        ]

    def _look(self, targets: Sequence[_Target], batch: Mapping[str, str]) -> None:
        """Read everything once. Blocks."""
        self._open(targets)
        clock = self._services.node_state.clock
        self._files.keep({target.each.key for target in targets} | batch.keys())
        readings = {}
        for target in targets:
            key, path = target.each.key, target.cgroup
            counts = self._counts(key)
            waited = (self._files.waited_us(key, path, what) for what in ("cpu", "memory"))
            readings[key] = Reading(clock(), counts, *waited)
        self._readings = readings
        self._batch_used = {
            key: (sample.time_ns / 1e9, sample.usage_ns)
            for key, sample in self._files.look(batch, ()).items()
        }

    def _open(self, targets: Sequence[_Target]) -> None:
        """Have the counters open that the budget allows, where the containers are now."""
        countable = self._countable
        if countable is None or countable.events is None:
            return
        subjects = {t.each.key: Subject(t.each.key, t.cgroup, t.each.cpus) for t in targets}
        moved = {key for key, (subject, _) in self._counting.items() if subjects.get(key) != subject}
        per_cpu = len(countable.events.all)
        wanting = [Wanting(t.each.key, len(t.each.cpus), bool(t.domains)) for t in targets]
        descriptors = self._services.config.constants.affinity_measure_descriptors
        chosen = in_budget(wanting, self._counting.keys() - moved, per_cpu, descriptors)
        self._keep(chosen - moved)
        self._problem = ""
        for key in sorted(chosen - self._counting.keys()):
            counting = Counting(countable, self._cgroup_root, self._sys)
            subject = subjects[key]
            counting.open((subject,), frozenset(), per_cpu * len(subject.cpus))
            if counting.keys:
                self._counting[key] = subject, counting
            else:
                self._problem = counting.problem
        self._left_out = sum(1 for t in targets if t.domains and t.each.key not in self._counting)

    def _keep(self, keys: Sequence[str] | frozenset[str]) -> None:
        """Close the counters of all containers but these."""
        for key in [key for key in self._counting if key not in keys]:
            self._counting.pop(key)[1].close()

    def _counts(self, key: str) -> Optional[Counts]:
        if key not in self._counting:
            return None
        return self._counting[key][1].look().counts.get(key)

    def _watched(
        self,
        target: _Target,
        earlier: Mapping[str, Reading],
        batch_before: Mapping[str, tuple[float, int]],
        met: Mapping[int, Meeting],
    ) -> Watched:
        each = target.each
        batch = {key for number in target.domains for key in met[number].batch}
        ran = batch_ran(batch, batch_before, self._batch_used)
        events = self._countable.events if self._countable else None
        values = values_of(earlier.get(each.key), self._readings[each.key], events)
        return Watched(each.key, each.path, target.workload, target.domains, values, ran)

    # ------------------------------------------------------------------ what follows

    def _carry_out(self, steps: dict[int, Step], changes: Sequence[Change]) -> None:
        if steps != self._steered.steps:
            changed = {each.domain: each.why for each in changes}
            kept = {number: why for number, why in self._steered.step_whys.items() if number in steps}
            self._steered.step_whys = {**kept, **changed}
            self._steered.steps = steps
            self._steered.wake()
        metrics = self._services.metrics
        for change in changes:
            metrics.isolation_steps.labels(change.direction).inc()
            self._services.log.info(
                "measured protection", l3=change.domain, change=change.direction, why=change.why
            )
            if change.direction == ASKED and self._ask is not None:
                is_heard = self._ask(self._domains[change.domain].cpus)
                self._services.log.info(
                    "the planner is asked to move a batch container away", l3=change.domain, possible=is_heard
                )
                self._tell_asked(change, is_heard)
        metrics.isolation_batch_share.end()
        for number, step in steps.items():
            for what, share in (("cache", step.cache), ("bandwidth", step.bandwidth)):
                if share is not None:
                    metrics.isolation_batch_share.labels(str(number), what).set(round(share, 4))

    def _tell_asked(self, change: Change, is_heard: bool) -> None:
        hurt = self.protection.hurt_in(change.domain)[:MOST_TOLD]
        moved = (
            "a batch container is to be moved elsewhere"
            if is_heard
            else "no batch container can be moved now"
        )
        why = f"L3 {change.domain}: there is no less that batch could be given, and it is not enough: {change.why}; {moved}"
        self._services.node_state.happened("isolation", why, hurt, reason=PROTECTION_AT_FLOOR, hurt=hurt)

    async def close(self) -> None:
        """Give all descriptors back; it may be cancelled, and they are. ``run`` has ended."""
        closed = self._jobs.begin(self._close)
        self._jobs.end()
        await closed

    def _close(self) -> None:
        self._keep(())
        self._files.close()

    # ------------------------------------------------------------------ the status

    def status(self) -> dict[str, Any]:
        """``how``: what it measures by, a sentence; ``domains``: each L3 where protected and batch containers meet."""
        settings, now_s = self._settings(), self._services.node_state.clock()
        return {
            "mode": self._mode,
            "how": self._how(settings),
            "counted": len(self._counting),
            "left_out": self._left_out,
            "domains": self.protection.rows(settings, now_s) if self._mode != OFF else [],
        }

    def _how(self, settings: ProtectionSettings) -> str:
        if self._mode == OFF:
            return "isolation.protection is off"
        parts = [self._by()]
        if self._steered.info is None or (settings.cache is None and settings.bandwidth is None):
            parts.append(
                "neither caches nor bandwidth are divided here, so only the planner can be asked to move batch"
            )
        elif self._mode == ENFORCE and not settings.enforces:
            parts.append("steps are only said: neither isolation.caches nor isolation.bandwidth is enforced")
        return "; ".join(parts)

    def _by(self) -> str:
        if self._countable is None:
            return "the first look shows what can be measured"
        events = self._countable.events
        if events is None or (self._problem and not self._counting):
            return f"by pressure (PSI) alone: {self._countable.why or self._problem}"
        by = f"by {events.events[0].words} per {events.per_words} ({events.cpu})"
        if not self._left_out:
            return by
        why = self._problem or "the descriptors for counters are too few"
        return f"{by}; {self._left_out} of the containers by pressure: {why}"


def protection_settings(
    config: Config, info: Optional[ResctrlInfo], is_enforcing: bool
) -> ProtectionSettings:
    """The settings of a configuration on a machine. What is configured as ways or a rate is the share that it is here."""
    by_cache, by_bandwidth = config["isolation.caches"], config["isolation.bandwidth"]
    cache = next((info.caches[name] for name in L3_CACHES if name in info.caches), None) if info else None
    limits = info.bandwidth if info else None
    cache_share = bandwidth_share = None
    if cache is not None and by_cache != OFF:
        part = caches.read_part(config["isolation.batch_cache"])
        # A percentage stays what it is: rounding it to ways is the treatment's.
        cache_share = (
            part.share if part.share is not None else caches.share_of(caches.mask_of(part, cache), cache)
        )
    if limits is not None and by_bandwidth != OFF:
        rate = bandwidth.read_part(config["isolation.batch_bandwidth"])
        share = rate.share if rate.share is not None else (rate.mbps or 0) / bandwidth.DOMAIN_MBPS
        bandwidth_share = min(share, 1.0)
    is_told = config["isolation.protection"] == ENFORCE and is_enforcing
    divides = cache_share is not None or bandwidth_share is not None
    has_written = ENFORCE in (by_cache, by_bandwidth)
    return ProtectionSettings(cache_share, bandwidth_share, is_told and (has_written or not divides))
