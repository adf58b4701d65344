"""Random sequences of containers that start, fork, end and change their class: each thread is where it belongs in the end.

Threads are numbers in files of a tree of cgroups, and in the model of the kernel's resctrl (tests/isolation/kernel.py).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cri_proxy.isolation.io.tasks import AGAIN_S, STARTING_S, Tasks
from cri_proxy.isolation.model import ROOT, Group, Wanted
from cri_proxy.node.cgroups import Cgroups
from tests.isolation.kernel import KernelModel

POD = "/kubepods/pod1"
GROUPS = ("cri-resmgr.batch", "cri-resmgr.gold")
OTHER = "kepler"
STEPS = 120
WHAT = ("start", "start", "fork", "fork", "exec", "exit", "end", "class", "other", "restart", "round")


class World:
    """A node without processes. ``threads``: of each container; ``host``: threads that are in no container."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.kernel = KernelModel({0: frozenset(range(8))})
        for group in GROUPS:
            self.kernel.make(group)
        self.kernel.make_other(OTHER)
        self.root = folder
        self.now_s = 0.0
        self.threads: dict[str, set[int]] = {}
        self.group_of: dict[str, str] = {}
        self.host = {1, 2, 3}
        for thread in self.host:
            self.kernel.start(thread)
        self.last_thread = 100
        self.restart()

    def restart(self) -> None:
        """Another daemon."""
        self.tasks = Tasks(self.kernel, Cgroups(self.root, self.root / "proc"), lambda: self.now_s)

    def path(self, key: str) -> str:
        return f"{POD}/cri-containerd-{key}.scope"

    def write(self, key: str) -> None:
        folder = self.root / self.path(key).lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.threads").write_text("".join(f"{each}\n" for each in sorted(self.threads[key])))

    def fork(self, key: str, parent: int) -> None:
        self.last_thread += 1
        self.kernel.start(self.last_thread, parent)
        self.threads[key].add(self.last_thread)
        self.write(key)

    def step(self) -> None:
        what = self.random.choice(WHAT)
        key = self.random.choice(sorted(self.threads)) if self.threads else ""
        threads = sorted(self.threads.get(key, ()))
        if what == "start":
            self.start()
        elif what == "restart":
            self.restart()
        elif what == "round":
            self.follow()
        elif what == "exec" and key:
            self.fork(key, 1)
        elif what == "class" and key:
            self.group_of[key] = self.random.choice((*GROUPS, ROOT))
        elif threads:
            thread = self.random.choice(threads)
            if what == "fork":
                self.fork(key, thread)
            elif what == "other":
                self.kernel.group_of[thread] = OTHER
            elif what in ("exit", "end"):
                for each in [thread] if what == "exit" else threads:
                    self.kernel.end(each)
                    self.threads[key].discard(each)
                self.write(key)
                if what == "end":
                    del self.threads[key], self.group_of[key]

    def start(self) -> None:
        key = f"{self.random.getrandbits(256):064x}"
        self.threads[key], self.group_of[key] = set(), self.random.choice((*GROUPS, ROOT))
        self.fork(key, 1)
        if self.random.random() < 0.5:
            assert self.tasks.begin(key, POD, self.group_of[key])
            self.fork(key, self.last_thread)
            assert {self.kernel.group_of[each] for each in self.threads[key]} == {self.group_of[key]}

    def follow(self) -> int:
        members = {
            group: frozenset(key for key, of in self.group_of.items() if of == group) for group in GROUPS
        }
        wanted = Wanted(tuple(Group(name, {}, keys) for name, keys in members.items()))
        return self.tasks.follow(wanted, {key: self.path(key) for key in self.threads})


@pytest.mark.parametrize("seed", range(30))
def test_every_thread_is_where_it_belongs_after_a_round_and_the_next_one_writes_nothing(
    seed: int, tmp_path: Path
) -> None:
    world = World(tmp_path, seed)
    for _ in range(STEPS):
        world.step()
        world.now_s += world.random.choice((0.0, 1.0, AGAIN_S))
    others = {thread for thread, group in world.kernel.group_of.items() if group == OTHER}
    world.now_s += STARTING_S
    world.follow()
    for key, threads in world.threads.items():
        for thread in threads:
            expected = OTHER if thread in others else world.group_of[key]
            assert world.kernel.group_of[thread] == expected
    assert {world.kernel.group_of[thread] for thread in world.host} == {ROOT}
    assert {key: row["group"] for key, row in world.tasks.status().items()} == {
        key: group for key, group in world.group_of.items() if group
    }
    world.kernel.writes.clear()
    world.now_s += AGAIN_S
    assert world.follow() == 0
    assert world.kernel.writes == []
