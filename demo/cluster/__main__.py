"""nginx and wrk on a real cluster of one node, before cri-resmgr and after: requests a second, latency, cpusets.

kube-apiserver, its controllers, the scheduler, kubelet, etcd, containerd, nginx and wrk are real; the manifests are
those beside this file. It needs root, and removes what it makes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Callable

import yaml

from cluster.api.names import NAMESPACE, OPERATOR
from demo.cluster.report import Measured, measurements, table
from policies.machine.topology import TopologyData
from tests.agent import Agent
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.node import PODS, RegisteredNode
from tests.cluster.real.parts import Part, node_agent, operator, placement, until_ready, with_view_socket
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import ONE_NODE, REAL_CGROUPS, until
from tests.e2e.traffic_images import TRAFFIC, make_traffic_image, missing_for_traffic
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import make_cgroup
from tests.peers.programs import CLUSTER, find

HERE = Path(__file__).parent
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
ENFORCING = {**REAL_CGROUPS, "relay": {"mode": "enforce"}}
#: Measurements of ten seconds each, before and after.
ROUNDS = 3
WAIT_S = 180.0


async def _nothing() -> None:
    pass


class Case:
    """The case on one node: its manifests applied, and what came of it."""

    def __init__(self, node: RegisteredNode) -> None:
        self._node = node

    async def measure(
        self, meanwhile: Callable[[], Awaitable[None]] = _nothing
    ) -> tuple[str, str, list[Measured]]:
        """Apply the manifests, measure, delete them: CPUs of nginx, CPUs of wrk, what wrk said.

        ``meanwhile`` is done when all is measured, while both run.
        """
        await self._apply("nginx-deployment.yaml")
        await self._apply("nginx-service.yaml")
        nginx, status = await self._running("nginx")
        await self._apply("wrk-deployment.yaml", url=f"http://{status['podIP']}:80/")
        wrk, _ = await self._running("wrk")
        measured = await until(lambda: self._measurements("wrk"), lambda found: len(found) >= ROUNDS, WAIT_S)
        cpus = [self._node.containerd.allowed_of(container)[0] for container in (nginx, wrk)]
        await meanwhile()
        for path in (
            f"{DEPLOYMENTS}/nginx",
            f"{DEPLOYMENTS}/wrk",
            "/api/v1/namespaces/default/services/nginx",
        ):
            await self._ask("DELETE", path)
        await until(self._pods, lambda pods: not pods, WAIT_S)
        return cpus[0], cpus[1], measured[:ROUNDS]

    async def _apply(self, file: str, *, url: str = "") -> None:
        manifest = yaml.safe_load((HERE / file).read_text())
        path = "/api/v1/namespaces/default/services" if manifest["kind"] == "Service" else DEPLOYMENTS
        if url:
            manifest["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "URL", "value": url}]
        await self._ask("POST", path, manifest)

    async def _running(self, app: str) -> tuple[str, Any]:
        """The id of the container of the pod of this app, once it runs, and its pod's status."""

        async def status() -> Any:
            pods = [pod for pod in await self._pods() if pod["metadata"]["labels"].get("app") == app]
            return pods[0].get("status", {}) if pods else {}

        def runs(status: Any) -> bool:
            return "running" in (status.get("containerStatuses") or [{}])[0].get("state", {})

        found = await until(status, runs, WAIT_S)
        return str(found["containerStatuses"][0]["containerID"]).partition("://")[2], found

    async def _measurements(self, app: str) -> list[Measured]:
        logs = self._node.host.logs.glob(f"default_{app}-*/{app}/*.log")
        # Each line begins with its time, its stream and F for a whole line.
        lines = [line.split(" ", 3)[-1] for log in logs for line in log.read_text().splitlines()]
        return measurements("\n".join(lines))

    async def _pods(self) -> list[Any]:
        return list((await self._ask("GET", PODS))["items"])

    async def _ask(self, *words: Any) -> Any:
        return await asyncio.to_thread(self._node.api.ask, *words)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[RegisteredNode, Kubectl]]:
    """A cluster of one node whose kubelet speaks to containerd; the daemon is not started. And kubectl."""
    programs = await asyncio.to_thread(find, *CLUSTER)
    control_plane = ControlPlane(folder / "k", programs["etcd"], programs["kube-apiserver"])
    containerd = Containerd(
        folder / "c", programs["containerd"], images=folder / "images", path=[programs["runc"].parent]
    )
    host = None
    try:
        await asyncio.to_thread(control_plane.start)
        await asyncio.to_thread(
            control_plane.start_controllers, programs["kube-controller-manager"], programs["kube-scheduler"]
        )
        await asyncio.to_thread(containerd.start)
        make_cgroup(containerd.cgroup_parent)
        archive = await asyncio.to_thread(make_traffic_image, folder / "images")
        await asyncio.to_thread(containerd.add_image, archive, TRAFFIC)
        name = f"node-{os.getpid()}"
        pair = control_plane.certificate(f"system:node:{name}", "system:nodes")
        kubeconfig = control_plane.kubeconfig(folder / "kubeconfig", certificate=pair)
        (folder / "n").mkdir()
        host = RealKubeletHost(
            folder / "n", programs["kubelet"], containerd.cgroup_parent,
            name=name, sys=Path("/sys"), kubeconfig=kubeconfig,
        )  # fmt: skip
        host.point_at(str(containerd.socket))
        agent = with_view_socket(Agent(containerd.socket, machine_here(), ENFORCING))
        try:
            async with CriClient(str(containerd.socket)) as direct:
                node = RegisteredNode(control_plane, containerd, agent, direct, host)
                await node.start_kubelet()
                await node.until_registered()
                yield node, Kubectl(programs["kubectl"], control_plane)
        finally:
            await agent.close()
    finally:
        if host is not None:
            await asyncio.to_thread(host.close)
        await asyncio.to_thread(containerd.close)
        await asyncio.to_thread(control_plane.close)


def machine_here() -> Any:
    """This machine; where it has one L3 only, its first two CPUs described as an L3 each."""
    shared = Path("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list")
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    if shared.exists() and shared.read_text().strip() != online:
        return None
    return ONE_NODE


async def main() -> int:
    if os.geteuid() != 0:
        sys.exit("make demo-cluster needs root: it runs a kubelet and a containerd.")
    if lacking := missing() or missing_for_traffic():
        sys.exit(f"make demo-cluster cannot run here: {lacking}")
    described = isinstance(machine_here(), TopologyData)
    folder = Path(tempfile.mkdtemp(prefix="crd-"))
    try:
        print(
            "Starting a control plane, containerd with its images and a kubelet: a minute or so ...",
            flush=True,
        )
        async with cluster(folder) as (node, kubectl):
            case = Case(node)
            print(f"A cluster of one node: {versions(node)}, {os.cpu_count()} CPUs.")
            if described:
                print("This machine has one L3: the daemon is told that CPU 0 and CPU 1 have one each.")
            print(f"Before: kubelet speaks to containerd. {ROUNDS} measurements of 10 s ...", flush=True)
            before = await case.measure()
            await node.agent.start()
            node.host.point_at(node.agent.socket)
            await node.start_kubelet()
            said: list[str] = []

            async def shown() -> None:
                async with cluster_half(node, kubectl, folder):
                    await show(node, kubectl, said)

            print(f"After: kubelet speaks to cri-resmgr. {ROUNDS} measurements of 10 s ...", flush=True)
            after = await case.measure(shown)
            print()
            print(table([("before", *before), ("after", *after)]))
            print()
            print(
                "Of a machine with few L3s nothing follows for one with many: there the gain is that a pod's threads\n"
                "share one L3. Here each pod is kept to its CPUs, and what one gains another may lose."
            )
            print("\nWhat kubectl showed while both ran:")
            print("\n".join(said))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def versions(node: RegisteredNode) -> str:
    """As the Node object has them: "kubelet v1.36.3, containerd 2.4.2"."""
    info = node.api.ask("GET", f"/api/v1/nodes/{node.name}")["status"]["nodeInfo"]
    return f"kubelet {info['kubeletVersion']}, {info['containerRuntimeVersion'].replace('://', ' ')}"


@asynccontextmanager
async def cluster_half(node: RegisteredNode, kubectl: Kubectl, folder: Path) -> AsyncIterator[None]:
    """The kinds of objects, the rights, the operator and the node's agent, as processes; the node is Ready."""
    api = node.api
    await asyncio.to_thread(kubectl.apply_crds)
    await asyncio.to_thread(kubectl.apply_rights)
    token = await asyncio.to_thread(api.account_token, NAMESPACE, OPERATOR)
    pair = api.certificate(f"system:node:{node.name}", "system:nodes")
    parts: list[Part] = [
        operator(folder, api.kubeconfig(folder / "of-operator", token=token)),
        node_agent(folder, node.name, node.agent, api.kubeconfig(folder / "of-agent", certificate=pair)),
    ]
    try:
        for part in parts:
            await part.start()
        await until_ready(api, node.name)
        yield
    finally:
        for part in parts:
            if part.process is not None:
                await part.end()


async def show(node: RegisteredNode, kubectl: Kubectl, said: list[str]) -> None:
    """What kubectl and its plugin show of the cluster, into ``said``; its parts take no CPU of what was measured."""
    # Its agent writes a moment after a container has started.
    await until(lambda: placement(node.api, node.name), _has_both, WAIT_S)
    pods = await asyncio.to_thread(node.api.ask, "GET", PODS)
    nginx = next(name for pod in pods["items"] if (name := pod["metadata"]["name"]).startswith("nginx"))
    for words in (
        ("get", "nodeplacements"),
        ("cri_resmgr", "top"),
        ("cri_resmgr", "placements"),
        ("cri_resmgr", "explain", nginx),
    ):
        said.append(f"\n$ kubectl {' '.join(words)}")
        done = await asyncio.to_thread(kubectl.ask, *words)
        said.append((done.stdout + done.stderr).rstrip())


def _has_both(found: Any) -> bool:
    rows = found.get("status", {}).get("placements", [])
    return {"nginx", "wrk"} <= {row["container"] for row in rows}


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
