"""Which policy a node gets, and what is told where two want it."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from cluster.api.reader import Fields, Unreadable
from cluster.operator import objects
from cluster.operator.resolve import Resolution, resolve
from cluster.operator.summary import conflict_sentence
from tests.cluster.operator.cluster import node, policy

LABELS = {"zone": "a", "gpu": ""}


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"zone": "a"}}, True),
        ({"matchLabels": {"zone": "b"}}, False),
        ({"matchLabels": {"zone": "a", "disk": "ssd"}}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["ssd"]}]}, True),
        ({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}, False),
        (
            {"matchLabels": {"zone": "a"}, "matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]},
            True,
        ),
    ],
)
def test_a_selector_selects_as_kubernetes_says(selector: Any, chosen: bool) -> None:
    assert objects.selects(objects.read_selector(Fields({"nodeSelector": selector})), LABELS) is chosen


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        ({"matchLabels": {"zone": 1}}, ".matchLabels.zone is 1, expected a text"),
        ({"labels": {}}, ".labels is not known, expected matchLabels or matchExpressions"),
        (
            {"matchExpressions": [{"key": "a", "operator": "Is"}]},
            '.matchExpressions[0].operator is "Is", expected one of In, NotIn, Exists, DoesNotExist',
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            ".matchExpressions[0].values has 0 values, In takes at least one",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            ".matchExpressions[0].values has 1 values, Exists takes none",
        ),
        (
            {"matchExpressions": [{"operator": "In"}]},
            ".matchExpressions[0] has no key, expected one",
        ),
    ],
)
def test_a_selector_that_does_not_parse_says_where(selector: Any, sentence: str) -> None:
    with pytest.raises(Unreadable) as raised:
        objects.read_selector(Fields({"nodeSelector": selector}))
    assert str(raised.value) == f"nodeSelector{sentence}"


def resolved(policies: list[dict[str, Any]], present: Optional[dict[str, str]] = None) -> Resolution:
    nodes = [objects.read_node(node("n0", zone="a")), objects.read_node(node("n1", zone="b"))]
    states = {}
    for name, given in (present or {}).items():
        spec = {"policy": {"name": given, "generation": 1, "hash": "h"}}
        states[name] = objects.read_node_placement({"metadata": {"name": name}, "spec": spec})
    return resolve([objects.read_policy(each) for each in policies], nodes, states)


def test_the_highest_priority_wins_and_that_is_no_conflict() -> None:
    found = resolved(
        [policy("a", priority=1), policy("b", priority=2, nodeSelector={"matchLabels": {"zone": "b"}})]
    )
    assert found.wanted == {"n0": "a", "n1": "b"}
    assert found.conflicts == {}


def test_among_equals_the_first_name_wins_and_both_are_told() -> None:
    found = resolved([policy("b"), policy("a", nodeSelector={"matchLabels": {"zone": "a"}})])
    assert found.wanted == {"n0": "a", "n1": "b"}
    assert [tuple(each) for each in found.conflicts["a"]] == [("b", 0, 1, "n0")]
    assert [tuple(each) for each in found.conflicts["b"]] == [("a", 0, 1, "n0")]
    told = conflict_sentence(objects.read_policy(policy("b")), found.conflicts["b"])
    assert told.startswith(
        "spec.priority: 0 is also the priority of a, which selects 1 node of the same (n0)"
    )


def test_a_conflict_changes_nothing_on_a_node_that_has_one_of_the_two() -> None:
    assert resolved([policy("b"), policy("a")], {"n0": "b"}).wanted == {"n0": "b", "n1": "a"}


def test_a_node_that_no_policy_selects_is_wanted_by_none() -> None:
    assert resolved([policy("a", nodeSelector={"matchLabels": {"zone": "c"}})]).wanted == {}


def test_nodes_of_a_policy_whose_selector_does_not_parse_are_held() -> None:
    broken = policy("a", nodeSelector={"matchLabels": {"zone": 1}})
    found = resolved([broken, policy("b", priority=-1)], {"n0": "a"})
    assert found.held == {"n0"}
    assert found.wanted == {"n1": "b"}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"priority": "high"}, 'spec.priority is "high", expected a whole number'),
        ({"config": ["a"]}, "spec.config is a list of 1, expected a mapping"),
        (
            {"rollout": {"pauseSeconds": -1}},
            "spec.rollout.pauseSeconds is -1, expected a number of at least 0",
        ),
        (
            {"rollout": {"abortOn": ["Rain"]}},
            'spec.rollout.abortOn is "Rain", expected a list of ConfigRefused, NotReady, Degraded, DoctorErrors',
        ),
        (
            {"rollout": {"maxUnavailable": "150%"}},
            'spec.rollout.maxUnavailable is "150%", expected a count of at least 1 or a percentage from 1% to 100%',
        ),
        (
            {"nodeSelector": {"labels": {}}},
            "spec.nodeSelector.labels is not known, expected matchLabels or matchExpressions",
        ),
    ],
)
def test_a_policy_that_does_not_parse_says_so_in_one_sentence_with_the_key(spec: Any, sentence: str) -> None:
    found = policy()
    found["spec"].update(spec)
    assert objects.read_policy(found).fault == sentence


def test_keys_that_no_policy_may_set_are_its_fault() -> None:
    found = objects.read_policy(
        policy(config={"runtime": {"socket": "/x"}}), lambda config: ["spec.config.runtime: no"]
    )
    assert found.fault == "spec.config.runtime: no"
