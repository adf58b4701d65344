"""Balloons through the engine: updates when one grows or shrinks, what a failed request leaves, what survives."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ContainerRecord, CpusetUpdate, Management
from cri_proxy.engine.model import Life as GrantLife
from policies.balloons.policy import SPARE_S, Balloons
from policies.balloons.types import BalloonSettings, BalloonType
from policies.hygon import Hygon
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Topology, remember
from policies.model import (
    NO_CONSTRAINT,
    Constraint,
    Container,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    Qos,
    Resources,
)
from policies.settings import PlacementSettings
from tests.machines import (
    GIB,
    HYGON_7285_2S,
    MEMORYLESS_NODE,
    MONOLITHIC_2S,
    OFFLINE_CPUS,
    ONE_CPU,
    UNEVEN_CCX,
    VM_NO_CACHE_INFO,
    machine,
    take_offline,
)
from tests.scenes import (
    Number,
    again,
    constraint,
    cpus_of,
    engine_on,
    host_of,
    make_container,
    make_pod,
    run,
    told,
)

DB = BalloonType("db", namespaces=("db",))
WEB = BalloonType("web", namespaces=("web",), share_idle_cpus_in_same="l3cache")


def balloons_on(where: str, *types: BalloonType, reserved: str = "") -> Engine:
    host = host_of(where, reserved=reserved)
    chosen = PlacementSettings(balloons=BalloonSettings(types))
    return engine_on(host, policy=Balloons(host.topology, chosen))


def restarted(engine: Engine) -> tuple[Engine, tuple[CpusetUpdate, ...]]:
    """The daemon after this one, with its records, and what it tells the runtime at once."""
    policy = Balloons(engine.host.topology, engine.policy.settings)  # type: ignore[attr-defined]
    next_one = engine_on(engine.host, policy=policy)
    updates = next_one.restore(
        engine.grants.values(),
        engine.tickets.values(),
        engine.pods.values(),
        engine.history,
        dict(engine.distrusted),
    )
    return next_one, updates


def asks(name: str, request: Number, namespace: str = "db", pod: str = "") -> Container:
    return make_container(name, request=request, pod=make_pod(pod or f"pod-{name}", namespace=namespace))


@pytest.fixture
def engine() -> Engine:
    return balloons_on(HYGON_7285_2S, DB)


# ---------------------------------------------------------------------- growing and shrinking


def test_a_balloon_that_grows_for_a_container_takes_the_others_along(engine) -> None:
    run(engine, asks("a", 2), "a")
    admission = engine.admit(asks("b", 2), NO_CONSTRAINT, 0.0)
    assert format_cpus(admission.placement.cpus) == "0-1,64-65"
    assert (told(admission.before), told(admission.after)) == ({}, {"a": "0-1,64-65"})
    assert told(engine.bind(admission.ticket, "b", 0.0)) == {"a": "0-1,64-65"}
    assert broken_invariants(engine) == []


def test_those_who_used_the_idle_cpus_lose_them_before_the_create() -> None:
    engine = balloons_on(HYGON_7285_2S, DB, WEB)
    run(engine, asks("w", 2, "web"), "w")
    admission = engine.admit(asks("a", 2), NO_CONSTRAINT, 0.0)
    assert told(admission.before) == {"w": "0,2-3,64,66-67"}
    assert told(admission.after) == {}


def test_a_create_that_fails_gives_the_others_their_cpus_back() -> None:
    engine = balloons_on(HYGON_7285_2S, DB, WEB)
    run(engine, asks("w", 2, "web"), "w")
    run(engine, asks("a", 2), "a")
    before = cpus_of(engine)
    admission = engine.admit(asks("b", 4), NO_CONSTRAINT, 0.0)
    assert cpus_of(engine)["a"] != before["a"]
    updates = engine.cancel(admission.ticket, 0.0)
    assert cpus_of(engine) == before
    assert set(told(updates)) == {"w"}  # the other one was not told yet that it grows


def test_of_two_creates_on_their_way_the_one_that_fails_takes_only_its_own_share_back(engine) -> None:
    run(engine, asks("a", 2), "a")
    first = engine.admit(asks("b", 2), NO_CONSTRAINT, 0.0)
    second = engine.admit(asks("c", 3), NO_CONSTRAINT, 0.0)
    engine.cancel(first.ticket, 0.0)
    engine.bind(second.ticket, "c", 0.0)
    engine.tick(SPARE_S)
    assert len(engine.grants["a"].cpus) == 6  # of the five that they request whole cores
    assert engine.grants["a"].cpus == engine.grants["c"].cpus
    assert broken_invariants(engine) == []


def test_removing_a_container_deflates_its_balloon(engine) -> None:
    run(engine, asks("a", 4), "a")
    run(engine, asks("b", 4), "b")
    (update,) = engine.remove("b")
    assert (update.id, len(update.placement.cpus), update.shrink) == ("a", 6, True)
    assert engine.tick(SPARE_S - 1) == ()
    (update,) = engine.tick(SPARE_S)
    assert (update.id, len(update.placement.cpus), update.shrink) == ("a", 4, True)
    assert engine.remove("a") == ()
    assert engine.node.exclusive == frozenset()


def test_the_core_that_a_balloon_keeps_is_its_next_containers(engine) -> None:
    run(engine, asks("a", 4), "a")
    run(engine, asks("b", 2), "b")
    own = engine.grants["a"].cpus
    assert engine.remove("b") == ()
    admission = engine.admit(asks("c", 2), NO_CONSTRAINT, 1.0)
    assert (admission.placement.cpus, admission.before, admission.after) == (own, (), ())


def test_a_restart_leaves_a_balloon_the_core_that_it_keeps(engine) -> None:
    run(engine, asks("a", 4), "a")
    run(engine, asks("b", 2), "b")
    engine.remove("b")
    after, updates = restarted(engine)
    assert updates == () and cpus_of(after) == cpus_of(engine)
    (update,) = after.tick(after.now_s + SPARE_S)
    assert len(update.placement.cpus) == 4


def spare_one(web: BalloonType = WEB) -> Engine:
    """Of eight CPUs one balloon has five for a container that requests four, since another one has gone just now."""
    engine = balloons_on(VM_NO_CACHE_INFO, DB, web)
    run(engine, asks("a", 4), "a")
    run(engine, asks("b", 1), "b")
    engine.remove("b")
    assert len(engine.grants["a"].cpus) == 5
    return engine


def test_what_a_balloon_has_to_spare_is_given_up_before_another_begins_too_small() -> None:
    engine = spare_one()
    before = cpus_of(engine)
    admission = engine.admit(asks("w", 4, "web"), NO_CONSTRAINT, 1.0)
    assert admission.decision.fits and len(admission.placement.cpus) == 4
    assert told(admission.before) == {"a": "0-3"} and broken_invariants(engine) == []
    # Where the create fails it has it back.
    engine.cancel(admission.ticket, 1.0)
    assert cpus_of(engine) == before and broken_invariants(engine) == []


def test_a_balloon_of_its_own_begins_with_what_others_have_to_spare_rather_than_joining_one() -> None:
    engine = balloons_on(HYGON_7285_2S, replace(DB, prefer_new_balloons=True), reserved="2-63,66-127")
    for name in ("a", "b", "c"):
        run(engine, asks(name, 1), name)
    groups = {key: grant.placement.group for key, grant in engine.grants.items()}
    assert groups == {"a": "db[0]", "b": "db[1]", "c": "db[2]"}
    assert sorted(len(grant.cpus) for grant in engine.grants.values()) == [1, 1, 2]
    assert broken_invariants(engine) == []


def test_what_does_not_help_is_not_given_up() -> None:
    engine = spare_one(replace(WEB, max_cpus=3))
    before = cpus_of(engine)["a"]
    admission = engine.admit(asks("w", 4, "web"), NO_CONSTRAINT, 1.0)
    assert not admission.decision.fits and cpus_of(engine)["a"] == before


def test_what_a_balloon_has_to_spare_is_given_up_for_one_that_is_resized() -> None:
    engine = spare_one()
    run(engine, asks("w", 3, "web"), "w", 1.0)
    admission = engine.resize("w", Resources(4000), NO_CONSTRAINT, 2.0)
    assert admission is not None
    engine.commit(admission.ticket, 2.0)
    assert {key: len(grant.cpus) for key, grant in engine.grants.items()} == {"a": 4, "w": 4}
    assert broken_invariants(engine) == []


def test_an_exited_container_keeps_its_share_until_its_hold_ends(engine) -> None:
    run(engine, asks("a", 4), "a")
    run(engine, asks("b", 4), "b")
    assert engine.exited("b", 1, 0.0) == ()
    assert len(engine.grants["a"].cpus) == 8
    over_s = engine.options.restart_hold_s + 1
    updates = engine.tick(over_s) + engine.tick(over_s + SPARE_S)
    assert [(u.id, len(u.placement.cpus)) for u in updates] == [("a", 6), ("a", 4)]


def test_the_next_attempt_of_a_container_has_the_same_cpus() -> None:
    engine = balloons_on(HYGON_7285_2S, replace(DB, prefer_new_balloons=True))
    for name in ("a", "b", "c"):
        run(engine, asks(name, 2), name)
    before = engine.grants["b"].placement
    engine.exited("b", 1, 0.0)
    run(engine, again(asks("b", 2), 1), "b-1")
    assert engine.grants["b-1"].placement == before


def test_a_next_attempt_that_fails_leaves_the_hold_of_the_one_before(engine) -> None:
    run(engine, asks("a", 2), "a")
    run(engine, asks("b", 2), "b")
    engine.exited("b", 1, 0.0)
    before = cpus_of(engine)
    admission = engine.admit(again(asks("b", 2), 1), NO_CONSTRAINT, 0.0)
    engine.cancel(admission.ticket, 0.0)
    assert cpus_of(engine) == before
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- resizing


@pytest.mark.parametrize(
    ("request_milli", "size"),
    [
        pytest.param(4000, 6, id="grows"),
        pytest.param(500, 4, id="shrinks by no part of a core"),
        pytest.param(1800, 4, id="stays"),
    ],
)
def test_a_resize_inflates_or_deflates_the_balloon(engine, request_milli, size) -> None:
    run(engine, asks("a", 2), "a")
    run(engine, asks("b", 2), "b")
    admission = engine.resize("b", Resources(request_milli), NO_CONSTRAINT, 0.0)
    assert admission is not None
    assert "b" not in told((*admission.before, *admission.after))
    assert broken_invariants(engine) == []
    engine.commit(admission.ticket, 0.0)
    assert {len(grant.cpus) for grant in engine.grants.values()} == {size}
    assert broken_invariants(engine) == []


def test_a_resize_that_is_refused_changes_nothing(engine) -> None:
    run(engine, asks("a", 2), "a")
    run(engine, asks("b", 2), "b")
    before = cpus_of(engine)
    admission = engine.resize("b", Resources(8000), NO_CONSTRAINT, 0.0)
    assert admission is not None
    engine.cancel(admission.ticket, 0.0)
    assert cpus_of(engine) == before


def test_a_lone_container_is_resized_with_one_request(engine) -> None:
    run(engine, asks("a", 6), "a")
    was = engine.grants["a"].cpus
    admission = engine.resize("a", Resources(2000), NO_CONSTRAINT, 0.0)
    assert admission is not None
    assert len(admission.placement.cpus) == 2
    assert admission.placement.cpus < was
    assert engine.commit(admission.ticket, 0.0) == ()
    assert engine.grants["a"].cpus == admission.placement.cpus


# ---------------------------------------------------------------------- restart, configuration, the machine


def test_a_restart_changes_nothing() -> None:
    engine = balloons_on(
        HYGON_7285_2S, replace(DB, max_cpus=6, min_balloons=2, min_cpus=2), WEB, reserved="0,64"
    )
    for number, namespace in enumerate(("db", "web", "db", "x", "kube-system", "db", "web", "x", "db")):
        run(engine, asks(f"c{number}", number % 4, namespace), f"c{number}")
    engine.remove("c2")
    before = {key: grant.placement for key, grant in engine.grants.items()}
    next_one, updates = restarted(engine)
    assert updates == ()
    assert {key: grant.placement for key, grant in next_one.grants.items()} == before
    assert next_one.policy.tidy(next_one.node, next_one.now_s) == {}


def test_a_type_that_is_configured_larger_grows_and_nobody_else_moves() -> None:
    engine = balloons_on(HYGON_7285_2S, DB, WEB)
    run(engine, asks("w", 8, "web"), "w")
    run(engine, asks("a", 2), "a")
    larger = PlacementSettings(balloons=BalloonSettings((replace(DB, min_cpus=4), WEB)))
    updates = engine.rehost(engine.host, Balloons(engine.host.topology, larger))
    assert [(u.id, len(u.placement.cpus)) for u in updates] == [("a", 4)]


def test_containers_of_a_type_that_is_no_longer_configured_stay_where_they_are() -> None:
    engine = balloons_on(HYGON_7285_2S, DB, WEB)
    run(engine, asks("a", 2), "a")
    without = PlacementSettings(balloons=BalloonSettings((WEB,)))
    assert engine.rehost(engine.host, Balloons(engine.host.topology, without)) == ()
    run(engine, asks("w", 120, "web"), "w")
    assert broken_invariants(engine) == []


def test_a_balloon_whose_cpus_go_offline_gets_others(engine) -> None:
    run(engine, asks("a", 2), "a")
    run(engine, asks("b", 2), "b")
    data = remember(engine.host.topology, take_offline(machine(HYGON_7285_2S), parse_cpus("0-3")))
    tree = Topology(data)
    updates = engine.rehost(host_of(tree), Balloons(tree, engine.policy.settings))  # type: ignore[attr-defined]
    assert set(told(updates)) == {"a", "b"}
    assert len(engine.grants["a"].cpus) == 4
    assert engine.grants["a"].cpus == engine.grants["b"].cpus
    assert broken_invariants(engine) == []


def test_cpus_that_kubelet_gives_away_leave_the_balloon(engine) -> None:
    run(engine, asks("a", 2), "a")
    host = host_of(engine.host.topology, kubelet_exclusive={("uid", "guaranteed"): parse_cpus("0")})
    engine.rehost(host)
    assert 0 not in engine.grants["a"].cpus
    assert len(engine.grants["a"].cpus) == 2
    assert broken_invariants(engine) == []


def test_a_fenced_container_never_leaves_its_fence_when_its_balloon_grows() -> None:
    engine = balloons_on(MONOLITHIC_2S, replace(DB, max_balloons=1))
    run(engine, asks("fenced", 1), "fenced", within=constraint("0-1"))
    run(engine, asks("a", 4), "a")
    assert engine.grants["fenced"].cpus <= {0, 1}
    assert len(engine.grants["a"].cpus) == 6
    assert broken_invariants(engine) == []


@pytest.mark.parametrize(
    ("kind", "preferences"),
    [
        pytest.param(DB, PlacementPreferences(smt="hide"), id="by annotation"),
        pytest.param(replace(DB, hide_hyperthreads=True), PlacementPreferences(), id="by type"),
        pytest.param(
            replace(DB, hide_hyperthreads=True, share_idle_cpus_in_same="l3cache"),
            PlacementPreferences(),
            id="and shares",
        ),
    ],
)
def test_of_a_core_whose_other_thread_is_hidden_a_fenced_container_gets_the_thread_inside(
    kind, preferences
) -> None:
    engine = balloons_on(HYGON_7285_2S, kind)
    run(engine, replace(asks("fenced", 8), preferences=preferences), "fenced", within=constraint("64-66"))
    assert format_cpus(engine.grants["fenced"].cpus) == "64-66"
    assert broken_invariants(engine) == []


def test_a_fenced_container_that_made_room_goes_back_with_its_memory_when_the_create_fails() -> None:
    engine = balloons_on(HYGON_7285_2S, replace(DB, max_balloons=1))
    fenced = replace(asks("fenced", 1), resources=Resources(1000, None, 0, GIB))
    before = run(engine, fenced, "fenced", within=constraint("0-1")).placement
    admission = engine.admit(asks("b", 30), NO_CONSTRAINT, 0.0)
    assert engine.grants["fenced"].placement.mems > before.mems
    assert engine.cancel(admission.ticket, 0.0) == ()  # it was not told yet that it gets more
    assert engine.grants["fenced"].placement == before


def test_who_waits_for_a_create_that_fails_is_told_of_memory_nodes_too() -> None:
    engine = balloons_on(HYGON_7285_2S, replace(DB, max_balloons=1))
    fenced = replace(asks("fenced", 1), resources=Resources(1000, None, 0, GIB))
    run(engine, fenced, "fenced", within=constraint("0"))
    first = engine.admit(asks("b", 30), NO_CONSTRAINT, 0.0)
    assert "fenced" in told(first.after)
    # That changes nothing for the fenced one, but it is where it is for it, too.
    second = engine.admit(asks("c", 2), NO_CONSTRAINT, 0.0)
    assert "fenced" not in told(second.before + second.after)
    updates = engine.cancel(first.ticket, 0.0)
    now = engine.grants["fenced"].placement
    assert [(u.id, u.placement.mems) for u in updates] == [("fenced", now.mems)]


def test_a_refused_container_leaves_no_trace() -> None:
    engine = balloons_on(HYGON_7285_2S, replace(DB, max_cpus=-1))
    with pytest.raises(PlacementRefused):
        engine.admit(asks("a", 1), NO_CONSTRAINT, 0.0)
    assert not engine.grants
    assert not engine.tickets


def test_a_fenced_container_whose_balloon_has_no_cpu_inside_any_more_is_not_left_with_none() -> None:
    host = host_of(HYGON_7285_2S, usable="0-3")
    engine = engine_on(
        host, policy=Balloons(host.topology, PlacementSettings(balloons=BalloonSettings((DB,))))
    )
    run(engine, asks("fenced", 4), "fenced", within=constraint("0-1"))
    static = replace(asks("static", 2), qos=Qos.GUARANTEED)
    engine.admit(static, constraint("0-1"), 1.0)
    assert engine.grants["fenced"].stance is Management.UNTOUCHED
    assert broken_invariants(engine) == []


def test_what_a_container_would_own_in_mode_observe_is_not_its_next_attempts_if_others_own_it() -> None:
    engine = balloons_on(HYGON_7285_2S, DB, replace(WEB, prefer_new_balloons=True))
    seen = engine.admit(asks("observed", 1), NO_CONSTRAINT, 0.0, enforce=False)
    engine.bind(seen.ticket, "observed", 0.0)
    run(engine, asks("w", 1, "web"), "w", within=constraint("0"))
    before = engine.grants["w"].exclusive
    assert before & seen.decision.placement.exclusive
    run(engine, again(asks("observed", 1), 1), "next")
    assert engine.grants["w"].exclusive == before
    assert broken_invariants(engine) == []


def test_kubelets_container_takes_the_cpu_of_the_attempt_before_and_the_others_there_leave_it() -> None:
    engine = balloons_on(ONE_CPU, DB)
    run(engine, asks("a", 0), "a")
    run(engine, asks("b", 1), "b")
    static = replace(again(asks("b", 1), 1), qos=Qos.GUARANTEED)
    run(engine, static, "b-1", within=constraint("0"))
    assert engine.grants["a"].stance is Management.UNTOUCHED
    assert broken_invariants(engine) == []


def test_a_resize_that_kubelet_gives_the_whole_balloon_to_is_no_second_owner() -> None:
    engine = balloons_on(ONE_CPU, DB)
    run(engine, replace(asks("a", 0.25), qos=Qos.GUARANTEED), "a", within=constraint("0"))
    engine.kubelet_gives(engine.grants["a"].container, "0")
    admission = engine.resize("a", Resources(1000, 1000), NO_CONSTRAINT, 0.0)
    assert admission is not None and admission.stance is Management.KUBELET
    assert broken_invariants(engine) == []


def test_a_place_that_is_held_is_given_up_whole_also_where_the_caller_lets_it_use_a_part() -> None:
    engine = balloons_on(VM_NO_CACHE_INFO, DB)
    run(engine, asks("fenced", 8), "fenced", within=constraint("4-6"))
    run(engine, asks("other", 8), "other")
    engine.remove("other")
    assert engine.grants["fenced"].exclusive > engine.grants["fenced"].cpus
    engine.exited("fenced", 1, 1.0)
    run(engine, asks("w", 1, "web"), "w")
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- containers found without a record


def found(name: str, cpus: str, now_s: float = 0.0) -> ContainerRecord:
    """A container of one CPU that runs there."""
    here = parse_cpus(cpus)
    grant = ContainerRecord(
        name, asks(name, 1), Placement(home=here), Management.ADOPTED, runs_on=here, since_s=now_s
    )
    return replace(grant, life=GrantLife.RUNNING)


def test_who_leaves_the_cpus_of_others_is_told_first_also_when_its_balloon_grows_at_once() -> None:
    host = host_of(HYGON_7285_2S, usable="0-3", kubelet_exclusive={("uid", "static"): parse_cpus("0-1")})
    engine = engine_on(
        host, policy=Balloons(host.topology, PlacementSettings(balloons=BalloonSettings((DB,))))
    )
    engine.adopt(found("first", "0"))
    updates = {u.id: u for u in engine.adopt(found("second", "1"))}
    # Both were on kubelet's CPUs; the second one joins the first, and both have two CPUs now.
    assert told(updates.values()) == {"first": "2-3", "second": "2-3"}
    assert updates["second"].shrink


def test_a_balloon_takes_the_cpu_of_a_container_that_was_found_only_where_no_other_is_idle() -> None:
    engine = balloons_on(VM_NO_CACHE_INFO, DB)
    for index in range(3):
        engine.adopt(found(f"found-{index}", str(index)))
    run(engine, asks("a", 3), "a")
    assert cpus_of(engine) == {"found-0": "0", "found-1": "1", "found-2": "2", "a": "4-6"}
    run(engine, asks("b", 3), "b")
    # Two are left, and three are wanted: the balloon stays smaller.
    assert cpus_of(engine)["b"] == "3-7"
    assert {engine.grants[f"found-{i}"].stance for i in range(3)} == {Management.ADOPTED}


def test_a_cpu_that_changes_hands_while_sets_are_worked_out_is_shared_by_nobody() -> None:
    engine = balloons_on(HYGON_7285_2S, DB, WEB)
    run(engine, asks("fenced", 1), "fenced", 0.0, within=constraint("0"))
    run(engine, asks("w", 1, "web"), "w", 1.0)
    engine.adopt(found("found", "20", 2.0))
    data = remember(engine.host.topology, take_offline(machine(HYGON_7285_2S), [0, 64]))
    host = host_of(data, kubelet_exclusive={("uid", "static"): parse_cpus("20")})
    engine.rehost(host, Balloons(host.topology, engine.policy.settings))  # type: ignore[attr-defined]
    # The balloon's next CPU is nothing for the fenced one, and goes to the one after.
    assert engine.grants["fenced"].stance is Management.UNTOUCHED
    assert engine.grants["found"].exclusive
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- whatever happens

TYPES = (
    replace(DB, max_cpus=12, min_cpus=2, min_balloons=1),
    BalloonType("web", namespaces=("web",), prefer_new_balloons=True, prefer_spreading_pods=True, max_cpus=3,
                allocator_topology_balancing=True),
    BalloonType("group", namespaces=("group",), group_by="${pod/name}", share_idle_cpus_in_same="l3cache"),
    BalloonType("hide", namespaces=("hide",), hide_hyperthreads=True, max_balloons=2, share_idle_cpus_in_same="numa"),
    BalloonType("spread", namespaces=("spread",), prefer_spread_on_physical_cores=True, prefer_isolated_cpus=True,
                prefer_per_namespace_balloon=True),
)  # fmt: skip
NAMESPACES = ("db", "web", "group", "hide", "spread", "default", "kube-system")
REQUESTS = (0, 0, 0.2, 1, 1.5, 2, 3, 6)

Step = tuple[str, int, int, bool]
steps = st.lists(
    st.tuples(
        st.sampled_from(("create", "create", "create", "remove", "resize", "exit", "offline", "wait")),
        st.integers(0, 1000),
        st.integers(0, 1000),
        st.booleans(),
    ),
    max_size=30,
)


class Life:
    """Carries out steps on an engine, and checks after each that all is as it must be."""

    def __init__(self, name: str) -> None:
        self.full = machine(name)
        self.engine = balloons_on(name, *TYPES)
        self.count = 0
        self.has_lost_cpus = False

    def step(self, what: str, first: int, second: int, accepted: bool) -> None:
        engine, keys = self.engine, sorted(self.engine.grants)
        key = keys[first % len(keys)] if keys else ""
        if what == "create":
            self._create(first, second, accepted)
        elif what == "wait":
            engine.tick(engine.now_s + SPARE_S * (first % 3))
        elif what == "offline":
            self.has_lost_cpus = True
            self._offline(first % 3, second)
        elif key and what == "remove":
            engine.remove(key)
        elif key and what == "exit":
            engine.exited(key, 1, 0.0)
        elif key:
            self._resize(key, REQUESTS[second % len(REQUESTS)], accepted)
        self.check()

    def _create(self, first: int, second: int, accepted: bool) -> None:
        self.count += 1
        namespace = NAMESPACES[first % len(NAMESPACES)]
        name, request = f"c{self.count}", REQUESTS[second % len(REQUESTS)]
        within = self._fence(first) if second % 5 == 0 else NO_CONSTRAINT
        admission = self.engine.admit(asks(name, request, namespace, f"pod-{first % 4}"), within, 0.0)
        self.check()
        if accepted or second % 2:
            self.engine.bind(admission.ticket, name, 0.0)
        else:
            self.engine.cancel(admission.ticket, 0.0)

    def _fence(self, first: int) -> Constraint:
        usable = sorted(self.engine.node.usable)
        start = first % len(usable)
        return Constraint(frozenset((usable + usable)[start : start + len(usable) // 2 + 1]))

    def _resize(self, key: str, request: Number, accepted: bool) -> None:
        admission = self.engine.resize(key, Resources(round(request * 1000)), NO_CONSTRAINT, 0.0)
        self.check()
        if admission is not None and accepted:
            self.engine.commit(admission.ticket, 0.0)
        elif admission is not None:
            self.engine.cancel(admission.ticket, 0.0)

    def _offline(self, count: int, first: int) -> None:
        cpus = sorted(cpu.cpu for cpu in self.full.cpus)
        gone = [cpus[(first + i) % len(cpus)] for i in range(min(count, len(cpus) - 1))]
        tree = Topology(remember(self.engine.host.topology, take_offline(self.full, gone)))
        self.engine.rehost(host_of(tree), Balloons(tree, self.engine.policy.settings))  # type: ignore[attr-defined]

    def check(self, engine: Optional[Engine] = None) -> None:
        engine = engine or self.engine
        assert broken_invariants(engine) == []
        assert engine.policy.tidy(engine.node, engine.now_s) == {}, "a second look finds something to do"
        for name, group in engine.node.groups.items():
            kind = next((kind for kind in TYPES if kind.name == name.partition("[")[0]), None)
            for own in group.sets() if kind is not None else ():
                assert not 0 < kind.max_cpus < len(own), name
                assert self.has_lost_cpus or len(own) >= kind.min_cpus, name


@pytest.mark.parametrize(
    "name", [UNEVEN_CCX, OFFLINE_CPUS, VM_NO_CACHE_INFO, MEMORYLESS_NODE, MONOLITHIC_2S, ONE_CPU]
)
@given(todo=steps)
@settings(max_examples=12, deadline=None)
def test_whatever_happens_the_invariants_hold_a_restart_changes_nothing_and_nothing_leaks(name, todo) -> None:
    life = Life(name)
    for step in todo:
        life.step(*step)
    next_one, updates = restarted(life.engine)
    assert updates == ()
    life.check(next_one)
    for key in sorted(life.engine.grants):
        life.engine.remove(key)
        life.check()
    assert life.engine.node.exclusive == frozenset()
    assert not life.engine.node.residents


# ---------------------------------------------------------------------- one balloon a domain


def system_on_both_sockets() -> Engine:
    engine = balloons_on(HYGON_7285_2S, BalloonType("reserved", one_per="package"), reserved="0,32,64,96")
    for name in ("a", "b"):
        run(engine, asks(name, 0.5, "kube-system"), name)
    assert cpus_of(engine) == {"a": "0,64", "b": "32,96"}
    return engine


def test_what_shares_a_sockets_reserved_cpus_stays_there_over_a_restart() -> None:
    engine = system_on_both_sockets()
    next_one, updates = restarted(engine)
    assert updates == () and cpus_of(next_one) == {"a": "0,64", "b": "32,96"}


@pytest.mark.parametrize(
    ("reserved", "cpus"),
    [
        ("0-1,32-33,64-65,96-97", {"a": "0-1,64-65", "b": "32-33,96-97"}),
        ("1,33", {"a": "1", "b": "33"}),
        ("1,65", {"a": "1,65", "b": "1,65"}),
    ],
    ids=["more", "others", "none in one of them"],
)
def test_it_follows_the_reservation_inside_of_its_socket(reserved: str, cpus: dict[str, str]) -> None:
    engine = system_on_both_sockets()
    engine.rehost(replace(engine.host, reserved=parse_cpus(reserved)))
    assert cpus_of(engine) == cpus and broken_invariants(engine) == []


def test_another_policy_gives_it_all_reserved_cpus() -> None:
    engine = system_on_both_sockets()
    engine.rehost(engine.host, Hygon(engine.host.topology, PlacementSettings()))
    assert cpus_of(engine) == {"a": "0,32,64,96", "b": "0,32,64,96"}
