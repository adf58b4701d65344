"""Places in files that hold more than one value: a line, or a word of a line. Pure.

The kernel's files of block I/O have a line a device. A write changes what it names, and a read tells all:

    file:/sys/…/io.weight#default    of the line "default 100": "100"
    file:/sys/…/io.max#8:16 rbps     of the line "8:16 rbps=1048576 wbps=max …": "1048576"

A device without a line has the value that ``_NO_LINE`` gives for the file, which is also what takes a line away again.
"""

from __future__ import annotations

import re

from cri_proxy.isolation.model import FILE
from policies.frozen import frozen

_WITHIN = re.compile(r"#(default|[0-9]+:[0-9]+)(?: ([a-z]+))?\Z")
_AUTO = "ctrl=auto"
#: By the file's name: what a device has that has no line there.
_NO_LINE = {
    "io.max": "max",
    "io.weight": "default",
    "io.bfq.weight": "default",
    "io.cost.qos": f"enable=0 {_AUTO}",
    "io.cost.model": _AUTO,
    "blkio.weight_device": "default",
    "blkio.bfq.weight_device": "default",
    "blkio.cost.qos": f"enable=0 {_AUTO}",
    "blkio.cost.model": _AUTO,
    **{f"blkio.throttle.{way}_{unit}_device": "0" for way in ("read", "write") for unit in ("bps", "iops")},
}


@frozen
class FilePlace:
    """A place in parts. ``line``: the first word of a line, "" = the file is one value; ``word``: what one of its words
    begins with, "" = the line is the value."""

    path: str
    line: str = ""
    word: str = ""

    def value_in(self, text: str) -> str:
        """The value, of what the file says."""
        if not self.line:
            return text.strip()
        for each in text.splitlines():
            first, *words = each.split()[:64] or [""]
            if first != self.line:
                continue
            if self.word:
                found = (word.partition("=") for word in words)
                return next((value for name, _, value in found if name == self.word), self._nothing)
            if _AUTO in words:
                # The numbers are the kernel's own; to write them would make them settings.
                words = [word for word in words if word.partition("=")[0] in ("enable", "ctrl")]
            return " ".join(words)
        return self._nothing

    def written(self, value: str) -> str:
        """What is written to the file to have the value."""
        word = f"{self.word}={value}" if self.word else value
        return f"{self.line} {word}\n" if self.line else f"{value}\n"

    @property
    def _nothing(self) -> str:
        return _NO_LINE.get(self.path.rpartition("/")[2], "")


def file_place(place: str) -> FilePlace:
    """The parts of a place that begins with ``FILE``."""
    path = place[len(FILE) :]
    found = _WITHIN.search(path)
    return FilePlace(path) if found is None else FilePlace(path[: found.start()], found[1], found[2] or "")
