"""Our kinds of objects in a real API server, by a real kubectl."""

from __future__ import annotations

import pytest

from cluster.agent.status import AgentView, status_of
from cluster.api.names import AGENT_MANAGER, OPERATOR_MANAGER
from cluster.operator.plan import merge_patch, new_node_placement
from tests.cluster.agent.reports import report
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import APPLY, PLACEMENTS, POLICIES, policy

pytestmark = pytest.mark.cluster

MERGE = "application/merge-patch+json"
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
    crds.ask("DELETE", PLACEMENTS)  # of nodes of other tests on this server
    crds.ask("POST", POLICIES, policy("listed", {"policy": {"Active": "topology-aware"}}, priority=7))
    try:
        head, line = kubectl.run("get", "placementpolicies").splitlines()
        assert head.split()[:2] == ["NAME", "PRIORITY"]
        assert line.split()[:2] == ["listed", "7"]
        for kind in ("nodeplacements", "affinityadvices"):
            assert "No resources found" in kubectl.run("get", kind)
    finally:
        crds.ask("DELETE", f"{POLICIES}/listed")


CONFIGS = ({"policy": {"Active": "hygon"}}, {"placement": {"smt": "whole"}}, None)


@pytest.mark.parametrize("other", ["kubectl-edit", ""])
def test_a_policy_that_is_given_no_longer_is_gone_whatever_else_has_written_it(
    crds: ControlPlane, other: str
) -> None:
    crds.ask("POST", f"{PLACEMENTS}?fieldManager={OPERATOR_MANAGER}", new_node_placement("given"))
    path = f"{PLACEMENTS}/given"
    try:
        for config in CONFIGS:
            wanted = {**new_node_placement("given")}
            if config is not None:
                wanted["spec"] = {
                    "policy": {"name": "p", "generation": 1, "hash": "h", "config": config, "abortOn": []}
                }
            change = merge_patch(crds.ask("GET", path), wanted)
            written = crds.ask("PATCH", path, change, content_type=MERGE)
            assert written.get("spec", {}).get("policy", {}).get("config") == config
            if other:
                # It then owns the same values as well.
                same = {"spec": written["spec"]}
                crds.ask("PATCH", f"{path}?fieldManager={other}", same, content_type=MERGE)
    finally:
        crds.ask("DELETE", path)


def test_an_agent_that_knows_nothing_gives_up_what_an_earlier_one_has_written(crds: ControlPlane) -> None:
    crds.ask("POST", PLACEMENTS, new_node_placement("forgotten"))
    path = f"{PLACEMENTS}/forgotten"
    head = {key: new_node_placement("forgotten")[key] for key in ("apiVersion", "kind", "metadata")}
    try:
        for seen in (AgentView(report(), problems=()), AgentView(None, "connection refused")):
            written = crds.ask(
                "PATCH",
                f"{path}/status?fieldManager={AGENT_MANAGER}&force=true",
                {**head, "status": status_of(seen, {}, "2026-11-22T21:00:00Z")},
                content_type=APPLY,
            )
            assert ("doctor" in written["status"]) == (seen.report is not None)
    finally:
        crds.ask("DELETE", path)
