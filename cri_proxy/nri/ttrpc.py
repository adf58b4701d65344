"""The wire of NRI: ttRPC messages of two logical connections on one stream. Bytes in, events and answers out.

The layers below are in ttrpc_frames.py; their messages are protobuf (cri_api/ttrpc.proto).
On connection 1 the host calls the plugin, on 2 the plugin the host; other connections are never opened.

Source: containerd/ttrpc server.go, client.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from google.protobuf.message import DecodeError

from cri_api import ttrpc_pb2 as pb
from cri_proxy.nri.ttrpc_frames import (
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    Begun,
    Garbage,
    Message,
    TooLarge,
    begin,
    too_large,
    write_message,
)
from cri_proxy.relay.status import Code
from cri_proxy.text.protobuf_bytes import write_varint

_LAST_STREAM = (1 << 32) - 1
#: Of Request's field 3.
_PAYLOAD_TAG = b"\x1a"


@dataclass(frozen=True)
class PeerCall:
    """A call of the peer. Answer with ``TtrpcWire.reply`` or ``TtrpcWire.fail``. ``timeout_s`` 0 = no limit."""

    stream: int
    method: str
    payload: bytes
    timeout_s: float


@dataclass(frozen=True)
class Reply:
    """The peer's answer to a call of ours. ``code`` 0 = ``payload``, else an error."""

    stream: int
    payload: bytes
    code: int = 0
    message: str = ""


Event = Union[PeerCall, Reply]


class TtrpcWire:
    """One end of a trunk: serves ``service`` on one connection, calls ``peer_service`` on the other.

    ``begun``: where another reader of this trunk has stopped; replies to its calls are ignored.
    """

    def __init__(self, serves: int, service: str, peer_service: str, begun: Optional[Begun] = None) -> None:
        self._service = service
        self._peer_service = peer_service
        self._serves = serves
        self._calls = RUNTIME_CONNECTION if serves == PLUGIN_CONNECTION else PLUGIN_CONNECTION
        self._open: set[int] = set()
        self._frames, self._messages, self._last_served, self._next = begun or begin()

    def receive(self, data: bytes) -> tuple[list[Event], bytes]:
        """The events in the next bytes, and bytes to send at once: errors for calls not served.

        :raises Garbage: the connection is to be closed.
        """
        events: list[Event] = []
        answers: list[bytes] = []
        for connection, piece in self._frames.read(data):
            # Bytes of a connection that neither side opened are ignored.
            if connection not in self._messages:
                continue
            for message in self._messages[connection].read(piece):
                if connection == self._serves:
                    self._take_request(message, events, answers)
                else:
                    self._take_response(message, events)
        return events, b"".join(answers)

    def call(self, method: str, payload: bytes, timeout_s: float) -> tuple[int, bytes]:
        """A request to the peer: the stream its reply will have, and the bytes to send.

        :raises TooLarge: the peer would not take it; split it.
        """
        timeout_ns = max(1, int(timeout_s * 1e9)) if timeout_s else 0
        head = pb.Request(service=self._peer_service, method=method).SerializeToString()
        tail = pb.Request(timeout_nano=timeout_ns).SerializeToString()
        if payload:
            # As protobuf would write it, which copies megabytes twice.
            head += _PAYLOAD_TAG + write_varint(len(payload))
        stream = self._next
        if stream > _LAST_STREAM:
            raise Garbage("all stream ids of this connection have been used")
        out = write_message(self._calls, stream, REQUEST, (head, payload, tail))
        self._next += 2
        self._open.add(stream)
        return stream, out

    def forget(self, stream: int) -> None:
        """No call waits for this reply any more: it will be ignored. ttRPC has no message for that."""
        self._open.discard(stream)

    def reply(self, stream: int, payload: bytes) -> bytes:
        """The bytes that answer a call; an error in its place if the answer is too large."""
        try:
            return write_message(
                self._serves, stream, RESPONSE, (pb.Response(payload=payload).SerializeToString(),)
            )
        except TooLarge as error:
            return self.fail(stream, error.code, str(error))

    def fail(self, stream: int, code: int, text: str) -> bytes:
        """The bytes that answer a call with an error."""
        # An error's text may quote a large message; the peer gets the beginning.
        status = pb.Status(code=code, message=text[:4096])
        return write_message(
            self._serves, stream, RESPONSE, (pb.Response(status=status).SerializeToString(),)
        )

    def _take_request(self, message: Message, events: list[Event], answers: list[bytes]) -> None:
        stream = message.stream
        if message.kind != REQUEST:
            return  # NRI never streams, and nothing is called here that could be answered
        problem = self._stream_problem(stream)
        if problem:
            answers.append(self.fail(stream, Code.INVALID_ARGUMENT, problem))
            return
        self._last_served = stream
        if message.data is None:
            answers.append(self.fail(stream, Code.RESOURCE_EXHAUSTED, too_large(message.size_bytes)))
            return
        try:
            request = pb.Request.FromString(message.data)
        except DecodeError:
            answers.append(self.fail(stream, Code.INVALID_ARGUMENT, "the request is no protobuf message"))
            return
        if request.service != self._service:
            answers.append(self.fail(stream, Code.UNIMPLEMENTED, f"service {request.service}"))
            return
        events.append(PeerCall(stream, request.method, request.payload, max(0, request.timeout_nano) / 1e9))

    def _stream_problem(self, stream: int) -> str:
        if stream % 2 == 0:
            return "StreamID must be odd for client initiated streams"
        return "StreamID cannot be re-used and must increment" if stream <= self._last_served else ""

    def _take_response(self, message: Message, events: list[Event]) -> None:
        if message.kind != RESPONSE or message.stream not in self._open:
            return  # late, or never asked for
        self._open.discard(message.stream)
        if message.data is None:
            text = too_large(message.size_bytes)
            events.append(Reply(message.stream, b"", Code.RESOURCE_EXHAUSTED, text))
            return
        try:
            response = pb.Response.FromString(message.data)
        except DecodeError:
            raise Garbage("a response that is no protobuf message") from None
        status = response.status
        events.append(Reply(message.stream, response.payload, status.code, status.message))
