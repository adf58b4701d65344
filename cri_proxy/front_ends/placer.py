"""What happens around a decision, without I/O: one orchestration for every way in which containers become known.

A front end (CRI calls, the NRI plugin, late placement, the simulator) reads its message and asks the placer. It carries out
what it is told (:class:`Effects`), has the engine's changes saved, sends the request, and says how that has ended, once:
``created``, ``failed`` or ``unknown`` of a create; ``done``, ``failed`` or ``unknown`` of a resize. A request that ends
twice, or that is sent with a placement that was given back, is a bug and raises RuntimeError.

The shape is that of protocols without I/O (sans-io.readthedocs.io): values in, values out. Times are seconds since boot.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import update_resources
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Admission, CpusetUpdate, Effects, Stance, Ticket
from cri_proxy.engine.unannounced import Steps, UnannouncedContainer
from policies.machine.cpus import format_cpus
from policies.model import Container, CpusetConstraint, Placement, PodSize, Quota


class Decided:
    """A request that was decided and has not ended. Before it is sent, the containers of ``make_room`` are told.

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
    def make_room(self) -> tuple[CpusetUpdate, ...]:
        return self.admission.before

    @property
    def outcome(self) -> str:
        stance = self.admission.stance
        return "placed" if stance is Stance.PLACED else f"untouched: {stance.value}"

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

    def failed(self, now_s: float, why: str = "") -> Effects:
        """The runtime has refused it, or it was never sent: its place is free again, and others go back."""
        return Effects(send=self._ended(self.engine.cancel, now_s, why))

    def unknown(self) -> Effects:
        """It was sent and no answer came back: its place stays until its end is told, or the runtime's list tells."""
        self._check()
        return Effects(send=self.engine.doubt(self.admission.ticket), look=True)

    def _ended(
        self, transition: Callable[..., tuple[CpusetUpdate, ...]], *how: Any
    ) -> tuple[CpusetUpdate, ...]:
        """The engine's updates. It has ended once the engine has taken that: after an error it may end otherwise."""
        self._check()
        updates = transition(self.admission.ticket, *how)
        self._has_ended = True
        return updates

    def _check(self) -> None:
        if self._has_ended:
            raise RuntimeError(f"the request of ticket {self.admission.ticket} has ended before")


class Creation(Decided):
    """A container that is about to be created."""

    def created(self, container_id: str, now_s: float) -> Effects:
        """The runtime has made it: the place is that id's, and containers that may grow by it are told."""
        return Effects(send=self._ended(self.engine.bind, container_id, now_s))


class Resize(Decided):
    """An update of a container's resources. ``give_back``: the CPU quota that goes with it, as we had taken it away."""

    def __init__(
        self, engine: Engine, admission: Admission, container_id: str, give_back: Optional[Quota]
    ) -> None:
        super().__init__(engine, admission)
        self.container_id = container_id
        self.give_back = give_back

    def describe(self) -> dict[str, Any]:
        cpus, mems = format_cpus(self.placement.cpus), format_cpus(self.placement.mems)
        return {"cpus": cpus, "mems": mems, "why": self.admission.decision.why}

    def done(self, now_s: float) -> Effects:
        """The runtime has carried it out. One that a later resize has superseded tells its container nothing."""
        sent, is_open = self.placement, self.ticket is not None
        overtaken = None
        if is_open and (sent.cpus or self.give_back is not None):
            why = "a client's update came between"
            overtaken = CpusetUpdate(self.container_id, sent, False, why, self.give_back)
        return Effects(overtaken=overtaken, send=self._ended(self.engine.commit, now_s))

    def unknown(self) -> Effects:
        """As of a create. A comparison looks at what it has and repairs it; not so while an update of ours waits."""
        send = tuple(update for update in super().unknown().send if update.id != self.container_id)
        return Effects(forget=self.container_id, send=send, look=True)


class Placer:
    """One engine, asked in the order in which requests come."""

    def __init__(
        self, engine: Engine, owes_quota: Callable[[str], bool] = lambda container_id: False
    ) -> None:
        """``owes_quota``: whether the container of an id was to get its CPU quota back and has not yet."""
        self.engine = engine
        self._owes_quota = owes_quota

    def create(
        self, container: Container, constraint: CpusetConstraint, now_s: float, enforce: bool
    ) -> Creation:
        """A container is to be created; ``constraint``: the cpuset and mems that its request has.

        :raises PlacementRefused: the request is to be refused. :raises BudgetSpent: it goes through as it is.
        """
        return Creation(self.engine, self.engine.admit(container, constraint, now_s, enforce))

    def create_late(self, found: UnannouncedContainer, now_s: float, enforce: bool) -> Steps:
        """A container is there already: it is placed as if it were being created. Its own update is ``own_update``'s.

        :raises PlacementRefused, BudgetSpent: as ``create``; nothing has changed then.
        """
        creation = self.create(found.container, found.fence, now_s, enforce)
        effects = creation.created(found.id, now_s)
        if found.is_running:
            self.engine.started(found.id)
        return Steps(creation.make_room, tuple(update for update in effects.send if update.id != found.id))

    def resize(
        self,
        container_id: str,
        linux: cri.LinuxContainerResources,
        constraint: CpusetConstraint,
        now_s: float,
        enforce: bool,
    ) -> Optional[Resize]:
        """A container's resources are to be updated. None: the update goes through as it is.

        :raises PlacementRefused, BudgetSpent: as ``create``.
        """
        grant = self.engine.grants.get(container_id)
        if grant is None or not (enforce or grant.stance is Stance.OBSERVED):
            return None
        resources = update_resources(grant.container.told, linux, grant.container.qos)
        admission = self.engine.resize(container_id, resources, constraint, now_s)
        if admission is None:
            return None
        give_back = admission.give_back
        if give_back is None and self._owes_quota(container_id):
            give_back = self.engine.grants[admission.ticket].quota
        return Resize(self.engine, admission, container_id, give_back)

    def resize_pod(
        self, sandbox_id: str, size: Optional[PodSize], memory_limit_bytes: int, now_s: float, enforce: bool
    ) -> Effects:
        """A pod was given another size, or another memory limit (0: not told)."""
        return Effects(send=self.engine.resize_pod(sandbox_id, size, memory_limit_bytes, now_s, enforce))

    def owed(self, container_id: str) -> Optional[Quota]:
        """The quota that a container was to get back and has not yet."""
        grant = self.engine.grants.get(container_id)
        return grant.quota if grant is not None and self._owes_quota(container_id) else None

    def exited(self, container_id: str, code: Optional[int], now_s: float) -> Effects:
        """A container has ended; its place is held or free. ``code`` None: not told."""
        return Effects(forget=container_id, send=self.engine.exited(container_id, code, now_s))

    def removed(self, container_id: str) -> Effects:
        """A container is gone."""
        return Effects(forget=container_id, send=self.engine.remove(container_id))

    def pod_ended(self, sandbox_id: str) -> Effects:
        """A pod's sandbox was stopped or removed."""
        return Effects(send=self.engine.end_pod(sandbox_id))
