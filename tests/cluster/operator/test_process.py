"""``python -m cluster.operator`` on an API server by HTTP: its start, a policy on a node, answers that are lost, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api.crds import definitions
from cluster.kube.requests import LEASES, Resource
from cluster.operator.advice import Owner, name_of
from tests.cluster.api_server import ApiServer, Fault
from tests.cluster.declared import older, schema_of
from tests.cluster.operator.cluster import node, policy, well_status

NODES = Resource("", "v1", "nodes")
PLACEMENTS = Resource("cri-resmgr.io", "v1alpha1", "nodeplacements")
POLICIES = Resource("cri-resmgr.io", "v1alpha1", "placementpolicies")
PODS = Resource("", "v1", "pods", namespaced=True)
LEASE = ("cri-resmgr-operator", "cri-resmgr")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def process(server: ApiServer, tmp_path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    log = tmp_path / "log"
    with log.open("wb") as file:
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cluster.operator", f"--kubeconfig={kubeconfig}", "--quiet=0.02"),
            f"--health-file={tmp_path / 'health'}",
            stdout=file,
            stderr=file,
        )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
        # Shown if the test fails.
        print(log.read_text())


def answer(server: ApiServer, name: str) -> None:
    """The agent of this node carries out what it finds."""
    found = server.object(PLACEMENTS, name)
    assert found is not None
    given = found.get("spec", {}).get("policy")
    status: dict[str, Any] = well_status()
    if given:
        status["policy"] = {"name": given["name"], "hash": given["hash"], "state": "Applied"}
    server.put(PLACEMENTS, {**found, "status": status}, manager="cri-resmgr-agent")


def given(server: ApiServer, name: str) -> Any:
    found = server.object(PLACEMENTS, name) or {}
    return (found.get("spec") or {}).get("policy")


def phase(server: ApiServer) -> Any:
    return ((server.object(POLICIES, "p") or {}).get("status") or {}).get("phase")


@pytest.mark.parametrize("drops", [False, True])
async def test_a_schema_without_some_fields_of_a_status_stops_no_rollout(server, process, drops) -> None:
    definition = older(definitions()[1], "status.inChange", "status.completedHash")
    server.schemas["placementpolicies"] = schema_of(definition)
    server.drops = {"placementpolicies"} if drops else set()
    server.put(NODES, {"apiVersion": "v1", "kind": "Node", **node("n0")})
    server.put(POLICIES, policy())
    await server.until(lambda: server.object(PLACEMENTS, "n0"))
    answer(server, "n0")
    await server.until(lambda: given(server, "n0"))
    answer(server, "n0")
    await server.until(lambda: phase(server) == "Complete")
    assert "inChange" not in (server.object(POLICIES, "p") or {})["status"]


@pytest.mark.parametrize("fault", ["", "lost", "reset"])
async def test_a_policy_reaches_a_node_and_the_lease_is_given_back(server, process, fault) -> None:
    server.put(NODES, {"apiVersion": "v1", "kind": "Node", **node("n0")})
    server.put(POLICIES, policy())
    await server.until(lambda: server.object(PLACEMENTS, "n0"))
    if fault:
        server.faults.append(Fault(fault, method="PATCH", path="nodeplacements/n0"))
    answer(server, "n0")
    await server.until(lambda: given(server, "n0"))
    answer(server, "n0")
    await server.until(lambda: phase(server) == "Complete")
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    lease = server.object(LEASES, *LEASE)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


async def is_healthy(health_file: Path) -> bool:
    """What the liveness probe of the Deployment asks."""
    probe = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cluster.operator", "--check-health", str(health_file))
    )
    return await probe.wait() == 0


async def test_a_probe_sees_an_operator_that_hangs(server, process, tmp_path) -> None:
    health = tmp_path / "health"
    await server.until(lambda: server.object(LEASES, *LEASE))
    assert await is_healthy(health)
    # One that waits for an API server goes on trying, and one that hangs does not.
    touched = health.stat().st_mtime_ns
    await server.until(lambda: health.stat().st_mtime_ns > touched)
    process.send_signal(signal.SIGSTOP)
    os.utime(health, (0, 0))
    assert not await is_healthy(health)
    health.unlink()
    assert not await is_healthy(health)


@pytest.fixture
def talking(server: ApiServer) -> None:
    """A database on n0, and a Deployment's pod on n1 that opens connections to it; before the operator's first look."""
    web, db = "web-6d4cf56db6-bcdfg", "db-0"
    row = {
        "namespace": "shop",
        "pod": db,
        "container": "c",
        "address": "10.244.1.7",
        "bytesPerSecond": 4_000_000,
    }
    for name, pod, told in (("n0", db, [row]), ("n1", web, [])):
        server.put(NODES, {"apiVersion": "v1", "kind": "Node", **node(name)})
        status = well_status(
            placements=[{"namespace": "shop", "pod": pod, "container": "c"}], remoteTraffic=told
        )
        server.put(PLACEMENTS, {"metadata": {"name": name}, "spec": {}, "status": status})
    for plural, name in (("deployments", "web"), ("statefulsets", "db")):
        spec = {"selector": {"matchLabels": {"app": name}}}
        owner = {"metadata": {"name": name, "namespace": "shop"}, "spec": spec}
        server.put(Resource("apps", "v1", plural, namespaced=True), owner)
    for name, address in ((web, "10.244.1.7"), ("other-0", "10.244.1.8")):
        status = {"podIP": address, "phase": "Running"}
        metadata = {"name": name, "namespace": "shop"}
        server.put(PODS, {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})


async def test_two_nodes_that_tell_of_each_other_make_one_advice(server, talking, process) -> None:
    advices = Resource("cri-resmgr.io", "v1alpha1", "affinityadvices")
    pair = [Owner("Deployment", "shop", "web"), Owner("StatefulSet", "shop", "db")]
    await server.until(lambda: (server.object(advices, name_of(pair)) or {}).get("status"))
    status = (server.object(advices, name_of(pair)) or {})["status"]
    assert (status["remoteBytesPerSecond"], status["bytesPerSecond"]) == (4_000_000, 0)
    assert status["target"] == pair[1]._asdict()
    assert '"app": "db"' in status["podAffinity"]
    # One question, which the server answers from its memory.
    [call] = [call for call in server.calls if call.path == "/api/v1/pods"]
    assert (call.query["fieldSelector"], call.query["resourceVersion"]) == ("status.podIP=10.244.1.7", "0")
