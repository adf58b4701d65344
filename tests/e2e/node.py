"""One node of the tests: a real runtime, our daemon in front of it, and what the kernel says came of it.

The machine it pretends to be has two L3s of one CPU, so a wrong place shows; CPUs and memory are real.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union

import grpc
import grpc.aio
import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy import control
from policies.machine.topology import Cpu, TopologyData
from policies.machine.topology_json import write_topology
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, cgroup_parent
from tests.e2e.runtime import RealRuntime

CACHE = Path(__file__).parents[2] / ".cache"
UNTIL_TIMEOUT_S = 30.0  # against 0.1 s
GIB = 1 << 30

#: What pods may use, so that larger machines look like the smallest.
CPUS = "0-1"
#: CPU 0 and CPU 1 as two L3s in two NUMA nodes of one socket; as on the real machine, only node 0 has memory.
TWO_NODES = TopologyData(
    cpus=(Cpu(0, 0, 0, 0, 0, 0), Cpu(1, 1, 1, 0, 1, 0)), memory={0: GIB, 1: 0}, has_memory=frozenset([0])
)
#: The same two L3s in one NUMA node.
ONE_NODE = TopologyData(cpus=(Cpu(0, 0, 0, 0, 0, 0), Cpu(1, 1, 1, 0, 0, 0)), memory={0: GIB})
#: Lets the daemon see the real cgroups of the containers.
REAL_CGROUPS = {"topology": {"cgroup_root": "/sys/fs/cgroup"}}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Running:
    """A container that was started."""

    pod: Pod
    id: str


class Node:
    """``kubelet`` speaks to our socket, ``direct`` past it; a test may have to start ``agent``."""

    def __init__(self, runtime: RealRuntime, agent: Agent, direct: CriClient, kubelet: CriClient) -> None:
        self.runtime = runtime
        self.agent = agent
        self.direct = direct
        self.kubelet = kubelet

    def pretend(self, machine: TopologyData) -> None:
        """Have the daemon believe in another machine."""
        (self.agent.folder / "topology.json").write_text(json.dumps(write_topology(machine)))

    # --- what kubelet does

    async def pod(
        self, name: str, *, qos: str = "burstable", by: Optional[CriClient] = None, **config: Any
    ) -> Pod:
        """A sandbox in its class's cgroup, below kubepods in the cgroup of this runtime."""
        uid = config.pop("uid", str(uuid.uuid4()))
        parent = self.runtime.cgroup_parent + cgroup_parent(qos, uid)
        return await (by or self.kubelet).run_pod(name, uid=uid, cgroup_parent=parent, **config)

    async def run(
        self,
        pod: Union[str, Pod],
        name: str = "main",
        *,
        qos: str = "burstable",
        by: Optional[CriClient] = None,
        **config: Any,
    ) -> Running:
        """A running container, in a pod of its own if that is a name; ``config`` as for container_config."""
        client = by or self.kubelet
        if isinstance(pod, str):
            pod = await self.pod(pod, qos=qos, by=client)
        container = await client.create(pod, name, qos=qos, **config)
        await client.start(container)
        return Running(pod, container)

    # --- what came of it

    async def place(self, container: Running) -> tuple[str, str]:
        """CPUs and memory nodes, seen from inside the container, which must be what its cgroup says.

        A container that is moved meanwhile is looked at again.
        """
        before, inside = self._seen_outside(container), await self._seen_inside(container)
        while (after := self._seen_outside(container)) != before:
            before, inside = after, await self._seen_inside(container)
        allowed, configured = after
        assert allowed == inside
        cpus, mems = inside
        assert configured in ((cpus, mems), (cpus, ""), ("", ""))
        return cpus, mems

    def _seen_outside(self, container: Running) -> tuple[tuple[str, str], tuple[str, str]]:
        return self.runtime.allowed_of(container.id), self.runtime.cpuset_of(container.id)

    async def _seen_inside(self, container: Running) -> tuple[str, str]:
        status, problem, code = await self.direct.exec(container.id, "cat", "/proc/self/status")
        assert code == 0, problem
        inside = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        return inside["Cpus_allowed_list"], inside["Mems_allowed_list"]

    async def cpus(self, container: Running) -> str:
        return (await self.place(container))[0]

    # --- what the daemon says

    async def ask(self, command: str, **arguments: Any) -> Any:
        """A command on the control socket, without a process of its own for it as ``Agent.ask`` has."""
        return await asyncio.to_thread(control.ask, self.agent.control, command, arguments)

    async def row(self, container: Union[Running, str]) -> Mapping[str, Any]:
        """What ``placements --json`` says of a container; {} if it does not know it."""
        wanted = container if isinstance(container, str) else container.id
        rows = await self.ask("placements")
        return next((row for row in rows if row["id"] == wanted), {})

    async def until_known(self, container: Union[Running, str], **fields: Any) -> Mapping[str, Any]:
        """Its row, once it has these values."""
        return await until(
            lambda: self.row(container),
            lambda row: row != {} and all(row[key] == value for key, value in fields.items()),
        )

    async def until_runtime_is_known(self) -> None:
        """Once the daemon has asked the runtime what it is, and compared the lists."""
        await until(
            lambda: self.ask("status"),
            lambda status: status["counters"].get("cri_resmgr_resyncs_total{result=ok}", 0) > 0,
        )


async def until(
    ask: Callable[[], Awaitable[Answer]],
    is_right: Callable[[Answer], Any] = bool,
    timeout_s: float = UNTIL_TIMEOUT_S,
) -> Answer:
    """The first answer that is right; an error that shows the last one if none is in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = await ask()
        if is_right(answer):
            return answer
        assert time.monotonic() < deadline_s, f"still wrong after {timeout_s:g} s: {answer!r}"
        await asyncio.sleep(0.02)


async def needs_api(client: CriClient) -> None:
    """Skip where the runtime does not speak the client's version of CRI."""
    try:
        await client.call("Version", cri.VersionRequest())
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        pytest.skip(f"This runtime does not speak {client.api}.")


async def problem_of(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """Code and details of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def remove_all_pods(client: CriClient) -> None:
    """Whatever runs there, gone."""
    pods = (await client.call("ListPodSandbox", cri.ListPodSandboxRequest())).items
    await asyncio.gather(*(_remove_pod(client, pod.id) for pod in pods))


async def _remove_pod(client: CriClient, pod_id: str) -> None:
    """As kubelet does, again and again: a start whose caller is gone goes on in the runtime, which refuses meanwhile."""
    await client.stop_pod(pod_id)

    async def is_removed() -> bool:
        try:
            await client.remove_pod(pod_id)
        except grpc.aio.AioRpcError as error:
            if "starting state" not in (error.details() or ""):
                raise
            return False
        return True

    await until(is_removed)
