"""A policy on its way over three nodes, with the real operator, agents and daemons."""

from __future__ import annotations

import asyncio

import pytest

from cri_proxy.shell import control
from tests.agent import Agent
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.node import RegisteredNode
from tests.cluster.real.parts import (
    POLICIES,
    WAIT_S,
    DescribedNode,
    delete,
    policy,
    policy_status,
    put_policy,
    until_applied,
)
from tests.e2e.node import until

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
