"""What the two directions of a relayed connection share: its streams, its windows, what is to be written."""

from __future__ import annotations

from typing import Callable

from cri_proxy.core.http2.flow import Outlet
from cri_proxy.core.http2.frames import ACK, ANY_STREAM, PING, Buffer, write_frame
from cri_proxy.core.http2.stream import Ended, Event, Stage, Stream
from cri_proxy.core.interception import End

#: What is held of all streams of a connection.
MAX_HELD_BYTES = 64 << 20
CLIENT_GONE = "the client went away"

_TO_CLIENT, _TO_RUNTIME = b"cri>", b"cri<"


class Wire:
    """``to_client``, ``to_runtime`` and ``events`` are taken away by whoever owns the connection."""

    def __init__(self) -> None:
        self.to_client: list[Buffer] = []
        self.to_runtime: list[Buffer] = []
        self.events: list[Event] = []
        self.streams: dict[int, Stream] = {}
        self.requests = Outlet(self.to_runtime, self.to_client)
        self.replies = Outlet(self.to_client, self.to_runtime)
        #: The client has got SETTINGS, which must come before everything else (RFC 9113, 3.4).
        self.is_greeted = False
        self.held_bytes = 0
        self.now_s = 0.0
        #: The last stream that the client has begun, and the last that it was told is served.
        self.last_stream = 0
        self.served_to = ANY_STREAM
        self._pings: dict[bytes, Callable[[], None]] = {}
        self._pinged = 0

    def forget(self, stream: Stream) -> None:
        """The stream is over."""
        self.streams.pop(stream.id, None)
        self.drop_hold(stream)
        self.requests.close(stream.id)
        self.replies.close(stream.id)

    def drop_hold(self, stream: Stream) -> None:
        if stream.hold is not None:
            self.held_bytes -= len(stream.hold.data)
            stream.hold = None
        if stream.reader is not None:
            self.held_bytes -= stream.reader.kept_bytes
            stream.reader = None

    def end(
        self, stream: Stream, code: int, details: str, end: End = End.UNKNOWN, waits: bool = False
    ) -> None:
        """Tell that an intercepted call is over, if it was asked about; what was not sent has not happened."""
        if stream.call is None or stream.stage is Stage.HOLDING:
            return
        if stream.stage is Stage.DECIDING:
            end = End.REFUSED
        self.events.append(Ended(stream.id, stream.call, end, code, details, waits))

    # ------------------------------------------------------------------ has the other side read it?

    def ping_client(self, answered: Callable[[], None]) -> bytes:
        """A PING for the client; ``answered`` is called when all that was sent before has been read."""
        return self._ping(_TO_CLIENT, answered)

    def ping_runtime(self, answered: Callable[[], None]) -> bytes:
        """The same for the runtime. Frames come in order: what it sent before it read the PING has come, too."""
        return self._ping(_TO_RUNTIME, answered)

    def _ping(self, to: bytes, answered: Callable[[], None]) -> bytes:
        self._pinged += 1
        payload = to + self._pinged.to_bytes(4, "big")
        self._pings[payload] = answered
        return write_frame(PING, 0, 0, payload)

    def is_answer_of_client(self, flags: int, payload: bytes) -> bool:
        """Whether a PING frame of the client is the answer to one of ours, which is seen to."""
        return payload.startswith(_TO_CLIENT) and self._is_answer(flags, payload)

    def is_answer_of_runtime(self, flags: int, payload: bytes) -> bool:
        return payload.startswith(_TO_RUNTIME) and self._is_answer(flags, payload)

    def _is_answer(self, flags: int, payload: bytes) -> bool:
        if not flags & ACK or payload not in self._pings:
            return False
        self._pings.pop(payload)()
        return True
