"""What annotations declare to be apart or required to be near, against traffic: at create, by plans, and as explained."""

from __future__ import annotations

import json
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policies.machine.cpus import parse_cpus
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S, KUNPENG_48_2S
from tests.scenes import topology
from tests.simulator.simulations import CCX, STATE, create, moves, places, run

WAIT = {"op": "wait", "seconds": 60}
REBALANCE = {"op": "rebalance"}
HASH = "5d4f8c7b9d"


def declared(container: str, kind: str, *workloads: str, weight: object = 1) -> dict[str, str]:
    """The annotation that the container ``app`` is to be near or apart from those of some workloads, anywhere."""
    everywhere = {"key": "namespace", "operator": "Exists"}
    match = {"key": "pod/labels/app", "operator": "In", "values": list(workloads)}
    terms = [{"scope": everywhere, "match": match, "weight": weight}]
    return {f"cri-resmgr.io/{kind}": json.dumps({container: terms})}


def replica(workload: str, number: int, annotations: dict[str, str], cpus: int = 1) -> list[dict[str, Any]]:
    """One pod of a Deployment with one container, whose name is its id."""
    name = f"{workload}-{HASH}-{number:05}"
    pod = {"op": "pod", "id": name, "labels": {"pod-template-hash": HASH, "app": workload}}
    return [pod, create(f"{workload}{number}", cpus, pod=name, name=workload, annotations=annotations)]


def traffic(*pairs: tuple[str, str], bytes_per_s: float) -> dict[str, Any]:
    """Ten seconds in which these talk."""
    edges = [{"a": a, "b": b, "bytes_per_s": bytes_per_s, "msgs_per_s": 0} for a, b in pairs]
    return {"op": "traffic", "edges": edges}


@pytest.mark.parametrize("weight", [1, 20, 1000])
@pytest.mark.parametrize("bytes_per_s", [1.3e6, 2e7, 1e13])
def test_a_pair_that_was_set_apart_is_in_two_l3s_whatever_it_says_to_each_other(
    weight: int, bytes_per_s: float
) -> None:
    term = declared("a", "anti-affinity", "b", weight=weight)
    talk = traffic(("a1", "b1"), bytes_per_s=bytes_per_s)
    steps = [*replica("a", 1, term), *replica("b", 1, {}), *[talk] * 6, WAIT, REBALANCE]
    line = run(*steps, STATE)[-1]
    assert places(line)["a1"] != places(line)["b1"]
    # A replica that comes later is drawn by what its workload has said before.
    line = run(*steps, *replica("b", 2, {}), talk, WAIT, REBALANCE, STATE)[-1]
    assert places(line)["a1"] not in (places(line)["b1"], places(line)["b2"])


def test_containers_of_one_pod_that_are_declared_to_be_apart_are_in_two_l3s() -> None:
    term = {"cri-resmgr.io/anti-affinity": "a: [b]"}
    pod = {"op": "pod", "id": "pod", "annotations": term}
    one, other = (create(name, 1, pod="pod", name=name, annotations=term) for name in "ab")
    line = run(pod, one, other, traffic(("a", "b"), bytes_per_s=1e12), WAIT, REBALANCE, STATE)[-1]
    assert places(line)["a"] != places(line)["b"]


@pytest.mark.parametrize(("cpus", "level"), [(4, "l3"), (12, "numa"), (30, "socket")])
def test_wide_containers_are_apart_in_the_domains_of_their_size(cpus: int, level: str) -> None:
    term = declared("a", "anti-affinity", "b")
    steps = [*replica("a", 1, term, cpus), *replica("b", 1, {}, cpus)]
    line = run(*steps, traffic(("a1", "b1"), bytes_per_s=1e12), WAIT, REBALANCE, STATE)[-1]
    one, other = (parse_cpus(places(line)[key]) for key in ("a1", "b1"))
    assert not any(d.cpus & one and d.cpus & other for d in topology(HYGON_7285_2S).at(level))


def test_weights_order_what_is_declared() -> None:
    # One place of two: beside the one that it is less declared against.
    fence = {"cpuset": "0-7,64-71"}
    pods = [
        create("low", 1, name="low", cpuset="0-3,64-67"),
        create("high", 1, name="high", cpuset="4-7,68-71"),
    ]
    for light, heavy, expected in (("low", "high", CCX[0]), ("high", "low", CCX[1])):
        everywhere = {"key": "namespace", "operator": "Exists"}
        terms = [
            {
                "scope": everywhere,
                "match": {"key": "name", "operator": "Equals", "values": [name]},
                "weight": w,
            }
            for name, w in ((light, 1), (heavy, 2))
        ]
        both = {"cri-resmgr.io/anti-affinity": json.dumps({"new": terms})}
        new = create("new", 1, name="new", annotations=both, **fence)
        assert run(*pods, new)[-1]["cpus"] == expected


def test_required_nearness_is_not_outvoted() -> None:
    near = declared("a", "affinity", "b", weight="required")
    steps = [*replica("b", 1, {}), *replica("far", 1, {}), *replica("a", 1, near)]
    talk = traffic(("a1", "far1"), bytes_per_s=1e12)
    lines = run(*steps, *[talk] * 6, WAIT, REBALANCE, STATE)
    assert places(lines[-1])["a1"] == places(lines[-1])["b1"]
    # A weight alone gives way: both come to the other container, or it to them.
    soft = declared("a", "affinity", "b", weight=1)
    steps = [*replica("b", 1, {}), *replica("far", 1, {}), *replica("a", 1, soft)]
    lines = run(*steps, *[talk] * 6, WAIT, REBALANCE, STATE)
    assert places(lines[-1])["a1"] == places(lines[-1])["far1"]


def test_a_pair_that_had_no_other_place_is_parted_when_there_is_one() -> None:
    term = declared("a", "anti-affinity", "b")
    full = [create(f"x{i}", 8) for i in range(15)]
    steps = [*full, *replica("a", 1, term), *replica("b", 1, {})]
    talk = traffic(("a1", "b1"), bytes_per_s=1e9)
    line = run(*steps, STATE)[-1]
    assert places(line)["a1"] == places(line)["b1"]
    gone = {"op": "remove-pod", "id": "pod-of-x3"}
    *_, plan, line = run(*steps, gone, *[talk] * 6, WAIT, REBALANCE, STATE)
    assert len(moves(plan)) == 1, plan["why"]
    assert places(line)["a1"] != places(line)["b1"]


@given(
    st.integers(0, 100_000),
    st.sampled_from((HYGON_7285_2S, EPYC_NPS1_1S, KUNPENG_48_2S)),
    st.sampled_from((1e5, 1e8, 1e13)),
)
@settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=settings().max_examples // 4,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def test_no_traffic_brings_together_what_is_declared_to_be_apart(
    seed: int, on: str, bytes_per_s: float
) -> None:
    random = Random(seed)
    tree = topology(on)
    workloads = "abcd"
    pairs = random.sample(list(combinations(workloads, 2)), 2)
    foes = {w: [o for pair in pairs for o in pair if w in pair and o != w] for w in workloads}
    steps: list[dict[str, Any]] = []
    there: list[str] = []
    for number in range(8):
        workload = random.choice(workloads)
        # It is declared at one end of a pair or at both.
        named = [foe for foe in foes[workload] if workload < foe or random.random() < 0.5]
        term = declared(workload, "anti-affinity", *named) if named else {}
        steps += replica(workload, number, term)
        there.append(f"{workload}{number}")
        if number:
            talking = [tuple(random.sample(there, 2)) for _ in range(4)]
            steps += [traffic(*{tuple(sorted(pair)) for pair in talking}, bytes_per_s=bytes_per_s), WAIT]  # type: ignore[arg-type]
            steps += [REBALANCE] if random.random() < 0.7 else []
        steps.append(STATE)
    # Each may run in any of eight L3s or more, in which others leave room.
    for line in run(*steps, on=on):
        if line["op"] != "state":
            continue
        for one, other in combinations(places(line).items(), 2):
            if other[0][0] in foes[one[0][0]]:
                sets = parse_cpus(one[1]), parse_cpus(other[1])
                assert not any(l3.cpus & sets[0] and l3.cpus & sets[1] for l3 in tree.caches), (one, other)
