"""From observe to enforce by one policy: a few nodes at a time, no further than the first that is Degraded, and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cri_proxy import control
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import (
    POLICIES,
    WAIT_S,
    DescribedNode,
    Part,
    condition,
    delete,
    placement,
    policy,
    policy_status,
    put_policy,
    until_applied,
    until_ready,
)
from tests.cri_client import CriClient
from tests.e2e.node import until
from tests.functional.support import run_pod_with
from tests.machines import EPYC_NPS4_1S

pytestmark = pytest.mark.cluster

INSTALLED = "default of the install"
NAMES = ("a", "b", "c")


@pytest.fixture
async def fleet(
    rights: ControlPlane, started_operator: Part, folder: Path
) -> AsyncIterator[list[DescribedNode]]:
    """Three nodes as a new cluster has them, ready."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for name in NAMES:
            node = DescribedNode(rights, folder / name, f"{name}-{os.getpid()}", EPYC_NPS4_1S, new=True)
            stack.push_async_callback(node.close)
            await node.start(pool="first")
            nodes.append(node)
        await until_ready(rights, *(node.name for node in nodes))
        yield nodes


def enforcing(**config: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"pool": "first"}}
    return policy("over", {"relay": {"mode": "enforce"}, **config}, selector=selector)


async def modes(nodes: list[DescribedNode]) -> list[str]:
    """What the daemons say themselves."""
    said = [await asyncio.to_thread(control.ask, node.daemon.control, "status", {}) for node in nodes]
    return [f"{status['mode']}, {status['mode_from']}" for status in said]


async def until_told(api: ControlPlane, nodes: list[DescribedNode], wanted: Mapping[str, str]) -> None:
    """Until NodePlacements have these modes, by the node's name."""
    for node in nodes:

        def has(of: Mapping[str, Any], mode: str = wanted[node.name]) -> bool:
            return bool(of.get("status", {}).get("mode") == mode)

        await until(lambda node=node: placement(api, node.name), has, WAIT_S)


async def until_phase(api: ControlPlane, *phases: str) -> Mapping[str, Any]:
    return await until(lambda: policy_status(api, "over"), lambda told: told.get("phase") in phases, WAIT_S)


async def placed(node: DescribedNode, name: str) -> str:
    """The cpuset that the runtime is told for a new container."""
    async with CriClient(node.daemon.socket) as client:
        _, container_id = await run_pod_with(client, name, cpu_limit=2000)
    return node.runtime.cpuset(container_id)


async def test_a_policy_brings_new_nodes_over_one_by_one_memory_last_and_back(
    rights: ControlPlane, kubectl: Kubectl, fleet: list[DescribedNode]
) -> None:
    # 1. A new node observes, and says why.
    assert await modes(fleet) == [f"observe, {INSTALLED}"] * 3
    assert await placed(fleet[0], "before") == ""
    said = kubectl.run("cri_resmgr", "rollout")
    assert f"observe  {INSTALLED}" in said
    # 2. Over to enforce, one at a time; memory nodes are not touched.
    most = 0

    async def in_change() -> None:
        nonlocal most
        while True:
            most = max(most, int((await policy_status(rights, "over")).get("inChange", 0)))

    await put_policy(rights, enforcing(placement={"memory": "off"}))
    looking = asyncio.ensure_future(in_change())
    try:
        await until_phase(rights, "Complete")
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        assert most == 1
        assert await modes(fleet) == ["enforce, cluster policy over (generation 1)"] * 3
        assert await placed(fleet[0], "after") != ""
        await until_told(rights, fleet, {node.name: "enforce" for node in fleet})
        said = kubectl.run("cri_resmgr", "rollout")
        assert "over    enforce  off     3/3" in said
        assert "enforce  cluster policy over (generation 1)  over Applied" in said
        # 3. What a NodePlacement asks for holds against the policy, which then brings memory nodes over.
        own = fleet[1].name
        patch = {"spec": {"mode": "observe"}}
        kind = "application/merge-patch+json"
        where = f"/apis/cri-resmgr.io/v1alpha1/nodeplacements/{own}"
        await asyncio.to_thread(lambda: rights.ask("PATCH", where, patch, content_type=kind))
        await until_told(rights, fleet[1:2], {own: "observe"})
        await put_policy(rights, enforcing(placement={"memory": "prefer"}))
        await until(
            lambda: policy_status(rights, "over"),
            lambda told: told.get("observedGeneration") == 2 and told.get("phase") == "Complete",
            WAIT_S,
        )
        asked = ["enforce, cluster policy over (generation 2)"] * 3
        assert await modes(fleet) == [asked[0], "observe, NodePlacement", asked[2]]
        await asyncio.to_thread(
            lambda: rights.ask("PATCH", where, {"spec": {"mode": None}}, content_type=kind)
        )
        await until(lambda: modes(fleet), lambda said: said == asked, WAIT_S)
    finally:
        looking.cancel()
        await delete(rights, f"{POLICIES}/over")
    # 4. Back: what was placed stays, and what is new is not placed.
    await until_applied(rights, "", *(node.name for node in fleet))
    assert await modes(fleet) == [f"observe, {INSTALLED}"] * 3
    assert await placed(fleet[0], "later") == ""


async def test_the_first_node_that_is_degraded_stops_it_and_all_go_back_to_observe(
    rights: ControlPlane, kubectl: Kubectl, fleet: list[DescribedNode]
) -> None:
    names = [node.name for node in fleet]

    async def given() -> list[str]:
        objects = {name: await placement(rights, name) for name in names}
        return [name for name, of in objects.items() if (of["spec"].get("policy") or {}).get("name") == "over"]

    # 1. Once the second node has been given it, that node is Degraded: what listens on the machine is gone.
    await put_policy(rights, {**enforcing(), "spec": {**enforcing()["spec"], "rollout": SLOW}})
    try:
        await until(given, lambda found: len(found) == 2, WAIT_S)
        second = next(node for node in fleet if node.name == max(await given()))
        await second.runtime.stop()
        await until(
            lambda: placement(rights, second.name), lambda of: condition(of, "Degraded") == "True", WAIT_S
        )
        status = await until_phase(rights, "Aborted")
        assert second.name in str(status["message"]) or "runtime" in str(status["message"])
        # 2. All are back in observe, the third has never left it.
        await until(lambda: modes(fleet), lambda said: said == [f"observe, {INSTALLED}"] * 3, WAIT_S)
        assert max(names) not in await given()
        assert "Aborted" in kubectl.run("cri_resmgr", "rollout")
    finally:
        await delete(rights, f"{POLICIES}/over")


#: Long enough for a node to be Degraded before the next is changed.
SLOW = {"maxUnavailable": 1, "pauseSeconds": 5, "abortOn": ["Degraded"]}
