"""What a host of plugins decides: calls of events, names, masks, order of the day, parts of a Synchronize."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.core.nri.dispatch import (
    SyncPart,
    effective_mask,
    is_meant,
    missing,
    pause_s,
    registration_problem,
    request_of,
    rpc_of,
    state_change,
    subscribes,
    sync_parts,
)
from cri_proxy.core.ttrpc import MAX_DATA_BYTES, RUNTIME_CONNECTION, Wire

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


def test_a_state_change_says_the_same() -> None:
    pod, container = nri.PodSandbox(id="p"), nri.Container(id="c")
    request = request_of(nri.START_CONTAINER, pod=pod, container=container)
    assert state_change(nri.START_CONTAINER, request) == nri.StateChangeEvent(
        event=nri.START_CONTAINER, pod=pod, container=container
    )
    request = request_of(nri.RUN_POD_SANDBOX, pod=pod)
    assert not state_change(nri.RUN_POD_SANDBOX, request).HasField("container")


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


# ---------------------------------------------------------------------- Synchronize


def containers(sizes: list[int]) -> list[nri.Container]:
    return [nri.Container(id=f"c{at}", annotations={"a": "x" * size}) for at, size in enumerate(sizes)]


def read(parts: list[SyncPart]) -> list[nri.SynchronizeRequest]:
    requests = [nri.SynchronizeRequest.FromString(part.message) for part in parts]
    assert [request.more for request in requests] == [part.more for part in parts]
    return requests


def test_what_fits_is_one_message_also_nothing() -> None:
    assert sync_parts([], []) == ([SyncPart(b"", False)], [])
    parts, left_out = sync_parts([nri.PodSandbox(id="p")], containers([10, 20]))
    (request,) = read(parts)
    assert [c.id for c in request.containers] == ["c0", "c1"] and not request.more and not left_out
    assert request == nri.SynchronizeRequest(pods=[nri.PodSandbox(id="p")], containers=containers([10, 20]))


def test_two_hundred_ordinary_containers_are_one_message() -> None:
    assert len(sync_parts([], containers([6000] * 200))[0]) == 1


@settings(max_examples=15)  # megabytes each
@given(
    st.lists(
        st.sampled_from([0, 100, 127, 128, 16384, 70_000, 1_000_000, 2_097_000, 4_100_000, 4_300_000]),
        max_size=9,
    )
)
def test_parts_are_in_order_whole_and_small_enough_to_be_sent(sizes: list[int]) -> None:
    all_containers = containers(sizes)
    pods = [nri.PodSandbox(id=f"p{at}") for at in range(3)]
    parts, left_out = sync_parts(pods, all_containers)
    requests = read(parts)
    assert [pod.id for request in requests for pod in request.pods] == ["p0", "p1", "p2"]
    sent = [container.id for request in requests for container in request.containers]
    assert sent == [container.id for container in all_containers if container.id not in left_out]
    assert set(left_out) == {c.id for c in all_containers if c.ByteSize() > MAX_DATA_BYTES - 1000}
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    wire = Wire(RUNTIME_CONNECTION, "nri.pkg.api.v1alpha1.Runtime", "nri.pkg.api.v1alpha1.Plugin")
    for part in parts:
        wire.call("Synchronize", part.message, 20.0)  # else TooLarge
