"""The admission policies' expressions, run by an evaluator of CEL: what is let through, what is refused, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest
import yaml

from tests.cluster.api.cel import admits

FOLDER = Path(__file__).parents[3] / "packaging/cluster/admission"
DOCUMENTS = [d for path in sorted(FOLDER.glob("[!k]*.yaml")) for d in yaml.safe_load_all(path.read_text())]
POLICIES = [d for d in DOCUMENTS if d["kind"] == "ValidatingAdmissionPolicy"]

NODE_NAME = "authentication.kubernetes.io/node-name"
ACCOUNT = "system:serviceaccount:cri-resmgr:cri-resmgr-agent"
Json = dict[str, Any]


def agent(node: Optional[str] = "a", *more: str) -> Json:
    """The user of a token that is bound to a pod on a node; None: of a server that says nothing of it."""
    return {"username": ACCOUNT, **({} if node is None else {"extra": {NODE_NAME: [node, *more]}})}


def host(node: str = "a") -> Json:
    return {"username": f"system:node:{node}", "groups": ["system:nodes"]}


OPERATOR = {"username": "system:serviceaccount:cri-resmgr:cri-resmgr-operator"}
PERSON = {"username": "ann", "groups": ["system:authenticated"]}


def asked(
    user: Json, resource: str, value: Json, operation: str = "UPDATE", old: Optional[Json] = None
) -> Json:
    """An AdmissionRequest; without ``old`` an object that is updated was the same before."""
    plural, _, subresource = resource.partition("/")
    groups = {
        "nodeplacements": "cri-resmgr.io",
        "placementpolicies": "cri-resmgr.io",
        "leases": "coordination.k8s.io",
        "events": "",
    }
    request = {
        "operation": operation,
        "resource": {
            "group": groups.get(plural, "topology.node.k8s.io"),
            "version": "v1",
            "resource": plural,
        },
        "userInfo": user,
        "object": None if operation == "DELETE" else value,
        "oldObject": None if operation == "CREATE" else old or value,
    }
    return {**request, "subResource": subresource} if subresource else request


def named(name: str) -> Json:
    return {"metadata": {"name": name}}


def event(host_name: Optional[str] = "a", component: str = "cri-resmgr-agent", kind: str = "Pod") -> Json:
    source = {"component": component, **({"host": host_name} if host_name else {})}
    return {"metadata": {"name": "e"}, "source": source, "involvedObject": {"kind": kind}}


STATUS, TOPOLOGY = "nodeplacements/status", "noderesourcetopologies"

ALLOWED = [
    ("a pod's agent, its node's status", asked(agent(), STATUS, named("a"))),
    ("a host's agent, its node's status", asked(host(), STATUS, named("a"))),
    ("a node whose name has dots", asked(host("n-1.dc.example"), STATUS, named("n-1.dc.example"))),
    ("its topology for the first time", asked(agent(), TOPOLOGY, named("a"), "CREATE")),
    ("its topology again", asked(agent(), TOPOLOGY, named("a"))),
    ("a host's topology", asked(host(), TOPOLOGY, named("a"), "CREATE")),
    ("its heartbeat for the first time", asked(agent(), "leases", named("node-a"), "CREATE")),
    ("its heartbeat again", asked(agent(), "leases", named("node-a"))),
    ("the operator renews its own Lease", asked(OPERATOR, "leases", named("cri-resmgr-operator"))),
    ("an event", asked(agent(), "events", event(), "CREATE")),
    ("an event counted up", asked(agent(), "events", event())),
    ("kubelet's own events", asked(host(), "events", event("b", "kubelet", "Node"), "CREATE")),
    ("the operator makes objects of nodes", asked(OPERATOR, "nodeplacements", named("a"), "CREATE")),
    ("the operator removes them", asked(OPERATOR, "nodeplacements", named("a"), "DELETE")),
    ("a person asks something of a node", asked(PERSON, "nodeplacements", named("a"))),
    (
        "another agent writes topologies",
        asked({"username": "system:serviceaccount:nfd:nfd"}, TOPOLOGY, named("b")),
    ),
]


@pytest.mark.parametrize("request_", [r for _, r in ALLOWED], ids=[name for name, _ in ALLOWED])
def test_what_is_let_through(request_: Json) -> None:
    assert admits(POLICIES, request_) == []


REFUSED = [
    ("another node's status", asked(agent("b"), STATUS, named("a")), "the agent of node b may not write the object of a"),
    ("another host's status", asked(host("b"), STATUS, named("a")), "system:node:b may not write the object of a"),
    ("a node whose name begins the same", asked(host("a"), STATUS, named("ab")), "may not write the object of ab"),
    ("a token without a node", asked(agent(None), STATUS, named("a")), "the token names no node"),
    ("a token without a node, and no name", asked(agent(None), STATUS, named("")), "the token names no node"),
    ("a token with two nodes", asked(agent("a", "b"), STATUS, named("a")), "the token names no node"),
    ("what is asked of its own node", asked(agent(), "nodeplacements", named("a")), "the status of its NodePlacement only"),
    ("a host changes what is asked", asked(host(), "nodeplacements", named("a")), "the status of its NodePlacement only"),
    ("its own object made", asked(agent(), "nodeplacements", named("a"), "CREATE"), "the status of its NodePlacement only"),
    ("another's removed", asked(agent("b"), "nodeplacements", named("a"), "DELETE"), "may not write the object of a"),
    ("another node's topology made", asked(agent("b"), TOPOLOGY, named("a"), "CREATE"), "of node b may not write"),
    ("another node's topology", asked(host("b"), TOPOLOGY, named("a")), "system:node:b may not write"),
    ("another node's topology removed", asked(agent("b"), TOPOLOGY, named("a"), "DELETE"), "of node b may not write"),
    ("another node's heartbeat made", asked(agent("b"), "leases", named("node-a"), "CREATE"), "of node b may not write"),
    ("another node's heartbeat", asked(agent("b"), "leases", named("node-a")), "of node b may not write"),
    ("the heartbeat of a node whose name ends the same", asked(agent("a"), "leases", named("node-node-a")), "may not write"),
    ("the operator's Lease", asked(agent("cri-resmgr-operator"), "leases", named("cri-resmgr-operator")), "may not write"),
    ("a heartbeat removed", asked(agent("b"), "leases", named("node-a"), "DELETE"), "of node b may not write"),
    ("a heartbeat of a token without a node", asked(agent(None), "leases", named("node-")), "the token names no node"),
    ("a host whose name makes another's heartbeat", asked(host("node-a"), "leases", named("node-a")), "may not write"),
    ("an event in another's name", asked(agent(), "events", event("b"), "CREATE"), "as its source.host"),
    ("an event in kubelet's name", asked(agent(), "events", event("a", "kubelet"), "CREATE"), "as its source.component"),
    ("an event from nowhere", asked(agent(), "events", event(None), "CREATE"), "as its source.host"),
    ("an event of a token without a node", asked(agent(None), "events", event(), "CREATE"), "as its source.host"),
    ("an event about a node", asked(agent(), "events", event(kind="Node"), "CREATE"), "about pods"),
    ("another's event taken over", asked(agent(), "events", event(), old=event("b")), "its own events only"),
    ("kubelet's event taken over", asked(agent(), "events", event(), old=event("a", "kubelet")), "its own events only"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_refused(request_: Json, words: str) -> None:
    messages = admits(POLICIES, request_)
    assert messages
    assert words in messages[0]


def policy(config: Any) -> Json:
    return asked(PERSON, "placementpolicies", {**named("p"), "spec": {"config": config}}, "CREATE")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"state": {"directory": "/x"}}, "spec.config.state"),
        ({"relay": {"socket": "/x"}}, "spec.config.relay.socket"),
        ({"placement": {"cpus": "shared", "shrink_wait": 1}}, "spec.config.placement.shrink_wait"),
        (
            {"policy": {"AvailableResources": {"Memory": "1G"}}},
            "spec.config.policy.AvailableResources.Memory",
        ),
        ({"affinity": {"socket": "/x"}}, "spec.config.affinity.socket"),
    ],
)
def test_a_policy_with_an_option_that_is_not_allowed_is_refused_by_its_name(config: Any, key: str) -> None:
    sentence = f"{key} is not among the options that a policy of the cluster may set"
    assert admits(POLICIES, policy(config)) == [sentence]


@pytest.mark.parametrize(
    "config", [{}, {"placement": {"cpus": "shared"}}, {"policy": {"balloons": {"BalloonTypes": []}}}]
)
def test_a_policy_with_allowed_options_is_let_through(config: Any) -> None:
    assert admits(POLICIES, policy(config)) == []


def test_each_policy_is_bound_and_closed_where_it_cannot_be_evaluated() -> None:
    bound = {d["spec"]["policyName"]: d["spec"]["validationActions"] for d in DOCUMENTS if d not in POLICIES}
    assert set(bound) == {policy["metadata"]["name"] for policy in POLICIES}
    assert all("Deny" in actions for actions in bound.values())
    assert {policy["spec"]["failurePolicy"] for policy in POLICIES} == {"Fail"}


def test_leases_are_looked_at_in_our_namespace_only() -> None:
    # Of kubelets that could not renew theirs, in kube-node-lease, the nodes would be lost.
    constraints = [d["spec"]["matchConstraints"] for d in POLICIES]
    for found in constraints:
        if any("leases" in rule["resources"] for rule in found["resourceRules"]):
            assert found["namespaceSelector"] == {
                "matchLabels": {"kubernetes.io/metadata.name": "cri-resmgr"}
            }
