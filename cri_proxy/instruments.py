"""Counters, gauges and histograms, and what Prometheus reads of them (exposition format 0.0.4). Standard library only.

What prometheus_client does, as far as this daemon needs it: that package brings an HTTP server and a client along, which
are 4 MB and 77 modules in a daemon that serves its metrics itself. ``tests/test_instruments.py`` holds the text against
that package's.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Callable, Generic, NamedTuple, Optional, Protocol, TypeVar

#: Held for a moment where something is counted: threads count, too.
_LOCK = threading.Lock()


class SeriesValue(NamedTuple):
    """One line: a series and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


class Family:
    """One metric with all its series. ``name`` of a counter is without ``_total``."""

    def __init__(self, name: str, documentation: str, kind: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.documentation = documentation
        #: counter, gauge, histogram, unknown.
        self.type = kind
        self.samples: list[SeriesValue] = []
        self._labels = tuple(labels)

    def add_sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """A series of whatever name."""
        self.samples.append(SeriesValue(name, labels, value))

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        """A series of a gauge, by the values of its labels."""
        self.samples.append(SeriesValue(self.name, dict(zip(self._labels, labels)), value))


class Collector(Protocol):
    """What families are read from when they are asked for."""

    def collect(self) -> Iterable[Family]: ...


class Registry:
    """All that is exposed, in the order in which it was registered."""

    def __init__(self) -> None:
        self._collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        self._collectors.append(collector)

    def unregister(self, collector: Collector) -> None:
        self._collectors.remove(collector)

    def counter(self, name: str, labels: str, documentation: str, values: Iterable[str] = ()) -> Counter:
        """A counter with these labels, separated by blanks.

        ``values``: the label's that are there from the first scrape on. No rate is seen of what was counted before it.
        """
        made = Counter(name, documentation, labels.split(), registry=self)
        for value in values:
            made.labels(value)
        return made

    def gauge(self, name: str, labels: str, documentation: str) -> Gauge:
        """A gauge with these labels."""
        return Gauge(name, documentation, labels.split(), registry=self)

    def histogram(self, name: str, labels: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        """A histogram with these labels; ``buckets``: their upper bounds, rising."""
        return Histogram(name, documentation, labels.split(), buckets=buckets, registry=self)

    def collect(self, kind: str = "") -> Iterable[Family]:
        """All families, or without those that are known to be of another kind."""
        for collector in list(self._collectors):
            if not kind or getattr(collector, "kind", kind) == kind:
                yield from collector.collect()

    def get_sample_value(self, name: str, labels: Optional[Mapping[str, str]] = None) -> Optional[float]:
        """The value of one series, None if there is none. For tests."""
        for family in self.collect():
            for sample in family.samples:
                if sample.name == name and sample.labels == (labels or {}):
                    return sample.value
        return None

    def text(self) -> str:
        """The exposition format, as an answer to Prometheus."""
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """The same, a piece a family: made as it is gone through, which may be in several turns of an event loop."""
        for family in self.collect():
            lines = []
            name = f"{family.name}_total" if family.type == "counter" else family.name
            kind = "untyped" if family.type == "unknown" else family.type
            documentation = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
            lines.append(f"# HELP {name} {documentation}\n# TYPE {name} {kind}\n")
            lines += [
                f"{sample.name}{_labels(sample.labels)} {number(sample.value)}\n" for sample in family.samples
            ]
            yield "".join(lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """As Go writes it: ``+Inf``, ``1.0``, ``1.5e+06``."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        return f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.") + f"e+{dot - 1:02d}"
    return "NaN" if math.isnan(value) else text


Child = TypeVar("Child")


class _Metric(Generic[Child]):
    """What all three share: series by the values of their labels; without labels one, there from the beginning."""

    kind = ""

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: Registry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._names = tuple(labelnames)
        self._children: dict[tuple[str, ...], Child] = {}
        if not self._names:
            self._children[()] = self._new()
        registry.register(self)

    def labels(self, *values: object) -> Child:
        """The series of these values, in the order of the labels' names.

        :raises ValueError: these are not as many as there are labels.
        """
        child = self._children.get(values)  # type: ignore[arg-type]
        if child is not None:
            return child
        if len(values) != len(self._names) or not self._names:
            raise ValueError(f"{self._name} has the labels {self._names}, and is given {values}")
        with _LOCK:
            return self._children.setdefault(tuple(str(value) for value in values), self._new())

    @property
    def _only(self) -> Child:
        """:raises ValueError: it has labels."""
        if self._names:
            raise ValueError(f"{self._name} has the labels {self._names}, and is given none")
        return self._children[()]

    def collect(self) -> Iterable[Family]:
        is_counter = self.kind == "counter"
        family_name = self._name[: -len("_total")] if is_counter else self._name
        family = Family(family_name, self._documentation, self.kind)
        with _LOCK:
            children = list(self._children.items())
        for values, child in children:
            family.samples += self._samples(dict(zip(self._names, values)), child)
        return (family,)

    def _new(self) -> Child:
        raise NotImplementedError

    def _samples(self, labels: dict[str, str], child: Child) -> list[SeriesValue]:
        raise NotImplementedError


class Count:
    """A number that only grows."""

    value = 0.0

    def inc(self, amount: float = 1) -> None:
        with _LOCK:
            self.value += amount


class Counter(_Metric[Count]):
    """How often something has happened. ``name`` ends with ``_total``."""

    kind = "counter"

    def inc(self, amount: float = 1) -> None:
        self._only.inc(amount)

    def _new(self) -> Count:
        return Count()

    def _samples(self, labels: dict[str, str], child: Count) -> list[SeriesValue]:
        return [SeriesValue(self._name, labels, child.value)]


class GaugeValue:
    """A number of the moment."""

    def __init__(self) -> None:
        self._value: Optional[float] = 0.0
        self._function: Optional[Callable[[], float]] = None

    def set(self, value: float) -> None:
        self._value = float(value)

    def end(self) -> None:
        """There is no such number any more, and no line, until it is set again."""
        self._value = None

    def set_function(self, function: Callable[[], float]) -> None:
        """Have it asked for whenever it is read."""
        self._function = function

    @property
    def value(self) -> Optional[float]:
        return self._value if self._function is None else float(self._function())


class Gauge(_Metric[GaugeValue]):
    """How much there is of something."""

    kind = "gauge"

    def set(self, value: float) -> None:
        self._only.set(value)

    def set_function(self, function: Callable[[], float]) -> None:
        self._only.set_function(function)

    def end(self) -> None:
        """End all its series: what they were read from is not heard of any more."""
        for child in list(self._children.values()):
            child.end()

    def _new(self) -> GaugeValue:
        return GaugeValue()

    def _samples(self, labels: dict[str, str], child: GaugeValue) -> list[SeriesValue]:
        value = child.value
        return [] if value is None else [SeriesValue(self._name, labels, value)]


class Distribution:
    """How many values were in which bucket, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * len(bounds)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        with _LOCK:
            self.sum += value
            self.counts[bisect_left(self.bounds, value)] += 1


class Histogram(_Metric[Distribution]):
    """How values are distributed over buckets; ``buckets``: their upper bounds, rising."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: Registry,
    ) -> None:
        self._bounds = (*buckets, math.inf)
        super().__init__(name, documentation, labelnames, registry=registry)

    def observe(self, value: float) -> None:
        self._only.observe(value)

    def _new(self) -> Distribution:
        return Distribution(self._bounds)

    def _samples(self, labels: dict[str, str], child: Distribution) -> list[SeriesValue]:
        samples, total = [], 0
        with _LOCK:
            counts, value_sum = list(child.counts), child.sum
        for bound, count in zip(self._bounds, counts):
            total += count
            samples.append(SeriesValue(f"{self._name}_bucket", {**labels, "le": number(bound)}, float(total)))
        samples.append(SeriesValue(f"{self._name}_count", labels, float(total)))
        samples.append(SeriesValue(f"{self._name}_sum", labels, value_sum))
        return samples
