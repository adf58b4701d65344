"""Time and chance, as the agent and the operator are given them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timezone


@dataclass(frozen=True)
class Clock:
    #: Seconds that never go back, for durations.
    monotonic: Callable[[], float] = time.monotonic
    #: Seconds since 1970.
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    #: From 0 to 1.
    random01: Callable[[], float] = random.random

    def stamp(self) -> str:
        """Now, as the API has it: RFC 3339 in whole seconds."""
        return datetime.fromtimestamp(self.wall(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
