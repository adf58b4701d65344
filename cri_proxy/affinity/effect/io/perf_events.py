"""perf_event_open(2): groups of counters of one cgroup (or of everything) on one CPU. Nothing is decided here.

A group is scheduled onto the hardware together, so that its counts belong to the same time; where counters are short the
kernel takes turns, and says for how long the group was counted (``time_running`` of ``time_enabled``).
The flags and structures are those of include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cri_proxy.affinity.effect.events import Event

#: Of the system calls' tables; a machine that is not here counts nothing.
_NUMBERS = {"x86_64": 298, "aarch64": 241}
_PID_CGROUP, _CLOEXEC = 1 << 2, 1 << 3
_ENABLED, _RUNNING, _GROUP = 1, 2, 8
#: perf_event_attr as it was first (PERF_ATTR_SIZE_VER0): type, size, config, period, sample_type, read_format, flags ...
_ATTRIBUTES = struct.Struct("IIQQQQQIIQ")
_HEAD = struct.Struct("QQQ")

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class CounterGroup:
    """Counters that are open: ``descriptors`` of one CPU, the leader first."""

    descriptors: tuple[int, ...]

    def read(self) -> tuple[float, ...]:
        """What each has counted since it was opened, scaled to the whole time where the kernel has taken turns.

        :raises OSError: it is closed.
        """
        data = os.read(self.descriptors[0], _HEAD.size + 8 * len(self.descriptors))
        if len(data) < _HEAD.size + 8 * len(self.descriptors):
            return (0.0,) * len(self.descriptors)  # a group that never got counters reads as nothing
        _, enabled, running = _HEAD.unpack_from(data)
        scale = enabled / running if running else 0.0
        counts = struct.unpack_from(f"{len(self.descriptors)}Q", data, _HEAD.size)
        return tuple(count * scale for count in counts)

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in reversed(self.descriptors):
            os.close(descriptor)
        self.descriptors = ()


def open_group(events: Sequence[Event], cpu: int, cgroup: int = -1) -> CounterGroup:
    """Count events on one CPU: of the cgroup whose directory is open as ``cgroup``, -1 = of all that runs there.

    :raises OSError: the kernel does not; ENOENT: it has no such event, EACCES or EPERM: it may not be asked, EBADF: the
        directory is none of the hierarchy that it counts by, ENODEV: the CPU is off.
    """
    opened: list[int] = []
    try:
        for event in events:
            opened.append(_open(event, cpu, cgroup, opened[0] if opened else -1))
    except OSError:
        for descriptor in reversed(opened):
            os.close(descriptor)
        raise
    return CounterGroup(tuple(opened))


def _open(event: Event, cpu: int, cgroup: int, leader: int) -> int:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(
            event.type, _ATTRIBUTES.size, event.config, 0, 0, _ENABLED | _RUNNING | _GROUP, 0, 0, 0, 0
        ),
        _ATTRIBUTES.size,
    )
    flags = _CLOEXEC | (_PID_CGROUP if cgroup >= 0 else 0)
    arguments = [ctypes.c_long(value) for value in (cgroup, cpu, leader, flags)]
    descriptor = int(_LIBC.syscall(ctypes.c_long(number), attributes, *arguments))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor
