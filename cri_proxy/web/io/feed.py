"""Asks the daemon's view socket once in an interval while a page is open, and sends pages what has changed.

All pages get the same bytes: a look costs the daemon the same however many of them there are, and nothing without any.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any, Optional, Protocol

from cri_api.control import ControlError, read_reply, write_request
from cri_api.waiting import wait_within
from cri_proxy.top.load import Times, loads, read_times
from cri_proxy.web.delta import delta
from cri_proxy.web.document import MOST_DECISIONS, Answers, Decisions, read_document

#: A daemon that is this late is said to be away, and asked again.
ANSWER_S = 5.0
#: A report of thousands of containers is one line.
MOST_REPLY = 64 << 20
MOST_EDGES = 1000
#: Answers that the history's last entries are fetched in, each of up to a megabyte.
MOST_PAGES = 8
REPORT_PARTS = ["version", "instance", "mode", "policy", "degraded", "warnings", "zones", "placements"]


class Away(Exception):
    """The daemon gave no answer. The message says why."""


class Page(Protocol):
    """A page that is open."""

    def send(self, event: bytes) -> None:
        """Send it an event; one that cannot follow is ended."""


class ViewSocket:
    """The daemon's view socket: one command a connection."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, command: str, **arguments: Any) -> Any:
        """The result of a command.

        :raises Away: there is no answer.
        :raises ControlError: the daemon's own sentence.
        """
        try:
            line = await wait_within(ANSWER_S, self._line(command, arguments))
        except asyncio.TimeoutError:
            raise Away(f"The daemon has not answered within {ANSWER_S:.0f} s.") from None
        except PermissionError:
            raise Away(
                f"No permission for {self._path}: this process is not in the group that control.view_group names, "
                "or the daemon has not been restarted since there is such a group."
            ) from None
        except (OSError, ValueError):
            raise Away(f"The daemon is not running: nothing serves {self._path}.") from None
        if not line.endswith(b"\n"):
            raise Away("The daemon has closed the connection before its answer.")
        return read_reply(line)

    async def _line(self, command: str, arguments: dict[str, Any]) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=MOST_REPLY)
        try:
            writer.write(write_request(command, arguments))
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()


class Feed:
    """What pages are sent. ``run`` for as long as the server is there."""

    def __init__(self, view: ViewSocket, interval_s: float = 1.0, stat: Path = Path("/proc/stat")) -> None:
        """``stat``: where CPUs' ticks are (proc(5))."""
        self._view, self._interval_s, self._stat = view, interval_s, stat
        self._pages: list[Page] = []
        self._is_wanted = asyncio.Event()
        self._document: Optional[dict[str, dict[str, Any]]] = None
        self._trouble = ""
        self._times: Times = {}
        self._decisions = Decisions()
        self._topology: tuple[object, dict[str, Any]] = (None, {})

    def open(self, page: Page) -> None:
        """From now on a page is sent what there is; first all of it, as soon as that is known."""
        self._pages.append(page)
        if self._document is not None:
            page.send(_event("state", {"at": time.time(), **self._document}))
        if self._trouble:
            page.send(_event("trouble", {"text": self._trouble}))
        self._is_wanted.set()

    def close(self, page: Page) -> None:
        self._pages.remove(page)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._pages:  # nothing is kept that would be old by the time it is shown
                self._document, self._trouble, self._times = None, "", {}
                self._is_wanted.clear()
                await self._is_wanted.wait()
            began_s = loop.time()
            await self._look()
            await asyncio.sleep(max(0.0, began_s + self._interval_s - loop.time()))

    async def _look(self) -> None:
        try:
            now = read_document(await self._answers())
        except (Away, ControlError) as error:
            self._tell_trouble(str(error))
            return
        except (KeyError, TypeError, ValueError) as error:
            self._tell_trouble(f"The daemon's answer is none that this version understands ({error!r}).")
            return
        before, self._document, self._trouble = self._document, now, ""
        if before is None:
            event = _event("state", {"at": time.time(), **now})
        else:
            # Also where nothing has changed: by it the page knows that what it shows is of now.
            event = _event("delta", {"at": time.time(), **delta(before, now)})
        for page in list(self._pages):
            page.send(event)

    def _tell_trouble(self, text: str) -> None:
        if text == self._trouble:
            return
        self._trouble = text
        for page in list(self._pages):
            page.send(_event("trouble", {"text": text}))

    async def _answers(self) -> Answers:
        report = await self._view.ask("report", parts=REPORT_PARTS)
        affinity, traffic_note = await self._part("affinity", most=MOST_EDGES)
        decisions_note = await self._ask_decisions()
        return Answers(
            report,
            affinity,
            self._decisions,
            await self._ask_topology(report),
            self._loads(),
            socket.gethostname(),
            (traffic_note, decisions_note),
        )

    async def _part(self, command: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        """An answer that a daemon may refuse while others are good: one of another version, or without a machine."""
        try:
            return await self._view.ask(command, **arguments), ""
        except ControlError as error:
            return {}, str(error)

    async def _ask_decisions(self) -> str:
        """Ask for what the history has that is not known yet; why there is nothing, or ""."""
        if self._decisions.newest:
            answer, note = await self._part("history", after=self._decisions.newest, most=MOST_DECISIONS)
            if not note:
                self._decisions = self._decisions.with_answer(answer)
            return note
        # All of it: the latest first, a page at a time.
        found = Decisions()
        before: Optional[int] = None
        for _ in range(MOST_PAGES):
            answer, note = await self._part("history", before=before, most=MOST_DECISIONS - len(found.rows))
            if note:
                return note
            found = found.with_answer({**answer, "newest": found.newest or answer["newest"]})
            before = answer["before"]
            if before is None or len(found.rows) >= MOST_DECISIONS:
                break
        self._decisions = found
        return ""

    async def _ask_topology(self, report: dict[str, Any]) -> dict[str, Any]:
        """Which CPUs are siblings; asked for again where the machine is another one."""
        sign = report["instance"], tuple((zone["name"], zone["cpus"]) for zone in report["zones"])
        if self._topology[0] != sign:
            self._topology = sign, (await self._part("topology"))[0]
        return self._topology[1]

    def _loads(self) -> dict[int, float]:
        try:
            now = read_times(self._stat.read_text())
        except OSError:
            return {}
        before, self._times = self._times, now
        return loads(before, now)


def _event(name: str, document: dict[str, Any]) -> bytes:
    """An event of a text/event-stream (HTML, 9.2); JSON has no line ends outside of texts, where they are escaped."""
    return f"event: {name}\ndata: {json.dumps(document, separators=(',', ':'))}\n\n".encode()
