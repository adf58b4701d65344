"""Claims of CPUs: prepared before there is a container, and there until they are unprepared. Transitions of the engine.

A part of a claim is what one request of it was allocated. Its record stands among those of containers, and owns CPUs as a
container would; it is no container: nothing is told of it, and it never leaves its devices. What it gives to containers is
in ``members.py``, how it follows the machine in ``reconcile.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Optional

from cri_api.claims import CLAIM, claim_key, part_name
from cri_proxy.engine.members import claim_name
from cri_proxy.engine.model import ClaimPart, ContainerRecord, Life, Management, resident_of
from cri_proxy.engine.place import NEWCOMER, decide_anew, movable_owners, with_evictions, with_moves
from cri_proxy.engine.reconcile import as_claims, claim_place, give_places, reconcile
from cri_proxy.engine.state import KUBELET_KEY, State
from policies.exclusive.sparing import emptied_by
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.model import (
    UNTOUCHED,
    BudgetSpent,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    Pod,
    Qos,
    Resources,
    altered,
)

#: As many owners of CPUs are named in a refusal.
NAMED = 3


def owning(preferences: PlacementPreferences) -> PlacementPreferences:
    """What a claim's part asks of its place: CPUs of its own, in whatever namespace it is."""
    return replace(preferences, ownership="exclusive", reserved=False)


def prepare(
    state: State,
    uid: str,
    namespace: str,
    name: str,
    parts: Sequence[ClaimPart],
    now_s: float,
    enforce: bool = True,
) -> tuple[ContainerRecord, ...]:
    """Give each part of a claim its CPUs, before there is a container: all parts, or none.

    One that is there stays as it is, unless it has other devices now; one that is not among ``parts`` goes. ``enforce``
    False (mode observe, or off): nothing could be kept free for it. Returns the records of ``parts``, in their order.

    :raises PlacementRefused: a part cannot have its CPUs; the sentence says what holds them, and what would help.
    """
    subject = f"claim {namespace}/{name}"
    if not enforce:
        raise PlacementRefused(
            f"{subject} is not prepared: this node only observes, no CPUs are kept free on it"
        )
    if not state.policy.holds_claims:
        raise PlacementRefused(
            f"{subject} is not prepared: policy {state.policy.name} keeps no CPUs for claims, policy hygon does"
        )
    pod = Pod(CLAIM + uid, uid, name, namespace)
    wanted = {claim_key(part_name(uid, part.request)): part for part in parts}
    # 1. What it has, and is not to have any more.
    changed = [key for key in keys_of(state, uid) if not _is_as_asked(state, key, wanted.get(key))]
    for key in changed:
        state.drop(key)
    # 2. Its parts, the largest first.
    new = sorted(
        ((key, part) for key, part in wanted.items() if key not in state.grants),
        key=lambda item: (-item[1].count, item[0]),
    )
    for key, part in new:
        grant = _stand_in(key, pod, part, now_s)
        decision = _decided(state, grant)
        state.put(replace(grant, placement=as_claims(decision.placement), why=decision.why))
        give_places(state, decision, grant.container)
        for other in [state.grants[other] for other in decision.others if state.grants[other].is_claim]:
            state.put(altered(other, moved_s=now_s or 1.0))
        reconcile(state)
    # 3. Told once all of them are there.
    for key, _ in new:
        state.record("prepare", key, state.grants[key], now_s)
    # One that is on the same CPUs again may hide others of them.
    reconcile(state, force=bool(changed))
    return tuple(state.grants[key] for key in wanted)


def unprepare(state: State, uid: str, now_s: float) -> None:
    """End a claim. What still runs with it is placed as a container without it."""
    for key in keys_of(state, uid):
        state.record("unprepare", key, state.grants[key], now_s)
        state.drop(key)
    reconcile(state)


def keys_of(state: State, uid: str) -> tuple[str, ...]:
    """The keys of a claim's parts."""
    return state.sandboxes.get(CLAIM + uid, ())


def members_of(state: State, key: str) -> tuple[str, ...]:
    """The keys of the containers that have a claim's part, in the order of their names."""
    found = [
        grant for grant in (state.grants[member] for member in state.members) if key in grant.container.claims
    ]
    return tuple(grant.key for grant in sorted(found, key=lambda g: (g.container.path, g.key)))


def _stand_in(key: str, pod: Pod, part: ClaimPart, now_s: float) -> ContainerRecord:
    """The record of a part that has no place yet."""
    container = Container(
        pod,
        part.request,
        qos=Qos.GUARANTEED,
        resources=Resources(milli_request=part.count * 1000),
        preferences=owning(part.preferences),
    )
    return ContainerRecord(
        key=key,
        container=container,
        placement=UNTOUCHED,
        stance=Management.PLACED,
        constraint=Constraint(part.cpus),
        life=Life.CLAIM,
        since_s=now_s,
        part=part,
    )


def _is_as_asked(state: State, key: str, part: Optional[ClaimPart]) -> bool:
    """Whether a part is there as it is asked for: of the same devices, as many CPUs, or all that may be owned there."""
    grant = state.grants[key]
    if part is None or grant.part is None or grant.part.devices != part.devices:
        return False
    everything = (part.cpus & state.node.usable) - state.node.reserved
    return grant.part.count == part.count or everything <= grant.exclusive


# ---------------------------------------------------------------------- where a part goes


def _decided(state: State, grant: ContainerRecord) -> Decision:
    """The place of a part that is not in the books.

    :raises PlacementRefused: there is none.
    """
    # Containers that run with it already, and will have it, are not left without CPUs by it.
    members = [key for key in members_of(state, grant.key) if _will_have(state.grants[key], grant)]
    with state.without(members):
        # 1. The CPUs that they run on, where its record was lost; else the policy's choice.
        again = _as_they_run(state, grant, members)
        if again is not None:
            return again
        decision: Optional[Decision] = None
        reason = ""
        try:
            decision = _unless_short(grant, decide_anew(state, grant.container, grant.constraint)[0])
        except (PlacementRefused, BudgetSpent) as refusal:
            reason = str(refusal)
        decision = decision or _unless_short(grant, _with_room(state, grant)) or _repacked(state, grant)
        if decision is None:
            raise PlacementRefused(_refusal(state, grant, reason))
        # 2. Not the last CPUs of a container that can go nowhere else.
        if emptied := emptied_by(state.node, decision.placement.exclusive):
            raise PlacementRefused(f"{_subject(grant)}: {emptied}")
        if not decision.others:
            decision = with_evictions(state, grant.container, decision)
        return decision


def _will_have(member: ContainerRecord, grant: ContainerRecord) -> bool:
    """Whether a container will have all CPUs of a part: it owns none, and may use any of the devices."""
    allowed, bounds = member.constraint.cpus, grant.constraint.cpus
    is_ours = member.stance in (Management.PLACED, Management.ADOPTED)
    return (
        is_ours and not member.exclusive and (allowed is None or (bounds is not None and bounds <= allowed))
    )


def _unless_short(grant: ContainerRecord, decision: Optional[Decision]) -> Optional[Decision]:
    """A decision by which a part has all its CPUs, in whole cores one more perhaps; else None."""
    assert grant.part is not None
    if decision is None:
        return None
    return decision if len(decision.placement.exclusive) >= grant.part.count else None


def _as_they_run(state: State, grant: ContainerRecord, members: Iterable[str]) -> Optional[Decision]:
    part = grant.part
    assert part is not None
    may_own = (part.cpus & state.node.usable) - state.node.exclusive - state.node.reserved
    for key in members:
        cpus = state.grants[key].cpus
        if len(cpus) == part.count and cpus <= may_own:
            keep = Placement(cpus=cpus, exclusive=cpus, home=cpus)
            decision = claim_place(state, grant, keep)
            if decision is not None and not emptied_by(state.node, decision.placement.exclusive):
                return replace(decision, why=f"the CPUs that its containers run on: {decision.why}")
    return None


def _with_room(state: State, grant: ContainerRecord) -> Optional[Decision]:
    """A place that containers with CPUs of their own have left, where the configuration lets these be moved."""
    part = grant.part
    assert part is not None
    if not state.options.move_exclusive or not state.max_moves or not state.policy.moves_others:
        return None
    free = (part.cpus & state.node.usable) - state.node.exclusive - state.node.reserved
    owners = movable_owners(state, part.cpus)
    missing = part.count - len(free)
    enough = [owner for owner in owners if len(owner.exclusive & part.cpus) >= missing]
    movers = [enough[-1]] if enough else owners[: state.max_moves]
    if not movers:
        return None
    return with_moves(state, grant.container, grant.constraint, state.host.topology.root, movers)


def _repacked(state: State, grant: ContainerRecord) -> Optional[Decision]:
    """A place that other claims have left, as few and as small ones as can be, which go to other CPUs of their devices."""
    part = grant.part
    assert part is not None
    others = [g for g in state.grants.values() if g.is_claim and not g.exclusive.isdisjoint(part.cpus)]
    others.sort(key=lambda g: (len(g.exclusive), g.key))
    for count in range(1, min(len(others), state.max_moves) + 1):
        if (found := _with_others_moved(state, grant, others[:count][::-1])) is not None:
            return found
    return None


def _with_others_moved(
    state: State, grant: ContainerRecord, others: Sequence[ContainerRecord]
) -> Optional[Decision]:
    added: list[str] = []
    places: dict[str, Placement] = {}
    with state.without([other.key for other in others]):
        first = claim_place(state, grant)
        if first is None:
            return None
        try:
            _add(state, NEWCOMER, altered(grant, placement=first.placement), added)
            for other in others:
                place = other.placement
                keep = altered(place, exclusive=place.exclusive - first.placement.exclusive)
                anew = claim_place(state, other, keep)
                if anew is None:
                    return None
                if anew.placement.exclusive != place.exclusive:
                    places[other.key] = anew.placement
                _add(state, f"{NEWCOMER} {other.key}", altered(other, placement=anew.placement), added)
        finally:
            for key in added:
                state.node.remove(key)
    names = ", ".join(f"claim {claim_name(state.grants[key])}" for key in places)
    return replace(first, why=f"{first.why}; {names} moved to make room", others=places)


def _add(state: State, key: str, grant: ContainerRecord, added: list[str]) -> None:
    state.node.add(key, resident_of(grant))
    added.append(key)


# ---------------------------------------------------------------------- why it has none


def _subject(grant: ContainerRecord) -> str:
    part = grant.part
    assert part is not None
    where = ", ".join(part.devices) or f"CPUs {format_cpus(part.cpus)}"
    count = "1 CPU" if part.count == 1 else f"{part.count} CPUs"
    return f"claim {claim_name(grant)} wants {count} of {where}"


def _refusal(state: State, grant: ContainerRecord, reason: str) -> str:
    """What holds back the CPUs that a part wants, and what would help."""
    part, node = grant.part, state.node
    assert part is not None
    free = (part.cpus & node.usable) - node.exclusive - node.reserved
    owners = _owners(state, part.cpus)
    held = [f"{cpus} {'belongs' if cpus == 1 else 'belong'} to {owner}" for owner, cpus in owners[:NAMED]]
    if len(owners) > NAMED:
        held.append(f"{sum(cpus for _, cpus in owners[NAMED:])} to {len(owners) - NAMED} more")
    for cpus, words in (
        (part.cpus & node.reserved, "reserved"),
        (part.cpus - node.usable, "offline or not available to containers"),
    ):
        held += [f"{len(cpus)} {'is' if len(cpus) == 1 else 'are'} {words}"] if cpus else []
    sentence = f"{_subject(grant)}; {len(free)} of {len(part.cpus)} are free"
    sentence += f": {', '.join(held)}" if held else ""
    help_ = f"It fits once {owners[0][0]} has ended" if owners else "It fits with more CPUs available there"
    if len(free) >= part.count:
        if len(node.usable - node.exclusive - node.isolated) <= part.count:
            return f"{sentence}. They are the last that containers without CPUs of their own have. {help_}"
        return f"{sentence}. {reason or 'They do not make up whole cores: a claim with smt any would fit'}"
    return f"{sentence}. {help_}"


def _owners(state: State, cpus: frozenset[int]) -> list[tuple[str, int]]:
    """What owns some of these CPUs, in words, and how many of them; the largest first."""
    found: dict[str, frozenset[int]] = {}
    for grant in state.grants.values():
        if own := grant.exclusive & cpus:
            name = f"claim {claim_name(grant)}" if grant.is_claim else f"container {grant.container.path}"
            found[name] = found.get(name, NO_CPUS) | own
    kubelets = state.node.residents.get(KUBELET_KEY)
    left = NO_CPUS if kubelets is None else (kubelets.exclusive & cpus).difference(*found.values())
    if left:
        found["kubelet's CPU manager"] = left
    return sorted(((name, len(own)) for name, own in found.items()), key=lambda item: (-item[1], item[0]))
