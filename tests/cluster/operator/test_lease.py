"""The Lease: taken when free or run out, renewed by its holder, lost in time."""

from __future__ import annotations

from cluster.operator.io.leader import DURATION_S, RENEW_WITHIN_S, Election, released

OTHER = {"holderIdentity": "b", "leaseDurationSeconds": 15, "renewTime": "t1", "leaseTransitions": 3}


def test_a_lease_that_is_not_there_may_be_taken() -> None:
    election = Election("a").observed(None, 100.0)
    assert election.may_take(100.0)
    spec = election.spec(0.0)
    assert spec["holderIdentity"] == "a"
    assert spec["leaseTransitions"] == 0
    assert spec["renewTime"] == "1970-01-01T00:00:00.000000Z"


def test_anothers_lease_may_be_taken_when_it_has_not_changed_for_its_duration_as_seen_here() -> None:
    election = Election("a").observed(OTHER, 100.0)
    assert not election.may_take(100.0 + DURATION_S - 1)
    assert election.observed(dict(OTHER), 110.0).may_take(100.0 + DURATION_S)
    assert not election.observed({**OTHER, "renewTime": "t2"}, 110.0).may_take(100.0 + DURATION_S)
    assert election.spec(0.0)["leaseTransitions"] == 4


def test_the_holder_may_write_until_it_could_not_renew_for_its_deadline_which_is_before_the_lease_runs_out() -> (
    None
):
    election = Election("a").observed(None, 100.0)
    election = election.renewed(election.spec(0.0), 100.0)
    assert election.holds(100.0 + RENEW_WITHIN_S - 1)
    assert not election.holds(100.0 + RENEW_WITHIN_S)
    assert RENEW_WITHIN_S < DURATION_S


def test_a_renewal_keeps_when_it_was_acquired() -> None:
    election = Election("a").observed(None, 0.0)
    election = election.renewed(election.spec(0.0), 0.0)
    again = election.spec(5.0)
    assert again["acquireTime"] == "1970-01-01T00:00:00.000000Z"
    assert again["renewTime"] == "1970-01-01T00:00:05.000000Z"
    assert again["leaseTransitions"] == 0


def test_a_holder_that_reads_anothers_name_has_lost_it() -> None:
    election = Election("a").observed(None, 0.0)
    election = election.renewed(election.spec(0.0), 0.0)
    assert not election.observed(OTHER, 1.0).holds(1.0)


def test_a_lease_of_ones_own_from_before_a_restart_is_taken_but_not_held_before_it_is_written() -> None:
    election = Election("a").observed({**OTHER, "holderIdentity": "a"}, 0.0)
    assert election.may_take(0.0)
    assert not election.holds(0.0)


def test_a_released_lease_is_free_at_once() -> None:
    assert Election("a").observed(released(OTHER, 0.0), 0.0).may_take(0.0)
