"""The layers of NRI's wire below the calls: frames of two logical connections on one stream, and messages in them.

Outermost are frames (8 bytes: connection id, length); the frames of one connection are a stream of messages (10 bytes:
length, stream id, kind, flags). Standard library only: a plugin that a runtime has launched needs them before anything
else is loaded.

Source: containerd/nri pkg/net/multiplex, containerd/ttrpc channel.go, server.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Union

#: Where the host calls the plugin, and the plugin the host.
PLUGIN_CONNECTION, RUNTIME_CONNECTION = 1, 2
REQUEST, RESPONSE, DATA = 1, 2, 3
#: ttRPC's messageLengthMax: the most after the 10 bytes.
MAX_DATA_BYTES = 4 << 20
MESSAGE_HEAD_BYTES, FRAME_HEAD_BYTES = 10, 8
#: A Go peer's buffer for the first read of a message: a larger frame is lost, and the peer hangs.
FIRST_FRAME_BYTES = 4096
MAX_FRAME_BYTES = MAX_DATA_BYTES + MESSAGE_HEAD_BYTES


class Garbage(Exception):
    """Received bytes that cannot be read; the connection is of no more use. The message describes them."""


class TooLarge(Exception):
    """A message too large to send. ``size_bytes``: of its protobuf; nothing was changed or sent."""

    code = 8  # RESOURCE_EXHAUSTED

    def __init__(self, size_bytes: int) -> None:
        super().__init__(too_large(size_bytes))
        self.size_bytes = size_bytes


class Message(NamedTuple):
    """One ttRPC message. ``data`` None: it was larger than allowed, ``size_bytes``, and is thrown away."""

    stream: int
    kind: int
    size_bytes: int
    data: Union[bytes, None]


class TrunkReader:
    """Splits a trunk's bytes: (connection, piece of its stream). Holds a frame's head at most."""

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
    """Splits the stream of one connection. Holds one message of the allowed size at most."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0

    def read(self, piece: bytes) -> list[Message]:
        """The messages that end in the next piece; and too large ones that begin in it.

        :raises Garbage: it is no ttRPC.
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


class Begun(NamedTuple):
    """Where the first reader of a connection stopped: its partial reads, and the stream ids used."""

    frames: TrunkReader
    messages: dict[int, MessageReader]
    last_served: int
    next_stream: int


def begin() -> Begun:
    """A trunk on which nothing was sent."""
    return Begun(
        TrunkReader(), {PLUGIN_CONNECTION: MessageReader(), RUNTIME_CONNECTION: MessageReader()}, 0, 1
    )


def write_message(connection: int, stream: int, kind: int, pieces: Sequence[bytes]) -> bytes:
    """A message in two frames for Go peers: as much as their first read takes, then the rest."""
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


def too_large(size_bytes: int) -> str:
    """ttRPC's error for a message of so many bytes."""
    return f"message length {size_bytes} exceed maximum message size of {MAX_DATA_BYTES}"
