"""What a reload with another configuration would move on a node: tried on a copy of the records, changing nothing.

The copy goes through the same two transitions as the daemon's own engine: it is restored, as at a start, and
then rehosted, as at a reload. So it moves what a reload would move, and nothing that need not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Optional

from cri_proxy.config.config import Config, engine_options
from cri_proxy.engine.build import make_engine, make_policy
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import NO_ORDERS, ContainerRecord, Host, Management, Orders, Ticket
from policies.affinity.graph.traffic import Traffic
from policies.frozen import frozen
from policies.machine.cpus import format_cpus
from policies.model import Affinity, Pod
from policies.reasons import plain


@frozen
class Records:
    """What an engine knows at one moment; taking it is quick, and what is done with it changes no engine."""

    host: Host
    grants: tuple[ContainerRecord, ...]
    tickets: tuple[Ticket, ...]
    pods: tuple[Pod, ...]
    affinity: Optional[Affinity] = None
    traffic: Traffic = field(default_factory=Traffic)
    orders: Orders = NO_ORDERS


@frozen
class Shift:
    """One container that would be told of other CPUs or memory nodes."""

    id: str
    container: str
    cpus_before: str
    cpus: str
    mems_before: str
    mems: str
    why: str


def records_of(engine: Engine) -> Records:
    """The records of an engine as they are now."""
    grants = sorted(engine.grants.values(), key=lambda grant: (grant.since_s, grant.key))
    pods, tickets = engine.pods.values(), engine.tickets.values()
    affinity, traffic = engine.affinity, engine.traffic
    return Records(engine.host, tuple(grants), tuple(tickets), tuple(pods), affinity, traffic, engine.orders)


def what_would_move(records: Records, running: Config, wanted: Config, host: Host) -> tuple[Shift, ...]:
    """The containers that a reload from ``running`` to ``wanted`` would move, by their paths.

    ``host``: the node as the wanted configuration lets us use it.
    """
    # 1. An engine that knows what the daemon's knows. What it would put right by itself is no difference.
    trial = make_engine(running, records.host)
    trial.affinity = records.affinity
    trial.set_orders(records.orders)
    trial.set_traffic(records.traffic)
    trial.restore(records.grants, records.tickets, records.pods, (), {})
    for update in trial.lacking():
        trial.begin_update(update.id)
        trial.took(update.id)
    before = dict(trial.grants)
    # 2. The reload.
    trial.rehost(host, make_policy(wanted, host.topology), engine_options(wanted))
    # 3. Which containers the runtime would be told of.
    shifts = [_shift(before[u.id], trial.grants[u.id], u.why) for u in trial.lacking()]
    return tuple(sorted(shifts, key=lambda shift: (shift.container, shift.id)))


def _shift(was: ContainerRecord, now: ContainerRecord, why: str) -> Shift:
    return Shift(
        id=was.key,
        container=was.container.path,
        cpus_before=format_cpus(was.cpus),
        cpus=format_cpus(now.cpus),
        mems_before=_mems(was),
        mems=_mems(now),
        why=why,
    )


def _mems(grant: ContainerRecord) -> str:
    return format_cpus(grant.placement.mems) if grant.stance is Management.PLACED else ""


def diff_document(records: Records, running: Config, wanted: Config, host: Host) -> dict[str, Any]:
    """What would move and which options differ, as plain data."""
    old, new = ({key: value for key, value, _ in config.show()} for config in (running, wanted))
    changed = running.differences(wanted)
    live = running.taking_over(wanted)
    return {
        "containers": sum(not grant.is_claim for grant in records.grants),
        "changed": [{"key": key, "from": old[key], "to": new[key]} for key in changed],
        "restart": list(running.restart_needed(wanted)),
        "moves": [
            {
                "id": shift.id,
                "container": shift.container,
                "from": shift.cpus_before,
                "to": shift.cpus,
                "mems_from": shift.mems_before,
                "mems_to": shift.mems,
                "why": plain(shift.why),
            }
            for shift in what_would_move(records, running, live, host)
        ],
    }


def diff_text(document: Mapping[str, Any]) -> str:
    """The same for people."""
    lines = [f"{row['key']}: {row['from']} -> {row['to']}" for row in document["changed"]]
    if document["restart"]:
        lines.append(f"a restart is needed for {', '.join(document['restart'])}")
    moves = document["moves"]
    if not moves:
        return "\n".join([*lines, "nothing would move"])
    rows = [(row["container"], f"{row['from']} -> {row['to']}{_mems_text(row)}", row["why"]) for row in moves]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines += [f"{name:<{widths[0]}}  {cpus:<{widths[1]}}  {why}" for name, cpus, why in rows]
    return "\n".join([*lines, f"{len(moves)} of {document['containers']} containers would move"])


def _mems_text(row: Mapping[str, Any]) -> str:
    if row["mems_from"] == row["mems_to"]:
        return ""
    return f" (memory nodes {row['mems_from'] or 'not set'} -> {row['mems_to'] or 'not set'})"
