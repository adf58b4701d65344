"""Claims of CPUs and their containers while the machine, the daemon, the runtime and people go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cri_proxy.cli.placement_text import explain_text, placements_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import (
    Life,
    ListedContainer,
    Management,
    Move,
    Orders,
    Override,
    Plan,
    TicketKind,
)
from cri_proxy.engine.place import override_states
from cri_proxy.engine.report import engine_status, explain, find, placement_rows, running
from cri_proxy.engine.resync import Listing, unknown_ids
from cri_proxy.engine.snapshot import everything, read_record, write_record
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, Container, PlacementPreferences, Resources
from tests.claim_scenes import CCX_0, CCX_1, NODE_0, having, key_of, owned, part, prepare
from tests.machines import HYGON_7285_2S
from tests.scenes import again, dump, engine_on, host_of, make_container, make_pod, run, told
from tests.told_at_once import resync


@pytest.fixture
def used(engine: Engine) -> Engine:
    """A claim of 4 CPUs of the first CCX, a container on it, and one that has a part of the rest, too."""
    prepare(engine, "a")
    run(engine, having("app", "a"), "c1")
    run(engine, having("mixed", "a", limit=6), "c2")
    return engine


def restarted(old: Engine) -> Engine:
    """Another daemon, with what the one before has written down."""
    texts = [(kind, write_record(value)) for (kind, _), value in everything(old).items()]
    read: dict[str, list[Any]] = {}
    for kind, text in texts:
        read.setdefault(kind, []).append(read_record(kind, text))
    new: Engine = engine_on(old.host, policy=old.policy, options=old.options)
    new.restore(
        read.get("grant", []), read.get("ticket", []), read.get("pod", []), read.get("record", []), {}
    )
    return new


def listed(engine: Engine, *keys: str, cpus: str = "") -> dict[str, ListedContainer]:
    """What the runtime lists: these containers, on the CPUs that their records say, or on ``cpus``."""
    found = {}
    for key in keys:
        container = engine.grants[key].container
        found[key] = seen(key, container, cpus or format_cpus(engine.grants[key].cpus))
    return found


def seen(key: str, container: Container, cpus: str) -> ListedContainer:
    pod = container.pod
    return ListedContainer(key, pod.id, pod.uid, container.name, container.attempt, True, False,
                           cpus=parse_cpus(cpus), resources=container.resources)  # fmt: skip


# ---------------------------------------------------------------------- the machine


def test_on_cpus_that_went_offline_it_goes_to_others_of_its_devices_and_back(used: Engine) -> None:
    first = owned(used, "a")
    gone = frozenset([min(first)])
    used.rehost(host_of(HYGON_7285_2S, usable=format_cpus(used.host.usable - gone)))
    now = owned(used, "a")
    assert len(now) == 4 and now <= parse_cpus(CCX_0) - gone and len(now & first) == 3
    record = used.grants[key_of("a")]
    assert record.moved_s and record.why.startswith(f"its CPUs {format_cpus(gone)} are gone: ")
    assert used.grants["c1"].cpus == now and now < used.grants["c2"].cpus
    used.rehost(host_of(HYGON_7285_2S))
    assert owned(used, "a") == first and not used.grants[key_of("a")].moved_s
    assert used.grants["c1"].cpus == first and not broken_invariants(used)


def test_without_others_it_keeps_what_is_left_and_says_so(engine: Engine) -> None:
    prepare(engine, "a", part(8, devices=("l3-0-whole",)))
    run(engine, having("app", "a", limit=8), "c1")
    engine.rehost(host_of(HYGON_7285_2S, usable="2-127"))
    record = engine.grants[key_of("a")]
    assert record.cpus == parse_cpus("2-3,64-67") and record.exclusive == parse_cpus(CCX_0)
    assert record.why == "its CPUs 0-1 are gone, and its devices have no others for it: it keeps what is left"
    assert engine.grants["c1"].cpus == record.cpus
    assert not broken_invariants(engine)
    engine.rehost(host_of(HYGON_7285_2S))
    assert engine.grants["c1"].cpus == parse_cpus(CCX_0) and not broken_invariants(engine)


def test_reserved_cpus_are_its_no_more(engine: Engine) -> None:
    prepare(engine, "a", part(8, devices=("l3-0-whole",)))
    run(engine, having("app", "a", limit=8), "c1")
    engine.rehost(host_of(HYGON_7285_2S, reserved="0,64"))
    assert owned(engine, "a") == parse_cpus("1-3,65-67") == engine.grants["c1"].cpus
    assert not broken_invariants(engine)
    engine.rehost(host_of(HYGON_7285_2S))
    assert owned(engine, "a") == parse_cpus(CCX_0) == engine.grants["c1"].cpus


def test_with_all_of_its_device_offline_its_containers_run_elsewhere_until_it_is_back(used: Engine) -> None:
    used.rehost(host_of(HYGON_7285_2S, usable="4-63,68-127"))
    assert key_of("a") in used.grants and not used.grants[key_of("a")].cpus
    assert used.grants["c1"].cpus and not used.grants["c1"].placement.claimed
    assert not broken_invariants(used)
    used.rehost(host_of(HYGON_7285_2S))
    assert used.grants["c1"].cpus == owned(used, "a") and not broken_invariants(used)


def test_kubelets_own_cpus_are_its_no_more(used: Engine) -> None:
    theirs = frozenset([min(owned(used, "a"))])
    used.follow_kubelet({("uid-other", "app"): theirs})
    assert owned(used, "a").isdisjoint(theirs) and len(owned(used, "a")) == 4
    assert used.grants["c1"].cpus == owned(used, "a")


# ---------------------------------------------------------------------- restarts of containers, and of the daemon


def test_the_next_attempt_has_the_same_cpus(used: Engine) -> None:
    used.exited("c1", 1, 1.0)
    grant = run(used, again(having("app", "a"), 1), "c1-again", 2.0)
    assert grant.cpus == owned(used, "a") and "c1" not in used.grants


def test_a_create_that_is_refused_leaves_no_trace(used: Engine) -> None:
    before = dump(used)
    admission = used.admit(having("third", "a", limit=5), NO_CONSTRAINT, 1.0)
    assert admission.placement.claimed == owned(used, "a")
    used.cancel(admission.ticket, 1.0)
    assert dump(used) == before


def test_a_claim_that_moves_during_a_create_is_told_after_it(used: Engine) -> None:
    admission = used.admit(having("third", "a"), NO_CONSTRAINT, 1.0)
    gone = frozenset([min(owned(used, "a"))])
    with used.quiet():  # type: ignore[attr-defined]
        Engine.rehost(used, host_of(HYGON_7285_2S, usable=format_cpus(used.host.usable - gone)))
        Engine.bind(used, admission.ticket, "c3", 1.0)
        used.started("c3")
    assert used.grants["c3"].cpus == owned(used, "a")
    assert told(used.lacking())["c3"] == format_cpus(owned(used, "a"))


def steps(engine: Engine) -> Iterator[str]:
    """The life of claims and containers, a transition at a time."""
    prepare(engine, "a", part(2, request="one"), part(2, request="other"))
    yield "prepared"
    container = replace(having("app"), claims=(key_of("a", "one"), key_of("a", "other")))
    ticket = engine.admit(container, NO_CONSTRAINT, 1.0).ticket
    yield "admitted"
    engine.bind(ticket, "c1", 1.0)
    yield "bound"
    engine.started("c1")
    yield "started"
    admission = engine.resize("c1", Resources(6000, 6000), NO_CONSTRAINT, 2.0)
    assert admission is not None
    yield "resizing"
    engine.commit(admission.ticket, 2.0)
    yield "resized"
    prepare(engine, "b", part(4))
    yield "a neighbour"
    engine.exited("c1", 1, 3.0)
    yield "exited"
    run(engine, again(container, 1), "c2", 4.0)
    yield "again"
    engine.rehost(host_of(HYGON_7285_2S, usable="1-127"))
    yield "offline"
    engine.unprepare("a", 5.0)
    yield "unprepared"
    engine.remove("c2")
    yield "removed"
    engine.unprepare("b", 6.0)
    yield "empty"


def test_what_is_written_down_after_each_step_is_all_there_is(engine: Engine) -> None:
    for step in steps(engine):
        assert not broken_invariants(engine), step
        new = restarted(engine)
        assert not broken_invariants(new), step
        assert {key: grant.cpus for key, grant in new.grants.items()} == {
            key: grant.cpus for key, grant in engine.grants.items()
        }, step
        for key, grant in new.grants.items():
            was = engine.grants[key]
            assert (grant.placement, grant.part, grant.life) == (was.placement, was.part, was.life), step
            assert grant.container.claims == was.container.claims, step
            if grant.is_claim:
                assert grant.container == was.container, step
        assert all(key not in new.told for key in new.grants if new.grants[key].is_claim), step


def test_each_parts_record_is_written_by_itself_and_half_of_a_claim_can_be_prepared_again(
    engine: Engine,
) -> None:
    """A crash in the middle of a write leaves a beginning of the records."""
    prepare(engine, "a", part(2, request="one"), part(2, request="other"))
    journal = [(kind, key) for kind, key in engine.drain() if kind == "grant"]
    assert journal == [("grant", key_of("a", "one")), ("grant", key_of("a", "other"))]
    new: Engine = engine_on(engine.host)
    new.restore([engine.grants[key_of("a", "one")]], [], [], [], {})
    prepare(new, "a", part(2, request="one"), part(2, request="other"))
    assert owned(new, "a", "one") == owned(engine, "a", "one")
    assert owned(new, "a", "one").isdisjoint(owned(new, "a", "other"))


def test_records_without_claims_are_written_as_ever(engine: Engine) -> None:
    run(engine, make_container("app", limit=2), "c1")
    text = write_record(engine.grants["c1"])
    assert "claim" not in text and '"part"' not in text


def test_a_claims_preferences_outlive_the_daemon(engine: Engine) -> None:
    prepare(engine, "a", part(4, smt="full-core", isolation_class="protected", memory="pin"))
    record = restarted(engine).grants[key_of("a")]
    assert record == engine.grants[key_of("a")]
    assert record.part is not None
    assert record.part.preferences == PlacementPreferences(
        smt="full-core", isolation_class="protected", memory="pin"
    )


# ---------------------------------------------------------------------- the runtime's list


def test_a_comparison_leaves_claims_alone(used: Engine) -> None:
    found = resync(used, Listing(listed(used, "c1", "c2"), 10.0, sandboxes=()), 11.0)  # type: ignore[arg-type]
    assert not found.removed and not found.updates and key_of("a") in used.grants
    resync(used, Listing({}, 20.0), 21.0)  # type: ignore[arg-type]
    assert set(used.grants) == {key_of("a")}


def test_after_an_end_with_records_that_were_not_saved_too(used: Engine) -> None:
    resync(used, Listing(listed(used, "c1"), 10.0, is_newer=True), 11.0)  # type: ignore[arg-type]
    assert set(used.grants) == {key_of("a"), "c1"}
    assert used.grants["c1"].cpus == owned(used, "a") and not broken_invariants(used)


def test_a_container_that_is_adopted_has_the_cpus_of_its_claim(engine: Engine) -> None:
    prepare(engine, "a")
    container, everywhere = having("app", "a"), format_cpus(engine.host.usable)
    found = {"c1": seen("c1", container, everywhere)}
    assert unknown_ids(engine, list(found.values())) == ("c1",)
    looked = resync(engine, Listing(found, 10.0, {"c1": container}), 11.0)  # type: ignore[arg-type]
    assert told(looked.updates) == {"c1": format_cpus(owned(engine, "a"))}
    assert engine.grants["c1"].stance is Management.PLACED and not broken_invariants(engine)


def test_one_that_runs_on_them_already_is_told_nothing(engine: Engine) -> None:
    prepare(engine, "a")
    container = having("app", "a")
    found = {"c1": seen("c1", container, format_cpus(owned(engine, "a")))}
    looked = resync(engine, Listing(found, 10.0, {"c1": container}), 11.0)  # type: ignore[arg-type]
    assert not looked.updates and engine.grants["c1"].placement.claimed == owned(engine, "a")


def test_a_claim_whose_record_was_lost_gets_the_cpus_that_its_containers_run_on(engine: Engine) -> None:
    containers = {name: having(name, "a") for name in ("one", "two")}
    found = {name: seen(name, container, "2-3,66-67") for name, container in containers.items()}
    looked = resync(engine, Listing(found, 10.0, containers), 11.0)  # type: ignore[arg-type]
    assert not looked.updates
    assert engine.grants["one"].stance is Management.ADOPTED
    run(engine, make_container("sharer", limit=8), "sharer", within=engine_constraint(CCX_0))
    prepare(engine, "a", now_s=12.0)
    assert owned(engine, "a") == parse_cpus("2-3,66-67")
    assert engine.grants["one"].cpus == engine.grants["two"].cpus == owned(engine, "a")
    assert engine.grants["sharer"].cpus == parse_cpus("0-1,64-65")
    assert not broken_invariants(engine)


def engine_constraint(cpus: str) -> Any:
    return replace(NO_CONSTRAINT, cpus=parse_cpus(cpus))


def test_a_members_cpuset_that_was_changed_is_set_again(used: Engine) -> None:
    found = {**listed(used, "c2"), **listed(used, "c1", cpus="10-11")}
    looked = resync(used, Listing(found, 10.0), 11.0)  # type: ignore[arg-type]
    assert told(looked.updates) == {"c1": format_cpus(owned(used, "a"))} and looked.drifted == ("c1",)


def test_a_resize_past_us_changes_what_is_beside_the_claim(used: Engine) -> None:
    resources = Resources(6000, 6000)
    found = listed(used, "c1", "c2")
    found["c1"] = replace(found["c1"], resources=resources)
    looked = resync(used, Listing(found, 10.0), 11.0)  # type: ignore[arg-type]
    assert looked.resized == ("c1",) and owned(used, "a") < used.grants["c1"].cpus
    used.follow_resources("c1", Resources(4000, 4000), 12.0)
    assert used.grants["c1"].cpus == owned(used, "a")


# ---------------------------------------------------------------------- people, plans and demand


def test_no_plan_moves_what_has_a_claim_nor_the_claim(used: Engine) -> None:
    before = dump(used)
    moves = tuple(Move(key, parse_cpus(CCX_1), "ccx") for key in ("c1", "c2", key_of("a")))
    assert not used.apply(Plan(used.version, moves))
    assert not used.apply(Plan(used.version, moves, is_order=True))
    assert dump(used) == before


def test_an_override_says_why_it_is_not_carried_out(used: Engine) -> None:
    override = Override("default", "pod-of-app", "app", "l3-1")
    used.set_orders(Orders(overrides=(override,)))
    plan = used.pinning_plan(used.pinned_outside(), 1.0)
    assert not plan.moves
    (row,) = override_states(used, "")
    assert row["state"] == "refused"
    assert row["sentence"] == (
        "default/pod-of-app/app has the CPUs of its claims, which never leave their devices"
    )
    grant = run(used, again(having("app", "a"), 1), "c1-again", 2.0)
    assert grant.cpus == owned(used, "a") and "where an override pins it" in grant.why


def test_demand_sizes_none_of_them(used: Engine) -> None:
    assert not used.sized_sets() and not used.shrunk()
    assert used.policy.sizes(used.node, used.grants["c1"].container, NO_CONSTRAINT) == ()
    assert used.size("c1", 1000, "by demand", 1.0) is None
    assert not used.relieve(1.0)


def test_released_it_is_let_go_and_managed_again_it_has_them_again(used: Engine) -> None:
    used.release("c1")
    used.release(key_of("a"))
    assert used.grants["c1"].stance is Management.RELEASED
    assert used.grants[key_of("a")].stance is Management.PLACED
    assert not broken_invariants(used)
    used.manage("c1")
    assert used.grants["c1"].cpus == owned(used, "a") and not broken_invariants(used)
    assert not used.manage(key_of("a"))


def test_one_that_was_made_before_it_was_known_what_is_owned_has_them_at_once(engine: Engine) -> None:
    prepare(engine, "a")
    admission = engine.admit(having("app", "a"), NO_CONSTRAINT, 1.0, meanwhile=parse_cpus(NODE_0))
    assert admission.stance is Management.PLACED and admission.placement.cpus == owned(engine, "a")


def test_in_mode_observe_it_is_only_reckoned(used: Engine) -> None:
    admission = used.admit(having("third", "a"), NO_CONSTRAINT, 1.0, enforce=False)
    used.bind(admission.ticket, "c3", 1.0)
    assert not admission.placement.cpus
    assert used.grants["c3"].stance is Management.OBSERVED
    assert used.grants["c3"].placement.claimed == owned(used, "a") and not broken_invariants(used)


@pytest.mark.parametrize("kind", ["cancel", "commit", "doubt"])
def test_a_resize_of_a_container_with_a_claim(used: Engine, kind: str) -> None:
    before = dump(used)
    admission = used.resize("c1", Resources(5000, 5000), NO_CONSTRAINT, 1.0)
    assert admission is not None and owned(used, "a") < admission.placement.cpus
    assert used.tickets[admission.ticket].kind is TicketKind.RESIZE and not broken_invariants(used)
    if kind == "cancel":
        used.cancel(admission.ticket, 1.0)
        assert dump(used) == before
        return
    if kind == "doubt":
        used.doubt(admission.ticket)
        used.unprepare("a", 1.5)
        assert not broken_invariants(used)
    used.commit(admission.ticket, 2.0)
    assert not broken_invariants(used)
    assert bool(used.grants["c1"].placement.claimed) is (kind == "commit")


def test_a_pod_that_ends_leaves_the_claim(used: Engine) -> None:
    used.end_pod(make_pod("pod-of-app").id)
    assert "c1" not in used.grants and used.grants[key_of("a")].life is Life.CLAIM
    used.tick(10_000.0)
    assert key_of("a") in used.grants


# ---------------------------------------------------------------------- reports


def test_a_claim_is_no_container_in_reports(used: Engine) -> None:
    assert [row["id"] for row in placement_rows(used)] == ["c1", "c2"]
    assert [grant.key for grant in running(used)] == ["c1", "c2"]
    assert engine_status(used, "hygon")["containers"] == {"placed": 2}
    assert find(used, "claim/") == [] and find(used, "default/claim-a/cpus") == []
    assert used.container_count == 2


def test_a_container_says_which_claims_it_has(used: Engine) -> None:
    (row, _) = placement_rows(used)
    assert (row["claims"], row["claimed"]) == (["default/claim-a"], format_cpus(owned(used, "a")))
    document = explain(used, "default/pod-of-app/app")
    assert document is not None
    document["containers"][0].update(demand=None, caches=None, would_move=None)
    text = explain_text(document)
    cpus = format_cpus(owned(used, "a"))
    assert f"claim default/claim-a, cpus: CPUs {cpus} of l3-0: " in text
    assert cpus in placements_text(placement_rows(used))
    assert "claims" not in placement_rows(with_plain(used))[-1]


def with_plain(engine: Engine) -> Engine:
    run(engine, make_container("zzz", limit=1), "plain")
    return engine


def test_one_whose_claim_is_not_there_says_so(engine: Engine) -> None:
    run(engine, having("app", "a"), "c1")
    document = explain(engine, "c1")
    assert document is not None
    assert "claim a_cpus: not prepared here" in explain_text(document)
