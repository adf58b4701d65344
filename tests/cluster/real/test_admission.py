"""The admission policies on a real server that has them: KUBE_APISERVER names one of 1.30 or later, Debian's is older."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from cluster.api.names import AGENT, GROUP, NAMESPACE, VERSION
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import PACKAGING
from tests.cluster.real.test_rights import (
    APPLY,
    OBJECTS,
    apply,
    make,
    manifests,
    until_established,
)
from tests.cluster.topology.crd import NODE_RESOURCE_TOPOLOGY

pytestmark = pytest.mark.cluster

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
PLURALS = {
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
TOKEN_S = 3600
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(api_server: ControlPlane) -> Iterator[ControlPlane]:
    """With the CRDs, the shared role of agents, the admission policies, two nodes, and an agent's pod on each."""
    if api_server.version() < (1, 30):
        pytest.skip("This server has no ValidatingAdmissionPolicies.")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    api_server.ask(
        "PATCH", f"/api/v1/namespaces/{NAMESPACE}?fieldManager=tests", namespace, content_type=APPLY
    )
    for definition in (*manifests("crds"), NODE_RESOURCE_TOPOLOGY):
        apply(api_server, definition)
        until_established(api_server, definition["metadata"]["name"])
    for manifest in [*manifests("rbac-common"), *manifests("rbac")]:
        apply(api_server, manifest)
    for node in ("n1", "n2"):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        api_server.ask("PATCH", f"/api/v1/nodes/{node}?fieldManager=tests", body, content_type=APPLY)
        make(api_server, "nodeplacements", "NodePlacement", node, spec={})
        api_server.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod_of(node))
    for path in sorted((PACKAGING / "admission").glob("[!k]*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            where = f"{ADMISSION}/{PLURALS[manifest['kind']]}/{manifest['metadata']['name']}"
            api_server.ask("PATCH", f"{where}?fieldManager=tests&force=true", manifest, content_type=APPLY)
    token = token_of(api_server, "n1")
    # They are in force a moment later.
    until(api_server, lambda: is_refused(api_server, token, "n2"))
    until(api_server, lambda: is_policy_refused(api_server))
    yield api_server
    for plural in PLURALS.values():
        for name in ("cri-resmgr-node", "cri-resmgr-node-events", "cri-resmgr-config"):
            api_server.ask("DELETE", f"{ADMISSION}/{plural}/{name}")
    for node in ("n1", "n2"):
        api_server.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/agent-{node}?gracePeriodSeconds=0")
        api_server.ask("DELETE", f"/api/v1/nodes/{node}")
        api_server.ask("DELETE", f"{OBJECTS}/nodeplacements/{node}")


def pod_of(node: str) -> Json:
    spec = {
        "nodeName": node,
        "serviceAccountName": AGENT,
        "automountServiceAccountToken": False,
        "containers": [{"name": "report", "image": "cri-resmgr"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"agent-{node}"}, "spec": spec}


def token_of(server: ControlPlane, node: str) -> str:
    """The token of the agent's pod on a node, as kubelet asks for it; "" as the node: one bound to nothing."""
    spec: Json = {"expirationSeconds": TOKEN_S}
    if node:
        pod = server.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/agent-{node}")["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{AGENT}/token"
    return str(server.ask("POST", path, wanted)["status"]["token"])


def until(server: ControlPlane, is_done: Callable[[], bool]) -> None:
    server.wait("kube-apiserver", is_done)


def report(server: ControlPlane, token: str, node: str) -> Json:
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "NodePlacement", "metadata": {"name": node}}
    path = f"{OBJECTS}/nodeplacements/{node}/status?fieldManager={AGENT}&force=true"
    return server.ask("PATCH", path, {**body, "status": {"version": "1"}}, token=token, content_type=APPLY)


def is_refused(server: ControlPlane, token: str, node: str) -> bool:
    try:
        report(server, token, node)
    except Refused as refused:
        return "may not write the object of" in refused.status["message"]
    return False


def is_policy_refused(server: ControlPlane) -> bool:
    try:
        make(
            server,
            "placementpolicies",
            "PlacementPolicy",
            "odd",
            spec={"config": {"relay": {"socket": "/x"}}},
        )
    except Refused as refused:
        assert "spec.config.relay is not among the options" in refused.status["message"]
        return True
    return False


def test_an_agents_token_writes_its_nodes_objects_and_no_others(server: ControlPlane) -> None:
    token = token_of(server, "n1")
    assert report(server, token, "n1")["status"] == {"version": "1"}
    topology = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "zones": []}
    for node in ("n1", "n2"):
        path = f"{TOPOLOGIES}/{node}?fieldManager={AGENT}&force=true"
        body = {**topology, "metadata": {"name": node}}
        if node == "n1":
            server.ask("PATCH", path, body, token=token, content_type=APPLY)
        else:
            with pytest.raises(Refused, match="the agent of node n1 may not write the object of n2"):
                server.ask("PATCH", path, body, token=token, content_type=APPLY)
    with pytest.raises(Refused, match="the agent of node n1 may not write the object of n2") as refused:
        report(server, token, "n2")
    assert refused.value.code == 403


def test_a_token_that_names_no_node_writes_nothing(server: ControlPlane) -> None:
    with pytest.raises(Refused, match="the token names no node"):
        report(server, token_of(server, ""), "n1")


def test_events_are_an_agents_own(server: ControlPlane) -> None:
    def event(name: str, host: str, kind: str = "Pod") -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "involvedObject": {"kind": kind, "namespace": NAMESPACE, "name": "agent-n1"},
            "source": {"component": AGENT, "host": host},
            "reason": "LargerRung",
        }

    path = f"/api/v1/namespaces/{NAMESPACE}/events"
    first, second = token_of(server, "n1"), token_of(server, "n2")
    server.ask("POST", path, event("own", "n1"), token=first)
    merge = "application/merge-patch+json"
    server.ask("PATCH", f"{path}/own", {"count": 2}, token=first, content_type=merge)
    with pytest.raises(Refused, match="source.host"):
        server.ask("POST", path, event("forged", "n2"), token=first)
    with pytest.raises(Refused, match="are about pods"):
        server.ask("POST", path, event("odd", "n1", "Node"), token=first)
    with pytest.raises(Refused, match="cri-resmgr-node-events"):
        server.ask("PATCH", f"{path}/own", {"count": 3}, token=second, content_type=merge)


def test_the_policies_have_no_warnings_of_types(server: ControlPlane) -> None:
    for name in ("cri-resmgr-node", "cri-resmgr-node-events", "cri-resmgr-config"):
        found = server.ask("GET", f"{ADMISSION}/validatingadmissionpolicies/{name}")
        assert found.get("status", {}).get("typeChecking", {}).get("expressionWarnings", []) == []


def test_the_rules_of_the_schemas_are_checked(server: ControlPlane) -> None:
    one = {"Name": "a", "MinCPUs": 3, "MaxCPUs": 2}
    for types, words in (
        ([one], "MinCPUs is more than MaxCPUs"),
        ([{"Name": "a"}] * 2, "two types of one Name"),
    ):
        config = {"policy": {"balloons": {"BalloonTypes": types}}}
        with pytest.raises(Refused, match=words):
            make(server, "placementpolicies", "PlacementPolicy", "bad", spec={"config": config})
    selector = {"matchExpressions": [{"key": "disk", "operator": "In"}]}
    with pytest.raises(Refused, match="In and NotIn need values"):
        make(
            server,
            "placementpolicies",
            "PlacementPolicy",
            "bad",
            spec={"config": {}, "nodeSelector": selector},
        )
