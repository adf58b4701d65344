"""Containers that nobody announced: placed once they run, and followed where kubelet resizes them past us.

For a front end that sees no requests. What a proxy does in two steps around a call (admit, bind; resize, commit)
is one here: the container is there already, and nothing can come between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.core.cri import update_resources
from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Grant, Life, Stance, Update
from cri_proxy.core.hints import Use
from cri_proxy.core.updates import has_changed, update_of
from policies.model import NO_FENCE, Container, Fence, Placement, Resources


@dataclass(frozen=True)
class Arrival:
    """A container that nobody announced. ``fence``: the cpuset and mems it was created with; ``cpus``, ``mems``:
    those it has now, None = not known. ``started_at_ns``: Unix time, 0 = not known. Not running: created only."""

    id: str
    container: Container
    fence: Fence = NO_FENCE
    uses: tuple[Use, ...] = ()
    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None
    started_at_ns: int = 0
    is_running: bool = True


@dataclass(frozen=True)
class Steps:
    """What the runtime has to be told: ``before``, others make room; then the container itself, and who grows."""

    before: tuple[Update, ...] = ()
    after: tuple[Update, ...] = ()


def place(engine: Engine, arrival: Arrival, now_s: float, enforce: bool) -> Steps:
    """Place a container that runs as if it were being created. Its own update is ``own_update``'s.

    :raises PlacementRefused, BudgetSpent: as the policy; nothing has changed then.
    """
    admission = engine.admit(arrival.container, arrival.fence, now_s, enforce)
    missed = engine.bind(admission.ticket, arrival.id, now_s)
    engine.started(arrival.id)
    others = tuple(u for u in missed if u.id != arrival.id)
    return Steps(admission.before, others)


def own_update(engine: Engine, arrival: Arrival) -> tuple[Update, ...]:
    """What a container that was placed has to be told: nothing if it has its CPUs, or has ended meanwhile."""
    grant = engine.grants.get(arrival.id)
    if grant is None or grant.stance is not Stance.PLACED or grant.life is Life.HELD:
        return ()
    place = grant.placement
    has_its_place = place.cpus == arrival.cpus and (not place.mems or place.mems == arrival.mems)
    if has_its_place and not place.lift_quota:
        return ()
    runs_on = arrival.cpus or engine.host.parent_cpus or engine.host.usable
    return (Update(arrival.id, place, bool(runs_on - place.cpus), "placed after its start", None, runs_on),)


def leave_untouched(engine: Engine, arrival: Arrival, now_s: float, why: str) -> tuple[Update, ...]:
    """Know a container that could not be placed. It runs already, so there is nobody to refuse it to."""
    runs_on = arrival.cpus or engine.host.parent_cpus or engine.host.usable
    grant = Grant(
        key=arrival.id,
        container=arrival.container,
        placement=Placement(),
        stance=Stance.UNTOUCHED,
        fence=arrival.fence,
        life=Life.RUNNING,
        runs_on=runs_on,
        since_s=now_s,
        why=why,
    )
    return engine.adopt(grant)


def resources_now(grant: Grant, linux: cri.LinuxContainerResources) -> Optional[Resources]:
    """A container's resources as the runtime has them now; None if they are those in its record."""
    if linux.cpu_quota < 0 and grant.placement.lift_quota:
        # It is we who have lifted it.
        told, linux = linux, cri.LinuxContainerResources()
        linux.CopyFrom(told)
        linux.cpu_quota = 0
    found = update_resources(grant.container.resources, linux, grant.container.qos)
    return None if found == grant.container.resources else found


def resize(engine: Engine, container_id: str, resources: Resources, now_s: float) -> Steps:
    """Follow a resize that kubelet has made at the runtime. Nothing if the container is not known.

    :raises PlacementRefused, BudgetSpent: as the policy; nothing has changed then.
    """
    was = engine.grants.get(container_id)
    admission = engine.resize(container_id, resources, NO_FENCE, now_s)
    if was is None or admission is None:
        return Steps()
    missed = engine.commit(admission.ticket, now_s)
    now = engine.grants[container_id]
    others = [u for u in missed if u.id != container_id]
    own = [update_of(was, now)] if has_changed(was, now) else []
    return Steps(admission.before, (*own, *others))


def in_order(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """As they were started."""
    return sorted(arrivals, key=lambda arrival: (arrival.started_at_ns, arrival.id))
