"""JSON that is nested deeper than Python's parser goes is read without what is that deep."""

from __future__ import annotations

import json

import pytest

from cluster.api.reader import is_deep
from cluster.kube.document import DEEPEST, read_json


def nested(levels: int, opening: str = '{"a": ', closing: str = "}") -> str:
    return opening * levels + '"[{\\"}"' + closing * levels


@pytest.mark.parametrize("levels", [10_000, 200_000])
@pytest.mark.parametrize("brackets", [('{"a": ', "}"), ("[1, ", ", 2]")])
def test_what_stands_beside_a_deep_object_is_whole(levels: int, brackets: tuple[str, str]) -> None:
    beside = {"name": 'a ] } \\" [ {', "list": [1, {"b": [2]}]}
    text = json.dumps(beside)
    found = read_json(f"[{text}, {nested(levels, *brackets)}, {text}]".encode())
    assert (found[0], found[2]) == (beside, beside)
    assert is_deep(found[1], DEEPEST - 2)


def test_what_a_parser_can_read_is_as_it_is() -> None:
    text = f"[{nested(DEEPEST)}]"
    assert read_json(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", '{"a": }'])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)
