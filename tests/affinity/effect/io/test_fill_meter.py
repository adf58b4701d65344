"""Containers that are counted, and pushed apart: real processes in real cgroups, counted by the kernel.

What counts as a line from memory is a nanosecond of CPU time, which needs no hardware.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cri_proxy.affinity.effect.io.counting import Countable
from cri_proxy.affinity.effect.io.fill_meter import LONGEST_S, FillMeter
from cri_proxy.affinity.repelling import apart_text
from cri_proxy.affinity.report import affinity_text, status_lines
from policies.machine.topology import Cpu, Topology, TopologyData
from tests.affinity.effect.io.counted_cgroup import (
    CPU_TIME,
    SOFTWARE,
    busy_in,
    cgroup_in,
    counted_root,
    worked_ns,
)
from tests.affinity.io.affinity_node import Node
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime

ROOT = counted_root() if os.getuid() == 0 else None
CPUS = sorted(os.sched_getaffinity(0))[:2]
pytestmark = pytest.mark.skipif(
    ROOT is None or len(CPUS) < 2, reason="needs root, two CPUs, and a kernel that counts by cgroup"
)
#: So much has every process worked when a window of two seconds is over: 1.5 million nanoseconds a second.
WINDOW_NS = 3_000_000
COUNTED = Countable(replace(SOFTWARE, fills=(CPU_TIME,)))
REPELLING = {"repel": 1, "l3_saturation": 2}


class FilledNode:
    """Two L3s of a CPU each: "web" and "small" in one, "idle" in the other; the first two work."""

    def __init__(
        self, runtime: FakeRuntime, client: CriClient, folder: Path, stack: contextlib.ExitStack
    ) -> None:
        self.runtime, self.client, self.folder, self.stack = runtime, client, folder, stack
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.windows = 0

    async def start(self, countable: Countable = COUNTED, **affinity: Any) -> Node:
        config = {"affinity": {"pressure_guard": False, "measure_effect": False, "least_gain": 0, **affinity}}
        cpus = tuple(Cpu(cpu, index, index, 0, 0, 0) for index, cpu in enumerate(CPUS))
        topology = Topology(TopologyData(cpus, memory={0: 1 << 34}, vendor="HygonGenuine"))
        self.countable = countable
        self.node = node = Node(self.runtime, self.folder, config, topology, fill_meter=self._meter)
        assert ROOT is not None
        cgroup = self.stack.enter_context(cgroup_in(ROOT))
        node.services.reconciler.cgroup_of = (  # type: ignore[method-assign]
            lambda key: f"/{cgroup.name}/{key}"
        )
        for name, size in (("web", 0.4), ("idle", 0.5), ("small", 0.05)):
            await node.create(self.client, name, size)
            made = self.stack.enter_context(cgroup_in(cgroup, node.ids[name]))
            [cpu] = node.leaf(name)
            if name != "idle":
                self.processes[name] = self.stack.enter_context(busy_in(made, cpu))
        assert node.together("web", "small")
        assert not node.together("web", "idle")
        node.now_s += 100
        return node

    def _meter(self, node: Node) -> FillMeter:
        assert ROOT is not None
        return FillMeter(node.services, ROOT, self.folder, self.folder, self._wait, self.countable)

    async def _wait(self, seconds: float) -> None:
        self.node.now_s += seconds
        self.windows += 1
        for process in self.processes.values():
            enough = worked_ns(process) + WINDOW_NS
            while worked_ns(process) < enough:
                await asyncio.sleep(0.005)

    async def rates(self) -> dict[str, int]:
        """By name."""
        found = await self.node.fill_meter.count(self.node.engine, self.node.affinity.settings)
        names = {key: name for name, key in self.node.ids.items()}
        return {names[key]: rate for key, rate in found.items()}


@pytest_asyncio.fixture
async def filled(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[FilledNode]:
    async with CriClient(runtime.socket) as client:
        with contextlib.ExitStack() as stack:
            filled = FilledNode(runtime, client, tmp_path, stack)
            yield filled
            await filled.node.__aexit__()
    assert not any("perf" in link for link in _links())


def _links() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


async def test_two_that_saturate_an_l3_are_moved_apart_and_that_is_told(filled: FilledNode) -> None:
    node = await filled.start(**REPELLING)
    await node.round()
    assert not node.together("web", "small")
    [*_, last] = [each for each in node.engine.history if each.operation == "rebalance"]
    moved, stayed = ("web", "small") if last.id == node.ids["web"] else ("small", "web")
    assert f"kept apart: from default/{stayed}/{stayed} (" in node.engine.grants[node.ids[moved]].why
    row = node.affinity.apart(node.engine, node.engine.grants[node.ids[stayed]])
    assert row is not None
    assert f"; kept apart: from default/{moved}/{moved} (" in apart_text(row)
    sentence = "containers push each other apart by counters of software: 3 counted, 2 of them"
    assert sentence in "\n".join(status_lines(node.affinity.status()))
    nothing = {"edges": [], "owner_edges": [], "nearness": [], "groups": []}
    assert f"repelling  {sentence}" in affinity_text({**node.affinity.status(), **nothing})


async def test_by_default_nothing_is_counted_and_none_moves(filled: FilledNode) -> None:
    node = await filled.start(l3_saturation=2)
    await node.round()
    assert node.together("web", "small")
    assert (filled.windows, node.affinity.status()["repelling"]) == (0, "")
    assert node.affinity.apart(node.engine, node.engine.grants[node.ids["web"]]) is None


async def test_below_saturation_none_moves(filled: FilledNode) -> None:
    node = await filled.start(repel=1, l3_saturation=100_000)
    await node.round()
    assert node.together("web", "small")
    assert filled.windows == 1


async def test_what_talks_enough_stays_together(filled: FilledNode) -> None:
    node = await filled.start(repel=0.001, l3_saturation=2)
    node.talk(("web", "small"))
    await node.round()
    assert node.together("web", "small")


async def test_where_nothing_counts_none_moves_and_that_is_said(filled: FilledNode) -> None:
    node = await filled.start(Countable(why="no events are known of this CPU"), **REPELLING)
    await node.round()
    assert node.together("web", "small")
    said = "containers do not push each other apart: no events are known of this CPU"
    assert said in "\n".join(status_lines(node.affinity.status()))
    row = node.affinity.apart(node.engine, node.engine.grants[node.ids["web"]])
    assert row is not None
    assert apart_text(row) == "not kept apart from others: no events are known of this CPU"


async def test_a_cpu_whose_memory_cannot_be_counted_is_said(filled: FilledNode) -> None:
    node = await filled.start(Countable(SOFTWARE), **REPELLING)
    await node.round()
    assert "no event of software counts what comes from memory" in node.affinity.status()["repelling"]


async def test_too_few_descriptors_at_a_time_take_more_windows(filled: FilledNode) -> None:
    await filled.start(measure_descriptors=1, **REPELLING)
    rates = await filled.rates()
    assert filled.windows == 3
    assert min(rates["web"], rates["small"]) > 1_000_000
    assert rates["idle"] == 0


async def test_no_descriptors_are_said(filled: FilledNode) -> None:
    node = await filled.start(measure_descriptors=0, **REPELLING)
    assert await filled.rates() == {}
    assert "affinity.measure_descriptors (0) is too small" in node.affinity.status()["repelling"]


async def test_a_rate_is_smoothed_and_forgotten(filled: FilledNode) -> None:
    node = await filled.start(**REPELLING)
    first = await filled.rates()
    [process] = [process for name, process in filled.processes.items() if name == "web"]
    process.kill()
    process.wait()
    del filled.processes["web"]
    second = await filled.rates()
    assert second["web"] == pytest.approx(0.7 * first["web"], rel=0.01)
    node.now_s += LONGEST_S + 1
    node.services.reconciler.cgroup_of = lambda key: ""  # type: ignore[method-assign]
    assert await filled.rates() == {}
