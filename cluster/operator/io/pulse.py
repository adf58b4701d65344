"""The looks at the agents' Leases: a list from the server's memory each minute, and no watch, which would tell of each
renewal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cluster.api.heartbeat import Heartbeat, read_heartbeat
from cluster.api.names import NAMESPACE
from cluster.api.reader import read
from cluster.kube.io.access import NoAccess
from cluster.kube.io.clock import Clock
from cluster.kube.pace import Backoff
from cluster.kube.requests import HOPELESS, LEASES, ApiError, Unreachable
from cluster.operator.heartbeats import Beat, looked

LOOK_S = 60.0


class Pulse:
    """``beats``: what is known of the agents, by node; empty where Leases cannot be listed. ``synced``: it was tried."""

    def __init__(self, client: Any, clock: Clock, changed: asyncio.Event, log: Callable[[str], None]) -> None:
        self.beats: Mapping[str, Beat] = {}
        self.synced = asyncio.Event()
        self._client, self._clock, self._changed, self._log = client, clock, changed, log
        self._looked_at = 0.0
        self._said = ""

    async def run(self) -> None:
        """Look, until cancelled."""
        backoff = Backoff(most_s=LOOK_S)
        while True:
            try:
                await self._look()
            except (ApiError, Unreachable, NoAccess) as error:
                if not isinstance(error, ApiError) or error.status not in HOPELESS:
                    # The watches say why.
                    await self._clock.sleep(backoff.after(error, self._clock.random01()))
                    continue
                # As with the rights of a version before.
                self._say(f"agents that are silent while nothing is asked of them are not noticed: {error}")
                self._take({})
            else:
                self._said = ""
            backoff.reset()
            self.synced.set()
            await self._clock.sleep(LOOK_S)

    def heard(self, node: str) -> None:
        """The agent of this node lives, whatever its Lease says."""
        known = self.beats[node]
        beat = Beat(known.heartbeat, self._clock.monotonic(), is_alive=True)
        self._take({**self.beats, node: beat})

    async def _look(self) -> None:
        found = await self._client.list(
            LEASES, namespace=NAMESPACE, keep=lambda lease: read(lease, read_heartbeat), cached=True
        )
        now = self._clock.monotonic()
        heartbeats = [each for each in found["items"] if isinstance(each, Heartbeat)]
        self._take(looked(self.beats, heartbeats, now, self._looked_at))
        self._looked_at = now

    def _take(self, beats: Mapping[str, Beat]) -> None:
        is_other = _words(beats) != _words(self.beats)
        self.beats = beats
        if is_other:
            self._changed.set()

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._log(line)


def _words(beats: Mapping[str, Beat]) -> dict[str, tuple[bool, bool]]:
    """Without what changes with each renewal."""
    return {name: (beat.is_alive, beat.is_silent) for name, beat in beats.items()}
