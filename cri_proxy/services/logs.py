"""structlog, set up once: one line an event on stderr, for people or as JSON."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Optional, TextIO, cast

import structlog

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
    structlog.configure(
        processors=[
            repeats or _each,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *([structlog.processors.format_exc_info] if form == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()
