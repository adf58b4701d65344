"""What this node and its runtime can do for plugins: the facts that ``nri/apply.py`` decides by.

And files that must exist before a request is sent: seccomp profiles, nodes of devices.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.bounded_files import read_text
from cri_proxy.config.config import Config
from cri_proxy.config.options.nri_capabilities import (
    CLASSES,
    REACTIONS,
    Cdi,
    NodeCapabilities,
    Reaction,
    Unsupported,
    is_rejected,
)
from cri_proxy.config.options.table import BY_KEY
from cri_proxy.engine.model import LEFT_ALONE, ContainerRecord
from cri_proxy.node.mounts import Mounts
from cri_proxy.nri.apply import Applied, apply, resources_of
from cri_proxy.nri.draft import MergedAdjustment
from cri_proxy.nri.io.host.host import Merged, PluginRefused
from cri_proxy.nri.merge import field_text
from cri_proxy.services.services import Services

ENFORCE, BLOCKIO = "enforce", "control.blockio"
#: Has devices by their numbers.
SYS_DEV, DEV = Path("/sys/dev"), Path("/dev")
MOUNTINFO = Path("/proc/self/mountinfo")
#: The mode of a node that the host lacks and no plugin gives one.
_ANYBODYS = 0o666
_KINDS = {"b": ("block", stat.S_IFBLK), "c": ("char", stat.S_IFCHR), "u": ("char", stat.S_IFCHR)}


@dataclass(frozen=True)
class HostFiles:
    """Folders of the host's devices, and of the nodes that we make."""

    sys_dev: Path
    dev: Path
    made: Path

    def node(self, device: nri.LinuxDevice) -> str:
        """The path of a node that is this device, with the mode and owner asked for; "" if there is none and none can be
        made.
        """
        if device.type not in _KINDS:
            return ""
        folder, kind = _KINDS[device.type]
        number = os.makedev(device.major, device.minor)
        paths = [self.dev / device.path.removeprefix("/dev/")] if device.path.startswith("/dev/") else []
        with contextlib.suppress(OSError):
            lines = read_text(
                self.sys_dev / folder / f"{device.major}:{device.minor}" / "uevent"
            ).splitlines()
            paths += [self.dev / line[len("DEVNAME=") :] for line in lines if line.startswith("DEVNAME=")]
        found = {path: node for path in paths if (node := _device(path, kind, number)) is not None}
        # 1. One that the host has.
        default = next(iter(found.values()), _Node(_ANYBODYS))
        wanted = _wanted(device, default)
        for path, node in found.items():
            if node == wanted:
                return str(path)
        # 2. One of our own. The runtime reads its numbers, mode and owner only; opening it may fail.
        made = self.made / f"{folder}-{device.major}-{device.minor}-{wanted.mode:o}-{wanted.uid}-{wanted.gid}"
        try:
            if _device(made, kind, number) != wanted:
                self.made.mkdir(mode=0o700, parents=True, exist_ok=True)
                made.unlink(missing_ok=True)
                os.mknod(made, kind | wanted.mode, number)
                os.chown(made, wanted.uid, wanted.gid)
                made.chmod(wanted.mode)
        except OSError:
            return ""
        return str(made)


class _Node(NamedTuple):
    """What a runtime takes from a device's node beside its numbers."""

    mode: int
    uid: int = 0
    gid: int = 0


def _device(path: Path, kind: int, number: int) -> Optional[_Node]:
    """A node, if there is one and it is this device."""
    try:
        found = path.stat()
    except OSError:
        return None
    if stat.S_IFMT(found.st_mode) != kind or found.st_rdev != number:
        return None
    return _Node(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def _wanted(device: nri.LinuxDevice, default: _Node) -> _Node:
    return _Node(
        device.file_mode.value & 0o777 if device.HasField("file_mode") else default.mode,
        device.uid.value if device.HasField("uid") else default.uid,
        device.gid.value if device.HasField("gid") else default.gid,
    )


class Capabilities:
    """One for the daemon; runtime version and configuration may change, and are read at each use."""

    def __init__(
        self, services: Services, sys_dev: Path = SYS_DEV, dev: Path = DEV, mountinfo: Path = MOUNTINFO
    ) -> None:
        self._services = services
        self._mounts = Mounts(mountinfo)
        # The runtime reads them in its create only. In /run no slow disk holds up the daemon.
        self._run = Path(services.config["control.socket"]).parent
        self._files = HostFiles(sys_dev, dev, self._run / "nri-devices")

    @property
    def site(self) -> NodeCapabilities:
        """The node as it is now."""
        config, runtime, root = (
            self._services.config,
            self._services.runtime,
            Path(self._services.config["topology.cgroup_root"]),
        )
        is_v2 = (root / "cgroup.controllers").exists()
        return NodeCapabilities(
            cgroup_v2=is_v2,
            hugetlb=_has_hugetlb(root, is_v2),
            cdi=cdi_of(runtime.name, runtime.version),
            classes=classes_of(runtime.name, runtime.version),
            host_node=self._files.node,
            is_followed=self._is_followed,
            seccomp_folder=str(self._run / "seccomp"),
            reactions=reactions(config["nri.warn"]),
            isolated=isolated_by(config) if self._services.node_state.enforcing else {},
        )

    def _is_followed(self, path: str) -> bool:
        mount = self._mounts.of(path)
        return mount.is_followed or not mount.point

    def express(
        self, merged: Merged, request: bytes, container: nri.Container, is_isolated: bool = True
    ) -> Applied:
        """The create request with plugins' adjustments; the files it needs are written. ``is_isolated``: whether isolation
        treats the container.

        :raises PluginRefused: CRI cannot express an adjustment that must not be left out.
        """
        if not merged.adjust.ByteSize():
            return Applied(request, False, cri.LinuxContainerResources(), (), (), None)
        site = self.site if is_isolated else replace(self.site, isolated={})
        applied = apply(request, MergedAdjustment(container, merged.adjust, merged.owners), site)
        self._refuse(container.id, applied.rejected, applied.warned)
        if applied.seccomp is not None:
            _write(Path(applied.seccomp.path), applied.seccomp.content)
        return applied

    def resources(
        self,
        update: nri.ContainerUpdate,
        container: Optional[nri.Container] = None,
        plugin: str = "",
        container_id: str = "",
    ) -> cri.LinuxContainerResources:
        """An update as CRI resources. ``plugin``: which has asked for it, "" where that is not known.

        ``container``: as plugins know it; a value that it has already passes. ``container_id``: the runtime's; what
        isolation does of the update is in the container's record then.

        :raises PluginRefused: CRI cannot express a value that must not be left out.
        """
        site, found = self.site, []

        def report(name: str, field: Any, key: str, why: str) -> None:
            found.append(Unsupported(name, plugin, field_text(field, key), why))

        current = None if container is None else container.linux.resources
        heard: dict[str, str] = {}
        grant = self._isolated(container_id)
        linux = resources_of(update, site, report, current, None if grant is None else heard)
        rejected = [each for each in found if is_rejected(each, site)]
        self._refuse(update.container_id, rejected, [each for each in found if each not in rejected])
        engine = self._services.node_state.active()
        if heard and engine is not None:
            engine.heard(container_id, heard)
            self._services.node_state.save()
        return linux

    def _isolated(self, container_id: str) -> Optional[ContainerRecord]:
        """The record of a container that isolation treats."""
        engine = self._services.node_state.active()
        grant = None if engine is None else engine.grants.get(container_id)
        return None if grant is None or grant.stance in LEFT_ALONE else grant

    def _refuse(self, key: str, rejected: Sequence[Unsupported], warned: Sequence[Unsupported]) -> None:
        for lacking in warned:
            self._services.log.warning("left out of what a plugin asked for", id=key, what=str(lacking))
        if rejected:
            raise PluginRefused("; ".join(map(str, rejected)))


def isolated_by(config: Config) -> Mapping[str, Collection[str]]:
    """The settings of plugins that isolation does with this configuration, each with the classes that there are."""
    found: dict[str, Collection[str]] = {}
    if ENFORCE in (config["isolation.caches"], config["isolation.bandwidth"]) and config["control.rdt"]:
        found["rdt_class"] = config["control.rdt"].names
    if config["isolation.disks"] == ENFORCE and BLOCKIO in BY_KEY and config[BLOCKIO]:
        found["blockio_class"] = config[BLOCKIO].classes.keys()
    if config["isolation.scheduling"] == ENFORCE:
        found.update(scheduler=(), io_priority=())
    return found


def reactions(warned: Collection[str]) -> Mapping[str, Reaction]:
    """Reactions to values that CRI lacks."""
    return {**REACTIONS, **dict.fromkeys(warned, Reaction.WARN)}


def cdi_of(name: str, version: str) -> Cdi:
    """How a runtime takes CDI devices: containerd has the field since 1.7 and nothing before, CRI-O since 1.27."""
    numbers = _numbers(version)
    if name == "containerd":
        return Cdi.FIELD if numbers >= (1, 7) else Cdi.NONE
    if name == "cri-o":
        return Cdi.FIELD if numbers >= (1, 27) else Cdi.ANNOTATION
    return Cdi.NONE


def classes_of(name: str, version: str) -> tuple[str, ...]:
    """The classes a runtime takes from annotations: CRI-O both, containerd RDT's since 1.6, block IO's since 1.7."""
    if name == "cri-o":
        return CLASSES
    since = {"blockio_class": (1, 7), "rdt_class": (1, 6)} if name == "containerd" else {}
    return tuple(one for one, first in since.items() if _numbers(version) >= first)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.lstrip("v").split(".")[:2] if part.isdigit())


def _has_hugetlb(root: Path, is_v2: bool) -> bool:
    if not is_v2:
        return (root / "hugetlb").is_dir()
    try:
        return "hugetlb" in read_text(root / "cgroup.controllers").split()
    except OSError:
        return False


def _write(path: Path, content: str) -> None:
    """The name is the content's hash: an existing file is right."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(content)
    os.replace(beside, path)
