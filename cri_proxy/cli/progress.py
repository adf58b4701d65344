"""What a command that takes long is waiting for, on a terminal: one line on stderr that goes when it is over.

Where stderr is no terminal nothing is written, nor by what is over at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Callable, Optional, TextIO

from cri_api.printable import printable

#: What is over by then leaves no trace; how often the line is written again, seconds.
SILENT_S, AGAIN_S = 0.4, 0.5
#: To the beginning of the line, and all behind it goes (ECMA-48, EL).
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def progress(what: str, more: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Say ``what`` is done and for how long by now; ``more``: what is to be said besides, asked in a thread, may be slow."""
    stream = sys.stderr
    if not _is_terminal(stream):
        yield
        return
    line = _Line(stream, what, more)
    thread = threading.Thread(target=line.run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        line.end()
        # It may be waiting for ``more``; by then it writes nothing any more.
        thread.join(AGAIN_S)


def _is_terminal(stream: Optional[TextIO]) -> bool:
    with contextlib.suppress(ValueError):  # it is closed
        return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return False


class _Line:
    def __init__(self, stream: TextIO, what: str, more: Callable[[], str]) -> None:
        self._stream = stream
        self._what = what
        self._more = more
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._is_shown = False

    def run(self) -> None:
        began_s = time.monotonic()
        pause_s = SILENT_S
        while not self._over.wait(pause_s):
            more = self._more()
            self._show(f"{self._what} ({time.monotonic() - began_s:.0f} s){': ' if more else ''}{more}")
            pause_s = AGAIN_S

    def end(self) -> None:
        self._over.set()
        with self._writing:
            if self._is_shown:
                self._write(_CLEAR)

    def _show(self, text: str) -> None:
        with self._writing:
            if not self._over.is_set():
                self._is_shown = True
                self._write(_CLEAR + printable(text)[: _columns() - 1])

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._stream.write(text)
            self._stream.flush()


def _columns() -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return 80
