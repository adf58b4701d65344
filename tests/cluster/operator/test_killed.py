"""Two operators, of which the one that leads is killed before and after each of its writes: the other goes on from there."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import pytest

from cluster.api.names import OPERATOR
from cluster.kube.io.clock import Clock
from cluster.operator.io.operator import Operator, OperatorSettings
from cluster.operator.objects import read_node_placement
from tests.cluster.operator.api import Api, Key, Killed, run_jumping
from tests.cluster.operator.cluster import node, outline, policy, well_status

GOOD, BETTER = {"policy": {"Active": "hygon"}}, {"policy": {"Active": "topology-aware"}}
#: Seconds (of a clock that jumps) after which all is at rest, three operators' waits for a Lease included.
REST_S = 80.0


class Mortal:
    """One process's way to the API: once it is killed none of its requests arrives, that to give the Lease back included."""

    def __init__(self, api: Api) -> None:
        self._api, self._is_dead = api, False

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._api, verb)
        if verb == "watch":
            return call

        async def asked(*words: Any, **named: Any) -> Any:
            if self._is_dead:
                raise Killed
            try:
                return await call(*words, **named)
            except Killed:
                self._is_dead = True
                raise

        return asked


class Run:
    """Four nodes, agents that answer after two seconds, two operators; what is killed is started again, to wait."""

    def __init__(self, fails: str = "", kill_at: Optional[int] = None, after: bool = False) -> None:
        self.api = Api()
        self.fails, self.kill_at, self.kill_after = fails, kill_at, after
        self.writes = 0
        self.starts = 0
        self.most_in_change = 0
        #: Node and config of each change of ``spec.policy``.
        self.given: list[tuple[str, Any]] = []
        self._configs: dict[str, Any] = {}
        self.aborted_at: Optional[int] = None
        self.lines: list[str] = []
        self.led_by = ""
        self.api.before, self.api.after = self._before, self._after

    def _before(self, verb: str, key: Key) -> None:
        if not self.kill_after:
            self._count()

    def _after(self, verb: str, key: Key) -> None:
        if verb == "put":
            return
        self._look(key)
        if self.kill_after:
            self._count()

    def _count(self) -> None:
        self.writes += 1
        if self.writes - 1 == self.kill_at:
            raise Killed

    def _look(self, key: Key) -> None:
        states = [read_node_placement(each) for each in self.api.all("nodeplacements").values()]
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

    async def operate(self) -> None:
        loop = asyncio.get_running_loop()
        clock = Clock(loop.time, lambda: 1_000_000.0 + loop.time(), asyncio.sleep, lambda: 0.5)
        while True:
            self.starts += 1
            me = OperatorSettings(f"operator-{self.starts}")
            operator = Operator(Mortal(self.api), me, clock, self.lines.append)
            task = asyncio.ensure_future(_caught(operator.run()))
            try:
                if await task != "killed":
                    return
            finally:
                task.cancel()

    async def agents(self) -> None:
        """Each agent answers what it finds, two seconds later."""
        while True:
            await asyncio.sleep(2.0)
            for name, found in self.api.all("nodeplacements").items():
                status = self._answer(name, (found.get("spec") or {}).get("policy"))
                if found.get("status") != status:
                    self.api.put("nodeplacements", {**found, "status": status})

    def _answer(self, name: str, given: Any) -> dict[str, Any]:
        status = well_status()
        if given:
            status["policy"] = {"name": given["name"], "hash": given["hash"], "state": "Applied"}
            if name == self.fails and given["config"] == BETTER:
                status["conditions"][1] = {
                    "type": "Degraded",
                    "status": "True",
                    "message": "cpusets are in the way",
                }
        return status

    async def scenario(self) -> Any:
        for each in range(4):
            self.api.put("nodes", node(f"n{each}"))
        self.api.put("placementpolicies", policy(config=GOOD, rollout={"pauseSeconds": 3}))
        work = (self.operate(), self.operate(), self.agents())
        tasks = [asyncio.ensure_future(each) for each in work]
        await asyncio.sleep(REST_S)
        found = self.api.all("placementpolicies")["p"]
        found["spec"]["config"] = BETTER
        self.api.put("placementpolicies", {**found, "metadata": {**found["metadata"], "generation": 2}})
        await asyncio.sleep(REST_S)
        self.led_by = self.api.all("leases")[OPERATOR]["spec"]["holderIdentity"]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError)
        return outline(self.api.all("nodeplacements"), self.api.all("placementpolicies"))


async def _caught(work: Any) -> str:
    try:
        await work
    except Killed:
        return "killed"
    return "ended"


@pytest.mark.parametrize("fails", ["", "n2"])
@pytest.mark.parametrize("after", [False, True], ids=["before-a-write", "after-a-write"])
def test_killed_at_any_write_it_ends_in_the_same_objects(fails: str, after: bool) -> None:
    whole = Run(fails)
    expected = run_jumping(whole.scenario())
    assert (whole.starts, whole.led_by) == (2, "operator-1")
    config = GOOD if fails else BETTER
    assert {name: each["config"] for name, each in expected[0].items()} == dict.fromkeys(expected[0], config)
    assert expected[1]["p"]["phase"] == ("Aborted" if fails else "Complete")
    assert 20 < whole.writes < 100
    for kill_at in range(whole.writes):
        run = Run(fails, kill_at, after)
        assert run_jumping(run.scenario()) == expected, f"killed at write {kill_at}"
        assert run.starts == 3 and run.led_by in ("operator-2", "operator-3")
        assert run.most_in_change <= 1, f"killed at write {kill_at}"
        if run.aborted_at is not None:
            assert BETTER not in [config for name, config in run.given[run.aborted_at + 2 :]], (
                f"write {kill_at}"
            )
