"""Which containers have CPU time when all want it, and how much they may save for later: idle, weight, burst. Pure.

*Batch* has CPU time where others leave it. What is written is the *pod's* cgroup, where all containers of the pod are batch:

1. A BestEffort pod has ``cpu.idle`` 1. Its tasks give way to all others beside it at once, and the kernel counts a CPU that
   runs nothing else as idle when it looks for one for a task that wakes up (``sched_idle_cpu``).
2. Another pod has the least weight: 1 of ``cpu.weight``, 2 of ``cpu.shares``.
3. openEuler's ``cpu.qos_level`` and ``memory.qos_level`` are -1 for pod and containers. The kernel does not take that back.

Why so. While ``cpu.idle`` is 1 the kernel refuses each write of a weight (EINVAL). runc writes the weight of a container
with each update, also where only its cpuset changes, so a container's cgroup is never idle. Kubelet writes a pod's weight
with a resize of its requests. A BestEffort pod has none and can get none, as a resize keeps the QoS class; kubelet leaves
its cgroup alone once it is made. A write of a weight over ours is taken, so other pods have that. The cgroup of a QoS class
(kubepods/besteffort) is written by kubelet each minute: it is left alone, and has the least weight as it is. In a pod whose
containers are of several classes weights say how they share, and stay.

*Burst*: a protected container with a quota may save as much unused time as its quota, others what the annotation
``volcano.sh/quota-burst-time`` says, in microseconds, at most the quota. The pod's quota is the sum of its containers', so
the pod's cgroup has the sum of their bursts. The kernel refuses a quota below the burst (EINVAL): before a smaller quota is
written the burst goes down (``lowered``), and stays down until that quota is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Optional

from cri_proxy.cri.annotations.keys import QUOTA_BURST
from cri_proxy.isolation.model import BATCH, FILE, PROTECTED, IsolatedContainer, Setting
from cri_proxy.text.sources import quote
from policies.frozen import frozen
from policies.model import Qos

SUBJECT = "cpu"
IDLE, QOS_LEVEL, MEMORY_QOS_LEVEL = "cpu.idle", "cpu.qos_level", "memory.qos_level"
#: The files of weights and their least values; v2 and v1.
WEIGHTS = {"cpu.weight": "1", "cpu.shares": "2"}
#: The files of bursts; v2 and v1.
BURSTS = ("cpu.max.burst", "cpu.cfs_burst_us")
#: All that is written.
FILES = (IDLE, *WEIGHTS, *BURSTS, QOS_LEVEL, MEMORY_QOS_LEVEL)


@frozen
class CpuCgroup:
    """A cgroup. ``files``: those of ``FILES`` that are there, and where. ``quota_us``: -1 = no quota."""

    files: Mapping[str, str] = field(default_factory=dict)
    quota_us: int = -1


@frozen
class CpuPod:
    """A pod whose containers run. ``is_whole``: no container runs there but these.

    ``below``: by a container's key the child of its cgroup that its runtime limits as well (crun before 1.11, systemd).
    """

    cgroup: CpuCgroup
    containers: tuple[tuple[IsolatedContainer, CpuCgroup], ...]
    is_whole: bool = True
    below: Mapping[str, CpuCgroup] = field(default_factory=dict)


def concerns(containers: Sequence[IsolatedContainer]) -> bool:
    """Whether something may be written for a pod of these containers."""
    return all(each.cls == BATCH for each in containers) or any(
        each.cls == PROTECTED
        or (each.container is not None and QUOTA_BURST in each.container.pod.annotations)
        for each in containers
    )


def cpu_settings(pods: Iterable[CpuPod], ceilings: Mapping[str, int] = {}) -> tuple[list[Setting], list[str]]:
    """What should be there, and what cannot be had.

    ``ceilings``: by the file of a burst, a smaller quota that is on its way.
    """
    found: list[Setting] = []
    notes: list[str] = []
    for pod in pods:
        found += _batch(pod)
        found += _bursts(pod, ceilings, notes)
    return found, notes


def lowered(quota_us: int, burst_us: int) -> Optional[int]:
    """The burst that a quota allows, where what is there is more; None: it may stay. ``quota_us`` below 1: no quota."""
    return quota_us if 0 < quota_us < burst_us else None


def pod_quota(pod_us: int, changes: Iterable[tuple[int, int]]) -> int:
    """The quota that kubelet writes to a pod's cgroup after those of its containers; -1: none.

    ``changes``: of each container that is resized the quota of before and the new one; below 1 = none. Kubelet resizes
    containers first where the sum goes down (doPodResizeAction); what goes up is not counted, as it may come later.
    """
    if pod_us <= 0:
        return pod_us
    falls = (max(old_us - new_us, 0) for old_us, new_us in changes if old_us > 0 and new_us > 0)
    return max(pod_us - sum(falls), 1)


# ---------------------------------------------------------------------- batch


def _batch(pod: CpuPod) -> Iterable[Setting]:
    containers = [each for each, _ in pod.containers]
    if not containers or not pod.is_whole or any(each.cls != BATCH for each in containers):
        return
    keys = tuple(sorted(each.key for each in containers))
    why = f"all containers of the pod of {min(each.path for each in containers)} are batch"
    files = pod.cgroup.files
    weight = next((name for name in WEIGHTS if name in files), "")
    is_besteffort = all(
        each.container is not None and each.container.qos is Qos.BESTEFFORT for each in containers
    )
    if is_besteffort and IDLE in files:
        # The kernel forgets the weight of a cgroup that has been idle (sched_group_set_idle).
        beside = (f"{FILE}{files[weight]}",) if weight else ()
        yield Setting(SUBJECT, f"{FILE}{files[IDLE]}", "1", why, keys, beside=beside)
    elif weight:
        yield Setting(SUBJECT, f"{FILE}{files[weight]}", WEIGHTS[weight], why, keys, is_shared=True)
    for cgroup in (pod.cgroup, *(each for _, each in pod.containers)):
        for name in (QOS_LEVEL, MEMORY_QOS_LEVEL):
            if name in cgroup.files:
                yield Setting(SUBJECT, f"{FILE}{cgroup.files[name]}", "-1", why, keys)


# ---------------------------------------------------------------------- burst


def _bursts(pod: CpuPod, ceilings: Mapping[str, int], notes: list[str]) -> Iterable[Setting]:
    total, keys, whys = 0, [], []
    for each, cgroup in pod.containers:
        burst_us, why = _asked(each, notes)
        if not burst_us:
            continue
        limited = [one for one in (cgroup, pod.below.get(each.key)) if one is not None and one.quota_us > 0]
        if limited:
            quota_us = min(one.quota_us for one in limited)
            burst_us = min(burst_us, quota_us, _own_us(each) or burst_us)
            for one in limited:
                yield from _burst(one, burst_us, why, (each.key,), ceilings)
        total += min(burst_us, max(pod.cgroup.quota_us, 0))
        keys.append(each.key)
        whys.append(why)
    if total > 0:
        yield from _burst(pod.cgroup, min(total, pod.cgroup.quota_us), whys[0], tuple(sorted(keys)), ceilings)


def _burst(
    cgroup: CpuCgroup, burst_us: int, why: str, keys: Sequence[str], ceilings: Mapping[str, int]
) -> Iterable[Setting]:
    path = next((cgroup.files[name] for name in BURSTS if name in cgroup.files), "")
    if path:
        burst_us = min(burst_us, ceilings.get(path, burst_us))
        yield Setting(SUBJECT, f"{FILE}{path}", str(burst_us), why, tuple(keys), is_shared=True)


def _own_us(each: IsolatedContainer) -> int:
    """The quota that kubelet gave a container; what turbo has added to it is for now only. 0: not known."""
    resources = each.container.told if each.container is not None else None
    return (resources.milli_limit or 0) * resources.quota_period_us // 1000 if resources else 0


def _asked(each: IsolatedContainer, notes: list[str]) -> tuple[int, str]:
    """The burst that a container may have, before its quota is looked at, in microseconds; and what says so."""
    annotations = {} if each.container is None else each.container.pod.annotations
    text = annotations.get(QUOTA_BURST)
    if text is not None:
        if text.strip().isdecimal() and len(text.strip()) <= _DIGITS:
            return int(text), f"{each.path} has the annotation {QUOTA_BURST}"
        notes.append(
            f"{each.path}: the annotation {QUOTA_BURST} is {quote(text)}, expected microseconds of 0 or more"
        )
    return (_ALL_US, f"{each.path} is protected") if each.cls == PROTECTED else (0, "")


#: As much as the quota.
_ALL_US = 1 << 62
_DIGITS = 18
