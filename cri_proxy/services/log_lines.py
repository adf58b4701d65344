"""Lines to stderr that never wait for its reader: a bounded queue, and a thread that writes.

A journal that is not read, a full pipe, a disk that hangs: the thread waits, the queue fills, and then lines are dropped
and counted. A call is never held up by its own log line.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any, Callable, Optional

#: As many characters wait for the reader: the lines of some 20,000 pod starts.
CHARACTERS = 8 << 20
#: How long the end of the process waits for the reader, seconds.
END_S = 1.0


class LogLines:
    """A stream that stands in for stderr. ``write`` takes a microsecond or two, whatever the reader does.

    ``dropped`` counts the lines that are gone; ``on_dropped`` is called with how many were, each time.
    """

    def __init__(self, stream: Any, limit: int = CHARACTERS) -> None:
        #: What is written to; None where the process was started without one.
        self.stream = stream
        self.dropped = 0
        self.on_dropped: Callable[[int], None] = lambda lines: None
        self._limit = limit
        self._texts: deque[str] = deque()
        self._waiting = 0
        self._untold = 0
        self._is_writing = False
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None

    def write(self, text: str) -> int:
        """Have some text written soon; it is dropped where too much waits already."""
        with self._changed:
            if self._waiting and self._waiting + len(text) > self._limit:
                lines = text.count("\n") or 1
                self.dropped += lines
                self._untold += lines
            else:
                lines = 0
                self._waiting += len(text)
                self._texts.append(text)
                self._begin()
                self._changed.notify_all()
        if lines:
            self.on_dropped(lines)
        return len(text)

    def flush(self) -> None:
        """Nothing waits for the reader; ``end`` does, for a while."""

    def isatty(self) -> bool:
        return self.stream is not None and bool(self.stream.isatty())

    def fileno(self) -> int:
        """The descriptor behind it, for child processes."""
        return int(self.stream.fileno())

    def end(self, within_s: float = END_S) -> bool:
        """Wait until all is written, but not for long: whether it is. Lines may follow, and are written too."""
        until_s = time.monotonic() + within_s
        with self._changed:
            while self._texts or self._is_writing:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return not (self._texts or self._is_writing)
        return True

    def _begin(self) -> None:
        # Of a process that was forked the thread is not there any more.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._write_all, name="log-lines", daemon=True)
            self._thread.start()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._texts:
                    self._changed.wait()
                text = "".join(self._texts)
                self._texts.clear()
                self._waiting = len(text)
                self._is_writing = True
            # A full disk or a journal that went away costs lines, never a request.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self.stream.write(text)
                self.stream.flush()
            with self._changed:
                self._waiting -= len(text)
                if self._untold:
                    told, self._untold = self._untold, 0
                    self._texts.appendleft(
                        f"cri-resmgr: {told} lines of the log were dropped: stderr was not read\n"
                    )
