"""The weight that placements go by: a mean over a long window while a flow is steady, the fast one once it changes. Pure.

The rates of the graph forget half within a half-life of about a minute, so that they follow a change; of a flow that comes
in bursts they are off by half at any moment, and plans made from them would never come to an end. So each edge has a
second weight:

1. A flow that is new, or has just changed, has the fast one, for ``FOLLOWING`` half-lives of it.
2. After that it has the mean of what was seen since, over ``WINDOW`` half-lives at most, exponentially.
3. When the fast one is more than ``FACTOR`` times the mean, or less than one in ``FACTOR`` of it, in ``SAMPLES`` samples one
   after another, the flow has changed: 1.
"""

from __future__ import annotations

FOLLOWING = 3.0
WINDOW = 10.0
FACTOR = 2.5
SAMPLES = 3


class SteadyWeight:
    """Of one edge, lines a second. ``since_s``: for how long the flow has not changed; ``apart``: samples in a row in which
    the fast weight was far from this one."""

    __slots__ = ("apart", "since_s", "value")

    def __init__(self, value: float = 0.0, since_s: float = 0.0) -> None:
        self.value = value
        self.since_s = since_s
        self.apart = 0

    def follow(self, fast: float, seen: float, seconds: float, half_life_s: float) -> None:
        """Take in a sample. ``fast``: the weight after it; ``seen``: lines a second in it."""
        self.since_s += seconds
        if self.since_s <= FOLLOWING * half_life_s:
            self.value = fast
            return
        part = max(1.0 - 2.0 ** (-seconds / (WINDOW * half_life_s)), seconds / self.since_s)
        self.value += part * (seen - self.value)
        is_near = fast <= FACTOR * self.value and self.value <= FACTOR * fast
        self.apart = 0 if is_near else self.apart + 1
        if self.apart >= SAMPLES:
            self.value, self.since_s, self.apart = fast, 0.0, 0
