"""Policy, nice value and I/O priority of one thread, read and set by system calls that Python's library has not.

All of it is a thread's own: sched_setattr(2), setpriority(2) and ioprio_set(2) with a thread's number reach that alone.
sched_setattr also where sched_setscheduler would do: systemd's RestrictRealtime= refuses the latter to whole services.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Callable

from cri_proxy import effects
from cri_proxy.isolation.scheduling import (
    FLAGS,
    IDLE,
    IO_CLASSES,
    NICE,
    POLICIES,
    Attributes,
    CpuAttributes,
    IoAttributes,
)
from policies.frozen import frozen


@frozen
class _Numbers:
    """Of system calls on one kind of processor (syscalls(2))."""

    sched_setattr: int
    sched_getattr: int
    ioprio_set: int
    ioprio_get: int


_GENERIC = _Numbers(274, 275, 30, 31)
_CALLS = {
    "x86_64": _Numbers(314, 315, 251, 252),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": _Numbers(355, 356, 273, 274),
    "s390x": _Numbers(345, 346, 282, 283),
}
#: struct sched_attr (include/uapi/linux/sched/types.h): size, policy, flags, nice, priority, runtime, deadline, period; and
#: as it is read, two clamps of utilisation behind it: kernels of 5.3 tell a shorter one of nothing (EFBIG).
_ATTR, _READ_BYTES = struct.Struct("=IIQiIQQQ"), 56
#: ioprio_set(2): what is meant is a thread, and where the class is in the number.
_WHO_PROCESS, _CLASS_SHIFT = 1, 13
_NS_PER_US = 1000
#: As many different attributes are kept as they were read.
_KEPT = 256
_POLICY_OF = {number: name for name, number in POLICIES.items()}
_IO_CLASS_OF = {number: name for name, number in IO_CLASSES.items()}


class Kernel:
    """The kernel's records of threads. ``machine``: as uname(2) has it. OSError: with its errno, ESRCH = it has ended."""

    def __init__(self, machine: str = os.uname().machine) -> None:
        self._numbers = _CALLS.get(machine)
        self._read: dict[tuple[bytes, int], Attributes] = {}
        self._call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall

    def read(self, thread: int) -> Attributes:
        """What a thread has; most have the same, which is one object then."""
        numbers, buffer = self._known(), ctypes.create_string_buffer(_READ_BYTES)
        self._checked(numbers.sched_getattr, thread, buffer, _READ_BYTES, 0)
        number = self._checked(numbers.ioprio_get, _WHO_PROCESS, thread)
        key = buffer.raw, number
        found = self._read.get(key)
        if found is None:
            if len(self._read) >= _KEPT:
                self._read.clear()
            found = self._read[key] = _attributes(buffer.raw, number)
        return found

    def set_cpu(self, thread: int, cpu: CpuAttributes, seen: CpuAttributes) -> None:
        """Give a thread other attributes of CPUs than those it was seen with."""
        is_same = (cpu.policy, cpu.flags) == (seen.policy, seen.flags)
        if not is_same or cpu.policy not in NICE:
            flags = sum(FLAGS[each] for each in cpu.flags)
            times = (each * _NS_PER_US for each in (cpu.runtime, cpu.deadline, cpu.period))
            policy = POLICIES[cpu.policy]
            attr = _ATTR.pack(_ATTR.size, policy, flags, cpu.nice, cpu.priority, *times)
            effects.before(effects.SYSTEM, f"scheduling of thread {thread}")
            self._checked(self._known().sched_setattr, thread, ctypes.create_string_buffer(attr), 0)
        # The policy idle keeps the nice value that a thread has; and of one that has its policy only that is written.
        is_other = cpu.policy in NICE and (cpu.nice != seen.nice or seen.policy not in NICE)
        if is_other and (is_same or cpu.policy == IDLE):
            effects.before(effects.SYSTEM, f"nice value of thread {thread}")
            os.setpriority(os.PRIO_PROCESS, thread, cpu.nice)

    def set_io(self, thread: int, io: IoAttributes) -> None:
        """Give a thread another I/O priority."""
        effects.before(effects.SYSTEM, f"I/O priority of thread {thread}")
        number = IO_CLASSES[io.cls] << _CLASS_SHIFT | io.level
        self._checked(self._known().ioprio_set, _WHO_PROCESS, thread, number)

    def _known(self) -> _Numbers:
        if self._numbers is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return self._numbers

    def _checked(self, number: int, *args: object) -> int:
        result = self._call(number, *args)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def _attributes(raw: bytes, number: int) -> Attributes:
    """Of struct sched_attr, and an I/O priority as a number."""
    _, policy, flags, nice, priority, runtime, deadline, period = _ATTR.unpack_from(raw)
    name = _POLICY_OF.get(policy, f"policy {policy}")
    is_deadline = policy == POLICIES["deadline"]
    cpu = CpuAttributes(
        name,
        nice if name in NICE else 0,
        priority,
        # Of other policies newer kernels tell the length of a slice there.
        runtime // _NS_PER_US if is_deadline else 0,
        deadline // _NS_PER_US if is_deadline else 0,
        period // _NS_PER_US if is_deadline else 0,
        frozenset(each for each, bit in FLAGS.items() if flags & bit),
    )
    cls = _IO_CLASS_OF.get(number >> _CLASS_SHIFT, "none")
    return Attributes(cpu, IoAttributes(cls, number & 7 if cls in ("rt", "be") else 0))
