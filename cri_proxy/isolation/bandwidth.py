"""Memory bandwidth: the part of it that a class may use, as the numbers that a kernel takes."""

from __future__ import annotations

import math
import re
from typing import Optional

from cri_proxy.isolation.model import EIGHTHS, MBPS, BandwidthInfo
from policies.frozen import frozen

SUBJECT = "bandwidth"

#: A domain's bandwidth where the kernel counts in units and says no most: a CCX of Zen reads some 55 GB/s through its link.
DOMAIN_MBPS = 55_000

_PERCENT = re.compile(r"([0-9]{1,3})\s*%")
_MBPS = re.compile(r"([0-9]{1,7})\s*MBps", re.IGNORECASE)


@frozen
class BandwidthPart:
    """A part of a domain's bandwidth as it is configured; one of the two. ``share``: 0 to 1; ``mbps``: MB/s."""

    share: Optional[float] = None
    mbps: Optional[int] = None


def read_part(text: str) -> BandwidthPart:
    """A part as people write it: "30%", "4000MBps".

    :raises ValueError: it is none of these; the message says what was expected.
    """
    given = text.strip()
    if (match := _PERCENT.fullmatch(given)) and 0 < int(match[1]) <= 100:
        return BandwidthPart(share=int(match[1]) / 100)
    if (match := _MBPS.fullmatch(given)) and int(match[1]):
        return BandwidthPart(mbps=int(match[1]))
    raise ValueError('a percentage from 1 to 100 ("30%") or a rate ("4000MBps")')


def value_of(part: BandwidthPart, info: BandwidthInfo, share: Optional[float] = None) -> int:
    """The number that a part is on a machine: a multiple of its step, at least its least, at most "no limit".

    ``share``: a share that counts instead of the part's own, 0 to 1. Rounded up, as a class must not get less than was
    said. Percentages and rates are turned into each other by ``DOMAIN_MBPS`` where the kernel counts in the other.
    """
    rate = part.mbps if share is None else None
    wanted_share = share if share is not None else part.share
    if rate is None and wanted_share is not None and wanted_share >= 1:
        return info.no_limit
    if info.unit == MBPS:
        wanted = rate if rate is not None else (wanted_share or 1.0) * DOMAIN_MBPS
    elif info.unit == EIGHTHS:
        wanted = (rate if rate is not None else (wanted_share or 1.0) * DOMAIN_MBPS) * 8 / 1000
    else:
        wanted = 100 * (rate / DOMAIN_MBPS if rate is not None else wanted_share or 1.0)
    step = max(1, info.step)
    rounded = math.ceil(round(wanted / step, 9)) * step
    return min(max(rounded, info.minimum), info.no_limit)
