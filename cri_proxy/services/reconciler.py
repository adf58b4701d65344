"""Looks at the runtime and the cgroups and tells the engine what is really there."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from google.protobuf import json_format

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.annotations.read import understood
from cri_proxy.cri.claims import asked_claims, shown_claims
from cri_proxy.cri.device_hints import Use, read_uses
from cri_proxy.cri.messages import (
    UnreadableRequest,
    kept_annotations,
    kept_labels,
    read_fence,
    read_pod,
    read_qos,
    read_resources,
)
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, Life, ListedContainer, TicketKind, pod_cgroup
from cri_proxy.engine.resources import (
    CgroupReading,
    has_news,
    memory_limit_read,
    resources_read,
    resources_told,
    size_read,
    with_quota,
)
from cri_proxy.engine.resync import (
    Listing,
    Resync,
    UnannouncedContainer,
    may_be_owned,
    merged,
    names_in_doubt,
    resync_slices,
    unknown_ids,
)
from cri_proxy.node.cgroups import Cgroups, Cpusets
from cri_proxy.runtime import RuntimeClient, gather_limited
from cri_proxy.services.node_state import NodeState
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, BadCpuList, parse_cpus
from policies.model import Container, Pod, PodSize, Resources

AT_A_TIME = 8
#: Questions that are made ready together: each takes 2 kB until its turn has come, and a node may have a thousand.
PART = 64
#: Containers adopted by one comparison after which what that took is given back: some 2 kB each.
MANY = 100
#: As many containers of a kind are named in the line about a comparison.
NAMED = 20

_Item = TypeVar("_Item")
#: Given the running and created containers that there is no record of, by id; returns those to take as they are.
Welcome = Callable[
    [Engine, Mapping[str, UnannouncedContainer]], Awaitable[Mapping[str, UnannouncedContainer]]
]
PlaceLate = Callable[[Engine, Mapping[str, UnannouncedContainer]], Awaitable[None]]


async def adopt_all(
    engine: Engine, found: Mapping[str, UnannouncedContainer]
) -> Mapping[str, UnannouncedContainer]:
    """Where creates pass through us: what was not announced keeps what it has."""
    return found


async def _leave(engine: Engine, found: Mapping[str, UnannouncedContainer]) -> None:
    pass


class _Told(NamedTuple):
    """What the runtime says of a container that is known: its resources, and the keys of its claims of CPUs."""

    linux: cri.LinuxContainerResources
    claims: tuple[str, ...]


class _Explained(NamedTuple):
    """What the runtime had to say of limits that are not as known: of which, what was known, what was made of them."""

    limits: CgroupReading
    told: Resources
    resources: Resources
    #: At how many looks they were so.
    looks: int = 1

    def is_of(self, limits: CgroupReading, told: Resources) -> bool:
        return (self.limits, self.told) == (limits, told)


class Reconciler:
    """One runtime's list against one engine's records. ``run`` may be called any time; runs never overlap."""

    def __init__(self, runtime: RuntimeClient, cgroups: Cgroups, node_state: NodeState) -> None:
        self._runtime = runtime
        self._cgroups = cgroups
        self._node_state = node_state
        self._lock = asyncio.Lock()
        #: What is done with containers that were not announced.
        self.welcome: Welcome = adopt_all
        #: What is done with those of them that were not adopted, once it is known which CPUs are owned.
        self.place_late: PlaceLate = _leave
        #: Called once records that were behind are right and written, with how many containers were taken over as they run.
        self.taken_over: Callable[[int], None] = lambda number: None
        #: The cgroup of each container, looked up once; None: it has none that can be read.
        self._paths: dict[str, Optional[str]] = {}
        #: Of containers whose first process is in no cgroup of theirs: that process, and where they should have one.
        self._outside: dict[str, tuple[int, str]] = {}
        self._explained: dict[str, _Explained] = {}
        #: Sandboxes the last list did not name, and those that cannot be understood.
        self._missing: set[str] = set()
        self._refused: set[str] = set()

    def cgroup_of(self, container_id: str) -> Optional[str]:
        """The cgroup of a container, if it was looked up and can be read."""
        return self._paths.get(container_id)

    async def run(self, with_cpusets: bool = True) -> Resync:
        """One resync. ``with_cpusets``: also look at every container's cpuset (costs a call for new containers).

        :raises RpcError: the runtime does not answer; nothing has changed then.
        """
        async with self._lock:
            engine = self._node_state.active()
            if engine is None:
                return Resync()
            with self._node_state.updates.watched() as in_motion:
                result = await self._run(engine, in_motion, with_cpusets)
            if len(result.adopted) >= MANY:
                await self._node_state.store.settled()
                await self._node_state.store.checkpoint()
                give_memory_back()
            self._node_state.metrics.resyncs.labels("ok").inc()
            return result

    async def _run(self, engine: Engine, in_motion: Collection[str], with_cpusets: bool) -> Resync:
        node_state = self._node_state
        question = node_state.books.question
        listed_at_s, then = node_state.clock(), dict(engine.grants)
        seen = {c.id: _seen(c, engine.pods) for c in await self._runtime.containers()}
        if node_state.books.why and node_state.books.may_be_owned is None:
            await self._narrow(seen, question)
        await self._exit_codes(engine, seen)
        unknown = unknown_ids(engine, seen.values())
        in_doubt = any(t.in_doubt and t.kind is TicketKind.CREATE for t in engine.tickets.values())
        is_asked = bool(with_cpusets or unknown or in_doubt)
        sandboxes = await self._runtime.sandboxes() if is_asked else []
        there = frozenset(s.id for s in sandboxes) if is_asked else None
        if with_cpusets:
            await self._sandboxes(engine, sandboxes)
        found = await self._details(engine, unknown, sandboxes, seen)
        del sandboxes  # with the reply that they are parts of
        adopted = await self.welcome(engine, found)
        details = {key: each.container for key, each in adopted.items()}
        if with_cpusets:
            await self._cgroups_of(engine, seen)
            await self._pod_sizes(engine)
        known = {key: g.container for key, g in engine.grants.items()} if with_cpusets else {}
        await self._held(engine, {**known, **details}, seen)
        is_newer = node_state.books.are_behind and with_cpusets
        is_first = with_cpusets and not node_state.has_compared
        listing = Listing(
            seen, listed_at_s, details, then, in_motion, node_state.enforcing, is_newer, there, is_first
        )
        parts = []
        for part in resync_slices(engine, listing, node_state.clock()):
            if engine is not node_state.active():
                break
            node_state.save()
            self._tell(part, {**then, **engine.grants})
            parts.append(part)
            await asyncio.sleep(0)
        if is_newer and engine is node_state.active():
            node_state.books.are_behind = False
            await node_state.store.settled()
            self.taken_over(sum(len(part.adopted) for part in parts))
        if with_cpusets and engine is node_state.active() and question == node_state.books.question:
            node_state.note_compared()
        if node_state.books.are_true and engine is node_state.active():
            await self._place_waiting(engine)
            await self.place_late(engine, {key: each for key, each in found.items() if key not in adopted})
        self._paths = {key: path for key, path in self._paths.items() if key in seen}
        self._outside = {key: where for key, where in self._outside.items() if key in seen}
        self._explained = {key: found for key, found in self._explained.items() if key in seen}
        return merged(parts)

    async def _narrow(self, seen: Mapping[str, ListedContainer], question: int) -> None:
        """Before any status is asked for: let what waits be made where no container's cpuset is its alone.

        Cgroups are read, which takes a hundredth of the time. Where one is not found, nothing is known.
        """
        live = {key for key, item in seen.items() if not item.exited}
        sets = await asyncio.to_thread(self._cgroups.own_cpusets, live)
        if sets.keys() == live:
            looked = {key: replace(seen[key], cpus=cpus) for key, cpus in sets.items()}
            self._node_state.books.narrow(question, await asyncio.to_thread(may_be_owned, looked))

    async def _place_waiting(self, engine: Engine) -> None:
        """Place what was made before it was known which CPUs are owned."""
        node_state = self._node_state
        while node_state.gives_cpus and engine is node_state.active() and engine.place_waiting():
            node_state.save()
            await asyncio.sleep(0)

    def _tell(self, result: Resync, grants: Mapping[str, ContainerRecord]) -> None:
        """``grants``: those before and after it, by the keys in ``result``."""
        metrics, log = self._node_state.metrics, self._node_state.log
        metrics.drift.labels("repaired").inc(len(result.drifted))
        metrics.drift.labels("foreign").inc(len(result.foreign))
        metrics.drift.labels("resized").inc(len(result.resized))
        for container_id in result.foreign:
            path = grants[container_id].container.path
            log.error(
                "another writer keeps changing a cpuset; the container is left alone",
                id=container_id,
                container=path,
            )
        for container_id in result.ignoring:
            path = grants[container_id].container.path
            log.warning("the runtime does not set memory nodes; they are told once", container=path)
        found: dict[str, tuple[str, ...]] = {
            name: getattr(result, name)
            for name in ("adopted", "removed", "drifted", "resized", "foreign", "bound", "cancelled")
        }
        if any(found.values()):
            counts = {name: len(keys) for name, keys in found.items()}
            names = {name: _named(keys, grants) for name, keys in found.items() if keys}
            log.info("resync", **counts, containers=names)

    # ------------------------------------------------------------------ looking things up

    async def _exit_codes(self, engine: Engine, seen: dict[str, ListedContainer]) -> None:
        """A list does not say how a container ended; ask for those whose end is news."""
        news = [
            s.id
            for s in seen.values()
            if s.exited
            and (g := engine.grants.get(s.id)) is not None
            and not (g.life is Life.HELD and g.exit_code is not None)
        ]
        statuses = await _asked(self._runtime.container_status, news)
        for container_id, got in zip(news, statuses):
            if not isinstance(got, BaseException):
                seen[container_id] = replace(seen[container_id], exit_code=got[0].exit_code)

    async def _details(
        self,
        engine: Engine,
        ids: tuple[str, ...],
        sandboxes: Sequence[cri.PodSandbox],
        seen: dict[str, ListedContainer],
    ) -> dict[str, UnannouncedContainer]:
        """What containers are that we have no record of, and what they run on."""
        # What was created and not started in a sandbox that has ended never will be.
        ready = {s.id for s in sandboxes if s.state == cri.SANDBOX_READY}
        ids = tuple(i for i in ids if seen[i].running or seen[i].sandbox_id in ready)
        theirs = {seen[i].sandbox_id for i in ids}
        # A pod is one object in memory, for its containers as well.
        pods = {key: engine.pods[key] for key in theirs & engine.pods.keys()}
        pods.update(await self._pods([s for s in sandboxes if s.id in theirs - pods.keys()]))
        found = await _asked(
            lambda i: self._detail(i, pods[seen[i].sandbox_id], seen),
            [i for i in ids if seen[i].sandbox_id in pods],
        )
        return {each.id: each for each in found if isinstance(each, UnannouncedContainer)}

    async def _detail(
        self, container_id: str, pod: Pod, seen: dict[str, ListedContainer]
    ) -> Optional[UnannouncedContainer]:
        """What one container is; None: it cannot be understood. Its status, which has its whole OCI spec, is not kept."""
        got = await self._runtime.container_status(container_id, verbose=True)
        try:
            return self._read_unannounced(container_id, pod, got, seen)
        except Exception:  # of one container; the others are looked at all the same
            self._node_state.log.error("a container cannot be understood", id=container_id, exc_info=True)
            return None

    def _read_unannounced(
        self,
        container_id: str,
        pod: Pod,
        got: tuple[cri.ContainerStatus, dict[str, Any]],
        seen: dict[str, ListedContainer],
    ) -> UnannouncedContainer:
        """One container as its verbose status has it; its cpuset is noted in ``seen``."""
        status, info = got
        linux = linux_resources(status, info)
        self._remember_cgroup(container_id, info)
        is_taken = self._node_state.has_taken_quota(pod, linux.cpu_quota)
        item = _with_cpusets(seen[container_id], self._look_at(container_id), linux)
        item = seen[container_id] = replace(item, has_no_quota=is_taken)
        return UnannouncedContainer(
            container_id,
            self._container(pod, status, linux, claims_of(status, info)),
            read_fence(linux),
            uses_of(status, info),
            item.inherited or item.cpus,
            item.mems,
            status.started_at if item.running else 0,
            item.running,
        )

    def _container(
        self,
        pod: Pod,
        status: cri.ContainerStatus,
        linux: cri.LinuxContainerResources,
        claims: tuple[str, ...],
    ) -> Container:
        qos = read_qos(pod.cgroup_parent, linux)
        resources = read_resources(linux, qos, self._node_state.memory_bytes)
        name, attempt = status.metadata.name, status.metadata.attempt
        labels, annotations = kept_labels(status.labels), kept_annotations(status.annotations)
        container = Container(pod, name, attempt, qos, resources, labels, annotations, claims=claims)
        return understood(container)

    async def _pods(self, sandboxes: Sequence[cri.PodSandbox]) -> dict[str, Pod]:
        pods = await _asked(self._pod_of, sandboxes)
        return {pod.id: pod for pod in pods if isinstance(pod, Pod)}

    async def _pod_of(self, sandbox: cri.PodSandbox) -> Pod:
        """One pod by its sandbox's status, of which the rest is not kept."""
        info: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            info = (await self._runtime.sandbox_status(sandbox.id))[1]
        try:
            return _pod(sandbox, info)
        except Exception:  # of one pod; it is known by its name, and the others by all there is
            self._node_state.log.error("a pod cannot be understood", id=sandbox.id, exc_info=True)
            meta = sandbox.metadata
            return Pod(sandbox.id, meta.uid or sandbox.id, meta.name, meta.namespace)

    async def _sandboxes(self, engine: Engine, sandboxes: Sequence[cri.PodSandbox]) -> None:
        """Know the sandboxes that ran before us: a create does not say what its sandbox's runtime handler is.

        Records of sandboxes that two lists in a row do not name are dropped (one list may be older than the record).
        """
        listed = {s.id: s for s in sandboxes}
        news = [s for s in listed.values() if s.id not in engine.pods and s.id not in self._refused]
        for pod in (await self._pods(news)).values():
            if pod.id not in engine.pods:
                engine.add_pod(pod)
        self._refused |= {s.id for s in news if s.id not in engine.pods}
        if engine.options.classes is not None:
            for sandbox in listed.values():
                # Kubelet puts some on every sandbox: a list without any does not tell them.
                if sandbox.id in engine.pods and sandbox.annotations:
                    engine.follow_classes(sandbox.id, sandbox.labels, sandbox.annotations)
        missing = {s for s in engine.pods if s not in listed}
        for sandbox_id in missing & self._missing:
            engine.end_pod(sandbox_id)
        self._missing, self._refused = missing - self._missing, self._refused & listed.keys()

    async def _cgroups_of(self, engine: Engine, seen: dict[str, ListedContainer]) -> None:
        """The cpusets and resources of all containers we have records of: by their cgroups, else by the runtime.

        Of those, too, whose creates are in doubt: where they are is not where they were to be, if that was changed since.
        """
        doubted = names_in_doubt(engine)
        live = [
            s
            for s in seen.values()
            if not s.exited and (s.id in engine.grants or (s.pod_uid, s.name, s.attempt) in doubted)
        ]
        told = await self._told([s.id for s in live if s.id not in self._paths])
        # Hundreds of small files: read outside the event loop.
        found = await asyncio.to_thread(lambda: {s.id: self._look_at(s.id) for s in live})
        lacking = [key for key, look in found.items() if look.sets is None or look.limits is None]
        told.update(await self._told([key for key in lacking if key not in told]))
        # The files tell that something is news, the runtime what was asked for: files round.
        news = [key for key, look in found.items() if self._is_news(engine, key, look.limits)]
        told.update(await self._told([key for key in news if key not in told]))
        for item in live:
            look, said, grant = found[item.id], told.get(item.id), engine.grants.get(item.id)
            linux = None if said is None else said.linux
            item = seen[item.id] = _with_cpusets(item, look, linux)
            if grant is None:
                continue
            resources = grant.container.told
            if look.limits is None:
                resources = resources if linux is None else resources_told(grant, linux)
            elif item.id in news:
                resources = resources_read(grant, look.limits, linux or cri.LinuxContainerResources())
                before = self._explained.get(item.id)
                known = (look.limits, grant.container.told)
                looks = before.looks if before is not None and before.is_of(*known) else 1
                self._explained[item.id] = _Explained(*known, resources, looks)
            elif item.id in self._explained and has_news(grant, look.limits):
                resources = self._explained[item.id].resources
            quota_us = look.limits.quota_us if look.limits else linux.cpu_quota if linux else 0
            claims = () if said is None else said.claims
            seen[item.id] = replace(item, resources=resources, has_no_quota=quota_us < 0, claims=claims)

    async def _pod_sizes(self, engine: Engine) -> None:
        """The sizes of pods that kubelet has changed past us, by the cgroups that it keeps for them."""
        pods = {pod.id: pod for pod in engine.pods.values() if pod.cgroup_parent}
        found = await asyncio.to_thread(
            lambda: {key: self._cgroups.limits(pod_cgroup(pod.cgroup_parent)) for key, pod in pods.items()}
        )
        taken = {} if self._node_state.quotas is None else self._node_state.quotas.taken
        of_pod: dict[str, list[int]] = {}
        for grant in engine.grants.values():
            limit = grant.container.resources.memory_limit_bytes
            of_pod.setdefault(grant.container.pod.id, []).append(limit)
        for key, limits in found.items():
            pod = pods[key]
            memory = memory_limit_read(pod.memory_limit_bytes, limits, of_pod.get(key, ()))
            if memory != pod.memory_limit_bytes and engine.pods.get(key) is pod:
                self._resize_pod(engine, key, None, memory)
                pod = engine.pods[key]
            # What we have taken away is the limit all the same.
            lifted = taken.get(pod.cgroup_parent) if limits.quota_us < 0 else None
            size = size_read(pod.size, limits if lifted is None else with_quota(limits, lifted))
            if size != pod.size and engine.pods.get(key) is pod:
                self._resize_pod(engine, key, size)
                if pod.size is not None:  # else it is not changed but known now
                    self._node_state.metrics.drift.labels("pod resized").inc()
                    self._node_state.log.info(
                        "a pod was resized past us", pod=f"{pod.namespace}/{pod.name}", id=key
                    )

    def _resize_pod(
        self, engine: Engine, key: str, size: Optional[PodSize], memory_limit_bytes: int = 0
    ) -> None:
        gives_cpus, now_s = self._node_state.gives_cpus, self._node_state.clock()
        engine.resize_pod(key, size, memory_limit_bytes, now_s, gives_cpus)

    def _is_news(self, engine: Engine, container_id: str, limits: Optional[CgroupReading]) -> bool:
        """Whether a container's limits are to be asked for: they are not as known, and the runtime has not said why.

        CRI-O notes what it was asked for after the cgroup has it, and a look may come between: it is asked again about the
        same limits, at twice as many looks each time.
        """
        grant = engine.grants.get(container_id)
        if grant is None or limits is None or not has_news(grant, limits):
            return False
        explained = self._explained.get(container_id)
        if explained is None or not explained.is_of(limits, grant.container.told):
            return True
        looks = explained.looks + 1
        self._explained[container_id] = explained._replace(looks=looks)
        return looks & (looks - 1) == 0

    async def _told(self, ids: Iterable[str]) -> dict[str, _Told]:
        """The resources and claims of containers as the runtime has them; of new ones the cgroup is remembered."""
        ids = list(ids)
        # containerd before 1.7 tells resources, and all runtimes tell processes, among the verbose information only.
        found = await _asked(self._told_of, ids)
        for error in found:
            if isinstance(error, Exception):
                raise error
        return {i: told for i, told in zip(ids, found) if isinstance(told, _Told)}

    async def _told_of(self, container_id: str) -> Optional[_Told]:
        try:
            status, info = await self._runtime.container_status(container_id, verbose=True)
        except Exception:  # this time it is not looked at
            return None
        self._remember_cgroup(container_id, info)
        return _Told(linux_resources(status, info), claims_of(status, info))

    async def _held(
        self, engine: Engine, containers: Mapping[str, Container], seen: dict[str, ListedContainer]
    ) -> None:
        """What containers without a memory limit hold, from their cgroups; nothing where memory is not placed."""
        places_memory = engine.policy.settings.places_memory
        paths = {
            key: path
            for key, container in containers.items()
            if places_memory and not container.resources.memory_limit_bytes
            if key in seen and not seen[key].exited and (path := self._paths.get(key)) is not None
        }
        if paths:
            held = await asyncio.to_thread(
                lambda: {key: self._cgroups.held(path) for key, path in paths.items()}
            )
            seen.update({key: replace(seen[key], held=sizes) for key, sizes in held.items()})

    def _remember_cgroup(self, container_id: str, info: dict[str, Any]) -> None:
        pid = info.get("pid")
        if pid == 0:
            return  # created, not started: it has no cgroup yet
        self._paths[container_id] = None
        if isinstance(pid, int) and pid > 0:
            # One without its id is of no use (and a fake runtime's pid may be any process's).
            self._paths[container_id] = self._cgroups.of_container(pid, container_id)
            own = declared_cgroup(info)
            if self._paths[container_id] is None and container_id in own:
                self._outside[container_id] = (pid, own)

    def _look_at(self, container_id: str) -> CgroupLook:
        """What the cgroup of a container has in its files. Blocks."""
        path = self._paths.get(container_id)
        if path is None and container_id in self._outside:
            pid, own = self._outside[container_id]
            where = self._cgroups.outside(pid, own)
            if where:
                allowed = self._cgroups.effective(where)
                return CgroupLook(Cpusets(NO_CPUS, NO_CPUS, allowed.cpus if allowed else NO_CPUS), where)
            path = own if where == "" else None
        if path is None:
            return CgroupLook()
        sets = self._cgroups.configured(path)
        return CgroupLook(sets, "", None if sets is None else self._cgroups.limits(path, container_id))


def give_memory_back() -> None:
    """Have the kernel take back the pages of garbage, cycles too, and those that malloc keeps: glibc by itself gives
    none back that lie below one in use.

    Takes some 10 ms. Other C libraries know no such call.
    """
    import ctypes

    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def _asked(ask: Callable[[_Item], Coroutine[Any, Any, Any]], items: Sequence[_Item]) -> list[Any]:
    """What a question has brought for each item, or its exception; as many at a time as the runtime is asked."""
    found: list[Any] = []
    for start in range(0, len(items), PART):
        found += await gather_limited(AT_A_TIME, [ask(item) for item in items[start : start + PART]])
    return found


@frozen
class CgroupLook:
    """A container's cgroup: its cpuset, ``ListedContainer.runs_in``, and its limits; each None if it is not known."""

    sets: Optional[Cpusets] = None
    runs_in: Optional[str] = None
    limits: Optional[CgroupReading] = None


def _with_cpusets(
    item: ListedContainer, look: CgroupLook, linux: Optional[cri.LinuxContainerResources]
) -> ListedContainer:
    """With the cpuset of its cgroup, else as the runtime remembers it; as it is if that does not, or has none."""
    found = look.sets
    if found is not None:
        return replace(
            item, cpus=found.cpus, mems=found.mems, inherited=found.inherited, runs_in=look.runs_in
        )
    if linux is None or not linux.cpuset_cpus:
        return item
    with contextlib.suppress(BadCpuList):
        cpus, mems = parse_cpus(linux.cpuset_cpus), parse_cpus(linux.cpuset_mems)
        return replace(item, cpus=cpus, mems=mems or None)
    return item


def _named(keys: Sequence[str], grants: Mapping[str, ContainerRecord]) -> list[str]:
    """What people call containers, the first of many."""
    names = [grants[key].container.path if key in grants else key for key in keys[:NAMED]]
    return names + ([f"and {len(keys) - NAMED} more"] if len(keys) > NAMED else [])


def linux_resources(status: cri.ContainerStatus, info: dict[str, Any]) -> cri.LinuxContainerResources:
    """A container's resources: from its status (runtimes since 2023), else from the OCI spec in the verbose information."""
    if status.resources.linux.ByteSize():
        return status.resources.linux
    try:
        spec = info.get("runtimeSpec") or {}
        resources = (spec.get("linux") or {}).get("resources") or {}
        cpu, memory = resources.get("cpu") or {}, resources.get("memory") or {}
        pages = resources.get("hugepageLimits") or ()
        return cri.LinuxContainerResources(
            cpu_shares=int(cpu.get("shares") or 0),
            cpu_quota=int(cpu.get("quota") or 0),
            cpu_period=int(cpu.get("period") or 0),
            cpuset_cpus=str(cpu.get("cpus") or ""),
            cpuset_mems=str(cpu.get("mems") or ""),
            memory_limit_in_bytes=int(memory.get("limit") or 0),
            oom_score_adj=int((spec.get("process") or {}).get("oomScoreAdj") or 0),
            hugepage_limits=[
                cri.HugepageLimit(page_size=str(p.get("pageSize")), limit=int(p.get("limit") or 0))
                for p in pages
            ],
        )
    except (AttributeError, TypeError, ValueError):
        return cri.LinuxContainerResources()


def declared_cgroup(info: Mapping[str, Any]) -> str:
    """The cgroup that a container was to have, by the OCI spec in the verbose information; "" if that does not say.

    ``SLICE:PREFIX:ID`` (systemd driver) is a scope below a slice.
    """
    spec = info.get("runtimeSpec")
    linux = spec.get("linux") if isinstance(spec, dict) else None
    path = linux.get("cgroupsPath") if isinstance(linux, dict) else None
    if not isinstance(path, str):
        return ""
    parts = path.split(":")
    return path if len(parts) != 3 else f"/{pod_cgroup(parts[0])}/{parts[1]}-{parts[2]}.scope"


def uses_of(status: cri.ContainerStatus, info: dict[str, Any]) -> tuple[Use, ...]:
    """Devices and mounts as the runtime shows them.

    containerd tells what was asked for. Of others there is the spec, where a device has its name in the container,
    mostly the same; that of a privileged one lists all devices of the host.
    """
    asked, key, devices = info.get("config"), "host_path", None
    if isinstance(asked, dict):
        devices = asked.get("devices")
    elif not info.get("privileged"):
        key, devices = "path", ((info.get("runtimeSpec") or {}).get("linux") or {}).get("devices")
    paths = [device.get(key) for device in devices or () if isinstance(device, dict)]
    config = cri.ContainerConfig(mounts=status.mounts)
    config.devices.extend(cri.Device(host_path=path) for path in paths if isinstance(path, str))
    return read_uses(config)


def claims_of(status: cri.ContainerStatus, info: dict[str, Any]) -> tuple[str, ...]:
    """The keys of the claims of CPUs that a container has.

    containerd tells the CDI devices that were asked for. Of others there is the environment that these have brought.
    """
    asked = info.get("config")
    if isinstance(asked, dict):
        devices = [_item(device, "name") for device in _items(asked.get("CDI_devices"))]
        return asked_claims([name for name in devices if isinstance(name, str)], status.annotations)
    environment = _items(_item(_item(info.get("runtimeSpec"), "process"), "env"))
    return shown_claims((), status.annotations, [each for each in environment if isinstance(each, str)])


def _item(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _seen(container: cri.Container, pods: Mapping[str, Pod]) -> ListedContainer:
    # Kubelet labels containers with their pod's uid; other clients may not, and their pods may have none.
    known = pods.get(container.pod_sandbox_id)
    label = container.labels.get("io.kubernetes.pod.uid", "")
    return ListedContainer(
        id=container.id,
        sandbox_id=container.pod_sandbox_id,
        pod_uid=known.uid if known is not None else label or container.pod_sandbox_id,
        name=container.metadata.name,
        attempt=container.metadata.attempt,
        running=container.state == cri.CONTAINER_RUNNING,
        exited=container.state == cri.CONTAINER_EXITED,
    )


def _pod(sandbox: cri.PodSandbox, info: dict[str, Any]) -> Pod:
    """A pod from the runtime's list and, for its cgroup, from the verbose status."""
    linux = ((info.get("config") or {}).get("linux")) or {}
    config = cri.PodSandboxConfig(metadata=sandbox.metadata)
    config.linux.cgroup_parent = str(linux.get("cgroup_parent") or "")
    for name in ("resources", "overhead"):
        found = linux.get(name)
        with contextlib.suppress(json_format.ParseError):
            json_format.ParseDict(found if isinstance(found, dict) else {}, getattr(config.linux, name), True)
    for key, value in sandbox.labels.items():
        config.labels[key] = value
    for key, value in sandbox.annotations.items():
        config.annotations[key] = value
    handler = sandbox.runtime_handler or str(info.get("runtimeHandler") or "")
    try:
        return read_pod(config, sandbox.id, handler)
    except UnreadableRequest:
        return Pod(sandbox.id, sandbox.id)
