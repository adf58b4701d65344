"""What a container is still to be told: the difference of its record from what it was told last."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, CpusetUpdate, Life, Management, Told
from cri_proxy.engine.told import SHARED_CPUS, told_by, update_of
from policies.machine.cpus import NO_CPUS, parse_cpus
from policies.model import NO_CONSTRAINT, UNTOUCHED, Placement, Qos, Quota, Resources
from tests.machines import VM_NO_CACHE_INFO
from tests.scenes import TOPOLOGY_AWARE, constraint, engine_on, make_container, run, told

SET = parse_cpus
PLACE = Placement(cpus=SET("0-3"), mems=SET("0"), level="ccx", home=SET("0-3"))
TOLD = Told(PLACE.cpus, PLACE.mems, why="it fits")
QUOTA = Quota(200_000, 100_000)


def grant(
    stance: Management = Management.PLACED, place: Placement = PLACE, runs_on: str = ""
) -> ContainerRecord:
    container = make_container("app", limit=2)
    resources = replace(container.resources, quota_period_us=100_000)
    container = replace(container, resources=resources)
    return ContainerRecord(
        "app", container, place, stance, life=Life.RUNNING, runs_on=SET(runs_on), why="it fits"
    )


LIFTED = replace(PLACE, lift_quota=True)
#: What a container has and should have: the CPUs and memory nodes that are sent, whether it is told first, the quota that
#: comes back, and why; None = it is told nothing.
CASES: dict[str, tuple[ContainerRecord, Told, Optional[tuple[Placement, bool, Optional[Quota], str]]]] = {
    "as told": (grant(), TOLD, None),
    "it has lost a CPU": (grant(), TOLD._replace(cpus=SET("0-4")), (PLACE, True, None, SHARED_CPUS)),
    "it has gained one": (grant(), TOLD._replace(cpus=SET("0-2")), (PLACE, False, None, SHARED_CPUS)),
    "it goes elsewhere": (grant(), TOLD._replace(cpus=SET("8-11")), (PLACE, True, None, SHARED_CPUS)),
    "where it runs is not known": (grant(), TOLD._replace(cpus=None), (PLACE, True, None, SHARED_CPUS)),
    "only its memory": (grant(), TOLD._replace(mems=SET("1")), (PLACE, False, None, "memory nodes came or went")),
    "no memory nodes are no wish": (grant(place=replace(PLACE, mems=NO_CPUS)), TOLD, None),
    "its record has another reason": (
        grant(), TOLD._replace(cpus=SET("0-4"), why="before"), (PLACE, True, None, "it fits"),
    ),
    "another program has changed it": (
        grant(), TOLD._replace(cpus=SET("7"), cause="changed"), (PLACE, True, None, "changed"),
    ),
    "its quota is lifted": (grant(place=LIFTED), TOLD, (LIFTED, False, None, "its CPU quota is lifted")),
    "its quota comes back": (
        grant(), TOLD._replace(is_lifted=True), (PLACE, False, QUOTA, "its CPU quota is not lifted any more"),
    ),
    "adopted, as it was found": (grant(Management.ADOPTED, runs_on="0-7"), Told(SET("0-7"), SET("1")), None),
    "adopted, and others own a CPU": (
        grant(Management.ADOPTED, runs_on="0-6"), Told(SET("0-7"), why="it fits"),
        (Placement(cpus=SET("0-6")), True, None, SHARED_CPUS),
    ),
    "released": (
        grant(Management.RELEASED, runs_on="0-7"), TOLD._replace(cause="released"),
        (Placement(cpus=SET("0-7")), False, None, "released"),
    ),
    "not ours": (grant(Management.FOREIGN, runs_on="5"), Told(SET("0-3")), None),
    "not ours, and owed its quota": (
        grant(Management.FOREIGN, runs_on="5"), TOLD._replace(is_lifted=True),
        (UNTOUCHED, False, QUOTA, "its CPU quota is not lifted any more"),
    ),
    "observed": (grant(Management.OBSERVED, runs_on="0-7"), Told(SET("5")), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_told_is_what_differs(case: str) -> None:
    record, has, expected = CASES[case]
    update = update_of(record, has)
    if expected is None:
        assert update is None
        return
    assert update is not None
    place, shrink, give_back, why = expected
    place = replace(place, mems=NO_CPUS) if record.stance is Management.RELEASED else place
    assert (update.placement.cpus, update.shrink, update.give_back, update.why) == (
        place.cpus,
        shrink,
        give_back,
        why,
    )
    assert update.placement.lift_quota == place.lift_quota
    # Once it was told so, there is nothing left to tell.
    assert update_of(record, told_by(record, has)) is None


def test_a_container_that_changes_many_times_is_told_the_last_of_it() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, TOPOLOGY_AWARE)
    run(engine, make_container("app", limit=4), "app", within=constraint("0-3"))
    owners = [make_container(f"owner-{n}", limit=1, qos=Qos.GUARANTEED) for n in range(2)]
    state = engine
    before = state.told["app"]
    for owner in owners:
        engine.admit(owner, constraint(str(owners.index(owner))), 1.0)
    assert before.cpus is not None and state.told["app"].cpus == engine.grants["app"].cpus < before.cpus
    assert not state.unsettled or told(engine.tick(2.0)) == {}


def test_what_a_refused_request_had_others_told_is_told_back_and_what_they_were_not_told_is_not() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, TOPOLOGY_AWARE)
    run(engine, make_container("app", limit=4), "app", within=constraint("0-3"))
    whole = engine.grants["app"].cpus
    admission = engine.admit(make_container("owner", limit=1, qos=Qos.GUARANTEED), constraint("0-1"), 1.0)
    assert set(told(admission.before)) == {"app"}
    [back] = engine.cancel(admission.ticket, 2.0)
    assert (back.id, back.placement.cpus, back.shrink) == ("app", whole, False)
    assert engine.tick(3.0) == ()


def test_a_resize_in_doubt_hides_no_loss_of_its_container() -> None:
    """Found by tests.differential: what an owner takes meanwhile it was not told."""
    engine = engine_on(VM_NO_CACHE_INFO, TOPOLOGY_AWARE)
    run(engine, make_container("app", limit=4), "app", within=constraint("0-3"))
    admission = engine.resize("app", Resources(500, 4000), NO_CONSTRAINT, 1.0)
    assert admission is not None
    engine.doubt(admission.ticket)
    taken = engine.admit(make_container("owner", limit=1, qos=Qos.GUARANTEED), constraint("0-1"), 2.0)
    sent: dict[str, CpusetUpdate] = {update.id: update for update in taken.before}
    assert sent["app"].placement.cpus.isdisjoint(taken.placement.exclusive)


# ---------------------------------------------------------------------- how updates end


def two_steps() -> tuple[Engine, ContainerRecord]:
    """``app`` was to leave CPU 7 of 0-7 when it was to leave CPU 6 as well."""
    engine = engine_on(VM_NO_CACHE_INFO, TOPOLOGY_AWARE)
    run(engine, make_container("app", limit=8), "app")
    with engine.quiet():
        for cpus in ("0-6", "0-5"):
            record = engine.grants["app"]
            place = replace(record.placement, cpus=SET(cpus), home=SET(cpus))
            engine.put(replace(record, placement=place))
            assert cpus == "0-5" or engine.begin_update("app") is not None
    return engine, engine.grants["app"]


def test_after_no_answer_it_may_have_either_and_is_told_until_it_is_sure() -> None:
    engine, record = two_steps()
    engine.unanswered("app")
    told_now = engine.told["app"]
    assert (told_now.cpus, told_now.is_sure, told_now.refused) == (SET("0-7"), False, "")
    # Even where it should have what it had before.
    whole = replace(record, placement=replace(record.placement, cpus=SET("0-7"), home=SET("0-7")))
    engine.put(whole)
    [update] = engine.pending()
    assert (update.placement.cpus, update.shrink) == (SET("0-7"), True)
    engine.begin_update("app")
    engine.took("app")
    assert engine.lacking() == [] and engine.told["app"].is_sure


def test_a_refusal_leaves_what_it_had_and_counts_until_the_next_is_taken() -> None:
    engine, _ = two_steps()
    engine.refused("app", "busy")
    assert (engine.told["app"].cpus, engine.told["app"].refused) == (SET("0-7"), "busy")
    [update] = engine.pending()
    assert update.placement.cpus == SET("0-5")
    engine.begin_update("app")
    engine.took("app")
    assert engine.told["app"].refused == ""


def test_one_on_its_way_counts_as_what_is_lacking_and_is_not_sent_twice() -> None:
    engine, _ = two_steps()
    assert [u.placement.cpus for u in engine.lacking()] == [SET("0-5")] and engine.pending() == []
    assert engine.begin_update("app") is None
    engine.took("app")
    assert [u.placement.cpus for u in engine.pending()] == [SET("0-5")]


def test_others_wait_for_one_that_does_not_answer_and_not_for_one_that_never_does() -> None:
    engine, _ = two_steps()
    assert engine.not_alone("app") == () and engine.all_not_alone() == {}
    owner = Placement(SET("6"), level="core", home=SET("6"), exclusive=SET("6"))
    with engine.quiet():
        engine.adopt(replace(grant(Management.PLACED, owner), key="own"))
        engine.saw("own", cpus=SET("2"))
        engine.unanswered("app")
        assert engine.not_alone("own") == ("app",)
        assert engine.all_not_alone() == {"own": ("app",)}
        assert [update.id for update in engine.pending()] == ["app"]
        engine.begin_update("app")
        engine.unanswered("app")  # twice running
        assert {update.id for update in engine.pending()} == {"app", "own"}
        assert engine.not_alone("own") == ("app",)
        assert engine.all_not_alone() == {"own": ("app",)}


def test_owners_that_change_places_do_not_wait_for_each_other_for_ever() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, TOPOLOGY_AWARE)
    places = [Placement(SET(c), level="core", home=SET(c), exclusive=SET(c)) for c in ("2", "3")]
    with engine.quiet():
        for key, place, has in (("a", places[0], "3"), ("b", places[1], "2")):
            engine.adopt(replace(grant(Management.PLACED, place), key=key))
            engine.saw(key, cpus=SET(has), owned=SET(has))
        assert {update.id for update in engine.pending()} == {"a", "b"}
