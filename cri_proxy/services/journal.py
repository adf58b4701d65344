"""Lines to the systemd journal, for a process that was started with its output on /dev/null.

A container runtime starts its plugins so. The protocol is that of journald's socket: one datagram an entry, its
fields as ``NAME=value`` lines (systemd.io/JOURNAL_NATIVE_PROTOCOL).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any, Optional, TextIO, cast

SOCKET = Path("/run/systemd/journal/socket")
#: syslog's numbers for the levels that lines begin with; what has none is a line of an error's traceback, or a print.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
_LEVEL = re.compile(r'\[(debug|info|warning|error) *\]|"level": "(debug|info|warning|error)"')
#: The most of a line that is sent: a datagram that is larger than the socket's buffer would be lost as a whole.
LINE_BYTES = 48 << 10


class JournalStream:
    """Stands in for stderr: what is written to it goes to the journal, a line an entry."""

    def __init__(self, identifier: str, path: Path = SOCKET) -> None:
        self._identifier = identifier
        self._path = str(path)
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._line = ""
        self._priority = _PRIORITIES["info"]

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.strip():
                self._send(line)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept but the beginning of a line."""

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        # faulthandler and child processes may ask; there is no file behind it.
        raise OSError("a journal stream has no file")

    def close(self) -> None:
        self._socket.close()

    def _send(self, line: str) -> None:
        found = _LEVEL.search(line[:200])
        if found is not None:
            self._priority = _PRIORITIES[found[1] or found[2]]
        head = f"PRIORITY={self._priority}\nSYSLOG_IDENTIFIER={self._identifier}\nMESSAGE="
        entry = head.encode() + line.encode(errors="replace")[:LINE_BYTES] + b"\n"
        # A journal that is full or gone costs lines, never a request.
        with contextlib.suppress(OSError):
            self._socket.sendto(entry, self._path)


def log_to_journal(identifier: str, path: Path = SOCKET) -> Optional[JournalStream]:
    """Have stderr go to the journal if it goes to /dev/null now and there is a journal. Returns what it is then."""
    if not _is_null(sys.stderr) or not path.is_socket():
        return None
    stream = JournalStream(identifier, path)
    sys.stderr = cast(TextIO, stream)
    return stream


def _is_null(stream: Any) -> bool:
    """Whether nothing reads what is written; also of a process that was started without the stream."""
    if stream is None:
        return True
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except (OSError, ValueError, AttributeError):
        return False
