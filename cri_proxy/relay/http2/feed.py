"""One stream of the runtime's for many of the clients': what it has said, and how much of it each was sent.

A ``RuntimeStream`` keeps the last of what came, once, whatever the number of readers. A ``Feed`` has the streams of one
relayed connection that read along; each has a place in the source, and nothing else. One that is too slow does not
make others wait nor memory grow: what it has not read is dropped, and it is ended with RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

from collections import deque
from typing import Optional

from cri_proxy.relay.http2.frames import (
    DEFAULT_FRAME_BYTES,
    RST_STREAM,
    Error,
    write_frame,
    write_headers,
    write_reset,
)
from cri_proxy.relay.http2.headers import Headers, status_of, write_fields, write_response, write_trailers
from cri_proxy.relay.http2.stream import Stream
from cri_proxy.relay.http2.wire import Wire
from cri_proxy.relay.interception import RESOURCE_EXHAUSTED, UNKNOWN

#: What is kept of a source: pieces, and bytes; the last piece in any case.
KEPT_PIECES, KEPT_BYTES = 1_000, 1 << 20
#: How many streams of a connection may have a message that lies partly with the client, whose windows are small.
MAX_PARTIAL = 16
TOO_SLOW = "cri-resmgr: too many events were not read; subscribe again"


class RuntimeStream:
    """What a stream of the runtime has said; ``head`` and ``end`` are its header blocks, as names and values."""

    def __init__(self) -> None:
        self.head: Optional[Headers] = None
        #: Its trailers; without ``head``: all of it ("trailers-only").
        self.end: Optional[Headers] = None
        #: It was reset instead, with this HTTP/2 error.
        self.reset: Optional[int] = None
        #: The place of the first piece that is kept, and that of the next to come.
        self.base = self.next = 0
        self._pieces: deque[bytes] = deque()
        self._kept_bytes = 0
        #: What has come since readers were last looked at, whether they follow.
        self._unlooked_pieces = self._unlooked_bytes = 0
        self._taken: tuple[int, tuple[bytes, int]] = (-1, (b"", 0))

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.reset is not None

    def add(self, messages: list[bytes]) -> None:
        """Messages with their prefixes that came together."""
        piece: list[bytes] = []
        size = 0
        for message in messages:
            if piece and size + len(message) > DEFAULT_FRAME_BYTES:
                self._keep(b"".join(piece))
                piece, size = [], 0
            piece.append(message)
            size += len(message)
        if piece:
            self._keep(b"".join(piece))

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._kept_bytes += len(piece)
        self._unlooked_bytes += len(piece)
        self._unlooked_pieces += 1
        self.next += 1
        self._taken = (-1, (b"", 0))
        while len(self._pieces) > 1 and (self._kept_bytes > KEPT_BYTES or len(self._pieces) > KEPT_PIECES):
            self._kept_bytes -= len(self._pieces.popleft())
            self.base += 1

    @property
    def is_filling(self) -> bool:
        """Whether something will be dropped soon."""
        return self._kept_bytes > KEPT_BYTES // 2 or len(self._pieces) > KEPT_PIECES // 2

    @property
    def middle(self) -> int:
        """The place that is in the middle of what is kept: with readers before it, nothing should come for a while."""
        return self.base + (self.next - self.base) // 2

    def is_look_due(self) -> bool:
        """Whether so much has come that a reader might be too slow for it; asked once for that much."""
        is_due = self._unlooked_bytes > KEPT_BYTES // 4 or self._unlooked_pieces > KEPT_PIECES // 4
        if is_due:
            self._unlooked_pieces = self._unlooked_bytes = 0
        return is_due

    def take(self, at: int) -> tuple[bytes, int]:
        """What is sent next to a reader that has all before place ``at``: at most a frame, if that is a message; and the
        place after it. Most readers are at the same place.
        """
        if self._taken[0] != at:
            pieces: list[bytes] = []
            size = 0
            for index in range(at - self.base, len(self._pieces)):
                piece = self._pieces[index]
                size += len(piece)
                if pieces and size > DEFAULT_FRAME_BYTES:
                    break
                pieces.append(piece)
            self._taken = (at, (b"".join(pieces), at + len(pieces)))
        return self._taken[1]


class _Reader:
    """A stream that reads along. ``is_behind``: there is more for it, and it is in its feed's queue."""

    __slots__ = ("at", "is_behind", "source", "stream")

    def __init__(self, stream: int, source: RuntimeStream, at: int) -> None:
        self.stream = stream
        self.source = source
        self.at = at
        self.is_behind = False


class Feed:
    """The streams of one connection that read along; all of them were taken over."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        #: By stream; without any there is nothing to ``flush``.
        self.readers: dict[int, _Reader] = {}
        self._behind: deque[_Reader] = deque()
        #: Those that wait for credit of their stream's, or until the runtime has nothing more to say of it.
        self._stalled: dict[int, _Reader] = {}
        self._partial: set[int] = set()

    def read_along(self, stream: int, source: RuntimeStream, at: int) -> None:
        """From place ``at`` of a source on."""
        reader = self.readers[stream] = _Reader(stream, source, at)
        self._queue(reader)

    def leave(self, stream: int) -> None:
        """A stream reads along no more: it is over."""
        reader = self.readers.get(stream)
        if reader is not None:
            if reader.is_behind:
                self._behind.remove(reader)
            self._forget(reader)

    def said(self, source: RuntimeStream) -> None:
        """A source has said more; ``flush`` sends it."""
        behind = self._behind
        for reader in self.readers.values():
            if reader.source is source and not reader.is_behind:
                self._stalled.pop(reader.stream, None)
                reader.is_behind = True
                behind.append(reader)

    def has_slow(self, source: RuntimeStream) -> bool:
        """Whether a reader may soon be too slow for a source; those that are already are not waited for."""
        if not source.is_filling:
            return False
        middle = source.middle
        return any(source.base <= r.at < middle for r in self.readers.values() if r.source is source)

    def retry(self) -> None:
        """Time has passed: look again at those that wait for credit."""
        for reader in self._stalled.values():
            self._queue(reader)
        self._stalled.clear()

    def flush(self, most: int) -> bool:
        """Send what there is, some ``most`` bytes of it. Whether anything came of it."""
        if self._wire.credited or self._partial:
            self._look_at_stalled()
        behind, connection = self._behind, self._wire.replies.connection
        sent = 0
        while behind and sent < most and connection.window > 0:
            reader = behind.popleft()
            size = self._send(reader)
            if size < 0:  # the connection's window is too small
                reader.is_behind = True
                behind.appendleft(reader)
                break
            sent += size
        if sent:
            self._wire.answered_s = self._wire.now_s  # a connection that only reads along is in use
        return sent > 0

    def _look_at_stalled(self) -> None:
        """Streams have got credit, or are clear now, or what waited of them is sent."""
        credited = self._wire.credited
        for stream in [stream for stream in self._partial if not self._wire.replies.is_waiting(stream)]:
            self._partial.discard(stream)
            credited.add(stream)
        for stream in credited:
            reader = self._stalled.pop(stream, None)
            if reader is not None:
                self._queue(reader)
        credited.clear()

    # ------------------------------------------------------------------ one reader

    def _send(self, reader: _Reader) -> int:
        """Send a reader its next; about how many bytes that were. -1: it waits for the connection's window."""
        wire, source, reader.is_behind = self._wire, reader.source, False
        stream = wire.streams.get(reader.stream)
        if stream is None or stream.is_answered:
            self._forget(reader)
            return 0
        if stream.is_clear and reader.at < source.base:
            self._end_slow(reader, stream)
            return 1
        if not stream.is_clear or (self._partial and reader.stream in self._partial):
            self._stalled[reader.stream] = reader
            return 0
        if not stream.has_reply and source.head is not None:
            self._send_head(stream, source.head)
        size = 1
        if reader.at < source.next:
            payload, following = source.take(reader.at)
            size = len(payload)
            if not wire.replies.put_whole(stream.id, payload):
                return self._wait(reader, stream, payload, following)
            reader.at = following
        if reader.at < source.next:
            self._queue(reader)
        elif source.is_over:
            self._end(reader, stream)
        return size

    def _wait(self, reader: _Reader, stream: Stream, payload: bytes, following: int) -> int:
        """There is no window for all of a payload."""
        replies, ledger = self._wire.replies, self._wire.replies.ledger(stream.id)
        window = 0 if ledger is None else ledger.window
        if len(payload) <= min(DEFAULT_FRAME_BYTES, window):
            return -1
        if window < DEFAULT_FRAME_BYTES or len(self._partial) >= MAX_PARTIAL:
            self._stalled[stream.id] = reader
            return 0
        # Large: in parts, as the windows allow.
        replies.put(stream.id, payload)
        reader.at = following
        if replies.is_waiting(stream.id):
            self._partial.add(stream.id)
            self._stalled[stream.id] = reader
        else:
            self._queue(reader)
        return len(payload)

    def _queue(self, reader: _Reader) -> None:
        if not reader.is_behind:
            reader.is_behind = True
            self._behind.append(reader)

    def _forget(self, reader: _Reader) -> None:
        self.readers.pop(reader.stream, None)
        self._stalled.pop(reader.stream, None)
        self._partial.discard(reader.stream)

    # ------------------------------------------------------------------ head and end

    def _send_head(self, stream: Stream, head: Headers) -> None:
        replies = self._wire.replies
        stream.has_reply = True
        raw = write_headers(stream.id, write_fields(head), replies.frame_bytes, False)
        replies.put(stream.id, b"", raw=raw)

    def _end(self, reader: _Reader, stream: Stream) -> None:
        """As the source has ended."""
        source = reader.source
        if source.end is None:
            self._finish(reader, stream, _reset(stream.id, source.reset or 0), UNKNOWN)
            return
        # With a response there has been a :status already.
        fields = [field for field in source.end if not (stream.has_reply and field[0].startswith(b":"))]
        code, _details = status_of(source.end)
        self._finish(reader, stream, self._trailers(stream, write_fields(fields)), code or 0)

    def _end_slow(self, reader: _Reader, stream: Stream) -> None:
        """What it is to have next is not kept any more."""
        if self._wire.replies.is_waiting(
            stream.id
        ):  # it has part of a message, behind which there are no trailers
            self._wire.replies.close(stream.id)
            raw = _reset(stream.id, Error.ENHANCE_YOUR_CALM)  # gRPC reads RESOURCE_EXHAUSTED
        else:
            block = b"" if stream.has_reply else write_response()
            raw = self._trailers(stream, block + write_trailers(RESOURCE_EXHAUSTED, TOO_SLOW))
        self._finish(reader, stream, raw, RESOURCE_EXHAUSTED)

    def _trailers(self, stream: Stream, block: bytes) -> bytes:
        raw = write_headers(stream.id, block, self._wire.replies.frame_bytes, True)
        return raw if stream.client_done else raw + write_reset(stream.id, Error.NO_ERROR)

    def _finish(self, reader: _Reader, stream: Stream, raw: bytes, code: int) -> None:
        wire = self._wire
        wire.end(stream, code, "")
        stream.is_answered = True
        # Until the client has read this, frames of it may come that are not for the runtime.
        wire.replies.put(stream.id, b"", raw=raw + wire.ping_client(lambda: wire.forget(stream)))
        self._forget(reader)


def _reset(stream: int, code: int) -> bytes:
    return write_frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))
