"""Calls of our own to the container runtime: typed, with deadlines, in the CRI version the runtime speaks."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from typing import Any

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import linux_delta
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.relay.io.channel import Channel
from cri_proxy.relay.status import Code, RpcError

#: Where runtimes listen, in the order they are tried when the configuration names none.
WELL_KNOWN = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/run/isulad.sock",
)
VERSIONS = ("runtime.v1", "runtime.v1alpha2")
CALL_TIMEOUT_S = 10.0
#: Lists that may come in parts (cri-api 0.36), each of which reads as a short list: a runtime sends no message of more
#: than 16 MB, some 11,000 containers.
STREAMED = {"ListContainers": "StreamContainers", "ListPodSandbox": "StreamPodSandboxes"}


class NoRuntime(Exception):
    """No runtime socket was found. The message says what was looked for and what to configure."""


def discover(endpoint: str, candidates: tuple[str, ...] = WELL_KNOWN) -> str:
    """The path of the runtime's socket: the configured one, else the first well-known one that exists.

    :raises NoRuntime: none is configured and none exists.
    """
    if endpoint:
        return endpoint
    hidden = []
    for candidate in candidates:
        try:
            if stat.S_ISSOCK(os.stat(candidate).st_mode):
                return candidate
        except PermissionError:
            hidden.append(candidate)
        except OSError:
            pass
    sentence = f"none of {', '.join(candidates)} is a socket"
    if hidden:
        sentence = f"{', '.join(hidden)} may not be looked at (permission denied), and no other usual socket is there"
    raise NoRuntime(f"no container runtime found: {sentence}; set relay.runtime_endpoint")


class RuntimeClient:
    """One runtime, by one channel of our own.

    ``is_guess``: no runtime was found; the path is where most have it.
    """

    def __init__(self, path: str, is_guess: bool = False) -> None:
        self.path = path
        self.is_guess = is_guess
        self.channel = Channel(path)
        self.api = ""
        self.name = ""
        self.version = ""
        #: Of the streamed lists those that it does not have.
        self._lacking: set[str] = set()

    async def close(self) -> None:
        await self.channel.close()

    async def call(self, method: str, request: Any, reply: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """One unary call, a list streamed where it can be; finds out the CRI version first where it is not known.

        :raises RpcError: the runtime's error, or its absence.
        """
        if not self.api:
            await self.identify()
        streamed = STREAMED.get(method, "")
        if streamed and streamed not in self._lacking:
            try:
                return await self._collected(streamed, request, reply, timeout_s)
            except RpcError as error:
                if error.code != Code.UNIMPLEMENTED:
                    raise
                self._lacking.add(streamed)
        return await self._unary(f"/{self.api}.RuntimeService/{method}", request, reply, timeout_s)

    async def identify(self) -> None:
        """Ask for the runtime's name and version, trying the CRI versions in turn."""
        for api in VERSIONS:
            try:
                request = cri.VersionRequest(version="v1")
                got = await self._unary(
                    f"/{api}.RuntimeService/Version", request, cri.VersionResponse, CALL_TIMEOUT_S
                )
            except RpcError as error:
                if error.code != Code.UNIMPLEMENTED or api == VERSIONS[-1]:
                    raise
                continue
            self.api, self.name, self.version = api, got.runtime_name, got.runtime_version
            self._lacking.clear()
            return

    async def _unary(self, path: str, request: Any, reply: Any, timeout_s: float) -> Any:
        return reply.FromString(await self.channel.unary(path, request.SerializeToString(), timeout_s))

    async def _collected(self, method: str, request: Any, reply: Any, timeout_s: float) -> Any:
        """All parts of a streamed list as one reply; a list that ends too early is none."""
        path = f"/{self.api}.RuntimeService/{method}"
        stream = self.channel.stream(path, request.SerializeToString(), timeout_s)
        whole = reply()
        try:
            while (part := await stream.read()) is not None:
                whole.MergeFromString(part)
        finally:
            stream.cancel()
        return whole

    # ------------------------------------------------------------------ questions

    async def containers(self) -> list[cri.Container]:
        got = await self.call("ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse)
        return list(got.containers)

    async def sandboxes(self) -> list[cri.PodSandbox]:
        got = await self.call("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)
        return list(got.items)

    async def container_status(
        self, container_id: str, verbose: bool = False
    ) -> tuple[cri.ContainerStatus, dict[str, Any]]:
        """Status and, if verbose, the runtime's own JSON information (empty where it gives none)."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        got = await self.call("ContainerStatus", request, cri.ContainerStatusResponse)
        return got.status, _info(got.info)

    async def sandbox_status(self, sandbox_id: str) -> tuple[cri.PodSandboxStatus, dict[str, Any]]:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        got = await self.call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        return got.status, _info(got.info)

    def events_can_be_shared(self) -> bool:
        """Whether a second subscriber to GetContainerEvents takes nothing from the first.

        containerd before 2.0 has one queue for all subscribers (seen); of other runtimes it is not known.
        """
        major = self.version.lstrip("v").split(".", 1)[0]
        return self.name == "containerd" and major.isdigit() and int(major) >= 2

    async def events(self) -> AsyncIterator[cri.ContainerEventResponse]:
        """Container events until the stream ends or fails."""
        path = f"/{self.api}.RuntimeService/GetContainerEvents"
        stream = self.channel.stream(path, cri.GetEventsRequest().SerializeToString())
        try:
            while (event := await stream.read()) is not None:
                yield cri.ContainerEventResponse.FromString(event)
        finally:
            stream.cancel()

    # ------------------------------------------------------------------ actions

    async def update(self, update: CpusetUpdate) -> None:
        """Give a container its cpuset, mems and CPU quota; what is empty is left as it is."""
        linux = linux_delta(update.placement, update.give_back)
        request = cri.UpdateContainerResourcesRequest(container_id=update.id, linux=linux)
        await self.call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    @property
    def is_connected(self) -> bool:
        """Whether the channel is."""
        return self.channel.is_connected

    async def wait_ready(self) -> None:
        """Return when the channel is connected; keeps it trying."""
        await self.channel.wait_ready()

    async def wait_lost(self) -> None:
        """Return when the channel is not connected any more."""
        await self.channel.wait_lost()


def _info(info: Mapping[str, str]) -> dict[str, Any]:
    """containerd and CRI-O put one JSON document under "info"; others may put nothing."""
    try:
        document = json.loads(info.get("info", "{}"))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


async def gather_limited(limit: int, jobs: list[Any]) -> list[Any]:
    """Await coroutines, at most ``limit`` at a time; results and exceptions in their order."""
    gate = asyncio.Semaphore(limit)

    async def one(job: Any) -> Any:
        async with gate:
            return await job

    try:
        return await asyncio.gather(*[one(job) for job in jobs], return_exceptions=True)
    finally:
        for job in jobs:  # those that were cancelled before their turn
            job.close()
