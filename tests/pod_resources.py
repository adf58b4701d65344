"""Kubelet's pod-resources socket, served by gRPC as kubelet does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Optional

import grpc
import grpc.aio

from cri_api import pod_resources_pb2 as api


class PodResourcesServer(grpc.GenericRpcHandler):
    """``devices``: the NUMA nodes by ``namespace/pod/container/resource``. ``asked``: the methods that were called."""

    def __init__(
        self, devices: dict[str, tuple[int, ...]], has_get: bool = True, hangs: bool = False
    ) -> None:
        self.devices = devices
        self.asked: list[str] = []
        self._has_get, self._hangs = has_get, hangs
        self._server: Optional[grpc.aio.Server] = None

    async def start(self, socket: Path) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def service(self, handler_call_details: Any) -> Any:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        answer = {"Get": self._get, "List": self._list}.get(method)
        if service != "v1.PodResourcesLister" or answer is None:
            return None
        return grpc.unary_unary_rpc_method_handler(answer)

    async def _get(self, request: bytes, context: Any) -> bytes:
        self.asked.append("Get")
        if self._hangs:
            await asyncio.Event().wait()
        if not self._has_get:
            raise RuntimeError("pod resources API Get method disabled")
        wanted = api.GetPodResourcesRequest.FromString(request)
        pod = self._pods().get((wanted.pod_namespace, wanted.pod_name))
        if pod is None:
            raise LookupError(f"pod {wanted.pod_name} in namespace {wanted.pod_namespace} not found")
        return api.GetPodResourcesResponse(pod_resources=pod).SerializeToString()

    async def _list(self, request: bytes, context: Any) -> bytes:
        self.asked.append("List")
        return api.ListPodResourcesResponse(pod_resources=self._pods().values()).SerializeToString()

    def _pods(self) -> dict[tuple[str, str], api.PodResources]:
        pods: dict[tuple[str, str], api.PodResources] = {}
        for path, nodes in self.devices.items():
            namespace, pod, container, resource = path.split("/", 3)
            found = pods.setdefault((namespace, pod), api.PodResources(name=pod, namespace=namespace))
            of = next((c for c in found.containers if c.name == container), None) or found.containers.add(
                name=container
            )
            near = api.TopologyInfo(nodes=[api.NUMANode(ID=node) for node in nodes])
            of.devices.add(resource_name=resource, topology=near)
        return pods
