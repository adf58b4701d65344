"""Whether the records on disk are known to be older than what the runtime was told, over the end of the daemon.

A file beside the control socket (in ``/run``, which no disk holds up) that is there for as long as calls went on
without their records. The next daemon finds it, and takes what runs for right where records say otherwise.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

FILE = "unsaved"


class UnsavedMark:
    """``boot_id``: a mark of another boot says nothing, for all containers of that are gone."""

    def __init__(self, control_socket: Path, boot_id: str) -> None:
        self.path = control_socket.with_name(FILE)
        self._boot_id = boot_id

    def set(self) -> None:
        """Records are missing from here on. Where it cannot be written there was nothing to be had."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self._boot_id)

    def clear(self) -> None:
        """All that was told is on disk."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def is_set(self) -> bool:
        """Whether a daemon of this boot has left it."""
        try:
            return self.path.read_text() == self._boot_id
        except OSError:
            return False
