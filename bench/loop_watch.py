"""A daemon whose event loop is watched: ``python -m bench.loop_watch FILE run ...`` is ``cri-resmgr run ...``.

Each task step, callback and reader that the loop runs is one step. One that takes LONG_MS of CPU time of the loop's
thread, or STUCK_MS of the clock, is a line of FILE, with what a thread saw the loop's thread do meanwhile; so is one that
takes more CPU time than all before it. CPU time does not hang on what else the machine does. Lines are JSON.

Each callback is wrapped, in uvloop's loop as well as in asyncio's: that costs half a microsecond a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Callable, NamedTuple, Optional

LONG_MS, STUCK_MS = 20.0, 500.0
#: From one look at the loop's thread to the next, and how long a step lasts before it is looked at, seconds.
LOOK_S, AGE_S = 0.003, 0.008
#: Frames that are kept, from the outermost on; and different looks at one step.
DEPTH, LOOKS = 24, 3
#: Steps with so many outer frames of one name do the same.
OUTER = 12


class LoopStep(NamedTuple):
    """One step; times in milliseconds. ``stacks``: FILE:LINE FUNCTION, the innermost last, of each look."""

    cpu_ms: float
    wall_ms: float
    what: str
    stacks: Sequence[Sequence[str]] = ()


class Meter:
    """Measures steps in the loop's thread, and notes the long ones in a file from a thread of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._loop_thread = threading.get_ident()
        self._now: Optional[tuple[int, float]] = None  # number and beginning of the step that runs
        self._number = 0
        self._most_s = 0.0
        self._ended: deque[tuple[int, LoopStep]] = deque()
        #: By number of the steps that run or have just run: what the loop's thread was seen to do.
        self.seen: dict[int, list[list[str]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="loop-watch", daemon=True)

    def start(self) -> None:
        """Have steps looked at from now on."""
        self._thread.start()

    def close(self) -> None:
        """Write what is known."""
        self._stop.set()
        self._thread.join()

    def run(self, callback: Any, *args: Any) -> None:
        """One step of the loop."""
        while callback == self.run:  # one call of the loop's is made of another one
            callback, args = args[0], args[1:]
        self._number += 1
        cpu_s, begun_s = time.thread_time(), time.perf_counter()
        self._now = self._number, begun_s
        try:
            callback(*args)
        finally:
            self._now = None
            cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - begun_s
            if cpu_s > self._most_s or cpu_s * 1000 >= LONG_MS or wall_s * 1000 >= STUCK_MS:
                self._most_s = max(self._most_s, cpu_s)
                self._ended.append((self._number, LoopStep(cpu_s * 1000, wall_s * 1000, _name(callback))))

    def _look(self) -> None:
        while not self._stop.wait(LOOK_S):
            self._look_once()
            self._write()
        self._write()

    def _look_once(self) -> None:
        now = self._now
        if now is None or time.perf_counter() - now[1] < AGE_S:
            return
        frame = sys._current_frames().get(self._loop_thread)
        stack = _lines(frame)
        looks = self.seen.setdefault(now[0], [])
        if self._now == now and stack not in looks and len(looks) < LOOKS:
            looks.append(stack)

    def _write(self) -> None:
        if not self._ended:
            return
        with self._file.open("a") as file:
            while self._ended:
                number, step = self._ended.popleft()
                file.write(json.dumps(step._replace(stacks=self.seen.pop(number, []))) + "\n")
        self.seen.clear()


def _lines(frame: Optional[FrameType]) -> list[str]:
    found: list[str] = []
    while frame is not None and frame.f_code is not Meter.run.__code__:
        code = frame.f_code
        where = "/".join(Path(code.co_filename).parts[-3:])
        found.append(f"{where}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return found[::-1][:DEPTH]


def _name(callback: Callable[..., object]) -> str:
    """What a step is of: its task's coroutine, or the callback."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return getattr(owner.get_coro(), "__qualname__", "task")
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def watched(loop_class: Any, meter: Meter) -> Any:
    """An event loop like another one, all of whose steps are measured."""

    class WatchedLoop(loop_class):  # type: ignore[misc]
        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
            return super().call_soon(meter.run, callback, *args, context=context)

        def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
            return super().call_soon_threadsafe(meter.run, callback, *args, context=context)

        def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
            return super().call_later(delay, meter.run, callback, *args, context=context)

        def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
            return super().call_at(when, meter.run, callback, *args, context=context)

        def add_reader(self, fileno: Any, callback: Any, *args: Any) -> None:
            super().add_reader(fileno, meter.run, callback, *args)

        def add_writer(self, fileno: Any, callback: Any, *args: Any) -> None:
            super().add_writer(fileno, meter.run, callback, *args)

    return WatchedLoop


def read_steps(file: Path) -> list[LoopStep]:
    """The steps that were noted, those with most CPU time first."""
    if not file.exists():
        return []
    steps = [LoopStep(*json.loads(line)) for line in file.read_text().splitlines()]
    return sorted(steps, key=lambda step: -step.cpu_ms)


def step_lines(steps: Sequence[LoopStep], most: int = 5) -> list[str]:
    """What a report says of them: how many were long, and those that took most."""
    long = sum(step.cpu_ms >= LONG_MS for step in steps)
    stuck = sum(step.wall_ms >= STUCK_MS for step in steps)
    lines = [
        f"steps of the daemon's loop: {long} of {LONG_MS:.0f} ms of CPU time or more, {stuck} of {STUCK_MS:.0f} ms by the "
        "clock; the longest:"
    ]
    shown: Counter[object] = Counter()
    for step in steps:
        # Of those that did the same the longest is shown.
        kind = step.what, *(line.split()[1] for line in [*step.stacks, []][0][:OUTER])
        shown[kind] += 1
        if shown[kind] > 1 or len(shown) > most:
            continue
        lines.append(f"  {step.cpu_ms:.1f} ms of CPU time, {step.wall_ms:.1f} ms: {step.what}")
        is_long = step.cpu_ms >= LONG_MS or step.wall_ms >= STUCK_MS
        lines += [f"    {' > '.join(stack)}" for stack in step.stacks if is_long]
    return lines


def main() -> None:
    file = Path(sys.argv[1])
    meter = Meter(file)
    with contextlib.suppress(ImportError):
        from cri_proxy.light_imports import without_tls

        with without_tls():
            import uvloop

        uvloop.run = partial(uvloop.run, loop_factory=watched(uvloop.Loop, meter))
    # Without it, or where asyncio's own is asked for.
    policy = asyncio.DefaultEventLoopPolicy()
    policy._loop_factory = watched(asyncio.SelectorEventLoop, meter)
    asyncio.set_event_loop_policy(policy)
    sys.argv = ["cri-resmgr", *sys.argv[2:]]
    from cri_proxy.launcher import main as run

    # A step that does not let go of the interpreter is to be seen at work.
    sys.setswitchinterval(0.001)
    meter.start()
    with contextlib.closing(meter):
        run()


if __name__ == "__main__":
    main()
