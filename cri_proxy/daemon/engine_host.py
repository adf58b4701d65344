"""Puts an engine to work, made of configuration, machine and state, and keeps it in step with all three.

Whatever cannot be had is a degraded reason and tried again; meanwhile there is no engine and bytes pass.
Reading state and machine runs in a thread; between two such reads every change is one synchronous step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.waiting import wait_within
from cri_proxy import effects
from cri_proxy.bounded_files import read_text
from cri_proxy.config.config import Config, engine_options
from cri_proxy.engine.build import Machine, make_engine, make_host, make_policy
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ContainerRecord, Host, Management, TicketKind
from cri_proxy.kubelet.io.cpu_manager import NotUnderstood
from cri_proxy.node.devices import Devices
from cri_proxy.node.machine import NoMachine
from cri_proxy.node.quotas import Quotas, TakenFile
from cri_proxy.services.books import CALL_WAIT_S
from cri_proxy.services.node_state import MODES, OFF
from cri_proxy.services.services import Services
from cri_proxy.state.file import LoadedState, StateLocked
from cri_proxy.state.writer import StateWriter
from policies.machine.cpus import NO_CPUS
from policies.model import Container, Hint

BOOT_KEY, HASH_KEY = "boot_id", "topology"
#: The mode that was asked for past the configuration, what asked for it, and the mode that was configured then.
MODE_KEY, ASKED_BY_KEY, CONFIGURED_KEY = "mode", "mode_by", "mode_configured"
#: What may ask for one. A command counts until another mode is configured; the node's NodePlacement until it is empty.
COMMAND, NODE_PLACEMENT = "command", "NodePlacement"
#: The limits of pods that were lifted, for versions before they had a file of their own.
QUOTAS_KEY = "quotas"
#: What of the state was lost, until that is acknowledged.
LOST_KEY = "lost"
#: Why it is not known which CPUs are owned.
STARTED, RESET = "it has just started", "reset-policy reads anew what runs"
#: Beside the control socket, in /run, which no disk holds up.
UNSAVED_FILE = "unsaved"
#: How long a request with a cpuset waits for kubelet's file to be read, seconds: it was written just now, and is in memory.
FENCE_S = 1.0


class UnsavedMark:
    """A file that is there while calls go on without their records: state on disk is older than what the runtime was told.

    The next daemon that finds it takes what runs for right where records say otherwise. ``boot_id``: a mark of another
    boot says nothing, for that boot's containers are gone.
    """

    def __init__(self, control_socket: Path, boot_id: str) -> None:
        self.path = control_socket.with_name(UNSAVED_FILE)
        self._boot_id = boot_id

    def set(self) -> None:
        """Records are missing from here on. Where it cannot be written there was nothing to be had."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            effects.before(effects.STATE, self.path.name)
            self.path.write_text(self._boot_id)

    def clear(self) -> None:
        """All that was told is on disk."""
        with contextlib.suppress(OSError):
            effects.before(effects.STATE, self.path.name)
            self.path.unlink(missing_ok=True)

    def is_set(self) -> bool:
        """Whether a daemon of this boot has left it."""
        try:
            return self.path.read_text() == self._boot_id
        except OSError:
            return False


class Assembly:
    """The engine of one daemon. ``boot_id`` tells this boot of the machine from others."""

    def __init__(self, services: Services, boot_id: str) -> None:
        self._services = services
        self._boot_id = boot_id
        #: What the state file says besides the engine's records.
        self._meta: dict[str, str] = {BOOT_KEY: boot_id}
        self._watched: Any = None
        self._lock = asyncio.Lock()
        #: Called with every engine that is put to work, before it decides anything.
        self.on_engage: Callable[[Engine], None] = lambda engine: None
        #: Given what the state file says besides the engine's records, once it is read; what it is to say of that.
        self.on_meta: Callable[[Mapping[str, str]], dict[str, str]] = lambda meta: {}
        #: The same as it is now: what has changed since is in the state file, and is to be in the next one.
        self.kept: Callable[[], dict[str, str]] = dict
        #: Called when the mode is another one.
        self.on_mode: Callable[[], None] = lambda: None
        self._mark = UnsavedMark(Path(services.config["control.socket"]), boot_id)
        services.store.on_change = self.note_state
        services.reconciler.taken_over = self._taken_over
        root = Path(services.config["topology.cgroup_root"])
        services.node_state.devices = self._devices()
        services.node_state.devices_given = self._devices_given
        #: What asks kubelet, once there is a balloon type that depends on it.
        self._pod_resources: Any = None
        self._limits = TakenFile(Path(services.config["state.directory"]), boot_id)
        services.node_state.quotas = Quotas(root, services.log, self._keep_quotas)
        services.node_state.books.on_change = partial(services.health.note, "books")

    def _devices(self) -> Devices:
        # What this machine's sysfs says is not true of one that a file describes.
        machine = self._services.machine
        return Devices(machine.source if machine.source.is_dir() else None, machine.proc)

    async def _devices_given(self, container: Container) -> tuple[Hint, ...]:
        from cri_proxy.kubelet.io.pod_resources import SOCKET, PodResources  # few configurations need it

        socket = self._services.machine.kubelet / SOCKET
        if self._pod_resources is None or self._pod_resources.socket != socket:
            self._pod_resources = PodResources(socket)
        found: tuple[Hint, ...] = await self._pod_resources.hints(container)
        return found

    def _keep_quotas(self, text: str) -> None:
        self._meta[QUOTAS_KEY] = text
        self._services.store.write({}, {QUOTAS_KEY: text})
        self._services.store.later(
            lambda: self._limits.write(text), lambda is_done: self._kept(text, is_done)
        )

    def _kept(self, text: str, is_done: bool) -> None:
        node_state = self._services.node_state
        quotas = node_state.quotas
        assert quotas is not None
        if is_done:
            quotas.kept(text, lifts=node_state.enforcing)
        else:
            quotas.not_kept()

    def note_state(self) -> None:
        """Say whether records are durable, here and to the next daemon."""
        problem = self._services.store.problem
        self._services.health.note("state", problem)
        if self._services.node_state.engine is None:
            return
        if problem:
            self._mark.set()
        elif not self._services.node_state.books.are_behind:
            self._mark.clear()

    def end(self) -> None:
        """The service ends; what could not be written by now is for the next daemon to find."""
        if self._services.store.waiting and self._services.node_state.engine is not None:
            self._mark.set()

    def _taken_over(self, containers: int) -> None:
        self.note_state()
        if containers:
            number = f"{containers} container{'s' if containers > 1 else ''}"
            sentence = f"there was no record, or an older one, of {number}: the daemon before did not get to save them"
            self._tell_lost([self._meta.get(LOST_KEY, ""), sentence])
            self._services.store.write({}, {LOST_KEY: self._meta[LOST_KEY]})

    # ------------------------------------------------------------------ an engine

    async def activate(self) -> bool:
        """Read the machine and the state, and put an engine to work. False: there is still none."""
        async with self._lock:
            services = self._services
            if services.node_state.engine is not None:
                return True
            try:
                loaded = await self._load()
                # Where kubelet's cgroup is; else what it does not allow would be used until the first round.
                parents = [pod.cgroup_parent for pod in loaded.of("pod").values()]
                for parent in parents:
                    services.machine.note_cgroup(parent)
                machine = await asyncio.to_thread(services.machine.read, None, parents)
                engine = await self._build(self.host(machine), loaded)
                books = services.node_state.books
                books.are_behind |= self._mark.is_set() or loaded.is_outdated
                # Where each change was saved the records have all owners.
                is_whole = bool(engine.container_count) and not (loaded.lost or books.are_behind)
            except StateLocked:
                services.health.note("state", services.store.problem)
                return False
            except NoMachine as error:
                services.health.note("topology", str(error))
                return False
            except Exception as error:
                services.log.error("the engine could not be built", exc_info=True)
                services.health.note(
                    "engine", f"the engine could not be built: {type(error).__name__}: {error}"
                )
                return False
            self.engage(engine, STARTED, NO_CPUS if is_whole else None)
            services.health.note("topology", "")
            services.health.note("engine", "")
            services.health.note("state", services.store.problem)
            services.health.tell()
            services.node_state.updates.wake()
            return True

    async def _load(self) -> LoadedState:
        """:raises StateLocked: another program has the file open."""
        services = self._services
        loaded = await services.store.load()
        for note in loaded.notes:
            if note != services.store.problem:  # which is told until it is over
                services.log.warning(note)
        for kind, _ in loaded.dropped:
            services.metrics.state_dropped.labels(kind).inc()
        services.health.note("state", services.store.problem)
        return loaded

    async def _build(self, host: Host, loaded: LoadedState) -> Engine:
        services = self._services
        engine = make_engine(services.config, host)
        if loaded.meta.get(HASH_KEY, host.topology.hash()) != host.topology.hash():
            services.log.warning(
                "the machine is not the one it was: places with CPUs that are gone are chosen anew"
            )
        self._recall_quotas(loaded.meta, await services.store.run(self._limits.read))
        self._meta.update(self.on_meta(loaded.meta))
        self.on_engage(engine)
        try:
            restore(engine, loaded, services.store, self._boot_id)
        except Exception:
            # Records that can be read and yet make no sense together: as corrupt as any.
            loaded = await services.store.start_over()
            services.log.error(f"the state makes no sense; {'; '.join(loaded.notes)}", exc_info=True)
            engine = make_engine(services.config, host)
            self.on_engage(engine)
        self._restore_mode(loaded.meta)
        self._tell_lost([loaded.meta.get(LOST_KEY, ""), loaded.lost])
        return engine

    def _tell_lost(self, sentences: Iterable[str]) -> None:
        """What was lost is a reason, over restarts too, until ``acknowledge``."""
        lost = self._meta[LOST_KEY] = "; ".join(dict.fromkeys(filter(None, sentences)))
        hint = "what runs was adopted as it is (cri-resmgr placements); seen? cri-resmgr acknowledge"
        self._services.health.note("lost state", lost and f"{lost}; {hint}")

    def acknowledge(self) -> str:
        """Take what was lost out of the reasons; the sentence about it, "" if there was none."""
        lost = self._meta.get(LOST_KEY, "")
        self._tell_lost([])
        self._services.store.write({}, {LOST_KEY: ""})
        return lost

    def _recall_quotas(self, meta: Mapping[str, str], kept: str) -> None:
        # Another boot's cgroups are gone.
        if self._services.node_state.quotas is not None and (kept or meta.get(BOOT_KEY) == self._boot_id):
            self._meta[QUOTAS_KEY] = kept or meta.get(QUOTAS_KEY, "")
            self._services.node_state.quotas.recall(self._meta[QUOTAS_KEY])

    async def start_over(self) -> Awaitable[str]:
        """Put an engine to work that knows nothing but what is under way. The next comparison adopts what runs.

        There must be an engine. Returns what tells, once it is there, what has become of the state file.
        """
        services, node_state = self._services, self._services.node_state
        books, old = node_state.books, node_state.engine
        assert old is not None
        # 1. Nothing is given out from here on. What was is made, and others have left what they are to leave, if the
        #    runtime is not too slow: an owner that is not alone could not be told from one that shares.
        may_be_owned = books.may_be_owned
        if books.are_true and node_state.mode != OFF:
            books.doubt(RESET)
            may_be_owned = NO_CPUS
        await node_state.updates.until(lambda key: not any(_is_under_way(old)), CALL_WAIT_S)
        await node_state.updates.tried(node_state.updates.pending, CALL_WAIT_S)
        # 2. In one step: what the old engine has is not written any more, and what the new one has goes to a new file.
        moved = services.store.set_aside()
        engine = make_engine(services.config, old.host)
        carry_over(old, engine)
        owned = old.node.exclusive
        self.engage(engine, RESET, None if may_be_owned is None else may_be_owned | owned)
        return moved

    def engage(self, engine: Engine, why: str, may_be_owned: Optional[frozenset[int]]) -> None:
        """Put an engine to work, in place of the one before. It gives nothing out before the first comparison.

        ``why``, ``may_be_owned``: as ``NodeState.expect_comparison`` has them.
        """
        services = self._services
        services.node_state.expect_comparison(why, may_be_owned)
        if self._watched is not None:
            services.metrics.unwatch(self._watched)
        self._watched = services.metrics.watch(engine)
        self.on_engage(engine)
        services.node_state.engine = engine
        self._meta[HASH_KEY] = engine.host.topology.hash()
        services.store.write(engine.drain(), {**self._meta, **self.kept()})
        services.look.set()

    def host(self, machine: Machine) -> Host:
        """The machine as the configuration lets us use it; warnings are told."""
        services = self._services
        host, warnings = self.host_by(services.config, machine)
        services.health.warn("machine", warnings)
        return host

    def host_by(self, config: Config, machine: Machine) -> tuple[Host, tuple[str, ...]]:
        """The machine as some configuration lets us use it, and warnings."""
        sets = {}
        for key in ("policy.ReservedResources.CPU", "policy.AvailableResources.CPU"):
            path = config[key].cgroup
            found = self._services.cgroups.exact(path) if path else None
            if found is not None:
                sets[path] = found.cpus
        return make_host(config, machine, sets)

    async def follow_machine(self) -> None:
        """Read the machine again and let the engine follow; if there is none, have one tried."""
        await self._follow(by_reload=False)

    async def follow_config(self) -> None:
        """Let the engine follow a new configuration."""
        self._services.node_state.devices = self._devices()
        await self._follow(by_reload=True)

    async def follow_kubelet(self) -> None:
        """Let the engine know what kubelet has given to single containers, if that is news.

        Waits FENCE_S at most: what cannot be read by then is the next round's.
        """
        machine = self._services.machine
        if self._lock.locked() or machine.assignments.is_news(machine.kubelet):
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(FENCE_S, self._follow_kubelet())

    async def _follow_kubelet(self) -> None:
        services, machine = self._services, self._services.machine
        async with self._lock:
            engine = services.node_state.engine
            if engine is None or not machine.assignments.is_news(machine.kubelet):
                return
            try:
                given = await asyncio.to_thread(machine.assignments.read, machine.kubelet)
            except NotUnderstood:  # the next round says so
                services.look.set()
                return
            if engine is services.node_state.engine and given != engine.host.kubelet_exclusive:
                engine.follow_kubelet(given)
                services.node_state.save()

    async def _follow(self, by_reload: bool) -> None:
        services = self._services
        async with self._lock:
            engine = services.node_state.engine
            if engine is None:
                services.look.set()
                return
            try:
                parents = [pod.cgroup_parent for pod in engine.pods.values()]
                machine = await asyncio.to_thread(services.machine.read, engine.host.topology, parents)
            except NoMachine as error:
                services.health.note("topology", f"the machine could not be read again: {error}")
                return
            services.health.note("topology", "")
            if engine is not services.node_state.engine:
                return
            before, host = engine.host, self.host(machine)
            engine.note_free_memory(host.free_memory)
            has_changed = _essence(before) != _essence(host)
            if has_changed:
                services.log.info("the machine has changed", usable=len(host.usable), was=len(before.usable))
            elif not by_reload:
                return
            options = engine_options(services.config) if by_reload else None
            engine.rehost(host, make_policy(services.config, host.topology), options)
            self._meta[HASH_KEY] = host.topology.hash()
            services.store.write({}, {**self._meta, **self.kept()})
            services.node_state.save()

    # ------------------------------------------------------------------ the mode

    @property
    def mode(self) -> str:
        """The mode in force: off while there is no engine, whatever was asked for."""
        node_state = self._services.node_state
        return "off" if node_state.engine is None else node_state.mode

    @property
    def mode_from(self) -> str:
        """What has set the mode that is wanted: COMMAND, NODE_PLACEMENT, or the origin of ``relay.mode``."""
        if self._meta.get(MODE_KEY):
            return self._meta.get(ASKED_BY_KEY) or COMMAND
        return self._services.config.origins["relay.mode"]

    def set_mode(self, mode: str, by: str = COMMAND) -> None:
        """Change what is done with requests, past the configuration. "": as it is configured, unless another asks.

        ``services.store.settled()`` waits until it outlives the daemon.
        """
        configured = self._services.config["relay.mode"]
        if not mode:
            if self.mode_from == by:
                self._switch(configured, "")
            return
        # A command for what is configured anyway is no exception. A NodePlacement's is: it holds against what comes.
        self._switch(mode, by if mode != configured or by == NODE_PLACEMENT else "")

    def configured_mode(self) -> None:
        """Another mode is configured than before."""
        if self.mode_from == NODE_PLACEMENT:
            return
        if self._services.node_state.engine is None and MODE_KEY not in self._meta:
            # The mode that a command gave an earlier daemon is not read yet.
            self._services.node_state.switch(self._services.config["relay.mode"])
            return
        self._switch(self._services.config["relay.mode"], "")

    def _switch(self, mode: str, asked_by: str) -> None:
        services = self._services
        services.node_state.switch(mode)
        self._meta[MODE_KEY] = mode if asked_by else ""
        self._meta[ASKED_BY_KEY] = asked_by
        self._meta[CONFIGURED_KEY] = services.config["relay.mode"]
        # Not the boot id: records of another boot may be there that were not looked at yet.
        keys = (MODE_KEY, ASKED_BY_KEY, CONFIGURED_KEY)
        services.store.write({}, {key: self._meta[key] for key in keys})
        services.log.info("mode", mode=mode, by=self.mode_from)
        services.look.set()
        self.on_mode()
        services.health.tell()

    def _restore_mode(self, meta: Mapping[str, str]) -> None:
        mode, configured = meta.get(MODE_KEY, ""), self._services.config["relay.mode"]
        if MODE_KEY in self._meta or mode not in MODES:
            return
        asked_by = meta.get(ASKED_BY_KEY, "")
        is_over = asked_by != NODE_PLACEMENT and meta.get(CONFIGURED_KEY, configured) != configured
        # For good: also when the former one is configured again.
        kept = {MODE_KEY: "" if is_over else mode, ASKED_BY_KEY: "" if is_over else asked_by}
        self._meta.update({**kept, CONFIGURED_KEY: configured})
        if not is_over:
            self._services.node_state.switch(mode)


def restore(engine: Engine, loaded: LoadedState, store: StateWriter, boot_id: str) -> None:
    """Put the records of an earlier daemon into the engine, unless they are of another boot."""
    if loaded.meta.get(BOOT_KEY, boot_id) != boot_id:
        # Every container of that boot is dead; what runs now is adopted by the first resync. Claims are there until they are
        # unprepared. Their times were since that boot.
        claims = [replace(grant, since_s=0.0) for grant in loaded.of("grant").values() if grant.is_claim]
        known = [(kind, key) for kind, found in loaded.records.items() for key in found]
        store.write(dict.fromkeys([*known, *loaded.unknown]))
        if claims:
            engine.restore(sorted(claims, key=lambda grant: grant.key), (), (), (), {})
        return
    # Where a key has two halves they are on two lines.
    distrusted: dict[Any, Any] = {tuple(key.split("\n", 1)): s for key, s in loaded.of("distrust").items()}
    history = sorted(loaded.of("record").values(), key=lambda record: record.number)
    grants = sorted(loaded.of("grant").values(), key=lambda grant: (grant.since_s, grant.key))
    tickets, pods = loaded.of("ticket").values(), loaded.of("pod").values()
    engine.restore(grants, tickets, pods, history, distrusted)


def _is_under_way(engine: Engine) -> Iterator[bool]:
    return (not ticket.in_doubt for ticket in engine.tickets.values())


def carry_over(old: Engine, new: Engine) -> None:
    """Have an engine know the sandboxes, and the creates that the runtime has not answered: their CPUs are theirs until it
    is seen what has become of them. What single containers own they keep, and claims what they have, unless records
    contradict each other."""
    parts: list[ContainerRecord] = []
    if not broken_invariants(old):
        parts = [grant for grant in old.grants.values() if grant.is_claim]
        new.claims = {
            g.key: g.exclusive & g.cpus
            for g in old.grants.values()
            if g.stance in (Management.PLACED, Management.ADOPTED) and g.exclusive and not g.placement.group
            if not g.is_claim
        }
    new.set_orders(old.orders)
    creates = [t for t in old.tickets.values() if t.kind is TicketKind.CREATE]
    tickets = [replace(t, replaces=(), replaced_tickets=(), moved=(), waiting=()) for t in creates]
    new.restore([*parts, *(old.grants[t.key] for t in creates)], tickets, old.pods.values(), (), {})


def read_boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """What changes with every boot; "" if it cannot be read."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""


def _essence(host: Host) -> tuple[Any, ...]:
    """What of a host placements depend on."""
    topology = host.topology
    sets = (host.usable, host.mems, host.parent_cpus, host.reserved, host.bounds)
    memory = (topology.data.memory, topology.data.hugepages)
    return (*sets, host.kubelet_exclusive, topology.hash(), topology.online, *memory)
