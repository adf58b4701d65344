"""Keeps engine, state file and runtime in step: what the engine journals is written down, what containers lack is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Callable, Optional

from bpf.kernel.clock import boot_time_s
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import NO_ORDERS, ContainerRecord, DecisionRecord, Orders
from cri_proxy.metrics import Metrics
from cri_proxy.node.devices import Devices
from cri_proxy.node.quotas import Quotas
from cri_proxy.services.books import Books
from cri_proxy.services.updates import Updates
from cri_proxy.state.store import Journal
from cri_proxy.state.writer import TOGETHER_S, StateWriter
from policies.machine.cpus import NO_CPUS
from policies.model import Constraint, Container, Hint, Pod

ENFORCE, OBSERVE, OFF = "enforce", "observe", "off"
MODES = (ENFORCE, OBSERVE, OFF)


async def _nothing(*of: Any) -> None:
    pass


async def _no_hints(container: Container) -> tuple[Hint, ...]:
    return ()


def _no_records(records: list[DecisionRecord], grants: Mapping[str, ContainerRecord]) -> None:
    pass


@dataclass
class NodeState:
    """The live state of the daemon. ``engine``, whose containers are told, None: degraded, everything passes as bytes."""

    store: StateWriter
    updates: Updates
    metrics: Metrics
    log: Any
    mode: str = ENFORCE
    shrink_wait_s: float = 2.0
    fail_closed: tuple[str, ...] = ()
    memory_bytes: int = 0
    clock: Callable[[], float] = boot_time_s
    devices: Devices = field(default_factory=lambda: Devices(None))
    #: Called for the hints of devices that kubelet has given to a container; waited for, which takes no longer than it may.
    devices_given: Callable[[Container], Awaitable[tuple[Hint, ...]]] = _no_hints
    #: None where pods' cgroups are not looked at.
    quotas: Optional[Quotas] = None
    #: What people ask of this node besides its configuration.
    orders: Orders = NO_ORDERS
    #: Called when a create was left in doubt, so that a look comes soon.
    on_doubt: Callable[[], None] = lambda: None
    #: Called with the id of every container that an event says has started.
    on_started: Callable[[str], None] = lambda container_id: None
    #: Called with the id of every container that is about to start; its start waits. None: nothing is to be done then.
    on_start: Optional[Callable[[str], Awaitable[None]]] = None
    #: Called with the id of a container, or of a pod's sandbox, and the CPU quota in microseconds that it is about to get,
    #: below 1 = none; the quota waits. None: nothing is to be done then.
    on_quota: Optional[Callable[[str, int], Awaitable[None]]] = None
    #: Called with the record of each container that an NRI runtime creates: how its threads are to be scheduled
    #: (``isolation.scheduling.write_class``), "" = nothing is said. None: nothing is to be done then.
    on_create: Optional[Callable[[ContainerRecord], str]] = None
    #: Called with entries of the engine's history that are new or amended, and the grants they may be about.
    on_records: Callable[[list[DecisionRecord], Mapping[str, ContainerRecord]], None] = _no_records
    #: Called with what happened to containers beside decisions: ``HistoryKeeper.tell``.
    on_happening: Callable[[str, str, Sequence[str], bool, Mapping[str, ContainerRecord]], None] = (
        lambda operation, why, keys, is_own, grants: None
    )
    #: Called where records have changed; it must cost next to nothing.
    on_change: Callable[[], None] = lambda: None
    #: Called with every new pod before the client hears of it; waited for.
    on_pod: Callable[[Pod], Awaitable[None]] = _nothing
    #: Called before a request with a cpuset is decided; waited for. Kubelet has written down before what it gives alone.
    on_fence: Callable[[], Awaitable[None]] = _nothing
    #: The engine whose records were compared last.
    _known: Optional[Engine] = None
    _later: Optional[asyncio.TimerHandle] = None

    def __post_init__(self) -> None:
        self.books = Books(self.metrics)
        self.updates.written = self.written
        self.updates.before_quota = self.before_quota

    @property
    def engine(self) -> Optional[Engine]:
        return self.updates.engine

    @engine.setter
    def engine(self, engine: Optional[Engine]) -> None:
        self.updates.engine = engine

    async def before_quota(self, key: str, quota_us: int) -> None:
        """A container or a pod's sandbox is about to get a CPU quota; 0 = its quota stays. Await it before that is sent."""
        if quota_us and self.on_quota is not None:
            await self.on_quota(key, quota_us)

    @property
    def enforcing(self) -> bool:
        return self.mode == ENFORCE

    @property
    def gives_cpus(self) -> bool:
        """Whether containers may be given CPUs now."""
        return not self.still()

    def still(self) -> str:
        """Why no container is given other CPUs now, in a sentence; "" = it may be."""
        if not self.enforcing:
            return f"in mode {self.mode} nothing is moved"
        return self.books.sentence()

    def switch(self, mode: str) -> None:
        """Change the mode. While it is not enforce nothing is written to the runtime and the cgroups but what gives back."""
        was_off, self.mode = self.mode == OFF, mode
        if mode == OFF:
            self.books.confirm()  # nothing is decided by them
            self.updates.let_go()
        elif was_off and self.engine is not None:
            self.expect_comparison("in mode off nothing was noted")
        self.updates.switch(gives_back=not self.enforcing)

    def set_orders(self, orders: Orders) -> None:
        """Have containers placed and moved by these orders from now on; a freeze's end is a change of places."""
        self.orders = orders
        if self.engine is not None:
            self.engine.set_orders(orders)
            self.save()

    def active(self) -> Optional[Engine]:
        """The engine, if it is to be asked: not degraded and not in mode off."""
        return None if self.mode == OFF else self.engine

    def expect_comparison(self, why: str, may_be_owned: Optional[frozenset[int]] = None) -> None:
        """What runs and what containers were told is known from records only, until ``note_compared``: nothing is given
        out, and what containers lack by these records is not sent before.

        ``may_be_owned``: the CPUs that may have owners besides what the records say; None = that is not known.
        """
        if self.mode != OFF:
            self.books.doubt(why, may_be_owned)
            self.updates.hold()

    def note_compared(self, is_done: bool = True) -> None:
        """What containers have was compared with the runtime and the cgroups; ``is_done`` False: that could not be done,
        and what they lack is sent all the same."""
        if is_done:
            self._known = self.engine
        self.updates.let_go()
        if is_done and not self.books.are_true:
            self.books.confirm()

    @property
    def has_compared(self) -> bool:
        """Whether what runs was compared with the records of this engine once."""
        return self.engine is self._known

    def meanwhile(self, engine: Engine) -> Optional[frozenset[int]]:
        """The CPUs for a container that is to be made now, if it is not known which are owned: none may own these but by
        the records. None: the books are true."""
        if self.books.are_true:
            return None
        owned = self.books.may_be_owned
        return NO_CPUS if owned is None else engine.host.usable - owned

    def fails_closed(self, namespace: str) -> bool:
        """Whether requests of a namespace are refused rather than passed when we cannot decide."""
        return any(fnmatchcase(namespace, glob) for glob in self.fail_closed)

    def failed_open(self, method: str, reason: str, error: Optional[Exception] = None) -> None:
        """A request goes through untouched because of us: it is counted, and the first of its kind is logged."""
        self.metrics.failed_open.labels(reason).inc()
        # An error that was foreseen says all there is to say; of a bug the traceback is wanted.
        self.log.error(
            "failed open",
            method=method,
            reason=reason,
            error=str(error or ""),
            exc_info=error if reason == "bug" else None,
            kind=f"{method} {reason}",
        )

    async def know_whose(self, constraint: Constraint) -> None:
        """Before a request is decided that asks for a cpuset: have the engine know whether that is kubelet's own."""
        if constraint.asked.cpus:
            await self.on_fence()

    def save(self) -> None:
        """Have the engine's changes written, and containers told what they lack by them.

        A failure is counted and shown in the status; the service goes on.
        """
        self._save(self.store.write)

    def save_together(self) -> None:
        """The same for changes that the runtime's list tells, too: with those that follow, within some 10 ms."""
        self._save(self.store.write_together)

    def save_derived(self) -> None:
        """Have written what a daemon that starts works out anew: the sets of containers that share theirs with others."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self.engine is not None:
            self.store.write_together(self.engine.drain())

    def _save(self, write: Callable[[Journal], None]) -> None:
        engine = self.engine
        if engine is None:
            return
        changes = engine.drain(at_once=True)
        write(changes)
        if engine.derived and self._later is None:
            self._later = asyncio.get_running_loop().call_later(TOGETHER_S, self.save_derived)
        self.on_change()
        if changes:
            records = [value for value in changes.values() if isinstance(value, DecisionRecord)]
            if records:
                self.metrics.counterparts.note(records)
                self.on_records(records, engine.grants)
            self.follow_quotas(
                {g.container.pod.cgroup_parent for g in changes.values() if isinstance(g, ContainerRecord)}
            )
        self.updates.wake()

    def happened(
        self,
        operation: str,
        why: str,
        keys: Sequence[str] = (),
        is_own: bool = False,
        reason: str = "",
        hurt: Sequence[str] = (),
    ) -> None:
        """Have what happened to containers beside decisions in the history; and on pods, where it is grave.

        ``is_own``: it is about the first of ``keys`` alone. ``reason``: of the Events of ``hurt``; "" = none.
        """
        engine = self.engine
        self.on_happening(operation, why, keys, is_own, {} if engine is None else engine.grants)
        for key in hurt if reason else ():
            if engine is not None and key in engine.grants:
                engine.notable.add(reason, engine.grants[key].container, why)

    async def saved(self) -> None:
        """The same, and wait until they are durable; not longer than a call may wait for that."""
        self.save()
        await self.store.settled()

    async def written(self) -> None:
        """Wait until all records are durable, those too that are written some time later, after the records that requests
        wait for; not longer than a call may wait for that."""
        waits_longer = self.engine is not None and bool(self.engine.derived)
        await self.store.settled()
        if waits_longer:
            # Handed over by its timer meanwhile, it is still to be written.
            self.save_derived()
            await self.store.settled()

    def follow_quotas(self, changed: Optional[Iterable[str]] = None) -> None:
        """Bring the quotas of pods' cgroups in line with the grants; ``changed``: pods to look at (None: all)."""
        if self.engine is not None and self.quotas is not None and self.enforcing:
            engine = self.engine
            unlimited = engine.unlimited_pods() if engine.lifting or engine.raised else ()
            # That a limit was taken from its pod tells of a container whose record is lost that its quota was, too.
            self.quotas.follow(unlimited, changed, gives_back=self.has_compared)

    def has_taken_quota(self, pod: Pod, quota_us: int) -> bool:
        """Whether a container without a record has no CPU quota since we took it: its pod's limit tells that."""
        return quota_us < 0 and self.quotas is not None and pod.cgroup_parent in self.quotas.taken

    async def limits_lifted(self) -> None:
        """Wait until the limits that are to be lifted are; not longer than a call may wait for its record."""
        if self.quotas is not None and self.quotas.is_waiting:
            await self.store.settled()

    def give_back_quotas(self, pods: Iterable[str]) -> None:
        """Give the quotas of these pods' cgroups back where no container needs them lifted, in every mode."""
        if self.engine is not None and self.quotas is not None:
            self.quotas.give_back(frozenset(pods) - self.engine.unlimited_pods())
