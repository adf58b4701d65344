"""Sets of CPUs (and of NUMA nodes) in the kernel's list format, ``0-3,8``.

The format is the one the kernel reads in ``bitmap_parselist`` (lib/bitmap-str.c): decimal ids and ranges, comma
separated, in any order. Strides (``0-15:2/4``) are not part of what sysfs, cgroupfs
or CRI show, and are refused. Some kernels (5.10 for Kunpeng) end a list with a NUL.

Where a kernel has no list it has a mask, as bitmap_print_to_buf writes it: hexadecimal words of 32 bits, the highest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

NO_CPUS: frozenset[int] = frozenset()

#: Texts whose sets are remembered.
SETS_KEPT = 256
#: Larger ids are refused: the kernel's largest NR_CPUS is 8192, and a typo such as 0-99999999 must not eat memory.
MAX_ID = 65535

_HEXADECIMAL = re.compile("[0-9a-fA-F]+")


class BadCpuList(ValueError):
    """The text is not a CPU list. The message names the text and the part of it that is wrong."""


@lru_cache(maxsize=SETS_KEPT)
def parse_cpus(text: str) -> frozenset[int]:
    """Read a CPU list such as ``0-3,8``; an empty or blank text is the empty set. Of one text it mostly is the same object:
    hundreds of containers may have one set, and one of 128 CPUs takes 8 kB.

    :raises BadCpuList: not a list of ids and ascending ranges.
    """
    ids: set[int] = set()
    listed = _stripped(text)
    if not listed:
        return NO_CPUS
    for part in listed.split(","):
        first, dash, last = part.partition("-")
        try:
            low = _read_id(first)
            high = _read_id(last) if dash else low
        except ValueError:
            raise BadCpuList(
                f"{_quoted(text)} is not a CPU list: {_quoted(part)} is neither an id nor a range"
            ) from None
        if high < low:
            raise BadCpuList(f"{_quoted(text)} is not a CPU list: the range {_quoted(part)} runs backwards")
        if high > MAX_ID:
            raise BadCpuList(f"{_quoted(text)} is not a CPU list: {high} is larger than {MAX_ID}")
        ids.update(range(low, high + 1))
    return frozenset(ids)


def parse_mask(text: str) -> frozenset[int]:
    """Read a mask such as ``00000000,0000010f`` (CPUs 0-3 and 8).

    :raises BadCpuList: not hexadecimal, empty, or longer than the largest id.
    """
    digits = _stripped(text).replace(",", "")
    if not _HEXADECIMAL.fullmatch(digits) or len(digits) > (MAX_ID + 1) // 4:
        raise BadCpuList(f"{_quoted(text)} is not a mask of CPUs")
    bits = int(digits, 16)
    return frozenset([cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1])


def format_cpus(cpus: Iterable[int]) -> str:
    """Write ids as the kernel does: ascending, ranges joined, ``""`` for none."""
    parts: list[str] = []
    ordered = sorted(cpus)
    start = 0
    for index, cpu in enumerate(ordered):
        if index + 1 < len(ordered) and ordered[index + 1] == cpu + 1:
            continue
        first = ordered[start]
        parts.append(str(first) if first == cpu else f"{first}-{cpu}")
        start = index + 1
    return ",".join(parts)


def _stripped(text: str) -> str:
    return text.strip().strip("\0").strip()


def _read_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
