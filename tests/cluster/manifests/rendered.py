"""What ``kubectl kustomize`` makes of a folder of packaging/cluster, as objects."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.peers.programs import Unavailable, find

PACKAGING = Path(__file__).resolve().parents[3] / "packaging" / "cluster"
WORKLOADS = ("DaemonSet", "Deployment")


@cache
def kustomized(folder: str) -> tuple[dict[str, Any], ...]:
    """The objects that ``kubectl apply -k`` would apply; the test is skipped where there is no kubectl."""
    try:
        kubectl = find("kubectl")["kubectl"]
    except Unavailable as reason:
        pytest.skip(f"Manifests are not rendered: {reason}.")
    command = [kubectl, "kustomize", str(PACKAGING / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(found for found in yaml.safe_load_all(done.stdout) if found)


def identity(thing: dict[str, Any]) -> tuple[str, str]:
    """Kind and name, by which no two objects of one folder are the same."""
    return thing["kind"], thing["metadata"]["name"]


def workloads(folder: str) -> dict[str, dict[str, Any]]:
    """Those that have pods, by name."""
    return {one["metadata"]["name"]: one for one in kustomized(folder) if one["kind"] in WORKLOADS}


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec
