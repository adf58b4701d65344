"""Calls to the runtime on behalf of a client whose call we answer ourselves: bytes out, bytes back, errors as they are."""

from __future__ import annotations

from typing import Any

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.interception import TRACE, AnswerFailed
from cri_proxy.relay.status import RpcError
from cri_proxy.runtime import RuntimeClient

#: Longer than any client waits (kubelet: 2 and 4 minutes, times what runtimeRequestTimeout is set to): the client's own
#: deadline ends its call; this one ends a call behind it that would go on for ever.
CREATE_TIMEOUT_S, SANDBOX_TIMEOUT_S, REMOVAL_TIMEOUT_S = 600.0, 1200.0, 600.0
#: Of calls that undo: a busy runtime may take long, and no call waits for it in vain.
UNDO_TIMEOUT_S = 30.0


class Upstream:
    """The runtime, for calls answered in its place. Every method raises ``AnswerFailed``."""

    def __init__(self, runtime: RuntimeClient) -> None:
        self._runtime = runtime

    async def forward(self, full_method: str, message: bytes, timeout_s: float) -> bytes:
        """The reply to the client's own request, perhaps a changed one."""
        try:
            return await self._runtime.channel.unary(full_method, message, timeout_s, TRACE.get())
        except RpcError as error:
            raise failure(error) from None

    async def call(self, method: str, request: Any, reply: Any, timeout_s: float = UNDO_TIMEOUT_S) -> Any:
        """One call of our own."""
        try:
            return await self._runtime.call(method, request, reply, timeout_s)
        except RpcError as error:
            raise failure(error) from None

    async def stop_container(self, container_id: str) -> None:
        request = cri.StopContainerRequest(container_id=container_id, timeout=0)
        await self.call("StopContainer", request, cri.StopContainerResponse)

    async def remove_container(self, container_id: str) -> None:
        request = cri.RemoveContainerRequest(container_id=container_id)
        await self.call("RemoveContainer", request, cri.RemoveContainerResponse)

    async def update(self, container_id: str, linux: cri.LinuxContainerResources) -> None:
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        await self.call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Stop it first: runtimes insist."""
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self.call("StopPodSandbox", stop, cri.StopPodSandboxResponse)
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self.call("RemovePodSandbox", remove, cri.RemovePodSandboxResponse)


def failure(error: RpcError) -> AnswerFailed:
    """The runtime's error, for the client to see as it is."""
    return AnswerFailed(error.code, error.details, error.trailers, error.in_doubt)
