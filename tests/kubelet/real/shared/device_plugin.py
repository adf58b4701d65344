"""A device plugin of kubelet's: devices with a NUMA node each, which containers are given by CDI names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tests.cri_client import CHANNEL_OPTIONS
from tests.e2e.node import until
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.node import SharedNode

RESOURCE = "tests.cri-resmgr.io/device"
CDI_KIND = "tests.cri-resmgr.io/device"
#: In the container: which device it was given, and where it is.
VARIABLE, NODE = "GIVEN_DEVICE", "/dev/given-device"
#: Kubelet's folder of sockets, whatever its root is.
SOCKETS = Path("var/lib/kubelet/device-plugins")
_MESSAGES = grpc.protos("tests/kubelet/real/shared/deviceplugin.proto")
_HEALTHY = "Healthy"


def write_cdi(folder: Path, devices: Mapping[str, int]) -> None:
    """The specification of these devices, where the runtime reads it."""
    edits = {
        name: {"env": [f"{VARIABLE}={name}"], "deviceNodes": [{"path": NODE, "hostPath": "/dev/null"}]}
        for name in devices
    }
    spec = {
        "cdiVersion": "0.6.0",
        "kind": CDI_KIND,
        "devices": [{"name": name, "containerEdits": edit} for name, edit in edits.items()],
    }
    folder.mkdir(exist_ok=True)
    (folder / "devices.json").write_text(json.dumps(spec))


class DevicePlugin(grpc.GenericRpcHandler):
    """``devices``: the NUMA node of each. ``allocated``: what kubelet has asked for so far."""

    def __init__(self, devices: Mapping[str, int]) -> None:
        self._devices = devices
        self._ended = asyncio.Event()
        self.allocated: list[str] = []

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if name == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(
                self._list, response_serializer=_MESSAGES.ListAndWatchResponse.SerializeToString
            )
        if name == "Allocate":
            return grpc.unary_unary_rpc_method_handler(
                self._allocate,
                request_deserializer=_MESSAGES.AllocateRequest.FromString,
                response_serializer=_MESSAGES.AllocateResponse.SerializeToString,
            )
        if name == "GetDevicePluginOptions":
            return grpc.unary_unary_rpc_method_handler(self._options)
        return None

    async def _options(self, _request: bytes, _context: Any) -> bytes:
        return b""

    async def _list(self, _request: bytes, _context: Any) -> AsyncIterator[Any]:
        yield _MESSAGES.ListAndWatchResponse(
            devices=[
                _MESSAGES.Device(
                    ID=name,
                    health=_HEALTHY,
                    topology=_MESSAGES.TopologyInfo(nodes=[_MESSAGES.NUMANode(ID=node)]),
                )
                for name, node in self._devices.items()
            ]
        )
        await self._ended.wait()

    async def _allocate(self, request: Any, _context: Any) -> Any:
        reply = _MESSAGES.AllocateResponse()
        for wanted in request.container_requests:
            self.allocated += wanted.devices_ids
            names = [_MESSAGES.CDIDevice(name=f"{CDI_KIND}={name}") for name in wanted.devices_ids]
            reply.container_responses.add(cdi_devices=names)
        return reply

    def end(self) -> None:
        self._ended.set()


@asynccontextmanager
async def device_plugin(node: SharedNode, devices: Mapping[str, int]) -> AsyncIterator[DevicePlugin]:
    """A plugin that kubelet knows, once the node has these devices and the runtime can find them."""
    write_cdi(node.runtime.folder / "cdi", devices)
    sockets = node.host.root / SOCKETS
    plugin = DevicePlugin(devices)
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((plugin,))
    try:
        async with grpc.aio.insecure_channel(
            f"unix:{sockets}/kubelet.sock", options=CHANNEL_OPTIONS
        ) as channel:
            # Kubelet listens there a while after it says that it is well; before, it removes the sockets of all plugins.
            await asyncio.wait_for(channel.channel_ready(), TIMEOUT_S)
            server.add_insecure_port(f"unix:{sockets}/tests.sock")
            await server.start()
            register = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=_MESSAGES.RegisterRequest.SerializeToString,
                response_deserializer=_MESSAGES.Empty.FromString,
            )
            await register(
                _MESSAGES.RegisterRequest(version="v1beta1", endpoint="tests.sock", resource_name=RESOURCE)
            )
        await until(node.object, lambda found: _count(found) == len(devices), TIMEOUT_S)
        yield plugin
    finally:
        plugin.end()
        await server.stop(None)
        await until(node.object, lambda found: _count(found) == 0, TIMEOUT_S)


def _count(node: Mapping[str, Any]) -> int:
    """How many devices the node says that it has for pods."""
    return int(node["status"]["allocatable"].get(RESOURCE, 0))
