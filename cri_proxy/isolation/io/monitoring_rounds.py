"""A round of monitoring, from what the daemon knows of its containers to what fills the L3s. All of it blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Callable, Optional, Protocol

from cri_proxy.bounded_files import read_number, read_text
from cri_proxy.isolation.io.monitoring_groups import MonitoringKernel, mark, put_back
from cri_proxy.isolation.io.resctrl import L3_MONITORS
from cri_proxy.isolation.io.watcher import Watcher
from cri_proxy.isolation.model import ROOT, CacheDomain, IsolatedContainer, ResctrlInfo
from cri_proxy.isolation.monitoring import (
    VALUES,
    Candidate,
    Filled,
    Meter,
    Plan,
    Seen,
    Watch,
    chosen,
    domains_of,
    filled,
    room_for,
    smoothed,
)
from cri_proxy.isolation.treatment import meetings
from policies.frozen import frozen

#: How often the usage of containers is looked at, where there are fewer RMIDs than containers, in rounds.
USAGE_ROUNDS = 6

#: What containers have used of CPUs in all, seconds, by key; those that can be read of cgroup paths by key. Blocks.
Usage = Callable[[Mapping[str, str]], Mapping[str, float]]


@frozen
class Question:
    """What a round is made of: containers with their cgroups and control groups, in one moment of the daemon's."""

    containers: Sequence[IsolatedContainer]
    cgroups: Mapping[str, str]
    groups: Mapping[str, str]
    now_s: float


@frozen
class Answer:
    """What a round has found. ``sizes``: of the L3s that are monitored, 0 = not known. ``classes``: of the containers.
    ``why``: why nothing is monitored."""

    seen: Seen = Seen()
    sizes: Mapping[CacheDomain, int] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    candidates: int = 0
    room: int = 0
    why: str = ""


class Offer(Protocol):
    """What a machine's resctrl offers. ``missing``: why ``info`` returned None, a sentence."""

    missing: str

    def info(self) -> Optional[ResctrlInfo]: ...


class MonitoringRounds:
    """The rounds of one kernel, each in a thread, one at a time."""

    def __init__(
        self,
        kernel: MonitoringKernel,
        watcher: Watcher,
        offer: Offer,
        usage: Usage,
        directory: Path,
        sys: Path = Path("/sys"),
    ) -> None:
        """``directory``: of state, for the mark."""
        self._kernel, self._watcher, self._offer, self._usage = kernel, watcher, offer, usage
        self._directory, self._sys = directory, sys
        #: What resctrl offers, which takes thousands of files to read, as long as it is mounted; and the sizes of the L3s.
        self._known: Optional[ResctrlInfo] = None
        self._sizes: Optional[dict[CacheDomain, int]] = None
        self._chosen: tuple[str, ...] = ()
        self._foreign = 0
        #: Of each container the seconds of CPUs it had used at a time, and the CPUs it uses.
        self._used: dict[str, tuple[float, float, Optional[float]]] = {}
        self._until_usage = 0
        self._containers: object = None
        #: The batch containers that share an L3 with a protected one, of these containers.
        self._met: tuple[object, frozenset[str]] = (None, frozenset())
        #: The plan, and what it was made of.
        self._plan: tuple[object, Plan] = (None, Plan((), ()))

    def round(self, question: Question) -> Answer:
        """Watch the containers of a question. Blocks."""
        if self._known is None or not self._kernel.groups():
            self._known, self._sizes = self._offer.info(), None
        info = self._known
        if info is None:
            return Answer(why=self._offer.missing)
        values = tuple(value for value in VALUES if value in info.monitors)
        if not values or not info.rmids:
            return Answer(why="this kernel or processor monitors no caches")
        if self._sizes is None:
            self._sizes = {domain: _size(self._sys, domain) for domain in info.domains[L3_MONITORS]}
        if not self._sizes:
            return Answer(why="the kernel tells no ids of L3s (cache/index3/id)")
        room = room_for(info, self._foreign)
        self._choose(question, room)
        made_of = self._chosen, question.cgroups, question.groups, values
        if self._containers is not question.containers or self._plan[0] != made_of:
            self._plan = made_of, Plan(self._watches(question), tuple(self._sizes), values)
            self._containers = question.containers
        try:
            mark(self._directory)
        except OSError as error:
            return Answer(why=f"{self._directory}: no mark can be kept of the groups: {error.strerror}")
        seen = self._watcher.round(self._plan[1])
        self._foreign = seen.foreign
        note = seen.note
        if len(question.containers) > len(self._chosen) and not note:
            note = f"{len(self._chosen)} of {len(question.containers)} containers are watched: there are {info.rmids} RMIDs"
        return Answer(
            replace(seen, note=note),
            self._sizes,
            {each.key: each.cls for each in question.containers},
            len(question.containers),
            room,
        )

    def put_back(self) -> list[str]:
        """Remove all groups of ours; a sentence for each that stays. Blocks."""
        self._watcher.close()
        return put_back(self._directory, self._kernel)

    def close(self) -> None:
        """Close the open files; the groups stay."""
        self._watcher.close()

    def _choose(self, question: Question, room: int) -> None:
        containers = question.containers
        if len(containers) <= room:
            self._chosen = tuple(each.key for each in containers)
            return
        self._look_at_usage(question)
        met = meetings(containers, self._sizes or ()).values()
        beside = {key for meeting in met for key in meeting.batch}
        candidates = [
            Candidate(each.key, each.cls, each.key in beside, self._used_cpus(each.key))
            for each in containers
        ]
        self._chosen = chosen(candidates, room, frozenset(self._chosen))

    def _look_at_usage(self, question: Question) -> None:
        self._until_usage -= 1
        if self._until_usage > 0:
            return
        self._until_usage = USAGE_ROUNDS
        used, before = {}, self._used
        for key, total_s in self._usage(question.cgroups).items():
            then_s, then_total_s, cpus = before.get(key, (question.now_s, total_s, None))
            if question.now_s > then_s:
                cpus = smoothed(cpus, max(0.0, total_s - then_total_s) / (question.now_s - then_s))
            used[key] = question.now_s, total_s, cpus
        self._used = used

    def _used_cpus(self, key: str) -> float:
        return self._used[key][2] or 0.0 if key in self._used else 0.0

    def _watches(self, question: Question) -> tuple[Watch, ...]:
        by_key = {each.key: each for each in question.containers}
        return tuple(
            Watch(
                key,
                question.groups.get(key, ROOT),
                question.cgroups[key],
                domains_of(by_key[key].cpus, self._sizes or ()),
            )
            for key in self._chosen
            if key in question.cgroups
        )


def fills(answer: Answer) -> tuple[Filled, ...]:
    """What fills each L3. With many containers in many L3s this takes some ten milliseconds."""
    by_domain: dict[int, dict[str, Meter]] = {}
    for (key, domain), meter in answer.seen.meters.items():
        by_domain.setdefault(domain, {})[key] = meter
    groups: dict[int, list[Optional[Meter]]] = {}
    for (_, domain), meter in answer.seen.groups.items():
        groups.setdefault(domain, []).append(meter)
    return tuple(
        filled(domain, by_domain.get(domain.id, {}), groups.get(domain.id, ()), answer.classes)
        for domain in answer.sizes
    )


def _size(sys: Path, domain: CacheDomain) -> int:
    """The size of an L3 in bytes, 0 = not known."""
    folder = sys / "devices" / "system" / "cpu" / f"cpu{min(domain.cpus, default=0)}" / "cache" / "index3"
    try:
        text = read_text(folder / "size").strip()  # "32768K"
        return read_number(text.removesuffix("K")) * 1024 if text.endswith("K") else 0
    except (OSError, ValueError):
        return 0
