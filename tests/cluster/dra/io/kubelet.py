"""Test support: kubelet as a plugin knows it. It finds the registration's socket, and calls with gRPC as kubelet does.

What it does is in pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin; ``tests/kubelet/real`` has the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from cluster.dra.claims import ClaimName
from cri_api import dra_health_pb2 as health_api
from cri_api import dra_v1_pb2 as api
from cri_api import plugin_registration_pb2 as registration_api

#: The service of each version, and the package that its paths have.
KNOWN = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1",
}
TIMEOUT_S = 45
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


class Kubelet:
    """``knows``: the versions of the service that this kubelet has."""

    def __init__(self, folder: Path, *knows: str) -> None:
        self.folder = folder
        self._knows = knows or tuple(KNOWN)
        self._package = ""
        self._channel: Any = None

    @property
    def found(self) -> list[Path]:
        """Sockets in the folder of registrations."""
        return sorted(path for path in (self.folder / "plugins_registry").glob("*") if path.is_socket())

    async def register(self) -> Any:
        """Ask the one plugin that is there, tell it what has become of it, and keep a connection; its information."""
        [socket] = await self._until_found()
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            ask = channel.unary_unary(
                "/pluginregistration.Registration/GetInfo",
                request_serializer=registration_api.InfoRequest.SerializeToString,
                response_deserializer=registration_api.PluginInfo.FromString,
            )
            info = await ask(registration_api.InfoRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
            chosen = next((each for each in info.supported_versions if each in self._knows), "")
            await self._notify(channel, bool(chosen), "" if chosen else "no version is known")
        if chosen:
            await self.close()
            self._package = KNOWN[chosen]
            self._channel = grpc.aio.insecure_channel(f"unix:{info.endpoint}")
        return info

    async def _until_found(self) -> list[Path]:
        async def look() -> list[Path]:
            while not self.found:
                await asyncio.sleep(0.01)
            return self.found

        return await asyncio.wait_for(look(), 60)

    async def _notify(self, channel: Any, is_registered: bool, error: str) -> None:
        tell = channel.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            request_serializer=registration_api.RegistrationStatus.SerializeToString,
            response_deserializer=registration_api.RegistrationStatusResponse.FromString,
        )
        status = registration_api.RegistrationStatus(plugin_registered=is_registered, error=error)
        await tell(status, timeout=TIMEOUT_S)

    async def prepare(self, *claims: ClaimName, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """What is answered for each claim, by UID."""
        request = api.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = await self._call(PREPARE, timeout_s, request.SerializeToString())
        return dict(api.NodePrepareResourcesResponse.FromString(answer).claims)

    async def unprepare(self, *claims: ClaimName) -> dict[str, str]:
        """The error of each claim, by UID."""
        request = api.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = await self._call(UNPREPARE, TIMEOUT_S, request.SerializeToString())
        found = api.NodeUnprepareResourcesResponse.FromString(answer).claims
        return {uid: each.error for uid, each in found.items()}

    async def refusal(self, method: str, request: bytes) -> tuple[str, str]:
        """The status and the sentence with which bytes are refused."""
        try:
            await self._call(method, TIMEOUT_S, request)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{method} takes {request!r}")

    def health(self, version: str = "v1alpha1") -> Any:
        """The stream of devices' health."""
        watch = self._channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=health_api.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_api.NodeWatchResourcesResponse.FromString,
        )
        return watch(health_api.NodeWatchResourcesRequest(), wait_for_ready=True)

    async def _call(self, method: str, timeout_s: float, request: bytes) -> bytes:
        call = self._channel.unary_unary(f"/{self._package}.DRAPlugin/{method}")
        answer: bytes = await call(request, timeout=timeout_s, wait_for_ready=True)
        return answer

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


def _claims(claims: Iterable[ClaimName]) -> list[Any]:
    return [api.Claim(namespace=each.namespace, name=each.name, uid=each.uid) for each in claims]
