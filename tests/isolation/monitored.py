"""What a kernel does with monitoring groups, as far as monitoring needs it: RMIDs, threads, values. In this process."""

from __future__ import annotations

import errno
import os

from cri_proxy import effects
from cri_proxy.isolation.monitoring import Source


def refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class MonitoredKernel:
    """A mounted resctrl with ``rmids`` RMIDs. Control groups take one each, the root's too.

    ``values``: what a monitoring group's files have, by group, name, domain and value; 0 where nothing is said.
    ``threads``: the group, and the monitoring group in it, of each thread that lives.
    """

    def __init__(self, rmids: int = 8, is_mounted: bool = True) -> None:
        self.rmids, self.is_mounted = rmids, is_mounted
        self.there: dict[str, set[str]] = {"": set()}
        self.threads: dict[int, tuple[str, str]] = {}
        self.values: dict[tuple[str, str, int, str], str] = {}
        #: Everything that was written, in order.
        self.written: list[str] = []
        self.reads: list[tuple[str, str, int, str]] = []

    # ------------------------------------------------------------------ as the rest of the daemon and the node do

    def make_group(self, group: str) -> None:
        self._take()
        self.there[group] = set()

    def remove_group(self, group: str) -> None:
        del self.there[group]
        self.threads = {thread: ("", "") if at[0] == group else at for thread, at in self.threads.items()}

    def move(self, thread: int, group: str) -> None:
        """Into a control group: it leaves its monitoring group."""
        self.threads[thread] = (group, "")

    def fork(self, parent: int, child: int) -> None:
        self.threads[child] = self.threads[parent]

    def make_foreign(self, group: str, name: str) -> None:
        self._take()
        self.there[group].add(name)

    # ------------------------------------------------------------------ what monitoring asks for

    def groups(self) -> tuple[str, ...]:
        return tuple(sorted(self.there)) if self.is_mounted else ()

    def monitors(self, group: str) -> tuple[str, ...]:
        return tuple(sorted(self._of(group)))

    def make_monitor(self, group: str, name: str) -> None:
        effects.before(effects.RESCTRL, f"mon_groups/{name}")
        self._of(group)
        self._take()
        self.there[group].add(name)
        self.written.append(f"mkdir {group}/{name}")

    def remove_monitor(self, group: str, name: str) -> None:
        effects.before(effects.RESCTRL, f"mon_groups/{name}")
        if name not in self._of(group):
            raise refusal(errno.ENOENT)
        self.there[group].discard(name)
        for thread, at in self.threads.items():
            if at == (group, name):
                self.threads[thread] = (group, "")
        self.written.append(f"rmdir {group}/{name}")

    def monitored(self, group: str, name: str) -> frozenset[int]:
        return frozenset(thread for thread, at in self.threads.items() if at == (group, name))

    def move_monitored(self, group: str, name: str, thread: int) -> None:
        if name not in self._of(group):
            raise refusal(errno.ENOENT)
        if thread not in self.threads:
            raise refusal(errno.ESRCH)
        if self.threads[thread][0] != group:
            raise refusal(errno.EINVAL)
        if self.threads[thread] != (group, name):
            self.threads[thread] = (group, name)
            self.written.append(f"{thread} > {group}/{name}")

    def read(self, source: Source, value: str) -> bytes:
        group, name, domain, _ = source
        if name and name not in self._of(group):
            raise refusal(errno.ENODEV)
        self.reads.append((group, name, domain, value))
        return f"{self.values.get((group, name, domain, value), '0')}\n".encode()

    def close(self) -> None:
        pass

    def _of(self, group: str) -> set[str]:
        if group not in self.there:
            raise refusal(errno.ENOENT)
        return self.there[group]

    def _take(self) -> None:
        if len(self.there) + sum(map(len, self.there.values())) >= self.rmids:
            raise refusal(errno.ENOSPC)
