"""What a host of plugins decides: calls of events, names, masks, order of the day."""

from __future__ import annotations

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import (
    effective_mask,
    is_meant,
    missing,
    pause_s,
    registration_problem,
    rpc_of,
    subscribes,
)

EVENTS = range(1, nri.LAST)


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_has_a_call_of_its_name_with_request_and_response(event: int) -> None:
    rpc = rpc_of(event)
    assert rpc.method in nri.DESCRIPTOR.services_by_name["Plugin"].methods_by_name
    assert hasattr(nri, f"{rpc.method}Request") and hasattr(nri, f"{rpc.method}Response")
    assert rpc.method.upper() == nri.Event.Name(event).replace("_", "")


def test_nine_events_were_state_changes_once() -> None:
    always_calls = {"CreateContainer", "UpdateContainer", "StopContainer", "UpdatePodSandbox"}
    always_calls |= {"ValidateContainerAdjustment"}
    assert {rpc_of(event).method for event in EVENTS if not rpc_of(event).has_fallback} == always_calls


def test_a_mask_has_a_bit_for_each_event() -> None:
    assert [event for event in EVENTS if subscribes(0x2009, event)] == [
        nri.RUN_POD_SANDBOX,
        nri.CREATE_CONTAINER,
        nri.VALIDATE_CONTAINER_ADJUSTMENT,
    ]


@pytest.mark.parametrize(
    ("asked", "given_mask", "unknown"),
    [(0, 0x3FFF, 0), (0x7FF, 0x7FF, 0), (0x3FFF, 0x3FFF, 0), (0x4001, 1, 0x4000), (0x8000, 0, 0x8000)],
)
def test_unknown_bits_are_left_out_and_nothing_is_everything(
    asked: int, given_mask: int, unknown: int
) -> None:
    assert effective_mask(asked) == (given_mask, unknown)


NAMES = {
    ("foo", "10"): "",
    ("Foo_1.b+c-d", "00"): "",
    ("", "10"): "invalid (empty) plugin name",
    ("foo,bar", "10"): "invalid plugin name: invalid plugin name \"foo,bar\": contains invalid character ','",
    ("föö", "10"): "invalid plugin name: invalid plugin name \"föö\": contains invalid character 'ö'",
    ("a\n", "10"): "invalid plugin name: invalid plugin name \"a\n\": contains invalid character '\n'",
    ("foo", "5"): 'invalid plugin index: invalid plugin index "5", must be 2 digits',
    ("foo", ""): 'invalid plugin index: invalid plugin index "", must be 2 digits',
    ("foo", "1x"): 'invalid plugin index: invalid plugin index "1x" (not [0-9][0-9])',
    ("foo", "١٢"): 'invalid plugin index: invalid plugin index "١٢" (not [0-9][0-9])',
}


@pytest.mark.parametrize(("name", "index"), NAMES)
def test_names_and_indices_are_what_nri_takes(name: str, index: str) -> None:
    assert registration_problem(name, index) == NAMES[name, index]


def test_a_plugin_is_meant_with_its_index_or_without_or_by_a_glob() -> None:
    assert (
        is_meant(["foo"], "10", "foo") and is_meant(["10-foo"], "10", "foo") and is_meant(["f*"], "10", "foo")
    )
    assert not is_meant(["20-foo", "bar"], "10", "foo")
    assert missing(["foo", "20-foo", "bar"], [("10", "foo")]) == ["20-foo", "bar"]


def test_pauses_grow_to_a_minute() -> None:
    assert [pause_s(failures) for failures in (0, 1, 2, 3, 7, 100)] == [1, 1, 2, 4, 60, 60]
