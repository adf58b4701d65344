"""How much of what brings no call on is taken from a client: resets, pings, frames without anything in them.

All of it is allowed, and all of it costs the receiver more than the sender (CVE-2019-9512 to 9518, CVE-2023-44487).
"""

from __future__ import annotations

from cri_proxy.relay.http2.frames import Doubt, Error

#: So many at once; nghttp2 takes 1,000 resets. A client of 1,000 streams of events may end all of them.
BURST = 2_000
#: So many a second; nghttp2 takes 33 resets.
PER_S = 100.0


class Patience:
    """What is left of it with one client."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since_s = 0.0

    def spend(self, now_s: float, what: str) -> None:
        """A frame has come that brings no call on; ``what`` is its name.

        :raises Doubt: there were too many.
        """
        self._left = min(BURST, self._left + max(0.0, now_s - self._since_s) * PER_S)
        self._since_s = now_s
        if self._left < 1:
            raise Doubt(
                Error.ENHANCE_YOUR_CALM,
                f"{what}: more than {BURST} frames that bring no call on, and more than {PER_S:g} a second",
            )
        self._left -= 1

    def regain(self) -> None:
        """A call was answered: a client may reset as many as it makes, if it has their answers first."""
        self._left = min(BURST, self._left + 1)
