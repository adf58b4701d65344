"""Has the kernel tell when tasks of a container wait for a CPU: PSI triggers (Documentation/accounting/psi.rst).

A trigger is ``cpu.pressure`` of a cgroup, opened for writing, with "some THRESHOLD WINDOW" in microseconds written into it:
the kernel reports a priority event when tasks have waited for that long within the window, at most once a window. A window
of 500 ms takes CAP_SYS_RESOURCE; without it kernels take none (before 6.5), or multiples of two seconds (EINVAL else), which
is too late here.

All triggers are in one epoll set, in which a thread waits. An event loop cannot: to poll a trigger takes its event away
(kernel/sched/psi.c, psi_trigger_poll), so a set that is watched by another set has nothing to tell any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from cri_api.supervisor import SupervisedThread, Supervisor
from cri_proxy.affinity.demand.estimate import TRIGGER_S

NOT_CAPABLE = "CAP_SYS_RESOURCE is missing"
NO_PSI = "this kernel tells no pressure by cgroup"
READ_ONLY = "cgroups are mounted read-only here"
#: What a node is short of for a moment: the next ``keep`` tries again.
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
#: What a kernel says that wants the capability: to the open, or to the window.
_NOT_ALLOWED = (errno.EPERM, errno.EACCES, errno.EINVAL)


class PressureTriggers:
    """The triggers of one daemon below one cgroup root. ``problem``: why there are none, once one was tried; "" = there are.

    ``keep`` may block: the kernel makes a thread of its own for each cgroup. It may run in a thread while another waits for
    what fires. Once it is not needed any more, ``close`` it.
    """

    def __init__(self, root: Path, window_s: float = TRIGGER_S) -> None:
        self._window_s = window_s
        is_v1 = (root / "cpuset").is_dir()
        # Of a hybrid host pressure is below ``unified``; openEuler's v1 has it, and triggers, in cpuacct.
        names = ("unified", "cpuacct", "cpu,cpuacct") if is_v1 else ("",)
        self._mounts = [root / name for name in names if (root / name).is_dir()]
        self._epoll = select.epoll()
        self._files: dict[str, int] = {}
        self._keys: dict[int, str] = {}
        #: Containers without a cgroup now, until ``keep`` closes their files.
        self._gone: set[str] = set()
        #: Containers without such a file: of a hybrid host not all have a cgroup below ``unified``.
        self._without: set[str] = set()
        self._waiting = 0.0
        self._thread: Optional[SupervisedThread] = None
        #: The thread ends when something is to be read of the first.
        self._ending: tuple[int, int] = (-1, -1)
        self.problem = ""

    @property
    def keys(self) -> frozenset[str]:
        """The containers that have one."""
        return frozenset(self._files) - self._gone

    def listen(self, tell: Callable[[list[str]], object], supervisor: Optional[Supervisor] = None) -> None:
        """Have ``tell`` called with the containers whose triggers have fired: in a thread, until ``close``.

        :raises OSError: there is no descriptor for it now.
        """
        self._ending = os.pipe()
        self._epoll.register(self._ending[0], select.EPOLLIN)
        supervisor = supervisor or Supervisor()
        self._thread = supervisor.keep_thread("pressure thread", partial(self._listen, tell), "pressure")

    def _listen(self, tell: Callable[[list[str]], object]) -> None:
        while True:
            events = self._epoll.poll()
            if any(descriptor == self._ending[0] for descriptor, _ in events):
                return
            if fired := self._fired(events):
                tell(fired)

    def lacks(self, keys: Collection[str], waiting: float) -> bool:
        """Whether there is something for ``keep`` to do."""
        if self.problem:
            return bool(self._files)
        return frozenset(keys) - self._without != self.keys or (
            bool(self._files) and waiting != self._waiting
        )

    def keep(self, paths: Mapping[str, str], waiting: float) -> None:
        """Have triggers for these containers (cgroup path by id), and for no others; ``waiting``: the part of the time."""
        is_other = waiting != self._waiting
        for key in list(self._files):
            if is_other or self.problem or key not in paths or key in self._gone:
                self._drop(key)
        self._waiting = waiting
        self._without &= paths.keys()
        for key, path in paths.items():
            if not self.problem and key not in self._files and key not in self._without:
                self._add(key, path)

    def _add(self, key: str, path: str) -> None:
        window_us = int(self._window_s * 1e6)
        # With the end of a line: of the machine's own files the kernel leaves out the last character (psi_write).
        text = f"some {max(1, int(self._waiting * window_us))} {window_us}\n".encode()
        for mount in self._mounts:
            folder = mount / path.lstrip("/")
            try:
                descriptor = os.open(folder / "cpu.pressure", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._note(error)
                return
            try:
                os.write(descriptor, text)
                self._epoll.register(descriptor, select.EPOLLPRI)
            except OSError as error:
                os.close(descriptor)
                if error.errno != errno.ENODEV:  # else the container is gone
                    self._note(error)
                return
            self._files[key], self._keys[descriptor] = descriptor, key
            return
        self._without.add(key)
        if not self._mounts or any((mount / path.lstrip("/")).is_dir() for mount in self._mounts):
            self.problem = NO_PSI

    def _note(self, error: OSError) -> None:
        if error.errno not in _SHORT:
            self.problem = _problem_of(error)

    def _drop(self, key: str) -> None:
        descriptor = self._files.pop(key)
        del self._keys[descriptor]
        self._gone.discard(key)
        os.close(descriptor)  # and so it is out of the epoll set

    def fired(self) -> list[str]:
        """The containers whose triggers have fired since the last call, where nothing ``listen``s."""
        return self._fired(self._epoll.poll(0))

    def _fired(self, found: list[tuple[int, int]]) -> list[str]:
        """A container without its cgroup has no trigger any more."""
        fired = []
        for descriptor, events in found:
            key = self._keys.get(descriptor)
            if key is None:
                continue
            if events & (select.EPOLLERR | select.EPOLLHUP):
                with contextlib.suppress(OSError):
                    self._epoll.unregister(descriptor)
                self._gone.add(key)
            else:
                fired.append(key)
        return fired

    def close(self) -> None:
        if self._thread is not None:
            self._thread.end()
            os.write(self._ending[1], b"!")
            self._thread.join()
            self._thread = None
            for descriptor in self._ending:
                os.close(descriptor)
        for key in list(self._files):
            self._drop(key)
        self._epoll.close()


def _problem_of(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return READ_ONLY
    return NOT_CAPABLE if error.errno in _NOT_ALLOWED else NO_PSI
