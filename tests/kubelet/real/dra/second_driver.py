"""A driver beside ours: the public example driver's plugin, whose devices are near NUMA nodes here.

It knows no NUMA nodes itself, so its slice is written here, and it may write none.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.parts import delete
from tests.kubelet.real.dra.node import CLASSES, SLICES, ClaimNode
from tests.peers.programs import find

OTHER = "gpu.example.com"
NUMA_NODE = "resource.kubernetes.io/numaNode"
#: A device in each of these NUMA nodes, by its number.
NEAR = (5, 2, 7)
MAY = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
]
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"


def credentials_of(api: ControlPlane) -> Path:
    """The other driver's, which may read."""
    api.ask("POST", f"{RIGHTS}/clusterroles", {"metadata": {"name": OTHER}, "rules": MAY})
    group = "rbac.authorization.k8s.io"
    bound = {
        "metadata": {"name": OTHER},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": OTHER},
        "subjects": [{"apiGroup": group, "kind": "User", "name": OTHER}],
    }
    api.ask("POST", f"{RIGHTS}/clusterrolebindings", bound)
    return api.kubeconfig(api.folder / "other.kubeconfig", certificate=api.certificate(OTHER))


@contextlib.asynccontextmanager
async def second_driver(node: ClaimNode, credentials: Path) -> AsyncIterator[None]:
    """The driver runs and kubelet knows it; its devices are published."""
    program = (await asyncio.to_thread(find, "dra-example-kubeletplugin"))["dra-example-kubeletplugin"]
    devices = [
        {"name": f"gpu-{number}", "attributes": {NUMA_NODE: {"int": numa}}}
        for number, numa in enumerate(NEAR)
    ]
    pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
    of_node = {"driver": OTHER, "nodeName": node.name, "pool": pool, "devices": devices}
    selected = [{"cel": {"expression": f"device.driver == '{OTHER}'"}}]
    await asyncio.to_thread(
        node.api.ask, "POST", CLASSES, {"metadata": {"name": OTHER}, "spec": {"selectors": selected}}
    )
    with (node.api.folder / "second-driver.log").open("ab") as log:
        process = subprocess.Popen(
            [
                str(program),
                f"--node-name={node.name}",
                f"--num-devices={len(NEAR)}",
                f"--kubeconfig={credentials}",
                f"--cdi-root={node.runtime.folder}/cdi",
                f"--kubelet-registrar-directory-path={node.kubelet_folder}/plugins_registry",
                f"--kubelet-plugins-directory-path={node.kubelet_folder}/plugins",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        await asyncio.to_thread(
            node.api.ask, "POST", SLICES, {"metadata": {"name": f"{node.name}-gpu"}, "spec": of_node}
        )
        yield
    finally:
        print((node.api.folder / "second-driver.log").read_text()[-4000:])
        process.terminate()
        await asyncio.to_thread(process.wait)
        await delete(node.api, f"{SLICES}/{node.name}-gpu")
        await delete(node.api, f"{CLASSES}/{OTHER}")
