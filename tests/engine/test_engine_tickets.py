"""Rule 3: tickets. The CPUs are in the create request, the id comes with the reply; between the two there is a ticket."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Admission, Life, ListedContainer, Management, Move, Plan
from cri_proxy.engine.resync import Listing, Resync
from cri_proxy.engine.state import JournalValue, State
from policies.hygon import Hygon
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import (
    NO_CONSTRAINT,
    BudgetSpent,
    Container,
    Decision,
    PlacementRefused,
    PlacementRequest,
    Qos,
    Resources,
)
from policies.node import Node
from policies.policy import Policy
from policies.settings import EngineOptions
from tests.machines import UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import (
    Owning,
    Shadow,
    again,
    constraint,
    dump,
    engine_on,
    host_of,
    make_container,
    make_pod,
    run,
    topology,
)
from tests.told_at_once import ToldAtOnce, resync


def seen(key: str, container: Container, cpus: str = "", exited: bool = False) -> ListedContainer:
    pod = container.pod
    return ListedContainer(
        key, pod.id, pod.uid, container.name, container.attempt, not exited, exited, None, parse_cpus(cpus)
    )


def listed(engine: Engine, now_s: float, *items: ListedContainer) -> Resync:
    """A resync with a list that was asked for just now."""
    return resync(engine, Listing({s.id: s for s in items}, now_s), now_s)


@pytest.fixture
def engine() -> Engine:
    return engine_on(VM_NO_CACHE_INFO)


# ---------------------------------------------------------------------- rule 3: admit reserves


def test_rule_3_the_place_is_taken_before_the_request_is_sent(engine) -> None:
    admission = engine.admit(make_container("a", limit=2, request=2), NO_CONSTRAINT, 5.0)
    assert format_cpus(admission.placement.cpus) == "0-3"
    assert admission.placement == admission.decision.placement
    assert engine.node.charge_milli(range(4)) == 2000
    assert engine.grants[admission.ticket].life is Life.CREATING
    assert engine.tickets[admission.ticket].since_s == 5.0


def test_rule_3_two_creates_at_once_do_not_get_the_same_room(engine) -> None:
    one = engine.admit(make_container("a", limit=3, request=3), NO_CONSTRAINT, 0.0)
    two = engine.admit(make_container("b", limit=3, request=3), NO_CONSTRAINT, 0.0)
    assert one.placement.cpus.isdisjoint(two.placement.cpus)


def test_rule_3_a_reply_gives_the_place_its_containers_id(engine) -> None:
    admission = engine.admit(make_container("a", limit=2), NO_CONSTRAINT, 0.0)
    assert engine.bind(admission.ticket, "id-1", 1.0) == ()
    assert list(engine.grants) == ["id-1"]
    assert not engine.tickets
    grant = engine.grants["id-1"]
    assert (grant.life, grant.since_s, grant.placement) == (Life.CREATED, 1.0, admission.placement)


def test_rule_3_bind_returns_what_the_container_missed_on_its_way(engine) -> None:
    admission = engine.admit(make_container("a", limit=2), NO_CONSTRAINT, 0.0)
    own = make_container("k", limit=1, qos=Qos.GUARANTEED)
    assert engine.admit(own, constraint("1"), 0.0).before == ()  # the runtime does not know it yet
    [update] = engine.bind(admission.ticket, "id-1", 1.0)
    assert (update.id, format_cpus(update.placement.cpus), update.shrink) == ("id-1", "0,2-3", True)


def test_rule_3_a_container_that_missed_nothing_gets_nothing(engine) -> None:
    admission = engine.admit(make_container("a", limit=2), NO_CONSTRAINT, 0.0)
    passing = engine.admit(make_container("k", limit=1, qos=Qos.GUARANTEED), constraint("1"), 0.0)
    engine.cancel(passing.ticket, 0.5)
    assert engine.bind(admission.ticket, "id-1", 1.0) == ()


@pytest.mark.parametrize(
    "end",
    [
        lambda e: e.bind("ticket-99", "id-1", 0.0),
        lambda e: e.cancel("ticket-99", 0.0),
        lambda e: e.doubt("ticket-99"),
        lambda e: e.commit("ticket-99", 0.0),
    ],
    ids=["bind", "cancel", "doubt", "commit"],
)
def test_rule_3_a_ticket_that_is_not_known_changes_nothing(engine, end) -> None:
    run(engine, make_container("a", limit=2), "id-1")
    before = dump(engine)
    assert not end(engine)
    assert dump(engine) == before


# ---------------------------------------------------------------------- rule 3: cancel leaves no trace


def busy_engine() -> Engine:
    """Containers of every kind: running, held, finished, in flight, in doubt, kubelet's."""
    engine = engine_on(UNEVEN_CCX)
    pod = make_pod("web")
    engine.add_pod(pod)
    run(engine, make_container("app", limit=4, request=1, pod=pod, memory=1), "app-0")
    run(engine, make_container("crashed", limit=2, request=1, pod=pod), "crashed-0")
    run(engine, make_container("init", limit=2, request=1, pod=pod), "init-0")
    run(engine, make_container("lazy"), "lazy-0")
    run(engine, make_container("own", limit=1, qos=Qos.GUARANTEED), "own-0", within=constraint("13"))
    engine.exited("crashed-0", 1, 10.0)
    engine.exited("init-0", 0, 10.0)
    lost = engine.admit(make_container("lost", limit=2, pod=pod), NO_CONSTRAINT, 10.0)
    engine.doubt(lost.ticket)
    engine.admit(make_container("flying", limit=2, pod=pod), NO_CONSTRAINT, 10.0)
    return engine


NEWCOMERS = {
    "a plain one": (make_container("new", limit=2), NO_CONSTRAINT, True),
    "one without anything": (make_container("new"), NO_CONSTRAINT, True),
    "the next attempt of a crashed one": (
        make_container("crashed", limit=2, request=1, pod=make_pod("web"), attempt=1),
        NO_CONSTRAINT,
        True,
    ),
    "the next attempt, of another size": (
        make_container("crashed", limit=9, request=1, pod=make_pod("web"), attempt=1),
        NO_CONSTRAINT,
        True,
    ),
    "the app after its init": (make_container("second", limit=2, pod=make_pod("web")), NO_CONSTRAINT, True),
    "the next attempt of one in doubt": (
        make_container("lost", limit=2, pod=make_pod("web"), attempt=1),
        NO_CONSTRAINT,
        True,
    ),
    "the next attempt of one that runs": (
        make_container("app", limit=4, request=1, pod=make_pod("web"), attempt=1, memory=1),
        NO_CONSTRAINT,
        True,
    ),
    "one that needs a held place": (make_container("new", limit=28, request=22), NO_CONSTRAINT, True),
    "kubelet's, of whom others must leave": (
        make_container("new", limit=4, qos=Qos.GUARANTEED),
        constraint("0-1,14-15"),
        True,
    ),
    "one behind a fence": (make_container("new", limit=2), constraint("3-9"), True),
    "one behind an empty fence": (make_container("new", limit=2), constraint("100"), True),
    "one that is observed only": (make_container("new", limit=2), NO_CONSTRAINT, False),
    "one that opted out": (
        make_container("new", pod=make_pod("quiet", annotations={"cri-resmgr.io/manage": "false"})),
        NO_CONSTRAINT,
        True,
    ),
}


@pytest.mark.parametrize(("container", "within", "enforce"), NEWCOMERS.values(), ids=NEWCOMERS)
def test_rule_3_cancel_leaves_no_trace_of(container, within, enforce) -> None:
    engine, shadow = busy_engine(), Shadow()
    shadow.follow(engine)
    before = dump(engine)
    admission = engine.admit(container, within, 20.0, enforce)
    assert dump(engine) != before
    assert broken_invariants(engine) == []
    shadow.follow(engine)
    engine.cancel(admission.ticket, 21.0)
    assert dump(engine) == before
    shadow.follow(engine)
    assert shadow.differs_from(engine) == []


@pytest.mark.parametrize(("container", "within", "enforce"), NEWCOMERS.values(), ids=NEWCOMERS)
def test_rule_3_what_cancel_gives_back_is_what_admit_took_from_the_runtimes_view(
    container, within, enforce
) -> None:
    engine = busy_engine()
    cpusets = {key: g.placement.cpus for key, g in engine.grants.items() if g.life is Life.RUNNING}
    now = dict(cpusets)
    admission = engine.admit(container, within, 20.0, enforce)
    for update in admission.before + admission.after + engine.cancel(admission.ticket, 21.0):
        assert update.placement.cpus != now[update.id]
        now[update.id] = update.placement.cpus
    assert now == cpusets


def test_rule_3_a_cancelled_attempt_leaves_the_place_held_for_the_next() -> None:
    engine = engine_on(UNEVEN_CCX)
    app = make_container("app", limit=2)
    first = run(engine, app, "app-0")
    engine.exited("app-0", 1, 10.0)
    failed = engine.admit(again(app, 1), NO_CONSTRAINT, 20.0)
    engine.cancel(failed.ticket, 21.0)
    assert engine.grants["app-0"].hold_until_s == 310.0
    retried = engine.admit(again(app, 1), NO_CONSTRAINT, 30.0)
    assert retried.placement == first.placement


def test_rule_3_an_attempt_that_was_removed_meanwhile_does_not_come_back() -> None:
    engine = engine_on(UNEVEN_CCX)
    app = make_container("app", limit=2)
    run(engine, app, "app-0")
    engine.exited("app-0", 1, 10.0)
    failed = engine.admit(again(app, 1), NO_CONSTRAINT, 20.0)
    engine.remove("app-0")
    engine.cancel(failed.ticket, 21.0)
    assert not engine.grants


def test_rule_3_a_sandbox_that_ended_meanwhile_does_not_come_back() -> None:
    engine = engine_on(UNEVEN_CCX)
    app = make_container("app", limit=2)
    run(engine, app, "app-0")
    engine.exited("app-0", 1, 10.0)
    failed = engine.admit(again(app, 1), NO_CONSTRAINT, 20.0)
    engine.end_pod(app.pod.id)
    engine.cancel(failed.ticket, 21.0)
    assert not engine.grants


def test_rule_3_a_held_place_that_others_own_by_now_does_not_come_back() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    app = make_container("app", limit=2, qos=Qos.GUARANTEED)
    run(engine, app, "app-0")
    engine.exited("app-0", 1, 10.0)
    # The next attempt is smaller, so its place is another one, and other containers may take the old CPUs.
    failed = engine.admit(
        replace(again(app, 1), resources=Resources(milli_request=1000, milli_limit=1000)), NO_CONSTRAINT, 20.0
    )
    for name in ("x", "y"):
        run(engine, make_container(name, limit=2, qos=Qos.GUARANTEED), name)
    assert engine.grants["x"].exclusive | engine.grants["y"].exclusive | failed.placement.exclusive >= {0, 1}
    engine.cancel(failed.ticket, 21.0)
    assert broken_invariants(engine) == []


def test_rule_3_cpus_that_went_offline_meanwhile_do_not_come_back(engine) -> None:
    app = make_container("app", limit=4)
    run(engine, app, "app-0")
    engine.exited("app-0", 1, 10.0)
    failed = engine.admit(again(app, 1), NO_CONSTRAINT, 20.0)
    engine.rehost(host_of(VM_NO_CACHE_INFO, usable="1-7"))
    engine.cancel(failed.ticket, 21.0)
    assert format_cpus(engine.grants["app-0"].placement.cpus) == "1-3"
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- rule 3: doubt


def doubtful(options: Optional[EngineOptions] = None) -> tuple[Engine, Container, Admission]:
    engine = engine_on(VM_NO_CACHE_INFO, options=options)
    container = make_container("a", limit=2, request=2)
    admission = engine.admit(container, NO_CONSTRAINT, 100.0)
    engine.doubt(admission.ticket)
    return engine, container, admission


def test_rule_3_a_ticket_in_doubt_keeps_its_cpus() -> None:
    engine, _, admission = doubtful()
    assert engine.tickets[admission.ticket].in_doubt
    assert engine.node.charge_milli(range(4)) == 2000
    other = engine.admit(make_container("b", limit=3, request=3), NO_CONSTRAINT, 101.0)
    assert format_cpus(other.placement.cpus) == "4-7"


def test_rule_3_a_ticket_in_doubt_is_bound_when_the_runtime_lists_it() -> None:
    engine, container, admission = doubtful()
    result = listed(engine, 110.0, seen("id-1", container, "0-3"))
    assert (result.bound, result.updates) == (("id-1",), ())
    assert engine.grants["id-1"].placement == admission.placement
    assert engine.grants["id-1"].life is Life.RUNNING
    assert not engine.tickets


@pytest.mark.parametrize("field", ["pod", "name", "attempt"])
def test_rule_3_it_is_found_by_pod_name_and_attempt_together(field) -> None:
    engine, container, _ = doubtful()
    other = {
        "pod": replace(container, pod=make_pod("another")),
        "name": replace(container, name="another"),
        "attempt": again(container, 1),
    }[field]
    assert listed(engine, 110.0, seen("id-1", other)).bound == ()
    assert engine.tickets


def test_rule_3_one_that_has_exited_by_now_is_bound_and_held() -> None:
    engine, container, _ = doubtful()
    assert listed(engine, 110.0, seen("id-1", container, exited=True)).bound == ("id-1",)
    assert engine.grants["id-1"].life is Life.HELD


@pytest.mark.parametrize(("waited_s", "cancelled"), [(1.0, False), (120.0, False), (120.5, True)])
def test_rule_3_without_being_listed_it_is_cancelled_after_two_minutes(waited_s, cancelled) -> None:
    engine, _, admission = doubtful()
    assert listed(engine, 100.0 + waited_s).cancelled == ((admission.ticket,) if cancelled else ())
    assert bool(engine.grants) is not cancelled


def test_rule_3_patience_is_twice_the_longest_create_where_that_is_more(engine) -> None:
    slow = engine.admit(make_container("slow"), NO_CONSTRAINT, 0.0)
    engine.bind(slow.ticket, "slow", 90.0)
    engine.started("slow")
    lost = engine.admit(make_container("lost"), NO_CONSTRAINT, 100.0)
    engine.doubt(lost.ticket)
    here = seen("slow", make_container("slow"), "0-3")
    assert listed(engine, 279.0, here).cancelled == ()
    assert listed(engine, 281.0, here).cancelled == (lost.ticket,)


def test_rule_3_how_long_a_doubt_lasted_is_not_how_long_a_create_takes() -> None:
    engine, container, _ = doubtful()
    listed(engine, 219.0, seen("id-1", container, "0-3"))
    assert engine.longest_create_s == 0.0


def test_rule_3_a_list_older_than_the_request_says_nothing_about_it() -> None:
    engine, _, admission = doubtful()
    old = Listing({}, 99.0)
    assert resync(engine, old, 500.0).cancelled == ()
    assert resync(engine, Listing({}, 499.0), 500.0).cancelled == (admission.ticket,)


def test_rule_3_a_request_on_its_way_is_not_judged_by_a_list(engine) -> None:
    container = make_container("a", limit=2)
    admission = engine.admit(container, NO_CONSTRAINT, 0.0)
    result = listed(engine, 1000.0, seen("id-1", container, "0-3"))
    assert (result.bound, result.cancelled, result.adopted) == ((), (), ())
    assert admission.ticket in engine.tickets


def test_rule_3_the_next_attempt_takes_over_from_a_ticket_in_doubt() -> None:
    engine, container, admission = doubtful()
    next_one = engine.admit(again(container, 1), NO_CONSTRAINT, 130.0)
    assert next_one.placement.cpus == admission.placement.cpus
    assert list(engine.tickets) == [next_one.ticket]
    assert engine.node.charge_milli(range(8)) == 2000
    # A reply that comes after all is late.
    assert engine.bind(admission.ticket, "id-1", 131.0) == ()
    assert "id-1" not in engine.grants


def test_rule_3_after_a_restart_every_ticket_is_in_doubt() -> None:
    engine, shadow = engine_on(VM_NO_CACHE_INFO), Shadow()
    admission = engine.admit(make_container("a", limit=2), NO_CONSTRAINT, 0.0)
    shadow.follow(engine)
    heir = engine_on(VM_NO_CACHE_INFO)
    heir.restore(
        [engine.grants[admission.ticket]], [engine.tickets[admission.ticket]], [], engine.history, {}
    )
    assert heir.tickets[admission.ticket].in_doubt
    assert heir.admit(make_container("b"), NO_CONSTRAINT, 1.0).ticket != admission.ticket


def after_a_crash(replaced: bool = False) -> tuple[Engine, Container, str]:
    """A daemon that finds a create of the one before it; ``replaced``: one that the next attempt has set aside."""
    engine, container, _ = doubtful()
    if replaced:
        container = again(container, 1)
        engine.admit(container, NO_CONSTRAINT, 101.0)
    heir = engine_on(VM_NO_CACHE_INFO)
    heir.restore(list(engine.grants.values()), list(engine.tickets.values()), [], engine.history, {})
    return heir, container, next(iter(heir.tickets))


def test_rule_3_a_create_that_ended_with_its_daemon_is_over_once_its_caller_would_have_asked_again() -> None:
    engine, _, ticket = after_a_crash()
    for now_s in (110.0, 120.0, 129.0):
        assert listed(engine, now_s).cancelled == ()
    assert listed(engine, 130.0).cancelled == (ticket,)
    assert not engine.grants and not engine.tickets


def test_rule_3_lists_older_than_its_request_do_not_count() -> None:
    engine, _, ticket = after_a_crash()
    for listed_at_s, now_s, cancelled in ((99.0, 101.0, ()), (110.0, 125.0, ()), (145.0, 145.0, (ticket,))):
        assert resync(engine, Listing({}, listed_at_s), now_s).cancelled == cancelled


def test_rule_3_and_it_is_bound_where_the_runtime_has_finished_it_all_the_same() -> None:
    engine, container, _ = after_a_crash()
    assert listed(engine, 110.0).cancelled == ()
    assert listed(engine, 131.0, seen("id-1", container, "0-3")).bound == ("id-1",)
    assert listed(engine, 132.0, seen("id-1", container, "0-3")).cancelled == ()


def test_rule_3_what_it_had_set_aside_ends_with_it() -> None:
    engine, _, ticket = after_a_crash(replaced=True)
    assert listed(engine, 110.0).cancelled == ()
    assert listed(engine, 130.0).cancelled[0] == ticket
    listed(engine, 131.0)
    listed(engine, 151.0)
    assert not engine.grants and not engine.tickets


@pytest.mark.parametrize("is_heir", [False, True], ids=["the call's own daemon", "the next one"])
@pytest.mark.parametrize(
    ("sandboxes", "is_over"), [(None, False), (["sandbox-pod-of-a"], False), ([], True), (["another"], True)]
)
def test_rule_3_a_create_whose_sandbox_is_gone_is_over_at_once(is_heir, sandboxes, is_over) -> None:
    engine, container, _ = after_a_crash() if is_heir else doubtful()
    assert container.pod.id == "sandbox-pod-of-a"
    found = resync(engine, Listing({}, 101.0, sandboxes=sandboxes), 101.0)
    assert bool(found.cancelled) is is_over
    assert bool(engine.grants) is not is_over


def test_rule_3_a_list_of_sandboxes_older_than_the_request_does_not_end_it() -> None:
    engine, _, _ = doubtful()
    assert resync(engine, Listing({}, 99.0, sandboxes=[]), 101.0).cancelled == ()


def test_rule_3_half_of_a_pair_is_not_restored(engine) -> None:
    one = engine.admit(make_container("a", limit=2), NO_CONSTRAINT, 0.0)
    two = engine.admit(make_container("b", limit=2), NO_CONSTRAINT, 0.0)
    heir = engine_on(VM_NO_CACHE_INFO)
    heir.restore([engine.grants[one.ticket]], [engine.tickets[two.ticket]], [], [], {})
    assert not heir.grants and not heir.tickets
    journal = heir.drain()
    assert journal["grant", one.ticket] is None and journal["ticket", two.ticket] is None


# ---------------------------------------------------------------------- rule 3: synchronous and atomic


class Failing(Policy):
    """The default policy, until it is told to fail: at its n-th decision from then on."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        super().__init__(topology(VM_NO_CACHE_INFO), Owning(topology(VM_NO_CACHE_INFO)).settings)
        self._policy = Hygon(self.topology, self.settings)
        self._error = error
        self.countdown = 10_000

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        self.countdown -= 1
        if self.countdown <= 0:
            raise self._error
        return self._policy.place(node, request)


def failing_engine(error: Exception) -> tuple[Engine, Failing]:
    policy = Failing(error)
    engine = engine_on(host_of(VM_NO_CACHE_INFO, reserved="0"), policy=policy)
    run(engine, make_container("narrow", limit=1), "narrow", within=constraint("1"))
    run(engine, make_container("app", limit=2, request=2), "app")
    run(engine, make_container("adopted", limit=2), "adopted")
    engine.release("adopted")
    engine.exited("app", 1, 1.0)
    run(engine, make_container("job", limit=2), "job")
    return engine, policy


CALLS: dict[str, Callable[[ToldAtOnce], object]] = {
    "admit": lambda e: e.admit(make_container("new", limit=1), NO_CONSTRAINT, 2.0),
    "admit, giving up holds": lambda e: e.admit(
        make_container("new", limit=4, request=8), NO_CONSTRAINT, 2.0
    ),
    # Takes the only CPU of "narrow" (behind the fence "1"), which then has to be placed anew.
    "kubelet's file, displacing others": lambda e: e.kubelet_gives(
        make_container("own", limit=1, qos=Qos.GUARANTEED), "1"
    ),
    "resize": lambda e: e.resize("job", Resources(500, 6000), NO_CONSTRAINT, 2.0),
    "manage": lambda e: e.manage("adopted"),
    "rehost": lambda e: e.rehost(host_of(VM_NO_CACHE_INFO, usable="2-7")),
}


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_rule_3_a_bug_in_the_policy_leaves_no_trace(call, nth) -> None:
    engine, policy = failing_engine(ZeroDivisionError("a bug"))
    shadow = Shadow()
    shadow.follow(engine)
    before = dump(engine)
    policy.countdown = nth
    try:
        call(engine)
    except ZeroDivisionError:
        assert dump(engine) == before
    else:
        assert policy.countdown > 0  # it was not asked that often
    shadow.follow(engine)
    assert shadow.differs_from(engine) == []
    assert broken_invariants(engine) == []


@pytest.mark.parametrize("error", [BudgetSpent("too many"), PlacementRefused("not so")])
def test_rule_3_a_refusal_leaves_no_trace_and_says_why(error) -> None:
    engine, policy = failing_engine(error)
    before = dump(engine)
    policy.countdown = 1
    with pytest.raises(type(error), match=str(error)):
        engine.admit(make_container("new", limit=1), NO_CONSTRAINT, 2.0)
    assert dump(engine) == before


def test_rule_3_a_refusal_to_place_another_anew_does_not_fail_the_request_at_hand() -> None:
    engine, policy = failing_engine(BudgetSpent("too many"))
    policy.countdown = 1
    engine.admit(make_container("own", limit=1, qos=Qos.GUARANTEED), constraint("1"), 2.0)
    assert engine.grants["narrow"].stance is Management.UNTOUCHED
    assert engine.grants["narrow"].displaced is not None


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_rule_3_a_bug_while_the_books_are_written_leaves_no_trace(monkeypatch, nth) -> None:
    engine, _ = failing_engine(ZeroDivisionError())
    original = type(engine)._note
    writes = 0

    def cut_short(state: State, kind: str, key: str, value: JournalValue) -> None:
        nonlocal writes
        writes += 1
        if writes == nth:
            raise ZeroDivisionError("a bug")
        original(state, kind, key, value)

    before = dump(engine)
    monkeypatch.setattr(type(engine), "_note", cut_short)
    with pytest.raises(ZeroDivisionError):
        engine.admit(make_container("app", limit=2, request=2, attempt=1), NO_CONSTRAINT, 2.0)
    assert dump(engine) == before


# ---------------------------------------------------------------------- what is remembered of a decision


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda e, t: e.bind(t, "id-1", 1.0), "created"),
        (lambda e, t: e.cancel(t, 1.0, "not created: no image"), "not created: no image"),
        (lambda e, t: e.doubt(t), "in doubt"),
    ],
)
def test_the_history_tells_how_a_create_ended(end, outcome) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    admission = engine.admit(make_container("a", limit=2), NO_CONSTRAINT, 3.0)
    end(engine, admission.ticket)
    [record] = engine.history
    assert (record.operation, record.path, record.at_s) == ("create", "default/pod-of-a/a", 3.0)
    assert (record.outcome, record.why) == (outcome, admission.decision.why)
    assert record.id == ("id-1" if outcome == "created" else admission.ticket)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda e, t: e.commit(t, 1.0), "resized"),
        (lambda e, t: e.cancel(t, 1.0), "refused by the runtime"),
        (lambda e, t: e.doubt(t), "in doubt"),
    ],
)
def test_the_history_tells_how_a_resize_ended(end, outcome) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("a", limit=2), "id-1")
    admission = engine.resize("id-1", Resources(0, 3000), NO_CONSTRAINT, 4.0)
    assert admission is not None
    end(engine, admission.ticket)
    assert (engine.history[-1].operation, engine.history[-1].outcome) == ("resize", outcome)


def test_the_history_keeps_what_was_undone() -> None:
    engine, policy = failing_engine(ZeroDivisionError("a bug"))
    # Kubelet's file is newer, or older, than its request, which displaces another.
    engine.kubelet_gives(make_container("own"), "2")
    engine.is_static = False
    policy.countdown = 1
    with pytest.raises(ZeroDivisionError):
        engine.admit(make_container("own", limit=1), constraint("1"), 2.0)
    assert engine.history[-1].outcome == "undone: an error in cri-resmgr"


def test_plans_made_before_any_change_are_stale(engine) -> None:
    run(engine, make_container("a", limit=2, request=2), "a")
    version = engine.version
    run(engine, make_container("b", limit=3, request=3), "b")
    assert engine.version > version
    # There was room for "a" on node 1 then, there is none now.
    assert engine.apply(Plan(version, (Move("a", parse_cpus("4-7"), "numa"),))) == ()
