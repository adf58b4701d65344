"""What follows a decision: how requests end, and what is to be done besides."""

from __future__ import annotations

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Effects
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


def resized(engine: Engine, *, owes: bool = False, enforce: bool = True) -> Resize:
    placer = Placer(engine, lambda container_id: owes)
    resize = placer.resize("c1", LARGER, NO_CONSTRAINT, 1.0, enforce)
    assert resize is not None
    return resize


def test_a_create_is_bound_to_its_id_once(engine: Engine) -> None:
    creation = created(engine)
    assert creation.outcome == "placed" and creation.describe()["rung"] == "ccx" and not creation.has_ended
    assert creation.created("c1", 1.0) == Effects()
    assert engine.grants["c1"].placement == creation.placement
    assert creation.has_ended and creation.ticket is None
    for end in (lambda: creation.created("c1", 2.0), lambda: creation.failed(2.0), creation.unknown):
        with pytest.raises(RuntimeError, match="has ended before"):
            end()


def test_a_create_that_failed_leaves_nothing(engine: Engine) -> None:
    before = dump(engine)["grants"]
    assert created(engine).failed(1.0, "no image") == Effects()
    assert dump(engine)["grants"] == before and not engine.tickets


def test_a_create_that_is_unknown_keeps_its_place_and_may_still_end(engine: Engine) -> None:
    creation = created(engine)
    assert creation.unknown().look
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
    assert creation.unknown().look


def test_an_update_overtakes_those_on_their_way(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    resize = resized(engine)
    effects = resize.done(2.0)
    assert effects.overtaken is not None
    assert (effects.overtaken.id, effects.overtaken.placement) == ("c1", resize.placement)
    assert engine.grants["c1"].placement == resize.placement


def test_an_update_that_a_later_one_has_superseded_overtakes_nothing(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    first, second = resized(engine), resized(engine)
    assert first.ticket is None
    assert first.done(2.0).overtaken is None
    assert second.done(2.0).overtaken is not None


def test_of_an_update_that_is_unknown_the_container_is_told_nothing(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    effects = resized(engine).unknown()
    assert effects.forget == "c1" and effects.look
    assert all(update.id != "c1" for update in effects.send)


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
    assert resized(engine, owes=True).give_back == Quota(1_200_000, 100_000)
    assert Placer(engine, lambda container_id: True).owed("c1") == Quota(200_000, 100_000)
    assert Placer(engine).owed("c1") is None


def test_an_end_forgets_what_is_on_its_way(engine: Engine) -> None:
    run(engine, make_container("app", 2), "c1")
    placer = Placer(engine)
    assert placer.exited("c1", 0, 1.0).forget == "c1"
    assert placer.removed("c1").forget == "c1"
    assert "c1" not in engine.grants
