"""What is counted is exposed as prometheus_client does it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import prometheus_client
import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from cri_proxy.instruments import Counter, Family, Gauge, Histogram, Registry, number
from cri_proxy.metrics import Metrics, NriMetrics

AWKWARD = 'a "quoted" \\ and\na second line'
VALUES = [0.00005, 0.0001, 0.3, 1.0, 1.5, 7e6, 1e-9]


def fill(kinds: Any, registry: Any) -> None:
    """The same with ours and with theirs."""
    plain = kinds.Counter("x_plain_total", "Without labels", registry=registry)
    plain.inc()
    plain.inc(2.5)
    kinds.Counter("x_zero_total", "Never counted", registry=registry)
    labelled = kinds.Counter("x_labelled_total", f"With {AWKWARD}", ["method", "outcome"], registry=registry)
    labelled.labels("Create", AWKWARD).inc()
    labelled.labels("Create", AWKWARD).inc()
    labelled.labels("Remove", "").inc(12345678)
    kinds.Counter("x_unused_total", "With labels, never counted", ["kind"], registry=registry)
    gauge = kinds.Gauge("x_gauge", "A gauge", registry=registry)
    gauge.set(3)
    kinds.Gauge("x_function", "Asked for", registry=registry).set_function(lambda: 42)
    kinds.Gauge("x_labelled_gauge", "With a number as a label", ["number"], registry=registry).labels(7).set(
        -1.5
    )
    histogram = kinds.Histogram("x_seconds", "Times", buckets=(0.0001, 0.5, 1.0), registry=registry)
    by_kind = kinds.Histogram("x_kind_seconds", "By kind", ["kind"], buckets=(0.1, 5e6), registry=registry)
    for value in VALUES:
        histogram.observe(value)
        by_kind.labels("a").observe(value)


class Late:
    """A collector with a family of its own."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def collect(self) -> Iterable[Any]:
        self._family.add_metric(["numa", AWKWARD], 64)
        yield self._family


class Ours:
    Counter, Gauge, Histogram = Counter, Gauge, Histogram


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if "_created" not in line]


def untyped() -> Any:
    """A family of theirs that can be added to as ours can."""

    class Untyped(Metric):
        def add_metric(self, labels: list[str], value: float) -> None:
            self.add_sample(self.name, dict(zip(("level", "domain"), labels)), value)

    return Untyped("x_old_count", "Of no type", "unknown")


def test_the_text_is_prometheus_clients() -> None:
    ours, theirs = Registry(), prometheus_client.CollectorRegistry()
    fill(Ours, ours)
    fill(prometheus_client, theirs)
    ours.register(Late(Family("x_cpus", "CPUs", "gauge", labels=["level", "domain"])))
    theirs.register(Late(GaugeMetricFamily("x_cpus", "CPUs", labels=["level", "domain"])))  # type: ignore[arg-type]
    ours.register(Late(Family("x_old_count", "Of no type", "unknown", labels=["level", "domain"])))
    theirs.register(Late(untyped()))
    assert lines_of(ours.text()) == lines_of(prometheus_client.generate_latest(theirs).decode())


def test_the_daemons_own_text_can_be_read_and_has_every_family() -> None:
    metrics = Metrics("1.2.3")
    NriMetrics(metrics.registry)
    metrics.requests.labels("CreateContainer", "placed").inc()
    read = {family.name: family for family in text_string_to_metric_families(metrics.text())}
    assert read.keys() == {family.name for family in metrics.registry.collect()}
    [sample] = read["cri_resmgr_requests"].samples
    assert (sample.labels, sample.value) == ({"method": "CreateContainer", "outcome": "placed"}, 1.0)


@pytest.mark.parametrize(
    "value", [0, 1, -1, 0.1, 123456, 1234567, 1e6, 1e15, 1e22, -1e9, math.inf, -math.inf, math.nan]
)
def test_numbers_are_written_as_go_does(value: float) -> None:
    assert number(value) == floatToGoString(value)


def test_labels_are_as_many_as_there_are_names() -> None:
    counter = Counter("x_total", "", ["a", "b"], registry=Registry())
    for wrong in ((), ("1",), ("1", "2", "3")):
        with pytest.raises(ValueError, match="x_total has the labels"):
            counter.labels(*wrong)
    with pytest.raises(ValueError, match="x_total has the labels"):
        counter.inc()


def test_a_collector_that_was_taken_out_is_not_asked() -> None:
    registry, late = Registry(), Late(Family("x", "", "gauge", labels=["a", "b"]))
    registry.register(late)
    registry.unregister(late)
    assert registry.text() == ""
    assert registry.get_sample_value("x") is None
