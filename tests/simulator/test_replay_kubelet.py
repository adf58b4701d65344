"""Kubelet's own cases, from request bytes to delta: we span no more than it, and have an answer where it has one."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.simulator.replay import simulate
from policies.machine.cpus import format_cpus, parse_cpus
from tests.policies.kubelet import cases, reach, rows_of, tree_of
from tests.simulator.simulations import config, create

CASES: list[dict[str, Any]] = [case for case in cases()["cases"] if "currently_allocated" not in case]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_guaranteed_container_reaches_no_further_than_under_kubelet(case: dict[str, Any]) -> None:
    sizes = case["request"] if isinstance(case["request"], list) else [case["request"]]
    expected = case["expected"] if isinstance(case["request"], list) else [case["expected"]]
    resources = f"AvailableResources: {{CPU: 'cpuset:{format_cpus(frozenset(case['available']))}'}}"
    if case["reserved"]:
        resources += f", ReservedResources: {{CPU: 'cpuset:{format_cpus(frozenset(case['reserved']))}'}}"
    text = f"{{policy: {{Active: topology-aware, {resources}}}}}"
    steps = [
        create(f"c{number}", size, pod="p", qos="guaranteed", memory_limit="1Gi")
        for number, size in enumerate(sizes)
    ]
    lines = list(simulate(tree_of(case["topology"]).data, config(text), steps, lambda name: config()))
    for line, size, theirs in zip(lines, sizes, expected):
        ours = parse_cpus(line["exclusive"])
        assert (line["error"], len(ours)) == ("", size)
        assert ours <= frozenset(case["available"])
        machine = rows_of(case["topology"])
        assert reach(machine, ours).excess(reach(machine, theirs)) == []
