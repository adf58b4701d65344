"""A device is as healthy as the claims on it."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.api.reader import Unreadable
from cluster.dra.health import DeviceState, device_states

DEVICES = {"devices": [{"name": "l3-1"}, {"name": "l3-0"}]}


def on(*devices: str, name: str = "four", **changes: Any) -> dict[str, Any]:
    """A claim, as the daemon tells of it."""
    found = {"namespace": "shop", "name": name, "devices": list(devices), "cpus": "0-3", "healthy": True}
    return {**found, "moved": False, **changes}


def states(*claims: dict[str, Any]) -> tuple[DeviceState, ...]:
    return device_states(DEVICES, {"claims": list(claims)})


def test_devices_are_healthy_where_claims_have_what_they_were_given() -> None:
    assert states() == states(on("l3-0")) == (DeviceState("l3-0"), DeviceState("l3-1"))


def test_cpus_that_went_offline_are_told_with_the_claim_that_has_them() -> None:
    for cpus, now in (("0-2", "0-2"), ("", "none")):
        sentence = "the claim shop/four has not all that it was given, as CPUs are offline; its CPUs are"
        found = states(on("l3-0", healthy=False, cpus=cpus))
        assert found == (DeviceState("l3-0", False, f"{sentence} {now} now"), DeviceState("l3-1"))


def test_a_claim_that_had_to_move_says_where_it_is_now() -> None:
    found = states(on("l3-1", moved=True))[1]
    assert found == DeviceState("l3-1", True, "the claim shop/four had to move; its CPUs are 0-3 now")


def test_of_several_claims_the_one_that_is_worst_off_speaks() -> None:
    claims = [on("l3-0", name="a"), on("l3-0", name="b", moved=True), on("l3-0", name="c", healthy=False)]
    for order in (claims, claims[::-1]):
        found = states(*order)[0]
        assert not found.is_healthy and found.message.startswith("the claim shop/c has not all")


def test_a_device_that_is_not_offered_any_more_is_told_while_a_claim_has_it() -> None:
    assert [each.device for each in states(on("node-0-whole"))] == ["l3-0", "l3-1", "node-0-whole"]


@pytest.mark.parametrize("found", [[], {"devices": [{}]}, {"devices": 1}])
def test_what_is_no_document_is_not_guessed_at(found: Any) -> None:
    with pytest.raises(Unreadable):
        device_states(found, {})
