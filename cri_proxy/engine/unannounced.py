"""Containers that come unannounced: placed once they run.

For a front end that sees no requests. What a proxy does in two steps around a call (admit, bind) is one here: the
container is there already, and nothing can come between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from cri_proxy.cri.device_hints import Use
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Grant, Life, Stance
from policies.machine.cpus import NO_CPUS
from policies.model import NO_CONSTRAINT, Container, CpusetConstraint, Placement


@dataclass(frozen=True)
class UnannouncedContainer:
    """A container that no call announced. ``fence``: the cpuset and mems it was created with; ``cpus``, ``mems``:
    those it has now, None = not known. ``started_at_ns``: Unix time, 0 = not known. Not running: created only."""

    id: str
    container: Container
    fence: CpusetConstraint = NO_CONSTRAINT
    uses: tuple[Use, ...] = ()
    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None
    started_at_ns: int = 0
    is_running: bool = True


def leave_untouched(engine: Engine, unannounced: UnannouncedContainer, now_s: float, why: str) -> None:
    """Know a container that could not be placed. It is there already: a refusal would reach no caller."""
    runs_on = unannounced.cpus or engine.host.parent_cpus or engine.host.usable
    grant = Grant(
        key=unannounced.id,
        container=unannounced.container,
        placement=Placement(),
        stance=Stance.UNTOUCHED,
        fence=unannounced.fence,
        life=Life.RUNNING if unannounced.is_running else Life.CREATED,
        runs_on=runs_on,
        runs_on_mems=unannounced.mems or NO_CPUS,
        since_s=now_s,
        why=why,
    )
    engine.adopt(grant)


def in_order(containers: Iterable[UnannouncedContainer]) -> list[UnannouncedContainer]:
    """As they were started."""
    return sorted(containers, key=lambda each: (each.started_at_ns, each.id))
