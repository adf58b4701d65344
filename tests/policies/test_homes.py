"""Containers by home and request: the index answers as a look at all containers does, in that order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.machine.cpus import NO_CPUS, parse_cpus
from policies.model import Placement, Resident
from policies.node import Node
from tests.machines import ALL_MACHINES
from tests.scenes import node_of

CCX_0, CCX_1 = "0-3,64-67", "4-7,68-71"
NODE_0 = "0-7,64-71"


def placed(home: str, milli: int, level: str = "ccx", group: str = "") -> Resident:
    cpus = parse_cpus(home)
    place = Placement(cpus=cpus, level=level, home=cpus, group=group)
    return Resident("uid", milli, milli, cpus, placement=place)


def scan(node: Node, cpus: frozenset[int]) -> list[str]:
    """All of them, looked through: the largest request first, equal ones by key."""
    found = [
        (-resident.milli_request, key)
        for key, resident in node.residents.items()
        if (place := resident.placement) is not None
        and resident.milli_request
        and not place.group
        and place.level != "reserved"
        and place.home <= cpus
    ]
    return [key for _, key in sorted(found)]


def test_the_largest_come_first_and_equal_ones_by_key(node) -> None:
    for key, home, milli in (("c", CCX_0, 100), ("b", CCX_1, 100), ("a", CCX_0, 50), ("d", NODE_0, 900)):
        node.add(key, placed(home, milli))
    assert list(node.homes.largest(parse_cpus(NODE_0))) == ["d", "b", "c", "a"]
    assert list(node.homes.largest(parse_cpus(CCX_0))) == ["c", "a"]


def test_of_those_that_request_as_much_the_smallest_come_first_and_equal_ones_by_key_backwards(node) -> None:
    for key, home, milli in (("c", CCX_0, 100), ("b", CCX_1, 100), ("a", CCX_0, 50), ("d", NODE_0, 900)):
        node.add(key, placed(home, milli))
    assert list(node.homes.at_least(parse_cpus(NODE_0), 100)) == ["c", "b", "d"]
    assert list(node.homes.at_least(parse_cpus(NODE_0), 101)) == ["d"]
    assert list(node.homes.at_least(parse_cpus(CCX_0), 101)) == []


NEVER = {
    "it requests nothing": placed(CCX_0, 0),
    "a group holds it": placed(CCX_0, 100, group="balloon"),
    "it is on reserved CPUs": placed(CCX_0, 100, level="reserved"),
    "it is not placed": Resident("uid", 100, 100, parse_cpus(CCX_0)),
}


@pytest.mark.parametrize("resident", NEVER.values(), ids=NEVER)
def test_what_cannot_make_room_is_not_found(node, resident) -> None:
    node.add("a", resident)
    assert list(node.homes.largest(node.topology.root.cpus)) == []
    node.remove("a")


def test_a_home_on_cpus_that_the_machine_does_not_have_is_inside_of_no_domain(node) -> None:
    node.add("a", placed("4000-4003", 100))
    assert list(node.homes.largest(node.topology.root.cpus)) == []
    assert list(node.homes.largest(parse_cpus("0,4000-4003"))) == ["a"]


@pytest.mark.parametrize("name", ALL_MACHINES)
@settings(max_examples=settings().max_examples // 12, deadline=None)
@given(data=st.data())
def test_the_index_finds_what_a_look_at_all_containers_does(name, data) -> None:
    node = node_of(name)
    tree = node.topology
    domains = [*tree.leaves, *tree.at("numa"), *tree.at("socket"), tree.root]
    # Homes are domains, or what a fence leaves of them: the lower half of their CPUs, or none.
    sets = [domain.cpus for domain in domains]
    sets += [frozenset(sorted(cpus)[: len(cpus) // 2]) for cpus in sets]
    keys = [f"c{number}" for number in range(12)]
    for _ in range(data.draw(st.integers(1, 40))):
        key = data.draw(st.sampled_from(keys))
        if key in node.residents:
            node.remove(key)
            continue
        home = data.draw(st.sampled_from([*sets, NO_CPUS]))
        level, group = data.draw(st.sampled_from([("ccx", "")] * 4 + [("reserved", ""), ("ccx", "group")]))
        milli = data.draw(st.sampled_from([0, 100, 100, 250, 4000]))
        place = data.draw(
            st.sampled_from([Placement(home, level=level, home=home, group=group)] * 4 + [None])
        )
        node.add(key, Resident("uid", milli, milli, home & tree.online, placement=place))
    cpus = data.draw(st.sampled_from(sets))
    found = scan(node, cpus)
    assert list(node.homes.largest(cpus)) == found
    for milli in (1, 100, 101, 5000):
        enough = [key for key in found if node.residents[key].milli_request >= milli]
        assert list(node.homes.at_least(cpus, milli)) == enough[::-1]
