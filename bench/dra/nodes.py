"""Nodes of one control plane on the same described machine: one with our daemon and agent, others with ``dra.cpu``.

Each has a kubelet and a containerd of its own, both with NRI on. What a driver does while it has nothing to do, the other
one's pods meet as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from bench.dra.audit import POLICY, Call, read_calls
from cluster.api.names import NAMESPACE
from cri_api import runtime_v1_pb2 as cri
from policies.machine.cpus import parse_cpus
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import PACKAGING, Kubectl
from tests.cluster.real.node import PODS
from tests.e2e.node import until
from tests.kubelet.real.dra.node import CLAIMS, DRIVER, TEMPLATES, ClaimNode, pod_of, share, user
from tests.kubelet.real.dra.reference import (
    REFERENCE,
    ReferenceNode,
    allow_reference,
    group_share,
    number_cores,
    reference_node,
)
from tests.kubelet.real.node import RUNNING, TIMEOUT_S
from tests.kubelet.real.shared.logind import Logind
from tests.kubelet.real.shared.node import container, pod
from tests.kubelet.real.shared.whole import containerd_in, described_in, running

#: A claim that the scheduler has no place for is taken for refused when it has none after so long either, seconds: what
#: ended before it, the scheduler may hear of a moment later.
REFUSED_S = 10.0
#: What the scheduler says of a pod whose claims no node can give.
NO_ROOM = "cannot allocate all claims"
#: Between two looks at the server, seconds: each has a connection of its own, and several ways look at once.
LOOK_S = 0.3
NUMA_NODE = "resource.kubernetes.io/numaNode"

#: A claim's spec by its CPUs.
Asked = Callable[[int], dict[str, Any]]


def of_ours(cpus: int) -> dict[str, Any]:
    """As docs/dra.md has it: CPUs of one L3, two requests where that is too small, a whole NUMA node of 16 CPUs."""
    if cpus == 16:
        whole = {"name": "cpus", "exactly": {"deviceClassName": f"whole-numa.{DRIVER}"}}
        return {"devices": {"requests": [whole]}}
    if cpus <= 8:
        return {"devices": {"requests": [share(cpus)]}}
    two = [share(8, name="one"), share(cpus - 8, name="other")]
    return {"devices": {"requests": two, "constraints": [{"matchAttribute": NUMA_NODE}]}}


def of_groups(cpus: int) -> dict[str, Any]:
    """As the reference driver's README has it: part of a NUMA node."""
    return {"devices": {"requests": [group_share(cpus)]}}


def of_cpus(cpus: int) -> dict[str, Any]:
    """The same where each CPU is a device."""
    asked = {"name": "cpus", "exactly": {"deviceClassName": REFERENCE, "count": cpus}}
    return {"devices": {"requests": [asked]}}


def of_cpus_in_one(cpus: int) -> dict[str, Any]:
    """The same with all CPUs in one L3, or where that is too small in one NUMA node."""
    of = f"{REFERENCE}/cacheL3ID" if cpus <= 8 else f"{REFERENCE}/numaNodeID"
    return {"devices": {**of_cpus(cpus)["devices"], "constraints": [{"matchAttribute": of}]}}


@dataclass(frozen=True)
class Way:
    """Pods of one node, with claims as they are written for its driver; without ``asked`` they have none."""

    name: str
    node: ClaimNode
    asked: Optional[Asked] = None

    async def template(self, cpus: int) -> str:
        """The name of the template of a claim of so many CPUs, which is there."""
        assert self.asked is not None
        name = f"{self.name}-of-{cpus}"
        wanted = {"metadata": {"name": name}, "spec": {"spec": self.asked(cpus)}}
        with contextlib.suppress(Refused):  # it is there
            await asyncio.to_thread(self.node.api.ask, "POST", TEMPLATES, wanted)
        return name

    async def pod(self, name: str, cpus: int) -> dict[str, Any]:
        """A pod that requests so many CPUs, and claims them from a template."""
        if self.asked is None:
            return pod(name, container(cpu=str(cpus)))
        return pod_of(name, user("main", "cpus", cpu=str(cpus)), cpus=await self.template(cpus))

    async def given(self, name: str, cpus: int) -> Optional[frozenset[int]]:
        """The CPUs of a new pod's container; None: it has none, and is gone again."""
        await self.node.create(await self.pod(name, cpus))
        deadline_s: Optional[float] = None
        while True:
            for each in await self.node.containers(name, RUNNING):
                return parse_cpus(self.node.told(each.id))
            if await self._waits(name):
                deadline_s = deadline_s or time.monotonic() + REFUSED_S
                if time.monotonic() > deadline_s:
                    await self.end(name)
                    return None
            await asyncio.sleep(LOOK_S)

    async def _waits(self, name: str) -> bool:
        """Whether the scheduler has no node for a pod, or the driver has refused its claim."""
        conditions = (await self.node.pod(name)).get("status", {}).get("conditions") or ()
        # It says Unschedulable as well while the claim is not made yet.
        if any(NO_ROOM in each.get("message", "") for each in conditions):
            return True
        events = await self.node.events(name)
        return any(each.startswith("FailedPrepareDynamicResources") for each in events)

    async def started_s(self, name: str, cpus: int) -> tuple[float, float]:
        """When a pod's create was asked for, and when its container was started: seconds since the epoch."""
        wanted = await self.pod(name, cpus)
        began_s = time.time()
        ids = await self.node.start(wanted)
        request = cri.ContainerStatusRequest(container_id=ids["main"])
        answer = await self.node.direct.call("ContainerStatus", request)
        return began_s, answer.status.started_at / 1e9

    async def end(self, *names: str) -> None:
        """Delete pods, and wait until they and the claims that were made for them are gone."""
        for name in names:
            await asyncio.to_thread(self.node.api.ask, "DELETE", f"{PODS}/{name}")

        async def left() -> set[str]:
            await asyncio.sleep(LOOK_S)
            found = set()
            for kind in (PODS, CLAIMS):
                for each in (await asyncio.to_thread(self.node.api.ask, "GET", kind))["items"]:
                    owners = [of["name"] for of in each["metadata"].get("ownerReferences") or ()]
                    found |= {each["metadata"]["name"], *owners} & set(names)
            return found

        await until(left, lambda found: not found, TIMEOUT_S)


@dataclass
class Cluster:
    """A control plane, and the nodes that are asked for."""

    programs: Mapping[str, Path]
    folder: Path
    api: ControlPlane
    kubectl: Kubectl
    credentials: Path

    @property
    def images(self) -> Path:
        return self.folder / "images"

    def calls(self) -> list[Call]:
        """What was asked of the API server so far."""
        with (self.api.folder / "audit.log").open() as lines:
            return list(read_calls(lines))

    @asynccontextmanager
    async def ours(self) -> AsyncIterator[ClaimNode]:
        """The node with our daemon and agent, with its slices published; there is one."""
        described = described_in(self.folder / "m-ours")
        logind = Logind(self.folder / "bus")  # never started: kubelet is told that there is none
        with containerd_in(self.folder / "c-ours", self.programs, described, self.images) as runtime:
            async with running(
                ClaimNode, self.programs["kubelet"], self.api, self.kubectl, runtime, described, logind,
                config={"dra": {"enabled": True}}, as_kubelet=True,
            ) as node:  # fmt: skip
                await node.until_published()
                yield node

    @asynccontextmanager
    async def reference(
        self, name: str, *options: str, own_core_ids: bool = False
    ) -> AsyncIterator[ReferenceNode]:
        """A node with the reference driver. ``options``: of that; ``own_core_ids``: cores have ids that are unique in their
        socket, not in their die only."""
        described = described_in(self.folder / f"m-{name}")
        if own_core_ids:
            number_cores(described / "sys")
        with containerd_in(self.folder / f"c-{name}", self.programs, described, self.images) as runtime:
            async with reference_node(
                self.programs, self.api, self.kubectl, runtime, described, self.credentials,
                f"{name}-{os.getpid()}", options,
            ) as node:  # fmt: skip
                yield node


@asynccontextmanager
async def cluster(programs: Mapping[str, Path]) -> AsyncIterator[Cluster]:
    """With our kinds, rights and classes, and those of the reference driver."""
    with tempfile.TemporaryDirectory(prefix="crb-") as folder, _control_plane(programs) as api:
        kubectl = Kubectl(programs["kubectl"], api)
        kubectl.apply_crds()
        kubectl.apply_rights()
        kubectl.run("apply", "-k", str(PACKAGING / "dra" / "objects"))
        yield Cluster(programs, Path(folder), api, kubectl, allow_reference(api))


@contextlib.contextmanager
def _control_plane(programs: Mapping[str, Path]) -> Any:
    # Its sockets' paths are short.
    folder = Path(tempfile.mkdtemp(prefix="crk-"))
    policy = folder / "audit.json"
    policy.write_text(json.dumps(POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={folder}/audit.log")
    with ControlPlane(folder, programs["etcd"], programs["kube-apiserver"], flags=flags) as api:
        api.start_controllers(programs["kube-controller-manager"], programs["kube-scheduler"])
        api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield api
