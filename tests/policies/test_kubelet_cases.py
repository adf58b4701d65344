"""On the same machine with the same CPUs free we span no more NUMA nodes, L3s and split cores than kubelet.

The cases are those of kubelet's own tests of ``prefer-align-cpus-by-uncorecache``, as numbers.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from policies.exclusive.pick import Claim, pick
from tests.policies.kubelet import Rows, cases, reach, rows_of, take, tree_of

CASES: list[dict[str, Any]] = cases()["cases"]
ALIGN = "prefer-align-cpus-by-uncorecache"
IN_ORDER = [case for case in CASES if "currently_allocated" not in case]
#: kubelet leaves the L3 it is on; the file may hold more of them.
GROWS_OUT_OF_ITS_L3 = {
    "id": "grows out of its L3",
    "topology": "topoUncoreSingleSocketSMT",
    "available": list(range(2, 16)),
    "currently_allocated": [0, 1],
    "request": 4,
    "expected": [0, 1, 4, 12],
}
RESIZES = [GROWS_OUT_OF_ITS_L3, *(case for case in CASES if "currently_allocated" in case)]


def containers(case: dict[str, Any]) -> list[tuple[int, list[int]]]:
    """CPUs wanted by each container of the case, and what kubelet gives it."""
    if isinstance(case["request"], list):
        return list(zip(case["request"], case["expected"]))
    return [(case["request"], case["expected"])]


@pytest.mark.parametrize("case", IN_ORDER, ids=lambda case: case["id"])
def test_we_reach_no_further_than_kubelet(case: dict[str, Any]) -> None:
    machine = rows_of(case["topology"])
    free = frozenset(case["available"])
    for count, expected in containers(case):
        found = pick(tree_of(case["topology"]), free, Claim(count))
        assert found is not None
        assert len(found.cpus) == count
        assert found.cpus <= free
        assert reach(machine, found.cpus).excess(reach(machine, expected)) == []
        free -= found.cpus


@pytest.mark.parametrize("case", RESIZES, ids=lambda case: case["id"])
def test_a_resize_reaches_no_further_than_kubelets(case: dict[str, Any]) -> None:
    machine, tree = rows_of(case["topology"]), tree_of(case["topology"])
    has, must_keep = frozenset(case["currently_allocated"]), frozenset(case.get("must_keep") or ())
    grows = case["request"] >= len(has)
    claim = Claim(case["request"], keep=has if grows else must_keep)
    found = pick(tree, has | frozenset(case["available"]) if grows else has, claim)
    assert found is not None
    assert claim.keep <= found.cpus
    assert len(found.cpus) == case["request"]
    assert reach(machine, found.cpus).excess(reach(machine, case["expected"])) == []


@pytest.mark.parametrize("case", IN_ORDER, ids=lambda case: case["id"])
def test_our_copy_of_kubelets_algorithm_gives_what_kubelet_gives(case: dict[str, Any]) -> None:
    free = frozenset(case["available"])
    for count, expected in containers(case):
        given = take(rows_of(case["topology"]), free, count, ALIGN in case["policy_options"])
        assert given == frozenset(expected)
        free -= frozenset(expected)


def used_by_kubelet(machine: Rows, random: Random) -> frozenset[int]:
    """What is free after containers have come and gone under kubelet's own manager."""
    free = frozenset(row.cpu for row in machine.rows)
    held: list[frozenset[int]] = []
    for _ in range(random.randrange(1, 40)):
        if held and random.random() < 0.4:
            free |= held.pop(random.randrange(len(held)))
        given = take(machine, free, random.choice((1, 2, 3, 4, 5, 6, 8, 12, 16, 24)))
        if given:
            held.append(given)
            free -= given
    return free


@pytest.mark.parametrize("histories", [8, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", cases()["topologies"])
def test_after_any_history_we_reach_no_further_than_kubelet(name: str, histories: int) -> None:
    machine, tree = rows_of(name), tree_of(name)
    random = Random(1)
    for _ in range(histories):
        free = used_by_kubelet(machine, random)
        count = random.randint(1, 24)
        given = take(machine, free, count)
        found = pick(tree, free, Claim(count))
        assert (found is None) == (given is None)
        if found is None or given is None:
            continue
        ours, theirs = reach(machine, found.cpus), reach(machine, given)
        # Fewer NUMA nodes may mean more L3s and split cores: whole cores or L3s of its own on two nodes
        # against scattered ones of a single node. Then the single node is our answer.
        assert ours.nodes <= theirs.nodes
        if ours.nodes == theirs.nodes:
            assert ours.excess(theirs) == [], (sorted(free), count)
