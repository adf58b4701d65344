"""The node's books: what is charged where, exactly, and what that leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.model import Placement, PodShare, Resident, Resources
from policies.node import CONSTRAINTS_KEPT, NANO_PER_MILLI, Capacity, Node, charges
from tests.machines import ALL_MACHINES, BIG_1024, HYGON_7285_2S, OFFLINE_CPUS, VM_NO_CACHE_INFO
from tests.scenes import make_container, node_of, topology


def resident(
    cpus: str,
    request: int = 0,
    pod: str = "uid",
    exclusive: str = "",
    memory: tuple[tuple[int, int], ...] = (),
) -> Resident:
    return Resident(pod, request, request, parse_cpus(cpus), parse_cpus(exclusive), memory)


def recount(node: Node, constraint: frozenset[int]) -> Capacity:
    """The capacity by the book: added up from all residents."""
    leaves = tuple(leaf.cpus & node.shared & constraint for leaf in node.topology.leaves)
    charge, order = [0] * len(leaves), [0] * len(leaves)
    for r in node.residents.values():
        for index, leaf in enumerate(leaves):
            for cpus, each, each_order in charges(r):
                charge[index] += each * len(leaf & cpus)
                order[index] += each_order * len(leaf & cpus)
    return Capacity(leaves, tuple(map(len, leaves)), tuple(charge), tuple(order))


# ---------------------------------------------------------------------- charges


def test_a_request_is_spread_evenly_over_the_cpuset(node) -> None:
    node.add("a", resident("0-15", 1600))
    assert node.charge_milli(parse_cpus("0-3")) == 400
    assert node.charge_milli(parse_cpus("0")) == 100
    assert node.charge_milli(parse_cpus("16-20")) == 0


MIXED = {
    "one and a half": ("0-3", "0", 1500, {"0": 1000, "1-3": 500}),
    "two and a half": ("0-3,64-67", "0,64", 2500, {"0,64": 2000, "1-3,65-67": 500}),
    "one thread of each core of its own": ("0,2-3", "0,64", 2500, {"0": 2000, "2-3": 500}),
    "a whole L3 of its own, and others": ("0,4-7", "0-3,64-67", 1500, {"0": 1000, "4-7": 500}),
    "some of its own were taken away": ("0-3", "0", 3000, {"0": 1000, "1-3": 2000}),
    "all its own": ("0-2", "0-2", 2500, {"0-2": 2500}),
    "none of its own is left": ("1-2", "0", 1500, {"1-2": 1500}),
}


@pytest.mark.parametrize(("cpus", "exclusive", "request_milli", "charged"), MIXED.values(), ids=MIXED)
def test_cpus_of_its_own_carry_the_whole_part_of_a_request_and_shared_ones_the_rest(
    node, cpus, exclusive, request_milli, charged
) -> None:
    node.add("a", resident(cpus, request_milli, exclusive=exclusive))
    assert {there: node.charge_milli(parse_cpus(there)) for there in charged} == charged
    node.remove("a")
    assert node.charge_milli(node.usable) == 0


def test_room_is_capacity_less_charges_at_every_level(node) -> None:
    node.add("a", resident("0-3,64-67", 2000))
    capacity = node.capacity()
    by_level = {"l3": 6000, "numa": 14000, "socket": 62000, "machine": 126000}
    for level, room in by_level.items():
        assert capacity.room_nano(node.topology.at(level)[0].leaves) == room * NANO_PER_MILLI


def test_room_is_negative_where_requests_exceed_the_cpus(node) -> None:
    node.add("a", resident("0-3,64-67", 9000))
    assert node.capacity().room_nano([0]) == -1000 * NANO_PER_MILLI


def test_for_ordering_every_container_counts_ten_milli_cpus_at_least(node) -> None:
    node.add("a", resident("0-3,64-67", 0))
    capacity = node.capacity()
    assert capacity.room_nano([0]) == 8000 * NANO_PER_MILLI
    assert capacity.share_nano([0]) == 10 * NANO_PER_MILLI // 8
    assert capacity.share_nano([1]) == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_removing_gives_back_exactly_what_adding_took(data) -> None:
    node = node_of(HYGON_7285_2S, reserved="0,64")
    empty = node.capacity()
    cpu_sets = st.frozensets(st.integers(0, 127), max_size=40)
    for i in range(data.draw(st.integers(1, 12))):
        node.add(f"c{i}", Resident("uid", data.draw(st.integers(0, 99_999)), 0, data.draw(cpu_sets)))
    for key in data.draw(st.permutations(list(node.residents))):
        node.remove(key)
    assert node.capacity() == empty
    assert node.charge_milli(range(128)) == 0
    assert node.containers_on(frozenset(range(128))) == 0
    assert not node.of_pod("uid")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_survey_is_what_adding_up_all_containers_gives(data) -> None:
    node = node_of(HYGON_7285_2S, reserved="0,64")
    cpu_sets = st.frozensets(st.integers(0, 130), max_size=40)
    constraints = [frozenset(range(128)), frozenset(range(1, 60)), NO_CPUS]
    for i in range(20):
        if node.residents and data.draw(st.booleans()):
            node.remove(data.draw(st.sampled_from(sorted(node.residents))))
        else:
            cpus = data.draw(cpu_sets)
            exclusive = cpus & node.shared if data.draw(st.integers(0, 4)) == 0 else NO_CPUS
            node.add(f"c{i}", Resident("uid", data.draw(st.integers(0, 9999)), 0, cpus, exclusive))
        for constraint in constraints:
            assert node.capacity(constraint) == recount(node, constraint)
        assert node.capacity() == recount(node, constraints[0])


def test_many_fences_do_not_pile_up(node) -> None:
    node.add("a", resident("0-7", 1000))
    for last in range(3 * CONSTRAINTS_KEPT):
        constraint = frozenset(range(last + 1))
        assert node.capacity(constraint) == recount(node, constraint)
    assert len(node._sums) <= CONSTRAINTS_KEPT


@given(data=st.data())
def test_a_set_that_many_share_is_booked_as_each_of_them_by_itself(data: st.DataObject) -> None:
    cpus = st.sampled_from(["0-7", "0-3", "2-3,70", "0-127"]).map(parse_cpus)
    before, after = data.draw(cpus), data.draw(cpus)
    one, other = node_of(HYGON_7285_2S), node_of(HYGON_7285_2S)
    places: dict[str, Optional[Placement]] = {}
    for key in "abc"[: data.draw(st.integers(1, 3))]:
        request, used = data.draw(st.sampled_from([0, 5, 500, 2500])), data.draw(st.integers(0, 4000))
        has_place = data.draw(st.booleans())
        was, now = (Placement(cpus=c, home=parse_cpus("0-127"), level="ccx") for c in (before, after))
        booked = Resident("uid", request, 2000, before, placement=was if has_place else None, milli_used=used)
        for node in (one, other):
            node.add(key, booked)
        places[key] = now if has_place else None
        other.replace(key, replace(booked, cpus=after, placement=places[key]))
    one.share(places, after)
    assert one.capacity() == other.capacity() == recount(one, one.topology.online)
    assert one.residents == other.residents
    for key in places:
        one.remove(key)
    assert one.capacity() == node_of(HYGON_7285_2S).capacity()


def test_one_key_is_one_container(node) -> None:
    node.add("a", resident("0"))
    with pytest.raises(KeyError, match="in the books already"):
        node.add("a", resident("1"))


def test_cpus_the_machine_does_not_have_are_not_charged() -> None:
    node = node_of(VM_NO_CACHE_INFO)
    node.add("a", resident("6-9", 1000))
    assert node.charge_milli(parse_cpus("6-7")) == 1000
    node.remove("a")
    assert node.charge_milli(parse_cpus("6-7")) == 0


def test_memory_is_charged_by_node(node) -> None:
    node.add("a", resident("0", memory=((0, 100), (3, 50))))
    assert [node.memory_charged(n) for n in (0, 1, 3)] == [100, 0, 50]
    node.remove("a")
    assert [node.memory_charged(n) for n in (0, 1, 3)] == [0, 0, 0]


# ---------------------------------------------------------------------- pools


def test_shared_is_what_is_usable_and_neither_reserved_nor_exclusive() -> None:
    node = node_of(VM_NO_CACHE_INFO, usable="0-6", reserved="0")
    node.add("a", resident("1-2", exclusive="1-2"))
    assert format_cpus(node.shared) == "3-6"
    assert format_cpus(node.exclusive) == "1-2"


def test_reserved_cpus_are_shared_when_nothing_else_is_left() -> None:
    node = node_of(VM_NO_CACHE_INFO, reserved="0-1")
    node.add("a", resident("2-7", exclusive="2-7"))
    assert format_cpus(node.shared) == "0-1"
    node.add("b", resident("0", exclusive="0"))
    assert format_cpus(node.shared) == "1"
    assert format_cpus(node.shared_reserved) == "1"


def test_a_cpu_is_free_again_when_its_last_owner_is_gone() -> None:
    # A resize on its way has its container in the books twice.
    node = node_of(VM_NO_CACHE_INFO)
    node.add("a", resident("1", exclusive="1"))
    node.add("ticket", resident("1-2", exclusive="1-2"))
    node.remove("a")
    assert format_cpus(node.exclusive) == "1-2"
    node.remove("ticket")
    assert format_cpus(node.shared) == "0-7"


def test_the_pool_version_tells_when_the_pools_may_have_changed() -> None:
    node = node_of(VM_NO_CACHE_INFO)
    before = node.pool_version
    node.add("a", resident("0-3", 1000))
    assert node.pool_version == before
    node.add("b", resident("0", exclusive="0"))
    assert node.pool_version > before


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_nothing_offline_is_usable(name) -> None:
    tree = topology(name)
    node = Node(tree, frozenset(range(5000)), frozenset(range(100)), frozenset(range(5000)))
    assert node.usable == tree.online
    assert node.mems == tree.memory_nodes
    assert node.reserved <= node.usable


def test_offline_cpus_have_no_capacity() -> None:
    capacity = node_of(OFFLINE_CPUS).capacity()
    assert sum(capacity.caps) == 60
    gone = [leaf for leaf, cap in enumerate(capacity.caps) if not cap]
    assert capacity.share_nano(gone) == capacity.share_nano([]) == 0


# ---------------------------------------------------------------------- questions about pods and containers


def test_containers_are_counted_where_they_may_run(node) -> None:
    node.add("a", resident("0-3"))
    node.add("b", resident("0-3"))
    node.add("c", resident("2-9"))
    assert [node.containers_on(parse_cpus(cpus)) for cpus in ("0", "2", "9", "10")] == [2, 3, 1, 0]


def test_a_pod_is_known_by_its_uid(node) -> None:
    node.add("a", resident("0-3", pod="one"))
    node.add("b", resident("0-3", pod="two"))
    assert set(node.of_pod("one")) == {"a"}
    node.remove("a")
    assert not node.of_pod("one")


@pytest.mark.parametrize("name", [HYGON_7285_2S, OFFLINE_CPUS, BIG_1024])
def test_credit_takes_one_pod_out_exactly(name) -> None:
    node = node_of(name)
    cpus = [format_cpus(sorted(node.usable)[start : start + 13]) for start in (0, 5, 20)]
    node.add("other", resident(cpus[1], 777))
    without = node.capacity()
    node.add("a", resident(cpus[0], 1234, pod="mine"))
    node.add("b", resident(cpus[2], 55, pod="mine"))
    node.add("none", resident("", 100, pod="mine"))
    assert node.capacity().credit(node.of_pod("mine"), "mine") == without
    assert node.capacity().credit(node.residents, "mine") == without


def test_a_group_claims_its_cpus_once_and_is_told_apart_from_what_owns_them_alone() -> None:
    node = node_of(VM_NO_CACHE_INFO)
    place = Placement(cpus=parse_cpus("1"), exclusive=parse_cpus("1"), group="db[0]")
    for key in ("a", "b"):
        node.add(key, replace(resident("1", exclusive="1"), placement=place))
    assert (node.claims, node.claims_alone, node.claimants(1)) == ({(1, 1)}, set(), 2)
    node.remove("a")
    node.add("kubelet's", resident("1", exclusive="1"))
    assert (node.claims, node.claims_alone, node.claimants(1)) == ({(1, 2)}, {(1, 1)}, 2)
    node.remove("kubelet's")
    assert (node.claims, node.claims_alone) == ({(1, 1)}, set())


def test_what_owns_cpus_is_one_value_until_that_changes(node) -> None:
    # A decision compares it with that of the one before, and a node may have hundreds of owners.
    node.add("a", resident("0", exclusive="0"))
    claims, alone = node.claims, node.claims_alone
    node.add("b", resident("1-3", 100))
    node.remove("b")
    assert node.claims is claims and node.claims_alone is alone
    node.add("c", resident("4", exclusive="4"))
    assert node.claims == node.claims_alone == claims | {(4, 1)}


def test_owners_that_share_their_pods_cpus_are_known_apart(node) -> None:
    alone = replace(resident("0", exclusive="0"), container=make_container("alone"))
    share = PodShare(Resources(0, 1000), 1000, 2)
    of_pod = replace(resident("1", exclusive="1"), container=replace(make_container("b"), pod_share=share))
    node.add("alone", alone)
    node.add("of a pod", of_pod)
    assert node.owners_of_pods == {"of a pod": of_pod}
    # The second one is told resources of its own.
    node.replace("of a pod", replace(of_pod, container=make_container("b")))
    assert not node.owners_of_pods and node.owners.keys() == {"alone", "of a pod"}
    node.replace("of a pod", of_pod)
    node.remove("of a pod")
    assert not node.owners_of_pods and node.owners.keys() == {"alone"}


def test_the_cpus_of_a_place_are_one_set_until_its_shared_cpus_change(node) -> None:
    leaves = range(2)
    before = node.capacity().allowed(leaves)
    node.add("a", resident("8", 100))
    assert node.capacity().allowed(leaves) is before
    node.add("b", resident("", 1000, exclusive="0"))
    assert node.capacity().allowed(leaves) == before - {0}
