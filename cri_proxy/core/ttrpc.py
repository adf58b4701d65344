"""The wire of NRI: ttRPC messages of two logical connections on one stream. Bytes in, events and answers out.

The layers, outermost first: frames (8 bytes: connection id, length), the bytes of one connection as a stream of its
own, messages in it (10 bytes: length, stream id, kind, flags), and protobuf in those (cri_api/ttrpc.proto).
On connection 1 the host calls the plugin, on 2 the plugin the host; other connections are never opened.

Source: containerd/nri pkg/net/multiplex, containerd/ttrpc channel.go, server.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

from google.protobuf.message import DecodeError

from cri_api import ttrpc_pb2 as pb
from cri_proxy.core.protobuf_bytes import write_varint

#: Where the host calls the plugin, and the plugin the host.
PLUGIN_CONNECTION, RUNTIME_CONNECTION = 1, 2
REQUEST, RESPONSE, DATA = 1, 2, 3
#: ttRPC's messageLengthMax: what may follow the 10 bytes.
MAX_DATA_BYTES = 4 << 20
MESSAGE_HEAD_BYTES, FRAME_HEAD_BYTES = 10, 8
#: What a Go peer offers for the first read of a message: a frame that is larger is lost, and the peer hangs.
FIRST_FRAME_BYTES = 4096
MAX_FRAME_BYTES = MAX_DATA_BYTES + MESSAGE_HEAD_BYTES
_LAST_STREAM = (1 << 32) - 1
#: Of Request's field 3.
_PAYLOAD_TAG = b"\x1a"

# gRPC's codes, as far as they are said here.
CANCELED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED = 1, 2, 3, 4
RESOURCE_EXHAUSTED, UNIMPLEMENTED = 8, 12


class Garbage(Exception):
    """What was received cannot be followed; the connection is of no more use. The message says what it was."""


class TooLarge(Exception):
    """A message that must not be sent. ``size_bytes``: of its protobuf; nothing has been changed or sent."""

    code = RESOURCE_EXHAUSTED

    def __init__(self, size_bytes: int) -> None:
        super().__init__(_too_large(size_bytes))
        self.size_bytes = size_bytes


@dataclass(frozen=True)
class Call:
    """The peer calls. Answer with ``Wire.reply`` or ``Wire.fail``. ``timeout_s`` 0 = as long as it takes."""

    stream: int
    method: str
    payload: bytes
    timeout_s: float


@dataclass(frozen=True)
class Reply:
    """The peer has answered a call of ours. ``code`` 0 = with ``payload``, else with an error."""

    stream: int
    payload: bytes
    code: int = 0
    message: str = ""


Event = Union[Call, Reply]


class Message(NamedTuple):
    """One ttRPC message. ``data`` None: it was larger than allowed, ``size_bytes``, and is thrown away."""

    stream: int
    kind: int
    size_bytes: int
    data: Union[bytes, None]


class FrameReader:
    """Takes a trunk's bytes apart: (connection, piece of its stream). Holds no more than a frame's head."""

    def __init__(self) -> None:
        self._head = b""
        self._connection = 0
        self._left = 0

    def read(self, data: bytes) -> list[tuple[int, bytes]]:
        """The pieces in the next bytes, in order.

        :raises Garbage: a frame that is larger than any message.
        """
        pieces: list[tuple[int, bytes]] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at, self._left = at + len(piece), self._left - len(piece)
                pieces.append((self._connection, piece))
                continue
            taken = data[at : at + FRAME_HEAD_BYTES - len(self._head)]
            at, self._head = at + len(taken), self._head + taken
            if len(self._head) == FRAME_HEAD_BYTES:
                head, self._head = self._head, b""
                self._connection, self._left = (
                    int.from_bytes(head[:4], "big"),
                    int.from_bytes(head[4:], "big"),
                )
                if self._left > MAX_FRAME_BYTES:
                    raise Garbage(f"a frame of {self._left} bytes, at most {MAX_FRAME_BYTES} are allowed")
        return pieces


class MessageReader:
    """Takes the stream of one connection apart. Holds no more than one message of the allowed size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0

    def read(self, piece: bytes) -> list[Message]:
        """The messages that end in the next piece; of those that are too large: that begin in it.

        :raises Garbage: what is no ttRPC.
        """
        messages: list[Message] = []
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        self._buffer += piece[skipped:]
        while len(self._buffer) >= MESSAGE_HEAD_BYTES:
            size = int.from_bytes(self._buffer[:4], "big")
            stream, kind = int.from_bytes(self._buffer[4:8], "big"), self._buffer[8]
            if kind not in (REQUEST, RESPONSE, DATA):
                raise Garbage(f"a message of kind {kind}, expected {REQUEST}, {RESPONSE} or {DATA}")
            end = MESSAGE_HEAD_BYTES + size
            if size > MAX_DATA_BYTES:
                messages.append(Message(stream, kind, size, None))
                self._skip = max(0, end - len(self._buffer))
            elif len(self._buffer) < end:
                break
            else:
                messages.append(Message(stream, kind, size, bytes(self._buffer[MESSAGE_HEAD_BYTES:end])))
            del self._buffer[:end]
        return messages


class Wire:
    """One end of a trunk: serves ``service`` on one connection, calls ``peer_service`` on the other."""

    def __init__(self, serves: int, service: str, peer_service: str) -> None:
        self._service = service
        self._peer_service = peer_service
        self._serves = serves
        self._calls = RUNTIME_CONNECTION if serves == PLUGIN_CONNECTION else PLUGIN_CONNECTION
        self._frames = FrameReader()
        self._messages = {serves: MessageReader(), self._calls: MessageReader()}
        self._next = 1
        self._open: set[int] = set()
        self._last_served = 0

    def receive(self, data: bytes) -> tuple[list[Event], bytes]:
        """What the next bytes say, and the bytes to be sent at once: errors about what cannot be served.

        :raises Garbage: the connection is to be closed.
        """
        events: list[Event] = []
        answers: list[bytes] = []
        for connection, piece in self._frames.read(data):
            # A connection that nobody has opened is not listened to.
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
            # As the message would write it, which would copy megabytes twice.
            head += _PAYLOAD_TAG + write_varint(len(payload))
        stream = self._next
        if stream > _LAST_STREAM:
            raise Garbage("all stream ids of this connection have been used")
        out = _message(self._calls, stream, REQUEST, (head, payload, tail))
        self._next += 2
        self._open.add(stream)
        return stream, out

    def forget(self, stream: int) -> None:
        """Nobody waits for this reply any more: there is no message for that, it is ignored when it comes."""
        self._open.discard(stream)

    def reply(self, stream: int, payload: bytes) -> bytes:
        """The bytes that answer a call; an error in its place if the answer is too large."""
        try:
            return _message(
                self._serves, stream, RESPONSE, (pb.Response(payload=payload).SerializeToString(),)
            )
        except TooLarge as error:
            return self.fail(stream, error.code, str(error))

    def fail(self, stream: int, code: int, text: str) -> bytes:
        """The bytes that answer a call with an error."""
        # An error's text may quote what was too large; the peer gets the beginning.
        status = pb.Status(code=code, message=text[:4096])
        return _message(self._serves, stream, RESPONSE, (pb.Response(status=status).SerializeToString(),))

    def _take_request(self, message: Message, events: list[Event], answers: list[bytes]) -> None:
        stream = message.stream
        if message.kind != REQUEST:
            return  # NRI never streams, and nothing is called here that could be answered
        problem = self._stream_problem(stream)
        if problem:
            answers.append(self.fail(stream, INVALID_ARGUMENT, problem))
            return
        self._last_served = stream
        if message.data is None:
            answers.append(self.fail(stream, RESOURCE_EXHAUSTED, _too_large(message.size_bytes)))
            return
        try:
            request = pb.Request.FromString(message.data)
        except DecodeError:
            answers.append(self.fail(stream, INVALID_ARGUMENT, "the request is no protobuf message"))
            return
        if request.service != self._service:
            answers.append(self.fail(stream, UNIMPLEMENTED, f"service {request.service}"))
            return
        events.append(Call(stream, request.method, request.payload, max(0, request.timeout_nano) / 1e9))

    def _stream_problem(self, stream: int) -> str:
        if stream % 2 == 0:
            return "StreamID must be odd for client initiated streams"
        return "StreamID cannot be re-used and must increment" if stream <= self._last_served else ""

    def _take_response(self, message: Message, events: list[Event]) -> None:
        if message.kind != RESPONSE or message.stream not in self._open:
            return  # late, or never asked for
        self._open.discard(message.stream)
        if message.data is None:
            text = _too_large(message.size_bytes)
            events.append(Reply(message.stream, b"", RESOURCE_EXHAUSTED, text))
            return
        try:
            response = pb.Response.FromString(message.data)
        except DecodeError:
            raise Garbage("a response that is no protobuf message") from None
        status = response.status
        events.append(Reply(message.stream, response.payload, status.code, status.message))


def _message(connection: int, stream: int, kind: int, pieces: Sequence[bytes]) -> bytes:
    """A message in frames as Go peers can read them: what their first read offers room for, then all the rest."""
    size = sum(map(len, pieces))
    if size > MAX_DATA_BYTES:
        raise TooLarge(size)
    head = size.to_bytes(4, "big") + stream.to_bytes(4, "big") + bytes([kind, 0])
    first_bytes = min(size, FIRST_FRAME_BYTES - MESSAGE_HEAD_BYTES)
    out: list[Union[bytes, memoryview]] = [_frame_head(connection, len(head) + first_bytes), head]
    left = first_bytes
    for piece in pieces:
        if 0 <= left < len(piece):
            view = memoryview(piece)  # of megabytes, perhaps
            out += (view[:left], _frame_head(connection, size - first_bytes), view[left:])
        else:
            out.append(piece)
        left -= len(piece)
    return b"".join(out)


def _frame_head(connection: int, size_bytes: int) -> bytes:
    return connection.to_bytes(4, "big") + size_bytes.to_bytes(4, "big")


def _too_large(size_bytes: int) -> str:
    return f"message length {size_bytes} exceed maximum message size of {MAX_DATA_BYTES}"
