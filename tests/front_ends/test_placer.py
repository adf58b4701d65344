"""What follows a decision: how requests end, and what is to be done besides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.engine.engine import Engine
from cri_proxy.front_ends.placer import Creation, Placer, Resize
from policies.model import NO_CONSTRAINT, Quota
from tests.lifting import Lifting
from tests.machines import HYGON_7285_2S
from tests.scenes import dump, engine_on, make_container, run, topology

#: More than the CCX of 8 that a container of limit 2 has.
LARGER = cri.LinuxContainerResources(cpu_quota=1_200_000, cpu_period=100_000)


@pytest.fixture
def engine() -> Engine:
    return engine_on(HYGON_7285_2S)


def created(engine: Engine, name: str = "app", limit: float = 2) -> Creation:
    return Placer(engine).create(make_container(name, limit), NO_CONSTRAINT, 0.0, True)


def resized(engine: Engine, *, enforce: bool = True) -> Resize:
    resize = Placer(engine).resize("c1", LARGER, NO_CONSTRAINT, 1.0, enforce)
    assert resize is not None
    return resize


def test_a_create_is_bound_to_its_id_once(engine: Engine) -> None:
    creation = created(engine)
    assert creation.outcome == "placed" and creation.describe()["rung"] == "ccx" and not creation.has_ended
    creation.created("c1", 1.0)
    assert engine.grants["c1"].placement == creation.placement
    assert creation.has_ended and creation.ticket is None
    for end in (lambda: creation.created("c1", 2.0), lambda: creation.failed(2.0), creation.unknown):
        with pytest.raises(RuntimeError, match="has ended before"):
            end()


def test_a_create_that_failed_leaves_nothing(engine: Engine) -> None:
    before = dump(engine)["grants"]
    created(engine).failed(1.0, "no image")
    assert dump(engine)["grants"] == before and not engine.tickets


def test_a_create_that_is_unknown_keeps_its_place_and_may_still_end(engine: Engine) -> None:
    creation = created(engine)
    creation.unknown()
    assert creation.ticket is not None and creation.ticket.in_doubt
    creation.created("c1", 2.0)
    assert "c1" in engine.grants and not engine.tickets


def test_after_an_error_of_the_engines_a_request_may_end_otherwise(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    creation = created(engine)

    def bind(*_: object) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "bind", bind)
        with pytest.raises(ValueError, match="a bug"):
            creation.created("c1", 1.0)
    creation.unknown()
    assert creation.ticket is not None and creation.ticket.in_doubt


def moved_while_resized(end: str) -> tuple[Engine, Resize]:
    """An update of ours is on its way while a client's update of the same container is."""
    engine: Engine = engine_on(HYGON_7285_2S)
    run(engine, make_container("app", 2), "c1")
    engine.saw("c1", cpus=frozenset({5}), cause="changed")
    if end != "after":
        assert engine.begin_update("c1") is not None
    resize = Placer(engine).resize("c1", LARGER, NO_CONSTRAINT, 1.0, True)
    assert resize is not None
    if end == "within":
        engine.took("c1")
    return engine, resize


@pytest.mark.parametrize("end", ["within", "across"])
def test_which_of_two_updates_that_pass_each_other_was_the_last_is_not_known(end: str) -> None:
    engine, resize = moved_while_resized(end)
    with engine.quiet():  # type: ignore[attr-defined]
        assert not engine.pending()
        resize.done(2.0)
    if end == "across":
        engine.took("c1")
    [update] = engine.pending()
    assert (update.id, update.placement) == ("c1", engine.grants["c1"].placement)
    engine.begin_update("c1")
    engine.took("c1")
    assert engine.lacking() == []


def test_an_update_of_a_client_tells_its_container(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    resize = resized(engine)
    resize.done(2.0)
    assert engine.told["c1"].cpus == resize.placement.cpus == engine.grants["c1"].placement.cpus


def test_an_update_that_a_later_one_has_superseded_tells_nothing(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    first, second = resized(engine), resized(engine)
    before = engine.told["c1"]
    assert first.ticket is None
    first.done(2.0)
    assert engine.told["c1"] == before
    second.done(2.0)
    assert engine.told["c1"].cpus == second.placement.cpus


def test_of_an_update_that_is_unknown_the_container_is_told_nothing(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    engine.saw("c1", cpus=frozenset({5}), cause="changed")
    resized(engine).unknown()
    assert all(update.id != "c1" for update in engine.pending())


def test_what_has_no_record_or_is_not_to_be_changed_passes(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    placer = Placer(engine)
    assert placer.resize("none", LARGER, NO_CONSTRAINT, 1.0, True) is None
    # In mode observe a container that was placed before is left as it is.
    assert placer.resize("c1", LARGER, NO_CONSTRAINT, 1.0, False) is None


def test_the_quota_that_is_owed_is_that_of_the_update() -> None:
    """And not the one of before it, which a plugin's answer would else write over what the client asks for."""
    engine = engine_on(HYGON_7285_2S, policy=Lifting(topology(HYGON_7285_2S)))
    run(engine, make_container("app", 2), "c1")
    assert engine.grants["c1"].quota == Quota(200_000, 100_000)
    grant = engine.grants["c1"]
    engine.adopt(replace(grant, placement=replace(grant.placement, lift_quota=False)))
    engine.saw("c1", is_lifted=True)
    assert resized(engine).give_back == Quota(1_200_000, 100_000)


def test_of_a_container_that_has_ended_nothing_is_on_its_way(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    engine.saw("c1", cpus=frozenset({5}))
    assert engine.begin_update("c1") is not None
    engine.remove("c1")
    engine.took("c1")
    assert "c1" not in engine.told and not engine.under_way and engine.lacking() == []
