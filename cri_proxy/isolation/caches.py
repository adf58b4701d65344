"""Caches: the part of an L3 that a class may fill, as the masks that a kernel takes."""

from __future__ import annotations

import math
import re
from typing import Optional

from cri_proxy.isolation.model import CacheInfo
from policies.frozen import frozen

SUBJECT = "caches"

_PERCENT = re.compile(r"([0-9]{1,3})\s*%")
_BITS = re.compile(r"([0-9]{1,3})\s*bits?")
_MASK = re.compile(r"0[xX]([0-9a-fA-F]{1,8})")


@frozen
class CachePart:
    """A part of a cache as it is configured; one of the three. ``share``: 0 to 1; ``bits``: ways; ``mask``: which ways."""

    share: Optional[float] = None
    bits: Optional[int] = None
    mask: Optional[int] = None


def read_part(text: str) -> CachePart:
    """A part as people write it: "30%", "2 bits", "0x3".

    :raises ValueError: it is none of these; the message says what was expected.
    """
    given = text.strip()
    if match := _PERCENT.fullmatch(given):
        if 0 < int(match[1]) <= 100:
            return CachePart(share=int(match[1]) / 100)
    elif match := _BITS.fullmatch(given):
        if int(match[1]):
            return CachePart(bits=int(match[1]))
    elif (match := _MASK.fullmatch(given)) and int(match[1], 16):
        return CachePart(mask=int(match[1], 16))
    raise ValueError('a percentage from 1 to 100 ("30%"), a number of ways ("2 bits") or a mask ("0x3")')


def mask_of(part: CachePart, cache: CacheInfo, share: Optional[float] = None) -> int:
    """The mask that a part is on a machine: at least what the kernel takes, at most all, in one piece where it must be.

    ``share``: a share that counts instead of the part's own, 0 to 1. A share is rounded up to whole bits. A part that is
    given by its size has the lowest bits: devices share the highest ones on the processors that tell it.
    """
    if share is None and part.mask is not None:
        mask = part.mask & cache.full_mask
        if mask.bit_count() >= cache.min_bits and (cache.is_sparse or _is_in_one_piece(mask)):
            return mask
        return _lowest(max(mask.bit_count(), cache.min_bits), cache)
    if share is None and part.bits is not None:
        return _lowest(part.bits, cache)
    wanted = share if share is not None else part.share or 1.0
    # A share that is a whole number of bits but for a float's last digit is that number.
    return _lowest(math.ceil(round(wanted * cache.bits, 9)), cache)


def share_of(mask: int, cache: CacheInfo) -> float:
    """The part of a cache that a mask is, 0 to 1."""
    return mask.bit_count() / max(1, cache.full_mask.bit_count())


def _lowest(bits: int, cache: CacheInfo) -> int:
    return (1 << min(max(bits, cache.min_bits, 1), cache.bits)) - 1


def _is_in_one_piece(mask: int) -> bool:
    low = mask & -mask
    return (mask + low) & mask == 0
