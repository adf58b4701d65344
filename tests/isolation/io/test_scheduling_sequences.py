"""Classes come, change and go, programs set their own threads, processes come and end, daemons are killed: at each look
every thread has what its class says, or what its program has set; and in the end what it began with, or its program's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from cri_proxy.isolation.io import originals
from cri_proxy.isolation.io.originals import Originals
from cri_proxy.isolation.io.thread_attributes import Kernel
from cri_proxy.isolation.scheduling import Attributes, decide, read_class
from tests.isolation.io.hierarchy import Hierarchy, cgroup_roots, node
from tests.isolation.io.test_scheduling import KEY, OTHER, Places
from tests.isolation.kernel import KernelModel

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

WORDS = (
    "nice=4",
    "nice=-3 io=be:2",
    "batch nice=4",
    "batch nice=9 io=idle",
    "idle io=be:7",
    "other io=rt:1",
    "batch nice=4 flags=keep-params",
    "",
)
STEPS = 24


@pytest.fixture(params=["v1", "v2"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    root = cgroup_roots().get(request.param)
    if root is None:
        pytest.skip(f"no cgroups of {request.param} can be made here")
    with node(root, Hierarchy(tmp_path)) as found:
        yield Places(found, tmp_path / "state")


class Sequence:
    """Two containers, what their threads should have, and the threads that programs have set."""

    def __init__(self, places: Places, seed: int) -> None:
        self.places = places
        self.random = Random(seed)
        self.paths = {"one": places.node.cgroup(KEY), "other": places.node.cgroup(OTHER)}
        self.words = dict.fromkeys(self.paths, "")
        self.processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        #: Nice values that programs have set, which no class says.
        self.own: dict[int, int] = {}
        for name in self.paths:
            self.start(name)

    def start(self, name: str) -> None:
        process = self.places.node.run(self.paths[name], number=self.random.randrange(3))
        self.processes.append((name, process))

    def step(self) -> None:
        name = self.random.choice([*self.paths])
        kind = self.random.choice(("class", "class", "start", "end", "own", "kill"))
        if kind == "class":
            self.words[name] = self.random.choice(WORDS)
        elif kind == "start":
            self.start(name)
        elif kind == "end" and self.processes:
            self.places.node.stop(self.processes.pop(self.random.randrange(len(self.processes)))[1])
        elif kind == "own":
            threads = sorted(self.places.node.cgroups.threads(self.paths[name]))
            if threads:
                thread, nice = self.random.choice(threads), self.random.randrange(11, 15)
                os.setpriority(os.PRIO_PROCESS, thread, nice)
                self.own[thread] = nice
        elif kind == "kill":
            self.places.restart()

    def check(self) -> None:
        kernel = Kernel()
        for name, path in self.paths.items():
            wanted = read_class(self.words[name]).over(Attributes())
            for thread in self.places.node.cgroups.threads(path):
                seen = kernel.read(thread)
                if thread in self.own:
                    assert seen.cpu.nice == self.own[thread], (name, self.words[name])
                else:
                    found = decide(seen, wanted, ())
                    assert not found.is_own, (seen, wanted)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_every_thread_has_what_its_class_says_or_its_program(places: Places, seed: int) -> None:
    sequence = Sequence(places, seed)
    for _ in range(STEPS):
        sequence.step()
        places.apply(**{name: words for name, words in sequence.words.items() if words})
        sequence.check()
    # The package is removed while no daemon runs.
    kept = Originals(places.folder, "boot")
    kept.load()
    for _ in range(2):
        _, refused = originals.put_back_values(kept.values, KernelModel({}), places.node.cgroups)
        assert refused == {}
    sequence.words = dict.fromkeys(sequence.words, "")
    sequence.check()
