"""Whatever happens on a node, and wherever its daemon is killed: the kernel has what is wanted, groups of others are
as those left them, and in the end all is as it was."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_proxy import effects
from cri_proxy.engine.model import Life
from cri_proxy.isolation.io.originals import FILE_NAME, put_back
from cri_proxy.isolation.model import ROOT
from policies.model import Qos
from tests.isolation.kernel import KernelModel
from tests.isolation.node import IsolatedNode, l3s

BATCH, GOLD = "cri-resmgr.batch", "cri-resmgr.gold"
RDT = {
    "enable": True,
    "usePodQoSAsDefaultClass": False,
    "options": {"mb": {"optional": True}, "l2": {"optional": True}},
    "partitions": {
        "all": {
            "l3Allocation": "100%",
            "classes": {"gold": {"l3Allocation": "50%"}, "system/default": {"l3Allocation": "75%"}},
        }
    },
}
MODES = ("off", "observe", "enforce", "enforce")
STEPS = 60


class Killed(Exception):
    """The daemon ends just before an effect."""


class Story:
    """One sequence on one node. ``others``: the groups of other programs, as those want them."""

    def __init__(self, node: IsolatedNode, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.chance = random.Random(seed)
        self.others: dict[str, object] = {}
        self.before = node.kernel.picture()
        self.has: dict[str, Any] = {"caches": "enforce", "bandwidth": "enforce"}
        self._monkeypatch = monkeypatch

    # ------------------------------------------------------------------ what happens

    def start(self) -> None:
        qos = self.chance.choice([Qos.GUARANTEED, Qos.BESTEFFORT, Qos.BURSTABLE])
        cls = self.chance.choice(["", "", "protected", "batch", "standard"])
        self.node.start(qos, self.chance.choice([1, 2, 8]), cls, self.chance.choice(["", "", "gold"]))

    def remove(self) -> None:
        if self.node.engine.grants:
            self.node.engine.remove(self.chance.choice(sorted(self.node.engine.grants)))

    def release(self) -> None:
        if self.node.engine.grants:
            self.node.engine.release(self.chance.choice(sorted(self.node.engine.grants)))

    def configure(self) -> None:
        self.has = {name: self.chance.choice(MODES) for name in ("caches", "bandwidth")}
        if self.chance.random() < 0.3:
            self.has["rdt"] = RDT
        if self.chance.random() < 0.3:
            self.has["batch_cache"] = self.chance.choice(["10%", "50%", "2 bits", "0xf0"])
        if self.chance.random() < 0.3:  # classes of containers change
            self.has["protected"] = ["qos/Burstable"]
        self.node.configure(**self.has)

    def switch(self) -> None:
        self.node.services.node_state.switch(self.chance.choice(["off", "observe", "enforce", "enforce"]))

    def make_other(self) -> None:
        name = f"other{len(self.others)}"
        if name not in self.node.kernel.schemata and len(self.node.kernel.schemata) < 8:
            self.node.kernel.make_other(name)
            self.node.kernel.write_other(name, "L3", 3, "f")
            self.others[name] = self.node.kernel.picture()

    def drift(self) -> None:
        ours = [name for name in self.node.kernel.schemata if name.startswith("cri-resmgr.")]
        if ours and self.chance.random() < 0.3:
            self.node.kernel.remove_other(self.chance.choice(ours))
        elif ours:
            self.node.kernel.write_other(self.chance.choice(ours), "L3", self.chance.randrange(16), "abc")

    def step(self) -> None:
        on_containers = [self.start, self.start, self.start, self.remove, self.release]
        on_node = [self.configure, self.switch, self.make_other, self.drift]
        self.chance.choice([*on_containers, *on_node])()

    # ------------------------------------------------------------------ rounds

    async def round(self) -> None:
        """One round, in every third of which the daemon is killed before one of its effects."""
        if self.chance.random() < 0.33:
            left = self.chance.randrange(6)
            for _ in range(3):  # the next daemon may be killed, too
                if not await self._killed(self.node.look, left):
                    break
                left = self.chance.randrange(6)
                await self._killed(self.node.restart, left)
            await self.node.restart()
        await self.node.look()

    async def _killed(self, work: Callable[[], Awaitable[object]], after: int) -> bool:
        left = iter(range(after))

        def before(kind: str, about: str) -> None:
            if next(left, None) is None:
                raise Killed(f"{kind} {about}")

        self._monkeypatch.setattr(effects, "before", before)
        try:
            await work()
        except Killed:
            return True
        finally:
            self._monkeypatch.setattr(effects, "before", lambda kind, about: None)
        return False

    # ------------------------------------------------------------------ what holds

    def check(self) -> None:
        kernel, mode = self.node.kernel, self.node.services.node_state.mode
        assert set(kernel.others()) == set(self.others)
        for name in self.others:
            assert kernel.schemata[name]["L3"][3] == "f"
        enforced = {
            name for name in ("caches", "bandwidth") if self.has[name] == "enforce" and mode == "enforce"
        }
        assert self._has_batch_group() == bool(enforced & self._divided())
        if not enforced:
            assert self.ours() == set() and not (self.node.folder / FILE_NAME).exists()
        if "caches" in enforced:
            shared = self._shared()
            for number in l3s() if BATCH in kernel.schemata else ():
                assert (kernel.schemata[BATCH]["L3"][number] == "ffff") == (number not in shared), number
        assert (GOLD in kernel.schemata) == bool("caches" in enforced and "rdt" in self.has and self._gold())
        assert (kernel.schemata[ROOT]["L3"][0] == "fff") == bool("caches" in enforced and "rdt" in self.has)

    def ours(self) -> set[str]:
        return {name for name in self.node.kernel.schemata if name.startswith("cri-resmgr.")}

    def _divided(self) -> set[str]:
        return {"caches", "bandwidth"} if self._shared() else set()

    def _has_batch_group(self) -> bool:
        return BATCH in self.node.kernel.schemata

    def _live(self) -> Iterator[Any]:
        for record in self.node.engine.grants.values():
            if record.life is Life.RUNNING and record.stance.value != "released":
                yield record

    def _gold(self) -> list[str]:
        return [each.key for each in self._live() if each.container.preferences.rdt_class == "gold"]

    def _shared(self) -> set[int]:
        """The L3s in which a protected and a batch container meet, by a look at each CPU."""
        has_rdt = "rdt" in self.has
        free = [each for each in self._live() if not (has_rdt and each.container.preferences.rdt_class)]
        found = set()
        for number, cpus in l3s().items():
            here = {each.isolation for each in free for cpu in cpus if cpu in each.cpus}
            if {"protected", "batch"} <= here:
                found.add(number)
        return found

    async def end(self) -> None:
        """Off, or the file alone: the kernel is as others have it."""
        if self.chance.random() < 0.5:
            self.node.configure(caches="off", bandwidth="off")
            await self.node.look()
        else:
            boot = self.node.folder / "boot_id"
            boot.write_text(self.node.boot_id)
            assert put_back(self.node.folder, self.node.kernel, boot) == []
        assert self.ours() == set() and not (self.node.folder / FILE_NAME).exists()
        for name in tuple(self.others):
            self.node.kernel.remove_other(name)
        assert self.node.kernel.picture() == self.before


@pytest.mark.parametrize("seed", range(12))
async def test_seen_is_wanted_and_all_is_put_back(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = IsolatedNode(tmp_path, monkeypatch, KernelModel(l3s()))
    try:
        await node.begin()
        story = Story(node, seed, monkeypatch)
        for _ in range(STEPS):
            story.step()
            await story.round()
            story.check()
        await story.end()
    finally:
        node.isolation.close()
