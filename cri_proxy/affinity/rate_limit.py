"""How fast plans are carried out: token buckets for containers moved and for memory that follows them.

A bucket holds one minute's worth at most and starts full, so that the first plan after a quiet time goes on at once
and none goes on for long.
"""

from __future__ import annotations

from cri_proxy.affinity.settings import AffinitySettings

MINUTE_S = 60.0


class Bucket:
    """Tokens that come at a steady rate. Times in seconds, given by the caller; they never go back."""

    def __init__(self, per_minute: float, now_s: float = 0.0) -> None:
        self.per_minute = per_minute
        self._tokens = float(per_minute)
        self._at_s = now_s

    def tokens(self, now_s: float) -> float:
        """How many there are; negative while what was taken in advance has not come yet."""
        passed_s = max(0.0, now_s - self._at_s)
        self._tokens = min(self.per_minute, self._tokens + passed_s * self.per_minute / MINUTE_S)
        self._at_s = max(self._at_s, now_s)
        return self._tokens

    def take(self, count: float, now_s: float) -> None:
        """Take tokens out, also more than there are."""
        self._tokens = self.tokens(now_s) - count

    def wait_s(self, count: float, now_s: float) -> float:
        """How long until there are so many (or as many as it ever holds); infinite if none ever come."""
        missing = min(count, self.per_minute) - self.tokens(now_s)
        if not self.per_minute:
            return float("inf")
        return max(0.0, missing) * MINUTE_S / self.per_minute


class MoveRateLimit:
    """What may be moved now: ``affinity.moves_per_minute`` containers, ``affinity.most_memory_moved`` GiB a minute."""

    def __init__(self, settings: AffinitySettings, now_s: float = 0.0) -> None:
        self.moves = Bucket(settings.moves_per_minute, now_s)
        self.memory = Bucket(settings.most_memory_bytes, now_s)

    def allowed(self, now_s: float) -> int:
        """How many containers may be moved now; 0 as well while memory is still following those before."""
        return max(0, int(self.moves.tokens(now_s) + 1e-9)) if self.memory.tokens(now_s) >= 0 else 0

    def spend(self, moves: int, memory_bytes: float, now_s: float) -> None:
        """So many were moved, and so much memory may follow them to other NUMA nodes."""
        self.moves.take(moves, now_s)
        self.memory.take(memory_bytes, now_s)
