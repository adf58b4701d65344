"""A quota that was lifted is sent again as soon as the container's place is one that keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import linux_delta, update_resources, write_update_delta
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, ListedContainer, Management
from cri_proxy.engine.resources import unlimited_pods
from cri_proxy.engine.resync import Listing
from cri_proxy.engine.snapshot import read_record, write_record
from policies.hygon import TopologyAware
from policies.machine.cpus import format_cpus
from policies.model import (
    NO_CONSTRAINT,
    Container,
    Decision,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    Qos,
    Quota,
    Resources,
)
from policies.settings import PlacementSettings
from tests.lifting import Lifting
from tests.machines import HYGON_7285_2S
from tests.scenes import constraint, engine_on, host_of, make_container, run, topology
from tests.told_at_once import resync

TWO = Quota(200_000, 100_000)


def engine() -> Engine:
    return engine_on(HYGON_7285_2S, policy=Lifting(topology(HYGON_7285_2S)))


def owner(limit: float = 2, **more: int) -> Container:
    container = make_container("own", limit, qos=Qos.GUARANTEED)
    return replace(container, resources=replace(container.resources, **more))


OWNER = owner()


def lifted(node: Engine, container: Container = OWNER) -> ContainerRecord:
    grant = run(node, container, "c1")
    assert grant.lifted
    return grant


def resources(milli: int, period_us: int = 100_000) -> Resources:
    return Resources(milli, milli, quota_period_us=period_us)


@pytest.fixture
def node() -> Engine:
    return engine()


def test_whose_pods_have_to_be_looked_at_is_known_without_a_look_at_all(node) -> None:
    run(node, make_container("elsewhere", limit=1), "c0")
    assert node.unlimited_pods() == frozenset()
    grant = lifted(node)
    run(node, make_container("beside", limit=1, pod=grant.container.pod), "c2")
    assert node.unlimited_pods() == unlimited_pods(node.grants.values())
    node.release("c1")
    assert node.unlimited_pods() == unlimited_pods(node.grants.values())
    node.remove("c1")
    assert node.unlimited_pods() == frozenset()


# ---------------------------------------------------------------------- resizes

RESIZES = [
    # name, the new resources, the quota that goes with our cpuset
    ("still whole CPUs: lifted again", resources(4000), -1, 0),
    ("a fraction: what is new", resources(1500), 150_000, 100_000),
    ("with another period", resources(1500, 20_000), 30_000, 20_000),
    ("kubelet has no quotas", resources(1500, 0), 0, 0),
]


@pytest.mark.parametrize(
    ("now", "quota", "period"), [case[1:] for case in RESIZES], ids=[case[0] for case in RESIZES]
)
def test_the_quota_that_goes_with_a_resize(node, now, quota, period) -> None:
    lifted(node)
    admission = node.resize("c1", now, NO_CONSTRAINT, 1.0)
    assert admission is not None
    linux = linux_delta(admission.placement, admission.give_back)
    assert (linux.cpu_quota, linux.cpu_period) == (quota, period)
    assert not node.commit(admission.ticket, 1.0)


def test_the_delta_is_merged_behind_kubelets_own_quota(node) -> None:
    lifted(node)
    asked = cri.UpdateContainerResourcesRequest(
        container_id="c1", linux=cri.LinuxContainerResources(cpu_quota=400_000, cpu_shares=4096)
    )
    admission = node.resize("c1", resources(4000), NO_CONSTRAINT, 1.0)
    assert admission is not None
    merged = asked.SerializeToString() + write_update_delta(admission.placement, admission.give_back)
    linux = cri.UpdateContainerResourcesRequest.FromString(merged).linux
    assert (linux.cpu_quota, linux.cpu_shares) == (-1, 4096)


def test_a_resize_that_is_refused_leaves_it_lifted(node) -> None:
    lifted(node)
    admission = node.resize("c1", resources(1500), NO_CONSTRAINT, 1.0)
    assert admission is not None
    assert not node.cancel(admission.ticket, 1.0)
    assert node.grants["c1"].lifted


def test_a_container_that_kubelet_gives_cpus_of_its_own_gets_its_quota_back(node) -> None:
    lifted(node)
    admission = node.resize("c1", resources(2000), constraint("4-5"), 1.0)
    assert admission is not None
    assert (admission.stance, admission.placement, admission.give_back) == (
        Management.KUBELET,
        Placement(),
        TWO,
    )


@pytest.mark.parametrize(
    ("taken", "has_none", "enforce", "given_back"),
    [
        (True, True, True, TWO),
        # By another program, or by none.
        (False, True, True, None),
        (True, False, True, None),
        (True, True, False, None),
    ],
)
def test_a_quota_that_could_not_be_given_back_is_given_back_by_the_next_comparison(
    taken, has_none, enforce, given_back
) -> None:
    node = engine_on(HYGON_7285_2S)
    grant = run(node, OWNER, "c1")
    node.amend(replace(grant, quota_taken=taken), node.told["c1"])
    pod = OWNER.pod
    listed = ListedContainer(
        "c1", pod.id, pod.uid, "own", 0, running=True, exited=False, cpus=grant.cpus, has_no_quota=has_none
    )
    told = resync(node, Listing({"c1": listed}, 9.0, enforce=enforce), 10.0).updates
    assert [update.give_back for update in told] == ([given_back] if given_back else [])


# ---------------------------------------------------------------------- released, moved


def test_released_it_has_its_quota_again(node) -> None:
    lifted(node)
    update = node.release("c1")
    assert update is not None
    assert update.give_back == TWO
    assert len(update.placement.cpus) == 128
    linux = linux_delta(update.placement, update.give_back)
    assert (linux.cpu_quota, linux.cpu_period) == (200_000, 100_000)
    # Once more, should the runtime have failed; now nothing but the quota.
    again = node.release("c1")
    assert again is not None
    assert (again.placement, again.give_back) == (Placement(), TWO)


RELEASED = [
    ("kubelet has no quotas", owner(quota_period_us=0), None),
    ("another period", owner(quota_period_us=20_000), Quota(40_000, 20_000)),
    ("it never was lifted", replace(owner(), preferences=PlacementPreferences(cfs_quota="keep")), None),
]


@pytest.mark.parametrize(
    ("container", "quota"), [case[1:] for case in RELEASED], ids=[case[0] for case in RELEASED]
)
def test_what_a_release_gives_back(node, container, quota) -> None:
    run(node, container, "c1")
    update = node.release("c1")
    assert update is not None
    assert update.give_back == quota


def test_released_while_it_was_being_created_it_gets_its_quota_back_with_its_cpus(node) -> None:
    admission = node.admit(owner(), NO_CONSTRAINT, 0.0)
    pending = node.grants[admission.ticket]
    node.amend(replace(pending, stance=Management.RELEASED, runs_on=node.host.usable))
    [update] = node.bind(admission.ticket, "c1", 1.0)
    assert (update.give_back, len(update.placement.cpus)) == (TWO, 128)


def test_a_foreign_container_gets_its_quota_back_when_released(node) -> None:
    grant = lifted(node)
    node.amend(replace(grant, stance=Management.FOREIGN, runs_on=grant.cpus))
    update = node.release("c1")
    assert update is not None
    assert (update.placement, update.give_back) == (Placement(), TWO)


class Full(Lifting):
    """It has no CPU left for any container."""

    def place(self, *arguments: Any, **named: Any) -> Decision:
        raise PlacementRefused("no CPU is left")


@pytest.mark.parametrize(
    ("policy", "give_back"), [(Lifting, None), (Full, TWO)], ids=["elsewhere", "nowhere"]
)
def test_one_whose_cpus_are_all_gone_keeps_no_quota_only_where_it_owns_others(
    node, policy, give_back
) -> None:
    left = node.host.usable - lifted(node).cpus
    host = host_of(HYGON_7285_2S, usable=format_cpus(left))
    [update] = node.rehost(host, policy(topology(HYGON_7285_2S)))
    assert (update.placement.lift_quota, update.give_back) == (give_back is None, give_back)
    assert bool(update.placement.cpus) is (give_back is None)


# ---------------------------------------------------------------------- what is remembered


def test_the_period_of_a_quota_survives_a_restart() -> None:
    grant = lifted(engine(), owner(quota_period_us=20_000))
    assert read_record("grant", write_record(grant)).quota == Quota(40_000, 20_000)


def test_an_update_without_a_quota_keeps_the_period() -> None:
    old = resources(2000, 20_000)
    shares = cri.LinuxContainerResources(cpu_shares=1024)
    assert update_resources(old, shares, Qos.GUARANTEED).quota_period_us == 20_000
    quota = cri.LinuxContainerResources(cpu_quota=50_000, cpu_period=50_000)
    assert update_resources(old, quota, Qos.GUARANTEED).quota_period_us == 50_000


# ---------------------------------------------------------------------- another configuration

KEEP = PlacementSettings(ownership="exclusive")
LIFT = replace(KEEP, cfs_quota="lift")
CONFIGURED = [
    ("lifted as before", LIFT, LIFT, "", None),
    ("kept from now on", LIFT, KEEP, "", TWO),
    ("kept, and it wished for it itself", LIFT, KEEP, "lift", None),
    ("kept as before, and it wished for it itself", KEEP, KEEP, "lift", None),
]


@pytest.mark.parametrize(
    ("before", "now", "wish", "give_back"),
    [case[1:] for case in CONFIGURED],
    ids=[case[0] for case in CONFIGURED],
)
def test_a_quota_comes_back_when_the_configuration_keeps_it(before, now, wish, give_back) -> None:
    tree = topology(HYGON_7285_2S)
    node = engine_on(HYGON_7285_2S, policy=TopologyAware(tree, before))
    grant = lifted(node, replace(owner(), preferences=PlacementPreferences(cfs_quota=wish)))
    updates = node.rehost(node.host, TopologyAware(tree, now))
    assert [(u.id, u.give_back) for u in updates] == ([("c1", give_back)] if give_back else [])
    assert node.grants["c1"].lifted is (give_back is None)
    assert node.grants["c1"].cpus == grant.cpus
