"""An object that cannot be read is left alone and told of; all others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cluster.operator.api import Api
from tests.cluster.operator.cluster import node, policy, well_status
from tests.cluster.operator.test_operator import Running, in_time


def deep(levels: int) -> Any:
    found: Any = "end"
    for _ in range(levels):
        found = {"in": found}
    return found


def answer(api: Api, name: str, **more: Any) -> None:
    """The agent of this node says what it has been given, and ``more``."""
    found = api.all("nodeplacements")[name]
    given = found["spec"].get("policy")
    status = well_status(**more)
    if given:
        status["policy"] = {"name": given["name"], "hash": given["hash"], "state": "Applied"}
    api.put("nodeplacements", {**found, "status": status})


def conditions(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in found["status"]["conditions"]}


STATUSES = {
    "status.affinityGroups[0] has no bytesPerSecond, expected one": {"affinityGroups": [{}]},
    "status.remoteTraffic[0] has no address, expected one": {"remoteTraffic": [{}]},
    "status.placements[0] is 5, expected a mapping": {"placements": [5]},
    "status.doctor.errors is 1e+300, expected a number of 64 bits": {"doctor": {"errors": 1e300}},
    "status.judgedPolicy is a list of 0, expected a text": {"judgedPolicy": []},
}


@pytest.mark.parametrize("sentence", STATUSES)
def test_a_status_that_cannot_be_read_holds_up_no_other_node_and_is_told_of(sentence: str) -> None:
    async def scenario(api: Api) -> None:
        for name in ("n0", "n1"):
            api.put("nodes", node(name))
        running = Running(api)
        await asyncio.sleep(5)
        answer(api, "n0", **STATUSES[sentence])
        answer(api, "n1")
        api.put("placementpolicies", policy())
        await asyncio.sleep(5)
        answer(api, "n1")
        await asyncio.sleep(30)
        # 1. The node is left as it is, the other one has the policy, and the policy counts.
        placements = api.all("nodeplacements")
        assert [bool(placements[name]["spec"].get("policy")) for name in ("n0", "n1")] == [False, True]
        status = api.all("placementpolicies")["p"]["status"]
        assert (status["desired"], status["updated"], status["unread"]) == (2, 1, 1)
        assert status["message"].startswith("n0 is left as it is") and sentence in status["message"]
        # 2. Condition, Event and log say why, once.
        said = conditions(placements["n0"])["Readable"]
        assert (said["status"], said["reason"]) == ("False", "Unreadable") and sentence in said["message"]
        events = [each for each in api.all("events").values() if each["reason"] == "Unreadable"]
        assert [(each["involvedObject"]["name"], each["count"]) for each in events] == [("n0", 1)]
        assert running.lines.count(f"NodePlacement n0 cannot be read: {sentence}") == 1
        # 3. Once its agent has written another status, it is as any other.
        answer(api, "n0", conditions=[*well_status()["conditions"], said])
        await asyncio.sleep(5)
        answer(api, "n0", conditions=[*well_status()["conditions"], said])
        await asyncio.sleep(30)
        placements = api.all("nodeplacements")
        assert conditions(placements["n0"])["Readable"]["status"] == "True"
        assert placements["n0"]["spec"]["policy"]["name"] == "p"
        status = api.all("placementpolicies")["p"]["status"]
        assert (status["updated"], status["unread"]) == (2, 0)
        await running.close()

    in_time(scenario)


def test_a_container_without_a_pod_is_of_no_owner() -> None:
    async def scenario(api: Api) -> None:
        api.put("nodes", node("n0"))
        api.put("placementpolicies", policy())
        running = Running(api)
        await asyncio.sleep(5)
        answer(api, "n0", placements=[{}])
        await asyncio.sleep(5)
        answer(api, "n0", placements=[{}])
        await asyncio.sleep(30)
        assert api.all("placementpolicies")["p"]["status"]["phase"] == "Complete"
        await running.close()

    in_time(scenario)


@pytest.mark.parametrize("levels", [40, 98])
def test_a_policy_that_is_nested_deep_is_refused_and_the_others_are_rolled_out(levels: int) -> None:
    async def scenario(api: Api) -> None:
        api.put("nodes", node("n0"))
        bad = policy("bad", config={"placement": {"restart_hold": None}}, priority=-1)
        api.objects["placementpolicies", "bad"] = {
            **bad,
            "spec": {"config": {"affinity": deep(levels)}, "priority": -1},
        }
        api.put("placementpolicies", policy("good"))
        running = Running(api)
        for _ in range(3):
            await asyncio.sleep(5)
            answer(api, "n0")
        await asyncio.sleep(30)
        found = api.all("placementpolicies")
        assert found["good"]["status"]["phase"] == "Complete"
        assert found["bad"]["status"]["phase"] == "Invalid"
        assert found["bad"]["status"]["message"] == (
            "spec.config is nested deeper than 32 levels, expected at most so many"
        )
        await running.close()

    in_time(scenario)


def test_notes_that_a_person_has_made_unreadable_are_none() -> None:
    async def scenario(api: Api) -> None:
        api.put("nodes", node("n0"))
        running = Running(api)
        await asyncio.sleep(5)
        notes = '{"changedAt": "2026-11-22T10:00:00Z", "previous": {"hash": 5}}'
        found = api.all("nodeplacements")["n0"]
        found["metadata"]["annotations"] = {"cri-resmgr.io/rollout": notes}
        api.put("nodeplacements", found)
        answer(api, "n0")
        api.put("placementpolicies", policy())
        for _ in range(3):
            await asyncio.sleep(5)
            answer(api, "n0")
        await asyncio.sleep(30)
        assert api.all("placementpolicies")["p"]["status"]["phase"] == "Complete"
        await running.close()

    in_time(scenario)
