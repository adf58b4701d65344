"""What building takes time with: said in a line each on standard error. What other programs say of it goes into logs.

Standard library only, as ``compiled.py``, which also runs in a Python that has nothing of ours.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional, TextIO

LOGS = Path(__file__).resolve().parent.parent / ".cache" / "log"


def say(what: str) -> None:
    """One line, at once."""
    print(f"packaging: {what}", file=sys.stderr, flush=True)


def lock(file: TextIO) -> None:
    """Have it for this build alone until it is closed; that another one must end first is said."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another build here fetches or compiles: waiting until it has")
        fcntl.flock(file, fcntl.LOCK_EX)


def run(
    command: Sequence[str],
    log: str,
    otherwise: str,
    cwd: Optional[Path] = None,
    env: Optional[Mapping[str, str]] = None,
) -> None:
    """Run it with all that it says in the log of this name.

    :param otherwise: what could not be done, for when it fails.
    :raises SystemExit: it failed; the sentence has its last line and the log.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{log}.log"
    with path.open("w") as said:
        done = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, cwd=cwd, env=env, check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"(^|: )(ERROR|E|[Ee]rror): ", line)]
        last = (errors or lines or ["it said nothing"])[-1]
        sys.exit(f"packaging: {otherwise}: {last} (all that was said: {path})")
