"""Structural schemas, as CustomResourceDefinitions have them, and the faults of a value by one. Pure.

Beside Kubernetes' own keys a schema here may have ``expected``: what a value should be, in words for a sentence.
``published`` takes it off for the server, and ends the description with it.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

Schema = Mapping[str, Any]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list, tuple),
    "object": (dict,),
}
#: How much of a value a sentence shows.
MAX_SHOWN = 60
INT_OR_STRING = "x-kubernetes-int-or-string"
RULES = "x-kubernetes-validations"
#: What stands before ``expected`` in a description.
EXPECTED = " Value: "
#: Of a text that says nothing else: sentences, and lists of CPUs of the largest machines.
MAX_TEXT = 8192
NO_CONTROL = r"^[^\x00-\x1f\x7f-\x9f]*$"
#: The same for a text of several lines.
LINES = r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]*$"
KEEPS_UNKNOWN = "x-kubernetes-preserve-unknown-fields"


def text(description: str, **more: Any) -> dict[str, Any]:
    """A text; ``more``: keys of the schema such as ``enum``, ``pattern``, ``maxLength``. It has no control characters."""
    bounds = {} if "enum" in more or "format" in more else {"maxLength": MAX_TEXT, "pattern": NO_CONTROL}
    return {"type": "string", "description": description, **bounds, **more}


def word(description: str, *values: str, **more: Any) -> dict[str, Any]:
    """One word of several."""
    return text(description, enum=list(values), **more)


def number(description: str, **more: Any) -> dict[str, Any]:
    """A whole number of up to 64 bits."""
    return {"type": "integer", "format": "int64", "description": description, **more}


def flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


def record(
    description: str,
    properties: Mapping[str, Any],
    required: Sequence[str] = (),
    *,
    rules: Sequence[Mapping[str, str]] = (),
    is_atomic: bool = False,
) -> dict[str, Any]:
    """An object with these fields, of which some are required. ``is_atomic``: it is written as a whole."""
    return {
        "type": "object",
        "description": description,
        "properties": dict(properties),
        **({"required": list(required)} if required else {}),
        **({RULES: [dict(rule) for rule in rules]} if rules else {}),
        **({"x-kubernetes-map-type": "atomic"} if is_atomic else {}),
    }


def rows(description: str, items: Schema, *, maxItems: int, **more: Any) -> dict[str, Any]:
    """A list that is written as a whole: one entry in managedFields, however long it is."""
    return {
        "type": "array",
        "description": description,
        "x-kubernetes-list-type": "atomic",
        "items": dict(items),
        "maxItems": maxItems,
        **more,
    }


def keyed(description: str, items: Schema, *keys: str, maxItems: int) -> dict[str, Any]:
    """A list in which no two entries have the same keys; writers may own single entries."""
    found = rows(description, items, maxItems=maxItems)
    return {**found, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def rule(expression: str, message: str) -> dict[str, str]:
    """A rule in CEL, which the server checks."""
    return {"rule": expression, "message": message}


def published(schema: Schema) -> dict[str, Any]:
    """A schema as the server takes it."""
    found = {key: value for key, value in schema.items() if key != "expected"}
    if "expected" in schema and EXPECTED not in found["description"]:
        found["description"] = f"{found['description']}{EXPECTED}{schema['expected']}."
    if found.get("type") == "string" and not {"enum", "format", "pattern"} & found.keys():
        found["pattern"] = NO_CONTROL
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), Mapping):
            found[key] = published(found[key])
    if "properties" in found:
        found["properties"] = {name: published(inner) for name, inner in found["properties"].items()}
    return found


def without_rules(schema: Schema) -> dict[str, Any]:
    """A schema as the server has it, with ``expected`` and without rules in CEL: these are added where it is published."""
    found = {key: value for key, value in schema.items() if key != RULES}
    _, value, expected = found.get("description", "").rpartition(EXPECTED)
    if value:
        found["expected"] = expected[:-1]
    if "items" in found:
        found["items"] = without_rules(found["items"])
    if "properties" in found:
        found["properties"] = {name: without_rules(inner) for name, inner in found["properties"].items()}
    return found


def faults(value: Any, schema: Schema, place: str) -> Iterator[str]:
    """A sentence for each thing wrong with a value; each names the place, the value and the expected one.

    Keys that the schema does not have are faults even where the server keeps or drops them.
    """
    wrong = _wrong(value, schema)
    if wrong is not None:
        yield f"{place} is {shown(value)}, expected {schema.get('expected') or wrong}{_hint(value, schema)}"
    elif isinstance(value, dict):
        yield from _faults_of_fields(value, schema, place)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{place}[{index}]")


def _faults_of_fields(value: dict[str, Any], schema: Schema, place: str) -> Iterator[str]:
    properties, inside = schema.get("properties"), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{place} has no {name}, expected one"
    for name, item in value.items():
        if properties is not None and name in properties:
            yield from faults(item, properties[name], f"{place}.{name}")
        elif inside is not None:
            yield from faults(item, inside, f"{place}.{name}")
        elif properties is not None:
            yield f"{place}.{shown_key(name)} is not known{nearest(name, properties)}"


class _LeftOut(Exception):
    """A value that no cut makes fit."""


def within(value: Any, schema: Schema) -> Any:
    """A value to be written, within the bounds of its schema, for one of which a server refuses the whole document.

    Long texts end in three dots, control characters are spaces, lists end early; a value that still is not right is left
    out, and so is what lacks a field that it must have. Fields that the schema does not have stay (``cluster.kube.known``).
    """
    if isinstance(value, str):
        # Most texts are as they should be, and a status has thousands.
        is_usual = schema.get("pattern") == NO_CONTROL and "minLength" not in schema
        if is_usual and value.isprintable() and len(value) <= schema["maxLength"]:
            return value
        text = _SURROGATE.sub("\ufffd", cut(value, schema.get("maxLength", len(value))))
        text = text if _wrong_text(text, schema) is None else plain(text)
        if _wrong_text(text, schema) is not None:
            raise _LeftOut
        return text
    if isinstance(value, (list, tuple)):
        items = _each_within(value, schema.get("items", {}))
        return list(itertools.islice(items, schema.get("maxItems", len(value))))
    if not isinstance(value, Mapping):
        return value
    properties, inside = schema.get("properties", {}), schema.get("additionalProperties", {})
    found = {}
    for name, item in value.items():
        with contextlib.suppress(_LeftOut):
            found[name] = within(item, properties.get(name, inside))
    if any(name not in found for name in schema.get("required", ())):
        raise _LeftOut
    return found


def _each_within(items: Sequence[Any], schema: Schema) -> Iterator[Any]:
    for item in items:
        with contextlib.suppress(_LeftOut):
            yield within(item, schema)


def cut(text: str, most: int) -> str:
    """A text of at most so many characters; three dots where something was left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def plain(text: str) -> str:
    """A text without control characters, and without halves of characters that UTF-8 cannot have."""
    if text.isprintable():
        return text
    return _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def nearest(name: Any, names: Any) -> str:
    """A question with the name that was probably meant; "" where none is near."""
    found = difflib.get_close_matches(str(name)[:MAX_SHOWN].lower(), {n.lower(): n for n in names}, n=1)
    meant = next((n for n in names if found and n.lower() == found[0]), None)
    return "" if meant is None else f"; did you mean {meant}?"


def shown(value: Any) -> str:
    """A value for a sentence, cut where it is long."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    written = json.dumps(value, ensure_ascii=True)
    return written if len(written) <= MAX_SHOWN else f"{written[:MAX_SHOWN]}..."


def shown_key(key: Any) -> str:
    """A key for a sentence."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", str(key)) else shown(str(key))


def _hint(value: Any, schema: Schema) -> str:
    return '; write "off" in quotes' if value is False and "off" in schema.get("enum", ()) else ""


def _wrong(value: Any, schema: Schema) -> Optional[str]:
    """The expectation that this value itself misses, its contents aside; None = it is right."""
    if value is None and schema.get("nullable"):
        return None
    kind = schema.get("type")
    if schema.get(INT_OR_STRING):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            return "a whole number or a text"
    elif kind is None:
        return None
    elif not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return {"array": "a list", "object": "a mapping", "string": "a text"}.get(
            kind, f"a value of type {kind}"
        )
    if "enum" in schema and value not in schema["enum"]:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, str):
        return _wrong_text(value, schema)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        least, most = schema.get("minimum"), schema.get("maximum")
        # Not a number (NaN) is in no range.
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            return f"a number from {least if least is not None else 'any'} to {most if most is not None else 'any'}"
    return _wrong_count(value, schema) if isinstance(value, (list, tuple)) else None


def _wrong_text(value: str, schema: Schema) -> Optional[str]:
    if len(value) > schema.get("maxLength", len(value)):
        return f"at most {schema['maxLength']} characters"
    if len(value) < schema.get("minLength", 0):
        return f"at least {schema['minLength']} characters"
    if "pattern" in schema and not re.search(_in_python(schema["pattern"]), value):
        return f"a text of the form {schema['pattern']}"
    return None


@functools.lru_cache(maxsize=256)
def _in_python(pattern: str) -> str:
    """A $ of Python's would let a line end pass, which Go's does not."""
    return re.sub(r"\$$", r"\\Z", pattern)


def _wrong_count(value: Any, schema: Schema) -> Optional[str]:
    if len(value) > schema.get("maxItems", len(value)):
        return f"at most {schema['maxItems']} items"
    return f"at least {schema['minItems']} items" if len(value) < schema.get("minItems", 0) else None
