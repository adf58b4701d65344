"""A node's scheduler, simulated: threads of containers on the CPUs of their cpusets. The work is done by ``scheduler.c``.

Time goes in ticks of 10 ms. A container is offered whole ticks of work, each for a thread of its own; what a thread cannot
do in a tick, since it shares its CPU or is throttled at its quota, it goes on with in the next. A thread that wakes up
goes to its last CPU, or one near it, as the kernel's: idle ones of that L3 first, idle cores before them; it is queued where
none is idle, and an idle CPU of its set pulls it, from its own L3 at once and from others a tick later.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TICK_S = 0.01
TICKS_PER_S = 100
#: What ``scheduler.h`` has room for.
WORDS, MOST_THREADS, MOST_L3S = 4, 128, 64
#: How many ended shortages are read at a time.
_ROOM = 4096
_SOURCE = Path(__file__).parent / "scheduler.c"
_COMPILE_S = 120


@dataclass(frozen=True)
class CpuRow:
    """Where a CPU is: numbers of its L3 and NUMA node, from 0, and the other thread of its core (itself: it has none)."""

    l3: int
    node: int
    mate: int


@dataclass(frozen=True)
class Counters:
    """What a container has had since it began: CPU seconds, but for ``some_s`` and the counts (``scheduler.h``)."""

    offered_s: float
    used_s: float
    late_shrunk_s: float
    late_whole_s: float
    late_node_s: float
    late_lag_s: float
    waited_set_s: float
    waited_node_s: float
    waited_lag_s: float
    throttled_s: float
    some_s: float
    backlog_s: float
    spans: float
    spans_used: float
    neighbours: float
    crossings: float


#: The columns of ``counters``, as ``scheduler.h`` has them.
COLUMNS = tuple(name.removesuffix("_s") for name in Counters.__annotations__)


@dataclass(frozen=True)
class Shortage:
    """What was offered did not fit into a container's set, until it grew or that had passed; times in ticks."""

    container: int
    grown: bool
    since: int
    until: int


class _Cpus(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * WORDS)]


class _Shortage(ctypes.Structure):
    _fields_ = [
        ("container", ctypes.c_uint32),
        ("grown", ctypes.c_uint32),
        ("since", ctypes.c_uint64),
        ("until", ctypes.c_uint64),
    ]


def build_scheduler(folder: Path) -> Any:
    """Compile ``scheduler.c`` into a folder, and load it.

    :raises RuntimeError: gcc says no.
    """
    made = folder / "scheduler.so"
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(made), str(_SOURCE)]
    done = subprocess.run([*command, "-lm"], capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"gcc made no {made.name}: {done.stderr[-3000:]}")
    library = ctypes.CDLL(str(made))
    library.scheduler_of.restype = ctypes.c_void_p
    library.scheduler_counters.restype = ctypes.POINTER(ctypes.c_double)
    return library


def _cpus(numbers: Iterable[int]) -> _Cpus:
    words = [0] * WORDS
    for cpu in numbers:
        words[cpu // 64] |= 1 << (cpu % 64)
    return _Cpus((ctypes.c_uint64 * WORDS)(*words))


class Scheduler:
    """One node. ``containers``: how many there can be; they are numbers from 0, each of which begins and ends.

    ``wander``: the chance that a thread that wakes up is drawn to a CPU other than its last one, by what wakes it;
    ``sleep``: that a thread sleeps and wakes up within a tick.
    """

    def __init__(
        self,
        library: Any,
        cpus: Sequence[CpuRow],
        containers: int,
        wander: float = 0.1,
        sleep: float = 0.2,
        seed: int = 1,
    ) -> None:
        columns = [
            (ctypes.c_uint16 * len(cpus))(*numbers)
            for numbers in zip(*[(c.l3, c.node, c.mate) for c in cpus])
        ]
        self._library, self._containers = library, containers
        self._all = ctypes.c_void_p(
            library.scheduler_of(
                len(cpus),
                *columns,
                containers,
                ctypes.c_double(wander),
                ctypes.c_double(sleep),
                ctypes.c_uint64(seed),
            )
        )
        if not self._all:
            raise ValueError(
                f"the scheduler has no room for {len(cpus)} CPUs: at most {64 * WORDS} in {MOST_L3S} L3s"
            )
        self._fired = (ctypes.c_uint32 * containers)()
        self._ended = (_Shortage * _ROOM)()
        table = library.scheduler_counters(self._all)
        #: By container and column of ``COLUMNS``, in ticks of one CPU where ``Counters`` has seconds; changes as it runs.
        self.counters = np.ctypeslib.as_array(table, shape=(containers, len(COLUMNS)))
        #: Ticks that were run.
        self.now = 0

    def close(self) -> None:
        """Free its memory; it is not to be used any more."""
        self._library.scheduler_free(self._all)
        self.counters = np.zeros((0, len(COLUMNS)))

    def begin(
        self, container: int, cpus: Iterable[int], threads: int, quota: float = 0, weight: float = 1
    ) -> None:
        """``quota``: CPUs, 0 = none; ``weight``: its cpu.shares. Its set counts as the largest that it can have."""
        self._library.scheduler_begin(
            self._all, container, threads, ctypes.c_double(quota), ctypes.c_double(weight), _cpus(cpus)
        )

    def end(self, container: int) -> None:
        self._library.scheduler_end(self._all, container)

    def set(self, container: int, cpus: Iterable[int], is_whole: bool) -> None:
        """Its cpuset from now on; ``is_whole``: there is no larger one for it, so that nothing counts as a shortage."""
        self._library.scheduler_set(self._all, container, _cpus(cpus), is_whole)

    def trigger(self, container: int, part: float, window_s: float) -> None:
        """A PSI trigger: its threads wait, or are throttled, for this part of a window. 0: none."""
        ticks = round(window_s * TICKS_PER_S)
        self._library.scheduler_trigger(self._all, container, ctypes.c_double(part * ticks), ticks)

    def run(self, offered: np.ndarray, ahead: np.ndarray) -> tuple[int, list[int]]:
        """Run ticks, a row each: of ``offered`` (uint8) and ``ahead`` (float32), by container. It stops behind a tick in
        which triggers have fired.

        Returns how many ticks were run, and the containers whose triggers fired.
        """
        fired = ctypes.c_uint()
        done = self._library.scheduler_run(
            self._all,
            len(offered),
            offered.ctypes.data_as(ctypes.c_void_p),
            ahead.ctypes.data_as(ctypes.c_void_p),
            self._fired,
            ctypes.byref(fired),
        )
        self.now += done
        return done, list(self._fired[: fired.value])

    def of(self, container: int) -> Counters:
        """What one container has had."""
        row = dict(zip(Counters.__annotations__, self.counters[container].tolist()))
        return Counters(
            **{name: value * TICK_S if name.endswith("_s") else value for name, value in row.items()}
        )

    def shortages(self) -> list[Shortage]:
        """Those that have ended since the last call."""
        found: list[Shortage] = []
        while count := self._library.scheduler_shortages(self._all, self._ended, _ROOM):
            found += [Shortage(s.container, bool(s.grown), s.since, s.until) for s in self._ended[:count]]
        return found
