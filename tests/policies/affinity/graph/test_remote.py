"""Rates of traffic with other nodes: smoothed as all others, and bounded whatever addresses come."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from policies.affinity.graph import remote

HALF_LIFE_S = 10.0


class Seen(NamedTuple):
    a: str
    address: str
    bytes: int


@pytest.fixture
def rates() -> remote.RemoteRates:
    return remote.RemoteRates()


def test_a_rate_comes_half_way_in_a_half_life_and_goes_so_as_well(rates) -> None:
    rates.observe(10.0, [Seen("web", "10.0.0.1", 10_000_000)], HALF_LIFE_S)
    assert rates.told[0].bytes_per_s == pytest.approx(500_000)
    rates.observe(10.0, [], HALF_LIFE_S)
    assert rates.told[0].bytes_per_s == pytest.approx(250_000)


def test_samples_of_one_interval_are_added_up_and_the_heaviest_is_first(rates) -> None:
    flows = [
        Seen("web", "10.0.0.1", 3_000_000),
        Seen("web", "10.0.0.2", 4_000_000),
        Seen("web", "10.0.0.1", 3_000_000),
    ]
    rates.observe(10.0, flows, HALF_LIFE_S)
    assert [(peer.address, round(peer.bytes_per_s)) for peer in rates.told] == [
        ("10.0.0.1", 300_000),
        ("10.0.0.2", 200_000),
    ]


def test_of_no_time_nothing_is_known(rates) -> None:
    rates.observe(0.0, [Seen("web", "10.0.0.1", 10_000_000)], HALF_LIFE_S)
    assert rates.told == ()


def test_what_is_silent_for_ten_half_lives_is_gone(rates) -> None:
    rates.observe(10.0, [Seen("web", "10.0.0.1", 10**13)], HALF_LIFE_S)
    rates.observe(90.0, [], HALF_LIFE_S)
    assert rates.told
    rates.observe(10.0, [], HALF_LIFE_S)
    assert rates.told == ()


def test_a_container_that_has_ended_is_gone_at_once(rates) -> None:
    rates.observe(10.0, [Seen("web", "10.0.0.1", 10**7), Seen("db", "10.0.0.1", 10**7)], HALF_LIFE_S)
    rates.forget({"web"})
    assert [peer.end for peer in rates.told] == ["db"]
    rates.observe(10.0, [], HALF_LIFE_S)
    assert [peer.end for peer in rates.told] == ["db"]


def test_ten_thousand_addresses_are_bounded_and_what_is_left_out_is_counted(rates) -> None:
    flows = [Seen(f"c{n % 100}", f"10.0.{n // 250}.{n % 250}", 10_000_000 + n) for n in range(10_000)]
    rates.observe(10.0, flows, HALF_LIFE_S)
    assert len(rates.told) == remote.MOST_TOLD
    assert rates.told[0].bytes_per_s == pytest.approx((10_000_000 + 9_999) / 20)
    assert rates.left_out == 10_000 - remote.MOST_TOLD
    assert len(rates._rates) == remote.MOST_KEPT_IN_ALL


def test_of_one_container_the_largest_are_told_and_others_may_grow(rates) -> None:
    old = [Seen("web", f"10.0.0.{n}", 10_000_000) for n in range(remote.MOST_OF_ENDPOINT)]
    rates.observe(10.0, old, HALF_LIFE_S)
    for _ in range(5):
        rates.observe(10.0, old, HALF_LIFE_S)
    new = Seen("web", "10.0.1.1", 12_000_000)
    rates.observe(10.0, [*old, new], HALF_LIFE_S)
    assert new.address not in {peer.address for peer in rates.told}
    assert rates.left_out == 1
    for _ in range(5):
        rates.observe(10.0, [*old, new], HALF_LIFE_S)
    assert rates.told[0].address == new.address
    assert len(rates.told) == remote.MOST_OF_ENDPOINT <= remote.MOST_KEPT


def test_a_trickle_is_neither_told_nor_counted(rates) -> None:
    rates.observe(10.0, [Seen("web", "10.0.0.1", 5_000)], HALF_LIFE_S)
    assert (rates.told, rates.left_out) == ((), 0)


@pytest.mark.parametrize(
    "state", [5, [["web", "10.0.0.1"]], [["web", "10.0.0.1", "much"]], [["web", "10.0.0.1", -1]]]
)
def test_a_state_that_is_something_else_is_refused(rates, state) -> None:
    with pytest.raises(ValueError):
        rates.restore(state)
    assert rates.told == ()
