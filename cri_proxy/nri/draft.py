"""A create request being changed: the entries to cut and to add, and the ones CRI cannot say.

Annotations, mounts and devices that plugins ask for are written into it here; the rest in ``apply.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import ISOLATED, Cdi, NodeCapabilities, Unsupported
from cri_proxy.nri.merge import REMOVAL, field_text, owner_of
from cri_proxy.text.protobuf_bytes import cut, place_of

#: Kubelet's own annotations: it reads them back from the runtime.
KUBELET_ANNOTATIONS = "io.kubernetes.container."
#: containerd and CRI-O read a container's classes from these.
BLOCKIO_ANNOTATION, RDT_ANNOTATION = "io.kubernetes.cri.blockio-class", "io.kubernetes.cri.rdt-class"
#: CDI devices of all plugins, for runtimes that read annotations only.
CDI_ANNOTATION = "cdi.k8s.io/nri"
#: Mount options in CRI's words. All its mounts are recursive; a mount of one file or of a folder with nothing mounted
#: below is the same either way.
_PROPAGATION = {
    "private": cri.PROPAGATION_PRIVATE,
    "rprivate": cri.PROPAGATION_PRIVATE,
    "slave": cri.PROPAGATION_HOST_TO_CONTAINER,
    "rslave": cri.PROPAGATION_HOST_TO_CONTAINER,
    "shared": cri.PROPAGATION_BIDIRECTIONAL,
    "rshared": cri.PROPAGATION_BIDIRECTIONAL,
}
_READ_ONLY, _PLAIN = ("ro", "rro"), ("bind", "rbind", "rw")
_BIND_TYPES = ("", "bind", "none")


@dataclass(frozen=True)
class MergedAdjustment:
    """All plugins' adjustments of a container: ``container`` before them, ``adjust`` and ``owners`` merged."""

    container: nri.Container
    adjust: nri.ContainerAdjustment
    owners: nri.OwningPlugins


class Draft:
    """``config`` is the request's own, read; ``added`` will be appended to it."""

    def __init__(self, config: cri.ContainerConfig, asked: MergedAdjustment, site: NodeCapabilities) -> None:
        self.config = config
        self.asked = asked
        self.site = site
        self.added = cri.ContainerConfig()
        self.found: list[Unsupported] = []
        #: What isolation does of it: ``ContainerRecord.asked``.
        self.heard: dict[str, str] = {}
        self._cuts: list[tuple[str, Callable[[bytes], bool]]] = []

    @property
    def is_changed(self) -> bool:
        return bool(self._cuts) or self.added.ByteSize() > 0

    def report(self, name: str, field: nri.Field.ValueType, key: str, why: str) -> None:
        """CRI cannot say a value; ``name`` is its setting, ``field`` and ``key`` name its owner."""
        plugin = owner_of(self.asked.owners, self.asked.container.id, field, key)
        self.found.append(Unsupported(name, plugin, field_text(field, key), why))

    def cut_entries(self, field: str, is_cut: Callable[[bytes], bool]) -> None:
        """Cut entries of a field of the config, ``linux.resources.unified``, by their bytes."""
        self._cuts.append((field, is_cut))

    def cut_equal(self, field: str, entries: Sequence[Any]) -> None:
        """Cut entries of a list of messages that were found in the config."""
        if entries:
            kind = type(entries[0])
            self.cut_entries(field, lambda content: kind.FromString(content) in entries)

    def replace(self, field: str, entry: Any, before: Sequence[Any]) -> None:
        """Put an entry in the place of ``before`` in a list of messages, unless it is there already."""
        if list(before) != [entry]:
            self.cut_equal(field, before)
            getattr(self.added, field).append(entry)

    def write(self, request: bytes) -> bytes:
        """The changed request.

        :raises NotProtobuf: the request cannot be read.
        """
        for field, is_cut in self._cuts:
            request = cut(request, place_of(cri.CreateContainerRequest, f"config.{field}"), is_cut)
        if not self.added.ByteSize():
            return request
        return request + bytes(cri.CreateContainerRequest(config=self.added).SerializeToString())


# ---------------------------------------------------------------------- annotations


def write_annotations(draft: Draft) -> None:
    """Annotations set and removed; classes, where CRI takes them by annotation only."""
    adjust = draft.asked.adjust
    removed = [key[len(REMOVAL) :] for key in sorted(adjust.annotations) if key.startswith(REMOVAL)]
    sets = {key: value for key, value in adjust.annotations.items() if not key.startswith(REMOVAL)}
    for key in sorted({*removed, *sets}):
        if key.startswith(KUBELET_ANNOTATIONS):
            if sets.get(key) != draft.config.annotations.get(key):
                draft.report("annotations", nri.Annotations, key, "it is kubelet's own, which it reads back")
        else:
            _write_annotation(draft, key, sets.get(key))
    resources = adjust.linux.resources
    for name, field, key in (
        ("blockio_class", nri.BlockioClass, BLOCKIO_ANNOTATION),
        ("rdt_class", nri.RdtClass, RDT_ANNOTATION),
    ):
        if not resources.HasField(name):
            continue
        wanted = getattr(resources, name).value
        if draft.site.hears(name, wanted):
            # Runtimes fail the create for a class that they have not.
            draft.heard[name] = wanted
        elif name in draft.site.classes:
            _write_annotation(draft, key, wanted or None)
        elif wanted:
            why = f'the runtime has no annotation for "{wanted}", and CRI no field; {ISOLATED[name]}'
            draft.report(name, field, "", why)


def _write_annotation(draft: Draft, key: str, value: Optional[str]) -> None:
    """Set an annotation; None: take it out."""
    entry = cri.ContainerConfig.AnnotationsEntry
    before = draft.config.annotations.get(key)
    if before is not None and before != value:
        draft.cut_entries("annotations", lambda content: entry.FromString(content).key == key)
    if value is not None and before != value:
        draft.added.annotations[key] = value


# ---------------------------------------------------------------------- mounts


def write_mounts(draft: Draft) -> None:
    """Set bind mounts, and remove mounts of the request."""
    asked = draft.asked.adjust.mounts
    sets = [mount for mount in asked if not mount.destination.startswith(REMOVAL)]
    places = {_clean(mount.destination) for mount in sets}
    for mount in asked:
        if not mount.destination.startswith(REMOVAL):
            continue
        key = mount.destination[len(REMOVAL) :]
        if _clean(key) in places:
            continue
        found = [m for m in draft.config.mounts if _clean(m.container_path) == _clean(key)]
        draft.cut_equal("mounts", found)
        if not found and _has(draft.asked.container.mounts, "destination", key):
            draft.report(
                "mount_removal", nri.Mounts, key, "the runtime or the image brings it, not the request"
            )
    for mount in sets:
        _write_mount(draft, mount)


def _write_mount(draft: Draft, mount: nri.Mount) -> None:
    why = _not_in_cri(mount)
    if why:
        draft.report("mounts", nri.Mounts, mount.destination, why)
        return
    # Without a word of propagation runc makes a slave of the host's mount.
    added = cri.Mount(
        container_path=mount.destination,
        host_path=mount.source,
        propagation=cri.PROPAGATION_HOST_TO_CONTAINER,
    )
    for option in mount.options:
        if option in _PROPAGATION:
            added.propagation = _PROPAGATION[option]
        if option in _READ_ONLY:
            added.readonly = True
        if option == "rro":
            added.recursive_read_only = True
    # The runtime refuses what NRI allows: to follow the mounts below a private mount.
    if added.propagation == cri.PROPAGATION_HOST_TO_CONTAINER and not draft.site.is_followed(mount.source):
        added.propagation = cri.PROPAGATION_PRIVATE
    draft.replace("mounts", added, _same_place(draft.config.mounts, mount.destination))


def _same_place(mounts: Iterable[cri.Mount], destination: str) -> list[cri.Mount]:
    return [mount for mount in mounts if _clean(mount.container_path) == _clean(destination)]


def _not_in_cri(mount: nri.Mount) -> str:
    """Why CRI cannot express a mount; "" if it can."""
    if mount.type not in _BIND_TYPES:
        return f"CRI has bind mounts only, not {mount.type}"
    if mount.type != "bind" and not {"bind", "rbind"}.intersection(mount.options):
        return "CRI has bind mounts only"
    if not mount.source.startswith("/"):
        return f'a bind mount needs an absolute path on the host, not "{mount.source}"'
    unknown = [o for o in mount.options if o not in _PLAIN and o not in _READ_ONLY and o not in _PROPAGATION]
    return f"CRI has no mount option {', '.join(unknown)}" if unknown else ""


def _clean(path: str) -> str:
    return path.rstrip("/") or "/"


# ---------------------------------------------------------------------- devices


def write_devices(draft: Draft) -> None:
    """Set devices that have a node on the host; remove devices of the request."""
    linux = draft.asked.adjust.linux
    sets = [device for device in linux.devices if not device.path.startswith(REMOVAL)]
    paths = {device.path for device in sets}
    for device in linux.devices:
        key = device.path[len(REMOVAL) :]
        if not device.path.startswith(REMOVAL) or key in paths:
            continue
        found = [d for d in draft.config.devices if d.container_path == key]
        draft.cut_equal("devices", found)
        if not found and _has(draft.asked.container.linux.devices, "path", key):
            draft.report("device_removal", nri.Devices, key, "the runtime or CDI brings it, not the request")
    for device in sets:
        _write_device(draft, device)
    for rule in linux.resources.devices:
        is_of_device = rule.allow and any(_is_rule_of(rule, device) for device in sets)
        if not is_of_device and rule not in draft.asked.container.linux.resources.devices:
            number = f"{rule.type or 'a'} {_number(rule, 'major')}:{_number(rule, 'minor')}"
            draft.report("device_rules", nri.Devices, number, "CRI has no rules for devices")


def _write_device(draft: Draft, device: nri.LinuxDevice) -> None:
    node = draft.site.host_node(device)
    if not node:
        asked = [name for name in ("file_mode", "uid", "gid") if device.HasField(name)]
        like = f" with the {' and '.join(asked)} asked for" if asked else ""
        number = f"{device.type or 'c'} {device.major}:{device.minor}"
        why = f"this host has no node for {number}{like}, and CRI takes one by its path"
        draft.report("devices", nri.Devices, device.path, why)
        return
    added = cri.Device(container_path=device.path, host_path=node, permissions=_permissions(draft, device))
    before = [d for d in draft.config.devices if d.container_path == device.path]
    draft.replace("devices", added, before)


def _permissions(draft: Draft, device: nri.LinuxDevice) -> str:
    """From the rule that comes with the device; else NRI's default (pkg/api/device.go)."""
    for rule in draft.asked.adjust.linux.resources.devices:
        if rule.allow and rule.access and _is_rule_of(rule, device):
            return str(rule.access)
    return "rwm" if device.type == "b" else "rw"


def _is_rule_of(rule: nri.LinuxDeviceCgroup, device: nri.LinuxDevice) -> bool:
    of = (device.type, device.major, device.minor)
    return (rule.type, rule.major.value, rule.minor.value) == of and rule.HasField("major")


def _number(rule: nri.LinuxDeviceCgroup, name: str) -> str:
    return str(getattr(rule, name).value) if rule.HasField(name) else "*"


def write_cdi_devices(draft: Draft) -> None:
    """CDI devices, in the way the runtime takes them."""
    had = {device.name for device in draft.config.CDI_devices}
    names = [device.name for device in draft.asked.adjust.CDI_devices if device.name not in had]
    if draft.site.cdi is Cdi.FIELD:
        draft.added.CDI_devices.extend(cri.CDIDevice(name=name) for name in names)
    elif draft.site.cdi is Cdi.ANNOTATION and names:
        _write_annotation(draft, CDI_ANNOTATION, ",".join(names))
    else:
        for name in names:
            draft.report("cdi_devices", nri.CdiDevices, name, "the runtime knows no CDI devices")


# ---------------------------------------------------------------------- entries


def _has(entries: Iterable[Any], name: str, key: str) -> bool:
    return any(_clean(getattr(entry, name)) == _clean(key) for entry in entries)
