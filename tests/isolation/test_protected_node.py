"""Measured protection closes the loop through the kernel: what a container waits depends on the masks that are written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cri_proxy.affinity.effect.io.counting import Countable
from cri_proxy.isolation.baselines import LEAST_WINDOWS
from cri_proxy.isolation.io.protector import Protector
from cri_proxy.isolation.protection import WINDOW_S
from cri_proxy.isolation.windows import WARM_S
from tests.isolation.node import IsolatedNode, l3s

#: Ways of 16 that batch may have of the L3 until the protected container waits.
HARMLESS = 3


class ProtectedNode:
    """A node with resctrl. Its protected container waits half of the time while batch has too much of an L3 of its."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = IsolatedNode(folder, monkeypatch, protection="enforce")
        services = self.node.services
        services.node_state.clock = lambda: self.node.now_s
        self.cgroups = folder / "cgroup"
        services.reconciler.cgroup_of = lambda key: f"/{key}"  # type: ignore[method-assign]
        self.protector = Protector(
            services, self.cgroups, self.node.isolation, countable=Countable(why="no counters")
        )
        self.waited_us = self.used_us = 0
        self.protected = self.node.protected()
        self.l3 = min(
            number
            for number, cpus in l3s().items()
            if not cpus.isdisjoint(self.node.engine.grants[self.protected].cpus)
        )
        self.batch = ""

    @property
    def ways(self) -> int:
        """Of the L3, what batch has."""
        schemata = self.node.kernel.schemata.get("cri-resmgr.batch")
        return 16 if schemata is None else int(schemata["L3"][self.l3], 16).bit_count()

    async def windows(self, count: int) -> list[int]:
        """So many windows; what batch had in each."""
        had = []
        for _ in range(count):
            self.node.now_s += WINDOW_S
            had.append(self.ways)
            is_hurt = bool(self.batch) and self.ways > HARMLESS
            self.waited_us += int(WINDOW_S * 1e6 * (0.5 if is_hurt else 0.01))
            self.used_us += 10**7
            self._write(
                self.protected, "cpu.pressure", f"some avg10=0 avg60=0 avg300=0 total={self.waited_us}\n"
            )
            if self.batch:
                self._write(self.batch, "cpu.stat", f"usage_usec {self.used_us}\n")
            await self.node.isolation.round()
            await self.protector.round()
            await self.node.isolation.round()
        return had

    def _write(self, key: str, name: str, text: str) -> None:
        (self.cgroups / key).mkdir(parents=True, exist_ok=True)
        (self.cgroups / key / name).write_text(text)


@pytest_asyncio.fixture
async def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProtectedNode]:
    it = ProtectedNode(tmp_path, monkeypatch)
    await it.node.begin()
    it.node.now_s += WARM_S
    yield it
    await it.protector.close()
    it.node.isolation.close()


async def test_the_masks_become_smaller_until_the_container_waits_no_more_and_wider_when_it_is_quiet(
    it: ProtectedNode,
) -> None:
    await it.windows(LEAST_WINDOWS + 1)
    it.batch = it.node.batch()
    had = await it.windows(16)
    assert (had[1], had[-1]) == (5, HARMLESS)
    assert sorted(had[1:], reverse=True) == had[1:]
    group = it.node.isolation.status()["groups"][0]
    assert group["schemata"]["MB"][str(it.l3)] == "59", "a step is one of the bandwidth, too"
    quiet = await it.windows(60)
    assert max(quiet) == 4, "it is tried whether less is needed"
    assert sum(ways > HARMLESS for ways in quiet) <= 15


async def test_other_l3s_have_what_is_configured(it: ProtectedNode) -> None:
    other = it.node.protected()
    await it.windows(LEAST_WINDOWS + 1)
    it.batch = it.node.batch()
    await it.windows(16)
    home = it.node.engine.grants[other].cpus
    (number,) = (number for number, cpus in l3s().items() if not cpus.isdisjoint(home))
    assert number != it.l3
    assert it.node.masks == {it.l3: "7", number: "1f"}


async def test_what_is_taken_comes_back_when_protection_is_off(it: ProtectedNode) -> None:
    await it.windows(LEAST_WINDOWS + 1)
    it.batch = it.node.batch()
    await it.windows(16)
    it.node.configure(protection="off")
    await it.windows(1)
    assert it.ways == 5
