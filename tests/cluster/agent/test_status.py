"""A report becomes a status that differs from the one before only where something has happened."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from cluster.agent.status import AgentView, status_of
from cluster.api.node_placement import schema
from tests.cluster.agent.reports import group, placement, remote, report, zone

THEN, NOW = "2026-11-22T10:00:00Z", "2026-11-22T10:00:10Z"


def status(told: Optional[dict[str, Any]] = None, **changes: Any) -> dict[str, Any]:
    return status_of(AgentView(report(**changes)), told or {}, NOW)


ISOLATION = {
    "modes": {"caches": "enforce", "bandwidth": "off", "cpu": "observe", "clocks": "off"},
    "values": {"cpu": 12},
    "protection": "off",
    "missing": "",
    "groups": 1,
    "other_groups": 0,
    "refusals": 0,
    "l3s": [{"l3": 4, "protected": 1, "batch": 2, "batch_has": "5 ways (1f)"}],
}


def conditions(seen: AgentView) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in status_of(seen, {}, NOW)["conditions"]}


def test_every_field_of_a_status_is_one_of_the_schema() -> None:
    problems = [{"severity": "error", "check": "kubelet", "sentence": "it is", "hint": "do"}]
    seen = AgentView(
        report(
            affinity_groups=[group("a", "b", bytes_per_s=5e6)],
            remote_peers=[remote("a", "10.0.0.1", 5e6)],
            warnings=["hot"],
            isolation=ISOLATION,
            claims={"count": 2, "cpus": "0-3,8-9"},
        ),
        "",
        problems,
        True,
        True,
    )
    _within(status_of(seen, {}, NOW), schema()["properties"]["status"], "status")


def _within(value: Any, allowed: dict[str, Any], where: str) -> None:
    if isinstance(value, list):
        for item in value:
            _within(item, allowed["items"], where)
    elif isinstance(value, dict):
        for key, item in value.items():
            known = allowed.get("properties", {}).get(key) or allowed.get("additionalProperties")
            assert known, f"{where}.{key}"
            _within(item, known, f"{where}.{key}")


def test_claims_are_told_of_where_there_are_some() -> None:
    assert status(claims={"count": 2, "cpus": "0-3,8-9"})["claims"] == {"count": 2, "cpus": "0-3,8-9"}
    assert "claims" not in status(claims={})
    assert "claims" not in status()  # of a daemon that knows of none


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("the same report", {}, {}),
        (
            "a rate within half of what was told",
            {"affinity_groups": [group("a", "b", bytes_per_s=1000)]},
            {"affinity_groups": [group("a", "b", bytes_per_s=1400)]},
        ),
        (
            "members in another order",
            {"affinity_groups": [group("a", "b", bytes_per_s=1000)]},
            {"affinity_groups": [group("b", "a", bytes_per_s=1000)]},
        ),
        (
            "groups in another order, as one overtakes the other by little",
            {"affinity_groups": [group("a", "b", bytes_per_s=1000), group("c", "d", bytes_per_s=990)]},
            {"affinity_groups": [group("c", "d", bytes_per_s=1001), group("a", "b", bytes_per_s=1000)]},
        ),
        (
            "some megabytes more in use",
            {"zones": [zone(memory_charged_bytes=1 << 30)]},
            {"zones": [zone(memory_charged_bytes=(1 << 30) + (60 << 20))]},
        ),
        (
            "a rate to another node within half of what was told",
            {"remote_peers": [remote("a", "10.0.0.1", 1e6), remote("a", "10.0.0.2", 1.1e6)]},
            {"remote_peers": [remote("a", "10.0.0.1", 1.4e6), remote("a", "10.0.0.2", 9e5)]},
        ),
        ("a trickle to another node", {}, {"remote_peers": [remote("a", "10.0.0.1", 49_000)]}),
        (
            "a rate to another node that falls below what is told of new ones",
            {"remote_peers": [remote("a", "10.0.0.1", 50_000)]},
            {"remote_peers": [remote("a", "10.0.0.1", 40_000)]},
        ),
        ("a field that only a newer daemon has", {}, {"weather": "fine"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_change(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    told = status(**before)
    assert status(told, **after) == told


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("another container", {"placements": [placement(), placement("db")]}),
        ("a container on other CPUs", {"placements": [placement(cpus="0-3")]}),
        ("a rate that has doubled", {"affinity_groups": [group("a", "b", bytes_per_s=2000)]}),
        ("traffic with another node", {"remote_peers": [remote("a", "10.0.0.1", 50_000)]}),
        ("memory of a step more", {"zones": [zone(memory_charged_bytes=(1 << 30) + (64 << 20))]}),
        ("another mode", {"mode": "observe"}),
        ("another life of the daemon", {"instance": "b"}),
        ("a reason to be degraded", {"degraded": {"runtime": "containerd does not answer"}}),
    ],
)
def test_a_change(name: str, after: dict[str, Any]) -> None:
    before: dict[str, Any] = {"affinity_groups": [group("a", "b", bytes_per_s=1000)]}
    told = status(**before)
    assert status(told, **{**before, **after}) != told


def test_a_rate_that_creeps_is_told_once_it_has_grown_by_half() -> None:
    told = status(affinity_groups=[group("a", "b", bytes_per_s=1000)])
    seen = []
    for rate in range(1000, 4000, 10):
        told = status(told, affinity_groups=[group("a", "b", bytes_per_s=rate)])
        seen.append(told["affinityGroups"][0]["bytesPerSecond"])
    assert sorted(set(seen)) == [1000, 1500, 2300, 3500]


def test_an_older_daemon_that_tells_less_makes_a_status_with_less() -> None:
    old = report()
    for key in (
        "cluster",
        "events",
        "warnings",
        "affinity_groups",
        "remote_peers",
        "mode_wanted",
        "front_end",
    ):
        del old[key]
    found = status_of(AgentView(old), {}, NOW)
    assert "frontEnd" not in found and found["affinityGroups"] == found["remoteTraffic"] == []


def test_isolation_is_told_where_it_is_on() -> None:
    assert "isolation" not in status(isolation=None)
    assert status(isolation=ISOLATION)["isolation"] == {
        "caches": "enforce",
        "bandwidth": "off",
        "protection": "off",
        "groups": 1,
        "otherGroups": 0,
        "refusals": 0,
        "subjects": [{"name": "cpu", "mode": "observe", "values": 12}],
        "sharedL3Count": 1,
        "sharedL3s": [{"zone": "l3-4", "protected": 1, "batch": 2, "batchHas": "5 ways (1f)"}],
    }


def test_of_many_shared_l3s_the_first_are_told_and_all_are_counted() -> None:
    many = [{"l3": number, "protected": 1, "batch": 1, "batch_has": ""} for number in range(100)]
    found = status(isolation={**ISOLATION, "l3s": many, "missing": "resctrl is not mounted"})["isolation"]
    assert (len(found["sharedL3s"]), found["sharedL3Count"]) == (32, 100)
    assert found["missing"] == "resctrl is not mounted"


def test_memory_that_is_not_known_is_left_out() -> None:
    assert "memoryFreeBytes" not in status(zones=[zone(memory_free_bytes=None)])["zones"][0]


def test_a_daemon_that_is_away_is_not_ready_and_what_was_known_stays() -> None:
    told = status()
    found = status_of(AgentView(report(), "control.sock: no such file"), told, NOW)
    assert found["placements"] == told["placements"]
    ready = {condition["type"]: condition for condition in found["conditions"]}["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "DaemonAway")
    assert ready["message"] == "control.sock: no such file"


def test_figures_that_are_not_of_now_say_since_when_and_why_and_the_same_in_each_report() -> None:
    old = {"traffic": {"since_s": 1764418984.1, "age_s": 241.0, "why": "the observer has ended"}}
    current = conditions(AgentView(report(old=old)))["Current"]
    assert (current["status"], current["reason"]) == ("False", "SourceAway")
    assert current["message"] == "traffic: of 2025-11-29T12:23:04Z: the observer has ended"
    later = {"traffic": {**old["traffic"], "age_s": 251.0}}
    assert conditions(AgentView(report(old=later)))["Current"] == current
    unknown = {"containers": {"since_s": None, "age_s": None, "why": "the runtime is not there"}}
    assert "of a time that is not known" in conditions(AgentView(report(old=unknown)))["Current"]["message"]
    for nothing in (report(old={}), report()):  # an older daemon tells nothing of it
        assert "Current" not in conditions(AgentView(nothing))


def test_a_daemon_that_has_never_answered_is_not_ready_and_nothing_else_is_told() -> None:
    found = status_of(AgentView(None, "refused"), {}, NOW)
    assert set(found) == {"conditions"}


def test_what_doctor_has_said_stays_until_it_says_something_else() -> None:
    said = {"errors": 1, "warnings": 0, "problems": []}
    assert status_of(AgentView(None, "refused"), {"doctor": said}, NOW)["doctor"] == said
    assert status_of(AgentView(report(), problems=()), {"doctor": said}, NOW)["doctor"]["errors"] == 0


def test_degraded_names_every_reason() -> None:
    found = conditions(AgentView(report(degraded={"state": "disk full", "runtime": "away"})))
    assert found["Degraded"]["message"] == "runtime: away; state: disk full"
    assert found["Degraded"]["status"] == "True"


def test_a_daemon_without_a_machine_is_not_ready() -> None:
    found = conditions(AgentView(report(machine=None, zones=[], placements=[])))
    assert found["Ready"]["reason"] == "NoMachine"


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    told = status_of(AgentView(report(degraded={"a": "x"})), {}, THEN)
    found = status_of(AgentView(report(degraded={"a": "y"})), told, NOW)
    times = {condition["type"]: condition["lastTransitionTime"] for condition in found["conditions"]}
    assert times == {"Ready": THEN, "Degraded": THEN}
    found = status_of(AgentView(report()), found, NOW)
    assert [c["lastTransitionTime"] for c in found["conditions"]] == [THEN, NOW]


@pytest.mark.parametrize(
    ("is_report_only", "asked", "there"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_spec_on_a_node_that_only_reports_is_answered(
    is_report_only: bool, asked: bool, there: bool
) -> None:
    found = conditions(AgentView(report(), "", None, is_report_only, asked))
    assert ("ConfigApplied" in found) is there


def test_a_numa_node_is_named_so_that_it_is_no_machine() -> None:
    l3 = zone(name="l3-0", type="L3", parent="node-0")
    found = status(
        zones=[zone(), l3], placements=[placement(zone="node-0")], affinity_groups=[group("a", "b")]
    )
    assert [row["name"] for row in found["zones"]] == ["numa-0", "l3-0"]
    assert found["zones"][1]["parent"] == "numa-0"
    assert found["placements"][0]["zone"] == found["affinityGroups"][0]["zone"] == "numa-0"
