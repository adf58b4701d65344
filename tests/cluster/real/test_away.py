"""The API server is gone: what nodes do alone, how often it is asked for, what it hears afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.api.names import NAMESPACE, OPERATOR
from cluster.kube.pace import Backoff
from cluster.kube.requests import Unreachable
from policies.machine.cpus import parse_cpus
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.gate import Gate
from tests.cluster.real.node import RegisteredNode
from tests.cluster.real.parts import (
    PLACEMENTS,
    POLICIES,
    WAIT_S,
    DescribedNode,
    active,
    delete,
    node_agent,
    operator,
    placement,
    policy,
    policy_status,
    put_policy,
    until_applied,
    until_ready,
)
from tests.e2e.node import until
from tests.kubelet.real.node import static_pod
from tests.machines import EPYC_NPS4_1S

pytestmark = pytest.mark.cluster

GOOD = {"policy": {"Active": "topology-aware"}}
#: What an agent asks for, each by itself: status, topology, events, spec, a watch of each half, the acknowledgement,
#: the Lease.
AGENT_ASKS = 8
#: The operator: its Lease and those of agents, Nodes, NodePlacements, PlacementPolicies, advices, roles.
OPERATOR_ASKS = 7
#: Tries to renew a Lease before it is lost: every 2 s for 10 s.
RENEWALS = 6
#: The commanding half asks whether the API server is lost, every 5 s less a tenth, while something is wrong with its node.
IS_LOST_EVERY_S = 4.5


class Fleet:
    """A node with a kubelet and one that is described, and an operator; each has a gate of its own to the server."""

    def __init__(self, api: ControlPlane, registered: RegisteredNode, folder: Path) -> None:
        self.gates = {name: Gate(api.port) for name in ("operator", "kubelet", "small")}
        self.api, self.registered, self.folder = api, registered, folder

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        api, folder = self.api, self.folder
        for gate in self.gates.values():
            await gate.start()
            stack.push_async_callback(gate.close)
        token = api.account_token(NAMESPACE, OPERATOR)
        url = {name: gate.url for name, gate in self.gates.items()}
        kubeconfig = api.kubeconfig(folder / "operator.kubeconfig", token=token, url=url["operator"])
        self.operator = operator(folder, kubeconfig)
        self.small = DescribedNode(api, folder / "small", f"small-{os.getpid()}", EPYC_NPS4_1S, url["small"])
        name = self.registered.name
        pair = api.certificate(f"system:node:{name}", "system:nodes")
        kubeconfig = api.kubeconfig(folder / "agent.kubeconfig", certificate=pair, url=url["kubelet"])
        self.agent = node_agent(folder, name, self.registered.agent, kubeconfig)
        stack.push_async_callback(self._end)
        await self.operator.start()
        await self.agent.start()
        stack.push_async_callback(self.small.close)
        await self.small.start()
        await until_ready(api, *self.names)

    @property
    def names(self) -> tuple[str, str]:
        return self.registered.name, self.small.name

    def opened(self) -> dict[str, int]:
        return {name: gate.opened for name, gate in self.gates.items()}

    def answers(self) -> list[int]:
        """How often each agent has said that the API server answers again."""
        line = 'event="api server" reason="it answers again"'
        return [agent.log().count(line) for agent in (self.agent, self.small.agent)]

    async def _end(self) -> None:
        for part in (self.operator, self.agent):
            if part.process is not None:
                await part.end()
            # Shown if the test fails.
            print(f"--- {part.name}", *part.log().splitlines()[-40:], sep="\n")
        await delete(self.api, f"{PLACEMENTS}/{self.registered.name}")


@pytest.fixture
async def fleet(rights: ControlPlane, registered: RegisteredNode, folder: Path) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        made = Fleet(rights, registered, folder)
        await made.start(stack)
        yield made


def most_tries(away_s: float) -> int:
    """Of one thing that is asked for, with the shortest pauses that the backoff may draw."""
    backoff, tries, at_s = Backoff(), 1, 0.0
    while at_s < away_s:
        at_s += backoff.after(Unreachable("no route"), 0.0)
        tries += 1
    return tries


@pytest.mark.parametrize("away_s", [0, pytest.param(600, marks=pytest.mark.long)])
async def test_without_the_api_server_nodes_go_on_alone_and_it_hears_of_all_when_it_is_back(
    rights: ControlPlane, fleet: Fleet, away_s: int
) -> None:
    registered, small = fleet.registered, fleet.small
    await put_policy(rights, policy("good", GOOD))
    try:
        await until_applied(rights, "good", *fleet.names)
        await until(
            lambda: policy_status(rights, "good"), lambda said: said.get("phase") == "Complete", WAIT_S
        )
        uids = [(await placement(rights, name))["metadata"]["uid"] for name in fleet.names]
        before, answers = fleet.opened(), fleet.answers()
        await asyncio.to_thread(rights.stop_server)
        began_s = time.monotonic()
        try:
            # 1. A pod starts: a static one, for which kubelet needs no API server.
            registered.host.put(static_pod("alone", cpu="500m", limit="4"))
            container = await registered.running(f"alone-{registered.name}")
            cpus = await registered.cpus(container)
            assert len(parse_cpus(cpus)) == 8
            # 2. A node that fails with its policy goes back by itself, once the daemon can be told.
            await small.daemon.kill()

            async def is_taken_back() -> bool:
                return "policy is taken back" in small.agent.log()

            await until(is_taken_back, timeout_s=WAIT_S)
            await small.start_daemon()
            await until(lambda: active(small.daemon), lambda said: said != "topology-aware", WAIT_S)
            assert await active(registered.agent) == "topology-aware"
            # 3. Ten minutes are a case of their own: what backs off must come back by itself.
            await asyncio.sleep(max(0.0, began_s + away_s - time.monotonic()))
            passed_s = time.monotonic() - began_s
            asked = {name: count - before[name] for name, count in fleet.opened().items()}
            print(f"connections asked for in {passed_s:.0f} s: {asked}")
            assert fleet.answers() == answers
        finally:
            await asyncio.to_thread(rights.start_server)
        # 4. How often it was asked for.
        tries = most_tries(passed_s)
        assert 0 < asked["kubelet"] <= AGENT_ASKS * tries
        assert 0 < asked["small"] <= AGENT_ASKS * tries + passed_s / IS_LOST_EVERY_S
        assert 0 < asked["operator"] <= OPERATOR_ASKS * tries + RENEWALS

        # 5. The agents write what has become of their nodes; nothing was lost meanwhile.
        async def rows() -> list[str]:
            found = (await placement(rights, registered.name))["status"]["placements"]
            return [row["cpus"] for row in found if row["pod"].startswith("alone-")]

        await until(rows, lambda found: found == [cpus], WAIT_S)

        async def state() -> str:
            return str((await placement(rights, small.name))["status"]["policy"]["state"])

        await until(state, lambda said: said == "TakenBack", WAIT_S)
        assert uids == [(await placement(rights, name))["metadata"]["uid"] for name in fleet.names]

        async def answers_again() -> bool:
            return all(now > then for now, then in zip(fleet.answers(), answers))

        await until(answers_again, timeout_s=WAIT_S)
        # 6. The operator goes on: a policy that is changed reaches both.
        await put_policy(rights, policy("good", {"policy": {"Active": "balloons"}}))
        await until(lambda: active(small.daemon), lambda said: said == "balloons", WAIT_S)
        await until(lambda: active(registered.agent), lambda said: said == "balloons", WAIT_S)
    finally:
        with contextlib.suppress(FileNotFoundError):
            registered.host.take("alone")
        await delete(rights, f"{POLICIES}/good")
    await registered.until_ended(f"alone-{registered.name}")
