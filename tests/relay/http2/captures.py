"""What was recorded of real clients and servers (tests/data/http2), and its replay through a relay."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import cycle, groupby
from pathlib import Path
from typing import NamedTuple, Optional

from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.wire import Closing, Ended, ReplyReceived, RequestReceived

FOLDER = Path(__file__).parents[2] / "data" / "http2"


class Capture(NamedTuple):
    """A connection: for each piece whether it is the client's, and the bytes. No two neighbours are of one side."""

    name: str
    pieces: list[tuple[bool, bytes]]

    def said(self, by_client: bool) -> bytes:
        """All that one side has said."""
        return b"".join(data for is_client, data in self.pieces if is_client is by_client)


def captures() -> Iterator[Capture]:
    """All that were recorded."""
    for file in sorted(FOLDER.glob("*.json.gz")):
        for title, chunks in json.loads(gzip.decompress(file.read_bytes())).items():
            decoded = [(who == "client", base64.b64decode(data)) for who, data in chunks]
            turns = [
                (is_client, b"".join(data for _, data in turn))
                for is_client, turn in groupby(decoded, lambda chunk: chunk[0])
            ]
            yield Capture(f"{file.name.partition('.')[0]}: {title}", turns)


class Replay:
    """A relay between the two sides of a capture; ``sizes``: of the pieces that it reads, over and over.

    ``delta``: what is appended to every request; None: no call is intercepted. Decisions are made at once, because
    what the runtime has answered is recorded already.
    """

    def __init__(self, capture: Capture, sizes: Iterable[int], delta: Optional[bytes] = None) -> None:
        self.relay = RelayedConnection(lambda method: None if delta is None else object())
        self.to_runtime, self.to_client = bytearray(), bytearray()
        self.asked: list[bytes] = []
        self.observed: list[bytes] = []
        self.began: list[object] = []
        self.ended: list[object] = []
        #: How much has come of each side.
        self.read = {True: 0, False: 0}
        self._capture = capture
        self._sizes = cycle(sizes)
        self._delta = delta or b""

    def run(self) -> Iterator[None]:
        """Read piece by piece; the caller looks after each."""
        for is_client, data in self._capture.pieces:
            at = 0
            while at < len(data):
                piece = data[at : at + next(self._sizes)]
                at += len(piece)
                self.read[is_client] += len(piece)
                (self.relay.from_client if is_client else self.relay.from_runtime)(piece, 0.0)
                self._act()
                yield

    def lose_client(self) -> None:
        """The client is gone: calls that have not ended do now."""
        self.relay.client_lost()
        self._act()

    def _act(self) -> None:
        while events := self.relay.take_events():
            for event in events:
                if isinstance(event, RequestReceived):
                    self.asked.append(event.message)
                    self.began.append(event.call)
                    self.relay.forward(event.stream, self._delta)
                    # The runtime gives back what it is sent; what was recorded knows nothing of the delta.
                    self.relay._wire.requests.connection.window += len(self._delta)
                elif isinstance(event, ReplyReceived):
                    self.observed += event.messages
                elif isinstance(event, Ended):
                    self.ended.append(event.call)
                else:
                    assert isinstance(event, Closing) and not event.is_doubt, event
            self.relay.resume()
        for buffer, out in ((self.relay.to_client, self.to_client), (self.relay.to_runtime, self.to_runtime)):
            for part in buffer:
                out += part
            buffer.clear()
