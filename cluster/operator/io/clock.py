"""Time and chance, as the operator is given them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    #: Seconds that never go back, for durations.
    monotonic: Callable[[], float] = time.monotonic
    #: Seconds since 1970, for what is written into objects.
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    #: From 0 to 1.
    jitter: Callable[[], float] = random.random
