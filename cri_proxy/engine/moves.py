"""The moves of a plan: each is checked again when it is made, and can be taken back. Transitions of the engine.

A plan was made from a picture that may be old by now. All of its moves that still hold are made in one transition;
a container that is not where the plan thinks, or finds no room, stays, and the others are tried again without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Optional

from cri_proxy.engine.model import ContainerRecord, Life, Management, Move, MoveEffect, Plan, resident_of
from cri_proxy.engine.reconcile import barred_from_owning, effective, keep_memory, memory_for, reconcile
from cri_proxy.engine.state import State
from policies.affinity.graph.traffic import LINE_BYTES
from policies.affinity.pull.observed import Peer
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.model import (
    BudgetSpent,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementRefused,
    wanted_milli,
)

#: Of as many of its peers, the heaviest ones, the record of a move says whether it has come nearer to them.
MOST_PEERS = 10
#: Key in the books of a container at its new place, while the plan is being checked.
ARRIVED = "arrived "


def may_move(state: State, grant: ContainerRecord, resized: Iterable[str], is_order: bool = False) -> bool:
    """Whether a plan may move a container at all. ``resized``: those with a resize on its way.

    ``is_order``: the plan brings containers into the zones that they are pinned to, which others keep them in; those
    with exclusive CPUs too.
    """
    return (
        grant.stance is Management.PLACED
        and grant.life not in (Life.HELD, Life.CLAIM)
        and not grant.container.claims
        and not grant.placement.group
        and grant.placement.level != "reserved"
        and (is_order or not grant.exclusive)
        and state.policy.moves_others
        and grant.key not in resized
        and (is_order or state.pin_of(grant.container) is None)
        # Those that share their pod's CPUs have one place.
        and (is_order or grant.container.pod_share is None or grant.container.pod_share.count == 1)
    )


def being_resized(state: State) -> frozenset[str]:
    """The containers that are in the books twice, and their second records."""
    return frozenset(key for t in state.tickets.values() if t.target for key in (t.key, t.target))


def apply(state: State, plan: Plan) -> None:
    """Make the moves of a plan that still hold; the others are dropped."""
    # 1. Those that may be moved, and are not there already.
    resized = being_resized(state)
    wanted: dict[str, Move] = {}
    for move in () if state.orders.freeze else plan.moves:
        grant = state.grants.get(move.id)
        if grant is None or not may_move(state, grant, resized, plan.is_order):
            continue
        if _home(grant, move) not in (NO_CPUS, grant.placement.home):
            wanted.setdefault(move.id, move)
    # 2. Their new places, with all of them out of the way; a container that finds none is in the way of others again.
    while True:
        places = _new_places(state, wanted)
        if len(places) == len(wanted):
            break
        wanted = {key: move for key, move in wanted.items() if key in places}
    # 3. All of them are entered. A container that owns CPUs takes some from others, and leaves some to others.
    was = {key: state.grants[key] for key in wanted}
    for key, placement in places.items():
        why = "; ".join(words for words in (wanted[key].why, plan.why) if words)
        moved = replace(
            was[key], placement=placement, displaced=None, why=why or "moved by a plan", moved_s=plan.at_s
        )
        state.put(moved)
    for key, move in wanted.items():
        state.record("rebalance", key, state.grants[key], plan.at_s, _effect(state, was, wanted, move))
    reconcile(state)


def _effect(
    state: State, was: Mapping[str, ContainerRecord], wanted: Mapping[str, Move], move: Move
) -> MoveEffect:
    """What a move has brought, with all others of its transition made: to which of its peers it is nearer than before."""
    topology = state.host.topology
    nearer: list[str] = []
    farther: list[str] = []
    for peer in move.peers[:MOST_PEERS]:
        now = state.grants.get(peer)
        if now is None or not now.cpus:
            continue
        before = nearness(topology, was[move.id].cpus, was.get(peer, now).cpus)
        after = nearness(topology, state.grants[move.id].cpus, now.cpus)
        if after != before:
            (nearer if after < before else farther).append(peer)
    exchanged = [
        key
        for key, other in wanted.items()
        if move.exchange and other.exchange == move.exchange and key != move.id
    ]
    return MoveEffect(move.gain, tuple(nearer), tuple(farther), tuple(exchanged))


def _home(grant: ContainerRecord, move: Move) -> frozenset[int]:
    return move.home if grant.constraint.cpus is None else move.home & grant.constraint.cpus


def _new_places(state: State, moves: Mapping[str, Move]) -> dict[str, Placement]:
    """The placements of the containers that find one where they are to go, in the order of the moves."""
    rooms = {move.home: _room_milli(state, move.home) for move in moves.values()}
    faults = {key: state.fault(state.grants[key].container, state.grants[key].cpus) for key in moves}
    places: dict[str, Placement] = {}
    with state.without(moves):
        arrived: list[str] = []
        try:
            for key, move in moves.items():
                grant = state.grants[key]
                place = _owned(state, grant, move) if grant.exclusive else _shared(state, grant, move)
                # Where it is full already, it may become no fuller.
                least_milli = min(0, rooms[move.home]) + grant.container.resources.milli_request
                if place is None or (not place.exclusive and _room_milli(state, move.home) < least_milli):
                    continue
                # Containers have come since the plan was made, and a plan knows no terms that mean very many.
                if state.fault(grant.container, place.cpus) > faults[key]:
                    continue
                places[key] = place
                state.node.add(ARRIVED + key, resident_of(replace(grant, placement=place)))
                arrived.append(ARRIVED + key)
        finally:
            for key in arrived:
                state.node.remove(key)
    return places


def _room_milli(state: State, cpus: frozenset[int]) -> int:
    """What is left of the shared CPUs of a domain."""
    shared = cpus & state.node.shared
    return len(shared) * 1000 - state.node.charge_milli(shared)


def _shared(state: State, grant: ContainerRecord, move: Move) -> Optional[Placement]:
    """The container at its new home, if that has as many CPUs as it wants (or as it has)."""
    placement = replace(grant.placement, home=_home(grant, move), level=move.level, squeezed=False)
    cpus = effective(state, placement, grant.constraint)
    if not cpus or len(cpus) * 1000 < min(wanted_milli(grant.container), len(grant.cpus) * 1000):
        return None
    old = grant.placement
    memory = memory_for(state, cpus, grant.container, grant.constraint, old.group, old.memory_charge)
    placement = replace(placement, cpus=cpus, mems=memory.nodes, memory_charge=memory.charge)
    return keep_memory(state, old, placement, grant.constraint)


def _owned(state: State, grant: ContainerRecord, move: Move) -> Optional[Placement]:
    """As many CPUs of its own inside its new home, as the policy picks them; None if that cannot be."""
    inside = Constraint(_home(grant, move), grant.constraint.mems)
    try:
        decision = state.place(state.request(grant.container, inside, grant.key))
    except (PlacementRefused, BudgetSpent):
        return None
    place = decision.placement
    if not decision.fits or decision.others or len(place.exclusive) != len(grant.placement.exclusive):
        return None
    # Containers that share that domain keep what they have asked for.
    left = (move.home & state.node.shared) - place.exclusive
    if state.node.charge_milli(move.home & state.node.shared) > len(left) * 1000:
        return None
    return keep_memory(state, grant.placement, place, grant.constraint)


def take_back(state: State, made: Sequence[Move], why: str = "") -> bool:
    """Undo a move of a plan, or an exchange (the runtime refused it, containers wait), if the places before hold.

    ``made``: as ``plan_of`` has made them; they go back at once, all of them that are there still, or none: False,
    if one is elsewhere by now, or its old place is taken.
    """
    # 1. Those that are there still, none of which is anywhere else by now.
    back = {move.id: move for move in made if move.was is not None and _is_there(state, move.id)}
    was = {key: state.grants[key] for key in back}
    resized = being_resized(state)
    for key, move in back.items():
        grant = was[key]
        if not may_move(state, grant, resized, is_order=True) or not grant.placement.home <= move.home:
            return False
    # 2. Their old places, with all of them out of the way.
    places = _old_places(state, back)
    if not back or len(places) < len(back):
        return False
    # 3. Back, with their memory where it was.
    reason = f"back at its place before the plan: {why}" if why else "back at its place before the plan"
    for key, place in places.items():
        state.put(replace(was[key], placement=place, displaced=None, why=reason, moved_s=0.0))
        state.outcome(key, f"taken back{': ' + why if why else ''}")
    reconcile(state)
    return True


def _is_there(state: State, key: str) -> bool:
    return key in state.grants and state.grants[key].life in (Life.CREATED, Life.RUNNING)


def _old_places(state: State, back: Mapping[str, Move]) -> dict[str, Placement]:
    """The placements of before of those that have room there still, and whose CPUs no other container owns."""
    places: dict[str, Placement] = {}
    with state.without(back), ExitStack() as arrived:
        for key, move in back.items():
            grant, old = state.grants[key], move.was
            assert old is not None
            cpus = effective(state, old, grant.constraint)
            is_free = old.exclusive.isdisjoint(state.node.exclusive | barred_from_owning(state))
            has_room = _room_milli(state, cpus) >= grant.container.resources.milli_request or old.exclusive
            if not is_free or not has_room or not cpus >= old.cpus:
                continue
            mems = old.mems & state.node.mems
            mems = mems if grant.constraint.mems is None else mems & grant.constraint.mems
            places[key] = replace(old, cpus=cpus, mems=mems or grant.placement.mems)
            state.node.add(ARRIVED + key, resident_of(replace(grant, placement=places[key])))
            arrived.callback(state.node.remove, ARRIVED + key)
    return places


# ---------------------------------------------------------------------- peers, as people are told

# In the reason of a placement, in ``explain``, in the moves of a plan.

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


def with_peers(state: State, container: Container, decision: Decision, key: str = "") -> Decision:
    """The decision, saying which peers have pulled the container: at most three, those it is near first."""
    if not decision.placement.cpus or state.observed.is_empty:
        return decision
    words = near_words(state, state.peers(container, key), decision.placement.cpus)
    return replace(decision, why=f"{decision.why}; {words}") if words else decision


def near_words(state: State, peers: Iterable[Peer], cpus: frozenset[int]) -> str:
    """``near default/web-1/nginx (12.3 MB/s), far from ...`` for the strongest peers; "" without peers."""
    topology = state.host.topology
    near: list[str] = []
    far: list[str] = []
    for peer in list(peers)[:NAMED]:
        resident = state.node.residents[peer.key]
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


def peer_rows(state: State, grant: ContainerRecord) -> list[dict[str, Any]]:
    """The strongest peers of a container, for ``explain``."""
    rows = []
    for peer in state.peers(grant.container, grant.key)[:LISTED]:
        resident = state.node.residents[peer.key]
        rows.append(
            {
                "id": peer.key,
                "container": "" if resident.container is None else resident.container.path,
                "weight": round(peer.weight, 1),
                "bytes_per_s": round(peer.bytes_per_s, 1),
                "messages_per_s": round(peer.messages_per_s, 1),
                "remembered": peer.is_remembered,
                "where": where_both(state.host.topology, grant.cpus, resident.cpus),
            }
        )
    return rows


def peer_text(row: dict[str, Any]) -> str:
    """One of these rows for the terminal."""
    rates = f"{bytes_text(row['bytes_per_s'])}, {row['messages_per_s']:.0f} messages/s"
    if row["remembered"]:
        rates = f"about {bytes_text(row['weight'] * LINE_BYTES)}, from what other replicas have done"
    return f"talks to {row['container']}: {rates} ({row['where']})"
