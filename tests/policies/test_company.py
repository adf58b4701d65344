"""Protected and batch containers are kept out of each other's L3s at a create, where that costs nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cri_proxy.engine.engine import Engine
from policies.machine.cpus import format_cpus
from policies.model import (
    BATCH,
    PROTECTED,
    AffinityTerm,
    MatchExpression,
    PlacementPreferences,
    PlacementRequest,
)
from policies.settings import ClassSelectors, EngineOptions
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S
from tests.scenes import Scene, engine_on, make_container, make_pod, run

SELECTORS = ClassSelectors(protected=("namespace/shop",), batch=("namespace/night",))
APART = EngineOptions(classes=SELECTORS, keeps_apart=True)
#: Classes without the subjects that meetings matter to.
WATCHED = EngineOptions(classes=SELECTORS)
NAMESPACES = {PROTECTED: "shop", BATCH: "night", "standard": "default"}


def of(kind: str, name: str, limit: float = 2, request: float = 0) -> Any:
    return make_container(name, limit, request, pod=make_pod(name, NAMESPACES[kind]))


def l3_of(engine: Engine, key: str) -> str:
    [found] = [d.name for d in engine.host.topology.caches if engine.grants[key].cpus <= d.cpus]
    return found


def test_a_batch_container_goes_where_batch_is_and_no_protected_one() -> None:
    engine = engine_on(HYGON_7285_2S, options=APART)
    run(engine, of(PROTECTED, "p"), "p")
    for number in range(6):
        run(engine, of(BATCH, f"b{number}"), f"b{number}")
    places = {l3_of(engine, f"b{number}") for number in range(6)}
    assert len(places) == 1 and l3_of(engine, "p") not in places
    assert "where its class meets the fewest" in engine.grants["b1"].why


def test_a_protected_container_goes_where_no_batch_is() -> None:
    engine = engine_on(HYGON_7285_2S, options=APART)
    run(engine, of(BATCH, "b"), "b")
    for number in range(5):
        run(engine, of(PROTECTED, f"p{number}"), f"p{number}")
    assert l3_of(engine, "b") not in {l3_of(engine, f"p{number}") for number in range(5)}


def test_a_more_crowded_place_is_not_taken_for_its_company() -> None:
    engine = engine_on(HYGON_7285_2S, options=APART)
    for number in range(4):
        run(engine, of(BATCH, f"b{number}", request=2), f"b{number}")
    # Two of them request a quarter of a CCX of 16 CPUs: the next one finds an emptier one.
    assert len({l3_of(engine, f"b{number}") for number in range(4)}) > 1


def test_affinity_counts_before_company() -> None:
    engine = engine_on(HYGON_7285_2S, options=APART)
    run(engine, of(BATCH, "b"), "b")
    near = AffinityTerm(
        MatchExpression("pod/namespace", "Matches", ("*",)), MatchExpression("name", "Equals", ("b",)), 1
    )
    drawn = replace(of(PROTECTED, "p"), preferences=PlacementPreferences(affinity=(near,)))
    run(engine, drawn, "p")
    assert l3_of(engine, "p") == l3_of(engine, "b")


def test_a_meeting_is_never_worth_a_larger_domain_or_a_place_without_room() -> None:
    engine = engine_on(HYGON_7285_2S, options=APART)
    for number, domain in enumerate(engine.host.topology.caches):
        run(engine, of(PROTECTED, f"p{number}"), f"p{number}")
        assert engine.grants[f"p{number}"].cpus <= domain.cpus or number
    record = run(engine, of(BATCH, "b"), "b")
    assert record.placement.level == "ccx"


def story(seed: int, options: EngineOptions, where: str = EPYC_NPS1_1S) -> dict[str, tuple[str, str]]:
    random, engine = Random(seed), engine_on(where, options=options)
    for number in range(40):
        kind = random.choice((PROTECTED, BATCH, "standard"))
        limit = random.choice((1, 2, 6, 12, 40))
        request = random.choice((0, 0.5, 1))
        run(engine, of(kind, f"c{number}", limit, request), f"c{number}")
        if random.random() < 0.3:
            engine.remove(random.choice(sorted(engine.grants)))
    return {key: (grant.placement.level, format_cpus(grant.cpus)) for key, grant in engine.grants.items()}


@pytest.mark.parametrize("seed", range(10))
def test_without_caches_and_bandwidth_places_are_as_without_isolation(seed: int) -> None:
    assert story(seed, WATCHED) == story(seed, EngineOptions())


@pytest.mark.parametrize("seed", range(10))
def test_company_changes_no_level(seed: int) -> None:
    apart, plain = story(seed, APART), story(seed, EngineOptions())
    assert {key: level for key, (level, _) in apart.items()} == {k: level for k, (level, _) in plain.items()}
    assert story(seed, APART) == apart


@pytest.mark.parametrize("seed", range(20))
def test_the_books_count_classes_as_if_they_were_counted_anew(seed: int) -> None:
    random, engine = Random(seed), engine_on(HYGON_7285_2S, options=APART)
    for number in range(30):
        kind = random.choice((PROTECTED, BATCH, "standard"))
        run(engine, of(kind, f"c{number}", random.choice((1, 12, 40)), random.choice((0, 1))), f"c{number}")
        if random.random() < 0.3:
            engine.remove(random.choice(sorted(engine.grants)))
        if random.random() < 0.1:
            other = ClassSelectors(protected=SELECTORS.batch, batch=SELECTORS.protected)
            wanted = other if engine.options.classes == SELECTORS else SELECTORS
            engine.rehost(engine.host, options=replace(APART, classes=wanted))
        counted = {
            kind: [
                sum(1 for r in engine.node.residents.values() if r.isolation == kind and r.cpus & cache.cpus)
                for cache in engine.host.topology.caches
            ]
            for kind in (PROTECTED, BATCH)
        }
        assert (engine.node.protected, engine.node.batch) == (counted[PROTECTED], counted[BATCH])


def test_many_that_change_their_set_together_are_counted_where_they_are() -> None:
    scene = Scene(HYGON_7285_2S)
    first, second = (cache.cpus for cache in scene.node.topology.caches[:2])
    for _ in range(3):
        key = scene.occupy(format_cpus(first))
        scene.node.replace(key, replace(scene.node.residents[key], isolation=BATCH))
    keys = dict.fromkeys(scene.node.residents)
    assert scene.node.batch[:2] == [3, 0]
    scene.node.share(keys, second)
    assert scene.node.batch[:2] == [0, 3]


def test_a_request_without_a_class_is_answered_as_ever() -> None:
    scene = Scene(HYGON_7285_2S)
    asked = PlacementRequest(make_container("app", 2))
    assert scene.policy.place(scene.node, asked) == scene.policy.place(
        scene.node, replace(asked, isolation="standard")
    )
