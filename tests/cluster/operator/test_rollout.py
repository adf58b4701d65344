"""A change over nodes: one after the other, behind those changed before, and back where one fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from cluster.operator.objects import read_node_placement
from tests.cluster.operator.cluster import Simulated, policy

BAD = {"policy": {"Active": "bad"}}
GOOD = {"policy": {"Active": "hygon"}}
BETTER = {"policy": {"Active": "topology-aware"}}


def refuse_bad(node: str, config: Any) -> str:
    return "refuse" if config == BAD else ""


def given(cluster: Simulated) -> dict[str, Any]:
    placements = cluster.placements.items()
    return {name: (each.get("spec", {}).get("policy") or {}).get("config") for name, each in placements}


def status(cluster: Simulated, name: str = "p") -> Any:
    return cluster.policies[name]["status"]


def write_all(cluster: Simulated) -> None:
    while cluster.write_one():
        pass


def answer_all(cluster: Simulated) -> None:
    for name in cluster.placements:
        cluster.answer(name)


def with_good_policy(nodes: int = 3, bad: Any = refuse_bad, **rollout: Any) -> Simulated:
    cluster = Simulated(nodes, bad)
    cluster.policies["p"] = policy(config=GOOD, rollout=rollout)
    cluster.settle()
    return cluster


def edit(cluster: Simulated, config: Any, name: str = "p", **spec: Any) -> None:
    """A person writes another config: a new generation, the status stays until the operator writes it."""
    found = cluster.policies[name]
    found["metadata"]["generation"] += 1
    rollout = {**found["spec"]["rollout"], **spec.pop("rollout", {})}
    found["spec"] = {**found["spec"], "config": config, **spec, "rollout": rollout}


@pytest.fixture
def cluster() -> Simulated:
    return with_good_policy()


def test_every_node_gets_the_policy_and_the_status_says_so(cluster) -> None:
    assert given(cluster) == {"n0": GOOD, "n1": GOOD, "n2": GOOD}
    shown = status(cluster)
    assert (shown["desired"], shown["updated"], shown["ready"], shown["degraded"]) == (3, 3, 3, 0)
    assert shown["phase"] == "Complete"


def test_a_node_is_changed_only_after_the_one_before_has_answered(cluster) -> None:
    cluster.written.clear()
    edit(cluster, BETTER)
    write_all(cluster)
    assert cluster.written == [("n0", "give")]
    cluster.answer("n0")
    write_all(cluster)
    assert cluster.written == [("n0", "give"), ("n1", "give")]


@pytest.mark.parametrize("sign", ["Degraded", "doctor"])
def test_without_a_pause_too_a_node_is_judged_by_what_was_seen_with_the_new_document(sign) -> None:
    cluster = with_good_policy()
    for name in cluster.placements:
        cluster.placements[name]["status"]["judgedPolicy"] = cluster.given_hash(name)
    edit(cluster, BETTER, rollout={"pauseSeconds": 0})
    write_all(cluster)
    cluster.written.clear()
    # 1. The commanding half has answered; conditions and doctor are those of the report before.
    found = cluster.placements["n0"]
    before = found["status"]["judgedPolicy"]
    cluster.answer("n0")
    found["status"]["judgedPolicy"] = before
    write_all(cluster)
    assert cluster.written == []
    # The count follows what the node says; the rollout waits for what is seen with the document.
    assert (status(cluster)["updated"], status(cluster)["ready"]) == (1, 1)
    # 2. The report after: the node is not well with the document.
    found = cluster.placements["n0"]
    found["status"]["judgedPolicy"] = cluster.given_hash("n0")
    if sign == "doctor":
        found["status"]["doctor"] = {"errors": 1}
    else:
        found["status"]["conditions"][1] = {"type": "Degraded", "status": "True", "message": "it is"}
    write_all(cluster)
    assert cluster.written == [("n0", "take-back")]
    assert status(cluster)["phase"] == "TakingBack"


def test_a_node_without_an_answer_of_its_agent_is_not_changed() -> None:
    cluster = Simulated(2)
    cluster.policies["p"] = policy(config=GOOD)
    write_all(cluster)
    assert cluster.written == []
    assert status(cluster)["phase"] == "Waiting"
    assert status(cluster)["message"] == (
        "n0 is not changed before it is well: its agent has written nothing; whether it runs: "
        "kubectl -n cri-resmgr get pods --field-selector spec.nodeName=n0, and 1 more"
    )


def test_a_percentage_of_the_nodes_is_changed_at_a_time_rounded_up() -> None:
    cluster = with_good_policy(nodes=11)
    cluster.written.clear()
    edit(cluster, BETTER, rollout={"maxUnavailable": "10%"})
    write_all(cluster)
    assert [name for name, _ in cluster.written] == ["n0", "n1"]


def test_the_pause_counts_from_when_the_node_was_seen_well(cluster) -> None:
    cluster.written.clear()
    edit(cluster, BETTER, rollout={"pauseSeconds": 30})
    write_all(cluster)
    cluster.now += 100
    cluster.answer("n0")
    write_all(cluster)
    cluster.now += 29
    write_all(cluster)
    assert len(cluster.written) == 1
    cluster.now += 1
    write_all(cluster)
    assert [name for name, _ in cluster.written] == ["n0", "n1"]


def test_a_refused_policy_stops_at_the_first_node_and_is_taken_back(cluster) -> None:
    cluster.written.clear()
    edit(cluster, BAD)
    cluster.settle()
    assert cluster.written == [("n0", "give"), ("n0", "take-back")]
    assert given(cluster) == {"n0": GOOD, "n1": GOOD, "n2": GOOD}
    shown = status(cluster)
    assert shown["phase"] == "Aborted"
    aborted = next(each for each in shown["conditions"] if each["type"] == "Aborted")
    assert aborted["status"] == "True"
    assert aborted["reason"] == "ConfigRefused"
    assert "n0" in aborted["message"] and "policy.ReservedResources.CPU: 9 CPUs" in aborted["message"]


def test_a_node_that_degrades_later_takes_those_changed_before_back_too() -> None:
    def last_one(node: str, config: Any) -> str:
        return "degrade" if node == "n2" and config == BETTER else ""

    cluster = with_good_policy(nodes=4, bad=last_one)
    cluster.written.clear()
    edit(cluster, BETTER)
    cluster.settle()
    changed = [each for each in cluster.written if each[1] == "give"]
    back = [each for each in cluster.written if each[1] == "take-back"]
    assert changed == [("n0", "give"), ("n1", "give"), ("n2", "give")]
    assert sorted(back) == [("n0", "take-back"), ("n1", "take-back"), ("n2", "take-back")]
    assert set(map(str, given(cluster).values())) == {str(GOOD)}


def test_after_an_abort_nothing_changes_until_the_policy_does(cluster) -> None:
    edit(cluster, BAD)
    cluster.settle()
    cluster.written.clear()
    cluster.now += 100_000
    cluster.settle()
    assert cluster.written == []
    edit(cluster, BETTER)
    cluster.settle()
    assert given(cluster) == {"n0": BETTER, "n1": BETTER, "n2": BETTER}
    assert status(cluster)["phase"] == "Complete"


def test_what_is_not_in_abort_on_stops_without_going_back() -> None:
    cluster = with_good_policy(abortOn=["Degraded"])
    cluster.written.clear()
    edit(cluster, BAD)
    cluster.settle()
    assert cluster.written == [("n0", "give")]
    assert status(cluster)["phase"] == "Waiting"
    assert "n0 is not well since it was changed (ConfigRefused)" in status(cluster)["message"]


def test_a_new_generation_replaces_the_document_of_a_node_in_change() -> None:
    cluster = with_good_policy(abortOn=["Degraded"])
    edit(cluster, BAD)
    cluster.settle()
    cluster.written.clear()
    edit(cluster, BETTER)
    write_all(cluster)
    assert cluster.written == [("n0", "give")]
    cluster.settle()
    assert given(cluster) == {"n0": BETTER, "n1": BETTER, "n2": BETTER}


def test_a_node_whose_agent_has_gone_back_by_itself_stops_the_rollout() -> None:
    cluster = with_good_policy(abortOn=["Degraded"])
    edit(cluster, BETTER)
    write_all(cluster)
    cluster.answer("n0")
    cluster.placements["n0"]["status"]["policy"].update(state="TakenBack", message="Degraded for 60 s")
    write_all(cluster)
    assert status(cluster)["phase"] in ("TakingBack", "Aborted")
    cluster.settle()
    assert given(cluster)["n0"] == GOOD


@pytest.mark.parametrize("said", ["TakenBack", "Refused"])
def test_a_node_that_does_not_have_its_document_any_more_is_given_the_next(cluster, said) -> None:
    cluster.placements["n1"]["status"]["policy"].update(state=said, message="it could not be reached")
    edit(cluster, BETTER)
    for _ in range(6):
        write_all(cluster)
        for name, config in given(cluster).items():
            if config == BETTER:
                cluster.answer(name)
        cluster.now += 20
    assert given(cluster) == {"n0": BETTER, "n1": BETTER, "n2": BETTER}
    assert status(cluster)["phase"] == "Complete"
    notes = {name: read_node_placement(each).notes for name, each in cluster.placements.items()}
    # What it has given up is not what it goes back to.
    assert (bool(notes["n0"].previous), bool(notes["n1"].previous)) == (True, False)
    assert not notes["n1"].unwell


def test_a_node_that_comes_after_completion_fails_alone() -> None:
    cluster = with_good_policy(bad=lambda node, config: "refuse" if node == "n3" else "")
    cluster.nodes["n3"] = {**cluster.nodes["n0"], "metadata": {"name": "n3", "uid": "n3", "labels": {}}}
    cluster.written.clear()
    cluster.settle()
    assert cluster.written == [("n3", "give"), ("n3", "take-back")]
    assert given(cluster) == {"n0": GOOD, "n1": GOOD, "n2": GOOD, "n3": None}
    assert status(cluster)["phase"] == "Stopped"


def test_a_node_that_degrades_after_completion_is_counted_and_left(cluster) -> None:
    cluster.written.clear()
    cluster.bad = lambda node, config: "degrade" if node == "n1" else ""
    cluster.settle()
    assert cluster.written == []
    assert status(cluster)["degraded"] == 1
    assert status(cluster)["ready"] == 2


def test_nodes_that_no_policy_selects_lose_theirs_one_after_the_other(cluster) -> None:
    cluster.written.clear()
    del cluster.policies["p"]
    write_all(cluster)
    assert cluster.written == [("n0", "remove")]
    cluster.settle()
    assert given(cluster) == {"n0": None, "n1": None, "n2": None}


def test_a_policy_with_a_fault_changes_nothing_and_keeps_its_nodes(cluster) -> None:
    cluster.policies["low"] = policy("low", BETTER, priority=-1)
    cluster.written.clear()
    edit(cluster, BETTER, rollout={"maxUnavailable": 0})
    cluster.settle()
    assert cluster.written == []
    shown = status(cluster)
    assert shown["phase"] == "Invalid"
    assert shown["message"] == (
        "spec.rollout.maxUnavailable is 0, expected a count of at least 1 or a percentage from 1% to 100%"
    )


def test_what_people_wrote_stays(cluster) -> None:
    cluster.placements["n0"]["spec"].update(mode="observe", freeze=True)
    edit(cluster, BETTER)
    cluster.settle()
    assert cluster.placements["n0"]["spec"]["mode"] == "observe"
    assert cluster.placements["n0"]["spec"]["freeze"] is True


def test_a_node_that_is_taken_back_and_stays_broken_does_not_keep_the_others() -> None:
    broken: set[str] = set()

    def bad(node: str, config: Any) -> str:
        if node == "n1" and config == BETTER:
            broken.add(node)
        return "degrade" if node in broken else ""

    cluster = with_good_policy(bad=bad)
    edit(cluster, BETTER)
    cluster.settle()
    assert set(map(str, given(cluster).values())) == {str(GOOD)}
    assert status(cluster)["phase"] == "Aborted"


def test_what_is_left_of_the_document_before_is_not_held_against_its_correction() -> None:
    cluster = with_good_policy(
        bad=lambda node, config: "degrade" if config == BAD else "", abortOn=["ConfigRefused"]
    )
    edit(cluster, BAD)
    cluster.settle()
    edit(cluster, BETTER, rollout={"abortOn": ["Degraded"]})
    write_all(cluster)
    # It has answered for the new document; what is degraded is seen to be over a moment later.
    cluster.answer("n0")
    cluster.placements["n0"]["status"]["conditions"][1] = {"type": "Degraded", "status": "True"}
    write_all(cluster)
    assert status(cluster)["phase"] == "Waiting"
    cluster.settle()
    assert status(cluster)["phase"] == "Complete"


VERDICTS = st.sampled_from(["", "", "", "refuse", "degrade"])


@drawn(
    nodes=st.integers(1, 6),
    most=st.sampled_from([1, 2, "30%"]),
    verdicts=st.lists(VERDICTS, min_size=6, max_size=6),
    turns=st.lists(st.integers(0, 12), max_size=120),
    abort_on=st.sampled_from([["Degraded", "ConfigRefused"], ["Degraded"], []]),
)
def test_however_writes_answers_and_time_are_mixed_the_bounds_hold_and_the_end_is_the_same(
    nodes, most, verdicts, turns, abort_on
) -> None:
    """Each write is that of an operator just started. A turn is a write, an answer of one agent, or time."""

    def bad(node: str, config: Any) -> str:
        return verdicts[int(node[1:])] if config == BETTER else ""

    rollout = {"maxUnavailable": most, "abortOn": abort_on, "pauseSeconds": 5}
    cluster = with_good_policy(nodes, bad, **rollout)
    bound = max(1, -(-nodes * 30 // 100)) if most == "30%" else most
    edit(cluster, BETTER)
    cluster.written.clear()
    aborted_after = None
    for turn in turns:
        if turn < nodes:
            cluster.answer(f"n{turn}")
        elif turn < 11:
            cluster.write_one()
        else:
            cluster.now += 20
        assert cluster.in_change() <= bound
        if aborted_after is None and status(cluster)["phase"] in ("TakingBack", "Aborted"):
            aborted_after = len(cluster.written)
    cluster.settle()
    if aborted_after is not None:
        assert "give" not in [kind for _, kind in cluster.written[aborted_after:]]
    stops = {"Degraded": "degrade", "ConfigRefused": "refuse"}
    fatal = {stops[each] for each in abort_on}
    failing = [verdict for verdict in verdicts[:nodes] if verdict]
    if not failing:
        assert set(map(str, given(cluster).values())) == {str(BETTER)}
        assert status(cluster)["phase"] == "Complete"
    elif set(failing) <= fatal:
        assert set(map(str, given(cluster).values())) == {str(GOOD)}
        assert status(cluster)["phase"] == "Aborted"
    assert all(read_node_placement(each).given is not None for each in cluster.placements.values())
