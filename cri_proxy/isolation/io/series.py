"""What monitoring has found as metrics: by container and L3, and under the names and labels of Intel's exporters.

Those are goresctrl's, as cri-resource-manager serves them: the class is the control group, "system/default" the root's; a
series without a monitoring group is a control group as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Callable, Optional

from cri_proxy.engine.engine import Engine
from cri_proxy.instruments import Family
from cri_proxy.isolation.io.monitoring_rounds import Answer
from cri_proxy.isolation.model import PREFIX
from cri_proxy.isolation.monitoring import Counted, Meter, group_name

#: A container that may run in more L3s than these has one series with their sum.
MOST_L3S = 4
#: The L3 of that one.
SEVERAL = "several"
#: What Intel's exporters call the root's group.
INTELS_ROOT = "system/default"

_BANDWIDTH_LABELS = ("namespace", "pod", "container", "l3", "scope")
_INTELS_LABELS = ("rdt_class", "rdt_mon_group", "cache_id", "pod_name", "container_name")


def monitoring_families() -> tuple[Family, ...]:
    """The families, empty. Intel's counters have names that a counter may not have in the text format."""
    where = _BANDWIDTH_LABELS[:-1]
    # fmt: off
    return (
        Family("cri_resmgr_container_llc_occupancy_bytes",
            "Bytes of an L3 that a container fills, with isolation.monitoring", "gauge", where),
        Family("cri_resmgr_container_memory_bandwidth_bytes",
            "Bytes from and to memory by container, L3 and scope: local (its NUMA node's memory), total", "counter",
            _BANDWIDTH_LABELS),
        Family("cri_resmgr_monitored_containers", "Containers that have a monitoring group (RMID)", "gauge"),
        Family("l3_llc_occupancy", "As Intel's exporters: bytes of an L3 that a group or container fills", "gauge",
            _INTELS_LABELS),
        Family("l3_mbm_local_bytes", "As Intel's exporters: bytes from and to the own NUMA node's memory", "unknown",
            _INTELS_LABELS),
        Family("l3_mbm_total_bytes", "As Intel's exporters: bytes from and to all memory", "unknown", _INTELS_LABELS),
    )
    # fmt: on


def filled_families(
    engine: Engine, answer: Answer, names: Mapping[int, str], group_of: Callable[[str], str]
) -> tuple[Family, ...]:
    """The families with what a round has found. ``names``: of the L3s, by the kernel's id; ``group_of``: control groups."""
    families = monitoring_families()
    occupancy, bandwidth, watched, intels = families[0], families[1], families[2], families[3:]
    watched.add_metric([], len(answer.seen.watched))
    for (group, cache), meter in sorted(answer.seen.groups.items()):
        _add_intels(intels, [_intels_class(group), "", str(cache), "", ""], meter)
    for key, meters in _by_key(answer.seen.meters).items():
        grant = engine.grants.get(key)
        if grant is None:
            continue
        pod = grant.container.pod
        labels = [pod.namespace, pod.name, grant.container.name]
        for domain, meter in meters:
            where = SEVERAL if domain is None else names[domain]
            if meter.occupancy is not None:
                occupancy.add_metric([*labels, where], meter.occupancy)
            for scope, count in (("local", meter.local), ("total", meter.total)):
                if count is not None:
                    texts = dict(zip(_BANDWIDTH_LABELS, [*labels, where, scope]))
                    bandwidth.add_sample(f"{bandwidth.name}_total", texts, count.bytes)
            group, cache_id = group_name(key).removeprefix(PREFIX), "" if domain is None else str(domain)
            cls = _intels_class(group_of(key))
            _add_intels(intels, [cls, group, cache_id, pod.name, grant.container.name], meter)
    return families


def _add_intels(families: Sequence[Family], labels: Sequence[str], meter: Meter) -> None:
    occupancy, local, total = families
    if meter.occupancy is not None:
        occupancy.add_metric(labels, meter.occupancy)
    for family, count in ((local, meter.local), (total, meter.total)):
        if count is not None:
            family.add_metric(labels, count.bytes)


def _intels_class(group: str) -> str:
    return group.removeprefix(PREFIX) or INTELS_ROOT


def _by_key(
    meters: Mapping[tuple[str, int], Meter],
) -> dict[str, list[tuple[Optional[int], Meter]]]:
    """Of each container its meters by domain; of one with many the sum, by None."""
    found: dict[str, list[tuple[Optional[int], Meter]]] = {}
    for (key, domain), meter in sorted(meters.items()):
        found.setdefault(key, []).append((domain, meter))
    return {key: each if len(each) <= MOST_L3S else [(None, _sum(each))] for key, each in found.items()}


def _sum(each: Sequence[tuple[Optional[int], Meter]]) -> Meter:
    meters = [meter for _, meter in each]
    known = [meter.occupancy for meter in meters if meter.occupancy is not None]
    return Meter(
        meters[0].at_s,
        sum(known) if known else None,
        _added(meter.total for meter in meters),
        _added(meter.local for meter in meters),
    )


def _added(counts: Iterable[Optional[Counted]]) -> Optional[Counted]:
    known = [count for count in counts if count is not None]
    return replace(known[0], bytes=sum(count.bytes for count in known)) if known else None
