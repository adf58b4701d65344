"""Rule 4: grants belong to attempts. A place is held for the next attempt, and given up when others need it."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Admission, Life, Management
from policies.machine.cpus import format_cpus
from policies.model import NO_CONSTRAINT, Container, Qos, Resources
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S, UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import Owning, again, constraint, dump, engine_on, make_container, make_pod, run, topology


def crash(
    engine: Engine, container: Container, key: str, now_s: float = 0.0, code: Optional[int] = 1
) -> None:
    run(engine, container, key, now_s)
    engine.exited(key, code, now_s)


# ---------------------------------------------------------------------- rule 4: keyed by id, never by pod and name


@pytest.mark.parametrize("qos", [Qos.BURSTABLE, Qos.GUARANTEED], ids=["shared", "exclusive"])
def test_rule_4_removing_an_old_attempt_keeps_the_new_ones_cpus(qos) -> None:
    """W1 of the ancestor: kubelet's garbage collection removed attempt 0 and freed the CPUs of attempt 2."""
    engine = engine_on(HYGON_7285_2S, policy=Owning(topology(HYGON_7285_2S)))
    app = make_container("app", limit=3, request=3, qos=qos)
    run(engine, app, "attempt-0", 0.0)
    engine.exited("attempt-0", 1, 1.0)
    run(engine, again(app, 1), "attempt-1", 2.0)
    engine.exited("attempt-1", 1, 3.0)
    latest = run(engine, again(app, 2), "attempt-2", 4.0)
    for old in ("attempt-0", "attempt-1"):
        assert engine.remove(old) == ()
    assert engine.grants == {"attempt-2": latest}
    victim = run(engine, make_container("victim", limit=3, request=3, qos=qos), "victim", 5.0)
    assert victim.placement.cpus.isdisjoint(latest.placement.cpus)
    assert broken_invariants(engine) == []


def test_rule_4_removing_an_attempt_that_was_set_aside_does_nothing(engine) -> None:
    app = make_container("app", limit=3)
    crash(engine, app, "attempt-0")
    admission = engine.admit(again(app, 1), NO_CONSTRAINT, 1.0)
    engine.remove("attempt-0")
    engine.bind(admission.ticket, "attempt-1", 2.0)
    assert list(engine.grants) == ["attempt-1"]


def test_rule_4_the_exit_of_an_old_attempt_says_nothing_about_the_new_one(engine) -> None:
    app = make_container("app", limit=3)
    crash(engine, app, "attempt-0")
    run(engine, again(app, 1), "attempt-1", 1.0)
    assert engine.exited("attempt-0", 1, 2.0) == ()
    assert engine.grants["attempt-1"].life is Life.RUNNING


# ---------------------------------------------------------------------- rule 4: created, running, held, free


def test_rule_4_the_life_of_a_grant(engine) -> None:
    admission = engine.admit(make_container("app", limit=3), NO_CONSTRAINT, 0.0)
    lives = [engine.grants[admission.ticket].life]
    engine.bind(admission.ticket, "app-0", 1.0)
    lives.append(engine.grants["app-0"].life)
    engine.started("app-0")
    lives.append(engine.grants["app-0"].life)
    engine.exited("app-0", 1, 2.0)
    lives.append(engine.grants["app-0"].life)
    assert lives == [Life.CREATING, Life.CREATED, Life.RUNNING, Life.HELD]
    engine.remove("app-0")
    assert not engine.grants


HOLDS = [(1, 300.0), (137, 300.0), (None, 300.0), (0, 30.0)]


@pytest.mark.parametrize(("code", "hold_s"), HOLDS)
def test_rule_4_how_long_a_place_is_held_depends_on_the_exit_code(code, hold_s) -> None:
    engine = engine_on(HYGON_7285_2S)
    crash(engine, make_container("app", limit=3), "app-0", 100.0, code)
    engine.tick(100.0 + hold_s - 0.1)
    assert engine.grants["app-0"].life is Life.HELD
    engine.tick(100.0 + hold_s)
    assert not engine.grants


def test_rule_4_the_times_are_options() -> None:
    engine = engine_on(HYGON_7285_2S, options=EngineOptions(restart_hold_s=10.0, finished_hold_s=1.0))
    crash(engine, make_container("app"), "app", 0.0, 1)
    crash(engine, make_container("job"), "job", 0.0, 0)
    assert [engine.grants[k].hold_until_s for k in ("app", "job")] == [10.0, 1.0]


def test_rule_4_an_exit_code_that_comes_later_shortens_the_hold_from_the_exit_on(engine) -> None:
    crash(engine, make_container("job"), "job", 100.0, None)
    engine.exited("job", 0, 110.0)
    assert (engine.grants["job"].exit_code, engine.grants["job"].hold_until_s) == (0, 130.0)


def test_rule_4_an_exit_that_is_told_twice_does_not_start_the_hold_again(engine) -> None:
    crash(engine, make_container("app"), "app", 100.0, 1)
    for code in (1, 0, None):
        engine.exited("app", code, 200.0)
    assert (engine.grants["app"].exit_code, engine.grants["app"].hold_until_s) == (1, 400.0)


def test_rule_4_held_cpus_stay_charged() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    crash(engine, make_container("app", limit=3, request=3), "app")
    other = run(engine, make_container("other", limit=3, request=3), "other", 1.0)
    assert format_cpus(other.placement.cpus) == "4-7"


def test_rule_4_exclusive_cpus_stay_exclusive_while_they_are_held() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    crash(engine, make_container("app", limit=2, qos=Qos.GUARANTEED), "app")
    assert format_cpus(engine.node.exclusive) == "0-1"
    engine.tick(300.0)
    assert not engine.node.exclusive


@pytest.mark.parametrize(
    "annotations", [{"cri-resmgr.io/manage": "false"}, {"cpu.preserve.resource-policy.nri.io": "true"}]
)
def test_rule_4_nothing_is_held_for_containers_that_are_not_ours(annotations) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    crash(engine, make_container("app", pod=make_pod("p", annotations=annotations)), "app")
    assert not engine.grants


def test_rule_4_the_end_of_the_sandbox_ends_its_holds_and_no_others() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    pod = make_pod("web")
    engine.add_pod(pod)
    crash(engine, make_container("app", pod=pod), "app")
    run(engine, make_container("sidecar", pod=pod), "sidecar")
    crash(engine, make_container("other"), "other")
    engine.end_pod(pod.id)
    assert list(engine.grants) == ["other"]
    assert not engine.pods


def test_rule_4_holds_survive_a_restart_of_the_daemon() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    app = make_container("app", limit=3, request=3)
    crash(engine, app, "app-0", 100.0)
    heir = engine_on(VM_NO_CACHE_INFO, policy=engine.policy)
    assert heir.restore(engine.grants.values(), [], [], engine.history, {}) == ()
    assert dump(heir) == dump(engine)
    admission = heir.admit(again(app, 1), NO_CONSTRAINT, 150.0)
    assert admission.decision.why == "the place of attempt 0 was held for it"


# ---------------------------------------------------------------------- rule 4: the same CPUs for the next attempt


def restart(engine: Engine, container: Container, now_s: float = 50.0) -> Admission:
    return engine.admit(again(container, container.attempt + 1), NO_CONSTRAINT, now_s)


def test_rule_4_the_next_attempt_gets_the_same_cpus_whatever_is_better_by_now(engine) -> None:
    app = make_container("app", limit=3, request=2, memory=1)
    crash(engine, app, "app-0")
    for i in range(4):
        engine.admit(make_container(f"c{i}", limit=8, request=1), constraint("0-3,64-67"), 10.0)
    before = engine.grants["app-0"].placement
    admission = restart(engine, app)
    assert admission.placement == before
    assert admission.decision.why == "the place of attempt 0 was held for it"


def test_rule_4_attempts_that_were_skipped_do_not_matter(engine) -> None:
    app = make_container("app", limit=3)
    crash(engine, app, "app-0")
    admission = engine.admit(again(app, 7), NO_CONSTRAINT, 1.0)
    assert "attempt 0" in admission.decision.why


def test_rule_4_the_latest_of_several_attempts_counts(engine) -> None:
    app = make_container("app", limit=3)
    crash(engine, app, "app-0")
    run(engine, make_container("other", limit=3), "other")
    # Attempt 1 was observed elsewhere while attempt 0 was still held.
    engine.adopt(
        replace(
            engine.grants["other"], key="app-1", container=again(app, 1), life=Life.HELD, hold_until_s=300.0
        )
    )
    admission = engine.admit(again(app, 2), NO_CONSTRAINT, 10.0)
    assert admission.placement.cpus == engine.grants["other"].placement.cpus
    assert set(engine.grants) == {"other", admission.ticket}


@pytest.mark.parametrize(
    ("resources", "within"),
    [(Resources(0, 9000), None), (Resources(0, 3000), "8-20")],
    ids=["another limit", "another fence"],
)
def test_rule_4_an_attempt_with_other_wishes_is_placed_anew(engine, resources, within) -> None:
    app = make_container("app", limit=3)
    crash(engine, app, "app-0")
    admission = engine.admit(replace(again(app, 1), resources=resources), constraint(within), 10.0)
    assert "held for it" not in admission.decision.why
    assert list(engine.grants) == [admission.ticket]


def test_rule_4_a_larger_memory_limit_widens_the_nodes_of_the_same_place(engine) -> None:
    app = make_container("app", limit=3, memory=1)
    crash(engine, app, "app-0")
    hungry = replace(again(app, 1), resources=replace(app.resources, memory_limit_bytes=70 << 30))
    admission = engine.admit(hungry, NO_CONSTRAINT, 10.0)
    assert (format_cpus(admission.placement.cpus), format_cpus(admission.placement.mems)) == (
        "0-3,64-67",
        "0-1",
    )
    assert sum(size for _, size in admission.placement.memory_charge) == 70 << 30


def test_rule_4_another_memory_fence_is_kept_at_the_same_place(engine) -> None:
    app = make_container("app", limit=3, memory=1)
    crash(engine, app, "app-0")
    admission = engine.admit(again(app, 1), constraint(mems="3"), 10.0)
    assert format_cpus(admission.placement.mems) == "3"
    assert broken_invariants(engine) == []


def test_rule_4_what_is_offline_of_the_held_place_is_left_out(engine) -> None:
    app = make_container("app", limit=3)
    crash(engine, app, "app-0")
    run(engine, make_container("own", limit=1, qos=Qos.GUARANTEED), "own", within=constraint("1"))
    assert format_cpus(restart(engine, app).placement.cpus) == "0,2-3,64-67"


def test_rule_4_after_the_hold_a_next_attempt_is_placed_like_any_other(engine) -> None:
    app = make_container("app", limit=3)
    crash(engine, app, "app-0")
    engine.tick(301.0)
    assert "held for it" not in restart(engine, app, 302.0).decision.why


def test_rule_4_finished_init_containers_make_way_for_the_app() -> None:
    engine = engine_on(UNEVEN_CCX)
    pod = make_pod("web")
    crash(engine, make_container("init", limit=20, request=20, pod=pod), "init", 0.0, 0)
    app = run(engine, make_container("app", limit=20, request=20, pod=pod), "app", 1.0)
    assert list(engine.grants) == ["app"]
    assert "no room" not in app.why


def test_rule_4_init_containers_that_failed_or_belong_to_others_do_not() -> None:
    engine = engine_on(UNEVEN_CCX)
    crash(engine, make_container("failed", pod=make_pod("web")), "failed", 0.0, 1)
    crash(engine, make_container("init", pod=make_pod("other")), "init", 0.0, 0)
    engine.admit(make_container("app", pod=make_pod("web")), NO_CONSTRAINT, 1.0)
    assert {"failed", "init"} <= set(engine.grants)


# ---------------------------------------------------------------------- rule 4: given up when others need it


def full_of_holds() -> Engine:
    """Two nodes of four CPUs: one held since 10 s, one since 20 s, both full."""
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("older", limit=4, request=3), "older")
    run(engine, make_container("younger", limit=4, request=3), "younger")
    engine.exited("older", 1, 10.0)
    engine.exited("younger", 1, 20.0)
    return engine


def test_rule_4_the_oldest_hold_is_given_up_first_and_why_says_so() -> None:
    engine = full_of_holds()
    admission = engine.admit(make_container("new", limit=2, request=2), NO_CONSTRAINT, 30.0)
    assert format_cpus(admission.placement.cpus) == "0-3"
    assert admission.decision.why.endswith("; the place held for default/pod-of-older/older was given up")
    assert set(engine.grants) == {"younger", admission.ticket}


def test_rule_4_no_hold_is_given_up_where_there_is_room() -> None:
    engine = full_of_holds()
    admission = engine.admit(make_container("new", limit=1, request=1), NO_CONSTRAINT, 30.0)
    assert {"older", "younger"} <= set(engine.grants)
    assert "given up" not in admission.decision.why


def test_rule_4_no_more_holds_are_given_up_than_it_takes() -> None:
    engine = full_of_holds()
    admission = engine.admit(make_container("new", limit=8, request=8), NO_CONSTRAINT, 30.0)
    assert list(engine.grants) == [admission.ticket]
    names = "default/pod-of-older/older, default/pod-of-younger/younger"
    assert f"the place held for {names} was given up" in admission.decision.why


def test_rule_4_holds_elsewhere_are_not_given_up_because_they_are_older() -> None:
    engine = full_of_holds()
    # Node 1 only: the older hold is on node 0 and does not help.
    admission = engine.admit(make_container("new", limit=2, request=2), constraint("4-7"), 30.0)
    assert set(engine.grants) == {"older", admission.ticket}


def test_rule_4_a_hold_is_given_up_rather_than_a_higher_rung_taken(engine) -> None:
    crash(engine, make_container("held", limit=8, request=4), "held")
    for index in range(1, 16):
        cpus = format_cpus(engine.host.topology.leaves[index].cpus)
        run(engine, make_container(f"c{index}", limit=8, request=6), f"c{index}", within=constraint(cpus))
    admission = engine.admit(make_container("new", limit=8, request=5), NO_CONSTRAINT, 10.0)
    assert admission.placement.level == "ccx"
    assert "held" not in engine.grants


def test_rule_4_where_giving_up_every_hold_does_not_help_none_is() -> None:
    engine = full_of_holds()
    admission = engine.admit(make_container("new", limit=8, request=9), NO_CONSTRAINT, 30.0)
    assert {"older", "younger"} <= set(engine.grants)
    assert not admission.decision.fits


def test_rule_4_what_was_given_up_comes_back_if_the_create_fails() -> None:
    engine = full_of_holds()
    before = dump(engine)
    admission = engine.admit(make_container("new", limit=8, request=8), NO_CONSTRAINT, 30.0)
    engine.cancel(admission.ticket, 31.0)
    assert dump(engine) == before


def test_rule_4_holds_are_bisected_not_tried_one_by_one(engine) -> None:
    for i in range(60):
        crash(engine, make_container(f"c{i}", limit=8, request=2), f"c{i}", float(i))
    asked = 0
    place = engine.policy.place

    def counting(*args: object) -> object:
        nonlocal asked
        asked += 1
        return place(*args)  # type: ignore[arg-type]

    engine.policy.place = counting  # type: ignore[assignment, method-assign]
    admission = engine.admit(make_container("new", limit=8, request=8), NO_CONSTRAINT, 100.0)
    assert "given up" in admission.decision.why
    assert asked <= 8


# ---------------------------------------------------------------------- starts that fail


def created(engine: Engine, key: str = "app-0", attempt: int = 0) -> Container:
    container = make_container("app", limit=3, attempt=attempt)
    admission = engine.admit(container, NO_CONSTRAINT, 0.0)
    engine.bind(admission.ticket, key, 0.0)
    return container


CPUSET_ERRORS = [
    "failed to create shim task: OCI runtime create failed: runc: cpuset.cpus: Invalid argument",
    "write /sys/fs/cgroup/x/CPUSET.MEMS: numerical result out of range",
    "invalid mems 7",
]


@pytest.mark.parametrize("message", CPUSET_ERRORS)
def test_a_start_that_fails_for_its_cpuset_makes_the_next_create_go_untouched(engine, message) -> None:
    app = created(engine)
    assert engine.start_failed("app-0", message, 10.0)
    engine.exited("app-0", 128, 10.0)
    admission = engine.admit(again(app, 1), NO_CONSTRAINT, 20.0)
    assert (admission.stance, admission.placement.cpus) == (Management.UNTOUCHED, frozenset())
    assert "failed to start" in admission.decision.why


@pytest.mark.parametrize("message", CPUSET_ERRORS)
def test_a_create_that_fails_for_its_cpuset_makes_the_next_go_untouched(engine, message) -> None:
    """CRI-O makes the cgroup when it creates a container, not when it starts it."""
    container = make_container("app", limit=3)
    for error, stance in (
        ("no such image", Management.PLACED),
        (message, Management.PLACED),
        ("", Management.UNTOUCHED),
    ):
        admission = engine.admit(container, NO_CONSTRAINT, 0.0)
        assert admission.stance is stance
        assert engine.create_failed(admission.ticket, error, 10.0) is (error == message)
        engine.cancel(admission.ticket, 10.0)


def test_one_other_failure_is_the_applications_two_in_a_row_may_be_ours(engine) -> None:
    created(engine)
    assert not engine.start_failed("app-0", "exec: no such file", 10.0)
    created(engine, "app-1", 1)
    assert engine.start_failed("app-1", "exec: no such file", 20.0)


def test_a_start_in_between_makes_it_no_row(engine) -> None:
    created(engine)
    engine.start_failed("app-0", "exec: no such file", 10.0)
    created(engine, "app-1", 1)
    engine.started("app-1")
    created(engine, "app-2", 2)
    assert not engine.start_failed("app-2", "exec: no such file", 20.0)


def test_distrust_ends_after_ten_minutes(engine) -> None:
    app = created(engine)
    engine.start_failed("app-0", CPUSET_ERRORS[0], 10.0)
    assert engine.distrusted == {("uid-pod-of-app", "app"): 610.0}
    assert engine.admit(again(app, 1), NO_CONSTRAINT, 609.0).stance is Management.UNTOUCHED
    assert engine.admit(again(app, 2), NO_CONSTRAINT, 610.0).stance is Management.PLACED
    engine.tick(610.0)
    assert not engine.distrusted


def test_distrust_is_of_one_pods_container_only(engine) -> None:
    created(engine)
    engine.start_failed("app-0", CPUSET_ERRORS[0], 10.0)
    for other in (make_container("app", pod=make_pod("another")), make_container("sidecar")):
        assert engine.admit(other, NO_CONSTRAINT, 20.0).stance is Management.PLACED


def test_distrust_survives_a_restart(engine) -> None:
    app = created(engine)
    engine.start_failed("app-0", CPUSET_ERRORS[0], 10.0)
    heir = engine_on(HYGON_7285_2S)
    heir.restore([], [], [], [], dict(engine.distrusted))
    assert heir.admit(again(app, 1), NO_CONSTRAINT, 20.0).stance is Management.UNTOUCHED


def test_failures_of_containers_we_have_not_placed_are_not_ours(engine) -> None:
    admission = engine.admit(make_container("app"), NO_CONSTRAINT, 0.0, enforce=False)
    engine.bind(admission.ticket, "app-0", 0.0)
    assert not engine.start_failed("app-0", CPUSET_ERRORS[0], 10.0)
    assert not engine.start_failed("nobody", CPUSET_ERRORS[0], 10.0)
    assert not engine.distrusted


def test_failures_are_forgotten_with_the_pod(engine) -> None:
    pod = make_pod("web")
    engine.add_pod(pod)
    admission = engine.admit(make_container("app", pod=pod), NO_CONSTRAINT, 0.0)
    engine.bind(admission.ticket, "app-0", 0.0)
    engine.start_failed("app-0", "exec: no such file", 10.0)
    engine.end_pod(pod.id)
    assert not engine.start_failures
