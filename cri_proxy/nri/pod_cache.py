"""Pods and containers as plugins are shown them, kept in step with what happens to them."""

from __future__ import annotations

from collections.abc import Container as Collection
from collections.abc import Mapping
from typing import Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.lifecycle import State
from cri_proxy.nri.messages import Shown
from cri_proxy.nri.view import view_again

#: Annotation of a container that has another id for plugins than for the runtime.
PLUGIN_ID = "nri.cri-resmgr.io/container-id"


def annotated(shown_id: str) -> bytes:
    """The bytes to append to a CreateContainerRequest."""
    config = cri.ContainerConfig(annotations={PLUGIN_ID: shown_id})
    return bytes(cri.CreateContainerRequest(config=config).SerializeToString())


class Ids:
    """Containers' ids for plugins, where they differ from the runtime's.

    An adjustment may take another create, after which the runtime has another id for the container. A plugin has used
    the first id (for a folder that it mounts, an entry of its own state): so plugins see that id for the container's
    whole life. The container's annotation keeps it, for any daemon that lists it later.
    """

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._real: dict[str, str] = {}

    def note(self, container_id: str, annotations: Mapping[str, str]) -> None:
        """Read the id for plugins from a container's annotations."""
        shown_id = annotations.get(PLUGIN_ID, "")
        if shown_id and shown_id != container_id:
            self._shown[container_id] = shown_id
            self._real[shown_id] = container_id

    def shown(self, container_id: str) -> str:
        """The id for plugins, by the runtime's."""
        return self._shown.get(container_id, container_id)

    def real(self, shown_id: str) -> str:
        """The runtime's id, by the one that a plugin names."""
        return self._real.get(shown_id, shown_id)

    def forget(self, container_id: str) -> None:
        shown_id = self._shown.pop(container_id, "")
        if self._real.get(shown_id) == container_id:
            del self._real[shown_id]

    def keep(self, is_there: Callable[[str], bool]) -> None:
        """Forget all others, of the runtime's ids."""
        for key in [key for key in self._shown if not is_there(key)]:
            self.forget(key)


_STATES = {
    State.CREATED: nri.CONTAINER_CREATED,
    State.RUNNING: nri.CONTAINER_RUNNING,
    State.STOPPED: nri.CONTAINER_STOPPED,
}


class PodCache:
    """Pods and containers by the runtime's ids. Only a changed one is encoded anew when it is shown next.

    The messages have the ids for plugins.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Shown[nri.PodSandbox]] = {}
        self.containers: dict[str, Shown[nri.Container]] = {}
        self.ids = Ids()
        #: Containers looked up since their start: before, they had no process.
        self._seen_running: set[str] = set()

    def remember_pod(self, pod: nri.PodSandbox) -> Shown[nri.PodSandbox]:
        shown = self.pods[pod.id] = Shown(pod)
        return shown

    def remember(self, container: nri.Container) -> Shown[nri.Container]:
        """Keep a container as the runtime tells all of it; it is shown by its id for plugins."""
        key = container.id
        self.ids.note(key, container.annotations)
        container.annotations.pop(PLUGIN_ID, None)
        container.id = self.ids.shown(key)
        shown = self.containers[key] = Shown(container)
        self._note_running(key, container)
        return shown

    def made_anew(self, container_id: str, new_id: str) -> None:
        """The runtime has another id for a container; the rest of it stays."""
        shown_id = self.ids.shown(container_id)
        known = self.containers.pop(container_id, None)
        self.forget(container_id)
        self.ids.note(new_id, {PLUGIN_ID: shown_id})
        if known is not None:
            self.containers[new_id] = known

    def refresh(self, container_id: str, status: cri.ContainerStatusResponse) -> None:
        """Bring a container up to date by its status; an unknown one stays unknown."""
        shown = self.containers.get(container_id)
        if shown is not None:
            view_again(shown.change(), status)
            self._note_running(container_id, shown.message)

    def _note_running(self, container_id: str, container: nri.Container) -> None:
        if container.state == nri.CONTAINER_RUNNING:
            self._seen_running.add(container_id)

    def in_state(self, container_id: str, state: State) -> Optional[Shown[nri.Container]]:
        """A container, shown in a state; None: it is unknown."""
        shown, number = self.containers.get(container_id), _STATES[state]
        if shown is not None and shown.message.state != number:
            shown.change().state = number
        return shown

    def lacks(self, container_id: str, state: Optional[State]) -> bool:
        """Whether the runtime must be asked for a container, or its process, before it is shown in a state."""
        if container_id not in self.containers:
            return True
        return state is State.RUNNING and container_id not in self._seen_running

    def forget(self, container_id: str) -> None:
        self.containers.pop(container_id, None)
        self._seen_running.discard(container_id)
        self.ids.forget(container_id)

    def forget_pod(self, pod_id: str) -> None:
        self.pods.pop(pod_id, None)

    def keep(self, pods: Collection[str], containers: Collection[str]) -> None:
        """Forget all others."""
        self.pods = {key: shown for key, shown in self.pods.items() if key in pods}
        for key in [key for key in self.containers if key not in containers]:
            self.forget(key)
        self.ids.keep(lambda key: key in containers)

    def note_resources(self, container_id: str, resources: nri.LinuxResources) -> None:
        """A container has new resources; unset fields stay."""
        shown = self.containers.get(container_id)
        if shown is not None:
            known = shown.change().linux.resources
            if resources.hugepage_limits:
                del known.hugepage_limits[:]
            known.MergeFrom(resources)

    def note_pod_size(self, pod_id: str, overhead: nri.LinuxResources, resources: nri.LinuxResources) -> None:
        """A sandbox has got another size."""
        shown = self.pods.get(pod_id)
        if shown is not None:
            linux = shown.change().linux
            linux.pod_overhead.CopyFrom(overhead)
            linux.pod_resources.CopyFrom(resources)
