"""One node of the tests: a real kubelet, our daemon behind it, a real runtime, and what runc was told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import grpc
import grpc.aio
from google.protobuf.message import Message

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import IMAGE, CriClient
from tests.e2e.node import Node, until
from tests.e2e.runtime import RealRuntime
from tests.kubelet.real.host import RealKubeletHost

#: kubelet's own pauses are of 10 s, once or twice a step.
TIMEOUT_S = 120.0
#: Ends when it is told to, with the code that it is given.
UNTIL_TOLD = 'while [ ! -e /tmp/end ]; do usleep 20000; done; exit "$(cat /tmp/end)"'
CREATED, RUNNING, EXITED = cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED


def static_pod(
    name: str,
    *,
    cpu: str = "",
    limit: str = "",
    memory: str = "64Mi",
    restart: str = "Always",
    command: str = UNTIL_TOLD,
    folder: Optional[Path] = None,
    grace_s: int = 1,
    **container: Any,
) -> dict[str, Any]:
    """A pod of one container, ``main``; Guaranteed if only ``limit`` is given. ``folder`` is at /out in it.

    It has a volume, as pods have: kubelet kills what is in the cgroup of one without, and removes the cgroup, two seconds
    after its file is gone, in the middle of its grace period. containerd 1.6 then has a container that it can never delete.
    """
    limits = {"cpu": limit, "memory": memory} if limit else {}
    requests = {"cpu": cpu, "memory": memory} if cpu else {}
    main = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "resources": {"limits": limits, "requests": requests},
        "volumeMounts": [{"name": "own", "mountPath": "/own"}],
        **container,
    }
    spec: dict[str, Any] = {
        "hostNetwork": True,
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "volumes": [{"name": "own", "emptyDir": {}}],
        "containers": [main],
    }
    if folder is not None:
        main["volumeMounts"].append({"name": "out", "mountPath": "/out"})
        spec["volumes"].append({"name": "out", "hostPath": {"path": str(folder)}})
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def exec_probe(*command: str, **timing: int) -> dict[str, Any]:
    """Asked every second, and believed at once."""
    return {"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 1, **timing}


class KubeletNode:
    """``daemon`` asks our daemon; ``direct`` speaks to the runtime past it."""

    def __init__(self, runtime: RealRuntime, agent: Agent, direct: CriClient, host: RealKubeletHost) -> None:
        self.runtime = runtime
        self.agent = agent
        self.direct = direct
        self.host = host
        self.daemon = Node(runtime, agent, direct, direct)
        self._cpusets = Path(agent.config["topology"]["cgroup_root"]) / "cpuset"

    # --- kubelet

    async def start_kubelet(self) -> None:
        """Start it, or restart it, and wait until it is well."""
        await asyncio.to_thread(self.host.start)
        await self.until_kubelet_is_well()

    async def until_kubelet_is_well(self) -> None:

        async def health() -> str:
            await asyncio.to_thread(self.host.keep_running)
            return await self._get(self.host.health_port, "healthz")

        await until(health, lambda said: said == "ok", TIMEOUT_S)

    async def pod_status(self, pod: str) -> Mapping[str, Any]:
        """What kubelet says of a pod; {} if it knows none of that name."""
        pods = json.loads(await self._get(self.host.port, "pods") or "{}").get("items") or []
        return next((p["status"] for p in pods if p["metadata"]["name"] == self.full_name(pod)), {})

    async def until_ready(self, pod: str, wanted: bool = True) -> None:
        """Until kubelet says that the pod is ready, or that it is not."""

        def says(status: Mapping[str, Any]) -> bool:
            said = {c["type"]: c["status"] for c in status.get("conditions") or ()}
            return said.get("Ready") == str(wanted)

        await until(lambda: self.pod_status(pod), says, TIMEOUT_S)

    async def until_phase(self, pod: str, phase: str) -> None:
        await until(lambda: self.pod_status(pod), lambda status: status.get("phase") == phase, TIMEOUT_S)

    async def cpu_time(self, pod: str) -> int:
        """Nanoseconds of CPU time that a pod's container has used, as kubelet's statistics say; 0: they do not."""
        pods = json.loads(await self._get(self.host.port, "stats/summary") or "{}").get("pods") or []
        stats = next((p for p in pods if p["podRef"]["name"] == self.full_name(pod)), {})
        return sum(c["cpu"].get("usageCoreNanoSeconds", 0) for c in stats.get("containers") or ())

    async def _get(self, port: int, path: str) -> str:
        def get() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return str(answer.read().decode())

        try:
            return await asyncio.to_thread(get)
        except OSError:
            return ""

    def full_name(self, pod: str) -> str:
        """A static pod's name ends with its node's."""
        return f"{pod}-{self.host.name}"

    # --- pods

    async def run(self, name: str, **pod: Any) -> str:
        """The id of the container of a new static pod, once it runs."""
        self.host.put(static_pod(name, **pod))
        return await self.running(name)

    async def remove(self, name: str) -> None:
        """Take a pod away, and wait until it has ended; what is left of it kubelet removes once a minute."""
        self.host.take(name)
        await self.until_ended(name)

    async def until_ended(self, pod: str) -> None:
        """Until nothing of a pod runs, its sandbox neither. What was created in that and never started is kubelet's garbage,
        which it collects when it has run for a minute."""

        async def left() -> list[str]:
            found = await self._ask("ListPodSandbox", cri.ListPodSandboxRequest())
            ready = [s for s in found.items if s.metadata.name == self.full_name(pod) and not s.state]
            runs = await self.containers(pod, RUNNING)
            return [f"{pod}: sandbox {s.id}" for s in ready] + [f"{pod}: container {c.id}" for c in runs]

        await until(left, lambda found: not found, timeout_s=TIMEOUT_S)

    async def containers(self, pod: str, *states: Any) -> Sequence[cri.Container]:
        """What the runtime has of a pod, oldest attempt first."""
        label = {"io.kubernetes.pod.name": self.full_name(pod)}
        filter_ = cri.ContainerFilter(label_selector=label)
        found = (await self._ask("ListContainers", cri.ListContainersRequest(filter=filter_))).containers
        wanted = [c for c in found if not states or c.state in states]
        return sorted(wanted, key=lambda c: c.metadata.attempt)

    async def _ask(self, method: str, request: Message) -> Any:
        """The runtime's answer; one that is being restarted is waited for."""

        async def answer() -> Any:
            try:
                return await self.direct.call(method, request)
            except grpc.aio.AioRpcError as error:
                starts = "not initialized" in (error.details() or "")
                if error.code() is not grpc.StatusCode.UNAVAILABLE and not starts:
                    raise
                return None

        return await until(answer, lambda got: got is not None, TIMEOUT_S)

    async def running(self, pod: str, *, attempt: Optional[int] = None) -> str:
        """The id of a pod's container once it runs, and kubelet knows; ``attempt``: if it is that one."""

        async def found() -> str:
            containers = await self.containers(pod, RUNNING)
            if len(containers) != 1 or attempt not in (None, containers[0].metadata.attempt):
                return ""
            statuses = (await self.pod_status(pod)).get("containerStatuses") or [{}]
            is_known = statuses[0].get("containerID", "").endswith(containers[0].id)
            return str(containers[0].id) if is_known and "running" in statuses[0]["state"] else ""

        return await until(found, timeout_s=TIMEOUT_S)

    async def exited(self, pod: str, *, attempt: int = 0) -> str:
        """The id of a pod's container that has ended, once it has."""

        async def found() -> list[str]:
            return [c.id for c in await self.containers(pod, EXITED) if c.metadata.attempt == attempt]

        return (await until(found, timeout_s=TIMEOUT_S))[0]

    async def end(self, container_id: str, code: int = 1) -> None:
        """Have a container that runs UNTIL_TOLD end itself."""
        await self.direct.exec(container_id, "sh", "-c", f"echo {code} > /tmp/new && mv /tmp/new /tmp/end")

    # --- what came of it

    def told(self, container_id: str) -> str:
        """The CPUs that runc was told of; all, if of none; "" of a container that is gone."""
        places = self._cpusets.parents[1] / "places"
        with contextlib.suppress(FileNotFoundError):
            path = (places / container_id).read_text()
            return (self._cpusets / path.lstrip("/") / "cpuset.cpus").read_text().strip()
        return ""

    def told_so_far(self, container_id: str) -> list[str]:
        """Every list of CPUs that runc was told for a container, oldest first."""
        notes = self._cpusets.parents[1] / "notes"
        lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        return [cpus for told, cpus in lines if told == container_id]

    async def row(self, container_id: str) -> Mapping[str, Any]:
        return await self.daemon.row(container_id)

    async def cpus(self, container_id: str) -> str:
        """The CPUs that our daemon says, once runc was told the same."""

        async def both() -> tuple[str, str]:
            return str((await self.row(container_id)).get("cpus")), self.told(container_id)

        return (await until(both, lambda found: found[0] == found[1], TIMEOUT_S))[0]

    async def until_compared(self) -> None:
        """Until the daemon has begun and ended one comparison with the runtime more."""

        async def count() -> float:
            counters = (await self.daemon.ask("status"))["counters"]
            return float(counters.get("cri_resmgr_resyncs_total{result=ok}", 0))

        before = await count()
        await until(count, lambda now: now >= before + 2)

    async def all_is_well(self, but: Collection[str] = ()) -> None:
        """Every container that runs is where our daemon says, and nothing is broken; ``but``: ids of those left alone."""

        async def wrong() -> dict[str, Any]:
            rows = {row["id"]: row for row in await self.daemon.ask("placements")}
            found = {}
            for container in await self.direct.list_containers():
                if container.state != RUNNING or container.id in but:
                    continue
                row = rows.get(container.id, {})
                if (row.get("stance"), row.get("cpus")) != ("placed", self.told(container.id)):
                    found[container.id] = row
            return found

        await until(wrong, lambda found: not found, TIMEOUT_S)
        status = await until(lambda: self.daemon.ask("status"), lambda status: status["degraded"] == {})
        assert status["invariants"] == []
        # A disk that takes seconds for a few bytes is the machine's.
        failed = [name for name in status["counters"] if "failed_open" in name and "slow state" not in name]
        assert not failed
