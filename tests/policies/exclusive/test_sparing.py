"""The last CPUs of containers that can go nowhere else are spared while others are free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.exclusive.sparing import emptied_by, shared_all_the_same, take_sparing
from policies.hygon import TopologyAware
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import PlacementRequest, Qos, Resident
from policies.node import Node
from tests.scenes import NO_CONSTRAINT, TOPOLOGY_AWARE, make_container, node_of

#: 8 CPUs in two L3s of one NUMA node.
TWO_L3S = Topology(TopologyData(tuple(Cpu(i, i, i // 4, 0, 0, 0) for i in range(8))))


def bound(node: Node, *sets: str, fixed: bool = False) -> None:
    for cpus in sets:
        here = parse_cpus(cpus)
        key = f"bound {cpus}"
        container = make_container(key, request=0.1)
        node.add(key, Resident(key, 100, 100, here, container=container, bounds=here, is_fixed=fixed))


def owned(node: Node, count: int) -> tuple[str, str, bool]:
    decision = TopologyAware(node.topology, TOPOLOGY_AWARE).place(
        node, PlacementRequest(make_container("own", limit=count, qos=Qos.GUARANTEED), NO_CONSTRAINT)
    )
    return format_cpus(decision.placement.exclusive), decision.why, decision.fits


@pytest.mark.parametrize(
    ("bounds", "used", "count", "cpus"),
    [
        (["0-2"], "4-7", 3, "0-1,3"),
        (["0"], "4-7", 3, "1-3"),
        (["0-1", "1-2"], "4-7", 3, "0,2-3"),
        (["0", "4"], "", 4, "1-3,5"),
        (["0-3"], "", 4, "4-7"),
        (["0-3", "4-7"], "", 4, "0-2,4"),
        # A claim that leaves something of it is not in its way.
        (["0-3"], "4-7", 2, "0-1"),
        # Containers that have all of the machine can go anywhere.
        (["0-7"], "4-7", 3, "0-2"),
        # What others own already is nothing to be left with.
        (["3-4"], "4-7", 3, "0-2"),
    ],
)
def test_one_cpu_is_left_to_each(bounds, used, count, cpus) -> None:
    node = node_of(TWO_L3S)
    bound(node, *bounds)
    if used:
        node.add("used", Resident("used", 4000, 4000, parse_cpus(used), parse_cpus(used)))
    found, why, _ = owned(node, count)
    assert (found, "last" in why) == (cpus, False)


def test_where_no_other_is_free_it_is_taken_and_said() -> None:
    node = node_of(TWO_L3S)
    bound(node, *[str(cpu) for cpu in range(6)])
    found, why, fits = owned(node, 3)
    # As few as can be: both CPUs of no container, and one that is the last of one.
    assert len(parse_cpus(found) - parse_cpus("6-7")) == 1
    assert not fits
    lost = next(iter(parse_cpus(found) - parse_cpus("6-7")))
    assert f"CPUs {lost} are the last ones that default/pod-of-bound {lost}/bound {lost} may run on" in why


@pytest.mark.parametrize(("cpus", "is_said"), [("0", False), ("0-1", True), ("0-3", True), ("1-7", False)])
def test_the_last_ones_are_said_where_all_of_a_bound_are_taken(cpus, is_said) -> None:
    node = node_of(TWO_L3S)
    bound(node, "0-1")
    assert ("CPUs 0-1 are the last ones" in emptied_by(node, parse_cpus(cpus))) is is_said


def test_containers_that_are_not_ours_are_avoided_on_all_their_cpus() -> None:
    node = node_of(TWO_L3S)
    bound(node, "0-2", fixed=True)
    assert owned(node, 4)[0] == "4-7"
    node.add("used", Resident("used", 4000, 4000, parse_cpus("4-7"), parse_cpus("4-7")))
    assert owned(node, 1)[0] == "3"
    found, why, fits = owned(node, 3)
    assert (found, fits) == ("0-1,3", True)
    assert "default/pod-of-bound 0-2/bound 0-2, not ours to move, runs on CPUs 0-1 as well" in why


def test_what_is_kept_is_never_in_the_way() -> None:
    node = node_of(TWO_L3S)
    bound(node, "0-1")
    keep = parse_cpus("0-1")
    taken = take_sparing(
        node, node.usable, keep, lambda pool: keep | set(sorted(pool)[:2]), lambda cpus: cpus
    )
    assert taken == keep


def test_a_hundred_bounds_cost_a_few_looks(node) -> None:
    bound(node, *[str(cpu) for cpu in range(100)])
    asked = []

    def take(pool: frozenset[int]) -> frozenset[int]:
        asked.append(pool)
        return frozenset(sorted(pool)[:28])

    taken = take_sparing(node, node.usable, NO_CPUS, take, lambda cpus: cpus)
    assert taken == parse_cpus("100-127")
    assert len(asked) <= 5
    assert emptied_by(node, taken) == shared_all_the_same(node, taken) == ""


def test_the_answer_does_not_depend_on_the_order_in_which_they_came() -> None:
    sets = ("0-1", "1-2", "5-6", "4")
    answers = set()
    for order in (sets, sets[::-1]):
        node = node_of(TWO_L3S)
        bound(node, *order)
        answers.add(owned(node, 5)[:2])
    assert len(answers) == 1


def test_a_container_that_has_gone_needs_nothing() -> None:
    node = node_of(TWO_L3S)
    bound(node, "0-3", "0-2")
    node.remove("bound 0-2")
    resident = node.remove("bound 0-3")
    assert not list(node.bounds)
    node.add("again", replace(resident, bounds=None))
    assert not list(node.bounds)
