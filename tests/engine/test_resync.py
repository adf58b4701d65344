"""Rules 9 and 10: the runtime's list against the records. Containers are adopted as they run; drift
is repaired, but not for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine import resync as comparison
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ContainerRecord, Life, ListedContainer, Management
from cri_proxy.engine.resync import (
    DRIFT_WINDOW_S,
    FLIPS,
    RECORDS,
    SLICE,
    Listing,
    Resync,
    may_be_owned,
    merged,
    resync_slices,
    unknown_ids,
)
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, Container, PlacementPreferences, Qos
from policies.registry import POLICIES
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO
from tests.scenes import (
    TOPOLOGY_AWARE,
    Owning,
    again,
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
from tests.told_at_once import Looked, resync


def seen(
    key: str,
    container: Container,
    cpus: Optional[str] = None,
    mems: Optional[str] = None,
    state: str = "running",
    code: Optional[int] = None,
) -> ListedContainer:
    return ListedContainer(
        id=key,
        sandbox_id=container.pod.id,
        pod_uid=container.pod.uid,
        name=container.name,
        attempt=container.attempt,
        running=state == "running",
        exited=state == "exited",
        exit_code=code,
        cpus=None if cpus is None else parse_cpus(cpus),
        mems=None if mems is None else parse_cpus(mems),
    )


def look(
    engine: Engine,
    *items: ListedContainer,
    now_s: float = 100.0,
    age_s: float = 0.0,
    details: Optional[dict[str, Container]] = None,
    pending: str = "",
    enforce: bool = True,
) -> Resync:
    """A resync; the list was asked for ``age_s`` before ``now_s``."""
    busy = frozenset(pending.split())
    listing = Listing({s.id: s for s in items}, now_s - age_s, details or {}, pending=busy, enforce=enforce)
    result = resync(engine, listing, now_s)
    assert broken_invariants(engine) == []
    return result


APP = make_container("app", limit=2, request=1)


def with_app(where: str = VM_NO_CACHE_INFO) -> Engine:
    engine = engine_on(where)
    run(engine, APP, "app")
    return engine


@pytest.fixture
def engine() -> Engine:
    return with_app()


# ---------------------------------------------------------------------- following lives


def test_what_is_as_recorded_changes_nothing(engine) -> None:
    before = dump(engine)
    assert look(engine, seen("app", APP, "0-3")) == Looked()
    assert dump(engine) == before


def test_containers_that_are_gone_are_removed(engine) -> None:
    assert look(engine).removed == ("app",)
    assert not engine.grants


def test_a_container_younger_than_the_list_is_not_gone() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, APP, "app", 99.0)
    assert look(engine, now_s=100.0, age_s=2.0).removed == ()
    assert look(engine, now_s=100.0, age_s=0.5).removed == ("app",)


@pytest.mark.parametrize(("code", "hold_s"), [(0, 30.0), (1, 300.0), (None, 300.0)])
def test_exits_that_nobody_told_are_noticed(engine, code, hold_s) -> None:
    look(engine, seen("app", APP, state="exited", code=code))
    grant = engine.grants["app"]
    assert (grant.life, grant.exit_code, grant.hold_until_s) == (Life.HELD, code, 100.0 + hold_s)


def test_starts_that_nobody_told_are_noticed() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    engine.bind(engine.admit(APP, NO_CONSTRAINT, 0.0).ticket, "app", 1.0)
    look(engine, seen("app", APP, "0-3", state="created"))
    assert engine.grants["app"].life is Life.CREATED
    look(engine, seen("app", APP, "0-3"))
    assert engine.grants["app"].life is Life.RUNNING


def test_a_container_that_was_told_to_stop_and_has_not_is_running(engine) -> None:
    engine.exited("app", None, 50.0)
    look(engine, seen("app", APP, "0-3"), now_s=50.5, age_s=1.0)
    assert engine.grants["app"].life is Life.HELD
    look(engine, seen("app", APP, "0-3"))
    grant = engine.grants["app"]
    assert (grant.life, grant.hold_until_s) == (Life.RUNNING, 0.0)


def test_a_sandbox_that_was_not_known_is_remembered_with_its_container() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    look(engine, seen("app", APP, "0-3"), details={"app": APP})
    assert engine.pods == {APP.pod.id: APP.pod}


# ---------------------------------------------------------------------- unknown containers


def test_details_are_asked_for_of_living_containers_without_a_record(engine) -> None:
    other, dead = make_container("other"), make_container("dead")
    items = [seen("app", APP), seen("other", other), seen("dead", dead, state="exited")]
    assert unknown_ids(engine, items) == ("other",)


@pytest.mark.parametrize("in_doubt", [False, True])
def test_but_not_of_those_on_their_way(in_doubt) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    ticket = engine.admit(APP, NO_CONSTRAINT, 0.0).ticket
    if in_doubt:
        engine.doubt(ticket)
    assert unknown_ids(engine, [seen("app", APP)]) == ()
    assert unknown_ids(engine, [seen("app", again(APP, 1))]) == ("app",)


def test_nor_of_the_attempt_before_one_on_its_way(engine) -> None:
    engine.admit(again(APP, 1), NO_CONSTRAINT, 1.0)
    assert unknown_ids(engine, [seen("app", APP)]) == ()


def adopted(
    engine: Engine, container: Container, cpus: Optional[str], *others: ListedContainer, key: str = "found"
) -> ContainerRecord:
    item = seen(key, container, cpus)
    assert key in look(engine, item, *others, details={key: container}).adopted
    return engine.grants[key]


def test_a_container_without_a_record_keeps_what_it_has() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    grant = adopted(engine, APP, "2-5")
    assert (grant.stance, format_cpus(grant.cpus), grant.life) == (Management.ADOPTED, "2-5", Life.RUNNING)
    assert grant.why == "it ran before this daemon knew it: it keeps what it has"
    assert engine.node.charge_milli(parse_cpus("2-5")) == 1000
    assert look(engine, seen("found", APP, "2-5")) == Looked()


@pytest.mark.parametrize("cpus", ["", None])
def test_without_a_cpuset_it_runs_on_all_that_its_parent_has(cpus) -> None:
    engine = engine_on(replace(host_of(VM_NO_CACHE_INFO, usable="0-3"), parent_cpus=parse_cpus("0-6")))
    assert format_cpus(adopted(engine, APP, cpus).cpus) == "0-6"


def test_what_it_inherits_is_what_its_own_cgroup_says_and_not_what_kubelets_has() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    item = replace(seen("found", APP, ""), inherited=parse_cpus("4-5"))
    look(engine, item, details={"found": APP})
    assert format_cpus(engine.grants["found"].cpus) == "4-5"
    look(engine, replace(item, inherited=parse_cpus("4-6")))
    assert format_cpus(engine.grants["found"].cpus) == "4-6"


def test_an_adopted_container_gives_way_to_grants_and_gets_its_cpus_back() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    adopted(engine, APP, "")
    own = engine.admit(make_container("own", limit=1, qos=Qos.GUARANTEED), constraint("7"), 1.0)
    assert told(own.before) == {"found": "0-6"}
    engine.bind(own.ticket, "own", 2.0)
    assert told(engine.remove("own")) == {"found": "0-7"}


def test_an_adopted_container_whose_cpus_are_all_taken_is_placed() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    adopted(engine, APP, "7")
    own = engine.admit(make_container("own", limit=1, qos=Qos.GUARANTEED), constraint("7"), 1.0)
    assert told(own.before) == {"found": "4-6"}
    assert engine.grants["found"].stance is Management.PLACED


def test_a_container_found_on_cpus_that_belong_to_another_leaves_them_at_once() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("own", limit=1, qos=Qos.GUARANTEED), "own", within=constraint("7"))
    others = seen("own", engine.grants["own"].container, "7")
    result = look(engine, others, seen("found", APP, "4-7"), details={"found": APP})
    assert told(result.updates) == {"found": "4-6"}


def test_an_adopted_container_that_nobody_can_place_waits_for_its_cpus() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    adopted(engine, make_container("app", limit=4), "6-7")
    for key, cpus in (("two", "0-5"), ("one", "6-7")):
        run(
            engine,
            make_container(key, limit=len(parse_cpus(cpus)), qos=Qos.GUARANTEED),
            key,
            within=constraint(cpus),
        )
    assert engine.grants["found"].stance is Management.UNTOUCHED
    assert broken_invariants(engine) == []
    engine.remove("one")
    grant = engine.grants["found"]
    assert (grant.stance, format_cpus(grant.cpus)) == (Management.ADOPTED, "6-7")


def test_an_adopted_container_that_loses_its_cpus_is_placed_whatever_it_demands() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    adopted(engine, make_container("app", limit=4, preferences=PlacementPreferences(numa="require")), "6-7")
    for key, cpus in (("two", "0"), ("one", "6-7")):
        limit = len(parse_cpus(cpus))
        run(engine, make_container(key, limit=limit, qos=Qos.GUARANTEED), key, within=constraint(cpus))
    grant = engine.grants["found"]
    assert (grant.stance, format_cpus(grant.cpus)) == (Management.PLACED, "1-5")
    assert "so without what it demands" in grant.why


def test_an_adopted_container_that_ends_leaves_no_hold() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    adopted(engine, APP, "2-5")
    look(engine, seen("found", APP, state="exited"))
    assert not engine.grants


OPTED_OUT = make_container("quiet", pod=make_pod("quiet", annotations={"cri-resmgr.io/manage": "false"}))


def test_opted_out_and_kubelets_containers_are_found_as_such() -> None:
    container = make_container("app", limit=3)
    assigned = {(container.pod.uid, "app"): parse_cpus("6-7")}
    engine = engine_on(host_of(VM_NO_CACHE_INFO, kubelet_exclusive=assigned))
    assert adopted(engine, OPTED_OUT, "0-3").stance is Management.OPTED_OUT
    items = [seen("found", OPTED_OUT, "0-3"), seen("k", container, "6-7")]
    look(engine, *items, details={"k": container})
    assert engine.grants["k"].stance is Management.KUBELET
    assert engine.node.exclusive == {6, 7}


@pytest.mark.parametrize(
    ("cpus", "stance"),
    [
        ("6-7", Management.KUBELET),
        ("4-7", Management.KUBELET),
        ("2,7", Management.FOREIGN),
        ("1-2", Management.FOREIGN),
    ],
)
def test_kubelets_container_on_cpus_that_others_own_has_them_no_more_than_these_have(cpus, stance) -> None:
    one, other = (make_container(name, limit=2) for name in ("one", "other"))
    assigned = {(one.pod.uid, "one"): parse_cpus("6-7"), (other.pod.uid, "other"): parse_cpus("1-2")}
    engine = engine_on(host_of(VM_NO_CACHE_INFO, kubelet_exclusive=assigned))
    look(engine, seen("one", one, "6-7"), seen("other", other, "1-2"), details={"one": one, "other": other})
    look(engine, seen("one", one, cpus), seen("other", other, "1-2"), now_s=200.0)
    assert (engine.grants["one"].stance, engine.grants["one"].runs_on) == (stance, parse_cpus(cpus))
    assert (engine.grants["other"].stance, engine.grants["other"].exclusive) == (Management.KUBELET, {1, 2})


EXCLUSIVE_LOOKS = [
    # container, its cpuset, another's cpuset, exclusive
    (make_container("g", limit=2, qos=Qos.GUARANTEED), "2-3", "4-7", True),
    (make_container("g", limit=2, qos=Qos.GUARANTEED), "2-3", "", True),
    (make_container("g", limit=2, qos=Qos.GUARANTEED), "2-3", "3-7", False),
    (make_container("g", limit=2, qos=Qos.GUARANTEED), "2-4", "5-7", False),
    (make_container("g", limit=1.5, qos=Qos.GUARANTEED), "2-3", "4-7", False),
    (make_container("b", limit=2, request=2), "2-3", "4-7", False),
    (make_container("g", limit=2, qos=Qos.GUARANTEED), "", "4-7", False),
]


@pytest.mark.parametrize(("container", "cpus", "others", "exclusive"), EXCLUSIVE_LOOKS)
def test_what_looks_exclusive_is_exclusive_where_the_policy_owns_cpus(
    container, cpus, others, exclusive
) -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    neighbour = make_container("neighbour")
    items = [seen("n", neighbour, others), seen("x", container, cpus)]
    look(engine, *items, details={"n": neighbour, "x": container})
    assert bool(engine.node.exclusive) is exclusive
    shared = engine_on(VM_NO_CACHE_INFO)
    look(shared, *items, details={"n": neighbour, "x": container})
    assert not shared.node.exclusive


def test_adopted_exclusive_cpus_are_left_by_others_and_by_nobody_else_s_leave() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    exclusive = make_container("g", limit=2, qos=Qos.GUARANTEED)
    everywhere = make_container("b")
    items = [seen("g", exclusive, "2-3"), seen("b", everywhere, "")]
    assert told(look(engine, *items, details={"g": exclusive, "b": everywhere}).updates) == {"b": "0-1,4-7"}
    # A later transition does not take them for another container's.
    assert engine.rehost(engine.host) == ()
    assert engine.node.exclusive == {2, 3}


def test_kubelet_has_the_last_word_over_what_looked_exclusive() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    exclusive = make_container("g", limit=2, qos=Qos.GUARANTEED)
    adopted(engine, exclusive, "2-3", key="g")
    run(engine, make_container("static", limit=2, qos=Qos.GUARANTEED), "static", within=constraint("3-4"))
    assert format_cpus(engine.grants["g"].cpus) == "2"
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- adoption takes nothing from others

OWN = make_container("own", limit=2, qos=Qos.GUARANTEED)


def owning() -> Engine:
    return engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))


def with_shared(engine: Engine) -> ListedContainer:
    """A container that shares all CPUs that are left."""
    grant = run(engine, make_container("wide"), "wide", 1.0)
    return seen("wide", grant.container, format_cpus(grant.cpus))


@pytest.mark.parametrize("state", ["running", "created"])
def test_what_is_found_on_cpus_of_another_gets_none_of_its_own(state) -> None:
    engine = owning()
    taken = format_cpus(run(engine, OWN, "own").cpus)
    wide, stranger = with_shared(engine), make_container("stranger", limit=2, qos=Qos.GUARANTEED)
    there = [seen("own", OWN, taken), wide, seen("found", stranger, taken, state=state)]
    result = look(engine, *there, details={"found": stranger})
    assert told(result.updates) == {"found": format_cpus(engine.grants["wide"].cpus)}
    grant = engine.grants["found"]
    assert (grant.exclusive, engine.node.exclusive) == (frozenset(), engine.grants["own"].exclusive)
    # Nor later, when the CPUs it shares go to others.
    for name in ("more", "most"):
        run(engine, make_container(name, limit=2, qos=Qos.GUARANTEED), name, 2.0)
    assert not engine.grants["found"].exclusive and broken_invariants(engine) == []


@pytest.mark.parametrize("order", [1, -1])
def test_without_records_cpus_are_exclusive_to_the_one_that_runs_on_them(order) -> None:
    engine = owning()
    created, everywhere = make_container("other", limit=2, qos=Qos.GUARANTEED), make_container("b")
    items = [seen("created", created, "2-3", state="created"), seen("own", OWN, "2-3")][::order]
    details = {"created": created, "own": OWN, "b": everywhere}
    result = look(engine, *items, seen("b", everywhere, "0-1,4-7"), details=details)
    assert {key: format_cpus(g.exclusive) for key, g in engine.grants.items()} == {
        "own": "2-3", "created": "", "b": "",
    }  # fmt: skip
    assert "own" not in told(result.updates) and "b" not in told(result.updates)


# ---------------------------------------------------------------------- attempts that never ran


@pytest.mark.parametrize("later", ["created", "running", "exited"])
def test_an_attempt_that_never_ran_is_dead_once_a_later_one_is_listed(later) -> None:
    engine = owning()
    items = [seen("a0", OWN, state="created"), seen("a1", again(OWN, 1), state=later)]
    assert unknown_ids(engine, items) == (() if later == "exited" else ("a1",))
    assert unknown_ids(engine, items[:1]) == ("a0",)
    # It was asked about before the later one came.
    look(engine, *items, details={"a0": OWN})
    assert "a0" not in engine.grants


@pytest.mark.parametrize("end", ["on its way", "in doubt", "created", "held"])
def test_an_attempt_that_never_ran_is_dead_once_a_later_one_is_recorded(end) -> None:
    engine = owning()
    ticket = engine.admit(again(OWN, 1), NO_CONSTRAINT, 1.0).ticket
    if end == "in doubt":
        engine.doubt(ticket)
    elif end != "on its way":
        engine.bind(ticket, "a1", 1.0)
    if end == "held":
        engine.exited("a1", 1, 2.0)
    assert unknown_ids(engine, [seen("a0", OWN, state="created")]) == ()
    assert unknown_ids(engine, [seen("a0", OWN)]) == ("a0",)
    other = replace(OWN, name="other")
    assert unknown_ids(engine, [seen("other", other, state="created")]) == ("other",)


def test_the_record_of_an_attempt_that_never_ran_ends_with_a_later_one() -> None:
    engine = owning()
    wide = with_shared(engine)
    engine.bind(engine.admit(OWN, NO_CONSTRAINT, 2.0).ticket, "a0", 2.0)
    taken = format_cpus(engine.grants["a0"].cpus)
    # The later one was created while we were away.
    last = again(OWN, 1)
    items = [seen("a0", OWN, taken, state="created"), seen("a1", last, taken), replace(wide, cpus=None)]
    result = look(engine, *items, details={"a1": last})
    assert (result.removed, result.adopted, told(result.updates)) == (("a0",), ("a1",), {})
    assert format_cpus(engine.grants["a1"].exclusive) == taken
    assert (
        next(r for r in engine.history if r.id == "a0").outcome == "never started: there is a later attempt"
    )


def test_but_not_while_the_later_one_may_still_fail() -> None:
    engine = owning()
    first, second = (engine.admit(c, NO_CONSTRAINT, 0.0).ticket for c in (OWN, again(OWN, 1)))
    engine.bind(first, "a0", 1.0)
    cpus = format_cpus(engine.grants["a0"].cpus)
    assert look(engine, seen("a0", OWN, cpus, state="created")) == Looked()
    engine.cancel(second, 2.0)
    assert look(engine, seen("a0", OWN, cpus, state="created")) == Looked()


# ---------------------------------------------------------------------- rule 10: drift


def test_rule_10_a_cpuset_that_differs_from_ours_is_repaired_once(engine) -> None:
    result = look(engine, seen("app", APP, "0-7"))
    assert (told(result.updates), result.drifted) == ({"app": "0-3"}, ("app",))
    [update] = result.updates
    assert (update.shrink, update.why) == (True, "its cpuset had been changed")
    assert look(engine, seen("app", APP, "0-3"), now_s=101.0) == Looked()


@pytest.mark.parametrize(
    ("cpus", "mems", "drifted"),
    [
        ("0-3", "0", False),
        ("0-3", None, False),
        ("0-3", "1", True),
        ("0-3", "", True),
        ("0-2", "0", True),
        ("", "0", True),
        (None, "1", False),
    ],
)
def test_rule_10_both_cpus_and_mems_can_drift(cpus, mems, drifted) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    container = make_container("app", limit=2, memory=1)
    run(engine, container, "app")
    result = look(engine, seen("app", container, cpus, mems))
    assert bool(result.drifted) is drifted


def test_rule_10_an_empty_cpuset_is_drift_where_we_had_set_one_also_with_the_same_cpus_from_above() -> None:
    engine = with_app()
    item = replace(seen("app", APP, ""), inherited=engine.grants["app"].cpus)
    assert told(look(engine, item).updates) == {"app": "0-3"}


def test_rule_10_mems_that_we_have_not_set_cannot_drift() -> None:
    assert look(with_app(), seen("app", APP, "0-3", "1")) == Looked()


def test_rule_10_offline_cpus_make_no_drift(engine) -> None:
    engine.rehost(host_of(VM_NO_CACHE_INFO))
    engine.rehost(host_of(topology(VM_NO_CACHE_INFO), usable="0-2,4-7"))
    assert look(engine, seen("app", APP, "0-2")) == Looked()


@pytest.mark.parametrize("interval_s", [1.0, 20.0, DRIFT_WINDOW_S])
def test_rule_10_changed_back_three_times_within_a_minute_each_it_is_foreign(interval_s) -> None:
    engine = with_app()
    times = [100.0 + i * interval_s for i in range(FLIPS + 1)]
    for now_s in times[:-1]:
        assert look(engine, seen("app", APP, "0-7"), now_s=now_s).drifted == ("app",)
    last = look(engine, seen("app", APP, "0-7"), now_s=times[-1])
    assert (last.foreign, last.drifted, last.updates) == (("app",), (), ())
    grant = engine.grants["app"]
    assert (grant.stance, format_cpus(grant.cpus)) == (Management.FOREIGN, "0-7")
    # Left alone, and charged where it runs.
    assert look(engine, seen("app", APP, "5"), now_s=times[-1] + 1) == Looked()
    assert engine.node.charge_milli([5]) == 1000


def test_rule_10_changed_back_later_it_is_repaired_again(engine) -> None:
    for i in range(6):
        result = look(engine, seen("app", APP, "0-7"), now_s=100.0 + i * (DRIFT_WINDOW_S + 1))
        assert (result.drifted, result.foreign) == (("app",), ())


def test_rule_10_exclusive_cpus_of_a_foreign_container_are_shared_again() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    own, other = make_container("own", limit=2, qos=Qos.GUARANTEED), make_container("other", limit=2)
    run(engine, own, "own")
    run(engine, other, "other", within=constraint("0-3"))
    there = seen("other", other, "2-3")
    for i in range(FLIPS):
        look(engine, seen("own", own, "0-7"), there, now_s=100.0 + i)
    assert told(look(engine, seen("own", own, "0-7"), there, now_s=110.0).updates) == {"other": "0-3"}


def test_rule_10_what_we_took_from_an_adopted_container_can_drift_too() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    own = make_container("own", limit=1, qos=Qos.GUARANTEED)
    adopted(engine, APP, "")
    run(engine, own, "own", within=constraint("7"))
    there = seen("own", own, "7")
    for i in range(FLIPS):
        assert told(look(engine, seen("found", APP, ""), there, now_s=100.0 + i).updates) == {"found": "0-6"}
    assert look(engine, seen("found", APP, ""), there, now_s=110.0).foreign == ("found",)


@pytest.mark.parametrize(
    "stance", [Management.OPTED_OUT, Management.UNTOUCHED, Management.RELEASED, Management.FOREIGN]
)
def test_rule_10_the_cpusets_of_others_are_followed(engine, stance) -> None:
    engine.amend(replace(engine.grants["app"], stance=stance, runs_on=parse_cpus("0-7")))
    assert look(engine, seen("app", APP, "4-5")) == Looked()
    assert engine.node.charge_milli(parse_cpus("4-5")) == 1000


def test_rule_10_kubelet_moving_its_exclusive_container_moves_the_others() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    own, other = make_container("own", limit=1, qos=Qos.GUARANTEED), make_container("other", limit=2)
    run(engine, own, "own", within=constraint("1"))
    run(engine, other, "other", within=constraint("0-3"))
    engine.kubelet_gives(own, "2")
    result = look(engine, seen("own", own, "2"), seen("other", other, "0,2-3"))
    assert told(result.updates) == {"other": "0-1,3"}
    assert engine.node.exclusive == {2}


@pytest.mark.parametrize("what", ["given back", "given back, and the daemon restarted", "cannot be read"])
def test_rule_10_a_container_is_kubelets_as_long_as_its_file_says_so(what: str) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    own, other = make_container("own", limit=2, qos=Qos.GUARANTEED), make_container("other", limit=4)
    run(engine, own, "own", within=constraint("1-2"))
    run(engine, other, "other", within=constraint("0-3"))
    engine.kubelet_gives(own, "")
    if what == "cannot be read":
        engine.rehost(replace(engine.host, knows_kubelet=False))
    elif what != "given back":
        before, engine = engine, engine_on(host_of(VM_NO_CACHE_INFO))
        engine.restore(before.grants.values(), (), before.pods.values(), before.history, {})
    look(engine, seen("own", own, "1-2"), seen("other", other, "0,3"))
    grant = engine.grants["own"]
    if what == "cannot be read":
        assert (grant.stance, grant.exclusive) == (Management.KUBELET, {1, 2})
        return
    assert (grant.stance, grant.cpus, grant.exclusive) == (Management.ADOPTED, {1, 2}, frozenset())
    assert grant.why == "kubelet's CPUs no more: it keeps what it has"
    assert format_cpus(engine.grants["other"].cpus) == "0-3"
    engine.manage("own")
    assert engine.grants["own"].stance is Management.PLACED


def test_rule_10_one_that_was_adopted_before_kubelets_file_could_be_read_is_kubelets_then() -> None:
    engine = engine_on(replace(host_of(VM_NO_CACHE_INFO), knows_kubelet=False))
    own = make_container("own", limit=1, qos=Qos.GUARANTEED)
    look(engine, seen("own", own, "1"), details={"own": own})
    assert engine.grants["own"].stance is Management.ADOPTED
    engine.kubelet_gives(own, "1")
    look(engine, seen("own", own, "1"))
    assert (engine.grants["own"].stance, engine.node.exclusive) == (Management.KUBELET, {1})


def test_rule_10_an_observed_container_is_charged_where_it_would_be() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    engine.bind(engine.admit(APP, NO_CONSTRAINT, 0.0, enforce=False).ticket, "app", 1.0)
    assert look(engine, seen("app", APP, "6-7")) == Looked()
    assert engine.node.charge_milli(range(4)) == 1000


@pytest.mark.parametrize("reason", ["pending", "told", "resizing", "held", "not looked at"])
def test_rule_10_a_container_in_motion_is_not_judged(engine, reason) -> None:
    own = make_container("own", limit=1, qos=Qos.GUARANTEED)
    cpus = {"not looked at": None, "told": "0-3"}
    items = [seen("app", APP, cpus.get(reason, "0-7"))]
    pending = "app" if reason == "pending" else ""
    details: dict[str, Container] = {}
    if reason == "resizing":
        engine.resize("app", APP.resources, NO_CONSTRAINT, 99.0)
    if reason == "held":
        engine.exited("app", 1, 99.0)
        items = [replace(items[0], running=False)]
    if reason == "told":
        # Its CPU 3 goes to a container that is found in the same resync, before it.
        engine.rehost(host_of(VM_NO_CACHE_INFO, kubelet_exclusive={(own.pod.uid, "own"): parse_cpus("7")}))
        items.insert(0, seen("own", own, "3"))
        details = {"own": own}
    result = look(engine, *items, details=details, pending=pending)
    assert (result.drifted, result.foreign) == ((), ())
    assert told(result.updates) == ({"app": "0-2"} if reason == "told" else {})


def test_rule_10_a_cpuset_read_before_the_place_changed_says_nothing(engine) -> None:
    then = dict(engine.grants)
    engine.rehost(host_of(VM_NO_CACHE_INFO, usable="0-2,4-7"))
    stale = Listing({"app": seen("app", APP, "0-3")}, 99.0, then=then)
    assert resync(engine, stale, 100.0) == Looked()
    fresh = Listing({"app": seen("app", APP, "0-3")}, 99.0, then=dict(engine.grants))
    assert resync(engine, fresh, 101.0).drifted == ("app",)


# ---------------------------------------------------------------------- resizes past us


def resized_to(limit: int, cpus: str = "0-3", key: str = "app") -> ListedContainer:
    return replace(seen(key, APP, cpus), resources=replace(APP.resources, milli_limit=limit))


def test_other_resources_are_taken_over_and_the_container_is_placed_by_them(engine) -> None:
    result = look(engine, resized_to(8000))
    assert (result.resized, result.drifted, told(result.updates)) == (("app",), (), {"app": "0-7"})
    assert look(engine, resized_to(8000, "0-7")) == Looked()


@pytest.mark.parametrize("why", ["resize on its way", "resize in doubt", "held", "resized since"])
def test_resources_of_a_container_that_is_resized_or_ends_say_nothing_yet(engine, why) -> None:
    if why == "held":
        engine.exited("app", None, 99.0)
    if why.startswith("resize "):
        admission = engine.resize("app", replace(APP.resources, milli_limit=9000), NO_CONSTRAINT, 99.0)
        assert admission is not None
        if why == "resize in doubt":
            engine.doubt(admission.ticket)
    then = dict(engine.grants)
    known = APP.resources
    if why == "resized since":
        known = replace(APP.resources, milli_limit=3000)
        engine.follow_resources("app", known, 99.5)
    item = replace(resized_to(8000), resources=None if "doubt" in why else resized_to(8000).resources)
    result = resync(engine, Listing({"app": item}, 98.0, then=then), 100.0)
    assert result.resized == ()
    assert engine.grants["app"].container.resources == known


def test_an_update_of_ours_on_its_way_keeps_no_resize_from_being_followed(engine) -> None:
    result = look(engine, resized_to(8000), pending="app")
    assert (result.resized, told(result.updates)) == (("app",), {"app": "0-7"})


def test_what_was_resized_while_nothing_is_sent_is_placed_by_the_first_look_after(engine) -> None:
    result = look(engine, resized_to(8000), enforce=False)
    assert (result.resized, result.updates) == (("app",), ())
    assert look(engine, resized_to(8000), enforce=False) == Looked()
    result = look(engine, replace(resized_to(8000), resources=None))
    assert (result.resized, told(result.updates)) == (("app",), {"app": "0-7"})


def test_nothing_is_repaired_while_nothing_is_sent(engine) -> None:
    for now_s in (100.0, 110.0, 120.0, 130.0):
        assert look(engine, seen("app", APP, "5-6"), now_s=now_s, enforce=False) == Looked()
    # Once it may be told, it is; no other writer has undone anything.
    found = look(engine, seen("app", APP, "5-6"), now_s=140.0)
    assert (found.drifted, told(found.updates)) == ((), {"app": "0-3"})


def test_resources_tell_whether_a_resize_in_doubt_was_made_where_its_cpus_do_not() -> None:
    for limit, made in ((3000, True), (2000, False)):
        engine = with_app()  # 3 CPUs are the same rung
        admission = engine.resize("app", replace(APP.resources, milli_limit=3000), NO_CONSTRAINT, 50.0)
        assert admission is not None and format_cpus(admission.placement.cpus) == "0-3"
        engine.doubt(admission.ticket)
        look(engine, resized_to(limit))
        assert not engine.tickets
        assert engine.grants["app"].container.resources.milli_limit == limit
        assert (engine.history[-1].outcome == "resized") is made


def test_of_two_resizes_in_doubt_the_one_that_was_made_counts() -> None:
    for limit, where in ((8000, "0-7"), (2000, "0-3")):
        engine = with_app()
        for wanted in (8000, 3000):
            admission = engine.resize("app", replace(APP.resources, milli_limit=wanted), NO_CONSTRAINT, 50.0)
            assert admission is not None
            engine.doubt(admission.ticket)
        look(engine, resized_to(limit, where))
        look(engine, resized_to(limit, where))
        assert not engine.tickets
        assert engine.grants["app"].container.resources.milli_limit == limit
        assert format_cpus(engine.grants["app"].cpus) == where


# ---------------------------------------------------------------------- resizes whose end is not known


@pytest.mark.parametrize(
    ("cpus", "level", "tickets"),
    [("0-3,64-67", "ccx", 0), ("0-7,64-71", "numa", 0), ("9", "numa", 0), (None, "ccx", 1)],
    ids=["not made", "made", "neither", "not looked at"],
)
def test_the_cpuset_tells_whether_a_resize_was_made(cpus, level, tickets) -> None:
    engine = with_app(HYGON_7285_2S)
    admission = engine.resize("app", replace(APP.resources, milli_limit=9000), NO_CONSTRAINT, 50.0)
    assert admission is not None
    engine.doubt(admission.ticket)
    look(engine, seen("app", APP, cpus))
    assert (engine.grants["app"].placement.level, len(engine.tickets)) == (level, tickets)


@pytest.mark.parametrize("end", ["removed", "exited"])
def test_a_resize_of_a_container_that_has_ended_is_over(engine, end) -> None:
    admission = engine.resize("app", replace(APP.resources, milli_limit=8000), NO_CONSTRAINT, 50.0)
    assert admission is not None
    engine.doubt(admission.ticket)
    look(engine, *([seen("app", APP, state="exited", code=0)] if end == "exited" else []))
    assert not engine.tickets


def test_a_resize_in_doubt_that_a_next_attempt_had_set_aside_is_judged_when_that_never_appears() -> None:
    engine = with_app(HYGON_7285_2S)
    resize = engine.resize("app", replace(APP.resources, milli_limit=9000), NO_CONSTRAINT, 50.0)
    create = engine.admit(again(APP, 1), NO_CONSTRAINT, 50.0)
    assert resize is not None
    for admission in (resize, create):
        engine.doubt(admission.ticket)
    look(engine, seen("app", APP, "0-7,64-71"), now_s=500.0)
    assert not engine.tickets
    assert format_cpus(engine.grants["app"].cpus) == "0-7,64-71"


# ---------------------------------------------------------------------- slices


def test_slices_together_do_what_one_resync_does() -> None:
    containers = {f"c{i:03}": make_container(f"c{i}", limit=2) for i in range(2 * SLICE + 10)}
    items = {key: seen(key, c, "0-3") for key, c in containers.items()}
    listing = Listing(items, 100.0, containers)
    whole, sliced = engine_on(VM_NO_CACHE_INFO), engine_on(VM_NO_CACHE_INFO)
    parts = []
    for part in resync_slices(sliced, listing, 100.0):
        assert len(part.adopted) <= SLICE
        assert broken_invariants(sliced) == []
        parts.append(part)
    assert merged(parts) == comparison.resync(whole, listing, 100.0)
    assert sliced.grants == whole.grants
    assert len(parts) == 4


def _many(policy: str, count: int, now_s: float = 0.0) -> Engine:
    """A node of ``count`` containers, of which 60 own a CPU where the policy has them own any."""
    tree = topology(HYGON_7285_2S)
    engine = engine_on(host_of(tree), policy=POLICIES[policy](tree, TOPOLOGY_AWARE))
    engine.is_quiet = True
    for number in range(count):
        owns = number < 60
        limit, qos = (1 if owns else 1 + number % 12), (Qos.GUARANTEED if owns else Qos.BURSTABLE)
        run(
            engine, make_container(f"c{number}", limit, limit if owns else 0.05, qos=qos), f"c{number}", now_s
        )
    return engine


def _gone(engine: Engine) -> Listing:
    return Listing({}, 100.0)


def _cancelled(engine: Engine) -> Listing:
    for number in range(300):
        engine.doubt(engine.admit(make_container(f"d{number}", limit=4), NO_CONSTRAINT, 1.0).ticket)
    return Listing(
        {key: seen(key, g.container) for key, g in engine.grants.items() if key in engine.told}, 9e3
    )


def _bound(engine: Engine) -> Listing:
    listing = _cancelled(engine)
    created = {t.id: engine.grants[t.key].container for t in engine.tickets.values()}
    return replace(
        listing, seen={**listing.seen, **{f"id-{k}": seen(f"id-{k}", c) for k, c in created.items()}}
    )


@pytest.mark.parametrize("policy", ["hygon", "topology-aware"])
@pytest.mark.parametrize("made", [_gone, _cancelled, _bound], ids=["gone", "cancelled", "bound"])
def test_a_slice_judges_few_containers_and_changes_few_records_whatever_it_finds(policy, made) -> None:
    engine = _many(policy, 300)
    listing = made(engine)
    largest, parts, judged = 0, [], []
    version = engine.version
    for part in resync_slices(engine, listing, 9e3):
        parts.append(part)
        judged.append(len(part.removed) + len(part.bound) + len(part.cancelled))
        largest, version = max(largest, engine.version - version), engine.version
    assert max(judged) <= SLICE
    assert largest < 2 * RECORDS  # the last container of a slice changes up to all others that share with it
    assert sum(judged) == 300
    assert broken_invariants(engine) == [] and not engine.tickets


def test_what_is_taken_over_comes_in_slices_and_what_owns_cpus_first() -> None:
    node, heir = _many("topology-aware", 300), _many("topology-aware", 0)
    owners = {key: grant.exclusive for key, grant in node.grants.items() if grant.exclusive}
    items = {key: seen(key, grant.container, format_cpus(grant.cpus)) for key, grant in node.grants.items()}
    details = {key: grant.container for key, grant in node.grants.items()}
    first, *others = resync_slices(heir, Listing(items, 100.0, details, is_newer=True), 100.0)
    assert len(owners) == 60 and set(first.adopted) == owners.keys()
    assert max(len(part.adopted) for part in others) == SLICE
    assert sorted(merged([first, *others]).adopted) == sorted(items)
    assert {key: grant.exclusive for key, grant in heir.grants.items() if grant.exclusive} == owners
    assert {key: grant.cpus for key, grant in heir.grants.items()} == {k: s.cpus for k, s in items.items()}


def test_between_slices_calls_may_pass() -> None:
    containers = {f"c{i:03}": make_container(f"c{i}", limit=2) for i in range(2 * SLICE)}
    engine = engine_on(VM_NO_CACHE_INFO)
    for key, container in containers.items():
        run(engine, container, key)
    listing = Listing({k: seen(k, c, "0-3") for k, c in containers.items()}, 100.0, then=dict(engine.grants))
    slices = resync_slices(engine, listing, 100.0)
    next(slices), next(slices)
    last = f"c{2 * SLICE - 1:03}"
    engine.remove(last)
    run(engine, make_container("new"), "new", 100.0)
    for _ in slices:
        assert broken_invariants(engine) == []
    assert last not in engine.grants and "new" in engine.grants


def test_patience_is_an_option() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, options=EngineOptions(doubt_s=5.0))
    ticket = engine.admit(APP, NO_CONSTRAINT, 90.0).ticket
    engine.doubt(ticket)
    assert look(engine, now_s=96.0).cancelled == (ticket,)


def test_a_runtime_that_ignores_memory_nodes_is_told_twice_and_is_no_other_writer() -> None:
    engine, app = engine_on(HYGON_7285_2S), make_container("app", limit=2, memory=1)
    place = run(engine, app, "app").placement
    assert place.mems
    items = [seen("app", app, format_cpus(place.cpus), "0-7")] * 4
    found = [look(engine, item, now_s=100.0 + 5 * number) for number, item in enumerate(items)]
    assert [(each.drifted, each.ignoring) for each in found] == [
        (("app",), ()),
        ((), ("app",)),
        ((), ()),
        ((), ()),
    ]
    assert [[u.id for u in each.updates] for each in found] == [["app"], [], [], []]
    assert engine.grants["app"].stance is Management.PLACED


@pytest.mark.parametrize("news", ["where its processes are", "it runs again"])
def test_what_is_found_out_about_a_container_leaves_what_it_was_told(news) -> None:
    """An adopted container that is still to leave a CPU: the record says where it should be, not where it is."""
    engine = engine_on(VM_NO_CACHE_INFO)
    look(engine, seen("found", APP, "0-7"), details={"found": APP}, now_s=90.0)
    with engine.quiet():
        own = make_container("own", limit=1, qos=Qos.GUARANTEED)
        engine.bind(engine.admit(own, constraint("7"), 91.0).ticket, "own", 92.0)
        item = replace(
            seen("found", APP, "0-7"), runs_in="/elsewhere" if news == "where its processes are" else None
        )
        listing = Listing({"found": item, "own": seen("own", own, "7")}, 100.0)
        comparison.resync(engine, listing, 100.0)
        assert [(u.id, format_cpus(u.placement.cpus)) for u in engine.pending()] == [("found", "0-6")]


def test_one_that_waited_when_the_daemon_ended_is_found_with_what_it_has() -> None:
    engine = with_app()
    engine.saw("app", cpus=frozenset())  # as ``restore`` leaves it
    found = look(engine, seen("app", APP, "0-1"))
    assert (found.drifted, told(found.updates)) == ((), {"app": "0-3"})


def test_cpusets_that_have_no_cpu_in_common_with_another_may_be_owned() -> None:
    sets = ("0-3", "4-7", "6-9", "10", "20-29", "20-29", "")
    there = {str(number): seen(str(number), APP, cpus) for number, cpus in enumerate(sets)}
    assert format_cpus(may_be_owned(there)) == "0-3,10"
