"""What must hold of all containers after every transition, checked in tests and, cheaply, in production; and its mending.

What is broken by a bug is told by ``broken_invariants``; what cannot be had on a node that is too full by
``crowded_out``. ``mend`` mends both, where that can be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import replace
from typing import Optional, Protocol

from cri_proxy.engine.members import claimed_by
from cri_proxy.engine.model import ContainerRecord, Host, Life, Management, Ticket, resident_of
from cri_proxy.engine.moves import being_resized
from cri_proxy.engine.reconcile import as_claims, effective, keep_memory, placed, reconcile
from cri_proxy.engine.state import KUBELET_KEY, State
from policies.exclusive.sparing import emptied_by, last_ones
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.model import BudgetSpent, Container, Placement, PlacementRefused, altered
from policies.node import Node

#: Ways to give a container a CPU of another owner's that are tried in one go: each costs a decision, a millisecond or two.
TRIES = 4


class EngineView(Protocol):
    """What is looked at: of an engine, or of its books."""

    @property
    def grants(self) -> Mapping[str, ContainerRecord]: ...

    @property
    def tickets(self) -> Mapping[str, Ticket]: ...

    @property
    def node(self) -> Node: ...

    @property
    def host(self) -> Host: ...


def broken_invariants(engine: EngineView) -> list[str]:
    """Sentences, one for each violation; empty if all is well.

    Exclusive sets are disjoint from each other, from every shared set and from the reserved set; no cpuset
    is empty; every CPU and node sent is usable; books and records agree.
    """
    problems: list[str] = []
    # A resize on its way has its container twice in the records: the two may share CPUs.
    target = {t.key: t.target for t in engine.tickets.values() if t.target}
    twins = {**target, **{old: new for new, old in target.items()}}
    owners = _owners(engine, target)
    for cpu, who in sorted(owners.items()):
        if len(who) > 1 and not _is_one_container(engine, cpu, target):
            problems.append(f"CPU {cpu} is exclusive to {', '.join(sorted(who))}")
    owned = (
        frozenset(owners) & engine.host.topology.online
    )  # an adopted container may name CPUs that are offline
    for grant in engine.grants.values():
        if grant.stance is Management.PLACED:
            problems += broken_placement(engine, grant)
            problems += _broken_claims(engine, grant)
        if grant.stance in (Management.PLACED, Management.ADOPTED):
            container = _owner(grant, target)
            # It may go from one group to another: what it owned there it may share until it is gone from there.
            twin = engine.grants.get(twins.get(grant.key, ""))
            selves = {container} if twin is None else {container, _owner(twin, target)}
            selves = selves.union(grant.container.claims) if grant.placement.claimed else selves
            to_be_its_own = _to_be_its_own(engine, grant)
            for cpu in sorted((grant.cpus - grant.placement.exclusive) & owned):
                others = owners[cpu] - selves - ({KUBELET_KEY} if cpu in to_be_its_own else set())
                if others:
                    problems.append(f"CPU {cpu} is exclusive to {min(others)} and shared by {container}")
    problems += _broken_books(engine)
    pending = [t.key for t in engine.tickets.values()]
    creating = [g.key for g in engine.grants.values() if g.life is Life.CREATING]
    if sorted(pending) != sorted(creating):
        problems.append(f"tickets for {sorted(pending)}, but pending are {sorted(creating)}")
    return problems


def unmet(engine: EngineView) -> list[str]:
    """Both."""
    return broken_invariants(engine) + crowded_out(engine)


def unmet_in_short(engine: EngineView) -> str:
    """The first of them, as a reason in the status; "" if there is none."""
    return "; ".join(unmet(engine)[:3])


def crowded_out(engine: EngineView) -> list[str]:
    """Sentences, one for each container that runs on nothing but CPUs that are exclusive to others."""
    found = []
    for key, owners in crowded_by(engine).items():
        grant = engine.grants[key]
        here = format_cpus(grant.runs_on & engine.node.usable)
        who = f"{grant.container.path} ({grant.stance.value})"
        found.append(f"{who} may run only on CPUs {here}, exclusive to {', '.join(sorted(owners))}")
    return found


def crowded_by(engine: EngineView) -> dict[str, set[str]]:
    """By the keys of containers with a cpuset of their own, all of whose CPUs others own: the keys of these owners."""
    usable, exclusive = engine.node.usable, engine.node.exclusive
    target = {t.key: t.target for t in engine.tickets.values() if t.target}
    found: dict[str, set[str]] = {}
    owners: dict[int, set[str]] = {}
    for grant in engine.grants.values():
        is_ours = grant.stance in (Management.PLACED, Management.ADOPTED, Management.KUBELET)
        here = grant.runs_on & usable
        if is_ours or grant.life is Life.HELD or not here or here == usable or not here <= exclusive:
            continue
        owners = owners or _owners(engine, target)
        theirs = set().union(*[owners.get(cpu, set()) for cpu in here]) - {target.get(grant.key, grant.key)}
        if theirs:
            found[grant.key] = theirs
    return found


def rival_claims(engine: EngineView) -> dict[str, frozenset[int]]:
    """By the keys of containers that own CPUs of others: which. Of each CPU one owner is left out, the first there."""
    target = {t.key: t.target for t in engine.tickets.values() if t.target}
    owners = _owners(engine, target)
    first: dict[str, tuple[bool, float, str]] = {KUBELET_KEY: (False, 0.0, "")}
    for grant in engine.grants.values():
        rank = (grant.stance is not Management.KUBELET, grant.since_s, grant.key)
        owner = _owner(grant, target)
        first[owner] = min(rank, first.get(owner, rank))
    best = {cpu: min(who, key=lambda owner: first[owner]) for cpu, who in owners.items() if len(who) > 1}
    found = {}
    for grant in engine.grants.values():
        owner = _owner(grant, target)
        theirs = frozenset(cpu for cpu in grant.exclusive if best.get(cpu, owner) != owner)
        if theirs and grant.stance is not Management.KUBELET and theirs - _to_be_its_own(engine, grant):
            found[grant.key] = theirs
    return found


def _owners(engine: EngineView, target: Mapping[str, str]) -> dict[int, set[str]]:
    """Whose each exclusive CPU is."""
    owners: dict[int, set[str]] = {cpu: {KUBELET_KEY} for cpu in _unclaimed(engine)}
    for grant in engine.grants.values():
        for cpu in grant.exclusive:
            owners.setdefault(cpu, set()).add(_owner(grant, target))
    return owners


def _owner(grant: ContainerRecord, target: Mapping[str, str]) -> str:
    """Whose a grant's CPUs are: its own, or its group's, or kubelet's, which may have given them to a pod of several."""
    if grant.stance is Management.KUBELET:
        return KUBELET_KEY
    return grant.placement.group or target.get(grant.key, grant.key)


def _is_one_container(engine: EngineView, cpu: int, target: Mapping[str, str]) -> bool:
    """Whether a CPU has two owners only since its container, while it is resized, goes from a group to CPUs of its own, or
    since kubelet has written down that it is the container's alone."""
    holding = [grant for grant in engine.grants.values() if cpu in grant.exclusive]
    holders = {target.get(grant.key, grant.key) for grant in holding}
    return len(holders) == 1 and (
        cpu not in _unclaimed(engine) or all(cpu in _to_be_its_own(engine, grant) for grant in holding)
    )


def _to_be_its_own(engine: EngineView, grant: ContainerRecord) -> frozenset[int]:
    """What kubelet has written down that a container has alone: it will say so next."""
    return engine.host.kubelets(grant.container, grant.key) or NO_CPUS


def _broken_books(engine: EngineView) -> list[str]:
    residents, known = engine.node.residents, engine.host.topology.cpus.keys()
    if set(engine.grants) != set(residents) - {KUBELET_KEY}:
        return ["the node's books do not hold the containers the records name"]
    problems = []
    for grant in engine.grants.values():
        booked, true = engine.node.residents[grant.key], resident_of(grant)
        if booked != true and booked != replace(true, cpus=true.cpus & known):
            problems.append(f"{grant.container.path} ({grant.key}) is not booked as it is recorded")
    return problems


def broken_placement(engine: EngineView, grant: ContainerRecord) -> list[str]:
    """Sentences on what is wrong with the place of one container, whatever the others have."""
    who, placement, node = f"{grant.container.path} ({grant.key})", grant.placement, engine.node
    problems = []
    if not placement.cpus and not grant.is_claim:  # all of its devices may be offline
        problems.append(f"{who} has an empty cpuset")
    if placement.cpus - node.usable:
        problems.append(f"{who} has CPUs that are not usable: {format_cpus(placement.cpus - node.usable)}")
    if placement.mems - node.mems:
        problems.append(
            f"{who} has memory nodes that are not usable: {format_cpus(placement.mems - node.mems)}"
        )
    if grant.constraint.cpus is not None and placement.cpus - grant.constraint.cpus:
        problems.append(f"{who} left {grant.constraint.of}'s cpuset {format_cpus(grant.constraint.cpus)}")
    if grant.constraint.mems is not None and placement.mems - grant.constraint.mems:
        problems.append(
            f"{who} left {grant.constraint.of}'s memory nodes {format_cpus(grant.constraint.mems)}"
        )
    if placement.exclusive & node.reserved:
        problems.append(
            f"{who} has exclusive CPUs that are reserved: {format_cpus(placement.exclusive & node.reserved)}"
        )
    return problems


def _broken_claims(engine: EngineView, grant: ContainerRecord) -> list[str]:
    """Sentences on what a container has that its claims do not own, or lacks that they do."""
    container, claimed = grant.container, grant.placement.claimed
    if not claimed and not container.claims:
        return []
    (true, hidden), who = claimed_by(engine.grants, container), f"{container.path} ({grant.key})"
    allowed = engine.node.usable if grant.constraint.cpus is None else grant.constraint.cpus
    allowed &= engine.node.usable
    if claimed != true and (claimed or (true - hidden) & allowed):
        return [
            f"{who} has CPUs {format_cpus(claimed) or 'none'} of its claims, which own {format_cpus(true) or 'none'}"
        ]
    if away := ((claimed - hidden) & allowed) - grant.placement.cpus:
        return [f"{who} does not run on CPUs of its claims: {format_cpus(away)}"]
    return []


def _unclaimed(engine: EngineView) -> frozenset[int]:
    """CPUs that kubelet has assigned and no container of ours has yet."""
    assigned = engine.node.residents.get(KUBELET_KEY)
    claimed = frozenset().union(
        *[g.exclusive for g in engine.grants.values() if g.stance is Management.KUBELET]
    )
    return NO_CPUS if assigned is None else assigned.exclusive - claimed


# ---------------------------------------------------------------------- mending

# Records that contradict each other, or a container that is left with no CPU at all: found by the next comparison after
# it came about, by a bug, an older version or a switch of the policy. Only containers that are involved are placed anew.


# Asked after each comparison with the runtime, and mostly for nothing: ``Engine.mend_slices``.


def mend_records(state: State, now_s: float) -> tuple[str, ...]:
    """Mend records that contradict each other; what was broken, in sentences. What could not be mended is broken still."""
    broken = broken_invariants(state)
    if broken:
        _reckon_anew(state)
        reconcile(state, force=True)
        _part(state, now_s)
    return tuple(broken)


def _reckon_anew(state: State) -> None:
    """Tickets and containers on their way come in pairs, and the accounts are those of the records."""
    for ticket in [t for t in state.tickets.values() if t.key not in state.grants]:
        state.drop_ticket(ticket.id)
    pending = {ticket.key for ticket in state.tickets.values()}
    for key in [k for k, g in state.grants.items() if g.life is Life.CREATING and k not in pending]:
        state.drop(key)
    state.node = state.new_node(state.host)
    for grant in state.grants.values():
        state.node.add(grant.key, resident_of(grant))


def _part(state: State, now_s: float) -> None:
    """Of containers that own the same CPUs all but one get others; one that is where it may not be is placed anew."""
    resized = being_resized(state)
    for key, theirs in rival_claims(state).items():
        grant = state.grants[key]
        if key in resized:
            continue  # it is one place when the resize has ended
        left = replace(grant.placement, exclusive=grant.placement.exclusive - theirs)
        if grant.stance is Management.ADOPTED:
            state.put(replace(grant, placement=left))
        else:
            _place_anew(state, grant, left, f"CPUs {format_cpus(theirs)} were another container's too", now_s)
    reconcile(state, force=True)
    for grant in list(state.grants.values()):
        wrong = broken_placement(state, grant) if grant.stance is Management.PLACED else []
        if wrong and grant.key not in resized:
            _place_anew(state, grant, None, wrong[0], now_s)
    reconcile(state, force=True)


def _place_anew(
    state: State, grant: ContainerRecord, keep: Optional[Placement], why: str, now_s: float
) -> None:
    """Put a container where the policy has it now, if it has a place for it."""
    now = _anew(state, grant, keep, why)
    if now is None and grant.is_claim and keep is not None:  # it keeps what is its own
        kept = altered(keep, cpus=effective(state, keep, grant.constraint))
        now = altered(grant, placement=kept, displaced=grant.displaced or grant.placement, why=why)
    if now is not None:
        state.put(now)
        state.record("mend", grant.key, now, now_s)


def _anew(
    state: State,
    grant: ContainerRecord,
    keep: Optional[Placement],
    why: str,
    spares: bool = False,
    past: frozenset[int] = NO_CPUS,
) -> Optional[ContainerRecord]:
    """A container where the policy has it now; None if that finds nothing, or (``spares``) takes another's last CPU.

    ``past``: CPUs that it may not have.
    """
    within = grant.constraint
    if grant.is_claim and not state.policy.holds_claims:
        return None
    if past:
        within = replace(within, cpus=(state.node.usable if within.cpus is None else within.cpus) - past)
    with state.without([grant.key]):
        near = grant.placement.home or None
        try:
            decision = state.place(state.request(grant.container, within, grant.key, near=near, keep=keep))
        except (PlacementRefused, BudgetSpent):
            return None
        if spares and emptied_by(state.node, decision.placement.exclusive - grant.exclusive):
            return None
    if not decision.placement.cpus or decision.others:
        return None
    if grant.is_claim:  # it shares no CPUs
        decision = replace(decision, placement=as_claims(decision.placement))
        if len(decision.placement.exclusive) < len(grant.placement.exclusive):
            return None
    place = keep_memory(state, grant.placement, decision.placement, grant.constraint)
    now = placed(grant, place, f"{why}: {decision.why}")
    return altered(now, moved_s=state.now_s or 1.0) if grant.is_claim else now


def give_way(state: State, helped: set[str], now_s: float) -> bool:
    """The owner of the last CPU of a container that can go nowhere else takes another one for it, if one is free.

    Ends with the first container that is helped, which is added to ``helped``, or after TRIES tries; True = there is nothing
    left to try. What one gives up may be what another one needs: asked until then, but each is helped once at most.
    """
    crowded = crowded_by(state)
    tries, judged = TRIES, set()
    for key, owner, cpu in _ways(state, crowded, helped):
        # 1. What was in vain is so until more is free.
        if owner not in judged:
            judged.add(owner)
            now = _Circumstances.of(state, state.grants[owner])
            before, ways = state.in_vain.get(owner, (None, set()))
            is_no_better = before is not None and now.are_no_better_than(before)
            state.in_vain[owner] = now, ways if is_no_better else set()
        now, ways = state.in_vain[owner]
        if not now.free or (key, cpu) in ways:
            continue
        # 2. A few are tried, the others the next time.
        if not tries:
            return False
        tries -= 1
        if not _swaps(state, owner, cpu, state.grants[key], len(crowded), now_s):
            ways.add((key, cpu))
            continue
        # 3. One is helped: another picture.
        helped.add(key)
        needy = state.grants[key]
        if needy.stance is Management.UNTOUCHED and _who(needy) not in state.distrusted:
            _place_anew(state, needy, None, "there are CPUs for it again", now_s)
        reconcile(state)
        return False
    for owner in state.in_vain.keys() - judged:
        del state.in_vain[owner]
    return True


def _ways(
    state: State, crowded: Mapping[str, Set[str]], helped: Collection[str]
) -> Iterator[tuple[str, str, int]]:
    """A container that has no CPU left, an owner of one of its CPUs, and that CPU: all that could be tried, in turn."""
    resized = being_resized(state)
    for key, owners in crowded.items():
        if (
            key in helped or state.grants[key].life is Life.CREATING
        ):  # what it gets is decided when it is there
            continue
        for owner in sorted(owners & state.grants.keys()):
            grant = state.grants[owner]
            place = grant.placement
            if grant.stance is not Management.PLACED or place.group or owner in resized:
                continue
            for cpu in sorted(place.exclusive & state.grants[key].runs_on, reverse=True):
                yield key, owner, cpu


@frozen
class _Circumstances:
    """What it depends on whether an owner finds another CPU for one of its own. ``free``: CPUs that it might take;
    ``bounds``: those of containers that would be left with none."""

    node: Node
    container: Container
    exclusive: frozenset[int]
    free: frozenset[int]
    bounds: frozenset[tuple[frozenset[int], bool]]

    @classmethod
    def of(cls, state: State, owner: ContainerRecord) -> _Circumstances:
        node, allowed = state.node, owner.constraint.cpus
        free = node.usable - node.exclusive - node.reserved - last_ones(node)
        free = free if allowed is None else free & allowed
        return cls(node, owner.container, owner.exclusive, free, frozenset(node.bounds))

    def are_no_better_than(self, before: _Circumstances) -> bool:
        """Whether nothing is free that was not before."""
        is_same = self.node is before.node and self.container is before.container
        is_same = is_same and self.exclusive == before.exclusive
        return is_same and self.free <= before.free and self.bounds >= before.bounds


def _swaps(state: State, key: str, cpu: int, needy: ContainerRecord, crowded: int, now_s: float) -> bool:
    """Whether an owner has given a CPU that another container needs, and got one for it. ``crowded``: how many have none."""
    owner, place = state.grants[key], state.grants[key].placement
    keep = replace(
        place,
        exclusive=place.exclusive - {cpu},
        grown=tuple(step for step in (g - {cpu} for g in place.grown) if step),
    )
    why = f"CPU {cpu} is needed by {needy.container.path}, which may run nowhere else"
    now = _anew(state, owner, keep, why, spares=True)
    if now is not None and cpu in now.exclusive:  # the policy's best is what it had
        now = _anew(state, owner, keep, why, spares=True, past=frozenset([cpu]))
    if now is None or len(now.exclusive) != len(owner.exclusive) or cpu in now.exclusive:
        return False
    state.put(now)
    if len(crowded_by(state)) >= crowded:
        state.put(owner)
        return False
    state.record("mend", key, now, now_s)
    return True


def _who(grant: ContainerRecord) -> tuple[str, str]:
    return grant.container.pod.uid, grant.container.name
