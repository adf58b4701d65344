"""kubectl itself with the plugin on its PATH, on a real kube-apiserver."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator
from typing import Any, Callable

import pytest

from cluster.api.names import API_VERSION, NODE_PLACEMENT
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import PLACEMENTS

pytestmark = pytest.mark.cluster
Plugin = Callable[..., "subprocess.CompletedProcess[str]"]

NODE = "plugin-1"
STATUS: dict[str, Any] = {
    "mode": "enforce",
    "zones": [
        {
            "name": "socket-0",
            "type": "Socket",
            "cpus": "0-15",
            "exclusiveCpus": "4-7",
            "capacityMilliCpus": 16000,
            "allocatableMilliCpus": 15000,
            "chargedMilliCpus": 4500,
            "freeMilliCpus": 10500,
        }
    ],
    "counts": {"placements": 1},
    "placements": [
        {
            "namespace": "shop",
            "pod": "web-0",
            "container": "nginx",
            "cpus": "4-7",
            "mems": "0",
            "level": "ccx",
            "zone": "l3-1",
            "state": "managed",
            "exclusive": True,
            "why": "4 CPUs fit into one L3",
        }
    ],
    "conditions": [
        {
            "type": kind,
            "status": status,
            "reason": "Because",
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, status, message in (("Ready", "True", "fine"), ("Degraded", "True", "/var/lib is full"))
    ],
}


@pytest.fixture
def plugin(kubectl: Kubectl) -> Plugin:
    """Runs ``kubectl cri_resmgr ...``: exit code, output, errors."""
    return functools.partial(kubectl.ask, "cri_resmgr")


@pytest.fixture
def placed(crds: ControlPlane) -> Iterator[ControlPlane]:
    """A server with one NodePlacement, as an agent writes it."""
    head = {"apiVersion": API_VERSION, "kind": NODE_PLACEMENT, "metadata": {"name": NODE}}
    crds.ask("POST", PLACEMENTS, head)
    apply = f"{PLACEMENTS}/{NODE}/status?fieldManager=cri-resmgr-agent"
    crds.ask("PATCH", apply, {**head, "status": STATUS}, content_type="application/apply-patch+yaml")
    yield crds
    crds.ask("DELETE", f"{PLACEMENTS}/{NODE}")


def test_a_node_has_one_line_with_its_cpus(placed: ControlPlane, plugin: Plugin) -> None:
    head, *lines = plugin("top").stdout.splitlines()
    assert head.split() == ["NODE", "READY", "DEGRADED", "MODE", "CONTAINERS", "CPUS", "EXCLUSIVE", "POLICY"]
    (line,) = [line.split() for line in lines if line.startswith(NODE)]
    assert line == [NODE, "True", "True", "enforce", "1", "4.5/15", "4", "-"]


def test_a_pod_is_found_on_its_node_and_explained(placed: ControlPlane, plugin: Plugin) -> None:
    said = plugin("explain", "web-0", "-n", "shop").stdout
    assert said.startswith("shop/web-0/nginx\n") and "4 CPUs fit into one L3" in said
    (row,) = json.loads(plugin("placements", "-n", "shop", "-o", "json").stdout)
    assert (row["node"], row["cpus"]) == (NODE, "4-7")


def test_what_is_unknown_is_a_sentence(placed: ControlPlane, plugin: Plugin) -> None:
    done = plugin("explain", "nothing", "-n", "shop")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no node tells of shop/nothing: ")
    done = plugin("top", "--node", "nowhere")
    assert (done.returncode, "nowhere" in done.stderr) == (1, True)


def test_doctor_tells_why_a_node_is_not_well(placed: ControlPlane, plugin: Plugin) -> None:
    done = plugin("doctor")
    assert done.returncode == 1
    assert f"{NODE}: error: Degraded: /var/lib is full" in done.stdout
