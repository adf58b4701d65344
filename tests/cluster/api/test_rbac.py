"""Rights: what each account may do at the most, as the manifests give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PACKAGING = Path(__file__).parents[3] / "packaging/cluster"


def objects(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    documents = [
        document
        for path in sorted((PACKAGING / folder).glob("[!k]*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


RBAC = objects("rbac")


def rights(role: str, kind: str = "ClusterRole") -> set[tuple[str, str, str]]:
    """Group, resource and verb of each right."""
    return {
        (group, resource, verb)
        for rule in RBAC[kind, role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_an_agent_changes_what_its_node_says_and_nothing_that_is_asked_of_it() -> None:
    changing = {right for right in rights("cri-resmgr-agent") if right[2] not in ("get", "list", "watch")}
    assert changing == {
        ("cri-resmgr.io", "nodeplacements/status", "patch"),
        # Server-side apply is a patch; for the first one the server wants create as well.
        ("topology.node.k8s.io", "noderesourcetopologies", "create"),
        ("topology.node.k8s.io", "noderesourcetopologies", "patch"),
        ("", "events", "create"),
        ("", "events", "patch"),
    }
    assert rights("cri-resmgr-agent", "Role") == {
        ("coordination.k8s.io", "leases", verb) for verb in ("create", "patch")
    }


def test_an_operator_writes_no_node_and_gives_no_rights() -> None:
    held = rights("cri-resmgr-operator")
    assert {verb for _, resource, verb in held if resource == "nodes"} == {"get", "list", "watch"}
    assert "rbac.authorization.k8s.io" not in {group for group, _, _ in held}


def test_no_role_has_a_wildcard_or_reads_secrets() -> None:
    for (kind, name), found in RBAC.items():
        for rule in found.get("rules", ()):
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], (kind, name)
            assert "secrets" not in rule["resources"], (kind, name)


def test_no_account_gives_out_tokens_by_itself() -> None:
    accounts = [found for (kind, _), found in RBAC.items() if kind == "ServiceAccount"]
    assert len(accounts) == 2
    assert not any(account["automountServiceAccountToken"] for account in accounts)
