"""Our kinds of objects in a real API server, by a real kubectl."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.api.names import API_VERSION, NODE_PLACEMENT
from cluster.operator.writes import merge_patch, new_node_placement
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import PLACEMENTS, POLICIES, policy

pytestmark = pytest.mark.cluster

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: What one object may have in the API server at 500 containers, all that the server adds included.
MOST_BYTES = 256 * 1024
APPLY = "application/apply-patch+yaml"


def test_the_server_takes_the_schemas_as_structural(crds: ControlPlane) -> None:
    of_ours = [d for d in crds.ask("GET", DEFINITIONS)["items"] if d["spec"]["group"] == "cri-resmgr.io"]
    assert len(of_ours) == 3
    for definition in of_ours:
        conditions = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
        assert conditions.get("Established") == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"
        assert conditions.get("KubernetesAPIApprovalPolicyConformant", "True") == "True"


def test_kubectl_explains_and_lists_each_kind(crds: ControlPlane, kubectl: Kubectl) -> None:
    crds.ask("POST", POLICIES, policy("listed", {"policy": {"Active": "topology-aware"}}, priority=7))
    try:
        head, line = kubectl.run("get", "placementpolicies").splitlines()
        assert head.split()[:2] == ["NAME", "PRIORITY"]
        assert line.split()[:2] == ["listed", "7"]
        for kind in ("nodeplacements", "affinityadvices"):
            assert "No resources found" in kubectl.run("get", kind)
    finally:
        crds.ask("DELETE", f"{POLICIES}/listed")


def test_a_policy_with_a_value_of_another_kind_is_refused(crds: ControlPlane) -> None:
    wrong = policy("wrong", {})
    wrong["spec"]["priority"] = "high"
    with pytest.raises(Refused) as refused:
        crds.ask("POST", POLICIES, wrong)
    assert refused.value.code == 422
    assert "spec.priority" in refused.value.status["message"]


def test_a_node_of_500_containers_stays_below_256_kib_with_what_the_server_adds(crds: ControlPlane) -> None:
    crds.ask(
        "POST", PLACEMENTS, {"apiVersion": API_VERSION, "kind": NODE_PLACEMENT, "metadata": {"name": "full"}}
    )
    try:
        body = {
            "apiVersion": API_VERSION,
            "kind": NODE_PLACEMENT,
            "metadata": {"name": "full"},
            "status": full(),
        }
        written = crds.ask(
            "PATCH",
            f"{PLACEMENTS}/full/status?fieldManager=cri-resmgr-agent&force=true",
            body,
            content_type=APPLY,
        )
        assert len(written["status"]["placements"]) == 500
        assert crds.size(f"{PLACEMENTS}/full") < MOST_BYTES
    finally:
        crds.ask("DELETE", f"{PLACEMENTS}/full")


def test_a_policy_that_is_applied_no_longer_is_gone(crds: ControlPlane) -> None:
    crds.ask("POST", f"{PLACEMENTS}?fieldManager=cri-resmgr-operator", new_node_placement("given"))
    try:
        path = f"{PLACEMENTS}/given"
        configs = ({"policy": {"Active": "hygon"}}, {"placement": {"smt": "whole"}}, None)
        for config in configs:
            wanted = {**new_node_placement("given")}
            if config is not None:
                wanted["spec"] = {
                    "policy": {"name": "p", "generation": 1, "hash": "h", "config": config, "abortOn": []}
                }
            change = merge_patch(crds.ask("GET", path), wanted)
            written = crds.ask("PATCH", path, change, content_type="application/merge-patch+json")
            assert written.get("spec", {}).get("policy", {}).get("config") == config
    finally:
        crds.ask("DELETE", f"{PLACEMENTS}/given")


def full() -> dict[str, Any]:
    """A status with 500 placements whose names are as long as generated ones are."""
    return {
        "mode": "enforce",
        "placements": [
            {
                "namespace": f"team-{i % 20}-production",
                "pod": f"some-service-with-a-name-{i % 50}-7d4b9c6f5d-{i:05d}",
                "container": "application",
                "containerId": f"{i:013x}",
                "qos": "Burstable",
                "milliCpus": 4000,
                "cpus": "8-11,72-75",
                "mems": "1",
                "level": "ccx",
                "state": "managed",
                "why": "the L3 with the most free CPUs of its NUMA node, beside 3 of its peers",
                "zone": f"l3-{i % 16}",
            }
            for i in range(500)
        ],
    }
