"""What starts kubelet: a unit with its drop-ins and environment files, read as systemd reads them.

Sources: systemd.unit(5), systemd.service(5) on command lines, systemd.exec(5) on the environment.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Optional

from cri_proxy.kubelet.edits import (
    Setting,
    Value,
    find_pieces,
    flag_value,
    read_environment,
    read_environment_file,
    read_unit,
    value_at,
    whole_variable,
    without_comments,
)

#: What is read: the text of each path, None where there is none. A pattern ("DIR/**/*.conf") is there once read.
Files = Mapping[str, Optional[str]]

#: Where units are looked for; earlier ones win (systemd.unit(5)).
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_INSIDE_A_WORD = re.compile(r"\$\{([A-Za-z_]\w*)\}")


@dataclass
class Service:
    """What a unit and its drop-ins come to."""

    #: The unit files it was read from, without comments.
    texts: dict[str, str] = field(default_factory=dict)
    exec_start: Optional[tuple[str, Setting]] = None
    environment: dict[str, Value] = field(default_factory=dict)
    #: As they are written: patterns among them.
    environment_files: tuple[str, ...] = ()

    def environment_paths(self, files: Files) -> tuple[str, ...]:
        """The environment files, patterns replaced by what matches them."""
        found: list[str] = []
        for path in self.environment_files:
            found += _matching(path, files) if is_pattern(path) else [path]
        return tuple(found)

    def assignments(self, files: Files) -> dict[str, Value]:
        """Every variable with the place that gives it its value: files win over Environment=."""
        found = dict(self.environment)
        for path in self.environment_paths(files):
            text = files.get(path)
            if text is not None:
                spans = read_environment_file(text).items()
                found.update({name: value_at(path, text, start, end) for name, (start, end) in spans})
        return found

    def used(self, files: Files) -> dict[str, Optional[Value]]:
        """The variables on ExecStart's line that flags can be put into, in their order."""
        if self.exec_start is None:
            return {}
        path, line = self.exec_start
        assignments = self.assignments(files)
        found = {}
        for kind, name, _, _ in find_pieces(self.texts[path], line.start, line.end):
            value = assignments.get(name)
            # ${X} is one word, whatever is in it: room for a flag of ours, if nothing else is.
            if kind == "variable" or (kind == "word" and not (value and value.text.strip())):
                found[name] = value
        return found

    def flags(self, files: Files) -> dict[str, Value]:
        """kubelet's flags with the place of each value; the last of several."""
        found: dict[str, Value] = {}
        if self.exec_start is None:
            return found
        assignments = self.assignments(files)

        def collect(path: str, start: int, end: int, depth: int) -> None:
            text = self.texts.get(path) or files[path] or ""
            for kind, name, first, last in find_pieces(text, start, end):
                if kind == "flag":
                    value = flag_value(path, text, name, first, last)
                    variable = whole_variable(value.text) if depth == 0 else None
                    found[name] = assignments.get(variable, value) if variable else value
                    continue
                inner = assignments.get(name)
                # Values of variables are not expanded again; ExecStart's line is the only one that is.
                if inner is not None and depth == 0 and (kind == "variable" or len(inner.text.split()) == 1):
                    collect(inner.path, inner.start, inner.end, depth + 1)

        path, line = self.exec_start
        collect(path, line.start, line.end, 0)
        return found

    def starts_kubelet(self) -> bool:
        """Whether ExecStart runs kubelet itself, so that its flags are those that are written there."""
        words = self.exec_start[1].value.split() if self.exec_start else []
        return any(word.lstrip("-@:+!").strip("\"'").rsplit("/", 1)[-1] == "kubelet" for word in words)


def is_pattern(path: str) -> bool:
    """Whether a path stands for all that match it (glob(7))."""
    return any(character in path for character in "*?[")


def _matching(pattern: str, files: Files) -> list[str]:
    there = (path for path in files if files[path] is not None)
    return sorted(p for p in there if fnmatchcase(p, pattern) and p.count("/") == pattern.count("/"))


def unit_paths(unit: str) -> set[str]:
    """Where a unit and its drop-ins may be."""
    return {f"{folder}/{unit}{end}" for folder in UNIT_FOLDERS for end in ("", ".d/*.conf")}


def read_service(files: Files, unit: str) -> Service:
    """What has been read of a unit so far."""
    service = Service()
    for path, text in _unit_texts(files, unit):
        service.texts[path] = text
        for setting in read_unit(text):
            if setting.key == "ExecStart":
                service.exec_start = (path, setting) if setting.value else None
            elif setting.key == "EnvironmentFile":
                more = (setting.value.strip("\"'").lstrip("-"),) if setting.value else ()
                service.environment_files = (*service.environment_files, *more) if more else ()
            elif not setting.value:
                service.environment.clear()
            else:
                spans = read_environment(text, setting).items()
                places = {name: value_at(path, text, start, end) for name, (start, end) in spans}
                service.environment.update(places)
    return service


def _unit_texts(files: Files, unit: str) -> list[tuple[str, str]]:
    """The unit and its drop-ins, in the order systemd reads them."""
    main = [f"{folder}/{unit}" for folder in UNIT_FOLDERS if files.get(f"{folder}/{unit}") is not None]
    drop_ins: dict[str, str] = {}
    for folder in UNIT_FOLDERS:
        for path in files:
            if path.startswith(f"{folder}/{unit}.d/") and files[path] is not None:
                drop_ins.setdefault(posixpath.basename(path), path)
    paths = [*main[:1], *(drop_ins[name] for name in sorted(drop_ins))]
    return [(path, without_comments(files[path] or "")) for path in paths]


def with_variables(text: str, assignments: Mapping[str, Value]) -> str:
    """A word of a command line as kubelet gets it: each ${X} replaced by its value, nothing where it has none."""

    def value(match: re.Match[str]) -> str:
        found = assignments.get(match[1])
        return found.text if found else ""

    return _INSIDE_A_WORD.sub(value, text)
