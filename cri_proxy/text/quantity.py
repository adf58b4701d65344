"""Kubernetes quantities: ``750m``, ``1.5``, ``2Gi``, ``1e3`` (apimachinery, resource.Quantity)."""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil
from typing import Any

_NUMBER = re.compile(r"\+?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([num]|[kMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?")
_FACTORS = {"": Decimal(1), "k": Decimal(1000)}
_FACTORS.update({unit: Decimal(1) / 1000**power for power, unit in enumerate("mun", 1)})
_FACTORS.update({unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", 2)})
_FACTORS.update({f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)})
#: Kubernetes' own limit. What is larger could be kept nowhere: Python does not write numbers of 5,000 digits.
_MOST = 2**63 - 1


class BadQuantity(ValueError):
    """Not a Kubernetes quantity of 0 or more, or more than any machine has."""


def parse_milli(value: Any) -> int:
    """A CPU quantity in milli-CPUs, rounded up: ``"1.5"`` is 1500, ``"750m"`` 750, the number 2 is 2000."""
    return ceil(_parse(value, 'CPUs such as "750m" or "2"') * 1000)


def parse_bytes(value: Any) -> int:
    """A memory quantity in bytes, rounded up."""
    return ceil(_parse(value, 'memory such as "512Mi" or "2Gi"'))


def _parse(value: Any, expected: str) -> Decimal:
    match = None if isinstance(value, bool) else _NUMBER.fullmatch(str(value).strip())
    if match is None:
        raise BadQuantity(f"{value!r:.60} is not a quantity of {expected}")
    number, suffix = Decimal(match[1]), match[2] or ""
    number *= _FACTORS[suffix] if suffix in _FACTORS else Decimal(10) ** int(suffix[1:])
    if number > _MOST:
        raise BadQuantity(f"{value!r:.60} is more than any machine has")
    return number
