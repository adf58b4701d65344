"""Which plugin has set what of which container: the ownership by which NRI finds two plugins in conflict.

Kept as the message that validators are shown. A removal leaves a clear marker, ``-NN-name``: the plugin that has
removed something may set it again, nobody else may.
"""

from __future__ import annotations

from cri_api import nri_v1alpha1_pb2 as nri

#: Fields that are owned key by key; the others are owned as one.
KEYED = frozenset(
    [
        nri.Annotations,
        nri.Mounts,
        nri.Devices,
        nri.CdiDevices,
        nri.Env,
        nri.HugepageLimits,
        nri.CgroupsUnified,
        nri.Rlimits,
        nri.Namespace,
        nri.Sysctl,
        nri.LinuxNetDevices,
    ]
)
_MARKER = "-"


class Conflict(Exception):
    """What plugins ask for cannot be had together; the text is NRI's own."""


class Claims:
    """What one plugin claims of one container. ``owners`` is changed."""

    def __init__(self, owners: nri.OwningPlugins, container_id: str, plugin: str) -> None:
        self._owners = owners.owners[container_id]
        self.plugin = plugin

    def claim(self, field: nri.Field.ValueType, key: str = "") -> None:
        """The plugin sets a field, or one key of it.

        :raises Conflict: somebody owns it, and be it this plugin, or another one has removed it.
        """
        owner = self._owner(field, key)
        has_cleared = owner == _MARKER + self.plugin
        if owner and not has_cleared:
            # Of what has no key the text ends in a space (pkg/api/owners.go, qualify).
            raise Conflict(
                f'plugins "{self.plugin}" and "{plain(owner)}" both tried to set {nri.Field.Name(field)} {key}'
            )
        self._own(field, key, self.plugin)

    def clear(self, field: nri.Field.ValueType, key: str = "") -> None:
        """The plugin removes a field, or one key of it, whoever has set it."""
        self._own(field, key, _MARKER + self.plugin)

    def join(self, field: nri.Field.ValueType) -> None:
        """The plugin adds to a field that several may add to: its owners are listed, ``a,b,c``."""
        owners = [owner for owner in self._owner(field, "").split(",") if owner]
        if self.plugin not in owners:
            self._own(field, "", ",".join([*owners, self.plugin]))

    def _owner(self, field: nri.Field.ValueType, key: str) -> str:
        return _raw_owner(self._owners, field, key)

    def _own(self, field: nri.Field.ValueType, key: str, owner: str) -> None:
        if field in KEYED:
            self._owners.compound[field].owners[key] = owner
        else:
            self._owners.simple[field] = owner


def owner_of(owners: nri.OwningPlugins, container_id: str, field: nri.Field.ValueType, key: str = "") -> str:
    """Who has set or removed a field of a container, ``NN-name``; several of hooks are ``a,b``; "" = nobody."""
    if container_id not in owners.owners:
        return ""
    return plain(_raw_owner(owners.owners[container_id], field, key))


def _raw_owner(of: nri.FieldOwners, field: nri.Field.ValueType, key: str) -> str:
    # A protobuf map makes a message that it is asked for.
    if field not in KEYED:
        return str(of.simple.get(field, ""))
    if field not in of.compound:
        return ""
    return str(of.compound[field].owners.get(key, ""))


def plain(owner: str) -> str:
    """The plugin's name without the clear marker."""
    return owner[1:] if owner.startswith(_MARKER) else owner
