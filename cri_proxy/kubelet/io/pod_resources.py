"""What devices kubelet has given to a container, and which NUMA nodes they are near: kubelet's pod-resources socket.

It is on the way of a create, whose devices kubelet has chosen before. The answer is waited for ``WAIT_S`` and no longer; a
kubelet that does not answer, or has no such socket, counts as one that has given none. Kubelet answers ten questions at
once and a hundred a second, so that a pod's answer is kept for its other containers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from google.protobuf.message import DecodeError

from cri_api import pod_resources_pb2 as api
from cri_api.waiting import wait_within
from cri_proxy.relay.io.channel import Channel
from cri_proxy.relay.status import RpcError
from policies.model import RESOURCES, Container, Hint

#: Below kubelet's directory.
SOCKET = "pod-resources/kubelet.sock"
#: How long a create waits, seconds: kubelet answers from memory.
WAIT_S = 0.05
#: Pods whose answers are kept.
KEPT = 256
_SERVICE = "/v1.PodResourcesLister"


class PodResources:
    """One kubelet's, by a connection for each question: kubelet comes and goes."""

    def __init__(self, socket: Path, wait_s: float = WAIT_S) -> None:
        self.socket = socket
        self._wait_s = wait_s
        #: Kubelet before 1.34 answers Get only where a feature gate says so.
        self._has_get = True
        #: The hints of each container by name, by the uid of the pod, the latest last.
        self._known: dict[str, dict[str, tuple[Hint, ...]]] = {}

    async def hints(self, container: Container) -> tuple[Hint, ...]:
        """A hint for each resource of which the container has devices that are near some NUMA nodes."""
        pod = container.pod
        if pod.uid not in self._known:
            channel = Channel(str(self.socket), "kubelet")
            try:
                found = await wait_within(self._wait_s, self._ask(channel, pod.namespace, pod.name))
            except (RpcError, asyncio.TimeoutError, DecodeError):
                return ()
            finally:
                await channel.close()
            self._known[pod.uid] = {each.name: _hints(each) for each in found.containers}
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return self._known[pod.uid].get(container.name, ())

    async def _ask(self, channel: Channel, namespace: str, name: str) -> api.PodResources:
        if self._has_get:
            asked = api.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
            try:
                reply = await channel.unary(f"{_SERVICE}/Get", asked.SerializeToString())
                return api.GetPodResourcesResponse.FromString(reply).pod_resources
            except RpcError as error:
                if "Get method disabled" not in error.details:
                    raise
                self._has_get = False
        request = api.ListPodResourcesRequest().SerializeToString()
        reply = await channel.unary(f"{_SERVICE}/List", request)
        pods = api.ListPodResourcesResponse.FromString(reply).pod_resources
        return next(
            (pod for pod in pods if (pod.namespace, pod.name) == (namespace, name)), api.PodResources()
        )


def _hints(container: api.ContainerResources) -> tuple[Hint, ...]:
    near: dict[str, set[int]] = {}
    for device in container.devices:
        near.setdefault(device.resource_name, set()).update(node.ID for node in device.topology.nodes)
    return tuple(Hint(RESOURCES, name, frozenset(nodes)) for name, nodes in sorted(near.items()) if nodes)
