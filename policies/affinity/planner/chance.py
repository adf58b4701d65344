"""Chance that is the same in every run."""

from __future__ import annotations


class Chance:
    """A fixed sequence of numbers: Knuth's MMIX generator."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 2862933555777941757 + 3037000493) % (1 << 64)

    def below(self, count: int) -> int:
        """A number from 0 to ``count`` - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) * count >> 31
