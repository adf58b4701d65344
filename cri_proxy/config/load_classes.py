"""The list of load classes in a configuration, which balloon types name in ``Loads``; nri-plugins' ``loadClasses``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import voluptuous as vol

from cri_proxy.config.checks import Check, flag, list_of, write_list, write_text
from cri_proxy.text.sources import Raw, Remark, SourceEntry, Table, describe, rows, show_key
from policies.balloons.types import LOAD_LEVELS, LoadClass

#: More than there are kinds of loads; a list of aliases to lists could be endless otherwise.
MAX_CLASSES = 64
MAX_CHARACTERS = 63
_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS, "pattern": "^[!-~]+$"}
_WORDS = {"cluster": "l2cache", "socket": "package"}
_FLAG = flag()
_KEYS = {
    "Name": "a name without spaces",
    "Level": f"{', '.join(LOAD_LEVELS[:-1])} or {LOAD_LEVELS[-1]}",
    "OverloadsLevelInBalloon": _FLAG.expected,
}
_SPELLED = {key.lower(): key for key in _KEYS}
_SCHEMA = {
    "type": "object",
    "description": "One load class.",
    "required": ["Name", "Level"],
    "properties": {
        "Name": {**_NAME, "description": "Its name, by which types name it.", "expected": _KEYS["Name"]},
        "Level": {
            "type": "string",
            "enum": list(LOAD_LEVELS),
            "description": "What two balloons of this load are to share none of.",
            "expected": _KEYS["Level"],
        },
        "OverloadsLevelInBalloon": {
            **_FLAG.schema,
            "description": "Whether two CPUs of one balloon are to share none of it either.",
            "expected": _FLAG.expected,
        },
    },
}


def load_classes() -> Check:
    """What the option holds: a tuple of ``LoadClass``. Lists with anything in them go to ``read_load_classes``."""

    def read(raw: Raw) -> tuple[LoadClass, ...]:
        if raw != ():
            raise vol.Invalid("")
        return ()

    def write(classes: tuple[LoadClass, ...]) -> str:
        return f"[{', '.join(map(_write, classes))}]"

    return Check("a list of load classes", read, write, list_of(_SCHEMA, MAX_CLASSES))


def load_names() -> Check:
    """What a balloon type says of its loads: a tuple of names."""

    def read(raw: Raw) -> tuple[str, ...]:
        found = (raw,) if isinstance(raw, str) else raw
        if not isinstance(found, tuple) or not all(map(_is_name, found)):
            raise vol.Invalid("")
        return tuple(dict.fromkeys(found))

    return Check("a list of names of load classes", read, write_list, list_of(_NAME, MAX_CLASSES))


def read_load_classes(
    table: Table, errors: list[str], remark: Callable[[Remark], None]
) -> Optional[tuple[LoadClass, ...]]:
    """The classes of a list; None where there was an error. Every error and remark names file and line."""
    before = len(errors)
    classes: dict[str, LoadClass] = {}
    for place, fields, found in rows(table):
        if fields is None:
            errors.append(f"{place}: a load class is {found}, expected a mapping with Name and Level")
        elif (one := _read(place, fields, errors, remark)) is not None and one.name in classes:
            errors.append(f"{place}: a load class is named {one.name}, expected a name of its own")
        elif one is not None:
            classes[one.name] = one
        if len(classes) > MAX_CLASSES or len(errors) > before + MAX_CLASSES:
            errors.append(f"{place}: expected at most {MAX_CLASSES} load classes")
            break
    return None if len(errors) > before else tuple(classes.values())


def _read(
    place: str, fields: tuple[SourceEntry, ...], errors: list[str], remark: Callable[[Remark], None]
) -> Optional[LoadClass]:
    before = len(errors)
    values: dict[str, Any] = {}
    for entry in fields:
        key = _SPELLED.get(entry.key.lower())
        if key is None:
            remark(Remark(f"{entry.origin}: unknown key {show_key(entry.key)} of a load class"))
        elif entry.raw is None:
            remark(Remark(f"{entry.origin}: {entry.key} has no value; it counts as not given"))
        elif key in values:
            remark(Remark(f"{entry.origin}: {entry.key} is given twice; the earlier value counts"))
        else:
            try:
                values[key] = _value(key, entry.raw)
            except vol.Invalid:
                errors.append(f"{entry.origin}: {entry.key} is {describe(entry.raw)}, expected {_KEYS[key]}")
    missing = [key for key in ("Name", "Level") if key not in values]
    if missing and len(errors) == before:
        errors.append(f"{place}: a load class has no {missing[0]}, expected {_KEYS[missing[0]]}")
    if len(errors) > before:
        return None
    return LoadClass(values["Name"], values["Level"], values.get("OverloadsLevelInBalloon", False))


def _value(key: str, raw: Raw) -> Any:
    if key == "OverloadsLevelInBalloon":
        return _FLAG(raw)
    text = raw.strip() if isinstance(raw, str) else ""
    if key == "Level":
        text = _WORDS.get(text.lower(), text.lower())
    if not _is_name(text) or (key == "Level" and text not in LOAD_LEVELS):
        raise vol.Invalid("")
    return text


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_CHARACTERS and text.isascii() and text.isprintable() and " " not in text


def _write(one: LoadClass) -> str:
    overloads = ", OverloadsLevelInBalloon: true" if one.overloads else ""
    return f"{{Name: {write_text(one.name)}, Level: {one.level}{overloads}}}"
