"""gRPC calls as bare HTTP/2 frames on blocking sockets: what is measured with these is the relay in between.

A client or a server of grpc's takes several times as long for a call as a relay of frames adds to it. These know
one connection's frames, windows and header blocks, and answer from ready bytes: ``python -m bench.raw SOCKET
CONTAINERS`` is a runtime that lists so many containers and streams as many events as it is asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Optional

from hpack import Encoder

from bench.runtime import listing, version
from cri_proxy.relay.http2.flow import Outlet
from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    Buffer,
    read_settings,
    write_data,
    write_frame,
    write_headers,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.headers import HeaderReader, value_of, write_response, write_trailers
from cri_proxy.relay.http2.messages import PREFIX_BYTES, write_message

SERVICE = "/runtime.v1.RuntimeService/"
#: As large as can be: nothing waits for these two.
WINDOW = 0x7FFFFFFF
#: A stream of events is asked for by how many, and how long after each other.
WISH = struct.Struct(">II")
MOMENT = struct.Struct(">Q")
_EVENT_BYTES = PREFIX_BYTES + MOMENT.size
_READ_BYTES = 1 << 18
#: Events that are sent at once when there is no pause between them, as a runtime's transport would.
_MANY_PIECES = 100
_RESPONSE, _TRAILERS = write_response(), write_trailers(0, "")


class Frames:
    """One end of a connection: whole frames come out of ``read``, what is to be sent goes in ``out``."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.out: list[Buffer] = [
            write_settings((INITIAL_WINDOW_SIZE, WINDOW)),
            write_window_update(0, WINDOW - DEFAULT_WINDOW),
        ]
        self._rest = b""

    def skip(self, size: int) -> None:
        """Read that much, and leave it out."""
        while size:
            size -= len(self.socket.recv(size))

    def read(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of all frames that come with the next bytes.

        :raises EOFError: the other end is gone.
        """
        received = self.socket.recv(_READ_BYTES)
        if not received:
            raise EOFError("the connection has ended")
        data = self._rest + received if self._rest else received
        at, size = 0, len(data)
        while size - at >= HEAD_BYTES:
            length_kind, flags, stream = HEAD.unpack_from(data, at)
            end = at + HEAD_BYTES + (length_kind >> 8)
            if end > size:
                break
            yield length_kind & 0xFF, flags, stream & STREAM_MASK, data[at + HEAD_BYTES : end]
            at = end
        self._rest = data[at:]

    def send(self) -> None:
        """Send what there is to send."""
        if self.out:
            self.socket.sendall(b"".join(self.out))
            self.out.clear()

    def polite(self, kind: int, flags: int, payload: bytes) -> None:
        """Answer what is to be answered."""
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.out.append(write_frame(kind, ACK, 0, payload if kind == PING else b""))


class Client:
    """One client with one connection; a call at a time. ``most_s``: how long a step may take; None: without end."""

    def __init__(self, path: str, most_s: Optional[float] = None) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(most_s)
        connection.connect(path)
        self._frames = Frames(connection)
        self._frames.out.insert(0, PREFACE)
        self._frames.send()  # servers do not wait for that for ever
        self._encoder = Encoder()
        self._blocks: deque[bytes] = deque()
        self._deadlines = itertools.count(1)
        self._streams = itertools.count(1, 2)
        self._stream = 0
        #: What has come since the connection was last given credit, and the payload of the reply so far.
        self._uncredited = 0
        self._reply: list[bytes] = []

    def fileno(self) -> int:
        return self._frames.socket.fileno()

    def close(self) -> None:
        self._frames.socket.close()

    def prepare(self, method: str, count: int) -> None:
        """Encode the headers of the next ``count`` calls, which is no part of what is measured.

        They are grpc-go's: all comes from the tables, but for the deadline, which is put into them.
        """
        for number in itertools.islice(self._deadlines, count):
            self._blocks.append(self._encoder.encode([
                (":method", "POST"), (":scheme", "http"), (":path", SERVICE + method), (":authority", "localhost"),
                ("content-type", "application/grpc"), ("user-agent", "grpc-go/1.72.2"), ("te", "trailers"),
                ("grpc-timeout", f"{1_999_999 - number % 1_000}u"),
            ]))  # fmt: skip

    def begin(self, message: bytes) -> None:
        """Send the request of the next call."""
        self._stream = next(self._streams)
        self._reply = []
        out = self._frames.out
        out.append(write_headers(self._stream, self._blocks.popleft(), DEFAULT_FRAME_BYTES, False))
        out.append(write_data(self._stream, write_message(message), DEFAULT_FRAME_BYTES, True))
        self._frames.send()

    def look(self) -> bool:
        """Read once. Whether the call is over.

        :raises RuntimeError: it has failed.
        """
        is_over = False
        for kind, flags, stream, payload in self._frames.read():
            if kind == DATA:
                self._uncredited += len(payload)
                self._reply.append(payload)
            elif kind == HEADERS and stream == self._stream and flags & END_STREAM:
                is_over = True
            elif kind == GOAWAY or (kind == RST_STREAM and any(payload)):  # NO_ERROR may follow an end
                raise RuntimeError(f"the call has failed: {payload!r}")
            else:
                self._frames.polite(kind, flags, payload)
        if self._uncredited > WINDOW // 4:
            self._frames.out.append(write_window_update(0, self._uncredited))
            self._uncredited = 0
        self._frames.send()
        return is_over

    def call(self, message: bytes) -> bytes:
        """Make the next call; its reply, which is one message."""
        self.begin(message)
        while not self.look():
            pass
        return b"".join(self._reply)[PREFIX_BYTES:]

    def events(self, count: int, pause_us: int) -> list[float]:
        """Ask for a stream of events; how long each was on its way, seconds."""
        self.prepare("GetContainerEvents", 1)
        self.begin(WISH.pack(count, pause_us))
        delays_s: list[float] = []
        rest, is_over = b"", False
        while not is_over:
            is_over = self.look()
            now_ns = time.monotonic_ns()
            rest += b"".join(self._reply)
            self._reply.clear()
            whole = len(rest) // _EVENT_BYTES * _EVENT_BYTES
            for at in range(PREFIX_BYTES, whole, _EVENT_BYTES):
                delays_s.append((now_ns - MOMENT.unpack_from(rest, at)[0]) / 1e9)
            rest = rest[whole:]
        return delays_s


def calls_by(clients: list[Client], message: bytes, count: int) -> list[float]:
    """``count`` calls of each client, all clients at the same time; how long each took, seconds."""
    waiting = select.epoll()
    by_descriptor = {client.fileno(): client for client in clients}
    left = dict.fromkeys(by_descriptor, count)
    begun_s: dict[int, float] = {}
    found_s: list[float] = []
    for descriptor, client in by_descriptor.items():
        waiting.register(descriptor, select.EPOLLIN)
        begun_s[descriptor] = time.perf_counter()
        client.begin(message)
    while len(found_s) < count * len(clients):
        for descriptor, _ in waiting.poll():
            client = by_descriptor[descriptor]
            if client.look():
                found_s.append(time.perf_counter() - begun_s[descriptor])
                left[descriptor] -= 1
                if left[descriptor]:
                    begun_s[descriptor] = time.perf_counter()
                    client.begin(message)
    waiting.close()
    return found_s


# ---------------------------------------------------------------------- the runtime


class Runtime:
    """The server's end of one connection, in a thread of its own."""

    def __init__(self, connection: socket.socket, replies: Mapping[str, bytes]) -> None:
        self._frames = Frames(connection)
        self._replies = replies
        self._outlet = Outlet(self._frames.out, self._frames.out)
        self._headers = HeaderReader()
        self._methods: dict[int, str] = {}
        self._requests: dict[int, bytes] = {}

    def serve(self) -> None:
        """Answer calls until the client is gone."""
        with contextlib.suppress(EOFError, OSError), self._frames.socket:
            self._frames.skip(len(PREFACE))
            while True:
                for frame in self._frames.read():
                    self._take(*frame)
                self._frames.send()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        outlet = self._outlet
        if kind == HEADERS:
            path = value_of(self._headers.read(payload), b":path")
            self._methods[stream] = path.decode().rpartition("/")[2]
            outlet.open(stream)
        elif kind == DATA:
            self._requests[stream] = self._requests.get(stream, b"") + payload
            if flags & END_STREAM:
                self._answer(stream)
        elif kind == WINDOW_UPDATE:
            outlet.credit(stream, int.from_bytes(payload, "big"))
        elif kind == SETTINGS and not flags & ACK:
            outlet.expect(read_settings(payload))
            outlet.confirm(b"")
        self._frames.polite(kind, flags, payload)

    def _answer(self, stream: int) -> None:
        method, request = self._methods.pop(stream), self._requests.pop(stream)[PREFIX_BYTES:]
        outlet = self._outlet
        self._frames.out.append(write_headers(stream, _RESPONSE, DEFAULT_FRAME_BYTES, False))
        if method == "GetContainerEvents":
            self._stream_events(stream, *WISH.unpack(request))
        message = write_message(self._replies[method]) if method in self._replies else b""
        outlet.put(stream, message, raw=write_headers(stream, _TRAILERS, DEFAULT_FRAME_BYTES, True))
        if not outlet.is_waiting(stream):
            outlet.close(stream)

    def _stream_events(self, stream: int, count: int, pause_us: int) -> None:
        for _ in range(count):
            self._outlet.put(stream, write_message(MOMENT.pack(time.monotonic_ns())))
            if pause_us or len(self._frames.out) > _MANY_PIECES:
                self._frames.send()
            if pause_us:
                time.sleep(pause_us / 1e6)


def serve(path: str, containers: int) -> None:
    """Serve until ended."""
    replies = {"Version": version(), "ListContainers": listing(containers)}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=Runtime(connection, replies).serve, daemon=True).start()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve(sys.argv[1], int(sys.argv[2]))
