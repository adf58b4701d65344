"""What isolation does, as text for people: groups, the L3s that are shared, protection, threads, refusals. Pure.

The document is ``Isolation.status()``, with what protection and monitoring say of themselves under their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, TypeVar

from cri_proxy.isolation.listing import container_lines, files_text, names_text, place_text, value_name
from cri_proxy.isolation.model import CACHES, ENFORCE, MB, OFF, ROOT
from cri_proxy.isolation.scheduling import THREADS
from cri_proxy.text.terminal import duration_text

#: A domain, as the kernel has it or as JSON does.
Number = TypeVar("Number", int, str)
_STATES = {"enforced": "enforced", "refused": "refused by the kernel", "observed": "would be made"}


def isolation_text(document: Mapping[str, Any]) -> str:
    """All of it; where everything is off, what switches it on."""
    subjects: Mapping[str, Any] = document.get("subjects") or {}
    lines = [_subject_line(name, row) for name, row in subjects.items()]
    if is_off(document):
        return "off: isolation.caches, isolation.cpu and others switch it on (cri-resmgr doctor says what this kernel can)"
    if document.get("missing"):
        lines.append(f"nothing is divided: {document['missing']}")
    lines += _meetings(document)
    for group in document.get("groups", ()):
        lines += ["", *_group_lines(group)]
    lines += _protection_lines(document.get("protection"))
    lines += files_text(row for row in document.get("files", ()) if not is_of_threads(row))
    lines += _section("threads", _thread_lines(document))
    lines += _section("threads scheduled by class", _scheduling_lines(document))
    lines += _section(
        "CPU quotas raised", (f"{row['container']}: {turbo_line(row)}" for row in _turbo_rows(document))
    )
    lines += _section("refused", _refusal_lines(document))
    lines += _section("changed by others, and written again", _drift_lines(document.get("drift") or {}))
    lines += _section("to know", _notes(document))
    return "\n".join(lines)


def isolation_summary(document: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """What reports on this node are told of isolation; None: all of it is off.

    ``l3s``: those that protected and batch containers share, with how many of each, what batch has there, and which step of
    protection that is; "" = none. ``values``: how many of files, by subject.
    ``refused_for_good``: places that the kernel never lets be written.
    """
    subjects: Mapping[str, Any] = document.get("subjects") or {}
    if is_off(document):
        return None
    batch_has: dict[str, str] = {}
    for group in document.get("groups", ()):
        if group["state"] == "enforced":
            batch_has |= {number: ", ".join(parts) for number, parts in _shared_parts(group).items()}
    steps = {
        str(row["domain"]): _step_text(row) for row in (document.get("protection") or {}).get("domains", ())
    }
    return {
        "modes": {name: row["mode"] for name, row in subjects.items()},
        "values": dict(document.get("values") or {}),
        "protection": (document.get("protection") or {}).get("mode", OFF),
        "missing": document.get("missing") or "",
        "groups": sum(1 for group in document.get("groups", ()) if group["state"] == "enforced"),
        "other_groups": len(document.get("other_groups") or ()),
        "refusals": sum(1 for each in document.get("refusals") or () if not each.get("final")),
        "refused_for_good": [each["place"] for each in document.get("refusals") or () if each.get("final")],
        "l3s": [
            {
                "l3": each["l3"],
                "protected": len(each["protected"]),
                "batch": len(each["batch"]),
                "batch_has": batch_has.get(str(each["l3"]), ""),
                "step": steps.get(str(each["l3"]), ""),
            }
            for each in document.get("meetings", ())
        ],
    }


def is_off(document: Mapping[str, Any]) -> bool:
    """Whether no subject is configured, and none is at work."""
    rows = (document.get("subjects") or {}).values()
    is_raising = (document.get("turbo") or {}).get("mode", OFF) != OFF
    return not is_raising and all(row["configured"] == row["mode"] == OFF for row in rows)


def treatment_lines(document: Mapping[str, Any], path: str) -> list[str]:
    """What is done about one container, for ``explain``: the group that it is in, and where others give way to it."""
    lines = []
    for group in document.get("groups", ()):
        if path in group["members"]:
            would = "" if group["state"] == "enforced" else "would be "
            shared = [f"L3 {number}: {', '.join(parts)}" for number, parts in _shared_parts(group).items()]
            lines.append(
                f"{would}in {group['name'] or 'the root group'}"
                + (f": {'; '.join(shared)}" if shared else "")
            )
    lines += [
        scheduling_text(row)
        for row in (document.get("scheduling") or {}).values()
        if row.get("container") == path
    ]
    gives_way = [str(each["l3"]) for each in document.get("meetings", ()) if path in each["protected"]]
    if (
        gives_way
        and not any(path in group["members"] for group in document.get("groups", ()))
        and document.get("groups")
    ):
        is_done = any(group["state"] == "enforced" for group in document["groups"])
        lines.append(f"batch {'gives' if is_done else 'would give'} way in L3 {', '.join(gives_way)}")
    lines += [turbo_line(row) for row in _turbo_rows(document) if row["container"] == path]
    here = {
        str(each["l3"])
        for each in document.get("meetings", ())
        if path in (*each["protected"], *each["batch"])
    }
    for domain in (document.get("protection") or {}).get("domains", ()):
        if str(domain["domain"]) in here and domain["level"]:
            lines.append(_domain_lines(domain)[0])
            if domain.get("helped") is not None:
                lines.append(_help_text(domain["helped"]))
    # Threads that are set have their line above.
    files = (
        row for row in document.get("files", ()) if not (is_of_threads(row) and row.get("state") == ENFORCE)
    )
    return lines + container_lines(files, path)


def turbo_line(row: Mapping[str, Any]) -> str:
    """The quota that a container has for a while, or would have, and its own."""
    own, now, period = row["own_us"], row["quota_us"], row["period_us"]
    why = f": {row['why']}" if row["why"] else ""
    return f"its CPU quota is {now / period:g} CPUs for a while, its own {own / period:g}{why}"


def _turbo_rows(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [row for row in (document.get("turbo") or {}).get("containers", ()) if row["period_us"]]


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"  {line}" for line in lines]
    return ["", title, *found] if found else []


def _subject_line(name: str, row: Mapping[str, Any]) -> str:
    configured, mode = str(row["configured"]), str(row["mode"])
    held = "" if configured == mode else f" (configured: {configured})"
    return f"{name:<12} {mode}{held}"


def _meetings(document: Mapping[str, Any]) -> list[str]:
    met, subjects = document.get("meetings", ()), document.get("subjects") or {}
    if all(subjects.get(name, {}).get("mode", OFF) == OFF for name in ("caches", "bandwidth")):
        return []
    if met or document.get("missing"):
        return _section(
            "protected beside batch",
            (
                f"L3 {each['l3']}: {names_text(each['protected'])} beside {names_text(each['batch'])}"
                for each in met
            ),
        )
    return ["no L3 is shared by protected and batch containers: batch has all of each cache"]


def _group_lines(group: Mapping[str, Any]) -> list[str]:
    name = group["name"] or "the root group"
    state = _STATES.get(group["state"], group["state"])
    lines = [
        f"{name}: {state} for {duration_text(group['age_s'])}; {names_text(group['members']) or 'no container'}"
    ]
    why: Mapping[str, str] = group["why"]
    shared: dict[str, list[str]] = {number: [] for number in why}
    for resource, values in group["schemata"].items():
        if why:
            for number in why:
                if number in values:
                    shared[number].append(value_text(resource, values[number]))
        else:
            lines.append(
                f"  {resource}: {'; '.join(f'{number}={value}' for number, value in values.items())}"
            )
    for number, parts in shared.items():
        lines.append(f"  L3 {number}: {', '.join(parts)}, as {why[number]}")
    if why and any(values.keys() - why.keys() for values in group["schemata"].values()):
        lines.append("  every other L3: all of it")
    return lines


def _shared_parts(group: Mapping[str, Any]) -> dict[str, list[str]]:
    """What a group has in each L3 where it has not all, as text by the L3's number."""
    return {number: values_in(group["schemata"], number) for number in group["why"]}


def values_in(schemata: Mapping[str, Mapping[Number, str]], number: Number) -> list[str]:
    """What a group has in one domain, as text."""
    return [value_text(resource, values[number]) for resource, values in schemata.items() if number in values]


def value_text(resource: str, value: str) -> str:
    """One value of a schemata line: ways of a cache, or bandwidth in the kernel's unit."""
    if resource in CACHES:
        ways = int(value, 16).bit_count()
        kind = {"CODE": " for code", "DATA": " for data"}.get(resource[2:], "")
        return f"{ways} way{'' if ways == 1 else 's'} ({value}){kind}"
    return f"bandwidth {value}" if resource == MB else f"{resource} {value}"


def _protection_lines(row: Any) -> list[str]:
    if not row or row.get("mode", "off") == "off":
        return []
    lines = [str(row["how"])]
    for domain in row.get("domains", ()):
        lines += _domain_lines(domain)
    if row.get("left_out"):
        lines.append(f"not counted, for want of counters: {row['left_out']} containers")
    return _section(f"measured protection ({row['mode']})", lines)


def _domain_lines(row: Mapping[str, Any]) -> list[str]:
    parts = [f"L3 {row['domain']}: step {row['level']} of {row['levels']}"]
    if row.get("age_s") is not None and row["level"]:
        parts.append(f"for {duration_text(row['age_s'])}")
    shares = [
        f"{words} {share:.0%}"
        for words, share in (("cache", row.get("cache_share")), ("bandwidth", row.get("bandwidth_share")))
        if share is not None
    ]
    if shares:
        parts.append(f"batch has {' and '.join(shares)}")
    lines = [", ".join(parts) + (f": {row['why']}" if row.get("why") else "")]
    if (found := row.get("helped")) is not None:
        lines.append(f"  {_help_text(found)}")
    for each in row.get("protected", ()):
        current = "not known" if each["current"] is None else f"{each['current']:g}"
        usual = (
            f", usual {each['usual']:g} ({each['baseline']})"
            if each["usual"] is not None
            else f" ({each['baseline']})"
        )
        over = "; over its limit" if each["is_over"] else ""
        lines.append(f"  {each['container']}: {each['words']} {current}{usual}{over}")
    return lines


def _step_text(row: Mapping[str, Any]) -> str:
    """Which step of protection an L3 has, and whether it helped, in short; "" = what is configured."""
    if not row["level"]:
        return ""
    found = row.get("helped")
    return f"step {row['level']} of {row['levels']}" + (f"; {_help_text(found)}" if found is not None else "")


def _help_text(row: Mapping[str, Any]) -> str:
    if row["after"] is None:
        return f"whether that helps {row['container']} is being measured"
    verdict = "it has helped" if row["helped"] else "it has not helped"
    return f"{verdict} {row['container']}: {row['words']} {row['before']:g} before, {row['after']:g} after"


def _thread_lines(document: Mapping[str, Any]) -> Iterable[str]:
    for key, row in sorted((document.get("tasks") or {}).items()):
        if row["group"] != ROOT:
            ran = row["ran_before_s"]
            when = "before it ran" if not ran else f"after it had run for {ran:.3f} s"
            line = f"{row.get('container', key)}: {row['moved']} moved into {row['group']}, {when} ({row['moment']})"
            yield line + (f"; {row['problem']}" if row.get("problem") else "")


def _scheduling_lines(document: Mapping[str, Any]) -> Iterable[str]:
    for key, row in sorted((document.get("scheduling") or {}).items()):
        yield f"{row.get('container') or key}: {scheduling_text(row)}"
    for row in document.get("files", ()):
        if is_of_threads(row) and row.get("state") != ENFORCE:
            yield f"{row['value']} would be set, as {row['why']}"


def is_of_threads(row: Mapping[str, Any]) -> bool:
    """Whether a value is one of threads, which are told by container."""
    return str(row["place"]).startswith(THREADS)


def scheduling_text(row: Mapping[str, Any]) -> str:
    """How the threads of one container are scheduled."""
    threads = "1 thread" if row["threads"] == 1 else f"{row['threads']} threads"
    own = f", {row['own']} of them left as their program has set them" if row["own"] else ""
    return f"{threads} as {row['class']}{own}" + (f"; {row['problem']}" if row["problem"] else "")


def _refusal_lines(document: Mapping[str, Any]) -> Iterable[str]:
    """What was refused, a line for what is alike."""
    containers = {row["place"]: row.get("containers", ()) for row in document.get("files", ())}
    found: dict[tuple[str, str, str, bool], list[Mapping[str, Any]]] = {}
    for row in document.get("refusals", ()):
        of = (value_name(row["place"]), row["value"], row["sentence"], bool(row.get("final")))
        found.setdefault(of, []).append(row)
    for (name, value, sentence, is_final), rows in found.items():
        paths = sorted({path for row in rows for path in containers.get(row["place"], ())})
        where = place_text(rows[0]["place"]) if len(rows) == 1 else f"{name} at {len(rows)} places"
        whose = f" of {names_text(paths)}" if paths else ""
        tries = max(row["tries"] for row in rows)
        times = "for good" if is_final else "tried once" if tries == 1 else f"tried {tries} times"
        yield f"{where} = {value}{whose}: {sentence} ({times})"


def _drift_lines(drift: Mapping[str, int]) -> Iterable[str]:
    return (
        f"{place_text(place)}: {'once' if times == 1 else f'{times} times'}"
        for place, times in sorted(drift.items())
    )


def _notes(document: Mapping[str, Any]) -> Iterable[str]:
    yield from document.get("notes", ())
    others, monitors = document.get("other_groups") or (), document.get("other_monitors") or 0
    if others:
        yield f"groups of others, left alone: {names_text(others)}"
    if monitors:
        yield f"monitoring groups of others, left alone: {monitors}"
