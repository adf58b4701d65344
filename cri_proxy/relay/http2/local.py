"""A small HTTP/2 end of our own, for while there is no runtime: every call is answered UNAVAILABLE.

A client that is told so calls again over the same connection; one that cannot connect backs off for seconds.
No header block is decoded: what is in it does not matter, and no reply refers to a table.
"""

from __future__ import annotations

from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    DEFAULT_FRAME_BYTES,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
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
