"""The one node of these tests: a control plane, containerd, daemon, node agent and kubelet that all of them share.

A test leaves no pod behind and, where it restarts kubelet with settings of its own, nothing of these either.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.node import PODS, RegisteredNode, found
from tests.cluster.real.parts import PLACEMENTS, Part
from tests.cri_client import CPU_PERIOD_US, IMAGE, CriClient
from tests.e2e.node import until
from tests.e2e.runtime import RealRuntime
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.node import RUNNING, TIMEOUT_S

#: Of each module here: what is shared lives on one event loop.
SHARED = [pytest.mark.kubelet, pytest.mark.asyncio(loop_scope="session")]
#: Ends when it is asked to, at once, and does nothing meanwhile: there may be hundreds.
WAITS = "trap exit TERM; sleep 1000000 & wait"
#: A container's CPU request is its own.
EXCLUSIVE = {"cri-resmgr.io/cpus": "exclusive"}
#: Characters of a container's id that a NodePlacement has.
ID_DIGITS = 13
MERGE = "application/strategic-merge-patch+json"
#: What kubelet was told of CPUs is in it, below its own folder.
CPU_STATE = "cpu_manager_state"


def container(
    name: str = "main",
    *,
    cpu: str = "",
    limit: str = "",
    memory: str = "16Mi",
    limits: Optional[Mapping[str, str]] = None,
    **more: Any,
) -> dict[str, Any]:
    """A container that requests ``cpu`` and may use ``limit``, which is both where it stands alone.

    ``limits``: of other things; ``more``: of the container.
    """
    limits = {**({"cpu": limit, "memory": memory} if limit else {}), **(limits or {})}
    requests = {"cpu": cpu, "memory": memory} if cpu else {}
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", WAITS],
        "resources": {"limits": limits, "requests": requests},
        **more,
    }


def pod(
    name: str, *containers: dict[str, Any], annotations: Optional[Mapping[str, str]] = None, **spec: Any
) -> dict[str, Any]:
    """A pod of these containers on the host's network; ``spec``: more of it."""
    metadata = {"name": name, "namespace": "default", "annotations": dict(annotations or {})}
    whole = {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": list(containers),
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


class SharedNode(RegisteredNode):
    """``kubectl`` is the administrator's; operator and node agent of ours run as well, the latter as ``reports``."""

    def __init__(
        self,
        api: ControlPlane,
        kubectl: Kubectl,
        runtime: RealRuntime,
        agent: Agent,
        direct: CriClient,
        host: RealKubeletHost,
        reports: Part,
    ) -> None:
        super().__init__(api, runtime, agent, direct, host)
        self.kubectl = kubectl
        self.reports = reports

    # --- kubelet

    async def restart_kubelet(self, **settings: Any) -> None:
        """With more settings than the usual, which it forgets with the next restart."""
        self.host.point_at(self.agent.for_kubelet, **settings)
        await self.start_kubelet()
        await self.until_registered()

    @contextlib.asynccontextmanager
    async def kubelet_with(self, **settings: Any) -> AsyncIterator[None]:
        """A kubelet with these settings, and afterwards the usual one. No pod is there before and after."""
        (self.kubelet_folder / CPU_STATE).unlink(missing_ok=True)
        await self.restart_kubelet(**settings)
        try:
            yield
        finally:
            # What is left of a pod when kubelet ends, the next one removes within a minute.
            await self.until_nothing_is_left()
            (self.kubelet_folder / CPU_STATE).unlink(missing_ok=True)
            await self.restart_kubelet()

    @property
    def kubelet_folder(self) -> Path:
        return self.host.folder / "k"

    async def metric(self, name: str) -> float:
        """The sum of one of kubelet's metrics; 0 where it has none of that name."""
        lines = (await self._get(self.host.port, "metrics")).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    # --- pods

    async def start(self, wanted: dict[str, Any]) -> dict[str, str]:
        """The ids of a new pod's containers by name, once all of them run."""
        await self.create(wanted)
        spec = wanted["spec"]
        return await self.ids(wanted["metadata"]["name"], *(each["name"] for each in spec["containers"]))

    async def ids(self, name: str, *containers: str, but: Sequence[str] = ()) -> dict[str, str]:
        """The ids of a pod's containers of these names, once they run; ``but``: ids of those that they are not."""

        async def running() -> dict[str, str]:
            of_pod = await self.containers(name, RUNNING)
            return {each.metadata.name: each.id for each in of_pod if each.id not in but}

        return await until(running, lambda ids: set(containers) <= set(ids), TIMEOUT_S)

    async def pod(self, name: str) -> Mapping[str, Any]:
        """The Pod as the server has it; {} if there is none."""
        return await found(self.api, f"{PODS}/{name}")

    async def until_pod(self, name: str, is_right: Any) -> Mapping[str, Any]:
        """The Pod, once it is right."""
        return await until(lambda: self.pod(name), is_right, TIMEOUT_S)

    async def patch(self, path: str, body: Mapping[str, Any]) -> None:
        await asyncio.to_thread(lambda: self.api.ask("PATCH", path, body, content_type=MERGE))

    async def resize(self, name: str, **resources: Mapping[str, str]) -> None:
        """Resize containers of a pod in place, as people do; ``resources``: CPU request and limit by container."""
        containers = [
            {"name": each, "resources": {"requests": {"cpu": request}, "limits": {"cpu": limit}}}
            for each, (request, limit) in resources.items()
        ]
        body = json.dumps({"spec": {"containers": containers}})
        words = ("patch", "pod", name, "--subresource", "resize", "--patch", body)
        await asyncio.to_thread(self.kubectl.run, *words)

    async def remove_all(self, prefix: str) -> None:
        """Delete the pods whose names begin so, and wait until they are gone: at once they take the runtime a while."""

        async def names() -> list[str]:
            pods = (await asyncio.to_thread(self.api.ask, "GET", PODS))["items"]
            found = [each["metadata"]["name"] for each in pods]
            return [name for name in found if name.startswith(prefix)]

        for name in await names():
            with contextlib.suppress(Refused):  # it may be gone by now
                await asyncio.to_thread(self.api.ask, "DELETE", f"{PODS}/{name}")
        await until(names, lambda left: not left, 3 * TIMEOUT_S)

    async def evict(self, name: str) -> None:
        """Evict a pod as the drain of a node does."""
        names = {"name": name, "namespace": "default"}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": names}
        await asyncio.to_thread(self.api.ask, "POST", f"{PODS}/{name}/eviction", body)

    async def alone(
        self, name: str, *, annotations: Optional[Mapping[str, str]] = None, **of_container: Any
    ) -> str:
        """The id of the container of a new pod that has no other, once it runs."""
        return (await self.start(pod(name, container(**of_container), annotations=annotations)))["main"]

    async def until_own(self, container_id: str, count: int) -> frozenset[int]:
        """The CPUs that a container owns, once they are so many."""
        return await until(lambda: self.own(container_id), lambda cpus: len(cpus) == count, TIMEOUT_S)

    async def until_quota(self, container_id: str, milli_cpus: int) -> None:
        """Until the kernel gives a container so much time."""

        async def quota() -> int:
            return self.runtime.quota_of(container_id)

        await until(quota, lambda found: found == milli_cpus * CPU_PERIOD_US // 1000, TIMEOUT_S)

    async def until_told(self, container_id: str, is_right: Callable[[frozenset[int]], bool]) -> None:
        """Until the CPUs that runc was told of are right."""

        async def told() -> frozenset[int]:
            return parse_cpus(self.told(container_id))

        await until(told, is_right, TIMEOUT_S)

    async def until_level(self, container_id: str, level: str, count: int) -> None:
        """Until a container has this rung and as many CPUs, and runc was told."""
        await until(lambda: self.level(container_id), lambda found: found == (level, count), TIMEOUT_S)

    async def inside(self, container_id: str, *command: str) -> str:
        """What a command in a container prints."""
        out, problem, code = await self.direct.exec(container_id, *command)
        assert code == 0, problem
        return out

    # --- what came of it

    async def level(self, container_id: str) -> tuple[str, int]:
        """The rung of a container and how many CPUs it has, once runc was told of them."""
        cpus = parse_cpus(await self.cpus(container_id))
        return str((await self.row(container_id))["level"]), len(cpus)

    async def own(self, container_id: str) -> frozenset[int]:
        """The CPUs that a container owns by the books."""
        return parse_cpus((await self.row(container_id)).get("exclusive") or "")

    async def all_agree(self, but: Collection[str] = ()) -> None:
        """Runtime, cgroups, books and NodePlacement say the same of every container, and no CPU has two owners.

        ``but``: ids of containers that are left alone; what they own is others' neither.
        """
        # 1. What runs, where runc was told, is what the books say.
        await self.all_is_well(but)
        rows = {row["id"]: row for row in await self.daemon.ask("placements")}
        listed = await self.direct.list_containers()
        running = {each.id for each in listed if each.state == RUNNING}
        assert {each for each, row in rows.items() if row["state"] == "running"} == running
        # 2. What a container owns is no other's; containers of a pod may own CPUs together.
        cpus = {each: parse_cpus(self.told(each)) for each in running}
        together = {each: (rows[each]["pod_uid"], rows[each]["exclusive"]) for each in running}
        for each in running:
            if own := parse_cpus(rows[each]["exclusive"] or ""):
                assert each in but or cpus[each] == own
                others = {other for other in running - set(but) if together[other] != together[each]}
                assert not [other for other in others if cpus[other] & own]
        # 3. The cluster is told that.
        wanted = {
            (each[:ID_DIGITS], row["cpus"], bool(row["exclusive"]))
            for each, row in rows.items()
            if each in running
        }

        async def reported() -> set[tuple[str, str, bool]]:
            status = (await found(self.api, f"{PLACEMENTS}/{self.name}")).get("status", {})
            return {
                (row["containerId"], row["cpus"], row.get("exclusive", False))
                for row in status.get("placements") or ()
            }

        await until(reported, lambda said: said == wanted, TIMEOUT_S)

    async def until_nothing_is_left(self) -> None:
        """No pod, no container, and nothing in the books."""
        await self.until_nothing_runs()
        await until(lambda: self.daemon.ask("placements"), lambda rows: rows == [], TIMEOUT_S)

    async def states(self, name: str) -> list[tuple[str, int]]:
        """Names and attempts of a pod's containers, whatever their state."""
        return [(each.metadata.name, each.metadata.attempt) for each in await self.containers(name)]
