"""What other programs and other nodes say, as a terminal may be shown it. Pure.

Names, messages, versions, lists of CPUs: a character of them that is a command to a terminal, ends a line or turns the
direction of writing is written as an escape (``\\x1b``). All that commands print goes through here (``tools/prints``).
"""

from __future__ import annotations

from typing import Any


def printable(text: Any) -> str:
    """On one line."""
    found = str(text)
    return found if found.isprintable() else "".join(map(_shown, found))


def printable_lines(text: Any) -> str:
    """The same of a text that has been laid out: its line ends and tabs stay."""
    found = str(text)
    if found.isprintable():
        return found
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in found.split("\n"))


def printable_document(value: Any) -> Any:
    """The same of every text in a JSON value, however deep, so that a table and a sentence made of it are what they seem."""
    whole = [value]
    waiting: list[Any] = [whole]
    while waiting:
        place = waiting.pop()
        for at, each in enumerate(place) if isinstance(place, list) else place.items():
            if isinstance(each, str):
                place[at] = printable(each)
            elif isinstance(each, dict):
                place[at] = {printable(key): one for key, one in each.items()}
                waiting.append(place[at])
            elif isinstance(each, (list, tuple)):
                place[at] = list(each)
                waiting.append(place[at])
    return whole[0]


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
