"""How well containers with CPUs of their own are placed: ``python -m bench.placement``.

Random sequences of creates and deletes on six machines, through the engine with the policy ``topology-aware``, and with a
balloon for each. Beside it, for the same sequences: what is possible at each create, given what the policy
itself had placed before (the exact minimum); the best of many searches that know the whole sequence; and what
others were measured to do with sequences of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Optional

from bench.placement_search import fewest, search
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Host
from policies.balloons.types import BalloonSettings, BalloonType
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import (
    NO_CONSTRAINT,
    Container,
    PlacementPreferences,
    PlacementRefused,
    Pod,
    Qos,
    Resources,
)
from policies.policy import Policy
from policies.registry import POLICIES
from policies.settings import EngineOptions, PlacementSettings
from tests.policies.kubelet import Row, Rows, take

SEQUENCES, OPERATIONS, DELETES, LARGEST = 12, 24, 0.35, 16
#: Gives 201 creates, as many as the measurement of the others had.
SEED = 3
#: The load differs much between seeds: how many fit, and with it how many L3s there must be.
OTHER_SEEDS = range(100, 110)
GIB = 1 << 30
#: A balloon for each container, and the seeds of the sequences under ``balloons``.
ONE_EACH = BalloonType("one", namespaces=("default",), prefer_new_balloons=True)
BALLOON_SEEDS = (SEED, 100)


@dataclass(frozen=True)
class Machine:
    """One of the six, and the others' figures on it.

    ``others``: per cent of containers over more L3s than needed; measured with Intel cri-resource-manager
    be3bf91f, policies topology-aware, balloons, and balloons with AllocatorTopologyBalancing; () = not measured.
    ``clusters``: of cores, in each L3; 0 = none.
    """

    name: str
    sockets: int
    nodes: int
    l3s: int
    cores: int
    others: tuple[int, ...] = ()
    threads: int = 2
    clusters: int = 0

    def topology(self, tells_clusters: bool = True) -> Topology:
        cpus = []
        count = self.l3s * self.cores
        for core in range(count):
            l3 = core // self.cores
            node, socket = l3 * self.nodes // self.l3s, l3 * self.sockets // self.l3s
            cluster = core * self.clusters // self.cores if self.clusters and tells_clusters else None
            cpus += [
                Cpu(core + t * count, core, l3, node, node, socket, cluster) for t in range(self.threads)
            ]
        return Topology(TopologyData(tuple(cpus), memory=dict.fromkeys(range(self.nodes), 64 * GIB)))


MACHINES = (
    Machine("2 sockets x 4 nodes x 2 CCXs of 4 cores", 2, 8, 16, 4, (11, 57, 14)),
    Machine("1 socket, NPS1, 8 CCXs of 8 cores", 1, 1, 8, 8, (31, 47, 64)),
    Machine("2 sockets, NPS1, 8 CCXs of 4 cores", 2, 2, 16, 4, (28, 61, 47)),
    Machine("2 sockets, NPS4, node = CCX of 8 cores", 2, 8, 8, 8, (7, 47, 5)),
    Machine("Kunpeng 920, 2 sockets of 48 cores", 2, 4, 4, 24, threads=1, clusters=6),
    Machine("Kunpeng 920, 2 sockets of 64 cores", 2, 4, 4, 32, threads=1, clusters=8),
)


@dataclass
class Tally:
    """How many containers of how many were placed worse than needed, in each way.

    ``l3s``, ``nodes``: over more than its CPUs need on an empty machine; ``_avoidable``: more than were
    needed with what was free. ``split``: shares a core with another one's. ``mems``: more than its CPUs'.
    ``shared``: owns no CPUs, since too few were free. ``clusters``: of cores, as ``l3s``; ``beside``: has a part of a
    cluster of which another container has a part as well.
    """

    created: int = 0
    shared: int = 0
    l3s: int = 0
    l3s_avoidable: int = 0
    nodes: int = 0
    nodes_avoidable: int = 0
    split: int = 0
    mems: int = 0
    clusters: int = 0
    clusters_avoidable: int = 0
    beside: int = 0


def sequence(random: Random) -> list[tuple[str, int]]:
    """Creates with their CPUs, and deletes with the number of the container that goes."""
    steps: list[tuple[str, int]] = []
    live: list[int] = []
    for _ in range(OPERATIONS):
        if live and random.random() < DELETES:
            steps.append(("delete", live.pop(random.randrange(len(live)))))
        else:
            live.append(sum(kind == "create" for kind, _ in steps))
            steps.append(("create", random.randint(1, LARGEST)))
    return steps


def sequences(seed: int) -> list[list[tuple[str, int]]]:
    random = Random(seed)
    return [sequence(random) for _ in range(SEQUENCES)]


def container(number: int, count: int, smt: str) -> Container:
    return Container(
        pod=Pod(id=f"sandbox-{number}", uid=f"uid-{number}", name=f"pod-{number}", namespace="default"),
        name="app",
        qos=Qos.GUARANTEED,
        resources=Resources(count * 1000, count * 1000, GIB // 4, GIB // 4),
        preferences=PlacementPreferences(ownership="exclusive", smt=smt),
    )


def empty_engine(tree: Topology, policy: Policy) -> Engine:
    """A machine of which CPU 0's core is reserved."""
    host = Host(tree, tree.online, tree.memory_nodes, tree.online, tree.core_mates(0))
    return Engine(host, policy, EngineOptions())


def creates_of(engine: Engine, steps: Sequence[tuple[str, int]]) -> Iterator[tuple[float, int, int]]:
    """The creates of a sequence: the time, the container's number, its CPUs. What is deleted between them is removed."""
    made = 0
    for now, (kind, value) in enumerate(steps):
        if kind == "delete":
            engine.remove(f"c{value}")
        else:
            yield float(now), made, value
            made += 1


def run(
    tree: Topology,
    steps: Sequence[tuple[str, int]],
    smt: str,
    tally: Tally,
    whole: Optional[Topology] = None,
    balloons: Optional[BalloonType] = None,
) -> None:
    """One sequence on an empty machine, of which CPU 0's core is reserved. ``whole``: what is judged by, if not ``tree``.

    ``balloons``: under ``balloons``, each container in one of this type, rather than under ``topology-aware``.
    """
    kinds = BalloonSettings(() if balloons is None else (balloons,))
    settings = PlacementSettings(ownership="exclusive", balloons=kinds)
    policy = POLICIES["topology-aware" if balloons is None else "balloons"](tree, settings)
    engine = empty_engine(tree, policy)
    for now_s, number, value in creates_of(engine, steps):
        free = tree.online - engine.node.exclusive - tree.core_mates(0)
        try:
            admission = engine.admit(container(number, value, smt), NO_CONSTRAINT, now_s)
        except PlacementRefused:
            tally.shared += 1
            continue
        engine.bind(admission.ticket, f"c{number}", now_s)
        place = engine.grants[f"c{number}"].placement
        tally.created += 1
        if not place.exclusive <= free or len(place.exclusive) < value:
            tally.shared += 1
            continue
        judge(whole or tree, free, place.exclusive, place.mems, value, tally)


def clusters_of(tree: Topology) -> list[frozenset[int]]:
    """The clusters of cores of a machine; none where it has none."""
    found: dict[tuple[int, Optional[int]], set[int]] = {}
    for c in tree.cpus.values():
        found.setdefault((c.socket, c.cluster), set()).add(c.cpu)
    return (
        [] if any(cluster is None for _, cluster in found) else [frozenset(group) for group in found.values()]
    )


def judge(
    tree: Topology, free: frozenset[int], cpus: frozenset[int], mems: frozenset[int], count: int, tally: Tally
) -> None:
    owned = len(cpus)
    for level in ("l3", "numa"):
        domains = tree.at(level)
        used = sum(not d.cpus.isdisjoint(cpus) for d in domains)
        excess = used > -(-count // len(domains[0].cpus))
        avoidable = used > fewest([len(d.cpus & free) for d in domains], owned)
        if level == "l3":
            tally.l3s, tally.l3s_avoidable = tally.l3s + excess, tally.l3s_avoidable + avoidable
        else:
            tally.nodes, tally.nodes_avoidable = tally.nodes + excess, tally.nodes_avoidable + avoidable
    clusters = clusters_of(tree)
    mine = [cluster for cluster in clusters if not cluster.isdisjoint(cpus)]
    tally.clusters += bool(clusters) and len(mine) > -(-count // len(clusters[0]))
    tally.clusters_avoidable += len(mine) > fewest([len(c & free) for c in clusters], owned)
    others = tree.online - free - tree.core_mates(0)
    tally.beside += any(not cluster.isdisjoint(others) for cluster in mine)
    tally.split += any(not tree.core_mates(cpu).isdisjoint(others) for cpu in cpus)
    tally.mems += mems > tree.nodes_of(cpus)


def run_kubelet(machine: Machine, all_steps: Sequence[Sequence[tuple[str, int]]]) -> Tally:
    """The same sequences under the algorithm of kubelet's static CPU manager with L3 alignment, as tests know it."""
    tree, tally = machine.topology(), Tally()
    rows = tuple(Row(c.cpu, c.core, c.l3 or 0, c.numa, c.socket) for c in tree.cpus.values())
    view = Rows(rows, len(tree.cores), machine.l3s, machine.nodes, machine.sockets)
    for steps in all_steps:
        free = tree.online - tree.core_mates(0)
        live: list[frozenset[int]] = []
        for kind, value in steps:
            if kind == "delete":
                free |= live[value]
                live[value] = NO_CPUS
                continue
            given = take(view, free, value)
            tally.created += 1
            live.append(given or NO_CPUS)
            if given is None:
                tally.shared += 1
            else:
                judge(tree, free, given, tree.nodes_of(given), value, tally)
                free -= given
    return tally


def best_known(tree: Topology, steps: Sequence[tuple[str, int]], goal: int) -> int:
    free = tree.online - tree.core_mates(0)
    domains = tree.at("l3")
    return search(steps, [len(d.cpus & free) for d in domains], len(domains[0].cpus), goal)


def share(count: int, tally: Tally) -> str:
    return f"{100 * count / tally.created:.1f} %"


def show(machine: Machine) -> None:
    """One machine: three columns, and what is possible and others reach beneath."""
    tree, all_steps = machine.topology(), sequences(SEED)
    asked, whole, kubelet = Tally(), Tally(), run_kubelet(machine, all_steps)
    optimum = 0
    for steps in all_steps:
        before = asked.l3s
        run(tree, steps, "", asked)
        run(tree, steps, "full-core", whole)
        optimum += best_known(tree, steps, asked.l3s - before)
    print(f"{machine.name}\n  {'':<46}{'as asked':>13}{'full cores':>13}{'kubelet':>13}")
    for title, field in (*ROWS, *(CLUSTER_ROWS if machine.clusters else ())):
        cells = [f"{getattr(t, field):>5} {share(getattr(t, field), t):>7}" for t in (asked, whole, kubelet)]
        print(f"  {title:<46}{''.join(cells)}")
    print(f"  {'L3s: best found, knowing the whole sequence':<46}{optimum:>5} {share(optimum, asked):>7}")
    for name, percent in zip(INTEL, machine.others):
        print(f"  {'L3s: ' + name:<46}{percent:>11} %")
    if machine.clusters:
        untold = Tally()
        for steps in all_steps:
            run(machine.topology(tells_clusters=False), steps, "", untold, tree)
        for title, field in CLUSTER_ROWS:
            count = getattr(untold, field)
            print(f"  {title + ', not told':<46}{count:>5} {share(count, untold):>7}")
    shares, theirs, split = [], [], []
    for seed in OTHER_SEEDS:
        tally = Tally()
        for steps in sequences(seed):
            run(tree, steps, "", tally)
        other = run_kubelet(machine, sequences(seed))
        shares.append(100 * tally.l3s / tally.created)
        split.append(100 * tally.split / tally.created)
        theirs.append(100 * other.l3s / other.created)
    for name, found in (("L3s", shares), ("L3s: kubelet", theirs), ("shared cores", split)):
        title = f"{name}, {len(found)} other seeds: mean, most"
        print(f"  {title:<46}{sum(found) / len(found):>11.1f} % {max(found):.1f} %")
    print()


def show_balloons(machine: Machine) -> None:
    """One machine, with containers each in a balloon: packed, and where most CPUs are free."""
    tree = machine.topology()
    print(f"{machine.name}, balloons\n  {'':<46}{'packed':>13}{'balanced':>13}")
    tallies = Tally(), Tally()
    for seed in BALLOON_SEEDS:
        for steps in sequences(seed):
            for tally, is_balanced in zip(tallies, (False, True)):
                run(
                    tree,
                    steps,
                    "",
                    tally,
                    balloons=replace(ONE_EACH, allocator_topology_balancing=is_balanced),
                )
    for title, field in ROWS:
        cells = [f"{getattr(t, field):>5} {share(getattr(t, field), t):>7}" for t in tallies]
        print(f"  {title:<46}{''.join(cells)}")
    print()


def show_by_limit() -> None:
    """The plain install: containers that share CPUs, each in a cpuset by its limit, and none too many L3s for it."""
    print("policy hygon, sized by limit; a request of half the limit; all seeds\n")
    for machine in MACHINES[:4]:
        cells = [by_limit(machine, ladder) for ladder in ("manual", "fine")]
        print(f"{machine.name}\n  {'':<46}{'manual':>13}{'fine':>13}")
        print(f"  {'creates':<46}{cells[0].created:>13}{cells[1].created:>13}")
        print(f"  {ROWS[0][0]:<46}{''.join(f'{t.l3s:>5} {share(t.l3s, t):>7}' for t in cells)}\n")


def by_limit(machine: Machine, ladder: str) -> Tally:
    tree, tally = machine.topology(), Tally()
    domains = tree.at("l3")
    for steps in (steps for seed in (SEED, *OTHER_SEEDS) for steps in sequences(seed)):
        engine = empty_engine(tree, POLICIES["hygon"](tree, PlacementSettings(ladder=ladder)))
        for now_s, number, value in creates_of(engine, steps):
            sharing = replace(
                container(number, value, ""),
                qos=Qos.BURSTABLE,
                resources=Resources(value * 500, value * 1000, GIB // 4, GIB // 4),
                preferences=PlacementPreferences(),
            )
            engine.bind(engine.admit(sharing, NO_CONSTRAINT, now_s).ticket, f"c{number}", now_s)
            cpus = engine.grants[f"c{number}"].placement.cpus
            used = sum(not d.cpus.isdisjoint(cpus) for d in domains)
            tally.created += 1
            tally.l3s += used > -(-value // len(domains[0].cpus))
    return tally


def main() -> None:
    creates = sum(kind == "create" for steps in sequences(SEED) for kind, _ in steps)
    print(
        f"{SEQUENCES} random sequences of {OPERATIONS} operations, {creates} creates of 1 to {LARGEST} CPUs; "
        f"the first core reserved; seed {SEED}"
    )
    print("Intel: measured, cri-resource-manager be3bf91f, on other sequences of the same kind")
    print("kubelet: its algorithm written anew (prefer-align-cpus-by-uncorecache), on the same sequences\n")
    for machine in MACHINES:
        show(machine)
    for machine in MACHINES[:4]:
        show_balloons(machine)
    show_by_limit()


INTEL = ("Intel topology-aware", "Intel balloons", "Intel balloons, TopologyBalancing")

ROWS = (
    ("over more L3s than on an empty machine", "l3s"),
    ("over more L3s than what was free needs", "l3s_avoidable"),
    ("over more NUMA nodes than on an empty machine", "nodes"),
    ("over more NUMA nodes than what was free needs", "nodes_avoidable"),
    ("on a core together with another container", "split"),
    ("mems wider than the NUMA nodes of its CPUs", "mems"),
    ("no CPUs of its own: too few were free", "shared"),
)

CLUSTER_ROWS = (
    ("over more clusters than its CPUs need", "clusters"),
    ("over more clusters than what was free needs", "clusters_avoidable"),
    ("in a cluster together with another container", "beside"),
)

if __name__ == "__main__":
    main()
