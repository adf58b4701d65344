"""What the two directions of a relayed connection share: its streams and what is told of them, its windows, what is to be
written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, Callable, Optional, Union

from cri_proxy.relay.http2.flow import Outlet
from cri_proxy.relay.http2.frames import (
    ACK,
    ANY_STREAM,
    PING,
    Buffer,
    Error,
    ProtocolError,
    write_frame,
    write_settings,
)
from cri_proxy.relay.http2.headers import HeaderReader
from cri_proxy.relay.http2.messages import Hold, ReplyHold
from cri_proxy.relay.interception import CallEnd
from policies.frozen import dataclass


class Stage(Enum):
    """How far an intercepted stream is. All others are PASSING from the start."""

    HOLDING = "holding"  # the request comes, nothing was sent on but its headers
    DECIDING = "deciding"  # its first message is there
    PASSING = "passing"  # the request was sent, what follows passes
    TAKEN = "taken"  # ended at the runtime; what the client gets is made here


class Stream:
    """One open stream. The fields from ``call`` on are of intercepted ones."""

    __slots__ = (
        "answer",
        "asked_bytes",
        "call",
        "client_done",
        "has_reply",
        "headers",
        "hold",
        "id",
        "is_answered",
        "is_clear",
        "method",
        "reader",
        "stage",
        "taken_s",
    )

    def __init__(self, stream: int, method: str) -> None:
        self.id = stream
        self.method = method
        self.stage = Stage.PASSING
        #: The client has sent END_STREAM.
        self.client_done = False
        #: Response headers have gone to the client.
        self.has_reply = False
        #: Whatever the shell knows the call by; None: the stream is not intercepted.
        self.call: Any = None
        #: The request's, as names and values.
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.hold: Optional[Hold] = None
        self.reader: Optional[ReplyHold] = None
        #: Of the message that was asked about.
        self.asked_bytes = 0
        #: TAKEN: since when; nothing more comes from the runtime; what waits for that; its end was said.
        self.taken_s = 0.0
        self.is_clear = False
        self.answer: list[Callable[[], None]] = []
        self.is_answered = False


@dataclass(frozen=True)
class RequestReceived:
    """The request of an intercepted stream is whole. It waits for ``forward`` or ``take_over``."""

    stream: int
    call: Any
    message: bytes


@dataclass(frozen=True)
class ReplyReceived:
    """Messages of a reply, not sent on yet. The runtime's side waits for ``resume``."""

    call: Any
    messages: tuple[bytes, ...]


@dataclass(frozen=True)
class Ended:
    """An intercepted call that was asked about is over. ``waits``: the runtime's side waits for ``resume``."""

    stream: int
    call: Any
    end: CallEnd
    code: int
    details: str
    waits: bool = False


@dataclass(frozen=True)
class FailedOpen:
    """A request of an intercepted stream was sent on unseen."""

    method: str
    reason: str


@dataclass(frozen=True)
class Closing:
    """The connection ends: write what there is, then close."""

    reason: str
    is_doubt: bool = False


@dataclass(frozen=True)
class FarewellRead:
    """The client has read that it is to begin no calls here."""


Event = Union[RequestReceived, ReplyReceived, Ended, FailedOpen, Closing, FarewellRead]


#: So many at once; nghttp2 takes 1,000 resets. A client of 1,000 streams of events may end all of them.
BURST = 2_000
#: So many a second; nghttp2 takes 33 resets.
PER_S = 100.0


class Patience:
    """How much of what brings no call on is taken from a client: resets, pings, frames without anything in them.

    All of it is allowed, and all of it costs the receiver more than the sender (CVE-2019-9512 to 9518, CVE-2023-44487).
    """

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since_s = 0.0

    def spend(self, now_s: float, what: str) -> None:
        """A frame has come that brings no call on; ``what`` is its name.

        :raises ProtocolError: there were too many.
        """
        self._left = min(BURST, self._left + max(0.0, now_s - self._since_s) * PER_S)
        self._since_s = now_s
        if self._left < 1:
            raise ProtocolError(
                Error.ENHANCE_YOUR_CALM,
                f"{what}: more than {BURST} frames that bring no call on, and more than {PER_S:g} a second",
            )
        self._left -= 1

    def regain(self) -> None:
        """A call was answered: a client may reset as many as it makes, if it has their answers first."""
        self._left = min(BURST, self._left + 1)


#: What is kept of all streams of a connection.
MAX_HELD_BYTES = 64 << 20
#: What a call has in memory besides its messages, its task and its decision included, about.
STREAM_BYTES = 4096
CLIENT_GONE = "the client went away"

#: What the payload of our own pings begins with.
PING_MARK = b"cri>"


class Wire:
    """``to_client``, ``to_runtime`` and ``events`` are taken away by the connection's owner."""

    def __init__(self) -> None:
        self.to_client: list[Buffer] = []
        self.to_runtime: list[Buffer] = []
        self.events: list[Event] = []
        self.streams: dict[int, Stream] = {}
        #: Those that are intercepted or were taken over.
        self.watched: set[int] = set()
        #: Both directions' header tables, each followed by the reader of all its blocks.
        self.request_headers, self.reply_headers = HeaderReader(), HeaderReader()
        self.requests = Outlet(self.to_runtime, self.to_client, "the client")
        self.replies = Outlet(self.to_client, self.to_runtime, "the runtime")
        #: The client has got SETTINGS, which must come before everything else (RFC 9113, 3.4).
        self.is_greeted = False
        self.patience = Patience()
        self.held_bytes = 0
        #: Of the messages that were asked about, until their calls are over: interceptions may keep them.
        self.asked_bytes = 0
        self.now_s = 0.0
        #: The last stream that the client has begun, and the last that it was told is served.
        self.last_stream = 0
        self.served_to = ANY_STREAM
        self._pings: dict[bytes, Callable[[], None]] = {}
        self._pinged = 0
        #: SETTINGS that the runtime has not acknowledged; None: the client's.
        self._settings: deque[Optional[Callable[[], None]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether more is kept of a connection than may be: held, or waiting for a window."""
        return self.held_bytes + self.requests.waiting_bytes + self.replies.waiting_bytes > MAX_HELD_BYTES

    def forget(self, stream: Stream) -> None:
        """The stream is over."""
        if self.streams.pop(stream.id, None) is stream:
            self.asked_bytes -= stream.asked_bytes
        self.watched.discard(stream.id)
        self.drop_hold(stream)
        self.requests.close(stream.id)
        self.replies.close(stream.id)

    def drop_hold(self, stream: Stream) -> None:
        if stream.hold is not None:
            self.held_bytes -= len(stream.hold.data) + stream.hold.inflated_bytes
            stream.hold = None
        if stream.reader is not None:
            self.held_bytes -= len(stream.reader.data)
            stream.reader = None

    def end(
        self, stream: Stream, code: int, details: str, end: CallEnd = CallEnd.UNKNOWN, waits: bool = False
    ) -> None:
        """Tell that an intercepted call is over, if it was asked about; what was not sent has not happened."""
        if stream.call is None or stream.stage is Stage.HOLDING:
            return
        if stream.stage is Stage.DECIDING:
            end = CallEnd.REFUSED
        self.events.append(Ended(stream.id, stream.call, end, code, details, waits))
        stream.call = None  # it ends once

    # ------------------------------------------------------------------ has the other side read it?

    def ping_client(self, answered: Callable[[], None]) -> bytes:
        """A PING for the client; ``answered`` is called when all that was sent before has been read."""
        self._pinged += 1
        payload = PING_MARK + self._pinged.to_bytes(4, "big")
        self._pings[payload] = answered
        return write_frame(PING, 0, 0, payload)

    def is_answer_of_client(self, flags: int, payload: bytes) -> bool:
        """Whether a PING frame of the client is the answer to one of ours, which is seen to."""
        if not flags & ACK or payload not in self._pings:
            return False
        self._pings.pop(payload)()
        return True

    def probe_runtime(self, answered: Callable[[], None]) -> bytes:
        """Empty SETTINGS for the runtime. ``answered``: what it sent before it read them has come.

        Not a PING: gRPC's servers end a connection on which three come while they have nothing to send.
        """
        self._settings.append(answered)
        return write_settings()

    def note_client_settings(self) -> None:
        """SETTINGS of the client pass."""
        self._settings.append(None)

    def is_answer_of_runtime(self) -> bool:
        """Whether an acknowledgement of SETTINGS is for ours, which is seen to; they come in order (RFC 9113, 6.5.3)."""
        answered = self._settings.popleft() if self._settings else None
        if answered is None:
            return False
        answered()
        return True
