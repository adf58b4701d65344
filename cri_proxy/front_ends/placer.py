"""What happens around a decision, without I/O: one orchestration for every way in which containers become known.

A front end (CRI calls, the NRI plugin, late placement, the simulator) reads its message and asks the placer. It has the
engine's changes saved, sends the request, and says how that has ended, once: ``created``, ``failed`` or ``unknown`` of a
create; ``done``, ``failed`` or ``unknown`` of a resize. What others are told by that is the sender's. A request that ends
twice, or that is sent with a placement that was given back, is a bug and raises RuntimeError.

The shape is that of protocols without I/O (sans-io.readthedocs.io): values in, values out. Times are seconds since boot.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import update_resources
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Admission, Management, Ticket
from cri_proxy.engine.resync import UnannouncedContainer
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.model import Constraint, Container, Placement, Quota


class Decided:
    """A request that was decided and has not ended.

    ``placement`` is what the request gets: empty where it stays untouched. ``outcome``, ``describe()``: what the log says.
    """

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self.engine = engine
        self.admission = admission
        self._has_ended = False

    @property
    def placement(self) -> Placement:
        return self.admission.placement

    @property
    def ticket(self) -> Optional[Ticket]:
        """Its ticket; None once it has ended, or a comparison with the runtime has resolved it."""
        return self.engine.tickets.get(self.admission.ticket)

    @property
    def outcome(self) -> str:
        stance = self.admission.stance
        return "placed" if stance is Management.PLACED else f"untouched: {stance.value}"

    def describe(self) -> dict[str, Any]:
        """Fields of its line in the log. They are the same before and after its end."""
        placement = self.admission.decision.placement
        return {
            "cpus": format_cpus(placement.cpus),
            "mems": format_cpus(placement.mems),
            "rung": placement.level,
            "why": self.admission.decision.why,
        }

    @property
    def has_ended(self) -> bool:
        """Whether its end was told."""
        return self._has_ended

    def failed(self, now_s: float, why: str = "") -> None:
        """The runtime has refused it, or it was never sent: its place is free again, and others go back."""
        self._end(self.engine.cancel, now_s, why)

    def unknown(self) -> None:
        """It was sent and no answer came back: its place stays until its end is told, or the runtime's list tells.

        Have the runtime asked soon.
        """
        self._check()
        self.engine.doubt(self.admission.ticket)

    def _end(self, transition: Callable[..., None], *how: Any) -> None:
        """It has ended once the engine has taken that: after an error it may end otherwise."""
        self._check()
        transition(self.admission.ticket, *how)
        self._has_ended = True

    def _check(self) -> None:
        if self._has_ended:
            raise RuntimeError(f"the request of ticket {self.admission.ticket} has ended before")


class Creation(Decided):
    """A container that is about to be created."""

    def created(self, container_id: str, now_s: float) -> None:
        """The runtime has made it: the place is that id's, and containers that may grow by it are told."""
        self._end(self.engine.bind, container_id, now_s)


class Resize(Decided):
    """An update of a container's resources. ``give_back``: the CPU quota that goes with it, as we had taken it away."""

    def __init__(self, engine: Engine, admission: Admission, container_id: str) -> None:
        super().__init__(engine, admission)
        self.container_id = container_id

    @property
    def give_back(self) -> Optional[Quota]:
        return self.admission.give_back

    def describe(self) -> dict[str, Any]:
        cpus, mems = format_cpus(self.placement.cpus), format_cpus(self.placement.mems)
        return {"cpus": cpus, "mems": mems, "why": self.admission.decision.why}

    def done(self, now_s: float) -> None:
        """The runtime has carried it out."""
        self._end(self.engine.commit, now_s)

    def failed(self, now_s: float, why: str = "", was_sent: bool = True) -> None:
        """As of others. Where it ``was_sent`` the runtime may have made a part of it before it refused."""
        super().failed(now_s, why)
        if was_sent:
            self.engine.may_have(self.container_id, self.placement)


class Placer:
    """One engine, asked in the order in which requests come."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(
        self,
        container: Container,
        constraint: Constraint,
        now_s: float,
        enforce: bool,
        meanwhile: Optional[frozenset[int]] = None,
    ) -> Creation:
        """A container is to be created; ``constraint``: the cpuset and mems that its request has; ``meanwhile``: as
        ``Engine.admit`` has it.

        :raises PlacementRefused: the request is to be refused. :raises BudgetSpent: it goes through as it is.
        """
        return Creation(self.engine, self.engine.admit(container, constraint, now_s, enforce, meanwhile))

    def create_late(self, found: UnannouncedContainer, now_s: float, enforce: bool) -> None:
        """A container is there already: it is placed as if it were being created, and told that.

        :raises PlacementRefused, BudgetSpent: as ``create``; nothing has changed then.
        """
        self.create(found.container, found.constraint, now_s, enforce).created(found.id, now_s)
        why = "placed after its start" if found.is_running else "placed before its start"
        self.engine.saw(
            found.id, cpus=found.cpus or None, mems=found.mems or NO_CPUS, is_lifted=False, cause=why
        )
        if found.is_running:
            self.engine.started(found.id)

    def resize(
        self,
        container_id: str,
        linux: cri.LinuxContainerResources,
        constraint: Constraint,
        now_s: float,
        enforce: bool,
    ) -> Optional[Resize]:
        """A container's resources are to be updated. None: the update goes through as it is.

        :raises PlacementRefused, BudgetSpent: as ``create``.
        """
        grant = self.engine.grants.get(container_id)
        if grant is None or not (enforce or grant.stance is Management.OBSERVED):
            return None
        resources = update_resources(grant.container.told, linux, grant.container.qos)
        admission = self.engine.resize(container_id, resources, constraint, now_s)
        return None if admission is None else Resize(self.engine, admission, container_id)
