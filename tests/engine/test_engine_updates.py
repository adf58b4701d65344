"""Rule 5: only real changes are sent. Losers of CPUs are told first, winners afterwards, all others nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Admission, Life, Management, Move, Plan
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, Container, Qos, Resources
from tests.machines import HYGON_7285_2S, MONOLITHIC_2S, VM_NO_CACHE_INFO
from tests.scenes import Owning, constraint, engine_on, host_of, make_container, run, told, topology


def own(name: str, cpus: int = 1) -> Container:
    return make_container(name, limit=cpus, qos=Qos.GUARANTEED)


def kubelets(engine: Engine, cpus: str, name: str = "own") -> Admission:
    """A container whose cpuset kubelet's static CPU manager has chosen."""
    return engine.admit(own(name, len(parse_cpus(cpus))), constraint(cpus), 100.0)


@pytest.fixture
def engine() -> Engine:
    return engine_on(VM_NO_CACHE_INFO)


# ---------------------------------------------------------------------- rule 5: only real changes


@pytest.mark.parametrize("count", [1, 50])
def test_rule_5_a_create_in_an_unchanged_pool_updates_nobody(count) -> None:
    """W4 of the ancestor: every create sent an update to every shared container."""
    engine = engine_on(HYGON_7285_2S)
    for i in range(count):
        run(engine, make_container(f"c{i}", limit=2, request=0.1), f"c{i}")
    admission = engine.admit(make_container("new", limit=2, request=0.1), NO_CONSTRAINT, 1.0)
    assert admission.before == admission.after == ()
    assert engine.bind(admission.ticket, "new", 2.0) == ()
    assert engine.exited("new", 1, 3.0) == ()
    assert engine.remove("new") == ()
    assert engine.tick(1000.0) == ()


def test_rule_5_an_exclusive_grant_touches_its_domains_containers_only() -> None:
    engine = engine_on(HYGON_7285_2S, policy=Owning(topology(HYGON_7285_2S)))
    for i in range(16):
        run(engine, make_container(f"c{i}", limit=6, request=1), f"c{i}")
    run(engine, make_container("wide", limit=100), "wide")
    admission = engine.admit(own("new", 2), NO_CONSTRAINT, 1.0)
    [there] = [
        k for k, g in engine.grants.items() if g.placement.level == "ccx" and len(g.placement.cpus) == 6
    ]
    assert {u.id for u in admission.before} == {there, "wide"}
    assert admission.after == ()


def test_rule_5_the_same_cpuset_is_not_sent_twice(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    assert told(kubelets(engine, "1").before) == {"app": "0,2-3"}
    assert engine.tick(101.0) == ()
    assert engine.rehost(engine.host) == ()


# ---------------------------------------------------------------------- rule 5: shrink before, grow after


def test_rule_5_who_loses_cpus_is_told_before_the_create(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = kubelets(engine, "1")
    assert told(admission.before) == {"app": "0,2-3"}
    assert admission.after == ()
    assert all(u.shrink for u in admission.before)


def test_rule_5_who_is_moved_away_loses_cpus_too(engine) -> None:
    # Behind the fence 2-3,5 on node 0; kubelet takes all of that node.
    run(engine, make_container("app", limit=2), "app", within=constraint("2-3,5-6"))
    admission = kubelets(engine, "0-3")
    assert told(admission.before) == {"app": "5-6"}


def test_rule_5_who_gains_cpus_is_told_afterwards() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    held = own("held", 2)
    run(engine, held, "held")
    run(engine, make_container("app", limit=4), "app", within=constraint("0-3"))
    assert format_cpus(engine.grants["app"].placement.cpus) == "2-3"
    engine.exited("held", 1, 10.0)
    smaller = replace(held, attempt=1, resources=Resources(1000, 1000))
    admission = engine.admit(smaller, constraint("4-7"), 20.0)
    assert admission.before == ()
    assert told(admission.after) == {"app": "0-3"}
    assert not admission.after[0].shrink


def test_rule_5_cpus_that_become_free_are_given_back(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = kubelets(engine, "1")
    engine.bind(admission.ticket, "own", 100.0)
    assert told(engine.remove("own")) == {"app": "0-3"}


def test_rule_5_losers_come_before_winners() -> None:
    engine = engine_on(MONOLITHIC_2S)
    run(engine, make_container("a", limit=1), "a")
    run(engine, make_container("b", limit=1), "b")
    engine.rehost(host_of(MONOLITHIC_2S, usable="1-63"))
    updates = engine.rehost(host_of(MONOLITHIC_2S, usable="0-15,17-63"))
    assert [(u.id, u.shrink) for u in updates] == [("b", True), ("a", False)]


def test_rule_5_containers_that_do_not_run_are_told_nothing(engine) -> None:
    run(engine, make_container("held", limit=2), "held")
    engine.exited("held", 1, 0.0)
    engine.admit(make_container("flying", limit=2), NO_CONSTRAINT, 0.0)
    assert kubelets(engine, "1").before == ()
    assert kubelets(engine, "5", "own2").before == ()
    # Their places follow all the same.
    assert sorted(format_cpus(g.placement.cpus) for g in engine.grants.values() if g.placement.cpus) == [
        "0,2-3",
        "4,6-7",
    ]


@pytest.mark.parametrize(
    "stance", [Management.OPTED_OUT, Management.RELEASED, Management.FOREIGN, Management.UNTOUCHED]
)
def test_rule_5_containers_that_are_not_ours_are_told_nothing(engine, stance) -> None:
    grant = run(engine, make_container("app", limit=2), "app")
    engine.amend(replace(grant, stance=stance, runs_on=parse_cpus("0-7")))
    assert kubelets(engine, "1").before == ()


def test_rule_5_observing_sends_nothing_to_anybody(engine) -> None:
    admission = engine.admit(make_container("app", limit=2, request=1), NO_CONSTRAINT, 0.0, enforce=False)
    assert admission.stance is Management.OBSERVED
    assert not admission.placement.cpus
    assert format_cpus(admission.decision.placement.cpus) == "0-3"
    # It is charged where it would be, so that the next decision is the one that enforcing would have made.
    assert engine.node.charge_milli(range(4)) == 1000
    engine.bind(admission.ticket, "app", 0.0)
    assert kubelets(engine, "1").before == ()


def test_rule_5_one_container_gets_one_update_however_often_it_was_changed_on_the_way() -> None:
    """An exclusive container that must leave shrinks others again, in the same transition."""
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, own("pinned", 2), "pinned", within=constraint("0-6"))
    run(engine, make_container("near", limit=1), "near", within=constraint("2-3"))
    run(engine, make_container("far", limit=1), "far", within=constraint("4-7"))
    updates = kubelets(engine, "0-1").before
    assert len({u.id for u in updates}) == len(updates)
    assert told(updates).keys() == {"pinned", "far"}
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- by command: release and manage


def test_release_gives_back_what_the_container_would_have_without_us(engine) -> None:
    run(engine, make_container("app", limit=2, memory=1), "app")
    update = engine.release("app")
    assert update is not None
    assert (format_cpus(update.placement.cpus), format_cpus(update.placement.mems)) == ("0-7", "0-1")
    grant = engine.grants["app"]
    assert (grant.stance, grant.cpus) == (Management.RELEASED, parse_cpus("0-7"))
    assert engine.release("app") is None


@pytest.mark.parametrize("stance", [Management.PLACED, Management.ADOPTED])
def test_a_release_that_the_runtime_has_not_taken_can_be_repeated(engine, stance) -> None:
    grant = run(engine, make_container("app", limit=2), "app")
    if stance is Management.ADOPTED:
        home = replace(grant.placement, cpus=NO_CPUS, home=grant.cpus)
        grant = replace(grant, stance=stance, placement=home, runs_on=grant.cpus)
        engine.amend(grant)
    update = engine.release("app")
    assert update is not None and format_cpus(update.placement.cpus) == "0-7"
    # What a look at its cgroup makes of the record.
    engine.amend(replace(engine.grants["app"], runs_on=grant.cpus))
    assert engine.release("app") == update
    assert engine.grants["app"].cpus == parse_cpus("0-7")
    again = engine.release("app")
    assert again is None or not again.placement.cpus  # a quota may be given back once more


def test_a_released_container_that_another_has_pinned_since_is_left_there(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    engine.release("app")
    engine.amend(replace(engine.grants["app"], runs_on=parse_cpus("6")))
    assert engine.release("app") is None
    assert engine.grants["app"].cpus == {6}


def test_release_leaves_mems_alone_where_we_have_not_set_them(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    update = engine.release("app")
    assert update is not None and not update.placement.mems


def test_release_gives_back_the_callers_cpuset_where_there_was_one(engine) -> None:
    run(engine, make_container("app", limit=1, memory=1), "app", within=constraint("1-5", "0"))
    update = engine.release("app")
    assert update is not None
    assert (format_cpus(update.placement.cpus), format_cpus(update.placement.mems)) == ("1-5", "0")


def test_release_gives_back_what_kubelets_cgroup_allows_not_only_what_is_ours() -> None:
    engine = engine_on(replace(host_of(VM_NO_CACHE_INFO, usable="0-3"), parent_cpus=parse_cpus("0-5")))
    run(engine, make_container("app", limit=2), "app")
    update = engine.release("app")
    assert update is not None and format_cpus(update.placement.cpus) == "0-5"


def test_a_released_container_is_charged_where_it_runs_and_left_alone(engine) -> None:
    run(engine, make_container("app", limit=2, request=2), "app")
    engine.release("app")
    assert engine.node.charge_milli(range(4)) == 1000
    assert kubelets(engine, "1").before == ()


@pytest.mark.parametrize("name", ["nobody", "flying", "kubelets"])
def test_release_of_what_is_not_ours_to_give_does_nothing(engine, name) -> None:
    flying = engine.admit(make_container("flying"), NO_CONSTRAINT, 0.0).ticket
    engine.bind(kubelets(engine, "1").ticket, "kubelets", 0.0)
    before = dict(engine.grants)
    assert engine.release(flying if name == "flying" else name) is None
    assert engine.grants == before


def test_release_of_a_foreign_container_keeps_what_is_known_of_it(engine) -> None:
    grant = run(engine, make_container("app", limit=2), "app")
    engine.amend(replace(grant, stance=Management.FOREIGN, runs_on=parse_cpus("6")))
    assert engine.release("app") is None
    assert (engine.grants["app"].stance, engine.grants["app"].cpus) == (Management.RELEASED, {6})


def test_exclusive_cpus_of_a_released_container_are_shared_again() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, own("app", 2), "app")
    run(engine, make_container("other", limit=4), "other", within=constraint("0-3"))
    engine.release("app")
    assert told(engine.tick(1.0)) == {"other": "0-3"}


def test_manage_takes_a_released_container_back(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    engine.release("app")
    (update,) = engine.manage("app")
    assert (format_cpus(update.placement.cpus), update.shrink) == ("0-3", True)
    assert engine.grants["app"].stance is Management.PLACED
    assert engine.history[-1].operation == "adopt"


def test_manage_keeps_inside_the_callers_cpuset(engine) -> None:
    run(engine, make_container("app", limit=1), "app", within=constraint("3-6"))
    engine.release("app")
    (update,) = engine.manage("app")
    assert format_cpus(update.placement.cpus) == "3"


@pytest.mark.parametrize("name", ["nobody", "placed", "held", "kubelets", "flying"])
def test_manage_of_what_is_ours_already_or_never_will_be_does_nothing(engine, name) -> None:
    run(engine, make_container("placed"), "placed")
    run(engine, make_container("held"), "held")
    engine.exited("held", 1, 0.0)
    engine.bind(kubelets(engine, "1").ticket, "kubelets", 0.0)
    flying = engine.admit(make_container("flying"), NO_CONSTRAINT, 0.0).ticket
    before = dict(engine.grants)
    assert engine.manage(flying if name == "flying" else name) == ()
    assert engine.grants == before


# ---------------------------------------------------------------------- plans


def planned(engine: Engine, *moves: tuple[str, str], stale: bool = False) -> dict[str, str]:
    steps = tuple(Move(key, parse_cpus(home), "ccx", "to be near its peer") for key, home in moves)
    return told(engine.apply(Plan(engine.version - int(stale), steps)))


def two_full_nodes() -> Engine:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("a", limit=4, request=4), "a")
    run(engine, make_container("b", limit=4, request=4), "b")
    return engine


def test_a_fresh_plan_is_carried_out_move_by_move() -> None:
    engine = two_full_nodes()
    assert planned(engine, ("a", "4-7"), ("b", "0-3")) == {"a": "4-7", "b": "0-3"}
    assert engine.grants["a"].why == "to be near its peer"
    assert broken_invariants(engine) == []


def test_moves_of_a_stale_plan_that_no_longer_hold_are_dropped() -> None:
    engine = two_full_nodes()
    assert planned(engine, ("a", "4-7"), stale=True) == {}
    engine.remove("b")
    assert planned(engine, ("a", "4-7"), stale=True) == {"a": "4-7"}


def test_a_stale_move_to_too_few_cpus_is_dropped() -> None:
    engine = two_full_nodes()
    engine.remove("b")
    assert planned(engine, ("a", "4-6"), stale=True) == {}


def test_a_move_to_where_it_is_already_is_no_change() -> None:
    engine = two_full_nodes()
    assert planned(engine, ("a", "0-3")) == {}


def test_a_move_off_the_usable_cpus_is_dropped() -> None:
    engine = engine_on(host_of(VM_NO_CACHE_INFO, usable="0-3"))
    run(engine, make_container("a", limit=1), "a")
    assert planned(engine, ("a", "4-7")) == {}


def test_a_move_keeps_to_the_callers_cpuset(engine) -> None:
    run(engine, make_container("a", limit=1), "a", within=constraint("0-5"))
    assert planned(engine, ("a", "4-7")) == {"a": "4-5"}


@pytest.mark.parametrize("kind", ["gone", "released", "held", "exclusive"])
def test_a_move_of_what_cannot_be_moved_is_dropped(kind) -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, own("a") if kind == "exclusive" else make_container("a", limit=1), "a")
    if kind == "gone":
        engine.remove("a")
    if kind == "released":
        engine.release("a")
    if kind == "held":
        engine.exited("a", 1, 0.0)
    assert planned(engine, ("a", "4-7")) == {}


def test_a_move_across_nodes_keeps_the_old_memory_nodes_beside_the_new(engine) -> None:
    run(engine, make_container("a", limit=1, memory=1), "a")
    [update] = engine.apply(Plan(engine.version, (Move("a", parse_cpus("4-7"), "numa"),)))
    assert (format_cpus(update.placement.cpus), format_cpus(update.placement.mems)) == ("4-7", "0-1")


def test_a_move_inside_a_node_never_touches_memory_nodes() -> None:
    engine = engine_on(HYGON_7285_2S)
    run(engine, make_container("a", limit=1, memory=60), "a")
    before = engine.grants["a"].placement
    engine.apply(Plan(engine.version, (Move("a", parse_cpus("4-7,68-71"), "ccx"),)))
    after = engine.grants["a"].placement
    assert (after.mems, after.memory_charge) == (before.mems, before.memory_charge)


def test_a_container_on_its_way_learns_of_a_move_when_it_is_bound(engine) -> None:
    admission = engine.admit(make_container("a", limit=1), NO_CONSTRAINT, 0.0)
    assert planned(engine, (admission.ticket, "4-7")) == {}
    assert told(engine.bind(admission.ticket, "a", 1.0)) == {"a": "4-7"}
    assert engine.grants["a"].life is Life.CREATED
