"""Configuration sources as flat lists of entries: what a YAML text or the command line says, and where.

Every value stays the text that was written. YAML's own types would read ``mode: off`` as false and ``1:30``
as ninety; what a value means, only its option knows. Nothing here expands aliases, so that a few lines
cannot become gigabytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

import yaml
from yaml.composer import ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from policies.frozen import frozen

#: PyYAML reads some 65 kB a second; a configuration has a few.
MAX_CHARACTERS = 256 * 1024
#: The composer calls itself: far from Python's limit, and deeper than any configuration.
MAX_DEPTH = 50

_USUAL_KEY = re.compile(r"[A-Za-z0-9_<(][A-Za-z0-9_.<(/*: )-]{0,59}")
_NULLS = ("", "~", "null", "Null", "NULL")


@frozen
class Odd:
    """A value that no option takes, in words for the error: "a mapping"."""

    what: str


@frozen
class Table(Odd):
    """A list with mappings in it, of which ``rows`` makes entries; only options that are such lists take it."""

    node: SequenceNode = field(compare=False)
    place: Callable[[int], str] = field(compare=False)


@frozen
class Tree(Odd):
    """A mapping that is no section, of which ``branches`` makes entries; only options that are such mappings take it."""

    node: MappingNode = field(compare=False)
    place: Callable[[int], str] = field(compare=False)


#: A value as written: a text, a list of texts, nothing at all, or something no option takes.
Raw = Union[str, tuple[str, ...], None, Odd]


@frozen
class SettingsSource:
    """One origin of settings: a YAML ``text``, or ``values`` by dotted key (nested mappings do, too).

    ``name`` is the file's path, or what to call the others ("command line"). An ``origin_kind`` other than
    "file" is shown behind file and line: "config.yaml:3 (last one that loaded)".
    """

    name: str
    text: str = ""
    origin_kind: str = "file"
    values: Optional[Mapping[str, Any]] = None


@frozen
class SourceEntry:
    """One setting. ``via``: the key it was given under, where that is not ``key``."""

    key: str
    raw: Raw
    origin: str
    via: str = ""

    @property
    def written(self) -> str:
        return self.via or self.key


@frozen
class Remark:
    """A sentence for the operator. ``is_doubt``: likely a mistake, and an error where a file is checked; else a note."""

    text: str
    is_doubt: bool = True


class BadText(ValueError):
    """The text cannot be read as settings. The message is a sentence that names file and line."""


def read_entries(source: SettingsSource, sections: Container[str]) -> tuple[list[SourceEntry], list[str]]:
    """The entries of a source in the order they were written, and warnings about keys given twice.

    ``sections``: the dotted keys that hold other keys; every other key is a setting, known or not.

    :raises BadText: not YAML, too large, nested too deeply, or no mapping of keys.
    """
    root = _compose(source) if source.values is None else _node(source.values)
    if root is None or _is_null(root):
        return [], []
    if not isinstance(root, MappingNode):
        found = describe(_raw(root, str))
        raise BadText(f"{source.name}:{_line(root)}: the file holds {found}, expected sections of options")
    walk = _Walk(source, sections)
    walk.mapping(root, "")
    return walk.entries, walk.warnings


def describe(raw: Raw) -> str:
    """A value for a sentence: quoted, cut to a readable length."""
    if isinstance(raw, Odd):
        return raw.what
    if raw is None:
        return "empty"
    if isinstance(raw, str):
        return quote(raw)
    return "[" + ", ".join(quote(item) for item in raw[:4]) + (", ...]" if len(raw) > 4 else "]")


def quote(text: str) -> str:
    """A text in double quotes, control characters escaped, at most 60 characters of it."""
    return json.dumps(text if len(text) <= 60 else text[:57] + "...", ensure_ascii=not text.isprintable())


@dataclass
class _Walk:
    source: SettingsSource
    sections: Container[str]
    entries: list[SourceEntry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def mapping(self, node: MappingNode, prefix: str) -> None:
        for key_node, value in node.value:
            name = key_node.value if isinstance(key_node, ScalarNode) else "(a key that is no text)"
            key, line = prefix + name, _line(key_node)
            origin = self._origin(line)
            if key in self.seen:
                first = f", first in line {self.seen[key]}" if line else ""
                sentence = f"{origin}: {show_key(key)} is given twice{first}"
                self.warnings.append(f"{sentence}; the later value counts")
            self.seen.setdefault(key, line)
            # Keys get longer and sections are few: also an alias to itself comes to an end.
            if key in self.sections and isinstance(value, MappingNode):
                self.mapping(value, f"{key}.")
            elif not (key in self.sections and _is_null(value)):
                self.entries.append(SourceEntry(key, _raw(value, self._origin), origin))

    def _origin(self, line: int) -> str:
        if not line:
            return self.source.name
        kind = "" if self.source.origin_kind == "file" else f" ({self.source.origin_kind})"
        return f"{self.source.name}:{line}{kind}"


def meaningless(origin: str, key: str, why: str) -> Remark:
    """The note on a key of another program that nothing here depends on, and the reason."""
    return Remark(f"{origin}: {key} has no meaning here: {why}", is_doubt=False)


def show_key(key: str) -> str:
    """A key for a sentence: as it is, or quoted where it holds anything unusual."""
    return key if _USUAL_KEY.fullmatch(key) else quote(key)


class _Composer(yaml.SafeLoader):
    """SafeLoader without types (every scalar is text) and with a limit to nesting."""

    yaml_implicit_resolvers: dict[Any, Any] = {}
    depth = 0

    def compose_node(self, parent: Optional[Node], index: int) -> Optional[Node]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, f"values are nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(source: SettingsSource) -> Optional[Node]:
    if len(source.text) > MAX_CHARACTERS:
        size = f"{len(source.text)} characters, expected at most {MAX_CHARACTERS}"
        raise BadText(f"{source.name}: the file is too large for a configuration: {size}")
    try:
        node: Optional[Node] = _Composer(source.text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source.name}:{mark.line + 1}" if mark else source.name
        parts = [part for part in (error.context, error.problem) if part]
        raise BadText(f"{where}: this is not YAML: {', '.join(parts)}{_hint(error)}") from None
    except yaml.reader.ReaderError as error:
        line = source.text.count("\n", 0, error.position) + 1
        what = f"the character U+{int(error.character):04X} is not allowed"
        raise BadText(f"{source.name}:{line}: this is not YAML: {what}") from None
    except (ValueError, OverflowError):
        # PyYAML lets these out for an escape such as "\UFFFFFFFF" and a %YAML line of thousands of digits.
        raise BadText(f"{source.name}: this is not YAML: a number in it is out of range") from None
    return node


def _hint(error: yaml.MarkedYAMLError) -> str:
    if "alias" in f"{error.context} {error.problem}":
        return ' (a name that begins with * must be quoted: "*qemu*")'
    if "'\\t'" in str(error.problem):
        return " (indent with spaces, not tabs)"
    return ""


def rows(table: Table) -> Iterator[tuple[str, Optional[tuple[SourceEntry, ...]], str]]:
    """Each item of a list: its place, its entries (None: it is no mapping), and what it is instead, for a sentence."""
    for item in table.node.value:
        origin = table.place(_line(item))
        if not isinstance(item, MappingNode):
            yield origin, None, describe(_raw(item, table.place))
            continue
        yield origin, _entries(item, table.place), ""


def branches(tree: Tree) -> tuple[SourceEntry, ...]:
    """The entries of a mapping, by their own names, in the order they were written."""
    return _entries(tree.node, tree.place)


def _entries(node: MappingNode, place: Callable[[int], str]) -> tuple[SourceEntry, ...]:
    entries = []
    for key_node, value in node.value:
        name = key_node.value if isinstance(key_node, ScalarNode) else "(a key that is no text)"
        entries.append(SourceEntry(name, _raw(value, place), place(_line(key_node))))
    return tuple(entries)


def _raw(node: Node, place: Callable[[int], str]) -> Raw:
    if isinstance(node, ScalarNode):
        return None if _is_null(node) else str(node.value)
    if isinstance(node, MappingNode):
        return Tree("a mapping", node, place)
    assert isinstance(node, SequenceNode)  # YAML has no others
    if any(_is_null(item) for item in node.value):
        return Odd("a list with an empty item")
    if not all(isinstance(item, ScalarNode) for item in node.value):
        return Table("a list that holds more than texts", node, place)
    return tuple(str(item.value) for item in node.value)


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and node.value in _NULLS


def _line(node: Node) -> int:
    """Counted from 1; 0 = it stands in no file."""
    return node.start_mark.line + 1 if node.start_mark else 0


def _node(value: Any) -> Node:
    """A value of Python as the node that YAML would make of it, without a place."""
    if isinstance(value, Mapping):
        items = [(ScalarNode("", str(key), style='"'), _node(item)) for key, item in value.items()]
        return MappingNode("", items)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return SequenceNode("", [_node(item) for item in value])
    if value is None:
        return ScalarNode("", "")
    return ScalarNode("", str(value).lower() if isinstance(value, bool) else str(value), style='"')
