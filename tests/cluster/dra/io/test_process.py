"""The agent's process with a real daemon that gives CPUs to claims: slices, books, reports, and what is lost in between."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.claims import ClaimName
from cluster.dra.io.publisher import NODES
from cluster.dra.recovery import STATE_FILE
from cluster.dra.slices import SLICES
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cluster.agent.io.node import NAME, NodeAgent
from tests.cluster.api_server import ApiServer
from tests.cluster.dra.io.kubelet import Kubelet
from tests.cluster.dra.io.serving import api_server as api_server  # fixtures, of these tests too
from tests.cluster.dra.io.serving import four as four
from tests.cluster.dra.io.test_whole import ON, held, known_to_cdi
from tests.cluster.dra.kubelet_state import kubelet_state
from tests.cluster.dra.objects import DRIVER, NODE
from tests.functional.conftest import ask, until
from tests.functional.conftest import start_agent as start_agent


@pytest.fixture
async def daemon(start_agent: Any) -> Agent:
    """On a two-socket Hygon, with claims on."""
    agent: Agent = await start_agent(**ON)
    return agent


@pytest.fixture
async def node(daemon: Agent, api_server: ApiServer, folder: Path) -> AsyncIterator[NodeAgent]:
    assert NAME == NODE
    api_server.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    made = NodeAgent(api_server, daemon, folder)
    made.create()
    await made.start(f"--kubelet-dir={folder / 'k'}")
    yield made
    await made.stop()
    print(made.log)


@pytest.fixture
async def kubelet(node: NodeAgent, folder: Path) -> AsyncIterator[Kubelet]:
    made = Kubelet(folder / "k")
    await made.register()
    yield made
    await made.close()


def devices(node: NodeAgent) -> dict[str, dict[str, Any]]:
    """All that are published, by name."""
    return {row["name"]: row for each in node.api.objects(SLICES) for row in each["spec"].get("devices", ())}


async def test_what_the_daemon_gives_is_published(node: NodeAgent, kubelet: Kubelet) -> None:
    await node.api.until(lambda: len(devices(node)) > 8)
    given = await ask(node.daemon, "claim-devices")
    found = devices(node)
    assert found.keys() == {row["name"] for row in given["devices"]}
    for row in given["devices"]:
        assert int(found[row["name"]]["capacity"]["cpu"]["value"]) == row["cpus"]
        assert bool(found[row["name"]].get("allowMultipleAllocations")) is row["shared"]


def available(node: NodeAgent, zone: str) -> str:
    """CPUs that schedulers may still give away, by the NodeResourceTopology."""
    rows = {row["name"]: row for row in (node.topology or {"zones": []})["zones"]}
    amounts = {each["name"]: each for each in rows.get(zone, {}).get("resources", ())}
    return str(amounts.get("cpu", {}).get("available", ""))


async def test_cpus_of_a_claim_are_reported_as_taken(
    node: NodeAgent, kubelet: Kubelet, four: ClaimName
) -> None:
    await node.api.until(lambda: available(node, "node-0"))
    before = int(available(node, "node-0"))
    fingerprint = (node.topology or {})["attributes"]
    assert "claims" not in node.status
    assert (await kubelet.prepare(four))[four.uid].error == ""
    cpus = (await held(node.daemon))[four.uid]["cpus"]
    await node.api.until(lambda: node.status.get("claims") == {"count": 1, "cpus": cpus})
    await node.api.until(lambda: available(node, "node-0") == str(before - len(parse_cpus(cpus))))
    assert node.status["placements"] == []  # a claim is no container
    assert (node.topology or {})["attributes"] == fingerprint

    await kubelet.unprepare(four)
    await node.api.until(lambda: "claims" not in node.status)
    await node.api.until(lambda: available(node, "node-0") == str(before))


async def test_a_claim_changes_no_slice_but_takes_whole_devices_of_others_away(
    node: NodeAgent, kubelet: Kubelet, four: ClaimName
) -> None:
    await node.api.until(lambda: len(devices(node)) > 8)
    before = devices(node)["l3-0"]
    await kubelet.prepare(four)
    # The scheduler counts what it has allocated: a claim is not to be counted twice.
    rows = {row["name"]: row["cpus"] for row in (await ask(node.daemon, "claim-devices"))["devices"]}
    assert rows["l3-0"] == int(before["capacity"]["cpu"]["value"])
    await node.api.until(lambda: devices(node).get("l3-0") == before)


async def test_a_daemon_that_lost_its_state_has_its_claims_again(
    node: NodeAgent, kubelet: Kubelet, daemon: Agent, four: ClaimName, folder: Path
) -> None:
    await kubelet.prepare(four)
    names = known_to_cdi(daemon)
    (folder / "k" / STATE_FILE).write_text(kubelet_state((ClaimName(*four), DRIVER)))
    await daemon.kill()
    shutil.rmtree(daemon.state)
    await daemon.start()
    # The file of CDI is there after the claim, and before kubelet's plugin would be answered.
    await until(daemon, lambda found: found["claims"] and known_to_cdi(daemon) == names, "claims")
    assert (await held(daemon)).keys() == {four.uid}


async def test_switched_off_and_on_again_slices_go_and_come(
    node: NodeAgent, kubelet: Kubelet, daemon: Agent
) -> None:
    await node.api.until(lambda: node.api.objects(SLICES))
    for is_on in (False, True):
        daemon.write_config({"dra": {"enabled": is_on}})
        daemon.reload()
        await node.api.until(lambda is_on=is_on: bool(node.api.objects(SLICES)) is is_on)


async def test_an_agent_that_starts_again_writes_no_slice(node: NodeAgent, kubelet: Kubelet) -> None:
    await node.api.until(lambda: len(devices(node)) > 8)
    before = [each["metadata"]["resourceVersion"] for each in node.api.objects(SLICES)]
    for _ in range(2):
        await node.stop()
        await node.start(f"--kubelet-dir={kubelet.folder}")
        await kubelet.register()
    assert [each["metadata"]["resourceVersion"] for each in node.api.objects(SLICES)] == before
