"""What becomes of a rollout is told: in statuses, on nodes, and as Events that are few."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Callable

import pytest

from cluster.api.names import AGENT_SILENT, READY
from cluster.kube.events import BURST
from cluster.kube.requests import ApiError
from cluster.kubectl import complaints, node_row
from tests.cluster.operator.api import Api, Key
from tests.cluster.operator.cluster import node, policy, well_status
from tests.cluster.operator.test_operator import Running, in_time

GOOD, BETTER = {"policy": {"Active": "hygon"}}, {"policy": {"Active": "topology-aware"}}
REFUSAL = "policy.ReservedResources.CPU is 900 CPUs, and this node has 64"


def answer(api: Api, name: str, **verdict: Any) -> None:
    """The agent of a node carries out what it finds, or ``verdict``."""
    found = api.all("nodeplacements")[name]
    given = (found.get("spec") or {}).get("policy")
    status = well_status()
    if given:
        status["policy"] = {"name": given["name"], "hash": given["hash"], "state": "Applied", **verdict}
        status["judgedPolicy"] = given["hash"]
    api.put("nodeplacements", {**found, "status": status})


def edit(api: Api, config: Any) -> None:
    found = api.all("placementpolicies")["p"]
    metadata = {**found["metadata"], "generation": found["metadata"]["generation"] + 1}
    api.put("placementpolicies", {**found, "metadata": metadata, "spec": {**found["spec"], "config": config}})


def status(api: Api) -> Any:
    return api.all("placementpolicies")["p"]["status"]


def told(api: Api) -> list[tuple[str, str, str]]:
    """Object, reason and message of each Event, in their order."""
    return [
        (each["involvedObject"]["name"], each["reason"], each["message"])
        for each in api.all("events").values()
    ]


async def with_good_policy(api: Api, names: tuple[str, ...] = ("n0", "n1")) -> Running:
    """Two nodes that have it."""
    for name in names:
        api.put("nodes", node(name))
    api.put("placementpolicies", policy(config=GOOD))
    running = Running(api)
    await asyncio.sleep(5)
    for _ in range(2 * len(names)):
        for name in names:
            answer(api, name)
        await asyncio.sleep(5)
    assert status(api)["phase"] == "Complete"
    return running


def ready(api: Api, name: str) -> Any:
    conditions = api.all("nodeplacements")[name]["status"]["conditions"]
    return next(each for each in conditions if each["type"] == READY)


def _both_silent(api: Api) -> None:
    """The whole agent has died: nothing is written."""


def _reporter_silent(api: Api) -> None:
    """Only the commanding half lives: what the other half saw is from before."""
    found = api.all("nodeplacements")["n0"]
    given = found["spec"]["policy"]
    done = {"name": given["name"], "hash": given["hash"], "state": "Applied"}
    api.put("nodeplacements", {**found, "status": {**found["status"], "policy": done}})


@pytest.mark.parametrize(
    ("die", "says"),
    [
        (_both_silent, "the agent of n0 has not answered to policy p"),
        (_reporter_silent, "the agent of n0 has carried out policy p and has not reported on the node since"),
    ],
)
def test_an_agent_that_dies_in_the_change_of_its_node_is_named_everywhere(
    die: Callable[[Api], None], says: str
) -> None:
    async def scenario(api: Api) -> None:
        running = await with_good_policy(api)
        edit(api, BETTER)
        await asyncio.sleep(5)
        die(api)
        await asyncio.sleep(150)
        # 1. The policy stands still, and says because of what, and where to look.
        assert status(api)["phase"] == "Waiting"
        assert status(api)["message"].startswith(says)
        assert "kubectl -n cri-resmgr get pods --field-selector spec.nodeName=n0" in status(api)["message"]
        # 2. The node does not look well: by itself, in top, and for doctor.
        assert (ready(api, "n0")["status"], ready(api, "n0")["reason"]) == ("Unknown", AGENT_SILENT)
        found = api.all("nodeplacements")["n0"]
        assert node_row(found)["ready"] == "Unknown"
        assert any(each["message"].startswith(says) for each in complaints(found))
        assert ("n0", AGENT_SILENT) in [each[:2] for each in told(api)]
        # 3. Nothing more is written while nothing changes.
        objects = dict(api.objects)
        await asyncio.sleep(600)
        assert {key for key in objects if objects[key] != api.objects[key]} == {
            ("leases", "cri-resmgr-operator")
        }
        # 4. The agent is back, and the rollout goes on.
        for _ in range(4):
            answer(api, "n0")
            answer(api, "n1")
            await asyncio.sleep(5)
        assert status(api)["phase"] == "Complete"
        assert ready(api, "n0")["status"] == "True"
        await running.close()

    in_time(scenario)


def test_of_an_agent_that_is_back_before_it_has_to_report_ready_is_true_again() -> None:
    async def scenario(api: Api) -> None:
        running = await with_good_policy(api)
        edit(api, BETTER)
        await asyncio.sleep(150)
        assert ready(api, "n0")["status"] == "Unknown"
        # The spec is as it was before the agent was away: its reporting half has nothing to write.
        edit(api, GOOD)
        await asyncio.sleep(150)
        assert ready(api, "n0")["status"] == "True"
        await running.close()

    in_time(scenario)


def test_an_account_that_may_not_write_it_says_it_once_and_goes_on() -> None:
    async def scenario(api: Api) -> None:
        running = await with_good_policy(api)
        apply = api.apply

        async def refuse(resource: Any, name: str, body: Any, **how: Any) -> Any:
            if resource.plural == "nodeplacements":
                raise ApiError(403, "Forbidden", "nodeplacements/status is forbidden")
            return await apply(resource, name, body, **how)

        api.apply = refuse  # type: ignore[method-assign]
        edit(api, BETTER)
        await asyncio.sleep(200)
        assert status(api)["message"].startswith("the agent of n0 has not answered to policy p")
        assert sum("is forbidden" in line for line in running.lines) == 1
        await running.close()

    in_time(scenario)


def test_a_change_that_the_server_refuses_is_told_and_other_nodes_go_on() -> None:
    async def scenario(api: Api) -> None:
        running = await with_good_policy(api)
        api.put("nodes", node("n2", pool="other"))
        other = policy("q", BETTER, priority=1, nodeSelector={"matchLabels": {"pool": "other"}})
        await asyncio.sleep(5)
        answer(api, "n2")

        def refuse(verb: str, key: Key) -> None:
            if (verb, key) == ("patch", ("nodeplacements", "n0")):
                raise ApiError(403, "Forbidden", "an admission policy says no")

        api.before = refuse
        edit(api, BETTER)
        await asyncio.sleep(10)
        assert status(api)["phase"] == "Waiting"
        assert status(api)["message"] == (
            "the API server does not take the change of n0, which is tried again: "
            "403 Forbidden: an admission policy says no"
        )
        api.put("placementpolicies", other)
        await asyncio.sleep(60)
        assert api.all("nodeplacements")["n2"]["spec"]["policy"]["name"] == "q"
        # It is tried less and less, and goes on when it is let through.
        assert sum("an admission policy says no" in line for line in running.lines) < 12
        api.before = lambda verb, key: None
        for _ in range(20):
            await asyncio.sleep(10)
            for name in ("n0", "n1", "n2"):
                answer(api, name)
        assert status(api)["phase"] == "Complete"
        await running.close()

    in_time(scenario)


def test_a_rollout_that_ends_well_is_told_on_the_policy_and_on_each_node() -> None:
    async def scenario(api: Api) -> None:
        running = await with_good_policy(api)
        on_policy = [reason for about, reason, _ in told(api) if about == "p"]
        assert on_policy == ["RolloutBegun", "RolloutWaiting", "RolloutComplete"]
        assert ("p", "RolloutComplete", "2 of 2 nodes have it") in told(api)
        for name in ("n0", "n1"):
            assert [reason for about, reason, _ in told(api) if about == name] == [
                "PolicyGiven",
                "PolicyInForce",
            ]
        kinds = {each["involvedObject"]["kind"] for each in api.all("events").values()}
        assert kinds == {"Node", "PlacementPolicy"}
        await running.close()

    in_time(scenario)


def test_a_refusal_is_told_with_its_sentence_and_that_it_is_taken_back() -> None:
    async def scenario(api: Api) -> None:
        running = await with_good_policy(api)
        edit(api, BETTER)
        await asyncio.sleep(5)
        answer(api, "n0", state="Refused", message=REFUSAL)
        await asyncio.sleep(5)
        for _ in range(2):
            answer(api, "n0")
            await asyncio.sleep(5)
        assert status(api)["phase"] == "Aborted"
        found = told(api)
        assert ("n0", "PolicyRefused", f"policy p: {REFUSAL}") in found
        assert ("p", "NodeRefused", f"n0: {REFUSAL}") in found
        on_policy = [(reason, message) for about, reason, message in found if about == "p"]
        assert any(reason == "RolloutAborted" and REFUSAL in message for reason, message in on_policy)
        assert "RolloutTakenBack" in [reason for reason, _ in on_policy]
        assert ("n0", "PolicyTakenBack") in [each[:2] for each in found]
        await running.close()

    in_time(scenario)


def test_a_policy_that_is_edited_without_end_makes_few_events() -> None:
    async def scenario(api: Api) -> None:
        running = await with_good_policy(api)
        for number in range(200):
            edit(api, {"policy": {"Active": "hygon", "ReservedResources": {"CPU": str(number)}}})
            await asyncio.sleep(3)
            answer(api, "n0", state="Refused", message=f"{number}: {REFUSAL}")
            await asyncio.sleep(3)
        writes = Counter(each["involvedObject"]["name"] for each in api.all("events").values())
        counts: Counter[str] = Counter()
        for each in api.all("events").values():
            counts[each["involvedObject"]["name"]] += each["count"]
        assert max(writes.values()) <= 10
        assert sum(counts.values()) <= 3 * (BURST + 1200 // 300)
        await running.close()

    in_time(scenario)


def test_events_that_cannot_be_written_hold_nothing_up() -> None:
    async def scenario(api: Api) -> None:
        create = api.create

        async def refuse(resource: Any, body: Any, namespace: str = "") -> Any:
            if resource.plural == "events":
                raise ApiError(500, "InternalError", "no events here")
            return await create(resource, body, namespace)

        api.create = refuse  # type: ignore[method-assign]
        running = await with_good_policy(api)
        assert sum("no events here" in line for line in running.lines) == 1
        await running.close()

    in_time(scenario)
