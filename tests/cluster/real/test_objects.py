"""Our kinds of objects in a real API server, by a real kubectl."""

from __future__ import annotations

import pytest

from cluster.operator.writes import merge_patch, new_node_placement
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import PLACEMENTS, POLICIES, policy

pytestmark = pytest.mark.cluster

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


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
