"""What a protected container measures where no batch runs beside it, and when it measures more. Pure.

A *baseline* is learnt from windows in which the container ran and no batch ran in its domains. Windows are remembered by
container, and by workload, so that a restarted replica has one at once; of workloads the baseline itself survives a restart
of the daemon. The rule, for each signal:

    usual    =  median of the windows
    high     =  their 90 % quantile, low = their 10 % quantile; of fewer than 30 windows the largest and the smallest
    limit    =  the largest of  ratio x high,  high + least,  high + (high - low) / 2
    excess   =  (value - usual) / (limit - usual):  0 = as usual, 1 = at the limit

Ratio and least are those by which plans and moves are judged: 1.1 and 0.05 for a thousand instructions
(affinity/effect/comparison.py), 1.5 and a tenth of the time for pressure (affinity/pressure_guard.py). Quantiles, as a
container warms up, collects garbage, or is restarted in one window of ten. Half the spread above: of noise alone one window
in two hundred is above the limit, and three in succession are looked for.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import Any, Optional

from cri_proxy.affinity.effect.comparison import LEAST_RATIO, LEAST_RISE, WINDOWS
from cri_proxy.affinity.pressure_guard import LEAST_RATIO as PRESSURE_RATIO
from cri_proxy.affinity.pressure_guard import LEAST_RISE as PRESSURE_RISE
from policies.frozen import frozen

#: Windows that a baseline needs, and that are remembered.
LEAST_WINDOWS, MOST_WINDOWS = 2 * WINDOWS, 60
#: Quantiles say something from so many windows on.
_QUANTILES_FROM = 30
#: Workloads that are remembered after their last container is gone.
MOST_WORKLOADS = 1000


@frozen
class Signal:
    """Something that is measured of a container. ``words``: the name of its figure, for sentences.

    ``ratio``, ``least``: the margin by the rule. ``outranks``: where its baseline is known, no other signal of the container
    counts: pressure rises with the container's own load, too.
    """

    name: str
    words: str
    ratio: float
    least: float
    outranks: bool = False


CPU_PRESSURE, MEMORY_PRESSURE = (
    Signal(f"{what}_pressure", f"share of time that tasks waited for {words}", PRESSURE_RATIO, PRESSURE_RISE)
    for what, words in (("cpu", "CPUs"), ("memory", "memory"))
)


def counted(words: str) -> Signal:
    """The signal of a counter: events for a thousand instructions."""
    return Signal("counter", words, LEAST_RATIO, LEAST_RISE, outranks=True)


@frozen
class Baseline:
    """``usual``, ``limit``: as in the rule. ``of_workload``: learnt from other replicas. ``windows``: from so many."""

    usual: float
    limit: float
    windows: int
    of_workload: bool = False

    def excess(self, value: float) -> float:
        """How far a value is above the usual one: 1 = at the limit."""
        return (value - self.usual) / (self.limit - self.usual)


class _Windows:
    """The last windows of one container or workload, and the baseline that they make."""

    def __init__(self, signal: Signal, of_workload: bool = False) -> None:
        self._signal, self._of_workload = signal, of_workload
        self._values: deque[float] = deque(maxlen=MOST_WINDOWS)
        self._baseline: Optional[Baseline] = None

    def add(self, value: float) -> None:
        self._values.append(value)
        self._baseline = None

    @property
    def is_enough(self) -> bool:
        return len(self._values) >= LEAST_WINDOWS

    @property
    def baseline(self) -> Optional[Baseline]:
        """None: there are too few."""
        if self._baseline is None and self.is_enough:
            self._baseline = baseline_of(self._values, self._signal, self._of_workload)
        return self._baseline


class Baselines:
    """The baselines of the protected containers of one node."""

    def __init__(self) -> None:
        self._own: dict[str, dict[Signal, _Windows]] = {}
        self._of_workload: OrderedDict[tuple[str, Signal], _Windows] = OrderedDict()
        #: What a daemon before has learnt, by workload, and name and words of the signal.
        self._recalled: dict[tuple[str, str, str], Baseline] = {}
        #: How many windows workloads have been learnt from.
        self.learnt = 0

    def learn(self, key: str, workload: str, signal: Signal, value: float) -> None:
        """A window of a container without batch beside it."""
        own = self._own.setdefault(key, {})
        if signal not in own:
            own[signal] = _Windows(signal)
        own[signal].add(value)
        if not workload:
            return
        at = workload, signal
        if at not in self._of_workload:
            self._of_workload[at] = _Windows(signal, of_workload=True)
        self._of_workload[at].add(value)
        self._of_workload.move_to_end(at)
        self.learnt += 1
        while len(self._of_workload) > MOST_WORKLOADS:
            self._of_workload.popitem(last=False)

    def has(self, key: str) -> bool:
        """Whether windows of a container itself are enough for a baseline of some signal."""
        return any(windows.is_enough for windows in self._own.get(key, {}).values())

    def of(self, key: str, workload: str, signal: Signal) -> Optional[Baseline]:
        """The container's own baseline, else that of its workload; None while neither has windows enough."""
        own = self._own.get(key, {}).get(signal)
        if own is not None and own.is_enough:
            return own.baseline
        others = self._of_workload.get((workload, signal))
        if others is not None and others.is_enough:
            return others.baseline
        return self._recalled.get((workload, signal.name, signal.words))

    def keep(self, keys: Collection[str]) -> None:
        """Forget the containers that are none of these; what their workloads have taught stays."""
        for key in self._own.keys() - set(keys):
            del self._own[key]

    # ------------------------------------------------------------------ over restarts

    def rows(self) -> list[list[Any]]:
        """The baselines of workloads as plain data, for ``recall``."""
        known = dict(self._recalled)
        for (workload, signal), windows in self._of_workload.items():
            if (baseline := windows.baseline) is not None:
                at = workload, signal.name, signal.words
                known.pop(at, None)  # so that it is among the newest
                known[at] = baseline
        newest = list(known.items())[-MOST_WORKLOADS:]
        return [[*at, baseline.usual, baseline.limit, baseline.windows] for at, baseline in newest]

    def recall(self, rows: Iterable[Iterable[Any]]) -> None:
        """What a daemon before has learnt, until this one has learnt it anew.

        :raises ValueError, TypeError: these are none of its rows.
        """
        found = {}
        for workload, name, words, usual, limit, windows in rows:
            baseline = Baseline(float(usual), float(limit), int(windows), of_workload=True)
            if not (0 <= baseline.usual < baseline.limit < math.inf):
                raise ValueError(f"no baseline: {usual!r}, {limit!r}")
            found[str(workload), str(name), str(words)] = baseline
        self._recalled = found


def baseline_of(windows: Iterable[float], signal: Signal, of_workload: bool = False) -> Baseline:
    """The baseline by the rule, of at least one window."""
    values = sorted(windows)
    is_short = len(values) < _QUANTILES_FROM
    usual = _quantile(values, 0.5)
    low, high = (_quantile(values, part) for part in ((0.0, 1.0) if is_short else (0.1, 0.9)))
    limit = max(signal.ratio * high, high + signal.least, high + (high - low) / 2)
    return Baseline(usual, limit, len(values), of_workload)


def _quantile(values: list[float], part: float) -> float:
    at = part * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)
