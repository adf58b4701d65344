"""Annotation values that are documents: YAML or JSON, from anything that may create a pod.

They are read on the way of a request, so that they are kept small: no more than a few thousand characters, few
levels, and aliases count with all they stand for. Every scalar stays the text that was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Optional, Union

import yaml

#: PyYAML without libyaml reads some 200 kB a second, so this takes 40 ms; an affinity of three terms has 500.
MAX_CHARACTERS = 8 * 1024
#: The deepest that is understood has six levels.
MAX_DEPTH = 20
#: Scalars, lists and mappings, the repetitions by aliases counted in.
MAX_VALUES = 4096

_NULLS = ("", "~", "null", "Null", "NULL")
# libyaml, where PyYAML was built with it, is ten times faster and gives the same events.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Value = Union[str, list[Any], dict[str, Any]]


class BadAnnotation(ValueError):
    """An annotation's value cannot be understood. The message is a phrase: what was found, what was expected."""


def read_value(text: str, loader: Any = LOADER) -> Value:
    """A document as texts, lists and mappings; what is null is the empty text.

    :raises BadAnnotation: neither YAML nor JSON, or larger than an annotation should be.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadAnnotation(f"it has {len(text)} characters, expected at most {MAX_CHARACTERS}")
    # Before anything is parsed: PyYAML's time grows with the square of the brackets that are open.
    if _bracket_depth(text) > MAX_DEPTH:
        raise BadAnnotation(f"it is nested deeper than {MAX_DEPTH} levels")
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _plain(json.loads(text, parse_int=str, parse_float=str, parse_constant=str))
        except ValueError:
            pass  # YAML's own lists and mappings in brackets need no quotes
    try:
        return _Builder(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise BadAnnotation(f"this is neither YAML nor JSON: {error.problem}{line}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        if isinstance(error, BadAnnotation):
            raise
        # PyYAML lets others out for characters it does not take and for escapes such as "\UFFFFFFFF".
        raise BadAnnotation("this is neither YAML nor JSON: a character in it is not allowed") from None


def kind_of(value: Value) -> str:
    """What a value is, for a sentence."""
    if isinstance(value, str):
        return "a text" if value else "nothing"
    return "a list" if isinstance(value, list) else "a mapping"


def _bracket_depth(text: str) -> int:
    depth = deepest = 0
    for sign in text:
        if sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
    return deepest


def _plain(value: Any) -> Value:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Builder:
    """Puts one value together from the parser's events, and counts what it puts in."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._count = 0
        #: Values with a name (``&name``), each with its size; a value is not known inside itself.
        self._anchors: dict[str, tuple[Value, int]] = {}

    def document(self) -> Value:
        event = self._next()
        value: Value = ""
        if isinstance(event, yaml.DocumentStartEvent):
            value = self._value(self._next(), 1)
            self._next()  # the document's end
            event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise BadAnnotation("it holds several documents, expected one")
        return value

    def _next(self) -> Any:
        event = next(self._events)
        return next(self._events) if isinstance(event, yaml.StreamStartEvent) else event

    def _value(self, event: Any, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise BadAnnotation(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor)
        before = self._count
        self._add(1)
        value: Value
        if isinstance(event, yaml.ScalarEvent):
            value = "" if not event.style and event.value in _NULLS else str(event.value)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        else:
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._count - before
        return value

    def _mapping(self, depth: int) -> Value:
        found: dict[str, Any] = {}
        for event in self._until(yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            if not isinstance(key, str):
                raise BadAnnotation(f"a key is {kind_of(key)}, expected a text")
            if key in found:
                raise BadAnnotation(f"the key {key!r:.60} is given twice")
            found[key] = self._value(self._next(), depth + 1)
        return found

    def _until(self, end: Any) -> Iterator[Any]:
        while not isinstance(event := self._next(), end):
            yield event

    def _alias(self, name: Optional[str]) -> Value:
        if name not in self._anchors:
            raise BadAnnotation(f"*{name} is not the name of an earlier value")
        value, size = self._anchors[name]
        self._add(size)
        return value

    def _add(self, size: int) -> None:
        self._count += size
        if self._count > MAX_VALUES:
            raise BadAnnotation(f"it holds more than {MAX_VALUES} values")
