"""An engine with a runtime that takes at once what containers are to be told, and kubelet's static CPU manager; and a store
that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Callable

from cri_proxy.engine import resync as comparison
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Admission, ContainerRecord, CpusetUpdate, Host, Life
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, parse_cpus
from policies.model import Constraint, Container, Qos, Resources

Updates = tuple[CpusetUpdate, ...]


@frozen
class ToldAdmission(Admission):
    """With what others were told before the request is sent, and what they will be told once it has ended."""

    before: Updates = ()
    after: Updates = ()


@dataclass(frozen=True)
class Looked:
    """What a comparison has found, whose fields it has, too; and what containers were told after it."""

    found: comparison.Resync = field(default_factory=comparison.Resync)
    updates: Updates = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found, name)


@dataclass(frozen=True)
class Mended:
    """What was broken, and what containers were told after it was mended."""

    broken: tuple[str, ...]
    updates: Updates


class ToldAtOnce(Engine):
    """Its transitions return what containers were told after them.

    ``is_static``: a cpuset of as many CPUs as a Guaranteed container asks for is kubelet's own, and in its file.
    """

    is_quiet = False
    is_static = True
    #: What kubelet has written down, by pod uid and container name.
    given: Mapping[tuple[str, str], frozenset[int]] = MappingProxyType({})
    #: Those that are elsewhere, or on more CPUs, by what kubelet has written down before the request at hand.
    moved_by_kubelet: frozenset[str] = frozenset()
    #: The records as they were when the last request came, once kubelet's news had been taken in.
    as_asked: Mapping[str, ContainerRecord] = MappingProxyType({})

    def _write_down(self, container: Container, resources: Resources, constraint: Constraint) -> None:
        asked, request, name = constraint.asked.cpus, resources.milli_request, name_of(container)
        is_whole = container.qos is Qos.GUARANTEED and container.pod_share is None and request > 0
        if self.is_static and asked:
            is_own = is_whole and len(asked) * 1000 == request
            before = {update.id for update in self.lacking()}
            self._give({**self.given, name: asked if is_own else NO_CPUS})
            self.moved_by_kubelet = frozenset(update.id for update in self.lacking()) - before
        self.as_asked = dict(self.grants)

    def kubelet_gives(self, container: Container, cpus: str) -> None:
        """Have kubelet's file say that these CPUs are a container's alone; "": none are."""
        self._give({**self.given, name_of(container): parse_cpus(cpus)})

    def _take_back(self) -> None:
        """Kubelet forgets containers that have ended."""
        alive = {name_of(grant.container) for grant in self.grants.values() if grant.life is not Life.HELD}
        self._give({name: cpus for name, cpus in self.given.items() if name in alive})

    def _give(self, given: Mapping[tuple[str, str], frozenset[int]]) -> None:
        given = {name: cpus for name, cpus in given.items() if cpus}
        if given != self.given:
            others = {name: c for name, c in self.host.kubelet_exclusive.items() if name not in self.given}
            Engine.rehost(self, replace(self.host, kubelet_exclusive={**others, **given}))
            self.given = given

    def tell_all(self, which: Callable[[CpusetUpdate], bool] = lambda update: True) -> Updates:
        said: list[CpusetUpdate] = []
        if self.is_quiet or self.undo is not None:
            return ()
        while updates := [update for update in self.pending() if which(update)]:
            for update in updates:
                if self.begin_update(update.id) is not None:
                    self.took(update.id)
                    said.append(update)
        return tuple(said)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing is told meanwhile."""
        self.is_quiet = True
        try:
            yield
        finally:
            self.is_quiet = False

    def _admitted(self, admission: Admission) -> Admission:
        if self.is_quiet or self.undo is not None:
            return admission
        before = self.tell_all(lambda update: update.shrink or update.id in self.moved_by_kubelet)
        waiting = self.tickets[admission.ticket].waiting
        after = sorted((u for u in self.lacking() if u.id in waiting), key=lambda update: update.id)
        values = {each.name: getattr(admission, each.name) for each in fields(admission)}
        return ToldAdmission(**values, before=before, after=tuple(after))

    def admit(self, container: Container, constraint: Constraint, *args: Any, **kwargs: Any) -> Any:
        self._write_down(container, container.resources, constraint)
        args = container, constraint, *args
        return self._admitted(super().admit(*args, **kwargs))

    def resize(
        self, container_id: str, resources: Resources, constraint: Constraint, *args: Any, **kwargs: Any
    ) -> Any:
        if container_id in self.grants:
            self._write_down(self.grants[container_id].container, resources, constraint)
        args = container_id, resources, constraint, *args
        admission = super().resize(*args, **kwargs)
        return None if admission is None else self._admitted(admission)

    def rehost(self, host: Host, *args: Any, **kwargs: Any) -> Any:
        given = {**host.kubelet_exclusive, **self.given}
        super().rehost(replace(host, kubelet_exclusive=given), *args, **kwargs)
        return self.tell_all()

    def release(self, container_id: str) -> Any:
        super().release(container_id)
        return next(iter(self.tell_all(lambda update: update.id == container_id)), None)

    def size(self, *args: Any, **kwargs: Any) -> Any:
        return self.tell_all() if super().size(*args, **kwargs) else None

    def mend(self, now_s: float) -> Any:
        return Mended(super().mend(now_s), self.tell_all())


def name_of(container: Container) -> tuple[str, str]:
    return container.pod.uid, container.name


def _told_after(name: str) -> Any:
    def transition(self: ToldAtOnce, *args: Any, **kwargs: Any) -> Updates:
        getattr(Engine, name)(self, *args, **kwargs)
        if name in ("cancel", "exited", "remove", "end_pod"):
            self._take_back()
        return self.tell_all()

    return transition


for _name in (
    "bind", "cancel", "doubt", "commit", "follow_resources", "resize_pod", "end_pod", "exited", "remove", "tick", "manage",
    "apply", "take_back", "restore", "adopt", "take_over", "amend", "set_orders",
):  # fmt: skip
    setattr(ToldAtOnce, _name, _told_after(_name))


def resync(engine: ToldAtOnce, listing: comparison.Listing, now_s: float) -> Looked:
    """A comparison, after which containers are told."""
    with engine.quiet():
        found = comparison.resync(engine, listing, now_s)
    return Looked(found, engine.tell_all() if listing.enforce else ())


class Store:
    """Nothing is written down."""

    def write(self, changes: Any) -> None:
        pass

    write_together = write

    async def settled(self) -> None:
        pass
