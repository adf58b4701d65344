"""What an API server's audit log says of a driver: how often it writes and reads, and when a pod's steps were done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

#: What is logged: without bodies, once a call has ended, or a watch has begun.
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
WRITES = frozenset(("create", "update", "patch", "delete", "deletecollection"))
#: Of a watch: that it has begun. Its end is no second one.
_BEGUN = "ResponseStarted"


@dataclass(frozen=True)
class Call:
    """One call of the API. ``began_s``, ``ended_s``: seconds since the epoch."""

    program: str
    user: str
    verb: str
    #: With the subresource, as "pods/binding".
    resource: str
    name: str
    began_s: float
    ended_s: float

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES


def read_calls(lines: Iterable[str]) -> Iterator[Call]:
    """The calls of resources; a line that is not whole yet is left out."""
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        of = said.get("objectRef")
        is_watch = said["verb"] == "watch"
        if not of or (said["stage"] == _BEGUN) is not is_watch:
            continue
        resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
        program = said.get("userAgent", "").partition(" ")[0].partition("/")[0]
        began_s, ended_s = (_seconds(said[key]) for key in ("requestReceivedTimestamp", "stageTimestamp"))
        user = said.get("user", {}).get("username", "")
        yield Call(program, user, said["verb"], resource, of.get("name", ""), began_s, ended_s)


def _seconds(said: str) -> float:
    return datetime.fromisoformat(said.replace("Z", "+00:00")).timestamp()


def counted(calls: Iterable[Call], program: str, user: str, since_s: float, until_s: float) -> Counter[str]:
    """How often a program did what between two moments, by verb and resource."""
    return Counter(
        f"{call.verb} {call.resource}"
        for call in calls
        if (call.program, call.user) == (program, user) and since_s <= call.began_s < until_s
    )


def is_of_claims(what: str) -> bool:
    """Of what :func:`counted` tells by: whether it is of the group of claims and slices."""
    return what.partition(" ")[2].startswith("resource")


def shown(counts: Mapping[str, int], are_writes: bool) -> str:
    """Writes, or all else, as a cell of a table."""
    told = {what: count for what, count in counts.items() if (what.partition(" ")[0] in WRITES) is are_writes}
    return ", ".join(f"{count} {what}" for what, count in sorted(told.items())) or "none"


def step_times(calls: Iterable[Call], pod: str, since_s: float) -> tuple[float, float, float]:
    """When a pod's claim was allocated, the pod bound and its claim read on its node; 0 where that is not there."""
    allocated_s = bound_s = read_s = 0.0
    for call in calls:
        if call.began_s < since_s:
            continue
        if call.resource == "pods/binding" and call.name == pod:
            bound_s = call.ended_s
        elif call.resource.startswith("resourceclaims") and call.name.startswith(f"{pod}-"):
            if call.is_write and call.program == "kube-scheduler" and not allocated_s:
                allocated_s = call.ended_s
            elif call.verb == "get" and call.program in ("dracpu", "cri-resmgr-agent"):
                read_s = read_s or call.ended_s
    return allocated_s, bound_s, read_s
