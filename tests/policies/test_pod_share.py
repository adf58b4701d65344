"""What is whose in a pod: the numbers are those that kubelet 1.36 writes (see policies/pod_share.py)."""

from __future__ import annotations

from typing import Optional

import pytest

from policies.model import POD_CGROUP, SANDBOX_RESOURCES, Container, PodSize, Resources
from policies.pod_share import shared_out, with_told
from tests.scenes import make_pod

Told = tuple[int, Optional[int]]


def of(name: str, told: Told) -> Container:
    return Container(make_pod("p"), name, resources=Resources(*told))


def size(request: int, limit: Optional[int], source: str = SANDBOX_RESOURCES, overhead: int = 0) -> PodSize:
    return PodSize(request, limit, source, overhead)


def charged(whole: Optional[PodSize], *told: Told) -> list[int]:
    names = "abcd"[: len(told)]
    found = shared_out(whole, [of(name, each) for name, each in zip(names, told)])
    return [found[name].resources.milli_request for name in names]


POD_LEVEL = {
    "requests 2, limits 8": (size(2000, 8000), [(8000, 8000)] * 2, [1000, 1000]),
    "one container of it": (size(2000, 8000), [(8000, 8000)], [2000]),
    "requests 2, limits 32": (size(2000, 32000), [(32000, 32000)] * 3, [667, 667, 666]),
    "Guaranteed": (size(4000, 4000), [(4000, 4000)] * 2, [2000, 2000]),
    "limits only": (size(8000, 8000), [(8000, 8000)] * 2, [4000, 4000]),
    "requests only": (size(2000, None), [(0, None)] * 2, [1000, 1000]),
    "resized": (size(16000, 16000), [(0, 16000)] * 2, [8000, 8000]),
    "resized, and one was restarted": (size(16000, 16000), [(0, 16000), (16000, 16000)], [8000, 8000]),
    "resized, the containers before the sandbox": (size(16000, 16000), [(0, 4000), (16000, 16000)], [0, 16000]),
    "one with its own": (size(4000, 8000), [(1000, 8000), (8000, 8000)], [1000, 3000]),
    "one with its own request and limit": (size(8000, 8000), [(2000, 2000), (8000, 8000)], [2000, 6000]),
    "the others request all of it": (size(2000, 8000), [(2000, 8000), (8000, 8000)], [2000, 0]),
    "one with its own, the others nothing": (size(3000, None), [(1000, None), (0, None)], [1000, 2000]),
    "no quotas (cpuCFSQuota: false)": (size(4000, None), [(4000, 4000)] * 2, [2000, 2000]),
    "beside the overhead": (size(2250, 8250, overhead=250), [(8000, 8000)] * 2, [1000, 1000]),
    "by the pod's cgroup": (size(1990, 8000, POD_CGROUP), [(8000, 8000)] * 2, [995, 995]),
}  # fmt: skip


@pytest.mark.parametrize(("whole", "told", "expected"), POD_LEVEL.values(), ids=POD_LEVEL)
def test_the_pod_is_charged_once(whole: PodSize, told: list[Told], expected: list[int]) -> None:
    assert charged(whole, *told) == expected
    assert sum(expected) <= whole.milli_of_containers


PLAIN = {
    "one": (size(4000, 4000), [(4000, 4000)]),
    "two": (size(8000, 8000), [(4000, 4000), (4000, 4000)]),
    "one without a limit": (size(5000, 4000), [(4000, 4000), (1000, None)]),
    "one without anything": (size(4000, 4000), [(4000, 4000), (0, None)]),
    "one without anything, none limited": (size(4000, None), [(4000, None), (0, None)]),
    "an init container is larger": (size(16000, 16000), [(1000, 1000), (4000, 4000)]),
    "not all of them are there": (size(8000, 8000), [(1000, 2000)]),
    "requests below limits": (size(3000, 12000), [(1000, 4000), (2000, 8000)]),
    "the size is an annotation's": (size(1000, 1000, "annotation x"), [(4000, 4000), (4000, 4000)]),
    "the size is not known": (None, [(4000, 4000), (0, None)]),
    "by a weight of cgroup v2": (size(7990, 8000, POD_CGROUP), [(4000, 4000), (4000, 4000)]),
    "more than shares can say": (size(256_000, None), [(200_000, None), (100_000, None)]),
}


@pytest.mark.parametrize(("whole", "told"), PLAIN.values(), ids=PLAIN)
def test_containers_with_resources_of_their_own_are_charged_those(
    whole: Optional[PodSize], told: list[Told]
) -> None:
    assert charged(whole, *told) == [request for request, _ in told]


def test_an_init_container_that_is_over_leaves_nothing_to_the_others() -> None:
    past = PodSize(16000, None, SANDBOX_RESOURCES, is_past=True)
    assert charged(past, (4000, None), (0, None)) == [4000, 0]


def test_a_request_that_an_update_tells_is_the_containers_own() -> None:
    """The sandbox's size is older where its update has not come, or never comes (kubelets before 1.33)."""
    grown = with_told(of("a", (2000, 2000)), Resources(4000, 4000))
    found = shared_out(size(4000, 4000), [grown, of("b", (2000, 2000))])
    assert [found[name].resources.milli_request for name in "ab"] == [4000, 2000]


def test_what_shares_goes_on_sharing_while_a_resize_is_half_done() -> None:
    both = shared_out(size(8000, 8000), [of("a", (8000, 8000)), of("b", (8000, 8000))])
    both = shared_out(size(16000, 16000), both.values())
    assert [(c.resources.milli_request, c.resources.milli_limit) for c in both.values()] == [(8000, 8000)] * 2
    told = [with_told(both["a"], Resources(0, 16000)), both["b"]]
    both = shared_out(size(16000, 16000), told)
    assert {c.resources.milli_request for c in both.values()} == {8000}
    assert both["a"].resources.milli_limit == 16000
    assert both["a"].told == Resources(0, 16000)


def test_the_smaller_limit_counts_while_only_one_of_two_is_told() -> None:
    both = shared_out(size(16000, 16000), [of("a", (16000, 16000)), of("b", (16000, 16000))])
    both = shared_out(size(4000, 4000), both.values())
    assert [(c.resources.milli_request, c.resources.milli_limit) for c in both.values()] == [(2000, 4000)] * 2
