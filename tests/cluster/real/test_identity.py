"""A NodePlacement is known by its uid, not by its name or generation: made again, restored, of another node of its name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.api.names import NAMESPACE, OPERATOR
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.node import found
from tests.cluster.real.parts import (
    PLACEMENTS,
    POLICIES,
    WAIT_S,
    DescribedNode,
    Part,
    active,
    agent_token,
    create_node,
    delete,
    node_agent,
    operator,
    placement,
    policy,
    policy_status,
    put_policy,
    until_applied,
    until_in_force,
    until_ready,
)
from tests.cluster.real.test_resource_topology import TOPOLOGIES
from tests.cluster.topology.crd import NODE_RESOURCE_TOPOLOGY
from tests.e2e.node import until
from tests.machines import EPYC_NPS4_1S, HYGON_7285_2S

pytestmark = pytest.mark.cluster

MERGE = "application/merge-patch+json"
GOOD = {"policy": {"Active": "topology-aware"}}
BETTER = {"policy": {"Active": "balloons"}}


async def ask_of(api: ControlPlane, name: str, **spec: Any) -> None:
    await asyncio.to_thread(
        lambda: api.ask("PATCH", f"{PLACEMENTS}/{name}", {"spec": spec}, content_type=MERGE)
    )


def uid(of: Mapping[str, Any]) -> str:
    return str(of.get("metadata", {}).get("uid", ""))


def mode(of: Mapping[str, Any]) -> str:
    return str(of.get("status", {}).get("mode", ""))


async def until_owned(api: ControlPlane, name: str) -> None:
    """Until the NodeResourceTopology is owned by the NodePlacement that there is."""
    owner = uid(await placement(api, name))

    def is_owned(nrt: Mapping[str, Any]) -> bool:
        return [each["uid"] for each in nrt.get("metadata", {}).get("ownerReferences", ())] == [owner]

    await until(lambda: found(api, f"{TOPOLOGIES}/{name}"), is_owned, WAIT_S)


async def test_a_nodeplacement_that_was_deleted_and_made_again_is_a_new_one_to_the_agent(
    rights: ControlPlane, described_nodes: list[DescribedNode]
) -> None:
    node = described_nodes[0]
    await until_owned(rights, node.name)
    before = await placement(rights, node.name)
    was = mode(before)
    await ask_of(rights, node.name, mode="off")
    await until(lambda: placement(rights, node.name), lambda of: mode(of) == "off", WAIT_S)
    await asyncio.to_thread(rights.ask, "DELETE", f"{PLACEMENTS}/{node.name}")
    # The operator makes it at once, with the generation 1; nothing is asked for.
    await until(lambda: placement(rights, node.name), lambda of: uid(of) not in ("", uid(before)), WAIT_S)
    await until(lambda: placement(rights, node.name), lambda of: mode(of) == was, WAIT_S)
    await until_ready(rights, node.name)
    await until_applied(rights, "", node.name)
    await until_owned(rights, node.name)
    # Made again by another hand, with a spec of the same generation.
    body = {"apiVersion": before["apiVersion"], "kind": before["kind"], "metadata": {"name": node.name}}
    for wanted in ("observe", "off"):
        last = uid(await placement(rights, node.name))
        await asyncio.to_thread(rights.ask, "DELETE", f"{PLACEMENTS}/{node.name}")
        await until(lambda: placement(rights, node.name), lambda of, last=last: uid(of) != last, WAIT_S)
        await asyncio.to_thread(
            lambda wanted=wanted: rights.ask(
                "PATCH",
                f"{PLACEMENTS}/{node.name}?fieldManager=people&force=true",
                {**body, "spec": {"mode": wanted}},
                content_type="application/apply-patch+yaml",
            )
        )
        await until(
            lambda: placement(rights, node.name), lambda of, wanted=wanted: mode(of) == wanted, WAIT_S
        )


async def test_a_node_that_is_renamed_has_its_objects_under_its_new_name(
    rights: ControlPlane, described_nodes: list[DescribedNode], folder: Path
) -> None:
    node = described_nodes[0]
    new = f"new-{node.name}"
    await ask_of(rights, node.name, mode="off")
    await until(lambda: placement(rights, node.name), lambda of: mode(of) == "off", WAIT_S)
    await node.agent.end(signal.SIGTERM)
    await create_node(rights, new, {})
    async with contextlib.AsyncExitStack() as stack:
        for path in (f"/api/v1/nodes/{new}", f"{PLACEMENTS}/{new}"):
            stack.push_async_callback(delete, rights, path)
        token = await asyncio.to_thread(agent_token, rights, new)
        kubeconfig = rights.kubeconfig(folder / "new.kubeconfig", token=token)
        # The state of the agent is that of the machine.
        agent = node_agent(node.folder, new, node.daemon, kubeconfig)
        await agent.start()
        stack.push_async_callback(agent.end)
        await until_ready(rights, new)
        # What was asked of the node of the old name is asked no more.
        await until(lambda: placement(rights, new), lambda of: mode(of) == "enforce", WAIT_S)
        await until_owned(rights, new)
        await asyncio.to_thread(rights.ask, "DELETE", f"/api/v1/nodes/{node.name}")
        await until(lambda: placement(rights, node.name), lambda of: not of, WAIT_S)
        await until(lambda: found(rights, f"{TOPOLOGIES}/{node.name}"), lambda of: not of, WAIT_S)


async def test_another_machine_under_the_name_of_one_that_is_gone_is_told_of_alone(
    rights: ControlPlane, started_operator: Part, folder: Path
) -> None:
    name = f"turn-{os.getpid()}"
    first = DescribedNode(rights, folder / "first", name, HYGON_7285_2S)
    second = DescribedNode(rights, folder / "second", name, EPYC_NPS4_1S)

    def sockets(of: Mapping[str, Any]) -> int:
        return len(of.get("status", {}).get("machine", {}).get("sockets", ()))

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(first.close)
        stack.push_async_callback(second.close)
        await first.start()
        await until_ready(rights, name)
        await until(lambda: placement(rights, name), lambda of: sockets(of) == 2, WAIT_S)
        # 1. The first is gone, with its Node; the second one registers before the object of the first is deleted.
        await first.agent.end()
        await first.daemon.kill()
        await delete(rights, f"/api/v1/nodes/{name}")
        await second.start()
        await until(lambda: placement(rights, name), lambda of: sockets(of) == 1, WAIT_S)
        await until_ready(rights, name)
        told = (await placement(rights, name))["status"]
        assert len(told["machine"]["numaNodes"]) == 4
        await until_owned(rights, name)


@pytest.fixture
async def restorable(cluster_programs: dict[str, Path]) -> AsyncIterator[ControlPlane]:
    """A control plane of its own, with our kinds, rights and policies."""
    folder = Path(tempfile.mkdtemp(prefix="crr-"))
    plane = ControlPlane(folder, cluster_programs["etcd"], cluster_programs["kube-apiserver"])
    try:
        await asyncio.to_thread(plane.start)
        kubectl = Kubectl(cluster_programs["kubectl"], plane)
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await asyncio.to_thread(plane.ask, "POST", crds, NODE_RESOURCE_TOPOLOGY)
        await asyncio.to_thread(kubectl.apply_crds)
        await asyncio.to_thread(kubectl.apply_rights)
        await asyncio.to_thread(until_in_force, plane)
        yield plane
    finally:
        await asyncio.to_thread(plane.close)


class Backup:
    """etcd's folder as it was, of a control plane that is down meanwhile."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._kept = plane, plane.folder / "backup"

    def _stop(self) -> None:
        self._plane.stop_server()
        self._plane.end("etcd")
        # Its end says when the next one is ready.
        (self._plane.folder / "etcd.log").unlink()

    def make(self) -> None:
        self._stop()
        shutil.copytree(self._plane.folder / "etcd", self._kept)
        self._plane.start()

    def restore(self) -> None:
        self._stop()
        shutil.rmtree(self._plane.folder / "etcd")
        shutil.copytree(self._kept, self._plane.folder / "etcd")
        self._plane.start()


async def test_a_server_that_was_restored_from_a_backup_is_believed(
    restorable: ControlPlane, folder: Path
) -> None:
    api, backup = restorable, Backup(restorable)
    node = DescribedNode(api, folder / "node", f"back-{os.getpid()}", EPYC_NPS4_1S)
    token = api.account_token(NAMESPACE, OPERATOR)
    part = operator(folder, api.kubeconfig(folder / "operator.kubeconfig", token=token))
    async with contextlib.AsyncExitStack() as stack:
        await part.start()
        stack.push_async_callback(part.end)
        stack.push_async_callback(node.close)
        await node.start()
        await put_policy(api, policy("p", GOOD))
        await until_applied(api, "p", node.name)
        await until(lambda: policy_status(api, "p"), lambda said: said.get("phase") == "Complete", WAIT_S)
        await asyncio.to_thread(backup.make)
        # 1. What comes after the backup: another policy, another wish, and a good many versions.
        await put_policy(api, policy("p", BETTER))
        await until(lambda: active(node.daemon), lambda said: said == "balloons", WAIT_S)
        await until(lambda: policy_status(api, "p"), lambda said: said.get("phase") == "Complete", WAIT_S)
        await ask_of(api, node.name, mode="off")
        await until(lambda: placement(api, node.name), lambda of: mode(of) == "off", WAIT_S)
        for number in range(100):
            await ask_of(api, node.name, freeze=number % 2 == 0)
        last = int((await placement(api, node.name))["metadata"]["resourceVersion"])
        await asyncio.to_thread(backup.restore)
        assert int((await placement(api, node.name))["metadata"]["resourceVersion"]) < last
        # 2. The node is as the restored objects say, and its status says so.
        await until(lambda: active(node.daemon), lambda said: said == "topology-aware", WAIT_S)
        await until(lambda: placement(api, node.name), lambda of: mode(of) == "enforce", WAIT_S)

        def is_acknowledged(of: Mapping[str, Any]) -> bool:
            said, asked = of["status"], of["spec"]["policy"]
            is_same = said["policy"].get("hash") == asked["hash"] and said["policy"]["state"] == "Applied"
            return is_same and said["observedGeneration"] == of["metadata"]["generation"]

        await until(lambda: placement(api, node.name), is_acknowledged, WAIT_S)
        await until_ready(api, node.name)
        # 3. And the operator goes on from there.
        await put_policy(api, policy("p", BETTER))
        await until(lambda: active(node.daemon), lambda said: said == "balloons", WAIT_S)
        await until(lambda: policy_status(api, "p"), lambda said: said.get("phase") == "Complete", WAIT_S)
        await delete(api, f"{POLICIES}/p")
