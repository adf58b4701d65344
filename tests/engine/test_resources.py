"""What cgroups say of resources: rounding is no news, what we took away ourselves is none, all else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import MAX_SHARES, read_resources
from cri_proxy.engine.model import ContainerRecord, Life, Management
from cri_proxy.engine.resources import CgroupReading, has_news, memory_limit_read, resources_read, size_read
from policies.model import Placement, PodSize, Qos, Resources
from tests.machines import GIB
from tests.scenes import make_container

PERIOD_US = 100_000
NOTHING_TOLD = cri.LinuxContainerResources()


def grant_with(resources: Resources, qos: Qos = Qos.BURSTABLE, **fields: object) -> ContainerRecord:
    container = replace(make_container("app"), resources=resources, qos=qos)
    known = ContainerRecord("app", container, Placement(), Management.PLACED, life=Life.RUNNING)
    return replace(known, **fields)  # type: ignore[arg-type]


KNOWN = Resources(500, 2000, 0, GIB)
#: What the cgroup files say of KNOWN, by how they were written.
SAME: dict[str, CgroupReading] = {
    "cgroup v1": CgroupReading(512, 0, 200_000, PERIOD_US, GIB),
    "cgroup v2, weights on a line": CgroupReading(0, 20, 200_000, PERIOD_US, GIB),
    "cgroup v2, weights on a curve": CgroupReading(0, 59, 200_000, PERIOD_US, GIB),
    "another period": CgroupReading(512, 0, 20_000, 10_000, GIB),
    "a file that could not be read": CgroupReading(0, 0, 200_000, PERIOD_US, 0),
}


@pytest.mark.parametrize("reading", SAME.values(), ids=SAME)
def test_what_the_files_have_from_us_is_no_news(reading: CgroupReading) -> None:
    grant = grant_with(KNOWN)
    assert not has_news(grant, reading)
    assert resources_read(grant, reading, NOTHING_TOLD) == KNOWN


ROUNDED: dict[str, tuple[Resources, CgroupReading]] = {
    "systemd takes a quota in steps": (Resources(0, 15, 0, 0), CgroupReading(2, 0, 2_000, PERIOD_US, -1)),
    "memory is whole pages": (
        Resources(0, None, 0, 100_000_000),
        CgroupReading(2, 0, -1, PERIOD_US, 99_999_744),
    ),
    "and large pages": (Resources(0, None, 0, 100_000_000), CgroupReading(2, 0, -1, PERIOD_US, 99_942_400)),
    "shares have a most": (
        Resources(400_000, 400_000, 0, 0),
        CgroupReading(MAX_SHARES, 0, 40_000_000, PERIOD_US, -1),
    ),
    "a weight is for some requests": (Resources(101, None, 0, 0), CgroupReading(0, 4, -1, PERIOD_US, -1)),
}


@pytest.mark.parametrize(("known", "reading"), ROUNDED.values(), ids=ROUNDED)
def test_rounding_is_no_news_and_stays_none_when_something_else_is(
    known: Resources, reading: CgroupReading
) -> None:
    grant = grant_with(known)
    assert not has_news(grant, reading)
    larger = replace(reading, memory_limit_bytes=4 * GIB)
    assert has_news(grant, larger)
    assert resources_read(grant, larger, NOTHING_TOLD) == replace(known, memory_limit_bytes=4 * GIB)


@given(
    shares=st.integers(2, MAX_SHARES), quota_us=st.integers(1000, 50_000_000), limit=st.integers(0, 1 << 45)
)
def test_what_a_runtime_was_asked_for_is_what_it_has_in_its_files(
    shares: int, quota_us: int, limit: int
) -> None:
    asked = cri.LinuxContainerResources(
        cpu_shares=shares, cpu_quota=quota_us, cpu_period=PERIOD_US, memory_limit_in_bytes=limit
    )
    grant = grant_with(read_resources(asked, Qos.BURSTABLE))
    pages = limit // 4096 * 4096 if limit else -1
    line = 1 + (shares - 2) * 9999 // 262142
    assert not has_news(grant, CgroupReading(shares, 0, quota_us, PERIOD_US, pages))
    assert not has_news(grant, CgroupReading(0, line, quota_us, PERIOD_US, pages))


# ---------------------------------------------------------------------- news

#: What the files say, what the runtime was told, and what it is then.
NEWS: dict[str, tuple[CgroupReading, dict[str, int], Resources]] = {
    "a larger quota": (CgroupReading(512, 0, 800_000, PERIOD_US, GIB), {}, replace(KNOWN, milli_limit=8000)),
    "more shares": (CgroupReading(2048, 0, 200_000, PERIOD_US, GIB), {}, replace(KNOWN, milli_request=2000)),
    "a heavier weight, and the runtime tells of what": (
        CgroupReading(0, 79, 200_000, PERIOD_US, GIB),
        {"cpu_shares": 2048},
        replace(KNOWN, milli_request=2000),
    ),
    "a weight that nothing explains is no request": (
        CgroupReading(0, 7777, 300_000, PERIOD_US, GIB),
        {"cpu_shares": 2048},
        replace(KNOWN, milli_limit=3000),
    ),
    "the quota is gone": (CgroupReading(512, 0, -1, PERIOD_US, GIB), {}, replace(KNOWN, milli_limit=None)),
    "the memory limit is gone": (
        CgroupReading(512, 0, 200_000, PERIOD_US, -1),
        {},
        replace(KNOWN, memory_limit_bytes=0),
    ),
    "the files are right where the runtime says neither that nor what is known": (
        CgroupReading(512, 0, 800_000, PERIOD_US, GIB),
        {"cpu_shares": 512, "cpu_quota": 400_000, "cpu_period": PERIOD_US},
        replace(KNOWN, milli_limit=8000),
    ),
    "a quota that the runtime was not asked for is lent by another program": (
        CgroupReading(512, 0, 800_000, PERIOD_US, GIB),
        {"cpu_shares": 512, "cpu_quota": 200_000, "cpu_period": PERIOD_US},
        KNOWN,
    ),
}


@pytest.mark.parametrize(("reading", "told", "now"), NEWS.values(), ids=NEWS)
def test_all_else_is_news(reading: CgroupReading, told: dict[str, int], now: Resources) -> None:
    grant = grant_with(KNOWN)
    assert has_news(grant, reading)
    assert resources_read(grant, reading, cri.LinuxContainerResources(**told)) == now


def test_a_container_that_asked_for_nothing_has_what_a_cgroup_begins_with() -> None:
    grant = grant_with(Resources())
    for reading in (CgroupReading(1024, 0, -1, PERIOD_US, -1), CgroupReading(0, 100, -1, PERIOD_US, -1)):
        assert resources_read(grant, reading, NOTHING_TOLD) == Resources()
        asked = cri.LinuxContainerResources(cpu_shares=1024)
        assert resources_read(grant, reading, asked).milli_request == 1000


def test_a_guaranteed_container_without_quota_has_none_to_miss() -> None:
    known = read_resources(cri.LinuxContainerResources(cpu_shares=2048), Qos.GUARANTEED)
    grant = grant_with(known, Qos.GUARANTEED)
    assert not has_news(grant, CgroupReading(2048, 0, -1, PERIOD_US, -1))
    larger = resources_read(grant, CgroupReading(4096, 0, -1, PERIOD_US, -1), NOTHING_TOLD)
    assert (larger.milli_request, larger.milli_limit, larger.quota_period_us) == (4000, 4000, 0)


@pytest.mark.parametrize("fields", [{"placement": Placement(lift_quota=True)}, {"quota_taken": True}])
def test_a_quota_that_we_have_taken_is_no_news_and_another_one_is(fields: dict[str, object]) -> None:
    grant = grant_with(KNOWN, **fields)
    away, larger = CgroupReading(512, 0, -1, PERIOD_US, GIB), CgroupReading(512, 0, 600_000, PERIOD_US, GIB)
    assert not has_news(grant, away)
    assert resources_read(grant, replace(away, shares=1024), NOTHING_TOLD) == replace(
        KNOWN, milli_request=1000
    )
    assert resources_read(grant, larger, NOTHING_TOLD).milli_limit == 6000


# ---------------------------------------------------------------------- pods

SIZE = PodSize(600, 2100, "sandbox resources")
PODS: dict[str, tuple[Optional[PodSize], CgroupReading, Optional[PodSize]]] = {
    "as it was": (SIZE, CgroupReading(614, 0, 210_000, PERIOD_US), SIZE),
    "as it was, as a weight": (SIZE, CgroupReading(0, 24, 210_000, PERIOD_US), SIZE),
    "no quota: not all are limited": (SIZE, CgroupReading(2048, 0, -1, PERIOD_US), SIZE),
    "not known, and no quota": (
        None,
        CgroupReading(2048, 0, -1, PERIOD_US),
        PodSize(2000, None, "the pod's cgroup"),
    ),
    "not known, and nothing requested": (None, CgroupReading(2, 0, -1, PERIOD_US), None),
    "not known before": (
        None,
        CgroupReading(512, 0, 200_000, PERIOD_US),
        PodSize(500, 2000, "the pod's cgroup"),
    ),
    "larger": (SIZE, CgroupReading(1024, 0, 400_000, PERIOD_US), PodSize(1000, 4000, "the pod's cgroup")),
    "larger, as a weight": (
        SIZE,
        CgroupReading(0, 157, 800_000, PERIOD_US),
        PodSize(3996, 8000, "the pod's cgroup"),
    ),
}


@pytest.mark.parametrize(("known", "reading", "now"), PODS.values(), ids=PODS)
def test_a_pods_size_follows_its_quota(
    known: Optional[PodSize], reading: CgroupReading, now: Optional[PodSize]
) -> None:
    assert size_read(known, reading) == now


@pytest.mark.parametrize(
    "untold", [CgroupReading(0, 100, -1, PERIOD_US), CgroupReading(1024, 0, -1, PERIOD_US)]
)
def test_a_pods_cgroup_that_was_told_nothing_says_no_size(untold: CgroupReading) -> None:
    assert size_read(None, untold) is None


POD_LIMITS = [
    # what is known, what the pod's cgroup says, the limits of its containers, what it is
    (0, GIB, [GIB, 0], GIB),
    (GIB, 2 * GIB, [2 * GIB, 2 * GIB], 2 * GIB),
    (GIB, 2 * GIB, [GIB, GIB], GIB),  # the containers' own, or of a pod with an overhead
    (GIB, -1, [GIB], GIB),
    (GIB, 0, [GIB], GIB),
    (GIB + 7, GIB, [GIB + 7, GIB + 9], GIB + 7),  # kernels take whole pages
    (GIB, 2 * GIB, [], GIB),
]


@pytest.mark.parametrize(("known", "told", "limits", "now"), POD_LIMITS)
def test_a_pods_memory_limit_is_its_cgroups_where_a_container_has_the_same(
    known: int, told: int, limits: list[int], now: int
) -> None:
    assert memory_limit_read(known, CgroupReading(memory_limit_bytes=told), limits) == now


def test_what_one_cgroup_lacks_its_child_has() -> None:
    child = CgroupReading(0, 20, 200_000, PERIOD_US, GIB)
    assert CgroupReading(0, 100, -1, PERIOD_US, -1).completed_by(child) == child
    own = CgroupReading(0, 39, 400_000, PERIOD_US, 2 * GIB)
    assert own.completed_by(CgroupReading(0, 100, -1, PERIOD_US, -1)) == own
