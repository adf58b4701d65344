"""nri-plugins' balloons beside ours: types of cores, kinds of memory, and containers that are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from bench.placement.judge import Given
from bench.placement.machines import Machine
from bench.placement.sequences import EXCLUSIVE, Create
from policies.machine.topology import CORE_TYPES, TopologyData
from tests.bench.test_balloons_peer import FLAT, both, chance_steps, program, sizes, step
from tests.machines import GIB

__all__ = ["program"]

#: The node without CPUs.
HBM = FLAT.nodes


@dataclass(frozen=True)
class Hybrid(Machine):
    """Of the cores of each L3 the first half is fast, the others are slow."""

    def data(self, tells_clusters: bool = True) -> TopologyData:
        data = super().data(tells_clusters)
        fast = frozenset(cpu.cpu for cpu in data.cpus if cpu.core % self.cores < self.cores // 2)
        slow = frozenset(cpu.cpu for cpu in data.cpus) - fast
        return replace(data, core_types=dict(zip(CORE_TYPES, (fast, slow))))


@dataclass(frozen=True)
class WithHbm(Machine):
    """A node without CPUs besides, with less memory than any other."""

    def data(self, tells_clusters: bool = True) -> TopologyData:
        data = super().data(tells_clusters)
        near = [*((*row, 25) for row in data.distance or ()), (*[25] * HBM, 10)]
        memory = {**data.memory, HBM: 16 * GIB}
        return replace(data, distance=tuple(near), memory=memory, has_memory=frozenset(memory))


HYBRID = Hybrid(**vars(FLAT))
WITH_HBM = WithHbm(**vars(FLAT))


def preferred(given: Mapping[int, Given], namespaces: Mapping[int, str]) -> int:
    """How many CPUs of balloons are of the type that these prefer."""
    of = HYBRID.data().core_types
    return sum(len(given[number].cpus & of[namespaces[number]]) for number in given)


@pytest.mark.parametrize("seed", range(3))
async def test_balloons_have_as_many_cores_of_the_type_that_they_prefer(
    program: Path, tmp_path: Path, seed: int
) -> None:
    types = [
        {"name": kind, "namespaces": [kind], "preferCoreType": kind, "preferNewBalloons": True}
        for kind in CORE_TYPES
    ]
    random, namespaces = Random(seed), dict[int, str]()
    async with both(program, tmp_path, HYBRID, types) as placers:
        for one in chance_steps(random, CORE_TYPES):
            if isinstance(one, Create):
                namespaces[one.number] = one.namespace
            for placer in placers:
                await step(placer, one)
            theirs, ours = (placer.given() for placer in placers)
            assert sizes(ours) == sizes(theirs), one
            assert preferred(ours, namespaces) >= preferred(theirs, namespaces), one


async def test_when_all_cores_of_a_type_are_taken_others_follow(program: Path, tmp_path: Path) -> None:
    fast = CORE_TYPES[0]
    types = [{"name": "a", "namespaces": ["a"], "preferCoreType": fast, "preferNewBalloons": True}]
    async with both(program, tmp_path, HYBRID, types) as placers:
        for number in range(9):
            for placer in placers:
                await step(placer, Create(number, EXCLUSIVE, 4, "a"))
        theirs, ours = (placer.given() for placer in placers)
    assert sizes(ours) == sizes(theirs)
    # The reserved CPU is a fast one.
    there = len(HYBRID.data().core_types[fast]) - 1
    assert preferred(ours, dict.fromkeys(ours, fast)) == there
    assert preferred(theirs, dict.fromkeys(theirs, fast)) <= there


async def test_memory_is_of_the_same_nodes(program: Path, tmp_path: Path) -> None:
    kinds = {"fast": ["HBM"], "plain": ["DRAM"], "both": ["DRAM", "HBM"]}
    types = [{"name": n, "namespaces": [n], "memoryTypes": kind} for n, kind in kinds.items()]
    async with both(program, tmp_path, WITH_HBM, types) as placers:
        tree = WITH_HBM.topology()
        for placer in placers:
            for number, name in enumerate(kinds):
                await step(placer, Create(number, EXCLUSIVE, 2, name))
        theirs, ours = (placer.given() for placer in placers)
    near = {number: tree.nodes_of(ours[number].cpus) for number in ours}
    assert ours[0].mems == theirs[0].mems == {HBM}
    assert (ours[1].mems, theirs[1].mems) == (near[1], tree.nodes_of(theirs[1].cpus))
    assert ours[2].mems == near[2] <= {*near[2], HBM}
    assert theirs[2].mems >= tree.nodes_of(theirs[2].cpus)


async def test_containers_to_preserve_are_told_nothing(program: Path, tmp_path: Path) -> None:
    condition = {"key": "pod/namespace", "operator": "In", "values": ["alone"]}
    types = [{"name": "all", "namespaces": ["*"], "preferNewBalloons": True}]
    more = {"preserve": {"matchExpressions": [condition]}}
    async with both(program, tmp_path, FLAT, types, **more) as (theirs, ours):
        for placer in (theirs, ours):
            for number, namespace in enumerate(("alone", "other", "alone")):
                await step(placer, Create(number, EXCLUSIVE, 2, namespace))
        everything = FLAT.topology().online
        assert [len(theirs.given()[number].cpus) for number in range(3)] == [
            len(everything),
            2,
            len(everything),
        ]
        # Ours has no place in its books for what it was not asked to place.
        assert [len(ours.given()[number].cpus) for number in range(3)] == [0, 2, 0]
