"""Which NRI events are due: a map of every pod and container that plugins know, and its changes by calls.

Stop is told once, of a created or running container; Remove once, of a known one; the containers of a pod that ends
are stopped and removed before it. Nothing here calls out: a method changes the map and returns the events that are
due, in the order to tell them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from cri_api import nri_v1alpha1_pb2 as nri


class State(Enum):
    """State of a pod or container. A pod is created while its hooks run; a removed one leaves the map."""

    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"


_LIVE = (State.CREATED, State.RUNNING)


@dataclass(frozen=True)
class Due:
    """One event to tell plugins; ``container_id`` "" where it is about the pod.

    ``is_announced``: all plugins were told that it exists; else only plugins that a list has shown it.
    """

    event: nri.Event.ValueType
    pod_id: str
    container_id: str = ""
    is_announced: bool = True


@dataclass
class _Container:
    pod_id: str
    state: State
    #: It is being recreated: a list without it says nothing.
    is_held: bool = False


class Lifecycle:
    """The map. An unknown id has no events, except where a method says so."""

    def __init__(self) -> None:
        self._pods: dict[str, State] = {}
        self._containers: dict[str, _Container] = {}
        #: Known from a list, by no event.
        self._unannounced: set[str] = set()
        #: The count of changes at each id's last one; ``compare`` forgets old ones.
        self._touched: dict[str, int] = {}
        self._count = 0

    def _touch(self, some_id: str) -> None:
        self._count += 1
        self._touched[some_id] = self._count

    @property
    def now(self) -> int:
        """Call it before asking for a list, and give it to ``compare``."""
        return self._count

    # ------------------------------------------------------------------ questions

    def pod_state(self, pod_id: str) -> Optional[State]:
        """None: not known."""
        return self._pods.get(pod_id)

    def state(self, container_id: str) -> Optional[State]:
        """Of a container; None: it is not known."""
        known = self._containers.get(container_id)
        return None if known is None else known.state

    def is_live(self, container_id: str) -> bool:
        """Whether a container's end must still be told."""
        return self.state(container_id) in _LIVE

    def pod_of(self, container_id: str) -> str:
        """The sandbox a container is in; "" if it is not known."""
        known = self._containers.get(container_id)
        return "" if known is None else known.pod_id

    def containers_of(self, pod_id: str) -> tuple[str, ...]:
        """A pod's known containers, oldest first."""
        return tuple(key for key, known in self._containers.items() if known.pod_id == pod_id)

    def running(self) -> tuple[str, ...]:
        """Containers whose end must still be told."""
        return tuple(key for key, known in self._containers.items() if known.state in _LIVE)

    # ------------------------------------------------------------------ what happens

    def pod_created(self, pod_id: str) -> None:
        """Its hooks are about to run."""
        self._touch(pod_id)
        self._pods[pod_id] = State.CREATED

    def pod_running(self, pod_id: str) -> None:
        self._touch(pod_id)
        self._pods[pod_id] = State.RUNNING

    def created(self, container_id: str, pod_id: str) -> None:
        """Plugins are about to be asked about a container."""
        self._touch(container_id)
        self._unannounced.discard(pod_id)
        self._containers[container_id] = _Container(pod_id, State.CREATED)

    def hold(self, container_id: str) -> None:
        """The runtime is about to remove and recreate it; plugins are told nothing of that."""
        if container_id in self._containers:
            self._containers[container_id].is_held = True

    def held(self) -> dict[str, tuple[str, State]]:
        """Held containers: (pod, state) by id."""
        return {key: (known.pod_id, known.state) for key, known in self._containers.items() if known.is_held}

    def made_anew(self, container_id: str, new_id: str) -> None:
        """A held container exists again, as ``new_id``; no-op if it was removed with its pod meanwhile."""
        self._touch(container_id)
        self._touch(new_id)
        known = self._containers.pop(container_id, None)
        if known is not None:
            self._containers[new_id] = _Container(known.pod_id, known.state)

    def started(self, container_id: str) -> None:
        self._touch(container_id)
        self._unannounced -= {container_id, self.pod_of(container_id)}
        if container_id in self._containers:
            self._containers[container_id].state = State.RUNNING

    def stopped(self, container_id: str) -> tuple[Due, ...]:
        """A container has ended, of itself or by a call; or could not be started."""
        self._touch(container_id)
        known = self._containers.get(container_id)
        if known is None or known.state not in _LIVE:
            return ()
        known.state = State.STOPPED
        return (self._due(nri.STOP_CONTAINER, known.pod_id, container_id),)

    def removed(self, container_id: str) -> tuple[Due, ...]:
        """A container is gone, or its creation was refused."""
        due = self.stopped(container_id)
        known = self._containers.pop(container_id, None)
        if known is not None:
            due = (*due, self._due(nri.REMOVE_CONTAINER, known.pod_id, container_id))
        self._unannounced.discard(container_id)
        return due

    def containers_stopped(self, pod_id: str) -> tuple[Due, ...]:
        """All containers of a pod have ended."""
        return tuple(due for key in self.containers_of(pod_id) for due in self.stopped(key))

    def pod_stopped(self, pod_id: str) -> tuple[Due, ...]:
        """A sandbox was stopped with its containers, or its hooks refused it."""
        self._touch(pod_id)
        due = self.containers_stopped(pod_id)
        if self._pods.get(pod_id) not in _LIVE:
            return due
        self._pods[pod_id] = State.STOPPED
        return (*due, self._due(nri.STOP_POD_SANDBOX, pod_id))

    def pod_removed(self, pod_id: str) -> tuple[Due, ...]:
        """A sandbox is gone, with all that was left in it."""
        due = self.pod_stopped(pod_id)
        for key in self.containers_of(pod_id):
            due += self.removed(key)
        if self._pods.pop(pod_id, None) is not None:
            due = (*due, self._due(nri.REMOVE_POD_SANDBOX, pod_id))
        self._unannounced.discard(pod_id)
        return due

    def _due(self, event: nri.Event.ValueType, pod_id: str, container_id: str = "") -> Due:
        return Due(event, pod_id, container_id, (container_id or pod_id) not in self._unannounced)

    # ------------------------------------------------------------------ what the runtime lists

    def rebuild(self, pods: Mapping[str, State], containers: Mapping[str, tuple[str, State]]) -> None:
        """Replace the map by what a Synchronize is about to tell plugins: (pod, state) by id."""
        self._unannounced.clear()
        self._pods = dict(pods)
        held = {key: known for key, known in self._containers.items() if known.is_held}
        listed = {key: _Container(pod_id, state) for key, (pod_id, state) in containers.items()}
        self._containers = {**listed, **held}

    def compare(
        self, pods: Mapping[str, State], containers: Mapping[str, tuple[str, State]], asked_at: int
    ) -> tuple[Due, ...]:
        """The events that no call told us of, by a list of everything.

        A listed and unknown container becomes known without an event, and its end is none either: plugins were not asked
        about it. ``asked_at``: ``now`` when the list was asked for; ids that changed since are not compared.
        """
        newer = {key for key, count in self._touched.items() if count > asked_at}
        listed = {key: found for key, found in containers.items() if key not in newer}
        listed_pods = {key: state for key, state in pods.items() if key not in newer}
        self._unannounced |= (listed.keys() - self._containers.keys()) | (
            listed_pods.keys() - self._pods.keys()
        )
        due: tuple[Due, ...] = ()
        for key, (pod_id, state) in listed.items():
            due += self._see(key, pod_id, state)
        for key in [k for k in self._containers if k not in containers and k not in newer]:
            if not self._containers[key].is_held:
                due += self.removed(key)
        for pod_id, state in listed_pods.items():
            if self._pods.setdefault(pod_id, state) in _LIVE and state is State.STOPPED:
                due += self.pod_stopped(pod_id)
        for pod_id in [p for p in self._pods if p not in pods and p not in newer]:
            due += self.pod_removed(pod_id)
        self._touched = {key: count for key, count in self._touched.items() if count > asked_at}
        return due

    def _see(self, container_id: str, pod_id: str, state: State) -> tuple[Due, ...]:
        known = self._containers.setdefault(container_id, _Container(pod_id, state))
        if state is State.STOPPED:
            return self.stopped(container_id)
        if state is State.RUNNING and known.state is State.CREATED:
            known.state = State.RUNNING
        return ()
