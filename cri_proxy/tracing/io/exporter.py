"""Sends spans to a collector from a thread of its own: a collector that is slow or away costs calls nothing.

What cannot be sent is dropped and counted; spans wait in memory, ``WAITING`` at most. OpenTelemetry's own SDK is not used:
it would take several megabytes on each node for what is one POST in JSON here.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Callable, Optional
from urllib.parse import urlsplit

from cri_api.supervisor import SupervisedThread, Supervisor
from cri_proxy.relay.interception import Interception
from cri_proxy.tracing.spans import Span, TracedInterception, sampled_caller, write_spans

#: Spans in memory, spans in one request, and how long the first of them waits for others.
WAITING, BATCH, GATHER_S = 4_096, 512, 1.0
TIMEOUT_S = 10.0
#: How often a collector that was not reached is asked whether it is back, where there are no spans for it, seconds.
ASK_AGAIN_S = 30.0


class Tracer:
    """``around`` gives calls their spans while there is an endpoint. ``dropped`` is told how many spans were lost, from
    the thread that sends; ``note`` gets why the collector is not reached, or "" once it is or is no longer wanted."""

    def __init__(
        self,
        version: str,
        dropped: Callable[[int], None] = lambda count: None,
        note: Callable[[str], None] = lambda why: None,
        supervisor: Optional[Supervisor] = None,
        ask_again_s: float = ASK_AGAIN_S,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._ask_again_s = ask_again_s
        self._resource = {
            "service.name": "cri-resource-manager",
            "service.version": version,
            "host.name": socket.gethostname(),
        }
        self._dropped = dropped
        self._note = note
        self._random = random.Random()
        self._sender: Optional[_Sender] = None

    def follow(self, endpoint: str) -> None:
        """Send to this URL from now on; "" = nowhere. What waits for another is sent there first."""
        if endpoint == (self._sender.endpoint if self._sender is not None else ""):
            return
        self.close(0.0)
        if endpoint:
            sender = _Sender(endpoint, self._resource, self._dropped, self._note, self._ask_again_s)
            sender.thread = self._supervisor.keep_thread("spans thread", sender.run, "spans")
            self._sender = sender

    def around(self, full_method: str, traceparent: str, inner: Interception) -> Interception:
        """The interception of a call; with a span, if its caller's is recorded."""
        sender = self._sender
        caller = sampled_caller(traceparent) if sender is not None else None
        if sender is None or caller is None:
            return inner
        span_id = f"{self._random.getrandbits(64) or 1:016x}"
        return TracedInterception(
            inner, Span(caller, span_id, full_method, time.time_ns()), time.time_ns, sender.add
        )

    def close(self, seconds: float) -> None:
        """End; what waits has this long to be sent."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.stop(seconds)


class _Sender:
    """One endpoint's queue and thread."""

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        dropped: Callable[[int], None],
        note: Callable[[str], None],
        ask_again_s: float,
    ) -> None:
        self.endpoint = endpoint
        self._resource = resource
        self._dropped = dropped
        self._note = note
        self._ask_again_s = ask_again_s
        self._why = ""
        self._spans: deque[Span] = deque()
        self._there_are = threading.Event()
        self._stopped = threading.Event()
        #: So that nothing is noted of an endpoint that is no longer the one.
        self._noting = threading.Lock()
        self.thread: Optional[SupervisedThread] = None

    def add(self, span: Span) -> None:
        """Called in the event loop."""
        if len(self._spans) >= WAITING:
            self._dropped(1)
            return
        self._spans.append(span)
        self._there_are.set()

    def stop(self, seconds: float) -> None:
        with self._noting:
            self._stopped.set()
        self._there_are.set()
        if self.thread is not None:
            self.thread.end()
            self.thread.join(seconds)
        self._note("")

    def run(self) -> None:
        """Send until it is stopped, in a thread."""
        while True:
            self._there_are.wait(self._ask_again_s if self._why else None)
            if self._spans:
                self._stopped.wait(GATHER_S)
            elif self._stopped.is_set():
                return
            self._there_are.clear()
            if not self._spans and self._why:
                self._send([])
            while self._spans:
                self._send([self._spans.popleft() for _ in range(min(BATCH, len(self._spans)))])
            if self._stopped.is_set():
                self._there_are.set()

    def _send(self, spans: list[Span]) -> None:
        import http.client  # a megabyte, with the mail formats it needs: only where spans are sent

        is_sent = False
        try:
            status = _post(self.endpoint, write_spans(spans, self._resource))
            is_sent = 200 <= status < 300
            why = "" if is_sent else f"{self.endpoint} answers with HTTP status {status}"
        except (
            OSError,
            UnicodeError,
            http.client.HTTPException,
        ) as error:  # of a name in no alphabet of the DNS, too
            why = f"spans cannot be sent to {self.endpoint}: {error}"
        finally:
            if spans and not is_sent:
                self._dropped(len(spans))
        self._why = why
        with self._noting:
            if not self._stopped.is_set():
                self._note(why)


def _post(endpoint: str, body: bytes) -> int:
    import http.client

    url = urlsplit(endpoint)
    assert url.hostname is not None
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname, url.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", url.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
