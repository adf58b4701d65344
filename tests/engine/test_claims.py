"""Claims of CPUs: what they own, what their containers have, and why one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.engine.claims import members_of
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Management
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, PlacementPreferences, PlacementRefused, PodShare, Qos, Resources
from policies.registry import POLICIES
from policies.settings import ClassSelectors, EngineOptions
from tests.claim_scenes import CCX_0, CCX_1, NODE_0, having, key_of, owned, part, prepare
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO
from tests.scenes import (
    HYGON,
    constraint,
    dump,
    engine_on,
    host_of,
    make_container,
    make_pod,
    run,
    told,
    topology,
)

# ---------------------------------------------------------------------- what a claim owns


def test_a_claim_owns_cpus_of_its_device_before_there_is_a_container(engine: Engine) -> None:
    (record,) = prepare(engine, "a")
    assert record.is_claim and record.key == key_of("a")
    assert len(record.exclusive) == 4 and record.exclusive <= parse_cpus(CCX_0)
    assert record.exclusive.isdisjoint(engine.node.shared)
    assert engine.history[-1].operation == "prepare"


def test_nothing_is_told_of_a_claim(engine: Engine) -> None:
    prepare(engine, "a")
    engine.rehost(host_of(HYGON_7285_2S, reserved=format_cpus(owned(engine, "a"))))
    assert key_of("a") not in engine.told and not engine.lacking() and not engine.pending()
    assert engine.container_count == 0


def test_claims_of_one_device_are_disjoint(engine: Engine) -> None:
    for uid in "abcd":
        prepare(engine, uid, part(2))
    found = [owned(engine, uid) for uid in "abcd"]
    assert NO_CPUS.union(*found) == parse_cpus(CCX_0)


def test_a_whole_device_squeezes_out_what_shares_it(engine: Engine) -> None:
    for number in range(16):
        run(engine, make_container(f"app-{number}", limit=2, request=0.5), f"c{number}")
    there = [key for key, grant in engine.grants.items() if not grant.cpus.isdisjoint(parse_cpus(CCX_0))]
    assert there
    prepare(engine, "a", part(8, devices=("l3-0-whole",)))
    assert owned(engine, "a") == parse_cpus(CCX_0)
    assert all(
        grant.cpus.isdisjoint(parse_cpus(CCX_0)) for key, grant in engine.grants.items() if key in there
    )


def test_containers_that_it_would_crowd_are_moved_as_by_any_exclusive_grant(engine: Engine) -> None:
    run(engine, make_container("big", limit=8, request=6), "big", within=constraint(NODE_0))
    home = engine.grants["big"].placement.home
    prepare(engine, "a", part(4, format_cpus(home)))
    assert engine.grants["big"].cpus.isdisjoint(owned(engine, "a"))
    assert len(engine.grants["big"].cpus) == 8
    assert "makes room for default/claim-a/cpus" in engine.grants["big"].why


def test_a_hidden_thread_is_owned_and_not_run_on(engine: Engine) -> None:
    prepare(engine, "a", part(4, smt="hide"))
    assert len(owned(engine, "a")) == 4
    grant = run(engine, having("app", "a"), "c1")
    assert len(grant.cpus) == 2 and grant.cpus < grant.placement.claimed == owned(engine, "a")


def test_a_claim_of_a_system_namespace_has_no_reserved_cpus() -> None:
    engine = engine_on(host_of(HYGON_7285_2S, reserved="0-1"))
    (record,) = engine.prepare("a", "kube-system", "claim-a", [part(4)], 0.0)
    assert len(record.exclusive) == 4 and record.exclusive <= parse_cpus("2-3,64-67")


# ---------------------------------------------------------------------- prepared again, in parts, or not at all


def test_prepared_again_it_is_as_it_is(engine: Engine) -> None:
    prepare(engine, "a")
    before, number = dump(engine), engine.newest_record
    prepare(engine, "a", now_s=9.0)
    assert dump(engine) == before and engine.newest_record == number


def test_a_whole_device_of_which_a_cpu_went_offline_is_as_it_is(engine: Engine) -> None:
    prepare(engine, "a", part(8, devices=("l3-0-whole",)))
    engine.rehost(host_of(HYGON_7285_2S, usable="1-127"))
    before = engine.grants[key_of("a")]
    prepare(engine, "a", part(7, devices=("l3-0-whole",)))
    assert engine.grants[key_of("a")] is before


def test_other_devices_are_another_place(engine: Engine) -> None:
    prepare(engine, "a")
    run(engine, having("app", "a"), "c1")
    prepare(engine, "a", part(4, CCX_1, devices=("l3-1",)))
    assert owned(engine, "a") <= parse_cpus(CCX_1)
    assert engine.grants["c1"].cpus == owned(engine, "a")


def test_all_parts_or_none(engine: Engine) -> None:
    before = dump(engine)
    with pytest.raises(PlacementRefused):
        prepare(engine, "a", part(4, request="one"), part(5, request="other"))
    assert dump(engine) == before
    assert not [record for record in engine.history if "cri-resmgr" in record.outcome]


def test_parts_are_given_in_the_order_asked_for_whatever_their_size(engine: Engine) -> None:
    made = prepare(engine, "a", part(1, request="small"), part(7, request="large"))
    assert [record.container.name for record in made] == ["small", "large"]
    assert [len(record.exclusive) for record in made] == [1, 7]


def test_a_part_that_is_asked_for_no_more_goes(engine: Engine) -> None:
    prepare(engine, "a", part(2, request="one"), part(2, request="other"))
    prepare(engine, "a", part(2, request="one"))
    assert key_of("a", "other") not in engine.grants and key_of("a", "one") in engine.grants


def test_unprepared_its_cpus_are_shared_again(engine: Engine) -> None:
    before = dump(engine)
    prepare(engine, "a")
    engine.unprepare("a", 1.0)
    assert dump(engine) == before
    assert engine.history[-1].operation == "unprepare"
    engine.unprepare("a", 2.0)
    engine.unprepare("never", 2.0)
    assert dump(engine) == before


# ---------------------------------------------------------------------- refused


def owner(engine: Engine, name: str, count: int, cpus: str) -> None:
    asks = PlacementPreferences(ownership="exclusive")
    run(engine, make_container(name, limit=count, request=count, qos=Qos.GUARANTEED, preferences=asks), name,
        within=constraint(cpus))  # fmt: skip
    assert engine.grants[name].exclusive


def test_a_refusal_names_what_holds_the_cpus_and_what_would_help(engine: Engine) -> None:
    owner(engine, "web", 3, CCX_0)
    prepare(engine, "b", part(2))
    with pytest.raises(PlacementRefused) as refusal:
        prepare(engine, "a", part(4))
    assert str(refusal.value) == (
        "claim default/claim-a wants 4 CPUs of l3-0; 3 of 8 are free: 3 belong to container default/pod-of-web/web, "
        "2 belong to claim default/claim-b. It fits once container default/pod-of-web/web has ended"
    )


def test_a_refusal_names_reserved_cpus_and_those_that_may_not_be_used() -> None:
    engine = engine_on(host_of(HYGON_7285_2S, usable="0-2,4-127", reserved="0-1"))
    with pytest.raises(PlacementRefused) as refusal:
        prepare(engine, "a", part(6))
    assert str(refusal.value) == (
        "claim default/claim-a wants 6 CPUs of l3-0; 5 of 8 are free: 2 are reserved, 1 is offline or not available to "
        "containers. It fits with more CPUs available there"
    )


def test_the_last_shared_cpu_is_refused_as_that() -> None:
    engine = engine_on(host_of(HYGON_7285_2S, usable=CCX_0))
    prepare(engine, "a", part(7))
    with pytest.raises(PlacementRefused) as refusal:
        prepare(engine, "b", part(1))
    assert str(refusal.value) == (
        "claim default/claim-b wants 1 CPU of l3-0; 1 of 8 are free: 7 belong to claim default/claim-a. "
        "They are the last that containers without CPUs of their own have. It fits once claim default/claim-a has ended"
    )


def test_kubelets_own_cpus_are_named() -> None:
    given = {("uid-x", "app"): parse_cpus("0-5")}
    engine = engine_on(host_of(HYGON_7285_2S, kubelet_exclusive=given))
    with pytest.raises(PlacementRefused, match="4 belong to kubelet's CPU manager"):
        prepare(engine, "a", part(5))


def test_whole_cores_that_cannot_be_had_are_said(engine: Engine) -> None:
    owner(engine, "one", 1, "0,64")
    owner(engine, "two", 1, "1,65")
    with pytest.raises(PlacementRefused, match="6 of 8 are free.*smt any would fit"):
        prepare(engine, "a", part(6, smt="full-core"))


def test_the_last_cpus_of_a_container_that_can_go_nowhere_else_are_not_taken(engine: Engine) -> None:
    run(engine, make_container("bound", limit=1), "bound", within=constraint(CCX_0))
    with pytest.raises(PlacementRefused, match="default/pod-of-bound/bound|may run nowhere|only"):
        prepare(engine, "a", part(8, devices=("l3-0-whole",)))
    prepare(engine, "a", part(7))


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "hygon"])
def test_other_policies_keep_none(policy: str) -> None:
    engine = engine_on(HYGON_7285_2S, policy=POLICIES[policy](topology(HYGON_7285_2S), HYGON))
    with pytest.raises(PlacementRefused, match=f"policy {policy} keeps no CPUs for claims"):
        prepare(engine, "a")


def test_a_node_that_only_observes_keeps_none(engine: Engine) -> None:
    with pytest.raises(PlacementRefused, match="only observes"):
        engine.prepare("a", "default", "claim-a", [part(4)], 0.0, enforce=False)
    assert not engine.grants


# ---------------------------------------------------------------------- room inside the device


def test_other_claims_go_together_inside_of_their_device_so_that_whole_cores_are_free(engine: Engine) -> None:
    one, two = prepare(engine, "b", part(1, "0,64")), prepare(engine, "c", part(1, "1,65"))
    for uid, records in (("b", one), ("c", two)):  # as after others have gone from beside them
        claim = replace(records[0].part, cpus=parse_cpus(CCX_0))  # type: ignore[type-var]
        engine.amend(replace(records[0], part=claim, constraint=constraint(CCX_0)))
        run(engine, having(f"app-{uid}", uid, limit=1), f"c-{uid}")
    prepare(engine, "a", part(6, smt="full-core"), now_s=5.0)
    assert len(owned(engine, "a")) == 6
    moved = [uid for uid in "bc" if engine.grants[key_of(uid)].moved_s]
    assert len(moved) == 1
    for uid in "bc":
        assert engine.grants[f"c-{uid}"].cpus == owned(engine, uid)
    assert "moved to make room" in engine.grants[key_of("a")].why


def test_frozen_none_is_moved(engine: Engine) -> None:
    frozen = replace(engine.orders, freeze=True)
    for uid, cpus in (("b", "0,64"), ("c", "1,65")):
        (record,) = prepare(engine, uid, part(1, cpus))
        engine.amend(replace(record, constraint=constraint(CCX_0)))
    engine.set_orders(frozen)
    with pytest.raises(PlacementRefused):
        prepare(engine, "a", part(6, smt="full-core"))


@pytest.mark.parametrize("may_move", [True, False])
def test_containers_that_own_cpus_are_moved_where_that_is_allowed(may_move: bool) -> None:
    engine = engine_on(HYGON_7285_2S, options=EngineOptions(move_exclusive=may_move))
    asks = PlacementPreferences(ownership="exclusive")
    web = make_container("web", limit=6, request=6, qos=Qos.GUARANTEED, preferences=asks)
    home = run(engine, web, "web").exclusive
    l3 = next(leaf for leaf in engine.host.topology.leaves if home <= leaf.cpus)
    if not may_move:
        with pytest.raises(PlacementRefused, match="6 belong to container default/pod-of-web/web"):
            prepare(engine, "a", part(8, format_cpus(l3.cpus)))
        return
    prepare(engine, "a", part(8, format_cpus(l3.cpus)))
    assert len(engine.grants["web"].exclusive) == 6
    assert engine.grants["web"].exclusive.isdisjoint(l3.cpus)


def test_a_place_held_for_a_container_that_has_ended_is_given_up(engine: Engine) -> None:
    owner(engine, "web", 6, CCX_0)
    engine.exited("web", 1, 1.0)
    prepare(engine, "a", part(4), now_s=2.0)
    assert "web" not in engine.grants


# ---------------------------------------------------------------------- containers that have it


def test_its_container_has_its_cpus(engine: Engine) -> None:
    prepare(engine, "a")
    grant = run(engine, having("app", "a"), "c1")
    assert grant.cpus == grant.placement.claimed == owned(engine, "a")
    assert not grant.exclusive and grant.own == grant.cpus and not grant.placement.home
    assert grant.why == "the 4 CPUs of its claim default/claim-a"
    assert not broken_invariants(engine)


def test_two_containers_of_one_claim_share_it(engine: Engine) -> None:
    prepare(engine, "a")
    pod = make_pod("both")
    for name in ("one", "two"):
        grant = run(engine, replace(having(name, "a"), pod=pod), name)
        assert grant.cpus == owned(engine, "a")
    assert members_of(engine, key_of("a")) == ("one", "two")
    assert not broken_invariants(engine)


def test_two_claims_of_one_container(engine: Engine) -> None:
    prepare(engine, "a")
    prepare(engine, "b", part(2, CCX_1, devices=("l3-1",)))
    grant = run(engine, having("app", "a", "b", limit=6), "c1")
    assert grant.cpus == owned(engine, "a") | owned(engine, "b")
    assert grant.placement.level == "numa"
    assert grant.why == "the 6 CPUs of its claims default/claim-a, default/claim-b"


@pytest.mark.parametrize(
    ("request_", "rest"),
    [(4, 0), (4.5, 500), (6, 2000), (2, 2000), (0, 0), (0.1, 100)],
    ids=["repeated", "repeated and half", "repeated and two", "beside", "none", "little"],
)
def test_what_it_requests_beside_its_claim_is_on_shared_cpus_around_it(
    engine: Engine, request_: float, rest: int
) -> None:
    prepare(engine, "a")
    grant = run(engine, having("app", "a", limit=8, request=request_), "c1")
    shared = grant.cpus - owned(engine, "a")
    assert owned(engine, "a") < grant.cpus if rest else grant.cpus == owned(engine, "a")
    assert shared == (parse_cpus(CCX_0) - owned(engine, "a") if rest else NO_CPUS)
    assert engine.node.charge_milli(parse_cpus(CCX_0) - owned(engine, "a")) == rest
    assert engine.node.charge_milli(owned(engine, "a")) == 4000


def test_the_rest_is_in_the_numa_node_where_the_ccx_has_no_room(engine: Engine) -> None:
    prepare(engine, "a", part(8, devices=("l3-0-whole",)))
    grant = run(engine, having("app", "a", limit=9), "c1")
    assert grant.placement.level == "numa"
    assert grant.cpus == parse_cpus(NODE_0)


def test_the_rest_goes_elsewhere_when_its_shared_cpus_are_taken(engine: Engine) -> None:
    prepare(engine, "a")
    run(engine, having("app", "a", limit=5), "c1")
    prepare(engine, "b", part(4))
    grant = engine.grants["c1"]
    assert owned(engine, "a") < grant.cpus and grant.cpus.isdisjoint(owned(engine, "b"))
    assert grant.placement.home == parse_cpus(NODE_0)


def test_one_that_shares_its_pods_request_is_charged_what_the_claim_has_not(engine: Engine) -> None:
    prepare(engine, "a")
    container = having("app", "a", request=2.5)
    share = PodShare(Resources(), 5000, 2)
    grant = run(engine, replace(container, pod_share=share), "c1")
    assert engine.node.charge_milli(grant.cpus - owned(engine, "a")) == 500


def test_a_pods_cgroup_bounds_it(engine: Engine) -> None:
    prepare(engine, "a")
    within = constraint(format_cpus(sorted(owned(engine, "a"))[:2]))
    grant = run(engine, having("app", "a"), "c1", within=within)
    assert grant.cpus == within.cpus and not broken_invariants(engine)


def test_where_it_may_use_none_of_them_it_is_as_without_a_claim(engine: Engine) -> None:
    prepare(engine, "a")
    grant = run(engine, having("app", "a"), "c1", within=constraint(CCX_1))
    assert grant.cpus == parse_cpus(CCX_1) and not grant.placement.claimed
    assert not broken_invariants(engine)


def test_the_claim_says_what_its_containers_are_to_others() -> None:
    engine = engine_on(HYGON_7285_2S, options=EngineOptions(classes=ClassSelectors((), ())))
    prepare(engine, "a", part(4, isolation_class="protected"))
    grant = run(engine, having("app", "a"), "c1")
    assert (grant.isolation, grant.isolation_why) == ("protected", "claim default/claim-a")
    assert not engine.grants[key_of("a")].isolation
    asks = PlacementPreferences(isolation_class="batch")
    assert run(engine, replace(having("own", "a"), preferences=asks), "c2").isolation == "batch"


def test_the_claim_says_where_its_containers_memory_is(engine: Engine) -> None:
    prepare(engine, "a", part(4, memory="pin"))
    assert run(engine, having("app", "a"), "c1").placement.mems == frozenset([0])


# ---------------------------------------------------------------------- claims that are not known


def test_without_its_claim_it_goes_on_as_without_one_and_says_so(engine: Engine) -> None:
    grant = run(engine, having("app", "a"), "c1")
    assert grant.stance is Management.PLACED and len(grant.cpus) == 8
    assert grant.why.startswith("its claim a_cpus is not prepared here, so without CPUs of it: ")


def test_it_is_put_right_when_its_claim_is_prepared(engine: Engine) -> None:
    run(engine, having("app", "a"), "c1")
    engine.prepare("a", "default", "claim-a", [part(4)], 1.0)
    assert told(engine.pending()) == {"c1": format_cpus(owned(engine, "a"))}
    assert not broken_invariants(engine)


def test_a_claim_of_another_namespace_is_none_of_its(engine: Engine) -> None:
    engine.prepare("a", "other", "claim-a", [part(4)], 0.0)
    grant = run(engine, having("app", "a"), "c1")
    assert not grant.placement.claimed and grant.cpus.isdisjoint(owned(engine, "a"))
    assert not broken_invariants(engine)


def test_of_several_it_has_those_that_are_there(engine: Engine) -> None:
    prepare(engine, "a")
    grant = run(engine, having("app", "a", "b"), "c1")
    assert grant.cpus == owned(engine, "a")
    assert grant.why.endswith("1 more part is not prepared here")


def test_what_runs_with_a_claim_that_ends_is_placed_as_without_it(engine: Engine) -> None:
    prepare(engine, "a")
    run(engine, having("app", "a"), "c1")
    engine.unprepare("a", 1.0)
    grant = engine.grants["c1"]
    assert grant.stance is Management.PLACED and not grant.placement.claimed and len(grant.cpus) == 8
    assert told(engine.pending()) == {"c1": format_cpus(grant.cpus)}
    assert not broken_invariants(engine)


def test_a_create_without_claims_asks_nothing_of_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(engine, "a")

    def fail(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("cri_proxy.engine.state.member_place", fail)
    monkeypatch.setattr("cri_proxy.engine.reconcile.claimed_by", fail)
    run(engine, make_container("app", limit=2), "c1")
    assert NO_CONSTRAINT.cpus is None


# ---------------------------------------------------------------------- told in an order in which no two share


def test_its_container_gets_its_cpus_once_others_have_left_them(engine: Engine) -> None:
    run(engine, make_container("sharer", limit=8, request=1), "sharer", within=constraint(CCX_0))
    assert run(engine, having("app", "a"), "member").cpus.isdisjoint(parse_cpus(CCX_0))
    with engine.quiet():  # type: ignore[attr-defined]
        engine.prepare("a", "default", "claim-a", [part(4)], 1.0)
    assert [update.id for update in engine.pending() if update.id == "member"] == []
    assert engine.not_alone("member") == engine.not_alone(key_of("a")) == ("sharer",)
    engine.begin_update("sharer")
    engine.took("sharer")
    assert told(engine.pending()) == {"member": format_cpus(owned(engine, "a"))}
    assert engine.not_alone("member") == ()


def test_an_odd_number_of_hidden_threads_is_whole_cores(engine: Engine) -> None:
    prepare(engine, "a", part(3, smt="hide"))
    assert len(owned(engine, "a")) == 4 and len(engine.grants[key_of("a")].cpus) == 2


def test_claims_that_make_room_do_not_get_each_others_cpus() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    prepare(engine, "b", part(2, "4-7", smt="hide"))
    prepare(engine, "a", part(1, "4-7", smt="hide"))
    with pytest.raises(PlacementRefused, match="1 of 4 are free"):
        prepare(engine, "c", part(2, "4-7"))
    assert owned(engine, "a").isdisjoint(owned(engine, "b")) and not broken_invariants(engine)


def test_prepared_otherwise_on_the_same_cpus_its_containers_follow(engine: Engine) -> None:
    prepare(engine, "a", part(2, smt="hide"))
    grant = run(engine, having("app", "a", limit=2), "c1")
    assert len(grant.cpus) == 1
    prepare(engine, "a", part(2, smt="full-core", devices=("l3-0", "l3-1")))
    assert engine.grants["c1"].cpus == owned(engine, "a") and len(owned(engine, "a")) == 2
