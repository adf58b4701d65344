"""How long to wait before the next attempt: doubled each time, spread so that a fleet does not come at once."""

from __future__ import annotations

from typing import Optional


class Backoff:
    """``reset()`` after a success, ``next()`` after a failure."""

    def __init__(self, base_s: float = 1.0, most_s: float = 60.0) -> None:
        self._base_s = base_s
        self._most_s = most_s
        self._failures = 0

    def next(self, random01: float, at_least_s: Optional[float] = None) -> float:
        """Seconds: between half and the whole of base × 2^failures; ``at_least_s``: what the server asks for."""
        whole = min(self._most_s, self._base_s * (1 << min(self._failures, 30)))
        self._failures += 1
        spread = whole * (0.5 + 0.5 * random01)
        return max(spread, at_least_s * (1 + 0.1 * random01)) if at_least_s else spread

    def reset(self) -> None:
        self._failures = 0
