"""CRDs, rights and credentials on a real server: what it takes, what it refuses, and to which of a node's identities."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.api.fit import OBJECT_BYTES, fit
from cluster.api.heartbeat import agent_wrote, lease, lease_name, read_heartbeat
from cluster.api.names import AGENT, GROUP, NAMESPACE, NODE_PLACEMENTS, OPERATOR, PLACEMENT_POLICIES, VERSION
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.requests import LEASES, ApiError, Resource
from tests.cluster.api.test_fit import status
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.parts import AGENT_PODS, APPLY, agent_token

pytestmark = pytest.mark.cluster

NODE_PLACEMENT = Resource(GROUP, VERSION, NODE_PLACEMENTS)
TOPOLOGY = Resource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies")
OBJECTS = f"/apis/{GROUP}/{VERSION}"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(rights: ControlPlane) -> Iterator[ControlPlane]:
    """With two nodes, which have nothing of ours but their objects."""
    for node in ("n1", "n2"):
        rights.ask("POST", "/api/v1/nodes", {"metadata": {"name": node}})
        make(rights, NODE_PLACEMENTS, "NodePlacement", node, spec={})
    yield rights
    for plural in (NODE_PLACEMENTS, PLACEMENT_POLICIES):
        rights.ask("DELETE", f"{OBJECTS}/{plural}")
    rights.ask("DELETE", f"{AGENT_PODS}/agent-n1?gracePeriodSeconds=0")
    for node in ("n1", "n2"):
        rights.ask("DELETE", f"/api/v1/nodes/{node}")


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


def test_a_policys_values_are_refused_by_their_schema(server: ControlPlane) -> None:
    for bad, place in (
        ({"placement": {"memory": False}}, "spec.config.placement.memory"),
        ({"placement": {"max_moves": "3"}}, "spec.config.placement.max_moves"),
        ({"policy": {"ReservedResources": {"CPU": "cgroup:/x"}}}, "spec.config.policy.ReservedResources.CPU"),
        ({"placement": "x"}, "spec.config.placement"),
    ):
        # Created: where such a value is applied the server answers 500.
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


def of_pod(server: ControlPlane, path: Path) -> Path:
    """The kubeconfig of the agent in a pod on n1."""
    return server.kubeconfig(path, token=agent_token(server, "n1"))


def of_host(server: ControlPlane, path: Path) -> Path:
    """The kubeconfig of the agent on the host n1, which is kubelet's."""
    return server.kubeconfig(path, certificate=server.certificate("system:node:n1", "system:nodes"))


@pytest.mark.parametrize("credential", [of_pod, of_host])
async def test_an_agent_writes_the_objects_of_its_node_and_no_others(
    server: ControlPlane, folder: Path, credential: Any
) -> None:
    kubeconfig = await asyncio.to_thread(credential, server, folder / "kubeconfig")
    async with client(kubeconfig) as agent:
        written = await report(agent, "n1", {"version": credential.__name__})
        assert written["status"] == {"version": credential.__name__}
        topology = {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "n1"},
            "zones": [],
        }
        for _ in range(2):  # it is made, and written again
            await agent.apply(TOPOLOGY, "n1", topology, manager=AGENT)
        other = {**topology, "metadata": {"name": "n2"}}
        for refused, said in (
            (report(agent, "n2", {"version": "1"}), "may not write the object of n2"),
            (agent.apply(TOPOLOGY, "n2", other, manager=AGENT), "may not write the object of n2"),
            (
                agent.apply(NODE_PLACEMENT, "n1", named("n1", spec={"freeze": True}), manager=AGENT),
                "cannot patch",
            ),
            (agent.delete(NODE_PLACEMENT, "n1"), "cannot delete"),
        ):
            with pytest.raises(ApiError, match=said) as refusal:
                await refused
            assert refusal.value.status == 403


async def test_an_agent_renews_the_lease_of_its_node_and_no_other(server: ControlPlane, folder: Path) -> None:
    made = await asyncio.to_thread(server.ask, "GET", f"{OBJECTS}/{NODE_PLACEMENTS}/n1")
    owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "NodePlacement", "name": "n1"}
    owner["uid"] = made["metadata"]["uid"]

    async def renew(agent: Client, name: str, namespace: str = NAMESPACE, at: float = 1e9) -> Json:
        wanted = lease("n1", owner, at)
        metadata = {**wanted["metadata"], "name": name, "namespace": namespace}
        body = {**wanted, "metadata": metadata}
        return await agent.apply(LEASES, name, body, manager=AGENT, namespace=namespace)

    pod = await asyncio.to_thread(of_pod, server, folder / "pod")
    host = await asyncio.to_thread(of_host, server, folder / "host")
    async with client(pod) as agent, client(host) as kubelet:
        for at in (1e9, 2e9):  # it is made, and renewed
            found = await renew(agent, lease_name("n1"), at=at)
        assert read_heartbeat(found).node == "n1"
        assert agent_wrote(found)
        for refused, said in (
            (renew(agent, lease_name("n2")), "may not write the object of node-n2"),
            (renew(agent, OPERATOR), f"may not write the object of {OPERATOR}"),
            (renew(agent, "n1", "kube-node-lease"), "cannot patch"),
            (agent.get(LEASES, OPERATOR, NAMESPACE), "cannot get"),
            (renew(kubelet, lease_name("n1")), "kube-node-lease|cannot patch"),
        ):
            with pytest.raises(ApiError, match=said) as refusal:
                await refused
            assert refusal.value.status == 403
        # Kubelet's own are as before.
        node = await asyncio.to_thread(server.ask, "GET", "/api/v1/nodes/n1")
        owner.update(apiVersion="v1", kind="Node", uid=node["metadata"]["uid"])
        await renew(kubelet, "n1", "kube-node-lease")


def test_a_token_that_names_no_node_writes_nothing(server: ControlPlane) -> None:
    path = f"{OBJECTS}/{NODE_PLACEMENTS}/n1/status?fieldManager={AGENT}&force=true"
    with pytest.raises(Refused, match="the token names no node"):
        server.ask(
            "PATCH",
            path,
            named("n1", status={"version": "1"}),
            token=server.account_token(NAMESPACE, AGENT),
            content_type=APPLY,
        )


def test_an_operator_gives_no_rights(server: ControlPlane) -> None:
    operator = server.account_token(NAMESPACE, OPERATOR)
    role = {"metadata": {"name": "more"}, "rules": []}
    with pytest.raises(Refused, match="cannot") as refused:
        server.ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role, token=operator)
    assert refused.value.code == 403


async def test_a_certificate_that_is_replaced_is_shown_from_then_on(
    server: ControlPlane, folder: Path
) -> None:
    pairs = [server.certificate(f"system:node:{name}", "system:nodes") for name in ("before", "n1")]
    # As kubelet keeps them: one file with both, behind a symbolic link that is replaced.
    files = [folder / "first.pem", folder / "second.pem"]
    for file, (certificate, key) in zip(files, pairs):
        file.write_text(certificate.read_text() + key.read_text())
    current = folder / "kubelet-client-current.pem"
    current.symlink_to(files[0])
    config = server.kubeconfig(folder / "kubeconfig", certificate=(current, current))
    async with client(config) as agent:
        with pytest.raises(ApiError, match="system:node:before"):
            await report(agent, "n1", {"version": "1"})
        (folder / "next").symlink_to(files[1])
        os.replace(folder / "next", current)
        assert (await report(agent, "n1", {"version": "2"}))["status"] == {"version": "2"}


async def test_a_token_file_that_is_replaced_is_shown_from_then_on(
    server: ControlPlane, folder: Path
) -> None:
    token = folder / "token"
    token.write_text(await asyncio.to_thread(server.account_token, "default", "default"))
    config = json.loads(server.kubeconfig(folder / "kubeconfig", token="-").read_text())
    config["users"][0]["user"] = {"tokenFile": "token"}
    (folder / "kubeconfig").write_text(json.dumps(config))
    async with client(folder / "kubeconfig") as agent:
        with pytest.raises(ApiError, match="system:serviceaccount:default:default"):
            await report(agent, "n1", {"version": "1"})
        (folder / "next").write_text(await asyncio.to_thread(agent_token, server, "n1"))
        os.replace(folder / "next", token)
        assert (await report(agent, "n1", {"version": "2"}))["status"] == {"version": "2"}
