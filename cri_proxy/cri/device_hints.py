"""What a container uses that may be near some NUMA nodes: devices and mounts, as a create names them.

Which of it counts is the policies' to say (policies/wanted.py); here is told what there is to ask about, and
what never is: files and folders that every pod has from kubelet, and what is only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Optional

from cri_api import runtime_v1_pb2 as cri
from cri_api.claims import CDI_KIND
from policies.model import DEVICES, MOUNTS, RESOURCES, Container, Hint
from policies.settings import PlacementSettings
from policies.wanted import hint_counts

#: One thing a container uses: (kind, path on the host), or (resources, name of a CDI device).
Use = tuple[str, str]

#: Places in a container that say nothing about where its data is.
_SMALL = re.compile(r"/(etc|lib|lib64|usr/lib|usr/lib32|usr/lib64)(/|$)|/dev/termination-log$")
#: What kubelet makes for pods itself, below whatever its directory is: on its own disk or in memory.
_KUBELETS = re.compile(
    r"/pods/[^/]+/(etc-hosts$|containers/|volumes/kubernetes\.io~(configmap|secret|projected|downward-api|empty-dir)/)"
)
_PCI_ADDRESS = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7](?![0-9a-f])", re.IGNORECASE
)


def read_uses(config: cri.ContainerConfig) -> tuple[Use, ...]:
    """The devices and mounts of a container that may give hints, each once.

    CDI devices are names that only the runtime can resolve: kubelet has to be asked where they are. Those of claims of CPUs
    are near nothing else.
    """
    devices = [(DEVICES, device.host_path) for device in config.devices]
    mounts = [(MOUNTS, mount.host_path) for mount in config.mounts if _may_hint(mount)]
    names = [device.name for device in config.CDI_devices]
    given = [(RESOURCES, name) for name in names if not name.startswith(f"{CDI_KIND}=")]
    return tuple(use for use in dict.fromkeys(devices + mounts + given) if use[1])


def _may_hint(mount: cri.Mount) -> bool:
    small = _SMALL.match(mount.container_path) or _KUBELETS.search(mount.host_path)
    return not mount.readonly and not small and mount.host_path != "/"


def pci_address(path: str) -> Optional[str]:
    """The PCI address a path names, the last one if it names a bridge, too: ``0000:41:00.0``. None = none."""
    found = _PCI_ADDRESS.findall(path)
    return found[-1].lower() if found else None


def counted(uses: Iterable[Use], container: Container, settings: PlacementSettings) -> tuple[Use, ...]:
    """Those whose hints the policies will think of."""
    return tuple(use for use in uses if hint_counts(*use, container.preferences, settings))


def hints_by_address(uses: Iterable[Use], devices: Mapping[str, int]) -> tuple[Hint, ...]:
    """The hints of those that name a PCI device whose NUMA node is known."""
    found = ((kind, path, devices.get(pci_address(path) or "")) for kind, path in uses)
    return tuple(Hint(kind, path, frozenset([node])) for kind, path, node in found if node is not None)
