"""Two small HTTP/2 ends of our own: for a client that has nothing for the runtime yet, and for one that finds none.

``Lobby``: a client that has said no more than its preface and its settings waits for nothing but SETTINGS of the server,
which come from here and cost no connection to the runtime; the runtime's follow with the first call. ``LocalEnd``: every
call is answered UNAVAILABLE. A client that is told so calls again over the same connection; one that cannot connect backs
off for seconds. No header block is decoded: what is in it does not matter, and no reply refers to a table.
"""

from __future__ import annotations

from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    DEFAULT_FRAME_BYTES,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    Buffer,
    Error,
    ProtocolError,
    write_frame,
    write_goaway,
    write_headers,
    write_reset,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.headers import write_response, write_trailers
from cri_proxy.relay.http2.pipe import Frame, Pipe
from cri_proxy.relay.status import Code

NO_RUNTIME = "the container runtime is not there; cri-resmgr looks for it every 100 ms"
#: More than this is not said before a first call, and not kept for one.
MOST_EARLY_BYTES = 4_096
#: Frames that neither the client nor the runtime waits for an answer to but what the greeting is.
_QUIET = frozenset([SETTINGS, WINDOW_UPDATE])


class Lobby:
    """``is_greeted``: the client has got a SETTINGS frame already. The caller writes and empties ``to_client``."""

    def __init__(self, is_greeted: bool = False) -> None:
        self.to_client: list[Buffer] = []
        #: All that the client has said.
        self.early = b""
        self.is_greeted = is_greeted
        #: The client has begun something, or what it says is not HTTP/2: the lobby is left, with ``early``.
        self.is_over = False
        #: Where in ``early`` the first frame begins that is not whole yet.
        self._at = len(PREFACE)

    @property
    def has_begun(self) -> bool:
        """Whether the client has said that it speaks HTTP/2."""
        return len(self.early) >= len(PREFACE) and self.is_http2

    @property
    def is_http2(self) -> bool:
        """Whether what the client has said is a preface, as far as it goes."""
        return PREFACE.startswith(self.early[: len(PREFACE)])

    @property
    def kept_bytes(self) -> int:
        """What the client has said."""
        return len(self.early)

    def from_client(self, data: bytes) -> int:
        """Bytes of the client; what they cost is next to nothing, 0."""
        self.early += data
        if self.has_begun and not self.is_greeted:
            self.is_greeted = True
            self.to_client.append(write_settings())
        self.is_over = self._has_said_more() or not self.is_http2 or len(self.early) > MOST_EARLY_BYTES
        return 0

    def _has_said_more(self) -> bool:
        """Whether a frame has come that the greeting does not answer."""
        # The head of such a frame would do; its end is never far.
        while len(self.early) >= self._at + HEAD_BYTES:
            length_kind, _flags, stream = HEAD.unpack_from(self.early, self._at)
            end = self._at + HEAD_BYTES + (length_kind >> 8)
            if len(self.early) < end:
                break
            if length_kind & 0xFF not in _QUIET or stream & STREAM_MASK:
                return True
            self._at = end
        return False


class LocalEnd:
    """``is_greeted``: the client has got a SETTINGS frame already. ``why``: what every call is told.

    ``to_client`` is emptied by what writes it.
    """

    def __init__(self, is_greeted: bool = False, why: str = NO_RUNTIME) -> None:
        self.to_client: list[Buffer] = [] if is_greeted else [write_settings()]
        #: Set when the connection is to be closed.
        self.is_over = False
        self._why = why
        self._last = 0
        self._preface = b""
        # What the pipe passes on goes nowhere.
        self._pipe = Pipe(self._handle, [])

    @property
    def has_begun(self) -> bool:
        """Whether the client has said that it speaks HTTP/2."""
        return len(self._preface) == len(PREFACE)

    @property
    def kept_bytes(self) -> int:
        """What has come and is not whole."""
        return self._pipe.unhandled_bytes

    def from_client(self, data: bytes) -> int:
        """Bytes of the client. What they have cost: frames."""
        missing = len(PREFACE) - len(self._preface)
        self._preface += data[:missing]
        if self.is_over:
            return 0
        try:
            if not PREFACE.startswith(self._preface):
                raise ProtocolError(Error.PROTOCOL_ERROR, "the client does not speak HTTP/2")
            self._pipe.read(data[missing:])
        except ProtocolError as doubt:
            self.to_client.append(write_goaway(self._last, doubt.code, str(doubt)))
            self.is_over = True
        work, self._pipe.work = self._pipe.work, 0
        return work

    def say_farewell(self) -> None:
        """Send the client away, to connect again."""
        if not self.is_over and self.has_begun:
            self.to_client.append(write_goaway(self._last, Error.NO_ERROR))
        self.is_over = True

    def _handle(self, frame: Frame) -> bytes:
        if frame.kind == HEADERS and frame.stream > self._last:
            self._last = frame.stream
            self._refuse(frame)
        elif frame.kind == DATA and frame.size:
            self.to_client.append(write_window_update(0, frame.size))
        elif frame.kind == SETTINGS and not frame.flags & ACK:
            self.to_client.append(write_frame(SETTINGS, ACK, 0))
        elif frame.kind == PING and not frame.flags & ACK:
            self.to_client.append(write_frame(PING, ACK, 0, frame.payload))
        return b""

    def _refuse(self, frame: Frame) -> None:
        block = write_response() + write_trailers(Code.UNAVAILABLE, self._why)
        self.to_client.append(write_headers(frame.stream, block, DEFAULT_FRAME_BYTES, True))
        if not frame.flags & END_STREAM:
            self.to_client.append(write_reset(frame.stream, Error.NO_ERROR))
