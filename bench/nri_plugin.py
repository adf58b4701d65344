"""An NRI plugin that reads nothing of what it is told, as a process of its own: what is measured is the host.

    python -m bench.nri_plugin SOCKET NN-NAME           answers every call at once, until its connection ends
    python -m bench.nri_plugin SOCKET NN-NAME COUNT     learns of all pods and containers, so many times

The standard library only, and a blocking socket: a plugin in Go is about as fast. Each time it has learnt it writes a
line: {"learnt_ms", "sent_ms", "bytes"}, from its connection to the last byte, from the first byte to the last, and how
many. Learning once more begins with a new connection.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time

#: NRI's two connections on one socket: the host calls on the first, we call on the second.
PLUGIN, RUNTIME = 1, 2
_REQUEST, _RESPONSE = 1, 2
_HEAD = struct.Struct(">II")
_EVERYTHING = 0x3FFF


def message(connection: int, stream: int, kind: int, body: bytes) -> bytes:
    """One ttRPC message in one frame: none of ours is long."""
    content = _HEAD.pack(len(body), stream) + bytes([kind, 0]) + body
    return _HEAD.pack(connection, len(content)) + content


def text(number: int, value: bytes) -> bytes:
    """A protobuf field of at most 127 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def registration(index: str, name: str) -> bytes:
    """The call by which a plugin says its name."""
    told = text(1, name.encode()) + text(2, index.encode())
    body = text(1, b"nri.pkg.api.v1alpha1.Runtime") + text(2, b"RegisterPlugin") + text(3, told)
    return message(RUNTIME, 1, _REQUEST, body)


def configured() -> bytes:
    """What Configure is answered with: ConfigureResponse's field 2, the events."""
    mask = bytes([2 << 3, _EVERYTHING & 0x7F | 0x80, _EVERYTHING >> 7])
    return text(2, mask)


class Connection:
    """A plugin's end, registered."""

    def __init__(self, path: str, title: str) -> None:
        self.begun = time.perf_counter()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        index, _, name = title.partition("-")
        self._socket.sendall(registration(index, name))
        #: When the first and the last byte of the last call came.
        self.first = self.last = 0.0

    def call(self) -> bytes:
        """The next call of the host, answered; b"" when the connection has ended."""
        body, stream = bytearray(), 0
        size = -1
        while len(body) != size:
            head = self._exactly(_HEAD.size)
            if not head:
                return b""
            connection, length = _HEAD.unpack(head)
            if size < 0:
                self.first = time.perf_counter()
            frame = self._exactly(length)
            if connection != PLUGIN:
                continue  # the answer to our registration
            if size < 0:
                size, stream = _HEAD.unpack(frame[: _HEAD.size])
                frame = frame[_HEAD.size + 2 :]
            body += frame
        self.last = time.perf_counter()
        answer = configured() if b"Configure" in body[:64] else b""
        self._socket.sendall(message(PLUGIN, stream, _RESPONSE, answer))
        return bytes(body)

    def _exactly(self, size: int) -> bytes:
        found = bytearray(size)
        view, at = memoryview(found), 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if not got:
                return b""
            at += got
        return bytes(found)

    def close(self) -> None:
        self._socket.close()


def learn(path: str, title: str) -> dict[str, float]:
    """Connect, learn of everything, go."""
    connection = Connection(path, title)
    while b"Synchronize" not in (told := connection.call())[:64]:
        assert told, "the host has closed the connection"
    connection.close()
    return {
        "learnt_ms": (connection.last - connection.begun) * 1000,
        "sent_ms": (connection.last - connection.first) * 1000,
        "bytes": len(told),
    }


def main(path: str, title: str, count: str = "") -> None:
    for _ in range(int(count or 0)):
        print(json.dumps(learn(path, title)), flush=True)
    if not count:
        connection = Connection(path, title)
        while connection.call():
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
