"""Bringing grants in line with the pools: what every container's CPUs and memory nodes are *now*.

A placement remembers its home, all CPUs of the chosen domains. What of it may be used changes with exclusive
grants, offline CPUs, cgroups and configuration; here that is worked out again, and whoever has nothing left is
placed anew, with the way back kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from cri_proxy.core.books import Books, Pools
from cri_proxy.core.grants import Grant, Life, Quota, Stance, Update
from policies.cpus import NO_CPUS
from policies.memory import Memory, choose_memory
from policies.model import (
    UNTOUCHED,
    BudgetSpent,
    Container,
    Decision,
    Fence,
    Placement,
    PlacementRefused,
    altered,
)
from policies.topology import Topology

#: Exclusive sets that are placed anew change the sets of others, and so on; it settles in two or three rounds.
REFRESH_ROUNDS = 8


def refresh(books: Books, force: bool = False) -> tuple[Update, ...]:
    """Recompute every set that depends on others, and say whose has really changed. Losers come first."""
    tidy = books.policy.tidy(books.node)
    unchanged = not force and books.refreshed == _pools(books)
    if unchanged and not tidy:
        return ()
    before = dict(books.grants)
    tidied = _give(books, tidy)
    for _ in range(0 if unchanged and not tidied else REFRESH_ROUNDS):
        changed = None if force else _changed(books.refreshed, _pools(books))
        changed = None if changed is None else changed | tidied
        books.refreshed = _pools(books)
        # A resize on its way has its container in the books twice; the two are in nobody's way but others'.
        own = _twins(books, before)
        barred = barred_from_owning(books)
        for key in _depending_on(books, changed):
            settle(books, books.grants[key], barred, own.get(key, NO_CPUS))
        tidied = _give(
            books, books.policy.tidy(books.node)
        )  # who was placed anew may have joined others, who move with it
        if not tidied and books.refreshed == _pools(books):
            break
    updates = [
        update_of(was, now)
        for key, was in before.items()
        if (now := books.grants[key]) is not was
        and now.life in (Life.CREATED, Life.RUNNING)
        and has_changed(was, now)
    ]
    return tuple(sorted(updates, key=lambda u: (not u.shrink, u.id)))


def give_places(books: Books, decision: Decision) -> tuple[tuple[str, Placement, Placement], ...]:
    """Give others the placements a decision has for them; returns what they had and have now."""
    moved = []
    for key, placement in sorted(decision.others.items()):
        moved.append((key, books.grants[key].placement, placement))
        put_placement(books, key, placement, "makes room: " + decision.why)
    return tuple(moved)


def refreshed(books: Books, was: Mapping[str, Grant], force: bool = False) -> tuple[Update, ...]:
    """As ``refresh``; with the updates of those, too, whose records were ``was`` before they were changed."""
    updates = {u.id: u for u in refresh(books, force)}
    for key, before in was.items():
        now = books.grants.get(key)
        updates.pop(key, None)
        if now is not None and now.life in (Life.CREATED, Life.RUNNING) and has_changed(before, now):
            updates[key] = update_of(before, now)
    return tuple(sorted(updates.values(), key=lambda u: (not u.shrink, u.id)))


def put_and_settle(books: Books, grant: Grant) -> tuple[Update, ...]:
    """Enter a record, bring it in line with the pools, and say who has to be told."""
    books.put(grant)
    settle(books, grant, barred_from_owning(books))
    settled = books.grants[grant.key]
    updates = refresh(books)
    if has_changed(grant, settled) and all(u.id != grant.key for u in updates):
        updates += (update_of(grant, settled),)
    return updates


def _twins(books: Books, before: Mapping[str, Grant]) -> dict[str, frozenset[int]]:
    """Of both records of each container that is being resized: what the other one owns or owned, and nobody else owns."""
    own: dict[str, frozenset[int]] = {}
    claims = dict(books.node.claims)
    for ticket in books.tickets.values():
        pending, target = books.grants[ticket.key], books.grants.get(ticket.target)
        if target is None:
            continue
        theirs = pending.exclusive, target.exclusive
        was = before[target.key].exclusive if target.key in before else NO_CPUS
        for key, cpus in ((target.key, pending.exclusive), (pending.key, was)):
            own[key] = frozenset(c for c in cpus if claims.get(c, 0) <= sum(c in mine for mine in theirs))
    return own


def _give(books: Books, placements: Mapping[str, Placement]) -> frozenset[int]:
    """Give everybody the placement that the policy has for it now; returns the CPUs that have another owner then."""
    changed: set[int] = set()
    for key, placement in placements.items():
        if key in books.grants:
            changed |= books.grants[key].placement.exclusive ^ placement.exclusive
        put_placement(books, key, placement)
    return frozenset(changed)


def put_placement(books: Books, key: str, placement: Placement, why: str = "") -> None:
    """Give a container that is placed the placement that the policy has chosen for it now."""
    grant = books.grants.get(key)
    if grant is not None and grant.stance is Stance.PLACED and grant.placement != placement:
        placement = inside(grant.fence, placement)
        books.put(replace(grant, placement=placement, displaced=None, why=why or grant.why))


def inside(fence: Fence, placement: Placement) -> Placement:
    """A placement without what the caller does not allow: of others' fences a policy knows nothing."""
    cpus = placement.cpus if fence.cpus is None else placement.cpus & fence.cpus
    mems = placement.mems if fence.mems is None else placement.mems & fence.mems
    return replace(placement, cpus=cpus, mems=mems)


def _pools(books: Books) -> Pools:
    return id(books.node), books.node.shared, books.node.claims


def _changed(before: Pools, now: Pools) -> Optional[frozenset[int]]:
    """The CPUs that are shared or claimed otherwise than before; None = it is another node."""
    if before[0] != now[0]:
        return None
    return (before[1] ^ now[1]).union(cpu for cpu, _ in before[2] ^ now[2])


def _depending_on(books: Books, changed: Optional[frozenset[int]]) -> list[str]:
    """Keys of the grants that some CPUs matter to, in the order in which they came; None = of all."""
    found = list(books.grants.values())
    if changed is not None:
        # Many containers have one home: a set is looked at once.
        matters: dict[frozenset[int], bool] = {}
        for grant in found:
            for cpus in (grant.placement.home, grant.placement.exclusive):
                if cpus not in matters:
                    matters[cpus] = not changed.isdisjoint(cpus)
        found = [
            grant
            for grant in found
            if matters[grant.placement.home]
            or matters[grant.placement.exclusive]
            or grant.displaced is not None
        ]
    return [grant.key for grant in sorted(found, key=lambda g: (g.since_s, g.key))]


def barred_from_owning(books: Books) -> frozenset[int]:
    """CPUs that no policy may give away: reserved ones, and those that kubelet has given to single containers."""
    kubelets = [g.runs_on for g in books.grants.values() if g.stance is Stance.KUBELET]
    return books.node.reserved.union(*books.host.kubelet_exclusive.values(), *kubelets)


def settle(books: Books, grant: Grant, barred: frozenset[int], own: frozenset[int] = NO_CPUS) -> None:
    """Bring one grant in line with the pools.

    ``barred``: as ``barred_from_owning`` says. ``own``: CPUs that are exclusive to it by another record.
    """
    if grant.stance is Stance.PLACED or (grant.stance is Stance.UNTOUCHED and grant.displaced is not None):
        _settle_placed(books, grant, (barred - own) | books.node.reserved if own else barred, own)
    elif grant.stance is Stance.ADOPTED:
        _settle_adopted(books, grant, own)


def _settle_placed(books: Books, grant: Grant, barred: frozenset[int], own: frozenset[int]) -> None:
    # 1. Back to the place it had before its CPUs went away, if all of that is there again. Not to a balloon as it
    #    was then: the policy knows what it has become.
    back = grant.displaced
    if back is not None and not back.group and _is_free(books, back, grant, barred, own):
        back = replace(back, cpus=effective(books, back, grant.fence, own))
        books.put(placed(grant, _on_usable_mems(books, back, grant), "its first place is there again"))
        return
    # 2. The same domain, as far as it may be used now.
    placement = grant.placement
    cpus = effective(books, placement, grant.fence, own)
    if cpus and placement.exclusive.isdisjoint(barred):
        home = placement.home
        if placement.level == "reserved":  # it goes with the configuration, not with the CPUs of before
            home = books.node.reserved if grant.fence.cpus is None else books.node.reserved & grant.fence.cpus
        if cpus == placement.cpus and home == placement.home and placement.mems <= books.node.mems:
            return
        now = _on_usable_mems(books, altered(placement, cpus=cpus, home=home), grant)
        # Why it is here has not changed; the update says what has.
        books.put(altered(grant, placement=now))
        return
    # 3. Nothing of it is left: somewhere else, with the way back kept; or nowhere, until there is something.
    first = back or placement
    anew = _place_anew(books, grant)
    if anew is not None and anew.placement.cpus:
        kept = keep_memory(books, placement if placement.cpus else first, anew.placement, grant.fence)
        moved = placed(grant, kept, f"its CPUs are gone: {anew.why}")
        books.put(replace(moved, displaced=first))
    elif grant.stance is Stance.PLACED:
        why = "its CPUs are gone, and there are no others for it"
        # With all of its cpuset offline it runs on its parent's (cgroup v1 even moves it there).
        runs_on = (placement.cpus & books.host.topology.online) or books.host.parent_cpus
        books.put(
            replace(
                grant, stance=Stance.UNTOUCHED, placement=UNTOUCHED, runs_on=runs_on, displaced=first, why=why
            )
        )


def _on_usable_mems(books: Books, placement: Placement, grant: Grant) -> Placement:
    """A placement without the memory nodes that may not be used any more; on others where none is left."""
    mems = placement.mems & books.node.mems
    if mems or not placement.mems:
        return placement if mems == placement.mems else replace(placement, mems=mems)
    with books.without([grant.key]):
        memory = memory_for(books, placement.cpus, grant.container, grant.fence)
    anywhere = books.node.mems if grant.fence.mems is None else NO_CPUS
    return replace(placement, mems=memory.nodes or anywhere, memory_charge=memory.charge)


def _settle_adopted(books: Books, grant: Grant, own: frozenset[int]) -> None:
    """An adopted container keeps what it has, less what others now own."""
    online = books.host.topology.online
    cpus = (grant.placement.home & online) - (books.node.exclusive - grant.exclusive - own)
    if cpus == grant.runs_on & online:
        return
    if cpus:
        books.put(replace(grant, runs_on=cpus))
        return
    anew = _place_anew(books, grant)
    if anew is not None and anew.placement.cpus:
        books.put(placed(grant, anew.placement, f"its CPUs are gone: {anew.why}"))


def _place_anew(books: Books, grant: Grant) -> Optional[Decision]:
    """Where the policy would put a container that is in the books now, near its memory; None if it will not."""
    was = (grant.placement.home or (grant.displaced.home if grant.displaced else NO_CPUS)) or None
    with books.without([grant.key]):
        try:
            return books.policy.place(
                books.node, grant.container, grant.fence, books.pull(grant.container, grant.key), was
            )
        except (PlacementRefused, BudgetSpent):
            return None


def _is_free(
    books: Books, place: Placement, grant: Grant, barred: frozenset[int], own: frozenset[int]
) -> bool:
    others = (books.node.exclusive - grant.exclusive - own) | barred
    # Its CPUs may have gone one after another: all of those it had last must be there, more are welcome.
    cpus = effective(books, place, grant.fence, own)
    return place.exclusive.isdisjoint(others) and bool(cpus) and cpus >= place.cpus


def effective(
    books: Books, placement: Placement, fence: Fence, own: frozenset[int] = NO_CPUS
) -> frozenset[int]:
    """The CPUs of a placement that may be used now."""
    known = books.node.allowed_now
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
        cpus = books.node.shared_reserved
    else:
        cpus = placement.home & (books.node.shared | (own & placement.cpus & books.node.usable))
    if placement.one_thread:
        cpus = books.host.topology.one_thread_per_core(cpus)
    cpus |= (placement.exclusive - placement.hidden) & books.node.usable
    cpus = cpus if fence.cpus is None else cpus & fence.cpus
    if not own:
        known[key] = cpus
    return cpus


def memory_for(books: Books, cpus: frozenset[int], container: Container, fence: Fence) -> Memory:
    """Memory nodes for CPUs that the policy has not chosen just now; none if it sets none."""
    settings = books.policy.settings
    limit = container.resources.memory_limit_bytes
    types = container.wishes.memory_types
    return choose_memory(
        books.node, cpus, limit, settings.memory, settings.memory_only_nodes, fence.mems, types
    )


def keep_memory(books: Books, old: Placement, new: Placement, fence: Fence) -> Placement:
    """A change of CPUs inside the memory nodes never touches them; else the old ones stay beside the new."""
    if not old.mems:
        return replace(new, mems=NO_CPUS, memory_charge=())
    allowed = books.node.mems if fence.mems is None else books.node.mems & fence.mems
    kept = old.mems & allowed
    if not kept:
        return new
    if not new.mems:  # its memory limit is gone; its memory is still there
        return replace(new, mems=kept, memory_charge=())
    same_limit = sum(size for _, size in old.memory_charge) == sum(size for _, size in new.memory_charge)
    if same_limit and kept == old.mems and books.host.topology.nodes_of(new.cpus) <= kept:
        return replace(new, mems=kept, memory_charge=old.memory_charge)
    return replace(new, mems=kept | new.mems)


def placed(grant: Grant, placement: Placement, why: str) -> Grant:
    """The grant, managed and in this place."""
    return replace(
        grant, stance=Stance.PLACED, placement=placement, runs_on=NO_CPUS, displaced=None, repairs=(), why=why
    )


def has_changed(was: Grant, now: Grant) -> bool:
    """Whether the runtime has to be told: of our own cpuset and quota, or of what is left to an adopted container."""
    if now.lifted != was.lifted:
        return True
    if now.stance is Stance.PLACED:
        return now.cpus != was.cpus or now.placement.mems != was.placement.mems
    return now.stance is Stance.ADOPTED and now.runs_on != was.runs_on


def update_of(was: Grant, now: Grant) -> Update:
    """What the runtime has to be told of a grant that has changed."""
    place = now.placement
    if now.stance is not Stance.PLACED:
        place = Placement(cpus=now.runs_on) if now.stance is Stance.ADOPTED else UNTOUCHED
    why = now.why
    if now.why == was.why:
        why = "CPUs of its domain came or went" if was.cpus != now.cpus else "memory nodes came or went"
        if now.lifted != was.lifted:
            why = "its CPU quota is lifted" if now.lifted else "its CPU quota is not lifted any more"
    # Where it runs while it has no place of ours is not known for sure: it is then told first.
    shrink = bool(was.cpus - now.cpus) or was.stance is Stance.UNTOUCHED
    return Update(now.key, place, shrink, why, given_back(was, now), was.cpus)


def given_back(was: Grant, now: Grant) -> Optional[Quota]:
    """The CPU quota that a container has lost by us and gets back with this change."""
    return now.quota if was.lifted and not now.lifted else None


def grown(grant: Grant, old: Topology, new: Topology) -> Grant:
    """A grant with the CPUs that have joined its domains; an adopted container keeps what it has."""
    home = _grown_home(grant.placement.home, old, new)
    if home == grant.placement.home or grant.stance is Stance.ADOPTED:
        return grant
    return replace(grant, placement=replace(grant.placement, home=home))


def _grown_home(home: frozenset[int], old: Topology, new: Topology) -> frozenset[int]:
    """A leaf it held wholly is still held wholly."""
    known = frozenset(old.cpus)
    grown = set(home)
    for leaf in new.leaves if home else ():
        if leaf.cpus - known and leaf.cpus & known and leaf.cpus & known <= home:
            grown |= leaf.cpus
    return frozenset(grown)
