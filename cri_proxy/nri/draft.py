"""A create request on its way to be changed: what is cut out of it, what is added, and what cannot be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import NodeCapabilities, Unsupported
from cri_proxy.nri.merge import owner_of
from cri_proxy.text.protobuf_bytes import cut, place_of


@dataclass(frozen=True)
class MergedAdjustment:
    """What plugins ask of a container: ``container`` before all adjustments, ``adjust`` and ``owners`` merged."""

    container: nri.Container
    adjust: nri.ContainerAdjustment
    owners: nri.OwningPlugins


class Draft:
    """``config`` is that of the request, read; ``added`` is what will be appended to it."""

    def __init__(self, config: cri.ContainerConfig, asked: MergedAdjustment, site: NodeCapabilities) -> None:
        self.config = config
        self.asked = asked
        self.site = site
        self.added = cri.ContainerConfig()
        self.found: list[Unsupported] = []
        self._cuts: list[tuple[str, Callable[[bytes], bool]]] = []

    @property
    def is_changed(self) -> bool:
        return bool(self._cuts) or self.added.ByteSize() > 0

    def report(self, name: str, field: nri.Field.ValueType, key: str, why: str) -> None:
        """Something cannot be had; ``name`` is that of the setting, ``field`` and ``key`` name its owner."""
        plugin = owner_of(self.asked.owners, self.asked.container.id, field, key)
        what = f"{nri.Field.Name(field)} {key}".rstrip()
        self.found.append(Unsupported(name, plugin, what, why))

    def cut_entries(self, field: str, is_cut: Callable[[bytes], bool]) -> None:
        """Cut entries of a field of the config, ``linux.resources.unified``, by their bytes."""
        self._cuts.append((field, is_cut))

    def cut_equal(self, field: str, entries: Sequence[Any]) -> None:
        """Cut entries of a list of messages that were found in the config."""
        if entries:
            kind = type(entries[0])
            self.cut_entries(field, lambda content: kind.FromString(content) in entries)

    def replace(self, field: str, entry: Any, before: Sequence[Any]) -> None:
        """Have an entry in a list of messages in the place of those before it, unless it is there already."""
        if list(before) != [entry]:
            self.cut_equal(field, before)
            getattr(self.added, field).append(entry)

    def write(self, request: bytes) -> bytes:
        """The request with all of it.

        :raises NotProtobuf: the request cannot be read.
        """
        for field, is_cut in self._cuts:
            request = cut(request, place_of(cri.CreateContainerRequest, f"config.{field}"), is_cut)
        if not self.added.ByteSize():
            return request
        return request + bytes(cri.CreateContainerRequest(config=self.added).SerializeToString())
