"""The file in which the commanding half keeps its memory. A node whose disk fails goes on without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from cluster.agent.io.log import log
from cluster.agent.memory import AgentMemory, read_memory, write_memory

NAME = "memory.json"


class MemoryFile:
    """``folder`` None: nothing is kept."""

    def __init__(self, folder: Optional[Path]) -> None:
        self._path = None if folder is None else folder / NAME
        self._written = ""

    def read(self) -> AgentMemory:
        """What was kept; a file that cannot be read is logged, and is as none."""
        if self._path is None:
            return AgentMemory()
        try:
            return read_memory(self._path.read_text())
        except FileNotFoundError:
            return AgentMemory()
        except (OSError, ValueError, TypeError) as error:
            log("warning", "memory not read", file=self._path, reason=error)
            return AgentMemory()

    def write(self, memory: AgentMemory) -> None:
        """Keep it, whole or not at all; nothing where it is what was written last."""
        text = write_memory(memory)
        if self._path is None or text == self._written:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            other = self._path.with_suffix(".new")
            with other.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            other.replace(self._path)
            self._written = text
        except OSError as error:
            log("warning", "memory not written", file=self._path, reason=error.strerror)
