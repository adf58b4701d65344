"""Containers with CPUs of their own through the engine, by the policy ``topology-aware``."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants, crowded_out
from cri_proxy.engine.model import ContainerRecord, Life, ListedContainer, Management
from cri_proxy.engine.resync import Listing
from cri_proxy.engine.snapshot import read_record, write_record
from policies.hygon import TopologyAware
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import (
    NO_CONSTRAINT,
    Constraint,
    Container,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    PlacementRequest,
    Qos,
    Resources,
)
from policies.settings import EngineOptions, PlacementSettings
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S, OFFLINE_CPUS, UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import (
    TOPOLOGY_AWARE,
    Number,
    again,
    constraint,
    dump,
    engine_on,
    host_of,
    make_container,
    make_pod,
    milli,
    node_of,
    run,
    told,
    topology,
)
from tests.told_at_once import resync

CCX_0, CCX_1 = "0-3,64-67", "4-7,68-71"
NODE_0 = "0-7,64-71"


def engine(
    machine: str = HYGON_7285_2S,
    usable: Optional[str] = None,
    reserved: str = "",
    settings: PlacementSettings = TOPOLOGY_AWARE,
    options: Optional[EngineOptions] = None,
) -> Engine:
    policy = TopologyAware(topology(machine), settings)
    return engine_on(host_of(machine, usable, reserved), options=options, policy=policy)


def own(
    name: str,
    cpus: Number,
    preferences: PlacementPreferences = PlacementPreferences(),  # noqa: B008
    **more: object,
) -> Container:
    return make_container(name, limit=cpus, qos=Qos.GUARANTEED, preferences=preferences, **more)  # type: ignore[arg-type]


def cpus(of: Engine, key: str) -> str:
    return format_cpus(of.grants[key].cpus)


@pytest.fixture
def node() -> Engine:
    return engine(usable=NODE_0)


# ---------------------------------------------------------------------- whose CPUs they are


def test_the_shared_containers_of_the_domain_lose_them_before_and_get_them_back_after(node) -> None:
    run(node, make_container("web", limit=4, request=1), "web")
    run(node, make_container("elsewhere", limit=8, request=1), "elsewhere")
    admission = node.admit(own("db", 4), NO_CONSTRAINT, 1.0)
    (shrunk,) = admission.before
    taken = admission.placement.cpus
    assert shrunk.shrink and not shrunk.placement.cpus & taken
    assert len(shrunk.placement.cpus) == 4
    node.bind(admission.ticket, "db", 2.0)
    assert broken_invariants(node) == []
    (grown,) = node.remove("db")
    assert grown.id == shrunk.id and len(grown.placement.cpus) == 8


def test_a_shared_set_in_use_is_never_emptied(node) -> None:
    run(node, make_container("web", limit=8, request=1), "web")
    here = node.grants["web"].cpus
    for name in ("db", "cache"):
        admission = node.admit(own(name, 8), NO_CONSTRAINT, 1.0)
        node.bind(admission.ticket, name, 2.0)
        assert broken_invariants(node) == []
        assert node.grants["web"].cpus and not node.grants["web"].cpus & node.node.exclusive
    # The first one took the other CCX; the second got none of its own, for the last shared CPUs are not given.
    assert node.grants["db"].exclusive and not node.grants["db"].exclusive & here
    assert not node.grants["cache"].exclusive
    assert "leave none for others" in node.grants["cache"].why


def test_a_whole_ccx_is_taken_where_it_hurts_nobody(node) -> None:
    run(node, make_container("web", limit=8, request=6), "web")
    run(node, own("db", 4), "db")
    assert not node.grants["db"].cpus & node.grants["web"].cpus
    assert cpus(node, "web") == CCX_0


def test_a_shared_container_that_is_left_with_too_little_moves_to_where_there_is_room(node) -> None:
    run(node, make_container("web", limit=8, request=3), "web")
    run(node, make_container("log", limit=8, request=1), "log")
    assert (cpus(node, "web"), cpus(node, "log")) == (CCX_0, CCX_1)
    # Six CPUs of the other CCX leave 2,000m for 1,000m; the next two leave nothing there.
    run(node, own("db", 6), "db")
    assert not node.grants["db"].cpus & node.grants["web"].cpus
    admission = node.admit(own("more", 2), NO_CONSTRAINT, 5.0)
    assert broken_invariants(node) == []
    assert all(g.cpus for g in node.grants.values())
    node.cancel(admission.ticket, 6.0)
    assert broken_invariants(node) == []


# ---------------------------------------------------------------------- which CPUs


@pytest.mark.parametrize(
    ("machine", "sizes", "l3s"),
    [
        (HYGON_7285_2S, [4, 8, 4], [1, 1, 1]),
        (HYGON_7285_2S, [5, 5, 3, 3], [1, 1, 1, 1]),
        (HYGON_7285_2S, [12, 4], [2, 1]),
        (EPYC_NPS1_1S, [10, 6], [2, 1]),
        (UNEVEN_CCX, [4, 4], [1, 1]),
    ],
)
def test_as_few_l3s_as_can_be_and_whole_ones_stay_whole(machine, sizes, l3s) -> None:
    node = engine(machine)
    found = []
    for number, size in enumerate(sizes):
        grant = run(node, own(f"c{number}", size), f"c{number}")
        found.append(sum(1 for leaf in node.host.topology.leaves if leaf.cpus & grant.cpus))
        assert len(grant.exclusive) == size
    assert found == l3s


def test_the_pod_comes_first_and_its_domain_is_the_one_that_is_left_with_least(node) -> None:
    run(node, own("small", 3), "small")  # leaves 5 in its CCX
    pod = make_pod("web", size=(6, 6))
    run(node, own("app", 4, pod=pod), "app")
    run(node, own("proxy", 2, pod=pod), "proxy")
    leaves = [
        [i for i, leaf in enumerate(node.host.topology.leaves) if leaf.cpus & node.grants[key].cpus]
        for key in ("app", "proxy")
    ]
    assert leaves[0] == leaves[1] and len(leaves[0]) == 1


def test_a_mixed_container_has_its_own_cpus_and_shares_the_rest_of_their_domain(node) -> None:
    grant = run(node, own("app", 1.5), "app")
    assert len(grant.exclusive) == 1
    assert format_cpus(grant.cpus) == CCX_0
    other = run(node, make_container("web", limit=8, request=1), "web")
    assert not other.cpus & grant.exclusive
    assert broken_invariants(node) == []


def one_l3_over_four_nodes() -> Topology:
    """Sub-NUMA clustering, or a virtual machine that shows one L3 a socket: four nodes of four CPUs."""
    return Topology(TopologyData(tuple(Cpu(cpu, cpu, 0, 0, cpu // 4, 0) for cpu in range(16))))


@pytest.mark.parametrize(
    ("size", "owned", "l3s", "shared"),
    [
        (16.5, "", 3, "8-11,72-75"),
        (20.5, "", 3, "10-11,74-75"),
        (8.5, "8-63,72-127", 2, "4-7,68-71"),
    ],
    ids=["the nearest L3", "what is left of its own L3s", "the other L3 of its node"],
)
def test_a_fraction_is_shared_in_its_own_l3s_or_the_nearest_one(
    size: float, owned: str, l3s: int, shared: str
) -> None:
    node = engine()
    if owned:
        run(node, own("others", len(parse_cpus(owned))), "others", within=constraint(owned))
    grant = run(node, own("app", size, PlacementPreferences(ownership="exclusive")), "app")
    assert format_cpus(grant.cpus - grant.placement.exclusive) == shared
    assert sum(not l3.cpus.isdisjoint(grant.cpus) for l3 in node.host.topology.at("l3")) == l3s


def test_a_fraction_stays_in_one_numa_node_where_an_l3_spans_several() -> None:
    tree = one_l3_over_four_nodes()
    node = engine_on(host_of(tree), policy=TopologyAware(tree, TOPOLOGY_AWARE))
    run(node, own("two", 2), "two")
    for name, cpus in (("a", "2-3"), ("b", "4-7"), ("c", "5-7")):
        grant = run(node, own(name, 1.5, memory=1), name)
        assert (format_cpus(grant.cpus), grant.placement.level) == (cpus, "numa")
        assert grant.placement.mems == tree.nodes_of(grant.cpus)
    # Where its node has nothing left to share, the smallest domain around it that has.
    grant = run(node, own("d", 1.5), "d", within=constraint("7-8"))
    assert (format_cpus(grant.cpus), grant.placement.level) == ("7-8", "ccx")
    assert broken_invariants(node) == []


def test_more_cpus_than_a_node_has_fit_in_two_where_an_l3_spans_several() -> None:
    tree = one_l3_over_four_nodes()
    policy = TopologyAware(tree, TOPOLOGY_AWARE)
    for count in (4, 6, 8, 12, 15):
        assert policy.place(node_of(tree), PlacementRequest(own("app", count))).fits


def test_isolated_cpus_go_to_those_who_own_them_only() -> None:
    node = engine(OFFLINE_CPUS)
    isolated = node.host.topology.data.isolated & node.host.usable
    assert isolated and not node.node.shared & isolated
    assert run(node, own("one", 1), "one").cpus <= isolated
    assert not run(node, own("two", 2), "two").cpus & isolated
    assert run(node, own("asks", 1, PlacementPreferences(isolated="require")), "asks").cpus <= isolated
    with pytest.raises(PlacementRefused, match="demands 64 isolated CPUs"):
        node.admit(own("many", 64, PlacementPreferences(isolated="require")), NO_CONSTRAINT, 1.0)


# ---------------------------------------------------------------------- what annotations ask


def test_require_fails_with_what_there_is(node) -> None:
    with pytest.raises(
        PlacementRefused, match=r"default/.*/app wants 12 CPUs in one L3; the largest free L3 has 8"
    ):
        node.admit(own("app", 12, PlacementPreferences(l3="require")), NO_CONSTRAINT, 1.0)
    before = dump(node)
    with pytest.raises(PlacementRefused, match="in one L3"):
        node.admit(
            make_container("web", limit=12, preferences=PlacementPreferences(l3="require")),
            NO_CONSTRAINT,
            1.0,
        )
    assert dump(node) == before


def test_an_exclusive_l3_is_nobody_elses(node) -> None:
    grant = run(node, own("app", 4, PlacementPreferences(l3="exclusive")), "app")
    assert len(grant.cpus) == 4 and len(grant.exclusive) == 8
    for name in ("web", "log"):
        assert not run(node, make_container(name, limit=8), name).cpus & grant.exclusive
    assert broken_invariants(node) == []


def test_hidden_threads_are_nobodys(node) -> None:
    grant = run(node, own("app", 4, PlacementPreferences(smt="hide")), "app")
    cores = node.host.topology.core_of
    assert len(grant.exclusive) == 4
    assert len({cores[c] for c in grant.cpus}) == len(grant.cpus) == 2
    assert not node.node.shared & grant.exclusive


def test_one_thread_a_core_of_the_shared_ones_too(node) -> None:
    grant = run(
        node, make_container("app", limit=4, request=2, preferences=PlacementPreferences(smt="hide")), "app"
    )
    assert cpus(node, "app") == "0-3"
    run(node, own("db", 4), "db")
    assert len({node.host.topology.core_of[c] for c in node.grants["app"].cpus}) == len(
        node.grants["app"].cpus
    )
    assert grant.placement.one_thread


@pytest.mark.parametrize(
    ("quota", "request_cpus", "lifted"),
    [("lift", 2, True), ("lift", 1.5, False), ("keep", 2, False), ("", 2, False)],
    ids=["asked for", "a mixed one keeps its quota", "kept", "default"],
)
def test_the_quota_is_lifted_of_who_owns_all_its_cpus(quota, request_cpus, lifted) -> None:
    node = engine()
    grant = run(node, own("app", request_cpus, PlacementPreferences(cfs_quota=quota)), "app")
    assert grant.placement.lift_quota is lifted


# ---------------------------------------------------------------------- resize


def test_growing_stays_in_the_ccx_and_keeps_every_cpu(node) -> None:
    first = run(node, own("app", 2), "app").cpus
    admission = node.resize("app", Resources(milli(6), milli(6)), NO_CONSTRAINT, 1.0)
    assert admission is not None
    node.commit(admission.ticket, 2.0)
    grown = node.grants["app"].cpus
    assert first < grown and grown < parse_cpus(CCX_0)
    assert broken_invariants(node) == []


def test_shrinking_gives_the_newest_back(node) -> None:
    first = run(node, own("app", 2), "app").cpus
    sizes = []
    for count in (4, 6, 4, 2):
        admission = node.resize("app", Resources(milli(count), milli(count)), NO_CONSTRAINT, 1.0)
        assert admission is not None
        node.commit(admission.ticket, 2.0)
        sizes.append(node.grants["app"].cpus)
    assert sizes[3] == first and sizes[2] == sizes[0] and sizes[0] < sizes[1]


def test_a_refused_resize_is_undone(node) -> None:
    run(node, make_container("web", limit=8, request=1), "web")
    run(node, own("app", 2), "app")
    before = node.grants["app"].cpus, node.grants["web"].cpus
    admission = node.resize("app", Resources(milli(6), milli(6)), NO_CONSTRAINT, 1.0)
    assert admission is not None
    node.cancel(admission.ticket, 2.0)
    assert (node.grants["app"].cpus, node.grants["web"].cpus) == before
    assert broken_invariants(node) == []


# ---------------------------------------------------------------------- restarts


def test_rule_4_a_next_attempt_gets_the_same_cpus_and_an_old_one_takes_none_of_them_away(node) -> None:
    app = own("app", 4)
    first = run(node, app, "a0").cpus
    node.exited("a0", 1, 1.0)
    assert run(node, again(app, 1), "a1", 2.0).exclusive == first
    node.remove("a0")
    assert node.grants["a1"].exclusive == first
    other = run(node, own("other", 4), "other", 3.0)
    assert not other.exclusive & first


def test_held_cpus_are_the_last_choice_and_then_given_up(node) -> None:
    run(node, own("old", 8), "old")
    node.exited("old", 1, 1.0)
    run(node, own("small", 4), "small", 2.0)
    assert not node.grants["small"].cpus & node.grants["old"].cpus
    big = run(node, own("big", 8), "big", 3.0)
    assert len(big.exclusive) == 8 and "given up" in big.why


def test_a_restart_of_the_daemon_changes_nothing() -> None:
    node = engine()
    for number, size in enumerate((1, 1.5, 4, 8, 12, 3)):
        run(node, own(f"c{number}", size), f"c{number}")
    run(node, make_container("web", limit=8, request=1), "web")
    restarted = engine()
    texts = [write_record(grant) for grant in node.grants.values()]
    assert restarted.restore([read_record("grant", t) for t in texts], [], [], [], {}) == ()
    assert dict(restarted.grants) == dict(node.grants)


# ---------------------------------------------------------------------- moving those that own CPUs


def test_those_that_own_cpus_are_moved_only_where_that_is_allowed() -> None:
    """Two CCXs with 4 CPUs taken in each: 8 fit one CCX only if a container with CPUs of its own moves."""

    def scattered(options: EngineOptions) -> Engine:
        node = engine(usable=NODE_0, reserved="0,64", options=options)
        run(node, own("a", 5), "a")
        run(node, own("b", 4), "b")
        run(node, own("c", 1, PlacementPreferences(isolated="avoid")), "c")
        node.remove("a")
        return node

    for allowed in (False, True):
        node = scattered(EngineOptions(move_exclusive=allowed))
        admission = node.admit(own("new", 6), NO_CONSTRAINT, 5.0)
        assert len(admission.placement.exclusive) == 6
        assert broken_invariants(node) == []
        if not allowed:
            assert not admission.decision.others


def test_a_policy_none_of_whose_cpus_are_free_shares_and_says_so() -> None:
    node = engine(VM_NO_CACHE_INFO)
    total = len(node.host.usable)
    grant = run(node, own("all", total), "all")
    assert grant.stance is Management.PLACED and not grant.exclusive
    assert "exclusive CPU" in grant.why


def test_nothing_leaks() -> None:
    node = engine(reserved="0,64")
    empty = node.node.capacity(), node.node.exclusive, node.node.shared
    for number in range(40):
        run(node, own(f"c{number}", 1 + number % 9), f"c{number}")
    for number in range(40):
        node.remove(f"c{number}")
    assert (node.node.capacity(), node.node.exclusive, node.node.shared) == empty
    assert not node.node.residents


def test_a_fence_holds_the_cpus_of_its_own_too() -> None:
    node = engine()
    grant = run(node, own("app", 2), "app", within=constraint("8-15"))
    assert grant.exclusive <= parse_cpus("8-15")
    assert replace(grant.placement, cpus=grant.exclusive) == grant.placement


# ---------------------------------------------------------------------- what else happens meanwhile


def test_a_resize_that_takes_cpus_moves_who_is_left_with_too_little(node) -> None:
    run(node, make_container("web", limit=8, request=2), "web")
    run(node, own("db", 4), "db")
    run(node, make_container("log", limit=4, request=2), "log")
    assert node.grants["log"].placement.home > node.grants["db"].cpus
    admission = node.resize("db", Resources(milli(7), milli(7)), NO_CONSTRAINT, 1.0)
    assert admission is not None
    assert told(admission.before) == {"log": cpus(node, "web")}
    assert broken_invariants(node) == []


def test_who_was_to_grow_after_a_create_that_is_refused_grows_all_the_same_if_it_may(node) -> None:
    run(node, make_container("web", limit=8, request=1), "web")
    app = own("app", 4)
    run(node, app, "first")
    # A next attempt that shares: its CPUs are to go back to the others, which are told after the reply.
    shares = replace(again(app, 1), preferences=PlacementPreferences(ownership="shared"))
    admission = node.admit(shares, NO_CONSTRAINT, 1.0)
    node.remove("first")
    told_now = told(node.cancel(admission.ticket, 2.0))
    assert all(format_cpus(node.grants[key].cpus) == cpus for key, cpus in told_now.items())
    waiting = {u.id for u in admission.after}
    assert waiting <= set(told_now)
    assert broken_invariants(node) == []


def test_a_container_taken_under_management_during_its_resize_stays_so(node) -> None:
    run(node, own("app", 2), "app")
    node.release("app")
    admission = node.resize("app", Resources(milli(2), milli(2)), NO_CONSTRAINT, 1.0)
    assert admission is not None and not admission.placement.cpus
    node.manage("app")
    mine = node.grants["app"].exclusive
    updates = node.commit(admission.ticket, 2.0)
    assert node.grants["app"].stance is Management.PLACED and node.grants["app"].exclusive == mine
    # The request may have undone what was sent for it meanwhile.
    assert told(updates) == {"app": format_cpus(mine)}


@pytest.mark.parametrize("wanted", [Resources(0, None), Resources(1000, 1000)], ids=["to share", "the same"])
def test_kubelet_has_the_last_word_also_over_a_container_that_is_being_resized(wanted) -> None:
    node = engine(VM_NO_CACHE_INFO)
    run(node, own("app", 1), "app")
    mine = format_cpus(node.grants["app"].exclusive)
    node.resize("app", wanted, NO_CONSTRAINT, 1.0)
    node.admit(own("static", 1), constraint(mine), 2.0)
    assert format_cpus(node.grants["app"].cpus) != mine
    assert broken_invariants(node) == []


def test_the_way_back_must_be_there_without_what_the_container_owns_meanwhile() -> None:
    # Reserved CPUs are shared while there are no others: by what it owns itself it must not bring that about.
    node = engine(usable="0-1,4-5", reserved="0-1")
    run(node, own("large", 2), "large")
    run(node, own("small", 1), "small")
    assert cpus(node, "small") == "0-1"
    admission = node.admit(make_container("large", limit=1, attempt=1), NO_CONSTRAINT, 1.0)
    assert node.grants["small"].exclusive
    node.cancel(admission.ticket, 2.0)
    assert broken_invariants(node) == []


def test_an_adopted_container_whose_resize_is_refused_is_told_what_it_has_lost_meanwhile() -> None:
    node = engine(VM_NO_CACHE_INFO)
    first = run(node, own("x", 1), "x").exclusive
    home = node.node.usable
    node.adopt(
        ContainerRecord(
            "app", own("app", 1), Placement(home=home), Management.ADOPTED, life=Life.RUNNING, runs_on=home
        )
    )
    # Kubelet gives it the other's CPU; that one moves, and the CPU it gets is not the adopted one's any more.
    admission = node.resize("app", Resources(1000, 1000), Constraint(first), 1.0)
    assert admission is not None
    node.amend(replace(node.grants["x"], displaced=None))
    node.kubelet_gives(own("app", 1), "")
    updates = node.cancel(admission.ticket, 2.0)
    assert told(updates)["app"] == format_cpus(home - node.grants["x"].exclusive)


def test_cpus_that_the_machine_does_not_have_are_in_no_owners_way() -> None:
    node = engine(VM_NO_CACHE_INFO)
    there = Placement(home=frozenset([4000]), exclusive=frozenset([4000]))
    node.adopt(
        ContainerRecord(
            "app", own("app", 1), there, Management.ADOPTED, life=Life.RUNNING, runs_on=frozenset([4000])
        )
    )
    mixed = replace(own("mixed", 1), resources=Resources(1500, 1500))
    assert run(node, mixed, "mixed").exclusive


def test_a_container_without_a_record_does_not_own_what_a_record_says_is_anothers(node) -> None:
    mine = run(node, own("app", 1), "app").exclusive
    stranger = own("stranger", 1)
    listed = {
        key: ListedContainer(key, who.pod.id, who.pod.uid, who.name, 0, running=True, exited=False, cpus=on)
        for key, who, on in (("app", own("app", 1), mine), ("stranger", stranger, mine))
    }
    resync(node, Listing(listed, 9.0, {"stranger": stranger}), 10.0)
    assert node.grants["app"].exclusive == mine
    assert node.grants["stranger"].stance is Management.PLACED and not node.grants["stranger"].cpus & mine
    assert broken_invariants(node) == []


# ---------------------------------------------------------------------- containers that can go nowhere else

#: 8 CPUs in two L3s of one NUMA node.
TWO_L3S = Topology(TopologyData(tuple(Cpu(i, i, i // 4, 0, 0, 0) for i in range(8))))


def two_l3s() -> Engine:
    return engine_on(host_of(TWO_L3S), policy=TopologyAware(TWO_L3S, TOPOLOGY_AWARE))


def bystander(node: Engine, stance: Management, here: str) -> None:
    """A container that has less than the machine: behind a cpuset of its caller, or found where it is."""
    web = make_container("web", request=0.1)
    run(node, web, "web", within=constraint(here))
    if stance is not Management.PLACED:
        within = parse_cpus(here)
        home = Placement(home=within) if stance is Management.ADOPTED else Placement()
        found = replace(
            node.grants["web"], placement=home, stance=stance, runs_on=within, constraint=NO_CONSTRAINT
        )
        node.amend(found)


STANCES = [stance for stance in Management if stance is not Management.KUBELET]


@pytest.mark.parametrize("stance", STANCES)
def test_the_last_cpu_of_a_container_is_not_given_away_while_another_is_free(stance) -> None:
    node = two_l3s()
    bystander(node, stance, "0-2")
    run(node, own("four", 4), "four")
    run(node, own("three", 3), "three")
    assert (cpus(node, "four"), cpus(node, "three")) == ("4-7", "0-1,3")
    web = node.grants["web"]
    assert (web.stance, 2 in (web.cpus or web.runs_on)) == (stance, True)
    assert broken_invariants(node) == crowded_out(node) == []


def test_nor_by_a_container_that_grows() -> None:
    node = two_l3s()
    bystander(node, Management.PLACED, "0-2")
    run(node, own("four", 4), "four")
    run(node, own("two", 2), "two")
    admission = node.resize("two", Resources(3000, 3000), NO_CONSTRAINT, 5.0)
    assert admission is not None
    node.commit(admission.ticket, 6.0)
    assert len(node.grants["two"].exclusive) == 3
    assert node.grants["web"].cpus
    assert crowded_out(node) == []


def test_where_no_other_is_free_it_is_given_and_said() -> None:
    node = two_l3s()
    bystander(node, Management.PLACED, "0")
    run(node, own("four", 4), "four")
    run(node, own("two", 2), "two")
    admission = node.admit(own("one", 1), NO_CONSTRAINT, 1.0)
    assert format_cpus(admission.placement.cpus) == "3"
    node.bind(admission.ticket, "one", 1.0)
    tight = engine(machine=VM_NO_CACHE_INFO, usable="0-3")
    run(tight, make_container("web", request=0.1), "web", within=constraint("0"))
    run(tight, make_container("log", request=0.1), "log", within=constraint("1"))
    run(tight, make_container("any", request=0.1), "any")
    admission = tight.admit(own("three", 3), NO_CONSTRAINT, 1.0)
    assert "CPUs 0 are the last ones that default/pod-of-web/web may run on" in admission.decision.why
    tight.bind(admission.ticket, "three", 1.0)
    assert broken_invariants(tight) == []
    (sentence,) = crowded_out(tight)
    assert sentence == "default/pod-of-web/web (untouched) may run only on CPUs 0, exclusive to three"
    tight.remove("three")
    assert crowded_out(tight) == []


def test_the_next_attempt_of_a_container_that_hides_threads_hides_them_too() -> None:
    node = engine()
    hiding = own("db", 2, PlacementPreferences(ownership="exclusive", smt="hide"))
    run(node, hiding, "db")
    before = node.grants["db"].placement
    assert before.hidden
    node.exited("db", 1, 1.0)
    run(node, again(hiding, 1), "db-1")
    assert node.grants["db-1"].placement == before


def test_what_it_owns_outside_of_a_new_fence_it_does_not_keep() -> None:
    node = engine()
    run(node, own("db", 2), "db", within=constraint("0-3,64-67"))
    admission = node.resize("db", node.grants["db"].container.resources, constraint("8-11,72-75"), 1.0)
    assert admission is not None and admission.placement.cpus < parse_cpus("8-11,72-75")
    assert broken_invariants(node) == []
    node.commit(admission.ticket, 2.0)
    assert len(node.grants["db"].exclusive) == 2
    assert node.grants["db"].exclusive < parse_cpus("8-11,72-75")
