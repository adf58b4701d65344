"""gRPC's messages in the DATA of a stream: a byte that says whether it is compressed, four of length, the message.

(gRPC over HTTP/2, "Length-Prefixed-Message".) A message may begin and end anywhere in a DATA frame.
"""

from __future__ import annotations

import zlib
from typing import Optional

from cri_proxy.relay.http2.frames import Buffer
from cri_proxy.relay.inflated import MAX_INFLATED_BYTES, Inflated

PREFIX_BYTES = 5
#: What is held of one stream, and what is decompressed of one message: kubelet and containerd allow 16 MiB.
MAX_MESSAGE_BYTES = 16 << 20


def write_message(message: Buffer) -> bytes:
    """A message with its prefix, not compressed. That is allowed on any stream."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def read_message(prefixed: Buffer, encoding: bytes) -> Optional[bytes]:
    """The message of a prefixed one; None: compressed with something unknown, or broken, or too large.

    Too large it is also while others take the memory there is for such messages.
    """
    if prefixed[0] == 0:
        return bytes(prefixed[PREFIX_BYTES:])
    if prefixed[0] != 1 or encoding != b"gzip" or Inflated.total >= MAX_INFLATED_BYTES:
        return None
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        message = inflating.decompress(prefixed[PREFIX_BYTES:], MAX_MESSAGE_BYTES)
    except zlib.error:
        return None
    return Inflated(message) if inflating.eof else None


class Hold:
    """The request of an intercepted stream: all of it that has come and was not sent on."""

    def __init__(self, encoding: bytes, since_s: float) -> None:
        self.encoding = encoding
        self.since_s = since_s
        self.data = bytearray()
        #: What the first message has besides, if it was compressed.
        self.inflated_bytes = 0
        #: The client has sent the last of it.
        self.is_ended = False

    def add(self, payload: Buffer, is_end: bool) -> None:
        self.data += payload
        self.is_ended = is_end

    @property
    def wanted(self) -> int:
        """How many bytes the first message has, as far as is known, with its prefix."""
        if len(self.data) < PREFIX_BYTES:
            return PREFIX_BYTES
        return PREFIX_BYTES + int.from_bytes(self.data[1:PREFIX_BYTES], "big")

    @property
    def is_whole(self) -> bool:
        return len(self.data) >= self.wanted

    def first(self) -> Optional[bytes]:
        """The first message, which is whole; None: it cannot be read."""
        message = read_message(memoryview(self.data)[: self.wanted], self.encoding)
        self.inflated_bytes = len(message) if message is not None and self.data[0] else 0
        return message

    def release(self, delta: bytes) -> bytes:
        """All of it, ``delta`` appended to the first message. Without one: to the byte as it came."""
        if not delta:
            return bytes(self.data)
        message = self.first()
        assert message is not None
        return write_message(message + delta) + bytes(self.data[self.wanted :])


class ReplyHold:
    """The reply of an intercepted stream: messages as they become whole, and the rest that is kept back."""

    def __init__(self) -> None:
        self.encoding = b""
        #: What has come of a message that is not whole.
        self.data = bytearray()

    @property
    def wanted(self) -> int:
        """How many bytes the message at the front has, as far as is known, with its prefix."""
        if len(self.data) < PREFIX_BYTES:
            return PREFIX_BYTES
        return PREFIX_BYTES + int.from_bytes(self.data[1:PREFIX_BYTES], "big")

    @property
    def is_too_large(self) -> bool:
        """Whether the message at the front will not be held to its end."""
        return self.wanted > PREFIX_BYTES + MAX_MESSAGE_BYTES

    def add(self, payload: Buffer) -> list[bytes]:
        """The messages that end in the next piece, with their prefixes."""
        self.data += payload
        found: list[bytes] = []
        while len(self.data) >= (wanted := self.wanted):
            if len(self.data) == wanted:  # most of them, and the large ones: copied once
                found.append(bytes(self.data))
                self.data = bytearray()
                break
            found.append(bytes(self.data[:wanted]))
            del self.data[:wanted]
        return found

    def give_up(self) -> bytes:
        """What was kept back."""
        data = bytes(self.data)
        self.data.clear()
        return data

    def read(self, prefixed: bytes) -> Optional[bytes]:
        """A whole message without its prefix; None: it cannot be read."""
        return read_message(prefixed, self.encoding)
