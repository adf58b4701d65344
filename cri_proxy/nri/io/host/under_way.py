"""Calls that make something which a plugin that comes now can learn of neither by being asked nor by a list, yet.

So the list that it is shown waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from cri_api.waiting import wait_within


class StepsUnderWay:
    """Counts them. What a call does between ``begun`` and ``over`` must not wait for plugins."""

    def __init__(self) -> None:
        self._calls: set[object] = set()
        self._ended = asyncio.Event()

    def begun(self, call: object) -> None:
        self._calls.add(call)

    def over(self, call: object) -> None:
        self._calls.discard(call)
        self._ended.set()

    @contextlib.contextmanager
    def during(self, call: object) -> Iterator[None]:
        self.begun(call)
        try:
            yield
        finally:
            self.over(call)

    async def settled(self, seconds: float) -> None:
        """Return when those under way now have ended; at the latest after some time."""
        deadline_s = asyncio.get_running_loop().time() + seconds
        waiting = set(self._calls)
        while waiting & self._calls:
            self._ended.clear()
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                await wait_within(max(left_s, 0.0), self._ended.wait())
            except asyncio.TimeoutError:
                return
