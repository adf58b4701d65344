"""JSON of others: what has the wrong type counts as not there."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.nri.spec import (
    UINT32,
    as_number,
    as_numbers,
    as_objects,
    as_text,
    as_text_map,
    as_texts,
    parse_object,
)


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), (-1, None), (1 << 32, None), (True, None), (1.0, None), ("5", None), (None, None)],
)
def test_a_number_is_whole_and_within_its_limits(value: Any, number: Any) -> None:
    assert as_number(value, UINT32) == number
    assert as_numbers([value, 7], UINT32) == ([] if number is None else [number]) + [7]


def test_what_is_no_text_in_utf_8_is_made_one() -> None:
    (text,) = as_texts(parse_object('{"a": ["\\ud800x"]}')["a"])
    assert text == as_text("\ud800x") == "?x"


def test_only_entries_of_the_right_type_are_there() -> None:
    assert as_texts(["a", 1, None, "b"]) == ["a", "b"]
    assert as_objects([{"a": 1}, [], 2]) == [{"a": 1}]
    assert as_text_map({"a": "b", "c": 1}) == {"a": "b"}
    assert (as_texts("ab"), as_objects({}), as_text_map([]), as_text(1)) == ([], [], {}, "")
    assert (parse_object("[]"), parse_object("{")) == ({}, {})
