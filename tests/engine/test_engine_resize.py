"""In-place resizes: a ticket of their own; the old place is kept until the runtime has said yes."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Admission, ContainerRecord, Life, Management
from cri_proxy.engine.told import IN_PART
from cri_proxy.front_ends.placer import Placer
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, Constraint, Placement, PlacementPreferences, Qos, Resources
from tests.machines import GIB, HYGON_7285_2S, MONOLITHIC_2S, VM_NO_CACHE_INFO
from tests.scenes import (
    Number,
    Owning,
    constraint,
    dump,
    engine_on,
    host_of,
    make_container,
    milli,
    run,
    told,
    topology,
)


def resize(
    engine: Engine,
    limit: Optional[Number] = 2,
    request: Number = 0,
    memory: int = 0,
    within: Constraint = NO_CONSTRAINT,
    key: str = "app",
) -> Admission:
    resources = Resources(milli(request), None if limit is None else milli(limit), 0, memory * GIB)
    admission = engine.resize(key, resources, within, 50.0)
    assert admission is not None
    assert broken_invariants(engine) == []
    return admission


def cpus(engine: Engine, key: str = "app") -> str:
    return format_cpus(engine.grants[key].placement.cpus)


# ---------------------------------------------------------------------- tickets


def test_both_places_are_reserved_until_the_runtime_has_answered(engine) -> None:
    run(engine, make_container("app", limit=2, request=2), "app")
    admission = resize(engine, 9, request=9)
    assert cpus(engine) == "0-3,64-67"
    assert format_cpus(admission.placement.cpus) == "0-7,64-71"
    assert engine.node.charge_milli(range(128)) == 11_000


def test_commit_makes_the_new_place_the_only_one(engine) -> None:
    run(engine, make_container("app", limit=2, request=2), "app", 5.0)
    admission = resize(engine, 9, request=9)
    assert engine.commit(admission.ticket, 51.0) == ()
    grant = engine.grants["app"]
    assert (cpus(engine), grant.placement.level, grant.container.resources.milli_limit) == (
        "0-7,64-71",
        "numa",
        9000,
    )
    assert (grant.life, grant.since_s) == (Life.RUNNING, 5.0)
    assert engine.node.charge_milli(range(128)) == 9000
    assert not engine.tickets


@pytest.mark.parametrize("limit", [1, 2, 9, None])
def test_cancel_leaves_no_trace(engine, limit) -> None:
    run(engine, make_container("app", limit=2, request=2, memory=1), "app")
    before = dump(engine)
    admission = resize(engine, limit, request=1, memory=70)
    engine.cancel(admission.ticket, 51.0)
    assert dump(engine) == before


def test_one_whose_resize_is_refused_is_told_its_place_again_if_the_request_had_another(engine) -> None:
    """A runtime may have written the cpuset of a cgroup before the kernel refused the quota."""
    run(engine, make_container("app", limit=2, request=2), "app")
    placer = Placer(engine)

    def refuse(cpus: int) -> None:
        linux = cri.LinuxContainerResources(
            cpu_shares=cpus * 1024, cpu_quota=cpus * 100_000, cpu_period=100_000
        )
        resize = placer.resize("app", linux, NO_CONSTRAINT, 50.0, True)
        assert resize is not None
        resize.failed(51.0)

    refuse(1)  # the place stays the same
    assert engine.pending() == []
    before = dump(engine)
    refuse(9)
    [update] = engine.pending()
    assert (format_cpus(update.placement.cpus), update.why) == ("0-3,64-67", IN_PART)
    engine.begin_update("app")
    engine.took("app")
    assert (engine.pending(), dump(engine)) == ([], before)


def test_a_container_removed_meanwhile_stays_removed(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = resize(engine, 9)
    engine.remove("app")
    assert engine.commit(admission.ticket, 51.0) == ()
    assert not engine.grants


def test_a_container_that_exited_meanwhile_is_held_at_its_new_place(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = resize(engine, 9)
    engine.exited("app", 0, 50.5)
    assert engine.commit(admission.ticket, 51.0) == ()
    grant = engine.grants["app"]
    assert (grant.life, grant.exit_code, grant.hold_until_s) == (Life.HELD, 0, 80.5)


def test_a_container_released_meanwhile_stays_released(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = resize(engine, 9)
    engine.release("app")
    [update] = engine.commit(admission.ticket, 51.0)
    assert format_cpus(update.placement.cpus) == "0-127"
    assert engine.grants["app"].stance is Management.RELEASED
    assert engine.grants["app"].container.resources.milli_limit == 9000


def test_what_changed_on_the_way_is_told_after_commit(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = resize(engine, 9)
    own = engine.admit(make_container("own", limit=1, qos=Qos.GUARANTEED), constraint("5"), 50.5)
    assert own.before == ()  # its present CPUs do not change, and the others are not known to the runtime
    [update] = engine.commit(admission.ticket, 51.0)
    assert (update.id, format_cpus(update.placement.cpus)) == ("app", "0-4,6-7,64-71")


def test_two_resizes_at_once_end_as_the_last_one_answered(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    one, two = resize(engine, 9), resize(engine, 17)
    engine.commit(one.ticket, 51.0)
    engine.commit(two.ticket, 52.0)
    assert engine.grants["app"].placement.level == "numa+ccx"
    assert broken_invariants(engine) == []


def test_the_next_attempt_puts_an_end_to_a_resize_on_its_way() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    app = make_container("app", limit=1, qos=Qos.GUARANTEED)
    run(engine, app, "app")
    admission = engine.resize("app", app.resources, NO_CONSTRAINT, 50.0)
    assert admission is not None
    run(engine, replace(app, attempt=1), "app-1", 51.0)
    assert engine.commit(admission.ticket, 52.0) == ()
    assert list(engine.grants) == ["app-1"]
    assert broken_invariants(engine) == []


@pytest.mark.parametrize("key", ["nobody", "ticket-1"])
def test_what_is_not_known_or_not_there_yet_is_not_resized(engine, key) -> None:
    engine.admit(make_container("app", limit=2), NO_CONSTRAINT, 0.0)
    assert engine.resize(key, Resources(), NO_CONSTRAINT, 50.0) is None


# ---------------------------------------------------------------------- where it goes


def test_the_same_rung_means_the_same_cpus(engine) -> None:
    run(engine, make_container("other", limit=2), "other")
    run(engine, make_container("app", limit=2, request=1), "app")
    assert cpus(engine) == "4-7,68-71"
    for _ in range(3):
        run(engine, make_container("crowd", limit=1, request=1), f"c{_}", within=constraint("4-7,68-71"))
    admission = resize(engine, 8, request=2)
    assert admission.placement == engine.grants["app"].placement
    assert (
        admission.decision.why == f"{engine.grants['app'].why}; stays with 8 CPUs, on the same domain level"
    )
    assert admission.before == admission.after == ()


def test_a_change_of_the_request_alone_moves_nothing(engine) -> None:
    run(engine, make_container("app", limit=2, request=1), "app")
    run(engine, make_container("full", limit=8, request=7), "full", within=constraint("0-3,64-67"))
    assert format_cpus(resize(engine, 2, request=2).placement.cpus) == "0-3,64-67"


def test_without_room_on_its_rung_any_more_it_moves(engine) -> None:
    run(engine, make_container("app", limit=2, request=1), "app")
    run(engine, make_container("full", limit=8, request=7), "full", within=constraint("0-3,64-67"))
    admission = resize(engine, 4, request=3)
    assert format_cpus(admission.placement.cpus) == "4-7,68-71"


def test_a_larger_n_climbs_to_the_domain_around_its_place(engine) -> None:
    run(engine, make_container("app", limit=2, request=1), "app", within=NO_CONSTRAINT)
    run(engine, make_container("busy", limit=9, request=9), "busy", within=constraint("0-7,64-71"))
    # Node 0 is the busiest by far, but it has room and its memory and caches are there.
    assert format_cpus(resize(engine, 9, request=2).placement.cpus) == "0-7,64-71"


def test_a_smaller_n_climbs_down_inside_its_place(engine) -> None:
    run(engine, make_container("other", limit=9), "other")
    run(engine, make_container("app", limit=9, request=1), "app")
    assert cpus(engine) == "8-15,72-79"
    run(engine, make_container("c", limit=1, request=1), "c", within=constraint("8-11,72-75"))
    assert format_cpus(resize(engine, 2, request=1).placement.cpus) == "12-15,76-79"


def test_a_limit_that_is_lifted_gives_the_level_of_unlimited_containers(engine) -> None:
    run(engine, make_container("app", limit=2, request=1), "app")
    assert resize(engine, None, request=1).placement.level == "numa"


def test_its_own_charge_is_not_in_its_way() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=3, request=3), "app")
    assert format_cpus(resize(engine, 4, request=4).placement.cpus) == "0-3"


def test_other_containers_lose_what_it_owns_before_it_runs_there() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, make_container("app", limit=1, qos=Qos.GUARANTEED), "app", within=constraint("0-3"))
    run(engine, make_container("other", limit=2), "other", within=constraint("0-3"))
    admission = engine.resize("app", Resources(2000, 2000), NO_CONSTRAINT, 50.0)
    assert admission is not None
    assert broken_invariants(engine) == []
    assert [u.id for u in admission.before] == ["other"]
    assert all(u.id != "app" for u in engine.commit(admission.ticket, 51.0))
    assert broken_invariants(engine) == []


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (2, 0.5)])
def test_a_container_that_owns_cpus_owns_as_many_as_it_asks_for_afterwards(before, after) -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, make_container("app", limit=before, qos=Qos.GUARANTEED), "app")
    admission = engine.resize("app", Resources(milli(after), milli(after)), NO_CONSTRAINT, 50.0)
    assert admission is not None
    engine.commit(admission.ticket, 51.0)
    assert len(engine.node.exclusive) == int(after)
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- memory


def test_a_change_of_cpus_inside_a_node_never_touches_mems(engine) -> None:
    before = run(engine, make_container("app", limit=2, memory=1), "app").placement
    after = resize(engine, 9, memory=1).placement
    assert (after.mems, after.memory_charge) == (before.mems, before.memory_charge)


def test_across_nodes_the_old_memory_nodes_stay_beside_the_new(engine) -> None:
    run(engine, make_container("app", limit=9, request=8, memory=1), "app")
    run(engine, make_container("full", limit=16, request=8), "full", within=constraint("0-7,64-71"))
    after = resize(engine, 10, request=9, memory=1).placement
    assert format_cpus(after.cpus) == "8-15,72-79"
    assert format_cpus(after.mems) == "0-1"


def test_a_larger_memory_limit_adds_nodes_and_never_takes_one_away(engine) -> None:
    run(engine, make_container("app", limit=2, memory=1), "app")
    wider = resize(engine, 2, memory=70)
    assert format_cpus(wider.placement.mems) == "0-1"
    assert "memory widened" in wider.decision.why
    engine.commit(wider.ticket, 51.0)
    narrower = resize(engine, 2, memory=1)
    assert format_cpus(narrower.placement.mems) == "0-1"


def test_the_new_memory_limit_is_what_is_charged(engine) -> None:
    run(engine, make_container("app", limit=2, memory=1), "app")
    for limit, memory in ((2, 5), (9, 7)):
        admission = resize(engine, limit, memory=memory)
        engine.commit(admission.ticket, 51.0)
        assert sum(engine.node.memory_charged(n) for n in range(8)) == memory * GIB


def test_a_container_that_had_no_mems_gets_none_by_a_resize(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    assert not resize(engine, 9, memory=1).placement.mems


def test_mems_stay_when_the_memory_limit_is_lifted(engine) -> None:
    run(engine, make_container("app", limit=2, memory=1), "app")
    after = resize(engine, 2, memory=0).placement
    assert (format_cpus(after.mems), after.memory_charge) == ("0", ())


# ---------------------------------------------------------------------- fences in the request


def test_a_cpuset_in_the_request_is_the_new_fence(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = resize(engine, 2, within=constraint("4-20"))
    assert format_cpus(admission.placement.cpus) == "4-7"
    engine.commit(admission.ticket, 51.0)
    assert engine.grants["app"].constraint.cpus == parse_cpus("4-20")
    assert format_cpus(resize(engine, 30).placement.cpus) == "4-20"


def test_a_request_without_a_cpuset_keeps_the_fence(engine) -> None:
    run(engine, make_container("app", limit=2), "app", within=constraint("1-2", "0"))
    admission = resize(engine, 3, memory=1)
    assert admission.placement.cpus <= {1, 2}
    engine.commit(admission.ticket, 51.0)
    assert engine.grants["app"].constraint == constraint("1-2", "0")


def test_mems_in_the_request_are_the_new_memory_fence(engine) -> None:
    run(engine, make_container("app", limit=2, memory=1), "app")
    for limit in (2, 9):
        admission = resize(engine, limit, memory=1, within=constraint(mems="3"))
        assert format_cpus(admission.placement.mems) == "3"
        engine.cancel(admission.ticket, 51.0)


def test_a_fence_without_usable_cpus_leaves_the_request_untouched() -> None:
    engine = engine_on(host_of(HYGON_7285_2S, usable="0-63"))
    run(engine, make_container("app", limit=2), "app")
    admission = resize(engine, 2, within=constraint("100-101"))
    assert (admission.stance, admission.placement.cpus) == (Management.UNTOUCHED, frozenset())
    engine.commit(admission.ticket, 51.0)
    assert format_cpus(engine.grants["app"].cpus) == "100-101"


def test_kubelet_giving_it_cpus_of_its_own_passes_as_it_is() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=2, qos=Qos.GUARANTEED), "app")
    run(engine, make_container("other", limit=2), "other", within=constraint("0-3"))
    admission = resize(engine, 2, request=2, within=constraint("1-2"))
    assert (admission.stance, admission.placement.cpus) == (Management.KUBELET, frozenset())
    # The container itself is not told to leave what it is about to get.
    assert told(admission.before) == {"other": "0,3"}
    engine.commit(admission.ticket, 51.0)
    assert engine.node.exclusive == {1, 2}
    assert broken_invariants(engine) == []


def test_kubelet_refusing_it_after_all_gives_everything_back() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=2, qos=Qos.GUARANTEED), "app")
    run(engine, make_container("other", limit=2), "other", within=constraint("0-3"))
    before = dump(engine)
    admission = resize(engine, 2, request=2, within=constraint("1-2"))
    engine.kubelet_gives(engine.grants["app"].container, "")
    updates = engine.cancel(admission.ticket, 51.0)
    assert told(updates) == {"other": "0-3"}
    assert dump(engine) == before


def test_a_container_that_kubelet_gives_its_shared_cpus_again_is_ours_again() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=2, qos=Qos.GUARANTEED), "app", within=constraint("1-2"))
    assert engine.grants["app"].stance is Management.KUBELET
    admission = resize(engine, 2, request=2, within=constraint("0-6"))
    assert (admission.stance, format_cpus(admission.placement.cpus)) == (Management.PLACED, "0-3")
    engine.commit(admission.ticket, 51.0)
    assert not engine.node.exclusive


@pytest.mark.parametrize(
    "stance", [Management.OPTED_OUT, Management.RELEASED, Management.FOREIGN, Management.UNTOUCHED]
)
def test_containers_that_are_not_ours_are_only_charged_anew(stance) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    grant = run(engine, make_container("app", limit=2, request=1), "app")
    engine.amend(replace(grant, stance=stance, runs_on=parse_cpus("0-7")))
    admission = resize(engine, 4, request=4, within=constraint("2-5"))
    assert not admission.placement.cpus
    assert engine.commit(admission.ticket, 51.0) == ()
    assert engine.grants["app"].stance is stance
    assert engine.node.charge_milli(parse_cpus("2-5")) == 4000
    # Its CPUs are the caller's choice from now on, and a transition gives it no others.
    assert engine.rehost(host_of(VM_NO_CACHE_INFO)) == ()


def adopted_engine() -> Engine:
    engine = engine_on(VM_NO_CACHE_INFO)
    everywhere = Placement(home=parse_cpus("0-7"))
    container = make_container("app", limit=2, request=1)
    engine.adopt(
        ContainerRecord(
            "app", container, everywhere, Management.ADOPTED, life=Life.RUNNING, runs_on=everywhere.home
        )
    )
    return engine


def test_an_adopted_container_keeps_what_it_has_while_it_wants_as_much() -> None:
    engine = adopted_engine()
    admission = resize(engine, 2, request=2, memory=1)
    assert (admission.stance, admission.placement.cpus) == (Management.ADOPTED, frozenset())
    engine.commit(admission.ticket, 51.0)
    assert engine.node.charge_milli(range(8)) == 2000


def test_an_adopted_container_that_is_resized_is_placed_by_its_new_resources() -> None:
    engine = adopted_engine()
    admission = resize(engine, 4, request=4)
    assert (admission.stance, format_cpus(admission.placement.cpus)) == (Management.PLACED, "0-3")
    assert not admission.placement.mems  # its memory is anywhere
    engine.commit(admission.ticket, 51.0)
    assert engine.node.charge_milli(range(4)) == 4000


def test_an_adopted_container_that_the_caller_gives_a_cpuset_is_placed_in_it() -> None:
    engine = adopted_engine()
    admission = resize(engine, 2, request=1, memory=1, within=constraint("3-6"))
    assert (admission.stance, format_cpus(admission.placement.cpus)) == (Management.PLACED, "4-6")
    assert not admission.placement.mems  # its memory is anywhere
    engine.commit(admission.ticket, 51.0)
    assert engine.grants["app"].stance is Management.PLACED


def test_an_observed_container_is_not_touched() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    observed = engine.admit(make_container("app", limit=2), NO_CONSTRAINT, 0.0, enforce=False)
    engine.bind(observed.ticket, "app", 0.0)
    assert not resize(engine, 8).placement.cpus


# ---------------------------------------------------------------------- two of one container


def test_a_resize_supersedes_one_whose_reply_was_lost(engine) -> None:
    run(engine, make_container("app", limit=2, request=2), "app")
    older = resize(engine, 9, request=9)
    engine.doubt(older.ticket)
    newer = resize(engine, 2, request=1)
    assert list(engine.tickets) == [newer.ticket]
    engine.commit(newer.ticket, 60.0)
    assert engine.commit(older.ticket, 61.0) == () == engine.cancel(older.ticket, 61.0)
    assert (cpus(engine), engine.grants["app"].container.resources.milli_limit) == ("0-3,64-67", 2000)
    assert engine.node.charge_milli(range(128)) == 1000
    assert not engine.tickets


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_resize_that_is_refused_leaves_the_one_before_it_to_be_found_out(in_doubt) -> None:
    engine = engine_on(host_of(HYGON_7285_2S), policy=Owning(topology(HYGON_7285_2S)))
    run(engine, make_container("app", limit=2, qos=Qos.GUARANTEED), "app")
    older = resize(engine, 3, request=3)
    if in_doubt:
        engine.doubt(older.ticket)
    before = dump(engine)
    newer = resize(engine, 4, request=4)
    engine.cancel(newer.ticket, 60.0)
    assert broken_invariants(engine) == []
    assert engine.tickets[older.ticket].in_doubt
    assert {**dump(engine), "tickets": None, "policy": None} == {**before, "tickets": None, "policy": None}
    engine.commit(older.ticket, 61.0)
    assert len(engine.grants["app"].exclusive) == 3


def test_who_waits_for_a_resize_that_is_superseded_waits_for_the_next_one() -> None:
    engine = engine_on(host_of(VM_NO_CACHE_INFO), policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, make_container("own", limit=2, qos=Qos.GUARANTEED), "own")
    run(engine, make_container("shared", limit=8), "shared")
    smaller = resize(engine, 1, request=1, key="own")
    assert [u.id for u in smaller.after] == []
    engine.doubt(smaller.ticket)
    again_smaller = resize(engine, 1, request=1, key="own")
    told = engine.commit(again_smaller.ticket, 60.0)
    assert "shared" in {u.id for u in told}
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- resizes past us


def changed(engine: Engine, limit: Number, enforce: bool = True, memory: int = 0) -> dict[str, str]:
    """What has to be told after the runtime was found with other resources for ``app``."""
    known = engine.grants["app"].container.resources
    now = replace(known, milli_limit=milli(limit), memory_limit_bytes=memory * GIB)
    updates = engine.follow_resources("app", now, 70.0, enforce)
    assert broken_invariants(engine) == []
    assert not engine.tickets
    assert engine.grants["app"].container.resources == now
    return told(updates)


def test_a_container_that_was_resized_past_us_is_placed_anew_at_once(engine) -> None:
    run(engine, make_container("app", limit=2, request=1), "app")
    assert changed(engine, 9) == {"app": "0-7,64-71"}
    record = engine.history[-1]
    assert (record.operation, record.id, record.outcome) == ("resize", "app", "resized past us")


def test_a_resize_past_us_within_its_place_tells_nobody(engine) -> None:
    run(engine, make_container("app", limit=2, request=1), "app")
    assert changed(engine, 3) == {}


def test_who_makes_room_for_a_resize_past_us_is_told_first() -> None:
    engine = engine_on(host_of(MONOLITHIC_2S), policy=Owning(topology(MONOLITHIC_2S)))
    run(engine, make_container("app", limit=1, qos=Qos.GUARANTEED), "app")
    for number in range(2):
        run(engine, make_container(f"shared{number}", limit=2), f"old{number}")
    grant = engine.grants["app"]
    now = replace(grant.container.resources, milli_limit=6000, milli_request=6000)
    told = [u.id for u in engine.follow_resources("app", now, 70.0)]
    assert told[-1] == "app" and len(told) > 1
    assert len(engine.grants["app"].exclusive) == 6


def test_an_adopted_container_that_was_resized_past_us_is_placed() -> None:
    engine = adopted_engine()
    assert changed(engine, 4) == {"app": "0-3"}
    assert engine.grants["app"].stance is Management.PLACED


@pytest.mark.parametrize("adopted", [False, True])
def test_what_was_resized_while_nothing_is_sent_is_placed_once_it_may_be(adopted) -> None:
    engine = adopted_engine() if adopted else engine_on(VM_NO_CACHE_INFO)
    if not adopted:
        run(engine, make_container("app", limit=2, request=1), "app")
    there = engine.grants["app"]
    assert changed(engine, 8, enforce=False) == {}
    assert changed(engine, 4 if adopted else 8, enforce=False) == {}
    now = engine.grants["app"]
    assert (now.stance, now.placement, now.is_outgrown) == (there.stance, there.placement, True)
    assert changed(engine, 4 if adopted else 8) == {"app": "0-3" if adopted else "0-7"}
    assert not engine.grants["app"].is_outgrown


def test_what_the_policy_will_not_place_by_new_resources_stays_where_it_is(engine) -> None:
    run(engine, make_container("app", limit=2, preferences=PlacementPreferences(l3="require")), "app")
    assert changed(engine, 12) == {}
    grant = engine.grants["app"]
    assert (cpus(engine), grant.is_outgrown) == ("0-3,64-67", False)
    assert "it stays where it is" in engine.history[-1].why


def test_a_resize_on_its_way_is_not_followed(engine) -> None:
    run(engine, make_container("app", limit=2, request=1), "app")
    resize(engine, 9)
    before = dump(engine)
    assert engine.follow_resources("app", Resources(1000, 4000), 70.0) == ()
    assert engine.follow_resources("gone", Resources(1000, 4000), 70.0) == ()
    assert dump(engine) == before
