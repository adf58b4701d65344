"""Entries of the history as texts, and as the rows that programs and people get. Pure.

An entry is a decision of the engine (``DecisionRecord``) with the names that its containers had: they are gone when it
is read. What names there are is a text of its own, a line a container (``ID /NAMESPACE/POD/CONTAINER/``), in which an
entry is found by a container's id or its beginning, by a pod or a part of a path; the entry's own container is the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from cri_proxy.engine.model import DecisionRecord
from policies.frozen import frozen
from policies.machine.cpus import format_cpus
from policies.reasons import plain

#: As many entries are told at once at most, and unless another number is asked for.
MOST, USUAL = 1000, 100


class EntryKey(NamedTuple):
    """What tells an entry from all others: numbers begin anew with each boot and with records that are set aside."""

    boot: str
    number: int
    at_s: float


class Entry(NamedTuple):
    """An entry as it is kept. ``time_s``: since 1970. ``names``, ``value``: as in the opening of this module."""

    key: EntryKey
    time_s: float
    names: str
    value: str


class BadQuery(ValueError):
    """What is asked for makes no sense. The message names it and what is expected."""


@frozen
class Query:
    """Which entries are wanted.

    ``name``: a container, pod or part of a path, or where no entry has that a workload; "" = all. ``since_s``: since 1970.
    ``after``: those that were entered or amended after this place in the file, in that order; else the last ones, the
    latest first, and ``before`` this place.
    """

    name: str = ""
    since_s: float = 0.0
    before: Optional[int] = None
    after: Optional[int] = None
    most: int = USUAL

    @property
    def patterns(self) -> tuple[str, str]:
        """What the names of an entry hold, one of them, if it is about ``name``."""
        name = self.name.strip("/")
        return f"/{name}/", f"\n{name}"

    @property
    def beginning(self) -> str:
        """What the names of an entry hold if it is about a pod of the workload ``name``."""
        return f"/{self.name.strip('/')}-"


def read_query(arguments: Mapping[str, Any]) -> Query:
    """The query of a command's arguments: ``name``, ``since_s``, ``before``, ``after``, ``most``; null = not given.

    :raises BadQuery: one of them is not what it should be.
    """
    name = arguments.get("name")
    if name is not None and not (isinstance(name, str) and _is_name(name)):
        raise BadQuery(f"name is {name!r:.60}, expected a container, a pod or an id, or null")
    since_s = arguments.get("since_s")
    if since_s is not None and (isinstance(since_s, bool) or not isinstance(since_s, (int, float))):
        raise BadQuery(f"since_s is {since_s!r:.60}, expected seconds since 1970, or null")
    numbers = {key: arguments.get(key) for key in ("before", "after", "most")}
    for key, number in numbers.items():
        least = 1 if key == "most" else 0
        if number is not None and (type(number) is not int or number < least or number >= 1 << 63):
            raise BadQuery(f"{key} is {number!r:.60}, expected a whole number of {least} or more, or null")
    if numbers["before"] is not None and numbers["after"] is not None:
        raise BadQuery("before and after are both given, expected one of them")
    most = min(numbers["most"] or USUAL, MOST)
    return Query(name or "", float(since_s or 0.0), numbers["before"], numbers["after"], most)


def _is_name(name: str) -> bool:
    return bool(name.strip("/")) and not set(name) & {"\n", "\0"}


def write_entry(
    record: DecisionRecord,
    boot: str,
    time_s: float,
    paths: Mapping[str, str],
    known: str = "",
    about: Sequence[str] = (),
) -> Entry:
    """A record as an entry. ``paths``: of containers by id; ``known``: the names of it that were kept before.

    ``about``: ids of others that it is found by.
    """
    before = {
        key: path.strip("/") for key, path in (line.split(" ", 1) for line in known.splitlines() if line)
    }
    found = {**before, record.id: record.path or before.get(record.id, "")}
    found.update({key: path for key, path in paths.items() if path})
    places: dict[str, int] = {record.id: 0}

    def place(key: str) -> int:
        return places.setdefault(key, len(places))

    what = record.placement
    document: dict[str, Any] = {
        "operation": record.operation,
        "pod_uid": record.pod_uid,
        "stance": record.stance,
        "level": what.level,
        "cpus": format_cpus(what.cpus),
        "mems": format_cpus(what.mems),
        "exclusive": format_cpus(what.exclusive),
        "why": record.why,
        "outcome": record.outcome,
    }
    if record.changes:
        document["changes"] = [
            {
                "operation": change.operation,
                "stance": change.stance,
                "level": change.level,
                "cpus": format_cpus(change.cpus),
                "mems": format_cpus(change.mems),
                "why": change.why,
                "containers": [place(key) for key in change.keys],
            }
            for change in record.changes
        ]
    if record.move is not None:
        sides = {
            side: [place(key) for key in getattr(record.move, side)]
            for side in ("nearer", "farther", "exchanged")
        }
        document["move"] = {"gain": record.move.gain, **sides}
    if about:
        document["about"] = [place(key) for key in about]
    names = "\n" + "".join(f"{key} /{found.get(key, '')}/\n" for key in places)
    value = json.dumps(document, separators=(",", ":"))
    return Entry(EntryKey(boot, record.number, record.at_s), time_s, names, value)


def entry_row(place: int, entry: Entry) -> dict[str, Any]:
    """An entry as it is told; ``place``: in the file, which is later for what was entered or amended later.

    ``changes``: what became of the places of containers by it, its own among them where it is not the decision itself.
    ``about``: containers that it is about without a change of their places, as those of an L3 that isolation divides.
    """
    names = [
        {"id": key, "container": path.strip("/")}
        for key, _, path in (line.partition(" ") for line in entry.names.split("\n")[1:-1])
    ]
    document = json.loads(entry.value)
    own = names[0] if names else {"id": "", "container": ""}
    move = document.get("move")
    if move is not None:
        sides = ("nearer", "farther", "exchanged")
        move = {"gain": move["gain"], **{side: [names[at] for at in move[side]] for side in sides}}
    return {
        "place": place,
        "boot": entry.key.boot,
        "number": entry.key.number,
        "at_s": entry.key.at_s,
        "time_s": round(entry.time_s, 3),
        "container": own["container"],
        "id": own["id"],
        **{name: value for name, value in document.items() if name not in ("changes", "move", "about")},
        "why": plain(document["why"]),
        "about": [names[at] for at in document.get("about", ())],
        "changes": [
            {**change, "why": plain(change["why"]), "containers": [names[at] for at in change["containers"]]}
            for change in document.get("changes", ())
        ],
        "move": move,
    }
