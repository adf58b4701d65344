"""What a soak has found, as numbers and as text. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from bench.figures import percentile

#: A call may take so many times as long as the slowest percent of direct ones.
TIMES = 10
#: Resident memory at the end may differ from the first tenth's by this.
FLAT_MB = 5.0


class Call(NamedTuple):
    """A call of a client, seconds of the monotonic clock.

    ``tag`` is its name at the gate; ``about`` (a pod's name or an id) the one where the daemon makes it anew.
    """

    method: str
    tag: str
    begun_s: float
    ended_s: float
    code: str = "OK"
    about: str = ""

    @property
    def took_s(self) -> float:
        return self.ended_s - self.begun_s


class Slow(NamedTuple):
    """A call through the daemon that took longer than it may; the shares are seconds."""

    call: Call
    most_s: float
    runtime_s: float
    flood: str

    @property
    def is_runtimes(self) -> bool:
        """Whether the runtime's own answer took that long."""
        return self.runtime_s > self.most_s


class Flooded(NamedTuple):
    """When a flood was going on."""

    name: str
    begun_s: float
    ended_s: float


def by_method(calls: Iterable[Call]) -> dict[str, list[float]]:
    """Seconds of the calls that succeeded."""
    found: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        if call.code == "OK":
            found[call.method].append(call.took_s)
    return dict(found)


def slow_calls(
    ours: Sequence[Call],
    direct: Mapping[str, Sequence[float]],
    runtime: Mapping[tuple[str, str], float],
    floods: Sequence[Flooded],
) -> list[Slow]:
    """Those beyond TIMES the direct ones' p99 of their method. ``runtime``: seconds of its own answer, by
    method and tag."""
    most_s = {method: TIMES * percentile(values, 99) for method, values in direct.items()}
    return [
        Slow(call, most_s[call.method], share_of(call, runtime) or 0.0, flood_at(floods, call))
        for call in ours
        if call.method in most_s and call.took_s > most_s[call.method]
    ]


def flood_at(floods: Sequence[Flooded], call: Call) -> str:
    """The flood during which a call was made, or ""."""
    return next((f.name for f in floods if f.begun_s < call.ended_s and call.begun_s < f.ended_s), "")


def rows(
    ours: Mapping[str, Sequence[float]],
    direct: Mapping[str, Sequence[float]],
    own: Mapping[str, Sequence[float]],
) -> list[list[str]]:
    """A row a method: how many, then p50, p99 and the longest in milliseconds of ours and direct, p50 and p99 of own."""
    found = []
    for method in sorted(ours, key=lambda method: -len(ours[method])):
        past = direct.get(method, ())
        cells = [f"{percentile(ours[method], p) * 1000:.1f}" for p in (50, 99, 100)]
        cells += [f"{percentile(past, p) * 1000:.1f}" if past else "" for p in (50, 99, 100)]
        alone = own.get(method, ())
        cells += [f"{percentile(alone, p) * 1000:.1f}" if alone else "" for p in (50, 99)]
        found.append([method, str(len(ours[method])), *cells])
    return found


def own_shares(ours: Iterable[Call], runtime: Mapping[tuple[str, str], float]) -> dict[str, list[float]]:
    """Seconds a call took beside the runtime's own answer, by method."""
    found: dict[str, list[float]] = defaultdict(list)
    for call in ours:
        share_s = share_of(call, runtime)
        if call.code == "OK" and share_s is not None:
            found[call.method].append(call.took_s - share_s)
    return dict(found)


def share_of(call: Call, runtime: Mapping[tuple[str, str], float]) -> Optional[float]:
    """Seconds of the runtime's own answer to a call; None: it is not known."""
    made_anew = runtime.get((call.method, call.about)) if call.about else None
    return runtime.get((call.method, call.tag), made_anew)


def memory_line(name: str, samples: Sequence[tuple[float, float]]) -> str:
    """What became of a process's memory; ``samples``: seconds and MB."""
    if len(samples) < 2:
        return f"{name}: too short to tell"
    values = [value for _, value in samples]
    tenth = max(1, len(values) // 10)
    first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
    slope = slope_of(samples) * 3600
    verdict = "flat" if abs(last - first) <= FLAT_MB else f"NOT FLAT within {FLAT_MB:.0f} MB"
    return (
        f"{name}: {first:.1f} MB in the first tenth, {last:.1f} in the last ({verdict}); "
        f"least {min(values):.1f}, most {max(values):.1f}, slope {slope:+.1f} MB an hour, {len(values)} samples"
    )


def flood_lines(floods: Sequence[Flooded], memory: Sequence[tuple[float, float]]) -> list[str]:
    """How often each flood was there, and the most memory from then until the next."""
    most: dict[str, list[float]] = defaultdict(list)
    for flood, then_s in zip(floods, [*(f.begun_s for f in floods[1:]), float("inf")]):
        most[flood.name] += [max((mb for at_s, mb in memory if flood.begun_s <= at_s < then_s), default=0.0)]
    told = ", ".join(f"{name} {len(mbs)} ({max(mbs):.0f})" for name, mbs in most.items())
    return [f"floods, and the daemon's most MB from then until the next: {told}"]


def slope_of(samples: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through points by least squares."""
    x0, y0 = (statistics.fmean(column) for column in zip(*samples))
    return sum((x - x0) * (y - y0) for x, y in samples) / (sum((x - x0) ** 2 for x, _ in samples) or 1.0)


def slow_lines(slow: Sequence[Slow], most: int = 40) -> list[str]:
    """The count, and the slowest of those that are not the runtime's."""
    ours = sorted((s for s in slow if not s.is_runtimes), key=lambda s: s.most_s - s.call.took_s)
    lines = [
        f"slower than {TIMES} x direct's p99 of the method: {len(ours)} (and {len(slow) - len(ours)} for which the "
        "runtime's own answer was)"
    ]
    by = Counter((s.call.method, s.flood or "no flood") for s in ours)
    lines += [f"  {count} x {method}, {flood}" for (method, flood), count in by.most_common()]
    lines += [
        f"  {s.call.method}: {s.call.took_s * 1000:.0f} ms, at most {s.most_s * 1000:.0f}; the runtime's own answer "
        f"{s.runtime_s * 1000:.0f}; {s.flood or 'no flood'}; at {s.call.begun_s:.3f}"
        for s in ours[:most]
    ]
    return lines


def error_lines(name: str, calls: Iterable[Call]) -> list[str]:
    """Calls that failed, by method and code."""
    failed = Counter((call.method, call.code) for call in calls if call.code != "OK")
    return [f"{name}: {count} x {method} failed: {code}" for (method, code), count in failed.most_common()]


def counter_lines(counters: Mapping[str, float]) -> list[str]:
    """The daemon's, without those of calls that went as they should."""
    shown = {
        key.replace("cri_resmgr_", ""): value
        for key, value in counters.items()
        if "result=ok" not in key and "outcome=passed" not in key and "nri_adjustments" not in key
    }
    return ["counters: " + ", ".join(f"{key} {value:g}" for key, value in sorted(shown.items()))]
