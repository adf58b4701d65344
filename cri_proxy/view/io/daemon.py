"""Asks the daemon's view socket for what a screen and a page are drawn from. One command a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cri_api.control import ControlError, read_reply, write_request
from cri_api.printable import printable_document
from cri_api.waiting import wait_within
from cri_proxy.view.snapshot import NodeSnapshot, Times, loads, read_snapshot, read_times

#: A daemon that is this late is said to be away, and asked again.
ANSWER_S = 5.0
#: A report of thousands of containers is one line.
MOST_REPLY = 64 << 20
#: As many edges and moves as a large screen has room for, and enough for the rate of each container.
MOST_EDGES, MOST_MOVES = 1000, 50
REPORT_PARTS = ["version", "instance", "mode", "policy", "degraded", "warnings", "old", "zones", "placements"]


class Away(Exception):
    """The daemon gave no answer. The message says why."""


class ViewSocket:
    """The daemon's view socket, and how busy this machine is."""

    def __init__(self, path: Path, away: Mapping[str, str], stat: Path = Path("/proc/stat")) -> None:
        """``away``: sentences for "late", "refused", "absent" and "closed"; ``stat``: where CPUs' ticks are."""
        self._path, self._away, self._stat = path, away, stat
        self._times: Times = {}
        self._load: dict[int, float] = {}

    async def look(self, *, with_moves: bool) -> NodeSnapshot:
        """The node as it is now. Loads are those since the look before; of the first one none is known. A CPU whose
        ticks have not moved since (one without a tick of its own has few) has that of before.

        :raises Away, ControlError: there is no answer, or a refusal.
        :raises KeyError, TypeError, ValueError: an answer is none that this version understands.
        """
        report = await self.ask("report", parts=REPORT_PARTS)
        affinity, traffic_note = await self.ask_part("affinity", most=MOST_EDGES)
        moves, moves_note = await self.ask_part("moves", most=MOST_MOVES) if with_moves else ({}, "")
        return read_snapshot(report, affinity, moves, self._loads(), (traffic_note, moves_note))

    def forget(self) -> None:
        """The next look is the first one."""
        self._times, self._load = {}, {}

    async def ask_part(self, command: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        """An answer that a daemon may refuse while others are good: one of another version, or without a machine.

        Returns the answer and "", or nothing and the daemon's sentence.
        """
        try:
            return await self.ask(command, **arguments), ""
        except ControlError as error:
            return {}, str(error)

    async def ask(self, command: str, **arguments: Any) -> Any:
        """The result of a command.

        :raises Away: there is no answer.
        :raises ControlError: the daemon's own sentence.
        """
        try:
            line = await wait_within(ANSWER_S, self._line(command, arguments))
        except asyncio.TimeoutError:
            raise self._is_away("late") from None
        except PermissionError:
            raise self._is_away("refused") from None
        except (OSError, ValueError):
            raise self._is_away("absent") from None
        if not line.endswith(b"\n"):
            raise self._is_away("closed")
        return printable_document(read_reply(line))

    def _is_away(self, cause: str) -> Away:
        return Away(self._away[cause].format(path=self._path, seconds=ANSWER_S))

    async def _line(self, command: str, arguments: dict[str, Any]) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=MOST_REPLY)
        try:
            writer.write(write_request(command, arguments))
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()

    def _loads(self) -> dict[int, float]:
        try:
            now = read_times(self._stat.read_text())
        except OSError:
            return {}
        before, self._times = self._times, now
        known = {**self._load, **loads(before, now)}
        self._load = {cpu: load for cpu, load in known.items() if cpu in now}
        return self._load
