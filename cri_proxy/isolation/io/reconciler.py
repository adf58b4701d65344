"""Isolation in the daemon: what is wanted of the kernel follows the ledger, the configuration and the steps of protection.

A change anywhere sets a flag, and a round follows: the containers are looked at in the loop (those that have changed); the
plan, all reads and all writes are a thread's. Where nothing has changed nothing is computed and nothing written; each
``LOOK_S`` the kernel is looked at all the same, as other programs write there, too.

Until what runs was compared with the records of the daemon before, the kernel stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Protocol

from cri_api.waiting import wait_within
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import LEFT_ALONE, ContainerRecord, Life, pod_cgroup
from cri_proxy.engine.report import path_of
from cri_proxy.isolation.changes import Happening, InForce, happenings, in_force
from cri_proxy.isolation.io.originals import Originals
from cri_proxy.isolation.io.resctrl import ResourceControl
from cri_proxy.isolation.io.scheduling import threads_of
from cri_proxy.isolation.io.subjects import QuotaFollower, Sight, Subject
from cri_proxy.isolation.io.writer import DRIFT_TOLD, Outcome, Writer
from cri_proxy.isolation.listing import alike, several
from cri_proxy.isolation.model import (
    ENFORCE,
    RESCTRL,
    ROOT,
    Group,
    IsolatedContainer,
    ResctrlInfo,
    Setting,
    Step,
    Wanted,
)
from cri_proxy.isolation.notes import not_configured
from cri_proxy.isolation.plan import (
    NOTHING,
    OF_GROUPS,
    ContainerView,
    IsolationSettings,
    Plan,
    as_asked,
    make_plan,
    read_settings,
)
from cri_proxy.isolation.rdt import RdtSection, Resolved, resolve
from cri_proxy.job_thread import JobThread
from cri_proxy.services.services import Services
from policies.frozen import frozen
from policies.model import Placement

#: How often the kernel is looked at where nothing has changed, seconds.
LOOK_S = 10.0
#: Changes that come within so many seconds are one round, where no start waits for it.
GATHER_S = 0.2
#: The same where subjects look for files, which takes 0.2 ms a container; and how long that is put off at most while starts
#: wait, as none waits for a file.
GATHER_FILES_S, FILES_LATE_S = 1.0, 5.0
#: The threads of all containers are looked for so often at most, seconds, as long as groups stay the same: a container
#: that starts is moved by itself.
FOLLOW_S = 1.0
#: When threads are looked for again, as a round has found some outside their group, seconds.
AGAIN_S = 0.2
#: How long a CPU quota waits for what must be changed before it, seconds: the rest of a round, and a write.
QUOTA_S = 1.0
#: What is said of the containers' threads where a group is missing.
WEAKER = "its containers are in the root group: a weaker treatment"


class TaskMover(Protocol):
    """Has containers' threads in their groups (``Tasks``). Both block."""

    def follow(self, wanted: Wanted, containers: Mapping[str, str]) -> int: ...

    def status(self) -> Mapping[str, Any]: ...


@frozen
class _Round:
    """What one round was made from; the same again needs none."""

    engine: Optional[Engine]
    version: int
    settings: IsolationSettings
    steps: Mapping[int, Step]
    rdt: Optional[RdtSection]


@frozen
class _Done:
    """What has come of a round, in its thread. ``has_looked``: something was read or written; ``is_look``: all was read."""

    plan: Plan
    outcome: Outcome
    info: Optional[ResctrlInfo]
    missing: str
    enforced: Wanted
    has_looked: bool
    is_look: bool
    is_moving: bool
    in_force: InForce
    happenings: Sequence[Happening]


class Isolation:
    """Isolation of one node. ``steps``: what protection has set, by L3; replaced as a whole, then ``wake``.

    ``subjects``: those whose values are files. ``tasks`` None: threads are left where they are.
    """

    def __init__(
        self,
        services: Services,
        resctrl: ResourceControl,
        boot_id: str,
        tasks: Optional[TaskMover] = None,
        subjects: Sequence[Subject] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps: Mapping[int, Step] = {}
        #: Why protection has set them, by L3, for the history.
        self.step_whys: Mapping[int, str] = {}
        #: What the kernel offers, as it was read last; None: no resctrl.
        self.info: Optional[ResctrlInfo] = None
        #: Called in the loop after a round in which something else is enforced, or nothing any more.
        self.on_enforced: Callable[[bool], None] = lambda is_enforced: None
        self._services = services
        self._resctrl = resctrl
        self._tasks = tasks
        self._subjects = tuple(subjects)
        self._threads = threads_of(subjects)
        self._clock = clock
        self._originals = Originals(Path(services.config["state.directory"]), boot_id)
        self._writer = Writer(resctrl, self._originals, clock, subjects)
        self._jobs = JobThread("isolation", services.supervisor)
        self._view = ContainerView(self._rdt_class_of, self._parts_of)
        #: The classes of the section last resolved, and what that was made from.
        self._resolved: tuple[Optional[RdtSection], Optional[ResctrlInfo], Resolved] = (
            None,
            None,
            Resolved(),
        )
        self._containers: tuple[IsolatedContainer, ...] = ()
        self._cgroups: Mapping[str, str] = {}
        self._plan = NOTHING
        self._enforced = Wanted()
        self._group_of: dict[str, str] = {}
        self._outcome = Outcome()
        #: What was in force after the last round; None: that is not known, as an earlier daemon did it.
        self._in_force: Optional[InForce] = InForce()
        self._missing = ""
        self._since_s: dict[str, float] = {}
        self._settings: Optional[IsolationSettings] = None
        #: Given back by command: nothing is wanted until the configuration is read again or a container is adopted.
        self._is_released = False
        self._woken = asyncio.Event()
        self._urgent = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._last: Optional[_Round] = None
        self._looked_s = float("-inf")
        #: Whether threads are to be looked for again; when that was done last, and of which containers.
        self._is_moving = False
        self._followed_s = float("-inf")
        self._followed: tuple[Wanted, Mapping[str, str]] = (Wanted(), {})
        self._is_running = False
        #: Classes that annotations ask for, and the section has not.
        self._unknown: set[str] = set()
        self._is_view_old = False
        #: What subjects cannot do here.
        self._file_notes: tuple[str, ...] = ()
        #: What they wanted last, when, and for which settings and configuration.
        self._files_last: list[Setting] = []
        self._files_s = float("-inf")
        self._files_for: tuple[object, ...] = ()
        #: Whether a start waits for this round; whether subjects were not asked in it for that.
        self._is_urgent = False
        self._are_files_late = False

    # ------------------------------------------------------------------ what others ask

    def wake(self) -> None:
        """Something may have changed. On the path of a create: it costs a flag."""
        if not self._woken.is_set():
            self._woken.set()

    def reconfigured(self) -> None:
        """The configuration is another one."""
        self._is_released = False
        self._look_anew()

    async def release(self) -> None:
        """Have the kernel as it was before, until ``reconfigured``; returns when that was tried."""
        self._is_released = True
        self._look_anew()
        await self.settled("")

    def _look_anew(self) -> None:
        self._view, self._last = ContainerView(self._rdt_class_of, self._parts_of), None
        self._unknown = set()
        self._woken.set()
        self._urgent.set()

    def containers(self) -> Sequence[IsolatedContainer]:
        """The containers of the last round."""
        return self._containers

    @property
    def wanted(self) -> Wanted:
        """All groups of the last round, those too that are only told."""
        return self._plan.wanted

    @property
    def enforced(self) -> Wanted:
        """The groups that are there."""
        return self._enforced

    def group_of(self, key: str) -> str:
        """The name of the group that a container is in; "" = the root's."""
        return self._group_of.get(key, ROOT)

    async def settled(self, key: str) -> str:
        """The same, once the kernel has the groups of all that is known now. It may be cancelled."""
        if self._is_running and (self._last is None or self._round() != self._last):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(done)
            self._woken.set()
            self._urgent.set()
            await done
        return self.group_of(key)

    async def before_quota(self, key: str, quota_us: int) -> None:
        """Returns when a container, or a pod by its sandbox's id, can get this CPU quota in microseconds; below 1 = none."""
        modes = {} if self._settings is None else self._settings.modes
        is_clean = self._originals.is_empty
        followers = [
            each
            for each in self._subjects
            if isinstance(each, QuotaFollower) and (each.name in modes or not is_clean)
        ]
        if followers and self._is_running:
            # No call fails, or waits for long, for anything in here.
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(QUOTA_S, self._jobs.begin(self._quota_job(followers, key, quota_us)))

    def _quota_job(self, followers: Sequence[QuotaFollower], key: str, quota_us: int) -> Callable[[], None]:
        engine, cgroups = self._services.node_state.engine, self._services.cgroups
        grant = None if engine is None else engine.grants.get(key)
        pod = grant.container.pod if grant else None if engine is None else engine.pods.get(key)
        parent = f"/{pod_cgroup(pod.cgroup_parent)}" if pod is not None and pod.cgroup_parent else ""
        known = self._services.reconciler.cgroup_of(key)

        def change() -> None:
            path = (
                parent if grant is None else known or (cgroups.limited_below(parent, key) if parent else "")
            )
            for each in followers if path else ():
                try:
                    each.before_quota(path, quota_us, self._originals.values.keys(), parent if grant else "")
                except Exception:
                    self._services.log.error("a burst was not changed", cgroup=path, exc_info=True)

        return change

    # ------------------------------------------------------------------ rounds

    async def run(self) -> None:
        """Rounds until all subjects are off and nothing of ours is left in the kernel."""
        self._is_running = True
        try:
            await self.load()
            while not await self.round():
                await self._next()
        finally:
            self._is_running = False
            self._let_go(self._waiting)

    async def load(self) -> None:
        """Read what was there before the daemon before this one wrote. Before the first round."""
        await self._jobs.begin(self._load)
        if not self._originals.is_empty:
            self._in_force = None

    def _load(self) -> None:
        self._originals.load()
        if self._originals.is_empty:
            self._originals.forget(())  # a file of another boot

    def close(self) -> None:
        """The thread ends with what it does; the kernel stays as it is."""
        self._jobs.end()

    async def _next(self) -> None:
        """Wait for a change, or for the time of a look."""
        pause_s = AGAIN_S if self._is_moving else GATHER_FILES_S if self._are_files_late else LOOK_S
        await _within(pause_s, self._woken.wait())
        if self._woken.is_set():
            has_files = self._settings is not None and self._settings.has_files
            await _within(GATHER_FILES_S if has_files else GATHER_S, self._urgent.wait())

    def _round(self) -> _Round:
        engine, services = self._services.node_state.engine, self._services
        mode = services.node_state.mode
        settings = read_settings(services.config, mode, (*OF_GROUPS, *(each.name for each in self._subjects)))
        if self._is_released:
            settings = IsolationSettings({}, settings.cache, settings.bandwidth)
        return _Round(
            engine,
            0 if engine is None else engine.version,
            settings,
            self.steps,
            services.config["control.rdt"],
        )

    async def round(self) -> bool:
        """Bring the kernel in line where something has changed, or the last look is old. True: nothing is left to do.

        What changes meanwhile is the next round's.
        """
        self._woken.clear()
        self._urgent.clear()
        waiting, self._waiting = self._waiting, []
        self._is_urgent = bool(waiting)
        try:
            return await self._work_on(self._round())
        finally:
            self._let_go(waiting)

    def _let_go(self, waiting: list[asyncio.Future[None]]) -> None:
        for done in waiting:
            if not done.done():
                done.set_result(None)

    async def _work_on(self, now: _Round) -> bool:
        is_off = not now.settings.modes
        if is_off and self._originals.is_empty and self._plan is NOTHING:
            self._last = now
            return not self._is_released
        if not is_off and (now.engine is None or not self._services.node_state.has_compared):
            return False
        is_due = self._clock() - self._looked_s >= LOOK_S or self._clock() >= self._writer.next_try_s
        if now == self._last and not is_due and not self._is_moving and not self._are_files_late:
            return False
        engine = now.engine
        containers = self._view.of(engine.grants if engine is not None and not is_off else {})
        cgroup_of = self._services.reconciler.cgroup_of
        cgroups = {
            key: path
            for key, record in (engine.grants.items() if engine is not None else ())
            if record.life is Life.RUNNING and (path := cgroup_of(key)) is not None
        }
        # A container's records change for many reasons that say nothing of where it may run and what it is.
        is_same = self._last is not None and (containers, cgroups) == (self._containers, self._cgroups)
        self._containers, self._cgroups = containers, cgroups
        is_at_rest = not is_due and not self._is_moving and not self._are_files_late
        if is_same and is_at_rest and self._is_as(now):
            self._last = now
            return False
        # Containers that come and go meanwhile are the next round's.
        grants = engine.grants.values() if engine is not None and now.settings.has_files else ()
        others = frozenset[int]().union(*(each.cpus for each in grants if each.stance in LEFT_ALONE))
        done = await self._jobs.begin(lambda: self._work(now, containers, cgroups, is_due, others))
        self._note(now, done)
        if self._is_view_old:
            self._is_view_old = False
            self._look_anew()
        return is_off and self._originals.is_empty and not self._is_released

    def _is_as(self, now: _Round) -> bool:
        """Whether the last round had the same settings and steps."""
        return (
            self._last is not None
            and replace(now, engine=self._last.engine, version=self._last.version) == self._last
        )

    def _work(
        self,
        now: _Round,
        containers: Sequence[IsolatedContainer],
        cgroups: Mapping[str, str],
        is_due: bool,
        others: frozenset[int],
    ) -> _Done:
        """The part of a round that blocks."""
        info, missing = self.info, self._missing
        if now.settings.divides and (info is None or is_due):
            info = self._resctrl.info()
            missing = "" if info is not None else self._resctrl.missing
        rdt = self._resolve(now.rdt, info)
        files = self._files(now, containers, cgroups, others)
        plan = make_plan(containers, info, now.settings, now.steps, rdt.classes, files)
        outcome, has_looked = self._outcome, is_due or plan.values != self._plan.values or self._last is None
        if has_looked:
            outcome = self._writer.apply(plan, is_due or self._last is None)
        enforced = Wanted(
            tuple(each for each in plan.enforced.groups if not each.name or each.name in outcome.groups)
        )
        is_moving = self._follow(enforced, cgroups, is_due)
        refusals = {each.place: each.sentence for each in outcome.refusals if not each.is_final}
        found = in_force(plan, enforced.groups, refusals, containers, self.step_whys)
        happened = [] if self._in_force is None else happenings(self._in_force, found)
        return _Done(plan, outcome, info, missing, enforced, has_looked, is_due, is_moving, found, happened)

    def _files(
        self,
        now: _Round,
        containers: Sequence[IsolatedContainer],
        cgroups: Mapping[str, str],
        others: frozenset[int],
    ) -> list[Setting]:
        """What the subjects that are not off want. A start that waits for the round does not wait for them."""
        subjects = [each for each in self._subjects if each.name in now.settings.modes]
        asked = (now.engine, now.settings, self._services.config)
        is_late = self._clock() - self._files_s >= FILES_LATE_S
        self._are_files_late = bool(subjects) and self._is_urgent and asked == self._files_for and not is_late
        if not self._are_files_late:
            self._files_s, self._files_for = self._clock(), asked
            self._files_last, self._file_notes = self._asked(now, subjects, containers, cgroups, others)
        return self._files_last

    def _asked(
        self,
        now: _Round,
        subjects: Sequence[Subject],
        containers: Sequence[IsolatedContainer],
        cgroups: Mapping[str, str],
        others: frozenset[int],
    ) -> tuple[list[Setting], tuple[str, ...]]:
        """What subjects want, and what they say of it."""
        if not subjects or now.engine is None:
            return [], ()
        cgroups = self._with_new(containers, cgroups)
        host, config, before = now.engine.host, self._services.config, self._originals.values
        sight = Sight(containers, cgroups, host.topology, config, before, host.usable, host.reserved, others)
        wanted: dict[str, Setting] = {}
        notes = []
        for subject in subjects:
            for setting in subject.settings(sight):
                first = wanted.setdefault(setting.place, setting)
                if first.subject != subject.name:
                    notes.append(f"{setting.place} is {first.subject}'s: {subject.name} leaves it alone")
            notes += subject.notes()
        return list(wanted.values()), tuple(notes)

    def _with_new(
        self, containers: Sequence[IsolatedContainer], cgroups: Mapping[str, str]
    ) -> Mapping[str, str]:
        """With the cgroups of containers that have just started: the next resync may be minutes away."""
        found = dict(cgroups)
        for each in containers:
            pod = each.container.pod if each.container is not None else None
            if each.runs and each.key not in found and pod is not None and pod.cgroup_parent:
                path = self._services.cgroups.limited_below(pod_cgroup(pod.cgroup_parent), each.key)
                if path:
                    found[each.key] = path
        return found

    def _parts_of(self, place: Placement) -> tuple[tuple[str, frozenset[int]], ...]:
        engine = self._services.node_state.engine
        return () if engine is None else engine.policy.parts_of(place)

    def _rdt_class_of(self, record: ContainerRecord) -> str:
        section: Optional[RdtSection] = self._services.config["control.rdt"]
        if section is None or self._resolved[2].errors:
            return ""
        asked = as_asked(record).preferences.rdt_class
        if asked and section.partitions and not section.has(asked):
            self._unknown.add(asked)
        return section.class_of(asked, record.container.qos)

    def _resolve(self, section: Optional[RdtSection], info: Optional[ResctrlInfo]) -> Resolved:
        """The classes of a section on this machine; worked out once."""
        if (section, info) != self._resolved[:2]:
            resolved = Resolved() if section is None or info is None else resolve(section, info)
            # A section that this machine cannot have is no class for any container.
            self._is_view_old = resolved.errors != self._resolved[2].errors
            self._resolved = section, info, resolved
        return self._resolved[2]

    def _follow(self, enforced: Wanted, cgroups: Mapping[str, str], is_due: bool) -> bool:
        """Have threads where they belong; True: to be done again soon."""
        if self._tasks is None or not (enforced.groups or self._enforced.groups):
            return False
        now_s = self._clock()
        if (enforced, cgroups) == self._followed and not is_due and not self._is_moving:
            return False
        has_same_groups = _names(enforced) == _names(self._followed[0])
        if has_same_groups and not is_due and now_s - self._followed_s < FOLLOW_S:
            return True
        self._followed, self._followed_s = (enforced, cgroups), now_s
        return self._tasks.follow(enforced, cgroups) > 0

    def _note(self, now: _Round, done: _Done) -> None:
        """The round is over: what others see of it."""
        services, was_enforced = self._services, bool(self._settings and self._settings.writes)
        self._last, self._settings = now, now.settings
        self.info, self._missing = done.info, done.missing
        self._plan, self._outcome, self._enforced = done.plan, done.outcome, done.enforced
        self._group_of = {key: group.name for group in done.enforced.groups for key in group.members}
        self._is_moving = done.is_moving
        now_s = services.node_state.clock()
        self._since_s = {
            group.name: self._since_s.get(group.name, now_s) for group in done.plan.wanted.groups
        }
        if done.has_looked:
            self._tell(done)
        if done.is_look:
            self._looked_s = self._clock()
        # Also where the kernel was not looked at: a subject that is off now has nothing to say any more.
        services.health.warn("isolation", self._sentences(done))
        self._in_force = done.in_force
        for each in done.happenings:
            services.node_state.happened("isolation", each.why, each.keys, each.own, each.reason, each.hurt)
        if was_enforced != now.settings.writes:
            self.on_enforced(now.settings.writes)

    def _tell(self, done: _Done) -> None:
        metrics, outcome = self._services.metrics, done.outcome
        for (subject, what), number in outcome.writes.items():
            metrics.isolation_writes.labels(subject, what).inc(number)
        metrics.isolation_refusals.set(sum(not each.is_final for each in outcome.refusals))
        values = Counter(each.subject for each in done.plan.files)
        for each in self._subjects:
            metrics.isolation_values.labels(each.name).set(values[each.name])
        metrics.isolation_groups.set(len(outcome.groups))
        metrics.isolation_other_groups.set(len(outcome.seen.others))
        metrics.isolation_drift.set(sum(outcome.drift.values()))

    def _sentences(self, done: _Done) -> list[str]:
        """What an operator should look at."""
        sentences = [f"isolation: {done.missing}"] if done.missing and self._is_configured else []
        sentences += [f"isolation: {note}" for note in self._notes]
        groups = {f"{RESCTRL}{group.name}" for group in done.plan.enforced.groups}
        # Doctor lists those that are final.
        refused = {each.place: each.sentence for each in done.outcome.refusals if not each.is_final}
        for (_, sentence), places in alike(refused).items():
            weaker = f"; {WEAKER}" if places[0] in groups else ""
            sentences.append(f"isolation: {several(places)}: {sentence}{weaker}")
        for place, times in done.outcome.drift.items():
            if times >= DRIFT_TOLD:
                sentences.append(
                    f"isolation: another program has changed {place} {times} times, and it was written again: look for what "
                    "else manages it (cri-resmgr doctor)"
                )
        return sentences

    @property
    def _notes(self) -> tuple[str, ...]:
        unknown = not_configured("rdt", self._unknown)
        return (*self._plan.wanted.notes, *self._resolved[2].errors, *self._file_notes, *unknown)

    @property
    def _is_configured(self) -> bool:
        return self._settings is None or self._settings.divides

    # ------------------------------------------------------------------ what is shown

    def status(self, files_of: Optional[str] = None) -> dict[str, Any]:
        """All of it as plain data. ``files_of``: of the values of files, of which there may be thousands, those of this
        container alone; "" = none of them."""
        services, config = self._services, self._services.config
        engine, now_s = services.node_state.engine, services.node_state.clock()
        modes = {} if self._settings is None else self._settings.modes
        names = (*OF_GROUPS, *(each.name for each in self._subjects))
        seen, outcome = self._outcome.seen, self._outcome

        # L3s with the same containers share their lists of keys (``meetings``). They are kept, lest another gets the id.
        known: dict[int, tuple[Sequence[str], list[str]]] = {}

        def paths(keys: Sequence[str]) -> list[str]:
            if engine is None:
                return []
            if id(keys) not in known:
                known[id(keys)] = keys, sorted(filter(None, (path_of(engine, key) for key in keys)))
            return known[id(keys)][1]

        return {
            "subjects": {
                name: {"configured": config[f"isolation.{name}"], "mode": modes.get(name, "off")}
                for name in names
            },
            "missing": self._missing,
            "groups": [self._group_row(group, now_s, paths) for group in self._plan.wanted.groups],
            "meetings": [
                {"l3": each.domain.id, "protected": paths(each.protected), "batch": paths(each.batch)}
                for each in self._plan.meetings
            ],
            "values": dict(Counter(each.subject for each in (*self._plan.files, *self._plan.told))),
            "files": [
                _setting_row(each, is_enforced, paths(each.keys))
                for settings, is_enforced in ((self._plan.files, True), (self._plan.told, False))
                for each in (() if files_of == "" else settings)
                if files_of is None or files_of in each.keys
            ],
            "refusals": [
                {
                    "place": each.place,
                    "value": each.value,
                    "sentence": each.sentence,
                    "tries": each.tries,
                    "final": each.is_final,
                }
                for each in outcome.refusals
            ],
            "drift": dict(outcome.drift),
            "other_groups": list(seen.others),
            "other_monitors": seen.other_monitors,
            "originals": dict(self._originals.values),
            "notes": list(self._notes),
            "tasks": {
                key: {**row, "container": path_of(engine, key) if engine is not None else ""}
                for key, row in (self._tasks.status() if self._tasks is not None else {}).items()
            },
            "scheduling": {
                key: {**row, "container": path_of(engine, key) if engine is not None else ""}
                for key, row in (self._threads.status() if self._threads is not None else {}).items()
            },
        }

    def _group_row(
        self, group: Group, now_s: float, paths: Callable[[Sequence[str]], list[str]]
    ) -> dict[str, Any]:
        is_there = any(each.name == group.name for each in self._enforced.groups)
        is_meant = any(each.name == group.name for each in self._plan.enforced.groups)
        return {
            "name": group.name,
            "state": "enforced" if is_there else "refused" if is_meant else "observed",
            "schemata": {
                resource: {str(number): value for number, value in values.items()}
                for resource, values in group.schemata.items()
            },
            "members": paths(tuple(group.members)),
            "why": {str(number): sentence for number, sentence in group.why.items()},
            "age_s": max(0.0, now_s - self._since_s.get(group.name, now_s)),
        }


def _names(wanted: Wanted) -> frozenset[str]:
    return frozenset(group.name for group in wanted.groups)


def _setting_row(setting: Setting, is_enforced: bool, paths: Sequence[str]) -> dict[str, Any]:
    return {
        "subject": setting.subject,
        "place": setting.place,
        "value": setting.value,
        "why": setting.why,
        "containers": paths,
        "state": ENFORCE if is_enforced else "observed",
    }


async def _within(seconds: float, work: Awaitable[object]) -> None:
    """Wait for something, at most so long."""
    with contextlib.suppress(asyncio.TimeoutError):
        await wait_within(seconds, work)
