"""For how long a stop of the daemon serves on, by the call that is under way."""

from __future__ import annotations

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.io.drain import DrainedCall, Settling, grace_of

STOP, CREATE = (f"/runtime.v1.RuntimeService/{name}" for name in ("StopContainer", "CreateContainer"))
BEGUN_S = 100.0


@pytest.mark.parametrize(
    ("call", "until_s"),
    [
        (DrainedCall(CREATE, 90), 105),
        (DrainedCall(STOP, 100, grace_s=30), 135),
        # Part of its time is over; but the last of it, in which the container is killed, is not.
        (DrainedCall(STOP, 80, grace_s=30), 115),
        (DrainedCall(STOP, 10, grace_s=30), 105),
        # Beyond the bound, and not known.
        (DrainedCall(STOP, 100, grace_s=3600), 160),
        (DrainedCall(STOP, 100), 160),
        # Begun meanwhile.
        (DrainedCall(STOP, 130, grace_s=10), 145),
        (DrainedCall(STOP, 150, grace_s=10), 160),
    ],
)
def test_a_call_has_its_time_and_no_more(call: DrainedCall, until_s: float) -> None:
    settling = Settling(BEGUN_S, 5, 60, only_stops=False)
    assert settling.waits_for(call, until_s - 0.01) and not settling.waits_for(call, until_s)
    assert settling.is_due(call, until_s)


def test_a_bound_below_the_drain_takes_nothing_from_it() -> None:
    assert Settling(BEGUN_S, 5, 1, only_stops=False).waits_for(DrainedCall(STOP, 100, grace_s=30), 104.9)


def test_calls_that_came_later_are_waited_for_when_they_are_slow() -> None:
    settling = Settling(BEGUN_S, 5, 60, only_stops=False)
    assert not settling.waits_for(DrainedCall(CREATE, 101), 101.2)
    assert settling.waits_for(DrainedCall(CREATE, 101), 101.6)
    assert not settling.is_due(DrainedCall(CREATE, 101), 106)


def test_on_sockets_of_our_own_only_stops_of_containers_are_waited_for() -> None:
    settling = Settling(BEGUN_S, 5, 60, only_stops=True)
    assert not settling.waits_for(DrainedCall(CREATE, 90), 100)
    assert not settling.is_due(DrainedCall(CREATE, 90), 100)  # the drain is for it
    assert settling.waits_for(DrainedCall(STOP, 100, grace_s=30), 134)


@pytest.mark.parametrize(("timeout", "grace_s"), [(30, 30.0), (0, 0.0), (-1, 0.0), (1 << 40, float(1 << 40))])
def test_the_grace_period_is_read_of_the_request(timeout: int, grace_s: float) -> None:
    message = cri.StopContainerRequest(container_id="c", timeout=timeout).SerializeToString()
    assert grace_of(STOP, message) == grace_s


def test_no_grace_period_is_known_of_other_calls_and_of_what_cannot_be_read() -> None:
    message = cri.StopContainerRequest(container_id="c", timeout=30).SerializeToString()
    assert grace_of(CREATE, message) is None
    assert grace_of(STOP, b"\x0a\xff") is None
