"""Asks the daemon's view socket once in an interval while a page is open, and sends pages what has changed.

All pages get the same bytes: a look costs the daemon the same however many of them there are, and nothing without any.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any, Optional, Protocol

from cri_api.control import ControlError
from cri_proxy.view.io.daemon import Away, ViewSocket
from cri_proxy.view.snapshot import NodeSnapshot
from cri_proxy.view.web.document import MOST_DECISIONS, Decisions, delta, read_document

#: Answers that the history's last entries are fetched in, each of up to a megabyte.
MOST_PAGES = 8
#: Why there is no answer, by the view socket's causes.
AWAY = {
    "late": "The daemon has not answered within {seconds:.0f} s.",
    "refused": "No permission for {path}: this process is not in the group that control.view_group names, "
    "or the daemon has not been restarted since there is such a group.",
    "absent": "The daemon is not running: nothing serves {path}.",
    "closed": "The daemon has closed the connection before its answer.",
}


class Page(Protocol):
    """A page that is open."""

    def send(self, event: bytes) -> None:
        """Send it an event; one that cannot follow is ended."""


class Feed:
    """What pages are sent. ``run`` for as long as the server is there."""

    def __init__(self, view: ViewSocket, interval_s: float = 1.0) -> None:
        self._view, self._interval_s = view, interval_s
        self._pages: list[Page] = []
        self._is_wanted = asyncio.Event()
        self._document: Optional[dict[str, dict[str, Any]]] = None
        self._trouble = ""
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
                self._document, self._trouble = None, ""
                self._view.forget()
                self._is_wanted.clear()
                await self._is_wanted.wait()
            began_s = loop.time()
            await self._look()
            await asyncio.sleep(max(0.0, began_s + self._interval_s - loop.time()))

    async def _look(self) -> None:
        try:
            now = await self._read_document()
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

    async def _read_document(self) -> dict[str, dict[str, Any]]:
        snapshot = await self._view.look(with_moves=False)
        note = await self._ask_decisions()
        topology = await self._ask_topology(snapshot)
        return read_document(snapshot, self._decisions, topology, socket.gethostname(), note)

    async def _ask_decisions(self) -> str:
        """Ask for what the history has that is not known yet; why there is nothing, or ""."""
        if self._decisions.newest:
            answer, note = await self._view.ask_part(
                "history", after=self._decisions.newest, most=MOST_DECISIONS
            )
            if not note:
                self._decisions = self._decisions.with_answer(answer)
            return note
        # All of it: the latest first, a page at a time.
        found = Decisions()
        before: Optional[int] = None
        for _ in range(MOST_PAGES):
            answer, note = await self._view.ask_part(
                "history", before=before, most=MOST_DECISIONS - len(found.rows)
            )
            if note:
                return note
            found = found.with_answer({**answer, "newest": found.newest or answer["newest"]})
            before = answer["before"]
            if before is None or len(found.rows) >= MOST_DECISIONS:
                break
        self._decisions = found
        return ""

    async def _ask_topology(self, snapshot: NodeSnapshot) -> dict[str, Any]:
        """Which CPUs are siblings; asked for again where the machine is another one."""
        sign = (
            snapshot.instance,
            tuple((one.names, one.cpus) for place in snapshot.places for one in place.every),
        )
        if self._topology[0] != sign:
            self._topology = sign, (await self._view.ask_part("topology"))[0]
        return self._topology[1]


def _event(name: str, document: dict[str, Any]) -> bytes:
    """An event of a text/event-stream (HTML, 9.2); JSON has no line ends outside of texts, where they are escaped."""
    return f"event: {name}\ndata: {json.dumps(document, separators=(',', ':'))}\n\n".encode()
