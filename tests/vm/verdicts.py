"""What a check in the guest tells the host: one line of JSON. Both sides read this file; standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Optional

_MARK = "VM check "
END_MARK = "VM end "


@dataclass(frozen=True)
class Verdict:
    """How one check ended; ``said``: what it printed, and its traceback."""

    name: str
    passed: bool
    seconds: float
    said: str


def write_verdict(verdict: Verdict) -> str:
    """As a line."""
    return f"{_MARK}{json.dumps(asdict(verdict))}"


def read_verdict(line: str) -> Optional[Verdict]:
    """From a line; None if it is something else."""
    return Verdict(**json.loads(line[len(_MARK) :])) if line.startswith(_MARK) else None
