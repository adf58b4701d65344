"""Values by a CRD's own schema, and values that are nearly that: for tests that feed them to what reads objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from cluster.api.crds import definitions
from cluster.api.schema import KEEPS_UNKNOWN, NO_CONTROL

Schema = Mapping[str, Any]
#: Items of a list, and characters of a text, at the most: bounds are of interest where they are broken.
MOST = 3
_BITS_64 = 1 << 63

SCHEMAS: dict[str, Schema] = {
    each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for each in definitions()
}
#: Names of pods as owners give them, and words that are read: what a schema alone would hardly make.
WORDS = (
    "web-7d4b9c6f5-x2k4q",
    "db-0",
    "Ready",
    "Degraded",
    "Readable",
    "True",
    "False",
    "Applied",
    "TakenBack",
    "0-3",
)
WHEN = st.sampled_from(["2026-11-22T21:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9Z"])


def valid(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that the server takes. Rules in CEL aside."""
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(_numbers(schema, st.integers), _texts(schema))
    kind = schema.get("type")
    if kind == "object":
        return _objects(schema)
    if kind == "array":
        return _lists(schema)
    if kind == "string":
        return WHEN if schema.get("format") == "date-time" else _texts(schema)
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return _numbers(schema, st.integers)
    if kind == "number":
        return _numbers(schema, lambda **bounds: st.floats(allow_nan=False, allow_infinity=False, **bounds))
    return anything()


def anything() -> st.SearchStrategy[Any]:
    """JSON of a few levels."""
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False), st.text(max_size=4)
    )
    more = lambda inside: st.one_of(  # noqa: E731
        st.lists(inside, max_size=2), st.dictionaries(st.text(max_size=3), inside, max_size=2)
    )
    return st.recursive(leaves, more, max_leaves=4)


def _objects(schema: Schema) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        inside = schema.get("additionalProperties")
        keys = st.sampled_from(["a", "b/c", "rack"])
        return st.dictionaries(keys, anything() if inside is None else valid(inside), max_size=2)
    return _records(schema)


@st.composite
def _records(draw: Any, schema: Schema) -> Any:
    """With what is required and some of what is not: few at a time, so that they are deep."""
    properties, required = schema["properties"], schema.get("required", ())
    others = sorted(properties.keys() - set(required) - {"metadata", "apiVersion", "kind"})
    most = 2 * MOST if "conditions" in properties else MOST
    chosen = draw(st.lists(st.sampled_from(others), max_size=most, unique=True)) if others else []
    found = {name: draw(valid(properties[name])) for name in (*required, *chosen)}
    if schema.get(KEEPS_UNKNOWN) and draw(st.sampled_from(_TURNS)) == _TURNS[-1]:
        return {draw(st.text(max_size=3)): draw(anything()), **found}
    return found


def _lists(schema: Schema) -> st.SearchStrategy[Any]:
    keys = schema.get("x-kubernetes-list-map-keys")
    unique = (lambda row: tuple(str(row.get(key)) for key in keys)) if keys else None
    least, most = schema.get("minItems", 0), min(MOST, schema.get("maxItems", MOST))
    return st.lists(valid(schema["items"]), min_size=least, max_size=most, unique_by=unique)


def _texts(schema: Schema) -> st.SearchStrategy[str]:
    most = schema.get("maxLength", MOST)
    if schema.get("pattern") in (None, NO_CONTROL):
        characters = st.characters(exclude_categories=("Cc", "Cs"))
        words = st.sampled_from([word for word in WORDS if len(word) <= most])
        return st.one_of(
            words, st.text(characters, min_size=schema.get("minLength", 0), max_size=min(MOST, most))
        )
    # $ would take a line end more.
    made = st.from_regex(
        schema["pattern"].rstrip("$") + r"\Z" if schema["pattern"].endswith("$") else schema["pattern"]
    )
    return made.filter(lambda text: schema.get("minLength", 0) <= len(text) <= most and "\x00" not in text)


def _numbers(schema: Schema, made: Any) -> st.SearchStrategy[Any]:
    least, most = schema.get("minimum", -_BITS_64), schema.get("maximum", _BITS_64 - 1)
    return made(min_value=least, max_value=most)  # type: ignore[no-any-return]


JUNK: list[Any] = [
    None, True, -1, 0, 1 << 80, 1e300, 0.5, "", "x", "\x1b[2J\n", "\ud800", "A" * 40_000, [], {}, [{}], [None], [[]],
    {"a": {}}, [5], "9" * 5000, "0-999999999",
]  # fmt: skip


def whole(kind: str, made: Any) -> st.SearchStrategy[Any]:
    """An object of a kind with spec and status, each by ``made``: ``valid`` or ``mutated``."""
    properties = SCHEMAS[kind]["properties"]
    return st.fixed_dictionaries(
        {part: made(properties[part]) for part in ("spec", "status") if part in properties}
    )


@st.composite
def mutated(draw: Any, schema: Schema) -> Any:
    """A valid value in which some places have something else, or nothing."""
    found = draw(valid(schema))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        found = _with_junk(draw, found)
    return found


#: Of so many turns on the way into a value one ends it early.
_TURNS = range(12)


def _with_junk(draw: Any, value: Any) -> Any:
    goes_on = draw(st.sampled_from(_TURNS)) != _TURNS[-1]
    if isinstance(value, dict) and value and goes_on:
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.sampled_from(_TURNS)) == _TURNS[-1]:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _with_junk(draw, value[key])}
    if isinstance(value, list) and value and goes_on:
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _with_junk(draw, value[at]), *value[at + 1 :]]
    return draw(st.sampled_from(JUNK))
