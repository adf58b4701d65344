"""One round of monitoring, in a thread: groups are made and removed, threads moved into them, values read.

A round does, in this order:

1. Groups of ours that no container has any more, or that are in another control group than their container, are removed:
   an RMID that is given back can be had by the next.
2. Those that are missing are made, the most important container's first, until no RMID is left.
3. All threads of a container go into its new group, and again until a list has none that is new: a child is in the group of
   the thread that began it. A few other containers are looked at in each round, in turn, as a process that is brought into
   a container by its runtime (exec, a probe) begins in the root's group.
4. Values are read, as many as what the last round took allows.

A container with threads in a monitoring group of another program (Kepler, nri-plugins' resctrl-mon) is left to that one
as long as it is there: a thread is in one such group only.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Callable, Optional

from cri_proxy.isolation.io.monitoring_groups import MonitoringKernel
from cri_proxy.isolation.model import is_ours
from cri_proxy.isolation.monitoring import (
    FIRST_READS,
    Meter,
    Plan,
    Seen,
    Source,
    Watch,
    metered,
    reads_allowed,
    renewed,
    sources,
    turn,
)

#: Containers with a group whose threads are listed again in a round.
LISTED_AGAIN = 8
#: Lists of one container's threads in a round: a fork storm ends, as children are in the group by then.
MOST_LISTS = 8
#: The threads in groups of others are listed as often as so many rounds: the kernel goes through all threads for each.
THEIRS_ROUNDS = 6
#: How a container's threads are had: by its cgroup.
Threads = Callable[[str], Collection[int]]


class Watcher:
    """What monitoring knows of one kernel. All methods block, and are called one at a time."""

    def __init__(
        self,
        kernel: MonitoringKernel,
        threads: Threads,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """``cpu_clock``: seconds that this thread has had of a CPU."""
        self._kernel, self._threads = kernel, threads
        self._clock, self._cpu_clock = clock, cpu_clock
        #: Of each container with a group, which control group that is in, and whether its threads are to be moved yet.
        self._made: dict[str, str] = {}
        self._entering: set[str] = set()
        self._meters: dict[tuple[str, int], Meter] = {}
        self._groups: dict[tuple[str, int], Meter] = {}
        self._allowed = FIRST_READS
        self._next_source = self._next_list = 0
        #: Groups of others, the threads in them, and how many rounds ago those were listed; and the containers of those.
        self._foreign: frozenset[tuple[str, str]] = frozenset()
        self._theirs: frozenset[int] = frozenset()
        self._theirs_age = THEIRS_ROUNDS
        self._left: set[str] = set()
        #: The containers of the last round.
        self._known: set[str] = set()
        #: All that is read, and what it follows from.
        self._plan: Optional[Plan] = None
        self._sources: tuple[object, list[Source]] = (None, [])

    def round(self, plan: Plan) -> Seen:
        """Do what ``plan`` says, and say what was found."""
        groups = self._kernel.groups()
        self._remove(plan, groups)
        self._look_at_theirs(plan)
        note = self._make(plan)
        self._enter(plan)
        watched = [each for each in plan.watches if each.key in self._made]
        reads, spent_s = self._read(watched, groups, plan)
        return Seen(
            dict(self._meters),
            dict(self._groups),
            frozenset(self._made),
            len(self._foreign),
            note,
            reads,
            spent_s,
        )

    def close(self) -> None:
        """Close the open files; the groups stay."""
        self._kernel.close()

    # ------------------------------------------------------------------ groups

    def _remove(self, plan: Plan, groups: Iterable[str]) -> None:
        """Leave of our groups those that are right, and see which there are of others."""
        right = {(each.group, each.name): each.key for each in plan.watches if each.key not in self._left}
        made, foreign = {}, set()
        for group in groups:
            try:
                names = self._kernel.monitors(group)
            except OSError:
                continue  # the control group has gone meanwhile, and its monitoring groups with it
            for name in names:
                if not is_ours(name):
                    foreign.add((group, name))
                elif (key := right.get((group, name))) is not None:
                    made[key] = group
                else:
                    with contextlib.suppress(OSError):  # it is there in the next round, and tried again
                        self._kernel.remove_monitor(group, name)
        # A group that was there before this process has the threads that it was given then.
        self._entering = {key for key in self._entering if key in made} | (made.keys() - self._made.keys())
        self._made = made
        if foreign != self._foreign:
            self._foreign, self._theirs_age = frozenset(foreign), THEIRS_ROUNDS

    def _look_at_theirs(self, plan: Plan) -> None:
        """See which containers are in groups of others, now and then, and whenever there are other groups or containers."""
        keys = {each.key for each in plan.watches}
        self._theirs_age += 1
        if not self._foreign:
            self._theirs, self._left = frozenset(), set()
        elif self._theirs_age >= THEIRS_ROUNDS or not keys <= self._known:
            found: set[int] = set()
            for group, name in self._foreign:
                with contextlib.suppress(OSError):
                    found |= self._kernel.monitored(group, name)
            self._theirs, self._theirs_age = frozenset(found), 0
            self._left = {
                each.key for each in plan.watches if not self._theirs.isdisjoint(self._threads(each.cgroup))
            }
        self._known = keys

    def _make(self, plan: Plan) -> str:
        for each in plan.watches:
            if each.key in self._made or each.key in self._left:
                continue
            try:
                self._kernel.make_monitor(each.group, each.name)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    continue  # its control group is not there yet
                return _why_not(error, len(self._made), len(plan.watches))
            self._made[each.key] = each.group
            self._entering.add(each.key)
            for at in [at for at in self._meters if at[0] == each.key]:
                self._meters[at] = renewed(self._meters[at])
        return ""

    # ------------------------------------------------------------------ threads

    def _enter(self, plan: Plan) -> None:
        watched = [each for each in plan.watches if each.key in self._made]
        again, self._next_list = turn(watched, self._next_list, LISTED_AGAIN)
        for each in watched:
            if each.key in self._entering and self._enter_all(each):
                self._entering.discard(each.key)
        for each in again:
            self._move(each, self._threads(each.cgroup))

    def _enter_all(self, each: Watch) -> bool:
        """Whether all threads of a container are in its group now."""
        seen: set[int] = set()
        for _ in range(MOST_LISTS):
            new = set(self._threads(each.cgroup)) - seen
            if not new:
                return bool(seen)  # else it has no process yet
            if not self._move(each, new):
                return False
            seen |= new
        return True

    def _move(self, each: Watch, threads: Iterable[int]) -> bool:
        """False: some are in another control group yet; they are moved there first, by what keeps those."""
        are_all = True
        for thread in threads:
            if thread in self._theirs:
                continue
            try:
                self._kernel.move_monitored(each.group, each.name, thread)
            except OSError as error:
                # One that has ended needs no group.
                are_all = are_all and error.errno == errno.ESRCH
        return are_all

    # ------------------------------------------------------------------ values

    def _read(self, watched: Sequence[Watch], groups: tuple[str, ...], plan: Plan) -> tuple[int, float]:
        every = self._every(watched, groups, plan)
        each_reads = max(1, len(plan.values))
        some, self._next_source = turn(every, self._next_source, max(1, self._allowed // each_reads))
        began_s = self._cpu_clock()
        for source in some:
            self._look(source, plan.values)
        spent_s = self._cpu_clock() - began_s
        self._allowed = reads_allowed(len(some) * each_reads, spent_s, self._allowed)
        return len(some) * each_reads, spent_s

    def _every(self, watched: Sequence[Watch], groups: tuple[str, ...], plan: Plan) -> list[Source]:
        cause = (groups, self._made)
        if self._plan is not plan or self._sources[0] != cause:
            every = sources(watched, groups, plan.domains)
            there = frozenset((each.key or each.group, each.domain) for each in every)
            self._plan, self._sources = plan, ((groups, dict(self._made)), every)
            # What is in no L3 or control group of this round any more is not known.
            self._meters = {at: meter for at, meter in self._meters.items() if at in there}
            self._groups = {at: meter for at, meter in self._groups.items() if at in there}
        return self._sources[1]

    def _look(self, source: Source, values: Iterable[str]) -> None:
        texts = {}
        for value in values:
            try:
                texts[value] = self._kernel.read(source, value)
            except OSError:
                continue  # not known, as its group has just gone, or is not monitored in this domain
        meters = self._meters if source.key else self._groups
        at = source.key or source.group, source.domain
        meters[at] = metered(meters.get(at), texts, self._clock())


def _why_not(error: OSError, there: int, wanted: int) -> str:
    if error.errno == errno.ENOSPC:
        return f"{there} of {wanted} containers are watched: no monitoring group (RMID) is left"
    return f"{there} of {wanted} containers are watched: a monitoring group cannot be made: {error.strerror}"
