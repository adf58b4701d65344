"""When a request may be sent: at most once in a period, and later after each failure, spread so that a fleet does not
come at once. Pure: clocks are handed in.
"""

from __future__ import annotations

from typing import Optional

from cluster.kube.requests import ApiError, asked_for

#: A period is longer by up to this share of it, so that nodes that began together do not go on together.
JITTER = 0.2


#: Seconds between two tries while nothing answers, at most: with its look every 5 s an agent is back within 15 s of the
#: server, and a fleet is spread over as long.
AWAY_MOST_S = 9.0


class WriteRate:
    """At most one write in ``period_s`` seconds; what changes in between is written together at its end."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._next_s: Optional[float] = None

    def wait_s(self, now_s: float) -> float:
        """Seconds until a write is due; 0 = now."""
        return 0.0 if self._next_s is None else max(0.0, self._next_s - now_s)

    def wrote(self, now_s: float, random01: float) -> None:
        """A write was tried: whether it came through makes no difference to the server's load."""
        self._next_s = now_s + self.period_s * (1 + JITTER * random01)

    def no_answer(self, now_s: float, delay_s: float) -> None:
        """Nothing was heard: the next write is due after this, and no load is saved by the rest of the period."""
        self._next_s = now_s + delay_s

    def wait_longer(self, now_s: float, delay_s: float) -> None:
        """The server is in trouble, or has asked for patience: nothing before that."""
        self._next_s = max(self._next_s or 0.0, now_s + delay_s)


class Backoff:
    """``reset()`` after a success, ``after(error)`` after a failure.

    A server that comes back begins with refusals, which its absence does not count among: each kind begins anew.
    """

    def __init__(self, base_s: float = 1.0, most_s: float = 60.0) -> None:
        self._base_s = base_s
        self._most_s = most_s
        self._failures = 0
        self._is_away = False

    def after(self, error: Exception, random01: float) -> float:
        """Seconds to wait after a request that failed so; a server that asks for patience gets it."""
        is_away = not isinstance(error, ApiError)
        if is_away != self._is_away:
            self.reset()
        self._is_away = is_away
        spread = self.next(random01, AWAY_MOST_S if is_away else self._most_s)
        at_least_s = asked_for(error)
        return max(spread, at_least_s * (1 + 0.1 * random01)) if at_least_s else spread

    def next(self, random01: float, most_s: Optional[float] = None) -> float:
        """Seconds: between half and the whole of base × 2^failures, and of the most."""
        most_s = self._most_s if most_s is None else most_s
        whole = min(most_s, self._base_s * (1 << min(self._failures, 30)))
        self._failures += 1
        return whole * (0.5 + 0.5 * random01)

    def reset(self) -> None:
        self._failures = 0
