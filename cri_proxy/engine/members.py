"""Containers that have claims: which CPUs these give them, and where the rest of what they ask for is.

A claim's part owns its CPUs (``ContainerRecord.is_claim``); the containers that have it are its members and run there. What
a member requests beside its claims is on shared CPUs, in the smallest domain around these. One function says what a
member's place is, from the records of its claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from cri_proxy.engine.model import ContainerRecord, milli_beside
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.memory import choose_memory, memory_need
from policies.model import Constraint, Container, Decision, Placement, altered
from policies.node import Node
from policies.settings import PlacementSettings

#: The domains that may hold a member's shared CPUs, and what places in them are called.
AROUND = (("l3", "ccx"), ("numa", "numa"), ("socket", "socket"), ("machine", "machine"))


def claims_of(grants: Mapping[str, ContainerRecord], container: Container) -> tuple[ContainerRecord, ...]:
    """The records of the claims that a container has, as far as they are prepared.

    Their names may come from a pod's own environment: a claim of another namespace is none of its.
    """
    found = [grants[key] for key in container.claims if key in grants]
    namespace = container.pod.namespace
    return tuple(grant for grant in found if grant.is_claim and grant.container.pod.namespace == namespace)


def claimed_by(
    grants: Mapping[str, ContainerRecord], container: Container
) -> tuple[frozenset[int], frozenset[int]]:
    """The CPUs that a container's claims own, some of which may be offline; and those of them on which nothing runs."""
    places = [grant.placement for grant in claims_of(grants, container)]
    return NO_CPUS.union(*[p.exclusive for p in places]), NO_CPUS.union(*[p.hidden for p in places])


def rest_of(grants: Mapping[str, ContainerRecord], container: Container) -> int:
    """What a container requests beside its claims, in milli-CPUs: by what they were given, whatever is left of it."""
    return milli_beside(
        container,
        sum(
            len(grant.placement.exclusive)
            if grant.part is None
            else max(grant.part.count, len(grant.placement.exclusive))
            for grant in claims_of(grants, container)
        ),
    )


def member_place(
    grants: Mapping[str, ContainerRecord],
    node: Node,
    settings: PlacementSettings,
    container: Container,
    constraint: Constraint,
) -> Optional[Decision]:
    """The place of a container, which is not in the books, by its claims; None: they give it no CPU that may be used."""
    claims = claims_of(grants, container)
    claimed, hidden = claimed_by(grants, container)
    cpus = (claimed - hidden) & node.usable
    cpus = cpus if constraint.cpus is None else cpus & constraint.cpus
    if not cpus:
        return None
    # 1. The shared CPUs around them, for what it requests beside them.
    rest = rest_of(grants, container)
    home = _around(node, claimed, rest, constraint) if rest > 0 else NO_CPUS
    shared = home & node.shared
    cpus |= shared if constraint.cpus is None else shared & constraint.cpus
    # 2. The memory that goes with both.
    mode = next((g.container.preferences.memory for g in claims if g.container.preferences.memory), "")
    memory = choose_memory(
        node,
        cpus,
        container.resources.memory_limit_bytes,
        mode or settings.memory,
        settings.memory_only_nodes,
        constraint.mems,
        memory_need(node, container, settings),
    )
    place = Placement(
        cpus=cpus,
        mems=memory.nodes,
        level=_level(node.topology, cpus),
        home=home,
        memory_charge=memory.charge,
        hidden=hidden,
        claimed=claimed,
    )
    why = f"the {_count(len(claimed))} of {claims_text(claims)}"
    why += f", and {rest}m on shared ones" if shared else ""
    missing = len(container.claims) - len(claims)
    more = "1 more part is" if missing == 1 else f"{missing} more parts are"
    why += f"; {more} not prepared here" if missing else ""
    return Decision(place, f"{why}; {memory.why}" if memory.why else why)


def class_by_claims(grants: Mapping[str, ContainerRecord], container: Container) -> Optional[tuple[str, str]]:
    """What a container is to others by the first of its claims that says it, and what says so; None: none does."""
    for grant in claims_of(grants, container):
        if kind := grant.container.preferences.isolation_class:
            return kind, f"claim {claim_name(grant)}"
    return None


def without_claims(decision: Decision, container: Container) -> Decision:
    """The decision about a container whose claims give it nothing, saying so."""
    names = ", ".join(key.partition("/")[2] for key in container.claims)
    return altered(
        decision, why=f"its claim {names} is not prepared here, so without CPUs of it: {decision.why}"
    )


def claims_text(claims: tuple[ContainerRecord, ...]) -> str:
    """Claims for a sentence, each once."""
    names = list(dict.fromkeys(claim_name(grant) for grant in claims))
    return f"its claim {names[0]}" if len(names) == 1 else f"its claims {', '.join(names)}"


def claim_name(grant: ContainerRecord) -> str:
    """``namespace/name`` of the claim that a record is a part of."""
    return f"{grant.container.pod.namespace}/{grant.container.pod.name}"


def _around(node: Node, claimed: frozenset[int], rest: int, constraint: Constraint) -> frozenset[int]:
    """The smallest domain around claimed CPUs whose shared ones have room for ``rest`` milli-CPUs, else that has any."""
    domains = [d.cpus for level, _ in AROUND for d in node.topology.at(level) if claimed <= d.cpus]
    first = NO_CPUS
    for cpus in sorted(domains, key=len):
        left = cpus & node.shared
        left = left if constraint.cpus is None else left & constraint.cpus
        if left and len(left) * 1000 - node.charge_milli(left) >= rest:
            return cpus
        first = first or (cpus if left else NO_CPUS)
    return first


def _level(topology: Topology, cpus: frozenset[int]) -> str:
    around = [(len(d.cpus), name) for level, name in AROUND for d in topology.at(level) if cpus <= d.cpus]
    return min(around, key=lambda found: found[0])[1] if around else "machine"


def _count(cpus: int) -> str:
    return "1 CPU" if cpus == 1 else f"{cpus} CPUs"
