"""A gate before the runtime that passes bytes as they are and notes how long each answer took: the runtime's own share.

    python -m bench.soak_gate SOCKET RUNTIME NOTES.jsonl

It follows the frames behind what it has passed. Each call that has ended is a line of NOTES: [method, tag, begun, ended],
seconds of the monotonic clock, from the request's last byte until the answer's; ``tag`` is the client's metadata
``soak-call``. A call without it, which the daemon makes itself, has what its request is about: the name of the soak's
pod, else an id, else "".
The first connections, the daemon's and kubelet's, have a process each, so that no flood behind them slows them here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Callable, NoReturn, TextIO

from cri_proxy.relay.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    RST_STREAM,
    STREAM_MASK,
    ProtocolError,
    unpadded,
)
from cri_proxy.relay.http2.headers import HeaderReader, value_of

TAG = "soak-call"
#: How pods are named (those made through the daemon, and past it), and what containerd's ids are like.
_NAME, _ID = re.compile(rb"(?:ours|direct)-\d+"), re.compile(rb"[0-9a-f]{64}")
#: So many connections have a process each; all that come later share one.
ALONE = 16
_READ_BYTES = 1 << 18
_PRIORITY_BYTES = 5

Frame = tuple[int, int, int, bytes]


class Frames:
    """Whole frames out of bytes as they come."""

    def __init__(self, skip: int = 0) -> None:
        self._rest = b""
        self._skip = skip

    def cut(self, data: bytes) -> Iterator[Frame]:
        """Kind, flags, stream and payload."""
        data = self._rest + data
        at = min(self._skip, len(data))
        self._skip -= at
        while len(data) - at >= HEAD_BYTES:
            length_kind, flags, stream = HEAD.unpack_from(data, at)
            end = at + HEAD_BYTES + (length_kind >> 8)
            if end > len(data):
                break
            yield length_kind & 0xFF, flags, stream & STREAM_MASK, data[at + HEAD_BYTES : end]
            at = end
        self._rest = data[at:]


@dataclass
class Call:
    """One that has not ended."""

    method: str = ""
    tag: str = ""
    begun_s: float = 0.0


class Follower:
    """The calls of one connection; ``note`` is told of each that ends."""

    def __init__(self, note: Callable[[str, str, float, float], None]) -> None:
        self._note = note
        self._requests, self._replies = Frames(len(PREFACE)), Frames()
        self._headers = HeaderReader()
        self._block, self._block_ends_stream = b"", False
        self._calls: dict[int, Call] = {}

    def asked(self, data: bytes, now_s: float) -> None:
        """What has gone to the runtime.

        :raises Doubt: it cannot be followed any more.
        """
        for kind, flags, stream, payload in self._requests.cut(data):
            if kind == HEADERS:
                payload = bytes(unpadded(payload, flags))
                self._block = payload[_PRIORITY_BYTES if flags & HAS_PRIORITY else 0 :]
                self._block_ends_stream = bool(flags & END_STREAM)
            elif kind == CONTINUATION:
                self._block += payload
            elif kind == DATA and stream in self._calls:
                self._take(self._calls[stream], payload, flags, now_s)
            elif kind == RST_STREAM:
                self._calls.pop(stream, None)
            if kind in (HEADERS, CONTINUATION) and flags & END_HEADERS:
                self._open(stream, now_s)

    def _open(self, stream: int, now_s: float) -> None:
        headers = self._headers.read(self._block)
        if stream not in self._calls:  # they may be a client's trailers
            path = value_of(headers, b":path").decode(errors="replace")
            tag = value_of(headers, TAG.encode()).decode(errors="replace")
            self._calls[stream] = Call(path.rpartition("/")[2], tag)
        if self._block_ends_stream:
            self._calls[stream].begun_s = now_s

    def _take(self, call: Call, payload: bytes, flags: int, now_s: float) -> None:
        if not call.tag:
            found = _NAME.search(payload) or _ID.search(payload)
            call.tag = found.group().decode() if found else ""
        if flags & END_STREAM:
            call.begun_s = now_s

    def answered(self, data: bytes, now_s: float) -> None:
        """What the runtime has said."""
        for kind, flags, stream, _ in self._replies.cut(data):
            is_over = kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM)
            if is_over and (call := self._calls.pop(stream, None)) is not None:
                self._note(call.method, call.tag, call.begun_s or now_s, now_s)


class Gate:
    """Passes connections of one socket on to another."""

    def __init__(self, runtime: str, notes: TextIO) -> None:
        self._runtime = runtime
        self._notes = notes

    def note(self, method: str, tag: str, begun_s: float, ended_s: float) -> None:
        self._notes.write(json.dumps([method, tag, round(begun_s, 6), round(ended_s, 6)]) + "\n")

    async def serve(self, connection: socket.socket) -> None:
        """One connection, until either end has ended it."""
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_READ_BYTES)
        with contextlib.closing(writer):
            try:
                up_reader, up_writer = await asyncio.open_unix_connection(self._runtime, limit=_READ_BYTES)
            except OSError:
                return
            follower = Follower(self.note)
            ways = (
                asyncio.ensure_future(_pass(reader, up_writer, follower.asked)),
                asyncio.ensure_future(_pass(up_reader, writer, follower.answered)),
            )
            with contextlib.closing(up_writer):
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def serve_all(self, handed: socket.socket) -> None:
        """Those whose descriptors come over a socket, until that ends."""
        loop, tasks = asyncio.get_running_loop(), set()
        while descriptors := (await loop.run_in_executor(None, socket.recv_fds, handed, 1, 1))[1]:
            task = loop.create_task(self.serve(socket.socket(fileno=descriptors[0])))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, follow: Callable[[bytes, float], None]
) -> None:
    """Bytes of one direction until it ends; what cannot be followed passes all the same."""
    is_followed = True
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            now_s = time.monotonic()
            if is_followed:
                try:
                    follow(data, now_s)
                except ProtocolError:
                    is_followed = False
            await writer.drain()


def main(path: str, runtime: str, notes: str) -> None:
    """Listen until ended."""
    gate = Gate(runtime, open(notes, "a", buffering=1))  # noqa: SIM115  # until the process ends
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    crowd, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(4096)
        if os.fork() == 0:
            crowd.close()
            listener.close()
            _run(gate.serve_all(theirs))
        print("ready", flush=True)
        for number in itertools.count():
            connection, _ = listener.accept()
            with connection:
                if number >= ALONE:
                    socket.send_fds(crowd, [b"\0"], [connection.fileno()])
                elif os.fork() == 0:
                    crowd.close()
                    listener.close()
                    _run(gate.serve(connection))


def _run(work: Coroutine[Any, Any, None]) -> NoReturn:
    """In a process of its own, which ends with it."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work)
    os._exit(0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
