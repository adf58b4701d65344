"""The engine's records as JSON texts, one record a text: what the state file keeps, readable by a person.

Sets are CPU lists (``0-3,8``). A text that cannot be read back raises ``UnreadableRecord``; the caller sets
the state aside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Callable, Optional

from cri_proxy.core.books import JournalKey, JournalValue
from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Grant, Life, Record, Stance, Ticket, TicketKind, Waiting
from cri_proxy.core.wishes import understood
from policies.cpus import format_cpus, parse_cpus
from policies.model import Container, Fence, Hint, Placement, Pod, PodSize, Qos, Resources

#: Grows when an older daemon could not read what this one writes.
FORMAT = 1
#: Of as many containers the text is kept, about a kilobyte each: a record is written four times within seconds.
CONTAINERS_KEPT = 256


class UnreadableRecord(ValueError):
    """A record of the state file is not what this version writes."""


class RecordWriter:
    """Writes journal values as texts; what has not changed since it was last written is not encoded again."""

    def __init__(self) -> None:
        #: The texts of containers, by identity: a container stays the same object while its record changes.
        self._containers: dict[int, tuple[Container, str]] = {}

    def text(self, value: JournalValue) -> str:
        """The text of one journal value."""
        if isinstance(value, Grant):
            return self._grant(value)
        if isinstance(value, Ticket):
            return self._ticket(value)
        if isinstance(value, Record):
            return _joined(vars(value), placement=_placement(value.placement))
        return _encode(_write_pod(value) if isinstance(value, Pod) else value)

    def _grant(self, grant: Grant) -> str:
        fields = {
            "key": grant.key,
            "stance": grant.stance.value,
            "fence": [_write_set(grant.fence.cpus), _write_set(grant.fence.mems)],
            "life": grant.life.value,
            "runs_on": format_cpus(grant.runs_on),
            "since_s": grant.since_s,
            "hold_until_s": grant.hold_until_s,
            "exit_code": grant.exit_code,
            "repairs": grant.repairs,
            "why": grant.why,
            "runs_in": grant.runs_in,
        }
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
            "waiting": [[w.key, format_cpus(w.cpus), format_cpus(w.mems)] for w in ticket.waiting],
            # Apart: the version before this one takes three items of each that waits, and no more.
            "owed_quota": [w.key for w in ticket.waiting if w.is_owed_quota],
            "moved": [[key, write_placement(was), write_placement(now)] for key, was, now in ticket.moved],
        }
        replaces = _listed(self._grant(grant) for grant in ticket.replaces)
        tickets = _listed(self._ticket(replaced) for replaced in ticket.replaced_tickets)
        return _joined(fields, sent=_placement(ticket.sent), replaces=replaces, replaced_tickets=tickets)

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


def _listed(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"


def write_record(value: JournalValue) -> str:
    """The text of one journal value, by itself."""
    return RecordWriter().text(value)


def read_record(kind: str, text: str) -> Any:
    """The value of a text by ``write_record``; ``kind``: grant, ticket, pod, record or distrust.

    :raises UnreadableRecord: not written by this version.
    """
    try:
        return _READERS[kind](json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnreadableRecord(f"{kind} record {text[:80]!r}: {type(error).__name__} {error}") from None


def everything(engine: Engine) -> dict[JournalKey, JournalValue]:
    """All records of an engine, as its journal would name them if each had just changed."""
    return {
        **{("pod", key): pod for key, pod in engine.pods.items()},
        **{("grant", key): grant for key, grant in engine.grants.items()},
        **{("ticket", key): ticket for key, ticket in engine.tickets.items()},
        **{("record", str(record.number)): record for record in engine.history},
        **{("distrust", "\n".join(who)): until_s for who, until_s in engine.distrusted.items()},
    }


def write_placement(placement: Placement) -> dict[str, Any]:
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
    }


@lru_cache(maxsize=256)
def _placement(placement: Placement) -> str:
    """Its text: a grant, its ticket and its entry in the history share one placement."""
    return _encode(write_placement(placement))


def read_placement(document: Mapping[str, Any]) -> Placement:
    return Placement(
        parse_cpus(document["cpus"]),
        parse_cpus(document["mems"]),
        parse_cpus(document["exclusive"]),
        document["level"],
        parse_cpus(document["home"]),
        tuple((int(node), int(size)) for node, size in document["memory"]),
        # What the first version did not write.
        document.get("group", ""),
        tuple(parse_cpus(cpus) for cpus in document.get("grown", ())),
        parse_cpus(document.get("hidden", "")),
        bool(document.get("one_thread", False)),
        bool(document.get("lift_quota", False)),
    )


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
    fields = {key: document[key] for key in document if key != "size"}
    return Pod(**fields, size=None if size is None else PodSize(*size))


def _write_container(container: Container) -> dict[str, Any]:
    resources = container.resources
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
        "labels": dict(container.labels),
        "annotations": dict(container.annotations),
        "hints": [[hint.kind, hint.path, format_cpus(hint.nodes)] for hint in container.hints],
    }


def _read_container(document: Mapping[str, Any]) -> Container:
    container = Container(
        _read_pod(document["pod"]),
        document["name"],
        int(document["attempt"]),
        Qos(document["qos"]),
        Resources(*document["resources"]),
        document["labels"],
        document["annotations"],
        hints=tuple(Hint(kind, path, parse_cpus(nodes)) for kind, path, nodes in document.get("hints", ())),
    )
    # What they ask is read again: a newer version may understand more of it.
    return understood(container)


def _write_set(cpus: Optional[frozenset[int]]) -> Optional[str]:
    return None if cpus is None else format_cpus(cpus)


def _read_set(text: Optional[str]) -> Optional[frozenset[int]]:
    return None if text is None else parse_cpus(text)


def _read_grant(document: Mapping[str, Any]) -> Grant:
    displaced = document["displaced"]
    cpus, mems = document["fence"]
    return Grant(
        key=document["key"],
        container=_read_container(document["container"]),
        placement=read_placement(document["placement"]),
        stance=Stance(document["stance"]),
        fence=Fence(_read_set(cpus), _read_set(mems)),
        life=Life(document["life"]),
        runs_on=parse_cpus(document["runs_on"]),
        since_s=float(document["since_s"]),
        hold_until_s=float(document["hold_until_s"]),
        exit_code=document["exit_code"],
        displaced=None if displaced is None else read_placement(displaced),
        repairs=tuple(document["repairs"]),
        why=document["why"],
        runs_in=document.get("runs_in", ""),
    )


def _read_ticket(document: Mapping[str, Any]) -> Ticket:
    return Ticket(
        document["id"],
        TicketKind(document["kind"]),
        document["key"],
        float(document["since_s"]),
        document["target"],
        read_placement(document["sent"]),
        bool(document["in_doubt"]),
        tuple(_read_grant(grant) for grant in document["replaces"]),
        tuple(_read_ticket(t) for t in document["replaced_tickets"]),
        tuple((key, read_placement(was), read_placement(now)) for key, was, now in document.get("moved", ())),
        Stance(document["found"]) if document.get("found") else None,
        tuple(_read_waiting(document.get("owed_quota", ()), *entry) for entry in document.get("waiting", ())),
    )


def _read_waiting(owed_quota: Sequence[str], key: str, cpus: str, mems: str = "") -> Waiting:
    # The memory nodes are what the first version did not write.
    return Waiting(key, parse_cpus(cpus), parse_cpus(mems), key in owed_quota)


def _read_history(document: Mapping[str, Any]) -> Record:
    return Record(**{**document, "placement": read_placement(document["placement"])})


_READERS: dict[str, Callable[[Any], Any]] = {
    "grant": _read_grant,
    "ticket": _read_ticket,
    "pod": _read_pod,
    "record": _read_history,
    "distrust": float,
}
