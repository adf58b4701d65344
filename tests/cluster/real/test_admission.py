"""The admission policies on a real server: what they let an agent and a policy's writer do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.api.names import AGENT, NAMESPACE, PLACEMENT_POLICIES
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.parts import AGENT_PODS, agent_token
from tests.cluster.real.test_rights import make

pytestmark = pytest.mark.cluster

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def tokens(rights: ControlPlane) -> Iterator[dict[str, str]]:
    """Of the agents of two nodes, by node."""
    names = ("admitted-1", "admitted-2")
    for name in names:
        rights.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    yield {name: agent_token(rights, name) for name in names}
    for name in names:
        rights.ask("DELETE", f"{AGENT_PODS}/agent-{name}?gracePeriodSeconds=0")
        rights.ask("DELETE", f"/api/v1/nodes/{name}")


def test_events_are_an_agents_own(rights: ControlPlane, tokens: dict[str, str]) -> None:
    def event(name: str, host: str, kind: str = "Pod") -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "involvedObject": {"kind": kind, "namespace": NAMESPACE, "name": "agent-n1"},
            "source": {"component": AGENT, "host": host},
            "reason": "LargerDomain",
        }

    path = f"/api/v1/namespaces/{NAMESPACE}/events"
    own, other = tokens
    first, second = tokens.values()
    rights.ask("POST", path, event("own", own), token=first)
    merge = "application/merge-patch+json"
    rights.ask("PATCH", f"{path}/own", {"count": 2}, token=first, content_type=merge)
    with pytest.raises(Refused, match="source.host"):
        rights.ask("POST", path, event("forged", other), token=first)
    with pytest.raises(Refused, match="are about pods"):
        rights.ask("POST", path, event("odd", own, "Node"), token=first)
    with pytest.raises(Refused, match="cri-resmgr-node-events"):
        rights.ask("PATCH", f"{path}/own", {"count": 3}, token=second, content_type=merge)
    newer = {
        "metadata": {"name": "newer", "namespace": NAMESPACE},
        "eventTime": "2026-11-22T10:00:00.000000Z",
        "reportingController": AGENT,
        "reportingInstance": AGENT,
        "action": "Place",
        "reason": "LargerDomain",
        "type": "Normal",
        "regarding": {"kind": "Pod", "namespace": NAMESPACE, "name": "agent-n1"},
        "deprecatedSource": {"component": AGENT, "host": other},
    }
    with pytest.raises(Refused, match="source.host|cannot create"):
        rights.ask("POST", path.replace("/api/v1", "/apis/events.k8s.io/v1"), newer, token=first)


def test_the_policies_have_no_warnings_of_types(rights: ControlPlane) -> None:
    for name in ("cri-resmgr-node", "cri-resmgr-node-events", "cri-resmgr-config"):

        def found(name: str = name) -> Any:
            return rights.ask("GET", f"{POLICIES}/{name}").get("status", {}).get("typeChecking")

        rights.wait("kube-controller-manager", lambda: found() is not None)
        warnings = [each["warning"] for each in found().get("expressionWarnings", [])]
        # The checker takes the group "" for any group, and so looks at events.k8s.io too, which are shown as v1 events.
        assert [each for each in warnings if not each.startswith("events.k8s.io/v1,")] == []


def test_an_option_that_no_policy_may_set_is_refused_by_name(rights: ControlPlane) -> None:
    # The schema keeps what it does not know, or the misspelt key would be gone before it could be named.
    for config, said in (
        ({"relay": {"socket": "/x"}}, "spec.config.relay.socket is not among the options"),
        ({"placement": {"max_movse": 3}}, "spec.config.placement.max_movse is not among the options"),
    ):
        with pytest.raises(Refused, match=said):
            make(rights, PLACEMENT_POLICIES, "PlacementPolicy", "bad", spec={"config": config})


def test_the_rules_of_the_schemas_are_checked(rights: ControlPlane) -> None:
    one = {"Name": "a", "MinCPUs": 3, "MaxCPUs": 2}
    for types, words in (
        ([one], "MinCPUs is more than MaxCPUs"),
        ([{"Name": "a"}] * 2, "two types of one Name"),
    ):
        config = {"policy": {"balloons": {"BalloonTypes": types}}}
        with pytest.raises(Refused, match=words):
            make(rights, PLACEMENT_POLICIES, "PlacementPolicy", "bad", spec={"config": config})
    selector = {"matchExpressions": [{"key": "disk", "operator": "In"}]}
    with pytest.raises(Refused, match="In and NotIn need values"):
        make(
            rights,
            PLACEMENT_POLICIES,
            "PlacementPolicy",
            "bad",
            spec={"config": {}, "nodeSelector": selector},
        )
