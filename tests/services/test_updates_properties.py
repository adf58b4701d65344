"""The engine, the one sender and a runtime that answers late, refuses, or says nothing: random sequences of all of it.

Whatever comes, what a container was told is what it has where that is sure; an owner of which no other is known to be left
on its CPUs is alone there; and once the runtime takes everything, each container has what its record says.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Optional

import pytest
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import CpusetUpdate, Life, ListedContainer, Management
from cri_proxy.engine.resync import Listing, resync_slices
from cri_proxy.metrics import Metrics
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.services.updates import Updates
from policies.balloons.policy import Balloons
from policies.hygon import Hygon, TopologyAware
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT, BudgetSpent, Container, PlacementRefused, Qos, Resources
from policies.policy import Policy
from policies.settings import EngineOptions
from tests.machines import UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import HYGON, TOPOLOGY_AWARE, Shadow, host_of, make_container

POLICIES: dict[str, Any] = {
    "hygon": lambda tree: Hygon(tree, HYGON),
    "topology-aware": lambda tree: TopologyAware(tree, TOPOLOGY_AWARE),
    "balloons": lambda tree: Balloons(tree, HYGON),
}
#: How the runtime answers an update: it has taken it, says no, or is silent having done it, or not.
ANSWERS = ("taken", "taken", "taken", "refused", "silent, and done", "silent, and not done")
Step = tuple[Any, ...]


class Node:
    """One node. ``has``: the cpusets of the containers that there are, by id."""

    def __init__(self, policy: str, where: str) -> None:
        host = host_of(where)
        made: Policy = POLICIES[policy](Topology(host.topology.data))
        self.engine = Engine(host, made, EngineOptions(move_exclusive=True))
        runtime: Any = SimpleNamespace(update=self._update)
        self.updates = Updates(runtime, Metrics("test"), structlog.get_logger())
        self.updates.engine = self.engine
        self.has: dict[str, frozenset[int]] = {}
        self.containers: dict[str, Container] = {}
        self.flying: dict[str, tuple[CpusetUpdate, asyncio.Future[str]]] = {}
        #: Resizes on their way: by id the ticket and what it would set.
        self.resizes: dict[str, tuple[str, frozenset[int], Container]] = {}
        self.count = 0
        self.now_s = 0.0
        self.is_calm = False
        self.shadow = Shadow()

    async def _update(self, update: CpusetUpdate) -> None:
        assert update.id not in self.flying, "two at a time"
        if self.is_calm:
            answer = "taken"
        else:
            self.flying[update.id] = update, asyncio.get_running_loop().create_future()
            answer = await self.flying[update.id][1]
            del self.flying[update.id]
        if update.id in self.has and answer in ("taken", "silent, and done"):
            self.has[update.id] = update.placement.cpus or self.has[update.id]
        code: Optional[Code] = {
            "refused": Code.INTERNAL,
            "silent, and done": Code.DEADLINE_EXCEEDED,
            "silent, and not done": Code.DEADLINE_EXCEEDED,
        }.get(answer)
        if update.id not in self.has:
            code = Code.NOT_FOUND
        if code is not None:
            raise RpcError(code, "no", in_doubt=code is Code.DEADLINE_EXCEEDED)

    # ------------------------------------------------------------------ steps

    def step(self, what: str, which: int, how: int) -> None:
        self.now_s += 1.0
        keys = sorted(self.has)
        key = keys[which % len(keys)] if keys else ""
        if what == "create":
            self.create(how)
        elif what == "remove" and key:
            del self.has[key]
            self.engine.remove(key)
            if key in self.resizes:
                self.engine.cancel(self.resizes.pop(key)[0], self.now_s)
        elif what == "resize" and key and key not in self.resizes:
            self.resize(key, how)
        elif what == "resized" and self.resizes:
            self.resized(sorted(self.resizes)[which % len(self.resizes)], how)
        elif what == "answer" and self.flying:
            _, answer = self.flying[sorted(self.flying)[which % len(self.flying)]]
            if not answer.done():
                answer.set_result(ANSWERS[how % len(ANSWERS)])
        elif what == "retry":
            self.updates.hurry()
        elif what == "mode":
            self.updates.switch(gives_back=bool(how % 2))
        elif what == "release" and key:
            self.engine.release(key)
        self.updates.wake()

    def create(self, how: int) -> None:
        self.count += 1
        key = f"c{self.count}"
        limit = (1, 2, 3, 0.5)[how % 4]
        qos = Qos.GUARANTEED if how % 2 else Qos.BURSTABLE
        container = make_container(key, limit, limit, qos=qos)
        try:
            admission = self.engine.admit(container, NO_CONSTRAINT, self.now_s)
        except (PlacementRefused, BudgetSpent):
            return
        if how % 5 == 0:
            self.engine.cancel(admission.ticket, self.now_s)
            return
        self.has[key] = admission.placement.cpus or self.engine.host.usable
        self.containers[key] = container
        self.engine.bind(admission.ticket, key, self.now_s)
        self.engine.started(key)

    def resize(self, key: str, how: int) -> None:
        container = self.containers[key]
        milli = (1000, 2000, 4000)[how % 3]
        resources = Resources(milli if container.qos is Qos.GUARANTEED else 100, milli)
        try:
            admission = self.engine.resize(key, resources, NO_CONSTRAINT, self.now_s)
        except (PlacementRefused, BudgetSpent):
            return
        if admission is not None:
            now = replace(container, resources=resources)
            self.resizes[key] = admission.ticket, admission.placement.cpus, now

    def resized(self, key: str, how: int) -> None:
        ticket, cpus, container = self.resizes.pop(key)
        if how % 3 == 0:
            self.engine.cancel(ticket, self.now_s)
            return
        # An update of ours that is on its way may get there before it or after it.
        self.has[key] = cpus or self.has[key]
        self.containers[key] = container
        self.engine.commit(ticket, self.now_s)

    def look(self) -> None:
        """A comparison at once, with nothing on its way meanwhile but what is."""
        with self.updates.watched() as in_motion:
            seen = {
                key: ListedContainer(
                    key,
                    "",
                    self.containers[key].pod.uid,
                    self.containers[key].name,
                    self.containers[key].attempt,
                    True,
                    False,
                    cpus=cpus,
                )
                for key, cpus in self.has.items()
            }
            listing = Listing(seen, self.now_s, pending=in_motion, enforce=not self.updates.gives_back)
            for _ in resync_slices(self.engine, listing, self.now_s):
                pass
        self.updates.wake()

    async def restart(self, how: int) -> None:
        """Kill -9: calls end with it; a comparison comes before anything is sent."""
        self.updates.hold()
        for _ in range(20):
            for _, answer in self.flying.values():
                if not answer.done():
                    answer.set_result(ANSWERS[how % len(ANSWERS)])
            await asyncio.sleep(0)
        assert not self.flying
        self.shadow.follow(self.engine)
        tables, old = self.shadow.tables, self.engine
        self.engine = Engine(old.host, old.policy, old.options)
        self.engine.restore(
            list(tables.get("grant", {}).values()),  # type: ignore[arg-type]
            list(tables.get("ticket", {}).values()), list(tables.get("pod", {}).values()), (), {},
        )  # fmt: skip
        self.updates.engine, self.resizes = self.engine, {}
        self.look()
        self.updates.let_go()

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        engine = self.engine
        assert broken_invariants(engine) == []
        for key, cpus in self.has.items():
            told, grant = engine.told.get(key), engine.grants.get(key)
            if told is None or grant is None or key in self.resizes:
                continue
            if told.is_sure and told.cpus is not None and key not in engine.under_way:
                assert told.cpus == cpus, f"{key} has {sorted(cpus)} and was told {sorted(told.cpus)}"
            elif told.cpus is not None and key not in engine.under_way:
                assert cpus <= told.cpus, f"{key} is where it is not known to be"
            if grant.exclusive and not engine.not_alone(key) and grant.life is Life.RUNNING:
                for other in self.has.keys() - {key}:
                    theirs = engine.grants.get(other)
                    is_ours = theirs is not None and theirs.stance in (Management.PLACED, Management.ADOPTED)
                    is_ours = is_ours and not theirs.exclusive & grant.exclusive
                    if is_ours and other not in self.resizes:
                        assert not self.has[other] & grant.exclusive, f"{other} is on CPUs of {key}"

    async def calm(self) -> None:
        """The runtime takes everything from now on, and the mode is enforce."""
        self.is_calm = True
        self.updates.switch(gives_back=False)
        for _, answer in self.flying.values():
            if not answer.done():
                answer.set_result("taken")
        for key in list(self.resizes):
            self.resized(key, 1)
        for _ in range(5):
            for _ in range(200):
                await asyncio.sleep(0)
            self.now_s += 100.0
            self.look()
            self.updates.hurry()
        assert self.updates.pending == frozenset()
        for key, cpus in self.has.items():
            grant = self.engine.grants[key]
            assert cpus & self.engine.host.usable == grant.cpus, f"{key}: {grant.why}"


WHAT = (
    ["create"] * 4
    + ["answer"] * 5
    + ["resize", "resized", "remove", "retry", "look", "mode", "release", "restart"]
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(WHAT),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=40,
)  # fmt: skip


async def play(policy: str, where: str, steps: list[Step]) -> None:
    node = Node(policy, where)
    try:
        for what, which, how in steps:
            if what == "look":
                node.look()
            elif what == "restart":
                await node.restart(how)
            else:
                node.step(what, which, how)
            for _ in range(how % 4):
                await asyncio.sleep(0)
            node.check()
        await node.calm()
        node.check()
    finally:
        await node.updates.close()


@pytest.mark.parametrize("where", [VM_NO_CACHE_INFO, UNEVEN_CCX])
@pytest.mark.parametrize("policy", POLICIES)
@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)  # fmt: skip
@given(steps=STEPS)
def test_each_container_has_in_the_end_what_it_should_and_no_owner_is_thought_alone_that_is_not(
    policy: str, where: str, steps: list[Step]
) -> None:
    asyncio.run(play(policy, where, steps))
