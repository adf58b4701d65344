"""Updates of containers that plugins ask for in their answers, made into one list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.merge import AdjustmentConflict, Claims, overlay


class MergedUpdates:
    """The updates of one CreateContainer, UpdateContainer, StopContainer or Synchronize.

    ``created``: the container that is being created, which no update may name. ``updated``: the one that the request
    updates to ``resources``; what plugins ask for it lies over these. ``owners`` may be shared with a ``Merge``.
    """

    def __init__(
        self,
        owners: Optional[nri.OwningPlugins] = None,
        created: str = "",
        updated: str = "",
        resources: Optional[nri.LinuxResources] = None,
    ) -> None:
        self.owners = nri.OwningPlugins() if owners is None else owners
        self._created = created
        self._updated = updated
        self._resources = nri.LinuxResources() if resources is None else resources
        self._updates: dict[str, nri.ContainerUpdate] = {}

    def add(self, plugin: str, updates: Iterable[nri.ContainerUpdate]) -> list[str]:
        """Add what the next plugin, ``NN-name``, asks for. What was left out of it comes back, a sentence each.

        Left out are updates without a container, and those in conflict that may fail (``ignore_failure``): whole,
        with what they had claimed.

        :raises AdjustmentConflict: an update that may not fail is in conflict, or names the container being created.
        """
        left_out = []
        for update in updates:
            if not update.container_id:
                left_out.append(
                    f'plugin "{plugin}" asked for an update of no container: its container_id is empty'
                )
                continue
            if update.container_id == self._created:
                raise AdjustmentConflict(
                    f'plugin "{plugin}" asked update of "{self._created}" during creation'
                )
            try:
                self._add(plugin, update)
            except AdjustmentConflict as conflict:
                if not update.ignore_failure:
                    raise
                left_out.append(f"update of {update.container_id} left out: {conflict}")
        return left_out

    def _add(self, plugin: str, asked: nri.ContainerUpdate) -> None:
        key = asked.container_id
        owners, merged = nri.OwningPlugins(), nri.ContainerUpdate()
        owners.CopyFrom(self.owners)
        before = self._updates.get(key)
        if before is None:
            merged.container_id = key
            merged.ignore_failure = asked.ignore_failure
            if key == self._updated:
                merged.linux.resources.CopyFrom(self._resources)
        else:
            merged.CopyFrom(before)
            # It may fail only if all that ask for it say so.
            merged.ignore_failure = before.ignore_failure and asked.ignore_failure
        overlay(asked.linux.resources, Claims(owners, key, plugin), merged.linux.resources)
        self._updates[key] = merged
        self.owners.CopyFrom(owners)

    @property
    def result(self) -> list[nri.ContainerUpdate]:
        """The updates in the order they were first asked for, that of the request's own container last.

        The own one is there only if a plugin has asked for it.
        """
        others = [update for key, update in self._updates.items() if key != self._updated]
        own = self._updates.get(self._updated)
        return others if own is None else [*others, own]
