"""The pressure guard: which moves are taken back, and what is not tried again."""

from __future__ import annotations

import pytest

from cri_proxy.affinity.pressure_guard import BAN_S, Bans, PressureReading, forbid, shares, worse_places
from policies.affinity.planner.problem import CandidateDomain, Leaf, Problem, Tree, Vertex

HERE, THERE = frozenset(range(8)), frozenset(range(8, 16))


def waited(at_s: float, **seconds: float) -> dict[str, PressureReading]:
    """Readings of containers that have waited so many seconds in all."""
    return {key: PressureReading(at_s, round(value * 1e6)) for key, value in seconds.items()}


def test_a_share_is_the_part_of_the_time_between_two_looks_that_was_waited() -> None:
    assert shares(waited(0, a=1.0, b=0.0), waited(20, a=5.0, b=0.0)) == {"a": 0.2, "b": 0.0}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        pytest.param({}, waited(20, a=5.0), id="seen only once"),
        pytest.param(waited(19, a=4.0), waited(20, a=5.0), id="too short a time"),
        pytest.param(waited(0, a=5.0), waited(20, a=1.0), id="the counter began anew"),
    ],
)
def test_no_share_is_told_where_it_is_not_known(
    earlier: dict[str, PressureReading], later: dict[str, PressureReading]
) -> None:
    assert shares(earlier, later) == {}


def test_a_share_is_never_more_than_all_of_the_time() -> None:
    assert shares(waited(0, a=0.0), waited(10, a=11.0)) == {"a": 1.0}


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [
        pytest.param(
            {"in": 0.0, "other": 0.0}, {"in": 0.3, "other": 0.0}, True, id="waits that did not before"
        ),
        pytest.param(
            {"in": 0.0, "other": 0.0}, {"in": 0.05, "other": 0.0}, False, id="a few hundredths are noise"
        ),
        pytest.param(
            {"in": 0.5, "other": 0.0}, {"in": 0.62, "other": 0.0}, False, id="it waited half its time before"
        ),
        pytest.param(
            {"in": 0.0, "other": 0.0}, {"in": 0.3, "other": 0.3}, False, id="everybody waits longer"
        ),
        pytest.param(
            {"in": 0.0, "other": 0.4}, {"in": 0.2, "other": 0.0}, True, id="others wait less: no excuse"
        ),
        pytest.param({"other": 0.0}, {"in": 0.9, "other": 0.0}, False, id="what it was before is not known"),
    ],
)
def test_a_place_is_worse_if_its_containers_wait_longer_than_before_and_than_others(
    before: dict[str, float], after: dict[str, float], is_worse: bool
) -> None:
    cpus_of = {"in": HERE, "other": THERE}
    found = worse_places([HERE], cpus_of, before, after)
    assert [worse.place for worse in found] == ([HERE] if is_worse else [])


def test_the_containers_that_were_there_already_count_as_well() -> None:
    """The one that has moved in is well; those it has crowded are not."""
    before, after = {"new": 0.0, "old": 0.0, "far": 0.0}, {"new": 0.0, "old": 0.4, "far": 0.0}
    [worse] = worse_places([HERE], {"new": HERE, "old": HERE, "far": THERE}, before, after)
    assert worse.after == pytest.approx(0.2)


def test_the_sentence_tells_both_shares() -> None:
    [worse] = worse_places([HERE], {"a": HERE}, {"a": 0.02}, {"a": 0.25})
    assert worse.sentence == (
        "containers there wait for CPUs 25% of the time, before the move it was 2% (elsewhere +0%)"
    )


def test_a_ban_ends_after_ten_minutes() -> None:
    bans = Bans()
    bans.add("a", HERE, now_s=100)
    assert bans.at(100 + BAN_S - 1) == {("a", HERE)}
    assert bans.at(100 + BAN_S) == frozenset()


def test_a_banned_site_is_none_for_its_container_alone() -> None:
    leaves = (Leaf("L3 0", 8000, 0, 0), Leaf("L3 1", 8000, 0, 0))
    sites = (CandidateDomain("ccx", "L3 0", (0,)), CandidateDomain("ccx", "L3 1", (1,)))
    tree = Tree(leaves, sites, ((0.0, 84.0), (84.0, 0.0)))
    problem = Problem(tree, (Vertex("a", 100, 0, (0, 1)), Vertex("b", 100, 0, (0, 1))), ((0, 1, 5.0),))
    left = forbid(problem, (HERE, THERE), {("a", THERE), ("b", HERE)})
    assert [vertex.sites for vertex in left.vertices] == [(0,), (0, 1)], "b is there already"
