"""Where a connection is until it has something for the runtime: it is greeted, and costs no connection to the runtime.

A client that has said no more than its preface and its settings waits for nothing but SETTINGS of the server, which
come from here; the runtime's follow with the first call. What was said is kept for the runtime as it came.
"""

from __future__ import annotations

from cri_proxy.relay.frame_reader import PREFACE_BYTES, FrameReader
from cri_proxy.relay.http2.frames import PREFACE, SETTINGS, WINDOW_UPDATE, Buffer, write_settings

#: More than this is not said before a first call, and not kept for one.
MOST_BYTES = 4_096
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
        self._frames = FrameReader(skip=PREFACE_BYTES)

    @property
    def has_begun(self) -> bool:
        """Whether the client has said that it speaks HTTP/2."""
        return len(self.early) >= PREFACE_BYTES and self.is_http2

    @property
    def is_http2(self) -> bool:
        """Whether what the client has said is a preface, as far as it goes."""
        return PREFACE.startswith(self.early[:PREFACE_BYTES])

    def from_client(self, data: bytes) -> None:
        """Bytes of the client."""
        self.early += data
        frames = self._frames.read(data)
        if self.has_begun and not self.is_greeted:
            self.is_greeted = True
            self.to_client.append(write_settings())
        # The head of a frame of another kind would do; its end is never far.
        said_more = any(frame.kind not in _QUIET or frame.stream for frame in frames)
        self.is_over = said_more or not self.is_http2 or len(self.early) > MOST_BYTES
