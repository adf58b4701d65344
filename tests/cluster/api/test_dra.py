"""Rights and admission of agents that are DRA drivers, as packaging/cluster/dra gives them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.api.cel import admits
from tests.cluster.api.test_admission import agent, host
from tests.cluster.api.test_rbac import objects

OBJECTS = objects("dra/objects")
SLICES = [one for (kind, _), one in OBJECTS.items() if kind == "ValidatingAdmissionPolicy"]
ACCOUNT = ("ServiceAccount", "cri-resmgr-agent")
Json = dict[str, Any]


def written(
    user: Json, node: str = "a", pool: str = "a", driver: str = "cpu.cri-resmgr.io", operation: str = "CREATE"
) -> Json:
    """A request about a slice; ``node`` "": of no node."""
    spec = {"driver": driver, "pool": {"name": pool}, **({"nodeName": node} if node else {"allNodes": True})}
    value = {"metadata": {"name": "s"}, "spec": spec}
    return {
        "operation": operation,
        "resource": {"group": "resource.k8s.io", "version": "v1", "resource": "resourceslices"},
        "userInfo": user,
        "object": None if operation == "DELETE" else value,
        "oldObject": None if operation == "CREATE" else value,
    }


@pytest.mark.parametrize(
    "request_",
    [
        written(agent()),
        written(agent(), driver="dra.cpu"),
        written(agent(), operation="UPDATE"),
        written(agent(), operation="DELETE"),
        # Kubelets are bound by the Node authorizer, other drivers by theirs.
        written(host("b"), node="a"),
        written({"username": "system:serviceaccount:gpu:driver"}, "b", "b", "gpu.example.com"),
    ],
)
def test_what_is_let_through(request_: Json) -> None:
    assert admits(SLICES, request_) == []


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (written(agent("b")), "the agent of node b may not write a slice of a"),
        (written(agent("b"), operation="DELETE"), "the agent of node b may not write a slice of a"),
        (written(agent("b"), operation="UPDATE"), "the agent of node b may not write a slice of a"),
        (written(agent(), node=""), "the agent of node a may not write a slice of no node"),
        (written(agent(), pool="b"), "the agent of node a may not write a slice of the pool b"),
        (written(agent(), driver="gpu.example.com"), "may not write a slice of the driver gpu.example.com"),
        (written(agent(None)), "the token names no node"),
        (written(agent(None), node="", pool=""), "the token names no node"),
    ],
)
def test_what_is_refused(request_: Json, words: str) -> None:
    assert words in admits(SLICES, request_)[0]


def test_slices_are_written_with_the_token_of_a_pod_and_claims_only_read() -> None:
    rights = {
        name: {
            (resource, verb)
            for rule in one["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for (kind, name), one in OBJECTS.items()
        if kind == "ClusterRole"
    }
    subjects = {
        name: {(one["kind"], one["name"]) for one in found["subjects"]}
        for (kind, name), found in OBJECTS.items()
        if kind == "ClusterRoleBinding"
    }
    verbs = ("get", "list", "watch", "create", "update", "delete")
    slices = {("resourceslices", verb) for verb in verbs}
    assert rights == {"cri-resmgr-dra": {*slices, ("resourceclaims", "get"), ("nodes", "get")}}
    # Not kubelets: the Node authorizer gives them what an agent on a host needs.
    assert subjects == {"cri-resmgr-dra": {ACCOUNT}}


def test_each_class_is_of_our_driver_and_has_a_name_of_its_own() -> None:
    classes = {name: one["spec"] for (kind, name), one in OBJECTS.items() if kind == "DeviceClass"}
    assert classes.keys() == {
        *(
            "cpu.cri-resmgr.io",
            "l3.cpu.cri-resmgr.io",
            "whole-l3.cpu.cri-resmgr.io",
            "whole-numa.cpu.cri-resmgr.io",
        )
    }
    for name, spec in classes.items():
        [selector] = spec["selectors"]
        expression = selector["cel"]["expression"]
        assert expression.startswith("device.driver == 'cpu.cri-resmgr.io'")
        kind = name.partition(".cpu.")[0] if ".cpu." in name else ""
        assert (f".kind == '{kind}'" in expression) is bool(kind)
