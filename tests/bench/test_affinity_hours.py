"""Moves come to an end where rates are steady in the mean, and another pattern is answered: two simulated hours."""

from __future__ import annotations

from bench.affinity_graphs import HYGON, Machine, applications
from bench.affinity_hours import CHURN_S, SUCCESSOR_S, Hours, simulate, topology_of

ONE_SOCKET = Machine("1S·1N·4C·8", 1, 1, 4, 8)


def test_noise_moves_next_to_nothing_and_another_pattern_is_answered_within_two_plans() -> None:
    found = simulate(ONE_SOCKET, 0.75, churn=False, seed=4, hours=2.0, settles_s=1800, work=2000)
    assert found.moves >= 20
    assert found.again == 0
    assert found.settled_minutes == 60 and found.settled <= 6
    assert found.plans is not None and found.plans <= 2


def test_flows_that_talk_one_minute_in_ten_are_placed_by_their_means() -> None:
    kind = "bursty, 1 minute in 10"
    runs = [
        simulate(ONE_SOCKET, 0.75, churn=False, seed=seed, hours=2.0, settles_s=3600, work=500, kind=kind)
        for seed in range(1, 6)
    ]
    assert all(found.moves >= 5 and found.settled_minutes == 60 and found.settled <= 12 for found in runs)
    assert sum(found.missed for found in runs) / len(runs) < 0.1


def test_moves_that_find_no_room_any_more_are_not_counted_and_hold_up_no_plan() -> None:
    found = simulate(HYGON, 0.9, churn=True, seed=1, hours=0.5, settles_s=600, work=100)
    assert found.moves > 200 and found.again <= 5
    assert found.plans == 1


def test_a_successor_has_the_owner_of_the_container_before_it() -> None:
    hours = Hours(applications(ONE_SOCKET, 1, 4, 0.75), topology_of(ONE_SOCKET), 4, 100)
    first = dict(hours.identities)
    hours.come_and_go(CHURN_S)
    hours.come_and_go(CHURN_S + SUCCESSOR_S)
    [new], [old] = hours.identities.keys() - first.keys(), first.keys() - hours.identities.keys()
    assert hours.identities[new].owner == first[old].owner
