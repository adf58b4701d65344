"""The values of single annotations, each kind with what it may be. A reader gives the value of a field of
``PlacementPreferences``, or None where the annotation asks nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Callable, Optional

from cri_proxy.text.annotation_value import BadAnnotation, kind_of, read_value
from cri_proxy.text.sources import quote

#: Reads a value; raises BadAnnotation.
Reader = Callable[[str], Any]

# What Go's strconv.ParseBool takes, and with it nri-plugins and cri-resource-manager.
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")

_MEMORY_TYPES = ("dram", "pmem", "hbm")
_HINT_KINDS = {"devices": "devices", "device": "devices", "mounts": "mounts", "mount": "mounts"}
_PATH_MATCHES = ("prefix", "glob")
_MAX_PATHS = 64


def read_bool(text: str) -> bool:
    """True or false, as Go spells them."""
    value = text.strip()
    if value not in _TRUE + _FALSE:
        raise BadAnnotation(f"{quote(text)} is not understood, expected true or false")
    return value in _TRUE


def bool_as(if_true: Any, if_false: Any) -> Reader:
    """Reads true and false as these values."""
    return lambda text: if_true if read_bool(text) else if_false


def one_of(*values: str, nothing: str = "") -> Reader:
    """Reads one of some words; ``nothing`` is one more, which asks for nothing (and overrides what asks for more)."""
    known = {**{value: value for value in values}, **({nothing: ""} if nothing else {})}

    def read(text: str) -> str:
        value = text.strip().lower()
        if value not in known:
            raise BadAnnotation(f"{quote(text)} is not understood, expected {in_words(known)}")
        return known[value]

    return read


def in_words(values: Mapping[str, Any]) -> str:
    """``a, b or c``."""
    *first, last = values
    return f"{', '.join(first)} or {last}" if first else last


def read_name(text: str) -> str:
    """A name that is not empty."""
    if not text.strip():
        raise BadAnnotation("the value is empty, expected a name")
    return text.strip()


def read_memory_types(text: str) -> frozenset[str]:
    """``dram,hbm``; mixed is all of them."""
    found: set[str] = set()
    for word in text.lower().split(","):
        kind = word.strip()
        if kind not in (*_MEMORY_TYPES, "mixed"):
            raise BadAnnotation(
                f"{quote(text)} is not understood, expected a list of dram, pmem, hbm, or mixed"
            )
        found |= set(_MEMORY_TYPES) if kind == "mixed" else {kind}
    return frozenset(found)


def read_hint_kinds(text: str) -> frozenset[str]:
    """Which hints count: true or all, false or none, or a list of devices, mounts and pod-resources.

    pod-resources (what kubelet's socket tells of devices) are devices here.
    """
    value = text.strip()
    if value.lower() in ("all", "none"):
        return frozenset(_HINT_KINDS.values()) if value.lower() == "all" else frozenset()
    if value in _TRUE + _FALSE:
        return frozenset(_HINT_KINDS.values()) if value in _TRUE else frozenset()
    kinds = {**_HINT_KINDS, "pod-resources": "devices"}
    words = [word.strip().lower() for word in value.split(",")]
    if any(word not in kinds for word in words):
        expected = "true, false, all, none, or a list of devices, mounts, pod-resources"
        raise BadAnnotation(f"{quote(text)} is not understood, expected {expected}")
    return frozenset(kinds[word] for word in words)


def read_paths(text: str) -> tuple[str, ...]:
    """``{type: prefix|glob, paths: [...]}`` as globs; a prefix is the default."""
    document = read_value(text)
    expected = "{type: prefix or glob, paths: a list}"
    if not isinstance(document, dict):
        raise BadAnnotation(f"found {kind_of(document)}, expected {expected}")
    kind, paths = document.get("type") or "prefix", document.get("paths") or []
    unknown = [key for key in document if key not in ("type", "paths")]
    if unknown:
        raise BadAnnotation(f"unknown key {quote(unknown[0])}, expected {expected}")
    if kind not in _PATH_MATCHES:
        found = quote(kind) if isinstance(kind, str) else kind_of(kind)
        raise BadAnnotation(f"type is {found}, expected prefix or glob")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise BadAnnotation("paths is not a list of texts")
    if len(paths) > _MAX_PATHS:
        raise BadAnnotation(f"paths has {len(paths)} items, expected at most {_MAX_PATHS}")
    return tuple(path if kind == "glob" else _literal(path) + "*" for path in paths)


def _literal(path: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", path)


def of_container(reader: Reader, container: str) -> Reader:
    """Reads the deprecated forms too: one value for the pod, or a mapping of values by container name."""

    def read(text: str) -> Optional[Any]:
        if ":" not in text:
            return reader(text)
        document = read_value(text)
        if not isinstance(document, dict):
            raise BadAnnotation(f"found {kind_of(document)}, expected a value or values by container name")
        given = document.get(container)
        if given is None:
            return None
        # A list of memory types may be written as one.
        words = given if isinstance(given, list) else [given]
        if not all(isinstance(word, str) for word in words):
            raise BadAnnotation(f"{quote(container)} is {kind_of(given)}, expected a text")
        return reader(",".join(words))

    return read
