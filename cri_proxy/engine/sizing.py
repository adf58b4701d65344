"""Sets that become larger or smaller by what their containers use. Transitions of the engine.

What a container uses is not known here: it is told how large a set must be (``Container.milli_size``, None = as its limit
says), and the policy finds the smallest place that holds as much, near the one it has. A set that grows may leave less to
others there than they use: the smaller ones of those are moved out of its way, as far as that does not wait for a
cooldown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from cri_proxy.engine.model import ContainerRecord, Life
from cri_proxy.engine.moves import being_resized, may_move
from cri_proxy.engine.place import is_worse, resized_anew
from cri_proxy.engine.reconcile import keep_memory, reconcile
from cri_proxy.engine.state import State
from cri_proxy.engine.told import GIVEN_BACK
from policies.frozen import frozen
from policies.model import (
    BudgetSpent,
    Constraint,
    Placement,
    PlacementRefused,
    altered,
    used_milli,
    wanted_milli,
)
from policies.node import NANO_PER_MILLI

#: Of those in the way as many more are tried as may be moved: each trial costs two placements, and no call passes meanwhile.
TRIED_MORE = 2
#: What such a change is called in the history.
GROW, SHRINK = "grow", "shrink"


@frozen
class Sized:
    """A container's set as it is sized. ``steps``: as ``Policy.sizes``; ``milli_set``: it now; both milli-CPUs."""

    key: str
    steps: tuple[int, ...]
    milli_set: int


def sized_sets(state: State) -> tuple[Sized, ...]:
    """The containers whose sets are sized by demand now."""
    resized = being_resized(state)
    found = []
    for key, grant in state.grants.items():
        if not may_be_sized(state, grant) or key in resized:
            continue
        steps = state.policy.sizes(state.node, grant.container, grant.constraint)
        if steps and grant.placement.cpus:
            found.append(Sized(key, steps, len(grant.placement.cpus) * 1000))
    return tuple(found)


def may_be_sized(state: State, grant: ContainerRecord) -> bool:
    """Whether a container is there, and its set is ours and shared."""
    return (
        grant.life in (Life.CREATED, Life.RUNNING)
        and grant.displaced is None
        and not grant.runs_in
        and not grant.exclusive
        and may_move(state, grant, (), is_order=True)
    )


def shrunk(state: State, only_unsized: bool = False) -> tuple[str, ...]:
    """The containers with a size of their own; ``only_unsized``: those of them that are not sized by demand any more."""
    return tuple(
        key
        for key, grant in state.grants.items()
        if grant.container.milli_size is not None
        and may_be_sized(state, grant)
        and not (only_unsized and state.policy.sizes(state.node, grant.container, grant.constraint))
    )


def note_use(state: State, used: Mapping[str, int]) -> None:
    """What containers in the sets of their limits use, milli-CPUs by id: it counts where others are placed. No set
    changes by it."""
    for key, milli in used.items():
        grant = state.grants.get(key)
        if grant is None or grant.container.milli_size is not None or not may_be_sized(state, grant):
            continue
        if milli != grant.container.milli_used:
            state.book_use(key, milli)


def size(state: State, key: str, milli_size: Optional[int], why: str, now_s: float) -> bool:
    """Give a container the smallest place, near its own, that holds ``milli_size`` milli-CPUs; None = its limit.

    False if it stays as it is: there is no such place, it may not be moved now, or it is gone.
    """
    old = state.grants.get(key)
    if old is None or old.exclusive:
        return False
    if not may_move(state, old, being_resized(state), is_order=True):
        return False
    if old.life not in (Life.CREATED, Life.RUNNING):
        return False
    # 1. The smallest place of that size, near the one it has.
    container = altered(old.container, milli_size=milli_size, milli_used=0)
    with state.without([key]):
        try:
            decision = resized_anew(state, old, container, old.constraint)
        except (PlacementRefused, BudgetSpent):
            return False
    place, was = decision.placement, old.placement
    if not place.cpus or decision.others or place.exclusive:
        return False
    # 2. It must be what was asked for; what is frozen may grow where it is, and nothing else.
    count, count_before = len(place.cpus), len(was.cpus)
    is_as_asked = milli_size is None or (
        count > count_before if milli_size > count_before * 1000 else count < count_before
    )
    is_other, is_growth = place.home != was.home, count > count_before
    is_frozen = state.orders.freeze and is_other and not (is_growth and was.home <= place.home)
    if not is_as_asked or is_frozen:
        return False
    if not is_other:  # by its limit it would be where it is
        state.put(altered(old, container=container))
        return True
    # 3. Its memory stays where it is. What has left its place is not moved for others soon.
    has_left = not (was.home <= place.home or place.home <= was.home)
    now = altered(
        old,
        container=container,
        placement=keep_memory(state, was, place, old.constraint),
        displaced=None,
        why=f"{why}: {decision.why}",
        moved_s=now_s if has_left else old.moved_s,
    )
    state.put(now)
    # 4. The smaller ones there that are left with less than they use.
    if is_growth and not state.orders.freeze:
        _push(state, now, now_s)
    state.record(GROW if is_growth else SHRINK, key, state.grants[key], now_s)
    reconcile(state)
    if milli_size is None and key in state.told:
        state.tell(key, state.told[key]._replace(cause=GIVEN_BACK))
    return True


# ---------------------------------------------------------------------- those that are in the way


def _push(state: State, grower: ContainerRecord, now_s: float) -> None:
    """Move containers out of the way of one that has grown."""
    pushed = 0
    if not state.max_moves or not _is_crowded(state, grower):
        return
    for other in _smaller(state, grower, being_resized(state), now_s)[: state.max_moves + TRIED_MORE]:
        place = _elsewhere(state, other, grower)
        if place is None:
            continue
        pushed += 1
        why = f"makes room for {grower.container.path}, whose cpuset has grown"
        state.put(altered(other, placement=place, why=why, moved_s=now_s, displaced=None))
        if pushed == state.max_moves or not _is_crowded(state, grower):
            break


def _is_crowded(state: State, grower: ContainerRecord) -> bool:
    """Whether more is requested and used on the CPUs of a set than there is."""
    leaves = {state.node.leaf_of[cpu] for cpu in grower.placement.cpus}
    return state.node.capacity().unused_nano(leaves) < 0


def _smaller(
    state: State, grower: ContainerRecord, resized: frozenset[str], now_s: float
) -> list[ContainerRecord]:
    """Those inside of the grown set that may be moved and want less; the largest first, so that few go."""
    home, wanted = grower.placement.home, wanted_milli(grower.container)
    found = [
        grant
        for key, grant in state.grants.items()
        if key != grower.key
        and grant.placement.home <= home
        and grant.life in (Life.CREATED, Life.RUNNING)
        and wanted_milli(grant.container) < wanted
        and not (grant.moved_s and now_s < grant.moved_s + state.options.cooldown_s)
        and may_move(state, grant, resized)
    ]
    return sorted(found, key=lambda grant: (-wanted_milli(grant.container), grant.key))


def _elsewhere(state: State, grant: ContainerRecord, grower: ContainerRecord) -> Optional[Placement]:
    """A place outside of a grown set that is no worse and has what a container uses left: in its nodes, else in others."""
    topology, constraint = state.host.topology, grant.constraint
    allowed = (state.node.usable if constraint.cpus is None else constraint.cpus) - grower.placement.home
    nodes = topology.nodes_of(grant.placement.home)
    near = frozenset().union(*[d.cpus for d in topology.at("numa") if d.nodes & nodes]) & allowed
    return _place_in(state, grant, near) or _place_in(state, grant, allowed - near)


def _place_in(state: State, grant: ContainerRecord, cpus: frozenset[int]) -> Optional[Placement]:
    inside = Constraint(cpus, grant.constraint.mems)
    with state.without([grant.key]):
        try:
            decision = state.place(state.request(grant.container, inside, grant.key))
        except (PlacementRefused, BudgetSpent):
            return None
        place = decision.placement
        if state.is_kept_worse(grant.container, place.cpus, grant.cpus):
            return None
        capacity = state.node.capacity(inside.cpus)
        leaves = {state.node.leaf_of[cpu] for cpu in place.cpus}
        used = max(used_milli(grant.container), grant.container.resources.milli_request)
        is_left = capacity.unused_nano(leaves) >= used * NANO_PER_MILLI
    if not decision.fits or decision.others or not is_left or is_worse(place, grant.placement):
        return None
    if len(place.cpus) < len(grant.placement.cpus):
        return None
    return keep_memory(state, grant.placement, place, grant.constraint)
