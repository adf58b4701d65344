"""From which others a container is kept apart, for ``explain``."""

from __future__ import annotations

from dataclasses import replace

from cri_proxy.affinity.build_problem import AffinitySettings
from cri_proxy.affinity.repelling import apart_row, apart_text
from cri_proxy.engine.engine import Engine
from tests.affinity.test_build_problem import CCX, put
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on

SETTINGS = replace(AffinitySettings(), repel=1.0, l3_saturation=100)
FILLS = {
    "a": 60_000_000,
    "b": 70_000_000,
    "c": 45_000_000,
    "d": 20_000_000,
    "idle": 999_999,
    "gone": 90_000_000,
}


def engine() -> Engine:
    """a and c in one L3, b in another, d in a third."""
    made = engine_on(HYGON_7285_2S)
    for key, leaf in (("a", 0), ("c", 0), ("b", 1), ("d", 2), ("idle", 0)):
        put(made, key, CCX[leaf])
    return made


def text(key: str, settings: AffinitySettings = SETTINGS, why_not: str = "") -> str:
    row = apart_row(engine(), key, FILLS, settings, why_not)
    return "" if row is None else apart_text(row)


def test_a_container_is_kept_apart_from_those_that_would_saturate_an_l3_with_it() -> None:
    assert text("b") == (
        "fetches 70 million lines a second from memory, and 100 million lines a second saturate an L3; "
        "kept apart: from default/pod-of-a/a (60 million), default/pod-of-c/c (45 million)"
    )


def test_where_its_l3_is_saturated_that_is_told() -> None:
    assert text("a").endswith(
        "; kept apart: from default/pod-of-b/b (70 million); its L3 is saturated, "
        "together with default/pod-of-c/c (45 million)"
    )


def test_one_that_saturates_none_with_any_is_kept_apart_from_none() -> None:
    assert "kept apart" not in text("d")


def test_one_that_fetches_next_to_nothing_is_not_told_of() -> None:
    assert text("idle") == ""


def test_where_nothing_counts_that_is_told() -> None:
    assert text("a", why_not="no events") == "not kept apart from others: no events"


def test_where_it_is_off_nothing_is_told() -> None:
    assert text("a", AffinitySettings(), "no events") == ""
