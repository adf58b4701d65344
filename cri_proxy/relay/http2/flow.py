"""Flow control (RFC 9113, 5.2 and 6.9) of a relay between a sender and a receiver.

Each connection and each intercepted stream has two ledgers in each direction: the *window* that the receiver gives
us, and the window that the sender believes it has. As long as bytes only pass, the two are the same. The difference
is the ``surplus``, and every event has one effect on it:

1. DATA is kept back: the sender's window shrinks, the receiver's does not: surplus - n;
2. credit is granted that the receiver has not given: surplus + n;
3. DATA of ours, or kept back before, is sent: surplus + n;
4. the receiver's WINDOW_UPDATE is kept back: surplus - n.

While there is a surplus the sender may send more than the receiver takes, so updates are kept back (4) until it is
gone, and what does not fit into the window waits.

What the sender believes to have is counted for its own sake, too: every credit has gone by here before it knew of it,
so a sender of more than that ignores the window (6.9.1), and what it sends would be kept here without an end.
"""

from __future__ import annotations

from collections import deque
from typing import Optional

from cri_proxy.relay.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_STREAM,
    HEAD,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    Buffer,
    Error,
    ProtocolError,
    write_window_update,
)
from policies.frozen import dataclass

#: SETTINGS on their way. A peer that adapts a window sends the next when the last is confirmed.
MAX_UNCONFIRMED = 32


class ReceiveWindow:
    """What one receiver gives (``window``), and how much more its sender believes to have (``surplus``)."""

    __slots__ = ("surplus", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.surplus = 0

    @property
    def sender_window(self) -> int:
        """The window as the sender sees it."""
        return self.window + self.surplus


@dataclass
class _Piece:
    """Bytes that wait. ``raw``: whole frames that are sent behind them, whatever the window.

    ``is_owed``: they are the sender's, which was given no credit for them yet.
    """

    payload: Buffer
    end_stream: bool
    raw: bytes
    is_owed: bool


class Outlet:
    """DATA on its way to one receiver. ``out`` takes what is sent, ``back`` what the sender is told.

    ``sender``: the word for it in what is said of its faults.
    """

    def __init__(self, out: list[Buffer], back: list[Buffer], sender: str = "the sender") -> None:
        self.connection = ReceiveWindow(DEFAULT_WINDOW)
        #: The largest frame the receiver takes, and the largest it has ever said it takes.
        self.frame_bytes = self.largest_frame = DEFAULT_FRAME_BYTES
        self._initial = DEFAULT_WINDOW
        #: How much more than ``_initial`` a sender may have that has read SETTINGS it has not confirmed, or has not.
        self._slack = 0
        self._confirmed = (DEFAULT_WINDOW, DEFAULT_FRAME_BYTES)
        self._expected: deque[tuple[int, int]] = deque()
        #: Confirmations of the sender's that wait behind what it has sent before them.
        self._confirmations: deque[Buffer] = deque()
        self._streams: dict[int, ReceiveWindow] = {}
        self._waiting: dict[int, deque[_Piece]] = {}
        #: What the sender of a stream gets when nothing of it waits any more.
        self._owed: dict[int, int] = {}
        self.waiting_bytes = 0
        self._out = out
        self._back = back
        self._sender = sender

    # ------------------------------------------------------------------ streams

    def open(self, stream: int) -> None:
        """Keep ledgers for a stream. Others are only counted on the connection."""
        self._streams[stream] = ReceiveWindow(self._initial)

    def ledger(self, stream: int) -> Optional[ReceiveWindow]:
        return self._streams.get(stream)

    def is_waiting(self, stream: int) -> bool:
        """Whether bytes of a stream wait for the receiver."""
        return stream in self._waiting

    def close(self, stream: int) -> None:
        """Forget a stream. What waits is dropped; the sender gets its credit back."""
        self._streams.pop(stream, None)
        self._owed.pop(stream, None)
        if stream in self._waiting:
            pieces = self._waiting.pop(stream)
            self.waiting_bytes -= sum(len(piece.payload) for piece in pieces)
            self.grant(0, sum(len(piece.payload) for piece in pieces if piece.is_owed))
            self._send_confirmations()

    # ------------------------------------------------------------------ from the sender

    def passes(self, stream: int, size: int) -> bool:
        """Whether a DATA frame of ``size`` bytes may pass now; it is counted then.

        :raises ProtocolError: the sender was not given so much.
        """
        connection, ledger = self.connection, self._streams.get(stream)
        if size > connection.window + connection.surplus or ledger is not None:
            self._check(stream, size, ledger)
        if connection.surplus > 0 or (ledger is not None and ledger.surplus > 0) or self._waiting:
            room = connection.window if ledger is None else min(connection.window, ledger.window)
            # Where there is no surplus the sender knows best: it may have heard of a change before us.
            if stream in self._waiting or (size > room and self._has_surplus(ledger)):
                return False
        connection.window -= size
        if ledger is not None:
            ledger.window -= size
        return True

    def keep(self, stream: int, size: int) -> None:
        """DATA of ``size`` bytes, padding included, has come and does not pass.

        :raises ProtocolError: the sender was not given so much.
        """
        ledger = self._streams.get(stream)
        self._check(stream, size, ledger)
        self.connection.surplus -= size
        if ledger is not None:
            ledger.surplus -= size

    def drop(self, size: int) -> None:
        """DATA of a stream that is over has come, which goes nowhere; its windows are of no interest any more.

        :raises ProtocolError: the sender was not given so much on the connection.
        """
        self._check(0, size, None)
        self.connection.surplus -= size
        self.grant(0, size)

    def _check(self, stream: int, size: int, ledger: Optional[ReceiveWindow]) -> None:
        """:raises ProtocolError: a sender ignores the windows it was given (6.9.1). An empty frame needs none."""
        if size > self.connection.sender_window and size:
            self._doubt(size, 0, self.connection.sender_window)
        if ledger is not None and size > ledger.sender_window + self._slack and size:
            self._doubt(size, stream, ledger.sender_window + self._slack)

    def _doubt(self, size: int, stream: int, window: int) -> None:
        where = f"stream {stream}" if stream else "the connection"
        raise ProtocolError(
            Error.FLOW_CONTROL_ERROR,
            f"{self._sender} ignores flow control: DATA of {size} bytes where {where} has a window of {window}",
        )

    def grant(self, stream: int, credit: int) -> None:
        """Give the sender credit in the receiver's stead; stream 0 is the connection."""
        if credit > 0:
            ledger = self._streams[stream] if stream else self.connection
            ledger.surplus += credit
            self._back.append(write_window_update(stream, credit))

    def give_back(self, stream: int, size: int) -> None:
        """Credit for bytes that were kept and will never be sent: padding."""
        self.grant(0, size)
        if stream in self._streams:
            self.grant(stream, size)

    def repay(self, stream: int, size: int) -> None:
        """Credit for bytes that were kept and are sent later: of a stream only when nothing of it waits.

        Else a receiver that takes nothing would be sent for without end.
        """
        self.grant(0, size)
        if stream in self._waiting:
            self._owed[stream] = self._owed.get(stream, 0) + size
        elif stream in self._streams:
            self.grant(stream, size)

    # ------------------------------------------------------------------ to the receiver

    def put(self, stream: int, payload: Buffer, end_stream: bool = False, raw: bytes = b"") -> None:
        """Send bytes that were kept, or are ours, as soon as there is a window for them; then ``raw``."""
        self._put(stream, _Piece(memoryview(payload), end_stream, raw, False))

    def delay(self, stream: int, payload: Buffer, size: int, end_stream: bool) -> None:
        """Keep a DATA frame of ``size`` bytes that does not pass now, until it does; without its padding."""
        self.keep(stream, size)
        self.give_back(stream, size - len(payload))
        self._put(stream, _Piece(memoryview(payload), end_stream, b"", True))

    def _put(self, stream: int, piece: _Piece) -> None:
        self._waiting.setdefault(stream, deque()).append(piece)
        self.waiting_bytes += len(piece.payload)
        self._send(stream)

    def credit(self, stream: int, credit: int) -> int:
        """The receiver gives credit. What of it is for the sender to know.

        :raises ProtocolError: more than a window can have (6.9.1).
        """
        ledger = self._streams.get(stream) if stream else self.connection
        if ledger is None:
            return credit
        if ledger.window + credit > MAX_WINDOW:
            raise ProtocolError(
                Error.FLOW_CONTROL_ERROR,
                f"WINDOW_UPDATE of {credit} on stream {stream}, whose window is {ledger.window}: more than {MAX_WINDOW}",
            )
        ledger.window += credit
        if self._waiting:
            self.send()
        kept = max(0, min(credit, ledger.surplus))
        ledger.surplus -= kept
        return credit - kept

    def send(self) -> None:
        """Send what waits and has a window now."""
        for stream in list(self._waiting):
            self._send(stream)

    def _send(self, stream: int) -> None:
        pieces, ledger = self._waiting[stream], self._streams.get(stream)
        while pieces:
            piece = pieces[0]
            if not self._send_payload(stream, piece, ledger):
                return
            if piece.raw:
                self._out.append(piece.raw)
            pieces.popleft()
        del self._waiting[stream]
        if stream in self._owed:
            self.grant(stream, self._owed.pop(stream))
        self._send_confirmations()

    def _send_payload(self, stream: int, piece: _Piece, ledger: Optional[ReceiveWindow]) -> bool:
        """False: there is more of it than window."""
        while len(piece.payload) or piece.end_stream:
            room = min(self.connection.window, self.frame_bytes)
            # A window may be negative, and an end without bytes needs none.
            size = max(0, min(len(piece.payload), room if ledger is None else min(room, ledger.window)))
            if not size and len(piece.payload):
                return False
            is_last = piece.end_stream and size == len(piece.payload)
            self._out.append(HEAD.pack(size << 8 | DATA, END_STREAM if is_last else 0, stream))
            self._out.append(piece.payload[:size])
            piece.payload = piece.payload[size:]
            self.waiting_bytes -= size
            piece.end_stream = piece.end_stream and not is_last
            for book in (self.connection,) if ledger is None else (self.connection, ledger):
                book.window -= size
                book.surplus += size
        return True

    def _has_surplus(self, ledger: Optional[ReceiveWindow]) -> bool:
        return self.connection.surplus > 0 or (ledger is not None and ledger.surplus > 0)

    # ------------------------------------------------------------------ settings

    def expect(self, settings: list[tuple[int, int]]) -> None:
        """The receiver has sent SETTINGS. They hold when the sender has confirmed them; less holds at once (6.5.3).

        :raises ProtocolError: too many are not confirmed, or a window gets larger than one can be (6.9.2).
        """
        window, frame_bytes = self._expected[-1] if self._expected else self._confirmed
        for name, value in settings:
            if name == INITIAL_WINDOW_SIZE:
                window = value
            elif name == MAX_FRAME_SIZE:
                frame_bytes = value
        if len(self._expected) == MAX_UNCONFIRMED:
            raise ProtocolError(
                Error.ENHANCE_YOUR_CALM, f"more than {MAX_UNCONFIRMED} SETTINGS that are not confirmed"
            )
        self._expected.append((window, frame_bytes))
        self.largest_frame = max(self.largest_frame, frame_bytes)
        self._apply()

    def confirm(self, acknowledgement: Buffer) -> None:
        """The sender has confirmed the oldest SETTINGS. The receiver is told so, with what it has sent before.

        The windows are not counted of streams that are not opened here: a receiver that has made them smaller, and is
        told that its sender knows, would take what waits for too much.
        """
        self._confirmations.append(acknowledgement)
        self._send_confirmations()

    def _send_confirmations(self) -> None:
        expected = self._expected
        while self._confirmations:
            if self._waiting and expected and expected[0][0] < self._confirmed[0]:
                return
            self._out.append(self._confirmations.popleft())
            if expected:
                self._confirmed = expected.popleft()
                self._apply()

    def _apply(self) -> None:
        possible = (self._confirmed, *self._expected)
        initial = min(window for window, _ in possible)
        self._slack = max(window for window, _ in possible) - initial
        self.frame_bytes = min(frame_bytes for _, frame_bytes in possible)
        change, self._initial = initial - self._initial, initial
        # A window may become negative; it is then waited for (6.9.2).
        for stream, ledger in self._streams.items():
            ledger.window += change
            if ledger.window > MAX_WINDOW:
                raise ProtocolError(
                    Error.FLOW_CONTROL_ERROR,
                    f"SETTINGS make the window of stream {stream} {ledger.window}: more than {MAX_WINDOW}",
                )
        if change > 0 and self._waiting:
            self.send()
