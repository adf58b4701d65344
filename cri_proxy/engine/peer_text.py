"""The peers of a container, as people are told: in the reason of a placement, in ``explain``, in the moves of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.records import Grant
from policies.affinity.graph.traffic import LINE_BYTES
from policies.affinity.pull.observed import Peer
from policies.machine.topology import Topology
from policies.model import Container, Decision

#: As many are named in a sentence, and as many are listed.
NAMED = 3
LISTED = 10

#: Where two containers are, by the smallest domain that holds both.
WHERE = (
    ("cluster", "same cluster"),
    ("l3", "same L3"),
    ("numa", "same NUMA node"),
    ("socket", "same socket"),
)
APART = "different sockets"


def with_peers(ledger: Ledger, container: Container, decision: Decision, key: str = "") -> Decision:
    """The decision, saying which peers have pulled the container: at most three, those it is near first."""
    if not decision.placement.cpus:
        return decision
    words = near_words(ledger, ledger.peers(container, key), decision.placement.cpus)
    return replace(decision, why=f"{decision.why}; {words}") if words else decision


def near_words(ledger: Ledger, peers: Iterable[Peer], cpus: frozenset[int]) -> str:
    """``near default/web-1/nginx (12.3 MB/s), far from ...`` for the strongest peers; "" without peers."""
    topology = ledger.host.topology
    near: list[str] = []
    far: list[str] = []
    for peer in list(peers)[:NAMED]:
        resident = ledger.node.residents[peer.key]
        if resident.container is None:
            continue
        name = f"{resident.container.path} ({rate_text(peer)})"
        (near if are_near(topology, cpus, resident.cpus) else far).append(name)
    parts = [f"near {', '.join(near)}"] if near else []
    parts += [f"far from {', '.join(far)}"] if far else []
    return ", ".join(parts)


def are_near(topology: Topology, cpus: frozenset[int], others: frozenset[int]) -> bool:
    """Whether two containers can be in one NUMA node."""
    return not topology.nodes_of(cpus).isdisjoint(topology.nodes_of(others))


def where_both(topology: Topology, cpus: frozenset[int], others: frozenset[int]) -> str:
    """The smallest domain that holds two containers, in words."""
    return (*(words for _, words in WHERE), APART)[nearness(topology, cpus, others)]


def nearness(topology: Topology, cpus: frozenset[int], others: frozenset[int]) -> int:
    """The smallest domain that holds two containers, as an index into ``WHERE``: 0 is nearest, past its end is apart."""
    both = cpus | others
    domain = [d for d in topology.domains if both <= d.cpus][-1:]
    levels = domain[0].levels if domain else ()
    return next((index for index, (level, _) in enumerate(WHERE) if level in levels), len(WHERE))


def rate_text(peer: Peer) -> str:
    """How much two containers say to each other. Of a remembered peer only the weight is known: as many bytes."""
    if peer.bytes_per_s or peer.messages_per_s:
        return bytes_text(peer.bytes_per_s)
    return f"about {bytes_text(peer.weight * LINE_BYTES)}"


def bytes_text(bytes_per_s: float) -> str:
    """A rate for people."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.1f} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def peer_rows(ledger: Ledger, grant: Grant) -> list[dict[str, Any]]:
    """The strongest peers of a container, for ``explain``."""
    rows = []
    for peer in ledger.peers(grant.container, grant.key)[:LISTED]:
        resident = ledger.node.residents[peer.key]
        rows.append(
            {
                "id": peer.key,
                "container": "" if resident.container is None else resident.container.path,
                "weight": round(peer.weight, 1),
                "bytes_per_s": round(peer.bytes_per_s, 1),
                "messages_per_s": round(peer.messages_per_s, 1),
                "remembered": peer.is_remembered,
                "where": where_both(ledger.host.topology, grant.cpus, resident.cpus),
            }
        )
    return rows


def peer_text(row: dict[str, Any]) -> str:
    """One of these rows for the terminal."""
    rates = f"{bytes_text(row['bytes_per_s'])}, {row['messages_per_s']:.0f} messages/s"
    if row["remembered"]:
        rates = f"about {bytes_text(row['weight'] * LINE_BYTES)}, from what other replicas have done"
    return f"talks to {row['container']}: {rates} ({row['where']})"
