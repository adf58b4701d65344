"""The host's messages as bytes: what is put together says what messages of the whole would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import rpc_of
from cri_proxy.nri.messages import EventMessage, Shown, SyncPart, sync_parts
from cri_proxy.nri.ttrpc import TtrpcWire
from cri_proxy.nri.ttrpc_frames import MAX_DATA_BYTES, RUNTIME_CONNECTION

POD, CONTAINER = nri.PodSandbox(id="p", name="pod"), nri.Container(id="c", name="app")
POD_EVENTS = [event for event in range(1, nri.LAST) if "POD" in nri.Event.Name(event)]
#: A field that no release of NRI has yet.
UNKNOWN = b"\xfa\x3f\x03new"


@pytest.mark.parametrize("event", range(1, nri.LAST))
def test_every_events_request_has_its_pod_and_its_container(event: int) -> None:
    kind = getattr(nri, f"{rpc_of(event).method}Request")
    parts = {"pod": POD} if event in POD_EVENTS else {"pod": POD, "container": CONTAINER}
    message = EventMessage(event, *(part.SerializeToString() for part in parts.values()))
    assert kind.FromString(message.request) == kind(**parts)
    change = nri.StateChangeEvent.FromString(message.state_change())
    assert change == nri.StateChangeEvent(event=event, **parts)
    assert change.HasField("container") == ("container" in parts)


def test_a_requests_other_fields_come_behind() -> None:
    rest = nri.UpdatePodSandboxRequest(linux_resources=nri.LinuxResources(unified={"a": "b"}))
    data, behind = POD.SerializeToString(), rest.SerializeToString()
    request = EventMessage(nri.UPDATE_POD_SANDBOX, data, rest=behind).request
    assert nri.UpdatePodSandboxRequest.FromString(request) == nri.UpdatePodSandboxRequest(
        pod=POD, linux_resources=rest.linux_resources
    )


def test_what_is_shown_is_encoded_once_for_each_change() -> None:
    shown = Shown(nri.Container.FromString(CONTAINER.SerializeToString() + UNKNOWN))
    before = shown.data
    assert shown.data is before and UNKNOWN in before and shown.id == "c"
    shown.change().pid = 7
    assert nri.Container.FromString(shown.data).pid == 7 and UNKNOWN in shown.data


# ---------------------------------------------------------------------- Synchronize


def pods(count: int) -> list[Shown[nri.PodSandbox]]:
    return [Shown(nri.PodSandbox(id=f"p{at}")) for at in range(count)]


def containers(sizes: list[int]) -> list[Shown[nri.Container]]:
    return [Shown(nri.Container(id=f"c{at}", annotations={"a": "x" * size})) for at, size in enumerate(sizes)]


def read(parts: list[SyncPart]) -> list[nri.SynchronizeRequest]:
    requests = [nri.SynchronizeRequest.FromString(part.message) for part in parts]
    assert [request.more for request in requests] == [part.more for part in parts]
    return requests


def test_what_fits_is_one_message_also_nothing() -> None:
    assert sync_parts([], []) == ([SyncPart(b"", False)], [])
    parts, left_out = sync_parts(pods(1), containers([10, 20]))
    (request,) = read(parts)
    assert request == nri.SynchronizeRequest(
        pods=[pod.message for pod in pods(1)], containers=[one.message for one in containers([10, 20])]
    )
    assert not left_out


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
    parts, left_out = sync_parts(pods(3), all_containers)
    requests = read(parts)
    assert [pod.id for request in requests for pod in request.pods] == ["p0", "p1", "p2"]
    sent = [container.id for request in requests for container in request.containers]
    assert sent == [container.id for container in all_containers if container.id not in left_out]
    assert set(left_out) == {c.id for c in all_containers if len(c.data) > MAX_DATA_BYTES - 1000}
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    wire = TtrpcWire(RUNTIME_CONNECTION, "nri.pkg.api.v1alpha1.Runtime", "nri.pkg.api.v1alpha1.Plugin")
    for part in parts:
        wire.call("Synchronize", part.message, 20.0)  # else TooLarge
