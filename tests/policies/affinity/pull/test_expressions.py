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

#: By operator: conditions that hold, and that do not: a key, which may be empty, and its values. The container's name is
#: sheep; there is no label "none".
OPERATOR_CASES = {
    "Equals": {True: "name sheep; name *", False: "name goat; name shee*; none *"},
    "NotEqual": {True: "name goat; name *; none goat", False: "name sheep"},
    "In": {True: "name goat sheep; name *", False: "name goat cow; name; none goat"},
    "NotIn": {True: "name goat cow; name; none goat", False: "name goat sheep"},
    "Exists": {True: "name; pod/labels/empty", False: "none"},
    "NotExists": {True: "none", False: "name"},
    "NotExist": {True: "none", False: "name"},
    "AlwaysTrue": {True: "name; none;  whatever"},
    "Matches": {True: "name sh?e*; name [a-s]heep", False: "name SH*; name goat*; none *"},
    "MatchesNot": {True: "name goat*; none *", False: "name sh*"},
    "MatchesAny": {True: "name goat* *eep", False: "name goat* cow*; name"},
    "MatchesNone": {True: "name goat* cow*; name; none *", False: "name goat* *eep"},
}


@pytest.mark.parametrize(
    ("operator", "result", "case"),
    [(o, r, case) for o, by in OPERATOR_CASES.items() for r, text in by.items() for case in text.split("; ")],
)
def test_an_operator_holds_as_the_table_says(operator: str, result: bool, case: str) -> None:
    key, *values = case.split(" ")
    condition = MatchExpression(key, operator, tuple(values))
    assert fault_of(condition) == ""
    assert matches(condition, SHEEP) is result


def test_the_table_has_every_operator() -> None:
    assert set(OPERATOR_CASES) == set(OPERATORS)


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
