"""What is counted of one plugin, for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: How a call may end; all but the first are failures.
OK, ERROR, TIMEOUT, CLOSED, BAD = "ok", "error", "timeout", "closed", "bad reply"


@dataclass
class CallStats:
    """Calls of one plugin by how they ended, and the time that those took which were answered."""

    results: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    total_s: float = 0.0
    most_s: float = 0.0
    last_error: str = ""

    def count(self, result: str, seconds: float, problem: str = "") -> None:
        """One more."""
        self.results[result] = self.results.get(result, 0) + 1
        if problem:
            self.last_error = problem
        if result in (OK, ERROR):
            self.answered += 1
            self.total_s += seconds
            self.most_s = max(self.most_s, seconds)

    def document(self) -> dict[str, Any]:
        """As plain data."""
        mean_s = self.total_s / self.answered if self.answered else 0.0
        return {
            "calls": sum(self.results.values()),
            "failures": {result: count for result, count in sorted(self.results.items()) if result != OK},
            "mean_ms": round(mean_s * 1000, 3),
            "most_ms": round(self.most_s * 1000, 3),
            "last_error": self.last_error,
        }
