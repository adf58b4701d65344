"""The one way in which operator, agent and kubectl plugin read an object of the API: a value, or one sentence. Pure.

A field that is absent or null has the default that its reader names; without one the object cannot be read. Nothing is
taken on trust, whatever the server's schema says: objects may be older than it. What is bounded here may go into logs,
conditions and Events: texts have no control characters, numbers 64 bits, documents a depth and a size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple, Optional, TypeVar, Union

from cluster.api.schema import plain, shown, shown_key

#: Levels of a document that has no schema here, such as a policy's configuration. The options of today have five.
MOST_DEPTH = 32
#: Bytes of it as compact JSON: every NodePlacement has a copy, beside a status (``cluster.api.fit``).
MOST_DOCUMENT_BYTES = 16 << 10
#: Characters of a text.
MOST_TEXT = 32768
_BITS_64 = 1 << 63

Value = TypeVar("Value")
Object = Mapping[str, Any]


class Unreadable(ValueError):
    """One sentence: the place, the value, and what was expected."""


class Skipped(NamedTuple):
    """An object that cannot be read: which one it is, and why."""

    name: str
    uid: str
    sentence: str


class Fields:
    """The fields of a mapping, which is ``found``; ``place`` is how sentences call it.

    Every method raises ``Unreadable`` where the value is not what it reads.
    """

    __slots__ = ("_place", "found")

    def __init__(self, found: Any, place: Union[str, tuple[str, int]] = "") -> None:
        """``place``: also that of a list and the number of a row, which is mostly never said."""
        self._place = place
        # A class is asked for first: a status has a thousand rows.
        if found.__class__ is not dict and found is not None and not isinstance(found, Mapping):
            raise Unreadable(f"{self.place or 'the object'} is {shown(found)}, expected a mapping")
        self.found: Object = found or {}

    @property
    def place(self) -> str:
        return self._place if isinstance(self._place, str) else f"{self._place[0]}[{self._place[1]}]"

    def __contains__(self, key: str) -> bool:
        return self.found.get(key) is not None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.found)

    def text(self, key: str, default: Optional[str] = None) -> str:
        """A text, in which a space stands for each control character."""
        value = self._value(key, default)
        if value.__class__ is not str:
            raise self.wrong(key, value, "a text")
        if len(value) > MOST_TEXT:
            raise self.wrong(key, value, f"at most {MOST_TEXT} characters")
        return plain(value)

    def number(self, key: str, default: Optional[int] = None, least: int = -_BITS_64) -> int:
        """A whole number of 64 bits."""
        value = self._value(key, default)
        number = int(value) if value.__class__ is float and value.is_integer() else value
        if number.__class__ is not int:
            raise self.wrong(key, value, "a whole number")
        if not least <= number < _BITS_64:
            raise self.wrong(
                key, value, f"a number of at least {least}" if number < least else "a number of 64 bits"
            )
        return int(number)

    def flag(self, key: str, default: Optional[bool] = None) -> bool:
        value = self._value(key, default)
        if value.__class__ is not bool:
            raise self.wrong(key, value, "true or false")
        return bool(value)

    def fields(self, key: str) -> Fields:
        """Of a mapping inside; without any where it is absent."""
        return Fields(self.found.get(key), self._at(key))

    def rows(self, key: str) -> Iterator[Fields]:
        """A list of mappings, none where it is absent."""
        place = self._at(key)
        for index, row in enumerate(self._list(key)):
            if row is None:
                raise Unreadable(f"{place}[{index}] is null, expected a mapping")
            yield Fields(row, (place, index))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, none where it is absent."""
        place, found = self._at(key), self._list(key)
        for index, text in enumerate(found):
            if not isinstance(text, str):
                raise Unreadable(f"{place}[{index}] is {shown(text)}, expected a text")
        return tuple(map(plain, found))

    def labels(self, key: str) -> dict[str, str]:
        """A mapping of texts, none where it is absent."""
        inside = self.fields(key)
        return {name: inside.text(name) for name in inside.found}

    def document(self, key: str) -> dict[str, Any]:
        """A mapping as it is, of any fields, within ``MOST_DEPTH`` and ``MOST_DOCUMENT_BYTES``; {} where it is absent."""
        place, found = self._at(key), self.fields(key).found
        if is_deep(found):
            raise Unreadable(f"{place} is nested deeper than {MOST_DEPTH} levels, expected at most so many")
        size = len(json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))
        if size > MOST_DOCUMENT_BYTES:
            raise Unreadable(f"{place} has {size} bytes as JSON, expected at most {MOST_DOCUMENT_BYTES}")
        return dict(found)

    def wrong(self, key: str, value: Any, expected: str) -> Unreadable:
        """The sentence about a value that is not what was expected, to be raised."""
        return Unreadable(f"{self._at(key)} is {shown(value)}, expected {expected}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.found.get(key)
        if value is not None:
            return value
        if default is None:
            raise Unreadable(f"{self.place or 'the object'} has no {shown_key(key)}, expected one")
        return default

    def _list(self, key: str) -> Any:
        value = self.found.get(key)
        if value is not None and not isinstance(value, (list, tuple)):
            raise self.wrong(key, value, "a list")
        return value or ()

    def _at(self, key: str) -> str:
        return f"{self.place}.{shown_key(key)}" if self.place else shown_key(key)


def read(found: Any, how: Callable[[Object], Value]) -> Union[Value, Skipped]:
    """The value that ``how`` makes of an object, or why there is none."""
    try:
        return how(found)
    except Unreadable as error:
        return skipped(found, str(error))


def skipped(found: Any, sentence: str) -> Skipped:
    """Whatever else is wrong with it, it has a name and a uid, or ""."""
    metadata = found.get("metadata") if isinstance(found, Mapping) else None
    known = metadata if isinstance(metadata, Mapping) else {}
    name, uid = (known.get(key) for key in ("name", "uid"))
    return Skipped(name if isinstance(name, str) else "", uid if isinstance(uid, str) else "", sentence)


def is_deep(found: Any, most: int = MOST_DEPTH) -> bool:
    """Whether a document has more levels than ``most``; however many it has, without recursion."""
    level: list[Any] = [found]
    for _ in range(most):
        inside: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                inside += each.values()
            elif isinstance(each, (list, tuple)):
                inside += each
        level = [each for each in inside if isinstance(each, (Mapping, list, tuple))]
        if not level:
            return False
    return True
