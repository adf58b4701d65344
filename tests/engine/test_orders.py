"""Orders: which containers an override is about, where they are placed, and what a freeze keeps where it is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import (
    KEPT,
    LARGER_RUNG,
    MESSAGE_CHARS,
    MOST,
    NO_ORDERS,
    BadOrder,
    Life,
    Management,
    Move,
    NotableEvents,
    Orders,
    Override,
    Plan,
    names_text,
    read_orders,
    read_overrides,
    write_orders,
    zone_around,
    zones_of,
)
from cri_proxy.engine.place import override_states
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.domain_names import domain_text
from policies.model import NO_CONSTRAINT, Placement, PlacementRefused, Qos, Resources
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S, MONOLITHIC_2S, ONE_CPU, VM_NO_CACHE_INFO
from tests.scenes import (
    TOPOLOGY_AWARE,
    constraint,
    engine_on,
    host_of,
    make_container,
    make_pod,
    run,
    topology,
)


def pin(pod: str, container: str, zone: str, namespace: str = "default") -> Override:
    return Override(namespace, pod, container, zone)


def pinned(*overrides: Override, freeze: bool = False, engine: Optional[Engine] = None) -> Engine:
    engine = engine or engine_on(HYGON_7285_2S)
    engine.set_orders(Orders(freeze, overrides))
    return engine


def zone_of(engine: Engine, key: str) -> str:
    return zone_around(engine.zones, engine.grants[key].cpus)


def carry_out(engine: Engine) -> list[str]:
    """The containers that are told of other CPUs."""
    return [update.id for update in engine.apply(engine.pinning_plan(engine.pinned_outside(), 10.0))]


def states(engine: Engine, still: str = "") -> list[tuple[str, str]]:
    return [(row["state"], row["sentence"]) for row in override_states(engine, still)]


# ---------------------------------------------------------------------- which containers


@pytest.mark.parametrize(
    ("override", "matches"),
    [
        (pin("web-0", "app", "node-0"), True),
        (pin("web-*", "app", "node-0"), True),
        (pin("*", "app", "node-0"), True),
        (pin("web", "app", "node-0"), False),
        (pin("web-0", "sidecar", "node-0"), False),
        (pin("web-0", "app", "node-0", "prod"), False),
        (pin("web-0*", "app", "node-0"), True),
    ],
    ids=str,
)
def test_an_override_is_about_the_containers_of_its_names(override, matches) -> None:
    assert override.matches(make_container("app", pod=make_pod("web-0"))) is matches


def test_of_several_overrides_about_a_container_the_first_counts() -> None:
    engine = pinned(pin("web-0", "app", "node-1"), pin("web-*", "app", "node-2"))
    run(engine, make_container("app", limit=1, pod=make_pod("web-0")), "a")
    run(engine, make_container("app", limit=1, pod=make_pod("web-1")), "b")
    nodes = [zone_of(engine, key) for key in "ab"]
    assert nodes == ["l3-2", "l3-4"]


def test_the_first_counts_also_where_it_names_the_beginning_only() -> None:
    first, exact, later = (
        pin("web-*", "app", "node-2"),
        pin("web-0", "app", "node-1"),
        pin("*", "app", "node-3"),
    )
    engine = pinned(first, exact, later)
    for pod, override in (("web-0", first), ("web-1", first), ("db-0", later)):
        assert engine.pin_of(make_container("app", pod=make_pod(pod))) == override
    engine = pinned(exact, first)
    assert engine.pin_of(make_container("app", pod=make_pod("web-0"))) == exact
    assert engine.pin_of(make_container("sidecar", pod=make_pod("web-0"))) is None


@pytest.mark.parametrize("orders", [NO_ORDERS, Orders(True, (pin("web-*", "app", "l3-5"),))])
def test_orders_are_read_as_they_were_written(orders) -> None:
    assert read_orders(write_orders(orders)) == (orders, ())


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"overrides": 7}', '{"overrides": [{"later": 1}]}'])
def test_kept_orders_that_make_no_sense_are_none_and_are_told(text) -> None:
    orders, told = read_orders(text)
    assert orders == NO_ORDERS
    assert len(told) == 1


def test_what_a_later_version_has_added_to_kept_orders_costs_no_other_order() -> None:
    web, db = ({"namespace": "a", "pod": pod, "container": "c", "zone": "node-0"} for pod in ("web", "db"))
    later = {"freeze": True, "until": "noon", "overrides": [{**web, "until": 3}, {"label": "x"}, db]}
    orders, told = read_orders(json.dumps(later))
    assert orders == Orders(True, (Override(**web), Override(**db)))
    assert told == ("overrides[1].namespace is null, expected a name of 1 to 253 characters",)


def test_a_numa_node_goes_by_both_of_its_names() -> None:
    item = {"namespace": "a", "pod": "b", "container": "c"}
    [people, programs] = read_overrides([{**item, "zone": "numa-3"}, {**item, "zone": "node-3"}])
    assert people == programs and (people.zone, people.text) == ("node-3", "numa-3")
    assert read_overrides([{**item, "zone": "l3-3"}])[0].text == "l3-3"


def test_there_are_not_more_overrides_than_can_be_looked_through() -> None:
    item = {"namespace": "a", "pod": "b", "container": "c", "zone": "node-0"}
    assert len(read_overrides([item] * MOST)) == MOST
    with pytest.raises(BadOrder, match="expected at most 1000"):
        read_overrides([item] * (MOST + 1))


@pytest.mark.parametrize("value", ["", "x" * 254, "a\nb", 7, None, ["x"]], ids=repr)
def test_a_name_that_is_none_is_named(value) -> None:
    item = {"namespace": value, "pod": "b", "container": "c", "zone": "node-0"}
    with pytest.raises(BadOrder, match=r"overrides\[0\]\.namespace is .*, expected a name of 1 to 253"):
        read_overrides([item])


# ---------------------------------------------------------------------- at a create


@pytest.mark.parametrize("zone", ["l3-5", "node-3", "socket-1"])
def test_a_container_is_created_in_its_zone(zone) -> None:
    engine = pinned(pin("web", "app", zone))
    grant = run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "a")
    assert grant.cpus <= engine.zone_cpus[zone]
    assert grant.why.startswith(f"pinned to {domain_text(zone)} by an override; ")


def test_a_container_with_cpus_of_its_own_has_them_in_its_zone() -> None:
    engine = pinned(pin("web", "app", "node-3"), engine=engine_on(HYGON_7285_2S, settings=TOPOLOGY_AWARE))
    grant = run(engine, make_container("app", limit=4, qos=Qos.GUARANTEED, pod=make_pod("web")), "a")
    assert len(grant.exclusive) == 4
    assert grant.cpus <= engine.zone_cpus["node-3"]


@pytest.mark.parametrize(
    ("zone", "within", "why"),
    [
        ("l3-5", "", "default/web/app asks for 0m and may use 12000m; l3-5 has 8 shared CPUs, 8000m of them free"),
        ("node-99", "", "this machine has no zone numa-99, expected one of socket-0 to socket-1, numa-0 to numa-7"),
        ("node-3", "0-7", "numa-3 has no usable CPU that the caller allows"),
    ],
)  # fmt: skip
def test_a_container_that_does_not_fit_its_zone_is_placed_as_if_it_were_not_pinned(zone, within, why) -> None:
    engine, plain = pinned(pin("web", "app", zone)), engine_on(HYGON_7285_2S)
    container = make_container("app", limit=12, pod=make_pod("web"))
    allowed = constraint(within) if within else NO_CONSTRAINT
    grants = [run(each, container, "a", within=allowed) for each in (engine, plain)]
    assert grants[0].placement == grants[1].placement
    assert f"not in {domain_text(zone)}, where an override pins it: {why}" in grants[0].why


def test_a_create_that_did_not_fit_is_told_without_another_try() -> None:
    engine = pinned(pin("web", "app", "l3-5"))
    run(engine, make_container("app", limit=12, pod=make_pod("web")), "a")
    [(state, sentence)] = states(engine)
    assert (state, sentence.startswith("default/web/app asks for 0m and may use 12000m")) == ("refused", True)


def test_a_zone_that_is_full_does_not_fit() -> None:
    engine = pinned(pin("web-*", "app", "l3-5"))
    for number in range(9):
        run(engine, make_container("app", limit=1, request=1, pod=make_pod(f"web-{number}")), f"a{number}")
    inside = [key for key in engine.grants if zone_of(engine, key) == "l3-5"]
    assert len(inside) == 8
    assert "0m of them free" in engine.grants["a8"].why


def test_a_container_on_the_reserved_cpus_stays_on_them() -> None:
    engine = engine_on(host_of(HYGON_7285_2S, reserved="0-3,64-67"))
    pinned(pin("web", "app", "node-3", "kube-system"), engine=engine)
    grant = run(engine, make_container("app", limit=1, pod=make_pod("web", "kube-system")), "a")
    assert format_cpus(grant.cpus) == "0-3,64-67"
    assert states(engine)[0][0] != "applied"


def test_the_next_attempt_comes_into_the_zone_that_was_ordered_meanwhile(engine) -> None:
    container = make_container("app", limit=2, request=1, pod=make_pod("web"))
    first = run(engine, container, "a")
    engine.exited("a", 1, 5.0)
    pinned(pin("web", "app", "l3-9"), engine=engine)
    second = run(engine, replace(container, attempt=1), "b")
    assert zone_of(engine, "b") == "l3-9" and second.cpus != first.cpus
    # And the one after it stays there.
    engine.exited("b", 1, 6.0)
    third = run(engine, replace(container, attempt=2), "c")
    assert third.placement == second.placement


def test_a_resize_to_another_rung_stays_in_the_zone() -> None:
    engine = pinned(pin("web", "app", "node-5"))
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "a")
    asked = Resources(milli_request=1000, milli_limit=12_000)
    admission = engine.resize("a", asked, NO_CONSTRAINT, 5.0)
    assert admission is not None
    engine.commit(admission.ticket, 6.0)
    assert zone_of(engine, "a") == "node-5"


# ---------------------------------------------------------------------- containers that run


def test_a_container_that_runs_is_moved_into_its_zone_and_says_so(engine) -> None:
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "a")
    pinned(pin("web", "app", "node-3"), engine=engine)
    assert states(engine) == [("waiting", "default/web/app is to be moved")]
    assert carry_out(engine) == ["a"]
    assert states(engine) == [("applied", "")]
    assert engine.grants["a"].why.startswith("pinned to numa-3 by an override")
    assert carry_out(engine) == []


@pytest.mark.parametrize("stance", [Management.FOREIGN, Management.OPTED_OUT, Management.RELEASED])
def test_a_container_that_is_not_placed_here_is_not_moved(engine, stance) -> None:
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "a")
    there = parse_cpus("0-3")
    engine.amend(replace(engine.grants["a"], stance=stance, runs_on=there, why="a reason"))
    pinned(pin("web", "app", "node-3"), engine=engine)
    assert carry_out(engine) == []
    assert states(engine) == [("refused", "default/web/app is not placed here: a reason")]


def test_a_policy_that_moves_no_container_moves_none_for_an_override(engine) -> None:
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "a")
    engine.policy.moves_others = False  # type: ignore[misc]
    pinned(pin("web", "app", "node-3"), engine=engine)
    assert carry_out(engine) == []
    assert states(engine) == [("refused", "the active policy moves no container")]


def test_no_plan_takes_a_container_out_of_the_zone_it_is_pinned_to() -> None:
    engine = pinned(pin("web", "app", "node-3"))
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "a")
    away = Move("a", engine.zone_cpus["l3-0"], "ccx")
    assert engine.apply(Plan(engine.version, (away,))) == ()
    assert zone_of(engine, "a") == "l3-6"


def test_a_pinned_container_makes_no_room_for_another() -> None:
    def scattered(*overrides: Override) -> Engine:
        engine = pinned(*overrides, engine=engine_on(VM_NO_CACHE_INFO))
        size = len(engine.host.topology.at("numa")[0].cpus)
        for number in range(len(engine.host.topology.at("numa"))):
            pod = make_pod(f"small-{number}")
            run(engine, make_container("app", limit=1, request=1, pod=pod), f"a{number}")
        run(engine, make_container("big", limit=size, request=size), "big")
        return engine

    free = scattered()
    assert free.grants["big"].placement.level == "numa"
    names = [zone.name for zone in free.zones if zone.level == "numa"]
    kept = scattered(*(pin(f"small-{number}", "app", name) for number, name in enumerate(names)))
    assert [zone_of(kept, f"a{number}") for number in range(len(names))] == names
    assert "moved to make room" not in kept.grants["big"].why


# ---------------------------------------------------------------------- frozen


def test_what_is_frozen_is_moved_neither_by_a_plan_nor_by_an_override(engine) -> None:
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "a")
    pinned(pin("web", "app", "node-3"), freeze=True, engine=engine)
    before = engine.grants["a"].placement
    assert carry_out(engine) == []
    away = Move("a", engine.zone_cpus["l3-9"], "ccx")
    pinned(freeze=True, engine=engine)
    assert engine.apply(Plan(engine.version, (away,))) == ()
    assert engine.grants["a"].placement == before


def test_what_is_frozen_makes_no_room_and_the_newcomer_is_placed_all_the_same() -> None:
    def with_big(freeze: bool) -> Engine:
        engine = engine_on(VM_NO_CACHE_INFO, options=EngineOptions(max_moves=4))
        nodes = engine.host.topology.at("numa")
        for number in range(len(nodes)):
            run(engine, make_container("small", limit=1, request=1, pod=make_pod(f"p{number}")), f"a{number}")
        engine.set_orders(Orders(freeze))
        size = len(nodes[0].cpus)
        run(engine, make_container("big", limit=size, request=size), "big")
        return engine

    moved, frozen = with_big(False), with_big(True)
    assert "moved to make room" in moved.grants["big"].why
    assert "moved to make room" not in frozen.grants["big"].why
    assert frozen.grants["big"].stance is Management.PLACED
    assert frozen.grants["big"].life is Life.RUNNING


# ---------------------------------------------------------------------- zones and events


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (HYGON_7285_2S, "socket-0 to socket-1, numa-0 to numa-7, l3-0 to l3-15"),
        (MONOLITHIC_2S, "socket-0 to socket-1, numa-0 to numa-1, l3-0 to l3-1"),
        (ONE_CPU, "socket-0, numa-0"),
    ],
)
def test_the_zones_of_a_machine_are_told_in_short(name, text) -> None:
    assert names_text(zones_of(topology(name))).startswith(text)


def test_a_ring_keeps_the_last_events_and_says_how_many_are_lost() -> None:
    ring, container = NotableEvents(), make_container("app", pod=make_pod("web"))
    for number in range(KEPT + 10):
        ring.add(LARGER_RUNG, container, f"event\n{number}")
    told = ring.since(5)
    assert [told["events_next"], told["events_lost"], len(told["events"])] == [KEPT + 11, 6, KEPT]
    assert told["events"][0]["message"] == "event 10"
    later = ring.since(told["events_next"])
    assert later == {"events": [], "events_next": KEPT + 11, "events_lost": 0}
    assert len(ring.since(None)["events"]) == KEPT


def test_a_message_is_no_longer_than_an_events_note_may_be() -> None:
    ring = NotableEvents()
    ring.add(LARGER_RUNG, make_container("app"), "x" * 5000)
    [event] = ring.since(None)["events"]
    assert len(event["message"]) == MESSAGE_CHARS


def test_a_refused_create_is_an_event_and_leaves_no_other_trace(engine) -> None:
    container = make_container("app", limit=1)
    preferences = replace(container.preferences, refusal="it asks for what no node has")
    with pytest.raises(PlacementRefused):
        engine.admit(replace(container, preferences=preferences), NO_CONSTRAINT, 1.0)
    [event] = engine.notable.since(None)["events"]
    assert (event["reason"], event["message"]) == ("Refused", "it asks for what no node has")
    assert not engine.grants and not engine.history


def test_a_container_that_loses_its_last_cpu_is_an_event_once(engine) -> None:
    run(engine, make_container("app", limit=1), "a", within=constraint("0-3"))
    gone = host_of(HYGON_7285_2S, usable="4-127")
    engine.rehost(gone)
    engine.rehost(gone)
    [event] = engine.notable.since(None)["events"]
    assert (event["reason"], event["container"]) == ("Unplaced", "app")
    assert engine.grants["a"].stance is Management.UNTOUCHED


def test_a_container_that_cannot_be_placed_is_an_event(engine) -> None:
    run(engine, make_container("app", limit=1), "a", within=constraint("500"))
    [event] = engine.notable.since(None)["events"]
    assert event["reason"] == "Unplaced"
    assert engine.grants["a"].placement == Placement()


@pytest.mark.parametrize(
    ("namespace", "pod", "container", "is_about"),
    [
        ("default", "web-1", "app", True),
        ("default", "web-2", "app", False),
        ("default", "web-*", "app", True),
        ("default", "web-1*", "app", True),
        ("default", "web-10*", "app", False),
        ("default", "wet*", "app", False),
        ("default", "*", "app", True),
        ("default", "web", "app", False),
        ("other", "web-1", "app", False),
        ("default", "web-1", "db", False),
    ],
)
def test_which_containers_an_override_is_about(namespace, pod, container, is_about) -> None:
    override = Override(namespace, pod, container, "node-0")
    assert override.matches(make_container("app", pod=make_pod("web-1"))) is is_about
