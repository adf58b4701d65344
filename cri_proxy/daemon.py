"""The daemon: builds the parts, runs them, takes them apart. The only place where everything is known.

Order of a start (design rule 7): settings, runtime, the relay's server, READY; then the engine. Whatever
fails on the way is a degraded reason, not an exit: the socket is served, bytes pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import grpc

from cri_proxy.core.assemble import Machine, make_engine, make_host, make_policy
from cri_proxy.core.config import BadConfig, Config, engine_options
from cri_proxy.core.engine import Engine
from cri_proxy.shell import logs, settings
from cri_proxy.shell.cgroups import Cgroups
from cri_proxy.shell.commands import Commands
from cri_proxy.shell.control import ControlServer
from cri_proxy.shell.interceptor import CriInterceptor, EventCount, note_event
from cri_proxy.shell.keeper import Keeper
from cri_proxy.shell.listen import SocketTaken, Splice, activated, claim, copy_access
from cri_proxy.shell.machine import MachineReader, NoMachine
from cri_proxy.shell.metrics import Metrics
from cri_proxy.shell.metrics_http import MetricsServer
from cri_proxy.shell.notify import notify, watchdog_period_s
from cri_proxy.shell.reconciler import Reconciler
from cri_proxy.shell.relay import SERVER_OPTIONS, Relay
from cri_proxy.shell.runtime import WELL_KNOWN, NoRuntime, Runtime, discover
from cri_proxy.shell.store import Loaded, Store
from cri_proxy.shell.updates import Updates
from cri_proxy.shell.watch import TopologyWatch
from cri_proxy.version import VERSION

#: How long after a create was left in doubt the runtime is asked, seconds.
DOUBT_LOOK_S = 1.0
RETRY_S = 10.0
MODE_KEY, BOOT_KEY, HASH_KEY = "mode", "boot_id", "topology"


@dataclass(frozen=True)
class RunOptions:
    """What ``cri-resmgr run`` was given."""

    files: settings.Files
    strict: bool = False
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    meminfo_file: Path = Path("/proc/meminfo")


class Daemon:
    """One running daemon. ``run`` returns the exit code."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        #: Reasons by topic why the daemon does less than it should; shown in status and by systemd.
        self.degraded: dict[str, str] = {}
        self.warnings: tuple[str, ...] = ()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._look = asyncio.Event()
        self._looked = asyncio.Event()
        self._splices: list[Splice] = []
        self._watched: Any = None
        self.metrics_http: Optional[MetricsServer] = None
        self.events = EventCount(self._look.set)

    # ------------------------------------------------------------------ start and stop

    async def run(self) -> int:
        """Serve until SIGTERM. 0: stopped in order; 1: could not serve at all."""
        try:
            self._configure()
            await self._serve()
        except (SocketTaken, BadConfig, NoMachine, OSError) as error:
            self._fatal(error)
            return 1
        await self._activate_engine()
        self._start_tasks()
        self._report()
        await self._stopping.wait()
        await self._stop()
        return 0

    def _fatal(self, error: Exception) -> None:
        log = logs.set_up("info", "console")
        log.error(str(error))
        notify(f"STATUS={error}")

    def _configure(self) -> None:
        if self.options.strict:
            loaded = settings.load(self.options.files, strict=True)
        else:
            loaded = settings.load_or_last(self.options.files)
        self.config: Config = loaded.config
        self.log = logs.set_up(self.config["log.level"], self.config["log.format"])
        self._note("config", loaded.problem)
        self.warnings = loaded.warnings
        for warning in loaded.warnings:
            self.log.warning(warning)
        try:
            path = discover(self.config["relay.runtime_endpoint"])
        except NoRuntime as error:
            path = WELL_KNOWN[0]
            self._note("runtime", str(error))
        self.runtime = Runtime(path)
        self.metrics = Metrics(VERSION)
        self.store = Store(Path(self.config["state.directory"]))
        self.keeper = Keeper(self.store, Updates(self.runtime, self.metrics, self.log), self.metrics, self.log)
        self.keeper.on_doubt = self._look_soon
        self.keeper.memory_bytes = _memory_bytes(self.options.meminfo_file)
        self._apply_settings()
        self.keeper.mode = self.config["relay.mode"]
        self.cgroups = Cgroups(Path(self.config["topology.cgroup_root"]))
        self.machine = MachineReader(
            Path(self.config["topology.source"]), self.cgroups, Path(self.config["kubelet.directory"])
        )
        self.reconciler = Reconciler(self.runtime, self.cgroups, self.keeper)
        self.commands = Commands(self)

    async def _serve(self) -> None:
        """Open the sockets and serve them; from here on calls pass.

        :raises SocketTaken, OSError: a socket cannot be had.
        """
        interceptor = CriInterceptor(self.keeper, self.events)
        images = self.config["relay.image_endpoint"]
        self._image_runtime = Runtime(discover(images)) if images else None
        self.relay = Relay(self.runtime.channel, self._image_runtime and self._image_runtime.channel, interceptor)
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers((self.relay,))
        listeners = activated(os.environ, os.getpid())
        main = Path(self.config["relay.socket"])
        wanted = [main, *map(Path, self.config["relay.extra_sockets"])]
        if self.runtime.path.endswith("crio.sock"):
            # kubelet chooses its stats provider by this end of the endpoint's name.
            wanted.append(Path(self.config["control.socket"]).parent / "run/crio/crio.sock")
        given = {listener.getsockname() for listener in listeners}
        self.sockets = [path for path in wanted if str(path) not in given]
        if listeners:
            inner = Path(self.config["control.socket"]).with_name("relay.sock")
            self.sockets.append(inner)
            self._splices = [Splice(listener, str(inner)) for listener in listeners]
        mask = os.umask(0o177)
        try:
            for path in self.sockets:
                self._bind(path, needed=path == main)
        finally:
            os.umask(mask)
        await self.server.start()
        self._copy_access()
        for splice in self._splices:
            await splice.start()
        self.control = ControlServer(Path(self.config["control.socket"]), self.commands.table(), self.log)
        try:
            await self.control.start()
        except (SocketTaken, OSError) as error:
            self._note("control", f"no control socket: {error}")
        if self.config["metrics.listen"]:
            self.metrics_http = MetricsServer(self.config["metrics.listen"], self.metrics.text)
            try:
                await self.metrics_http.start()
            except OSError as error:
                self._note("metrics", f"metrics are not served on {self.config['metrics.listen']}: {error}")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._reload_soon)

    def _bind(self, path: Path, needed: bool) -> None:
        try:
            claim(path)
            self.server.add_insecure_port(f"unix:{path}")
        except (SocketTaken, OSError, RuntimeError) as error:
            if needed:
                raise SocketTaken(str(error)) from None
            self._note(f"socket {path}", f"{path} is not served: {error}")

    def _copy_access(self) -> None:
        copy_access(Path(self.runtime.path), [path for path in self.sockets if path.exists()])

    def _signalled(self) -> None:
        if self._stopping.is_set():
            os._exit(1)  # asked twice
        self._stopping.set()

    async def _stop(self) -> None:
        notify("STOPPING=1")
        self.log.info("stopping")
        drain_s = self.config["relay.drain"]
        stopped = asyncio.ensure_future(self.server.stop(drain_s + 1))
        await self.relay.drain(drain_s)
        await stopped
        for splice in self._splices:
            await splice.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.control.stop()
        if self.metrics_http is not None:
            await self.metrics_http.stop()
        await self.keeper.updates.close()
        self.keeper.save()
        self.store.checkpoint()
        self.store.close()
        await self.runtime.close()
        if self._image_runtime is not None:
            await self._image_runtime.close()
        for path in self.sockets:
            path.unlink(missing_ok=True)

    # ------------------------------------------------------------------ the engine

    async def _activate_engine(self) -> bool:
        """Read the machine, the state, and put the engine to work. False: still degraded."""
        if self.degraded.get("config", "").startswith("no configuration"):
            return False
        try:
            machine = await asyncio.to_thread(self.machine.read)
            host = self._host(machine)
            loaded = self.store.load()
            engine = make_engine(self.config, host)
            updates = self._restore(engine, loaded)
        except NoMachine as error:
            self._note("topology", str(error))
            if self.options.strict:
                raise
            return False
        except Exception as error:
            self.log.error("the engine could not be built", exc_info=True)
            self._note("engine", f"{type(error).__name__}: {error}")
            return False
        for note in loaded.notes:
            self.log.warning(note)
        self._note("topology", "")
        self._note("engine", "")
        problem = settings.keep(self.options.files, self.config, self.runtime.path) if not self.degraded.get("config") else None
        self._note("state", self.store.problem or problem or "")
        self.engage(engine)
        self.keeper.send(updates)
        return True

    def engage(self, engine: Engine) -> None:
        """Put an engine to work, in place of the one before."""
        if self._watched is not None:
            self.metrics.unwatch(self._watched)
        self._watched = self.metrics.watch(engine)
        self.keeper.engine = engine
        meta = {BOOT_KEY: self._boot_id(), HASH_KEY: engine.host.topology.hash()}
        self.store.write(engine.drain(), meta)
        self._look.set()

    def _host(self, machine: Machine) -> Any:
        named = {self.config[f"policy.{key}Resources.CPU"].cgroup for key in ("Reserved", "Available")} - {""}
        sets = {path: found.cpus for path in named if (found := self.cgroups.effective(path)) is not None}
        host, warnings = make_host(self.config, machine, sets)
        for warning in (*self.machine.warnings, *warnings):
            self.log.warning(warning)
        self.warnings = (*self.warnings, *warnings)
        return host

    def _restore(self, engine: Engine, loaded: Loaded) -> Any:
        """Put the records of an earlier daemon into the engine, unless they are of another boot."""
        if loaded.meta.get(MODE_KEY):
            self.keeper.mode = loaded.meta[MODE_KEY]
        if loaded.meta.get(BOOT_KEY, self._boot_id()) != self._boot_id():
            # Every container of that boot is dead; what runs now is adopted by the first resync.
            stale: dict[Any, Any] = {(kind, key): None for kind, found in loaded.records.items() for key in found}
            self.store.write(stale)
            return ()
        distrusted = {tuple(key.split("\n", 1)): until_s for key, until_s in loaded.of("distrust").items()}
        history = sorted(loaded.of("record").values(), key=lambda r: r.number)
        grants = sorted(loaded.of("grant").values(), key=lambda g: (g.since_s, g.key))
        return engine.restore(grants, loaded.of("ticket").values(), loaded.of("pod").values(), history, distrusted)  # type: ignore[arg-type]

    def _boot_id(self) -> str:
        try:
            return self.options.boot_id_file.read_text().strip()
        except OSError:
            return ""

    async def rehost(self) -> None:
        """Read the machine again and let the engine follow."""
        engine = self.keeper.engine
        if engine is None:
            return
        try:
            machine = await asyncio.to_thread(self.machine.read, engine.host.topology)
        except NoMachine as error:
            self._note("topology", f"the machine could not be read again: {error}")
            return
        self._note("topology", "")
        before = engine.host
        host, _ = make_host(self.config, machine)
        host = replace(host, reserved=self._host(machine).reserved) if before.topology.hash() != host.topology.hash() else host
        if engine is not self.keeper.engine or _same_host(before, host):
            return
        self.log.info("the machine has changed", usable=len(host.usable), was=len(before.usable))
        self.keeper.send(engine.rehost(host, make_policy(self.config, host.topology)))
        self.store.write({}, {HASH_KEY: host.topology.hash()})
        self.keeper.save()

    # ------------------------------------------------------------------ configuration

    def _apply_settings(self) -> None:
        config, keeper = self.config, self.keeper
        keeper.shrink_wait_s = config["placement.shrink_wait"]
        keeper.fail_closed = tuple(config["placement.fail_closed_namespaces"])
        self.log = logs.set_up(config["log.level"], config["log.format"])
        keeper.log = self.log

    async def reload(self) -> None:
        """SIGHUP: read the files again; an invalid configuration leaves the running one in force."""
        notify("RELOADING=1")
        try:
            loaded = settings.load(self.options.files)
        except BadConfig as error:
            for sentence in error.errors:
                self.log.error(sentence)
            self._note("config", f"the running configuration stays: {error.errors[0]}")
            notify("READY=1")
            return
        for warning in loaded.warnings:
            self.log.warning(warning)
        changed = self.config.differences(loaded.config)
        restart = self.config.restart_needed(loaded.config)
        # Endpoints and directories stay what they are until the next start.
        kept = {key: self.config[key] for key in restart}
        self.config = Config({**loaded.config.values, **kept}, loaded.config.origins)
        self.warnings = loaded.warnings
        self._note("config", "")
        self._note("restart", f"a restart is needed for {', '.join(restart)}" if restart else "")
        self._apply_settings()
        if "relay.mode" in changed:
            self.set_mode(self.config["relay.mode"], by_command=False)
        self.machine.source = Path(self.config["topology.source"])
        self.machine.kubelet = Path(self.config["kubelet.directory"])
        engine = self.keeper.engine
        if engine is None:
            await self._activate_engine()
        else:
            try:
                host = self._host(await asyncio.to_thread(self.machine.read, engine.host.topology))
                self.keeper.send(engine.rehost(host, make_policy(self.config, host.topology), engine_options(self.config)))
                self.keeper.save()
            except NoMachine as error:
                self._note("topology", str(error))
        problem = settings.keep(self.options.files, self.config, self.runtime.path)
        self._note("state", self.store.problem or problem or "")
        self.log.info("configuration reloaded", changed=list(changed))
        self._report()

    def _reload_soon(self) -> None:
        self._spawn(self.reload())

    def set_mode(self, mode: str, by_command: bool = True) -> None:
        """Change what the daemon does with requests. By command it outlives a restart, until the configuration changes it."""
        self.keeper.mode = mode
        self.store.write({}, {MODE_KEY: mode if by_command else ""})
        self.log.info("mode", mode=mode, by_command=by_command)
        self._look.set()
        self._report()

    # ------------------------------------------------------------------ things that go on

    def _start_tasks(self) -> None:
        self._spawn(self._follow_runtime())
        self._spawn(self._reconcile())
        self._spawn(self._read_events())
        watch = TopologyWatch(self.machine.signature, lambda: self._spawn(self.rehost()), self.config["topology.interval"])
        self._spawn(watch.run())
        period_s = watchdog_period_s()
        if period_s is not None:
            self._spawn(self._watchdog(period_s))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.error("a background task failed", exc_info=task.exception())
            self._note("task", f"a background task failed: {task.exception()}")

    async def _watchdog(self, period_s: float) -> None:
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(period_s)

    async def _follow_runtime(self) -> None:
        """Keep the connection trying; each time the runtime (re)appears, find out what it is and compare lists."""
        while True:
            await self.runtime.wait_ready()
            try:
                self.runtime.api = ""
                await self.runtime.identify()
            except grpc.aio.AioRpcError as error:
                self._note("runtime", f"{self.runtime.path} does not answer as a CRI runtime: {error.details()}")
                await asyncio.sleep(1)
                continue
            self._note("runtime", "")
            self._copy_access()
            self.log.info("runtime", name=self.runtime.name, version=self.runtime.version, api=self.runtime.api)
            self._look.set()
            await self.runtime.wait_lost()
            self.log.warning("the runtime's connection was lost", path=self.runtime.path)

    def _look_soon(self) -> None:
        asyncio.get_running_loop().call_later(DOUBT_LOOK_S, self._look.set)

    async def _reconcile(self) -> None:
        """Compare with the runtime: every poll for exits, every interval with cpusets, and whenever something happened."""
        loop = asyncio.get_running_loop()
        full_at = 0.0
        while True:
            poll_s = self.config["reconcile.poll"]
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look.wait(), poll_s)
            asked = self._look.is_set()
            self._look.clear()
            full = asked or loop.time() >= full_at
            if full:
                full_at = loop.time() + self.config["reconcile.interval"]
            await self._reconcile_once(full)
            self._looked.set()

    async def _reconcile_once(self, full: bool) -> None:
        if self.keeper.engine is None and not await self._activate_engine():
            return
        engine = self.keeper.active()
        if engine is None:
            return
        if full:
            news = [self.machine.note_cgroup(pod.cgroup_parent) for pod in list(engine.pods.values())[-1:]]
            await self.rehost()
            self.keeper.updates.retry()
            await asyncio.to_thread(self.store.checkpoint)
            if any(news):
                self.log.info("kubelet's cgroup", cpus=len(engine.host.parent_cpus))
        if self.runtime.api and (full or not self._events_read):
            try:
                await self.reconciler.run(with_cpusets=full)
            except grpc.aio.AioRpcError as error:
                self.metrics.resyncs.labels("failed").inc()
                self.log.warning("resync failed", error=error.details())
        self.keeper.send(engine.tick(self.keeper.clock()))
        self.keeper.save()
        self._note("state", self.store.problem)

    @property
    def _events_read(self) -> bool:
        return self.events.streams > 0 or self.own_stream

    own_stream = False

    async def _read_events(self) -> None:
        """Our own event stream: only while no client has one, and only where that takes nothing from anybody."""
        while True:
            await asyncio.sleep(1)
            engine = self.keeper.active()
            if engine is None or self.events.streams or not self.runtime.events_can_be_shared():
                continue
            try:
                async for event in self.runtime.events():
                    self.own_stream = True
                    note_event(self.keeper, engine, event)
                    if self.events.streams or engine is not self.keeper.active():
                        break
            except (grpc.aio.AioRpcError, ValueError):
                pass
            finally:
                self.own_stream = False

    # ------------------------------------------------------------------ telling

    def _note(self, topic: str, reason: str) -> None:
        """Set or clear a degraded reason."""
        if self.degraded.get(topic, "") == reason:
            return
        if reason:
            self.degraded[topic] = reason
            self.log.warning("degraded", topic=topic, reason=reason)
        else:
            self.degraded.pop(topic, None)
            self.log.info("recovered", topic=topic)
        if hasattr(self, "server"):
            self._report()

    def _report(self) -> None:
        """Tell systemd and the metrics how things are."""
        self.metrics.degraded.set(1 if self.degraded else 0)
        for mode in ("enforce", "observe", "off"):
            self.metrics.mode.labels(mode).set(1 if mode == self.mode else 0)
        reasons = "; ".join(self.degraded.values())
        notify(f"READY=1\nSTATUS={'degraded: ' + reasons if reasons else self.mode + ', serving'}")

    @property
    def mode(self) -> str:
        """The mode in force: off while there is no engine, whatever was asked for."""
        return "off" if self.keeper.engine is None else self.keeper.mode


def _same_host(a: Any, b: Any) -> bool:
    fields = ("usable", "mems", "parent_cpus", "reserved", "kubelet_exclusive")
    same = all(getattr(a, name) == getattr(b, name) for name in fields)
    return same and a.topology.hash() == b.topology.hash() and a.topology.online == b.topology.online


def _memory_bytes(meminfo: Path) -> int:
    """MemTotal, which kubelet's oom scores are relative to; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return 0


def main(options: RunOptions) -> int:
    """Run a daemon in a new event loop."""

    async def run() -> int:
        return await Daemon(options).run()

    return asyncio.run(run())
