"""The subject ``cpu``: reads what the kernel has of CPU time in pods' and containers' cgroups. All of it blocks.

Before a container or a pod gets a smaller quota, ``before_quota`` brings its burst down; the kernel refuses that quota
otherwise. It is called in the thread of the rounds, so that no round that has begun writes the larger one again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Callable, Optional

from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.cpu_time import (
    BURSTS,
    FILES,
    MEMORY_QOS_LEVEL,
    SUBJECT,
    CpuCgroup,
    CpuPod,
    concerns,
    cpu_settings,
    lowered,
    pod_quota,
)
from cri_proxy.isolation.io.originals import write_file
from cri_proxy.isolation.io.readings import Readings
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.model import FILE, IsolatedContainer, Setting
from cri_proxy.isolation.notes import some
from cri_proxy.node.cgroups import Cgroups, is_own, pod_of

#: How long a smaller quota that was announced is waited for, seconds; kubelet tries a refused resize again much later.
ANNOUNCED_S = 60.0


class CpuTime:
    """``clock``: monotonic seconds."""

    name = SUBJECT

    def __init__(self, cgroups: Cgroups, clock: Callable[[], float] = time.monotonic) -> None:
        self._cgroups = cgroups
        self._clock = clock
        self._notes: tuple[str, ...] = ()
        #: By the file of a burst: a smaller quota that is on its way, and until when it is waited for.
        self._announced: dict[str, tuple[int, float]] = {}
        self._readings = Readings[CpuCgroup](clock)
        #: By pod: its quota before its containers were resized, and theirs before and after.
        self._changes: dict[str, tuple[int, dict[str, tuple[int, int]]]] = {}
        #: The cgroups whose quotas are on their way: they are read each round.
        self._watched: set[str] = set()

    def settings(self, sight: Sight) -> Iterable[Setting]:
        """What should be there; see the pure module."""
        self._readings.forget(*self._watched)
        pods = list(self._pods(sight))
        found, notes = cpu_settings(pods, self._ceilings(pods))
        self._notes = some(notes)
        return found

    def is_same(self, place: str, seen: str, value: str) -> bool:
        return seen.split() == value.split()

    def notes(self) -> Sequence[str]:
        return self._notes

    # ------------------------------------------------------------------ a smaller quota

    def before_quota(self, path: str, quota_us: int, ours: Collection[str], pod: str = "") -> None:
        """Have a burst of ours allow a quota that is about to be written, and with a container's its pod's as well.

        ``path``: the cgroup of a container, and ``pod`` that of its pod; or a pod's, and ``pod`` "". ``ours``: the places
        that were written. ``quota_us`` below 1: none.
        """
        paths = _levels(path, pod)
        cgroups = [self._cgroup(each) for each in paths]
        self._watched |= {*paths, pod} - {""}
        if pod:
            of_pod = self._cgroup(pod)
            first_us, changes = self._changes.setdefault(pod, (of_pod.quota_us, {}))
            now_us = min((each.quota_us for each in cgroups if each.quota_us > 0), default=-1)
            changes[paths[0]] = changes.get(paths[0], (now_us, 0))[0], quota_us
            wanted_us = pod_quota(first_us, changes.values())
            if wanted_us < first_us:
                self._announce(of_pod, wanted_us, ours)
        else:
            self._changes.pop(path, None)
        for cgroup in cgroups:
            self._announce(cgroup, quota_us, ours)

    def _announce(self, cgroup: CpuCgroup, quota_us: int, ours: Collection[str]) -> None:
        file = _burst_file(cgroup)
        if not file:
            return
        self._announced.pop(file, None)
        if quota_us > 0 and (cgroup.quota_us <= 0 or quota_us < cgroup.quota_us):
            self._announced[file] = quota_us, self._clock() + ANNOUNCED_S
        # A burst of another program is left alone.
        burst_us = lowered(quota_us, _number(file)) if f"{FILE}{file}" in ours else None
        if burst_us is not None:
            write_file(file, f"{burst_us}\n")

    def _ceilings(self, pods: Iterable[CpuPod]) -> dict[str, int]:
        """The quotas that are still on their way, by the file of the burst."""
        cgroups = [
            each
            for pod in pods
            for each in (pod.cgroup, *(cgroup for _, cgroup in pod.containers), *pod.below.values())
        ]
        quotas = {_burst_file(each): each.quota_us for each in cgroups}
        now_s = self._clock()
        self._announced = {
            file: (quota_us, until_s)
            for file, (quota_us, until_s) in self._announced.items()
            if file in quotas and now_s < until_s and not 0 < quotas[file] <= quota_us
        }
        if not self._announced:
            self._watched.clear()
            self._changes.clear()
        return {file: quota_us for file, (quota_us, _) in self._announced.items()}

    # ------------------------------------------------------------------ what is there

    def _pods(self, sight: Sight) -> Iterable[CpuPod]:
        known = {each.key: each for each in sight.containers}
        by_pod: dict[str, list[IsolatedContainer]] = {}
        for each in sight.containers:
            if each.container is not None:
                by_pod.setdefault(each.container.pod.id, []).append(each)
        members: dict[str, list[tuple[str, str]]] = {}
        for key, path in sight.cgroups.items():
            if is_own(key, path):
                members.setdefault(pod_of(key, path), []).append((key, path))
        read = set[str]()
        for pod, there in members.items():
            running = {key: known[key] for key, _ in there if key in known}
            # One that is left alone is none of ours, and one that is about to start belongs to the pod already.
            ids = {each.container.pod.id for each in running.values() if each.container is not None}
            waiting = [each for pod_id in ids for each in by_pod[pod_id] if each.key not in sight.cgroups]
            if not concerns([*running.values(), *waiting]):
                continue
            containers: list[tuple[IsolatedContainer, CpuCgroup]] = []
            below: dict[str, CpuCgroup] = {}
            read.add(pod)
            for key, path in there:
                paths = _levels(path, pod)
                read.update(paths)
                found = [self._readings.of(each, known[key], self._cgroup) for each in paths if key in known]
                containers += [(known[key], found[0])] if found else []
                if len(found) > 1:
                    below[key] = found[1]
            containers += [(each, CpuCgroup()) for each in waiting]
            is_whole = len(running) == len(there)
            yield CpuPod(self._readings.of(pod, None, self._cgroup), tuple(containers), is_whole, below)
        self._readings.keep(read)

    def _cgroup(self, path: str) -> CpuCgroup:
        cpu, memory = self._cgroups.cpu_folder(path), self._cgroups.memory_folder(path)
        places = ((name, f"{memory if name == MEMORY_QOS_LEVEL else cpu}/{name}") for name in FILES)
        files = {name: file for name, file in places if os.path.exists(file)}
        return CpuCgroup(files, self._cgroups.quota_us(path))


def _levels(path: str, pod: str) -> list[str]:
    """A container's own cgroup, and ``path`` where that is a child of it (``Cgroups.of_container``); a pod's alone."""
    own = f"{pod}/{path[len(pod) + 1 :].partition('/')[0]}" if pod else path
    return list(dict.fromkeys((own, path)))


def _burst_file(cgroup: CpuCgroup) -> str:
    return next((cgroup.files[name] for name in BURSTS if name in cgroup.files), "")


def _number(file: str) -> int:
    """What a file has; 0 where it is gone."""
    text: Optional[str]
    try:
        text = read_text(file).strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
