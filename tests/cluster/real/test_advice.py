"""Traffic from node to node becomes an AffinityAdvice on a real server, and kubectl takes what the advice says to apply."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.agent.status import AgentView, status_of
from cluster.api.fit import fit
from cluster.api.names import AGENT_MANAGER, API_VERSION
from tests.cluster.agent.reports import placement, remote, report
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.test_operator import APPLY, PLACEMENTS, Process, until

pytestmark = pytest.mark.cluster

ADVICES = "/apis/cri-resmgr.io/v1alpha1/affinityadvices"
#: By node: pod and its address.
PODS = {"talk-0": ("db-0", "10.244.0.5"), "talk-1": ("web-6d4cf56db6-bcdfg", "10.244.1.7")}
MERGE = "application/merge-patch+json"


@pytest.fixture
def talking(rights: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes in the namespace shop: a database, and a Deployment that opens connections to it."""
    rights.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    for kind, name in (("Deployment", "web"), ("StatefulSet", "db")):
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        spec: dict[str, Any] = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        if kind == "StatefulSet":
            spec["serviceName"] = name
        where = f"/apis/apps/v1/namespaces/shop/{kind.lower()}s"
        rights.ask(
            "POST", where, {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        )
    for node, (pod, address) in PODS.items():
        rights.ask("POST", "/api/v1/nodes", {"metadata": {"name": node}})
        # Without the labels that its owner selects by, which would end it: it is to have no replicas.
        containers = [{"name": "c", "image": "none"}]
        spec = {"nodeName": node, "containers": containers, "automountServiceAccountToken": False}
        until(lambda: bool(rights.ask("GET", "/api/v1/namespaces/shop/serviceaccounts/default")))
        rights.ask("POST", "/api/v1/namespaces/shop/pods", {"metadata": {"name": pod}, "spec": spec})
        status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
        rights.ask("PATCH", f"/api/v1/namespaces/shop/pods/{pod}/status", status, content_type=MERGE)
    try:
        yield rights
    finally:
        for node, (pod, _) in PODS.items():
            rights.ask("DELETE", f"/api/v1/namespaces/shop/pods/{pod}?gracePeriodSeconds=0")
            rights.ask("DELETE", f"/api/v1/nodes/{node}")
            rights.ask("DELETE", f"{PLACEMENTS}/{node}")
        rights.ask("DELETE", "/api/v1/namespaces/shop")


@pytest.fixture
def operator(talking: ControlPlane, tmp_path: Path) -> Iterator[Process]:
    running = Process(talking, tmp_path)
    try:
        yield running
    finally:
        running.kill()
        print(running.log()[-4000:])


def write_status(server: ControlPlane, node: str, **changes: Any) -> None:
    """What the agent of a node makes of its daemon's report."""
    pod = PODS[node][0]
    status = fit(
        status_of(AgentView(report(placements=[placement(pod)], **changes)), {}, "2026-11-22T10:00:00Z")
    )
    where = f"{PLACEMENTS}/{node}"
    server.ask("PATCH", f"{where}?fieldManager=tests&force=true", _object(node), content_type=APPLY)
    server.ask(
        "PATCH", f"{where}/status?fieldManager={AGENT_MANAGER}&force=true", {**_object(node), "status": status},
        content_type=APPLY,
    )  # fmt: skip


def _object(node: str) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "NodePlacement", "metadata": {"name": node}}


def test_owners_that_talk_from_node_to_node_are_advised_and_kubectl_applies_it(
    talking: ControlPlane, operator: Process, kubectl: Kubectl, tmp_path: Path
) -> None:
    told = [remote("db-0", "10.244.1.7", 25_400_000), remote("db-0", "10.96.0.1", 9_000_000)]
    write_status(talking, "talk-0", remote_peers=told)
    write_status(talking, "talk-1")
    operator.start()
    until(lambda: any(each.get("status") for each in talking.ask("GET", ADVICES)["items"]))
    [advice] = talking.ask("GET", ADVICES)["items"]
    status = advice["status"]
    assert (status["remoteBytesPerSecond"], status["bytesPerSecond"]) == (25_000_000, 0)
    assert [(each["kind"], each["name"], each["pods"]) for each in status["owners"]] == [
        ("Deployment", "web", 1),
        ("StatefulSet", "db", 1),
    ]
    # As docs/cluster.md says.
    snippet = {"spec": {"template": {"spec": yaml.safe_load(status["podAffinity"])}}}
    patch = tmp_path / "patch.yaml"
    patch.write_text(yaml.safe_dump(snippet))
    kubectl.run("-n", "shop", "patch", "deployment", "web", "-p", patch.read_text())
    web = talking.ask("GET", "/apis/apps/v1/namespaces/shop/deployments/web")
    [term] = web["spec"]["template"]["spec"]["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"app": "db"}
    # As is meant for a server before 1.36: the commands that the plugin prints, run by a shell.
    [line] = kubectl.run("cri_resmgr", "advice", "--patch").splitlines()
    program, *words = shlex.split(line)
    assert (program, words[:5]) == ("kubectl", ["-n", "shop", "patch", "deployment", "web"])
    kubectl.run(*words)
    web = talking.ask("GET", "/apis/apps/v1/namespaces/shop/deployments/web")
    spec, [follower] = web["spec"]["template"]["spec"], status["followers"]
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    assert spec["affinity"]["podAffinity"][preferred] == [follower["term"]]
    assert spec["affinity"]["podAntiAffinity"][preferred] == [follower["apart"]]
    assert spec["topologySpreadConstraints"] == [follower["spread"]]
    head, row = kubectl.run("cri_resmgr", "advice").splitlines()
    assert head.split()[:3] == ["ADVICE", "FOLLOWERS", "TARGET"]
    assert row.split()[1:] == ["shop/web", "shop/db", "25,000,000", "bytes/s", "0", "bytes/s"]
    shown = kubectl.run("get", "affinityadvice")
    assert "25000000" in shown and "db" in shown
    assert "cannot be looked up" not in operator.log()
