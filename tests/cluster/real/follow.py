"""The policy of packaging/cluster/follow-advice on a control plane, with advices as the operator makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.api.names import AFFINITY_ADVICES, API_VERSION
from cluster.operator.advice import NodeTraffic, Owner, advise
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import PACKAGING, Kubectl
from tests.cluster.real.test_operator import until

ADVICES = f"/apis/{API_VERSION}/{AFFINITY_ADVICES}"
FOLLOWED = "cri-resmgr.io/followed-advice"
MERGE = "application/merge-patch+json"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod_of(owner: Owner, **spec: Any) -> dict[str, Any]:
    """A new pod as the owner's controller sends it."""
    labels = {"app": owner.name}
    reference = {"apiVersion": "apps/v1", "uid": "u", "controller": True}
    if owner.kind == "Deployment":
        labels["pod-template-hash"] = "6d4cf56db6"
        reference |= {"kind": "ReplicaSet", "name": f"{owner.name}-6d4cf56db6"}
    else:
        reference |= {"kind": owner.kind, "name": owner.name}
    metadata = {"generateName": f"{reference['name']}-", "labels": labels, "ownerReferences": [reference]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "none"}], **spec}}


def admitted(api: ControlPlane, owner: Owner, **spec: Any) -> dict[str, Any]:
    """The pod as the server would keep it."""
    return api.ask("POST", f"/api/v1/namespaces/{owner.namespace}/pods?dryRun=All", pod_of(owner, **spec))


def terms(pod: Mapping[str, Any], of: str = "podAffinity") -> list[dict[str, Any]]:
    return list(pod["spec"].get("affinity", {}).get(of, {}).get(PREFERRED, []))


def followed(pod: Mapping[str, Any]) -> list[str]:
    said = pod["metadata"].get("annotations", {}).get(FOLLOWED, "")
    return sorted(filter(None, said.split(",")))


def advices(bytes_per_s: Mapping[tuple[Owner, Owner], int]) -> dict[str, dict[str, Any]]:
    """The operator's, for pairs of owners that exchange so much from node to node; each owner has a node of its own."""
    owners = sorted({owner for pair in bytes_per_s for owner in pair})
    traffic = [NodeTraffic(f"n{number}", {owner: 2}) for number, owner in enumerate(owners)]
    remote = {frozenset(pair): rate for pair, rate in bytes_per_s.items()}
    return advise(traffic, remote, {owner: f"app={owner.name}" for owner in owners}, {}, {}, 0.0)


@contextlib.contextmanager
def written(api: ControlPlane, found: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """These advices, on the server."""
    for name, advice in found.items():
        api.ask("POST", ADVICES, {key: value for key, value in advice.items() if key != "status"})
        api.ask("PATCH", f"{ADVICES}/{name}/status", {"status": advice["status"]}, content_type=MERGE)
    try:
        yield
    finally:
        for name in found:
            api.ask("DELETE", f"{ADVICES}/{name}")


@contextlib.contextmanager
def policy_in_force(api: ControlPlane, kubectl: Kubectl, namespace: str) -> Iterator[None]:
    """A namespace that is labelled, and the policy, which the server goes by a moment after it is written."""
    api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    until(lambda: bool(api.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")))
    kubectl.run("label", "namespace", namespace, "cri-resmgr.io/follow-advice=true")
    kubectl.run("apply", "-k", str(PACKAGING / "follow-advice"))
    probe, target = (Owner("Deployment", namespace, name) for name in ("probe", "target"))
    found = advices({(probe, target): 2_000_000})
    try:
        with written(api, found):
            follower = next(row for each in found.values() for row in each["status"]["followers"])
            until(lambda: bool(followed(admitted(api, Owner(*(follower[k] for k in Owner._fields))))))
        yield
    finally:
        kubectl.run("delete", "-k", str(PACKAGING / "follow-advice"))
        api.ask("DELETE", f"/api/v1/namespaces/{namespace}")
