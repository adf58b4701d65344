"""kubectl itself with the plugin on its PATH, on a real kube-apiserver."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator
from typing import Any, Callable

import pytest

from cluster.api.names import API_VERSION, FRONT_END_LABEL, INSTALLED_LABEL, NODE_PLACEMENT
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import PLACEMENTS

pytestmark = pytest.mark.cluster
Plugin = Callable[..., "subprocess.CompletedProcess[str]"]

NODE = "plugin-1"
JOBS, PODS = "/apis/batch/v1/namespaces/cri-resmgr/jobs", "/api/v1/namespaces/cri-resmgr/pods"
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


@pytest.fixture
def installed(crds: ControlPlane) -> Iterator[ControlPlane]:
    """A node that the installer has been on; its kubelet is played by the test."""
    labels = {INSTALLED_LABEL: "0.1.0", FRONT_END_LABEL: "proxy"}
    crds.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": labels}})
    try:
        crds.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "cri-resmgr"}})
    except Refused as error:
        assert error.code == 409
    for name in ("default", "cri-resmgr-installer"):
        crds.wait("kube-apiserver", functools.partial(account, crds, name))
    yield crds
    crds.ask("DELETE", f"/api/v1/nodes/{NODE}")


def account(server: ControlPlane, name: str) -> bool:
    where = "/api/v1/namespaces/cri-resmgr/serviceaccounts"
    try:
        server.ask("GET", f"{where}/{name}")
    except Refused:
        if name != "default":
            server.ask("POST", where, {"metadata": {"name": name}})
        return False
    return True


@pytest.mark.parametrize(
    ("phase", "code", "sentence", "labels_left"),
    [
        ("Succeeded", 0, "package and units are gone", set()),
        ("Failed", 1, "kubelet does not come back", {INSTALLED_LABEL}),
    ],
)
def test_uninstall_waits_for_each_nodes_job(
    installed: ControlPlane, kubectl: Kubectl, phase: str, code: int, sentence: str, labels_left: set[str]
) -> None:
    command = ("cri_resmgr", "uninstall", "--node", NODE, "--image", "cri-resmgr-installer:0.1.0")
    assert "say --yes" in kubectl.ask(*command).stderr
    with kubectl.start(*command, "--yes") as running:
        pod = pod_of_job(installed)
        ended = {"exitCode": code, "message": sentence}
        state = {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": "cri-resmgr-installer",
                    "image": "i",
                    "imageID": "i",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
            ],
        }
        where = f"{PODS}/{pod}/status"
        installed.ask("PATCH", where, {"status": state}, content_type="application/merge-patch+json")
        said, errors = running.communicate(timeout=120)
    assert (running.returncode, sentence in said + errors) == (code, True)
    labels = installed.ask("GET", f"/api/v1/nodes/{NODE}")["metadata"].get("labels", {})
    assert {name for name in labels if "cri-resmgr" in name} >= labels_left
    assert FRONT_END_LABEL not in labels and (INSTALLED_LABEL in labels) == bool(labels_left)


def pod_of_job(server: ControlPlane) -> str:
    """The name of the pod that the Job's controller has made, once there is one that has not ended."""
    found: list[str] = []

    def is_there() -> bool:
        for pod in server.ask("GET", f"{PODS}?labelSelector=app.kubernetes.io/component%3Duninstall")[
            "items"
        ]:
            if (
                pod["status"].get("phase", "Pending") == "Pending"
                and "deletionTimestamp" not in pod["metadata"]
            ):
                found.append(pod["metadata"]["name"])
        return bool(found)

    server.wait("kube-controller-manager", is_there)
    return found[0]
