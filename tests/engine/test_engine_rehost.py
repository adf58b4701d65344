"""Rule 11: usable CPUs. CPUs and memory nodes come and go; a container with none left is placed anew, and finds back."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ClaimPart, CpusetUpdate, Host, Life, Management, Orders
from policies.hygon import Hygon
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Topology, TopologyData, remember
from policies.model import NO_CONSTRAINT, Placement, PlacementPreferences, Qos
from policies.reserved import Reservation, reserve
from policies.settings import PlacementSettings
from tests import machines
from tests.scenes import (
    HYGON,
    Owning,
    constraint,
    engine_on,
    host_of,
    make_container,
    make_pod,
    run,
    told,
    topology,
)

SMALL_MACHINES = [name for name in machines.ALL_MACHINES if 1 < len(machines.machine(name).cpus) <= 128]


def populate(engine: Engine) -> None:
    """Containers of every rung, in two pods, one behind a fence, one of kube-system."""
    pod = make_pod("web", size=(4, 10))
    for i, limit in enumerate((1, 2, 6, 9, 17, 30, 50, None)):
        run(engine, make_container(f"c{i}", limit=limit, request=0.5, memory=1), f"c{i}")
    run(engine, make_container("app", limit=6, request=2, pod=pod), "app")
    run(engine, make_container("sidecar", limit=2, request=1, pod=pod), "sidecar")
    some = format_cpus(sorted(engine.node.usable)[::3])
    run(engine, make_container("fenced", limit=2), "fenced", within=constraint(some))
    system = make_container("dns", request=0.1, pod=make_pod("dns", namespace="kube-system"))
    run(engine, system, "dns")
    assert broken_invariants(engine) == []


def placements(engine: Engine) -> dict[str, Placement]:
    return {key: grant.placement for key, grant in engine.grants.items()}


class Machine:
    """An engine whose machine loses and regains CPUs, as sysfs would show it."""

    def __init__(self, name: str, reserved_milli: int = 0, settings: PlacementSettings = HYGON) -> None:
        self.full = machines.machine(name)
        self.settings = settings
        self.reserved_milli = reserved_milli
        tree = Topology(self.full)
        self.engine = engine_on(self._host(tree), policy=Hygon(tree, settings))

    def _host(self, tree: Topology) -> Host:
        reserved = reserve(tree, tree.online, Reservation(milli=self.reserved_milli)).cpus
        return Host(tree, tree.online, tree.memory_nodes, tree.online, reserved)

    def offline(self, cpus: Iterable[int]) -> dict[str, str]:
        data = remember(self.engine.host.topology, machines.take_offline(self.full, cpus))
        return self.online_as(data)

    def online_as(self, data: TopologyData) -> dict[str, str]:
        tree = Topology(data)
        updates = self.engine.rehost(self._host(tree), Hygon(tree, self.settings))
        assert broken_invariants(self.engine) == []
        return told(updates)


# ---------------------------------------------------------------------- rule 11: CPUs go offline and come back


@pytest.mark.parametrize("reserved_milli", [0, 1500])
@pytest.mark.parametrize("name", SMALL_MACHINES)
def test_rule_11_every_cpu_off_and_on_again_gives_the_first_placements_back(
    name: str, reserved_milli: int
) -> None:
    node = Machine(name, reserved_milli)
    populate(node.engine)
    first = placements(node.engine)
    cpus = sorted(node.engine.host.topology.online)
    for cpu in cpus if len(cpus) < 100 else cpus[::7]:
        gone = node.offline([cpu])
        assert all(cpu not in p.cpus for p in placements(node.engine).values())
        # Only those that had it are told, and all of them.
        if not reserved_milli:
            assert set(gone) == {key for key, p in first.items() if cpu in p.cpus}
        node.offline([])
        assert placements(node.engine) == first
        assert all(g.displaced is None for g in node.engine.grants.values())


@pytest.mark.parametrize("name", SMALL_MACHINES)
def test_rule_11_so_does_every_leaf_and_every_node_as_a_whole(name: str) -> None:
    node = Machine(name)
    populate(node.engine)
    first = placements(node.engine)
    tree = node.engine.host.topology
    boxes = {
        d.cpus
        for level in ("l3", "numa", "socket")
        for d in tree.at(level)
        if d.cpus & tree.online < tree.online
    }
    for cpus in boxes:
        node.offline(cpus)
        node.offline([])
        assert placements(node.engine) == first


@pytest.mark.parametrize("name", [machines.VM_NO_CACHE_INFO, machines.OFFLINE_CPUS])
def test_rule_11_so_do_cpus_that_go_one_by_one_in_any_order(name: str) -> None:
    node = Machine(name)
    populate(node.engine)
    first = placements(node.engine)
    order = random.Random(1)
    cpus = sorted(node.engine.host.topology.online)
    for _ in range(4):
        gone: list[int] = []
        for cpu in order.sample(cpus, len(cpus) - 1):
            gone.append(cpu)
            node.offline(gone)
        while gone:
            gone.pop(order.randrange(len(gone)))
            node.offline(gone)
        assert {k: format_cpus(p.cpus) for k, p in placements(node.engine).items()} == {
            k: format_cpus(p.cpus) for k, p in first.items()
        }


def test_rule_11_an_offline_cpu_leaves_every_set_and_nothing_else_moves() -> None:
    node = Machine(machines.VM_NO_CACHE_INFO)
    for i in range(3):
        run(node.engine, make_container(f"c{i}", limit=1), f"c{i}")
    assert node.offline([1]) == {"c0": "0,2-3", "c2": "0,2-3"}
    assert node.offline([1]) == {}
    assert node.offline([]) == {"c0": "0-3", "c2": "0-3"}


def test_rule_11_a_container_left_with_no_cpu_is_placed_anew_near_its_memory() -> None:
    node = Machine(machines.HYGON_7285_2S)
    run(node.engine, make_container("app", limit=2, memory=1), "app", within=NO_CONSTRAINT)
    # Its CCX goes; the other one of its node is the busiest by far.
    run(node.engine, make_container("busy", limit=8, request=5), "busy", within=constraint("4-7,68-71"))
    assert node.offline(parse_cpus("0-3,64-67")) == {"app": "4-7,68-71"}
    grant = node.engine.grants["app"]
    assert grant.why.startswith("its CPUs are gone: 2 CPUs wanted")
    assert (grant.displaced, format_cpus(grant.placement.mems)) != (None, "")
    assert node.offline([]) == {"app": "0-3,64-67"}
    assert node.engine.grants["app"].why == "its first place is there again"


@pytest.mark.parametrize("what", ["a container", "a claim"])
def test_what_a_freeze_has_kept_away_goes_back_with_its_end_and_a_restart_moves_nothing(what: str) -> None:
    def is_back() -> bool:
        return node.engine.grants[key].cpus == first

    def restarted() -> dict[str, str]:
        engine, old = node.engine, node.engine
        node.engine = engine_on(old.host, policy=old.policy, options=old.options)
        node.engine.set_orders(old.orders)
        return told(node.engine.restore(engine.grants.values(), (), engine.pods.values(), (), {}))

    node = Machine(machines.VM_NO_CACHE_INFO)
    if what == "a container":
        key = "app"
        run(node.engine, make_container("app", limit=2), key)
    else:
        part = ClaimPart("cpus", 2, frozenset(range(4)), devices=("node-0",))
        (claim,) = node.engine.prepare("u", "default", "claim", [part], 1.0)
        key = claim.key
    first = node.engine.grants[key].cpus
    gone = range(4) if what == "a container" else sorted(first)[:1]
    node.engine.set_orders(Orders(freeze=True))
    node.offline(gone)
    assert node.offline([]) == {} and not is_back()
    assert restarted() == {} and not is_back()
    assert told(node.engine.set_orders(Orders())) == (
        {key: format_cpus(first)} if what == "a container" else {}
    )
    assert is_back()
    assert restarted() == {} and is_back()


def test_rule_11_across_nodes_its_memory_nodes_stay_beside_the_new_ones() -> None:
    node = Machine(machines.VM_NO_CACHE_INFO)
    run(node.engine, make_container("app", limit=2, memory=1), "app")
    node.offline(range(4))
    assert format_cpus(node.engine.grants["app"].placement.mems) == "0-1"
    node.offline([])
    assert format_cpus(node.engine.grants["app"].placement.mems) == "0"


def test_rule_11_held_places_and_containers_on_their_way_follow_silently() -> None:
    node = Machine(machines.VM_NO_CACHE_INFO)
    run(node.engine, make_container("held", limit=1), "held")
    node.engine.exited("held", 1, 0.0)
    flying = node.engine.admit(make_container("flying", limit=1), NO_CONSTRAINT, 0.0)
    assert node.offline([1, 5]) == {}
    assert format_cpus(node.engine.grants["held"].placement.cpus) == "0,2-3"
    assert told(node.engine.bind(flying.ticket, "flying", 1.0)) == {"flying": "4,6-7"}


def test_rule_11_a_container_behind_a_fence_that_is_offline_waits_for_it() -> None:
    node = Machine(machines.VM_NO_CACHE_INFO)
    run(node.engine, make_container("app", limit=1), "app", within=constraint("2"))
    assert node.offline([2]) == {}
    assert node.engine.grants["app"].stance is Management.UNTOUCHED
    assert node.offline([]) == {"app": "2"}
    assert node.engine.grants["app"].stance is Management.PLACED


def test_rule_11_one_that_had_no_place_when_it_was_created_is_told_when_it_gets_one() -> None:
    engine = engine_on(machines.VM_NO_CACHE_INFO)
    admission = engine.admit(make_container("app", limit=1), constraint("0-3"), 0.0)
    for usable in ("1", "4-7"):
        engine.rehost(host_of(machines.VM_NO_CACHE_INFO, usable=usable))
    assert engine.bind(admission.ticket, "app", 1.0) == ()
    assert engine.grants["app"].stance is Management.UNTOUCHED
    # It has what was sent, whatever its record says that it ran on since.
    assert told(engine.rehost(host_of(machines.VM_NO_CACHE_INFO, usable="1"))) == {"app": "1"}


def test_rule_11_exclusive_cpus_that_are_offline_stay_its_own() -> None:
    tree = topology(machines.VM_NO_CACHE_INFO)
    engine = engine_on(host_of(tree), policy=Owning(tree))
    run(engine, make_container("app", limit=2, qos=Qos.GUARANTEED), "app")
    assert told(engine.rehost(host_of(tree, usable="1-7"))) == {"app": "1"}
    run(engine, make_container("other", limit=4), "other")
    assert told(engine.rehost(host_of(tree))) == {"app": "0-1"}
    assert broken_invariants(engine) == []


def test_rule_11_exclusive_cpus_that_are_all_gone_are_replaced_and_others_make_room() -> None:
    tree = topology(machines.VM_NO_CACHE_INFO)
    engine = engine_on(host_of(tree), policy=Owning(tree))
    run(engine, make_container("app", limit=2, qos=Qos.GUARANTEED), "app")
    run(engine, make_container("other", limit=2), "other")
    updates = engine.rehost(host_of(tree, usable="2-7"))
    assert told(updates).keys() == {"app"} or told(updates).keys() == {"app", "other"}
    assert len(engine.grants["app"].exclusive) == 2
    assert broken_invariants(engine) == []
    engine.rehost(host_of(tree))
    assert engine.grants["app"].exclusive == {0, 1}
    assert broken_invariants(engine) == []


def test_rule_11_exclusive_cpus_that_are_reserved_from_now_on_are_left_also_during_a_resize() -> None:
    tree = topology(machines.VM_NO_CACHE_INFO)
    engine = engine_on(host_of(tree), policy=Owning(tree))
    run(engine, make_container("app", limit=1, qos=Qos.GUARANTEED), "app")
    engine.resize("app", engine.grants["app"].container.resources, NO_CONSTRAINT, 1.0)
    engine.rehost(host_of(tree, reserved="0"))
    assert all(g.exclusive and 0 not in g.exclusive for g in engine.grants.values())
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- rule 11: a CPU joins


def without(data: TopologyData, cpus: Iterable[int]) -> TopologyData:
    """A machine where these CPUs have never been seen: offline since boot."""
    return machines.take_offline(data, cpus)


@pytest.mark.parametrize("cpu", [0, 3, 66, 127])
def test_rule_11_a_cpu_that_joins_its_domain_joins_the_homes_that_hold_it(cpu: int) -> None:
    full = machines.machine(machines.HYGON_7285_2S)
    tree = Topology(without(full, [cpu]))
    engine = engine_on(host_of(tree), policy=Hygon(tree, HYGON))
    for index, leaf in enumerate(tree.leaves):
        run(engine, make_container(f"c{index}", limit=7), f"c{index}", within=NO_CONSTRAINT)
        assert len(leaf.cpus) in (7, 8)
    run(engine, make_container("node", limit=15), "node")
    run(engine, make_container("machine", limit=120), "machine")
    whole = Topology(full)
    updates = told(engine.rehost(host_of(whole), Hygon(whole, HYGON)))
    [leaf] = [d for d in whole.leaves if cpu in d.cpus]
    [joined] = [k for k in updates if k.startswith("c")]
    assert updates[joined] == format_cpus(leaf.cpus)
    assert updates["machine"] == "0-127"
    assert broken_invariants(engine) == []


def test_rule_11_a_cpu_that_joins_does_not_join_what_held_only_a_part_of_its_domain() -> None:
    full = machines.machine(machines.HYGON_7285_2S)
    tree = Topology(without(full, [3]))
    engine = engine_on(host_of(tree), policy=Hygon(tree, HYGON))
    run(engine, make_container("fenced", limit=2), "fenced", within=constraint("0-1"))
    assert engine.rehost(host_of(full)) == ()


def test_rule_11_an_adopted_container_does_not_grow() -> None:
    full = machines.machine(machines.VM_NO_CACHE_INFO)
    tree = Topology(without(full, [3]))
    engine = engine_on(host_of(tree), policy=Hygon(tree, HYGON))
    grant = run(engine, make_container("app", limit=2), "app")
    home = replace(grant.placement, home=parse_cpus("0-2"))
    engine.amend(replace(grant, stance=Management.ADOPTED, runs_on=parse_cpus("0-2"), placement=home))
    assert engine.rehost(host_of(full)) == ()


# ---------------------------------------------------------------------- rule 11: cgroups and configuration


@pytest.mark.parametrize("usable", ["0-3", "1-6", "4-7", "7"])
def test_rule_11_only_cpus_of_kubelets_cgroup_are_sent(usable: str) -> None:
    engine = engine_on(host_of(machines.VM_NO_CACHE_INFO, usable=usable))
    populate(engine)
    assert all(g.placement.cpus <= parse_cpus(usable) for g in engine.grants.values())


def test_rule_11_a_smaller_cgroup_shrinks_and_a_larger_one_gives_back() -> None:
    engine = engine_on(machines.VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=8), "app")
    assert told(engine.rehost(host_of(machines.VM_NO_CACHE_INFO, usable="2-5"))) == {"app": "2-5"}
    assert told(engine.rehost(host_of(machines.VM_NO_CACHE_INFO))) == {"app": "0-7"}


def test_rule_11_cpus_that_are_reserved_from_now_on_are_left_by_others() -> None:
    engine = engine_on(machines.VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=2), "app")
    assert told(engine.rehost(host_of(machines.VM_NO_CACHE_INFO, reserved="0"))) == {"app": "1-3"}


def test_rule_11_reserved_containers_follow_the_reserved_cpus() -> None:
    engine = engine_on(host_of(machines.VM_NO_CACHE_INFO, reserved="0"))
    system = make_container("dns", request=0.1, pod=make_pod("dns", namespace="kube-system"))
    run(engine, system, "dns")
    assert told(engine.rehost(host_of(machines.VM_NO_CACHE_INFO, reserved="4-5"))) == {"dns": "4-5"}


def test_rule_11_and_share_the_new_ones_with_kubelet_too() -> None:
    engine = engine_on(host_of(machines.VM_NO_CACHE_INFO, reserved="0"))
    system = make_container("dns", request=0.1, pod=make_pod("dns", namespace="kube-system"))
    run(engine, system, "dns")
    engine.rehost(host_of(machines.VM_NO_CACHE_INFO, reserved="4-5"))
    own = engine.admit(make_container("own", limit=1, qos=Qos.GUARANTEED), constraint("4"), 1.0)
    assert told(own.before) == {"dns": "5"}
    assert told(engine.cancel(own.ticket, 2.0)) == {"dns": "4-5"}


def test_rule_11_another_policy_or_other_settings_move_nobody() -> None:
    engine = engine_on(machines.HYGON_7285_2S)
    populate(engine)
    other = PlacementSettings(ladder="fine", unlimited="ccx", memory="pin")
    assert engine.rehost(engine.host, Hygon(engine.host.topology, other)) == ()


def mems_of(engine: Engine, mems: Optional[str]) -> tuple[CpusetUpdate, ...]:
    host = host_of(machines.VM_NO_CACHE_INFO)
    return engine.rehost(host if mems is None else replace(host, mems=parse_cpus(mems)))


def test_rule_11_memory_nodes_that_the_cgroup_loses_are_left() -> None:
    engine = engine_on(machines.VM_NO_CACHE_INFO)
    run(engine, make_container("wide", limit=8, memory=1), "wide")
    run(engine, make_container("near", limit=1, memory=1), "near")
    updates = {u.id: format_cpus(u.placement.mems) for u in mems_of(engine, "1")}
    assert updates == {"wide": "1", "near": "1"}
    assert broken_invariants(engine) == []


def test_rule_11_memory_nodes_outside_the_callers_fence_are_never_the_way_out() -> None:
    engine = engine_on(machines.VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=1, memory=1), "app", within=constraint(mems="0"))
    mems_of(engine, "1")
    assert not engine.grants["app"].placement.mems
    assert broken_invariants(engine) == []


def test_rule_11_the_way_back_does_not_lead_to_memory_nodes_that_are_gone() -> None:
    tree = topology(machines.VM_NO_CACHE_INFO)
    engine = engine_on(host_of(tree))
    run(engine, make_container("app", limit=1, memory=1), "app")
    engine.rehost(host_of(tree, usable="4-7"))
    engine.rehost(replace(host_of(tree), mems=frozenset([1])))
    assert format_cpus(engine.grants["app"].placement.mems) == "1"
    assert broken_invariants(engine) == []


def test_rule_11_nor_to_those_that_the_caller_has_fenced_off_since() -> None:
    tree = topology(machines.VM_NO_CACHE_INFO)
    engine = engine_on(host_of(tree))
    app = make_container("app", limit=1, memory=20)
    assert format_cpus(run(engine, app, "app").placement.mems) == "0-1"
    engine.rehost(host_of(tree, usable="4-7"))
    resized = engine.resize("app", app.resources, constraint(mems="1"), 0.0)
    assert resized is not None
    engine.commit(resized.ticket, 0.0)
    engine.rehost(host_of(tree))
    grant = engine.grants["app"]
    assert (format_cpus(grant.cpus), format_cpus(grant.placement.mems)) == ("0-3", "1")
    assert broken_invariants(engine) == []


def test_rule_11_limits_are_charged_to_nodes_that_are_left_at_once_and_not_by_the_next_start() -> None:
    engine = engine_on(machines.VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=1, memory=1), "app", within=constraint("4000"))
    assert engine.grants["app"].stance is Management.UNTOUCHED
    mems_of(engine, "1")
    assert (engine.node.memory_charged(0), engine.node.memory_charged(1)) == (0, machines.GIB)


# ---------------------------------------------------------------------- restored


@pytest.mark.parametrize("name", SMALL_MACHINES)
def test_a_restart_on_the_same_machine_changes_no_cpuset(name: str) -> None:
    engine = Machine(name, 1500).engine
    populate(engine)
    heir = Machine(name, 1500).engine
    assert heir.restore(engine.grants.values(), engine.tickets.values(), [], engine.history, {}) == ()
    assert heir.grants == engine.grants


def test_a_restart_with_cpus_gone_shrinks_and_places_anew() -> None:
    before = Machine(machines.VM_NO_CACHE_INFO)
    for i in range(2):
        run(before.engine, make_container(f"c{i}", limit=1), f"c{i}")
    after = Machine(machines.VM_NO_CACHE_INFO)
    after.offline([0, 4, 5, 6, 7])
    updates = after.engine.restore(before.engine.grants.values(), [], [], [], {})
    assert told(updates) == {"c0": "1-3", "c1": "1-3"}


def test_a_restart_on_another_machine_places_anew_what_names_unknown_cpus() -> None:
    before = engine_on(machines.HYGON_7285_2S)
    run(before, make_container("stays", limit=2), "stays", within=constraint("0-3"))
    run(before, make_container("goes", limit=2), "goes", within=NO_CONSTRAINT)
    assert format_cpus(before.grants["goes"].placement.cpus) == "4-7,68-71"
    after = engine_on(machines.VM_NO_CACHE_INFO)
    updates = after.restore(before.grants.values(), [], [], [], {})
    assert told(updates) == {"goes": "4-7"}
    assert broken_invariants(after) == []
    assert all(g.life is Life.RUNNING for g in after.grants.values())
    assert after.grants["goes"].displaced is None or after.grants["goes"].displaced.home == NO_CPUS


DEMANDS = {
    "one NUMA node": PlacementPreferences(numa="require", ownership="exclusive"),
    "one L3": PlacementPreferences(l3="require", ownership="exclusive"),
    "an L3 to itself": PlacementPreferences(l3="exclusive"),
}


@pytest.mark.parametrize("preferences", DEMANDS.values(), ids=DEMANDS)
def test_a_demand_that_an_offline_cpu_makes_impossible_keeps_no_container_on_it(
    preferences: PlacementPreferences,
) -> None:
    """Two NUMA nodes; the other one has two CPUs left for a container that demands four of one."""
    node = Machine(machines.VM_NO_CACHE_INFO)
    other = make_container(
        "other", limit=2, request=2, preferences=PlacementPreferences(ownership="exclusive")
    )
    run(node.engine, other, "other", within=constraint("4-7"))
    db = make_container("db", limit=4, request=4, preferences=preferences)
    assert run(node.engine, db, "db").exclusive == parse_cpus("0-3")
    told = node.offline(range(4))
    moved = node.engine.grants["db"]
    assert moved.stance is Management.PLACED and moved.cpus <= node.engine.node.usable
    assert told["db"] == format_cpus(moved.cpus)
    assert "its CPUs are gone" in moved.why and "so without what it demands" in moved.why
    # Its demand is not forgotten: it goes back.
    node.offline([])
    assert node.engine.grants["db"].exclusive == parse_cpus("0-3")


def test_isolated_cpus_that_a_version_before_has_shared_are_left() -> None:
    before = Machine(machines.OFFLINE_CPUS)
    before.full = replace(before.full, isolated=NO_CPUS)
    before.online_as(before.full)
    run(before.engine, make_container("web", limit=7), "web")
    assert before.engine.grants["web"].cpus == parse_cpus("0-3,32-35")
    now = Machine(machines.OFFLINE_CPUS).engine
    updates = now.restore(before.engine.grants.values(), (), (), (), {})
    assert told(updates) == {"web": "0-2,32-34"}
    assert broken_invariants(now) == []
