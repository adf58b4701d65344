"""What fails in the middle of a rollout, with real operator, agents and daemons: it heals, goes back, or says why not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api.names import NAMESPACE, OPERATOR
from cluster.kubectl import complaints
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.parts import (
    POLICIES,
    WAIT_S,
    DescribedNode,
    Part,
    active,
    condition,
    delete,
    placement,
    policy,
    policy_status,
    put_policy,
    until_applied,
)
from tests.e2e.node import until

pytestmark = pytest.mark.cluster

GOOD = {"policy": {"Active": "topology-aware"}}
#: The first node that is changed stays in change for as long as a test takes.
PAUSE_S = 3600


async def _status_until(api: ControlPlane, phase: str) -> Any:
    return await until(lambda: policy_status(api, "good"), lambda said: said.get("phase") == phase, WAIT_S)


async def _told(api: ControlPlane, name: str) -> list[tuple[str, str]]:
    """Reason and message of the Events on an object without a namespace."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    found = await asyncio.to_thread(api.ask, "GET", path)
    return [(each["reason"], each["message"]) for each in found["items"]]


@pytest.fixture
async def good(rights: ControlPlane, described_nodes: list[DescribedNode]) -> AsyncIterator[None]:
    """The policy is gone from server and nodes after the test."""
    yield
    await delete(rights, f"{POLICIES}/good")


async def test_a_daemon_that_dies_with_its_document_is_named_in_words_and_all_goes_back(
    rights: ControlPlane, described_nodes: list[DescribedNode], good: None
) -> None:
    first = described_nodes[0]
    before = await active(first.daemon)
    await put_policy(rights, policy("good", GOOD, pauseSeconds=PAUSE_S))
    await until_applied(rights, "good", first.name)
    await first.daemon.kill()
    status = await until(
        lambda: policy_status(rights, "good"),
        lambda said: said.get("phase") in ("TakingBack", "Aborted"),
        WAIT_S,
    )
    sentence = f"{first.name} was changed and then failed: the daemon of {first.name} does not answer"
    assert str(status["message"]).startswith(sentence)
    await first.start_daemon()
    status = await _status_until(rights, "Aborted")
    assert str(status["message"]).endswith("a change of spec is tried anew")
    await until(lambda: active(first.daemon), lambda said: said == before, WAIT_S)
    on_policy = await until(
        lambda: _told(rights, "good"), lambda told: "RolloutTakenBack" in dict(told), WAIT_S
    )
    assert sentence in dict(on_policy)["RolloutAborted"]
    assert {"PolicyGiven", "PolicyFailed", "PolicyTakenBack"} <= set(dict(await _told(rights, first.name)))


async def test_a_node_that_goes_in_the_middle_of_its_change_does_not_keep_the_others(
    rights: ControlPlane, described_nodes: list[DescribedNode], good: None
) -> None:
    first, second = described_nodes
    await put_policy(rights, policy("good", GOOD, pauseSeconds=PAUSE_S))
    await until_applied(rights, "good", first.name)
    assert await active(second.daemon) != "topology-aware"
    await first.close()
    await until_applied(rights, "good", second.name)


async def test_an_agent_that_dies_in_the_change_of_its_node_is_named_and_goes_on_when_it_is_back(
    rights: ControlPlane,
    started_operator: Part,
    described_nodes: list[DescribedNode],
    folder: Path,
    good: None,
) -> None:
    await started_operator.end(signal.SIGTERM)
    token = rights.account_token(NAMESPACE, OPERATOR)
    hasty = Part(
        folder,
        "hasty-operator",
        "tests.cluster.real.hasty_operator",
        f"--kubeconfig={rights.kubeconfig(folder / 'hasty.kubeconfig', token=token)}",
        "--quiet=1",
        environment={},
    )
    await hasty.start()
    first, second = described_nodes
    try:
        await first.agent.end()
        await put_policy(rights, policy("good", GOOD))
        status = await _status_until(rights, "Waiting")
        sentence = f"the agent of {first.name} has not answered to policy good"
        assert sentence in status["message"]
        assert f"--field-selector spec.nodeName={first.name}" in status["message"]
        found = await until(
            lambda: placement(rights, first.name), lambda of: condition(of, "Ready") == "Unknown", WAIT_S
        )
        assert condition(found, "Degraded") == "False"
        assert any(sentence in each["message"] for each in complaints(found))
        await until(lambda: _told(rights, first.name), lambda told: "AgentSilent" in dict(told), WAIT_S)
        assert await active(second.daemon) != "topology-aware"
        # It is back, and says what it has to say itself.
        await first.agent.start()
        await _status_until(rights, "Complete")
        found = await placement(rights, first.name)
        assert condition(found, "Ready") == "True"
        assert [await active(node.daemon) for node in described_nodes] == ["topology-aware"] * 2
    finally:
        print("--- hasty operator", *hasty.log().splitlines()[-40:], sep="\n")
        await delete(rights, f"{POLICIES}/good")
        await until_applied(rights, "", second.name)
        await hasty.end(signal.SIGTERM)
