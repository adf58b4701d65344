"""structlog, set up once: one line an event on stderr, for people or as JSON; a thread writes it."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Callable, Optional, TextIO, cast

import structlog

from cri_api.printable import printable, printable_lines
from cri_api.supervisor import SupervisedThread, Supervisor

#: How long lines of one kind are counted before that is told, seconds.
INTERVAL_S = 60.0
#: Of as many kinds the lines are told apart.
KINDS = 100
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Repeats:
    """Lines of one kind: the first of an interval is shown, the others are counted, and told when it is over.

    A line that may come with every request names its ``kind``: what it has in common with those it stands for.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, object], int] = {}

    def __call__(self, logger: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        kind = line.pop("kind", None)
        if kind is None:
            return line
        key = (level, line["event"], kind)
        if (
            key not in self._counts and len(self._counts) >= KINDS
        ):  # a client may think of any number of methods
            key = (level, line["event"], None)
        count = self._counts[key] = self._counts.get(key, -1) + 1
        if count:
            raise structlog.DropEvent
        return line

    def tell(self, log: Any) -> None:
        """End the interval."""
        counts, self._counts = self._counts, {}
        for (level, event, kind), count in counts.items():
            if count:
                getattr(log, level)(event, again=count, of="others" if kind is None else kind)


class _Stderr:
    """The stderr of the moment. A full disk or a journal that went away costs lines, never a request."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _each(logger: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line.pop("kind", None)
    return line


def _described(logger: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A line with a ``describe`` has the fields that this returns besides its own; one that is not written never asks."""
    describe = line.pop("describe", None)
    if describe is not None:
        for name, value in describe().items():
            line.setdefault(name, value)
    return line


#: What has a string written as Python would.
_QUOTED = re.compile("[ \\t=\\r\\n\"']")
#: What lines have that this does not write.
_OTHERS = frozenset(("stack", "exception", "exc_info", "logger", "logger_name"))


class PlainLines:
    """Writes what ``structlog.dev.ConsoleRenderer`` does without colours, in a fifth of its time.

    A pod's start and end are seven lines, on which that was a tenth of all that they cost. Lines with more than an event
    and its fields are left to it.
    """

    def __init__(self, others: Callable[..., str]) -> None:
        self._others = others

    def __call__(self, logger: Any, name: str, line: MutableMapping[str, Any]) -> str:
        if not _OTHERS.isdisjoint(line):
            return self._others(logger, name, line)
        words = [f"{line.pop('timestamp')} [{line.pop('level'):<9}] {line.pop('event')!s:<30}"]
        for key, value in line.items():
            is_plain = isinstance(value, str) and not _QUOTED.search(value)
            words.append(f"{key}={value}" if is_plain else f"{key}={value!r}")
        return " ".join(words).rstrip(" ")


def _printable(logger: Any, name: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Names and sentences of other programs without what a terminal would take as a command. JSON escapes it itself."""
    for key, value in line.items():
        if isinstance(value, str) and not value.isprintable():
            line[key] = printable_lines(value) if key in _OTHERS else printable(value)
    return line


def set_up(level: str, form: str, repeats: Optional[Repeats] = None) -> Any:
    """A logger that writes lines of ``level`` and above; calling it again changes those there are.

    ``repeats`` counts lines of one kind; without it each is shown.
    """
    renderer: Any = structlog.processors.JSONRenderer()
    if form == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            sort_keys=False,
            # Not rich's, which shows the values of all variables on some hundred lines.
            exception_formatter=structlog.dev.plain_traceback,
        )
        if not sys.stderr.isatty():
            renderer = PlainLines(renderer)
    structlog.configure(
        processors=[
            repeats or _each,
            _described,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *([structlog.processors.format_exc_info] if form == "json" else [_printable]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()


# ---------------------------------------------------------------------- lines that never wait for their reader


#: As many characters wait for the reader: the lines of some 20,000 pod starts.
CHARACTERS = 8 << 20
#: How long the end of the process waits for the reader, seconds.
END_S = 1.0
#: How long lines wait for others to be written with, seconds: a thread that wakes for each of the seven lines of a pod
#: costs as much as the lines.
TOGETHER_S = 0.01


class LogLines:
    """A stream that stands in for stderr. ``write`` takes a microsecond or two, whatever the reader does.

    A journal that is not read, a full pipe, a disk that hangs: the thread waits, the queue fills, and then lines are
    dropped and counted. A call is never held up by its own log line.

    ``dropped`` counts the lines that are gone; ``on_dropped`` is called with how many were, each time.
    """

    def __init__(self, stream: Any, limit: int = CHARACTERS, supervisor: Optional[Supervisor] = None) -> None:
        #: What is written to; None where the process was started without one.
        self.stream = stream
        self.dropped = 0
        self.on_dropped: Callable[[int], None] = lambda lines: None
        self._limit = limit
        self._texts: deque[str] = deque()
        self._waiting = 0
        self._untold = 0
        self._is_writing = False
        #: Whether the thread knows that there are lines; whether there is no time to wait for more of them.
        self._is_told = self._is_hurried = False
        self._changed = threading.Condition()
        self._supervisor = supervisor or Supervisor()
        self._thread: Optional[SupervisedThread] = None

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
                if not self._is_told:
                    self._is_told = True
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
            self._is_hurried = True
            self._changed.notify_all()
            while self._texts or self._is_writing:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return not (self._texts or self._is_writing)
        return True

    def _begin(self) -> None:
        # Of a process that was forked the thread is not there any more.
        if self._thread is None or not self._thread.is_alive():
            self._is_told = False
            self._thread = self._supervisor.keep_thread("log thread", self._write_all, "log-lines")

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._texts:
                    self._is_told = False
                    self._changed.wait()
                if not self._is_hurried:
                    self._changed.wait(TOGETHER_S)
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
