"""What is known of pods and containers, as plugins are shown it: kept in step with what happens to them."""

from __future__ import annotations

from collections.abc import Container as Collection
from typing import Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.ids import PLUGIN_ID, Ids
from cri_proxy.nri.lifecycle import State
from cri_proxy.nri.messages import Shown
from cri_proxy.nri.view import view_again

_STATES = {
    State.CREATED: nri.CONTAINER_CREATED,
    State.RUNNING: nri.CONTAINER_RUNNING,
    State.STOPPED: nri.CONTAINER_STOPPED,
}


class Known:
    """Pods and containers by the runtime's ids. What is changed here is encoded anew when it is shown next, and nothing
    else. The messages have the ids that plugins know.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Shown[nri.PodSandbox]] = {}
        self.containers: dict[str, Shown[nri.Container]] = {}
        self.ids = Ids()
        #: Those looked at since they were started: before, they had no process.
        self._seen_running: set[str] = set()

    def remember_pod(self, pod: nri.PodSandbox) -> Shown[nri.PodSandbox]:
        shown = self.pods[pod.id] = Shown(pod)
        return shown

    def remember(self, container: nri.Container) -> Shown[nri.Container]:
        """A container of which the runtime has told everything; it is shown by the id that plugins know."""
        key = container.id
        self.ids.note(key, container.annotations)
        container.annotations.pop(PLUGIN_ID, None)
        container.id = self.ids.shown(key)
        shown = self.containers[key] = Shown(container)
        self._note_running(key, container)
        return shown

    def made_anew(self, container_id: str, new_id: str) -> None:
        """The runtime calls a container something else now; what is known of it is as it was."""
        shown_id = self.ids.shown(container_id)
        known = self.containers.pop(container_id, None)
        self.forget(container_id)
        self.ids.note(new_id, {PLUGIN_ID: shown_id})
        if known is not None:
            self.containers[new_id] = known

    def refresh(self, container_id: str, status: cri.ContainerStatusResponse) -> None:
        """The runtime has told how a container is now; who is not known stays so."""
        shown = self.containers.get(container_id)
        if shown is not None:
            view_again(shown.change(), status)
            self._note_running(container_id, shown.message)

    def _note_running(self, container_id: str, container: nri.Container) -> None:
        if container.state == nri.CONTAINER_RUNNING:
            self._seen_running.add(container_id)

    def in_state(self, container_id: str, state: State) -> Optional[Shown[nri.Container]]:
        """A container as it is shown in a state; None: it is not known."""
        shown, number = self.containers.get(container_id), _STATES[state]
        if shown is not None and shown.message.state != number:
            shown.change().state = number
        return shown

    def lacks(self, container_id: str, state: Optional[State]) -> bool:
        """Whether the runtime must be asked before a container in a state is shown: for all of it, or its process."""
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
        """A container has got these; what is not set is as it was."""
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
