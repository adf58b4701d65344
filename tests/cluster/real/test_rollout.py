"""A policy on its way over three nodes, with the real operator, agents and daemons."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from cri_proxy.shell import control
from policies.cpus import parse_cpus
from tests.agent import Agent
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.node import RegisteredNode
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
)
from tests.e2e.node import until
from tests.kubelet.node import static_pod

pytestmark = pytest.mark.cluster

GOOD = {"policy": {"Active": "topology-aware"}}
#: More CPUs than one of the three nodes has.
TOO_MANY = {"policy": {"Active": "topology-aware", "ReservedResources": {"CPU": "100"}}}


async def active(daemon: Agent) -> str:
    """The policy that a daemon places by."""
    return str((await asyncio.to_thread(control.ask, daemon.control, "status", {}))["policy"])


async def test_a_policy_reaches_every_node_and_goes_back_with_its_object(
    rights: ControlPlane, registered: RegisteredNode, described_nodes: list[DescribedNode], nodes: list[str]
) -> None:
    daemons = [registered.agent, *(node.daemon for node in described_nodes)]
    before = [await active(daemon) for daemon in daemons]
    assert "topology-aware" not in before
    await put_policy(rights, policy("good", GOOD))
    try:
        await until_applied(rights, "good", *nodes)
        assert [await active(daemon) for daemon in daemons] == ["topology-aware"] * 3
        await until(
            lambda: policy_status(rights, "good"), lambda status: status.get("phase") == "Complete", WAIT_S
        )
        status = await policy_status(rights, "good")
        assert [status[key] for key in ("desired", "updated", "ready", "degraded")] == [3, 3, 3, 0]
    finally:
        await delete(rights, f"{POLICIES}/good")
    await until_applied(rights, "", *nodes)
    assert [await active(daemon) for daemon in daemons] == before


async def test_a_policy_that_a_node_refuses_is_taken_back_everywhere(
    rights: ControlPlane, registered: RegisteredNode, described_nodes: list[DescribedNode], nodes: list[str]
) -> None:
    daemons = [registered.agent, *(node.daemon for node in described_nodes)]
    before = [await active(daemon) for daemon in daemons]
    await put_policy(rights, policy("bad", TOO_MANY))
    try:
        status = await until(
            lambda: policy_status(rights, "bad"), lambda status: status.get("phase") == "Aborted", WAIT_S
        )
        assert "policy.ReservedResources.CPU" in str(status["message"])
        assert [await active(daemon) for daemon in daemons] == before
    finally:
        await delete(rights, f"{POLICIES}/bad")
    await until_applied(rights, "", *nodes)


async def test_an_operator_that_is_killed_again_and_again_brings_the_policy_to_all_nodes(
    rights: ControlPlane, started_operator: Part, described_nodes: list[DescribedNode]
) -> None:
    names = [node.name for node in described_nodes]
    await put_policy(rights, policy("resumed", GOOD))
    try:
        for name in names:
            await started_operator.end()
            await started_operator.start()
            await until_applied(rights, "resumed", name)
        assert [await active(node.daemon) for node in described_nodes] == ["topology-aware"] * len(names)
    finally:
        await delete(rights, f"{POLICIES}/resumed")
    await until_applied(rights, "", *names)


@pytest.mark.parametrize("away_s", [60, pytest.param(600, marks=pytest.mark.long)])
async def test_without_the_api_server_pods_start_and_the_agent_reports_them_when_it_is_back(
    rights: ControlPlane, registered: RegisteredNode, nodes: list[str], away_s: int
) -> None:
    await asyncio.to_thread(rights.stop_server)
    try:
        # A static pod: kubelet needs no API server for it.
        registered.host.put(static_pod("alone", cpu="500m", limit="4"))

        async def placed() -> list[str]:
            rows = await registered.daemon.ask("placements")
            return [
                row["cpus"] for row in rows if row["pod"].startswith("alone-") and row["container"] == "main"
            ]

        cpus = await until(placed, timeout_s=WAIT_S)
        assert len(parse_cpus(cpus[0])) == 8
        # The length is the case itself: what backs off must come back by itself.
        await asyncio.sleep(away_s)
    finally:
        await asyncio.to_thread(rights.start_server)

    def is_told(of: Mapping[str, Any]) -> bool:
        rows = of.get("status", {}).get("placements") or ()
        return any(row["pod"].startswith("alone-") and row["cpus"] == cpus[0] for row in rows)

    await until(lambda: placement(rights, registered.name), is_told, WAIT_S)
    registered.host.take("alone")
