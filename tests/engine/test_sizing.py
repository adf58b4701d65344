"""Sets that are sized by what is used: the place of each size, what grows where, what is pushed, and what outlives what."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Move, Orders, Override, Plan
from cri_proxy.engine.snapshot import read_record, write_record
from policies.model import NO_CONSTRAINT, PlacementPreferences, Resources
from policies.settings import EngineOptions, PlacementSettings
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S
from tests.scenes import Number, again, dump, engine_on, host_of, make_container, run, told, topology

SIZED = PlacementSettings(size="demand")
CCX = [leaf.cpus for leaf in topology(HYGON_7285_2S).leaves]
NODES = [domain.cpus for domain in topology(HYGON_7285_2S).at("numa")]


def engine_with(
    *keys: str, limit: Optional[Number] = 32, request: Number = 1, options: Optional[EngineOptions] = None
) -> Engine:
    engine = engine_on(HYGON_7285_2S, SIZED, options)
    for key in keys:
        run(engine, make_container(key, limit=limit, request=request, memory=1), key)
    return engine


def size(engine: Engine, key: str, cpus: Optional[Number], now_s: float = 1000.0) -> Optional[dict[str, str]]:
    """Whom is told what; None = it stays as it is."""
    updates = engine.size(key, None if cpus is None else round(cpus * 1000), "by demand", now_s)
    assert broken_invariants(engine) == []
    return None if updates is None else told(updates)


def ccxs(engine: Engine, key: str) -> list[int]:
    return [i for i, cpus in enumerate(CCX) if cpus & engine.grants[key].cpus]


def node(engine: Engine, key: str) -> list[int]:
    return [i for i, cpus in enumerate(NODES) if cpus & engine.grants[key].cpus]


@pytest.fixture
def engine() -> Engine:
    return engine_with("app")


# ---------------------------------------------------------------------- the staircase


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (3, (8,)),
        (8, (8,)),
        (9, (8, 16)),
        (17, (8, 16, 24)),
        (32, (8, 16, 24, 32)),
        (40, (8, 16, 24, 32, 64)),
        (None, (8, 16)),
    ],
)
def test_the_sizes_are_those_of_places_up_to_the_limits_rung(limit, expected):
    [sized] = engine_with("app", limit=limit).sized_sets()
    assert sized.steps == tuple(cpus * 1000 for cpus in expected)
    assert sized.milli_set == sized.steps[-1]


def test_on_a_machine_with_many_ccxs_a_node_every_number_of_them_is_a_size_whatever_the_ladder_is():
    engine = engine_on(EPYC_NPS1_1S, SIZED)
    run(engine, make_container("app", limit=60), "app")
    [sized] = engine.sized_sets()
    assert sized.steps == (8000, 16000, 24000, 32000, 40000, 48000, 56000, 64000)
    size(engine, "app", 20)
    assert (engine.grants["app"].placement.level, len(engine.grants["app"].cpus)) == ("nccx", 24)


def test_exclusive_cpus_make_the_places_smaller_and_so_the_sizes(engine):
    before = engine.node.shared
    engine.rehost(host_of(HYGON_7285_2S, usable="1-127"))
    [sized] = engine.sized_sets()
    assert len(engine.node.shared) == len(before) - 1
    assert sized.steps[0] == 8000


@pytest.mark.parametrize(
    ("preferences", "settings", "why"),
    [
        (PlacementPreferences(size="limit"), SIZED, "its cpuset is sized by its limit"),
        (PlacementPreferences(), PlacementSettings(), "its cpuset is sized by its limit"),
        (
            PlacementPreferences(ownership="exclusive"),
            SIZED,
            "it is to have exclusive CPUs, or the reserved ones",
        ),
        (PlacementPreferences(smt="hide"), SIZED, "it gets one thread of each core"),
        (PlacementPreferences(l3="spread"), SIZED, "it is to be spread over many L3s"),
        (PlacementPreferences(size="demand"), PlacementSettings(), ""),
    ],
)
def test_which_containers_are_sized_by_demand(preferences, settings, why):
    engine = engine_on(HYGON_7285_2S, settings)
    container = make_container("app", limit=32, request=1, preferences=preferences)
    run(engine, container, "app")
    assert engine.policy.why_not_sized(engine.node, container) == why
    assert bool(engine.sized_sets()) == (not why)


# ---------------------------------------------------------------------- smaller


def test_a_set_becomes_the_smallest_place_near_its_own_that_holds_the_size(engine):
    first = engine.grants["app"].cpus
    assert len(first) == 32
    assert size(engine, "app", 16.001) is not None
    assert len(engine.grants["app"].cpus) == 24
    assert list(size(engine, "app", 3)) == ["app"]
    assert len(engine.grants["app"].cpus) == 8
    assert engine.grants["app"].cpus < first
    assert "by demand: 3 CPUs wanted: one CCX" in engine.grants["app"].why
    assert [record.operation for record in engine.history][-2:] == ["shrink", "shrink"]


def test_its_memory_nodes_stay_as_they_are(engine):
    mems = engine.grants["app"].placement.mems
    size(engine, "app", 3)
    assert len(mems) == 2
    assert engine.grants["app"].placement.mems == mems


def test_sets_are_disjoint_as_long_as_what_is_used_leaves_room():
    engine = engine_with(*"abcd", limit=32)
    engine = engine_on(HYGON_7285_2S, SIZED)
    for key in "abcd":
        run(engine, make_container(key, limit=64), key)
    for key in "abcd":
        size(engine, key, 5)
    taken = [ccxs(engine, key)[0] for key in "abcd"]
    assert len({*taken}) == 4


def test_small_ones_share_an_l3_only_where_that_holds_what_they_use():
    engine = engine_on(HYGON_7285_2S, SIZED)
    keys = [f"c{n}" for n in range(6)]
    for key in keys:
        run(engine, make_container(key, limit=16, pod=None), key)
        node_of = engine.grants[key]
        engine.amend(replace(node_of, placement=replace(node_of.placement, home=NODES[0], cpus=NODES[0])))
    for key in keys:
        size(engine, key, 2.6)
    load: dict[int, int] = {}
    for key in keys:
        [ccx] = ccxs(engine, key)
        load[ccx] = load.get(ccx, 0) + 1
    assert load == {0: 3, 1: 3}


def test_a_set_is_never_below_the_request():
    engine = engine_with("app", request=10)
    size(engine, "app", 0.1)
    assert len(engine.grants["app"].cpus) == 16


def test_what_is_no_smaller_is_not_made():
    engine = engine_with("app", limit=6)
    assert size(engine, "app", 3) is None
    assert engine.grants["app"].container.milli_size is None


# ---------------------------------------------------------------------- larger


def test_a_set_grows_around_the_one_it_has(engine):
    first = engine.grants["app"].placement
    size(engine, "app", 3)
    small = engine.grants["app"].cpus
    assert list(size(engine, "app", 8.001)) == ["app"]
    assert small < engine.grants["app"].cpus
    assert node(engine, "app") == [i for i, cpus in enumerate(NODES) if small < cpus]
    size(engine, "app", None)
    assert engine.grants["app"].placement == first
    assert engine.grants["app"].container.milli_size is None
    assert "16 CPUs" not in engine.grants["app"].why
    assert engine.history[-1].operation == "grow"


def test_it_grows_there_though_more_is_requested_on_the_node_than_it_has():
    engine = engine_with("app", request=1)
    size(engine, "app", 3)
    here = node(engine, "app")[0]
    for number in range(4):
        key = f"fixed{number}"
        run(engine, make_container(key, limit=16, request=4), key)
        grant = engine.grants[key]
        engine.amend(replace(grant, placement=replace(grant.placement, home=NODES[here], cpus=NODES[here])))
    assert size(engine, "app", 12) is not None
    assert len(engine.grants["app"].cpus) >= 16


def crowded(moved_s: float = 0.0, options: Optional[EngineOptions] = None) -> Engine:
    """A large container on one CCX of a node and a small one on the other, both sized by demand."""
    engine = engine_with("large", "small", limit=32, options=options)
    for key, ccx, cpus in (("large", 0, 6.0), ("small", 1, 5.0)):
        size(engine, key, cpus)
        grant = engine.grants[key]
        place = replace(grant.placement, home=CCX[ccx], cpus=CCX[ccx], level="ccx")
        engine.amend(replace(grant, placement=place, moved_s=moved_s))
    return engine


def test_one_that_grows_pushes_a_smaller_one_out_of_its_way():
    engine = crowded()
    told_to = size(engine, "large", 13, now_s=1000.0)
    assert told_to.keys() == {"large", "small"}
    assert ccxs(engine, "large") == [0, 1]
    [elsewhere] = ccxs(engine, "small")
    assert elsewhere not in (0, 1)
    assert engine.grants["small"].moved_s == 1000.0
    assert "makes room for default/pod-of-large/large, whose cpuset has grown" in engine.grants["small"].why


def test_it_pushes_none_that_was_moved_lately_and_none_where_nothing_may_be_moved():
    assert size(crowded(moved_s=900.0), "large", 13, now_s=1000.0).keys() == {"large"}
    assert size(crowded(moved_s=300.0), "large", 13, now_s=1000.0).keys() == {"large", "small"}
    assert size(crowded(options=EngineOptions(max_moves=0)), "large", 13).keys() == {"large"}


def test_a_set_that_leaves_its_place_has_moved_and_one_that_shrinks_or_grows_there_has_not():
    engine = engine_with("other", "app", limit=16)
    for cpus, now_s in ((3, 1000.0), (16, 1100.0), (3, 1200.0)):
        assert size(engine, "app", cpus, now_s) is not None
        assert engine.grants["app"].moved_s == 0.0
    was = engine.grants["app"].placement.home
    owner = make_container(
        "owner", limit=6, request=6, memory=1, preferences=PlacementPreferences(ownership="exclusive")
    )
    run(engine, owner, "owner")
    assert size(engine, "app", 16, 1300.0) is not None
    assert not engine.grants["app"].placement.home & was
    assert engine.grants["app"].moved_s == 1300.0


def test_what_runs_in_another_cgroup_is_not_sized_and_its_use_counts_nowhere():
    engine = engine_with("app", "small")
    size(engine, "small", 3)
    for key in ("app", "small"):
        engine.amend(replace(engine.grants[key], runs_in="/elsewhere"), engine.told.get(key))
    assert engine.sized_sets() == ()
    assert engine.shrunk() == ()
    engine.note_use({"app": 3000})
    assert engine.grants["app"].container.milli_used == 0


def test_it_pushes_none_where_both_fit():
    engine = crowded()
    assert size(engine, "large", 8.5).keys() == {"large"}


# ---------------------------------------------------------------------- with everything else


def test_while_containers_are_frozen_a_set_grows_where_it_is_and_none_shrinks():
    engine = engine_with("app", "other")
    size(engine, "app", 3)
    engine.set_orders(Orders(freeze=True))
    assert size(engine, "other", 3) is None
    assert size(engine, "app", 8.001) is not None


def test_a_pinned_container_grows_inside_of_its_zone():
    engine = engine_with("app", limit=16)
    name = next(zone.name for zone in engine.zones if zone.domain.cpus == NODES[3])
    engine.set_orders(Orders(overrides=(Override("default", "pod-of-app", "app", name),)))
    engine.apply(engine.pinning_plan(["app"], 0.0))
    assert node(engine, "app") == [3]
    size(engine, "app", 3)
    assert (node(engine, "app"), len(engine.grants["app"].cpus)) == ([3], 8)
    size(engine, "app", 9)
    assert (node(engine, "app"), len(engine.grants["app"].cpus)) == ([3], 16)


def test_a_plan_moves_a_shrunk_set_and_it_stays_as_small(engine):
    size(engine, "app", 3)
    was = engine.grants["app"].placement
    updates = engine.apply(Plan(engine.version, (Move("app", CCX[9], "ccx", "near", was),), "plan", 5.0))
    assert [update.id for update in updates] == ["app"]
    assert engine.grants["app"].cpus == CCX[9]


def test_a_new_attempt_starts_at_the_rung_of_its_limit():
    engine = engine_with("app", limit=None, request=4)
    size(engine, "app", 3)
    assert len(engine.grants["app"].cpus) == 8
    engine.exited("app", 1, 5.0)
    grant = run(engine, again(make_container("app", request=4, memory=1), 1), "again", 6.0)
    assert (len(grant.cpus), grant.container.milli_size) == (16, None)
    assert broken_invariants(engine) == []


def test_a_resize_of_the_request_above_the_set_makes_it_larger_and_one_of_the_limit_leaves_it(engine):
    size(engine, "app", 3)
    small = engine.grants["app"].cpus
    larger_limit = Resources(milli_request=1000, milli_limit=60_000, memory_limit_bytes=2**30)
    admission = engine.resize("app", larger_limit, NO_CONSTRAINT, 2.0)
    engine.commit(admission.ticket, 2.0)
    assert engine.grants["app"].cpus == small
    admission = engine.resize("app", replace(larger_limit, milli_request=12_000), NO_CONSTRAINT, 3.0)
    engine.commit(admission.ticket, 3.0)
    assert len(engine.grants["app"].cpus) == 16
    [sized] = engine.sized_sets()
    assert (sized.milli_set, sized.steps[-1]) == (16_000, 64_000)


def test_while_it_is_being_resized_its_set_is_left_alone(engine):
    engine.resize("app", Resources(milli_request=2000, milli_limit=32_000), NO_CONSTRAINT, 2.0)
    assert engine.sized_sets() == ()
    assert size(engine, "app", 3) is None


def test_the_size_outlives_the_daemon(engine):
    size(engine, "app", 3)
    grants = [read_record("grant", write_record(grant)) for grant in engine.grants.values()]
    restored = engine_on(HYGON_7285_2S, SIZED)
    assert restored.restore(grants, (), (), (), {}) == ()
    assert dump(restored)["grants"] == dump(engine)["grants"]
    assert restored.shrunk() == ("app",)
    assert next(iter(restored.size("app", None, "back", 9.0))).id == "app"


def test_a_record_of_a_version_before_has_no_size(engine):
    text = write_record(engine.grants["app"]).replace(',"milli_size":null', "")
    assert "milli_size" not in text
    assert read_record("grant", text).container.milli_size is None


def test_a_released_container_is_not_sized_and_starts_anew_when_it_is_managed_again(engine):
    size(engine, "app", 3)
    engine.release("app")
    assert engine.sized_sets() == ()
    assert size(engine, "app", 8.001) is None
    engine.manage("app")
    assert (len(engine.grants["app"].cpus), engine.shrunk()) == (32, ())


def test_cpus_that_go_offline_and_come_back_leave_the_size(engine):
    size(engine, "app", 3)
    small = engine.grants["app"].cpus
    engine.rehost(host_of(HYGON_7285_2S, usable=",".join(map(str, topology(HYGON_7285_2S).online - small))))
    assert broken_invariants(engine) == []
    assert len(engine.grants["app"].cpus) == 8
    assert engine.sized_sets() == ()  # it has a place to go back to
    engine.rehost(host_of(HYGON_7285_2S))
    assert engine.grants["app"].cpus == small
    assert len(engine.sized_sets()) == 1


# ---------------------------------------------------------------------- what is used in the sets of limits


def test_what_a_container_in_the_set_of_its_limit_uses_counts_where_others_are_placed():
    chosen = []
    for used in (0, 7000):
        engine = engine_with("large")
        for number in range(len(CCX)):
            run(engine, make_container(f"small-{number}", limit=8, request=1, memory=1), f"small-{number}")
        hot = [f"small-{n}" for n in range(len(CCX)) if chosen and ccxs(engine, f"small-{n}") == chosen[0]]
        engine.note_use(dict.fromkeys(hot, used))
        size(engine, "large", 4)
        chosen.append(ccxs(engine, "large"))
    assert len(hot) == len(chosen[0]) == len(chosen[1]) == 1
    assert chosen[0] != chosen[1]


def test_use_that_is_noted_changes_no_set_and_is_gone_with_a_size():
    engine = engine_with("app", "other")
    before = {key: grant.cpus for key, grant in engine.grants.items()}
    engine.note_use({"app": 3000, "gone": 3000})
    assert {key: grant.cpus for key, grant in engine.grants.items()} == before
    assert broken_invariants(engine) == []
    assert engine.grants["app"].container.milli_used == 3000
    size(engine, "app", 4)
    assert engine.grants["app"].container.milli_used == 0
    engine.note_use({"app": 5000})
    assert engine.grants["app"].container.milli_used == 0


def test_use_that_is_noted_is_not_written_down(engine):
    engine.drain()
    engine.note_use({"app": 3000})
    assert engine.drain() == {}
    found = read_record("grant", write_record(engine.grants["app"]))
    assert found.container.milli_used == 0
