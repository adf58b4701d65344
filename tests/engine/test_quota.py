"""A pod's cgroup has no quota exactly while its containers are lifted, and none of them needs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.model import ContainerRecord, Life, Management, pod_cgroup
from cri_proxy.engine.resources import is_unlimited, unlimited_pods, wants_lift, with_quota_kept
from policies.model import Placement, PlacementPreferences
from policies.settings import PlacementSettings
from tests.scenes import make_container, make_pod

P, Q = "/kubepods/podp", "/kubepods/podq"


def grant(
    name: str,
    lifted: bool,
    limit: Optional[int] = 2,
    pod: str = P,
    life: Life = Life.RUNNING,
    stance: Management = Management.PLACED,
) -> ContainerRecord:
    container = make_container(name, limit, pod=replace(make_pod(pod), cgroup_parent=pod))
    return ContainerRecord(name, container, Placement(lift_quota=lifted), stance, life=life)


PODS = [
    # name, grants, the pods that should have no quota
    ("no containers", [], set()),
    ("nobody is lifted", [grant("a", False)], set()),
    ("the only one is", [grant("a", True)], {P}),
    ("it was just created", [grant("a", True, life=Life.CREATED)], {P}),
    ("its create is under way", [grant("a", True, life=Life.CREATING)], set()),
    ("all are", [grant("a", True), grant("b", True)], {P}),
    ("another needs its limit", [grant("a", True), grant("b", False)], set()),
    ("another without limit: kubelet writes none", [grant("a", True), grant("b", False, limit=None)], {P}),
    ("another needs it in a moment", [grant("a", True), grant("b", False, life=Life.CREATING)], set()),
    ("another has finished", [grant("init", False, life=Life.HELD), grant("a", True)], {P}),
    ("it will be restarted", [grant("a", True, life=Life.HELD)], {P}),
    ("another was opted out", [grant("a", True), grant("b", False, stance=Management.OPTED_OUT)], set()),
    ("it was released", [grant("a", True, stance=Management.RELEASED)], set()),
    ("it is only observed", [grant("a", True, stance=Management.OBSERVED)], set()),
    ("two pods", [grant("a", True), grant("b", True, pod=Q), grant("c", False, pod=Q)], {P}),
    ("a pod without cgroup", [grant("a", True, pod="")], set()),
]


@pytest.mark.parametrize(("grants", "pods"), [case[1:] for case in PODS], ids=[case[0] for case in PODS])
def test_the_pods_without_quota(grants: list[ContainerRecord], pods: set[str]) -> None:
    assert unlimited_pods(grants) == pods


CGROUPS = [
    ("cgroupfs", "/kubepods/burstable/podU", "kubepods/burstable/podU"),
    ("cgroupfs, Guaranteed", "/kubepods/podU", "kubepods/podU"),
    (
        "systemd",
        "kubepods-burstable-pod1_2.slice",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
    ),
    ("systemd, Guaranteed", "kubepods-pod1.slice", "kubepods.slice/kubepods-pod1.slice"),
    (
        "kind",
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice",
    ),
    ("one slice", "machine.slice", "machine.slice"),
]


@pytest.mark.parametrize(
    ("parent", "path"), [case[1:] for case in CGROUPS], ids=[case[0] for case in CGROUPS]
)
def test_where_a_pods_cgroup_is(parent: str, path: str) -> None:
    assert pod_cgroup(parent) == path


@pytest.mark.parametrize(
    ("limit", "unlimited"),
    [("max 100000", True), ("-1 100000", True), ("200000 100000", False), ("max", True), ("", True)],
)
def test_what_is_no_limit(limit: str, unlimited: bool) -> None:
    assert is_unlimited(limit) is unlimited


@pytest.mark.parametrize(
    ("configured", "wished", "wanted"),
    [("keep", "", False), ("lift", "", True), ("lift", "keep", False), ("keep", "lift", True)],
)
def test_a_containers_wish_goes_before_the_configuration(configured: str, wished: str, wanted: bool) -> None:
    container = replace(make_container(), preferences=PlacementPreferences(cfs_quota=wished))
    assert wants_lift(container, PlacementSettings(cfs_quota=configured)) is wanted


def test_a_quota_that_cannot_be_lifted_is_kept_and_the_reason_noted() -> None:
    container = replace(
        make_container(), preferences=PlacementPreferences(cfs_quota="lift", notes=("before",))
    )
    kept = with_quota_kept(container, "nobody may write there").preferences
    assert kept.cfs_quota == "keep"
    assert kept.notes == ("before", "its CPU quota is not lifted: nobody may write there")
