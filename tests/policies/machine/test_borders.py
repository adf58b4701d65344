"""Whatever sockets, dies, NUMA nodes and L3s a kernel shows: no domain is a sliver of all of them."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from policies.machine.borders import settled, whole_dies, whole_l3s, whole_sockets
from policies.machine.topology import Cpu, Topology, TopologyData

CPUS = 12


def runs(name: str) -> st.SearchStrategy[dict[int, int]]:
    """Groups of neighbouring CPUs, named after their first one."""
    borders = st.frozensets(st.integers(1, CPUS - 1), max_size=5)
    return borders.map(
        lambda firsts: {cpu: max((f for f in firsts if f <= cpu), default=0) for cpu in range(CPUS)}
    )


def groups(level: dict[int, int]) -> set[frozenset[int]]:
    ordered = sorted(level, key=lambda cpu: (level[cpu], cpu))
    return {frozenset(found) for _, found in groupby(ordered, key=lambda cpu: level[cpu])}


@given(runs("L3"), runs("node"), runs("socket"), runs("die"), st.sampled_from([1, 2, 3]))
def test_no_domain_is_smaller_than_all_that_it_is_a_part_of(
    shown_l3s: dict[int, int],
    nodes: dict[int, int],
    shown_sockets: dict[int, int],
    shown_dies: dict[int, int],
    width: int,
) -> None:
    clusters = {cpu: cpu // width for cpu in range(CPUS)} if width > 1 else {}
    cores = {cpu: cpu for cpu in range(CPUS)}
    l3s, _ = whole_l3s(shown_l3s, nodes, shown_sockets, cores)
    sockets, _ = whole_sockets(shown_sockets, cores, clusters, l3s, nodes)
    dies, _ = whole_dies(shown_dies, shown_sockets, sockets, cores, (l3s, nodes))
    # 1. What lies in one socket does.
    for level in (l3s, clusters):
        assert all(len({sockets[cpu] for cpu in group}) == 1 for group in groups(level))
    assert groups(l3s) <= groups(shown_l3s)
    # 2. A socket is whole sockets that were shown.
    assert all(len({sockets[cpu] for cpu in group}) == 1 for group in groups(shown_sockets))
    # 3. In the tree nothing is cut through.
    tree = Topology(
        TopologyData(tuple(Cpu(c, c, l3s.get(c), dies[c], nodes[c], sockets[c]) for c in range(CPUS)))
    )
    told = {cpu: sockets[cpu] * CPUS + dies[cpu] for cpu in range(CPUS)}
    whole = groups(l3s) | groups(nodes) | groups(sockets) | groups(told)
    for level_name in ("l3", "numa", "die", "socket"):
        assert [d for d in tree.at(level_name) if d.cpus not in whole] == []


@given(runs("L3"), runs("node"), runs("socket"), runs("die"))
def test_a_machine_that_a_file_describes_has_the_borders_that_can_be_or_a_sentence(
    l3s: dict[int, int], nodes: dict[int, int], sockets: dict[int, int], dies: dict[int, int]
) -> None:
    shown = TopologyData(tuple(Cpu(c, c, l3s[c], dies[c], nodes[c], sockets[c]) for c in range(CPUS)))
    data, sentences = settled(shown)
    assert (data == shown) is (sentences == ())
    assert settled(data) == (data, ())
    names = {
        level: {c.cpu: hash((c.socket, getattr(c, level))) for c in data.cpus}
        for level in ("l3", "numa", "die", "socket")
    }
    whole = set().union(*[groups(level) for level in names.values()])
    assert [d for d in Topology(data).at("l3") if d.cpus not in whole] == []


def test_sockets_of_one_core_each_are_one_and_a_limit_is_no_longer_nailed_to_a_cpu() -> None:
    shown = TopologyData(tuple(Cpu(c, 0, 0, 0, 0, c) for c in range(8)))
    data, sentences = settled(shown)
    assert [len(d.cpus) for d in Topology(data).at("socket")] == [8]
    assert Topology(data).at("l3") == ()
    assert sentences == (
        "the machine's description shows an L3 for each socket of one core; no L3 is known.",
        "the machine's description shows sockets 0-7; those that are one core each, in one NUMA node, are taken for one "
        "socket.",
    )
