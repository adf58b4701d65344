"""One end of a relayed connection: a socket that is read when bytes are there, and written to at once.

asyncio's transports do the same with more calls for each read and write, and with a copy of whatever the other side
has not taken yet; pieces of a reply are written here without being joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import select
import socket
import sys
import termios
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Callable, Optional

from cri_proxy.relay.http2.frames import Buffer

#: What is read at once, and what after a read that was full; a socket's buffer usually has less than that
#: (net.core.wmem_default: 208 KiB). Not that much each time: from 128 KiB on malloc maps and unmaps memory for it.
READ_BYTES, LARGE_READ_BYTES = 1 << 16, 1 << 18
#: What is read of a client at first, and the least that it comes down to: what follows is known by what that was.
FIRST_READ_BYTES, LEAST_READ_BYTES = 1 << 12, 1 << 10
#: Frames and fields that one read may bring (``_pace``): a millisecond or two of work, in which all others wait.
MOST_WORK = 256
#: What the kernel takes from us before the other side has read it; it gives as much as net.core.wmem_max allows.
SEND_BUFFER_BYTES = 1 << 20
#: With more unwritten than this, nothing is read that would add to it; with less than that, again.
FULL_BYTES, ROOM_BYTES = 1 << 16, 1 << 14
#: How long a server may take to accept. It does so even when it is very busy, or its backlog is full.
CONNECT_S = 5.0
_BACKLOG_LOOK_S = 0.01
#: Pieces in one call of the kernel (IOV_MAX).
_MOST_PIECES = 1024


class Endpoint:
    """``data``: bytes have come. ``lost``: it is closed, by either side. ``regulate``: ``is_full`` has changed.

    ``most_bytes``: the largest read until ``work`` says otherwise.
    """

    def __init__(
        self,
        data: Callable[[bytes], None],
        lost: Callable[[], None],
        regulate: Callable[[], None],
        most_bytes: int = LARGE_READ_BYTES,
    ) -> None:
        #: More was written than is wanted in memory.
        self.is_full = False
        self.is_open = True
        #: What was written and the other side has not taken, bytes.
        self.unwritten = 0
        #: The kernel's memory for what the other side has not read, which counts as this process's; at most, since what
        #: was sent after ``ask_queued`` may have been read.
        self.queued_bytes = 0
        self._data = data
        self._lost = lost
        self._regulate = regulate
        self._loop = asyncio.get_running_loop()
        self._socket: Optional[socket.socket] = None
        self._pieces: deque[memoryview] = deque()
        #: Whether what comes is wanted. The loop tells of it until something comes that is not: most pauses are shorter.
        self.is_reading = self._is_watched = False
        #: Whether the loop tells when there is room to write.
        self._is_writing = False
        self._read_bytes = min(READ_BYTES, most_bytes)
        #: No read is larger (``_pace``); how much the last brought.
        self._most_bytes = most_bytes
        self._received = 0
        #: What the last read has cost (frames, and fields of headers), for ``data`` to say; 0: little.
        self.work = 0
        #: Nothing more is written or read.
        self._is_closing = False

    def begin(self, connected: socket.socket) -> None:
        """Take a socket that does not block, and read from it."""
        if not self.is_open:  # it was not waited for
            connected.close()
            return
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._socket = connected
        self.read(True)

    # ------------------------------------------------------------------ reading

    def read(self, wanted: bool) -> None:
        """Read on, or not."""
        if wanted is self.is_reading or self._socket is None or self._is_closing:
            return
        self.is_reading = wanted
        # By its number: to find that a socket is not known yet, asyncio describes it, which takes six calls of the kernel.
        if wanted and not self._is_watched:
            self._is_watched = True
            self._loop.add_reader(self._socket.fileno(), self._readable, self._socket)

    def _readable(self, readable: socket.socket) -> None:
        if not self.is_reading:
            self._unwatch()
            return
        try:
            received = readable.recv(self._read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        if received:
            self._received = len(received)
            wanted = READ_BYTES if self._received < self._read_bytes else LARGE_READ_BYTES
            self.work = 0
            self._data(received)
            if self.work > MOST_WORK or self._received >= self._most_bytes:
                self._pace(self.work)
            self._read_bytes = min(wanted, self._most_bytes)
        else:
            self.close()

    def _unwatch(self) -> None:
        if self._is_watched and self._socket is not None:
            self._is_watched = False
            self._loop.remove_reader(self._socket.fileno())

    def _pace(self, work: int) -> None:
        """What came with the last read was so much work: less is read at once where it was too much, more where
        there is more to come and it was little. A client that sends thousands of frames waits more often than others.
        """
        if work > MOST_WORK:
            self._most_bytes = max(LEAST_READ_BYTES, self._received * MOST_WORK // work)
        elif 4 * work < MOST_WORK and self._received >= self._most_bytes:
            self._most_bytes = min(LARGE_READ_BYTES, 2 * self._most_bytes)

    @property
    def is_deserted(self) -> bool:
        """Whether the other side has gone. An endpoint that is read from finds out by itself."""
        if self._socket is None or not self.is_open:
            return False
        hung_up = select.poll()
        hung_up.register(self._socket, 0)
        return bool(hung_up.poll(0))

    # ------------------------------------------------------------------ writing

    def ask_queued(self) -> None:
        """Ask the kernel what it has of ``queued_bytes``."""
        if self._socket is None or not self.is_open:
            return
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
            self.queued_bytes = int.from_bytes(answer, sys.byteorder)

    def write(self, pieces: list[Buffer]) -> None:
        """Write, and empty the list; before there is a socket: leave it."""
        if not pieces or self._socket is None:
            return
        if not self._is_closing:
            size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
            sent = 0 if self._pieces else self._send(self._socket, pieces)
            if sent < size and not self._is_closing:
                self._keep(self._socket, pieces, sent)
        pieces.clear()

    def _send(self, writable: socket.socket, pieces: Sequence[Buffer]) -> int:
        """How many bytes the kernel took."""
        try:
            sent = writable.send(pieces[0]) if len(pieces) == 1 else writable.sendmsg(pieces[:_MOST_PIECES])
            self.queued_bytes += sent
            return sent
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.abort()
            return 0

    def _keep(self, writable: socket.socket, pieces: list[Buffer], sent: int) -> None:
        """Keep what was not sent until it can be."""
        if not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(writable.fileno(), self._writable, writable)
        for piece in pieces:
            if sent < len(piece):
                self._pieces.append(memoryview(piece)[sent:])
                self.unwritten += len(piece) - sent
            sent = max(0, sent - len(piece))
        if self.unwritten > FULL_BYTES and not self.is_full:
            self.is_full = True
            self._regulate()

    def _writable(self, writable: socket.socket) -> None:
        sent = self._send(writable, list(islice(self._pieces, _MOST_PIECES)))
        self.unwritten -= sent
        while sent:
            piece = self._pieces.popleft()
            if sent < len(piece):
                self._pieces.appendleft(piece[sent:])
            sent = max(0, sent - len(piece))
        if self.is_full and self.unwritten <= ROOM_BYTES:
            self.is_full = False
            self._regulate()
        if not self._pieces and self.is_open:
            self._is_writing = False
            self._loop.remove_writer(writable.fileno())
            if self._is_closing:
                self.abort()

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close when all is written."""
        self.read(False)
        self._is_closing = True
        if not self._pieces:
            self.abort()

    def abort(self) -> None:
        """Close at once; ``lost`` is called soon."""
        self._is_closing = True
        if not self.is_open:
            return
        self.is_open = False
        self.unwritten = self.queued_bytes = 0
        self._pieces.clear()
        if self._socket is not None:
            self._unwatch()
            if self._is_writing:
                self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._loop.call_soon(self._lost)


def try_to_connect(path: str) -> Optional[socket.socket]:
    """A connection to a listening socket, which takes no time on a unix socket; None: its backlog is full.

    :raises OSError: there is none.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect(path)
    except BlockingIOError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


async def connected(path: str) -> socket.socket:
    """A connection, as soon as there is room for it.

    :raises OSError: there is none.
    """
    while (connection := try_to_connect(path)) is None:
        await asyncio.sleep(_BACKLOG_LOOK_S)
    return connection
