"""Bringing grants in line with the pools: what every container's CPUs and memory nodes are *now*.

A placement remembers its home, all CPUs of the chosen domains. What of it may be used changes with exclusive
grants, offline CPUs, cgroups and configuration; here that is worked out again, and a container that has nothing left
is placed anew, with the way back kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Optional

from cri_proxy.engine.members import claimed_by, rest_of
from cri_proxy.engine.model import UNPLACED, ContainerRecord, Life, Management
from cri_proxy.engine.state import Pools, State
from policies.groups import is_pod_group
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Topology
from policies.memory import MemoryCharge, MemoryChoice, memory_of
from policies.model import (
    UNTOUCHED,
    BudgetSpent,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementRefused,
    Pod,
    PodSize,
    altered,
    wanted_milli,
)
from policies.pod_share import SAME_MILLI, is_plain, shared_out
from policies.wanted import without_demands

#: Exclusive sets that are placed anew change the sets of others, and so on; it settles in two or three rounds.
ROUNDS = 8
#: Of a group of fewer containers each is asked.
WORTH_ASKING = 2


def reconcile(state: State, force: bool = False, handed: frozenset[int] = NO_CPUS) -> None:
    """Recompute every set that depends on others; ``handed``: CPUs that have changed hands just now."""
    share_out(state)
    tidy = state.policy.tidy(state.node, state.now_s)
    unchanged = not force and state.reconciled == state.pools
    if unchanged and not tidy and not handed:
        return
    owned = {
        t.target: state.grants[t.target].exclusive for t in state.tickets.values() if t.target in state.grants
    }
    _work_out(state, tidy, force, unchanged, owned, handed)


def _work_out(
    state: State,
    tidy: Mapping[str, Placement],
    force: bool,
    unchanged: bool,
    owned: Mapping[str, frozenset[int]],
    handed: frozenset[int],
) -> None:
    """The rounds of ``reconcile``, until nothing changes any more; ``owned``: what those that are resized owned before."""
    handed |= _give(state, tidy)
    for _ in range(0 if unchanged and not handed else ROUNDS):
        changed = None if force else _changed(state.reconciled, state.pools)
        changed = None if changed is None else changed | handed
        state.reconciled = state.pools
        # A resize on its way has its container in the books twice; the two are in the way of others only.
        own = _twins(state, owned)
        barred = barred_from_owning(state)
        handed = NO_CPUS
        for key in _in_turn(state, changed, barred, own):
            grant = state.grants[key]
            handed |= reconcile_one(state, grant, barred, own.get(key, NO_CPUS))
            # CPUs that one has lost and another has got look as before; one reconciled in between has seen them free.
            if (now := state.grants[key]).placement.exclusive is not grant.placement.exclusive:
                handed |= now.exclusive ^ grant.exclusive
        # A container that was placed anew may have joined others, which move with it.
        handed |= _give(state, state.policy.tidy(state.node, state.now_s))
        if not handed and state.reconciled == state.pools:
            break


def give_places(
    state: State, decision: Decision, container: Container
) -> tuple[tuple[str, Placement, Placement], ...]:
    """Give others the placements a decision about a container has for them; returns what they had and have now, but of
    those that own CPUs with others: without the container that is more than they need, and goes back by itself."""
    shown = _put_placements(state, decision.others, f"makes room for {container.path}: {decision.why}")
    # What they have been given is inside of what their callers allow.
    return tuple((key, shown[key], state.grants[key].placement) for key in sorted(shown))


def tidy_up(state: State) -> None:
    """Give containers what the policy has for them now, before something is decided."""
    _give(state, state.policy.tidy(state.node, state.now_s))


def put_and_reconcile(state: State, grant: ContainerRecord) -> None:
    """Enter a record, and bring it and all that depends on it in line with the pools."""
    state.put(grant)
    handed = reconcile_one(state, state.grants[grant.key], barred_from_owning(state))
    reconcile(state, handed=handed)


def _twins(state: State, owned: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """Of both records of each container that is being resized: what the other one owns or owned, and no third owns. And of
    one that kubelet has given CPUs alone, and not told yet: those.

    ``owned``: what those that are resized owned before, by key.
    """
    own = _to_be_kubelets(state)
    for ticket in state.tickets.values():
        pending, target = state.grants[ticket.key], state.grants.get(ticket.target)
        if target is None:
            continue
        given = own.get(target.key, NO_CPUS)
        theirs = pending.exclusive, target.exclusive, given
        was = owned.get(target.key, NO_CPUS)
        for key, cpus in ((target.key, pending.exclusive | given), (pending.key, was | given)):
            own[key] = frozenset(
                c for c in cpus if state.node.claimants(c) <= sum(c in mine for mine in theirs)
            )
    return own


def _to_be_kubelets(state: State) -> dict[str, frozenset[int]]:
    """By key of a container that is there: the CPUs that kubelet's file says are its own, and no other owns."""
    found: dict[str, frozenset[int]] = {}
    for name, cpus in state.host.kubelet_exclusive.items():
        for key in state.names.get(name, (name[1],)):
            grant = state.grants.get(key)
            if grant is None or grant.life is Life.CREATING or grant.stance is Management.KUBELET:
                continue
            own = [grant, *(state.grants[t.key] for t in state.tickets.values() if t.target == key)]
            found[key] = frozenset(
                c for c in cpus if state.node.claimants(c) <= 1 + sum(c in g.exclusive for g in own)
            )
    return found


def _give(state: State, placements: Mapping[str, Placement], why: str = "") -> frozenset[int]:
    """Give each container the placement that the policy has for it now; returns the CPUs that change hands."""
    before = {key: state.grants[key].placement.exclusive for key in placements if key in state.grants}
    _put_placements(state, placements, why)
    changed: set[int] = set()
    seen: set[tuple[int, int]] = set()
    for key, own in before.items():
        now, has = placements[key].exclusive, state.grants[key].placement
        if (id(own), id(now)) not in seen:  # many own the same
            seen.add((id(own), id(now)))
            changed |= own ^ now
        if not has.cpus:  # all of them are outside of what its caller allows
            changed |= now
    return frozenset(changed)


def _put_placements(state: State, placements: Mapping[str, Placement], why: str = "") -> dict[str, Placement]:
    """Give containers that are placed other placements; ``why``, of those that get others than their group's own CPUs.

    Returns what these had, by key.
    """
    alike: dict[tuple[int, int], list[ContainerRecord]] = {}
    for key, placement in placements.items():
        if (grant := state.grants.get(key)) is not None:  # many have one placement, and get one
            alike.setdefault((id(grant.placement), id(placement)), []).append(grant)
    shown: dict[str, Placement] = {}
    for grants in alike.values():
        was, placement = grants[0].placement, placements[grants[0].key]
        is_shown = _shown(was) != _shown(placement)
        grows = _grows_with_group(was, placement)
        its_why = why if is_shown else ""
        together: dict[str, Optional[Placement]] = {}
        for grant in grants:
            if grows and _is_plain(grant):
                together[grant.key] = placement
            else:
                put_placement(state, grant.key, placement, its_why)
        state.put_together(together, placement.cpus, its_why)
        shown.update((grant.key, was) for grant in grants if is_shown)
    return shown


def _grows_with_group(was: Placement, now: Placement) -> bool:
    """Whether nothing changes but what a container owns with its group, and shares: that is more now.

    A daemon that starts works that out from the record of the container that the group grows for.
    """
    rest = (was.mems, was.memory_charge, was.lift_quota) == (now.mems, now.memory_charge, now.lift_quota)
    return bool(was.group and was.group == now.group and was.cpus and was.exclusive < now.exclusive and rest)


def _is_plain(grant: ContainerRecord) -> bool:
    """Whether a container gets what its policy says, and has no other place to go back to."""
    is_free = grant.constraint.cpus is None and grant.constraint.mems is None
    return is_free and grant.stance is Management.PLACED and grant.displaced is None


def put_placement(state: State, key: str, placement: Placement, why: str = "") -> None:
    """Give a container that is placed the placement that the policy has chosen for it now."""
    grant = state.grants.get(key)
    if grant is None or grant.stance is not Management.PLACED or grant.placement == placement:
        return
    placement = inside(grant.constraint, placement)
    state.put(altered(grant, placement=placement, displaced=None, why=why or grant.why))


def _shown(place: Placement) -> tuple[object, ...]:
    """A placement without the CPUs that a container owns with its group."""
    own = NO_CPUS if place.group else place.exclusive
    return place.group, own, place.cpus, place.home, place.mems, place.hidden, place.one_thread


def inside(constraint: Constraint, placement: Placement) -> Placement:
    """A placement without what the caller does not allow: of others' constraints a policy knows nothing."""
    if constraint.cpus is None and constraint.mems is None:
        return placement
    cpus = placement.cpus if constraint.cpus is None else placement.cpus & constraint.cpus
    mems = placement.mems if constraint.mems is None else placement.mems & constraint.mems
    return replace(placement, cpus=cpus, mems=mems)


def _changed(before: Pools, now: Pools) -> Optional[frozenset[int]]:
    """The CPUs that are shared or claimed otherwise than before; None = it is another node."""
    if before[0] != now[0]:
        return None
    return (before[1] ^ now[1]).union(cpu for cpu, _ in (before[2] ^ now[2]) | (before[3] ^ now[3]))


def _in_turn(
    state: State, changed: Optional[frozenset[int]], barred: frozenset[int], twins: Mapping[str, object]
) -> Iterator[str]:
    """Keys of the grants to recompute, in the order in which they came: of those that ``changed`` matters to, None = all.

    Containers that share what of their homes may be used are given that here, before the first key.
    """
    if changed is None:
        yield from _in_order(state.grants.values())
        return
    node, grants = state.node, state.grants
    calm = _calm(state, barred, twins)
    keys = _share(state, changed, twins)
    keys.update(key for name, group in node.groups.items() for key in calm.get(name, group) if key in group)
    # Some name a group and are in none: they are not placed.
    named = len(grants) - sum(map(len, state.places.values())) - sum(map(len, node.groups.values()))
    if named:
        keys.update(key for key in grants if _names_group_outside(state, key))
    version = node.pool_version
    for key in _depending_on(state, changed, keys):
        yield key
        if calm and node.pool_version != version:
            # What has come of it may matter to the containers after it that nothing was to come of.
            after = _turn(grants[key])
            rest = _depending_on(state, changed, grants)
            yield from [other for other in rest if _turn(grants[other]) > after]
            return


def _share(state: State, changed: frozenset[int], twins: Mapping[str, object]) -> set[str]:
    """Give containers that share their homes what of these may be used now, if ``changed`` matters to them: all that have
    the same at once. Returns the keys of those in no group that must be looked at one by one."""
    others = {key for key in state.displaced if not state.grants[key].placement.group} | state.members
    for (home, own), there in list(state.places.items()):
        if changed.isdisjoint(home) and changed.isdisjoint(own):
            continue
        if own:
            others.update(there)
            continue
        alike: dict[tuple[object, ...], list[ContainerRecord]] = {}
        for key in there:
            grant = state.grants[key]
            if key in others or key in twins or not _shares_plainly(state, grant):
                others.add(key)
                continue
            place = grant.placement
            signs: tuple[object, ...] = (place.cpus, place.hidden, place.one_thread, grant.constraint.cpus)
            alike.setdefault(signs if grant.stance is Management.PLACED else (grant.runs_on,), []).append(
                grant
            )
        for grants in alike.values():
            first = grants[0]
            if first.stance is Management.ADOPTED:
                cpus, has_now = _left_to_adopted(state, home), first.runs_on & state.host.topology.online
            else:
                cpus, has_now = effective(state, first.placement, first.constraint), first.placement.cpus
            if not cpus:
                others.update(grant.key for grant in grants)
            elif cpus != has_now:
                state.put_together({g.key: _with_cpus(g, cpus) for g in grants}, cpus)
    return others


def _with_cpus(grant: ContainerRecord, cpus: frozenset[int]) -> Optional[Placement]:
    return None if grant.stance is Management.ADOPTED else altered(grant.placement, cpus=cpus)


def _shares_plainly(state: State, grant: ContainerRecord) -> bool:
    """Whether nothing of a container that owns no CPUs depends on the pools, but which CPUs of its home it has."""
    place = grant.placement
    if grant.stance is Management.ADOPTED:
        return True
    if (
        grant.stance is not Management.PLACED
        or place.level == "reserved"
        or not place.mems <= state.node.mems
    ):
        return False
    if grant.constraint.mems is not None and not place.mems <= grant.constraint.mems:
        return False
    # A memory limit that is charged by its place stays so.
    is_charged = place.mems and place.memory_charge
    return bool(is_charged or not grant.container.resources.memory_limit_bytes)


def _calm(state: State, barred: frozenset[int], twins: Mapping[str, object]) -> dict[str, Set[str]]:
    """By group, where ``reconcile_one`` leaves some of its containers as they are: those that it may not leave so.

    Of containers that are alike one is asked. One that is being resized, or has a place to go back to is reconciled itself.
    """
    found: dict[str, Set[str]] = {}
    node = state.node
    for name, group in node.groups.items():
        if len(group) < WORTH_ASKING or not barred.isdisjoint(NO_CPUS.union(*group.sets())):
            continue
        loud = {*state.displaced, *twins}
        for keys in group.kinds.values():
            key = next((key for key in keys if key not in loud), None)
            if key is None:
                continue
            grant = state.grants[key]
            place = grant.placement
            cpus = effective(state, place, grant.constraint)
            if not cpus or cpus != place.cpus or not place.mems <= node.mems:
                loud.update(keys)
        found[name] = loud
    return found


def _depending_on(state: State, changed: frozenset[int], keys: Iterable[str]) -> list[str]:
    """Which of these keys are of grants that some CPUs matter to, in the order in which they came."""
    found = [state.grants[key] for key in keys]
    # Many containers have one home: a set is looked at once.
    matters: dict[frozenset[int], bool] = {}
    for grant in found:
        for cpus in (grant.placement.home, grant.placement.exclusive):
            if cpus not in matters:
                matters[cpus] = not changed.isdisjoint(cpus)
    return _in_order(
        grant
        for grant in found
        if matters[grant.placement.home]
        or matters[grant.placement.exclusive]
        or grant.displaced is not None
        or grant.container.claims
    )


def _in_order(grants: Iterable[ContainerRecord]) -> list[str]:
    return [grant.key for grant in sorted(grants, key=_turn)]


def _turn(grant: ContainerRecord) -> tuple[bool, float, str]:
    """Claims come first: their containers have what they have."""
    return not grant.is_claim, grant.since_s, grant.key


def _names_group_outside(state: State, key: str) -> bool:
    name = state.grants[key].placement.group
    return bool(name) and key not in state.node.groups.get(name, ())


def barred_from_owning(state: State) -> frozenset[int]:
    """CPUs that no policy may give away: reserved ones, and those that kubelet has given to single containers."""
    kubelets = [state.grants[key].runs_on for key in state.kubelets]
    return state.node.reserved.union(*state.host.kubelet_exclusive.values(), *kubelets)


def reconcile_one(
    state: State, grant: ContainerRecord, barred: frozenset[int], own: frozenset[int] = NO_CPUS
) -> frozenset[int]:
    """Bring one grant in line with the pools; returns the CPUs that change hands among others for it.

    ``barred``: as ``barred_from_owning`` says. ``own``: CPUs that are exclusive to it by another record.
    """
    if grant.is_claim:
        _reconcile_claim(state, grant, barred)
        return NO_CPUS
    if grant.container.claims and (handed := _reconcile_member(state, grant)) is not None:
        return handed
    barred = (barred - own) | state.node.reserved if own else barred
    first = grant.displaced if grant.stance is Management.UNTOUCHED else None
    if grant.stance is Management.ADOPTED or (first is not None and first.level == UNTOUCHED.level):
        return _reconcile_adopted(state, grant, barred, own)
    if grant.stance is Management.PLACED or first is not None:
        return _reconcile_placed(state, grant, barred, own)
    return NO_CPUS


def _reconcile_claim(state: State, grant: ContainerRecord, barred: frozenset[int]) -> None:
    """Bring a claim's part in line: on the CPUs that it was given, on others of its devices, or on what is left of them."""
    # 1. Back on its first CPUs, if all of them are there again.
    first, place = grant.displaced, grant.placement
    cpus = NO_CPUS if first is None else _free_again(state, first, grant, barred, NO_CPUS)
    if first is not None and cpus == first.exclusive - first.hidden and not state.orders.freeze:
        back = placed(grant, altered(first, cpus=cpus), "its first CPUs are there again")
        state.put(altered(back, moved_s=0.0))
        return
    # 2. As it is.
    cpus, wanted = effective(state, place, grant.constraint), place.exclusive - place.hidden
    is_whole = grant.part is None or len(place.exclusive) >= grant.part.count
    if cpus == wanted and is_whole and place.exclusive.isdisjoint(barred):
        if cpus != place.cpus:
            state.put(altered(grant, placement=altered(place, cpus=cpus)))
        return
    # 3. On others of its devices, with as many of its own as are left.
    first = first or place
    left = (place.exclusive & state.node.usable) - barred
    anew = claim_place(state, grant, altered(place, exclusive=left))
    gone = format_cpus(first.exclusive - left)
    if anew is not None:
        now = placed(grant, anew.placement, f"its CPUs {gone} are gone: {anew.why}", first)
        is_first = anew.placement.exclusive == first.exclusive
        state.put(altered(now, displaced=None if is_first else first, moved_s=state.now_s or 1.0))
        return
    # 4. On what is left. CPUs that are offline stay its own, others are not its to have.
    now_own = place.exclusive - barred
    kept = altered(
        place, cpus=effective(state, altered(place, exclusive=now_own), grant.constraint), exclusive=now_own
    )
    why = f"its CPUs {gone} are gone, and its devices have no others for it: it keeps what is left"
    if kept != place or grant.displaced is None:
        state.put(altered(grant, placement=kept, displaced=first, why=why))


def claim_place(state: State, grant: ContainerRecord, keep: Optional[Placement] = None) -> Optional[Decision]:
    """A place of a claim's part with all its CPUs, where it keeps those of ``keep``; None if it has none unless others are
    moved."""
    count = len(grant.placement.exclusive) if grant.part is None else grant.part.count
    if not state.policy.holds_claims:  # it is of the policy before this one
        return None
    try:
        with state.without([grant.key] if grant.key in state.node.residents else []):
            if keep is not None and not keep.exclusive.isdisjoint(state.node.exclusive):
                keep = altered(keep, exclusive=keep.exclusive - state.node.exclusive)
            decision = state.place(state.request(grant.container, grant.constraint, grant.key, keep=keep))
    except (PlacementRefused, BudgetSpent):
        return None
    if len(decision.placement.exclusive) < count or decision.others:
        return None
    return replace(decision, placement=as_claims(decision.placement))


def as_claims(place: Placement) -> Placement:
    """A placement of a claim's part: its containers have the memory, and their own quotas."""
    return altered(place, mems=NO_CPUS, memory_charge=(), grown=(), lift_quota=False)


def _reconcile_member(state: State, grant: ContainerRecord) -> Optional[frozenset[int]]:
    """Bring a container that has claims to where these have it now; None: they give it nothing, and have not before.

    Returns the CPUs that change hands among others for it.
    """
    was_member, (claimed, hidden) = bool(grant.placement.claimed), claimed_by(state.grants, grant.container)
    is_untouched = grant.stance is Management.UNTOUCHED and grant.displaced is not None
    is_ours = grant.stance in (Management.PLACED, Management.ADOPTED) or is_untouched
    now, anew, handed = None, None, NO_CPUS
    if is_ours and (was_member or claimed):
        now, anew = _by_claims(state, grant, claimed, hidden)
    if now is None and was_member and grant.stance is Management.PLACED:
        first = altered(grant.placement, home=grant.placement.cpus, claimed=NO_CPUS, hidden=NO_CPUS)
        _leave_untouched(state, grant, first)
    elif now is not None and now is not grant and (was_member or now.placement.claimed):
        handed = _put_anew(state, now, anew)
    is_member = is_ours and (was_member or (now is not None and bool(now.placement.claimed)))
    return handed if is_member else None


def _by_claims(
    state: State, grant: ContainerRecord, claimed: frozenset[int], hidden: frozenset[int]
) -> tuple[Optional[ContainerRecord], Optional[Decision]]:
    """A member by what its claims own now, and what the policy decided if it was asked; None: there is no CPU for it.

    On the CPUs of its claims and what may be used of its home, as long as these are the same; else anew, without any claim
    as a container without claims.
    """
    place = grant.placement
    if (place.claimed, place.hidden) == (claimed, hidden) and claimed and grant.stance is Management.PLACED:
        cpus, has_rest = effective(state, place, grant.constraint), rest_of(state.grants, grant.container) > 0
        if cpus & claimed and has_rest == bool(place.home) and (not place.home or cpus - claimed):
            if cpus == place.cpus and place.mems <= state.node.mems:
                return grant, None
            usable = _on_usable_mems(state, altered(place, cpus=cpus), grant)
            return altered(grant, placement=usable), None
    anew = _place_anew(state, grant)
    if anew is None or not anew.placement.cpus:
        return None, None
    kept = keep_memory(state, place, anew.placement, grant.constraint) if place.cpus else anew.placement
    stays = kept == place and grant.stance is Management.PLACED
    return (grant if stays else placed(grant, kept, anew.why)), anew


def _reconcile_placed(
    state: State, grant: ContainerRecord, barred: frozenset[int], own: frozenset[int]
) -> frozenset[int]:
    # 1. Back to the place it had before its CPUs went away, if all of that is there again. Not to a balloon as it
    #    was then: the policy knows what it has become. While containers are frozen it stays where it is.
    back = grant.displaced
    cpus = NO_CPUS if back is None or back.group else _free_again(state, back, grant, barred, own)
    stays = state.orders.freeze and grant.stance is Management.PLACED
    if back is not None and cpus and not stays:
        back = _on_usable_mems(state, altered(back, cpus=cpus), grant)
        state.put(placed(grant, back, "its first place is there again"))
        return NO_CPUS
    # 2. The same domain, as far as it may be used now.
    placement = grant.placement
    cpus = effective(state, placement, grant.constraint, own)
    if cpus and placement.exclusive.isdisjoint(barred):
        home = placement.home
        if placement.level == "reserved":  # it goes with the configuration, not with the CPUs of before
            home = state.policy.reserved_for(state.node, home)
            home = home if grant.constraint.cpus is None else home & grant.constraint.cpus
        if cpus == placement.cpus and home == placement.home and placement.mems <= state.node.mems:
            return NO_CPUS
        now = _on_usable_mems(state, altered(placement, cpus=cpus, home=home), grant)
        # Why it is here has not changed; the update says what has.
        state.put(altered(grant, placement=now))
        return NO_CPUS
    # 3. Nothing of it is left: somewhere else, with the way back kept; or nowhere, until there is something.
    first = back or placement
    # Others that own CPUs with it as their pod's and lose the same keep it nowhere: they follow it to where it goes.
    pods = state.node.groups.get(placement.group, ()) if is_pod_group(placement.group) else ()
    lost = [key for key in pods if key != grant.key and not state.grants[key].exclusive.isdisjoint(barred)]
    with state.without(lost):
        anew = _place_anew(state, grant)
    if anew is not None and anew.placement.cpus:
        kept = keep_memory(state, placement if placement.cpus else first, anew.placement, grant.constraint)
        return _put_anew(state, placed(grant, kept, f"its CPUs are gone: {anew.why}", first), anew)
    if grant.stance is Management.PLACED:
        _leave_untouched(state, grant, first)
    return NO_CPUS


def _leave_untouched(state: State, grant: ContainerRecord, first: Placement) -> None:
    """Nothing to place it on: it runs where it ran, until ``first`` or another place can be had."""
    why = "its CPUs are gone, and there are no others for it"
    # With all of its cpuset offline it runs on its parent's (cgroup v1 even moves it there).
    runs_on = (grant.cpus & state.host.topology.online) or state.host.parent_cpus
    if grant.stance is Management.ADOPTED:  # also those that are offline are in its cpuset, as far as we know
        runs_on = grant.runs_on
    if grant.life in (Life.CREATED, Life.RUNNING):
        state.notable.add(UNPLACED, grant.container, why)
    told = state.told.get(grant.key)
    state.put(
        replace(
            grant, stance=Management.UNTOUCHED, placement=UNTOUCHED, runs_on=runs_on, displaced=first, why=why
        )
    )
    if told is not None:  # where it runs from now on the kernel says
        state.tell(grant.key, told._replace(cpus=None))


def _on_usable_mems(state: State, placement: Placement, grant: ContainerRecord) -> Placement:
    """A placement without the memory nodes that may not be used (any more); on others where none is left."""
    allowed = state.node.mems if grant.constraint.mems is None else state.node.mems & grant.constraint.mems
    mems = placement.mems & allowed
    if mems or not placement.mems:
        return placement if mems == placement.mems else replace(placement, mems=mems)
    with state.without([grant.key]):
        memory = memory_for(state, placement.cpus, grant.container, grant.constraint, placement.group)
    anywhere = state.node.mems if grant.constraint.mems is None else NO_CPUS
    return replace(placement, mems=memory.nodes or anywhere, memory_charge=memory.charge)


def _left_to_adopted(state: State, home: frozenset[int]) -> frozenset[int]:
    """What is left of the CPUs that adopted containers were found on, which own none of them."""
    return (home & state.host.topology.online) - state.node.exclusive


def _reconcile_adopted(
    state: State, grant: ContainerRecord, barred: frozenset[int], own: frozenset[int]
) -> frozenset[int]:
    """An adopted container keeps what it has, less what others now own; kubelet may have given them what it owned."""
    online, node = state.host.topology.online, state.node
    first = grant.placement if grant.stance is Management.ADOPTED else grant.displaced or UNTOUCHED
    others = node.exclusive - grant.exclusive - own
    if not first.exclusive.isdisjoint(barred):
        others = others.union(cpu for cpu in barred - own if node.claimants(cpu) > 1)
    cpus, exclusive = (first.home & online) - others, first.exclusive - barred - others
    as_it_was = cpus == grant.runs_on & online and exclusive == grant.exclusive
    if as_it_was and grant.stance is Management.ADOPTED:
        return NO_CPUS
    if cpus:
        now = altered(grant, placement=replace(first, exclusive=exclusive), displaced=None)
        why = grant.why if grant.stance is Management.ADOPTED else "its first place is there again"
        runs_on = grant.runs_on if cpus == grant.runs_on & online else cpus
        state.put(replace(now, stance=Management.ADOPTED, runs_on=runs_on, why=why))
        return NO_CPUS
    # What was adopted takes no CPUs from others: it has none of its own unless it had some.
    anew = _place_anew(state, grant, may_own=bool(first.exclusive))
    if anew is not None and anew.placement.cpus:
        return _put_anew(state, placed(grant, anew.placement, f"its CPUs are gone: {anew.why}"), anew)
    if grant.stance is Management.ADOPTED:
        _leave_untouched(state, grant, first)
    return NO_CPUS


def _put_anew(state: State, now: ContainerRecord, decision: Optional[Decision]) -> frozenset[int]:
    """Enter the record of a container that was placed anew, and the places that this decision has for others.

    Both at once: a container that is placed next must not find CPUs that have been given up as still to be had. Returns
    the CPUs that change hands among the others.
    """
    state.put(now)
    if decision is None or not decision.others:
        return NO_CPUS
    return _give(state, decision.others, f"makes room for {now.container.path}: {decision.why}")


def _place_anew(state: State, grant: ContainerRecord, may_own: bool = True) -> Optional[Decision]:
    """Where the policy would put a container that is in the books now, near its memory; None if it will not.

    ``may_own``: it may take CPUs for itself. It runs: where its demands cannot be met any more it goes without them.
    """
    was = (grant.placement.home or (grant.displaced.home if grant.displaced else NO_CPUS)) or None
    container, note = grant.container, ""
    if not may_own:
        container = replace(container, preferences=replace(container.preferences, ownership="shared"))
    with state.without([grant.key]):
        request = state.request(grant.container, grant.constraint, grant.key, near=was)
        if not may_own:
            request = replace(request, container=container)
        for _ in range(2):
            try:
                decision = state.place(request)
                return replace(decision, why=note + decision.why) if note else decision
            except PlacementRefused as refusal:
                request = replace(request, container=without_demands(container))
                note = f"{refusal}, so without what it demands: "
            except BudgetSpent:
                break
    return None


def _free_again(
    state: State, place: Placement, grant: ContainerRecord, barred: frozenset[int], own: frozenset[int]
) -> frozenset[int]:
    """The CPUs of the place it had before, if all of that can be had again; else none."""
    if place.exclusive:
        with state.without([grant.key]):  # what it owns with a group others own as well
            others = state.node.exclusive - own
        if not place.exclusive.isdisjoint(others | barred):
            return NO_CPUS
    # As it is without it where it is now: what it owns there decides what others, and so its first place, may share.
    with state.without([grant.key] if grant.exclusive else ()):
        cpus = effective(state, place, grant.constraint, own)
    # Its CPUs may have gone one after another: all of those it had last must be there, more are welcome.
    return cpus if cpus >= place.cpus else NO_CPUS


def effective(
    state: State, placement: Placement, constraint: Constraint, own: frozenset[int] = NO_CPUS
) -> frozenset[int]:
    """The CPUs of a placement that may be used now."""
    known = state.node.allowed_now
    key = (
        placement.home,
        placement.exclusive,
        placement.hidden,
        placement.one_thread,
        placement.level,
        constraint.cpus,
        placement.claimed,
    )
    if not own and key in known:
        return known[key]
    if placement.level == "reserved":
        cpus = state.node.shared_reserved & state.policy.reserved_for(state.node, placement.home)
    else:
        cpus = placement.home & (state.node.shared | (own & placement.cpus & state.node.usable))
        cpus -= (
            placement.exclusive
        )  # as long as it is not in the books these look shared, the hidden ones too
    if placement.one_thread:
        cpus = state.host.topology.one_thread_per_core(
            cpus if constraint.cpus is None else cpus & constraint.cpus
        )
    cpus |= (placement.exclusive - placement.hidden) & state.node.usable
    if placement.claimed:
        cpus |= (placement.claimed - placement.hidden) & state.node.usable
    cpus = cpus if constraint.cpus is None else cpus & constraint.cpus
    if not own:
        known[key] = cpus
    return cpus


def memory_for(
    state: State,
    cpus: frozenset[int],
    container: Container,
    constraint: Constraint,
    group: str,
    had: MemoryCharge = (),
) -> MemoryChoice:
    """Memory nodes for CPUs that the policy has not chosen just now; none if it sets none.

    ``group``: of its place. ``had``: what the container is charged where it is.
    """
    return memory_of(state.node, cpus, container, state.policy.settings.for_group(group), constraint, had)


def keep_memory(
    state: State, old: Placement, new: Placement, constraint: Constraint, is_other_limit: bool = False
) -> Placement:
    """A change of CPUs inside the memory nodes never touches them; else the old ones stay beside the new.

    ``is_other_limit``: the new place is charged another memory limit than the old one.
    """
    if not old.mems:
        return replace(new, mems=NO_CPUS, memory_charge=())
    allowed = state.node.mems if constraint.mems is None else state.node.mems & constraint.mems
    kept = old.mems & allowed
    if not kept:
        return new
    if not new.mems:  # its memory limit is gone; its memory is still there
        return replace(new, mems=kept, memory_charge=())
    if not is_other_limit and kept == old.mems and state.host.topology.nodes_of(new.cpus) <= kept:
        return replace(new, mems=kept, memory_charge=old.memory_charge)
    return replace(new, mems=kept | new.mems, memory_charge=_charged_on_both(old, new, kept))


def _charged_on_both(old: Placement, new: Placement, kept: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """What each node must be ready for: its memory stays where it is, and what it asks for next comes to the new ones.

    Together that may be more than its limit, on no node it is.
    """
    was, now = dict(old.memory_charge), dict(new.memory_charge)
    limit = sum(now.values())
    sizes = {
        n: min(limit, max(was.get(n, 0), now.get(n, 0))) for n in sorted((was.keys() & kept) | now.keys())
    }
    return tuple((n, size) for n, size in sizes.items() if size)


def placed(
    grant: ContainerRecord, placement: Placement, why: str, displaced: Optional[Placement] = None
) -> ContainerRecord:
    """The grant, managed and in this place; ``displaced``: the one it goes back to."""
    return altered(
        grant,
        stance=Management.PLACED,
        placement=placement,
        runs_on=NO_CPUS,
        displaced=displaced,
        repairs=(),
        why=why,
        is_outgrown=False,
    )


def grown(grant: ContainerRecord, old: Topology, new: Topology) -> ContainerRecord:
    """A grant with the CPUs that have joined its domains; an adopted container keeps what it has."""
    home = NO_CPUS if grant.is_claim else _grown_home(grant.placement.home, old, new)
    if grant.is_claim or home == grant.placement.home or grant.stance is Management.ADOPTED:
        return grant
    return replace(grant, placement=replace(grant.placement, home=home))


def _grown_home(home: frozenset[int], old: Topology, new: Topology) -> frozenset[int]:
    """A leaf, or an L3 of clusters, that it held wholly is still held wholly."""
    known = frozenset(old.cpus)
    grown = set(home)
    for leaf in (*new.leaves, *new.caches) if home else ():
        if leaf.cpus - known and leaf.cpus & known and leaf.cpus & known <= home:
            grown |= leaf.cpus
    return frozenset(grown)


# ---------------------------------------------------------------------- what the containers of a pod are charged

# It follows from the sandbox's size and what its containers were told (policies/pod_share.py), whatever came first.


def share_out(state: State) -> None:
    """Book the containers of the pods in which something has changed as they are charged now."""
    while state.unshared:
        share_out_pod(state, state.unshared.pop())


def share_out_pod(state: State, sandbox_id: str, newcomer: Optional[Container] = None) -> Optional[Container]:
    """The same for one pod. ``newcomer``: one that is not in the books as it is told now; returned as it is charged."""
    grants = [state.grants[key] for key in state.sandboxes.get(sandbox_id, ())]
    size = _size_of(state, sandbox_id, newcomer, grants)
    containers = [grant.container for grant in grants] + ([newcomer] if newcomer is not None else [])
    if size is None or is_plain(size, containers):
        state.unshared.discard(sandbox_id)
        return newcomer
    # Of a container that is there twice the request under way counts; the other one stays as it is until that has ended.
    grants.sort(key=lambda g: (g.life is Life.CREATING, g.container.attempt, g.key))
    containers = [grant.container for grant in grants] + ([newcomer] if newcomer is not None else [])
    named = {container.name: container for container in containers}
    shares = shared_out(size, named.values())
    for grant in grants:
        container = grant.container
        now = shares[container.name]
        if named[container.name] is container and now is not container:
            state.put(altered(state.grants[grant.key], container=now))
    state.unshared.discard(sandbox_id)
    return None if newcomer is None else shares[newcomer.name]


def own_together(state: State, sandbox_id: str) -> bool:
    """Whether containers of a pod own CPUs as their pod's, or are to."""
    grants = [state.grants[key] for key in state.sandboxes.get(sandbox_id, ())]
    return any(
        g.container.pod_share is not None
        and g.placement.exclusive
        and (not g.placement.group or is_pod_group(g.placement.group))
        for g in grants
    )


def without_past(state: State, container: Container, replaced: tuple[ContainerRecord, ...]) -> Pod:
    """The pod of a container that takes over from init containers which have finished; its size is known to be theirs where
    they needed as much, with those that run beside them.

    A pod's size is that of its init containers where it is the larger (component-helpers resource.PodRequests, PodLimits).
    """
    pod = container.pod
    size = pod.size
    over = [g for g in replaced if g.container.name != container.name]
    if size is None or size.is_past or not over:
        return pod
    there = {key: state.grants[key] for key in state.sandboxes.get(pod.id, ())}
    there.update({grant.key: grant for grant in over})
    needed = sum(wanted_milli(g.container) for g in there.values() if g.container.name != container.name)
    limit = size.milli_of_containers if size.limit_of_containers is None else size.limit_of_containers
    if needed + SAME_MILLI < limit:
        return pod
    pod = replace(pod, size=replace(size, is_past=True))
    state.change("pod", state.pods, pod.id, pod)
    return pod


def _size_of(
    state: State, sandbox_id: str, newcomer: Optional[Container], grants: list[ContainerRecord]
) -> Optional[PodSize]:
    pod = state.pods.get(sandbox_id)
    if pod is None:
        # As the one says that was told last.
        newest = sorted(grants, key=lambda g: (-g.since_s, g.key))
        known = ([newcomer.pod] if newcomer is not None else []) + [g.container.pod for g in newest]
        pod = next((p for p in known if p.size is not None), None)
    return None if pod is None else pod.size
