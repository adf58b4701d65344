"""What a node and its runtime can do over CRI of what plugins ask for, and what to do about the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Callable

from policies.frozen import frozen

if TYPE_CHECKING:
    from cri_api import nri_v1alpha1_pb2 as nri


class Reaction(Enum):
    """What happens with a value that CRI cannot express."""

    REJECT = "reject"  # the container is not created, or not updated
    WARN = "warn"  # it is without, and a line says so


#: What CRI cannot express, or not everywhere, by the names of the setting. A variable of the image is emptied, if not
#: removed; of all else the container would not have what was asked for, and its plugin would not know.
REACTIONS: Mapping[str, Reaction] = MappingProxyType(
    {
        "annotations": Reaction.REJECT,
        "mounts": Reaction.REJECT,
        "mount_removal": Reaction.REJECT,
        "env_removal": Reaction.WARN,
        "hooks": Reaction.REJECT,
        "devices": Reaction.REJECT,
        "device_removal": Reaction.REJECT,
        "device_rules": Reaction.REJECT,
        "cdi_devices": Reaction.REJECT,
        "rlimits": Reaction.REJECT,
        "namespaces": Reaction.REJECT,
        "sysctl": Reaction.REJECT,
        "net_devices": Reaction.REJECT,
        "cgroups_path": Reaction.REJECT,
        "seccomp_policy": Reaction.REJECT,
        "unified": Reaction.REJECT,
        "hugepage_limits": Reaction.REJECT,
        "pids_limit": Reaction.REJECT,
        "cpu_realtime": Reaction.REJECT,
        "memory_reservation": Reaction.REJECT,
        "memory_kernel": Reaction.REJECT,
        "memory_swappiness": Reaction.REJECT,
        "memory_oom_killer": Reaction.REJECT,
        "memory_hierarchy": Reaction.REJECT,
        "blockio_class": Reaction.REJECT,
        "rdt_class": Reaction.REJECT,
        "rdt": Reaction.REJECT,
        "io_priority": Reaction.REJECT,
        "scheduler": Reaction.REJECT,
        "memory_policy": Reaction.REJECT,
    }
)


#: Classes that only an annotation can name over CRI.
CLASSES = ("blockio_class", "rdt_class")
#: Of the settings that isolation does: what switches it on.
ISOLATED: Mapping[str, str] = MappingProxyType(
    {
        "blockio_class": "isolation.disks: enforce, with a class of that name in control.blockio, does it",
        "rdt_class": "isolation.caches: enforce, with a class of that name in control.rdt, does it",
        "io_priority": "isolation.scheduling: enforce does it",
        "scheduler": "isolation.scheduling: enforce does it",
    }
)


class Cdi(Enum):
    """How a runtime takes CDI devices."""

    FIELD = "field"  # containerd 1.7, CRI-O 1.27 and later
    ANNOTATION = "annotation"  # CRI-O before
    NONE = "none"  # containerd 1.6, iSulad


def no_host_node(_device: nri.LinuxDevice) -> str:
    """No device has a node on this host."""
    return ""


def always_followed(_path: str) -> bool:
    """As on hosts with systemd, where all mounts are shared."""
    return True


@frozen
class NodeCapabilities:
    """What the node and its runtime can do, and what the operator wants done about what they cannot."""

    cgroup_v2: bool
    #: There is a hugetlb controller: without it runtimes leave hugepage limits out and say nothing.
    hugetlb: bool = True
    cdi: Cdi = Cdi.FIELD
    #: The classes that the runtime takes from annotations, by the names of their settings.
    classes: Collection[str] = CLASSES
    #: The path of a node on the host that is this device, "" if there is none.
    host_node: Callable[[nri.LinuxDevice], str] = no_host_node
    #: Whether a path of the host is on a mount that CRI lets a container follow.
    is_followed: Callable[[str], bool] = always_followed
    #: Where the shell writes seccomp profiles to.
    seccomp_folder: str = "/var/run/cri-resmgr/seccomp"
    reactions: Mapping[str, Reaction] = field(default_factory=lambda: REACTIONS)
    #: The settings of ``ISOLATED`` that isolation does here, and of each the classes that are configured.
    isolated: Mapping[str, Collection[str]] = field(default_factory=dict)

    def hears(self, name: str, cls: str = "") -> bool:
        """Whether isolation does a setting; of those that are classes, this one."""
        return name in self.isolated and (name not in CLASSES or cls in self.isolated[name])


@frozen
class Unsupported:
    """Something a plugin asks for that is not to be had.

    ``name`` is that of the setting, ``what`` NRI's word with the key ("Rlimits RLIMIT_NOFILE"), ``plugin`` "" where
    NRI does not track which.
    """

    name: str
    plugin: str
    what: str
    why: str

    def __str__(self) -> str:
        who = f'plugin "{self.plugin}"' if self.plugin else "a plugin"
        if "," in self.plugin:
            who = f'plugins "{self.plugin}"'
        return f"{who} asked for {self.what}: {self.why}"


def is_rejected(found: Unsupported, site: NodeCapabilities) -> bool:
    """Whether the container must not be created, or updated, for it."""
    return site.reactions.get(found.name, REACTIONS[found.name]) is Reaction.REJECT
