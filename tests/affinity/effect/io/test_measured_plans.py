"""Plans that are measured: real processes in real cgroups, counted by the kernel before and after a plan moves them.

What is counted are page faults for a millisecond of CPU time, in the place of fills for a thousand instructions: they need
no hardware. What the processes do after the move is what the test says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest
import pytest_asyncio

from cri_proxy.affinity.effect.comparison import BETTER, NOISE, UNKNOWN, WORSE
from cri_proxy.affinity.effect.events import TYPE_SOFTWARE
from cri_proxy.affinity.effect.io.counting import Countable
from cri_proxy.affinity.effect.io.effect_meter import EffectMeter
from cri_proxy.affinity.report import affinity_text, status_lines
from policies.machine.topology import Cpu, Topology, TopologyData
from tests.affinity.effect.io.counted_cgroup import SOFTWARE, busy_in, cgroup_in, counted_root, worked_in
from tests.affinity.io.affinity_node import Node, apart, config_of
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime

ROOT = counted_root() if os.getuid() == 0 else None
CPUS = sorted(os.sched_getaffinity(0))[:2]
pytestmark = pytest.mark.skipif(
    ROOT is None or len(CPUS) < 2, reason="needs root, two CPUs, and a kernel that counts by cgroup"
)
#: So much has every process worked when a window is over.
WINDOW_NS = 3_000_000


def two_l3s() -> Topology:
    """CPUs of this machine, as if each had an L3 of its own."""
    cpus = tuple(Cpu(cpu, index, index, 0, 0, 0) for index, cpu in enumerate(CPUS))
    return Topology(TopologyData(cpus, memory={0: 1 << 34}, vendor="HygonGenuine"))


class CountedNode:
    """A node whose containers "web" and "db" are real processes. ``turned``: what they do changes when one is moved."""

    def __init__(
        self, runtime: FakeRuntime, client: CriClient, folder: Path, stack: contextlib.ExitStack
    ) -> None:
        self.runtime, self.client, self.folder, self.stack = runtime, client, folder, stack
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.worked: dict[str, Callable[[], float]] = {}
        self.is_turned = False
        self.turned = False
        self.countable = Countable(SOFTWARE)
        self.on_wait: Callable[[], None] = lambda: None

    async def start(
        self, pages: int = 0, turned: bool = False, descriptors: int = 512, **affinity: Any
    ) -> Node:
        """The node, both containers apart and busy, and talking from now on."""
        config = {
            "affinity": {"pressure_guard": False, **affinity},
            "constants": {"affinity_least_gain": 0, "affinity_measure_descriptors": descriptors},
        }
        self.node = node = Node(self.runtime, self.folder, config, two_l3s(), self._meter)
        assert ROOT is not None
        self.turned = turned
        cgroup = self.stack.enter_context(cgroup_in(ROOT))
        self.path = f"/{cgroup.name}"
        node.services.reconciler.cgroup_of = lambda key: f"{self.path}/{key}"  # type: ignore[method-assign]
        for name in ("web", "db"):
            await node.create(self.client, name, 0.4)
            made = self.stack.enter_context(cgroup_in(cgroup, node.ids[name]))
            self.worked[name] = self.stack.enter_context(worked_in(made, CPUS))
            [cpu] = node.leaf(name)
            self.processes[name] = self.stack.enter_context(busy_in(made, cpu, pages))
        assert not node.together("web", "db")
        node.now_s += 100
        node.talk(("web", "db"))
        return node

    def _meter(self, node: Node) -> EffectMeter:
        assert ROOT is not None
        return EffectMeter(
            node.services, ROOT, self.folder, self.folder, self._wait, self.countable
        )  # fmt: skip

    async def _wait(self, seconds: float) -> None:
        """Until everything has worked; where the plan has put it, and doing what it does there."""
        self.node.now_s += seconds
        self.on_wait()
        if self.node.together("web", "db") and not self.is_turned:
            self.is_turned = True
            for name, process in self.processes.items():
                os.sched_setaffinity(process.pid, self.node.leaf(name))
                if self.turned:
                    process.send_signal(signal.SIGUSR1)
        for worked in self.worked.values():
            enough = worked() + WINDOW_NS
            while worked() < enough:
                await asyncio.sleep(0.005)


@pytest_asyncio.fixture
async def counted(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[CountedNode]:
    descriptors = len(os.listdir("/proc/self/fd"))
    async with CriClient(runtime.socket) as client:
        with contextlib.ExitStack() as stack:
            counted = CountedNode(runtime, client, tmp_path, stack)
            yield counted
            await counted.node.__aexit__()
    assert not any("perf" in link for link in _links()), f"{descriptors} before"


def _links() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


async def whole_plan(node: Node) -> None:
    """A plan, its moves, and the round that finds that none is left."""
    await node.round()
    await node.round()


def effect_of(node: Node) -> dict[str, Any]:
    last: dict[str, Any] = node.affinity.status()["effect"]["last"]
    return last


async def test_a_plan_that_makes_it_worse_is_told_and_stays(counted) -> None:
    node = await counted.start(turned=True)
    await whole_plan(node)
    assert node.together("web", "db")
    assert effect_of(node)["verdict"] == WORSE
    status = node.affinity.status()
    assert status["effect"]["how"].endswith("what makes it worse is told")
    metrics = node.services.metrics.text()
    assert 'cri_resmgr_plan_effects_total{verdict="worse"} 1.0' in metrics
    shown = affinity_text({**status, "edges": [], "owner_edges": [], "nearness": [], "frozen": ""})
    assert "page faults per millisecond of CPU time: " in shown
    assert "worse (windows before differ by " in shown


async def test_a_plan_that_makes_it_better_stays(counted) -> None:
    node = await counted.start(pages=64, turned=True)
    await whole_plan(node)
    assert node.together("web", "db")
    assert effect_of(node)["verdict"] == BETTER


async def test_that_the_same_work_is_shared_by_one_cpu_is_no_effect(counted) -> None:
    node = await counted.start()
    await whole_plan(node)
    assert node.together("web", "db")
    assert effect_of(node)["verdict"] == NOISE


async def test_what_people_ask_for_is_measured_too(counted) -> None:
    node = await counted.start(turned=True)
    document = await node.affinity.rebalance(dry_run=False)
    assert document["moved"] == 1
    [watch] = node.affinity._carrier._guards
    await watch
    assert node.together("web", "db")
    assert effect_of(node)["verdict"] == WORSE


async def test_a_dry_run_counts_nothing(counted) -> None:
    node = await counted.start()
    began_s = node.now_s
    await node.affinity.rebalance(dry_run=True)
    assert (node.now_s, effect_of(node)) == (began_s, {})


@pytest.mark.parametrize(("descriptors", "left_out"), [(4, 0), (3, 1), (2, 1)])
async def test_no_more_descriptors_are_open_than_may_be(counted, descriptors, left_out) -> None:
    """Two for each of the two containers, which have one CPU each."""
    node = await counted.start(descriptors=descriptors)
    await whole_plan(node)
    last = effect_of(node)
    assert (last["left_out"], last["compared"]) == (left_out, 2 - left_out)


async def test_too_few_descriptors_for_any_are_said(counted) -> None:
    node = await counted.start(descriptors=1)
    await whole_plan(node)
    assert node.together("web", "db")
    assert node.affinity.status()["effect"] == {
        "how": "moves are unguarded by measurements: 1 counters are too few for a container of the last plan",
        "last": {},
    }


async def test_a_container_without_a_cgroup_is_not_compared(counted) -> None:
    node = await counted.start()
    missing = node.ids["db"]
    node.services.reconciler.cgroup_of = (  # type: ignore[method-assign]
        lambda key: f"{counted.path}/{key}x" if key == missing else f"{counted.path}/{key}"
    )
    await whole_plan(node)
    assert (effect_of(node)["compared"], effect_of(node)["left_out"]) == (1, 1)


async def test_a_container_that_is_gone_after_the_plan_is_not_compared(counted) -> None:
    node = await counted.start()
    wait = counted._wait

    async def stopped(seconds: float) -> None:
        if node.together("web", "db"):
            counted.worked.clear()
            node.services.reconciler.cgroup_of = lambda key: None  # type: ignore[method-assign]
        await wait(seconds)

    node.meter._wait = stopped
    await whole_plan(node)
    assert effect_of(node) == {}
    assert f'verdict="{UNKNOWN}"}} 0.0' in node.services.metrics.text()


async def test_measuring_can_be_turned_off(counted) -> None:
    node = await counted.start(measure_effect=False)
    await whole_plan(node)
    assert node.together("web", "db")
    how = "moves are unguarded by measurements: affinity.measure_effect is off"
    assert node.affinity.status()["effect"] == {"how": how, "last": {}}


async def test_a_plan_ends_when_the_mode_changes_while_it_is_counted(counted) -> None:
    node = await counted.start()
    wait = counted._wait

    async def switched(seconds: float) -> None:
        node.services.config = config_of(affinity={"rebalance": "manual"})
        await wait(seconds)

    node.meter._wait = switched
    await whole_plan(node)
    assert not node.together("web", "db")


async def test_what_l3s_as_a_whole_say_is_told_beside_it(counted) -> None:
    """Page faults of a CPU for its context switches, in the place of misses for lookups; and resctrl's files."""
    mon = counted.folder / "fs/resctrl/mon_data/mon_L3_00"
    mon.mkdir(parents=True)
    for cpu in CPUS:
        cache = counted.folder / f"devices/system/cpu/cpu{cpu}/cache/index3"
        cache.mkdir(parents=True)
        (cache / "shared_cpu_list").write_text(f"{cpu}\n")
        (cache / "id").write_text("0\n")
    counted.countable = Countable(
        replace(SOFTWARE, l3_misses=2, l3_lookups=3), "", TYPE_SOFTWARE, tuple(CPUS)
    )
    looked = 0

    def traffic() -> None:
        nonlocal looked
        looked += 1
        (mon / "mbm_total_bytes").write_text(f"{looked * 1000}\n")
        (mon / "mbm_local_bytes").write_text(f"{looked * 750}\n")

    traffic()
    counted.on_wait = traffic
    node = await counted.start()
    await whole_plan(node)
    shown = affinity_text(
        {**node.affinity.status(), "edges": [], "owner_edges": [], "nearness": [], "frozen": ""}
    )
    assert "lookups in the plan's L3s that missed: " in shown
    assert (
        "memory traffic of the plan's L3s with other NUMA nodes: 25.0% before, 25.0% after (of all that runs there)"
        in shown
    )


# ---------------------------------------------------------------------- where nothing counts


@pytest.mark.parametrize(
    ("cpuinfo", "why"),
    [
        ("", "no events are known of this CPU"),
        (
            "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\n\n",
            "no events are known of GenuineIntel family 0x6 model 0x8f",
        ),
        (
            "vendor_id : HygonGenuine\ncpu family : 24\nmodel : 1\n\n",
            "the kernel counts nothing of its cores here (a virtual machine without a PMU?)",
        ),
    ],
    ids=["no cpuinfo", "an Intel", "a virtual Hygon"],
)
async def test_where_nothing_counts_plans_are_made_and_the_status_says_so(
    runtime, tmp_path, cpuinfo, why
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    async with Node(runtime, tmp_path) as node, CriClient(runtime.socket) as client:
        await apart(node, client, "web", "db")
        node.talk(("web", "db"))
        began_s = node.now_s
        await node.round()
        assert node.together("web", "db")
        assert node.now_s == began_s + guard_s(node)
        effect: dict[str, Any] = node.affinity.status()["effect"]
        assert effect == {"how": f"moves are unguarded by measurements: {why}", "last": {}}
        shown = "\n".join(status_lines(node.affinity.status()))
        assert (why in shown) == bool(node.affinity.status()["guard"])


def guard_s(node: Node) -> float:
    """No container of this node tells pressure: nothing is waited for."""
    assert node.mover.guarded_by != ""
    return 0.0
