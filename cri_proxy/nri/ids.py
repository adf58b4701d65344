"""The id that plugins know a container by, where it is not the runtime's.

What a plugin asks for may take another create, after which the runtime calls the container something else. A plugin
has made things by the id that it was asked about (a folder that it mounts, an entry of its own state): so it keeps
that id for the container's whole life. The container's annotation says which, to any daemon that lists it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from cri_api import runtime_v1_pb2 as cri

#: The annotation of a container that plugins know by another id than the runtime.
PLUGIN_ID = "nri.cri-resmgr.io/container-id"


def annotated(shown_id: str) -> bytes:
    """What is appended to a CreateContainerRequest for that."""
    config = cri.ContainerConfig(annotations={PLUGIN_ID: shown_id})
    return bytes(cri.CreateContainerRequest(config=config).SerializeToString())


class Ids:
    """The pairs of ids that differ; all other containers have the runtime's."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._real: dict[str, str] = {}

    def note(self, container_id: str, annotations: Mapping[str, str]) -> None:
        """What the runtime tells of a container says how plugins know it."""
        shown_id = annotations.get(PLUGIN_ID, "")
        if shown_id and shown_id != container_id:
            self._shown[container_id] = shown_id
            self._real[shown_id] = container_id

    def shown(self, container_id: str) -> str:
        """The id for plugins of a container of the runtime's."""
        return self._shown.get(container_id, container_id)

    def real(self, shown_id: str) -> str:
        """The runtime's id of a container that a plugin names."""
        return self._real.get(shown_id, shown_id)

    def forget(self, container_id: str) -> None:
        shown_id = self._shown.pop(container_id, "")
        if self._real.get(shown_id) == container_id:
            del self._real[shown_id]

    def keep(self, is_there: Callable[[str], bool]) -> None:
        """Forget all others, of the runtime's ids."""
        for key in [key for key in self._shown if not is_there(key)]:
            self.forget(key)
