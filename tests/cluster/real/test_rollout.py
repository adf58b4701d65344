"""A policy on its way over three nodes, with the real operator, agents and daemons."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.api.names import NAMESPACE, OPERATOR
from cluster.operator.objects import read_node_placement
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.node import RegisteredNode, found
from tests.cluster.real.parts import (
    POLICIES,
    WAIT_S,
    DescribedNode,
    Part,
    active,
    delete,
    operator,
    placement,
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


LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{OPERATOR}"


@pytest.fixture
async def second_operator(rights: ControlPlane, started_operator: Part, folder: Path) -> AsyncIterator[Part]:
    """Another; one of the two has the Lease."""
    token = rights.account_token(NAMESPACE, OPERATOR)
    kubeconfig = rights.kubeconfig(folder / "second.kubeconfig", token=token)
    part = operator(folder, kubeconfig, name="second-operator")
    await part.start()
    yield part
    await part.end()
    # Shown if the test fails.
    print("--- second operator", *part.log().splitlines()[-40:], sep="\n")


@contextlib.asynccontextmanager
async def one_at_a_time(api: ControlPlane, names: Sequence[str]) -> AsyncIterator[None]:
    """No two of these nodes are in change at once, as often as that can be looked at."""
    most = 0

    async def look() -> None:
        nonlocal most
        while True:
            states = [read_node_placement(await placement(api, name)) for name in names]
            most = max(most, sum(not state.confirmed for state in states))

    looking = asyncio.ensure_future(look())
    try:
        yield
    finally:
        looking.cancel()
        ended = (await asyncio.gather(looking, return_exceptions=True))[0]
    assert isinstance(ended, asyncio.CancelledError), ended
    assert most == 1


async def test_of_two_operators_one_is_killed_in_the_middle_of_a_change_and_the_other_ends_it(
    rights: ControlPlane, started_operator: Part, second_operator: Part, described_nodes: list[DescribedNode]
) -> None:
    names = [node.name for node in described_nodes]
    before = [await active(node.daemon) for node in described_nodes]

    async def given(policy_name: str) -> list[Any]:
        objects = [await placement(rights, name) for name in names]
        return [
            name
            for name, of in zip(names, objects)
            if of["spec"].get("policy", {}).get("name") == policy_name
        ]

    async def phase(policy_name: str) -> str:
        return str((await policy_status(rights, policy_name)).get("phase"))

    operators = (started_operator, second_operator)
    leader = next(part for part in operators if "held by" in part.log())
    other = next(part for part in operators if part is not leader)
    first = (await found(rights, LEASE))["spec"]["holderIdentity"]
    try:
        async with one_at_a_time(rights, names):
            # 1. As soon as one node is given the policy.
            await put_policy(rights, policy("good", GOOD))
            await until(lambda: given("good"), timeout_s=WAIT_S)
            await leader.end()
            await until(lambda: phase("good"), lambda said: said == "Complete", WAIT_S)
            assert [await active(node.daemon) for node in described_nodes] == ["topology-aware"] * len(names)
            assert (await found(rights, LEASE))["spec"]["holderIdentity"] != first
            assert other.log().count("is given policy good") == len(names) - 1
        # 2. As soon as one has refused another: the one that was killed, started again, takes it back.
        await leader.start()
        async with one_at_a_time(rights, names):
            await put_policy(rights, policy("good", TOO_MANY))

            async def refused() -> bool:
                objects = [await placement(rights, name) for name in names]
                return any(of["status"]["policy"]["state"] == "Refused" for of in objects)

            await until(refused, timeout_s=WAIT_S)
            await other.end()
            await until(lambda: phase("good"), lambda said: said == "Aborted", WAIT_S)
            assert [await active(node.daemon) for node in described_nodes] == ["topology-aware"] * len(names)
    finally:
        await delete(rights, f"{POLICIES}/good")
    await until_applied(rights, "", *names)
    assert [await active(node.daemon) for node in described_nodes] == before
