"""The random sequences of ``test_random_sequences``, over subjects whose values are files.

The law needs no subject: a file that a subject names has the value, every other has what it had, and in the end all have.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.isolation.io import originals
from cri_proxy.isolation.io.all_subjects import all_subjects
from cri_proxy.isolation.io.subjects import Subject
from cri_proxy.isolation.model import ENFORCE, FILE
from cri_proxy.isolation.places import file_place
from cri_proxy.isolation.scheduling import SUBJECT as SCHEDULING
from cri_proxy.machine_root import VARIABLE
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.services.services import Services
from policies.model import Qos
from tests.isolation.kernel import KernelModel
from tests.isolation.machine_tree import DEVICE, MachineTree
from tests.isolation.node import IsolatedNode, l3s
from tests.isolation.test_random_sequences import MODES, Story

STEPS = 40
#: By hand more: CRI_RESMGR_SEEDS=200.
SEEDS = int(os.environ.get("CRI_RESMGR_SEEDS", "6"))
#: Threads have tests of their own, with real ones.
LEFT_OUT = (SCHEDULING,)
SECTIONS: dict[str, Any] = {
    "blockio": {
        "classes": {
            "batch": [{"Devices": [DEVICE], "ThrottleReadBps": "1M", "Weight": 50}],
            "protected": [{"Weight": 400}],
        }
    },
    "cpu": {
        "classes": {
            "protected": {"minFreq": 2900000, "maxFreq": "turbo", "freqGovernor": "performance"},
            "batch": {"maxFreq": 2000000, "freqGovernor": "powersave"},
        },
        "idle": "batch",
    },
    "interrupts": {"controllable": ["*"]},
    "memory": {"classes": [{"name": "batch", "swaplimitratio": 0.5}, {"name": "protected", "low": "50%"}]},
}


class FileStory(Story):
    """``had``: what each file says that no subject of ours has written."""

    def __init__(
        self, node: IsolatedNode, tree: MachineTree, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(node, seed, monkeypatch)
        self.tree = tree
        self.names = tuple(each.name for each in node.isolation._subjects)
        self.has = {
            "caches": "off",
            "bandwidth": "off",
            **dict.fromkeys(self.names, ENFORCE),
            "control": SECTIONS,
        }
        node.configure(**self.has)
        self.had = tree.picture()

    # ------------------------------------------------------------------ what happens

    def start(self) -> None:
        qos = self.chance.choice([Qos.GUARANTEED, Qos.BESTEFFORT, Qos.BURSTABLE])
        cls, owns = self.chance.choice(["", "", "protected", "batch"]), self.chance.random() < 0.3
        key = self.node.start(qos, self.chance.choice([1, 2, 8]), cls, owns=owns and qos is Qos.GUARANTEED)
        before = self.tree.picture()
        quota = "max 100000" if qos is Qos.BESTEFFORT else f"{self.chance.choice([50_000, 400_000])} 100000"
        self.tree.start(key, qos.value.lower(), quota, self.chance.choice(["max", str(1 << 30)]))
        self.had |= {path: text for path, text in self.tree.picture().items() if path not in before}

    def remove(self) -> None:
        grants = sorted(self.node.engine.grants)
        if grants:
            key = self.chance.choice(grants)
            # A cgroup may end before the record does, or long after it.
            if self.chance.random() < 0.8:
                self._end(key)
            self.node.engine.remove(key)

    def end_cgroup(self) -> None:
        if self.node.engine.grants:
            self._end(self.chance.choice(sorted(self.node.engine.grants)))

    def _end(self, key: str) -> None:
        self.tree.end(key)
        there = self.tree.picture()
        self.had = {path: text for path, text in self.had.items() if path in there}

    def plug(self) -> None:
        number = self.chance.randrange(40, 60)
        file = self.tree.folder / f"proc/irq/{number}/smp_affinity_list"
        if file.exists():
            self.tree.unplug(number)
            self.had.pop(str(file))
            self.tree.managed.discard(number)
        else:
            self.tree.plug(number)
            self.had[str(file)] = self.tree.all_cpus
            if self.chance.random() < 0.3:
                self.tree.managed.add(number)

    def configure(self) -> None:
        self.has = {"caches": "off", "bandwidth": "off"}
        self.has |= {name: self.chance.choice(MODES) for name in self.names}
        self.has["control"] = {name: each for name, each in SECTIONS.items() if self.chance.random() < 0.8}
        if self.chance.random() < 0.3:  # classes of containers change
            self.has["protected"] = ["qos/Burstable"]
        self.node.configure(**self.has)

    def drift(self) -> None:
        """Another program writes where we do; the kernel takes it."""
        named = sorted(self._named())
        if named:
            place = file_place(self.chance.choice(named))
            if not place.line and place.path.endswith("smp_affinity_list"):
                self.tree.take(place.path, "0-3")

    def step(self) -> None:
        on_containers = [self.start, self.start, self.start, self.remove, self.end_cgroup, self.release]
        self.chance.choice([*on_containers, self.configure, self.switch, self.plug, self.drift])()

    # ------------------------------------------------------------------ what holds

    def check(self) -> None:
        refused = {row["place"] for row in self.node.isolation.status()["refusals"]}
        assert {place for place in refused if not self._is_managed(place)} == set()
        named = self._named()
        subjects = {each.name: each for each in self.node.isolation._subjects}
        for place, row in named.items():
            if place not in refused:
                seen = originals.read_place(file_place(place))
                subject = subjects[row["subject"]]
                assert seen == row["value"] or subject.is_same(place, seen, row["value"]), row
        plan = self.node.isolation._plan.files
        touched = {file_place(place).path for each in plan for place in (each.place, *each.beside)}
        for path, text in self.tree.picture().items():
            assert path in touched or text == self.had[path], path

    def _is_managed(self, place: str) -> bool:
        return any(
            place == f"{FILE}{self.tree.folder}/proc/irq/{each}/smp_affinity_list"
            for each in self.tree.managed
        )

    def _named(self) -> dict[str, dict[str, Any]]:
        rows = self.node.isolation.status()["files"]
        assert len({row["place"] for row in rows}) == len(rows)
        return {row["place"]: row for row in rows if row["state"] == ENFORCE}

    async def end(self) -> None:
        if self.chance.random() < 0.5:
            self.node.configure(**dict.fromkeys((*self.names, "caches", "bandwidth"), "off"))
            await self.node.look()
        else:
            boot = self.node.folder / "boot_id"
            boot.write_text(self.node.boot_id)
            assert originals.put_back(self.node.folder, self.node.kernel, boot) == []
        assert self.tree.picture() == self.had
        assert not (self.node.folder / originals.FILE_NAME).exists()


def make_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[IsolatedNode, MachineTree]:
    tree = MachineTree(folder / "machine", frozenset().union(*l3s().values()))
    monkeypatch.setenv(VARIABLE, str(tree.folder))
    monkeypatch.setattr(originals, "write_file", tree.write)

    def subjects(services: Services) -> Sequence[Subject]:
        services.cgroups = Cgroups(tree.cgroups, tree.folder / "proc")
        monkeypatch.setattr(services.reconciler, "cgroup_of", tree.cgroup_of)
        return [each for each in all_subjects(services) if each.name not in LEFT_OUT]

    more = {"topology": {"source": str(tree.sys), "cgroup_root": str(tree.cgroups)}}
    return IsolatedNode(folder, monkeypatch, KernelModel(l3s()), subjects, more), tree


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_files_are_as_wanted_and_all_others_and_in_the_end_all_as_they_were(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, tree = make_node(tmp_path, monkeypatch)
    try:
        await node.begin()
        story = FileStory(node, tree, seed, monkeypatch)
        for _ in range(STEPS):
            story.step()
            await story.round()
            story.check()
        await story.end()
    finally:
        node.isolation.close()
