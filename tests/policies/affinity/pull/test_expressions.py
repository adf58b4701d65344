"""Match expressions: every operator, every key, as in cri-resource-manager and nri-plugins."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from policies.affinity.pull.expressions import OPERATORS, fault_of, getter_of, matches
from policies.model import Container, MatchExpression, Pod, Qos

POD = Pod(
    "sandbox-1",
    "uid-1",
    "web-0",
    "prod-eu",
    labels={"app": "web", "tier": "front", "app.kubernetes.io/name": "shop", "empty": ""},
)
SHEEP = Container(
    POD, "sheep", qos=Qos.BURSTABLE, labels={"app": "wool", "io.kubernetes.container.name": "sheep"}
)

OPERATOR_CASES = [
    # The container's name is sheep; there is no label "none".
    ("name", "Equals", ("sheep",), True),
    ("name", "Equals", ("goat",), False),
    ("name", "Equals", ("shee*",), False),
    ("name", "Equals", ("*",), True),
    ("none", "Equals", ("*",), False),
    ("name", "NotEqual", ("goat",), True),
    ("name", "NotEqual", ("sheep",), False),
    ("name", "NotEqual", ("*",), True),
    ("none", "NotEqual", ("goat",), True),
    ("name", "In", ("goat", "sheep"), True),
    ("name", "In", ("goat", "cow"), False),
    ("name", "In", ("*",), True),
    ("name", "In", (), False),
    ("none", "In", ("goat",), False),
    ("name", "NotIn", ("goat", "cow"), True),
    ("name", "NotIn", ("goat", "sheep"), False),
    ("name", "NotIn", (), True),
    ("none", "NotIn", ("goat",), True),
    ("name", "Exists", (), True),
    ("none", "Exists", (), False),
    ("pod/labels/empty", "Exists", (), True),
    ("name", "NotExists", (), False),
    ("none", "NotExists", (), True),
    ("name", "NotExist", (), False),
    ("none", "NotExist", (), True),
    ("name", "AlwaysTrue", (), True),
    ("none", "AlwaysTrue", (), True),
    ("", "AlwaysTrue", ("whatever",), True),
    ("name", "Matches", ("sh?e*",), True),
    ("name", "Matches", ("SH*",), False),
    ("name", "Matches", ("[a-s]heep",), True),
    ("name", "Matches", ("goat*",), False),
    ("none", "Matches", ("*",), False),
    ("name", "MatchesNot", ("goat*",), True),
    ("name", "MatchesNot", ("sh*",), False),
    ("none", "MatchesNot", ("*",), True),
    ("name", "MatchesAny", ("goat*", "*eep"), True),
    ("name", "MatchesAny", ("goat*", "cow*"), False),
    ("name", "MatchesAny", (), False),
    ("name", "MatchesNone", ("goat*", "cow*"), True),
    ("name", "MatchesNone", ("goat*", "*eep"), False),
    ("name", "MatchesNone", (), True),
    ("none", "MatchesNone", ("*",), True),
]


@pytest.mark.parametrize(("key", "operator", "values", "result"), OPERATOR_CASES)
def test_an_operator_holds_as_the_table_says(
    key: str, operator: str, values: tuple[str, ...], result: bool
) -> None:
    condition = MatchExpression(key, operator, values)
    assert fault_of(condition) == ""
    assert matches(condition, SHEEP) is result


def test_the_table_has_every_operator() -> None:
    assert {operator for _, operator, _, _ in OPERATOR_CASES} == set(OPERATORS)


KEYS = [
    ("name", "sheep"),
    ("namespace", "prod-eu"),
    ("qosclass", "Burstable"),
    ("labels/app", "wool"),
    ("labels/tier", None),
    ("labels/io.kubernetes.container.name", "sheep"),
    ("tags/AVX512", None),
    ("id", None),
    ("pod/name", "web-0"),
    ("pod/namespace", "prod-eu"),
    ("pod/qosclass", "Burstable"),
    ("pod/labels/app", "web"),
    ("pod/labels/app.kubernetes.io/name", "shop"),
    ("pod/labels/none", None),
    ("pod/id", "sandbox-1"),
    ("pod/uid", "uid-1"),
    ("pod/unknown", None),
    # Any other key is a label, of the container before its pod.
    ("app", "wool"),
    ("tier", "front"),
    ("app.kubernetes.io/name", "shop"),
    ("none", None),
    # Joint keys.
    (":,:pod/name,name", "web-0:sheep"),
    (":,-pod/qosclass,pod/namespace,name", "Burstable-prod-eu-sheep"),
    (":pod/namespace:name", "prod-eu:sheep"),
    (":,:name", "sheep"),
    (":,:none,name", ":sheep"),
    (":,:none,nothing", None),
    (":a", None),
    (":", None),
    ("", None),
]


@pytest.mark.parametrize(("key", "value"), KEYS)
def test_a_key_names_what_the_table_says(key: str, value: Optional[str]) -> None:
    assert getter_of(key)(SHEEP) == value


@pytest.mark.parametrize(
    ("qos", "name"),
    [(Qos.GUARANTEED, "Guaranteed"), (Qos.BURSTABLE, "Burstable"), (Qos.BESTEFFORT, "BestEffort")],
)
def test_classes_are_spelt_as_kubernetes_does(qos: Qos, name: str) -> None:
    assert matches(MatchExpression("pod/qosclass", "Equals", (name,)), replace(SHEEP, qos=qos))


def test_a_joint_key_stands_for_and() -> None:
    both = MatchExpression(":,:pod/namespace,name", "Matches", ("prod-*:sheep",))
    assert matches(both, SHEEP)
    assert not matches(both, replace(SHEEP, name="goat"))
    assert not matches(both, replace(SHEEP, pod=replace(POD, namespace="test")))


FAULTS = [
    (
        MatchExpression("name", "Is", ("sheep",)),
        'operator "Is" is not known, expected one of ' + ", ".join(OPERATORS),
    ),
    (MatchExpression("name", ""), 'operator "" is not known, expected one of ' + ", ".join(OPERATORS)),
    (MatchExpression("", "Exists"), "operator Exists needs a key"),
    (MatchExpression("name", "Equals"), "operator Equals takes one value, found 0"),
    (MatchExpression("name", "NotEqual", ("a", "b")), "operator NotEqual takes one value, found 2"),
    (MatchExpression("name", "Matches", ("a", "b")), "operator Matches takes one value, found 2"),
    (MatchExpression("name", "MatchesNot"), "operator MatchesNot takes one value, found 0"),
    (MatchExpression("name", "Exists", ("a",)), "operator Exists takes no values, found 1"),
    (MatchExpression("name", "NotExists", ("a",)), "operator NotExists takes no values, found 1"),
    (MatchExpression("name", "NotExist", ("a",)), "operator NotExist takes no values, found 1"),
]


@pytest.mark.parametrize(("condition", "fault"), FAULTS)
def test_a_condition_with_a_fault_means_nobody(condition: MatchExpression, fault: str) -> None:
    assert fault_of(condition) == fault
    assert not matches(condition, SHEEP)
