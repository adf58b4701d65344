"""Monitoring in the daemon: each ten seconds a round in a thread, and what it has found for metrics, screens and people.

Nothing is read while ``isolation.monitoring`` is off; when it is switched off the groups are removed. A daemon that ends
leaves them to the next one. In mode off nothing is watched; in mode observe it is: a monitoring group changes nothing for a
container.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.waiting import wait_within
from cri_proxy.affinity.demand.io.sizer import UsageReader
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Life, zones_of
from cri_proxy.instruments import Family
from cri_proxy.isolation.io.monitoring_groups import MonitoringGroups
from cri_proxy.isolation.io.monitoring_rounds import Answer, MonitoringRounds, Question, Usage, fills
from cri_proxy.isolation.io.resctrl import Resctrl, machine_mount
from cri_proxy.isolation.io.series import filled_families, monitoring_families
from cri_proxy.isolation.io.watcher import Watcher
from cri_proxy.isolation.model import OFF, CacheDomain, IsolatedContainer
from cri_proxy.isolation.monitoring import INTERVAL_S, cache_texts
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.services.services import Services


class CacheMonitor:
    """Monitoring of one daemon. ``run`` is the part that goes on by itself."""

    def __init__(
        self,
        services: Services,
        rounds: MonitoringRounds,
        group_of: Callable[[str], str],
        mode: Callable[[], str],
    ) -> None:
        self._services, self._rounds = services, rounds
        self._group_of, self._mode = group_of, mode
        self._wake = asyncio.Event()
        self._is_released = False
        #: One round at a time.
        self._lock = asyncio.Lock()
        self.answer = Answer()
        #: Rows for screens, and what they were made of.
        self._filled: tuple[Optional[Answer], list[dict[str, Any]]] = (None, [])
        #: What was seen of the engine, and at which version.
        self._listed: tuple[Optional[Engine], int, Sequence[IsolatedContainer]] = (None, -1, ())

    async def run(self) -> None:
        """Watch until monitoring is switched off, and put back then what was made for it."""
        self._services.metrics.registry.register(self)
        try:
            while self.is_on:
                await self.round()
                with contextlib.suppress(asyncio.TimeoutError):
                    await wait_within(INTERVAL_S, self._wake.wait())
                self._wake.clear()
        finally:
            self._services.metrics.registry.unregister(self)
        self.answer = Answer()
        self._tell(await asyncio.to_thread(self._rounds.put_back))

    @property
    def is_on(self) -> bool:
        return bool(self._services.config["isolation.monitoring"])

    def wake(self) -> None:
        """Have the next round now: the mode is another one."""
        self._wake.set()

    def reconfigured(self) -> None:
        """The configuration is another one."""
        self._is_released = False
        self._wake.set()

    async def release(self) -> None:
        """Have no group of ours in the kernel until ``reconfigured``."""
        self._is_released = True
        await self.round()

    async def round(self) -> None:
        """Watch the containers that there are now."""
        async with self._lock:
            await self._round()

    async def _round(self) -> None:
        engine: Optional[Engine] = self._services.node_state.engine
        if engine is None:
            return
        if self._is_released or self._mode() == OFF:
            self.answer = Answer(why="all was released" if self._is_released else "the mode is off")
            self._tell(await asyncio.to_thread(self._rounds.put_back))
            return
        containers = self._list(engine)
        cgroup_of = self._services.reconciler.cgroup_of
        cgroups = {each.key: path for each in containers if (path := cgroup_of(each.key)) is not None}
        question = Question(
            containers,
            cgroups,
            {key: self._group_of(key) for key in cgroups},
            self._services.node_state.clock(),
        )
        self.answer = await asyncio.to_thread(self._rounds.round, question)
        self._tell([self.answer.why] if self.answer.why else [])

    def _tell(self, sentences: Iterable[str]) -> None:
        self._services.health.warn("monitoring", [f"isolation.monitoring: {each}" for each in sentences])

    def _list(self, engine: Engine) -> Sequence[IsolatedContainer]:
        if self._listed[:2] != (engine, engine.version):
            self._listed = engine, engine.version, watchable(engine)
        return self._listed[2]

    def close(self) -> None:
        """Close the open files. ``run`` has ended."""
        self._rounds.close()

    # ------------------------------------------------------------------ for people

    async def rows(self, engine: Engine) -> list[dict[str, Any]]:
        """For screens: what fills each L3 that is monitored. ``others_bytes``: what is of no container that is watched."""
        answer = self.answer
        if self._filled[0] is not answer:
            self._filled = answer, await asyncio.to_thread(_rows, answer, _names(engine, answer.sizes))
        return self._filled[1]

    def explained(self, engine: Engine, key: str) -> Optional[dict[str, Any]]:
        """For ``explain``: what a container has of L3s and fetches from memory; None where nothing is monitored."""
        if self.answer.why or not self.answer.sizes:
            return None
        names = _names(engine, self.answer.sizes)
        sizes = {domain.id: size for domain, size in self.answer.sizes.items()}
        row = {
            "is_watched": key in self.answer.seen.watched,
            "note": self.answer.seen.note,
            "l3s": [
                {
                    "l3": names[number],
                    "size_bytes": sizes[number],
                    "bytes": meter.occupancy,
                    "bytes_per_s": None
                    if meter.total is None or meter.total.per_s is None
                    else round(meter.total.per_s),
                    "problem": meter.problem,
                }
                for number, meter in sorted(
                    (number, meter)
                    for (owner, number), meter in self.answer.seen.meters.items()
                    if owner == key
                )
            ],
        }
        return {**row, "texts": cache_texts(row)}

    def status(self) -> dict[str, Any]:
        """For ``status``."""
        answer, seen = self.answer, self.answer.seen
        return {
            "is_on": True,
            "why": answer.why or seen.note,
            "watched": len(seen.watched),
            "containers": answer.candidates,
            "room": answer.room,
            "foreign_groups": seen.foreign,
            "reads": seen.reads,
            "spent_s": round(seen.spent_s, 6),
        }

    # ------------------------------------------------------------------ metrics

    def collect(self) -> Iterable[Family]:
        """What the last round has found."""
        engine, answer = self._services.node_state.engine, self.answer
        if engine is None:
            return monitoring_families()
        return filled_families(engine, answer, _names(engine, answer.sizes), self._group_of)


def watchable(engine: Engine) -> Sequence[IsolatedContainer]:
    """The containers that may be watched: all that run, also those that are not placed here."""
    return tuple(
        IsolatedContainer(
            key,
            record.container.path,
            record.isolation,
            record.isolation_why,
            record.cpus or engine.host.usable,
            record.own,
        )
        for key, record in engine.grants.items()
        if record.life is Life.RUNNING
    )


def make_monitor(
    services: Services,
    group_of: Callable[[str], str],
    mode: Callable[[], str],
    mount: Optional[Path] = None,
    sys: Path = Path("/sys"),
) -> CacheMonitor:
    """Monitoring of a daemon.

    ``mount`` None: this machine's resctrl. ``group_of``: the control group of a container, "" = the root's; ``mode``: in
    force.
    """
    config = services.config
    cgroup_root, directory = Path(config["topology.cgroup_root"]), Path(config["state.directory"])
    mount = mount or machine_mount()
    kernel = MonitoringGroups(mount)
    watcher = Watcher(kernel, Cgroups(cgroup_root).threads)
    usage = usage_of(UsageReader(cgroup_root, services.node_state.clock))
    rounds = MonitoringRounds(kernel, watcher, Resctrl(mount, sys), usage, directory, sys)
    return CacheMonitor(services, rounds, group_of, mode)


def _rows(answer: Answer, names: Mapping[int, str]) -> list[dict[str, Any]]:
    return [
        {
            "l3": names[each.domain.id],
            "size_bytes": answer.sizes.get(each.domain, 0),
            "others_bytes": each.others_bytes,
            "by_class": dict(each.by_class),
            "containers": [
                {
                    "id": share.key,
                    "bytes": share.bytes,
                    "bytes_per_s": None if share.bytes_per_s is None else round(share.bytes_per_s),
                }
                for share in each.shares
            ],
        }
        for each in fills(answer)
    ]


def usage_of(reader: UsageReader) -> Usage:
    """What containers have used of CPUs, from files of their cgroups that stay open."""

    def look(paths: Mapping[str, str]) -> Mapping[str, float]:
        reader.keep(paths.keys())
        return {key: sample.usage_ns / 1e9 for key, sample in reader.look(paths, ()).items()}

    return look


def _names(engine: Engine, domains: Iterable[CacheDomain]) -> dict[int, str]:
    """The names that the machine's L3s have here, by the kernel's id of the cache."""
    zones = [zone for zone in zones_of(engine.host.topology) if zone.level == "l3"]
    return {
        domain.id: next(
            (zone.name for zone in zones if not zone.domain.cpus.isdisjoint(domain.cpus)), f"l3-{domain.id}"
        )
        for domain in domains
    }
