"""Reads the engine for the planner's question without holding up the loop: in slices, between which calls pass.

All slices must have read one state. When a call has changed it in between, they begin anew a little later.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Optional

from cri_proxy.affinity.build_problem import PlanningSnapshot, Slices
from cri_proxy.engine.engine import Engine

#: How often it begins anew, and how long after the change: in a rush of creates there are gaps.
TRIES, PAUSE_S = 20, 0.25


async def ask_in_slices(
    engine: Engine, begin: Callable[[], Slices[PlanningSnapshot]], pause_s: float = PAUSE_S
) -> Optional[PlanningSnapshot]:
    """The question (``question_slices`` of this engine) as things are at its end.

    None: the engine changes faster than it can be read.
    """
    for _ in range(TRIES):
        slices = begin()
        read = _state(engine)
        while _state(engine) == read:
            try:
                next(slices)
            except StopIteration as end:
                question: PlanningSnapshot = end.value
                return question
            await asyncio.sleep(0)
        await asyncio.sleep(pause_s)
    return None


def _state(engine: Engine) -> tuple[object, ...]:
    # Another node is another machine, or another configuration.
    return engine.version, engine.node
