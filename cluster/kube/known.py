"""Fields that a server's schema does not know, in a document that a newer program writes. Pure.

Server-side apply refuses a whole document for one field that is not in the schema (500, "field not declared in
schema": kube-apiserver 1.20 to 1.36), or for one word that the schema does not list (422). The answer names the field;
of several in one mapping, one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

from cluster.kube.requests import ApiError

_UNDECLARED = ": field not declared in schema"
#: Which row of a list: its number, or its keys with their values.
_ROW = re.compile(r'\[(?:"(?:[^"\\]|\\.)*"|[^\]"])*\]')
_WORD = re.compile(r'Unsupported value: ("(?:[^"\\]|\\.)*")')


class Unknown(NamedTuple):
    """A field by its path, without the rows of lists: what one row may not have, none may.

    ``word`` None: the field, whatever it says; else only where it says that.
    """

    path: tuple[str, ...]
    word: Optional[str] = None

    def __str__(self) -> str:
        return ".".join(self.path) + ("" if self.word is None else f" {self.word}")


def unknown_in(error: ApiError) -> frozenset[Unknown]:
    """The fields that a refusal names as not known; empty where it is about something else."""
    found = set()
    for line in error.message.splitlines():
        if line.endswith(_UNDECLARED):
            place = _ROW.sub("", line[: -len(_UNDECLARED)]).split()[-1]
            found.add(Unknown(_path(place)))
    for cause in error.causes:
        word = _WORD.match(cause.message)
        if cause.reason == "FieldValueNotSupported" and word:
            found.add(Unknown(_path(_ROW.sub("", cause.field)), json.loads(word[1])))
    return frozenset(found)


def _path(place: str) -> tuple[str, ...]:
    return tuple(place.strip(".").split("."))


def without(document: Mapping[str, Any], unknown: Iterable[Unknown]) -> dict[str, Any]:
    """The document without these fields; it itself stays as it is."""
    found: Any = dict(document)
    for each in unknown:
        found = _without(found, each.path, each.word)
    return dict(found)


def _without(value: Any, path: tuple[str, ...], word: Optional[str]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_without(item, path, word) for item in value]
    if not isinstance(value, Mapping) or path[0] not in value:
        return value
    name, inner = path[0], value[path[0]]
    if len(path) > 1:
        return {**value, name: _without(inner, path[1:], word)}
    if word is not None and isinstance(inner, (list, tuple)):
        return {**value, name: [item for item in inner if item != word]}
    if word is not None and inner != word:
        return value
    return {key: item for key, item in value.items() if key != name}


def not_written(left_out: Iterable[str]) -> str:
    """A sentence about paths that the server's schema does not know."""
    return (
        f"the API server's schema does not know {', '.join(left_out)}: not written until the CRDs of this"
        " version are applied"
    )
