"""What other programs say reaches no terminal as a command, nor as a line or a direction of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api.printable import printable, printable_document, printable_lines

#: As a hostile status has them: colours and cursor, the title, a bell, C1, carriage return, bidirectional, half a pair.
HOSTILE = "\x1b[2J\x1b]0;root\x07\x9b31m\r\nwell\u202e\u2028\ud800"


def test_a_text_of_letters_stays() -> None:
    for text in ("web-0", "0-3,8", "", "größer als 4 · 数据", "┌─┐"):
        assert printable(text) == printable_lines(text) == text


def test_what_is_no_letter_is_written_out() -> None:
    said = r"\x1b[2J\x1b]0;root\x07\x9b31m\r\nwell\u202e\u2028\ud800"
    assert printable(HOSTILE) == said
    assert printable_lines(f"one\ttab\n{HOSTILE}") == "one\ttab\n" + said.replace(r"\n", "\n")


@given(st.text())
def test_nothing_else_is_left(text: str) -> None:
    assert printable(text).isprintable()
    assert all(line.isprintable() for line in printable_lines(text).replace("\t", "").split("\n"))
    assert len(printable_lines(text).split("\n")) == text.count("\n") + 1


_VALUES = st.recursive(
    st.text() | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(_VALUES)
def test_a_document_is_the_same_but_for_its_texts(value: Any) -> None:
    def check(found: Any, was: Any) -> None:
        if isinstance(was, str):
            assert found == printable(was)
        elif isinstance(was, list):
            assert len(found) == len(was)
            [check(*pair) for pair in zip(found, was)]
        elif isinstance(was, dict):
            assert set(found) == set(map(printable, was))
        else:
            assert found is was

    check(printable_document(value), value)


def test_a_document_is_not_changed_in_its_place_and_may_be_deep() -> None:
    value: Any = {"a": ["\x1b"]}
    assert printable_document(value) == {"a": ["\\x1b"]}
    assert value == {"a": ["\x1b"]}
    for _ in range(10_000):
        value = [value]
    found = printable_document(value)
    for _ in range(10_000):
        [found] = found
    assert found == {"a": ["\\x1b"]}


@pytest.mark.parametrize("value", [7, 1.5, None, True])
def test_what_is_no_text_is_written_as_one(value: Any) -> None:
    assert printable(value) == str(value)
