"""Values inside the files that configure kubelet, by the characters they take: what is replaced, to the byte.

Texts are files as they are: line ends, comments and quotes stay, since an edit replaces a span and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Optional

import yaml

#: The flags of kubelet that matter here; each takes a value.
FLAGS = (
    "container-runtime-endpoint",
    "image-service-endpoint",
    "container-runtime",
    "config-dir",
    "config",
    "cgroup-driver",
    "cpu-manager-policy",
    "topology-manager-policy",
    "memory-manager-policy",
    "reserved-cpus",
)
#: A boolean: its value never is the next word.
SWITCH = "cpu-cfs-quota"
#: After a flag's name: "=" or blanks, which may be a continued line; then perhaps a quote, perhaps escaped.
#: Variables count as words of their own; ${X} inside of a word is none that flags could be put into.
_PIECE = re.compile(
    rf"(?<![\w-])--(?:(?P<flag>{'|'.join(FLAGS)})(?:=|(?:[ \t]|\\\r?\n)+)|(?P<switch>{SWITCH})=)"
    r"(?:\\?[\"'])?(?P<value>[^\s\"'\\]*)"
    r"|(?<![^\s\"'])\$(?:(?P<variable>[A-Za-z_]\w*)|\{(?P<word>[A-Za-z_]\w*)\})(?![^\s\"'\\])"
)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_ASSIGNMENT = re.compile(r"^[ \t]*([A-Za-z_]\w*)=", re.MULTILINE)
_COMMENT = re.compile(r"[ \t]*[#;]")
_SETTING = re.compile(r"^[ \t]*(ExecStart|EnvironmentFile|Environment)[ \t]*=[ \t]*", re.MULTILINE)
_WORD = re.compile(
    r"([\"'])([A-Za-z_]\w*)=((?:\\.|(?!\1).)*)\1|([A-Za-z_]\w*)=(?:([\"'])((?:\\.|(?!\5).)*)\5|(\S*))",
    re.DOTALL,
)


class BadKubeletFile(Exception):
    """A file of kubelet's cannot be understood. The message names it, the line, and what was expected."""


@dataclass(frozen=True)
class Value:
    """A value and where it stands; ``before`` is what has to be written ahead of a new one ("" or a blank)."""

    path: str
    start: int
    end: int
    text: str
    line: int
    before: str = ""
    #: The flag or key in front of it on its line, by which an editor finds it there.
    key: str = ""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Setting:
    """One line of a unit: its key, its value, and the characters the value takes."""

    key: str
    value: str
    start: int
    end: int


def value_at(path: str, text: str, start: int, end: int, before: str = "") -> Value:
    """The value in characters ``start`` to ``end`` of a text."""
    return Value(path, start, end, text[start:end], text.count("\n", 0, start) + 1, before)


def replaced(text: str, value: Value, new: str) -> str:
    """A text with one value replaced."""
    return text[: value.start] + value.before + new + text[value.end :]


def line_end(text: str) -> str:
    """How the lines of a text end."""
    return "\r\n" if "\r\n" in text else "\n"


def find_pieces(text: str, start: int, end: int) -> Iterator[tuple[str, str, int, int]]:
    """Flags and variables of a command line, in their order: (kind, name, start, end).

    Kinds: a "flag", with the span of its value; a "variable" whose value becomes several words ($X), and a "word",
    a variable whose value becomes exactly one (${X}), with the span of the reference (systemd.service(5)).
    """
    for match in _PIECE.finditer(text, start, end):
        name = match["flag"] or match["switch"]
        if name:
            yield "flag", name, match.start("value"), match.end("value")
        else:
            kind = "variable" if match["variable"] else "word"
            yield kind, match[kind], match.start(), match.end()


def flag_value(path: str, text: str, name: str, start: int, end: int) -> Value:
    """The value of a flag that ``find_pieces`` has found."""
    value = value_at(path, text, start, end)
    is_beside = name in text[text.rfind("\n", 0, start) + 1 : start]
    return replace(value, key=name) if is_beside else value


def whole_variable(text: str) -> Optional[str]:
    """The name of the variable that a value consists of, if it does."""
    match = _VARIABLE.fullmatch(text)
    return (match[1] or match[2]) if match else None


def read_environment_file(text: str) -> dict[str, tuple[int, int]]:
    """The assignments of an environment file: where each variable's value stands, inside its quotes."""
    found = {}
    position = 0
    while match := _ASSIGNMENT.search(text, position):
        start, end = match.end(), _logical_end(text, match.end())
        span = (start, start + len(text[start:end].rstrip()))
        quote = text[start : start + 1]
        if quote and quote in "\"'":
            # A quoted value may go on over lines; one whose quote is never closed is taken as it is.
            inside = re.compile(rf"(?:\\.|[^\\{quote}])*", re.DOTALL).match(text, start + 1)
            if inside is not None and inside.end() < len(text):
                span, end = inside.span(), inside.end()
        found[match[1]] = span
        position = max(end, match.end())
    return found


def without_comments(text: str) -> str:
    """A unit as systemd joins its lines: a comment between continued ones is skipped. Every other character stays.

    systemd.syntax(7). The comment's characters become blanks, so that positions are those of the file.
    """
    lines, goes_on = [], False
    for line in text.split("\n"):
        body = line.rstrip("\r")
        if not _COMMENT.match(line):
            goes_on = body.endswith("\\")
        elif goes_on:
            line = " " * (len(body) - 1) + "\\" + line[len(body) :]
        lines.append(line)
    return "\n".join(lines)


def read_unit(text: str) -> list[Setting]:
    """The lines of a unit ``without_comments`` that say how a service is started, in their order."""
    found = []
    position = 0
    while match := _SETTING.search(text, position):
        end = _logical_end(text, match.end())
        value = text[match.end() : end].rstrip()
        found.append(Setting(match[1], value, match.end(), match.end() + len(value)))
        position = end
    return found


def read_environment(text: str, setting: Setting) -> dict[str, tuple[int, int]]:
    """The assignments of one ``Environment=`` line: where each variable's value stands, inside its quotes."""
    found = {}
    for match in _WORD.finditer(text, setting.start, setting.end):
        group = 3 if match[2] else 6 if match[5] else 7
        found[match[2] or match[4]] = match.span(group)
    return found


def _logical_end(text: str, start: int) -> int:
    """Where the line that ``start`` is in ends, and those that continue it."""
    match = re.compile(r"(?:\\\r?\n|[^\n])*").match(text, start)
    assert match is not None
    end = match.end()
    return end - 1 if text[end - 1 : end] == "\r" and end > start else end


@dataclass(frozen=True)
class ConfigFile:
    """A KubeletConfiguration: its plain values at the top, and where another can be put."""

    values: dict[str, Value]
    others: dict[str, yaml.Node]
    insert_at: int
    inline: bool
    empty: bool

    def inserted(self, text: str, key: str, value: str) -> str:
        """The text with one more value, before all others."""
        if self.inline:
            new = f'"{key}": "{value}"' + ("" if self.empty else ", ")
        else:
            column = self.insert_at - (text.rfind("\n", 0, self.insert_at) + 1)
            new = f'{key}: "{value}"{line_end(text)}{" " * column}'
        return text[: self.insert_at] + new + text[self.insert_at :]


def read_config_file(path: str, text: str) -> ConfigFile:
    """:raises BadKubeletFile: it is not one mapping in YAML or JSON."""
    if "\t" in text and _is_json(text):
        text = text.replace("\t", " ")  # JSON has none inside its strings; YAML takes none for an indent
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise BadKubeletFile(
            f"{path}{line}: {getattr(error, 'problem', None) or 'this'} is not YAML"
        ) from None
    except RecursionError:
        raise BadKubeletFile(f"{path}: nested too deeply for a kubelet configuration") from None
    if root is None:
        return ConfigFile({}, {}, 0, inline=False, empty=True)
    if not isinstance(root, yaml.MappingNode):
        raise BadKubeletFile(
            f"{path}:{root.start_mark.line + 1}: expected a mapping, a kubelet configuration"
        )
    values, others = {}, {}
    for key, node in root.value:
        if isinstance(node, yaml.ScalarNode):
            values[str(key.value)] = _scalar(path, text, key, node)
        else:
            others[str(key.value)] = node
    inline = bool(root.flow_style)
    at = root.start_mark.index + 1 if inline else root.value[0][0].start_mark.index
    return ConfigFile(values, others, at, inline, empty=not root.value)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _scalar(path: str, text: str, key: yaml.Node, node: yaml.ScalarNode) -> Value:
    start, end = node.start_mark.index, node.end_mark.index
    line, name = key.start_mark.line + 1, str(key.value)
    if node.style in ("'", '"') and start > key.start_mark.index and text[start] == node.style:
        return Value(path, start + 1, end - 1, str(node.value), line, key=name)
    if node.tag == "tag:yaml.org,2002:null":
        before = " " if start == end and text[start - 1 : start] == ":" else ""
        return Value(path, start, end, "", line, before, name)
    # An alias stands elsewhere, and a block or an anchor is more than its value: read, but never written to.
    plain = node.style is None and start > key.start_mark.index and text[start] not in "&!"
    return Value(path, start if plain else -1, end if plain else -1, str(node.value), line, key=name)
