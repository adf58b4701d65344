"""What an event costs for each of many subscribers: ``python -m bench.event_fan_out [--subscribers N]``.

Subscribers are streams on a few connections, as of programs that watch containers; each event is sent when the one
before has reached all. What is told: CPU time of the process in between, and the time until the last has it, both for
each subscriber and event. "frames, one by one" is a relay whose calls each go their own way (a deadline makes them so),
which is what passing them costs; "frames" shares one stream of the runtime's.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Optional

from bench.figures import cpu_s, machine_line, print_row, process
from bench.raw import SERVICE, Frames
from bench.runtime import event
from cri_proxy.relay.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    HEADERS,
    PREFACE,
    RST_STREAM,
    write_data,
    write_headers,
    write_window_update,
)
from cri_proxy.relay.http2.headers import write_fields, write_response
from cri_proxy.relay.http2.messages import write_message

SUBSCRIBERS, CONNECTIONS, EVENTS, EVENT_BYTES = 1_000, 10, 300, 1_200
_EVENT = write_message(event(EVENT_BYTES))
_REQUEST = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", (SERVICE + "GetContainerEvents").encode()),
    (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
)  # fmt: skip


class Subscribers:
    """Streams on one connection, all of GetContainerEvents."""

    def __init__(self, path: str, count: int, shared: bool) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self._frames = Frames(connection)
        self._frames.out.insert(0, PREFACE)
        deadline = () if shared else ((b"grpc-timeout", b"1H"),)
        block = write_fields((*_REQUEST, *deadline))
        for stream in range(1, 2 * count, 2):
            self._frames.out.append(write_headers(stream, block, DEFAULT_FRAME_BYTES, False))
            self._frames.out.append(write_data(stream, write_message(b""), DEFAULT_FRAME_BYTES, True))
        self._frames.send()
        self.came_bytes = self._uncredited = 0

    def fileno(self) -> int:
        return self._frames.socket.fileno()

    def look(self) -> None:
        """Read once."""
        for kind, flags, _stream, payload in self._frames.read():
            if kind == DATA:
                self.came_bytes += len(payload)
                self._uncredited += len(payload)
            self._frames.polite(kind, flags, payload)
        if self._uncredited > 1 << 28:
            self._frames.out.append(write_window_update(0, self._uncredited))
            self._uncredited = 0
        self._frames.send()

    def close(self) -> None:
        self._frames.socket.close()


# ---------------------------------------------------------------------- the runtime


class Runtime:
    """Sends an event to all streams that are open each time a line comes; tells how many those are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[Frames, set[int]] = {}

    def serve(self, connection: socket.socket) -> None:
        """One connection, until it ends."""
        frames = Frames(connection)
        open_streams: set[int] = set()
        with self._lock:
            self._streams[frames] = open_streams
        with contextlib.suppress(EOFError, OSError), connection:
            frames.skip(len(PREFACE))
            while True:
                for kind, flags, stream, payload in frames.read():
                    if kind == DATA:
                        open_streams.add(stream)
                        frames.out.append(write_headers(stream, write_response(), DEFAULT_FRAME_BYTES, False))
                    elif kind == RST_STREAM:
                        open_streams.discard(stream)
                    elif kind != HEADERS:
                        frames.polite(kind, flags, payload)
                with self._lock:
                    frames.send()
        with self._lock:
            del self._streams[frames]

    def emit(self) -> int:
        """One event to all."""
        with self._lock:
            for frames, streams in self._streams.items():
                frames.out += [write_data(stream, _EVENT, DEFAULT_FRAME_BYTES, False) for stream in streams]
                frames.send()
            return sum(map(len, self._streams.values()))


def run_runtime(path: str) -> None:
    """Serve until ended; events are asked for on another socket, a byte each."""
    runtime = Runtime()

    def take_orders(listener: socket.socket) -> None:
        while True:
            orders, _ = listener.accept()
            while orders.recv(1):
                orders.sendall(runtime.emit().to_bytes(4, "big"))

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as others:
        listener.bind(path)
        others.bind(f"{path}.orders")
        listener.listen(100)
        others.listen()
        threading.Thread(target=take_orders, args=(others,), daemon=True).start()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=runtime.serve, args=(connection,), daemon=True).start()


# ---------------------------------------------------------------------- measuring


@contextlib.contextmanager
def subscribed(path: str, count: int, shared: bool) -> Iterator[list[Subscribers]]:
    each = max(1, count // CONNECTIONS)
    clients = [Subscribers(path, each, shared) for _ in range(count // each)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def measure(name: str, path: str, pid: int, orders: socket.socket, count: int, shared: bool = True) -> None:
    """One row."""
    with subscribed(path, count, shared) as clients, contextlib.closing(select.epoll()) as waiting:
        by_descriptor = {client.fileno(): client for client in clients}
        for descriptor in by_descriptor:
            waiting.register(descriptor, select.EPOLLIN)

        def drain(wanted_bytes: Optional[int]) -> None:
            while wanted_bytes is None or sum(c.came_bytes for c in clients) < wanted_bytes:
                ready = waiting.poll(0.5 if wanted_bytes is None else -1)
                if not ready:
                    return
                for descriptor, _ in ready:
                    by_descriptor[descriptor].look()

        def emit() -> int:
            orders.sendall(b"e")
            return int.from_bytes(orders.recv(4), "big")

        drain(None)
        streams = emit()
        drain(None)
        cpu_before_s, started_s = cpu_s(pid), time.perf_counter()
        for _ in range(EVENTS):
            before = sum(client.came_bytes for client in clients)
            emit()
            drain(before + count * len(_EVENT))
        elapsed_s, used_s = time.perf_counter() - started_s, cpu_s(pid) - cpu_before_s
        per = 1e6 / EVENTS / count
        print_row(name, f"{streams:,}", f"{used_s * per:.1f}" if pid else "", f"{elapsed_s * per:.1f}")


def main(count: int) -> None:
    print(machine_line(), end="\n\n")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cre-"))
        runtime, relay = f"{folder}/r.sock", f"{folder}/k.sock"
        stack.enter_context(process("bench.event_fan_out", "--serve", runtime))
        pid = stack.enter_context(process("bench.relay_latency", "--serve", "frames, events", runtime, relay))
        orders = stack.enter_context(socket.socket(socket.AF_UNIX))
        orders.connect(f"{runtime}.orders")
        print_row(f"{count:,} subscribers", "streams upstream", "µs of CPU", "µs until all have it")
        print_row(*["---"] * 4)
        measure("direct", runtime, 0, orders, count)
        measure("frames, one by one", relay, pid, orders, count, shared=False)
        measure("frames", relay, pid, orders, count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscribers", type=int, default=SUBSCRIBERS)
    parser.add_argument("--serve", metavar="SOCKET", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        with contextlib.suppress(KeyboardInterrupt):
            run_runtime(options.serve)
    else:
        main(options.subscribers)
