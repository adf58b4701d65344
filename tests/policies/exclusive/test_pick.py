"""Which CPUs a container owns, on named machines with named parts of them in use."""

from __future__ import annotations

from itertools import combinations, islice
from typing import Optional

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.exclusive.cell_search import NODE_SETS, node_sets
from policies.exclusive.cells import grounds_of, look, more_split_cores, take_threads
from policies.exclusive.pick import Claim, Pick, pick
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData
from tests import machines
from tests.scenes import topology


def small(nodes: int = 2, l3s: int = 2, cores: int = 2, threads: int = 2, gone: str = "") -> Topology:
    """CPU numbers go by node, L3, core, thread; with two threads 0 and 1 are the first core."""
    cpus = tuple(
        Cpu(cpu, cpu // threads, cpu // (threads * cores), 0, cpu // (threads * cores * l3s), 0)
        for cpu in range(nodes * l3s * cores * threads)
    )
    return Topology(TopologyData(cpus, offline=parse_cpus(gone)))


def found_in(tree: Topology, claim: Claim, used: str = "", free: Optional[str] = None) -> Optional[Pick]:
    cpus = tree.online if free is None else parse_cpus(free)
    return pick(tree, cpus - parse_cpus(used), claim)


def shown(found: Optional[Pick]) -> tuple[str, str, str]:
    """Owned, hidden, level."""
    assert found is not None
    return format_cpus(found.cpus), format_cpus(found.hidden), found.level


# ---------------------------------------------------------------------- the order: L3, NUMA node, socket, machine

#: A Hygon node: CPUs 0-7 and 64-71; its CCXs: 0-3,64-67 and 4-7,68-71.
IN_USE = [
    ("one core", machines.HYGON_7285_2S, 2, "", "0,64", "core"),
    ("one L3", machines.HYGON_7285_2S, 8, "", "0-3,64-67", "ccx"),
    ("the L3 that is left with the least", machines.HYGON_7285_2S, 4, "0-1,64-65", "2-3,66-67", "ccx"),
    ("a whole L3 stays whole", machines.HYGON_7285_2S, 2, "4-5,68-69", "6,70", "core"),
    ("a whole L3 and the rest in the one that fits best", machines.HYGON_7285_2S, 10, "4-6,68-70", "0-3,7,64-67,71", "nccx"),
    ("a whole node", machines.HYGON_7285_2S, 16, "0,64", "8-15,72-79", "nccx"),
    ("the nearest second node", machines.HYGON_7285_2S, 20, "", "0-9,64-73", "numa+ccx"),
    ("two nodes", machines.HYGON_7285_2S, 32, "", "0-15,64-79", "2numa"),
    ("one socket", machines.HYGON_7285_2S, 64, "0,64", "32-63,96-127", "socket"),
    ("the machine", machines.HYGON_7285_2S, 66, "", "0-32,64-96", "machine"),
    ("the rest in the fullest L3 that fits it", machines.EPYC_NPS1_1S, 12, "0-3,8-13", "4-7,16-23", "nccx"),
    ("the fewest L3s, all in part used",
     machines.HYGON_7285_2S, 8, "0,64,4-5,68-69,8-63,72-127", "1-2,6-7,65-66,70-71", "nccx"),
    ("L3s of different sizes", machines.UNEVEN_CCX, 6, "", "0-2,14-16", "ccx"),
    ("no L3 known", machines.VM_NO_CACHE_INFO, 3, "", "0-2", "numa"),
    ("one CPU", machines.ONE_CPU, 1, "", "0", "core"),
    ("an L3 as large as its node", machines.MONOLITHIC_2S, 5, "", None, "ccx"),
    ("an L3 larger than its node", machines.SNC_2S, 2, "", None, "core"),
    ("a thousand CPUs", machines.BIG_1024, 600, "", None, "machine"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "count", "used", "cpus", "level"), [row[1:] for row in IN_USE], ids=[row[0] for row in IN_USE]
)
def test_cpus_come_from_the_smallest_domain_that_is_left_with_the_least(
    where: str, count: int, used: str, cpus: Optional[str], level: str
) -> None:
    found = found_in(topology(where), Claim(count), used)
    assert found is not None
    assert (format_cpus(found.cpus) if cpus is not None else None, found.level) == (cpus, level)
    assert len(found.cpus) == count
    assert not found.hidden


@pytest.mark.parametrize(
    ("where", "claim", "used", "why"),
    [
        (machines.HYGON_7285_2S, Claim(1), "", "1 exclusive CPU in one L3 of NUMA node 0"),
        (machines.HYGON_7285_2S, Claim(10), "", "10 exclusive CPUs in 2 L3s of NUMA node 0"),
        (machines.HYGON_7285_2S, Claim(20), "", "20 exclusive CPUs in 3 L3s of NUMA nodes 0, 1"),
        (machines.VM_NO_CACHE_INFO, Claim(2), "", "2 exclusive CPUs in NUMA node 0"),
        (
            machines.HYGON_7285_2S,
            Claim(4, smt="hide"),
            "",
            "4 exclusive CPUs in one L3 of NUMA node 0, 2 of them idle",
        ),
    ],
)
def test_it_says_where_they_are(where: str, claim: Claim, used: str, why: str) -> None:
    found = found_in(topology(where), claim, used)
    assert found is not None
    assert found.why == why


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_every_count_up_to_all_cpus_can_be_owned_on_every_machine(name: str) -> None:
    tree = topology(name)
    largest = len(tree.online)
    for count in sorted({1, largest // 3 or 1, largest - 1 or 1, largest}):
        found = pick(tree, tree.online, Claim(count))
        assert found is not None
        assert len(found.cpus) == count
    assert pick(tree, tree.online, Claim(largest + 1)) is None
    assert pick(tree, NO_CPUS, Claim(1)) is None


def test_a_core_whose_sibling_is_offline_is_a_whole_core() -> None:
    found = found_in(small(gone="1"), Claim(3, smt="full-core"))
    assert shown(found) == ("0,2-3", "", "ccx")


def test_an_odd_thread_takes_a_core_on_which_nobody_else_runs() -> None:
    assert shown(found_in(small(cores=3), Claim(3), used="0,6-23")) == ("2-4", "", "ccx")


def test_whole_cores_in_two_l3s_come_before_shared_cores_in_one() -> None:
    # L3 0 has four lone threads; L3s 1 and 2 have a whole core each.
    tree = small(nodes=1, l3s=3, cores=4)
    assert shown(found_in(tree, Claim(4), used="0,2,4,6,10-15,18-23")) == ("8-9,16-17", "", "nccx")


def test_of_cores_that_others_have_a_part_of_as_few_as_can_be_are_joined() -> None:
    # Of three cores of four threads one, one and two are free.
    tree = small(nodes=1, l3s=1, cores=3, threads=4)
    assert shown(found_in(tree, Claim(3), used="0-2,4-6,8-9")) == ("3,10-11", "", "ccx")


#: Four L3s of two cores, CPUs 0-3, 4-7, 8-11, 12-15; the first two in node 0, or all.
ODD = [
    ("a wholly free L3 before the rest of another's core", 1, 1, "0,2-3,8-15", "4"),
    ("a core of a fuller L3 before one of a free L3", 1, 1, "0,2-3,4-5,12-15", "6"),
    ("another L3 that fits less well", 1, 3, "0,4-5,6,12-15", "8-10"),
    ("no second L3 for that", 1, 3, "0,6-7,10-11,14-15", "1-3"),
    ("no second node for that", 2, 3, "0,6-7,10-11,12-13", "1-3"),
    ("a whole core in the other node", 2, 1, "0,2-3,4,6-7,8-9,12-15", "10"),
    ("the rest of a core where nothing else is free", 1, 1, "0,2-15", "1"),
    ("an even count stays where it fits best", 1, 2, "0-1,12-15", "2-3"),
]


@pytest.mark.parametrize(
    ("nodes", "count", "used", "cpus"), [row[1:] for row in ODD], ids=[row[0] for row in ODD]
)
def test_an_odd_thread_joins_another_container_on_its_core_only_where_no_whole_core_is_as_near(
    nodes: int, count: int, used: str, cpus: str
) -> None:
    found = found_in(small(nodes=nodes, l3s=4 // nodes), Claim(count), used)
    assert shown(found)[0] == cpus


def test_of_many_nodes_a_few_sets_of_near_ones_are_looked_at() -> None:
    sets = list(islice(node_sets(dict.fromkeys(range(64), 1), 8, [], lambda a, b: abs(a - b)), NODE_SETS + 1))
    assert 0 < len(sets) <= NODE_SETS
    assert (0, 1, 2, 3, 4, 5, 6, 7) in sets
    assert all(len(found) == 8 for found in sets)


@given(
    used=st.frozensets(st.integers(0, 15)),
    kept=st.frozensets(st.integers(0, 15), max_size=4),
    want=st.integers(1, 16),
    threads=st.sampled_from((1, 2, 4)),
)
# One thread is free of two cores, and two of a third.
@example(used=parse_cpus("0-2,4-6,8-9,12-15"), kept=NO_CPUS, want=3, threads=4)
def test_split_and_joined_cores_are_counted_as_they_are_taken(
    used: frozenset[int], kept: frozenset[int], want: int, threads: int
) -> None:
    tree = small(nodes=1, l3s=2, cores=8 // threads, threads=threads)
    free = tree.online - used - kept
    cells = look(grounds_of(tree), free, kept, "", {})
    if sum(cell.free for cell in cells) < want:
        return
    taken = frozenset(take_threads(cells, want))
    others = tree.online - free - kept
    cores = [tree.core_mates(cpu) for cpu in range(0, 16, threads)]

    def parted(owned: frozenset[int]) -> list[frozenset[int]]:
        return [core for core in cores if core & owned and not core <= owned]

    new = [core for core in parted(kept | taken) if core not in parted(kept)]
    joined = sum(not core.isdisjoint(others) for core in new)
    more = len(parted(kept | taken)) - len(parted(kept))
    assert more_split_cores(cells, want) == (more, joined)


def test_a_second_node_is_not_crossed_into_for_whole_cores() -> None:
    assert shown(found_in(small(), Claim(4), used="0,2,6-7,10-15")) == ("1,3-5", "", "nccx")


# ---------------------------------------------------------------------- clusters of cores

#: Kunpeng 920: L3s of 24 CPUs, clusters of four.
CLUSTERS = [
    ("a whole one", machines.KUNPENG_48_2S, 4, "0", "", "4-7"),
    ("the rest of one before a part of a whole one", machines.KUNPENG_48_2S, 3, "0", "", "1-3"),
    ("the one that is left with the least", machines.KUNPENG_48_2S, 2, "0,4-5", "", "6-7"),
    ("whole ones, and the rest in the one that fits", machines.KUNPENG_48_2S, 10, "0,4-5", "", "6-15"),
    ("as few as can be, all in part used", machines.KUNPENG_48_2S, 5, "0,4,8-9,12-23", "", "1-3,10-11"),
    ("where it has CPUs", machines.KUNPENG_48_2S, 4, "0", "20", "20-23"),
    ("where it has CPUs, then the rest of one", machines.KUNPENG_48_2S, 5, "0,8", "9", "1-2,9-11"),
    ("the node that is left with the least comes first", machines.KUNPENG_48_2S, 4, "0,24-25,28-29", "", "32-35"),
    ("the L3 that is left with the least comes first", machines.KUNPENG_48_2S, 3, "0,24-44", "", "45-47"),
    ("clusters of two", machines.ALTRA_1S, 4, "0,3", "", "4-7"),
    ("an odd one", machines.ALTRA_1S, 3, "0,3", "", "1,4-5"),
    ("E-cores", machines.E_CORES_1S, 8, "2,9", "", "4-7,12-15"),
    ("no clusters are known", machines.KUNPENG_64_OLD_KERNEL, 4, "0", "", "1-4"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "count", "used", "keep", "cpus"),
    [row[1:] for row in CLUSTERS],
    ids=[row[0] for row in CLUSTERS],
)
def test_of_the_cores_of_an_l3_those_of_the_fewest_clusters_are_taken(
    where: str, count: int, used: str, keep: str, cpus: str
) -> None:
    claim = Claim(count, keep=parse_cpus(keep))
    assert shown(found_in(topology(where), claim, used))[0] == cpus
    # Also where clusters are places of their own (ladder: fine).
    assert shown(found_in(Topology(machines.machine(where), to_clusters=True), claim, used))[0] == cpus


def test_two_clusters_of_an_l3_are_told_apart() -> None:
    tree = Topology(TopologyData(tuple(Cpu(i, i, 0, 0, 0, 0, cluster=i // 4) for i in range(8))))
    assert shown(found_in(tree, Claim(3), used="0-1"))[0] == "4-6"
    assert shown(found_in(tree, Claim(2), used="0-1"))[0] == "2-3"


@settings(max_examples=60)
@given(st.data())
def test_clusters_change_nothing_but_which_cores_of_an_l3_are_taken(data: st.DataObject) -> None:
    told, untold = CLUSTERS_TOLD, CLUSTERS_UNTOLD
    free = data.draw(st.frozensets(st.sampled_from(sorted(told.online)), min_size=1))
    claim = Claim(
        data.draw(st.integers(1, len(free))),
        l3=data.draw(st.sampled_from(("prefer", "require"))),
        numa_required=data.draw(st.booleans()),
        smt=data.draw(st.sampled_from(("", "full-core", "hide"))),
    )
    found, other = pick(told, free, claim), pick(untold, free, claim)
    if found is None or other is None:
        assert found is other
        return
    assert found.cpus <= free
    assert (len(found.cpus), len(found.hidden)) == (len(other.cpus), len(other.hidden))
    assert spans(told, found.cpus) == spans(untold, other.cpus)
    assert clusters_of(told, found.cpus) <= clusters_of(told, other.cpus)


def clusters_of(tree: Topology, cpus: frozenset[int]) -> int:
    return len({tree.cpus[cpu].cluster for cpu in cpus})


# ---------------------------------------------------------------------- the options

OPTIONS = [
    ("require: fits", Claim(4, l3="require"), "", ("0-3", "", "ccx")),
    ("require: fits no L3", Claim(5, l3="require"), "", None),
    ("require: also if that splits cores", Claim(2, l3="require"), "0,2,4,6,8,10,12,14", ("1,3", "", "ccx")),
    ("NUMA required: fits", Claim(8, numa_required=True), "", ("0-7", "", "nccx")),
    ("NUMA required: fits no node", Claim(7, numa_required=True), "0-1,8-9", None),
    ("exclusive: the rest of the L3 is idle", Claim(3, l3="exclusive"), "0", ("4-7", "7", "ccx")),
    ("exclusive: two L3s", Claim(5, l3="exclusive"), "0", ("8-15", "13-15", "nccx")),
    ("exclusive: no L3 is whole", Claim(1, l3="exclusive"), "0,4,8,12", None),
    ("full cores", Claim(4, smt="full-core"), "0,2,5", ("8-11", "", "ccx")),
    ("full cores, odd: the sibling is idle", Claim(3, smt="full-core"), "", ("0-3", "3", "ccx")),
    ("full cores: none is whole", Claim(1, smt="full-core"), "0,2,4,6,8,10,12,14", None),
    ("hide: one thread a core is idle", Claim(4, smt="hide"), "", ("0-3", "1,3", "ccx")),
    ("SMT spread: one thread a core", Claim(2, smt="spread"), "", ("0,2", "", "ccx")),
    ("SMT spread: more L3s for it", Claim(3, smt="spread"), "", ("0,2,4", "", "nccx")),
    ("SMT spread: not enough cores", Claim(10, smt="spread"), "", ("0-9", "", "numa+ccx")),
    ("L3 spread: over the L3s of a node", Claim(2, l3="spread"), "", ("0,4", "", "nccx")),
    ("L3 spread: over the L3s of two nodes", Claim(5, l3="spread"), "", ("0,2,4,8,12", "", "2numa")),
    ("L3 spread with full cores", Claim(2, l3="spread", smt="full-core"), "", ("0-1,4-5", "1,5", "nccx")),
    ("nothing is wanted", Claim(0), "", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "used", "expected"), [row[1:] for row in OPTIONS], ids=[row[0] for row in OPTIONS]
)
def test_options_of_a_claim(claim: Claim, used: str, expected: Optional[tuple[str, str, str]]) -> None:
    found = found_in(small(), claim, used)
    assert (None if found is None else shown(found)) == expected


def hybrid() -> Topology:
    """As clients have it: two cores of two threads and four of one in an L3, and before them two low-power ones in none."""
    cores = (0, 1, 2, 2, 4, 4, 6, 7, 8, 9)
    cpus = tuple(Cpu(cpu, core, None if core < 2 else 2, 0, 0, 0) for cpu, core in enumerate(cores))
    return Topology(TopologyData(cpus))


HYBRID = [
    ("one", Claim(1), "", "6"),
    ("two, as many as there are without an L3", Claim(2), "", "2-3"),
    ("the L3 has them left in parts of cores", Claim(2), "2,4,6-9", "3,5"),
    ("no others are left", Claim(2), "2-9", "0-1"),
    ("not enough in the L3", Claim(3), "2-7", "0,8-9"),
    ("kept ones grow where they are", Claim(2, keep=frozenset([0])), "", "0-1"),
    ("an L3 of its own is one", Claim(2, l3="exclusive"), "", "2-9"),
    ("spread", Claim(2, l3="spread"), "", "2,4"),
    ("spread over more cores than the L3 has", Claim(7, l3="spread"), "", "0,2,4,6-9"),
    ("full cores", Claim(2, smt="full-core"), "", "2-3"),
    ("one thread a core", Claim(2, smt="spread"), "", "2,4"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "used", "expected"), [row[1:] for row in HYBRID], ids=[row[0] for row in HYBRID]
)
def test_cores_without_an_l3_come_last(claim: Claim, used: str, expected: str) -> None:
    found = found_in(hybrid(), claim, used)
    assert found is not None
    assert format_cpus(found.cpus) == expected


def test_cores_without_an_l3_come_before_another_numa_node() -> None:
    # Of node 0 one CPU has told its L3, of node 1 both.
    cpus = tuple(Cpu(cpu, cpu, None if cpu == 0 else cpu // 2, 0, cpu // 2, 0) for cpu in range(4))
    assert shown(found_in(Topology(TopologyData(cpus)), Claim(2, keep=frozenset([1]))))[0] == "0-1"
    assert shown(found_in(Topology(TopologyData(cpus)), Claim(2)))[0] == "2-3"


def test_an_l3_of_several_nodes_is_one_l3_also_where_that_splits_cores() -> None:
    # Two L3s of two nodes each, a node has two cores; only the first L3 has a node with one whole core.
    cpus = tuple(Cpu(cpu, cpu // 2, cpu // 8, 0, cpu // 4, 0) for cpu in range(16))
    found = found_in(Topology(TopologyData(cpus)), Claim(3, l3="require"), free="0-1,4,8-9")
    assert shown(found) == ("0-1,4", "", "2numa")


KEEP = [
    ("grows inside its L3", 4, "0-1", "", "0-3"),
    ("grows inside its L3 also where another would fit all", 3, "2", "0,4-7", "1-3"),
    ("completes its core", 2, "5", "", "4-5"),
    ("then inside its node", 6, "0-3", "", "0-5"),
    ("then in another node", 10, "0-7", "8-11", "0-7,12-13"),
    ("keeps a CPU far away", 4, "0,12", "", "0-1,12-13"),
    ("stays as it is", 2, "0,12", "", "0,12"),
    ("gives back what lies alone", 2, "0,4-5", "", "4-5"),
    ("gives back an L3", 4, "0-3,6-7", "", "0-3"),
]


@pytest.mark.parametrize(
    ("count", "keep", "used", "cpus"), [row[1:] for row in KEEP], ids=[r[0] for r in KEEP]
)
def test_what_it_has_it_keeps(count: int, keep: str, used: str, cpus: str) -> None:
    found = found_in(small(), Claim(count, keep=parse_cpus(keep)), used)
    assert found is not None
    assert format_cpus(found.cpus) == cpus


def test_full_cores_grow_into_the_idle_sibling_first() -> None:
    assert shown(found_in(small(), Claim(4, smt="full-core", keep=parse_cpus("0-3")))) == ("0-3", "", "ccx")
    assert shown(found_in(small(), Claim(3, smt="full-core", keep=parse_cpus("0-3")))) == ("0-3", "3", "ccx")


def test_exclusive_l3s_do_not_grow_around_cpus_of_an_l3_that_others_use() -> None:
    assert found_in(small(), Claim(3, l3="exclusive", keep=parse_cpus("0-1")), used="3") is None


def test_of_places_of_one_size_the_cheapest_is_taken() -> None:
    def far_from_the_last(cpus: frozenset[int]) -> tuple[float, ...]:
        return (float(15 - max(cpus)),)

    for count, cpus in ((4, "12-15"), (8, "8-15"), (5, "8-12")):
        found = found_in(small(), Claim(count, cost=far_from_the_last))
        assert found is not None
        assert (count, format_cpus(found.cpus)) == (count, cpus)


def test_the_same_question_has_the_same_answer_in_any_order_of_cpus() -> None:
    tree = topology(machines.HYGON_7285_2S)
    free = sorted(tree.online - parse_cpus("0-2,9,20-33,70"))
    other = Topology(machines.machine(machines.HYGON_7285_2S))
    for count in (1, 3, 8, 11, 40):
        first = pick(tree, frozenset(free), Claim(count))
        assert pick(other, frozenset(reversed(free)), Claim(count)) == first


# ---------------------------------------------------------------------- against all possible answers

#: Two L3s of three clusters of two cores with two threads, with and without the kernel's telling the clusters.
CLUSTERS_TOLD, CLUSTERS_UNTOLD = (
    Topology(
        TopologyData(
            tuple(Cpu(c, c // 2, c // 12, 0, 0, 0, c // 4 if is_told else None) for c in range(24)),
        )
    )
    for is_told in (True, False)
)
SMALL_MACHINES = {
    "two nodes of two L3s": small(),
    "one node of four L3s": small(nodes=1, l3s=4),
    "four nodes": small(nodes=4, l3s=1),
    "no SMT": small(threads=1, cores=4),
    "four threads": small(threads=4, cores=1),
    "offline CPUs": small(gone="1,4-5"),
}


def spans(tree: Topology, cpus: frozenset[int]) -> tuple[int, int, int]:
    """NUMA nodes, cores shared with others, L3s."""
    cores = {tree.core_of[cpu] for cpu in cpus}
    split = sum(not (tree.cores[core] & tree.online) <= cpus for core in cores)
    return len(tree.nodes_of(cpus)), split, len({tree.cpus[cpu].l3 for cpu in cpus})


@settings(max_examples=60)
@given(st.data())
def test_no_choice_spans_fewer_nodes_then_split_cores_then_l3s(data: st.DataObject) -> None:
    tree = SMALL_MACHINES[data.draw(st.sampled_from(sorted(SMALL_MACHINES)))]
    free = data.draw(st.frozensets(st.sampled_from(sorted(tree.online)), min_size=1, max_size=10))
    count = data.draw(st.integers(1, len(free)))
    best = min(spans(tree, frozenset(cpus)) for cpus in combinations(sorted(free), count))
    found = pick(tree, free, Claim(count))
    assert found is not None
    assert found.cpus <= free
    assert len(found.cpus) == count
    assert spans(tree, found.cpus) == best


@settings(max_examples=60)
@given(st.data())
def test_what_is_owned_is_free_and_what_is_kept_stays(data: st.DataObject) -> None:
    tree = SMALL_MACHINES[data.draw(st.sampled_from(sorted(SMALL_MACHINES)))]
    free = data.draw(st.frozensets(st.sampled_from(sorted(tree.online)), min_size=1))
    keep = data.draw(st.frozensets(st.sampled_from(sorted(free))))
    claim = Claim(
        data.draw(st.integers(1, len(tree.online))),
        l3=data.draw(st.sampled_from(("prefer", "require", "exclusive", "spread"))),
        numa_required=data.draw(st.booleans()),
        smt=data.draw(st.sampled_from(("", "full-core", "hide", "spread"))),
        keep=keep,
    )
    found = pick(tree, free, claim)
    if found is None:
        return
    assert found.cpus <= free
    assert found.hidden < found.cpus
    assert keep <= found.cpus or claim.count < len(keep)
    if claim.smt != "hide":
        assert len(found.cpus - found.hidden) == claim.count
