"""Threads of containers, given the policy, nice value and I/O priority of their class, and what they had before again.

Threads are listed and set as they are moved into groups (``tasks``): what forks meanwhile is found by another look. Here
each thread is read first, as its program may have set it (``isolation.scheduling.decide``).

What a container's threads begin with is what its runtime's process has that forks them: the shim of containerd, the conmon
of CRI-O. That is on disk before the first of its threads is set.

A pod's shim is never set, though what it forks would inherit it: a shim that waits for CPUs behind others answers its
runtime too late, and a realtime one is ahead of everything.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

from bpf.kernel.clock import boot_time_s
from cri_proxy.engine.model import ContainerRecord, pod_cgroup
from cri_proxy.isolation.io.shims import read_process
from cri_proxy.isolation.io.thread_attributes import Kernel
from cri_proxy.isolation.model import ENFORCE, Setting
from cri_proxy.isolation.plan import ContainerView
from cri_proxy.isolation.scheduling import (
    DEADLINE,
    REALTIME,
    SUBJECT,
    THREADS,
    Attributes,
    CpuAttributes,
    Decision,
    IoAttributes,
    SchedulingClass,
    SchedulingSection,
    decide,
    read_attributes,
    read_class,
    settings,
    threads_parts,
    unknown_classes,
    write_attributes,
)
from cri_proxy.node.cgroups import Cgroups

if TYPE_CHECKING:
    from cri_proxy.config.config import Config
    from cri_proxy.isolation.io.subjects import Sight, Subject
    from cri_proxy.services.services import Services

#: How often the threads of one container are listed in a row, and how often all containers are looked at, seconds.
LOOKS, AGAIN_S = 10, 10.0


class ThreadAttributes(Protocol):
    """``thread_attributes.Kernel``."""

    def read(self, thread: int) -> Attributes: ...

    def set_cpu(self, thread: int, cpu: CpuAttributes, seen: CpuAttributes) -> None: ...

    def set_io(self, thread: int, io: IoAttributes) -> None: ...


@dataclass
class _Row:
    """A container whose threads are set. ``known``: what they may have that is not their program's. ``threads``: those of
    the last look; ``own``: those of them that their program has set; ``set``: how many were set so far. ``is_settled``:
    in the last look none had to be.
    """

    pod: str
    words: str
    cls: SchedulingClass
    wanted: Attributes
    known: tuple[Attributes, ...]
    threads: int = 0
    own: int = 0
    set: int = 0
    is_settled: bool = False
    problem: str = ""

    @property
    def is_right(self) -> bool:
        return self.threads > 0 and self.is_settled and not self.problem


class ThreadScheduling:
    """The threads of one node's containers. Calls may come from several threads, and block."""

    def __init__(
        self,
        cgroups: Cgroups,
        kernel: Optional[ThreadAttributes] = None,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self.cgroups = self._cgroups = cgroups
        self._kernel = Kernel() if kernel is None else kernel
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()
        self._all_at_s = -AGAIN_S

    def befores(self, places: Iterable[str], remembered: Mapping[str, str]) -> dict[str, str]:
        """Of each place that is not remembered: what its threads begin with, in words to be remembered."""
        known = {threads_parts(place)[1]: value for place, value in _of_threads(remembered).items()}
        found = {}
        for place in places:
            if place not in remembered:
                key = threads_parts(place)[1]
                found[place] = known[key] if key in known else self._before(place)
        return found

    def taken_over(self, remembered: Mapping[str, str]) -> dict[str, bool]:
        """The places of containers that are of another class now: they are not put back. True: none of their threads has
        what the place says any more."""
        found = {}
        for place in _of_threads(remembered):
            _, key, words = threads_parts(place)
            row = self._rows.get(key)
            if row is not None and row.words != words:
                found[place] = row.is_right
        return found

    def _before(self, place: str) -> str:
        pod, key, _ = threads_parts(place)
        own = self._cgroups.below(pod, key)
        for path in filter(None, (own, *self._beside(pod))):
            parent = self._parent_of(path)
            if parent:
                try:
                    words = write_attributes(self._kernel.read(parent))
                    read_attributes(words)  # of a policy that this version knows
                    return words
                except (OSError, ValueError):
                    continue
        return write_attributes(Attributes())

    def keep(self, befores: Mapping[str, str], remembered: Mapping[str, str] = {}) -> int:
        """Have the threads of all these places as they should be, and of no others; how many were set.

        ``befores``: what is remembered of each. ``remembered``: all places that are, those too that are not wanted any more:
        threads may still have what these say. A container that was right is looked at again after ``AGAIN_S``.
        """
        earlier: dict[str, list[str]] = {}
        for place in _of_threads(remembered):
            if place not in befores:
                _, key, words = threads_parts(place)
                earlier.setdefault(key, []).append(words)
        rows: dict[str, _Row] = {}
        for place, before in befores.items():
            pod, key, words = threads_parts(place)
            try:
                rows[key] = self._row(pod, key, words, before, earlier.get(key, ()))
            except ValueError:  # the file was written by another version
                continue
        with self._lock:
            self._rows = rows
        now_s = self._clock()
        is_all = now_s >= self._all_at_s + AGAIN_S
        self._all_at_s = now_s if is_all else self._all_at_s
        return sum(self._treat(key, row) for key, row in rows.items() if is_all or not row.is_right)

    def _row(self, pod: str, key: str, words: str, before: str, earlier: Collection[str]) -> _Row:
        began, cls = read_attributes(before), read_class(words)
        known = (began, *(read_class(each).over(began) for each in earlier))
        row = self._rows.get(key)
        if row is None or (row.pod, row.words, row.known[:1]) != (pod, words, (began,)):
            return _Row(pod, words, cls, cls.over(began), known)
        # What a thread was given before it may have still, whatever is remembered of it.
        row.known = (*row.known, *(each for each in known if each not in row.known))
        return row

    # ------------------------------------------------------------------ a start

    def has(self, key: str) -> bool:
        """Whether a container's threads are to be set."""
        return key in self._rows

    def begin(self, key: str) -> bool:
        """A container is about to start, or its cgroup has appeared: its threads are set. False: some had to be, and what
        they were forking then may not be listed yet (``_set_all``)."""
        row = self._rows.get(key)
        return row is None or not self._treat(key, row)

    # ------------------------------------------------------------------ steps

    def _treat(self, key: str, row: _Row) -> int:
        path = self._cgroups.below(row.pod, key)
        if not path:
            row.threads = 0
            return 0
        setting = _Setting(self._kernel, row.wanted, row.known)
        if row.cls.is_of_first_thread:
            setting.set(_first(self._cgroups, self._cgroups.threads(path)))
        else:
            _set_all(setting, self._cgroups, path)
        row.is_settled = not setting.count
        row.threads, row.own, row.set = setting.threads, setting.own, row.set + setting.count
        row.problem = "" if setting.error is None else refusal(row.wanted.cpu.policy, setting.error)
        return setting.count

    def _beside(self, pod: str) -> Iterator[str]:
        """The cgroups in a pod's."""
        try:
            with os.scandir(f"{self._cgroups.base}{pod}") as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        yield from (f"{pod}/{name}" for name in names)

    def _parent_of(self, path: str) -> int:
        """The process that has forked the first of a cgroup's; 0 = there is none."""
        threads = self._cgroups.threads(path)
        for first in _first(self._cgroups, threads):
            found = read_process(self._cgroups.proc, first)
            if found is not None and found.parent not in threads:
                return found.parent
        return 0

    def status(self) -> dict[str, dict[str, Any]]:
        """A row for each container whose threads are set, by its key."""
        return {
            key: {
                "class": row.words,
                "threads": row.threads,
                "own": row.own,
                "set": row.set,
                "problem": row.problem,
            }
            for key, row in self._rows.items()
        }


def _of_threads(remembered: Mapping[str, str]) -> dict[str, str]:
    return {place: value for place, value in remembered.items() if place.startswith(THREADS)}


class _Setting:
    """The threads of one container being set, each once. ``error``: the first refusal; its kind is not tried again."""

    def __init__(self, kernel: ThreadAttributes, wanted: Attributes, known: Collection[Attributes]) -> None:
        self._kernel = kernel
        self._wanted = wanted
        self._known = known
        self._refused: set[str] = set()
        self._decided: dict[Attributes, Decision] = {}
        self.error: Optional[OSError] = None
        self.threads = self.own = self.count = 0

    def set(self, threads: Iterable[int]) -> bool:
        """Set those that are to be. True: there was nothing to do, and none had ended, which may have forked another."""
        is_right = True
        for thread in sorted(threads):
            try:
                seen = self._kernel.read(thread)
            except ProcessLookupError:
                is_right = False
                continue
            except OSError as error:
                self.error = error
                return True
            found = self._decided.get(seen)
            if found is None:
                found = self._decided[seen] = decide(seen, self._wanted, self._known)
            self.threads += 1
            self.own += found.is_own
            is_set = False
            if found.cpu is not None:
                is_set = self._try("cpu", partial(self._kernel.set_cpu, thread, found.cpu, seen.cpu))
            if found.io is not None:
                is_set = self._try("io", partial(self._kernel.set_io, thread, found.io)) or is_set
            self.count += is_set
            is_right = is_right and not is_set
        return is_right

    def _try(self, kind: str, act: Callable[[], None]) -> bool:
        if kind in self._refused:
            return False
        try:
            act()
        except ProcessLookupError:
            return False
        except OSError as error:
            self.error = self.error or error
            self._refused.add(kind)
            return False
        return True


def _set_all(setting: _Setting, cgroups: Cgroups, path: str) -> None:
    """Set the threads of a cgroup, and then those that have come meanwhile, until all that come are right already.

    A thread that is being forked has what its parent had before, and is not listed until its memory is copied: all is done
    only where a later call has found nothing to set.
    """
    done: frozenset[int] = frozenset()
    for _ in range(LOOKS):
        threads = cgroups.threads(path) - done
        if setting.set(threads):
            return
        done |= threads


def _first(cgroups: Cgroups, threads: Iterable[int]) -> tuple[int, ...]:
    """The oldest of some threads, which is the first of its process."""
    found = (
        (each.started_s, each.pid) for each in (read_process(cgroups.proc, one) for one in threads) if each
    )
    return tuple(pid for _, pid in sorted(found)[:1])


def put_back_threads(
    place: str, before: str, cgroups: Cgroups, kernel: Optional[ThreadAttributes] = None
) -> bool:
    """Have the threads of a place as they began, those that have what the place says; a container that is gone has none.

    False: some were set, and there may be more, which were being forked (``_set_all``): call it again, somewhat later.

    :raises OSError: the kernel refuses.
    """
    pod, key, words = threads_parts(place)
    path = cgroups.below(pod, key)
    try:
        began, cls = read_attributes(before), read_class(words)
    except ValueError:
        return True  # nothing was set
    if not path:
        return True
    setting = _Setting(kernel or Kernel(), began, (cls.over(began),))
    _set_all(setting, cgroups, path)
    if setting.error is not None:
        raise setting.error
    return not setting.count


def refusal(policy: str, error: OSError) -> str:
    """Why the kernel has not taken a class."""
    if error.errno == errno.EPERM and policy == DEADLINE:
        return (
            "the policy deadline is refused to threads that are confined to some of the CPUs, unless these are a domain of"
            " their own (cpuset.cpus.partition; on cgroup v1 cpuset.cpu_exclusive, and no sched_load_balance above it)"
        )
    if error.errno == errno.EBUSY and policy == DEADLINE:
        return "the CPUs have no bandwidth left for the policy deadline (kernel.sched_rt_runtime_us, and others' runtimes)"
    if error.errno == errno.EPERM and policy in REALTIME:
        return (
            f"the policy {policy} is refused: the container's cgroup has no time for it (cpu.rt_runtime_us on cgroup v1; on"
            " v2 a kernel with CONFIG_RT_GROUP_SCHED), or the daemon has no CAP_SYS_NICE"
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        return "it is refused: the daemon has no CAP_SYS_NICE"
    return error.strerror or str(error)


class Scheduling:
    """The subject. ``threads``: what carries it out; the writer and the starts of containers have the same."""

    name = SUBJECT

    def __init__(self, services: Services) -> None:
        self._services = services
        self.threads = ThreadScheduling(services.cgroups)
        self._notes: tuple[str, ...] = ()

    def settings(self, sight: Sight) -> Iterable[Setting]:
        section, by_type = _configured(sight.config)
        pods = {}
        for each in sight.containers:
            parent = "" if each.container is None else each.container.pod.cgroup_parent
            if parent:
                pods[each.key] = f"/{pod_cgroup(parent)}"
        self._notes = (*unknown_classes(sight.containers, section, by_type.values()), *self._refusals())
        return settings(sight.containers, pods, section, by_type)

    def words_for(self, record: ContainerRecord) -> str:
        """How a container's threads are to be scheduled that is about to be created; "" = nothing is said, or only told."""
        config = self._services.config
        if config[f"isolation.{SUBJECT}"] != ENFORCE or not self._services.node_state.enforcing:
            return ""
        found = settings(ContainerView().of({record.key: record}), {record.key: "/"}, *_configured(config))
        return found[0].value if found else ""

    def _refusals(self) -> Iterator[str]:
        """A sentence a class, of the last look."""
        found: dict[tuple[str, str], int] = {}
        for row in self.threads.status().values():
            if row["problem"]:
                found[row["class"], row["problem"]] = found.get((row["class"], row["problem"]), 0) + 1
        for (words, problem), number in sorted(found.items()):
            count = "1 container" if number == 1 else f"{number} containers"
            yield f"{count} cannot be scheduled as {words}: {problem}"

    def is_same(self, place: str, seen: str, value: str) -> bool:
        return seen == value

    def notes(self) -> Sequence[str]:
        return self._notes


def _configured(config: Config) -> tuple[SchedulingSection, Mapping[str, str]]:
    """The classes, and those of balloons by their types."""
    types = config["policy.balloons.BalloonTypes"]
    section = config["control.scheduling"] or SchedulingSection()
    return section, {each.type.name: each.type.scheduling_class for each in types}


def threads_of(subjects: Iterable[Subject]) -> Optional[ThreadScheduling]:
    """What sets threads, where one of the subjects is this one."""
    return next((each.threads for each in subjects if isinstance(each, Scheduling)), None)
