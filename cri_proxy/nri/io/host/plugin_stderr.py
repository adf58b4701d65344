"""What a launched plugin writes to its standard error, as lines of our log: no more of it than a log can bear.

A plugin that cannot even start has no other way to say why. Under systemd the journal has it, with bounds of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Callable

#: What is kept of a line, and how many lines in so many seconds.
MOST_CHARACTERS = 500
MOST_LINES, PERIOD_S = 20, 10.0
_READ_BYTES = 1 << 14


class PluginStderr:
    """Of one run of one plugin. ``descriptor`` is closed by ``run``; ``last`` is the last line there was."""

    def __init__(
        self, descriptor: int, plugin: str, log: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.last = ""
        self._descriptor = descriptor
        self._plugin = plugin
        self._log = log
        self._clock = clock
        self._until_s = 0.0
        self._left = 0
        self._dropped = 0

    async def run(self) -> None:
        """Until its last writer is gone. What is too much is read all the same: the plugin must not wait for us."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._descriptor, "rb", 0)
        )
        try:
            begun = b""
            while data := await reader.read(_READ_BYTES):
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    self._take(line)
                # Of a line without an end no more is held than is shown.
                begun = begun[: 4 * MOST_CHARACTERS]
            self._take(begun)
        finally:
            transport.close()
            self._tell_dropped()

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()[:MOST_CHARACTERS]
        if not text:
            return
        self.last = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
        now_s = self._clock()
        if now_s >= self._until_s:
            self._tell_dropped()
            self._left, self._until_s = MOST_LINES, now_s + PERIOD_S
        if self._left:
            self._left -= 1
            self._log.info("an NRI plugin says", plugin=self._plugin, line=self.last)
        else:
            self._dropped += 1

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._log.warning(
                "an NRI plugin says too much", plugin=self._plugin, lines_left_out=self._dropped
            )
            self._dropped = 0
