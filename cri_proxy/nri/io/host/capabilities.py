"""What this node and its runtime can do of what plugins ask for: the facts that ``nri/apply.py`` decides by.

And what it wants to be there before a request is sent: a seccomp profile as a file, a node for a device.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.bounded_files import read_text
from cri_proxy.config.options.nri_capabilities import CLASSES, REACTIONS, Cdi, NodeCapabilities, Reaction
from cri_proxy.node.mounts import Mounts
from cri_proxy.nri.apply import Applied, apply
from cri_proxy.nri.cri_translation import resources_of
from cri_proxy.nri.draft import MergedAdjustment
from cri_proxy.nri.io.host.host import Merged, PluginRefused
from cri_proxy.services.services import Services

#: Devices are found by their numbers here.
SYS_DEV, DEV = Path("/sys/dev"), Path("/dev")
MOUNTINFO = Path("/proc/self/mountinfo")
_KINDS = {"b": ("block", stat.S_IFBLK), "c": ("char", stat.S_IFCHR), "u": ("char", stat.S_IFCHR)}


@dataclass(frozen=True)
class HostFiles:
    """Where the host's devices are, and where we make what is not there."""

    sys_dev: Path
    dev: Path
    made: Path

    def node(self, device: nri.LinuxDevice) -> str:
        """The path of a node that is this device; "" if there is none and none can be made."""
        if device.type not in _KINDS:
            return ""
        folder, kind = _KINDS[device.type]
        number = os.makedev(device.major, device.minor)
        found = [self.dev / device.path.removeprefix("/dev/")] if device.path.startswith("/dev/") else []
        with contextlib.suppress(OSError):
            lines = read_text(
                self.sys_dev / folder / f"{device.major}:{device.minor}" / "uevent"
            ).splitlines()
            found += [self.dev / line[len("DEVNAME=") :] for line in lines if line.startswith("DEVNAME=")]
        made = self.made / f"{folder}-{device.major}-{device.minor}"
        for path in [*found, made]:
            if _is_device(path, kind, number):
                return str(path)
        try:
            self.made.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = device.file_mode.value & 0o777 if device.HasField("file_mode") else 0o666
            os.mknod(made, kind | mode, number)
        except OSError:
            return ""
        # The runtime lists it by numbers only; what it opens it may not be able to use.
        return str(made)


def _is_device(path: Path, kind: int, number: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_IFMT(found.st_mode) == kind and found.st_rdev == number


class Capabilities:
    """One for the daemon; asks its parts for what may change: the runtime's version, the configuration."""

    def __init__(
        self, services: Services, sys_dev: Path = SYS_DEV, dev: Path = DEV, mountinfo: Path = MOUNTINFO
    ) -> None:
        self._services = services
        self._mounts = Mounts(mountinfo)
        # The runtime reads them in its create only. In /run no disk holds up the daemon that writes them.
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
            reactions=reactions(config["nri.reject"], config["nri.warn"]),
        )

    def _is_followed(self, path: str) -> bool:
        mount = self._mounts.of(path)
        return mount.is_followed or not mount.point

    def express(self, merged: Merged, request: bytes, container: nri.Container) -> Applied:
        """What plugins want of a container, in the runtime's words; what must be there before it, is.

        :raises PluginRefused: CRI has no words for something without which the container must not be.
        """
        if not merged.adjust.ByteSize():
            return Applied(request, False, cri.LinuxContainerResources(), (), (), None)
        applied = apply(request, MergedAdjustment(container, merged.adjust, merged.owners), self.site)
        for lacking in applied.warned:
            self._services.log.warning(
                "left out of what a plugin asked for", id=container.id, what=str(lacking)
            )
        if applied.rejected:
            raise PluginRefused("; ".join(map(str, applied.rejected)))
        if applied.seccomp is not None:
            _write(Path(applied.seccomp.path), applied.seccomp.content)
        return applied

    def resources(self, update: nri.ContainerUpdate) -> cri.LinuxContainerResources:
        """An update in the runtime's words; what it has none for is left out with a line."""

        def report(_setting: str, field: Any, key: str, why: str) -> None:
            what = f"{nri.Field.Name(field)} {key}".rstrip()
            self._services.log.warning("left out of an update", id=update.container_id, what=what, why=why)

        return resources_of(update, self.site, report)


def reactions(rejected: Collection[str], warned: Collection[str]) -> Mapping[str, Reaction]:
    """What to do about what CRI cannot express; a name in both lists is rejected."""
    return {
        **REACTIONS,
        **dict.fromkeys(warned, Reaction.WARN),
        **dict.fromkeys(rejected, Reaction.REJECT),
    }


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
    """The name says the content: what is there is as it must be."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(content)
    os.replace(beside, path)
