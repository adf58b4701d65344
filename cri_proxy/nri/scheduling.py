"""NRI's words for scheduling and I/O priority, and those of isolation: what plugins ask for, and what ours asks for. Pure.

NRI passes them on to the OCI runtime, which counts the times of the policy deadline in nanoseconds as the kernel does.
"""

from __future__ import annotations

from typing import Any, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.isolation.scheduling import (
    DEADLINE,
    FLAGS,
    KEEP_PARAMS,
    KEEP_POLICY,
    NICE,
    OTHER,
    POLICIES,
    REALTIME,
    RESET_ON_FORK,
    SchedulingClass,
    write_class,
)

_NS_PER_US = 1000
_POLICY = {getattr(nri, f"SCHED_{name.upper()}"): name for name in POLICIES}
_FLAG = {
    getattr(nri, f"SCHED_FLAG_{name.upper().replace('-', '_')}"): name
    for name in (*FLAGS, KEEP_POLICY, KEEP_PARAMS)
}
_IO_CLASS = {
    nri.IOPRIO_CLASS_NONE: "none",
    nri.IOPRIO_CLASS_RT: "rt",
    nri.IOPRIO_CLASS_BE: "be",
    nri.IOPRIO_CLASS_IDLE: "idle",
}
_POLICY_NUMBER = {name: number for number, name in _POLICY.items()}
_IO_NUMBER = {name: number for number, name in _IO_CLASS.items()}
#: The most of a whole number that a class may say.
_LEVELS = range(8)


def words_of(
    scheduler: Optional[nri.LinuxScheduler], io_priority: Optional[nri.LinuxIOPriority]
) -> tuple[str, str]:
    """How a container's threads are to be scheduled, as ``write_class`` has it; or "" and why that cannot be had."""
    found: dict[str, Any] = {}
    if scheduler is not None:
        policy = _POLICY.get(scheduler.policy)
        if policy is None and scheduler.policy != nri.SCHED_NONE:
            return "", "this kernel has no such policy"
        found["policy"] = policy
        found["flags"] = frozenset(_FLAG[flag] for flag in scheduler.flags if flag in _FLAG)
        if policy in (None, *NICE):
            found["nice"] = scheduler.nice
        elif policy in REALTIME:
            found["priority"] = scheduler.priority
        elif policy == DEADLINE:
            times = {
                name: getattr(scheduler, name) // _NS_PER_US for name in ("runtime", "deadline", "period")
            }
            found.update({name: value for name, value in times.items() if value})
        fault = _fault_of(scheduler, policy)
        if fault:
            return "", fault
    if io_priority is not None:
        cls = _IO_CLASS.get(getattr(io_priority, "class"))
        if cls is None or io_priority.priority not in _LEVELS:
            return "", "there is no such class or level of I/O priority"
        found["io_class"], found["io_priority"] = cls, io_priority.priority
    return write_class(SchedulingClass(**found)), ""


def _fault_of(asked: nri.LinuxScheduler, policy: Optional[str]) -> str:
    if policy in REALTIME and asked.priority not in range(1, 100):
        return f"the policy {policy} takes a priority from 1 to 99"
    if policy in (None, *NICE) and asked.nice not in range(-20, 20):
        return "nice values are from -20 to 19"
    if policy == DEADLINE and not 0 < asked.runtime <= (asked.deadline or asked.period):
        return "the policy deadline takes a runtime, and a deadline that is not below it"
    return ""


def write_scheduling(
    words: SchedulingClass,
) -> tuple[Optional[nri.LinuxScheduler], Optional[nri.LinuxIOPriority]]:
    """A class in NRI's words, each part where no runtime can fail the start of a container for it; None = not.

    The runtime sets it inside the container, after it has entered its user namespace: what takes a right there (a nice value
    below 0, realtime and deadline, I/O class rt) fails the start where the pod has users of its own, or its cgroup no time
    for it. Threads are given that from outside, before they run, and a refusal is told.
    """
    scheduler, io_priority = None, None
    says_cpu = words.policy is not None or words.nice is not None
    is_sure = (words.policy or OTHER) in NICE and (words.nice or 0) >= 0 and words.flags <= {RESET_ON_FORK}
    if says_cpu and is_sure:
        flags = [nri.SCHED_FLAG_RESET_ON_FORK] if words.flags else []
        number = _POLICY_NUMBER[words.policy or OTHER]
        scheduler = nri.LinuxScheduler(policy=number, nice=words.nice or 0, flags=flags)
    cls = words.io_class or ("be" if words.io_priority is not None else "")
    if cls in ("be", "idle"):
        level = words.io_priority or 0 if cls == "be" else 0
        io_priority = nri.LinuxIOPriority(priority=level, **{"class": _IO_NUMBER[cls]})
    return scheduler, io_priority
