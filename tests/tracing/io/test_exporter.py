"""The thread that sends spans: no span ends it, and what is said of the collector ends with its cause."""

from __future__ import annotations

import asyncio
import http.server
import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from cri_api.supervisor import Supervisor, Worker
from cri_proxy.relay.interception import CallEnd, Forward, Outcome
from cri_proxy.tracing.io.exporter import Tracer

#: Nothing that must come takes longer.
HANG_S = 30.0
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CREATE = "/runtime.v1.RuntimeService/CreateContainer"


async def got(queue_: queue.Queue[Any]) -> Any:
    return await asyncio.to_thread(queue_.get, True, HANG_S)


class Unwritable:
    def __str__(self) -> str:
        raise ValueError("it cannot be written")


class Call:
    """An interception whose log line has one field."""

    filter = None

    def __init__(self, value: object) -> None:
        self.fields = {"container": value}

    async def request(self, message: bytes) -> Outcome:
        return Forward(b"")

    async def replied(self, message: bytes) -> None: ...

    async def ended(self, end: CallEnd, code: int, details: str) -> None: ...


@contextmanager
def collector(port: int = 0) -> Iterator[tuple[int, queue.Queue[list[Any]]]]:
    """Its port, and the container of each span, request by request."""
    bodies: queue.Queue[list[Any]] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
            named = [{one["key"]: one["value"] for one in span["attributes"]} for span in spans]
            bodies.put([values["cri_resmgr.container"]["stringValue"] for values in named])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Site:
    """A tracer, and all that it says."""

    def __init__(self, ask_again_s: float = HANG_S) -> None:
        self.lost: queue.Queue[int] = queue.Queue()
        self.notes: queue.Queue[str] = queue.Queue()
        self.failures: queue.Queue[str] = queue.Queue()
        self.tracer = Tracer("1", self.lost.put, self.notes.put, Supervisor(self._tell), ask_again_s)

    def _tell(self, worker: Worker, error: Optional[BaseException]) -> None:
        if error is not None:
            self.failures.put(f"{worker.name}: {worker.problem}")

    async def call(self, value: object) -> None:
        traced = self.tracer.around(CREATE, CALLER, Call(value))
        await traced.request(b"")
        await traced.ended(CallEnd.OK, 0, "")


async def test_half_a_surrogate_pair_in_an_attribute_costs_no_span() -> None:
    site = Site()
    with collector() as (port, bodies):
        site.tracer.follow(f"http://127.0.0.1:{port}/v1/traces")
        await site.call("web-\ud800")
        assert await got(bodies) == ["web-?"]
        site.tracer.close(HANG_S)
    assert site.lost.empty() and site.failures.empty()


async def test_a_span_that_cannot_be_written_costs_itself_and_is_told_of() -> None:
    site = Site()
    with collector() as (port, bodies):
        site.tracer.follow(f"http://127.0.0.1:{port}/v1/traces")
        await site.call(Unwritable())
        assert await got(site.failures) == "spans thread: ValueError: it cannot be written"
        assert await got(site.lost) == 1
        await site.call("web")
        assert await got(bodies) == ["web"]
        site.tracer.close(HANG_S)


async def test_a_name_that_no_dns_has_is_a_collector_that_is_away() -> None:
    site = Site()
    site.tracer.follow(f"http://{'a' * 64}.example:4318/v1/traces")
    await site.call("web")
    assert (await got(site.notes)).startswith("spans cannot be sent to http://aaa")
    site.tracer.close(0.0)
    assert site.failures.empty()


async def test_what_is_said_of_a_collector_ends_when_it_is_no_longer_wanted() -> None:
    site = Site()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        site.tracer.follow(f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces")
        await site.call("web")
        assert "cannot be sent" in await got(site.notes)
    site.tracer.follow("")
    assert await got(site.notes) == ""


async def test_what_is_said_of_a_collector_ends_when_it_is_back_though_there_are_no_more_spans() -> None:
    site = Site(ask_again_s=0.05)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        site.tracer.follow(f"http://127.0.0.1:{port}/v1/traces")
        await site.call("web")
        assert "cannot be sent" in await got(site.notes)
    with collector(port) as (_, bodies):
        while await got(site.notes):
            pass
        assert await got(bodies) == []
        site.tracer.close(HANG_S)
