"""What runtimes tell of containers that nobody announced, read as a create request would be."""

from __future__ import annotations

from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.shell.reconciler import uses_of

GPU, DATA = "/dev/nvidia0", "/mnt/nvme"
SPEC: dict[str, Any] = {"linux": {"devices": [{"path": GPU, "type": "c", "major": 195, "minor": 0}]}}
DEVICES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "containerd tells what was asked for": (
        {"config": {"devices": [{"host_path": GPU, "container_path": "/dev/gpu"}]}, "runtimeSpec": SPEC},
        [GPU],
    ),
    "containerd, and none was asked for": ({"config": {"image": {}}, "runtimeSpec": SPEC}, []),
    "others have the spec": ({"runtimeSpec": SPEC}, [GPU]),
    "a privileged container's lists the whole host": ({"privileged": True, "runtimeSpec": SPEC}, []),
    "iSulad tells nothing": ({}, []),
    "what cannot be understood is nothing": (
        {"config": {"devices": [{"host_path": 3}, "x", None, {}]}, "runtimeSpec": SPEC},
        [],
    ),
}


@pytest.mark.parametrize(("info", "devices"), DEVICES.values(), ids=DEVICES)
def test_devices_and_mounts_are_what_was_asked_for(info: dict[str, Any], devices: list[str]) -> None:
    status = cri.ContainerStatus(
        mounts=[
            cri.Mount(container_path="/data", host_path=DATA),
            cri.Mount(container_path="/models", host_path="/models", readonly=True),
        ]
    )
    assert uses_of(status, info) == (*(("devices", path) for path in devices), ("mounts", DATA))
