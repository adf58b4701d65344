"""Demand in the daemon: containers are looked at, and their sets become larger or smaller by usage.

Where no container is sized by demand nothing is read and nothing is open. Files are read in a thread; what follows from them
is decided by the controller and made in the engine, a set at a time, as calls are relayed in between. A set that is too
small is told by the kernel (PSI triggers) or seen by looks twice a second, and does not wait for a plan or for its turn.

A container in a shrunk set depends on this daemon: whatever ends the sizing of its set (another mode, another configuration)
gives it the set of its limit back first.

Of a container at its limit's rung one file is read (``UsageReader``), of one in a shrunk set those, too, that tell
waiting and throttling:

               used                          throttled                        waited
    v2         cpu.stat: usage_usec          cpu.stat: throttled_usec         cpu.pressure: some, total
    v1         cpuacct.usage, nanoseconds    cpu.stat: throttled_time, ns     nowhere, or cpuacct's cpu.pressure (openEuler)
    hybrid     as v1                         as v1                            below ``unified``

Times that are throttled are added up over CPUs by the kernel, so they can be more than the time that has passed. A file
that was read once stays open: a look is one call then, and the file of a container that is gone says so. A file that could
not be opened is tried again with each look.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.waiting import wait_within
from cri_proxy.affinity.demand.controller import ContainerSet, DemandController, SizeChange
from cri_proxy.affinity.demand.estimate import DemandSample, DemandSettings
from cri_proxy.affinity.demand.io.triggers import PressureTriggers
from cri_proxy.affinity.demand.report import demand_row, demand_status
from cri_proxy.config.config import Config
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord
from cri_proxy.engine.told import GIVEN_BACK
from cri_proxy.services.services import Services

#: More than any of these files has.
_BYTES = 8192
_CPUACCT = ("cpuacct", "cpu,cpuacct")
_CPU = ("cpu", "cpu,cpuacct")
#: Where a v1 or hybrid host may have pressure by cgroup.
_PRESSURE_V1 = ("unified", "cpuacct", "cpu,cpuacct")
#: How often it is looked whether containers are sized by demand, where none is, seconds.
IDLE_S = 5.0
#: What so many containers use is told to the engine in one go: a few milliseconds.
NOTED = 100


class UsageReader:
    """Reads below one cgroup root (/sys/fs/cgroup). ``clock``: of the samples' times, seconds. Blocks: files are read."""

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_v1 = (root / "cpuset").is_dir()
        self._cpuacct = _mounts(root, _CPUACCT) if self._is_v1 else [root]
        self._cpu = _mounts(root, _CPU) if self._is_v1 else [root]
        self._pressure = _mounts(root, _PRESSURE_V1) if self._is_v1 else [root]
        #: The files that are open, by container and kind. One that cannot be had now may be there with the next look.
        self._files: dict[tuple[str, str], int] = {}

    def look(self, paths: Mapping[str, str], shrunk: Collection[str]) -> dict[str, DemandSample]:
        """A sample of each container of ``paths`` (cgroup path by id) that can be read; waiting only of those in
        ``shrunk``."""
        found = {}
        for key, path in paths.items():
            sample = self._read(key, path, key in shrunk)
            if sample is not None:
                found[key] = sample
        return found

    def _read(self, key: str, path: str, is_shrunk: bool) -> Optional[DemandSample]:
        time_ns = int(self._clock() * 1e9)
        if not self._is_v1:
            stat = self._text(key, "cpu.stat", self._cpu, path)
            used_us = _field(stat, b"usage_usec ")
            if used_us is None:
                return None
            throttled_ns, used_ns = (_field(stat, b"throttled_usec ") or 0) * 1000, used_us * 1000
        else:
            used = _number(self._text(key, "cpuacct.usage", self._cpuacct, path))
            if used is None:
                return None
            stat = self._text(key, "cpu.stat", self._cpu, path) if is_shrunk else b""
            throttled_ns, used_ns = _field(stat, b"throttled_time ") or 0, used
        waited_us = self.waited_us(key, path, "cpu") if is_shrunk else None
        return DemandSample(time_ns, used_ns, throttled_ns, None if waited_us is None else waited_us * 1000)

    def waited_us(self, key: str, path: str, what: str) -> Optional[int]:
        """How long a task of a container has waited for ``what``, "cpu" or "memory"; None: the kernel does not tell it."""
        # "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", the first line of two
        line = self._text(key, f"{what}.pressure", self._pressure, path).partition(b"\n")[0]
        return _number(line.rpartition(b"total=")[2]) if line.startswith(b"some ") else None

    def _text(self, key: str, name: str, mounts: Collection[Path], path: str) -> bytes:
        at = key, name
        descriptor = self._files.get(at)
        if descriptor is None:
            descriptor = _open(mounts, path.lstrip("/"), name)
            if descriptor is None:
                return b""
            self._files[at] = descriptor
        try:
            return os.pread(descriptor, _BYTES, 0)
        except OSError:  # the cgroup is gone (ENODEV), or this kernel keeps no PSI (EOPNOTSUPP)
            # There may be another cgroup at its path by the next look.
            del self._files[at]
            os.close(descriptor)
            return b""

    def keep(self, keys: Collection[str]) -> None:
        """Forget the containers that are none of these."""
        for at in [at for at in self._files if at[0] not in keys]:
            os.close(self._files.pop(at))

    def close(self) -> None:
        self.keep(())


def _mounts(root: Path, names: Collection[str]) -> list[Path]:
    return [root / name for name in names if (root / name).is_dir()]


def _open(mounts: Collection[Path], path: str, name: str) -> Optional[int]:
    for mount in mounts:
        try:
            # O_NONBLOCK: the root can be anything that the configuration names.
            return os.open(mount / path / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            continue
    return None


def _field(text: bytes, name: bytes) -> Optional[int]:
    """The number behind a name at the beginning of a line."""
    start = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
    if not start and not text.startswith(name):
        return None
    return _number(text[start + len(name) :].partition(b"\n")[0])


def _number(text: bytes) -> Optional[int]:
    digits = text.strip()
    return int(digits) if digits.isdigit() and len(digits) <= 20 else None


#: Why sets get their limit's size back.


class DemandSizer:
    """Sizes the sets of one daemon's containers. ``run`` is the part that goes on by itself."""

    def __init__(
        self, services: Services, cgroup_root: Path, triggers: Optional[PressureTriggers] = None
    ) -> None:
        """``triggers``: in the place of those of the cgroups below ``cgroup_root``."""
        self._services = services
        self.controller = DemandController(demand_settings(services.config))
        self._usage = UsageReader(cgroup_root, services.node_state.clock)
        self._triggers = triggers or PressureTriggers(cgroup_root)
        self._wake = asyncio.Event()
        self._fired: set[str] = set()
        #: Containers with a larger set that the runtime has not taken yet.
        self._growing: set[str] = set()
        self._is_watched = False
        #: The engine and its version that the controller follows.
        self._followed: tuple[Optional[Engine], int] = (None, -1)

    # ------------------------------------------------------------------ by itself

    async def run(self) -> None:
        """Size sets until cancelled. A round that fails is logged and shown in the status; the next one is made."""
        while True:
            try:
                wait_s = await self.round()
            except Exception as error:
                self._services.log.error("a round of usage-based sizing failed", exc_info=True)
                self._services.health.note(
                    "demand", f"cpusets are not sized by usage: {type(error).__name__}: {error}"
                )
                wait_s = IDLE_S
            else:
                self._services.health.note("demand", "")
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(wait_s, self._wake.wait())
            self._wake.clear()

    def wake(self) -> None:
        """Have the next round now: the mode is another one."""
        self._wake.set()

    def reconfigured(self) -> None:
        """The configuration is another one."""
        self.controller.settings = demand_settings(self._services.config)
        self._followed = (None, -1)
        self._wake.set()

    async def round(self) -> float:
        """Look at containers that are due or wait; returns the seconds until the next are due."""
        node_state = self._services.node_state
        engine = node_state.engine
        if engine is None:
            return IDLE_S
        if not node_state.enforcing:
            self.give_back(engine)
            self._forget_uses(engine, ())
            self._follow(engine, {})
            return IDLE_S
        self._send_again()
        self._follow_engine(engine)
        await self._watch()
        if not len(self.controller):
            return IDLE_S
        now_s, fired = node_state.clock(), self._fired
        self._fired = set()
        due = [*self.controller.due(now_s), *(key for key in fired if key in self.controller)]
        samples = await self._look(due)
        for key, sample in samples.items():
            self.controller.sample(key, sample, key in fired)
        if engine is node_state.engine and node_state.gives_cpus:
            await self._carry_out(engine, self.controller.decide(node_state.clock()))
        await self._note_uses(engine)
        now_s = node_state.clock()
        return min(self.controller.next_due_s(now_s) - now_s, IDLE_S)

    async def _note_uses(self, engine: Engine) -> None:
        """Tell the engine what is used in the sets of limits; calls pass in between."""
        node_state = self._services.node_state
        uses: list[tuple[str, int]] = []
        if engine is node_state.engine and node_state.enforcing:
            uses = list(self.controller.uses().items())
        for start in range(0, len(uses), NOTED):
            if engine is not node_state.engine:
                break
            engine.note_use(dict(uses[start : start + NOTED]))
            await asyncio.sleep(0)

    async def _look(self, keys: Iterable[str]) -> dict[str, DemandSample]:
        """Samples of containers, read in a thread. One look at each, however often it is named."""
        cgroup_of = self._services.reconciler.cgroup_of
        paths = {key: path for key in keys if (path := cgroup_of(key)) is not None}
        if not paths:
            return {}
        began = time.perf_counter()
        found = await asyncio.to_thread(self._usage.look, paths, self.controller.wants_trigger)
        self._services.metrics.demand_look_seconds.inc(time.perf_counter() - began)
        self._services.metrics.demand_looks.inc(len(paths))
        return found

    # ------------------------------------------------------------------ which containers

    def _follow_engine(self, engine: Engine) -> None:
        """Let the controller know of the containers there are, if that is news."""
        if self._followed == (engine, engine.version):
            return
        sized = {each.key: each for each in engine.sized_sets()}
        # What has a size and is not to have one any more, by annotation or configuration, gets its limit's set.
        if shrunk := engine.shrunk(only_unsized=True):
            self._give_back(engine, shrunk)
        self._forget_uses(engine, sized.keys())
        self._follow(
            engine,
            {
                key: ContainerSet(
                    each.steps,
                    each.milli_set,
                    engine.grants[key].container.resources.milli_request,
                    engine.grants[key].container.resources.milli_limit,
                )
                for key, each in sized.items()
            },
        )

    def _forget_uses(self, engine: Engine, sized: Collection[str]) -> None:
        """Containers not sized by demand any more count by their request again."""
        known = [key for key, grant in engine.grants.items() if grant.container.milli_used]
        if stale := dict.fromkeys([key for key in known if key not in sized], 0):
            engine.note_use(stale)

    def _follow(self, engine: Engine, sets: dict[str, ContainerSet]) -> None:
        self.controller.follow(sets)
        self._followed = engine, engine.version
        self._usage.keep(sets.keys())
        containers, shrunk = self.controller.counts()
        self._services.metrics.demand_containers.labels("by limit").set(containers - shrunk)
        self._services.metrics.demand_containers.labels("shrunk").set(shrunk)

    async def _watch(self) -> None:
        """Have the kernel tell of those in shrunk sets when they wait, as far as it does."""
        cgroup_of, waiting = self._services.reconciler.cgroup_of, self.controller.settings.waiting
        wanted = self.controller.wants_trigger
        paths = {key: path for key in wanted if (path := cgroup_of(key)) is not None}
        if self._triggers.lacks(paths, waiting):
            await asyncio.to_thread(self._triggers.keep, paths, waiting)
            if self._triggers.keys and not self._is_watched:
                self._triggers.listen(
                    partial(self._services.supervisor.in_loop, self._note_fired), self._services.supervisor
                )
                self._is_watched = True
        self.controller.set_triggers(self._triggers.keys)

    def _note_fired(self, fired: list[str]) -> None:
        self._services.metrics.demand_triggers.inc(len(fired))
        self._fired.update(fired)
        self._wake.set()

    # ------------------------------------------------------------------ what follows

    async def _carry_out(self, engine: Engine, resizes: list[SizeChange]) -> None:
        node_state = self._services.node_state
        for resize in resizes:
            self._make(engine, resize)
            node_state.save()
            await asyncio.sleep(0)  # some milliseconds each, after which calls are relayed
            if engine is not node_state.engine or not node_state.gives_cpus:
                return
        if resizes:
            self._follow_engine(engine)
            await self._watch()

    def _make(self, engine: Engine, resize: SizeChange) -> None:
        node_state, metrics = self._services.node_state, self._services.metrics
        now_s = node_state.clock()
        if not engine.size(resize.key, resize.milli_size, resize.why, now_s):
            self.controller.refused(resize, now_s)
            metrics.demand_resizes.labels(resize.action, "not possible").inc()
            return
        self.controller.made(resize, now_s)
        if resize.is_growth:
            self._growing.add(resize.key)
        metrics.demand_resizes.labels(resize.action, "made").inc()
        grant = engine.grants[resize.key]
        self._services.log.info(
            "a cpuset was sized by usage",
            container=grant.container.path,
            action=resize.action,
            cpus=len(grant.cpus),
            why=resize.why,
        )

    def _send_again(self) -> None:
        """A larger set that could not be told does not wait for the next comparison."""
        updates = self._services.node_state.updates
        self._growing &= updates.pending
        if self._growing:
            updates.hurry(self._growing)

    def give_back(self, engine: Engine) -> None:
        """Give all containers the sets of their limits, whatever the mode is: nothing makes them larger from now on."""
        self._give_back(engine, engine.shrunk())

    def _give_back(self, engine: Engine, keys: Iterable[str]) -> None:
        node_state = self._services.node_state
        # What they lack by it is sent in every mode: a set that we have made small is ours to make large again.
        for key in keys:
            engine.size(key, None, GIVEN_BACK, node_state.clock())
        node_state.save()

    def close(self) -> None:
        """Close the open files. ``run`` has ended."""
        self._triggers.close()
        self._usage.close()

    # ------------------------------------------------------------------ for people

    def explained(self, engine: Engine, grant: ContainerRecord) -> Optional[dict[str, Any]]:
        """For ``explain``: demand, window, both rungs and the last growths; None where it is sized by its limit."""
        now_s = self._services.node_state.clock()
        return demand_row(engine, grant, self.controller.report(grant.key, now_s), now_s)

    def status(self) -> dict[str, Any]:
        """For ``status``."""
        return demand_status(self.controller, self._triggers.problem, bool(self._triggers.keys))


def demand_settings(config: Config) -> DemandSettings:
    """The settings of a configuration."""
    constants = config.constants
    return DemandSettings(
        interval_s=constants.demand_interval_s,
        window_s=constants.demand_window_s,
        percentile=constants.demand_percentile,
        half_life_s=constants.demand_half_life_s,
        headroom=config["demand.headroom"],
        waiting=constants.demand_waiting,
        usage=constants.demand_usage,
        shrinks_per_minute=constants.demand_shrinks_per_minute,
        growths_per_hour=constants.demand_growths_per_hour,
    )
