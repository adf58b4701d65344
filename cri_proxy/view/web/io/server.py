"""The page's HTTP/1.1 server, by asyncio's streams. What it answers and what it refuses is in ``requests.py``.

The standard library's ``http.server`` has a thread for each connection, without a bound; no HTTP server is among what
is installed besides. Some files and two questions do not need more than this.

While a page is open the daemon's view socket is asked once in an interval (``Feed``), and pages are sent what has
changed. All pages get the same bytes: a look costs the daemon the same however many of them there are, and nothing
without any.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import resources
from typing import Any, Optional, Protocol, Union

from cri_api.control import ControlError
from cri_api.waiting import wait_within
from cri_proxy.view.io.daemon import Away, ViewSocket
from cri_proxy.view.snapshot import NodeSnapshot
from cri_proxy.view.web.document import MOST_DECISIONS, Decisions, delta, read_document
from cri_proxy.view.web.requests import (
    EVENTS,
    EXPLAIN,
    HEADERS,
    MOST_HEAD,
    Refused,
    Request,
    admit,
    read_request,
)

#: Answers that the history's last entries are fetched in, each of up to a megabyte.
MOST_ANSWERS = 8
#: Why there is no answer, by the view socket's causes.
AWAY = {
    "late": "The daemon has not answered within {seconds:.0f} s.",
    "refused": "No permission for {path}: this process is not in the group that control.view_group names, "
    "or the daemon has not been restarted since there is such a group.",
    "absent": "The daemon is not running: nothing serves {path}.",
    "closed": "The daemon has closed the connection before its answer.",
}
#: Pages that are open at once, and connections in all: a page has two or three.
MOST_PAGES, MOST_CONNECTIONS = 8, 48
#: What may wait to be sent to a page: some documents of a large node. A page that is further behind is closed, and
#: begins anew by itself.
MOST_WAITING = 8 << 20
#: How long a head may take to come, and how long a connection may be idle before it.
HEAD_S = 15.0
#: Names of containers are no longer (RFC 1123, three of them).
MOST_NAME = 800

#: The page's program, a module a subject.
MODULES = (
    "app",
    "chips",
    "container",
    "lines",
    "machine",
    "past",
    "state",
    "stream",
    "tables",
    "timeline",
    "words",
)
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.css": ("app.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in MODULES},
}
#: Gone, too slow, or cut off in a head.
_NO_REQUEST = (OSError, asyncio.TimeoutError, EOFError)


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
        #: When the document was looked at, as Unix time.
        self._at_s = 0.0
        self._decisions = Decisions()
        self._topology: tuple[object, dict[str, Any]] = (None, {})

    def open(self, page: Page) -> None:
        """From now on a page is sent what there is; first all of it, as soon as that is known."""
        self._pages.append(page)
        if self._document is not None:
            page.send(self._whole(self._at_s, self._document))
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
        before, self._document, self._trouble, self._at_s = self._document, now, "", time.time()
        if before is None:
            event = self._whole(self._at_s, now)
        else:
            # Also where nothing has changed: by it the page knows that what it shows is of now.
            event = _event("delta", {"at": self._at_s, **delta(before, now)})
        for page in list(self._pages):
            page.send(event)

    def _whole(self, at_s: float, document: dict[str, dict[str, Any]]) -> bytes:
        return _event("state", {"at": at_s, "interval": self._interval_s, **document})

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
        for _ in range(MOST_ANSWERS):
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


@dataclass(frozen=True)
class PageAnswer:
    """A whole answer."""

    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)


class OpenPage:
    """A page that is sent events until it goes, or cannot follow."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, event: bytes) -> None:
        transport = self._writer.transport
        if transport.get_write_buffer_size() > MOST_WAITING:
            transport.abort()
        elif not transport.is_closing():
            self._writer.write(event)


class PageServer:
    """Serves the page on one address."""

    def __init__(self, listener: socket.socket, token: str, view: ViewSocket, feed: Feed) -> None:
        self._listener, self._token, self._view, self._feed = listener, token, view, feed
        self._files = {path: (_read(name), kind) for path, (name, kind) in _FILES.items()}
        self._server: Optional[asyncio.AbstractServer] = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pages = 0

    async def start(self) -> None:
        if self._listener.family == socket.AF_UNIX:
            self._server = await asyncio.start_unix_server(
                self._connected, sock=self._listener, limit=MOST_HEAD
            )
        else:
            self._server = await asyncio.start_server(self._connected, sock=self._listener, limit=MOST_HEAD)

    @property
    def address(self) -> str:
        """As a browser on this machine opens it; of a unix socket, at the end of a tunnel to it."""
        if self._listener.family == socket.AF_UNIX:
            return "http://127.0.0.1:8895/"
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) > MOST_CONNECTIONS:
                writer.transport.abort()
                return
            while await self._answered(reader, writer):
                pass
        except _NO_REQUEST:
            pass
        except asyncio.CancelledError:
            pass  # we are stopping
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection may have another."""
        request: Union[Request, None] = None
        try:
            try:
                head = await wait_within(HEAD_S, reader.readuntil(b"\r\n\r\n"))
            except asyncio.LimitOverrunError:
                raise Refused(431, f"The head is longer than {MOST_HEAD} bytes.") from None
            request = read_request(head)
            admit(request, self._token)
            if request.path == EVENTS and not request.is_head:
                await self._stream(reader, writer)
                return False
            answer = await self._answer(request)
        except Refused as refused:
            answer = _refusal(refused, HEADERS)
        # What follows a request that was refused may be its body.
        keeps_open = request is not None and request.keeps_open and answer.status < 400
        await _send(writer, answer, request is not None and request.is_head, keeps_open)
        return keeps_open

    async def _answer(self, request: Request) -> PageAnswer:
        if request.path in self._files:
            return PageAnswer(200, *self._files[request.path])
        if request.path == "/favicon.ico":
            return PageAnswer(204)
        if request.path == EXPLAIN:
            return await self._explain(request.query.get("container", ""))
        if request.path == EVENTS:
            return PageAnswer(200, kind="text/event-stream")
        raise Refused(404, "There is nothing here.")

    async def _explain(self, container: str) -> PageAnswer:
        if not container or len(container) > MOST_NAME:
            raise Refused(400, "Say which container: ?container=ID.")
        try:
            document = await self._view.ask("explain", container=container)
        except ControlError as error:
            raise Refused(404, str(error)) from None
        except Away as error:
            raise Refused(503, str(error)) from None
        return PageAnswer(200, json.dumps(document, separators=(",", ":")).encode(), "application/json")

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._pages >= MOST_PAGES:
            raise Refused(503, f"{MOST_PAGES} pages are open already; close one.", {"Retry-After": "5"})
        headers = {**HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}
        writer.write(_head(200, headers))
        page = OpenPage(writer)
        self._pages += 1
        self._feed.open(page)
        try:
            # Nothing is expected of it but its end.
            with contextlib.suppress(OSError):
                while await reader.read(MOST_HEAD):
                    pass
        finally:
            self._feed.close(page)
            self._pages -= 1


def _read(name: str) -> bytes:
    return (resources.files("cri_proxy.view.web") / "static" / name).read_bytes()


def _refusal(refused: Refused, headers: Mapping[str, str]) -> PageAnswer:
    return PageAnswer(refused.status, f"{refused}\n".encode(), headers={**headers, **refused.headers})


async def _send(writer: asyncio.StreamWriter, answer: PageAnswer, is_head: bool, keeps_open: bool) -> None:
    headers = {
        **answer.headers,
        "Content-Type": answer.kind,
        "Content-Length": str(len(answer.body)),
        "Connection": "keep-alive" if keeps_open else "close",
    }
    writer.write(_head(answer.status, headers) + (b"" if is_head else answer.body))
    # A client that does not read what it has asked for is not waited for.
    await wait_within(HEAD_S, writer.drain())


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
