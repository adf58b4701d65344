"""Reasons: a sentence first, figures of the search only where they are asked for; those of older records as well."""

from __future__ import annotations

import pytest

from policies.reasons import figures_of, plain, with_figures


def test_figures_stand_behind_the_sentence_and_are_told_apart() -> None:
    both = f"{with_figures('the emptiest', 'allocated share 0m')}; then {with_figures('the nearest', 'affinity 1')}"
    assert plain(both) == "the emptiest; then the nearest"
    assert figures_of(both) == ("allocated share 0m", "affinity 1")


def test_a_reason_without_figures_is_what_it_is() -> None:
    for reason in ("", "made by hand [note]", "moved by its owner (twice)"):
        assert (plain(reason), figures_of(reason)) == (reason, ())


@pytest.mark.parametrize(
    ("old", "sentence", "figures"),
    [
        (
            "by charged share (281m a CPU, next 312m)",
            "the one with the smallest share requested",
            "281m a CPU, next 312m",
        ),
        (
            "by allocated share (0m a CPU, next 1m)",
            "the one with the smallest share requested",
            "0m a CPU, next 1m",
        ),
        ("by affinity (2,459,311, next 2.5e+06)", "the nearest to its peers", "2,459,311, next 2.5e+06"),
        ("by hints (0, next 1)", "the nearest to the devices and mounts it uses", "0, next 1"),
        ("by distance (22, next 24)", "the one whose NUMA nodes are nearest to each other", "22, next 24"),
        ("by number of containers (1, next 2)", "the one with the fewest containers", "1, next 2"),
        ("by lowest id", "the first of equals", "lowest id"),
    ],
)
def test_records_of_before_are_told_in_sentences(old: str, sentence: str, figures: str) -> None:
    begin = "4 CPUs wanted: one CCX (8 CPUs), L3 5 (of 8 that hold it)"
    assert plain(f"{begin}, {old}") == f"{begin}, {sentence}"
    assert figures_of(f"{begin}, {old}") == (figures,)


def test_where_a_plan_was_found_is_a_figure_too() -> None:
    old = "plan: 6 moves save 2.25 of 2.3 CPUs (98.0%) and cost 0.01 over 300 s"
    for start in ("start 2 of 6, combined with another, shaken", "the present placement"):
        rest = "; 1 CPUs more are out of reach: 1 container waits"
        assert plain(f"{old}; found from {start}{rest}") == f"{old}{rest}"
        assert figures_of(f"{old}; found from {start}{rest}") == (start,)
