"""Nodes of the tests' cluster: one with a real kubelet, containerd and daemon, others with a daemon that are described."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cri_client import CriClient
from tests.e2e.node import until
from tests.e2e.runtime import RealRuntime
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.node import CREATED, RUNNING, TIMEOUT_S, KubeletNode, static_pod

PODS = "/api/v1/namespaces/default/pods"
#: With it a pod is gone at once, whatever its kubelet does.
NOW = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


class RegisteredNode(KubeletNode):
    """A node whose kubelet has its pods from the API server; ``run`` and ``remove`` are of such pods."""

    def __init__(
        self,
        api: ControlPlane,
        runtime: RealRuntime,
        agent: Agent,
        direct: CriClient,
        host: RealKubeletHost,
    ) -> None:
        super().__init__(runtime, agent, direct, host)
        self.api = api
        self.name = host.name

    def full_name(self, pod: str) -> str:
        """A pod's name is its own."""
        return pod

    async def until_registered(self) -> Mapping[str, Any]:
        """The Node object, once its kubelet says that it is ready."""

        def ready(node: Mapping[str, Any]) -> bool:
            conditions = node.get("status", {}).get("conditions") or ()
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        return await until(self.object, ready, TIMEOUT_S)

    async def object(self) -> Mapping[str, Any]:
        """The Node as it is; {} if there is none."""
        return await found(self.api, f"/api/v1/nodes/{self.name}")

    async def run(self, name: str, **pod: Any) -> str:
        """The id of the container of a new pod of this node, once it runs."""
        await self.create(static_pod(name, **pod))
        return await self.running(name)

    async def create(self, pod: dict[str, Any]) -> None:
        """Create a pod that is bound to this node; nothing schedules here."""
        pod["spec"]["nodeName"] = self.name
        await asyncio.to_thread(self.api.ask, "POST", PODS, pod)

    async def remove(self, name: str) -> None:
        """Delete a pod and wait until it has ended and is gone."""
        await asyncio.to_thread(self.api.ask, "DELETE", f"{PODS}/{name}")
        await self.until_ended(name)
        await until(lambda: found(self.api, f"{PODS}/{name}"), lambda pod: not pod, TIMEOUT_S)

    async def until_nothing_runs(self) -> None:
        """Delete all pods of this node, and wait until no container of them is left running."""
        pods = (await asyncio.to_thread(self.api.ask, "GET", PODS))["items"]
        for pod in pods:
            if pod["spec"].get("nodeName") == self.name:
                await asyncio.to_thread(self.api.ask, "DELETE", f"{PODS}/{pod['metadata']['name']}", NOW)

        async def running() -> list[cri.Container]:
            return [c for c in await self.direct.list_containers() if c.state in (CREATED, RUNNING)]

        await until(running, lambda left: not left, TIMEOUT_S)


async def found(api: ControlPlane, path: str) -> Mapping[str, Any]:
    """An object, {} if there is none; a server that cannot be asked is an error."""
    try:
        return await asyncio.to_thread(api.ask, "GET", path)
    except Refused as refused:
        if refused.code != 404:
            raise
        return {}
