"""Names and owners of containers by id, from the runtime's lists over CRI.

Asked only when an endpoint is seen that is not known, or one seems to have ended, at most every few seconds, and once
a minute anyway, so that what has ended is noticed. A runtime that does not answer costs names, nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from bpf.service.log import log
from cri_api import runtime_listing_pb2 as listing
from policies.affinity.graph.graph import EndpointIdentity
from policies.affinity.graph.traffic import POD_PREFIX
from policies.affinity.pull.owners import owner_of

LEAST_PAUSE_S = 3.0
MOST_PAUSE_S = 60.0
TIMEOUT_S = 5.0
_VERSIONS = ("runtime.v1", "runtime.v1alpha2")
_READY, _EXITED = 0, 2
_FAILURES = (OSError, asyncio.TimeoutError, GRPCError, ProtocolError, StreamTerminatedError)


class Identities:
    """All containers and pods (``pod:UID``) that run, by id. ``problem``: why they may be out of date."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = sockets
        self._asked_s: Optional[float] = None
        self._is_doubted = False
        self._ids: dict[str, str] = {}
        self.by_id: Mapping[str, EndpointIdentity] = {}
        self.problem = ""

    def resolve(self, name: str) -> str:
        """The id of the container called ``namespace/pod/container``; any other name is returned as it is."""
        return self._ids.get(name, name)

    async def refresh(self, seen: Iterable[str], now_s: float, doubted: Iterable[str] = ()) -> frozenset[str]:
        """Ask the runtime if an endpoint seen is not known, or it is time; returns which have ended since.

        ``doubted``: containers that seem to have ended; it is asked, too, if it has said that one of them runs.
        """
        self._is_doubted = self._is_doubted or any(end in self.by_id for end in doubted)
        if not self._sockets or not self._is_due(seen, now_s):
            return frozenset()
        self._asked_s = now_s
        try:
            found = await _list(self._sockets)
        except _FAILURES as error:
            problem = f"the runtime does not name its containers: {_reason(error)}"
            if problem != self.problem:
                log("warning", "runtime does not answer", reason=_reason(error))
            self.problem = problem
            return frozenset()
        ended = frozenset(self.by_id.keys() - found.keys())
        self.by_id, self.problem, self._is_doubted = found, "", False
        self._ids = {f"{i.namespace}/{i.pod}/{i.container}": i.id for i in found.values() if i.container}
        return ended

    def _is_due(self, seen: Iterable[str], now_s: float) -> bool:
        if self._asked_s is None:
            return True
        pause_s = now_s - self._asked_s
        if pause_s >= MOST_PAUSE_S:
            return True
        if pause_s < LEAST_PAUSE_S:
            return False
        return self._is_doubted or any(self.resolve(end) not in self.by_id for end in seen)


async def _list(sockets: Sequence[str]) -> dict[str, EndpointIdentity]:
    """Ask the first runtime that can be reached, in the newest version of CRI that it has."""
    failure: BaseException = FileNotFoundError(0, "there is no socket")
    for path in sockets:
        channel = Channel(path=path)
        try:
            return await _list_by(channel)
        except OSError as error:
            failure = error
        finally:
            channel.close()
    raise failure


async def _list_by(channel: Channel) -> dict[str, EndpointIdentity]:
    for version in _VERSIONS:
        service = f"/{version}.RuntimeService"
        try:
            pods = await _listed(
                channel,
                f"{service}/ListPodSandbox",
                f"{service}/StreamPodSandboxes",
                listing.ListPodSandboxRequest(),
                listing.ListPodSandboxResponse,
            )
            containers = await _listed(
                channel,
                f"{service}/ListContainers",
                f"{service}/StreamContainers",
                listing.ListContainersRequest(),
                listing.ListContainersResponse,
            )
        except GRPCError as error:
            if error.status is Status.UNIMPLEMENTED and version != _VERSIONS[-1]:
                continue
            raise
        return read_identities(pods, containers)
    raise AssertionError("there is a last version")


async def _listed(channel: Channel, method: str, streamed: str, request: Any, reply: Any) -> Any:
    """A list; in parts, each of which reads as a short list, where it is too long for one message."""
    try:
        return await UnaryUnaryMethod(channel, method, type(request), reply)(request, timeout=TIMEOUT_S)
    except GRPCError as error:
        if error.status is not Status.RESOURCE_EXHAUSTED:
            raise
        too_long = error
    try:
        parts = await UnaryStreamMethod(channel, streamed, type(request), reply)(request, timeout=TIMEOUT_S)
    except GRPCError as failure:
        if failure.status is Status.UNIMPLEMENTED:
            raise too_long from None
        raise
    whole = reply()
    for part in parts:
        whole.MergeFrom(part)
    return whole


def read_identities(
    pods: listing.ListPodSandboxResponse, containers: listing.ListContainersResponse
) -> dict[str, EndpointIdentity]:
    """The containers that have not exited, and the pods that are ready."""
    found = {}
    sandboxes = {pod.id: pod for pod in pods.items}
    for pod in pods.items:
        if pod.state == _READY and pod.metadata.uid:
            identity = _identity(POD_PREFIX + pod.metadata.uid, pod, "")
            found[identity.id] = identity
    for container in containers.containers:
        sandbox = sandboxes.get(container.pod_sandbox_id)
        if container.state != _EXITED and sandbox is not None:
            found[container.id] = _identity(container.id, sandbox, container.metadata.name)
    return found


def _identity(endpoint: str, pod: listing.PodSandbox, container: str) -> EndpointIdentity:
    told = pod.metadata
    owner = owner_of(told.namespace, told.name, dict(pod.labels), container)
    return EndpointIdentity(endpoint, told.uid, told.namespace, told.name, container, owner)


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    if isinstance(error, GRPCError):
        return f"{error.status.name}: {error.message}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
