"""Whether containers fetch more or fewer lines from afar after moves than before. Pure: counts in, a verdict out.

Before and after a plan the same events are counted in several windows. The rule:

    rate of a container in a window  =  counts of all events / work (instructions, in thousands)
    rate of the plan in a window     =  mean of its containers' rates, weighted by their work before
    worse   if every window after is above every window before
            and  mean after - mean before  >=  2 x (largest - smallest before)
            and  mean after  >=  1.1 x mean before
            and  mean after - mean before  >=  0.05
    better  the other way round; else within the noise

Per unit of work: more load is no effect. Weighted by the work *before*, for both sides: that one container has more to do
than another is none either. Every window above every other: of five and five that comes by chance once in 252 times.
Twice the spread: what one window differs from the next without a move is noise. 0.05 for a thousand instructions: at
84 ns for a line from another L3 that is 4 ps for an instruction, about one per cent of its time; less is not worth a move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cri_proxy.affinity.effect.events import EventSet
from policies.frozen import frozen

#: Windows before, and as many after.
WINDOWS = 5
SPREADS, LEAST_RATIO, LEAST_RISE = 2.0, 1.1, 0.05
#: A container that does less in a window (instructions; nanoseconds of CPU time) tells nothing.
LEAST_WORK = 1e6

BETTER, WORSE, NOISE, UNKNOWN = "better", "worse", "within the noise", "not known"


@frozen
class Counts:
    """A container's counters: work, and how often each event came; since they were opened, or of one window."""

    work: float
    events: tuple[float, ...]

    def since(self, earlier: Counts) -> Counts:
        """The counts between two looks."""
        events = tuple(now - then for now, then in zip(self.events, earlier.events))
        return Counts(self.work - earlier.work, events)


#: Counts of one window by container id.
Window = Mapping[str, Counts]


@frozen
class Effect:
    """``before``, ``after``: mean rate of each event. ``noise``: largest minus smallest sum of them before.

    ``compared``: so many containers; ``idle``: so many were counted and did too little to compare.
    """

    verdict: str
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    noise: float = 0.0
    compared: int = 0
    idle: int = 0


def windows_of(looks: Sequence[Window]) -> tuple[Window, ...]:
    """The windows between looks; of those containers that every look has."""
    always = set.intersection(*(set(look) for look in looks)) if looks else set()
    return tuple(
        {key: later[key].since(earlier[key]) for key in sorted(always)}
        for earlier, later in zip(looks, looks[1:])
    )


def compare(before: Sequence[Window], after: Sequence[Window], per: float) -> Effect:
    """The effect by the rule. ``per``: rates are for so much work."""
    windows = [*before, *after]
    counted = set.intersection(*(set(window) for window in windows)) if before and after else set()
    busy = [
        key for key in sorted(counted) if all(window[key].work >= LEAST_WORK for window in windows)
    ]  # fmt: skip
    if not busy:
        return Effect(UNKNOWN, idle=len(counted))
    total = sum(window[key].work for window in before for key in busy)
    weights = {key: sum(window[key].work for window in before) / total for key in busy}
    then = [_rates(window, weights, per) for window in before]
    now = [_rates(window, weights, per) for window in after]
    sums = [sum(rates) for rates in then]
    noise = max(sums) - min(sums)
    verdict = _verdict(sums, [sum(rates) for rates in now], noise)
    return Effect(verdict, _means(then), _means(now), noise, len(busy), len(counted) - len(busy))


def _rates(window: Window, weights: Mapping[str, float], per: float) -> tuple[float, ...]:
    by_event = zip(
        *([weight * per * count / window[key].work for count in window[key].events]
          for key, weight in weights.items())
    )  # fmt: skip
    return tuple(sum(rates) for rates in by_event)


def _mean(values: Iterable[float]) -> float:
    from statistics import mean  # two milliseconds, and most nodes count nothing

    return mean(values)


def _means(rates: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(_mean(of_event) for of_event in zip(*rates))


def _verdict(before: Sequence[float], after: Sequence[float], noise: float) -> str:
    if _is_above(after, before, noise):
        return WORSE
    return BETTER if _is_above(before, after, noise) else NOISE


def _is_above(high: Sequence[float], low: Sequence[float], noise: float) -> bool:
    rise = _mean(high) - _mean(low)
    return (
        min(high) > max(low)
        and rise >= SPREADS * noise
        and _mean(high) >= LEAST_RATIO * _mean(low)
        and rise >= LEAST_RISE
    )


# ---------------------------------------------------------------------- text

# A gain is only a difference of counts on this machine, and is told so: so many fills before, so many after.


def effect_row(events: EventSet, effect: Effect, left_out: int) -> dict[str, Any]:
    """An effect as plain data. ``left_out``: containers that there were no counters for."""
    known = effect.verdict != UNKNOWN
    return {
        "verdict": effect.verdict,
        "cpu": events.cpu,
        "per": events.per_words,
        "events": [
            {"name": event.name, "words": event.words, "before": before, "after": after}
            for event, before, after in zip(events.events, effect.before, effect.after)
            if known
        ],
        "noise": effect.noise,
        "compared": effect.compared,
        "idle": effect.idle,
        "left_out": left_out,
        "unseen": events.unseen,
    }


def effect_lines(row: Mapping[str, Any]) -> list[str]:
    """The last measured plan, without indentation; nothing was measured yet: no line."""
    if not row:
        return []
    lines = [
        f"{event['words']} per {row['per']}: {event['before']:.3f} before, {event['after']:.3f} after"
        for event in row["events"]
    ]
    lines.append(f"last plan {row['age_s']:.0f} s ago: {_verdict_text(row)}; {_of_what(row)}")
    l3 = row.get("l3") or {}
    for words, before, after in l3.get("shares", ()):
        lines.append(f"{words}: {before:.1%} before, {after:.1%} after (of all that runs there)")
    if row["unseen"]:
        lines.append(row["unseen"])
    return lines


def _verdict_text(row: Mapping[str, Any]) -> str:
    if row["verdict"] == UNKNOWN:
        return "no effect is known, as no container was busy before and after"
    return f"{row['verdict']} (windows before differ by {row['noise']:.3f})"


def _of_what(row: Mapping[str, Any]) -> str:
    parts = [f"{row['compared']} container{'' if row['compared'] == 1 else 's'} compared"]
    if row["idle"]:
        parts.append(f"{row['idle']} too idle")
    if row["left_out"]:
        parts.append(f"{row['left_out']} left out, for want of counters")
    return ", ".join(parts)


# ---------------------------------------------------------------------- subjects

# The containers that are counted around a plan: the moved ones, and their peers.


@frozen
class Subject:
    """A container to count: its cgroup's path from the hierarchy's root, and its CPUs."""

    key: str
    path: str
    cpus: frozenset[int]


def in_order(
    keys: Sequence[str], moved: Collection[str], near: Sequence[Sequence[tuple[float, int]]]
) -> tuple[str, ...]:
    """The moved containers and their peers, most important first: what moves before what stays, then by weight.

    ``near``: the edges of each container of ``keys``, as weight and index of the other end. A peer's weight is that of its
    edges to moved containers.
    """
    weights = {
        key: sum(weight for weight, _ in edges if weight > 0)
        for key, edges in zip(keys, near)
        if key in moved
    }
    peers: dict[str, float] = {}
    for key, edges in zip(keys, near):
        for weight, other in edges if key in moved else ():
            if weight > 0 and keys[other] not in moved:
                peers[keys[other]] = peers.get(keys[other], 0.0) + weight
    return (*_heaviest_first(weights), *_heaviest_first(peers))


def _heaviest_first(weights: dict[str, float]) -> list[str]:
    return sorted(weights, key=lambda key: (-weights[key], key))


def fitting(subjects: Iterable[Subject], per_cpu: int, descriptors: int) -> tuple[Subject, ...]:
    """The first ones whose descriptors, ``per_cpu`` for each of their CPUs, are at most ``descriptors`` in all.

    A container too wide for the rest is passed over, and the next one looked at.
    """
    chosen: list[Subject] = []
    left = descriptors
    for subject in subjects:
        needed = per_cpu * len(subject.cpus)
        if 0 < needed <= left:
            chosen.append(subject)
            left -= needed
    return tuple(chosen)
