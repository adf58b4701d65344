"""NodeResourceTopologyMatch in a real scheduler, set up as docs/scheduler.md has it, reads what our agents write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.topology.resource_topology import pods_fingerprint
from tests.agent import ROOT
from tests.cluster.real.control_plane import ADMIN_TOKEN, ControlPlane, free_port
from tests.cluster.real.node import NOW, PODS, found
from tests.cluster.real.parts import WAIT_S, DescribedNode, Part, until_ready
from tests.cluster.real.test_resource_topology import TOPOLOGIES, counted
from tests.cluster.topology import scheduler as model
from tests.cri_client import CriClient, cgroup_parent
from tests.e2e.node import until
from tests.machines import EPYC_NPS4_1S, HYGON_7285_2S
from tests.peers.programs import find

pytestmark = pytest.mark.cluster

#: As docs/scheduler.md calls it, and the one that every cluster has.
TOPO_AWARE, DEFAULT = "topo-aware", "default-scheduler"
MACHINES = {"hygon": HYGON_7285_2S, "small": EPYC_NPS4_1S}
NAME = "scheduler-with-plugins"
GIB = 1 << 30


@pytest.fixture
async def aligned_nodes(
    rights: ControlPlane, started_operator: Part, folder: Path
) -> AsyncIterator[dict[str, DescribedNode]]:
    """Nodes of two machines, by their label ``kind``, whose agents publish single-numa-node; with room for pods."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = {}
        for kind, described in MACHINES.items():
            node = DescribedNode(
                rights,
                folder / kind,
                f"{kind}-{os.getpid()}",
                described,
                program=("cluster.agent", "--single-numa-node"),
            )
            stack.push_async_callback(node.close)
            # All of its CPUs: this machine's cgroups have few.
            node.daemon.write_config({"topology": {"cgroup_root": str(node.daemon.folder / "cgroup")}})
            await node.start(kind=kind)
            room = {"cpu": "512", "memory": "4Ti", "pods": "250"}
            body = {"status": {"capacity": room, "allocatable": room}}
            await _patch(rights, f"/api/v1/nodes/{node.name}/status", body)
            nodes[kind] = node
        await until_ready(rights, *(node.name for node in nodes.values()))
        for node in nodes.values():
            await _topology(rights, node)
        yield nodes


@pytest.fixture
def topology_scheduler(
    rights: ControlPlane, aligned_nodes: dict[str, DescribedNode]
) -> Iterator[ControlPlane]:
    """The control plane with a second scheduler, whose configuration is the one of our documentation.

    It is started after the nodes: of an object that is made later it knows nothing.
    """
    program = find("kube-scheduler-with-plugins")["kube-scheduler-with-plugins"]
    page = (ROOT / "docs" / "scheduler.md").read_text()
    written = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert written is not None
    settings = yaml.safe_load(written[1])
    settings["clientConnection"]["kubeconfig"] = str(
        rights.kubeconfig(rights.folder / "plugins.kubeconfig", token=ADMIN_TOKEN)
    )
    config = rights.folder / "plugins.yaml"
    config.write_text(yaml.safe_dump(settings))
    rights.spawn(
        NAME, str(program), f"--config={config}", "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
        "--authentication-skip-lookup=true", f"--cert-dir={rights.folder}", "--v=4",
    )  # fmt: skip
    yield rights
    rights.end(NAME)
    print(f"--- {NAME}", *rights.log(NAME).splitlines()[-40:], sep="\n")


async def test_pods_go_where_a_numa_node_has_room_and_a_pod_that_runs_is_counted_in_the_one_that_it_took(
    topology_scheduler: ControlPlane, aligned_nodes: dict[str, DescribedNode]
) -> None:
    api, small, hygon = topology_scheduler, aligned_nodes["small"], aligned_nodes["hygon"]
    empty = {kind: await _topology(api, node) for kind, node in aligned_nodes.items()}
    zones = {kind: [zone.resources["cpu"] for zone in model.numa_nodes(nrt)] for kind, nrt in empty.items()}
    assert (len(zones["small"]), len(zones["hygon"])) == (4, 8)
    async with _pods(api) as pods:
        # 1. Wider than a NUMA node of any.
        wide = max(map(max, zones.values())) + 1
        why = await pods.refused("wide", TOPO_AWARE, cpu=int(wide))
        assert why.count("cannot align container") == 1, why
        assert all(model.filtered(_as_model("wide", int(wide)), nrt) for nrt in empty.values())
        # 2. Two of more than half a NUMA node are not in one: while it is not known where the first is, its CPUs are
        #    missing everywhere, and the second waits for it to run.
        half = int(min(zones["small"]) // 2 + 1)
        for number in range(len(zones["small"])):
            name = f"half-{number}"
            assert await pods.bound(name, TOPO_AWARE, kind="small", cpu=half) == small.name
            why = await pods.refused("next", TOPO_AWARE, kind="small", cpu=half)
            assert "cannot align container" in why, why
            await pods.run(small, name, cpu=half)
            # The object is taken over now; a pod that was refused is not tried again for that.
            await asyncio.to_thread(api.wait, NAME, lambda number=number: taken_over(api) > number)
            await pods.remove("next")
            left = await _topology(api, small)
            full = [zone for zone in model.numa_nodes(left) if zone.resources["cpu"] < half]
            assert len(full) == number + 1
        # 3. No NUMA node of that machine has room for one more; its CPUs together have.
        assert sum(zone.resources["cpu"] for zone in model.numa_nodes(left)) > half
        assert await pods.bound("half-more", TOPO_AWARE, cpu=half) == hygon.name
        assert model.filtered(_as_model("half-more", half), left) == "cannot align container"
        # 4. Only the plugin has something against the first.
        await pods.bound("wide-elsewhere", DEFAULT, cpu=int(wide))


def taken_over(api: ControlPlane) -> int:
    """How often the scheduler has taken an object over, as its fingerprint was that of the pods that run there."""
    return sum('reason="resynced"' in line for line in api.log(NAME).splitlines())


class _Pods:
    """Guaranteed pods of one container in the API server, and on the nodes."""

    def __init__(self, api: ControlPlane, stack: contextlib.AsyncExitStack) -> None:
        self._api = api
        self._stack = stack
        #: Of each that runs: its node and its name.
        self._running: list[tuple[str, str]] = []

    async def bound(self, name: str, scheduler: str, *, cpu: int, kind: str = "") -> str:
        """The node that a new pod is sent to."""
        await self._create(name, scheduler, cpu, kind)
        pod = await until(lambda: self._object(name), lambda pod: pod["spec"].get("nodeName"), WAIT_S)
        return str(pod["spec"]["nodeName"])

    async def refused(self, name: str, scheduler: str, *, cpu: int, kind: str = "") -> str:
        """Why a new pod is sent to none, in the scheduler's words."""
        await self._create(name, scheduler, cpu, kind)

        def why(pod: Mapping[str, Any]) -> str:
            assert "nodeName" not in pod["spec"]
            said = pod["status"].get("conditions") or ()
            return next((c["message"] for c in said if c.get("reason") == "Unschedulable"), "")

        return why(await until(lambda: self._object(name), why, WAIT_S))

    async def run(self, node: DescribedNode, name: str, *, cpu: int) -> None:
        """What a kubelet does for a pod; returns once the node's object counts it."""
        uid = str((await self._object(name))["metadata"]["uid"])
        client = await self._stack.enter_async_context(CriClient(str(node.daemon.socket)))
        pod = await client.run_pod(
            name,
            uid=uid,
            cgroup_parent=cgroup_parent("guaranteed", uid),
            annotations={"cri-resmgr.io/numa": "require"},
        )
        limits = {"cpu_limit": cpu * 1000, "memory_limit": GIB, "qos": "guaranteed"}
        await client.start(await client.create(pod, "app", **limits))
        await _patch(self._api, f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
        self._running.append((node.name, name))
        of_all = pods_fingerprint(("default", pod) for on, pod in self._running if on == node.name)
        await until(lambda: _topology(self._api, node), lambda nrt: counted(nrt) == of_all, WAIT_S)

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._api.ask, "DELETE", f"{PODS}/{name}", NOW)

    async def _create(self, name: str, scheduler: str, cpu: int, kind: str) -> None:
        wanted = {"cpu": str(cpu), "memory": "1Gi"}
        spec = {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "nodeSelector": {"kind": kind} if kind else {},
            "containers": [
                {"name": "app", "image": "x", "resources": {"limits": wanted, "requests": wanted}}
            ],
        }
        await asyncio.to_thread(self._api.ask, "POST", PODS, {"metadata": {"name": name}, "spec": spec})
        self._stack.push_async_callback(self._remove_if_there, name)

    async def _remove_if_there(self, name: str) -> None:
        if await self._object(name):
            await self.remove(name)

    async def _object(self, name: str) -> Mapping[str, Any]:
        return await found(self._api, f"{PODS}/{name}")


@contextlib.asynccontextmanager
async def _pods(api: ControlPlane) -> AsyncIterator[_Pods]:
    async with contextlib.AsyncExitStack() as stack:
        yield _Pods(api, stack)


async def _topology(api: ControlPlane, node: DescribedNode) -> dict[str, Any]:
    """A node's object, once its agent has written one that pods are aligned by."""

    def is_aligned(nrt: Mapping[str, Any]) -> bool:
        return bool(nrt) and model.settings(dict(nrt)).policy == "single-numa-node"

    return dict(await until(lambda: found(api, f"{TOPOLOGIES}/{node.name}"), is_aligned, WAIT_S))


async def _patch(api: ControlPlane, path: str, body: Mapping[str, Any]) -> None:
    kind = "application/strategic-merge-patch+json"
    await asyncio.to_thread(lambda: api.ask("PATCH", path, body, content_type=kind))


def _as_model(name: str, cpu: int) -> model.Pod:
    return model.Pod(name, (model.amounts(cpu=str(cpu), memory="1Gi"),))
