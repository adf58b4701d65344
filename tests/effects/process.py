"""The real daemon, which kills itself before one of its effects: ``python -m tests.effects.process run ...``.

``CUT`` in the environment is ``NUMBER:FILE``: once the file is there effects are counted, and before that number it ends.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from cri_proxy import effects
from cri_proxy.launcher import main

VARIABLE = "CUT"


class Scissors:
    """Stands in for ``effects.before``; several threads have effects."""

    def __init__(self, number: int, begun: Path) -> None:
        self._left = number
        self._begun = begun
        self._lock = threading.Lock()

    def before(self, kind: str, about: str) -> None:
        with self._lock:
            if not self._begun.exists():
                return
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


if __name__ == "__main__":
    number, _, file = os.environ[VARIABLE].partition(":")
    effects.before = Scissors(int(number), Path(file)).before
    main()
