"""Refusals as kube-apiserver 1.20 and 1.36 have worded them, and documents without what they name."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.kube.known import Unknown, unknown_in, without
from cluster.kube.requests import of_status

OLD = "failed to create typed patch object: "
NEW = "failed to create typed patch object (/n; cri-resmgr.io/v1alpha1, Kind=NodePlacement): "
TWO_ROWS = (
    "errors:\n  .status.placements[0].newKey: field not declared in schema"
    "\n  .status.placements[1].other: field not declared in schema"
)


def said(message: str, code: int = 500, *causes: dict[str, str]) -> Any:
    return of_status(
        {"kind": "Status", "message": message, "code": code, "details": {"causes": list(causes)}}
    )


def cause(field: str, word: str) -> dict[str, str]:
    message = f'Unsupported value: "{word}": supported values: "Applied", "Waiting", "Refused"'
    return {"reason": "FieldValueNotSupported", "field": field, "message": message}


@pytest.mark.parametrize("head", [OLD, NEW])
@pytest.mark.parametrize(
    ("tail", "paths"),
    [
        (".status.newTop: field not declared in schema", ["status.newTop"]),
        (".status.doctor.newKey: field not declared in schema", ["status.doctor.newKey"]),
        (
            '.status.conditions[type="Ready"].newKey: field not declared in schema',
            ["status.conditions.newKey"],
        ),
        ('.status.a[k="x.y]",l="\\"z"].newKey: field not declared in schema', ["status.a.newKey"]),
        (TWO_ROWS, ["status.placements.newKey", "status.placements.other"]),
        (".status.version: expected string, got &value.valueUnstructured{Value:5}", []),
    ],
)
def test_fields_are_named_without_their_rows(head: str, tail: str, paths: list[str]) -> None:
    assert sorted(map(str, unknown_in(said(head + tail)))) == paths


@pytest.mark.parametrize("field", ["status.overrides.state", "status.overrides[1].state"])
def test_a_word_is_named_with_its_field(field: str) -> None:
    no_field = {"reason": "FieldValueInvalid", "field": "<nil>", "message": "Invalid value: null: some rules"}
    error = said("is invalid", 422, cause(field, "New"), no_field)
    assert unknown_in(error) == {Unknown(("status", "overrides", "state"), "New")}


@pytest.mark.parametrize("code", [403, 409, 500])
def test_other_refusals_name_nothing(code: int) -> None:
    assert not unknown_in(said("the server is on fire", code))


def test_a_field_goes_from_each_row_and_a_word_only_where_it_is() -> None:
    document = {
        "status": {"new": 1, "rows": [{"state": "New", "x": 1}, {"state": "Old"}], "words": ["a", "b"]}
    }
    unknown = [
        Unknown(("status", "new")),
        Unknown(("status", "rows", "x")),
        Unknown(("status", "rows", "state"), "New"),
        Unknown(("status", "words"), "a"),
        Unknown(("status", "not", "there")),
    ]
    assert without(document, unknown) == {"status": {"rows": [{}, {"state": "Old"}], "words": ["b"]}}
    assert document["status"]["new"] == 1
