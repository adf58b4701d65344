"""Rights: those of one node's role are those of all nodes' role, by name; the manifests give nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cluster.api.rbac import EVENTS, OWN_OBJECTS, node_access, rule

PACKAGING = Path(__file__).parents[3] / "packaging/cluster"


def objects(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    documents = [
        document
        for path in sorted((PACKAGING / folder).glob("[!k]*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


RBAC = {**objects("rbac-common"), **objects("rbac")}


def test_the_shared_role_of_agents_has_the_rights_that_a_nodes_own_role_has() -> None:
    assert RBAC["ClusterRole", "cri-resmgr-agent"]["rules"] == [
        *(rule(*of) for of in OWN_OBJECTS),
        rule(*EVENTS),
    ]


def test_a_nodes_role_names_the_node_wherever_a_name_can_be_named() -> None:
    role, binding = node_access("n1")
    assert [r["resourceNames"] for r in role["rules"][:-1]] == [["n1"]] * len(OWN_OBJECTS)
    assert role["rules"][-1] == {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "cri-resmgr-agent:n1"
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:node:n1"}
    ]


def test_a_nodes_role_goes_with_its_node_placement_and_may_be_another_subjects() -> None:
    account = {"kind": "ServiceAccount", "name": "agent-n1", "namespace": "cri-resmgr"}
    role, binding = node_access("n1", subject=account, owner_uid="u")
    assert binding["subjects"] == [account]
    owner = {"apiVersion": "cri-resmgr.io/v1alpha1", "kind": "NodePlacement", "name": "n1", "uid": "u"}
    assert role["metadata"]["ownerReferences"] == binding["metadata"]["ownerReferences"] == [owner]


def test_an_operator_that_makes_nodes_roles_has_what_it_gives_and_cannot_give_more() -> None:
    own = RBAC["ClusterRole", "cri-resmgr-operator"]["rules"]
    more = objects("rbac-per-node")["ClusterRole", "cri-resmgr-operator-per-node"]["rules"]
    held = {
        (group, resource, verb)
        for r in (*own, *more)
        for group in r["apiGroups"]
        for resource in r["resources"]
        for verb in r["verbs"]
    }
    given = {(group, resource, verb) for group, resource, verbs in (*OWN_OBJECTS, EVENTS) for verb in verbs}
    assert given <= held
    assert {verb for _, _, verb in held} & {"escalate", "bind", "impersonate", "*"} == set()


def test_no_role_has_a_wildcard_or_reads_secrets() -> None:
    for folder in ("rbac", "rbac-common", "rbac-installs", "rbac-per-node"):
        for (kind, name), found in objects(folder).items():
            for r in found.get("rules", ()):
                assert "*" not in [*r["apiGroups"], *r["resources"], *r["verbs"]], (kind, name)
                assert "secrets" not in r["resources"], (kind, name)


def test_the_installers_account_has_no_role_and_no_account_gives_out_tokens_by_itself() -> None:
    bound = [subject["name"] for found in RBAC.values() for subject in found.get("subjects", ())]
    assert "cri-resmgr-installer" not in bound
    accounts = [found for (kind, _), found in RBAC.items() if kind == "ServiceAccount"]
    assert len(accounts) == 3
    assert not any(account["automountServiceAccountToken"] for account in accounts)
