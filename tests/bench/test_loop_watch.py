"""The watch over the loop's steps tells which took long, and what they did; in both event loops."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bench.loop_watch import LONG_MS, LoopStep, Meter, read_steps, step_lines, watched


def spin(milliseconds: float, meter: Meter) -> None:
    """Take so much CPU time, and go on until that was seen."""
    end_s = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end_s or not any(meter.seen.values()):
        pass


async def busy(meter: Meter) -> None:
    """One long step between others, and another one in a callback."""
    for _ in range(50):
        await asyncio.sleep(0)
    spin(3 * LONG_MS, meter)
    await asyncio.sleep(0)
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0, lambda: (spin(2 * LONG_MS, meter), done.set()))
    await done.wait()


@pytest.mark.parametrize("loop_class", [asyncio.SelectorEventLoop, uvloop.Loop])
def test_long_steps_are_noted_with_what_ran(tmp_path: Path, loop_class: Any) -> None:
    meter = Meter(tmp_path / "steps")
    meter.start()
    loop = watched(loop_class, meter)()
    try:
        loop.run_until_complete(busy(meter))
    finally:
        loop.close()
        meter.close()
    steps = {step.what: step for step in read_steps(tmp_path / "steps") if step.cpu_ms >= LONG_MS}
    assert set(steps) == {"busy", "busy.<locals>.<lambda>"}
    assert steps["busy"].cpu_ms >= 3 * LONG_MS
    assert any(" spin" in line for stack in steps["busy"].stacks for line in stack)


def test_a_report_counts_the_long_ones_and_shows_their_stacks() -> None:
    steps = [
        LoopStep(30.0, 600.0, "round", [["a.py:1 f", "b.py:2 g"]]),
        LoopStep(12.0, 13.0, "call", [["c.py:3 h"]]),
    ]
    text = "\n".join(step_lines(steps))
    assert "1 of 20 ms of CPU time or more, 1 of 500 ms by the clock" in text
    assert "a.py:1 f > b.py:2 g" in text and "c.py:3" not in text
