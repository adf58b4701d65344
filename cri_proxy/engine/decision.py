"""What to decide about one container: whether it is ours, what it takes over, where it goes. Changes no record
except that holds which were given up are taken out of the books.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Optional

from cri_proxy.cri.messages import scoped_annotation
from cri_proxy.engine.eviction import make_room, relieved
from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.orders import Override
from cri_proxy.engine.peer_text import with_peers
from cri_proxy.engine.pins import PINNED_BY, DoesNotFit, check_fit, inside_of, is_inside, pinned_text
from cri_proxy.engine.recompute import effective, keep_memory, memory_for
from cri_proxy.engine.records import Grant, Life, Stance
from cri_proxy.text.terminal import stance_text
from policies.exclusive.sparing import emptied_by
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.model import (
    NO_CONSTRAINT,
    UNTOUCHED,
    BudgetSpent,
    Container,
    CpusetConstraint,
    Decision,
    Placement,
    PlacementRefused,
    Qos,
    wanted_milli,
)
from policies.node import Resident

#: Annotations that opt a container out, with the value that does it: ours, and nri-plugins' two.
OPT_OUT = {
    "cri-resmgr.io/manage": "false",
    "manage.cri-resmgr.io": "false",
    "cpu.preserve.resource-policy.nri.io": "true",
    "memory.preserve.resource-policy.nri.io": "true",
}

#: Between the reason for a place and what a resize that has changed nothing of it says.
RESIZED = "; stays with "


def stance_of(
    ledger: Ledger, container: Container, fence: CpusetConstraint, now_s: float
) -> tuple[Stance, str]:
    """Whether the container is ours to place, and why not."""
    # Also of one that opted out: it is untouched either way, and these CPUs are no other container's.
    if kubelet_owned(ledger, container, fence):
        return Stance.KUBELET, "kubelet gave it exclusive CPUs"
    reason = opted_out(ledger, container)
    if reason:
        return Stance.OPTED_OUT, reason
    names = ledger.names.get((container.pod.uid, container.name), ())
    if any(ledger.grants[key].stance is Stance.RELEASED for key in names):
        return Stance.RELEASED, "released by command, and with it every attempt after"
    until_s = ledger.distrusted.get((container.pod.uid, container.name), 0.0)
    if until_s > now_s:
        return Stance.UNTOUCHED, "it failed to start where it was placed: untouched for ten minutes"
    if fence.cpus is not None and not fence.cpus & ledger.host.usable:
        return Stance.UNTOUCHED, _unusable(ledger, container, fence)
    return Stance.PLACED, ""


def _unusable(ledger: Ledger, container: Container, fence: CpusetConstraint) -> str:
    allowed = ledger.host.bounded(NO_CONSTRAINT, container.pod.cgroup_parent).cpus
    if fence.caller is None or allowed is None:
        return f"the caller's cpuset {format_cpus(fence.cpus or ())} holds no usable CPU"
    caller = fence.asked.cpus
    of_it = "" if caller is None else f" that the caller allows ({format_cpus(caller)})"
    return f"the pod's cgroup ({format_cpus(allowed)}) holds no usable CPU{of_it}"


def opted_out(ledger: Ledger, container: Container) -> str:
    """Why a container is not to be managed at all; "" if it is."""
    pod = container.pod
    for key, value in OPT_OUT.items():
        given = scoped_annotation({**container.annotations, **pod.annotations}, key, container.name)
        if given is not None and given.strip().lower() == value:
            return f"opted out by annotation {key}"
    if any(fnmatchcase(pod.namespace, glob) for glob in ledger.options.unmanaged_namespaces):
        return f"namespace {pod.namespace} is not managed"
    if pod.runtime_handler and any(
        fnmatchcase(pod.runtime_handler, g) for g in ledger.options.unmanaged_handlers
    ):
        return f"runtime handler {pod.runtime_handler} is not managed"
    return ""


def kubelet_owned(ledger: Ledger, container: Container, fence: CpusetConstraint) -> bool:
    """Whether the caller's cpuset is an exclusive assignment of kubelet's static CPU manager."""
    asked = fence.asked.cpus
    if (container.pod.uid, container.name) in ledger.host.kubelet_exclusive:
        return asked is not None
    request = container.resources.milli_request
    # To one without a request of its own kubelet gives none (policy_static.go: guaranteedCPUs).
    has_own = container.qos is Qos.GUARANTEED and container.pod_share is None
    whole = request > 0 and request % 1000 == 0 and has_own
    return whole and asked is not None and len(asked) * 1000 == request


def predecessors(ledger: Ledger, container: Container) -> tuple[Grant, ...]:
    """Grants this container takes over from: earlier attempts of it, and finished init containers of its sandbox."""
    uid, name = container.pod.uid, container.name
    in_flight = {t.key for t in ledger.tickets.values() if not t.in_doubt}
    found = []
    for key in sorted(ledger.names.get((uid, name), ())):
        grant = ledger.grants[key]
        earlier = grant.container.attempt < container.attempt or grant.life is Life.HELD
        if key not in in_flight and (earlier or grant.life is Life.CREATING):
            found.append(grant)
    for key in sorted(ledger.sandboxes.get(container.pod.id, ())):
        grant = ledger.grants[key]
        if grant.life is Life.HELD and grant.exit_code == 0 and grant.container.name != name:
            found.append(grant)
    # A resize that is on its way for one of them has lost its container.
    keys = {g.key for g in found}
    found += [ledger.grants[t.key] for t in ledger.tickets.values() if t.target in keys and t.key not in keys]
    return tuple(found)


def decide(
    ledger: Ledger, container: Container, fence: CpusetConstraint, replaced: tuple[Grant, ...]
) -> tuple[Decision, tuple[Grant, ...]]:
    """The place of the attempt before, if that can be had; else the policy's; holds of others given up if that helps."""
    again = _same_place(ledger, container, fence, replaced)
    override = ledger.pin_of(container)
    if override is not None:
        cpus = ledger.zone_cpus.get(override.zone)
        if again is not None and (cpus is None or is_inside(again.placement, cpus)):
            return again, ()
        return _decide_pinned(ledger, container, fence, override)
    if again is not None:
        return again, ()
    decision, given_up = _decide_anew(ledger, container, fence)
    return with_peers(ledger, container, decision), given_up


def _decide_pinned(
    ledger: Ledger, container: Container, fence: CpusetConstraint, override: Override
) -> tuple[Decision, tuple[Grant, ...]]:
    """A place inside of the zone that a container is pinned to; where it does not fit one as if it were not pinned."""
    try:
        decision = _inside(ledger, container, override, inside_of(ledger, override, container, fence))
    except DoesNotFit as reason:
        decision, given_up = _decide_anew(ledger, container, fence)
        why = f"{decision.why}; not in {override.text}{PINNED_BY}{reason}"
        return with_peers(ledger, container, replace(decision, why=why)), given_up
    return replace(decision, why=f"{pinned_text(override)}; {decision.why}"), ()


def _inside(ledger: Ledger, container: Container, override: Override, inside: CpusetConstraint) -> Decision:
    """The policy's decision inside of a zone.

    :raises DoesNotFit: it has none.
    """
    try:
        decision = ledger.place(ledger.request(container, inside))
    except (PlacementRefused, BudgetSpent) as error:
        raise DoesNotFit(str(error)) from None
    check_fit(ledger, override, container, decision)
    return relieved(ledger, container, decision)


def _decide_anew(
    ledger: Ledger, container: Container, fence: CpusetConstraint
) -> tuple[Decision, tuple[Grant, ...]]:
    request = ledger.request(container, fence)
    decision = ledger.place(request)
    if decision.fits:
        return relieved(ledger, container, decision), ()
    # Not of one whose resize is on its way: its new place counts with its old one.
    resized = {ticket.target for ticket in ledger.tickets.values()}
    held = [
        g
        for g in [ledger.grants[key] for key in ledger.held]
        if (g.container.resources.milli_request or g.exclusive) and g.key not in resized
    ]
    held.sort(key=lambda g: (g.since_s, g.key))
    # Oldest first, and no more of them than needed: the smallest number with which it fits, by bisection.
    low, high = 1, len(held)
    best: Optional[tuple[int, Decision]] = None
    removed: list[tuple[str, Resident]] = []
    try:
        while low <= high:
            count = (low + high) // 2 if best is not None else high
            while len(removed) > count:
                ledger.node.add(*removed.pop())
            while len(removed) < count:
                key = held[len(removed)].key
                removed.append((key, ledger.node.remove(key)))
            trial = ledger.place(request)
            if trial.fits:
                best, high = (count, trial), count - 1
            elif best is None:
                break  # not even with all of them
            else:
                low = count + 1
    finally:
        for key, resident in removed:
            ledger.node.add(key, resident)
    if best is None:
        return make_room(ledger, container, fence) or decision, ()
    # Those that are elsewhere do not help, however old.
    cpus = best[1].placement.cpus | best[1].placement.exclusive
    given_up = tuple(g for g in held[: best[0]] if not cpus.isdisjoint(g.cpus | g.exclusive))
    with ledger.without([g.key for g in given_up]):
        # Unless a container that can go nowhere else was counted on there.
        is_needed = emptied_by(ledger.node, best[1].placement.exclusive)
    given_up = tuple(held[: best[0]]) if is_needed else given_up
    ledger.set_aside(given_up, ())
    names = ", ".join(g.container.path for g in given_up[:3]) + ("" if len(given_up) < 4 else ", ...")
    return replace(best[1], why=f"{best[1].why}; the place held for {names} was given up"), given_up


def _same_place(
    ledger: Ledger, container: Container, fence: CpusetConstraint, replaced: Iterable[Grant]
) -> Optional[Decision]:
    previous = [
        g
        for g in replaced
        if g.container.name == container.name and g.stance in (Stance.PLACED, Stance.OBSERVED)
    ]
    if not previous:
        return None
    last = max(previous, key=lambda g: g.container.attempt)
    # Programs size their threads by the CPUs that they see at their start: a new attempt has its limit's again.
    if last.container.milli_size is not None:
        return None
    if wanted_milli(last.container) != wanted_milli(container) or last.fence.cpus != fence.cpus:
        return None
    place = last.placement
    # In mode observe it only would have owned CPUs: others may have got them.
    taken = (
        ledger.node.reserved | ledger.node.exclusive - ledger.of_group(place.group) if place.exclusive else ()
    )
    if not place.exclusive.isdisjoint(taken) or not effective(ledger, place, fence):
        return None
    again = _stay(ledger, last.placement, container, fence, last)
    return replace(again, why=f"the place of attempt {last.container.attempt} was held for it")


def resized(
    ledger: Ledger, old: Grant, container: Container, fence: CpusetConstraint, asked: CpusetConstraint
) -> tuple[Decision, Stance, frozenset[int]]:
    """The place of a container with new resources, its stance, and where it runs if that is not our choice.

    ``asked``: the cpuset and mems of the request itself; ``fence``: with those of earlier requests.
    """
    # Not ours, unless the caller has just given it a cpuset to be placed in.
    fenced = old.stance in (Stance.KUBELET, Stance.ADOPTED) or (
        old.stance is Stance.UNTOUCHED and old.fence.asked.cpus
    )
    is_resized = old.stance is Stance.ADOPTED and calls_for_a_place(old, container)
    if old.stance is not Stance.PLACED and not (fenced and asked.cpus) and not is_resized:
        return (
            Decision(old.placement, f"{stance_text(old.stance.value)}: left as it is"),
            old.stance,
            asked.cpus or old.runs_on,
        )
    if kubelet_owned(ledger, container, fence):
        return (
            Decision(UNTOUCHED, "kubelet gave it exclusive CPUs"),
            Stance.KUBELET,
            fence.asked.cpus or NO_CPUS,
        )
    same_preference = wanted_milli(container) == wanted_milli(old.container) and fence.cpus == old.fence.cpus
    same_limit = container.resources.memory_limit_bytes == old.container.resources.memory_limit_bytes
    if old.is_outgrown:  # what it has now is not what its place was chosen for
        same_preference = same_limit = False
    stay = old.placement
    with ledger.without([old.key]):
        if not same_preference or not stay.cpus:
            decision = resized_anew(ledger, old, container, fence)
            if not decision.placement.cpus:
                untouched = Decision(UNTOUCHED, decision.why)
                return (
                    untouched,
                    Stance.UNTOUCHED,
                    fence.cpus or ledger.host.parent_cpus or ledger.host.usable,
                )
            other_rung = decision.placement.level != stay.level
            other_count = len(decision.placement.exclusive) != len(stay.exclusive)
            # A group of another policy: its containers share what it would own alone.
            other_group = decision.placement.group != stay.group
            if other_rung or other_count or other_group or not still_holds(ledger, stay, container, fence):
                moved = keep_memory(ledger, stay, decision.placement, fence, not same_limit)
                decision = relieved(ledger, container, replace(decision, placement=moved))
                # What it gives back is its own until the runtime has answered: no other can be moved there yet.
                if any(not old.exclusive.isdisjoint(p.cpus | p.exclusive) for p in decision.others.values()):
                    decision = replace(decision, others={})
                return decision, Stance.PLACED, NO_CPUS
        return _stay(ledger, stay, container, fence, old), Stance.PLACED, NO_CPUS


def resized_anew(ledger: Ledger, old: Grant, container: Container, fence: CpusetConstraint) -> Decision:
    """The policy's place for a container that wants other CPUs and is not in the books, near the one it has; inside of
    the zone it is pinned to if it fits there.

    :raises PlacementRefused, BudgetSpent: as the policy.
    """
    stay = old.placement
    request = ledger.request(container, fence, old.key, near=stay.home or None, keep=stay)
    override = ledger.pin_of(container)
    if override is not None:
        with contextlib.suppress(DoesNotFit, PlacementRefused, BudgetSpent):
            inside = inside_of(ledger, override, container, fence)
            pinned = ledger.place(replace(request, constraint=inside))
            check_fit(ledger, override, container, pinned)
            return replace(pinned, why=f"{pinned_text(override)}; {pinned.why}")
    return ledger.place(request)


def calls_for_a_place(old: Grant, container: Container) -> bool:
    """Whether a container that has a place, ours or as it was found, is to be placed by its new resources."""
    if old.stance is Stance.ADOPTED:
        return old.is_outgrown or wanted_milli(container) != wanted_milli(old.container)
    is_other = old.is_outgrown or container.told != old.container.told
    return old.stance is Stance.PLACED and is_other


def still_holds(ledger: Ledger, stay: Placement, container: Container, fence: CpusetConstraint) -> bool:
    """Whether a place has the CPUs and the room for a container that is not in the books."""
    cpus = effective(ledger, stay, fence)
    room = len(cpus) * 1000 - ledger.node.charge_milli(cpus)
    return (
        bool(cpus)
        and len(cpus) * 1000 >= wanted_milli(container)
        and room >= container.resources.milli_request
    )


def _stay(
    ledger: Ledger, stay: Placement, container: Container, fence: CpusetConstraint, old: Grant
) -> Decision:
    """The same domain, without the container in the books; memory nodes are only added, where a larger limit needs them."""
    cpus = effective(ledger, stay, fence) or stay.cpus
    kept = replace(stay, cpus=cpus)
    # Why it is there is still true; a note of the resize before is not.
    wanted = wanted_milli(container) / 1000
    why = f"{old.why.split(RESIZED)[0]}{RESIZED}{wanted:g} CPUs, on the same domain level"
    same_limit = container.resources.memory_limit_bytes == old.container.resources.memory_limit_bytes
    if stay.mems and not (same_limit and fence.mems == old.fence.mems):
        memory = memory_for(ledger, cpus, container, fence, stay.memory_charge)
        anew = replace(kept, mems=memory.nodes, memory_charge=memory.charge)
        kept = keep_memory(ledger, stay, anew, fence, not same_limit)
        why += f"; {memory.why}" if memory.why else ""
    return Decision(kept, why)
