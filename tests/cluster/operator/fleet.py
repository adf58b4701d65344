"""Four nodes, agents that answer after two seconds, and two operators on an API in memory, with one fault at one write.

A story: a policy reaches the nodes, is changed, and is deleted. After each of its three parts all is left to come to rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Optional

from cluster.api.names import OPERATOR
from cluster.kube.io.clock import Clock
from cluster.kube.requests import Unreachable
from cluster.operator.io.leader import LeaseLost
from cluster.operator.io.operator import Operator, OperatorSettings
from cluster.operator.objects import read_node_placement
from tests.cluster.operator.api import Api, Key, Killed, run_jumping
from tests.cluster.operator.cluster import node, outline, policy, well_status

GOOD, BETTER = {"policy": {"Active": "hygon"}}, {"policy": {"Active": "topology-aware"}}
#: Seconds (of a clock that jumps) after which all is at rest, three operators' waits for a Lease included.
REST_S = 80.0
#: The same where something is away for AWAY_S, and an agent's ANSWER_S and a Node's minute after it.
LONG_REST_S, AWAY_S = 450.0, 150.0
NODES = ("n0", "n1", "n2", "n3")
#: The node that things happen to; one with others before and after it.
MARKED = "n1"


class Mortal:
    """One process's way to the API: once it is killed none of its requests arrives, that to give the Lease back included."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._is_dead = fleet, False

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._fleet.api, verb)
        if verb == "watch":
            return call

        async def asked(*words: Any, **named: Any) -> Any:
            if self._is_dead:
                raise Killed
            if self._fleet.is_server_away():
                await asyncio.sleep(0.001)
                raise Unreachable("no route")
            try:
                return await call(*words, **named)
            except Killed:
                self._is_dead = True
                raise

        return asked


class Fleet:
    """``fault`` is called at write number ``at``, before or ``after`` it; ``fails``: a node that degrades with BETTER.

    What is killed is started again, to wait for its turn.
    """

    def __init__(
        self,
        fails: str = "",
        at: Optional[int] = None,
        after: bool = False,
        fault: Callable[[Fleet, Key], None] = lambda fleet, key: None,
        rest_s: float = REST_S,
    ) -> None:
        self.api = Api()
        self.fails, self.at, self.after, self.fault, self.rest_s = fails, at, after, fault, rest_s
        self.writes = 0
        self.starts = 0
        self.most_in_change = 0
        #: Node and config of each change of ``spec.policy``.
        self.given: list[tuple[str, Any]] = []
        self._configs: dict[str, Any] = {}
        self.aborted_at: Optional[int] = None
        self.lines: list[str] = []
        self.led_by = ""
        #: Outline after each part of the story, and the objects.
        self.ends: list[Any] = []
        self.objects: list[dict[Key, dict[str, Any]]] = []
        self._server_back_at = 0.0
        self._silent_until: dict[str, float] = {}
        self._is_daemon_stuck = False
        #: By node, the document that it has carried out.
        self._answered: dict[str, str] = {}
        self.api.before, self.api.after = self._before, self._after

    # --- faults

    def is_server_away(self) -> bool:
        return asyncio.get_running_loop().time() < self._server_back_at

    def server_goes(self) -> None:
        self._server_back_at = asyncio.get_running_loop().time() + AWAY_S

    def agent_goes(self, for_s: float) -> None:
        """That of the marked node."""
        self._silent_until[MARKED] = asyncio.get_running_loop().time() + for_s

    def daemon_sticks(self) -> None:
        """That of the marked node answers, and carries nothing out any more."""
        self._is_daemon_stuck = True

    def node_goes(self, for_s: float) -> None:
        found = self.api.objects.get(("nodes", MARKED))
        if found is not None:
            self.api.remove(("nodes", MARKED))
            asyncio.get_running_loop().call_later(for_s, self.api.put, "nodes", node(MARKED))

    def node_breaks(self) -> None:
        self.api.put("nodes", node(MARKED, ready=False))

    # --- the story

    def run(self) -> Fleet:
        run_jumping(self._story())
        return self

    async def _story(self) -> None:
        for name in NODES:
            self.api.put("nodes", node(name))
        self.api.put("placementpolicies", policy(config=GOOD, rollout={"pauseSeconds": 3}))
        tasks = [asyncio.ensure_future(each) for each in (self._operate(), self._operate(), self._agents())]
        await self._rest()
        found = self.api.all("placementpolicies")["p"]
        found["spec"]["config"] = BETTER
        self.api.put("placementpolicies", {**found, "metadata": {**found["metadata"], "generation": 2}})
        await self._rest()
        self.api.remove(("placementpolicies", "p"))
        await self._rest()
        self.led_by = self.api.all("leases")[OPERATOR]["spec"]["holderIdentity"]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), repr(ended)

    async def _rest(self) -> None:
        await asyncio.sleep(self.rest_s)
        self.objects.append(dict(self.api.objects))
        self.ends.append(outline(self.api.all("nodeplacements"), self.api.all("placementpolicies")))

    async def _operate(self) -> None:
        loop = asyncio.get_running_loop()
        clock = Clock(loop.time, lambda: 1_000_000.0 + loop.time(), asyncio.sleep, lambda: 0.5)
        while True:
            self.starts += 1
            me = OperatorSettings(f"operator-{self.starts}")
            operator = Operator(Mortal(self), me, clock, self.lines.append)
            task = asyncio.ensure_future(_caught(operator.run()))
            try:
                # A Lease that is lost ends the operator too: the process makes another one.
                if await task == "ended":
                    return
            finally:
                task.cancel()

    async def _agents(self) -> None:
        """Each agent answers what it finds, two seconds later."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(2.0)
            if self.is_server_away():
                continue
            for name, found in self.api.all("nodeplacements").items():
                status = self._answer(name, (found.get("spec") or {}).get("policy"))
                if found.get("status") != status and loop.time() >= self._silent_until.get(name, 0.0):
                    self.api.put("nodeplacements", {**found, "status": status})

    def _answer(self, name: str, given: Any) -> dict[str, Any]:
        status = well_status()
        if given:
            status["policy"] = {"name": given["name"], "hash": given["hash"], "state": "Applied"}
            if name == MARKED and self._is_daemon_stuck and self._answered.get(name) != given["hash"]:
                status["policy"].update(state="Pending", message="the daemon has not been told yet")
            else:
                self._answered[name] = given["hash"]
            if name == self.fails and given["config"] == BETTER:
                status["conditions"][1] = {
                    "type": "Degraded",
                    "status": "True",
                    "message": "cpusets are in the way",
                }
        return status

    # --- writes

    def _before(self, verb: str, key: Key) -> None:
        if not self.after:
            self._count(key)

    def _after(self, verb: str, key: Key) -> None:
        if verb == "put":
            return
        self._look(key)
        if self.after:
            self._count(key)

    def _count(self, key: Key) -> None:
        self.writes += 1
        if self.writes - 1 == self.at:
            self.fault(self, key)

    def _look(self, key: Key) -> None:
        nodes = self.api.all("nodes")
        placements = self.api.all("nodeplacements").items()
        states = [read_node_placement(each) for name, each in placements if name in nodes]
        self.most_in_change = max(self.most_in_change, sum(not each.confirmed for each in states))
        if key[0] == "nodeplacements" and key in self.api.objects:
            given = ((self.api.objects[key].get("spec") or {}).get("policy") or {}).get("config")
            if given != self._configs.get(key[1]):
                self._configs[key[1]] = given
                self.given.append((key[1], given))
        if self.aborted_at is None and any(
            each.get("status", {}).get("phase") in ("TakingBack", "Aborted")
            for each in self.api.all("placementpolicies").values()
        ):
            self.aborted_at = len(self.given)


async def _caught(work: Any) -> str:
    try:
        await work
    except Killed:
        return "killed"
    except LeaseLost:
        return "lost"
    return "ended"
