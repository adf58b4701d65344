"""The reporting half's document: a daemon's ``report`` as the status of the node's NodePlacement. Pure.

Fields are taken by name: what a newer daemon tells besides is left out, and what an older one does not tell is absent.
Numbers that move by themselves are held (``steady_rate``), and lists have an order of their own, so that two reports of a
node on which nothing happened make equal documents. Conditions are written as the API's conventions have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple, Optional

from cluster.api.fit import MOST_SHARED, MOST_SUBJECTS
from cluster.api.names import CONFIG_APPLIED, CURRENT, DEGRADED, READY, SCHEMA_CURRENT
from cluster.api.reader import Fields, Unreadable
from cluster.kube.known import not_written
from policies.machine.domain_names import domain_text

#: Characters of a message; the rest stands in the daemon's own status.
ENOUGH = 2000

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
#: A rate is told anew once it is this much larger or smaller, as a factor.
RATE_FACTOR = 1.5
#: Memory in use is told anew once it differs by this much.
MEMORY_STEP_BYTES = 64 << 20

#: Characters of a line that explains a placement, and of any other text.
MOST_WHY, MOST_TEXT = 200, 400

#: A container's id, as crictl shows it.
ID_DIGITS = 13

_HEAD = ("version", "instance", "mode", "mode_wanted", "mode_from", "front_end")
_MACHINE = {
    "sockets": ("id", "cpus"),
    "numa_nodes": ("id", "socket", "cpus", "memory_bytes", "distances"),
    "l3s": ("id", "numa_node", "cpus", "size_bytes"),
}
_ZONE = (
    "name",
    "type",
    "parent",
    "cpus",
    "capacity_milli_cpus",
    "allocatable_milli_cpus",
    "charged_milli_cpus",
    "free_milli_cpus",
    "exclusive_cpus",
    "shared_cpus",
    "memory_bytes",
    "memory_allocatable_bytes",
)
#: Charges of containers without a limit follow their usage.
_ZONE_MOVING = ("memory_charged_bytes", "memory_free_bytes")
_PLACEMENT = (
    "namespace",
    "pod",
    "pod_uid",
    "container",
    "container_id",
    "qos",
    "milli_cpus",
    "cpus",
    "mems",
    "level",
    "state",
    "exclusive",
    "zone",
    "demand",
    "isolation",
)
#: Keys whose values are domains' names: node-0 is written as numa-0.
_DOMAINS = ("name", "parent", "zone")
_CONDITION = ("type", "status", "lastTransitionTime")
_PROBLEM = ("severity", "check", "message", "hint")
_MEMBER = ("namespace", "pod", "container")
_REMOTE = (*_MEMBER, "address")
#: What a container exchanges with one address of another node is told from so many bytes a second on, until it is half.
LEAST_REMOTE_BYTES_PER_S = 50_000


@dataclass(frozen=True)
class Condition:
    """``reason`` is one word in camel case; ``message`` are sentences for people."""

    type: str
    status: str
    reason: str
    message: str = ""


def written(
    conditions: Iterable[Condition], before: Sequence[Mapping[str, Any]], now: str, generation: int = 0
) -> list[dict[str, Any]]:
    """The conditions as an object has them.

    ``before``: the conditions written last; a condition whose status is the same keeps its time. ``now``: RFC 3339.
    ``generation``: the spec that was looked at; 0 = it says nothing about that.
    """
    earlier = {condition.get("type"): condition for condition in before}
    return [_written(condition, earlier.get(condition.type, {}), now, generation) for condition in conditions]


def _written(condition: Condition, before: Mapping[str, Any], now: str, generation: int) -> dict[str, Any]:
    same = before.get("status") == condition.status and before.get("lastTransitionTime")
    document = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": shortened(condition.message, ENOUGH),
        "lastTransitionTime": before["lastTransitionTime"] if same else now,
    }
    return {**document, "observedGeneration": generation} if generation else document


def shortened(text: str, most: int) -> str:
    """One line of at most ``most`` characters; three dots where something was left out."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def conditions_of(node_placement: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conditions of an object, of which later ones keep their times; [] where they cannot be read."""
    try:
        rows = list(Fields(node_placement).fields("status").rows("conditions"))
        return [{key: row.text(key, "") for key in _CONDITION} for row in rows]
    except Unreadable:
        return []


class WrittenBefore(NamedTuple):
    """What an earlier process wrote: the daemon's ``instance``, ``judgedPolicy``, and doctor's answer, {} = none."""

    instance: str = ""
    judged: str = ""
    doctor: Mapping[str, Any] = {}


def written_before(node_placement: Mapping[str, Any]) -> WrittenBefore:
    """Out of the object; nothing where its status cannot be read."""
    try:
        status = Fields(node_placement).fields("status")
        doctor = status.fields("doctor")
        problems = [{key: row.text(key, "") for key in _PROBLEM} for row in doctor.rows("problems")]
        counts = {key: doctor.number(key, 0) for key in ("errors", "warnings")}
        return WrittenBefore(
            status.text("instance", ""),
            status.text("judgedPolicy", ""),
            {**counts, "problems": problems} if doctor else {},
        )
    except Unreadable:
        return WrittenBefore()


@dataclass(frozen=True)
class AgentView:
    """All that the reporting half knows. ``report`` None = the daemon has not answered since this process began.

    ``trouble``: why the daemon does not answer now, "" = it does. ``problems``: doctor's, None = not known.
    ``is_report_only``: nothing on this node carries out a spec. ``asked``: whether there is one. ``judged``: hash of the
    cluster's policy that report and problems are both younger than, "" = of none; None = the daemon does not tell.
    """

    report: Optional[Mapping[str, Any]]
    trouble: str = ""
    problems: Optional[Sequence[Mapping[str, Any]]] = None
    is_report_only: bool = False
    asked: bool = False
    left_out: Sequence[str] = ()
    judged: Optional[str] = None


def camel(name: str) -> str:
    """``milli_cpus`` as ``milliCpus``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def status_of(seen: AgentView, told: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The whole status that the reporting half owns, before ``fit``. ``now``: RFC 3339.

    ``told``: what this function gave for the last write, {} = there was none. Equal to it where nothing is new.
    """
    status = {} if seen.report is None else _of_report(seen.report, told)
    # Absent, and never {}: of an empty mapping whose fields this writer had before the server makes a null, and refuses it.
    doctor = told.get("doctor") if seen.problems is None else _doctor(seen.problems)
    if doctor:
        status["doctor"] = doctor
    if seen.judged is not None:
        status["judgedPolicy"] = seen.judged
    return {**status, "conditions": written(_conditions(seen), told.get("conditions", ()), now)}


def _of_report(report: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    status = {
        **_taken(report, _HEAD),
        "frozen": bool(report.get("cluster", {}).get("freeze", False)),
        "warnings": sorted(shortened(text, MOST_TEXT) for text in report.get("warnings") or ()),
        "zones": _zones(report.get("zones", ()), told.get("zones", ())),
        "placements": [_placement(row) for row in report.get("placements", ())],
        "affinityGroups": _groups(report.get("affinity_groups", ()), told.get("affinityGroups", ())),
        "remoteTraffic": _remote(report.get("remote_peers", ()), told.get("remoteTraffic", ())),
    }
    if "modeFrom" in status:
        status["modeFrom"] = shortened(status["modeFrom"], MOST_TEXT)
    if report.get("policy"):
        status["activePolicy"] = report["policy"]
    if report.get("claims"):
        status["claims"] = _taken(report["claims"], ("count", "cpus"))
    if report.get("isolation"):
        status["isolation"] = _isolation(report["isolation"])
    machine = report.get("machine")
    if machine is not None:
        status["machine"] = {
            camel(kind): [_taken(part, keys) for part in machine.get(kind, ())]
            for kind, keys in _MACHINE.items()
        }
    return status


def _taken(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    found = {camel(key): row[key] for key in keys if row.get(key) is not None}
    return {key: domain_text(value) if key in _DOMAINS else value for key, value in found.items()}


def _zones(zones: Iterable[Mapping[str, Any]], told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    earlier = {zone.get("name"): zone for zone in told}
    return [_zone(zone, earlier.get(domain_text(zone.get("name", "")), {})) for zone in zones]


def _zone(zone: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    moving = _taken(zone, _ZONE_MOVING)
    return {**_taken(zone, _ZONE), **{key: steady_memory(moving[key], told.get(key)) for key in moving}}


def _placement(row: Mapping[str, Any]) -> dict[str, Any]:
    found = _taken(row, _PLACEMENT)
    found["containerId"] = found.get("containerId", "")[:ID_DIGITS]
    found["why"] = shortened(row.get("why", ""), MOST_WHY)
    return {key: value for key, value in found.items() if value not in ("", False)}


def _groups(groups: Iterable[Mapping[str, Any]], told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Heaviest first by the rate told, so that a rate that is held holds its place as well."""
    earlier = {_key(group): group.get("bytesPerSecond") for group in told}
    found = [_group(group, earlier) for group in groups]
    return sorted(found, key=lambda group: (-group["bytesPerSecond"], _key(group)))


def _group(
    group: Mapping[str, Any], earlier: Mapping[tuple[tuple[str, ...], ...], Optional[int]]
) -> dict[str, Any]:
    members = [_taken(member, _MEMBER) for member in group.get("members", ())]
    members.sort(key=lambda member: tuple(member.values()))
    return {
        "members": members,
        "bytesPerSecond": steady_rate(group.get("bytes_per_s", 0), earlier.get(_key({"members": members}))),
        **_taken(group, ("together", "zone")),
        "whyNot": shortened(group.get("why_not", ""), MOST_WHY),
    }


def _key(group: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(_words(member, _MEMBER) for member in group["members"])


def _remote(rows: Iterable[Mapping[str, Any]], told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Heaviest first; without rates too low to move a pod for."""
    earlier = {_words(row, _REMOTE): row.get("bytesPerSecond") for row in told}
    found = []
    for row in rows:
        before, now = earlier.get(_words(row, _REMOTE)), row.get("bytes_per_s", 0)
        if now >= LEAST_REMOTE_BYTES_PER_S / (2 if before else 1):
            found.append({**_taken(row, _REMOTE), "bytesPerSecond": steady_rate(now, before)})
    return sorted(found, key=lambda row: (-row["bytesPerSecond"], _words(row, _REMOTE)))


def _words(row: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(row.get(key, "")) for key in keys)


def _isolation(row: Mapping[str, Any]) -> dict[str, Any]:
    shared = row.get("l3s") or ()
    modes = row.get("modes") or {}
    return {
        **{name: str(modes[name]) for name in ("caches", "bandwidth") if name in modes},
        **_taken(row, ("protection", "groups", "other_groups", "refusals")),
        **({"missing": shortened(row["missing"], MOST_TEXT)} if row.get("missing") else {}),
        "subjects": [
            {"name": name, "mode": str(mode), "values": int((row.get("values") or {}).get(name, 0))}
            for name, mode in modes.items()
            if name not in ("caches", "bandwidth") and mode != "off"
        ][:MOST_SUBJECTS],
        "sharedL3Count": len(shared),
        "sharedL3s": [
            {
                "zone": f"l3-{each.get('l3', 0)}",
                **_taken(each, ("protected", "batch")),
                "batchHas": shortened(str(each.get("batch_has", "")), MOST_TEXT),
            }
            for each in shared[:MOST_SHARED]
        ],
    }


def _doctor(problems: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [
        {
            "severity": str(problem.get("severity", "")),
            "check": str(problem.get("check", "")),
            "message": shortened(str(problem.get("sentence", "")), MOST_TEXT),
            "hint": shortened(str(problem.get("hint", "")), MOST_TEXT),
        }
        for problem in problems
    ]
    errors = sum(row["severity"] == "error" for row in rows)
    rows.sort(key=lambda row: (row["severity"], row["check"], row["message"]))
    return {"errors": errors, "warnings": len(rows) - errors, "problems": rows}


# ---------------------------------------------------------------------- numbers that move


def steady_rate(now: float, told: Optional[float]) -> int:
    """A rate to tell: ``told`` while ``now`` is within ``RATE_FACTOR`` of it, else ``now`` to two digits.

    Rounding alone would not do: a rate beside a step's edge would change with every look.
    """
    if told and now > 0 and told / RATE_FACTOR <= now <= told * RATE_FACTOR:
        return int(told)
    return _two_digits(now)


def steady_memory(now: int, told: Optional[int]) -> int:
    """Bytes to tell: ``told`` while ``now`` is less than a step away, else ``now`` rounded down to a step."""
    if told is not None and abs(now - told) < MEMORY_STEP_BYTES:
        return told
    return now // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES


def _two_digits(value: float) -> int:
    if value < 1:
        return 0
    step = int(10 ** max(0, len(str(int(value))) - 2))
    return round(value / step) * step


# ---------------------------------------------------------------------- conditions


def _conditions(seen: AgentView) -> list[Condition]:
    found = [ready(seen.report, seen.trouble), degraded(seen.report, seen.trouble)]
    if seen.is_report_only and seen.asked:
        sentence = (
            "the agent of this node only reports: it has no control socket, so its spec is not carried out"
        )
        found.append(Condition(CONFIG_APPLIED, FALSE, "ReportsOnly", sentence))
    if old := (seen.report or {}).get("old"):
        found.append(Condition(CURRENT, FALSE, "SourceAway", "; ".join(map(_old_text, sorted(old.items())))))
    if seen.left_out:
        found.append(Condition(SCHEMA_CURRENT, FALSE, "FieldsNotWritten", not_written(seen.left_out)))
    return found


def _old_text(old: tuple[str, Mapping[str, Any]]) -> str:
    """``traffic is of 2026-11-29T12:03:44Z: the observer has ended``: a time, as an age would be another in each report."""
    name, row = old
    since_s = row.get("since_s")
    since = "a time that is not known"
    if since_s is not None:
        since = datetime.fromtimestamp(since_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{name}: of {since}: {row.get('why', '')}"


def ready(report: Optional[Mapping[str, Any]], trouble: str) -> Condition:
    """Whether the daemon answers and knows its machine, so that it can place containers."""
    if trouble or report is None:
        return Condition(READY, FALSE, "DaemonAway", trouble or "the daemon has not answered yet")
    if report.get("machine") is None:
        return Condition(
            READY, FALSE, "NoMachine", "the daemon runs, but does not know the machine: it places nothing"
        )
    return Condition(READY, TRUE, "DaemonAnswers", f"the daemon answers, in mode {report.get('mode', '?')}")


def degraded(report: Optional[Mapping[str, Any]], trouble: str) -> Condition:
    """Every reason for which the daemon does less than it was asked for, in one message."""
    if trouble or report is None:
        return Condition(DEGRADED, UNKNOWN, "DaemonAway", trouble or "the daemon has not answered yet")
    reasons = report.get("degraded") or {}
    if not reasons:
        return Condition(DEGRADED, FALSE, "NothingIsWrong")
    message = "; ".join(f"{name}: {sentence}" for name, sentence in sorted(reasons.items()))
    return Condition(DEGRADED, TRUE, "DaemonDegraded", message)
