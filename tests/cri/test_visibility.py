from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.visibility import GONE, Visibility, container_key, cut_entries, sandbox_key

UNKNOWN_FIELD = b"\xf2\x3f\x03new"  # number 1022, three bytes


def container(some_id: str, pod: str = "p", name: str = "c", attempt: int = 0) -> cri.Container:
    metadata = cri.ContainerMetadata(name=name, attempt=attempt)
    return cri.Container(id=some_id, pod_sandbox_id=pod, metadata=metadata)


def sandbox(some_id: str, name: str = "n") -> cri.PodSandbox:
    return cri.PodSandbox(id=some_id, metadata=cri.PodSandboxMetadata(name=name, namespace="ns", uid="u"))


def stats(some_id: str) -> cri.ContainerStats:
    return cri.ContainerStats(attributes=cri.ContainerAttributes(id=some_id))


def sandbox_stats(some_id: str, name: str) -> cri.PodSandboxStats:
    metadata = cri.PodSandboxMetadata(name=name, namespace="ns", uid="u")
    return cri.PodSandboxStats(attributes=cri.PodSandboxAttributes(id=some_id, metadata=metadata))


def hiding() -> Visibility:
    hidden = Visibility()
    hidden.containers.add("c1")
    hidden.making.add(("p", "being-made", 2))
    hidden.sandboxes.add("s1")
    hidden.making_sandboxes.add(("new", "ns", "u", 0))
    return hidden


@pytest.mark.parametrize(
    ("method", "reply", "kept"),
    [
        pytest.param(
            "ListContainers",
            cri.ListContainersResponse(
                containers=[container("c0"), container("c1"), container("c2", "p", "being-made", 2)]
            ),
            cri.ListContainersResponse(containers=[container("c0")]),
            id="by id and by name",
        ),
        pytest.param(
            "ListContainers",
            cri.ListContainersResponse(
                containers=[container("c3", "p", "being-made", 1), container("c4", "q", "being-made", 2)]
            ),
            cri.ListContainersResponse(
                containers=[container("c3", "p", "being-made", 1), container("c4", "q", "being-made", 2)]
            ),
            id="other attempts and other pods stay",
        ),
        pytest.param(
            "ListPodSandbox",
            cri.ListPodSandboxResponse(items=[sandbox("s1"), sandbox("s2"), sandbox("s3", "new")]),
            cri.ListPodSandboxResponse(items=[sandbox("s2")]),
            id="sandboxes",
        ),
        pytest.param(
            "ListContainerStats",
            cri.ListContainerStatsResponse(stats=[stats("c1"), stats("c0")]),
            cri.ListContainerStatsResponse(stats=[stats("c0")]),
            id="statistics",
        ),
        pytest.param(
            "ListPodSandboxStats",
            cri.ListPodSandboxStatsResponse(stats=[sandbox_stats("s9", "new"), sandbox_stats("s2", "n")]),
            cri.ListPodSandboxStatsResponse(stats=[sandbox_stats("s2", "n")]),
            id="statistics of sandboxes",
        ),
        pytest.param(
            "ListPodSandboxMetrics",
            cri.ListPodSandboxMetricsResponse(pod_metrics=[cri.PodSandboxMetrics(pod_sandbox_id="s1")]),
            cri.ListPodSandboxMetricsResponse(),
            id="metrics",
        ),
        pytest.param(
            "PodSandboxStatus",
            cri.PodSandboxStatusResponse(
                status=cri.PodSandboxStatus(id="p"),
                containers_statuses=[
                    cri.ContainerStatus(id="c0"),
                    cri.ContainerStatus(
                        id="c9", metadata=cri.ContainerMetadata(name="being-made", attempt=2)
                    ),
                ],
            ),
            cri.PodSandboxStatusResponse(
                status=cri.PodSandboxStatus(id="p"), containers_statuses=[cri.ContainerStatus(id="c0")]
            ),
            id="containers in a sandbox's status",
        ),
    ],
)
def test_what_is_hidden_is_not_in_a_reply(method: str, reply: Any, kept: Any) -> None:
    cut = hiding().filter_of(method)
    assert cut is not None
    assert cut(reply.SerializeToString() + UNKNOWN_FIELD) == kept.SerializeToString() + UNKNOWN_FIELD


def event(container_id: str, *statuses: cri.ContainerStatus, pod: str = "p") -> bytes:
    return bytes(
        cri.ContainerEventResponse(
            container_id=container_id,
            pod_sandbox_status=cri.PodSandboxStatus(id=pod),
            containers_statuses=statuses,
        ).SerializeToString()
    )


MADE = cri.ContainerStatus(id="c9", metadata=cri.ContainerMetadata(name="being-made", attempt=2))


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        pytest.param(event("c0"), event("c0"), id="somebody else's"),
        pytest.param(event("c1"), None, id="a hidden container's"),
        pytest.param(event("c9", MADE), None, id="one whose id nobody knows yet"),
        pytest.param(event("c0", MADE), event("c0"), id="another's, in the same pod"),
        pytest.param(event("s1", pod="s1"), None, id="a hidden sandbox's"),
        pytest.param(b"\xff", b"\xff", id="no event at all"),
    ],
)
def test_events_of_what_is_hidden_are_left_out(message: bytes, seen: Any) -> None:
    cut = hiding().filter_of("GetContainerEvents")
    assert cut is not None
    assert cut(message) == seen


def test_while_nothing_is_hidden_nothing_is_filtered() -> None:
    assert not Visibility()
    assert all(
        Visibility().filter_of(m) is None
        for m in ("ListContainers", "GetContainerEvents", "PodSandboxStatus")
    )
    assert hiding().filter_of("Version") is None


def test_late_events_of_what_was_removed_unseen_stay_hidden() -> None:
    hidden = Visibility()
    hidden.containers.add("c1")
    hidden.removed("c1")
    assert not hidden
    cut = hidden.filter_of("GetContainerEvents")
    assert cut is not None
    assert (cut(event("c1")), cut(event("c0"))) == (None, event("c0"))
    for number in range(GONE):
        hidden.removed(f"x{number}")
    assert cut(event("c1")) == event("c1")


def test_an_id_may_be_asked_for_by_its_beginning() -> None:
    hidden = Visibility()
    hidden.containers.add("abcdef")
    hidden.sandboxes.add("123456")
    assert hidden.hides_container("abc")
    assert not hidden.hides_container("")
    assert not hidden.hides_container("abd")
    assert hidden.hides_sandbox("123456")


def test_requests_name_what_they_make() -> None:
    create = cri.CreateContainerRequest(pod_sandbox_id="p")
    create.config.metadata.name, create.config.metadata.attempt = "c", 3
    assert container_key(create) == ("p", "c", 3)
    run = cri.RunPodSandboxRequest()
    run.config.metadata.CopyFrom(cri.PodSandboxMetadata(name="n", namespace="ns", uid="u", attempt=1))
    assert sandbox_key(run) == ("n", "ns", "u", 1)


@given(st.binary(max_size=200))
def test_bytes_that_mean_nothing_come_back_or_lose_whole_fields(message: bytes) -> None:
    assert cut_entries(message, 1, lambda entry: False) == message
    assert len(cut_entries(message, 1, lambda entry: True)) <= len(message)


@given(st.lists(st.tuples(st.integers(1, 5), st.binary(max_size=20))))
def test_exactly_the_chosen_entries_are_cut(entries: list[tuple[int, bytes]]) -> None:
    def encoded(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    message = b"".join(encoded(*entry) for entry in entries)
    kept = b"".join(encoded(n, c) for n, c in entries if n != 2 or len(c) % 2 == 0)
    assert cut_entries(message, 2, lambda entry: len(entry) % 2 == 1) == kept
