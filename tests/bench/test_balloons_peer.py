"""nri-plugins' balloons itself beside ours: the same configuration, the same machine, the same containers.

Which CPUs a balloon has may differ: here it begins inside one L3. How many it has and which containers are in it do not;
where they do all the same, a test says so (docs/policies.md has the list).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.placement import rivals
from bench.placement.judge import Given
from bench.placement.machines import Machine
from bench.placement.placers import Ours, Placer
from bench.placement.sequences import BURSTABLE, EXCLUSIVE, Create, Delete, Step
from policies.machine.cpus import format_cpus
from tests.peers.programs import Unavailable, find

#: Without threads a whole core is a CPU; with them, types that are spread grow by CPUs as well.
FLAT = Machine("2 sockets x 4 nodes x 2 CCXs of 4 cores, no threads", 2, 8, 16, 4, threads=1)
THREADS = Machine("2 sockets x 2 nodes x 2 CCXs of 2 cores", 2, 4, 8, 2)
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 40))]
STEPS = 16

Types = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    try:
        # It takes two minutes on two cores.
        return find("nri-balloons", may_build=request.config.getoption("--long"))["nri-balloons"]
    except Unavailable as reason:
        pytest.skip(
            f"The balloons are nri-plugins': {reason}. make test-long and make bench-placement build it."
        )


@asynccontextmanager
async def both(
    program: Path, folder: Path, machine: Machine, types: Types, loads: Types = (), **more: Any
) -> AsyncIterator[tuple[rivals.Rival, Ours]]:
    """Theirs and ours on an empty machine, with one text of configuration. ``more``: other keys of it."""
    tree = machine.topology()
    spec = {
        "reservedResources": {"cpu": f"cpuset:{format_cpus(tree.core_mates(0))}"},
        "loadClasses": loads,
        "balloonTypes": types,
        **more,
    }
    head = {"apiVersion": "config.nri/v1alpha1", "kind": "BalloonsPolicy", "metadata": {"name": "default"}}
    text = json.dumps({**head, "spec": spec})
    root, own = folder / "root", folder / "own"
    own.mkdir()
    rivals.write_root(machine.data(), root)
    async with rivals.running("balloons", program, text, tree, root, own) as theirs:
        yield theirs, Ours(tree, text)


async def step(placer: Placer, one: Step) -> None:
    if isinstance(one, Create):
        await placer.create(one)
    else:
        await placer.remove(one.number)
    if isinstance(placer, Ours):
        placer.wait(120)


def sizes(given: Mapping[int, Given]) -> dict[tuple[int, ...], int]:
    """The CPUs of each balloon, by the containers in it."""
    balloons: dict[frozenset[int], list[int]] = {}
    for number in sorted(given):
        balloons.setdefault(given[number].cpus, []).append(number)
    return {tuple(numbers): len(cpus) for cpus, numbers in balloons.items()}


def chance_steps(random: Random, namespaces: Sequence[str]) -> list[Step]:
    """Creates and deletes that leave CPUs for all."""
    steps: list[Step] = []
    live: list[int] = []
    for number in range(STEPS):
        if live and random.random() < 0.35:
            steps.append(Delete(live.pop(random.randrange(len(live)))))
        else:
            live.append(number)
            steps.append(Create(number, EXCLUSIVE, random.randint(1, 4), random.choice(namespaces)))
    return steps


# ---------------------------------------------------------------------- components


def chance_composites(random: Random) -> list[dict[str, Any]]:
    plain = [{"name": n, "namespaces": [n], "preferNewBalloons": random.random() < 0.5} for n in "ab"]
    either = {"name": "c", "namespaces": ["c"], "preferNewBalloons": random.random() < 0.5}
    either["components"] = [{"balloonType": n} for n in random.choice(("ab", "ba", "aab", "b"))]
    either["componentCreation"] = random.choice(("all", "balance-balloons"))
    outer = {
        "name": "d",
        "namespaces": ["d"],
        "components": [{"balloonType": n} for n in random.choice(("ca", "bc"))],
    }
    return [*plain, either, outer]


@pytest.mark.parametrize("seed", SEEDS)
async def test_composite_balloons_have_the_same_containers_and_as_many_cpus_once_they_are_sized(
    program: Path, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    types = chance_composites(random)
    async with both(program, tmp_path, FLAT, types) as placers:
        requests: dict[int, int] = {}
        for one in chance_steps(random, "abcd"):
            had = next((numbers for numbers in sizes(placers[0].given()) if one.number in numbers), ())
            for placer in placers:
                await step(placer, one)
            requests.update({one.number: one.cpus} if isinstance(one, Create) else {})
            theirs, ours = (sizes(placer.given()) for placer in placers)
            assert ours.keys() == theirs.keys(), (one, types)
            for numbers, size in ours.items():
                # Theirs stays as it is while it holds what is requested, and is sized anew when a container goes.
                assert sum(requests[number] for number in numbers) <= theirs[numbers] <= size
                if set(numbers) < set(had):
                    assert theirs[numbers] == size, (one, types)


async def test_balanced_balloons_are_of_the_same_components(program: Path, tmp_path: Path) -> None:
    # The size of a balloon tells its component.
    components = {"two": 2, "three": 3, "five": 5}
    types = [
        {"name": "one", "namespaces": ["one"], "preferNewBalloons": True, "componentCreation": "balance-balloons",
         "components": [{"balloonType": name} for name in components]},
        *({"name": name, "namespaces": [name], "preferNewBalloons": True, "minCPUs": size}
          for name, size in components.items()),
    ]  # fmt: skip
    random = Random(1)
    live: list[int] = []
    async with both(program, tmp_path, FLAT, types) as placers:
        for number in range(24):
            one: Step = Create(number, EXCLUSIVE, 1, random.choice(("one", "one", "one", *components)))
            if len(live) > 4 and random.random() < 0.5:
                one = Delete(live.pop(random.randrange(len(live))))
            else:
                live.append(number)
            for placer in placers:
                await step(placer, one)
            theirs, ours = (sizes(placer.given()) for placer in placers)
            assert ours == theirs, one


async def test_what_differs_of_composite_balloons(program: Path, tmp_path: Path) -> None:
    types = [
        {"name": "a", "minCPUs": 2},
        {"name": "b"},
        {"name": "both", "namespaces": ["both"], "components": [{"balloonType": "a"}, {"balloonType": "b"}]},
        {"name": "least", "namespaces": ["least"], "minCPUs": 6, "components": [{"balloonType": "b"}]},
        {
            "name": "twice",
            "namespaces": ["twice"],
            "components": [{"balloonType": "b"}, {"balloonType": "b"}],
        },
    ]
    steps = [
        # 1. Where the MinCPUs of one part hold what is requested, the others have no CPU there.
        Create(0, EXCLUSIVE, 2, "both"),
        # 2. MinCPUs of the whole do not count there once it is sized anew.
        Create(1, EXCLUSIVE, 8, "least"),
        Create(2, EXCLUSIVE, 1, "least"),
        Delete(1),
        # 3. Parts of a balloon without requests have no CPUs there, and its containers run on all.
        Create(3, BURSTABLE, 0, "twice"),
    ]
    async with both(program, tmp_path, FLAT, types) as placers:
        for one in steps:
            for placer in placers:
                await step(placer, one)
        theirs, ours = (sizes(placer.given()) for placer in placers)
    assert theirs == {(0,): 2, (2,): 1, (3,): len(FLAT.topology().online)}
    assert ours == {(0,): 3, (2,): 6, (3,): 2}


# ---------------------------------------------------------------------- loads


def chance_loads(random: Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    heavy = {
        "name": "heavy",
        "level": random.choice(("core", "l2cache")),
        "overloadsLevelInBalloon": random.random() < 0.5,
    }
    types = [
        {"name": name, "namespaces": [name], "preferNewBalloons": True, "preferSpreadOnPhysicalCores": True}
        for name in "abc"
    ]
    return [{**kind, "loads": ["heavy"]} if kind["name"] != "c" else kind for kind in types], [heavy]


def beside(
    before: Mapping[int, Given], after: Mapping[int, Given], loading: set[int], new: int
) -> tuple[int, int]:
    """Of a new balloon with the load: its CPUs on cores that others load, and as many as there must be."""
    tree = THREADS.topology()
    loaded = {tree.core_of[cpu] for number in loading & before.keys() for cpu in before[number].cpus}
    taken = tree.core_mates(0).union(*[given.cpus for given in before.values()])
    free = [cpu for cpu in tree.online - taken if tree.core_of[cpu] not in loaded]
    own = after[new].cpus
    return sum(tree.core_of[cpu] in loaded for cpu in own), max(0, len(own) - len(free))


@pytest.mark.parametrize("seed", SEEDS)
async def test_balloons_of_a_load_share_no_core_that_they_need_not(
    program: Path, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    types, loads = chance_loads(random)
    loading: set[int] = set()
    requests: dict[int, int] = {}
    async with both(program, tmp_path, THREADS, types, loads) as placers:
        room = 2 * len(THREADS.topology().cores) - 2
        for one in chance_steps(random, "abc"):
            if isinstance(one, Create):
                if sum(requests.values()) + one.cpus > room:
                    break
                requests[one.number] = one.cpus
            else:
                del requests[one.number]
            befores = [dict(placer.given()) for placer in placers]
            for placer in placers:
                await step(placer, one)
            theirs, ours = (placer.given() for placer in placers)
            assert sizes(ours) == sizes(theirs), (one, loads)
            if isinstance(one, Create) and one.namespace != "c":
                (their_shared, their_least), (shared, least) = (
                    beside(before, placer.given(), loading, one.number)
                    for before, placer in zip(befores, placers)
                )
                assert shared == least and their_shared >= their_least, (one, loads)
                loading.add(one.number)


async def test_what_differs_of_loads(program: Path, tmp_path: Path) -> None:
    spread = {"preferSpreadOnPhysicalCores": True, "preferNewBalloons": True}
    types = [
        *({"name": n, "namespaces": [n], "loads": [n], **spread} for n in "ab"),
        {"name": "packed", "namespaces": ["packed"], "loads": ["c"], "preferNewBalloons": True},
        {"name": "whole", "namespaces": ["whole"], "components": [{"balloonType": "packed"}]},
    ]
    loads = [{"name": n, "level": "core", "overloadsLevelInBalloon": n != "c"} for n in "abc"]
    tree = THREADS.topology()
    half = len(tree.cores) // 2
    common = []
    async with both(program, tmp_path, THREADS, types, loads) as placers:
        for placer in placers:
            cores = []
            for number, (namespace, cpus) in enumerate(
                (("whole", 3), ("packed", 1), ("a", half), ("b", half))
            ):
                await placer.create(Create(number, EXCLUSIVE, cpus, namespace))
                cores.append({tree.core_of[cpu] for cpu in placer.given()[number].cpus})
            common.append((len(cores[0] & cores[1]), len(cores[2] & cores[3])))
    # 1. There others do not see the loads of parts.  2. Two classes of one level avoid each other there, and here may meet.
    assert common == [(1, 0), (0, half)]
