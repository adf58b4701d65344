"""The CRDs' rules in CEL, run by an evaluator, and what their schemas take."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.api import node_placement, placement_policy
from cluster.api.schema import faults
from tests.cluster.api.cel import messages_of

Json = dict[str, Any]
NODE, POLICY = node_placement.schema(), placement_policy.schema()


def policy(**spec: Any) -> Json:
    return {"spec": {"config": {}, **spec}}


def selecting(**expression: Any) -> Json:
    return policy(nodeSelector={"matchExpressions": [{"key": "disk", **expression}]})


def balloons(*types: Json) -> Json:
    return policy(config={"policy": {"balloons": {"BalloonTypes": list(types)}}})


def node(**spec: Any) -> Json:
    return {"spec": spec}


def loads(*names: str) -> Json:
    classes = [{"Name": name, "Level": "core"} for name in names]
    return policy(config={"policy": {"balloons": {"LoadClasses": classes}}})


ALLOWED = [
    ("nothing but a configuration", policy(), POLICY),
    ("a label's values", selecting(operator="In", values=["ssd"]), POLICY),
    ("a label that is there", selecting(operator="Exists"), POLICY),
    ("a label that is not there", selecting(operator="DoesNotExist", values=[]), POLICY),
    ("a range", balloons({"Name": "a", "MinCPUs": 2, "MaxCPUs": 2}), POLICY),
    ("no upper end", balloons({"Name": "a", "MinCPUs": 8, "MaxCPUs": 0}), POLICY),
    ("a type that is refused", balloons({"Name": "a", "MinCPUs": 8, "MaxCPUs": -1}), POLICY),
    ("any number of balloons", balloons({"Name": "a", "MinBalloons": 8, "MaxBalloons": 0}), POLICY),
    ("two names", balloons({"Name": "a"}, {"Name": "b"}), POLICY),
    ("nothing asked", node(), NODE),
    ("a freeze", node(freeze=True, mode="observe"), NODE),
    ("a policy", node(policy={"name": "p", "hash": "1", "config": {}}), NODE),
    ("a policy that is taken away", node(policy={}), NODE),
    ("an override", node(overrides=[{"namespace": "n", "pod": "p-0.x", "container": "c", "zone": "l3-12"}]), NODE),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema"), [a[1:] for a in ALLOWED], ids=[a[0] for a in ALLOWED])
def test_what_rules_and_schemas_let_through(value: Json, schema: Json) -> None:
    assert list(messages_of(value, schema)) == []
    assert list(faults(value, schema, "object")) == []


REFUSED = [
    ("values of none", selecting(operator="In"), POLICY, "In and NotIn need values"),
    ("an empty list of values", selecting(operator="NotIn", values=[]), POLICY, "In and NotIn need values"),
    ("values of a label that is there", selecting(operator="Exists", values=["a"]), POLICY, "DoesNotExist take none"),
    ("a range from the wrong end", balloons({"Name": "a", "MinCPUs": 3, "MaxCPUs": 2}), POLICY, "MinCPUs is more"),
    ("fewer balloons than at once", balloons({"Name": "a", "MinBalloons": 3, "MaxBalloons": 2}), POLICY, "MinBalloons"),
    ("one name twice", balloons({"Name": "a"}, {"Name": "b"}, {"Name": "a"}), POLICY, "two types of one Name"),
    ("one load class twice", loads("a", "b", "a"), POLICY, "two classes of one Name"),
    ("a configuration of no policy", node(policy={"config": {}}), NODE, "config needs name and hash"),
    ("a configuration without a hash", node(policy={"name": "p", "config": {}}), NODE, "config needs name and hash"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_rules_refuse(value: Json, schema: Json, words: str) -> None:
    messages = list(messages_of(value, schema))
    assert len(messages) == 1
    assert words in messages[0]


UNFIT = [
    ("no configuration", {"spec": {}}, POLICY, "object.spec has no config, expected one"),
    ("no spec", {}, POLICY, "object has no spec, expected one"),
    ("a priority in words", policy(priority="high"), POLICY,
     'object.spec.priority is "high", expected a value of type integer'),
    ("no node at once", policy(rollout={"maxUnavailable": 0}), POLICY,
     "object.spec.rollout.maxUnavailable is 0, expected a number from 1, or a part such as 10%"),
    ("no part of the nodes", policy(rollout={"maxUnavailable": "0%"}), POLICY, 'is "0%", expected a number from 1'),
    ("a mode that YAML has read", node(mode=False), NODE,
     'object.spec.mode is false, expected a text; write "off" in quotes'),
    ("a zone of no kind", node(overrides=[{"namespace": "n", "pod": "p", "container": "c", "zone": "rack-1"}]), NODE,
     'object.spec.overrides[0].zone is "rack-1", expected the name of a zone such as socket-0, numa-1 or l3-4'),
    ("an override of no container", node(overrides=[{"namespace": "n", "pod": "p", "zone": "l3-1"}]), NODE,
     "object.spec.overrides[0] has no container, expected one"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema", "words"), [u[1:] for u in UNFIT], ids=[u[0] for u in UNFIT])
def test_what_schemas_refuse(value: Json, schema: Json, words: str) -> None:
    found = list(faults(value, schema, "object"))
    assert len(found) == 1
    assert words in found[0]


def test_every_rule_is_asked_by_a_case_that_it_refuses() -> None:
    said = {message for _, value, schema, _ in REFUSED for message in messages_of(value, schema)}
    rules = [rule["message"] for schema in (NODE, POLICY) for rule in _rules(schema)]
    assert rules
    assert set(rules) == said


def _rules(schema: Json) -> list[Json]:
    inner = [*schema.get("properties", {}).values(), *(schema[k] for k in ("items",) if k in schema)]
    return [*schema.get("x-kubernetes-validations", ()), *(r for one in inner for r in _rules(one))]
