"""Which pods give way to others, and which containers may save CPU time for later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.cri.annotations.keys import QUOTA_BURST
from cri_proxy.isolation.cpu_time import CpuCgroup, CpuPod, cpu_settings, lowered, pod_quota
from cri_proxy.isolation.model import BATCH, PROTECTED, STANDARD, IsolatedContainer
from policies.model import Qos
from tests.scenes import make_container, make_pod

V2 = ("cpu.idle", "cpu.weight", "cpu.max.burst")
V1 = ("cpu.idle", "cpu.shares", "cpu.cfs_burst_us")
OPEN_EULER = ("cpu.shares", "cpu.cfs_burst_us", "cpu.qos_level", "memory.qos_level")


def cgroup(name: str, files: tuple[str, ...] = V2, quota_us: int = -1) -> CpuCgroup:
    return CpuCgroup({file: f"/{name}/{file}" for file in files}, quota_us)


def container(
    name: str,
    cls: str,
    qos: Qos = Qos.BURSTABLE,
    annotations: Optional[Mapping[str, str]] = None,
    limit: Optional[float] = None,
) -> IsolatedContainer:
    pod = make_pod("p", annotations=annotations)
    return IsolatedContainer(
        name,
        f"default/p/{name}",
        cls,
        "",
        frozenset(),
        container=make_container(name, limit, qos=qos, pod=pod),
    )


def pod_of(
    *containers: IsolatedContainer,
    files: tuple[str, ...] = V2,
    quotas: tuple[int, ...] = (),
    quota_us: int = -1,
    is_whole: bool = True,
) -> CpuPod:
    quotas = quotas or (-1,) * len(containers)
    inside = tuple((each, cgroup(each.key, files, quota)) for each, quota in zip(containers, quotas))
    return CpuPod(cgroup("pod", files, quota_us), inside, is_whole)


def values(pod: CpuPod, ceilings: Mapping[str, int] = {}) -> dict[str, str]:
    return {each.place[len("file:") :]: each.value for each in cpu_settings([pod], ceilings)[0]}


@pytest.mark.parametrize(
    ("qos", "files", "wanted"),
    [
        (Qos.BESTEFFORT, V2, {"/pod/cpu.idle": "1"}),
        (Qos.BESTEFFORT, V1, {"/pod/cpu.idle": "1"}),
        (Qos.BURSTABLE, V2, {"/pod/cpu.weight": "1"}),
        (Qos.GUARANTEED, V1, {"/pod/cpu.shares": "2"}),
        (Qos.BESTEFFORT, V1[1:], {"/pod/cpu.shares": "2"}),
        (Qos.BESTEFFORT, (), {}),
    ],
)
def test_a_pod_of_batch_is_idle_where_nothing_can_write_its_weight_and_has_the_least_weight_elsewhere(
    qos: Qos, files: tuple[str, ...], wanted: dict[str, str]
) -> None:
    assert values(pod_of(container("a", BATCH, qos), container("b", BATCH, qos), files=files)) == wanted


def test_a_weight_that_the_kernel_forgets_with_idle_is_written_back_after_it() -> None:
    (idle,), _ = cpu_settings([pod_of(container("a", BATCH, Qos.BESTEFFORT))])
    assert idle.beside == ("file:/pod/cpu.weight",) and not idle.is_shared
    (weight,), _ = cpu_settings([pod_of(container("a", BATCH))])
    assert weight.is_shared


@pytest.mark.parametrize("other", [STANDARD, PROTECTED, None])
def test_a_pod_with_a_container_that_is_not_batch_keeps_its_weight(other: Optional[str]) -> None:
    batch = container("a", BATCH, Qos.BESTEFFORT)
    others = [container("b", other, Qos.BESTEFFORT)] if other else []
    assert values(pod_of(batch, *others, is_whole=other is not None)) == {}


def test_openeulers_levels_are_the_pods_and_its_containers() -> None:
    found = values(pod_of(container("a", BATCH, Qos.BESTEFFORT), files=OPEN_EULER))
    levels = {place for place, value in found.items() if value == "-1"}
    assert levels == {f"/{of}/{name}.qos_level" for of in ("pod", "a") for name in ("cpu", "memory")}


def test_a_protected_container_may_save_its_quota_and_its_pod_the_sum() -> None:
    pod = pod_of(
        container("a", PROTECTED), container("b", STANDARD), quotas=(100_000, 50_000), quota_us=150_000
    )
    assert values(pod) == {"/a/cpu.max.burst": "100000", "/pod/cpu.max.burst": "100000"}


def test_a_container_without_a_quota_has_no_burst_and_its_pod_has_one_where_that_is_limited() -> None:
    assert values(pod_of(container("a", PROTECTED))) == {}
    assert values(pod_of(container("a", PROTECTED), quota_us=70_000)) == {"/pod/cpu.max.burst": "70000"}


def test_what_turbo_adds_to_a_quota_is_nothing_to_save() -> None:
    pod = pod_of(container("a", PROTECTED, limit=1), quotas=(170_000,))
    assert values(pod) == {"/a/cpu.max.burst": "100000"}
    assert values(pod_of(container("a", PROTECTED, limit=2), quotas=(100_000,))) == {
        "/a/cpu.max.burst": "100000"
    }


@pytest.mark.parametrize(
    ("text", "cls", "wanted"),
    [
        ("2000", STANDARD, "2000"),
        (" 2000 ", BATCH, "2000"),
        ("900000", STANDARD, "100000"),
        ("0", PROTECTED, None),
        ("2000", PROTECTED, "2000"),
    ],
)
def test_rubiks_annotation_says_how_much_at_most_the_quota(
    text: str, cls: str, wanted: Optional[str]
) -> None:
    pod = pod_of(container("a", cls, annotations={QUOTA_BURST: text}), quotas=(100_000,))
    found, notes = cpu_settings([pod])
    assert {each.place: each.value for each in found}.get("file:/a/cpu.max.burst") == wanted and not notes


@pytest.mark.parametrize("text", ["-1", "2ms", "", "1" * 400])
def test_an_annotation_that_is_no_time_is_said_and_what_the_class_says_counts(text: str) -> None:
    pod = pod_of(container("a", PROTECTED, annotations={QUOTA_BURST: text}), quotas=(100_000,))
    found, (note,) = cpu_settings([pod])
    assert [each.value for each in found] == ["100000"]
    assert note.startswith(f"default/p/a: the annotation {QUOTA_BURST} is ")


def test_a_burst_stays_below_a_smaller_quota_that_is_on_its_way() -> None:
    pod = pod_of(container("a", PROTECTED), quotas=(100_000,), quota_us=100_000)
    ceilings = {"/a/cpu.max.burst": 30_000, "/pod/cpu.max.burst": 30_000}
    assert set(values(pod, ceilings).values()) == {"30000"}


@given(
    quotas=st.lists(st.integers(1_000, 10_000_000), min_size=1, max_size=4),
    classes=st.lists(st.sampled_from((BATCH, STANDARD, PROTECTED)), min_size=4, max_size=4),
    pod_us=st.one_of(st.just(-1), st.integers(1_000, 40_000_000)),
    texts=st.lists(st.one_of(st.none(), st.integers(0, 1 << 60)), min_size=4, max_size=4),
)
def test_no_burst_is_more_than_the_quota_beside_it(
    quotas: list[int], classes: list[str], pod_us: int, texts: list[Optional[int]]
) -> None:
    containers = [
        container(f"c{i}", classes[i], annotations=None if texts[i] is None else {QUOTA_BURST: str(texts[i])})
        for i in range(len(quotas))
    ]
    limits = {f"/c{i}/cpu.max.burst": quota for i, quota in enumerate(quotas)} | {
        "/pod/cpu.max.burst": pod_us
    }
    found = values(pod_of(*containers, quotas=tuple(quotas), quota_us=pod_us))
    bursts = {place: int(value) for place, value in found.items() if place in limits}
    assert all(0 <= burst <= limits[place] for place, burst in bursts.items())


@pytest.mark.parametrize(
    ("quota_us", "burst_us", "wanted"),
    [(50, 100, 50), (100, 100, None), (200, 100, None), (-1, 100, None), (0, 100, None)],
)
def test_a_burst_goes_down_only_for_a_smaller_quota(
    quota_us: int, burst_us: int, wanted: Optional[int]
) -> None:
    assert lowered(quota_us, burst_us) == wanted


@pytest.mark.parametrize(
    ("pod_us", "changes", "wanted"),
    [
        (300, [(200, 50)], 150),
        (300, [(100, 50), (200, 100)], 150),
        (300, [(100, 50), (200, 290)], 250),
        (300, [(200, 250)], 300),
        (-1, [(200, 50)], -1),
        (300, [(-1, 50), (100, -1)], 300),
        (100, [(200, 50)], 1),
    ],
)
def test_the_pods_quota_goes_down_by_as_much_as_those_of_its_containers(
    pod_us: int, changes: list[tuple[int, int]], wanted: int
) -> None:
    assert pod_quota(pod_us, changes) == wanted


def test_containers_that_are_not_described_are_left_alone() -> None:
    assert values(pod_of(replace(container("a", BATCH, Qos.BESTEFFORT), container=None))) == {
        "/pod/cpu.weight": "1"
    }
