"""A real agent dies on a node on which nothing happens: its Lease on a real API server says so to a real operator."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.api.heartbeat import lease_name
from cluster.api.names import AGENT_SILENT, NAMESPACE, OPERATOR, READY
from cluster.kubectl import complaints
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.hasty_heartbeats import AGENT as HASTY_AGENT
from tests.cluster.real.hasty_heartbeats import OPERATOR as HASTY_OPERATOR
from tests.cluster.real.node import found
from tests.cluster.real.parts import PLACEMENTS, WAIT_S, DescribedNode, operator, placement, until_ready
from tests.e2e.node import until
from tests.machines import EPYC_NPS4_1S

pytestmark = pytest.mark.cluster


@pytest.fixture
async def node(rights: ControlPlane, folder: Path) -> AsyncIterator[DescribedNode]:
    """It is ready; agent and operator have quick heartbeats."""
    kubeconfig = rights.kubeconfig(
        folder / "operator.kubeconfig", token=rights.account_token(NAMESPACE, OPERATOR)
    )
    hasty = operator(folder, kubeconfig, program=HASTY_OPERATOR)
    await hasty.start()
    made = DescribedNode(rights, folder / "quiet", f"quiet-{os.getpid()}", EPYC_NPS4_1S, program=HASTY_AGENT)
    try:
        await made.start()
        await until_ready(rights, made.name)
        yield made
    finally:
        await made.close()
        await hasty.end(signal.SIGTERM)
        print("--- hasty operator", *hasty.log().splitlines()[-40:], sep="\n")


def ready(of: Mapping[str, Any]) -> tuple[str, str]:
    """Status and reason."""
    rows = of.get("status", {}).get("conditions") or ()
    return next(((row["status"], row["reason"]) for row in rows if row["type"] == READY), ("", ""))


async def test_an_agent_that_dies_on_a_quiet_node_is_named_and_well_again_when_it_is_back(
    rights: ControlPlane, node: DescribedNode
) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease_name(node.name)}"

    async def now() -> Mapping[str, Any]:
        return await placement(rights, node.name)

    async def lease() -> Mapping[str, Any]:
        return await found(rights, path)

    async def signal_agent(number: int) -> None:
        assert node.agent.process is not None
        node.agent.process.send_signal(number)

    async def is_renewed() -> bool:
        return bool((await lease())["spec"]["renewTime"] != first["spec"]["renewTime"])

    first = await until(lease, timeout_s=WAIT_S)
    await until(is_renewed, timeout_s=WAIT_S)
    for halt, go_on in (
        (node.agent.end, node.agent.start),
        # One that was stopped only has nothing new to write as it goes on.
        (partial(signal_agent, signal.SIGSTOP), partial(signal_agent, signal.SIGCONT)),
    ):
        # 1. It is dead.
        await halt()
        told = await until(now, lambda of: ready(of) == ("Unknown", AGENT_SILENT), WAIT_S)
        says = (
            f"the agent of {node.name} has not renewed its Lease {NAMESPACE}/{lease_name(node.name)} since 20"
        )
        assert any(each["message"].startswith(says) for each in complaints(told))
        # 2. It is back.
        await go_on()
        await until(now, lambda of: ready(of)[0] == "True", WAIT_S)
    # 3. It goes with the node's object, as this is made again.
    owner = (await lease())["metadata"]["ownerReferences"][0]["uid"]
    assert owner == (await now())["metadata"]["uid"]
    await node.agent.end()
    await asyncio.to_thread(rights.ask, "DELETE", f"{PLACEMENTS}/{node.name}")
    await until(lease, lambda of: not of, WAIT_S)
    await node.agent.start()
    await until(lease, timeout_s=WAIT_S)
