"""Which CPUs handle which interrupts of devices. Pure.

Of an interrupt that may be controlled the first of these counts, each with CPUs that are online:

1. Balloon types whose ``irqClaim`` names it: the CPUs of all their balloons.
2. A sink: the CPUs of balloon types with ``irqMode: sink``, and those of the section, without isolated ones.
3. What it had before, without isolated CPUs. Where nothing is left, those of the same L3, NUMA node, machine that are
   not isolated; where all are isolated it stays as it was.

Isolated are the CPUs that protected containers own, and those of balloon types with ``irqMode: isolate``. A container of a
sink isolates nothing. An interrupt that has nothing to leave is left alone.

Names are nri-plugins' (``irqClaim``, ``irqMode``, ``controllableInterrupts``); patterns are those of Go's path.Match: ``*``
and ``?`` match no slash. A number in ``irqClaim`` is an interrupt's number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Optional

from cri_proxy.isolation.model import PROTECTED, IsolatedContainer
from policies.balloons.types import IRQ_MODES, BalloonType
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, format_cpus, parse_mask

SINK, ISOLATE = IRQ_MODES
#: The option.
INTERRUPTS = "isolation.interrupts"
#: As many containers are named in one sentence.
_NAMED = 2


@frozen
class InterruptSection:
    """The option ``control.interrupts``. ``controllable``: patterns, None = all interrupts. ``sink``: CPUs.

    ``written``: the same in one line of YAML.
    """

    controllable: Optional[tuple[str, ...]] = None
    sink: frozenset[int] = NO_CPUS
    written: str = "{}"


@frozen
class Interrupt:
    """A numbered line of /proc/interrupts. ``name``: its chip, hardware number and actions, a blank between.

    ``cpus``: those it had before anything was written. ``is_fixed``: the kernel does not let it be changed.
    """

    number: int
    name: str
    cpus: frozenset[int]
    is_fixed: bool = False


@frozen
class Routing:
    """Where interrupts should be handled. ``why``: a sentence; ``keys``: the containers it is for."""

    cpus: frozenset[int]
    why: str
    keys: tuple[str, ...] = ()


@frozen
class _Claim:
    patterns: tuple[str, ...]
    type: str
    cpus: frozenset[int]
    keys: tuple[str, ...]


@frozen
class Claims:
    """What containers and the configuration ask for. ``sink_why``: what says where the sink is."""

    claims: tuple[_Claim, ...] = ()
    sink: frozenset[int] = NO_CPUS
    sink_why: str = ""
    isolated: Mapping[str, tuple[str, frozenset[int]]] = field(default_factory=dict)

    @property
    def isolated_cpus(self) -> frozenset[int]:
        return frozenset().union(*(cpus for _, cpus in self.isolated.values()))


def read_interrupts(text: str) -> dict[int, str]:
    """The numbered interrupts of /proc/interrupts: number -> name. Lines such as NMI's are no device's."""
    lines = text.splitlines()
    columns = len(lines[0].split()) if lines else 0
    found = {}
    for line in lines[1:]:
        words = line.split()
        if words and words[0].endswith(":") and words[0][:-1].isdecimal():
            # An interrupt that has no counter for a CPU yet has fewer columns on some kernels.
            first = next((n for n, word in enumerate(words[1:], 1) if n > columns or not word.isdecimal()), 0)
            found[int(words[0][:-1])] = " ".join(words[first:]) if first else ""
    return found


def pattern_fault(pattern: str) -> str:
    """What is wrong with a pattern; "" = nothing."""
    return "" if _compiled(pattern) is not None else "a bracket or backslash that does not end"


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches the whole name of an interrupt; a wrong one matches nothing."""
    expression = _compiled(pattern)
    return expression is not None and expression.fullmatch(name) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Optional[re.Pattern[str]]:
    """A pattern of path.Match as an expression; None = it is none."""
    parts, rest = [], pattern
    while rest:
        sign, rest = rest[0], rest[1:]
        if sign == "*":
            parts.append("[^/]*")
        elif sign == "?":
            parts.append("[^/]")
        elif sign == "[":
            found = re.match(r"(\^?)((?:\\.|[^\]\\])+)\]", rest)
            if found is None:
                return None
            signs = re.sub(r"\\?(.)", lambda one: one[0] if one[0] == "-" else re.escape(one[1]), found[2])
            parts.append(f"[{found[1]}{signs}]")
            rest = rest[found.end() :]
        elif sign == "\\":
            if not rest:
                return None
            parts.append(re.escape(rest[0]))
            rest = rest[1:]
        else:
            parts.append(re.escape(sign))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        return None


def claims_of(
    containers: Iterable[IsolatedContainer], types: Iterable[BalloonType], section: InterruptSection
) -> Claims:
    """What all containers on a node ask for together; an empty balloon asks for nothing."""
    by_name = {each.name: each for each in types}
    claimed: dict[str, _Claim] = {}
    isolated: dict[str, tuple[str, frozenset[int]]] = {}
    sink, sinks = section.sink, ["control.interrupts"] if section.sink else []
    for each in containers:
        kind = by_name.get(each.balloon)
        mode = "" if kind is None else kind.irq_mode
        # In a balloon they own its CPUs; what they share besides is others', too.
        own = each.owned or each.cpus
        if kind is not None and kind.irq_claim:
            before = claimed.get(kind.name, _Claim(kind.irq_claim, kind.name, NO_CPUS, ()))
            claimed[kind.name] = _Claim(
                kind.irq_claim, kind.name, before.cpus | own, (*before.keys, each.key)
            )
        if kind is not None and mode == SINK:
            sink = sink | own
            sinks += [kind.name] if kind.name not in sinks else []
        elif mode == ISOLATE and own:
            isolated[each.key] = f"the balloon type {each.balloon} isolates", own
        elif each.cls == PROTECTED and each.owned:
            isolated[each.key] = f"{each.path} is protected", each.owned
    return Claims(tuple(claimed.values()), sink, f"{' and '.join(sinks)} gathers interrupts", isolated)


def route(
    interrupt: Interrupt, claims: Claims, online: frozenset[int], near: Sequence[Sequence[frozenset[int]]]
) -> Optional[Routing]:
    """Where an interrupt should be handled; None = it is left alone. ``near``: domains by level, the small ones first.

    The CPUs are never none, and never isolated ones while there are others, but where the interrupt is claimed.
    """
    claimed = [
        each
        for each in claims.claims
        if any(
            pattern == str(interrupt.number) or matches(pattern, interrupt.name) for pattern in each.patterns
        )
    ]
    cpus = frozenset().union(*(each.cpus for each in claimed)) & online
    if cpus:
        names = " and ".join(each.type for each in claimed)
        return Routing(cpus, f"the balloon type {names} claims it", tuple(k for c in claimed for k in c.keys))
    isolated = claims.isolated_cpus
    sink = claims.sink & online
    if sink:
        return Routing(sink - isolated or online - isolated or sink, claims.sink_why)
    left = interrupt.cpus & isolated
    if not left:
        return None
    kept = interrupt.cpus - isolated
    if not kept & online:
        kept = _nearest(interrupt.cpus, online - isolated, near)
    if not kept:
        return None
    keys = tuple(key for key, (_, own) in claims.isolated.items() if not own.isdisjoint(left))
    return Routing(kept, _isolated_why(claims, keys), keys)


def new_interrupts(cpus: frozenset[int], claims: Claims, online: frozenset[int]) -> Optional[Routing]:
    """The same of interrupts that are yet to come (default_smp_affinity). ``cpus``: what they would have."""
    return route(
        Interrupt(-1, "", cpus), Claims((), claims.sink, claims.sink_why, claims.isolated), online, ()
    )


def is_controllable(name: str, section: InterruptSection) -> bool:
    """Whether an interrupt may be controlled."""
    return section.controllable is None or any(matches(each, name) for each in section.controllable)


def _nearest(
    cpus: frozenset[int], free: frozenset[int], near: Sequence[Sequence[frozenset[int]]]
) -> frozenset[int]:
    for level in near:
        around = frozenset().union(*(domain for domain in level if not domain.isdisjoint(cpus)))
        if around & free:
            return around & free
    return free


def _isolated_why(claims: Claims, keys: Sequence[str]) -> str:
    sentences = list(dict.fromkeys(claims.isolated[key][0] for key in keys))
    more = len(sentences) - _NAMED
    return "; ".join(sentences[:_NAMED]) + (f"; {more} more" if more > 0 else "")


# ---------------------------------------------------------------------- masks


def write_mask(cpus: frozenset[int]) -> str:
    """A mask as the kernel reads it: hexadecimal words of 32 bits, the highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    digits = f"{bits:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8) if len(digits) > 8 else digits
    return ",".join(digits[n : n + 8] for n in range(0, len(digits), 8)) if len(digits) > 8 else digits


def same_mask(one: str, other: str) -> bool:
    """Whether two masks are the same CPUs."""
    return parse_mask(one) == parse_mask(other)


def number_of(place: str) -> Optional[int]:
    """The number of the interrupt that a place is of; None = it is none's."""
    found = re.fullmatch(r".*/irq/([0-9]+)/smp_affinity_list", place)
    return int(found[1]) if found else None


def irqbalance_lines(isolated: frozenset[int]) -> str:
    """What ends that irqbalance moves interrupts to these CPUs: it reads its file at its start."""
    banned = (
        f"IRQBALANCE_BANNED_CPULIST={format_cpus(isolated)}" if isolated else "IRQBALANCE_BANNED_CPULIST=CPUS"
    )
    return (
        f"in /etc/default/irqbalance (/etc/sysconfig/irqbalance): {banned}\n"
        "or leave all interrupts to isolation.interrupts: systemctl disable --now irqbalance\n"
        "single interrupts are left alone by it with --banirq=NUMBER in IRQBALANCE_ARGS"
    )
