"""What containers have in the L3s and fetch from memory, as the kernel's monitoring groups tell it. Pure.

A monitoring group takes an RMID, of which there are a few hundred at most; each value that is read interrupts a CPU of its
domain. So steps are:

1. Which containers are watched, where there are fewer RMIDs than containers: protected ones, batch that shares an L3 with
   a protected container, then by the CPUs that are used. One that is watched stays so unless another uses far more.
2. Of each only the L3s are read that it may run in, as many of them a round as the time for it allows, the others in turn.
3. Values are bytes. A word in a value's place ("Unavailable") says that it is not known, which is not 0.

The words are the kernel's (Documentation/filesystems/resctrl.rst).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple, Optional, TypeVar

from cri_proxy.isolation.model import BATCH, PREFIX, PROTECTED, CacheDomain, ResctrlInfo
from policies.frozen import frozen
from policies.machine.domain_names import domain_text

#: Bytes of an L3 that a group fills; bytes it has had from memory since the group was made, all and the own node's.
OCCUPANCY, TOTAL, LOCAL = "llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"
VALUES = (OCCUPANCY, TOTAL, LOCAL)

#: How often values are read, seconds.
INTERVAL_S = 10.0
#: The part of one core that reading values may take; all of monitoring takes up to 0.003.
READ_LOAD = 0.002
#: Values that are read in a round before it is known what one costs, and the bounds whatever that is.
FIRST_READS, LEAST_READS, MOST_READS = 600, 60, 20_000

#: One that is watched counts with its use times this and so many CPUs more: the usage of ten seconds is not the next ten's.
STAYS_BY, STAYS_BY_CPUS = 2.0, 0.2
#: What is left of the usage before after one round.
REMEMBERED = 0.8

#: Letters of a container's id in the name of its group; as in messages.
_SHORT = 13
#: The counters of the kernel have so many bits.
_WRAP = 1 << 64

Item = TypeVar("Item")


# ---------------------------------------------------------------------- which containers


@frozen
class Candidate:
    """A container that may be watched. ``meets``: it shares an L3 with one that is protected from it."""

    key: str
    cls: str
    meets: bool = False
    used_cpus: float = 0.0


def room_for(info: ResctrlInfo, foreign: int) -> int:
    """Monitoring groups that we may have beside ``foreign`` ones.

    Each group that divides takes an RMID as well: those that are not there yet find theirs.
    """
    return max(0, info.rmids - info.closids - foreign)


def chosen(candidates: Iterable[Candidate], room: int, before: Collection[str]) -> tuple[str, ...]:
    """The keys of those that are watched, most important first; ``before``: those that are now."""
    every = list(candidates)
    if len(every) > room:
        every.sort(key=lambda each: (_rank(each), -_weight(each, before), each.key))
    return tuple(each.key for each in every[:room])


def _rank(each: Candidate) -> int:
    if each.cls == PROTECTED:
        return 0
    return 1 if each.cls == BATCH and each.meets else 2


def _weight(each: Candidate, before: Collection[str]) -> float:
    return each.used_cpus * STAYS_BY + STAYS_BY_CPUS if each.key in before else each.used_cpus


def smoothed(before: Optional[float], used_cpus: float) -> float:
    """The usage that a choice goes by."""
    return used_cpus if before is None else REMEMBERED * before + (1 - REMEMBERED) * used_cpus


def group_name(key: str) -> str:
    """The name of a container's monitoring group."""
    return f"{PREFIX}{key[:_SHORT]}"


def domains_of(cpus: frozenset[int], domains: Iterable[CacheDomain]) -> tuple[int, ...]:
    """The ids of the domains that a container may run in."""
    return tuple(domain.id for domain in domains if not cpus.isdisjoint(domain.cpus))


# ---------------------------------------------------------------------- the plan of a round


@frozen
class Watch:
    """A container that is to be watched. ``group``: the control group that it is in; ``cgroup``: where its threads are."""

    key: str
    group: str
    cgroup: str
    domains: tuple[int, ...]

    @property
    def name(self) -> str:
        return group_name(self.key)


class Source(NamedTuple):
    """Of whose values: a container's in a domain; with ``key`` and ``name`` "" a control group's as a whole."""

    group: str
    name: str
    domain: int
    key: str = ""


def sources(watches: Iterable[Watch], groups: Iterable[str], domains: Iterable[CacheDomain]) -> list[Source]:
    """All that is read in the end: the control groups as a whole in each domain, then the containers in theirs."""
    numbers = [domain.id for domain in domains]
    whole = [Source(group, "", number) for group in groups for number in numbers]
    return whole + [
        Source(each.group, each.name, number, each.key) for each in watches for number in each.domains
    ]


@frozen
class Plan:
    """What a round is to do: the containers that are to be watched, the most important first, and what there is."""

    watches: tuple[Watch, ...]
    domains: tuple[CacheDomain, ...]
    values: tuple[str, ...] = VALUES


@frozen
class Seen:
    """What the last round has found. ``meters``: of containers, by key and domain; ``groups``: of control groups as a whole.

    ``foreign``: monitoring groups of others. ``note``: what could not be had, "" = nothing. ``spent_s``: of a CPU's time.
    """

    meters: Mapping[tuple[str, int], Meter] = field(default_factory=dict)
    groups: Mapping[tuple[str, int], Meter] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()
    foreign: int = 0
    note: str = ""
    reads: int = 0
    spent_s: float = 0.0


def turn(items: Sequence[Item], start: int, most: int) -> tuple[list[Item], int]:
    """``most`` items from ``start`` on, each once, and where to go on the next time."""
    if len(items) <= most:
        return list(items), 0
    start %= len(items)
    found = [*items[start : start + most], *items[: max(0, start + most - len(items))]]
    return found, (start + most) % len(items)


def reads_allowed(reads: int, spent_s: float, before: int) -> int:
    """How many values the next round may read, after one that has read ``reads`` in ``spent_s`` of a CPU's time.

    That time has the interrupts in it: the reader waits for them. It grows by doubling at most, as one fast round says
    little.
    """
    if not reads or spent_s <= 0:
        return before
    allowed = int(READ_LOAD * INTERVAL_S / (spent_s / reads))
    return max(LEAST_READS, min(MOST_READS, 2 * before, allowed))


# ---------------------------------------------------------------------- values


def read_value(text: bytes) -> tuple[Optional[int], str]:
    """What the file of a value has: bytes, or None and the kernel's word for why not: "Unavailable", "Error"."""
    word = text.strip()
    if word.isdigit() and len(word) <= len(str(_WRAP)):
        return int(word), ""
    return None, word.decode(errors="replace")[:40] or "nothing"


@frozen
class Counted:
    """A counter that is followed. ``bytes``: since it is; never less than before. ``per_s``: None = not known.

    ``raw``: the kernel's number, read at ``at_s``; None: the last look found none.
    """

    raw: int
    at_s: Optional[float]
    bytes: int = 0
    per_s: Optional[float] = None


def counted(before: Optional[Counted], raw: Optional[int], at_s: float) -> Optional[Counted]:
    """The counter after one more look.

    A number that is less than before has either gone round, which takes a last one in the upper half, or was begun anew
    (by another RMID, or a counter that was given to another group meanwhile): nothing is counted of that time.
    """
    if raw is None:
        return None if before is None else replace(before, at_s=None, per_s=None)
    if before is None:
        return Counted(raw, at_s)
    more = raw - before.raw
    if more < 0 and before.raw >= _WRAP // 2 and more + _WRAP < _WRAP // 2:
        more += _WRAP
    if more < 0:
        return Counted(raw, at_s, before.bytes)
    if before.at_s is None or at_s <= before.at_s:
        return Counted(raw, at_s, before.bytes + more)
    return Counted(raw, at_s, before.bytes + more, more / (at_s - before.at_s))


@frozen
class Meter:
    """One container, or one control group, in one domain. ``occupancy`` None = not known. ``problem``: the kernel's word."""

    at_s: float
    occupancy: Optional[int] = None
    total: Optional[Counted] = None
    local: Optional[Counted] = None
    problem: str = ""


def metered(before: Optional[Meter], texts: Mapping[str, bytes], at_s: float) -> Meter:
    """A meter after one more look; ``texts``: what the files had, by name. A file that is not there is not known."""
    values = {name: read_value(text) for name, text in texts.items()}
    nothing: tuple[Optional[int], str] = None, ""
    problem = next((f"{name}: {word}" for name, (_, word) in values.items() if word), "")
    return Meter(
        at_s,
        values.get(OCCUPANCY, nothing)[0],
        counted(before.total if before else None, values.get(TOTAL, nothing)[0], at_s),
        counted(before.local if before else None, values.get(LOCAL, nothing)[0], at_s),
        problem,
    )


def renewed(meter: Meter) -> Meter:
    """The meter of a container whose group was made anew: the kernel's counters begin at 0, what is counted stays."""
    return Meter(meter.at_s, None, _from_nothing(meter.total), _from_nothing(meter.local))


def _from_nothing(before: Optional[Counted]) -> Optional[Counted]:
    return None if before is None else Counted(0, None, before.bytes)


# ---------------------------------------------------------------------- what fills an L3


@frozen
class Share:
    """What one container has in one L3. ``bytes_per_s``: from and to memory; None = not known."""

    key: str
    bytes: Optional[int]
    bytes_per_s: Optional[float]


@frozen
class Filled:
    """One L3: what fills it. ``shares``: of the containers that are watched, the most first.

    ``others_bytes``: what all control groups have besides, which is the host's and that of containers without an RMID;
    None = not known. ``by_class``: the sums of ``shares``.
    """

    domain: CacheDomain
    shares: tuple[Share, ...]
    others_bytes: Optional[int] = None
    by_class: Mapping[str, int] = field(default_factory=dict)


def filled(
    domain: CacheDomain,
    watched: Mapping[str, Meter],
    groups: Collection[Optional[Meter]],
    classes: Mapping[str, str],
) -> Filled:
    """What fills one L3: ``watched`` by container, ``groups`` of the control groups as a whole, ``classes`` by container.

    The values of a round are not of one moment, so that a sum can be more than the whole: nothing is less than 0.
    """
    shares = tuple(
        sorted(
            (
                Share(key, meter.occupancy, None if meter.total is None else meter.total.per_s)
                for key, meter in watched.items()
            ),
            key=lambda share: (-(share.bytes or 0), -(share.bytes_per_s or 0.0), share.key),
        )
    )
    by_class: dict[str, int] = {}
    for share in shares:
        if share.bytes is not None and share.key in classes:
            cls = classes[share.key]
            by_class[cls] = by_class.get(cls, 0) + share.bytes
    whole = [None if meter is None else meter.occupancy for meter in groups]
    known = [value for value in whole if value is not None]
    others = None
    if whole and len(known) == len(whole):
        others = max(0, sum(known) - sum(share.bytes or 0 for share in shares))
    return Filled(domain, shares, others, by_class)


# ---------------------------------------------------------------------- for people

#: L3s of one container that have a line each; of more the sum and the fullest are told.
TOLD = 4


def cache_texts(row: Mapping[str, Any]) -> list[str]:
    """What ``explain`` says of a container's lines in L3s and of its memory bandwidth."""
    if not row["is_watched"]:
        why = row["note"] or "its group is being made"
        return [f"what it fills of L3s is not known: it has no monitoring group yet ({why})"]
    known = [each for each in row["l3s"] if each["bytes"] is not None]
    if len(known) > TOLD:
        most = max(known, key=lambda each: each["bytes"])
        size, rates = sum(each["bytes"] for each in known), [each["bytes_per_s"] for each in known]
        return [
            f"fills {mib_text(size)} MiB of {len(known)} L3s, the most of {domain_text(most['l3'])}: "
            f"{_part_text(most)}{_rate_text(sum(rate or 0 for rate in rates) if any(rates) else None)}"
        ]
    return [
        f"fills {_part_text(each)} of {domain_text(each['l3'])}{_rate_text(each['bytes_per_s'])}"
        for each in known
    ] + [
        f"what it fills of {domain_text(each['l3'])} is not known: the kernel says {each['problem'] or 'nothing'}"
        f"{_rate_text(each['bytes_per_s'])}"
        for each in row["l3s"]
        if each["bytes"] is None
    ]


def _part_text(row: Mapping[str, Any]) -> str:
    whole = f" of {mib_text(row['size_bytes'])}" if row["size_bytes"] else ""
    return f"{mib_text(row['bytes'])}{whole} MiB"


def _rate_text(bytes_per_s: Optional[float]) -> str:
    return "" if bytes_per_s is None else f"; {bytes_per_s / 1e6:,.0f} MB/s from and to memory"


def mib_text(size: float) -> str:
    """Bytes as MiB, with a digit behind the point below ten."""
    mib = size / 2**20
    return f"{mib:.1f}".removesuffix(".0") if mib < 10 else f"{mib:.0f}"
