"""Adjustments of several plugins, in index order, made into one; and so their updates of other containers.

In each plugin's answer removals come before sets, wherever they stand. A removal takes out entries of earlier plugins
and stays in the result, marked, for the request itself: ``apply`` does removals first too.
(NRI's own merge leaves that to the order of a map: pkg/adaptation/result.go and the OCI generator after it.)
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri

#: Fields with an owner for each key; other fields have one.
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


def field_text(field: nri.Field.ValueType, key: str) -> str:
    """A field that a plugin may own, with its key where it has keys."""
    return f"{nri.Field.Name(field)} {key}".rstrip()


class AdjustmentConflict(Exception):
    """Plugins' adjustments exclude each other; the text is NRI's own."""


class Claims:
    """One plugin's claims on one container. ``owners``, the message that validators are shown, is changed.

    Two plugins claiming the same are in conflict. A removal leaves a clear marker, ``-NN-name``: the plugin that
    removed an entry may set it again, no other may.
    """

    def __init__(self, owners: nri.OwningPlugins, container_id: str, plugin: str) -> None:
        self._owners = owners.owners[container_id]
        self.plugin = plugin

    def claim(self, field: nri.Field.ValueType, key: str = "") -> None:
        """The plugin sets a field, or one key of it.

        :raises AdjustmentConflict: a plugin owns it, even this one, or another one removed it.
        """
        owner = self._owner(field, key)
        has_cleared = owner == _MARKER + self.plugin
        if owner and not has_cleared:
            # Without a key the text ends in a space (pkg/api/owners.go, qualify).
            raise AdjustmentConflict(
                f'plugins "{self.plugin}" and "{plain(owner)}" both tried to set {nri.Field.Name(field)} {key}'
            )
        self._own(field, key, self.plugin)

    def clear(self, field: nri.Field.ValueType, key: str = "") -> None:
        """The plugin removes a field, or one key of it, set by any plugin."""
        self._own(field, key, _MARKER + self.plugin)

    def join(self, field: nri.Field.ValueType) -> None:
        """The plugin adds to a field that may have several owners, ``a,b,c``."""
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
    """The plugin that has set or removed a field, ``NN-name``; several of hooks are ``a,b``; "" = none."""
    if container_id not in owners.owners:
        return ""
    return plain(_raw_owner(owners.owners[container_id], field, key))


def _raw_owner(of: nri.FieldOwners, field: nri.Field.ValueType, key: str) -> str:
    # Reading a map's missing key would create it.
    if field not in KEYED:
        return str(of.simple.get(field, ""))
    if field not in of.compound:
        return ""
    return str(of.compound[field].owners.get(key, ""))


def plain(owner: str) -> str:
    """The plugin's name without the clear marker."""
    return owner[1:] if owner.startswith(_MARKER) else owner


REMOVAL = "-"
HOOKS = ("prestart", "create_runtime", "create_container", "start_container", "poststart", "poststop")
#: Whole messages below ``linux`` that the last claim sets; a container shows all of them but the memory policy.
_SINGLE = (
    ("oom_score_adj", nri.OomScoreAdj),
    ("io_priority", nri.IoPriority),
    ("seccomp_policy", nri.SeccompPolicy),
    ("scheduler", nri.LinuxSched),
    ("memory_policy", nri.MemoryPolicy),
)
_RDT = (
    ("clos_id", nri.RdtClosID),
    ("schemata", nri.RdtSchemata),
    ("enable_monitoring", nri.RdtEnableMonitoring),
)


class Merge:
    """One CreateContainer. ``pristine``: the container as the plugins before all others see it.

    ``container``: as the next plugin sees it, another object after each adjustment; ``adjust``: all adjustments so far;
    ``owners``: the plugin that set each field. ``owners`` may be given, to be shared with the updates of the same
    request.
    """

    def __init__(self, pristine: nri.Container, owners: Optional[nri.OwningPlugins] = None) -> None:
        self.pristine = pristine
        self.container = pristine
        self.adjust = nri.ContainerAdjustment()
        self.owners = nri.OwningPlugins() if owners is None else owners

    def add(self, plugin: str, asked: nri.ContainerAdjustment) -> None:
        """Add the next plugin's, ``NN-name``: all of it, or nothing.

        :raises AdjustmentConflict: it sets a field that another plugin, or itself, has set.
        """
        if not asked.ByteSize():
            return
        owners = _copy(self.owners)
        step = _Step(
            Claims(owners, self.pristine.id, plugin), asked, _copy(self.adjust), _copy(self.container)
        )
        _merge_lists(step)
        _merge_args(step, self.pristine)
        _merge_hooks(step)
        if asked.HasField("linux"):
            _merge_linux(step)
        self.adjust, self.container = step.adjust, step.container
        self.owners.CopyFrom(owners)


@dataclass(frozen=True)
class _Step:
    """One plugin's answer being merged, and the copies it changes."""

    claims: Claims
    asked: nri.ContainerAdjustment
    adjust: nri.ContainerAdjustment
    container: nri.Container


def _merge_lists(step: _Step) -> None:
    asked, adjust, container = step.asked, step.adjust, step.container
    _merge_map(step, nri.Annotations, asked.annotations, (adjust.annotations, container.annotations))
    _merge_list(step, _MOUNTS, asked.mounts, (adjust.mounts, container.mounts))
    _merge_list(step, _ENV, asked.env, (adjust.env, container.env))
    _merge_list(step, _RLIMITS, asked.rlimits, (adjust.rlimits, container.rlimits))
    _merge_list(step, _CDI_DEVICES, asked.CDI_devices, (adjust.CDI_devices, container.CDI_devices))


def _merge_linux(step: _Step) -> None:
    asked, adjust, container = step.asked.linux, step.adjust.linux, step.container.linux
    _merge_list(step, _DEVICES, asked.devices, (adjust.devices, container.devices))
    overlay(asked.resources, step.claims, adjust.resources, container.resources)
    if asked.cgroups_path:
        step.claims.claim(nri.CgroupsPath)
        adjust.cgroups_path = container.cgroups_path = asked.cgroups_path
    for name, field in _SINGLE:
        if asked.HasField(name):
            step.claims.claim(field)
            getattr(adjust, name).CopyFrom(getattr(asked, name))
            if field != nri.MemoryPolicy:
                getattr(container, name).CopyFrom(getattr(asked, name))
    _merge_list(step, _NAMESPACES, asked.namespaces, (adjust.namespaces, container.namespaces))
    _merge_map(step, nri.Sysctl, asked.sysctl, (adjust.sysctl, container.sysctl))
    _merge_map(step, nri.LinuxNetDevices, asked.net_devices, (adjust.net_devices, container.net_devices))
    if asked.HasField("rdt"):
        _merge_rdt(step)


# ---------------------------------------------------------------------- entries with a key


@dataclass(frozen=True)
class _Kind:
    """A list whose entries have a key: its owner, the key's field, an entry as a container shows it."""

    field: nri.Field.ValueType
    key: str
    has_removals: bool = True
    shown: Optional[Callable[[Any], Any]] = None

    def key_of(self, entry: Any) -> str:
        """The key of an entry as asked for, with the mark of a removal, or as a container shows it."""
        return str(entry.partition("=")[0] if isinstance(entry, str) else getattr(entry, self.key))

    def is_removal(self, entry: Any) -> bool:
        return self.has_removals and self.key_of(entry).startswith(REMOVAL)


_MOUNTS = _Kind(nri.Mounts, "destination")
_ENV = _Kind(nri.Env, "key", shown=lambda entry: f"{entry.key}={entry.value}")
_DEVICES = _Kind(nri.Devices, "path")
_NAMESPACES = _Kind(nri.Namespace, "type")
_RLIMITS = _Kind(nri.Rlimits, "type", has_removals=False)
_CDI_DEVICES = _Kind(nri.CdiDevices, "name", has_removals=False)


def _merge_list(step: _Step, kind: _Kind, asked: Any, targets: tuple[Any, Any]) -> None:
    """``targets``: the list of the result and that of the container."""
    result, shown = targets
    # 1. Removals: from earlier plugins' entries, and from the container.
    for removal in filter(kind.is_removal, asked):
        marked = kind.key_of(removal)
        key = marked[len(REMOVAL) :]
        step.claims.clear(kind.field, key)
        _drop(result, kind, {key, marked})
        _drop(shown, kind, {key})
        result.append(removal)
    # 2. Sets replace the container's entry with the same key.
    for entry in asked:
        if not kind.is_removal(entry):
            key = kind.key_of(entry)
            step.claims.claim(kind.field, key)
            result.append(entry)
            _drop(shown, kind, {key})
            shown.append(kind.shown(entry) if kind.shown else entry)


def _drop(entries: Any, kind: _Kind, keys: set[str]) -> None:
    for index in reversed(range(len(entries))):
        if kind.key_of(entries[index]) in keys:
            del entries[index]


def _merge_map(step: _Step, field: nri.Field.ValueType, asked: Any, targets: tuple[Any, Any]) -> None:
    """As ``_merge_list``, for maps: in alphabetical order, as theirs means nothing."""
    result, shown = targets
    for marked in sorted(key for key in asked if key.startswith(REMOVAL)):
        key = marked[len(REMOVAL) :]
        step.claims.clear(field, key)
        for entries in targets:
            entries.pop(key, None)
        _set(result, marked, asked[marked])
    for key in sorted(key for key in asked if not key.startswith(REMOVAL)):
        step.claims.claim(field, key)
        _set(result, key, asked[key])
        _set(shown, key, asked[key])


def _set(entries: MutableMapping[str, Any], key: str, value: Any) -> None:
    if isinstance(value, str):
        entries[key] = value
    else:
        entries[key].CopyFrom(value)


# ---------------------------------------------------------------------- fields that are owned as one


def _merge_args(step: _Step, pristine: nri.Container) -> None:
    """A first argument "" overrides other plugins; the rest is the command, or where empty the old one."""
    args = list(step.asked.args)
    if not args:
        return
    if not args[0]:
        args = args[1:]
        step.claims.clear(nri.Args)
        del step.adjust.args[:]
        step.container.args[:] = pristine.args
    if args:
        step.claims.claim(nri.Args)
        step.adjust.args[:] = args
        step.container.args[:] = args


def _merge_hooks(step: _Step) -> None:
    """Hooks add up; no plugin removes another's."""
    for name in HOOKS:
        hooks = getattr(step.asked.hooks, name)
        if hooks:
            step.claims.join(nri.OciHooks)
            getattr(step.adjust.hooks, name).extend(hooks)
            getattr(step.container.hooks, name).extend(hooks)


def _merge_rdt(step: _Step) -> None:
    asked, adjust, container = step.asked.linux.rdt, step.adjust.linux, step.container.linux
    if asked.remove:
        for _, field in _RDT:
            step.claims.clear(field)
        adjust.rdt.CopyFrom(nri.LinuxRdt(remove=True))
        container.ClearField("rdt")
    for name, field in _RDT:
        if asked.HasField(name):
            step.claims.claim(field)
            adjust.rdt.remove = False
            getattr(adjust.rdt, name).CopyFrom(getattr(asked, name))
            getattr(container.rdt, name).CopyFrom(getattr(asked, name))


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


# ---------------------------------------------------------------------- resources


#: Fields that are set when present, also to 0, with their owner's field.
MEMORY = (
    ("limit", nri.MemLimit),
    ("reservation", nri.MemReservation),
    ("swap", nri.MemSwapLimit),
    ("kernel", nri.MemKernelLimit),
    ("kernel_tcp", nri.MemTCPLimit),
    ("swappiness", nri.MemSwappiness),
    ("disable_oom_killer", nri.MemDisableOomKiller),
    ("use_hierarchy", nri.MemUseHierarchy),
)
CPU = (
    ("shares", nri.CPUShares),
    ("quota", nri.CPUQuota),
    ("period", nri.CPUPeriod),
    ("realtime_runtime", nri.CPURealtimeRuntime),
    ("realtime_period", nri.CPURealtimePeriod),
)
#: Fields that are set when not empty: they cannot be emptied.
CPUSETS = (("cpus", nri.CPUSetCPUs), ("mems", nri.CPUSetMems))
WHOLE = (("blockio_class", nri.BlockioClass), ("rdt_class", nri.RdtClass), ("pids", nri.PidsLimit))


def overlay(asked: nri.LinuxResources, claims: Claims, *targets: nri.LinuxResources) -> None:
    """Lay a plugin's resources over each target, claiming every field.

    :raises AdjustmentConflict: a field is another plugin's; the targets are half done then.
    """
    for name, field in MEMORY:
        if asked.memory.HasField(name):
            claims.claim(field)
            for target in targets:
                getattr(target.memory, name).CopyFrom(getattr(asked.memory, name))
    for name, field in CPU:
        if asked.cpu.HasField(name):
            claims.claim(field)
            for target in targets:
                getattr(target.cpu, name).CopyFrom(getattr(asked.cpu, name))
    for name, field in CPUSETS:
        if getattr(asked.cpu, name):
            claims.claim(field)
            for target in targets:
                setattr(target.cpu, name, getattr(asked.cpu, name))
    for name, field in WHOLE:
        if asked.HasField(name):
            claims.claim(field)
            for target in targets:
                getattr(target, name).CopyFrom(getattr(asked, name))
    _overlay_lists(asked, claims, *targets)


def _overlay_lists(asked: nri.LinuxResources, claims: Claims, *targets: nri.LinuxResources) -> None:
    for limit in asked.hugepage_limits:
        claims.claim(nri.HugepageLimits, limit.page_size)
        for target in targets:
            others = [other for other in target.hugepage_limits if other.page_size != limit.page_size]
            del target.hugepage_limits[:]
            target.hugepage_limits.extend([*others, limit])
    for key, value in sorted(asked.unified.items()):
        claims.claim(nri.CgroupsUnified, key)
        for target in targets:
            target.unified[key] = value
    # Device rules of a cgroup have no owner: they add up.
    for target in targets if asked.devices else ():
        target.devices.extend(asked.devices)


class MergedUpdates:
    """The updates of one CreateContainer, UpdateContainer, StopContainer or Synchronize.

    ``created``: the container being created, which no update may name. ``updated``: the one that the request updates to
    ``resources``; plugins' updates lie over these. ``owners`` may be shared with a ``Merge``.
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
        """Add the updates of the next plugin, ``NN-name``. Returns a sentence for each one left out.

        Left out are updates without a container, and conflicting ones that may fail (``ignore_failure``): whole,
        with their claims.

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
            # It may fail only if every plugin says so.
            merged.ignore_failure = before.ignore_failure and asked.ignore_failure
        overlay(asked.linux.resources, Claims(owners, key, plugin), merged.linux.resources)
        self._updates[key] = merged
        self.owners.CopyFrom(owners)

    @property
    def result(self) -> list[nri.ContainerUpdate]:
        """The updates in the order of asking, the one of the request's own container last.

        That one exists only if a plugin asked for it.
        """
        others = [update for key, update in self._updates.items() if key != self._updated]
        own = self._updates.get(self._updated)
        return others if own is None else [*others, own]
