"""Our driver of CPUs beside Kubernetes' own, ``dra.cpu``: ``python -m bench.dra [PART]...`` (root; builds its peers).

A real control plane, and nodes on the same described machine (``bench/dra/nodes.py``); parts:

- ``l3s``: over how many L3s the CPUs of claims are, on a fresh node and while claims come and go, the same for each;
- ``time``: from a pod's create to its container's start, a claim of 4 CPUs from a template, in turns with pods without;
- ``writes``: what each driver asks of the API server, by its audit log: at its start, for a pod, in an idle minute.

``DRA_ROUNDS``: of pods, of each kind one a round; ``DRA_CHURN``, ``DRA_SEED``: rounds of the claims that come and go, and
their seed. What each claim was given is said at once: on a busy machine ``l3s`` takes long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Optional

from bench.dra.audit import Call, counted, is_of_claims, shown, step_times
from bench.dra.nodes import Cluster, Way, cluster, of_cpus, of_cpus_in_one, of_groups, of_ours
from bench.dra.sequences import PROBES, SIZES, Come, Go, Tally, l3s, needed, sequence
from bench.figures import machine_line, print_row
from bench.turns import of_each, rotated, spread
from cluster.api.names import AGENT
from tests.kubelet.real.dra.node import ClaimNode
from tests.kubelet.real.dra.reference import REFERENCE, ReferenceNode
from tests.kubelet.real.machine import MACHINE
from tests.machines import machine
from tests.peers.programs import CLUSTER, find

PARTS = ("l3s", "time", "writes")
ROUNDS = int(os.environ.get("DRA_ROUNDS", "24"))
SEED = int(os.environ.get("DRA_SEED", "7"))
CHURN_ROUNDS = int(os.environ.get("DRA_CHURN", "3"))
#: How much of the machine claims that come and go fill, and what is left when some have gone.
LOAD, LEAVE = 0.75, 0.5
CLAIM_CPUS = 4
IDLE_S = 60.0
#: A driver that has published says no more of its start after so long.
START_S = 15.0
OURS, THEIRS = "ours", REFERENCE
NO_CLAIM = "no claim, {}'s node"
DESCRIBED = machine(MACHINE)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dra", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = parser.parse_args().parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part is {', '.join(unknown)}")
    print(f"{machine_line()}; load {os.getloadavg()[0]:.0f}", flush=True)
    programs = find(*CLUSTER, "dracpu")
    async with cluster(programs) as made:
        if {"time", "writes"} & set(parts):
            began_s = time.time()
            async with made.reference("reference") as theirs, made.ours() as ours:
                await asyncio.sleep(START_S)
                start = began_s, time.time()
                spent = await times(made, ours, theirs)
                if "writes" in parts:
                    await counts(made, ours, start, spent)
        if "l3s" in parts:
            await places(made)


# --- over how many L3s


async def places(made: Cluster) -> None:
    """Each way on a node of its own. The driver takes the cores of one socket that have one id for one core, which the
    described machine's have in its dies: it is looked at with ids of their own as well."""
    async with contextlib.AsyncExitStack() as stack:

        async def node(name: str, *options: str, own_core_ids: bool = True) -> ReferenceNode:
            return await stack.enter_async_context(made.reference(name, *options, own_core_ids=own_core_ids))

        by_cpu = "--cpu-device-mode=individual"
        ways = {
            OURS: Way(OURS, await stack.enter_async_context(made.ours()), of_ours),
            f"{THEIRS}, groups": Way("groups", await node("groups"), of_groups),
            f"{THEIRS}, groups, core ids by die": Way(
                "dies", await node("dies", own_core_ids=False), of_groups
            ),
            f"{THEIRS}, CPUs": Way("cpus", await node("cpus", by_cpu), of_cpus),
            f"{THEIRS}, CPUs, one `cacheL3ID`": Way("in-one", await node("in-one", by_cpu), of_cpus_in_one),
        }
        found = dict(zip(ways, await asyncio.gather(*map(churned, ways.values()))))
    print("\nClaims with no more L3s than they need; with more; refused\n")
    print_row("claims", "L3s needed", *found)
    print_row(*["---"] * (2 + len(found)))
    for when, cpus in found[OURS]:
        cells = (tallies[when, cpus].cell(needed(cpus, DESCRIBED)) for tallies in found.values())
        print_row(f"{cpus} CPUs, {when}", str(needed(cpus, DESCRIBED)), *cells)


#: When claims came, and their CPUs.
Kind = tuple[str, int]


async def churned(way: Way) -> dict[Kind, Tally]:
    """What claims were given, by when they came and their CPUs."""
    tallies: dict[Kind, Tally] = {("fresh", cpus): Tally() for cpus in PROBES}
    tallies |= {("fragmented", cpus): Tally() for cpus in PROBES}
    tallies |= {("come and go", cpus): Tally() for cpus in sorted(set(SIZES))}
    await probe(way, "fresh", tallies)
    live: list[str] = []
    for steps in sequence(SEED, CHURN_ROUNDS, len(DESCRIBED.cpus), LOAD, LEAVE):
        gone = [f"{way.name}-{step.name}" for step in steps if isinstance(step, Go)]
        await way.end(*(name for name in gone if name in live))
        live = [name for name in live if name not in gone]
        for step in steps:
            if isinstance(step, Come):
                name = f"{way.name}-{step.name}"
                given = await way.given(name, step.cpus)
                tallies["come and go", step.cpus].given.append(counted_l3s(name, given, step.cpus))
                live += [name] if given is not None else []
        await probe(way, "fragmented", tallies)
    await way.end(*live)
    return tallies


async def probe(way: Way, when: str, tallies: dict[Kind, Tally]) -> None:
    """Claims that come and go one by one: each meets the same."""
    for cpus in PROBES:
        name = f"{way.name}-probe"
        given = await way.given(name, cpus)
        tallies[when, cpus].given.append(counted_l3s(name, given, cpus))
        if given is not None:
            await way.end(name)


def counted_l3s(name: str, given: Optional[frozenset[int]], cpus: int) -> Optional[int]:
    if given is not None:
        assert len(given) == cpus, f"{cpus} CPUs were claimed, and {sorted(given)} are given"
    count = None if given is None else l3s(given, DESCRIBED)
    said = "refused" if count is None else f"L3s: {count}, needed: {needed(cpus, DESCRIBED)}"
    print(f"{name}: {cpus} CPUs, {said}", file=sys.stderr, flush=True)
    return count


# --- how soon


async def times(made: Cluster, ours: ClaimNode, theirs: ReferenceNode) -> tuple[float, float]:
    """Prints them; the moments before and after."""
    ways = [
        Way(THEIRS, theirs, of_groups),
        Way(OURS, ours, of_ours),
        Way(NO_CLAIM.format(THEIRS), theirs),
        Way(NO_CLAIM.format(OURS), ours),
    ]
    for number, way in enumerate(ways):
        await timed(way, f"first-{number}")
    began_s = time.time()
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    pods: dict[str, list[str]] = {way.name: [] for way in ways}
    created: dict[str, tuple[float, float]] = {}
    for number in range(ROUNDS):
        for way in rotated(ways, number):
            name = f"pod-{ways.index(way)}-{number}"
            created[name] = await timed(way, name)
            pods[way.name].append(name)
            seconds[way.name].append(created[name][1] - created[name][0])
    ended_s = time.time()
    print(f"\nFrom create to start, {ROUNDS} pods each in turns, s: median (quartiles)\n")
    print_row("pods", "s", "least")
    print_row(*["---"] * 3)
    for way in ways:
        print_row(way.name, f"{spread(seconds[way.name]):.3f}", f"{min(seconds[way.name]):.3f}")
    for one, other in ((OURS, THEIRS), (OURS, NO_CLAIM.format(OURS)), (THEIRS, NO_CLAIM.format(THEIRS))):
        print(f"{one} / {other}: {of_each(seconds[one], seconds[other]):.2f}")
    steps(made.calls(), pods, created)
    return began_s, ended_s


async def timed(way: Way, name: str) -> tuple[float, float]:
    found = await way.started_s(name, CLAIM_CPUS)
    await way.end(name)
    return found


def steps(calls: Sequence[Call], pods: dict[str, list[str]], created: dict[str, tuple[float, float]]) -> None:
    """Where the time goes, as far as the API server sees it."""
    names = ("claim allocated", "pod bound", "claim read on the node", "container started")
    print("\nAfter the create, ms at the median\n")
    print_row("pods", *names)
    print_row(*["---"] * (1 + len(names)))
    for way, of_way in pods.items():
        found = [(*step_times(calls, pod, created[pod][0]), created[pod][1]) for pod in of_way]
        columns = [
            [row[column] - created[pod][0] for row, pod in zip(found, of_way) if row[column]]
            for column in range(len(names))
        ]
        print_row(way, *(f"{spread(each).median * 1000:.0f}" if each else "" for each in columns))


# --- what it asks of the API server


async def counts(
    made: Cluster, ours: ClaimNode, start: tuple[float, float], spent: tuple[float, float]
) -> None:
    began_s = time.time()
    await asyncio.sleep(IDLE_S)
    calls = made.calls()
    windows = {
        "start": start,
        f"{ROUNDS} pods with claims, one after the other": spent,
        f"idle, {IDLE_S:.0f} s": (began_s, time.time()),
    }
    drivers = {
        THEIRS: ("dracpu", REFERENCE),
        OURS: (AGENT, f"system:node:{ours.name}"),
    }
    print("\nCalls of the API server; all else is what our agent tells of the node, each half second here\n")
    print_row("driver", "when", "of slices and claims: writes", "reads", "all else: writes")
    print_row(*["---"] * 5)
    for name, (program, account) in drivers.items():
        for when, (since_s, until_s) in windows.items():
            found = counted(calls, program, account, since_s, until_s)
            of_claims = {what: count for what, count in found.items() if is_of_claims(what)}
            others = {what: count for what, count in found.items() if what not in of_claims}
            print_row(name, when, shown(of_claims, True), shown(of_claims, False), shown(others, True))


if __name__ == "__main__":
    asyncio.run(main())
