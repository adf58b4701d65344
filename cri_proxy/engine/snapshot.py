"""The engine's records as JSON texts, one record a text: what the state file keeps, readable by a person.

Sets are CPU lists (``0-3,8``). Records are read one by one: what a later version has added to one (fields, and
items at the end of a list that goes by position) is left out, and a text that cannot be read costs no other record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Any, Callable, Optional, TypeVar

from cri_proxy.cri.annotations.read import understood
from cri_proxy.engine.claims import owning
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import (
    ClaimPart,
    ContainerRecord,
    DecisionRecord,
    Life,
    Management,
    MoveEffect,
    PlacementChange,
    Ticket,
    TicketKind,
)
from cri_proxy.engine.state import JournalKey, JournalValue
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import (
    Constraint,
    Container,
    Hint,
    Placement,
    PlacementPreferences,
    Pod,
    PodShare,
    PodSize,
    Qos,
    Resources,
)

#: Grows when an older daemon would take what this one writes for something else. It reads what it can of it all the same.
#: 3: a container's record says what it owns, as in 1. In 2 what its group owned, as one with a record of its own.
FORMAT = 3
WITH_GROUPS = "2"
#: The kind of those records; they are read, and never written.
GROUP = "group"
#: As many of the records that cannot be read are named in the sentence about them.
NAMED = 5
#: Of as many containers the text is kept, about a kilobyte each: a record is written four times within seconds.
CONTAINERS_KEPT = 256
#: As many items of a container's resources are in a list; what came after those is beside it.
RESOURCE_ITEMS = 5
#: And of a pod's size.
SIZE_ITEMS = 3


class UnreadableRecord(ValueError):
    """A record of the state file is not what this version writes."""


class RecordWriter:
    """Writes journal values as texts; what has not changed since it was last written is not encoded again."""

    def __init__(self) -> None:
        #: The texts of containers, by identity: a container stays the same object while its record changes.
        self._containers: dict[int, tuple[Container, str]] = {}

    def text(self, value: JournalValue) -> str:
        """The text of one journal value."""
        if isinstance(value, ContainerRecord):
            return self._grant(value)
        if isinstance(value, Ticket):
            return self._ticket(value)
        if isinstance(value, DecisionRecord):
            return self._record(value)
        if isinstance(value, Pod) and value.size is not None:
            # Not in the pods of containers: they have what their pod's own record says.
            size = {"size_overhead": value.size.milli_overhead, "size_is_past": value.size.is_past}
            return _encode({**_write_pod(value), **size})
        return _encode(_write_pod(value) if isinstance(value, Pod) else value)

    def _grant(self, grant: ContainerRecord) -> str:
        asked = grant.constraint.asked
        fields: dict[str, Any] = {
            "key": grant.key,
            "stance": grant.stance.value,
            "fence": [_write_set(asked.cpus), _write_set(asked.mems)],
            "life": grant.life.value,
            "runs_on": format_cpus(grant.runs_on),
            "since_s": grant.since_s,
            "hold_until_s": grant.hold_until_s,
            "exit_code": grant.exit_code,
            "repairs": grant.repairs,
            "why": grant.why,
            "runs_in": grant.runs_in,
            "is_outgrown": grant.is_outgrown,
            "quota_taken": grant.quota_taken,
            "runs_on_mems": format_cpus(grant.runs_on_mems),
            "memory": grant.memory_charge,
            "moved_s": grant.moved_s,
            "isolation": grant.isolation,
            "isolation_why": grant.isolation_why,
            "asked": dict(grant.asked),
        }
        if grant.turbo_top_us:  # few have it
            fields["turbo"] = [grant.turbo_us, grant.turbo_top_us]
        if grant.part is not None:
            fields["part"] = _write_part(grant.part)
        displaced = "null" if grant.displaced is None else _placement(grant.displaced)
        container, placement = self._container(grant.container), _placement(grant.placement)
        return _joined(fields, placement=placement, displaced=displaced, container=container)

    def _ticket(self, ticket: Ticket) -> str:
        fields = {
            "id": ticket.id,
            "kind": ticket.kind.value,
            "key": ticket.key,
            "since_s": ticket.since_s,
            "target": ticket.target,
            "in_doubt": ticket.in_doubt,
            "found": ticket.found and ticket.found.value,
            # The version before this one takes three items of each; that it runs on nothing has it told.
            "waiting": [[key, "", ""] for key in ticket.waiting],
            "moved": [[key, write_placement(was), write_placement(now)] for key, was, now in ticket.moved],
        }
        replaces = _listed(self._grant(grant) for grant in ticket.replaces)
        tickets = _listed(self._ticket(replaced) for replaced in ticket.replaced_tickets)
        return _joined(fields, sent=_placement(ticket.sent), replaces=replaces, replaced_tickets=tickets)

    def _record(self, record: DecisionRecord) -> str:
        fields = {name: field for name, field in vars(record).items() if name not in ("changes", "move")}
        placement = _placement(record.placement)
        # In the placement: the version before this one takes no other fields in a record than it knows.
        added = {}
        if record.changes:
            added["changes"] = _listed(map(_change, record.changes))
        if record.move is not None:
            added["move"] = _encode(vars(record.move))
        if added:
            placement = _joined(write_placement(record.placement), **added)
        return _joined(fields, placement=placement)

    def forget(self) -> None:
        """Let go of the texts that are kept for records of the same container, some 250 kB."""
        self._containers.clear()
        _placement.cache_clear()

    def _container(self, container: Container) -> str:
        # Kept together, so that no other object gets that identity.
        kept = self._containers.get(id(container))
        if kept is None:
            if len(self._containers) >= CONTAINERS_KEPT:
                del self._containers[next(iter(self._containers))]
            kept = self._containers[id(container)] = container, _encode(_write_container(container))
        return kept[1]


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _joined(fields: Mapping[str, Any], **texts: str) -> str:
    """One object, of fields and of parts that are texts already; a text takes the place of the field of its name."""
    rest = {name: value for name, value in fields.items() if name not in texts}
    parts = "".join([f',"{name}":{text}' for name, text in texts.items()])
    return f"{_encode(rest)[:-1]}{parts}}}"


def _change(change: PlacementChange) -> str:
    sets = {"cpus": format_cpus(change.cpus), "mems": format_cpus(change.mems)}
    return _encode({**vars(change), **sets})


def _listed(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"


def write_record(value: JournalValue) -> str:
    """The text of one journal value, by itself."""
    return RecordWriter().text(value)


def read_record(kind: str, text: str) -> Any:
    """The value of a text by ``write_record``; ``kind``: grant, ticket, pod, record, distrust or group.

    :raises UnreadableRecord: it is none, or one of which a later version has changed more than it has added.
    """
    try:
        return _READERS[kind](json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise UnreadableRecord(f"{kind} record {text[:80]!r}: {type(error).__name__} {error}") from None


@dataclass
class Read:
    """What was read of many texts: values by kind and key; why others are ``dropped``; and the keys of ``unknown`` kinds."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: dict[JournalKey, str] = field(default_factory=dict)
    unknown: tuple[JournalKey, ...] = ()

    def sentence(self, where: str) -> str:
        """What is lost with the records that could not be read; "" if all could be."""
        if not self.dropped:
            return ""
        of = len(self.dropped) + sum(map(len, self.records.values()))
        named = ", ".join(f"{kind} {key}".replace("\n", "/") for kind, key in list(self.dropped)[:NAMED])
        more = f" and {len(self.dropped) - NAMED} more" if len(self.dropped) > NAMED else ""
        first = next(iter(self.dropped.values()))
        return f"{len(self.dropped)} of {of} records in {where} could not be read: {named}{more} ({first})"


def read_records(texts: Iterable[tuple[str, str, str]]) -> Read:
    """The values of many texts, each with its kind and key."""
    read, unknown = Read(), []
    for kind, key, text in texts:
        if kind not in _READERS:
            unknown.append((kind, key))
            continue
        try:
            read.records.setdefault(kind, {})[key] = read_record(kind, text)
        except UnreadableRecord as error:
            read.dropped[kind, key] = str(error)
    read.unknown = tuple(unknown)
    groups = read.records.get(GROUP, {})
    if groups:
        read.records["grant"] = _with_groups(read.records.get("grant", {}), groups)
    return read


def everything(engine: Engine) -> dict[JournalKey, JournalValue]:
    """All records of an engine, as its journal would name them if each had just changed."""
    return {
        **{("pod", key): pod for key, pod in engine.pods.items()},
        **{("grant", key): grant for key, grant in engine.grants.items()},
        **{("ticket", key): ticket for key, ticket in engine.tickets.items()},
        **{("record", str(record.number)): record for record in engine.history},
        **{("distrust", "\n".join(who)): until_s for who, until_s in engine.distrusted.items()},
    }


def _with_groups(
    grants: Mapping[str, ContainerRecord], groups: Mapping[str, Mapping[str, frozenset[int]]]
) -> dict[str, ContainerRecord]:
    """Grants as they were written down, with what the records of their groups say they own."""
    found = dict(grants)
    for key, grant in grants.items():
        group = groups.get(grant.placement.group)
        if group is not None and grant.stance is Management.PLACED:
            own = group.get(key, group[""])
            found[key] = replace(grant, placement=replace(grant.placement, exclusive=own))
    return found


def write_placement(placement: Placement) -> dict[str, Any]:
    claimed = {"claimed": format_cpus(placement.claimed)} if placement.claimed else {}  # few have it
    return {
        "cpus": format_cpus(placement.cpus),
        "mems": format_cpus(placement.mems),
        "exclusive": format_cpus(placement.exclusive),
        "level": placement.level,
        "home": format_cpus(placement.home),
        "memory": [list(pair) for pair in placement.memory_charge],
        "group": placement.group,
        "grown": [format_cpus(cpus) for cpus in placement.grown],
        "hidden": format_cpus(placement.hidden),
        "one_thread": placement.one_thread,
        "lift_quota": placement.lift_quota,
        "squeezed": placement.squeezed,
        **claimed,
    }


@lru_cache(maxsize=256)
def _placement(placement: Placement) -> str:
    """Its text: a grant, its ticket and its entry in the history share one placement."""
    return _encode(write_placement(placement))


def read_placement(document: Mapping[str, Any]) -> Placement:
    placement = Placement(
        parse_cpus(document["cpus"]),
        parse_cpus(document["mems"]),
        parse_cpus(document["exclusive"]),
        document["level"],
        parse_cpus(document["home"]),
        tuple((int(node), int(size)) for node, size, *_ in document["memory"]),
        # What the first version did not write.
        document.get("group", ""),
        tuple(parse_cpus(cpus) for cpus in document.get("grown", ())),
        parse_cpus(document.get("hidden", "")),
        bool(document.get("one_thread", False)),
        bool(document.get("lift_quota", False)),
        bool(document.get("squeezed", False)),
        parse_cpus(document.get("claimed", "")),
    )
    return _checked(placement)


def _write_pod(pod: Pod) -> dict[str, Any]:
    size = pod.size
    return {
        "id": pod.id,
        "uid": pod.uid,
        "name": pod.name,
        "namespace": pod.namespace,
        "cgroup_parent": pod.cgroup_parent,
        "runtime_handler": pod.runtime_handler,
        "labels": dict(pod.labels),
        "annotations": dict(pod.annotations),
        "size": None if size is None else [size.milli_request, size.milli_limit, size.source],
    }


def _read_pod(document: Mapping[str, Any]) -> Pod:
    size = document["size"]
    read = None
    if size is not None:
        # What the version before this one did not write.
        overhead, is_past = document.get("size_overhead", 0), document.get("size_is_past", False)
        request, limit, source = size[:SIZE_ITEMS]
        read = _checked(PodSize(request, limit, source, overhead, is_past))
    return _checked(Pod(**{**_known(Pod, document), "size": read}))


def _write_container(container: Container) -> dict[str, Any]:
    resources = container.told
    claims = {"claims": list(container.claims)} if container.claims else {}  # few have any
    return {
        "pod": _write_pod(container.pod),
        "name": container.name,
        "attempt": container.attempt,
        "qos": container.qos.value,
        "resources": [
            resources.milli_request,
            resources.milli_limit,
            resources.memory_request_bytes,
            resources.memory_limit_bytes,
            resources.quota_period_us,
        ],
        # Apart: the version before this one takes five items of resources and nine fields of a pod, and no more.
        "hugepage_sizes": sorted(resources.hugepage_sizes),
        "pod_memory_limit": container.pod.memory_limit_bytes,
        "milli_size": container.milli_size,
        # How much of the pod's it has follows from the records of its pod.
        "is_of_pod": container.pod_share is not None,
        "tells_own": container.tells_own,
        "labels": dict(container.labels),
        "annotations": dict(container.annotations),
        "hints": [[hint.kind, hint.path, format_cpus(hint.nodes)] for hint in container.hints],
        **claims,
    }


def _read_container(document: Mapping[str, Any]) -> Container:
    sizes = frozenset(int(size) for size in document.get("hugepage_sizes", ()))
    pod = replace(_read_pod(document["pod"]), memory_limit_bytes=int(document.get("pod_memory_limit", 0)))
    container = Container(
        pod,
        document["name"],
        int(document["attempt"]),
        Qos(document["qos"]),
        replace(_checked(Resources(*document["resources"][:RESOURCE_ITEMS])), hugepage_sizes=sizes),
        document["labels"],
        document["annotations"],
        hints=tuple(
            Hint(kind, path, parse_cpus(nodes)) for kind, path, nodes, *_ in document.get("hints", ())
        ),
        milli_size=document.get("milli_size"),
        tells_own=bool(document.get("tells_own", False)),
        claims=tuple(str(key) for key in document.get("claims", ())),
    )
    if document.get("is_of_pod"):
        container = replace(
            container, pod_share=PodShare(container.resources, container.resources.milli_request, 1)
        )
    # What they ask is read again: a newer version may understand more of it.
    return understood(_checked(container))


def _write_set(cpus: Optional[frozenset[int]]) -> Optional[str]:
    return None if cpus is None else format_cpus(cpus)


def _read_set(text: Optional[str]) -> Optional[frozenset[int]]:
    return None if text is None else parse_cpus(text)


def _write_part(part: ClaimPart) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for one in fields(PlacementPreferences):
        value = getattr(part.preferences, one.name)
        if isinstance(value, (str, bool)) and value != one.default:
            said[one.name] = value
    return {
        "request": part.request,
        "count": part.count,
        "cpus": format_cpus(part.cpus),
        "devices": list(part.devices),
        "preferences": said,
    }


def _read_part(document: Mapping[str, Any]) -> ClaimPart:
    said = _known(PlacementPreferences, document["preferences"])
    part = ClaimPart(
        document["request"],
        int(document["count"]),
        parse_cpus(document["cpus"]),
        _checked(PlacementPreferences(**said)),
        tuple(str(device) for device in document["devices"]),
    )
    return _checked(part)


def _read_grant(document: Mapping[str, Any]) -> ContainerRecord:
    displaced, part = document["displaced"], document.get("part")
    cpus, mems, *_ = document["fence"]
    container = _read_container(document["container"])
    read_part = None if part is None else _read_part(part)
    if read_part is not None:  # what it is to be like its claim says, and no annotation
        container = replace(container, preferences=owning(read_part.preferences))
    grant = ContainerRecord(
        key=document["key"],
        container=container,
        placement=read_placement(document["placement"]),
        stance=Management(document["stance"]),
        constraint=Constraint(_read_set(cpus), _read_set(mems)),
        life=Life(document["life"]),
        runs_on=parse_cpus(document["runs_on"]),
        since_s=float(document["since_s"]),
        hold_until_s=float(document["hold_until_s"]),
        exit_code=document["exit_code"],
        displaced=None if displaced is None else read_placement(displaced),
        repairs=tuple(float(at_s) for at_s in document["repairs"]),
        why=document["why"],
        runs_in=document.get("runs_in", ""),
        is_outgrown=bool(document.get("is_outgrown", False)),
        quota_taken=bool(document.get("quota_taken", False)),
        # What earlier versions did not write.
        runs_on_mems=parse_cpus(document.get("runs_on_mems", "")),
        memory_charge=tuple((int(node), int(size)) for node, size, *_ in document.get("memory", ())),
        moved_s=float(document.get("moved_s", 0.0)),
        isolation=document.get("isolation", ""),
        isolation_why=document.get("isolation_why", ""),
        asked=tuple(sorted((str(key), str(value)) for key, value in document.get("asked", {}).items())),
        turbo_us=int(document.get("turbo", (0, 0))[0]),
        turbo_top_us=int(document.get("turbo", (0, 0))[1]),
        part=read_part,
    )
    return _checked(grant)


def _read_ticket(document: Mapping[str, Any]) -> Ticket:
    ticket = Ticket(
        document["id"],
        TicketKind(document["kind"]),
        document["key"],
        float(document["since_s"]),
        document["target"],
        read_placement(document["sent"]),
        bool(document["in_doubt"]),
        tuple(_read_grant(grant) for grant in document["replaces"]),
        tuple(_read_ticket(t) for t in document["replaced_tickets"]),
        tuple(
            (key, read_placement(was), read_placement(now)) for key, was, now, *_ in document.get("moved", ())
        ),
        Management(document["found"]) if document.get("found") else None,
        tuple(str(key) for key, *_ in document.get("waiting", ())),
    )
    return _checked(ticket)


def _read_history(document: Mapping[str, Any]) -> DecisionRecord:
    placement = read_placement(document["placement"])
    # What the first version did not write.
    changes = tuple(_read_change(change) for change in document["placement"].get("changes", ()))
    moved = document["placement"].get("move")
    parts = {
        "placement": placement,
        "changes": changes,
        "move": None if moved is None else _read_move_effect(moved),
    }
    return _checked(DecisionRecord(**{**_known(DecisionRecord, document), **parts}))


def _read_group(document: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    """What a container of a group owned by its key; "": all others."""
    return {"": parse_cpus(document["exclusive"]), **{k: parse_cpus(v) for k, v in document["apart"].items()}}


def _read_move_effect(document: Mapping[str, Any]) -> MoveEffect:
    ids = {
        name: tuple(str(key) for key in document.get(name, ())) for name in ("nearer", "farther", "exchanged")
    }
    return _checked(MoveEffect(**{**_known(MoveEffect, document), **ids}))


def _read_change(document: Mapping[str, Any]) -> PlacementChange:
    sets = {"cpus": parse_cpus(document["cpus"]), "mems": parse_cpus(document["mems"])}
    keys = tuple(str(key) for key in document["keys"])
    return _checked(PlacementChange(**{**_known(PlacementChange, document), **sets, "keys": keys}))


def _known(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """What of a document this version has fields for."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in document.items() if name in names}


#: What JSON must have for a field of these types; the others are made by their readers.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "Optional[int]": (int, type(None)),
    "Mapping[str, str]": (dict,),
}
_Value = TypeVar("_Value")


@cache
def _plain_fields(kind: Any) -> tuple[tuple[str, tuple[type, ...]], ...]:
    return tuple((one.name, _TYPES[str(one.type)]) for one in fields(kind) if str(one.type) in _TYPES)


def _checked(value: _Value) -> _Value:
    """The value, if its plain fields have the types they are declared with.

    :raises TypeError: they have not.
    """
    kind: Any = type(value)
    for name, types in _plain_fields(kind):
        found = getattr(value, name)
        if type(found) not in types or (
            found and dict in types and not set(map(type, found.values())) <= {str}
        ):
            raise TypeError(f"{name} is {found!r:.40}")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "grant": _read_grant,
    "ticket": _read_ticket,
    "pod": _read_pod,
    "record": _read_history,
    "distrust": float,
    GROUP: _read_group,
}
