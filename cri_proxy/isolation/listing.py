"""Values of files as tables for people: what has the same value for the same reason is one line. Pure.

A row is one of ``Isolation.status()["files"]``: of a container, of a CPU, an interrupt or a device.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cri_proxy.isolation.model import ENFORCE, FILE
from cri_proxy.isolation.places import file_place
from policies.machine.cpus import format_cpus

#: As many containers of a line are named.
_SHOWN = 8
#: What is numbered in the kernel's paths, with the rest of the path: what the value is called.
_NUMBERED = (
    ("CPU", re.compile(r"/cpu/cpu(\d+)/(?:cpufreq/)?(.+)\Z")),
    ("CPU", re.compile(r"/cpufreq/policy(\d+)/(.+)\Z")),
    ("interrupt", re.compile(r"/irq/(\d+)/(.+)\Z")),
)
_OWN = "it"


def place_text(place: str) -> str:
    """A place as people find it; of a file that is its path."""
    return place[len(FILE) :] if place.startswith(FILE) else place


def value_name(place: str) -> str:
    """What kind of value is at a place: "cpu.idle", "io.max 8:16 rbps"; of groups the place itself."""
    if not place.startswith(FILE):
        return place
    parts = file_place(place)
    _, _, rest = _numbered(parts.path)
    return " ".join(filter(None, (rest or parts.path.rpartition("/")[2], parts.line, parts.word)))


def files_text(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A section for each subject, a line for what is alike."""
    of_subject: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of_subject.setdefault(str(row["subject"]), []).append(row)
    lines = []
    for subject, found in of_subject.items():
        would = "" if found[0].get("state", ENFORCE) == ENFORCE else ", only told"
        lines += ["", f"{subject}: {len(found)} value{'' if len(found) == 1 else 's'}{would}"]
        lines += [f"  {line}" for line in _table(found)]
    return lines


def container_lines(rows: Iterable[Mapping[str, Any]], path: str) -> list[str]:
    """What is done about one container: a line a subject and reason."""
    found: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for row in rows:
        if path in row.get("containers", ()):
            would = "" if row.get("state", ENFORCE) == ENFORCE else "would have "
            key = str(row["subject"]), would, str(row.get("why", ""))
            kind, number, _ = _numbered(place_text(str(row["place"])))
            of = found.setdefault(key, {})
            what = f"{value_name(str(row['place']))} {row['value']}" + (f" of {kind}" if kind else "")
            of.setdefault(what, []).extend([number] if kind else [])
    return [
        f"{subject}: {would}{', '.join(what + _numbers(numbers) for what, numbers in of.items())}" + _as(why)
        for (subject, would, why), of in found.items()
    ]


def alike(places: Mapping[str, str]) -> dict[tuple[str, str], list[str]]:
    """Places that were refused, by what kind of value it is and the sentence."""
    found: dict[tuple[str, str], list[str]] = {}
    for place, sentence in places.items():
        found.setdefault((value_name(place), sentence), []).append(place)
    return found


def several(places: Sequence[str]) -> str:
    """Places of one kind in a few words."""
    first = place_text(places[0]) if places[0].startswith(FILE) else places[0]
    return first if len(places) == 1 else f"{value_name(places[0])} at {len(places)} places, such as {first}"


def names_text(paths: Collection[str], shown: int = _SHOWN) -> str:
    """The first names, and how many more there are."""
    found = list(paths)
    more = len(found) - shown
    return ", ".join(found[:shown]) + (f" and {more} more" if more > 0 else "")


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    # 1. All values of one owner for one reason.
    owners: dict[tuple[str, int, tuple[str, ...], str], list[str]] = {}
    for row in rows:
        place, containers = str(row["place"]), tuple(row.get("containers", ()))
        kind, number, _ = _numbered(place_text(place))
        why = str(row.get("why", ""))
        if not kind:
            number = -1
            if len(containers) == 1:
                why = why.replace(containers[0], _OWN)
            elif not containers:
                containers = (file_place(place).path.rpartition("/")[0],) if place.startswith(FILE) else ("",)
        owner = (kind, number, () if kind else containers, why)
        owners.setdefault(owner, []).append(f"{value_name(place)} {row['value']}")
    # 2. Owners that have the same.
    same: dict[tuple[str, str, tuple[str, ...]], tuple[list[int], list[str]]] = {}
    for (kind, number, containers, why), values in owners.items():
        numbers, names = same.setdefault((kind, why, tuple(values)), ([], []))
        numbers += [number] if kind else []
        names += [name for name in containers if name not in names]
    return [
        f"{kind + _numbers(numbers) if kind else names_text(names)}: {', '.join(values)}{_as(why)}"
        for (kind, why, values), (numbers, names) in same.items()
    ]


def _numbered(path: str) -> tuple[str, int, str]:
    """What a path is of, which one, and what the value is called; "" = nothing that has a number."""
    for kind, pattern in _NUMBERED:
        found = pattern.search(path)
        if found is not None:
            return kind, int(found[1]), found[2]
    return "", -1, ""


def _numbers(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"{'s' if len(set(numbers)) > 1 else ''} {format_cpus(frozenset(numbers))}"


def _as(why: str) -> str:
    return f", as {why}" if why else ""
