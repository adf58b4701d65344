"""Demand in the daemon: what is read when, what the runtime is told, and that no container is left in a small set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any, Callable

import grpc
import pytest
import pytest_asyncio

from cri_proxy.affinity.demand.io.sizer import IDLE_S, DemandSizer
from cri_proxy.affinity.demand.io.triggers import PressureTriggers
from cri_proxy.affinity.demand.report import demand_text, status_line
from cri_proxy.engine.build import make_policy
from cri_proxy.services.node_state import ENFORCE, OBSERVE
from policies.model import NO_CONSTRAINT, PlacementPreferences
from tests.affinity.io.affinity_node import Node, config_of
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.support import eventually
from tests.scenes import make_container, make_pod

SIZED = {"placement": {"size": "demand"}, "demand": {"headroom": 0.25}, "constants": {"demand_window_s": 60}}


class ToldTriggers(PressureTriggers):
    """Triggers that fire when the test says so; the kernel has none of 500 ms for a test without its rights."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.kept: dict[str, str] = {}
        self._tell: Callable[[list[str]], object] = list

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self.kept)

    def listen(self, tell: Callable[[list[str]], object], supervisor: Any = None) -> None:
        self._tell = tell

    def lacks(self, keys: Collection[str], waiting: float) -> bool:
        return frozenset(keys) != self.keys

    def keep(self, paths: Mapping[str, str], waiting: float) -> None:
        self.kept = dict(paths)

    def fire(self, *keys: str) -> None:
        self._tell(list(keys))


class SizedNode:
    """A node whose containers use what the test says, and the sizer, whose rounds come when they are due."""

    def __init__(self, node: Node, client: CriClient, triggers: PressureTriggers) -> None:
        self.node, self.client, self.triggers = node, client, triggers
        self.sizer = DemandSizer(node.services, node.folder / "cgroup", triggers)
        self.used_us: dict[str, int] = {}
        self.waited_us: dict[str, int] = {}

    def restart(self, triggers: PressureTriggers) -> None:
        """Another daemon, which knows nothing of what was used."""
        self.sizer.close()
        self.triggers = triggers
        self.sizer = DemandSizer(self.node.services, self.node.folder / "cgroup", triggers)

    def sized_by_limits(self) -> None:
        """What a reload does whose configuration sizes by limits."""
        services, engine = self.node.services, self.node.engine
        services.config = config_of()
        engine.rehost(engine.host, make_policy(services.config, engine.host.topology))
        services.node_state.save()
        self.sizer.reconfigured()

    async def create(self, name: str, limit: float = 32, request: float = 1, **asks: Any) -> str:
        node = self.node
        pod = await self.client.run_pod(name)
        container = make_container(
            name, limit=limit, request=request, pod=make_pod(name), preferences=PlacementPreferences(**asks)
        )
        admission = node.engine.admit(container, NO_CONSTRAINT, node.now_s)
        key = await self.client.create(pod, name, cpu_limit=round(limit * 1000))
        node.runtime.set_cpuset(key, ",".join(map(str, sorted(admission.placement.cpus))))
        node.engine.bind(admission.ticket, key, node.now_s)
        node.engine.started(key)
        node.ids[name] = key
        self.used_us[key] = self.waited_us[key] = 0
        self.write(key)
        return key

    def write(self, key: str) -> None:
        folder = self.node.folder / "cgroup" / "kubepods" / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.stat").write_text(f"usage_usec {self.used_us[key]}\nthrottled_usec 0\n")
        (folder / "cpu.pressure").write_text(f"some avg10=0.00 total={self.waited_us[key]}\n")

    def use(self, seconds: float, cpus: Mapping[str, float], waiting: float = 0.0) -> None:
        """Time in which containers use so many CPUs."""
        self.node.now_s += seconds
        for name, key in self.node.ids.items():
            self.used_us[key] += round(cpus.get(name, 0.0) * seconds * 1e6)
            self.waited_us[key] += round(waiting * seconds * 1e6) if name in cpus else 0
            self.write(key)

    async def run(self, seconds: float, cpus: Mapping[str, float], waiting: float = 0.0) -> list[float]:
        """Rounds, as the sizer would have them; the pauses it asked for."""
        end_s, pauses = self.node.now_s + seconds, []
        while self.node.now_s < end_s:
            pauses.append(await self.sizer.round())
            self.use(min(pauses[-1], end_s - self.node.now_s), cpus, waiting)
        pauses.append(await self.sizer.round())
        return pauses

    async def told(self, name: str) -> int:
        """How many CPUs a container has at the runtime, once that knows all."""
        await eventually(lambda: not self.node.services.node_state.updates.pending, "all updates")
        assert self.node.leaf(name) == self.node.engine.grants[self.node.ids[name]].cpus
        return len(self.node.leaf(name))

    def explained(self, name: str) -> dict[str, Any]:
        row = self.sizer.explained(self.node.engine, self.node.engine.grants[self.node.ids[name]])
        assert row is not None
        return row


@pytest_asyncio.fixture
async def client(runtime: FakeRuntime) -> AsyncIterator[CriClient]:
    async with CriClient(runtime.socket) as client:
        yield client


@pytest_asyncio.fixture
async def sized(runtime: FakeRuntime, tmp_path: Path, client: CriClient) -> AsyncIterator[SizedNode]:
    async with Node(runtime, tmp_path, SIZED) as node:
        sized = SizedNode(node, client, ToldTriggers())
        yield sized
        sized.sizer.close()


@pytest.fixture
def triggers(sized: SizedNode) -> ToldTriggers:
    assert isinstance(sized.triggers, ToldTriggers)
    return sized.triggers


async def shrunk(sized: SizedNode, name: str = "app", cpus: float = 2.0) -> None:
    """A container whose set is one CCX since it uses little."""
    await sized.create(name)
    assert await sized.told(name) == 32
    await sized.run(4 * 70, {name: cpus})
    assert await sized.told(name) == 8


# ---------------------------------------------------------------------- smaller and larger


async def test_a_set_shrinks_window_by_window_and_the_runtime_is_told(sized) -> None:
    await sized.create("app")
    sizes = []
    for _ in range(5):
        await sized.run(66, {"app": 2.0})
        sizes.append(await sized.told("app"))
    assert sizes[0] >= sizes[1] >= sizes[2] >= sizes[3] == 8
    records = [record.operation for record in sized.node.engine.history if record.operation != "create"]
    assert records == ["shrink"] * 3
    saved = (await sized.node.services.store.load()).of("grant")
    assert saved[sized.node.ids["app"]].container.milli_size == 2500


async def test_a_trigger_has_it_looked_at_and_grown_at_once(sized, triggers) -> None:
    await shrunk(sized)
    key = sized.node.ids["app"]
    assert set(triggers.kept) == {key}
    await sized.run(5, {"app": 2.0})
    sized.use(0.3, {"app": 8.0}, waiting=0.9)
    triggers.fire(key)
    await eventually(lambda: sized.sizer._fired == {key}, "what the kernel has told")
    await sized.sizer.round()
    assert await sized.told("app") == 16
    assert sized.node.engine.history[-1].operation == "grow"


async def test_with_triggers_shrunk_sets_are_looked_at_as_seldom_as_others(sized) -> None:
    await shrunk(sized)
    assert min(await sized.run(20, {"app": 2.0})) == 5.0


async def test_without_them_they_are_looked_at_twice_a_second_and_grow_by_what_they_wait(sized) -> None:
    sized.restart(PressureTriggers(sized.node.folder / "cgroup"))
    await shrunk(sized)
    pauses = await sized.run(5, {"app": 2.0})
    assert 0.4 < min(pauses) <= max(pauses) <= 0.5
    await sized.run(0.5, {"app": 8.0}, waiting=0.9)
    assert await sized.told("app") == 16
    assert "watched by looks twice a second: " in status_line(sized.sizer.status())


async def test_a_growth_that_the_runtime_did_not_take_is_sent_again_with_the_next_round(sized) -> None:
    await shrunk(sized)
    sized.node.runtime.script(
        "UpdateContainerResources", error=(grpc.StatusCode.UNAVAILABLE, "away"), times=1
    )
    updates = sized.node.services.node_state.updates
    sized.use(5, {"app": 8.0}, waiting=0.9)
    await sized.sizer.round()
    await eventually(lambda: not updates._taken, "the answer")
    assert len(sized.node.leaf("app")) == 8
    await sized.sizer.round()
    assert await sized.told("app") == 16


# ---------------------------------------------------------------------- which containers


async def test_nothing_is_read_where_no_container_is_sized_by_demand(runtime, tmp_path, client) -> None:
    async with Node(runtime, tmp_path) as node:
        sized = SizedNode(node, client, ToldTriggers())
        await sized.create("app")
        assert await sized.run(20, {"app": 1.0}) == [IDLE_S] * 5
        assert "cri_resmgr_demand_looks_total 0.0" in node.services.metrics.text()
        assert sized.sizer.explained(node.engine, node.engine.grants[node.ids["app"]]) is None
        assert status_line(sized.sizer.status()) == ""
        await sized.create("noted", size="demand")
        await sized.run(20, {"app": 1.0})
        assert sized.sizer.status()["containers"] == 1
        sized.sizer.close()


async def test_one_that_is_gone_is_forgotten(sized, triggers) -> None:
    await shrunk(sized)
    sized.node.engine.exited(sized.node.ids["app"], 1, sized.node.now_s)
    await sized.sizer.round()
    assert (sized.sizer.status()["containers"], triggers.kept) == (0, {})


# ---------------------------------------------------------------------- no container is left in a small set


async def test_where_the_mode_is_another_one_sets_are_given_back_first(sized) -> None:
    await shrunk(sized)
    sized.node.services.node_state.switch(OBSERVE)
    await sized.sizer.round()
    assert await sized.told("app") == 32
    assert sized.node.engine.shrunk() == ()
    assert sized.sizer.status()["containers"] == 0
    sized.node.services.node_state.switch(ENFORCE)
    await sized.run(50, {"app": 2.0})
    assert await sized.told("app") == 32


async def test_where_sets_are_sized_by_limits_again_they_are_given_back(sized) -> None:
    await shrunk(sized)
    sized.sized_by_limits()
    await sized.sizer.round()
    assert await sized.told("app") == 32


async def test_what_is_used_in_the_set_of_a_limit_counts_as_long_as_it_is_sized_by_demand(sized) -> None:
    key = await sized.create("small", limit=8)
    await sized.run(12, {"small": 4.0})
    assert sized.node.engine.grants[key].container.milli_used == 5_000
    sized.sized_by_limits()
    await sized.sizer.round()
    assert sized.node.engine.grants[key].container.milli_used == 0


async def test_after_a_restart_of_the_daemon_it_grows_at_once_and_shrinks_after_a_window_only(sized) -> None:
    await shrunk(sized)
    await sized.create("other")
    await sized.run(70, {"app": 2.0, "other": 1.0})
    other = await sized.told("other")
    triggers = ToldTriggers()
    sized.restart(triggers)
    await sized.run(55, {"app": 2.0, "other": 1.0})
    assert (await sized.told("app"), await sized.told("other")) == (8, other)
    sized.use(0.4, {"app": 8.0}, waiting=0.9)
    triggers.fire(sized.node.ids["app"])
    await eventually(lambda: len(sized.sizer._fired) == 1, "what the kernel has told")
    await sized.sizer.round()
    assert await sized.told("app") == 16


# ---------------------------------------------------------------------- what people are told


async def test_what_is_explained_of_a_container(sized, triggers) -> None:
    await shrunk(sized)
    sized.use(0.4, {"app": 8.0}, waiting=0.9)
    triggers.fire(sized.node.ids["app"])
    await eventually(lambda: len(sized.sizer._fired) == 1, "what the kernel has told")
    await sized.sizer.round()
    sized.node.now_s += 30
    row = sized.explained("app")
    assert (row["by_limit_milli"], row["set_milli"], row["window_s"]) == (32_000, 16_000, 60.0)
    assert [growth["age_s"] for growth in row["growths"]] == [30.0]
    text = "\n".join(demand_text(row))
    assert "of a window of 60 s seen" in text
    assert "domain by limit 32 CPUs, by usage 16 CPUs, its cpuset 16 CPUs" in text
    assert "grew 30 s ago: its tasks waited" in text
    assert status_line(sized.sizer.status()) == (
        "by usage for 1 containers, 1 of them shrunk, watched by pressure triggers (500 ms)"
    )


async def test_why_a_container_that_is_to_be_sized_is_not(sized) -> None:
    await sized.create("own", limit=4, request=4, ownership="exclusive")
    await sized.sizer.round()
    assert demand_text(sized.explained("own")) == [
        "no usage-based sizing: it is to have exclusive CPUs, or the reserved ones"
    ]
