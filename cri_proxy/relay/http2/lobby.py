"""Where a connection is until it has something for the runtime: it is greeted, and costs no connection to the runtime.

A client that has said no more than its preface and its settings waits for nothing but SETTINGS of the server, which
come from here; the runtime's follow with the first call. What was said is kept for the runtime as it came.
"""

from __future__ import annotations

from cri_proxy.relay.http2.frames import (
    HEAD,
    HEAD_BYTES,
    PREFACE,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    Buffer,
    write_settings,
)

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
        self.is_over = self._has_said_more() or not self.is_http2 or len(self.early) > MOST_BYTES
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
