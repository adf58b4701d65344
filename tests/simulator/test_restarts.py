"""A restart changes nothing, whenever it comes: no container is told anything by it, and what comes after is the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cri_proxy.config.config import read_config
from cri_proxy.simulator.replay import simulate
from cri_proxy.text.sources import SettingsSource
from tests.machines import EPYC_NPS1_1S, UNEVEN_CCX, VM_NO_CACHE_INFO, machine

POLICIES: dict[str, dict[str, Any]] = {
    "hygon": {"policy": {"Active": "hygon"}},
    "topology-aware": {"policy": {"Active": "topology-aware"}},
    "moving owners": {"policy": {"Active": "topology-aware"}, "placement": {"move_exclusive": True}},
    "balloons": {
        "policy": {
            "Active": "balloons",
            "balloons": {
                "BalloonTypes": [{"Name": "own", "Namespaces": ["own"], "MinCPUs": 1, "MaxCPUs": 4}]
            },
        }
    },
}
MACHINES = (UNEVEN_CCX, VM_NO_CACHE_INFO, EPYC_NPS1_1S)
PREFERENCES: tuple[dict[str, str], ...] = (
    *[{}] * 4,
    {"cri-resmgr.io/manage": "false"},
    {"cri-resmgr.io/cpus": "exclusive"},
)
RESTART = {"op": "restart", "state": "kept"}
Step = dict[str, Any]

CPUS = st.sampled_from(("0", "1", "0-1", "2-3", "0-3", "3"))
KEY = st.integers(1, 6).map(lambda number: f"c{number}")


@st.composite
def creates(draw: Any) -> Step:
    whole, size = draw(st.booleans()), draw(st.sampled_from(("1", "2", "3", "4")))
    return {
        "op": "create",
        "qos": "guaranteed" if whole else "burstable",
        "cpu_request": size if whole else "100m",
        "cpu_limit": size,
        "memory_limit": "1Mi",
        "namespace": draw(st.sampled_from(("default", "own"))),
        "annotations": draw(st.sampled_from(PREFERENCES)),
        # One of whole CPUs with a cpuset would be kubelet's, which tells by a file.
        "cpuset": "" if whole else draw(st.one_of(st.just(""), st.just(""), CPUS)),
        "result": draw(st.sampled_from(("ok", "ok", "ok", "refused"))),
    }


STEPS = st.one_of(
    creates(),
    creates(),
    st.builds(
        lambda key, size: {"op": "resize", "id": key, "cpu_request": size, "cpu_limit": size},
        KEY,
        st.sampled_from(("1", "2", "4")),
    ),
    st.builds(lambda key, cpus: {"op": "update", "id": key, "cpuset": cpus}, KEY, CPUS),
    st.builds(lambda key, cpus: {"op": "drift", "id": key, "cpus": cpus}, KEY, CPUS),
    st.builds(lambda key, code: {"op": "exit", "id": key, "code": code}, KEY, st.integers(0, 1)),
    st.builds(lambda key: {"op": "remove", "id": key}, KEY),
    st.builds(lambda seconds: {"op": "wait", "seconds": seconds}, st.sampled_from((1, 31, 400))),
)


def meaningful(steps: list[Step]) -> list[Step]:
    """Steps with ids, without those about containers that are not there."""
    found: list[Step] = []
    there: set[str] = set()
    running: set[str] = set()
    whole: set[str] = set()
    for step in steps:
        if step["op"] == "create":
            key = f"c{sum(s['op'] == 'create' for s in found) + 1}"
            step = {**step, "id": key, "pod": f"p{key}"}
            if step["result"] == "ok":
                there.add(key)
                whole.update({key} if step["qos"] == "guaranteed" else ())
                running.add(key)
        elif step["op"] == "remove":
            if step["id"] not in there:
                continue
            there.discard(step["id"])
            running.discard(step["id"])
        elif "id" in step:
            if step["id"] not in running or (step["op"] == "update" and step["id"] in whole):
                continue
            if step["op"] == "exit":
                running.discard(step["id"])
        found.append(step)
    return found


def ran(where: str, policy: str, steps: list[Step]) -> list[dict[str, Any]]:
    config = read_config([SettingsSource("test", values=POLICIES[policy])]).config

    def none(path: str) -> Any:
        raise AssertionError(path)

    return list(simulate(machine(where), config, steps, none))


def essence(line: dict[str, Any]) -> Any:
    return {
        key: line[key] for key in ("op", "id", "cpus", "mems", "exclusive", "level", "moved", "sent", "error")
    }


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("policy", POLICIES)
@settings(
    max_examples=50, deadline=None, phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(steps=st.lists(STEPS, min_size=2, max_size=14), at=st.integers(1, 14))
def test_a_restart_changes_nothing_now_or_later(where: str, policy: str, steps: list[Step], at: int) -> None:
    steps = meaningful(steps)
    at = min(at, len(steps))
    usual = ran(where, policy, steps)
    restarted = ran(where, policy, [*steps[:at], RESTART, *steps[at:]])
    assert restarted[at]["moved"] == [], restarted[at]
    after = [essence(line) for line in restarted[at + 1 :]]
    assert after == [essence(line) for line in usual[at:]]


@pytest.mark.parametrize("policy", ["topology-aware", "moving owners"])
def test_an_owner_beside_anothers_cpuset_is_not_moved_by_a_restart(policy: str) -> None:
    owner = {
        "op": "create", "id": "x", "pod": "px", "qos": "guaranteed", "cpu_request": "4", "cpu_limit": "4",
        "memory_limit": "1Mi",
    }  # fmt: skip
    [had] = ran(EPYC_NPS1_1S, policy, [owner])
    there = {"op": "create", "id": "f", "pod": "pf", "cpu_request": "500m", "cpu_limit": "4"}
    there["cpuset"] = had["exclusive"].split(",")[0].split("-")[0]
    *_, before, restarted, after = ran(
        EPYC_NPS1_1S, policy, [owner, there, {"op": "state"}, RESTART, {"op": "state"}]
    )
    assert (restarted["moved"], after["containers"]) == ([], before["containers"])
