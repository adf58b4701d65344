"""How well containers are placed: ``python -m bench.placement [PART]...``; the parts are in ``PARTS``.

Random sequences of creates and deletes, with the same seeds for all, on six machines. Beside our engine with the policies
``topology-aware`` and ``balloons``: the policies of nri-plugins, as processes built from a pinned Go module, with the
same requests and configurations; kubelet's algorithm, a model that is held against the cases of kubelet's own tests; what is
possible at each create, given what the policy itself had placed before (the exact minimum); and the best of many searches
that know the whole sequence. Only creates that kube-scheduler would send reach a machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Optional

from bench.placement import rivals
from bench.placement.judge import Tally
from bench.placement.machines import MACHINES, Machine
from bench.placement.placers import Kubelet, Ours, Placer, play
from bench.placement.search import search
from bench.placement.sequences import ALL_KINDS, LIMITS, OWNING, Draw, Step, scheduled
from policies.machine.topology import Topology
from tests.peers.programs import Unavailable, find

#: Gives 201 creates of ``OWNING``.
SEED = 3
#: The load differs much between seeds: how many fit, and with it how many L3s there must be.
OTHER_SEEDS = range(100, 110)

#: Makes a placer that has done nothing yet.
Opener = Callable[[], AbstractAsyncContextManager[Placer]]

OWNER_ROWS = (
    ("own CPUs over more L3s than on an empty machine", "l3s", "owners"),
    ("own CPUs over more L3s than what was free needs", "l3s_avoidable", "owners"),
    ("own CPUs over more NUMA nodes than on an empty machine", "nodes", "owners"),
    ("own CPUs over more NUMA nodes than what was free needs", "nodes_avoidable", "owners"),
    ("on a core together with another owner", "split", "owners"),
    ("no or too few CPUs of its own", "shared", "owners"),
    ("refused", "refused", "created"),
    ("mems wider than the NUMA nodes of its CPUs", "mems", "created"),
    ("cpuset changed by an operation on another", "changed", "beside_running"),
)
CPUSET_ROWS = (
    ("cpuset over more L3s than the limit needs", "wide_l3s", "created"),
    ("cpuset over more L3s than what no other owned needs", "wide_l3s_avoidable", "created"),
    ("cpuset over more NUMA nodes than the limit needs", "wide_nodes", "created"),
    ("cpuset over more NUMA nodes than what no other owned needs", "wide_nodes_avoidable", "created"),
    ("cpuset smaller than the limit", "few", "created"),
)
CLUSTER_ROWS = (
    ("own CPUs over more clusters than they need", "clusters", "owners"),
    ("own CPUs over more clusters than what was free needs", "clusters_avoidable", "owners"),
    ("in a cluster together with another owner", "beside", "owners"),
)
LABEL, CELL = 56, 16
FULL_CORES = "placement: {smt: full-core}"


class Scene:
    """One machine: its tree, its files for processes, and the sequences that are played on it."""

    def __init__(self, machine: Machine, folder: Path, programs: Mapping[str, Path]) -> None:
        """``programs``: of rivals, by policy."""
        self.machine = machine
        self.programs = programs
        self.tree = machine.topology()
        self.root = folder / machine.name.replace(" ", "-")
        rivals.write_root(machine.data(), self.root)
        self.reserved = self.tree.core_mates(0)
        self.allocatable = self.tree.online - self.reserved

    def sequences(self, draw: Draw, *seeds: int) -> list[list[Step]]:
        """The sequences of these seeds, as kube-scheduler would send them."""
        drawn = [steps for seed in seeds for steps in draw.sequences(seed)]
        return [scheduled(steps, 1000 * len(self.allocatable)) for steps in drawn]

    def ours(self, *configurations: str, tree: Optional[Topology] = None) -> Opener:
        return lambda: contextlib.nullcontext(Ours(tree or self.tree, *configurations))

    def kubelet(self) -> Opener:
        return lambda: contextlib.nullcontext(Kubelet(self.machine, self.tree))

    def columns(self, *more: str) -> dict[str, Opener]:
        """Ours and the rivals that are there; ``more``: another configuration for all of ours."""
        found: dict[str, Opener] = {}
        for head, policy, options in (
            ("topology-aware", "topology-aware", {}),
            ("balloons", "balloons", {}),
            ("balanced", "balloons", {"allocatorTopologyBalancing": True}),
        ):
            text = rivals.configuration(policy, self.reserved, **options)
            found[head] = self.ours(text, *more)
            if policy in self.programs:
                found[f"nri {head}"] = partial(self._rival, policy, self.programs[policy], text)
        return found

    @contextlib.asynccontextmanager
    async def _rival(self, policy: str, program: Path, text: str) -> AsyncIterator[Placer]:
        with tempfile.TemporaryDirectory(prefix="crb-") as folder:
            async with rivals.running(policy, program, text, self.tree, self.root, Path(folder)) as placer:
                yield placer

    async def played(
        self, opener: Opener, sequences: Sequence[Sequence[Step]], whole: Optional[Topology] = None
    ) -> Tally:
        """One placer plays all sequences: a process of a rival takes a second to start."""
        tally = Tally()
        async with opener() as placer:
            for steps in sequences:
                await play(placer, self.tree, steps, tally, whole)
        return tally

    def best_found(self, sequences: Sequence[Sequence[Step]], goal: int) -> int:
        """How many owners were over more L3s than needed in the best of many searches; ``goal``: what is possible."""
        domains = self.tree.at("l3")
        sizes, largest = [len(d.cpus & self.allocatable) for d in domains], len(domains[0].cpus)
        return sum(search(steps, sizes, largest, goal) for steps in sequences)


def share(tally: Tally, field: str, of: str) -> str:
    count, all_of = getattr(tally, field), getattr(tally, of)
    return f"{count:>6} {100 * count / all_of if all_of else 0:>6.1f} %"


def show(title: str, tallies: Mapping[str, Tally], rows: Sequence[tuple[str, str, str]]) -> None:
    print(f"{title}\n  {'':<{LABEL}}" + "".join(f"{head:>{CELL + 3}}" for head in tallies))
    for label, field, of in rows:
        cells = "".join(f"{share(tally, field, of):>{CELL + 3}}" for tally in tallies.values())
        print(f"  {label:<{LABEL}}{cells}", flush=True)


async def owning(scene: Scene) -> None:
    """Containers that all own their CPUs, as exclusive ones."""
    sequences = scene.sequences(OWNING, SEED)
    openers = {
        **scene.columns(),
        "full cores": scene.ours(rivals.configuration("topology-aware", scene.reserved), FULL_CORES),
        "kubelet": scene.kubelet(),
    }
    tallies = {head: await scene.played(opener, sequences) for head, opener in openers.items()}
    first = tallies["topology-aware"]
    show(f"{scene.machine.name}: {first.created} creates of 1 to {OWNING.largest} CPUs", tallies, OWNER_ROWS)
    best = sum(scene.best_found([steps], first.l3s) for steps in sequences)
    print(f"  {'L3s: best found, knowing the whole sequence':<{LABEL}}{best:>8}")
    if scene.machine.clusters:
        untold = scene.machine.topology(tells_clusters=False)
        text = rivals.configuration("topology-aware", scene.reserved)
        tallies["not told"] = await scene.played(scene.ours(text, tree=untold), sequences, scene.tree)
        show("", tallies, CLUSTER_ROWS)
    print(flush=True)


async def seeds(scene: Scene) -> None:
    """The same with other seeds."""
    openers = {
        "topology-aware": scene.ours(rivals.configuration("topology-aware", scene.reserved)),
        "kubelet": scene.kubelet(),
    }
    print(scene.machine.name)
    for head, opener in openers.items():
        found = [await scene.played(opener, scene.sequences(OWNING, seed)) for seed in OTHER_SEEDS]
        for label, field, of in (OWNER_ROWS[0], OWNER_ROWS[4]):
            shares = [100 * getattr(tally, field) / getattr(tally, of) for tally in found]
            mean, most = sum(shares) / len(shares), max(shares)
            print(f"  {head}, {label}, {len(found)} other seeds: mean {mean:.1f} %, most {most:.1f} %")
    print(flush=True)


async def kinds(scene: Scene) -> None:
    """Exclusive, mixed and burstable containers of 1 to 64 CPUs."""
    sequences = scene.sequences(ALL_KINDS, SEED)
    openers = scene.columns()
    fine = "placement: {ladder: fine}"
    openers["fine"] = scene.ours(rivals.configuration("topology-aware", scene.reserved), fine)
    tallies = {head: await scene.played(opener, sequences) for head, opener in openers.items()}
    first = tallies["topology-aware"]
    title = f"{scene.machine.name}: {first.created} creates of 1 to {ALL_KINDS.largest} CPUs, {first.owners} owners"
    show(title, tallies, (*OWNER_ROWS, *CPUSET_ROWS))
    best = sum(scene.best_found([steps], first.l3s) for steps in sequences)
    print(f"  {'L3s of owners: best found, knowing the whole sequence':<{LABEL}}{best:>8}\n", flush=True)


async def limits(scene: Scene) -> None:
    """The plain install: containers that share CPUs, each in a cpuset by its limit, and none too many L3s for it."""
    sequences = scene.sequences(LIMITS, SEED, *OTHER_SEEDS)
    tallies = {
        ladder: await scene.played(scene.ours(f"placement: {{ladder: {ladder}}}"), sequences)
        for ladder in ("manual", "fine")
    }
    show(f"{scene.machine.name}: policy hygon, {tallies['fine'].created} creates", tallies, CPUSET_ROWS[:1])
    print(flush=True)


PARTS = {
    "owning": (owning, MACHINES),
    "seeds": (seeds, MACHINES),
    "kinds": (kinds, MACHINES[:4]),
    "limits": (limits, MACHINES[:4]),
}


async def main(parts: Sequence[str]) -> None:
    print(f"seed {SEED}; the first core is reserved")
    print("kubelet: its algorithm written anew (prefer-align-cpus-by-uncorecache), on the same sequences")
    programs: dict[str, Path] = {}
    try:
        built = find(*rivals.PROGRAMS.values())
        programs = {policy: built[name] for policy, name in rivals.PROGRAMS.items()}
    except Unavailable as reason:
        print(f"without nri-plugins: {reason}")
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        scenes = [Scene(machine, Path(folder), programs) for machine in MACHINES]
        for part in parts or PARTS:
            measure, machines = PARTS[part]
            print(f"\n{measure.__doc__}\n")
            for scene in scenes:
                if scene.machine in machines:
                    await measure(scene)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
