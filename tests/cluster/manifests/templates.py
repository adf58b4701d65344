"""Helm's templates, as far as the chart uses them: values, conditions, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ACTION = re.compile(r"(?P<trim>\s*)\{\{(?P<dash>-?)\s*(?P<words>.*?)\s*\}\}", re.DOTALL)
_COMPARED = re.compile(r'(?P<how>eq|ne) (?P<value>\.[\w.]+) "(?P<text>[^"]*)"')


class NotPlain(Exception):
    """The template has what this evaluator does not know: the chart is to stay plain."""


def render(text: str, values: Mapping[str, Any]) -> str:
    """What `helm template` would print for one file.

    :raises NotPlain: see there.
    """
    out, position = [], 0
    #: What each open condition comes to, the innermost one last.
    open_: list[bool] = []
    for match in _ACTION.finditer(text):
        before = text[position : match.start()] + ("" if match["dash"] else match["trim"])
        shown = all(open_)
        out.append(before if shown else "")
        position = match.end()
        words = match["words"]
        if words.startswith("if "):
            open_.append(truth(words[3:], values))
        elif words == "end":
            if not open_:
                raise NotPlain("an end has no condition")
            open_.pop()
        else:
            out.append(str(value(words, values)) if shown else "")
    if open_:
        raise NotPlain("a condition has no end")
    return "".join([*out, text[position:]])


def truth(words: str, values: Mapping[str, Any]) -> bool:
    if match := _COMPARED.fullmatch(words):
        return (str(value(match["value"], values)) == match["text"]) is (match["how"] == "eq")
    return bool(value(words, values))


def value(words: str, values: Mapping[str, Any]) -> Any:
    if not re.fullmatch(r"\.Values(\.\w+)+", words):
        raise NotPlain(words)
    found: Any = values
    for name in words.split(".")[2:]:
        if name not in found:
            raise NotPlain(f"{words} is not in values.yaml")
        found = found[name]
    return found
