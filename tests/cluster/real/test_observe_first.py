"""From observe to enforce by one policy: a few nodes at a time, no further than the first that is Degraded, and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
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

#: As the DaemonSets have it.
FIRST_MODE = ("--first-mode", "observe")
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
            node = DescribedNode(
                rights, folder / name, f"{name}-{os.getpid()}", EPYC_NPS4_1S, more=FIRST_MODE
            )
            stack.push_async_callback(node.close)
            await node.start(pool="first")
            nodes.append(node)
        await until_ready(rights, *(node.name for node in nodes))
        yield nodes


def enforcing(memory: str = "off", **rollout: Any) -> dict[str, Any]:
    config = {"relay": {"mode": "enforce"}, "placement": {"memory": memory}}
    return policy("over", config, selector={"matchLabels": {"pool": "first"}}, **rollout)


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

    await put_policy(rights, enforcing())
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
        await put_policy(rights, enforcing("prefer"))
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
    async def given() -> set[str]:
        objects = [await placement(rights, node.name) for node in fleet]
        return {of["metadata"]["name"] for of in objects if of["spec"].get("policy")}

    # 1. Two nodes have it and are well; for an hour no other is changed.
    await put_policy(rights, enforcing(maxUnavailable=2, pauseSeconds=3600))
    try:
        await until(lambda: policy_status(rights, "over"), lambda told: told.get("ready") == 2, WAIT_S)
        enforce = sorted(await given())
        assert enforce == sorted(node.name for node in fleet)[:2]
        # 2. One is Degraded: where its metrics are to be something else listens.
        failing = next(node for node in fleet if node.name == enforce[1])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            failing.daemon.write_config({"metrics": {"listen": f"127.0.0.1:{listener.getsockname()[1]}"}})
            failing.reload_daemon()
            status = await until_phase(rights, "TakingBack", "Aborted")
            assert failing.name in str(status["message"])
            # 3. All observe again, and the third has never done anything else.
            await until(given, lambda names: not names, WAIT_S)
            await until(lambda: modes(fleet), lambda said: said == [f"observe, {INSTALLED}"] * 3, WAIT_S)
            third = next(node for node in fleet if node.name not in enforce)
            assert "cluster policy" not in third.daemon.log()
            said = kubectl.run("cri_resmgr", "rollout")
            assert f"observe  {INSTALLED}" in said
            assert failing.name in said
        # 4. It is well again: that ends it, and nothing is tried anew before the policy is another.
        failing.daemon.write_config({"metrics": {"listen": ""}})
        failing.reload_daemon()
        status = await until_phase(rights, "Aborted")
        assert failing.name in str(status["message"])
        assert await modes(fleet) == [f"observe, {INSTALLED}"] * 3
    finally:
        await delete(rights, f"{POLICIES}/over")
