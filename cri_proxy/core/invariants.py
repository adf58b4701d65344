"""What must hold of all placed containers after every transition; checked in tests and, cheaply, in production."""

from __future__ import annotations

from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Life, Stance
from policies.cpus import format_cpus


def broken_invariants(engine: Engine) -> list[str]:
    """Sentences, one for each violation; empty if all is well.

    Exclusive sets are disjoint from each other, from every shared set and from the reserved set; no cpuset
    is empty; every CPU and node sent is usable; books and records agree.
    """
    problems: list[str] = []
    node = engine.node
    owner: dict[int, str] = {}
    shared: dict[int, str] = {}
    for grant in engine.grants.values():
        who = f"{grant.container.path} ({grant.key})"
        for cpu in grant.exclusive:
            if owner.setdefault(cpu, who) != who and not _same_container(engine, grant.key):
                problems.append(f"CPU {cpu} is exclusive to {owner[cpu]} and to {who}")
        if grant.stance is not Stance.PLACED:
            continue
        placement = grant.placement
        if not placement.cpus:
            problems.append(f"{who} has an empty cpuset")
        if placement.cpus - node.usable:
            problems.append(f"{who} has CPUs that are not usable: {format_cpus(placement.cpus - node.usable)}")
        if placement.mems - node.mems:
            problems.append(f"{who} has memory nodes that are not usable: {format_cpus(placement.mems - node.mems)}")
        if grant.fence.cpus is not None and placement.cpus - grant.fence.cpus:
            problems.append(f"{who} left the caller's cpuset {format_cpus(grant.fence.cpus)}")
        if placement.exclusive & node.reserved:
            problems.append(f"{who} has exclusive CPUs that are reserved: {format_cpus(placement.exclusive & node.reserved)}")
        for cpu in placement.cpus - placement.exclusive:
            shared[cpu] = who
    for cpu in sorted(owner.keys() & shared.keys()):
        problems.append(f"CPU {cpu} is exclusive to {owner[cpu]} and shared by {shared[cpu]}")
    if set(engine.grants) != set(node.residents) - {"kubelet"}:
        problems.append("the node's books do not hold the containers the records name")
    for key, ticket in engine.tickets.items():
        if ticket.key not in engine.grants or engine.grants[ticket.key].life is not Life.CREATING:
            problems.append(f"{key} has no pending grant")
    return problems


def _same_container(engine: Engine, key: str) -> bool:
    """A resize on its way has its container's CPUs twice in the records: the old and the new place."""
    return any(key in (t.key, t.target) and t.target for t in engine.tickets.values())
