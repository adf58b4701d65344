"""Bringing grants in line with the pools: what every container's CPUs and memory nodes are *now*.

A placement remembers its home, all CPUs of the chosen domains. What of it may be used changes with exclusive
grants, offline CPUs, cgroups and configuration; here that is worked out again, and a container that has nothing left
is placed anew, with the way back kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Optional

from cri_proxy.engine.model import UNPLACED, Grant, Life, Stance
from cri_proxy.engine.state import Ledger, Pools
from policies.groups import is_pod_group
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.memory import MemoryCharge, MemoryChoice, memory_of
from policies.model import (
    UNTOUCHED,
    BudgetSpent,
    Container,
    CpusetConstraint,
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
REFRESH_ROUNDS = 8
_FourSets = tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int]]
#: Of a group of fewer containers each is asked.
WORTH_ASKING = 2


def refresh(ledger: Ledger, force: bool = False) -> None:
    """Recompute every set that depends on others."""
    share_out(ledger)
    tidy = ledger.policy.tidy(ledger.node, ledger.now_s)
    unchanged = not force and ledger.refreshed == ledger.pools
    if unchanged and not tidy:
        return
    owned = {
        t.target: ledger.grants[t.target].exclusive
        for t in ledger.tickets.values()
        if t.target in ledger.grants
    }
    _work_out(ledger, tidy, force, unchanged, owned)


def _work_out(
    ledger: Ledger,
    tidy: Mapping[str, Placement],
    force: bool,
    unchanged: bool,
    owned: Mapping[str, frozenset[int]],
) -> None:
    """The rounds of ``refresh``, until nothing changes any more; ``owned``: what those that are resized owned before."""
    handed = _give(ledger, tidy)
    for _ in range(0 if unchanged and not handed else REFRESH_ROUNDS):
        changed = None if force else _changed(ledger.refreshed, ledger.pools)
        changed = None if changed is None else changed | handed
        ledger.refreshed = ledger.pools
        # A resize on its way has its container in the books twice; the two are in the way of others only.
        own = _twins(ledger, owned)
        barred = barred_from_owning(ledger)
        handed = NO_CPUS
        for key in _in_turn(ledger, changed, barred, own):
            grant = ledger.grants[key]
            recompute(ledger, grant, barred, own.get(key, NO_CPUS))
            # CPUs that one has lost and another has got look as before; one recomputed in between has seen them free.
            if (now := ledger.grants[key]).placement.exclusive is not grant.placement.exclusive:
                handed |= now.exclusive ^ grant.exclusive
        # A container that was placed anew may have joined others, which move with it.
        handed |= _give(ledger, ledger.policy.tidy(ledger.node, ledger.now_s))
        if not handed and ledger.refreshed == ledger.pools:
            break


def give_places(
    ledger: Ledger, decision: Decision, container: Container
) -> tuple[tuple[str, Placement, Placement], ...]:
    """Give others the placements a decision about a container has for them; returns what they had and have now, but of
    those that own CPUs with others: without the container that is more than they need, and goes back by itself."""
    grants, others = ledger.grants, decision.others
    before = {
        key: grants[key].placement for key in sorted(others) if _is_shown(grants[key].placement, others[key])
    }
    _put_placements(ledger, others, f"makes room for {container.path}: {decision.why}")
    # What they have been given is inside of what their callers allow.
    return tuple((key, was, grants[key].placement) for key, was in before.items())


def tidy_up(ledger: Ledger) -> None:
    """Give containers what the policy has for them now, before something is decided."""
    _give(ledger, ledger.policy.tidy(ledger.node, ledger.now_s))


def put_and_recompute(ledger: Ledger, grant: Grant) -> None:
    """Enter a record, and bring it and all that depends on it in line with the pools."""
    ledger.put(grant)
    recompute(ledger, ledger.grants[grant.key], barred_from_owning(ledger))
    refresh(ledger)


def _twins(ledger: Ledger, owned: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """Of both records of each container that is being resized: what the other one owns or owned, and no third owns.

    ``owned``: what those that are resized owned before, by key.
    """
    own: dict[str, frozenset[int]] = {}
    for ticket in ledger.tickets.values():
        pending, target = ledger.grants[ticket.key], ledger.grants.get(ticket.target)
        if target is None:
            continue
        theirs = pending.exclusive, target.exclusive
        was = owned.get(target.key, NO_CPUS)
        for key, cpus in ((target.key, pending.exclusive), (pending.key, was)):
            own[key] = frozenset(
                c for c in cpus if ledger.node.claimants(c) <= sum(c in mine for mine in theirs)
            )
    return own


def _give(ledger: Ledger, placements: Mapping[str, Placement]) -> frozenset[int]:
    """Give each container the placement that the policy has for it now; returns the CPUs that change hands."""
    before = {key: ledger.grants[key].placement.exclusive for key in placements if key in ledger.grants}
    _put_placements(ledger, placements)
    changed: set[int] = set()
    seen: set[tuple[int, int]] = set()
    for key, own in before.items():
        now, has = placements[key].exclusive, ledger.grants[key].placement
        if (id(own), id(now)) not in seen:  # many own the same
            seen.add((id(own), id(now)))
            changed |= own ^ now
        if not has.cpus:  # all of them are outside of what its caller allows
            changed |= now
    return frozenset(changed)


def _put_placements(ledger: Ledger, placements: Mapping[str, Placement], why: str = "") -> None:
    """Give containers that are placed other placements; ``why``, of those that get others than their group's own CPUs."""
    together: dict[tuple[str, _FourSets], dict[str, Placement]] = {}
    for key, placement in placements.items():
        grant = ledger.grants.get(key)
        if grant is None:
            continue
        was = grant.placement
        its_why = why if _is_shown(was, placement) else ""
        if not _grows_with_group(grant, placement):
            put_placement(ledger, key, placement, its_why)
            continue
        sets = was.cpus, was.exclusive, placement.cpus, placement.exclusive
        together.setdefault((its_why, sets), {})[key] = placement
    for (its_why, (_, _, cpus, _)), alike in together.items():
        ledger.put_together(alike, cpus, its_why)


def _grows_with_group(grant: Grant, placement: Placement) -> bool:
    """Whether nothing of a container changes but what it owns with its group, and shares: that is more now.

    A daemon that starts works that out from the record of the container that the group grows for.
    """
    was, fence = grant.placement, grant.fence
    is_plain = (
        grant.stance is Stance.PLACED and grant.displaced is None and (fence.cpus, fence.mems) == (None, None)
    )
    return bool(
        is_plain
        and was.group
        and was.group == placement.group
        and was.exclusive < placement.exclusive
        and (was.mems, was.memory_charge, was.lift_quota)
        == (placement.mems, placement.memory_charge, placement.lift_quota)
    )


def _kind(place: Placement) -> tuple[object, ...]:
    return place.home, place.mems, place.hidden, place.one_thread


def put_placement(ledger: Ledger, key: str, placement: Placement, why: str = "") -> None:
    """Give a container that is placed the placement that the policy has chosen for it now."""
    grant = ledger.grants.get(key)
    if grant is None or grant.stance is not Stance.PLACED or grant.placement == placement:
        return
    placement = inside(grant.fence, placement)
    ledger.put(altered(grant, placement=placement, displaced=None, why=why or grant.why))


def _is_shown(was: Placement, now: Placement) -> bool:
    """Whether a placement differs in more than the CPUs that a container owns with its group."""
    return _shown(was) != _shown(now)


def _shown(place: Placement) -> tuple[object, ...]:
    own = NO_CPUS if place.group else place.exclusive
    return place.group, own, place.cpus, *_kind(place)


def inside(fence: CpusetConstraint, placement: Placement) -> Placement:
    """A placement without what the caller does not allow: of others' fences a policy knows nothing."""
    if fence.cpus is None and fence.mems is None:
        return placement
    cpus = placement.cpus if fence.cpus is None else placement.cpus & fence.cpus
    mems = placement.mems if fence.mems is None else placement.mems & fence.mems
    return replace(placement, cpus=cpus, mems=mems)


def _changed(before: Pools, now: Pools) -> Optional[frozenset[int]]:
    """The CPUs that are shared or claimed otherwise than before; None = it is another node."""
    if before[0] != now[0]:
        return None
    return (before[1] ^ now[1]).union(cpu for cpu, _ in (before[2] ^ now[2]) | (before[3] ^ now[3]))


def _in_turn(
    ledger: Ledger, changed: Optional[frozenset[int]], barred: frozenset[int], twins: Mapping[str, object]
) -> Iterator[str]:
    """Keys of the grants to recompute, in the order in which they came: of those that ``changed`` matters to, None = all.

    Containers that share what of their homes may be used are given that here, before the first key.
    """
    if changed is None:
        yield from _in_order(ledger.grants.values())
        return
    node, grants = ledger.node, ledger.grants
    calm = _calm(ledger, barred, twins)
    keys = _share(ledger, changed, twins)
    keys.update(key for name, group in node.groups.items() for key in calm.get(name, group) if key in group)
    # Some name a group and are in none: they are not placed.
    named = len(grants) - sum(map(len, ledger.places.values())) - sum(map(len, node.groups.values()))
    if named:
        keys.update(key for key in grants if _names_group_outside(ledger, key))
    version = node.pool_version
    for key in _depending_on(ledger, changed, keys):
        yield key
        if calm and node.pool_version != version:
            # What has come of it may matter to the containers after it that nothing was to come of.
            after = grants[key].since_s, key
            rest = _depending_on(ledger, changed, grants)
            yield from [other for other in rest if (grants[other].since_s, other) > after]
            return


def _share(ledger: Ledger, changed: frozenset[int], twins: Mapping[str, object]) -> set[str]:
    """Give containers that share their homes what of these may be used now, if ``changed`` matters to them: all that have
    the same at once. Returns the keys of those in no group that must be looked at one by one."""
    others = {key for key in ledger.displaced if not ledger.grants[key].placement.group}
    for (home, own), there in list(ledger.places.items()):
        if changed.isdisjoint(home) and changed.isdisjoint(own):
            continue
        if own:
            others.update(there)
            continue
        alike: dict[tuple[object, ...], list[Grant]] = {}
        for key in there:
            grant = ledger.grants[key]
            if key in others or key in twins or not _shares_plainly(ledger, grant):
                others.add(key)
                continue
            place = grant.placement
            signs: tuple[object, ...] = (place.cpus, place.hidden, place.one_thread, grant.fence.cpus)
            alike.setdefault(signs if grant.stance is Stance.PLACED else (grant.runs_on,), []).append(grant)
        for grants in alike.values():
            first = grants[0]
            if first.stance is Stance.ADOPTED:
                cpus, has_now = _left_to_adopted(ledger, home), first.runs_on & ledger.host.topology.online
            else:
                cpus, has_now = effective(ledger, first.placement, first.fence), first.placement.cpus
            if not cpus:
                others.update(grant.key for grant in grants)
            elif cpus != has_now:
                ledger.put_together({g.key: _with_cpus(g, cpus) for g in grants}, cpus)
    return others


def _with_cpus(grant: Grant, cpus: frozenset[int]) -> Optional[Placement]:
    return None if grant.stance is Stance.ADOPTED else altered(grant.placement, cpus=cpus)


def _shares_plainly(ledger: Ledger, grant: Grant) -> bool:
    """Whether nothing of a container that owns no CPUs depends on the pools, but which CPUs of its home it has."""
    place = grant.placement
    if grant.stance is Stance.ADOPTED:
        return True
    if grant.stance is not Stance.PLACED or place.level == "reserved" or not place.mems <= ledger.node.mems:
        return False
    if grant.fence.mems is not None and not place.mems <= grant.fence.mems:
        return False
    # A memory limit that is charged by its place stays so.
    is_charged = place.mems and place.memory_charge
    return bool(is_charged or not grant.container.resources.memory_limit_bytes)


def _calm(ledger: Ledger, barred: frozenset[int], twins: Mapping[str, object]) -> dict[str, Set[str]]:
    """By group, where ``recompute`` leaves some of its containers as they are: those that it may not leave so.

    Of containers that are alike one is asked. One that is being resized, or has a place to go back to is recomputed itself.
    """
    found: dict[str, Set[str]] = {}
    node = ledger.node
    for name, group in node.groups.items():
        if len(group) < WORTH_ASKING or not barred.isdisjoint(NO_CPUS.union(*group.sets())):
            continue
        loud = {*ledger.displaced, *twins}
        for keys in group.kinds.values():
            key = next((key for key in keys if key not in loud), None)
            if key is None:
                continue
            grant = ledger.grants[key]
            place = grant.placement
            cpus = effective(ledger, place, grant.fence)
            if not cpus or cpus != place.cpus or not place.mems <= node.mems:
                loud.update(keys)
        found[name] = loud
    return found


def _depending_on(ledger: Ledger, changed: frozenset[int], keys: Iterable[str]) -> list[str]:
    """Which of these keys are of grants that some CPUs matter to, in the order in which they came."""
    found = [ledger.grants[key] for key in keys]
    # Many containers have one home: a set is looked at once.
    matters: dict[frozenset[int], bool] = {}
    for grant in found:
        for cpus in (grant.placement.home, grant.placement.exclusive):
            if cpus not in matters:
                matters[cpus] = not changed.isdisjoint(cpus)
    return _in_order(
        grant
        for grant in found
        if matters[grant.placement.home] or matters[grant.placement.exclusive] or grant.displaced is not None
    )


def _in_order(grants: Iterable[Grant]) -> list[str]:
    return [grant.key for grant in sorted(grants, key=lambda g: (g.since_s, g.key))]


def _names_group_outside(ledger: Ledger, key: str) -> bool:
    name = ledger.grants[key].placement.group
    return bool(name) and key not in ledger.node.groups.get(name, ())


def barred_from_owning(ledger: Ledger) -> frozenset[int]:
    """CPUs that no policy may give away: reserved ones, and those that kubelet has given to single containers."""
    kubelets = [ledger.grants[key].runs_on for key in ledger.kubelets]
    return ledger.node.reserved.union(*ledger.host.kubelet_exclusive.values(), *kubelets)


def recompute(ledger: Ledger, grant: Grant, barred: frozenset[int], own: frozenset[int] = NO_CPUS) -> None:
    """Bring one grant in line with the pools.

    ``barred``: as ``barred_from_owning`` says. ``own``: CPUs that are exclusive to it by another record.
    """
    barred = (barred - own) | ledger.node.reserved if own else barred
    first = grant.displaced if grant.stance is Stance.UNTOUCHED else None
    if grant.stance is Stance.ADOPTED or (first is not None and first.level == UNTOUCHED.level):
        _recompute_adopted(ledger, grant, barred, own)
    elif grant.stance is Stance.PLACED or first is not None:
        _recompute_placed(ledger, grant, barred, own)


def _recompute_placed(ledger: Ledger, grant: Grant, barred: frozenset[int], own: frozenset[int]) -> None:
    # 1. Back to the place it had before its CPUs went away, if all of that is there again. Not to a balloon as it
    #    was then: the policy knows what it has become. While containers are frozen it stays where it is.
    back = grant.displaced
    cpus = NO_CPUS if back is None or back.group else _free_again(ledger, back, grant, barred, own)
    stays = ledger.orders.freeze and grant.stance is Stance.PLACED
    if back is not None and cpus and not stays:
        back = _on_usable_mems(ledger, replace(back, cpus=cpus), grant)
        ledger.put(placed(grant, back, "its first place is there again"))
        return
    # 2. The same domain, as far as it may be used now.
    placement = grant.placement
    cpus = effective(ledger, placement, grant.fence, own)
    if cpus and placement.exclusive.isdisjoint(barred):
        home = placement.home
        if placement.level == "reserved":  # it goes with the configuration, not with the CPUs of before
            home = (
                ledger.node.reserved if grant.fence.cpus is None else ledger.node.reserved & grant.fence.cpus
            )
        if cpus == placement.cpus and home == placement.home and placement.mems <= ledger.node.mems:
            return
        now = _on_usable_mems(ledger, altered(placement, cpus=cpus, home=home), grant)
        # Why it is here has not changed; the update says what has.
        ledger.put(altered(grant, placement=now))
        return
    # 3. Nothing of it is left: somewhere else, with the way back kept; or nowhere, until there is something.
    first = back or placement
    # Others that own CPUs with it as their pod's and lose the same keep it nowhere: they follow it to where it goes.
    pods = ledger.node.groups.get(placement.group, ()) if is_pod_group(placement.group) else ()
    lost = [key for key in pods if key != grant.key and not ledger.grants[key].exclusive.isdisjoint(barred)]
    with ledger.without(lost):
        anew = _place_anew(ledger, grant)
    if anew is not None and anew.placement.cpus:
        kept = keep_memory(ledger, placement if placement.cpus else first, anew.placement, grant.fence)
        moved = placed(grant, kept, f"its CPUs are gone: {anew.why}")
        ledger.put(replace(moved, displaced=first))
    elif grant.stance is Stance.PLACED:
        _leave_untouched(ledger, grant, first)


def _leave_untouched(ledger: Ledger, grant: Grant, first: Placement) -> None:
    """Nothing to place it on: it runs where it ran, until ``first`` or another place can be had."""
    why = "its CPUs are gone, and there are no others for it"
    # With all of its cpuset offline it runs on its parent's (cgroup v1 even moves it there).
    runs_on = (grant.cpus & ledger.host.topology.online) or ledger.host.parent_cpus
    if grant.stance is Stance.ADOPTED:  # also those that are offline are in its cpuset, as far as we know
        runs_on = grant.runs_on
    if grant.life in (Life.CREATED, Life.RUNNING):
        ledger.notable.add(UNPLACED, grant.container, why)
    told = ledger.told.get(grant.key)
    ledger.put(
        replace(
            grant, stance=Stance.UNTOUCHED, placement=UNTOUCHED, runs_on=runs_on, displaced=first, why=why
        )
    )
    if told is not None:  # where it runs from now on the kernel says
        ledger.tell(grant.key, told._replace(cpus=None))


def _on_usable_mems(ledger: Ledger, placement: Placement, grant: Grant) -> Placement:
    """A placement without the memory nodes that may not be used (any more); on others where none is left."""
    allowed = ledger.node.mems if grant.fence.mems is None else ledger.node.mems & grant.fence.mems
    mems = placement.mems & allowed
    if mems or not placement.mems:
        return placement if mems == placement.mems else replace(placement, mems=mems)
    with ledger.without([grant.key]):
        memory = memory_for(ledger, placement.cpus, grant.container, grant.fence)
    anywhere = ledger.node.mems if grant.fence.mems is None else NO_CPUS
    return replace(placement, mems=memory.nodes or anywhere, memory_charge=memory.charge)


def _left_to_adopted(ledger: Ledger, home: frozenset[int]) -> frozenset[int]:
    """What is left of the CPUs that adopted containers were found on, which own none of them."""
    return (home & ledger.host.topology.online) - ledger.node.exclusive


def _recompute_adopted(ledger: Ledger, grant: Grant, barred: frozenset[int], own: frozenset[int]) -> None:
    """An adopted container keeps what it has, less what others now own; kubelet may have given them what it owned."""
    online, node = ledger.host.topology.online, ledger.node
    first = grant.placement if grant.stance is Stance.ADOPTED else grant.displaced or UNTOUCHED
    others = node.exclusive - grant.exclusive - own
    if not first.exclusive.isdisjoint(barred):
        others = others.union(cpu for cpu in barred - own if node.claimants(cpu) > 1)
    cpus, exclusive = (first.home & online) - others, first.exclusive - barred - others
    as_it_was = cpus == grant.runs_on & online and exclusive == grant.exclusive
    if as_it_was and grant.stance is Stance.ADOPTED:
        return
    if cpus:
        now = altered(grant, placement=replace(first, exclusive=exclusive), displaced=None)
        why = grant.why if grant.stance is Stance.ADOPTED else "its first place is there again"
        runs_on = grant.runs_on if cpus == grant.runs_on & online else cpus
        ledger.put(replace(now, stance=Stance.ADOPTED, runs_on=runs_on, why=why))
        return
    # What was adopted takes no CPUs from others: it has none of its own unless it had some.
    anew = _place_anew(ledger, grant, may_own=bool(first.exclusive))
    if anew is not None and anew.placement.cpus:
        ledger.put(placed(grant, anew.placement, f"its CPUs are gone: {anew.why}"))
    elif grant.stance is Stance.ADOPTED:
        _leave_untouched(ledger, grant, first)


def _place_anew(ledger: Ledger, grant: Grant, may_own: bool = True) -> Optional[Decision]:
    """Where the policy would put a container that is in the books now, near its memory; None if it will not.

    ``may_own``: it may take CPUs for itself. It runs: where its demands cannot be met any more it goes without them.
    """
    was = (grant.placement.home or (grant.displaced.home if grant.displaced else NO_CPUS)) or None
    container, note = grant.container, ""
    if not may_own:
        container = replace(container, preferences=replace(container.preferences, ownership="shared"))
    with ledger.without([grant.key]):
        request = replace(
            ledger.request(grant.container, grant.fence, grant.key, near=was), container=container
        )
        for _ in range(2):
            try:
                decision = ledger.place(request)
                return replace(decision, why=note + decision.why)
            except PlacementRefused as refusal:
                request = replace(request, container=without_demands(container))
                note = f"{refusal}, so without what it demands: "
            except BudgetSpent:
                break
    return None


def _free_again(
    ledger: Ledger, place: Placement, grant: Grant, barred: frozenset[int], own: frozenset[int]
) -> frozenset[int]:
    """The CPUs of the place it had before, if all of that can be had again; else none."""
    with ledger.without([grant.key]):  # what it owns with a group others own as well
        others = ledger.node.exclusive - own
    if not place.exclusive.isdisjoint(others | barred):
        return NO_CPUS
    # As it is without it where it is now: what it owns there decides what others, and so its first place, may share.
    with ledger.without([grant.key] if grant.exclusive else ()):
        cpus = effective(ledger, place, grant.fence, own)
    # Its CPUs may have gone one after another: all of those it had last must be there, more are welcome.
    return cpus if cpus >= place.cpus else NO_CPUS


def effective(
    ledger: Ledger, placement: Placement, fence: CpusetConstraint, own: frozenset[int] = NO_CPUS
) -> frozenset[int]:
    """The CPUs of a placement that may be used now."""
    known = ledger.node.allowed_now
    key = (
        placement.home,
        placement.exclusive,
        placement.hidden,
        placement.one_thread,
        placement.level,
        fence.cpus,
    )
    if not own and key in known:
        return known[key]
    if placement.level == "reserved":
        cpus = ledger.node.shared_reserved
    else:
        cpus = placement.home & (ledger.node.shared | (own & placement.cpus & ledger.node.usable))
        cpus -= (
            placement.exclusive
        )  # as long as it is not in the books these look shared, the hidden ones too
    if placement.one_thread:
        cpus = ledger.host.topology.one_thread_per_core(cpus if fence.cpus is None else cpus & fence.cpus)
    cpus |= (placement.exclusive - placement.hidden) & ledger.node.usable
    cpus = cpus if fence.cpus is None else cpus & fence.cpus
    if not own:
        known[key] = cpus
    return cpus


def memory_for(
    ledger: Ledger,
    cpus: frozenset[int],
    container: Container,
    fence: CpusetConstraint,
    had: MemoryCharge = (),
) -> MemoryChoice:
    """Memory nodes for CPUs that the policy has not chosen just now; none if it sets none.

    ``had``: what the container is charged where it is.
    """
    return memory_of(ledger.node, cpus, container, ledger.policy.settings, fence, had)


def keep_memory(
    ledger: Ledger, old: Placement, new: Placement, fence: CpusetConstraint, is_other_limit: bool = False
) -> Placement:
    """A change of CPUs inside the memory nodes never touches them; else the old ones stay beside the new.

    ``is_other_limit``: the new place is charged another memory limit than the old one.
    """
    if not old.mems:
        return replace(new, mems=NO_CPUS, memory_charge=())
    allowed = ledger.node.mems if fence.mems is None else ledger.node.mems & fence.mems
    kept = old.mems & allowed
    if not kept:
        return new
    if not new.mems:  # its memory limit is gone; its memory is still there
        return replace(new, mems=kept, memory_charge=())
    if not is_other_limit and kept == old.mems and ledger.host.topology.nodes_of(new.cpus) <= kept:
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


def placed(grant: Grant, placement: Placement, why: str) -> Grant:
    """The grant, managed and in this place."""
    return replace(
        grant,
        stance=Stance.PLACED,
        placement=placement,
        runs_on=NO_CPUS,
        displaced=None,
        repairs=(),
        why=why,
        is_outgrown=False,
    )


def grown(grant: Grant, old: Topology, new: Topology) -> Grant:
    """A grant with the CPUs that have joined its domains; an adopted container keeps what it has."""
    home = _grown_home(grant.placement.home, old, new)
    if home == grant.placement.home or grant.stance is Stance.ADOPTED:
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


def share_out(ledger: Ledger) -> None:
    """Book the containers of the pods in which something has changed as they are charged now."""
    while ledger.unshared:
        share_out_pod(ledger, ledger.unshared.pop())


def share_out_pod(
    ledger: Ledger, sandbox_id: str, newcomer: Optional[Container] = None
) -> Optional[Container]:
    """The same for one pod. ``newcomer``: one that is not in the books as it is told now; returned as it is charged."""
    grants = [ledger.grants[key] for key in ledger.sandboxes.get(sandbox_id, ())]
    size = _size_of(ledger, sandbox_id, newcomer, grants)
    containers = [grant.container for grant in grants] + ([newcomer] if newcomer is not None else [])
    if size is None or is_plain(size, containers):
        ledger.unshared.discard(sandbox_id)
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
            ledger.put(altered(ledger.grants[grant.key], container=now))
    ledger.unshared.discard(sandbox_id)
    return None if newcomer is None else shares[newcomer.name]


def own_together(ledger: Ledger, sandbox_id: str) -> bool:
    """Whether containers of a pod own CPUs as their pod's, or are to."""
    grants = [ledger.grants[key] for key in ledger.sandboxes.get(sandbox_id, ())]
    return any(
        g.container.pod_share is not None
        and g.placement.exclusive
        and (not g.placement.group or is_pod_group(g.placement.group))
        for g in grants
    )


def without_past(ledger: Ledger, container: Container, replaced: tuple[Grant, ...]) -> Pod:
    """The pod of a container that takes over from init containers which have finished; its size is known to be theirs where
    they needed as much, with those that run beside them.

    A pod's size is that of its init containers where it is the larger (component-helpers resource.PodRequests, PodLimits).
    """
    pod = container.pod
    size = pod.size
    over = [g for g in replaced if g.container.name != container.name]
    if size is None or size.is_past or not over:
        return pod
    there = {key: ledger.grants[key] for key in ledger.sandboxes.get(pod.id, ())}
    there.update({grant.key: grant for grant in over})
    needed = sum(wanted_milli(g.container) for g in there.values() if g.container.name != container.name)
    limit = size.milli_of_containers if size.limit_of_containers is None else size.limit_of_containers
    if needed + SAME_MILLI < limit:
        return pod
    pod = replace(pod, size=replace(size, is_past=True))
    ledger.change("pod", ledger.pods, pod.id, pod)
    return pod


def _size_of(
    ledger: Ledger, sandbox_id: str, newcomer: Optional[Container], grants: list[Grant]
) -> Optional[PodSize]:
    pod = ledger.pods.get(sandbox_id)
    if pod is None:
        known = [g.container.pod for g in grants] + ([newcomer.pod] if newcomer is not None else [])
        pod = next((p for p in known if p.size is not None), None)
    return None if pod is None else pod.size
