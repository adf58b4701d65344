"""CRDs, rights and credentials on a real server: what it takes, what it refuses, and to which of a node's identities."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api.fit import OBJECT_BYTES, fit
from cluster.api.names import AGENT, GROUP, NODE_PLACEMENTS, OPERATOR, PLACEMENT_POLICIES, VERSION
from cluster.api.rbac import node_access, node_user
from cluster.kube.errors import ApiError
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.requests import Resource
from tests.cluster.api.test_fit import status
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import PACKAGING, crds_of
from tests.cluster.topology.crd import NODE_RESOURCE_TOPOLOGY

pytestmark = pytest.mark.cluster

APPLY = "application/apply-patch+yaml"
NODE_PLACEMENT = Resource(GROUP, VERSION, NODE_PLACEMENTS)
TOPOLOGY = Resource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies")
OBJECTS = f"/apis/{GROUP}/{VERSION}"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Json = dict[str, Any]

_PATHS = {
    "ServiceAccount": "/api/v1/namespaces/cri-resmgr/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/cri-resmgr/roles",
    "RoleBinding": f"{RBAC}/namespaces/cri-resmgr/rolebindings",
    "CustomResourceDefinition": CRDS,
}


def apply(server: ControlPlane, manifest: Json, **more: Any) -> Json:
    """Server-side apply of one object of a manifest."""
    path = f"{_PATHS[manifest['kind']]}/{manifest['metadata']['name']}?fieldManager=tests&force=true"
    return server.ask("PATCH", path, manifest, content_type=APPLY, **more)


def manifests(folder: str) -> list[Json]:
    paths = sorted((PACKAGING / folder).glob("[!k]*.yaml"))
    return [document for path in paths for document in yaml.safe_load_all(path.read_text())]


@pytest.fixture(scope="module")
def server(api_server: ControlPlane) -> Iterator[ControlPlane]:
    """With the CRDs, the accounts, and the rights of a cluster whose server has no admission policies."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cri-resmgr"}}
    api_server.ask("PATCH", "/api/v1/namespaces/cri-resmgr?fieldManager=tests", namespace, content_type=APPLY)
    definitions = [*manifests(crds_of(api_server)), NODE_RESOURCE_TOPOLOGY]
    for definition in definitions:
        apply(api_server, definition)
    for definition in definitions:
        until_established(api_server, definition["metadata"]["name"])
    shared = {("ClusterRole", AGENT), ("ClusterRoleBinding", AGENT)}
    for manifest in [*manifests("rbac-common"), *manifests("rbac-per-node")]:
        if (manifest["kind"], manifest["metadata"]["name"]) not in shared:
            apply(api_server, manifest)
    for kind, name in shared:  # other tests' server may have it
        with contextlib.suppress(Refused):
            api_server.ask("DELETE", f"{_PATHS[kind]}/{name}")
    may(api_server, "system:node:any", "any", False)
    # It has both of its roles.
    may(api_server, f"system:serviceaccount:cri-resmgr:{OPERATOR}", "any", True)
    yield api_server
    for plural in (NODE_PLACEMENTS, PLACEMENT_POLICIES):
        api_server.ask("DELETE", f"{OBJECTS}/{plural}")


def until_established(server: ControlPlane, name: str) -> None:
    server.wait("kube-apiserver", lambda: _holds(server, name, "Established"))


def may(server: ControlPlane, user: str, node: str, expected: bool) -> None:
    """Return when the server's copy of the rights has come so far: it is told of changes a moment later."""
    resource = {
        "group": GROUP,
        "resource": NODE_PLACEMENTS,
        "subresource": "status",
        "verb": "patch",
        "name": node,
    }
    asked = {"user": user, "groups": ["system:nodes", "system:authenticated"], "resourceAttributes": resource}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    server.wait("kube-apiserver", lambda: server.ask("POST", path, review)["status"]["allowed"] is expected)


def grant(server: ControlPlane, node: str, user: str = "", **more: Any) -> None:
    """A node's own rights, in force when it returns; ``user``: another than the node's."""
    for manifest in node_access(node, **more):
        apply(server, manifest)
    may(server, user or node_user(node), node, True)


def _holds(server: ControlPlane, name: str, condition: str) -> bool:
    conditions = server.ask("GET", f"{CRDS}/{name}").get("status", {}).get("conditions") or []
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


def make(server: ControlPlane, plural: str, kind: str, name: str, **parts: Any) -> Json:
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, **parts}
    return server.ask("PATCH", f"{OBJECTS}/{plural}/{name}?fieldManager=tests", body, content_type=APPLY)


@asynccontextmanager
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    made = Client(Access.kubeconfig(kubeconfig), user_agent="tests")
    try:
        yield made
    finally:
        await made.close()


def named(name: str, **parts: Any) -> Json:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "NodePlacement", "metadata": {"name": name}, **parts}


async def report(agent: Client, node: str, status_: Json) -> Json:
    return await agent.apply(
        NODE_PLACEMENT, node, named(node, status=status_), manager=AGENT, subresource="status"
    )


def test_500_containers_with_managed_fields_are_under_256_kib_on_the_server(server: ControlPlane) -> None:
    make(server, NODE_PLACEMENTS, "NodePlacement", "full", spec={"freeze": True})
    path = f"{OBJECTS}/{NODE_PLACEMENTS}/full/status?fieldManager={AGENT}&force=true"
    for containers in (500, 499):
        written = named("full", status=fit(status(containers)))
        found = server.ask("PATCH", path, written, content_type=APPLY)
    assert len(found["status"]["placements"]) == 499
    assert found["spec"] == {"freeze": True}
    whole = len(json.dumps(found, separators=(",", ":")))
    fields = len(json.dumps(found["metadata"]["managedFields"], separators=(",", ":")))
    print(f"NodePlacement of 499 containers: {whole} bytes, managedFields {fields}")
    assert whole < OBJECT_BYTES


def test_a_policy_keeps_options_that_are_not_known_for_their_sentence_and_refuses_values(
    server: ControlPlane,
) -> None:
    config = {
        "relay": {"socket": "/x"},
        "placement": {"cpus": "shared", "restart_hold": "5m", "max_moves": 3},
    }
    found = make(server, PLACEMENT_POLICIES, "PlacementPolicy", "odd", spec={"config": config})
    assert found["spec"]["config"] == config
    for bad, place in (
        ({"placement": {"memory": False}}, "spec.config.placement.memory"),
        ({"placement": {"max_moves": "3"}}, "spec.config.placement.max_moves"),
        ({"policy": {"ReservedResources": {"CPU": "cgroup:/x"}}}, "spec.config.policy.ReservedResources.CPU"),
        ({"placement": "x"}, "spec.config.placement"),
    ):
        # Created: newer servers answer 500 where such a value is applied.
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "PlacementPolicy", "metadata": {"name": "bad"}}
        with pytest.raises(Refused, match=place) as refused:
            server.ask("POST", f"{OBJECTS}/{PLACEMENT_POLICIES}", {**body, "spec": {"config": bad}})
        assert refused.value.code == 422


def test_one_container_is_overridden_once(server: ControlPlane) -> None:
    one = {"namespace": "n", "pod": "p", "container": "c", "zone": "l3-1"}
    with pytest.raises(Refused, match="[Dd]uplicate"):
        make(
            server,
            NODE_PLACEMENTS,
            "NodePlacement",
            "twice",
            spec={"overrides": [one, {**one, "zone": "l3-2"}]},
        )


async def test_an_agent_writes_the_objects_of_its_node_and_no_others(
    server: ControlPlane, folder: Path
) -> None:
    operator = await asyncio.to_thread(server.account_token, "cri-resmgr", OPERATOR)
    for node in ("n1", "n2"):
        make(server, NODE_PLACEMENTS, "NodePlacement", node, spec={})
        # By the operator itself: it may grant what it has.
        for manifest in node_access(node):
            apply(server, manifest, token=operator)
        may(server, node_user(node), node, True)
    pair = server.certificate("system:node:n1", "system:nodes")
    async with client(server.kubeconfig(folder / "n1", certificate=pair)) as agent:
        written = await report(agent, "n1", {"version": "1"})
        assert written["status"] == {"version": "1"}
        topology = {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "n1"},
            "zones": [],
        }
        for _ in range(2):  # it is made, and written again
            await agent.apply(TOPOLOGY, "n1", topology, manager=AGENT)
        assert (await agent.get(NODE_PLACEMENT, "n1"))["status"] == {"version": "1"}
        only_it = await agent.list(NODE_PLACEMENT, field_selector="metadata.name=n1")
        assert [item["metadata"]["name"] for item in only_it["items"]] == ["n1"]
        other = {**topology, "metadata": {"name": "n2"}}
        for refused in (
            report(agent, "n2", {"version": "1"}),
            agent.apply(TOPOLOGY, "n2", other, manager=AGENT),
            agent.get(NODE_PLACEMENT, "n2"),
            agent.list(NODE_PLACEMENT),
            agent.apply(NODE_PLACEMENT, "n1", named("n1", spec={"freeze": True}), manager=AGENT),
            agent.delete(NODE_PLACEMENT, "n1"),
        ):
            with pytest.raises(ApiError) as refusal:
                await refused
            assert refusal.value.status == 403


def test_an_operator_gives_no_rights_that_it_does_not_have(server: ControlPlane) -> None:
    operator = server.account_token("cri-resmgr", OPERATOR)
    role, binding = node_access("n9")
    role["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})
    with pytest.raises(Refused) as refused:
        apply(server, role, token=operator)
    assert refused.value.code == 403
    binding["roleRef"]["name"] = "cluster-admin"
    with pytest.raises(Refused) as refused:
        apply(server, binding, token=operator)
    assert refused.value.code == 403


async def test_a_certificate_that_is_replaced_is_shown_from_then_on(
    server: ControlPlane, folder: Path
) -> None:
    make(server, NODE_PLACEMENTS, "NodePlacement", "r1", spec={})
    grant(server, "r1")
    pairs = [server.certificate(f"system:node:{name}", "system:nodes") for name in ("before", "r1")]
    # As kubelet keeps them: one file with both, behind a symbolic link that is replaced.
    files = [folder / "first.pem", folder / "second.pem"]
    for file, (certificate, key) in zip(files, pairs):
        file.write_text(certificate.read_text() + key.read_text())
    current = folder / "kubelet-client-current.pem"
    current.symlink_to(files[0])
    config = server.kubeconfig(folder / "kubeconfig", certificate=(current, current))
    async with client(config) as agent:
        with pytest.raises(ApiError, match="system:node:before"):
            await report(agent, "r1", {"version": "1"})
        (folder / "next").symlink_to(files[1])
        os.replace(folder / "next", current)
        assert (await report(agent, "r1", {"version": "2"}))["status"] == {"version": "2"}


async def test_a_token_file_that_is_replaced_is_shown_from_then_on(
    server: ControlPlane, folder: Path
) -> None:
    account = {"kind": "ServiceAccount", "name": "agent-t1", "namespace": "cri-resmgr"}
    apply(server, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent-t1"}})
    make(server, NODE_PLACEMENTS, "NodePlacement", "t1", spec={})
    grant(server, "t1", "system:serviceaccount:cri-resmgr:agent-t1", subject=account)
    token = folder / "token"
    token.write_text(server.account_token("default", "default"))
    config = json.loads(server.kubeconfig(folder / "kubeconfig", token="-").read_text())
    config["users"][0]["user"] = {"tokenFile": "token"}
    (folder / "kubeconfig").write_text(json.dumps(config))
    async with client(folder / "kubeconfig") as agent:
        with pytest.raises(ApiError, match="system:serviceaccount:default:default"):
            await report(agent, "t1", {"version": "1"})
        (folder / "next").write_text(server.account_token("cri-resmgr", "agent-t1"))
        os.replace(folder / "next", token)
        assert (await report(agent, "t1", {"version": "2"}))["status"] == {"version": "2"}
