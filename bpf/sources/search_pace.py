"""When receivers of datagrams are searched for in ways that cost: while datagrams wait for one that shows in no other way.

What a datagram was for shows when the receiver answers, and when it calls recvfrom or recvmsg for the sender's
address. One that does neither has to be found where the packet comes in, and that costs every packet of the
node, TCP's too; one behind NAT that rewrites both addresses in conntrack, which may be long. So either is tried when
much waits, kept on while it finds something, and tried more and more seldom where it does not: those datagrams leave
the node.
"""

from __future__ import annotations

#: Messages that came to wait since the last look; a resolver or a clock's are fewer.
_MUCH = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0


class SearchPace:
    """Decides from the counters of traffic.c, once a sample."""

    def __init__(self) -> None:
        self.is_on = False
        self._waiting = self._found = 0
        self._pause_s = _FIRST_PAUSE_S
        self._not_before_s = float("-inf")

    def decide(self, now_s: float, waiting: int, found: int) -> bool:
        """Whether it is to be on until the next look.

        ``waiting``: messages whose receiver has not shown so far; ``found``: how often the search has found one.
        """
        more, self._waiting = waiting - self._waiting, waiting
        has_found, self._found = found > self._found, found
        if not self.is_on:
            self.is_on = more >= _MUCH and now_s >= self._not_before_s
        elif has_found:
            self._pause_s = _FIRST_PAUSE_S
        else:
            self.is_on = False
            self._not_before_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return self.is_on
