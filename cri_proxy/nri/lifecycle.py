"""Which NRI events are due: the state of every pod and container that plugins know of, and what calls do to it.

Stop is told once, of what was created or runs; Remove once, of what is known; the containers of a pod that ends
are stopped and removed before it. Nothing here calls out: a method changes the map and returns what is due,
in the order in which it is to be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from cri_api import nri_v1alpha1_pb2 as nri


class State(Enum):
    """Where in its life something is. A pod is created while its hooks run; what was removed is not in the map."""

    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"


_LIVE = (State.CREATED, State.RUNNING)


@dataclass(frozen=True)
class Due:
    """One event that plugins must be told of; ``container_id`` "" where it is about the pod.

    ``is_announced``: plugins were told that it is there; else only those know of it that were shown it when they came.
    """

    event: nri.Event.ValueType
    pod_id: str
    container_id: str = ""
    is_announced: bool = True


@dataclass
class _Container:
    pod_id: str
    state: State
    #: It is being made anew: that no list has it says nothing.
    is_held: bool = False


class Lifecycle:
    """The map. Ids that it does not know have no events, except where a method says so."""

    def __init__(self) -> None:
        self._pods: dict[str, State] = {}
        self._containers: dict[str, _Container] = {}
        #: What a list has shown and no event.
        self._unannounced: set[str] = set()
        #: When each id was last spoken of, by a count of such times; old ones are forgotten by ``compare``.
        self._touched: dict[str, int] = {}
        self._count = 0

    def _touch(self, some_id: str) -> None:
        self._count += 1
        self._touched[some_id] = self._count

    @property
    def now(self) -> int:
        """To be asked for before a list is, and given to ``compare`` with it."""
        return self._count

    # ------------------------------------------------------------------ questions

    def pod_state(self, pod_id: str) -> Optional[State]:
        """None: it is not known."""
        return self._pods.get(pod_id)

    def state(self, container_id: str) -> Optional[State]:
        """Of a container; None: it is not known."""
        known = self._containers.get(container_id)
        return None if known is None else known.state

    def is_live(self, container_id: str) -> bool:
        """Whether a container's end is still to be told."""
        return self.state(container_id) in _LIVE

    def pod_of(self, container_id: str) -> str:
        """The sandbox a container is in; "" if it is not known."""
        known = self._containers.get(container_id)
        return "" if known is None else known.pod_id

    def containers_of(self, pod_id: str) -> tuple[str, ...]:
        """All that are known of a pod, oldest first."""
        return tuple(key for key, known in self._containers.items() if known.pod_id == pod_id)

    def running(self) -> tuple[str, ...]:
        """Containers whose end is still to be told."""
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
        """The runtime is about to remove it and to make it anew, of which plugins are told nothing."""
        if container_id in self._containers:
            self._containers[container_id].is_held = True

    def held(self) -> dict[str, tuple[str, State]]:
        """What is being made anew, (pod, state) by id."""
        return {key: (known.pod_id, known.state) for key, known in self._containers.items() if known.is_held}

    def made_anew(self, container_id: str, new_id: str) -> None:
        """What was held is there again, as ``new_id``; nothing if it has been removed with its pod meanwhile."""
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
        """A container is gone, or is to be forgotten because its creation was refused."""
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
        """A sandbox was stopped, and what ran in it; or its hooks have refused it."""
        self._touch(pod_id)
        due = self.containers_stopped(pod_id)
        if self._pods.get(pod_id) not in _LIVE:
            return due
        self._pods[pod_id] = State.STOPPED
        return (*due, self._due(nri.STOP_POD_SANDBOX, pod_id))

    def pod_removed(self, pod_id: str) -> tuple[Due, ...]:
        """A sandbox is gone, with whatever was left in it."""
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
        """Forget all and know these: what plugins are about to be told by a Synchronize; (pod, state) by id."""
        self._unannounced.clear()
        self._pods = dict(pods)
        held = {key: known for key, known in self._containers.items() if known.is_held}
        listed = {key: _Container(pod_id, state) for key, (pod_id, state) in containers.items()}
        self._containers = {**listed, **held}

    def compare(
        self, pods: Mapping[str, State], containers: Mapping[str, tuple[str, State]], asked_at: int
    ) -> tuple[Due, ...]:
        """What has happened past us, by a list of all there is.

        What is listed and not known is known from now on, without an event: plugins were not asked about it. Its end is
        no event for them either.
        ``asked_at``: ``now`` when the list was asked for; of what was spoken of since it says nothing.
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
