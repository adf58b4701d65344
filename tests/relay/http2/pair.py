"""A client and a runtime that are strict about HTTP/2 (the h2 library), with a relay between them; no sockets.

h2 raises at once when a window is exceeded or a header block does not decode: what the relay does to either is seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import h2.config
import h2.connection
import h2.events
import h2.settings

from cri_proxy.relay.http2.frames import Buffer
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.wire import (
    Closing,
    Ended,
    FailedOpen,
    FarewellRead,
    ReplyReceived,
    RequestReceived,
)
from tests.relay.http2.hand import CREATE, VERSION

Settings = dict[Any, int]
LONG = b"m" * 100_000


class Pair:
    """``calls`` numbers the intercepted calls, as the shell would; ``now_s`` is the clock."""

    def __init__(
        self,
        client_settings: Optional[Settings] = None,
        runtime_settings: Optional[Settings] = None,
        intercepted: Iterable[str] = (CREATE,),
        cut: int = 1 << 30,
    ) -> None:
        self._intercepted = frozenset(intercepted)
        self._cut = cut
        self.now_s = 0.0
        self.calls = 0
        self.relay = RelayedConnection(self._open)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.runtime = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.client_got: list[Any] = []
        self.runtime_got: list[Any] = []
        self.happened: list[Any] = []
        #: All bytes that went into the relay, and those that came out of it.
        self.from_client, self.to_runtime = bytearray(), bytearray()
        self.from_runtime, self.to_client = bytearray(), bytearray()
        self.client.local_settings = h2.settings.Settings(True, client_settings)
        self.runtime.local_settings = h2.settings.Settings(False, runtime_settings)
        self.client.initiate_connection()
        self.runtime.initiate_connection()
        self.pump()

    def _open(self, method: str) -> Optional[int]:
        if method not in self._intercepted:
            return None
        self.calls += 1
        return self.calls

    # ------------------------------------------------------------------ moving bytes

    def pump(self) -> None:
        """Move bytes until neither end nor the relay has any left to send."""
        while self._client_writes() | self._runtime_writes() | self.relay_writes():
            pass

    def _client_writes(self) -> bool:
        data = self.client.data_to_send()
        self.from_client += data
        for at in range(0, len(data), self._cut):
            self.relay.from_client(data[at : at + self._cut], self.now_s)
        return bool(data)

    def _runtime_writes(self) -> bool:
        data = self.runtime.data_to_send()
        self.from_runtime += data
        for at in range(0, len(data), self._cut):
            self.relay.from_runtime(data[at : at + self._cut], self.now_s)
        return bool(data)

    def relay_writes(self) -> bool:
        to_runtime, to_client = _taken(self.relay.to_runtime), _taken(self.relay.to_client)
        self.to_runtime += to_runtime
        self.to_client += to_client
        self.happened += self.relay.take_events()
        if to_runtime:
            self.runtime_got += self.runtime.receive_data(to_runtime)
        if to_client:
            self.client_got += self.client.receive_data(to_client)
        return bool(to_runtime or to_client)

    # ------------------------------------------------------------------ the client

    def call(self, method: str, message: Optional[bytes] = b"", end: bool = True, **headers: str) -> int:
        """Begin a call, with its whole request if the windows allow that; its stream."""
        stream = int(self.client.get_next_available_stream_id())
        fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost")]
        fields += [("te", "trailers"), ("content-type", "application/grpc")]
        fields += [(name.replace("_", "-"), value) for name, value in headers.items()]
        self.client.send_headers(stream, fields)
        if message is not None:
            self.send(stream, write_message(message), end)
        self.pump()
        return stream

    def send(self, stream: int, data: bytes, end: bool = False, pad: Optional[int] = None) -> bytes:
        """As much of ``data`` as the windows allow, pumping in between; what is left."""
        while True:
            room = self.client.local_flow_control_window(stream) - (0 if pad is None else pad + 1)
            size = min(len(data), room, self.client.max_outbound_frame_size - 300)
            if size <= 0 and data:
                return data
            self.client.send_data(stream, data[:size], end_stream=end and size == len(data), pad_length=pad)
            data = data[size:]
            self.pump()
            if not data:
                return b""

    # ------------------------------------------------------------------ the runtime

    def reply(self, stream: int, *messages: bytes, status: str = "0", end: bool = True) -> None:
        """The runtime's response; with no message and an end: trailers-only."""
        first = [(":status", "200"), ("content-type", "application/grpc")]
        last = [("grpc-status", status), ("grpc-message", f"said {status}")]
        if not messages and end:
            self.runtime.send_headers(stream, first + last, end_stream=True)
        else:
            self.runtime.send_headers(stream, first)
            for message in messages:
                self.runtime.send_data(stream, write_message(message))
            if end:
                self.runtime.send_headers(stream, last, end_stream=True)
        self.pump()

    def take(self, connection: Any, stream: int, size: int) -> None:
        """One side has worked on bytes it got, and gives credit for more."""
        connection.increment_flow_control_window(size)
        if stream in connection.streams and connection.streams[stream].open:
            connection.increment_flow_control_window(size, stream)
        self.pump()

    def answer_notes(self) -> None:
        """The shell notes whatever is shown, at once."""
        while self.relay.is_noting:
            self.relay.resume()
            self.pump()

    # ------------------------------------------------------------------ what was seen

    def asked(self) -> list[RequestReceived]:
        return [event for event in self.happened if isinstance(event, RequestReceived)]

    def observed(self) -> list[bytes]:
        return [m for event in self.happened if isinstance(event, ReplyReceived) for m in event.messages]

    def ended(self) -> list[Ended]:
        return [event for event in self.happened if isinstance(event, Ended)]

    def failed_open(self) -> list[str]:
        return [event.reason for event in self.happened if isinstance(event, FailedOpen)]

    def closing(self) -> list[Closing]:
        return [event for event in self.happened if isinstance(event, Closing)]

    def has_read_farewell(self) -> bool:
        return any(isinstance(event, FarewellRead) for event in self.happened)

    def received(self, stream: int, by: str = "runtime") -> bytes:
        """The DATA that one side has got on a stream."""
        got = self.runtime_got if by == "runtime" else self.client_got
        return b"".join(
            e.data for e in got if isinstance(e, h2.events.DataReceived) and e.stream_id == stream
        )

    def has_ended(self, stream: int, by: str = "runtime") -> bool:
        got = self.runtime_got if by == "runtime" else self.client_got
        return any(isinstance(e, h2.events.StreamEnded) and e.stream_id == stream for e in got)

    def was_reset(self, stream: int, by: str = "runtime") -> bool:
        got = self.runtime_got if by == "runtime" else self.client_got
        return any(isinstance(e, h2.events.StreamReset) and e.stream_id == stream for e in got)

    def headers(self, stream: int, by: str = "client") -> list[dict[str, str]]:
        """The header blocks that one side has got on a stream."""
        got = self.runtime_got if by == "runtime" else self.client_got
        kinds = (h2.events.RequestReceived, h2.events.ResponseReceived, h2.events.TrailersReceived)
        blocks = [e.headers for e in got if isinstance(e, kinds) and e.stream_id == stream]
        return [{k.decode(): v.decode() for k, v in block} for block in blocks]

    def books_are_right(self) -> bool:
        """Whether both senders believe to have what their receivers give, and what the relay says it has added."""
        wire = self.relay._wire
        return all(
            sender.outbound_flow_control_window
            == receiver._inbound_flow_control_window_manager.current_window_size + outlet.connection.surplus
            for sender, receiver, outlet in (
                (self.client, self.runtime, wire.requests),
                (self.runtime, self.client, wire.replies),
            )
        )

    def surplus(self) -> tuple[int, int]:
        """What either sender may send that its receiver has not allowed."""
        wire = self.relay._wire
        return wire.requests.connection.surplus, wire.replies.connection.surplus


def _taken(pieces: list[Buffer]) -> bytes:
    data = b"".join(pieces)
    pieces.clear()
    return data


def all_is_in_step(pair: Pair) -> bool:
    """Calls in both directions still decode, with headers that go into the tables and out of them again."""
    for number in range(3):
        stream = pair.call(VERSION, b"v", x_new=f"value {number}", grpc_timeout=f"{number}S")
        assert pair.headers(stream, "runtime")[0]["x-new"] == f"value {number}"
        pair.reply(stream, b"r", status=str(number))
        assert pair.headers(stream)[-1]["grpc-status"] == str(number)
    return pair.closing() == []


def created(pair: Pair, message: bytes = b"create") -> int:
    """The stream of an intercepted call that was forwarded."""
    stream = pair.call(CREATE, message)
    pair.relay.forward(stream, b"")
    pair.pump()
    return stream
