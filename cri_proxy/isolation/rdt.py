"""The ``rdt`` section of Intel's cri-resource-manager and of nri-plugins: values, and what they are on a machine. Pure.

A section divides caches into *partitions*, which do not overlap, and has *classes* in these, which may. The rules are
goresctrl's, so that a file gives the same masks here as there:

1. Partitions by percentages: the smallest gets its bits first, rounded down and at least what the kernel takes; the last one
   gets what is left of the sum. Laid out one behind another by name, from the lowest bit.
2. Partitions by masks: as written; partitions of one cache are all of one kind.
3. A class's percentages and masks are of its partition's bits. Percentages name bits: 50% of 11 bits ends in bit 4, as do
   41% to 50%; too few bits are widened downwards, then upwards.
4. Bandwidth is not exclusive: a class has its percentage of its partition's, or the lower of both rates.
5. Where code and data have masks of their own (CDP), a part that names neither is for both.

goresctrl takes AMD's and Hygon's bandwidth for missing. Here its units are had from a rate, else from a percentage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Optional

from cri_proxy.isolation.bandwidth import BandwidthPart, value_of
from cri_proxy.isolation.model import (
    EIGHTHS,
    L2,
    L3,
    MB,
    MBPS,
    PERCENT,
    PREFIX,
    ROOT,
    BandwidthInfo,
    CacheInfo,
    ResctrlInfo,
    Schemata,
)
from cri_proxy.isolation.treatment import BATCH_GROUP, RdtClass
from cri_proxy.text.sources import quote
from policies.frozen import frozen
from policies.model import Qos

#: The class of the root group; "" is the same.
ROOT_CLASS = "system/default"
#: The cache id that stands for all that are not named.
ALL = "all"
LEVELS = (L2, L3)
UNIFIED, CODE, DATA = KINDS = ("unified", "code", "data")
#: What a class is called that containers of a QoS class have where ``by_qos`` says so.
QOS_CLASSES = {Qos.GUARANTEED: "Guaranteed", Qos.BURSTABLE: "Burstable", Qos.BESTEFFORT: "BestEffort"}
#: A resctrl group is a folder: NAME_MAX.
_MOST_BYTES = 255
#: Beyond any machine's cache ids.
MAX_CACHE_ID = 1023
#: The most bits a mask has (cbm_mask is of 32), in goresctrl's words.
_MAX_BIT = 63

_PERCENT = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,3})%")
_MASK = re.compile(r"0x([0-9a-fA-F]{1,16})")
_RANGES = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
_LIMIT = re.compile(r"([0-9]{1,10})(%|MBps)")
_MOST_MBPS = (1 << 32) - 1


# ---------------------------------------------------------------------- what is written


@frozen
class Portion:
    """A part of a cache as it is written: percentages (``low`` 0: from the lowest bit on), or a ``mask``."""

    text: str
    low: int = 0
    high: int = 0
    is_range: bool = False
    mask: int = 0


@frozen
class Portions:
    """The parts of one cache. ``code`` and ``data``: both or none; they count where the kernel divides the two."""

    unified: Portion
    code: Optional[Portion] = None
    data: Optional[Portion] = None

    def of(self, kind: str) -> Optional[Portion]:
        """The part that is written for a kind; None = it is not."""
        return {UNIFIED: self.unified, CODE: self.code, DATA: self.data}[kind]


WHOLE = Portions(Portion("100%", high=100))


@frozen
class CacheAllocation:
    """The parts of the caches of one level: ``by_id``, and of those that are not named."""

    rest: Portions = WHOLE
    by_id: Mapping[int, Portions] = field(default_factory=dict)

    def of(self, cache_id: int) -> Portions:
        return self.by_id.get(cache_id, self.rest)

    def all(self) -> Iterator[Portion]:
        """Every part that is written."""
        for portions in (self.rest, *self.by_id.values()):
            yield from (found for found in map(portions.of, KINDS) if found is not None)


@frozen
class BandwidthLimit:
    """The bandwidth of one domain, for kernels that count in percent and for those that count in MB/s; None = not said."""

    percent: Optional[int] = None
    mbps: Optional[int] = None


NO_LIMIT = BandwidthLimit(100, _MOST_MBPS)


@frozen
class BandwidthAllocation:
    """The bandwidth of the domains: ``by_id``, and of those that are not named."""

    rest: BandwidthLimit = NO_LIMIT
    by_id: Mapping[int, BandwidthLimit] = field(default_factory=dict)

    def of(self, domain: int) -> BandwidthLimit:
        return self.by_id.get(domain, self.rest)

    def lacks(self, unit: str) -> bool:
        """Whether a limit does not say what a kernel that counts in ``unit`` needs."""
        limits = (self.rest, *self.by_id.values())
        return any((each.mbps if unit == MBPS else each.percent) is None for each in limits)


@frozen
class Allocations:
    """What a partition or a class says: of L2 and L3 (by ``LEVELS``) and of bandwidth; what is missing is not said."""

    caches: Mapping[str, CacheAllocation] = field(default_factory=dict)
    bandwidth: Optional[BandwidthAllocation] = None


@frozen
class Partition:
    """One partition and its classes by name."""

    own: Allocations = Allocations()
    classes: Mapping[str, Allocations] = field(default_factory=dict)


@frozen
class RdtSection:
    """A section as it is written. ``optional``: the resources that a machine need not have, of L2, L3, MB.

    ``by_qos``: a container that names no class has the one that is called like its QoS class. ``written``: the section as a
    file has it, in one line.
    """

    partitions: Mapping[str, Partition] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    by_qos: bool = False
    written: str = "{}"

    @property
    def has_classes(self) -> bool:
        return bool(self.partitions)

    def class_of(self, asked: str, qos: Qos) -> str:
        """The class of a container whose annotation asks for ``asked`` ("" = it has none); "" = no class.

        One that is not configured is none: what the container is to others counts then. A section that is off has no class.
        """
        if asked and self.has(asked):
            return asked
        name = QOS_CLASSES[qos] if self.by_qos and not asked else ""
        return name if name and self.has(name) else ""

    @property
    def names(self) -> frozenset[str]:
        """The classes that there are; none where there are no partitions, which is what ``enable: false`` makes of them."""
        if not self.partitions:
            return frozenset()
        return frozenset((ROOT_CLASS, *(name for each in self.partitions.values() for name in each.classes)))

    def has(self, name: str) -> bool:
        """Whether there is a class of a name."""
        return bool(self.partitions) and (
            name == ROOT_CLASS or any(name in partition.classes for partition in self.partitions.values())
        )


def read_portion(text: str) -> Portion:
    """A part of a cache: "60%", "20-60%", "0xf0", "4-7", "3".

    :raises ValueError: it is none of these; the message says what was expected.
    """
    given = text.strip()
    if match := _PERCENT.fullmatch(given):
        low, high = int(match[1] or 0), int(match[2])
        if low <= high <= 100:
            return Portion(given, low, high, is_range=match[1] is not None)
        raise ValueError("percentages up to 100, the lower one first")
    if match := _MASK.fullmatch(given):
        mask = int(match[1], 16)
    else:
        try:
            mask = sum(1 << bit for bit in read_ids(given, most=_MAX_BIT))
        except ValueError:
            raise ValueError(
                'a percentage ("60%", "20-60%"), a mask ("0xf0") or numbers of bits ("4-7")'
            ) from None
    if not mask or not is_one_block(mask):
        raise ValueError("bits in one block, at least one")
    return Portion(given, mask=mask)


def read_limit(texts: Iterable[str]) -> tuple[BandwidthLimit, tuple[str, ...]]:
    """A bandwidth: of texts such as "50%" and "1000MBps" the first of each unit; and those that are in no known unit.

    :raises ValueError: a number is out of range, or no text has a known unit; the message says what was expected.
    """
    said: dict[str, int] = {}
    others = []
    for text in texts:
        match = _LIMIT.fullmatch(text.strip())
        if match is None:
            others.append(text)
        elif int(match[1]) > (100 if match[2] == "%" else _MOST_MBPS):
            raise ValueError(f"at most {'100%' if match[2] == '%' else f'{_MOST_MBPS}MBps'}")
        else:
            said.setdefault(match[2], int(match[1]))
    if not said:
        raise ValueError('a list of a percentage and a rate, such as ["50%", "1000MBps"]')
    return BandwidthLimit(said.get("%"), said.get("MBps")), tuple(others)


def read_ids(text: str, most: int = MAX_CACHE_ID) -> tuple[int, ...]:
    """Numbers such as "0,2,4-7", in order.

    :raises ValueError: it is no such list; the message says what was expected.
    """
    if not _RANGES.fullmatch(text.strip()):
        raise ValueError('cache ids such as "0,2,4-7", or all')
    found: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if dash and int(last) <= int(first):
            raise ValueError(f"a range that rises in the place of {part}")
        if int(last or first) > most:
            raise ValueError(f"numbers up to {most}")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def is_one_block(mask: int) -> bool:
    """Whether the bits of a mask lie side by side."""
    low = mask & -mask
    return (mask + low) & mask == 0


def faults(section: RdtSection) -> tuple[str, ...]:
    """What is wrong with a section on every machine, a sentence each."""
    found: list[str] = []
    seen: dict[str, str] = {}
    for partition_name, partition in section.partitions.items():
        place = f"partition {quote(partition_name)}"
        for name, own in partition.classes.items():
            if name in seen:
                found.append(
                    f"class {quote(name)} is in partition {quote(seen[name])} and in {place}, expected one partition"
                )
            seen.setdefault(name, partition_name)
            found += _class_faults(name, own, partition, place)
    return tuple(found)


def _class_faults(name: str, own: Allocations, partition: Partition, place: str) -> Iterator[str]:
    if name != ROOT_CLASS and (
        name in (".", "..")
        or "/" in name
        or not name.isprintable()
        or len(_group_name(name).encode()) > _MOST_BYTES
    ):
        yield f"a class of {place} is called {quote(name)}, expected a name of a folder, without a slash, or {ROOT_CLASS}"
    missing = [level for level in own.caches if level not in partition.own.caches]
    missing += [MB] if own.bandwidth is not None and partition.own.bandwidth is None else []
    for resource in missing:
        yield f"class {quote(name)} has {resource}, of which {place} has none, expected {key_of(resource)} there, too"
    for level, allocation in own.caches.items():
        for portion in allocation.all():
            if not portion.mask and not portion.high:
                yield f"{level} of class {quote(name)} is {quote(portion.text)}, expected at least 1%"


def key_of(resource: str) -> str:
    """The key of the section that a resource is allocated by."""
    return f"{resource.lower() if resource != MB else 'mb'}Allocation"


def _group_name(name: str) -> str:
    """The group of a class; the name of the batch containers' own is taken."""
    if name == ROOT_CLASS:
        return ROOT
    return f"{PREFIX}{name}" if f"{PREFIX}{name}" != BATCH_GROUP else f"{PREFIX}rdt.{name}"


# ---------------------------------------------------------------------- what it is on a machine


class _Impossible(Exception):
    """A part of a section cannot be had on this machine; the message says which, and what was expected."""


@frozen
class Resolved:
    """The classes of a section on a machine by name; none where there are ``errors``, a sentence each."""

    classes: Mapping[str, RdtClass] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


def resolve(section: RdtSection, info: ResctrlInfo) -> Resolved:
    """The schemata of every class of a section without ``faults``. Anything that cannot be had leaves the section unused."""
    errors: list[str] = []
    classes: dict[str, RdtClass] = {}
    if not section.partitions:
        return Resolved()
    # 1. The bits of partitions, a level.
    bits: dict[str, _Bits] = {}
    for level in LEVELS:
        resources = _resources(level, info)
        if not resources:
            continue
        try:
            bits[level] = _partition_bits(section, level, next(iter(resources)), info)
        except _Impossible as error:
            errors.append(str(error))
    for name, partition in section.partitions.items():
        errors += _unsaid(partition.own.bandwidth, info, f"partition {quote(name)}")
    # 2. The classes in them. Errors of a partition would come again in each of its classes.
    for partition_name, partition in section.partitions.items() if not errors else ():
        for name, own in partition.classes.items():
            errors += _unsaid(own.bandwidth, info, f"class {quote(name)}")
            try:
                schemata = _schemata(name, own, partition_name, section, bits, info)
                classes[name] = RdtClass(name, _group_name(name), schemata)
            except _Impossible as error:
                errors.append(str(error))
    if errors:
        return Resolved(errors=tuple(errors))
    # A container may ask for the root group whether the section has a class for it or not.
    classes.setdefault(ROOT_CLASS, RdtClass(ROOT_CLASS, ROOT, {}))
    return Resolved(classes)


#: Of partitions: by name, cache id and kind the bits; a kind that is not there is not divided.
_Bits = Mapping[str, Mapping[int, Mapping[str, int]]]


def _resources(level: str, info: ResctrlInfo) -> dict[str, str]:
    """The resources of a level, each with the kind it is of."""
    kinds = {level: UNIFIED, f"{level}CODE": CODE, f"{level}DATA": DATA}
    return {name: kind for name, kind in kinds.items() if name in info.caches}


def _partition_bits(section: RdtSection, level: str, resource: str, info: ResctrlInfo) -> _Bits:
    cache = info.caches[resource]
    # Where they lie in the cache is by name, so that a file that is written in another order is the same.
    allocations = {
        name: section.partitions[name].own.caches.get(level) for name in sorted(section.partitions)
    }
    for name, allocation in allocations.items():
        for portion in allocation.all() if allocation else ():
            _check_width(portion, cache, f"{level} of partition {quote(name)}")
    found: dict[str, dict[int, dict[str, int]]] = {name: {} for name in allocations}
    for domain in info.domains[resource]:
        for kind in KINDS:
            wanted = {
                name: allocation.of(domain.id).of(kind) if allocation else None
                for name, allocation in allocations.items()
            }
            for name, mask in _divided(wanted, cache, f"{level} cache id {domain.id}", kind).items():
                found[name].setdefault(domain.id, {})[kind] = mask
    return found


def _divided(
    wanted: Mapping[str, Optional[Portion]], cache: CacheInfo, place: str, kind: str
) -> dict[str, int]:
    """The bits of every partition in one cache; none where no partition says anything."""
    said = {name: portion for name, portion in wanted.items() if portion is not None}
    if not said:
        return {}
    if len(said) < len(wanted):
        names = ", ".join(quote(name) for name in wanted if name not in said)
        raise _Impossible(
            f"{place}: {kind} is not said for {names}, expected it for every partition or for none"
        )
    for name, portion in said.items():
        if portion.is_range:
            found = f"{place}: partition {quote(name)} has {quote(portion.text)}"
            raise _Impossible(f"{found}, expected one percentage or a mask for a partition")
    if any(portion.mask for portion in said.values()):
        return _divided_by_masks(said, cache, place)
    return _divided_by_percentages({name: portion.high for name, portion in said.items()}, cache, place)


def _divided_by_masks(said: Mapping[str, Portion], cache: CacheInfo, place: str) -> dict[str, int]:
    taken = 0
    for name, portion in said.items():
        found = f"{place}: partition {quote(name)} has {quote(portion.text)}"
        if not portion.mask:
            raise _Impossible(f"{found}, expected a mask as other partitions have it, or percentages for all")
        if portion.mask & taken:
            raise _Impossible(f"{found}, expected bits that no other partition has")
        if portion.mask & ~cache.full_mask:
            raise _Impossible(f"{found}, expected bits of {cache.full_mask:#x}")
        taken |= portion.mask
    return {name: portion.mask for name, portion in said.items()}


def _divided_by_percentages(percentages: Mapping[str, int], cache: CacheInfo, place: str) -> dict[str, int]:
    total = sum(percentages.values())
    if total > 100:
        raise _Impossible(f"{place}: partitions have {total}% together, expected at most 100%")
    granted: dict[str, int] = {}
    # 1. The smallest first, as it may be rounded up to what the kernel takes.
    least = max(cache.min_bits, 1)
    of_all = left = total * cache.bits // 100
    ordered = sorted(percentages, key=percentages.__getitem__)
    for name in ordered:
        if left < least:
            raise _Impossible(
                f"{place}: {total}% of {cache.bits} bits are {of_all}, expected {least} or more for each of"
                f" {len(percentages)} partitions"
            )
        bits = max(percentages[name] * left // (left * total // of_all), least)
        granted[name] = left if name == ordered[-1] else min(bits, left)
        left -= granted[name]
    # 2. One behind another.
    masks: dict[str, int] = {}
    at = 0
    for name in percentages:
        masks[name] = (1 << granted[name]) - 1 << at
        at += granted[name]
    return masks


def _check_width(portion: Portion, cache: CacheInfo, place: str) -> None:
    if portion.mask and portion.mask.bit_count() < cache.min_bits:
        raise _Impossible(f"{place} is {quote(portion.text)}, expected at least {cache.min_bits} bits")


def _schemata(
    name: str,
    own: Allocations,
    partition_name: str,
    section: RdtSection,
    bits: Mapping[str, _Bits],
    info: ResctrlInfo,
) -> Schemata:
    found: dict[str, dict[int, str]] = {}
    for level in LEVELS:
        allocation, resources = own.caches.get(level), _resources(level, info)
        if allocation is not None and not resources and level not in section.optional:
            raise _absent(level, name)
        for resource, kind in resources.items():
            cache = info.caches[resource]
            for portion in allocation.all() if allocation else ():
                _check_width(portion, cache, f"{level} of class {quote(name)}")
            found[resource] = {}
            for domain in info.domains[resource]:
                of_partition = bits[level][partition_name].get(domain.id, {})
                base = of_partition.get(kind, of_partition.get(UNIFIED, cache.full_mask))
                place = f"{level} of class {quote(name)} in cache id {domain.id}"
                mask = _class_mask(allocation.of(domain.id), kind, base, cache, place) if allocation else base
                found[resource][domain.id] = f"{mask:x}"
    if info.bandwidth is None:
        if own.bandwidth is not None and MB not in section.optional:
            raise _absent(MB, name)
        return found
    within = section.partitions[partition_name].own.bandwidth
    found[MB] = {
        domain.id: str(
            _bandwidth(_limit(own.bandwidth, domain.id), _limit(within, domain.id), info.bandwidth)
        )
        for domain in info.domains[MB]
    }
    return found


def _absent(resource: str, name: str) -> _Impossible:
    return _Impossible(
        f"class {quote(name)} has {resource}, which this kernel does not divide, expected"
        f" options.{resource.lower()}.optional: true for such machines"
    )


def _class_mask(portions: Portions, kind: str, base: int, cache: CacheInfo, place: str) -> int:
    portion = portions.of(kind) or portions.unified
    lowest = (base & -base).bit_length() - 1
    if portion.mask:
        mask = portion.mask << lowest
        if mask & ~base:
            of = f"the {base.bit_count()} bits of its partition ({base:#x})"
            raise _Impossible(f"{place} is {quote(portion.text)}, expected bits that are among {of}")
        return mask
    bits = base.bit_count()
    first, last = (max(portion.low, 1) - 1) * bits // 100, (portion.high - 1) * bits // 100
    first = max(0, min(first, last + 1 - cache.min_bits))
    last = max(last, first + cache.min_bits - 1)
    return (1 << last - first + 1) - 1 << first + lowest


def _limit(allocation: Optional[BandwidthAllocation], domain: int) -> Optional[BandwidthLimit]:
    return None if allocation is None else allocation.of(domain)


def _unsaid(allocation: Optional[BandwidthAllocation], info: ResctrlInfo, place: str) -> Iterator[str]:
    """What is wrong where the unit that the kernel counts in is not said."""
    unit = "" if info.bandwidth is None else info.bandwidth.unit
    if allocation is not None and unit in (PERCENT, MBPS) and allocation.lacks(unit):
        found, kernel = ("rate in MBps", "MB/s") if unit == MBPS else ("percentage", "percent")
        yield f"{MB} of {place} has no {found}, expected one, as this kernel counts in {kernel}"


def _bandwidth(own: Optional[BandwidthLimit], within: Optional[BandwidthLimit], info: BandwidthInfo) -> int:
    """The number that a class has, of what its partition has; None = nothing is said."""
    if info.unit == EIGHTHS:
        return _eighths(own or within or NO_LIMIT, within or NO_LIMIT, info)
    own, within = own or NO_LIMIT, within or NO_LIMIT
    if info.unit == MBPS:
        return min(_rate(own), _rate(within), info.no_limit)
    percent = max(_percent(own) * max(_percent(within), info.minimum) // 100, info.minimum)
    # The kernel rounds up to its steps; written like that, what is read there is what was wanted.
    step = max(1, info.step)
    return min(-(-percent // step) * step, info.no_limit)


def _eighths(own: BandwidthLimit, within: BandwidthLimit, info: BandwidthInfo) -> int:
    if _rate(own) < _MOST_MBPS:
        return value_of(BandwidthPart(mbps=min(_rate(own), _rate(within))), info)
    percent = _percent(own) if own is within else _percent(own) * _percent(within) / 100
    return value_of(BandwidthPart(share=percent / 100), info) if percent else info.minimum


def _percent(limit: BandwidthLimit) -> int:
    return 100 if limit.percent is None else limit.percent


def _rate(limit: BandwidthLimit) -> int:
    return _MOST_MBPS if limit.mbps is None else limit.mbps
