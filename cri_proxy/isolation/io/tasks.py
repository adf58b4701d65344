"""Threads of containers, moved into the groups of resctrl that they belong to. Everything in here blocks.

The kernel's rule (Documentation/filesystems/resctrl.rst): a thread is in one group, what it forks begins in the same one,
and what it has forked before does not follow. So for each container:

1. The threads of its own cgroup and of those below it are listed; no other thread is moved, but those of its pod's shim.
2. Those that are not in its group are moved; one that has ended meanwhile is no failure.
3. Again, until none is left: there may be what was forked between the two steps. That ends, as what is moved forks into
   the group.

A thread in a group of another program is left there, and counted. A container that belongs to no group is moved only out
of groups of ours.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional, Protocol

from bpf.kernel.clock import boot_time_s
from cri_proxy.isolation.io.scheduling import ThreadScheduling
from cri_proxy.isolation.io.shims import Process, read_process, shim_of, threads_of
from cri_proxy.isolation.model import ROOT, Wanted, is_ours
from cri_proxy.node.cgroups import Cgroups, is_own, pod_of

#: How often the threads of one container are listed in a row: a container that forks without end needs two or three.
LOOKS = 10

#: How often those are looked at that were right, seconds: an exec that no shim of ours has forked is found so.
AGAIN_S = 10.0
#: How long a container is waited for that was about to start, seconds.
STARTING_S = 60.0

#: When threads of a container came into its group: they waited for their start, and nothing of its image had run; by the
#: shim, that forked them there; as soon as its cgroup was there; in a round, while it ran; as it belongs to another now.
AT_START, BY_SHIM, BY_CGROUP, IN_ROUND, REGROUPED = "start", "shim", "cgroup", "round", "regrouped"

_NONE: frozenset[int] = frozenset()


class TaskGroups(Protocol):
    """What is asked of resctrl; OSError with the kernel's errno. A group is named as in ``Group``, "" = the root's."""

    def tasks(self, group: str) -> frozenset[int]:
        """The threads in a group."""
        ...

    def where(self, thread: int) -> Optional[str]:
        """The group of one thread. None: it has ended, or this kernel does not tell."""
        ...

    def move(self, group: str, thread: int) -> None:
        """Have a thread in a group, and what it forks from then on."""
        ...

    def others(self) -> Collection[str]:
        """The groups, but the root's, that are not ours."""
        ...


@dataclass
class _Followed:
    """A container in a group. ``threads``: those in it; ``left``: those that the last round has not found or brought there;
    ``elsewhere``: those in groups of others. ``ran_before_s``: how old the oldest of the first that were moved was, 0 =
    they had not run. ``problem``: why one could not be moved.
    """

    group: str
    moment: str
    threads: int = 0
    moved: int = 0
    left: int = 0
    elsewhere: int = 0
    ran_before_s: float = 0.0
    problem: str = ""
    #: Whether a round has had it; one that has just started may not be in the round that is under way.
    is_known: bool = False
    since_s: float = 0.0
    #: The cgroup of its pod, of one that has just started: its own may not be known yet.
    pod: str = ""


class Tasks:
    """The threads of one node's containers. Calls may come from several threads.

    ``clock``: boot time in seconds, as the kernel has the start of a process. ``scheduling``: what sets the threads of
    containers that start, beside moving them; its rounds are the writer's.
    """

    def __init__(
        self,
        resctrl: TaskGroups,
        cgroups: Cgroups,
        clock: Callable[[], float] = boot_time_s,
        scheduling: Optional[ThreadScheduling] = None,
    ) -> None:
        self._resctrl = resctrl
        self._scheduling = scheduling
        self._cgroups = cgroups
        self._clock = clock
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}
        self._all_at_s = -AGAIN_S
        #: All containers of the last round: those without a group were not to be in one.
        self._seen: frozenset[str] = frozenset()
        #: The shims that are in a group, by the cgroup of their pod.
        self._shims: dict[str, tuple[Process, str]] = {}

    # ------------------------------------------------------------------ the round

    def follow(self, wanted: Wanted, containers: Mapping[str, str]) -> int:
        """Have every thread of all containers where it belongs; how many were moved.

        ``containers``: the cgroups of all that run, below the hierarchy's mount, by their keys; what is not in it is
        forgotten. The groups of ``wanted`` must be there. A container that was right at the last call is looked at again
        after ``AGAIN_S``: a call for one new container costs nothing for the others.
        """
        group_of = {key: group.name for group in wanted.groups if group.name for key in group.members}
        started = {key: self._just_started(key) for key in group_of if key not in containers}
        own = {key: path for key, path in {**started, **containers}.items() if is_own(key, path)}
        ours = [group.name for group in wanted.groups if group.name]
        now_s = self._clock()
        is_all = now_s >= self._all_at_s + AGAIN_S
        self._all_at_s = now_s if is_all else self._all_at_s
        # 1. Members.
        due = [key for key in own if key in group_of and (is_all or not self._is_right(key, group_of[key]))]
        inside = {name: self._inside([name]) for name in {group_of[key] for key in due}}
        others = self._inside(self._resctrl.others()) if due else _NONE
        moved, settled = 0, set[int]()
        for key in due:
            group, moment = group_of[key], REGROUPED if key in self._seen else IN_ROUND
            count, threads = self._settle(key, own[key], group, moment, inside[group], others)
            moved += count
            settled |= threads
        # 2. Shims.
        settled |= self._follow_shims(own, group_of)
        # 3. Those that have left their group; after a restart of ours it is not known which.
        left = [key for key in own if key not in group_of and (is_all or key in self._followed)]
        strays = self._inside(ours) - settled if left else _NONE
        for key in left if strays else ():
            moved += self._send_home(own[key], ours, strays)
        self._forget(own, group_of)
        return moved

    def _just_started(self, key: str) -> str:
        """The cgroup of a container that has just started; "" = it has not, or there is none yet."""
        row = self._followed.get(key)
        return self._cgroups.below(row.pod, key) if row is not None and row.pod else ""

    def _is_right(self, key: str, group: str) -> bool:
        """Whether a round has found all threads of a container in this group."""
        row = self._followed.get(key)
        return row is not None and row.is_known and row.group == group and not row.left and not row.problem

    def _settle(
        self, key: str, path: str, group: str, moment: str, inside: frozenset[int], others: frozenset[int]
    ) -> tuple[int, frozenset[int]]:
        """Bring a container's threads into its group. How many were moved; and all that it has."""
        with self._lock:
            row = self._row(key, group, moment)
            row.problem, moved, is_first = "", set[int](), not row.moved and row.moment != REGROUPED
            threads, unclear = _NONE, set[int]()
            for _ in range(LOOKS):
                threads = self._cgroups.threads(path)
                unclear = set(threads - inside - others)
                # The list of the group may be older than a thread, so each is asked about, and moved at once: it may not
                # live long. One that has ended may have been outside, and have left a child there: there is another look.
                for thread in sorted(unclear):
                    of = self._resctrl.where(thread)
                    if of == group:
                        inside |= {thread}
                    elif of and not is_ours(of):
                        others |= {thread}
                    elif of is not None or self._runs(thread):
                        if is_first:
                            row.ran_before_s = max(row.ran_before_s, self._age_s([thread]))
                        if self._move(group, [thread], row):
                            inside |= {thread}
                            moved.add(thread)
                if not unclear or row.problem:
                    break
            row.threads, row.left = len(threads & inside), len(unclear - inside - others)
            row.elsewhere, row.moved = len(threads & others), row.moved + len(moved)
            return len(moved), threads

    def _send_home(self, path: str, ours: Collection[str], strays: frozenset[int]) -> int:
        """Have a container that belongs to no group in the root's; only what is in a group of ours is moved."""
        moved, home = 0, _NONE
        for _ in range(LOOKS):
            where = {thread: self._resctrl.where(thread) for thread in self._cgroups.threads(path) - home}
            # Where this kernel does not tell, the list that was read before does.
            here = {thread for thread, of in where.items() if of in ours or (of is None and thread in strays)}
            if not here:
                break
            moved += self._move(ROOT, here)
            home |= here
        return moved

    def _follow_shims(self, own: Mapping[str, str], group_of: Mapping[str, str]) -> frozenset[int]:
        """Have the shims that were moved where all containers of their pods are, else in the root's; the threads of those
        that are in a group."""
        groups: dict[str, set[str]] = {}
        for key, path in own.items() if self._shims else ():
            groups.setdefault(pod_of(key, path), set()).add(group_of.get(key, ROOT))
        threads = _NONE
        for pod, (shim, group) in list(self._shims.items()):
            # A pod of which nothing runs now keeps its shim where it is.
            wanted = groups.get(pod, {group})
            target = next(iter(wanted)) if len(wanted) == 1 else ROOT
            if self._bring_shim(pod, shim, target) and target != ROOT:
                threads |= threads_of(self._cgroups.proc, shim.pid)
        return threads

    def _forget(self, own: Mapping[str, str], group_of: Mapping[str, str]) -> None:
        with self._lock:
            for key, row in list(self._followed.items()):
                if key in own:
                    row.is_known = True
                is_member = group_of.get(key, row.group if key not in own else ROOT) == row.group
                # A round that was begun before a start knows nothing of it; much later it has not started.
                is_starting = not row.is_known and self._clock() < row.since_s + STARTING_S
                if not is_member or (key not in own and not is_starting):
                    del self._followed[key]
            self._seen = frozenset(own)

    # ------------------------------------------------------------------ a start

    def begin(self, key: str, pod: str, group: str) -> bool:
        """A container is about to start: have its threads, which wait for that, in its group and scheduled as they should
        be. False: it has none yet.

        ``pod``: the cgroup of its pod. The threads are not looked for in groups, which would take as long as the node has
        threads.
        """
        path = self._cgroups.below(pod, key)
        threads = self._cgroups.threads(path) if path else _NONE
        self._schedule(key)
        if not threads or group == ROOT:
            return bool(threads)
        with self._lock:
            self._bring(path, threads, self._row(key, group, AT_START, pod))
        return True

    def is_scheduled(self, key: str) -> bool:
        """Whether a container's threads are to be set, which no shim does for them."""
        return self._scheduling is not None and self._scheduling.has(key)

    def _schedule(self, key: str) -> bool:
        return self._scheduling is None or self._scheduling.begin(key)

    def catch(self, key: str, path: str, group: str) -> bool:
        """A container's cgroup has appeared: have its threads in its group and scheduled. False: call it again, as there are
        none yet, or some were scheduled, and what they were forking then may not be listed yet."""
        threads = self._cgroups.threads(path)
        if not threads:
            return False
        is_scheduled = self._schedule(key)
        if group == ROOT:
            return is_scheduled
        with self._lock:
            row = self._row(key, group, BY_CGROUP, pod_of(key, path))
            # What a shim that was moved late has forked since then is there.
            inside = frozenset(thread for thread in threads if self._resctrl.where(thread) == group)
            if threads - inside:
                # What ran is runc's own program; at the time of the move it may not have begun the image's yet.
                row.ran_before_s = self._age_s(threads - inside)
                row.moment = BY_CGROUP if row.moment == BY_SHIM else row.moment
            self._bring(path, threads, row, inside)
        return is_scheduled

    def begin_by_shim(self, key: str, pod: str, sandbox_id: str, group: str) -> bool:
        """Have the shim of a pod in the group of all its containers, before it forks one of them; ROOT where they are of
        several. True: what it forks is in that group."""
        known = self._shims.get(pod)
        if known is None and group == ROOT:
            return True  # it never left
        shim = known[0] if known is not None and self._is_alive(known[0]) else None
        shim = shim or shim_of(self._cgroups, pod, sandbox_id)
        if shim is None or not self._bring_shim(pod, shim, group):
            return False
        if group != ROOT:
            with self._lock:
                if key not in self._followed:
                    self._row(key, group, BY_SHIM, pod)
        return True

    def cgroup_of(self, key: str, pod: str) -> str:
        """The cgroup of a container in its pod's; "" = it is not there yet."""
        return self._cgroups.below(pod, key)

    # ------------------------------------------------------------------ steps

    def _bring(
        self, path: str, threads: frozenset[int], row: _Followed, inside: frozenset[int] = _NONE
    ) -> None:
        """Move threads, and what they have forked since they were listed. ``inside``: those that are there already."""
        others = self._inside(self._resctrl.others())
        lacking, done = threads - others - inside, inside
        for _ in range(LOOKS):
            row.moved += self._move(row.group, lacking, row)
            done |= lacking
            lacking = self._cgroups.threads(path) - done - others
            if not lacking or row.problem:
                break
        row.threads, row.left = len(done), len(lacking)

    def _bring_shim(self, pod: str, shim: Process, group: str) -> bool:
        """Have a shim in a group; whether it is."""
        with self._lock:
            if not self._is_alive(shim):
                self._shims.pop(pod, None)
                return False
            if self._shims.get(pod, (None, ROOT))[1] == group:
                return True
            done, row = _NONE, _Followed(group, BY_SHIM)
            while lacking := threads_of(self._cgroups.proc, shim.pid) - done:
                self._move(group, lacking, row)
                done |= lacking
                if row.problem:
                    return False
            self._shims[pod] = (shim, group)
            if group == ROOT:
                del self._shims[pod]
            return True

    def _is_alive(self, shim: Process) -> bool:
        found = read_process(self._cgroups.proc, shim.pid)
        return found is not None and found.started_s == shim.started_s

    def _row(self, key: str, group: str, moment: str, pod: str = "") -> _Followed:
        row = self._followed.get(key)
        if row is None or row.group != group:
            row = self._followed[key] = _Followed(
                group, moment if row is None else REGROUPED, since_s=self._clock(), pod=pod
            )
        return row

    def _move(self, group: str, threads: Iterable[int], row: Optional[_Followed] = None) -> int:
        """How many were moved; what refuses one is noted, and ends it."""
        moved = 0
        for thread in sorted(threads):
            try:
                self._resctrl.move(group, thread)
                moved += 1
            except ProcessLookupError:  # it has ended
                continue
            except OSError as error:
                if row is not None:
                    row.problem = (
                        f"thread {thread} stays outside {group or 'the root group'}: {error.strerror}"
                    )
                break
        return moved

    def _inside(self, groups: Iterable[str]) -> frozenset[int]:
        found = _NONE
        for group in groups:
            try:
                found |= self._resctrl.tasks(group)
            except OSError:  # it is gone; a move says why it cannot be
                continue
        return found

    def _runs(self, thread: int) -> bool:
        found = read_process(self._cgroups.proc, thread)
        return found is not None and not found.is_ending

    def _age_s(self, threads: Iterable[int]) -> float:
        """How long the oldest of some threads has been there."""
        found = filter(None, (read_process(self._cgroups.proc, thread) for thread in threads))
        now_s = self._clock()
        return max(now_s - min((each.started_s for each in found), default=now_s), 0.0)

    # ------------------------------------------------------------------ the status

    def status(self) -> dict[str, dict[str, Any]]:
        """A row for each container in a group, by its key."""
        with self._lock:
            return {
                key: {
                    "group": row.group,
                    "threads": row.threads,
                    "moved": row.moved,
                    "left": row.left,
                    "elsewhere": row.elsewhere,
                    "ran_before_s": round(row.ran_before_s, 3),
                    "moment": row.moment,
                    "problem": row.problem,
                }
                for key, row in self._followed.items()
            }
