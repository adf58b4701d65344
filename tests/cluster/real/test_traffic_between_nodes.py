"""Real operator, policy, scheduler and controllers on described nodes: replayed traffic moves off the network, and stays.

The test plays the kubelets: Nodes that are well, pods that run as soon as they have a node, and what the agents would say
of their traffic. Each pod of web exchanges the same bytes a second with the one pod of db, wherever the two are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from cluster.agent.status import AgentView, status_of
from cluster.api.fit import fit
from cluster.api.names import AGENT_MANAGER, API_VERSION
from cluster.operator.advice import Owner
from tests.cluster.agent.reports import placement, report
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.follow import ADVICES, MERGE, admitted, followed, policy_in_force
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.test_operator import APPLY, PLACEMENTS, Process, until

pytestmark = pytest.mark.cluster

SHOP = "replayed"
NODES = [f"replay-{number}" for number in range(4)]
REPLICAS, ROLLOUTS, RATE = 4, 10, 4_000_000
WEB = Owner("Deployment", SHOP, "web")
PODS = f"/api/v1/namespaces/{SHOP}/pods"
STRATEGIC = "application/strategic-merge-patch+json"


class Kubelets:
    """What those of the nodes do and say, one step at a time."""

    def __init__(self, api: ControlPlane) -> None:
        self.api = api
        self._addresses = (f"10.77.{n // 250}.{n % 250 + 1}" for n in itertools.count())

    def register(self) -> None:
        for name in NODES:
            labels = {"kubernetes.io/hostname": name, "for": SHOP}
            self.api.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        self.beat()

    def beat(self) -> None:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "Tests", "lastHeartbeatTime": now}
        size = {"cpu": "16", "memory": "32Gi", "pods": "110"}
        status = {"status": {"conditions": [ready], "capacity": size, "allocatable": size}}
        for name in NODES:
            self.api.ask("PATCH", f"/api/v1/nodes/{name}/status", status, content_type=STRATEGIC)

    def pods(self) -> list[dict[str, Any]]:
        """All pods, after those with a node run, and those that are to end are gone."""
        self.beat()
        for pod in self.api.ask("GET", PODS)["items"]:
            where = f"{PODS}/{pod['metadata']['name']}"
            if "deletionTimestamp" in pod["metadata"]:
                self.api.ask("DELETE", f"{where}?gracePeriodSeconds=0")
            elif "nodeName" in pod["spec"] and "podIP" not in pod["status"]:
                address = next(self._addresses)
                ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
                status = {
                    "phase": "Running",
                    "podIP": address,
                    "podIPs": [{"ip": address}],
                    "conditions": ready,
                }
                self.api.ask("PATCH", f"{where}/status", {"status": status}, content_type=STRATEGIC)
        return list(self.api.ask("GET", PODS)["items"])

    def settled(self) -> list[dict[str, Any]]:
        """The pods once the rollout of web is over: of its template, running, and no others."""
        found: list[dict[str, Any]] = []

        def is_over() -> bool:
            found[:] = self.pods()
            web = self.api.ask("GET", f"/apis/apps/v1/namespaces/{SHOP}/deployments/web")
            status = web.get("status", {})
            counts = {status.get(key) for key in ("replicas", "updatedReplicas", "availableReplicas")}
            return (
                counts == {REPLICAS}
                and status.get("observedGeneration") == web["metadata"]["generation"]
                and len(found) == REPLICAS + 1
                and all("podIP" in pod["status"] for pod in found)
            )

        until(is_over)
        return found

    def report(self, pods: list[dict[str, Any]]) -> int:
        """Write what the agents would of the traffic of these pods; returns the bytes a second between nodes."""
        on = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
        between = 0
        for node in NODES:
            here = [name for name, where in on.items() if where == node]
            webs = [name for name in here if name != "db-0"]
            changes: dict[str, Any] = {
                "placements": [placement(name, namespace=SHOP) for name in here],
            }
            if "db-0" in here:
                members = [{"namespace": SHOP, "pod": name, "container": "c"} for name in ("db-0", *webs)]
                # The daemon's group has each byte once.
                changes["affinity_groups"] = [
                    {
                        "members": members,
                        "bytes_per_s": RATE * len(webs),
                        "together": True,
                        "zone": "node-0",
                        "why_not": "",
                    }
                ]
                away = [pod for pod in pods if on[pod["metadata"]["name"]] != node]
                changes["remote_peers"] = [
                    {
                        "namespace": SHOP,
                        "pod": "db-0",
                        "container": "c",
                        "address": pod["status"]["podIP"],
                        "bytes_per_s": RATE,
                    }
                    for pod in away
                ]
                between = RATE * len(away)
            status = fit(status_of(AgentView(report(**changes)), {}, "2026-11-22T10:00:00Z"))
            head = {"apiVersion": API_VERSION, "kind": "NodePlacement", "metadata": {"name": node}}
            where = f"{PLACEMENTS}/{node}"
            self.api.ask("PATCH", f"{where}?fieldManager=tests&force=true", head, content_type=APPLY)
            self.api.ask(
                "PATCH", f"{where}/status?fieldManager={AGENT_MANAGER}&force=true", {**head, "status": status},
                content_type=APPLY,
            )  # fmt: skip
        return between


@pytest.fixture
def kubelets(rights: ControlPlane, kubectl: Kubectl, tmp_path: Path) -> Iterator[Kubelets]:
    operator = Process(rights, tmp_path, "tests.cluster.real.hasty_advice")
    playing = Kubelets(rights)
    with policy_in_force(rights, kubectl, SHOP):
        playing.register()
        operator.start()
        try:
            yield playing
        finally:
            operator.kill()
            print(operator.log()[-4000:])
            for kind in ("deployments/web", "statefulsets/db"):
                rights.ask(
                    "DELETE", f"/apis/apps/v1/namespaces/{SHOP}/{kind}", {"propagationPolicy": "Foreground"}
                )
            until(lambda: not playing.pods())
            for node in NODES:
                rights.ask("DELETE", f"{PLACEMENTS}/{node}")
                rights.ask("DELETE", f"/api/v1/nodes/{node}")
            for each in rights.ask("GET", ADVICES)["items"]:
                rights.ask("DELETE", f"{ADVICES}/{each['metadata']['name']}")


def workload(kind: str, name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    # On these nodes only, whichever others there are.
    pods = {"containers": [{"name": "c", "image": "none"}], "nodeSelector": {"for": SHOP}}
    template = {"metadata": {"labels": labels}, "spec": pods}
    spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def advice_of(api: ControlPlane) -> dict[str, Any]:
    """The status of the only advice; {} where there is none."""
    found = api.ask("GET", ADVICES)["items"]
    return dict(found[0].get("status", {})) if len(found) == 1 else {}


def test_bytes_between_nodes_become_fewer_with_two_rollouts_and_stay_so_over_ten(kubelets: Kubelets) -> None:
    api = kubelets.api
    where = f"/apis/apps/v1/namespaces/{SHOP}"
    # 1. Without traffic that is known of, and a replica on each node, for by chance they are near already.
    api.ask("POST", f"{where}/statefulsets", workload("StatefulSet", "db", 1))
    web = workload("Deployment", "web", REPLICAS)
    web["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": web["spec"]["selector"],
        }
    ]
    api.ask("POST", f"{where}/deployments", web)
    pods = kubelets.settled()
    between = [kubelets.report(pods)]
    until(lambda: bool(advice_of(api).get("followers")))
    until(lambda: bool(followed(admitted(api, WEB))))
    assert between == [RATE * (REPLICAS - 1)]
    targets, most = set(), []
    # 2. Rollouts, each with the traffic of the one before; from the first on the replicas may be anywhere.
    for number in range(ROLLOUTS):
        template = {
            "metadata": {"annotations": {"rollout": str(number)}},
            "spec": {"topologySpreadConstraints": None},
        }
        change = {"spec": {"template": template}}
        api.ask("PATCH", f"{where}/deployments/web", change, content_type=MERGE)
        pods = kubelets.settled()
        assert all(followed(pod) for pod in pods if pod["metadata"]["name"] != "db-0")
        nodes = [pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["name"] != "db-0"]
        most.append(max(nodes.count(node) for node in nodes))
        between.append(kubelets.report(pods))

        # 3. The operator has seen it, and the advice is there for the next.
        def is_seen(nodes: list[str] = nodes) -> bool:
            owners = {row["name"]: row for row in advice_of(api).get("owners", [])}
            return bool(owners) and (owners["web"]["pods"], owners["web"]["nodes"]) == (
                REPLICAS,
                len(set(nodes)),
            )

        until(is_seen)
        status = advice_of(api)
        assert "fadingSince" not in status
        targets.add(status["target"]["name"])
    print("bytes a second between nodes, before and after each rollout:", between, "most on one node:", most)
    assert targets == {"db"}
    assert max(between[2:]) < between[0]
    # However much they draw, replicas are not all on one node.
    assert max(most) < REPLICAS
