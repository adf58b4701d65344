"""A file that a process touches with every round, and a probe that looks at its age: one that hangs is ended."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Optional

#: A file that is older is of a process that hangs: a round of the agent takes at most two time limits of the daemon's, the
#: operator tries for its Lease every half a minute at least.
HEALTHY_S = 120.0


def touch(health_file: Optional[Path]) -> None:
    """None: no probe looks. A file that cannot be written is the probe's news, not an error here."""
    if health_file is not None:
        with contextlib.suppress(OSError):
            health_file.touch()


def is_healthy(health_file: Path) -> bool:
    """Whether the process that touches the file has done so lately."""
    try:
        return time.time() - health_file.stat().st_mtime < HEALTHY_S
    except OSError:
        return False
