"""What packaging/cluster/dra applies, on a real server: classes, rights of agents, and the check of requests."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.api.names import AGENT, NAMESPACE
from cluster.dra.recovery import NO_RELATION
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import PACKAGING, Kubectl
from tests.cluster.real.parts import AGENT_PODS, agent_token
from tests.cluster.real.test_operator import until
from tests.test_documents import examples_of_claims

pytestmark = pytest.mark.cluster

RESOURCES = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCES}/resourceslices"
ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
DRIVER = "cpu.cri-resmgr.io"
NODES = ("claims-1", "claims-2")
SHOP = "claims-shop"
Json = dict[str, Any]


def slice_of(node: str, *, pool: str = "", driver: str = DRIVER, **spec: Any) -> Json:
    """A slice of a node with one device."""
    return {
        "metadata": {"name": f"{node}-{driver}-{pool or 'own'}"},
        "spec": {
            "driver": driver,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "l3-0", "attributes": {"kind": {"string": "l3"}}}],
            **(spec or {"nodeName": node}),
        },
    }


@pytest.fixture(scope="module")
def claims(rights: ControlPlane, kubectl: Kubectl) -> Iterator[ControlPlane]:
    """The control plane with what the driver needs, in force, and two nodes."""
    kubectl.run("apply", "-k", str(PACKAGING / "dra/objects"))
    for name in NODES:
        rights.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    nowhere = rights.account_token(NAMESPACE, AGENT)
    until(
        lambda: (
            "names no node" in refusal(rights, "POST", f"{SLICES}?dryRun=All", slice_of("x"), token=nowhere)
        )
    )
    yield rights
    for name in NODES:
        with contextlib.suppress(Refused):
            rights.ask("DELETE", f"{AGENT_PODS}/agent-{name}?gracePeriodSeconds=0")
        rights.ask("DELETE", f"/api/v1/nodes/{name}")
    kubectl.run("delete", "-k", str(PACKAGING / "dra/objects"))


def refusal(api: ControlPlane, *request: Any, **more: Any) -> str:
    """The sentence with which a request is refused; "": it is not."""
    try:
        api.ask(*request, **more)
    except Refused as said:
        return str(said)
    return ""


def test_an_agent_in_a_pod_writes_slices_of_its_node_in_its_pool_and_of_our_driver(
    claims: ControlPlane,
) -> None:
    own, other = NODES
    token = agent_token(claims, own)
    made = claims.ask("POST", SLICES, slice_of(own), token=token)
    where = f"{SLICES}/{made['metadata']['name']}"
    made["spec"]["pool"]["generation"] = 2
    claims.ask("PUT", where, made, token=token)
    assert [one["spec"]["pool"]["generation"] for one in claims.ask(
        "GET", f"{SLICES}?fieldSelector=spec.nodeName%3D{own}", token=token)["items"]] == [2]  # fmt: skip
    for wanted, said in (
        (slice_of(other), f"the agent of node {own} may not write a slice of {other}"),
        (slice_of(own, pool=other), f"may not write a slice of the pool {other}"),
        (slice_of(own, driver="gpu.example.com"), "may not write a slice of the driver gpu.example.com"),
        (slice_of(own, allNodes=True), "may not write a slice of no node"),
    ):
        assert said in refusal(claims, "POST", SLICES, wanted, token=token)
    assert "may not write a slice of" in refusal(claims, "DELETE", where, token=agent_token(claims, other))
    claims.ask("DELETE", where, token=token)
    # The vocabulary of dra.cpu.
    claims.ask("POST", f"{SLICES}?dryRun=All", slice_of(own, driver="dra.cpu"), token=token)
    claims.ask("GET", f"/api/v1/nodes/{own}", token=token)
    assert "not found" in refusal(
        claims, "GET", f"{RESOURCES}/namespaces/default/resourceclaims/x", token=token
    )
    assert "cannot list" in refusal(claims, "GET", f"{RESOURCES}/resourceclaims", token=token)
    assert "cannot" in refusal(
        claims, "DELETE", f"{RESOURCES}/namespaces/default/resourceclaims/x", token=token
    )


def test_an_agent_on_a_host_writes_slices_of_its_node_with_the_rights_that_kubelets_have(
    claims: ControlPlane, kubectl: Kubectl
) -> None:
    own, other = NODES
    pair = claims.certificate(f"system:node:{own}", "system:nodes")

    def ask(method: str, path: str, body: Any = None) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(claims.ca))
        context.load_cert_chain(*pair)
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            claims.url + path, content, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return int(answer.status), ""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    name = slice_of(own)["metadata"]["name"]
    assert ask("POST", SLICES, slice_of(own))[0] == 201
    assert ask("GET", f"{SLICES}?fieldSelector=spec.nodeName%3D{own}")[0] == 200
    assert ask("GET", f"/api/v1/nodes/{own}")[0] == 200
    assert ask("DELETE", f"{SLICES}/{name}")[0] == 200
    assert ask("POST", SLICES, slice_of(other))[0] == 403
    code, told = ask("GET", f"{RESOURCES}/namespaces/default/resourceclaims/gone")
    assert code == 403 and NO_RELATION in told
    # What another node's agent has written.
    claims.ask("POST", SLICES, slice_of(other), token=agent_token(claims, other))
    changed = claims.ask("GET", f"{SLICES}/{slice_of(other)['metadata']['name']}")
    changed["spec"]["pool"]["generation"] = 7
    assert ask("PUT", f"{SLICES}/{changed['metadata']['name']}", changed)[0] == 403
    # As the page has all of them removed.
    kubectl.run("delete", "resourceslices", "--field-selector", f"spec.driver={DRIVER}")
    assert "not found" in refusal(claims, "GET", f"{SLICES}/{changed['metadata']['name']}")


def test_the_policies_have_no_warnings_of_types(claims: ControlPlane, checked: str) -> None:
    for name in ("cri-resmgr-dra-slices", "cri-resmgr-dra-requests"):

        def found(name: str = name) -> Any:
            return claims.ask("GET", f"{ADMISSION}/{name}").get("status", {}).get("typeChecking")

        claims.wait("kube-controller-manager", lambda: found() is not None)
        assert found().get("expressionWarnings", []) == []


def test_the_plugin_lists_claims_that_have_cpus_and_those_that_wait(
    claims: ControlPlane, kubectl: Kubectl
) -> None:
    where = f"{RESOURCES}/namespaces/default/resourceclaims"
    asked = {
        "name": "cpus",
        "exactly": {"deviceClassName": f"l3.{DRIVER}", "capacity": {"requests": {"cpu": "4"}}},
    }
    for name in ("plugin-has", "plugin-waits"):
        claims.ask("POST", where, {"metadata": {"name": name}, "spec": {"devices": {"requests": [asked]}}})
    result = {
        "request": "cpus",
        "driver": DRIVER,
        "pool": NODES[0],
        "device": "l3-0",
        "consumedCapacity": {"cpu": "4"},
        "shareID": "a671734a-e8e5-11e4-8fde-42010af09327",
    }
    status = {"allocation": {"devices": {"results": [result]}}}
    claims.ask(
        "PATCH", f"{where}/plugin-has/status", {"status": status}, content_type="application/merge-patch+json"
    )
    rows = [line.split() for line in kubectl.run("cri_resmgr", "claims", "-n", "default").splitlines()]
    assert [row for row in rows if row[1].startswith("plugin-")] == [
        ["default", "plugin-waits", "waits", "-", "-", "-"],
        ["default", "plugin-has", NODES[0], "l3-0", "4", "-"],
    ]
    for name in ("plugin-has", "plugin-waits"):
        claims.ask("DELETE", f"{where}/{name}")


@pytest.mark.parametrize("number", range(len(examples_of_claims())))
def test_the_server_takes_each_example_of_the_page(
    claims: ControlPlane, kubectl: Kubectl, number: int
) -> None:
    both = claims.folder / "example.yaml"
    both.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": list(examples_of_claims()[number])})
    )
    said = kubectl.run("apply", "--dry-run=server", "-f", str(both))
    assert said.count("created (server dry run)") == 2, said
    assert "Warning" not in said


# --- the check of requests


@pytest.fixture(scope="module")
def checked(claims: ControlPlane, kubectl: Kubectl) -> Iterator[str]:
    """A namespace in which requests are checked."""
    claims.ask("POST", "/api/v1/namespaces", {"metadata": {"name": SHOP}})
    until(lambda: not refusal(claims, "GET", f"/api/v1/namespaces/{SHOP}/serviceaccounts/default"))
    kubectl.run("label", "namespace", SHOP, "cri-resmgr.io/check-requests=true")
    kubectl.run("apply", "-k", str(PACKAGING / "dra/check-requests"))
    capacity = {"capacity": {"requests": {"cpu": "4"}}}
    for name, requests in {
        "four": [{"name": "cpus", "exactly": {"deviceClassName": f"l3.{DRIVER}", **capacity}}],
        "six": [
            {"name": "a", "exactly": {"deviceClassName": f"l3.{DRIVER}", **capacity}},
            {"name": "b", "exactly": {"deviceClassName": DRIVER, "count": 2}},
            {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}},
        ],
        "others": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}],
    }.items():
        template = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}
        claims.ask("POST", f"{RESOURCES}/namespaces/{SHOP}/resourceclaimtemplates", template)
    until(lambda: "take 4 CPUs" in said(claims, "four"))
    until(lambda: "take 6 CPUs" in said(claims, "six", cpus="5"))
    yield SHOP
    kubectl.run("delete", "-k", str(PACKAGING / "dra/check-requests"))
    claims.ask("DELETE", f"/api/v1/namespaces/{SHOP}")


def said(api: ControlPlane, *templates: str, cpus: str = "", of_pod: str = "", sidecar: str = "") -> str:
    """The refusal of a pod with claims of these templates; "": it is let through."""

    def requests(number: str) -> Json:
        return {"resources": {"requests": {"cpu": number}}} if number else {}

    names = [{"name": f"c{at}", "resourceClaimTemplateName": name} for at, name in enumerate(templates)]
    spec = {
        "containers": [{"name": "c", "image": "none", **requests(cpus)}],
        "initContainers": [{"name": "s", "image": "none", "restartPolicy": "Always", **requests(sidecar)}],
        **({"resourceClaims": names} if names else {}),
        **requests(of_pod),
    }
    pod = {"metadata": {"generateName": "p-"}, "spec": spec}
    return refusal(api, "POST", f"/api/v1/namespaces/{SHOP}/pods?dryRun=All", pod)


def test_a_pod_that_does_not_repeat_its_claims_cpus_is_told_to(claims: ControlPlane, checked: str) -> None:
    assert (
        "the claims of template four take 4 CPUs, and the pod requests 1.5: the scheduler does not count claimed "
        "CPUs, so repeat them in requests.cpu of the pod or of its containers"
    ) in said(claims, "four", cpus="1500m")
    assert "take 8 CPUs, and the pod requests 7" in said(claims, "four", "four", cpus="7")
    assert "take 6 CPUs, and the pod requests 5" in said(claims, "six", of_pod="5")


@pytest.mark.parametrize(
    ("templates", "requests"),
    [
        (("four",), {"cpus": "4"}),
        (("four",), {"cpus": "3", "sidecar": "1"}),
        (("four",), {"of_pod": "4"}),
        (("six",), {"cpus": "6"}),
        (("others",), {}),
        ((), {}),
        (("not-there",), {}),
    ],
)
def test_a_pod_that_does_or_has_no_claim_of_ours_is_let_through(
    claims: ControlPlane, checked: str, templates: tuple[str, ...], requests: dict[str, str]
) -> None:
    assert said(claims, *templates, **requests) == ""
