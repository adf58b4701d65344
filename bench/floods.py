"""How long kubelet's reconnect takes while another client floods: ``python -m bench.floods [FLOOD ...]`` (root).

A reconnect is a new connection and a call of ``Version``. Each flood goes to the socket of a real containerd and then to
that of a daemon in front of the same containerd, and the reconnects go where the flood goes. A flood whose connection is
closed opens another one at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import resource
import select
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple

from bench.figures import machine_line, percentile, print_row, process, resident_mb
from bench.raw import SERVICE, Client
from cri_proxy.relay.http2.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    Error,
    write_frame,
    write_headers,
    write_reset,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.pipe import Frame, Pipe
from tests.agent import Agent
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import REAL_CGROUPS, TWO_NODES

RECONNECTS = 40
#: A reconnect that takes longer counts as this.
MOST_S = 20.0
#: How long a flood lasts before the first reconnect.
SETTLE_S = 0.5
_PIECE_FRAMES = 1000
_GREETING = PREFACE + write_settings()
#: POST, http and the path, as literals that go into no table.
_VERSION = (
    b"\x83\x86\x04" + bytes([len(SERVICE) + 7]) + SERVICE.encode() + b"Version\x0f\x10\x10application/grpc"
)
#: "a: a...", 4,000 bytes, goes into the table; each byte of 0xbe is that field again.
_ENTRY = b"\x40\x01a\x7f\xa1\x1e" + b"a" * 4000
_LITTLE = b"\xbe" * 12_000


class Flood(NamedTuple):
    """What is said on a connection: at first, and then without end (the number of the piece is told)."""

    first: bytes
    more: Callable[[int], bytes] = lambda number: b""
    reads: bool = True
    connections: int = 1
    #: It is closed when it is open, and opened anew.
    comes_again: bool = False


def streams(number: int, then: Callable[[int], bytes], count: int = _PIECE_FRAMES) -> bytes:
    """The next streams, each begun and gone on with."""
    first = number * count
    return b"".join(
        write_headers(stream, _VERSION, 16_384, False) + then(stream)
        for stream in range(2 * first + 1, 2 * (first + count), 2)
    )


def many(frame: bytes) -> Callable[[int], bytes]:
    """The same frame a thousand times."""
    piece = frame * _PIECE_FRAMES
    return lambda number: piece


def bombs(number: int) -> bytes:
    """Blocks of which each stands for 48 MB of fields."""
    return b"".join(
        write_headers(stream, _VERSION + _LITTLE, 16_384, True)
        for stream in range(16 * number + 3, 16 * number + 19, 2)
    )


FLOODS = {
    "nothing": Flood(b"", connections=0),
    "CONTINUATION": Flood(
        _GREETING + write_frame(HEADERS, 0, 1, _VERSION), many(write_frame(CONTINUATION, 0, 1))
    ),
    "rapid reset": Flood(
        _GREETING, lambda number: streams(number, lambda stream: write_reset(stream, Error.CANCEL))
    ),
    "SETTINGS": Flood(_GREETING, many(write_settings())),
    "PING": Flood(_GREETING, many(write_frame(PING, 0, 0, bytes(8)))),
    "zero-length DATA": Flood(
        _GREETING + write_headers(1, _VERSION, 16_384, False), many(write_frame(DATA, 0, 1))
    ),
    "header bombs": Flood(_GREETING + write_headers(1, _VERSION + _ENTRY, 16_384, True), bombs),
    "20,000 streams": Flood(
        _GREETING, lambda number: streams(number, lambda stream: b"") if number < 20 else b""
    ),
    "replies never read": Flood(
        _GREETING + write_settings((INITIAL_WINDOW_SIZE, 2**31 - 1)) + write_window_update(0, 2**30),
        lambda number: streams(number, lambda stream: write_frame(DATA, END_STREAM, stream, bytes(5)), 100),
        reads=False,
    ),
    "half prefaces": Flood(PREFACE[:12], connections=2000, comes_again=True),
    "10,000 connections": Flood(_GREETING, connections=10_000),
    "connections without end": Flood(_GREETING, connections=500, comes_again=True),
    "ignored windows": Flood(
        _GREETING + write_headers(1, _VERSION, 16_384, False),
        many(write_frame(DATA, 0, 1, bytes([0, 0, 255, 255, 255]) + bytes(1000))),
    ),
    "1,000 idle connections": Flood(_GREETING, connections=1000),
    "350 half-open connections": Flood(b"", connections=350),
}


# ---------------------------------------------------------------------- the flood, a process of its own


class Flooder:
    """One connection of a flood."""

    def __init__(self, path: str, flood: Flood) -> None:
        self._flood = flood
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.setblocking(False)
        self._pieces = itertools.count()
        self._frames = Pipe(self._heed, [])
        self._rest = memoryview(flood.first)
        self.is_over = False
        self.push()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def push(self) -> None:
        """Send what can be sent."""
        with contextlib.suppress(BlockingIOError):
            if not self._rest:
                self._rest = memoryview(self._flood.more(next(self._pieces)))
            try:
                self._rest = self._rest[self._socket.send(self._rest) :] if self._rest else self._rest
            except OSError as error:
                self.is_over = not isinstance(error, BlockingIOError)

    def pull(self) -> None:
        """Read, which nothing comes of, but that a GOAWAY is heeded: what is said behind it costs nothing."""
        try:
            received = self._socket.recv(1 << 18)
            self._frames.read(received)
            self.is_over = self.is_over or not received
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True

    def _heed(self, frame: Frame) -> bytes:
        self.is_over = self.is_over or frame.kind == GOAWAY
        return b""

    @property
    def has_more(self) -> bool:
        return bool(self._rest or self._flood.more(0))


def flood_on(path: str, flood: Flood) -> None:
    """Flood until ended."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print("ready", flush=True)
    open_ones: dict[int, Flooder] = {}
    waiting = select.epoll()

    def add() -> None:
        flooder = Flooder(path, flood)
        open_ones[flooder.fileno()] = flooder
        events = (select.EPOLLIN if flood.reads else 0) | (select.EPOLLOUT if flooder.has_more else 0)
        waiting.register(flooder.fileno(), events)

    def drop(descriptor: int) -> None:
        waiting.unregister(descriptor)
        open_ones.pop(descriptor).close()

    for _ in range(flood.connections):
        add()
    while True:
        if flood.comes_again:
            drop(next(iter(open_ones)))
            add()
        for descriptor, events in waiting.poll(0 if flood.comes_again else 1):
            flooder = open_ones.get(descriptor)
            if flooder is None:
                continue
            if events & ~select.EPOLLOUT:
                flooder.pull()
            if events & select.EPOLLOUT:
                flooder.push()
            if flooder.is_over or (events & select.EPOLLHUP):
                drop(descriptor)
                if flood.connections < 100 or flood.comes_again:
                    add()


# ---------------------------------------------------------------------- what is measured


def reconnect(path: str) -> float:
    """Seconds that a new connection and a call of ``Version`` take."""
    began_s = time.perf_counter()
    while True:
        try:
            client = Client(path, MOST_S)
            break
        except BlockingIOError:  # the server's backlog is full
            if time.perf_counter() > began_s + MOST_S:
                return MOST_S
            time.sleep(0.001)
    client.prepare("Version", 1)
    try:
        client.call(b"")
        return time.perf_counter() - began_s
    except (OSError, EOFError, RuntimeError) as error:
        print(f"    a reconnect failed: {error!r}", file=sys.stderr)
        return MOST_S
    finally:
        client.close()


def measure(name: str, path: str, pid: int) -> tuple[list[float], float]:
    """Milliseconds of reconnects under a flood, and what the server's memory grew by, MB."""
    before_mb = resident_mb(pid)
    with process("bench.floods", "--flood", name, path):
        time.sleep(SETTLE_S)
        found_ms: list[float] = []
        until_s = time.monotonic() + 2 * MOST_S
        while len(found_ms) < RECONNECTS and time.monotonic() < until_s:
            found_ms.append(reconnect(path) * 1000)
            time.sleep(0.01)
        grown_mb = resident_mb(pid) - before_mb
    return found_ms, grown_mb


async def main(names: Sequence[str]) -> None:
    print(machine_line(), end="\n\n")
    if sentence := missing():
        sys.exit(sentence)
    print_row(
        "a reconnect under", "containerd p50, ms", "max", "ours p50, ms", "max", "more at p50", "MB more"
    )
    print_row(*["---"] * 7)
    with (
        tempfile.TemporaryDirectory(prefix="crb-") as folder,
        Containerd(Path(folder) / "c", images=Path(folder)) as containerd,
    ):
        agent = Agent(containerd.socket, TWO_NODES, REAL_CGROUPS)
        try:
            await agent.start()
            assert agent.process is not None and containerd._daemon is not None
            for name in names:
                direct, _ = measure(name, str(containerd.socket), containerd._daemon.pid)
                ours, grown_mb = measure(name, agent.socket, agent.process.pid)
                p50s = [percentile(found, 50) for found in (direct, ours)]
                cells = [p50s[0], max(direct), p50s[1], max(ours), p50s[1] - p50s[0]]
                print_row(name, *(f"{cell:,.1f}" for cell in cells), f"{grown_mb:,.0f}")
        finally:
            await agent.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flood", nargs=2, metavar=("FLOOD", "SOCKET"))
    parser.add_argument("floods", nargs="*", metavar="FLOOD", help="all, if none is named")
    options = parser.parse_args()
    if options.flood:
        with contextlib.suppress(KeyboardInterrupt):
            flood_on(options.flood[1], FLOODS[options.flood[0]])
    else:
        asyncio.run(main(options.floods or list(FLOODS)))
