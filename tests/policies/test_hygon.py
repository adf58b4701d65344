"""The default policy: what n is, the pod rule with every source of a pod's size, and what is left to others."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Topology
from policies.model import (
    Container,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    PodShare,
    Qos,
    Resident,
    Resources,
    wanted_milli,
)
from policies.reasons import plain
from policies.settings import PlacementSettings
from tests.machines import (
    ALL_MACHINES,
    EPYC_NPS1_1S,
    HYGON_7285_2S,
    KUNPENG_48_2S,
    MONOLITHIC_2S,
    OFFLINE_CPUS,
    SNC_2S,
    UNEVEN_CCX,
    VM_NO_CACHE_INFO,
    machine,
)
from tests.scenes import HYGON, TOPOLOGY_AWARE, Number, Scene, constraint, make_container, make_pod, shown

# ---------------------------------------------------------------------- n


@pytest.mark.parametrize(
    ("limit", "request_cpus", "n"),
    [(None, None, 0), (None, 1.5, 1500), (2, None, 2000), (2, 0.1, 2000), (0.5, 0.5, 500)],
)
def test_n_is_the_limit_or_the_request_of_a_container_without_one(limit, request_cpus, n) -> None:
    assert wanted_milli(make_container(limit=limit, request=request_cpus)) == n


HYGON_TABLE = [
    (0.1, "ccx", "0-3,64-67"),
    (1, "ccx", "0-3,64-67"),
    (8, "ccx", "0-3,64-67"),
    (9, "numa", "0-7,64-71"),
    (16, "numa", "0-7,64-71"),
    (17, "numa+ccx", "0-11,64-75"),
    (24, "numa+ccx", "0-11,64-75"),
    (25, "2numa", "0-15,64-79"),
    (32, "2numa", "0-15,64-79"),
    (33, "socket", "0-31,64-95"),
    (64, "socket", "0-31,64-95"),
    (65, "machine", "0-127"),
    (500, "machine", "0-127"),
]


@pytest.mark.parametrize(("limit", "level", "cpus"), HYGON_TABLE)
def test_the_table_of_the_hygon_manual(limit, level, cpus) -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=limit))
    assert shown(decision.placement) == (level, cpus)
    assert decision.placement.home == decision.placement.cpus
    assert not decision.placement.exclusive
    assert decision.fits


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_a_container_is_placed_on_every_machine_whatever_it_asks_for(name) -> None:
    scene = Scene(name)
    for limit in (None, 0.5, 1, 5, 9, 17, 33, 70, 2000):
        for qos in (Qos.GUARANTEED, Qos.BURSTABLE, Qos.BESTEFFORT):
            decision = scene.put(make_container(limit=limit, qos=qos, memory=1))
            assert decision.placement.cpus
            assert decision.placement.cpus <= scene.node.usable
            assert decision.placement.mems <= scene.node.mems
            assert decision.why


def test_the_fine_ladder_is_a_setting() -> None:
    assert Scene(EPYC_NPS1_1S).place(make_container(limit=9)).placement.level == "numa"
    fine = Scene(EPYC_NPS1_1S, PlacementSettings(ladder="fine")).place(make_container(limit=9))
    assert shown(fine.placement) == ("nccx", "0-15")


@pytest.mark.parametrize("policy", [HYGON, TOPOLOGY_AWARE])
def test_on_the_fine_ladder_small_limits_get_a_cluster(policy) -> None:
    scene = Scene(
        Topology(machine(KUNPENG_48_2S), to_clusters=True), replace(policy, ladder="fine", besteffort="ccx")
    )
    first, second = scene.put(make_container(limit=2)), scene.put(make_container(limit=4))
    assert [shown(d.placement) for d in (first, second)] == [("cluster", "0-3"), ("cluster", "4-7")]
    assert first.why.startswith(
        "2 CPUs wanted: one cluster of cores (4 CPUs), cluster 0, the first of 24 that hold it, all alike"
    )
    assert scene.place(make_container()).placement.level == "ccx"
    one_l3 = PlacementPreferences(l3="require")
    assert scene.place(make_container(limit=1, preferences=one_l3)).placement.level == "cluster"
    assert scene.place(make_container(limit=5, preferences=one_l3)).placement.level == "ccx"


# ---------------------------------------------------------------------- what annotations get on shared CPUs


def test_a_demand_for_one_l3_that_cannot_be_met_says_how_large_the_largest_free_one_is(scene) -> None:
    one_l3 = PlacementPreferences(l3="require")
    with pytest.raises(PlacementRefused, match="wants 12 CPUs in one L3; the largest free L3 has 8$"):
        scene.place(make_container(limit=12, preferences=one_l3))
    for _ in range(16):
        scene.put(make_container(request=7.5, limit=8))
    with pytest.raises(
        PlacementRefused, match="wants 4 CPUs in one L3 with room; the largest free L3 has 0.5$"
    ):
        scene.place(make_container(request=2, limit=4, preferences=one_l3))


def test_a_demand_for_one_numa_node_says_how_large_the_largest_free_one_is() -> None:
    with pytest.raises(PlacementRefused, match="in one NUMA node; the largest free NUMA node has 16$"):
        Scene(HYGON_7285_2S).place(make_container(limit=17, preferences=PlacementPreferences(numa="require")))


@pytest.mark.parametrize("smt", ["spread", "hide"])
@pytest.mark.parametrize(("limit", "more"), [(8, ", fewer than its limit"), (4, "")])
def test_one_thread_of_each_shared_core_is_told_and_where_it_is_fewer_than_the_limit(
    smt, limit, more
) -> None:
    decision = Scene(HYGON_7285_2S).place(
        make_container(limit=limit, preferences=PlacementPreferences(smt=smt))
    )
    assert shown(decision.placement) == ("ccx", "0-3")
    assert decision.why.endswith(f"; one thread of each core: 4 of 8 CPUs{more}")


def test_l3_spread_on_shared_cpus_is_a_socket_with_all_threads() -> None:
    decision = Scene(HYGON_7285_2S).place(
        make_container(limit=2, preferences=PlacementPreferences(l3="spread"))
    )
    assert shown(decision.placement) == ("socket", "0-31,64-95")


@pytest.mark.parametrize("policy", [HYGON, TOPOLOGY_AWARE])
@pytest.mark.parametrize("ownership", ["", "exclusive"])
def test_a_balloon_that_there_is_no_policy_for_is_told(policy, ownership) -> None:
    asked = PlacementPreferences(balloon="web", ownership=ownership, notes=("x",))
    container = make_container(limit=2, request=2, preferences=asked)
    scene = Scene(HYGON_7285_2S, policy)
    note = 'the annotation for a balloon of type "web": this policy has no balloons; it is ignored'
    assert scene.place(container).why.endswith(f"; x; {note}")
    assert scene.policy.ignored(container) == ("x", note)


# ---------------------------------------------------------------------- without a limit


@pytest.mark.parametrize("value", ["ccx", "numa", "socket", "machine"])
def test_unlimited_is_the_level_of_containers_that_ask_but_have_no_limit(value) -> None:
    scene = Scene(HYGON_7285_2S, PlacementSettings(unlimited=value, besteffort="machine"))
    assert scene.place(make_container(request=1)).placement.level == value


@pytest.mark.parametrize("value", ["ccx", "numa", "socket", "machine"])
def test_besteffort_is_the_level_of_best_effort_containers(value) -> None:
    scene = Scene(HYGON_7285_2S, PlacementSettings(unlimited="machine", besteffort=value))
    assert scene.place(make_container()).placement.level == value


def test_both_are_a_numa_node_by_default(scene) -> None:
    assert scene.place(make_container()).placement.level == "numa"
    assert scene.place(make_container(request=1)).placement.level == "numa"


def test_without_a_limit_a_container_is_never_below_the_rung_of_its_request() -> None:
    scene = Scene(HYGON_7285_2S, PlacementSettings(unlimited="ccx"))
    assert scene.place(make_container(request=8)).placement.level == "ccx"
    assert scene.place(make_container(request=9)).placement.level == "numa"
    assert scene.place(make_container(request=40)).placement.level == "socket"


@pytest.mark.parametrize(
    ("name", "cpus"), [(SNC_2S, "0-7,32-39"), (VM_NO_CACHE_INFO, "0-3"), (MONOLITHIC_2S, "0-15,32-47")]
)
def test_unlimited_ccx_is_the_lowest_rung_of_a_machine_without_smaller_l3s(name, cpus) -> None:
    decision = Scene(name, PlacementSettings(unlimited="ccx")).place(make_container(request=1))
    assert format_cpus(decision.placement.cpus) == cpus


# ---------------------------------------------------------------------- the pod rule


def sized(size: Optional[tuple[Number, Optional[Number]]], *limits: Number) -> list[Container]:
    """The containers of one pod, with half of their limit as request."""
    pod = make_pod("web", size=size)
    return [make_container(f"c{i}", limit=n, request=n / 2, pod=pod) for i, n in enumerate(limits)]


SIZE_SOURCES = {"announced": True, "learnt": False}


@pytest.mark.parametrize("announced", SIZE_SOURCES.values(), ids=SIZE_SOURCES)
def test_a_pod_that_fits_one_ccx_is_in_one_ccx(scene, announced) -> None:
    scene.occupy("0-3,64-67", request=0.5)
    app, sidecar = sized((4, 8) if announced else None, 6, 2)
    first, second = scene.put(app), scene.put(sidecar)
    assert shown(first.placement) == ("ccx", "4-7,68-71")
    assert shown(second.placement) == ("ccx", "4-7,68-71")
    assert "nearest to its pod" in second.why


@pytest.mark.parametrize("announced", SIZE_SOURCES.values(), ids=SIZE_SOURCES)
def test_a_pod_too_large_for_a_ccx_is_in_two_ccxs_of_one_node(scene, announced) -> None:
    app, sidecar = sized((5, 10) if announced else None, 8, 2)
    first, second = scene.put(app), scene.put(sidecar)
    # The sidecar keeps its own rung: a pod never widens that.
    assert (first.placement.level, second.placement.level) == ("ccx", "ccx")
    assert first.placement.cpus.isdisjoint(second.placement.cpus)
    assert len(scene.node.topology.nodes_of(first.placement.cpus | second.placement.cpus)) == 1


@pytest.mark.parametrize("announced", SIZE_SOURCES.values(), ids=SIZE_SOURCES)
def test_a_pod_too_large_for_a_node_stays_in_its_socket(scene, announced) -> None:
    scene.occupy("0-31", request=1)
    containers = sized((16, 32) if announced else None, 8, 8, 8, 8)
    placed = [scene.put(c).placement for c in containers]
    assert {p.level for p in placed} == {"ccx"}
    assert len({format_cpus(p.cpus) for p in placed}) == 4
    assert all(p.cpus <= parse_cpus("32-63,96-127") for p in placed)


def test_a_pod_of_one_container_has_no_domain_of_its_own(scene) -> None:
    decision = scene.put(make_container(limit=2, pod=make_pod("web", size=(0, 2))))
    assert "its pod" not in decision.why


def test_an_announced_size_counts_before_the_other_containers_exist(scene) -> None:
    # L3 0 would hold the app alone (2 of 8 CPUs are free), but not the pod of 4.
    scene.occupy("0-3,64-67", request=5)
    for leaf in scene.node.topology.leaves[1:]:
        scene.occupy(format_cpus(leaf.cpus), request=6.5)
    alone = scene.place(make_container(limit=2, request=2))
    assert format_cpus(alone.placement.cpus) == "0-3,64-67"
    for key in [k for k in scene.node.residents if k.startswith("occupant")][1:3]:
        scene.node.remove(key)
    scene.occupy("4-7,68-71", request=5.2)
    scene.occupy("8-11,72-75", request=5.2)
    together = scene.place(make_container(limit=2, request=2, pod=make_pod("web", size=(5, 6))))
    # No CCX has room for all 5, node 0 has: (8 - 5) + (8 - 5.2).
    assert together.placement.cpus <= parse_cpus("0-7,64-71")


def test_an_announced_size_smaller_than_the_container_is_not_believed() -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=12, pod=make_pod("web", size=(1, 2))))
    assert decision.placement.level == "numa"


def test_a_size_without_a_limit_counts_its_request(scene) -> None:
    pod = make_pod("web", size=(6, None))
    placed = [scene.put(make_container(f"c{i}", limit=3, request=2, pod=pod)).placement for i in range(3)]
    assert len({p.cpus for p in placed}) == 1


def test_the_pods_own_containers_do_not_take_its_room(scene) -> None:
    pod = make_pod("web", size=(8, 8))
    for i in range(4):
        assert (
            format_cpus(scene.put(make_container(f"c{i}", limit=2, request=2, pod=pod)).placement.cpus)
            == "0-3,64-67"
        )


def test_a_pod_is_not_torn_apart_for_a_smaller_domain_elsewhere(scene) -> None:
    # The CCX of the app is full. A whole free CCX of the other socket holds the pod, but the app is not there.
    pod = make_pod("web")
    scene.put(make_container("app", limit=6, request=6, pod=pod))
    scene.occupy("0-3,64-67", request=2)
    decision = scene.put(make_container("sidecar", limit=1, request=1, pod=pod))
    assert format_cpus(decision.placement.cpus) == "4-7,68-71"


def test_of_two_domains_that_hold_the_pod_the_one_with_most_of_it_comes_first(scene) -> None:
    pod = make_pod("web")
    sidecar = make_container("sidecar", limit=1, request=0.1, pod=pod)
    scene.book(make_container("a", limit=1, request=0.1, pod=pod), scene.place(sidecar).placement)
    two = replace(scene.place(sidecar).placement, cpus=parse_cpus("32-35,96-99"))
    scene.book(make_container("b", limit=1, request=0.1, pod=pod), two)
    scene.book(make_container("c", limit=1, request=0.1, pod=pod), two)
    assert format_cpus(scene.place(sidecar).placement.cpus) == "32-35,96-99"


@pytest.mark.parametrize("name", [UNEVEN_CCX, OFFLINE_CPUS])
def test_a_smaller_ccx_does_not_draw_pods_away_from_where_they_are(name) -> None:
    # CCXs of 6 and 8 CPUs are equals: "smallest domain" is a level, not a count.
    scene = Scene(name)
    whole = [leaf for leaf in scene.node.topology.leaves if len(leaf.cpus & scene.node.usable) == 8]
    for leaf in scene.node.topology.leaves:
        if leaf is not whole[0]:
            scene.occupy(format_cpus(leaf.cpus & scene.node.usable), request=0.5)
    app, sidecar = sized(None, 2, 1)
    assert scene.put(app).placement.cpus == whole[0].cpus
    assert scene.put(sidecar).placement.cpus == whole[0].cpus


def test_reserved_cpus_do_not_make_their_ccx_the_first_choice_of_every_pod() -> None:
    scene = Scene(HYGON_7285_2S, reserved="0,64")
    for i in range(8):
        pod = make_pod(f"web-{i}", size=(1, 2))
        scene.put(make_container("app", limit=1, request=0.5, pod=pod))
        scene.put(make_container("sidecar", limit=1, request=0.5, pod=pod))
    assert all(scene.node.containers_on(leaf.cpus) in (0, 2) for leaf in scene.node.topology.leaves)


def test_pods_of_a_known_size_spread_over_the_machine(scene) -> None:
    for i in range(16):
        scene.put(make_container("app", limit=1, request=0.5, pod=make_pod(f"web-{i}", size=(1, 2))))
    assert all(scene.node.containers_on(leaf.cpus) == 1 for leaf in scene.node.topology.leaves)


# ---------------------------------------------------------------------- affinity


class Pull:
    """Everything is drawn to one CPU."""

    def __init__(self, cpu: int) -> None:
        self.cpu = cpu

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        return 0.0 if self.cpu in cpus else 100.0

    def fault(self, container: Container, cpus: frozenset[int]) -> int:
        return 0


def test_peers_pull_a_container_to_their_ccx() -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=2), affinity=Pull(50))
    assert 50 in decision.placement.cpus
    assert plain(decision.why).endswith("nearest to its peers: 100% less distance to them than in the next")


def test_peers_pull_a_whole_pod_to_their_ccx(scene) -> None:
    decision = scene.place(make_container(limit=2, pod=make_pod("web", size=(1, 6))), affinity=Pull(50))
    assert 50 in decision.placement.cpus


# ---------------------------------------------------------------------- fences and what may be used


def test_a_fence_bounds_cpus_and_home() -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=4), within=constraint("2-5,66-69"))
    assert shown(decision.placement) == ("ccx", "2-3,66-67")
    assert decision.placement.home == decision.placement.cpus


def test_a_fence_without_usable_cpus_leaves_the_container_untouched() -> None:
    decision = Scene(HYGON_7285_2S, usable="0-63").place(make_container(limit=4), within=constraint("64-70"))
    assert not decision.placement.cpus
    assert decision.why == "none of the CPUs the caller allows (64-70) may be used"


def test_without_any_usable_cpu_the_container_is_untouched() -> None:
    scene = Scene(VM_NO_CACHE_INFO)
    scene.occupy("0-7", exclusive=True)
    assert scene.place(make_container(limit=1)).why == "none of the CPUs the machine has may be used"


def test_offline_cpus_are_part_of_the_home_only() -> None:
    decision = Scene(HYGON_7285_2S, usable="1-127").place(make_container(limit=9))
    assert shown(decision.placement) == ("numa", "1-7,64-71")
    assert format_cpus(decision.placement.home) == "0-7,64-71"


def test_a_place_of_its_own_rung_without_room_does_not_fit(scene) -> None:
    for leaf in scene.node.topology.leaves:
        scene.occupy(format_cpus(leaf.cpus), request=3)
    wider = scene.place(make_container(limit=8, request=6))
    assert (wider.placement.level, wider.fits) == ("numa", False)
    assert wider.why.startswith("no room in one CCX; ")


# ---------------------------------------------------------------------- reserved CPUs


def in_kube_system(name: str = "dns", limit: Optional[Number] = None, request: Number = 0.1) -> Container:
    pod = make_pod(f"pod-of-{name}", namespace="kube-system")
    return make_container(name, limit=limit, request=request, pod=pod)


def test_without_reserved_cpus_kube_system_is_placed_like_any_other() -> None:
    assert Scene(HYGON_7285_2S).place(in_kube_system(limit=1)).placement.level == "ccx"


def test_reserved_namespaces_share_all_reserved_cpus() -> None:
    scene = Scene(HYGON_7285_2S, reserved="0-1,64-65")
    for i in range(3):
        decision = scene.put(in_kube_system(f"dns-{i}"))
        assert shown(decision.placement) == ("reserved", "0-1,64-65")
        assert decision.why == "namespace kube-system shares the 4 reserved CPUs"


@pytest.mark.parametrize(
    ("patterns", "namespace", "reserved"),
    [
        (("kube-system",), "kube-system", True),
        (("kube-*",), "kube-node-lease", True),
        (("kube-system", "infra-?"), "infra-1", True),
        (("kube-system",), "kube-systems", False),
        ((), "kube-system", False),
    ],
)
def test_reserved_namespaces_are_globs(patterns, namespace, reserved) -> None:
    scene = Scene(HYGON_7285_2S, PlacementSettings(reserved_namespaces=patterns), reserved="0,64")
    container = make_container(request=0.1, pod=make_pod("p", namespace=namespace))
    assert (scene.place(container).placement.level == "reserved") is reserved


@pytest.mark.parametrize(
    ("limit", "request_cpus", "level"),
    [(None, 1.9, "reserved"), (2, 0.1, "reserved"), (2.1, 0.1, "ccx"), (None, 2.1, "numa")],
)
def test_what_is_larger_than_the_reserved_cpus_is_placed_like_others(limit, request_cpus, level) -> None:
    decision = Scene(HYGON_7285_2S, reserved="0,64").place(in_kube_system(limit=limit, request=request_cpus))
    assert decision.placement.level == level


def test_overflow_is_placed_like_others_and_why_says_so() -> None:
    scene = Scene(HYGON_7285_2S, reserved="0,64")
    scene.put(in_kube_system("one", request=1.5))
    decision = scene.put(in_kube_system("two", limit=1, request=0.6))
    assert decision.placement.level == "ccx"
    assert not decision.placement.cpus & {0, 64}
    assert decision.why.startswith(
        "the reserved CPUs 0,64 have 500m left of 2 CPUs, placed like others; 1 CPU wanted"
    )


def test_others_never_use_reserved_cpus() -> None:
    scene = Scene(HYGON_7285_2S, reserved="0-3,64-67")
    for limit in (1, 8, 16, 32, 64, 128):
        decision = scene.put(make_container(limit=limit, request=limit))
        assert decision.placement.cpus
        assert not decision.placement.cpus & parse_cpus("0-3,64-67")


def test_others_use_reserved_cpus_when_no_shared_cpu_is_left_at_all() -> None:
    scene = Scene(VM_NO_CACHE_INFO, reserved="0")
    scene.occupy("1-7", exclusive=True)
    assert format_cpus(scene.place(make_container(limit=1)).placement.cpus) == "0"


def test_a_fence_bounds_reserved_cpus_too() -> None:
    scene = Scene(HYGON_7285_2S, reserved="0-3,64-67")
    assert shown(scene.place(in_kube_system(), within=constraint("2-20")).placement) == ("reserved", "2-3")
    assert scene.place(in_kube_system(limit=1), within=constraint("8-20")).placement.level == "ccx"


def test_a_reserved_cpu_that_kubelet_gave_to_one_container_is_not_shared() -> None:
    scene = Scene(HYGON_7285_2S, reserved="0-3,64-67")
    scene.occupy("0,64", exclusive=True)
    assert format_cpus(scene.place(in_kube_system()).placement.cpus) == "1-3,65-67"


# ---------------------------------------------------------------------- one NUMA node demanded


def test_a_numa_node_with_room_is_one_though_no_l3_of_it_has_any(scene) -> None:
    for leaf in scene.node.topology.leaves:
        scene.occupy(format_cpus(leaf.cpus), request=3)
    decision = scene.put(make_container(limit=8, request=6, preferences=PlacementPreferences(numa="require")))
    assert decision.placement.level == "numa"
    assert decision.why.startswith("no room in one CCX; ")


def test_where_no_numa_node_has_room_one_that_is_demanded_is_refused(scene) -> None:
    scene.occupy("0-127", request=112)
    with pytest.raises(PlacementRefused) as refusal:
        scene.put(make_container(limit=4, request=4, preferences=PlacementPreferences(numa="require")))
    assert "wants 4 CPUs in one NUMA node with room; the largest free NUMA node has 2" in str(refusal.value)


# ---------------------------------------------------------------------- beside those that share their pod's CPUs


@pytest.mark.parametrize(
    ("others", "request_cpus", "is_beside"), [(7, 0.4, True), (7, 2, False), (5, 2, True)]
)
def test_a_container_joins_those_that_share_the_pods_cpus_where_its_own_request_has_room(
    others, request_cpus, is_beside
) -> None:
    scene, pod = Scene(HYGON_7285_2S), make_pod("p")
    mate = make_container("mate", limit=8, request=0.5, pod=pod)
    mate = replace(mate, pod_share=PodShare(Resources(0, 8000), 500, 1))
    home = parse_cpus("4-7,68-71")
    place = Placement(home, level="ccx", home=home)
    scene.node.add("mate", Resident(pod.uid, 500, 8000, home, container=mate, placement=place))
    scene.occupy("4-7,68-71", request=others)
    placed = scene.place(make_container("app", limit=8, request=request_cpus, pod=pod)).placement
    assert (placed.cpus == home) is is_beside
