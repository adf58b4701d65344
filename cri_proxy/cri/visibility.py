"""What clients must not see yet: containers and sandboxes that were made and that plugins still think about.

Entries are cut out of replies by their bytes; what stays is not encoded anew. While something is being made its
id is not known, but the runtime may list it already: so it is hidden by name first, and by its id as well later.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Callable, Optional

from google.protobuf.message import DecodeError

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.text.protobuf_bytes import FieldPath, NotProtobuf, cut

#: Sandbox id, container name and attempt: what a runtime allows one container of.
ContainerKey = tuple[str, str, int]
#: Name, namespace, uid and attempt: what a runtime allows one sandbox of.
SandboxKey = tuple[str, str, str, int]
#: Protobuf's wire type of what has a length: messages.
LENGTH = 2
#: Removed ids that are remembered; a create in trouble makes three.
GONE = 256
Filter = Callable[[bytes], Optional[bytes]]


class Visibility:
    """The register of what is hidden. Everything is taken out again by the call that has put it in."""

    def __init__(self) -> None:
        self.making: set[ContainerKey] = set()
        self.containers: set[str] = set()
        self.making_sandboxes: set[SandboxKey] = set()
        self.sandboxes: set[str] = set()
        #: What was removed before any client saw it: its events may be late.
        self._gone: deque[str] = deque(maxlen=GONE)

    def removed(self, some_id: str) -> None:
        """A container or sandbox that was hidden is no more; what the runtime still says of it stays hidden."""
        self.containers.discard(some_id)
        self.sandboxes.discard(some_id)
        self._gone.append(some_id)

    def __bool__(self) -> bool:
        return bool(self.making or self.containers or self.making_sandboxes or self.sandboxes)

    def hides_container(self, container_id: str) -> bool:
        """Whether an id, or the beginning of one as a runtime takes it, names a hidden container."""
        return _names_one_of(container_id, self.containers)

    def hides_sandbox(self, sandbox_id: str) -> bool:
        return _names_one_of(sandbox_id, self.sandboxes)

    def filter_of(self, method: str) -> Optional[Filter]:
        """What cuts hidden entries out of the replies of a method; None while there is nothing to cut."""
        if method == "GetContainerEvents":
            return self._event if self or self._gone else None
        if not self:
            return None
        if method == "PodSandboxStatus":
            return self._sandbox_status
        is_hidden = self._entries().get(method)
        return None if is_hidden is None else partial(cut_entries, number=1, is_hidden=is_hidden)

    def _entries(self) -> dict[str, Callable[[bytes], bool]]:
        """How an entry of field 1 is judged, by method."""
        return {
            "ListContainers": self._container,
            "StreamContainers": self._container,
            "ListPodSandbox": self._sandbox,
            "StreamPodSandboxes": self._sandbox,
            "ListContainerStats": self._container_stats,
            "StreamContainerStats": self._container_stats,
            "ListPodSandboxStats": self._sandbox_stats,
            "StreamPodSandboxStats": self._sandbox_stats,
            "ListPodSandboxMetrics": self._sandbox_metrics,
            "StreamPodSandboxMetrics": self._sandbox_metrics,
        }

    def _container(self, entry: bytes) -> bool:
        item = cri.Container.FromString(entry)
        key = (item.pod_sandbox_id, item.metadata.name, item.metadata.attempt)
        return item.id in self.containers or key in self.making

    def _sandbox(self, entry: bytes) -> bool:
        item = cri.PodSandbox.FromString(entry)
        return item.id in self.sandboxes or _sandbox_key(item.metadata) in self.making_sandboxes

    def _container_stats(self, entry: bytes) -> bool:
        # A container that was never started has none, in any runtime that is known.
        return cri.ContainerStats.FromString(entry).attributes.id in self.containers

    def _sandbox_stats(self, entry: bytes) -> bool:
        of = cri.PodSandboxStats.FromString(entry).attributes
        return of.id in self.sandboxes or _sandbox_key(of.metadata) in self.making_sandboxes

    def _sandbox_metrics(self, entry: bytes) -> bool:
        return cri.PodSandboxMetrics.FromString(entry).pod_sandbox_id in self.sandboxes

    def _event(self, message: bytes) -> Optional[bytes]:
        """An event of a container that is hidden is none; of others' events its status is cut out."""
        try:
            event = cri.ContainerEventResponse.FromString(message)
        except (DecodeError, UnicodeDecodeError):
            return message
        sandbox = event.pod_sandbox_status
        of_hidden_pod = (
            sandbox.id in self.sandboxes or _sandbox_key(sandbox.metadata) in self.making_sandboxes
        )
        is_known = event.container_id in self.containers or event.container_id in self._gone
        is_of_hidden = is_known or any(
            self._status(s, sandbox.id) for s in event.containers_statuses if s.id == event.container_id
        )
        if of_hidden_pod or is_of_hidden:
            return None
        return cut_entries(message, 5, self._status_in(sandbox.id))

    def _sandbox_status(self, message: bytes) -> bytes:
        try:
            status = cri.PodSandboxStatusResponse.FromString(message).status
        except (DecodeError, UnicodeDecodeError):
            return message
        return cut_entries(message, 3, self._status_in(status.id))

    def _status_in(self, sandbox_id: str) -> Callable[[bytes], bool]:
        return lambda entry: self._status(cri.ContainerStatus.FromString(entry), sandbox_id)

    def _status(self, status: cri.ContainerStatus, sandbox_id: str) -> bool:
        key = (sandbox_id, status.metadata.name, status.metadata.attempt)
        return status.id in self.containers or key in self.making


def container_key(request: cri.CreateContainerRequest) -> ContainerKey:
    """What names the container that a request is about to make."""
    return request.pod_sandbox_id, request.config.metadata.name, request.config.metadata.attempt


def sandbox_key(request: cri.RunPodSandboxRequest) -> SandboxKey:
    """What names the sandbox that a request is about to make."""
    return _sandbox_key(request.config.metadata)


def _sandbox_key(metadata: cri.PodSandboxMetadata) -> SandboxKey:
    return metadata.name, metadata.namespace, metadata.uid, metadata.attempt


def _names_one_of(wanted: str, ids: set[str]) -> bool:
    return wanted in ids or (bool(wanted) and any(known.startswith(wanted) for known in ids))


def cut_entries(message: bytes, number: int, is_hidden: Callable[[bytes], bool]) -> bytes:
    """The message without those entries of a repeated message field that are hidden; the rest is the same bytes.

    What cannot be read is returned as it is.
    """
    try:
        return cut(message, FieldPath((number,), LENGTH), is_hidden)
    except (NotProtobuf, DecodeError, UnicodeDecodeError):
        return message
