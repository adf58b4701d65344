"""Monitoring groups in the kernel's tree: a folder each in ``mon_groups`` of the control group that its tasks are in.

Ours have a name that begins with ``PREFIX``; others are counted and left alone. A folder that is removed gives its RMID
back, and its tasks to the control group around it. A thread that is written into ``tasks`` has to be of that control
group, else EINVAL; threads that it begins later are in the group as well (Documentation/filesystems/resctrl.rst).

All of it blocks. Values are read from files that stay open, as many as ``MOST_FILES``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Callable, Optional, Protocol, TypeVar

from bpf.service.json_file import write_json
from cri_proxy import effects
from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.io.resctrl import change_in, machine_mount
from cri_proxy.isolation.model import NO_GROUPS, PREFIX, ROOT, is_ours
from cri_proxy.isolation.monitoring import Source

#: The file of the state directory that says that there may be groups of ours.
MARK = "monitoring.json"
#: What is more than these is opened for each read.
MOST_FILES = 3000
#: More than any value has.
_BYTES = 64
_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: In the place of a domain and a value: the file that threads are written to.
_TASKS = (-1, "tasks")

Result = TypeVar("Result")


class MonitoringKernel(Protocol):
    """What a kernel offers of it; ``group`` "" is the root. What fails raises OSError as the kernel does."""

    def groups(self) -> tuple[str, ...]: ...
    def monitors(self, group: str) -> tuple[str, ...]: ...
    def make_monitor(self, group: str, name: str) -> None: ...
    def remove_monitor(self, group: str, name: str) -> None: ...
    def monitored(self, group: str, name: str) -> frozenset[int]: ...
    def move_monitored(self, group: str, name: str, thread: int) -> None: ...
    def read(self, source: Source, value: str) -> bytes: ...
    def close(self) -> None: ...


class MonitoringGroups:
    """The groups below one mount (/sys/fs/resctrl)."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        #: Files that are open: by monitoring group, as only that one ends, then by domain and value, or as ``_TASKS``.
        self._files: dict[tuple[str, str], dict[tuple[int, str], int]] = {}
        self._open = 0

    def groups(self) -> tuple[str, ...]:
        """The control groups, others' as well; the root comes first. Empty: nothing is mounted, or nothing is monitored."""
        if not (self._mount / "mon_groups").is_dir():
            return ()
        names = sorted(name for name in os.listdir(self._mount) if name not in NO_GROUPS)
        return (ROOT, *(name for name in names if (self._mount / name / "mon_groups").is_dir()))

    def monitors(self, group: str) -> tuple[str, ...]:
        """The monitoring groups in a control group."""
        return tuple(sorted(os.listdir(self._mount / group / "mon_groups")))

    def make_monitor(self, group: str, name: str) -> None:
        """:raises OSError: ENOSPC: no RMID is left; ENOENT: there is no such control group."""
        effects.before(effects.RESCTRL, f"mon_groups/{name}")
        folder = self._folder(group, name)
        change_in(Path(folder).parent, lambda: os.mkdir(folder))

    def remove_monitor(self, group: str, name: str) -> None:
        effects.before(effects.RESCTRL, f"mon_groups/{name}")
        self._close((group, name))
        folder = self._folder(group, name)
        change_in(Path(folder).parent, lambda: os.rmdir(folder))

    def monitored(self, group: str, name: str) -> frozenset[int]:
        """The threads in a monitoring group; the kernel goes through all of the machine for them."""
        text = read_text(f"{self._folder(group, name)}/tasks")
        return frozenset(int(word) for word in text.split() if word.isdigit())

    def move_monitored(self, group: str, name: str, thread: int) -> None:
        """:raises OSError: ESRCH: the thread has ended; EINVAL: it is in another control group."""
        effects.before(effects.RESCTRL, "tasks")
        self._with_file((group, name), _TASKS, "tasks", lambda file: os.write(file, b"%d\n" % thread))

    def read(self, source: Source, value: str) -> bytes:
        """The text of a value's file.

        :raises OSError: it is not there: the group is gone, or nothing is monitored in that domain.
        """
        group, name, domain, _ = source
        return self._with_file(
            (group, name),
            (domain, value),
            f"mon_data/mon_L3_{domain:02d}/{value}",
            lambda file: os.pread(file, _BYTES, 0),
        )

    def close(self) -> None:
        """Close the open files."""
        for at in list(self._files):
            self._close(at)

    def _folder(self, group: str, name: str) -> str:
        folder = f"{self._mount}/{group}" if group else str(self._mount)
        return f"{folder}/mon_groups/{name}" if name else folder

    def _with_file(
        self, at: tuple[str, str], which: tuple[int, str], path: str, work: Callable[[int], Result]
    ) -> Result:
        """What ``work`` returns for a file of a group, which stays open where there are not too many."""
        files = self._files.setdefault(at, {})
        descriptor = files.get(which)
        if descriptor is None:
            flags = os.O_WRONLY if which == _TASKS else os.O_RDONLY
            descriptor = os.open(f"{self._folder(*at)}/{path}", flags | _FLAGS)
            if self._open >= MOST_FILES:
                try:
                    return work(descriptor)
                finally:
                    os.close(descriptor)
            files[which] = descriptor
            self._open += 1
        try:
            return work(descriptor)
        except OSError as error:
            if error.errno == errno.ENODEV:  # the group is gone; there may be another one of its name
                self._close(at)
            raise

    def _close(self, at: tuple[str, str]) -> None:
        for descriptor in self._files.pop(at, {}).values():
            os.close(descriptor)
            self._open -= 1


def remove_ours(kernel: MonitoringKernel) -> int:
    """Remove all monitoring groups of ours, which needs to know nothing but their names; returns how many there were.

    What cannot be removed is left: the next call finds it.
    """
    removed = 0
    for group, name in ours_in(kernel):
        with contextlib.suppress(OSError):
            kernel.remove_monitor(group, name)
            removed += 1
    return removed


def ours_in(kernel: MonitoringKernel) -> Iterable[tuple[str, str]]:
    """Our monitoring groups that are there now, with the control group that each is in."""
    for group in kernel.groups():
        try:
            names = kernel.monitors(group)
        except OSError:
            continue  # it has gone meanwhile
        yield from ((group, name) for name in names if is_ours(name))


# ---------------------------------------------------------------------- the way back


def is_marked(directory: Path) -> bool:
    """Whether groups of ours may be there, by the mark in the state directory."""
    return (directory / MARK).exists()


def mark(directory: Path) -> None:
    """Have it on disk that groups of ours may be there, before the first is made.

    :raises OSError: it cannot be had there: no group may be made.
    """
    if not is_marked(directory):
        effects.before(effects.STATE, MARK)
        write_json(str(directory / MARK), {"prefix": PREFIX})


def put_back(directory: Path, kernel: Optional[MonitoringKernel] = None) -> list[str]:
    """Remove all monitoring groups of ours, if there is a mark, and then that; a sentence for each that stays. Blocks.

    It needs nothing but the mark and the kernel. After a boot there are none.
    """
    if not is_marked(directory):
        return []
    control = kernel or MonitoringGroups(machine_mount())
    remove_ours(control)
    left = [f"{group or 'the root group'}: {name} is still there" for group, name in ours_in(control)]
    if not left:
        effects.before(effects.STATE, MARK)
        with contextlib.suppress(OSError):
            os.unlink(directory / MARK)
    return left
