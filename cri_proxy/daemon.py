"""The daemon: builds the parts, runs them, takes them apart. The only place where everything is known.

Order of a start (design rule 7): settings, runtime, sockets; then the engine, and READY. Whatever fails on
the way is a degraded reason, not an exit: the socket is served, bytes pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from bpf.notify import notify, watchdog_period_s
from cri_proxy.core.config import BadConfig
from cri_proxy.front_ends import FrontEnd, FrontEndMaker
from cri_proxy.shell import logs, settings
from cri_proxy.shell.affinity import AffinityController
from cri_proxy.shell.affinity_client import AffinityClient
from cri_proxy.shell.assembly import Assembly, read_boot_id
from cri_proxy.shell.cgroups import Cgroups
from cri_proxy.shell.commands import Commands
from cri_proxy.shell.control import ControlServer
from cri_proxy.shell.event_stream import EventCount
from cri_proxy.shell.health import Health
from cri_proxy.shell.keeper import Keeper
from cri_proxy.shell.listen import SocketTaken
from cri_proxy.shell.machine import MachineReader, read_memory_bytes
from cri_proxy.shell.metrics import Metrics
from cri_proxy.shell.metrics_http import MetricsEndpoint
from cri_proxy.shell.moving import Mover
from cri_proxy.shell.ownership import Ownership
from cri_proxy.shell.parts import Parts
from cri_proxy.shell.planner_worker import PlannerWorker
from cri_proxy.shell.proxy import Proxy
from cri_proxy.shell.reconciler import Reconciler
from cri_proxy.shell.rounds import Rounds
from cri_proxy.shell.runtime import WELL_KNOWN, NoRuntime, Runtime, discover
from cri_proxy.shell.serving import longest_stop_us
from cri_proxy.shell.store import Store
from cri_proxy.shell.updates import Updates
from cri_proxy.shell.watch import TopologyWatch
from cri_proxy.version import VERSION

#: What ``run --strict`` does not start without.
STRICT_TOPICS = ("config", "topology", "engine", "state")

#: "no" in this variable of the environment: asyncio's own event loop, whatever is installed.
UVLOOP_SWITCH = "CRI_RESMGR_UVLOOP"
#: How long a background task may take to end before it is told again, seconds.
CANCEL_AGAIN_S = 0.5


@dataclass(frozen=True)
class RunOptions:
    """What ``cri-resmgr run`` was given."""

    files: settings.Files
    strict: bool = False
    #: How containers are learned of and reached; kubelet connects to a proxy.
    front_end: FrontEndMaker = Proxy
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    meminfo_file: Path = Path("/proc/meminfo")


class Daemon:
    """One running daemon. ``run`` returns the exit code."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.front: Optional[FrontEnd] = None
        self.control: Optional[ControlServer] = None
        self.watch: Optional[TopologyWatch] = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._debugging = False

    # ------------------------------------------------------------------ start and stop

    async def run(self) -> int:
        """Serve until SIGTERM. 0: stopped in order; 1: could not serve at all, or not as ``strict`` asks."""
        try:
            self._configure()
            await self._serve()
        except (SocketTaken, BadConfig) as error:
            await self._fail(str(error))
            return 1
        except OSError as error:
            await self._fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            return 1
        assert self.front is not None
        await self.front.start_behind(self._bring_up())
        missing = [self.health.reasons[topic] for topic in STRICT_TOPICS if topic in self.health.reasons]
        if self.options.strict and missing:
            await self._fail("\n".join(missing))
            return 1
        self._start_tasks()
        # What is there now stays. To go through all of it would stop every call for 20 ms now and then.
        gc.collect()
        gc.freeze()
        self.health.serving()
        self._announce()
        await self._stopping.wait()
        self.log.info("stopping")
        try:
            await self._stop()
        except Exception:
            self.log.error("the stop was not orderly", exc_info=True)
            return 1
        return 0

    def _announce(self) -> None:
        engine, front = self.parts.keeper.engine, self.front
        assert front is not None
        self.log.info(
            f"cri-resmgr {VERSION}",
            runs_as=front.name,
            mode=self.mode,
            serving=front.status()["sockets"],
            runtime=self.parts.runtime.path,
            cpus=len(engine.host.usable) if engine else 0,
            containers=len(engine.grants) if engine else 0,
        )

    async def _fail(self, sentences: str) -> None:
        log = logs.set_up("info", "console")
        for sentence in sentences.splitlines():
            log.error(sentence)
        notify(f"STATUS={sentences.splitlines()[0]}")
        if self.front is not None:
            await self._stop()

    def _configure(self) -> None:
        """:raises BadConfig: strict, and there is no valid configuration."""
        files = self.options.files
        loaded = settings.load(files, strict=True) if self.options.strict else settings.load_or_last(files)
        config = loaded.config
        self.log = log = logs.set_up(config["log.level"], config["log.format"])
        metrics = Metrics(VERSION)
        self.metrics_http = MetricsEndpoint(metrics.text)
        self.health = health = Health(metrics, log, lambda: self.mode)
        #: Whether placing waits for a configuration that can be read.
        self._unconfigured = loaded.is_default
        runtime_problem = ""
        try:
            path = discover(config["relay.runtime_endpoint"])
        except NoRuntime as error:
            path = WELL_KNOWN[0]
            runtime_problem = str(error)
        runtime = Runtime(path)
        store = Store(Path(config["state.directory"]))
        keeper = Keeper(store, Updates(runtime, metrics, log), metrics, log)
        keeper.memory_bytes = read_memory_bytes(self.options.meminfo_file)
        keeper.mode = config["relay.mode"]
        cgroups = Cgroups(Path(config["topology.cgroup_root"]))
        machine = MachineReader(Path(config["topology.source"]), cgroups, Path(config["kubelet.directory"]))
        look = asyncio.Event()
        self.parts = Parts(
            config=config,
            log=log,
            metrics=metrics,
            health=health,
            runtime=runtime,
            store=store,
            keeper=keeper,
            cgroups=cgroups,
            machine=machine,
            reconciler=Reconciler(runtime, cgroups, keeper),
            events=EventCount(look.set),
            look=look,
            reload=self.reload,
        )
        self.assembly = Assembly(self.parts, read_boot_id(self.options.boot_id_file))
        self.rounds = Rounds(self.parts, self.assembly, self._bring_up, self._keep_again)
        self._configure_affinity()
        keeper.on_doubt = self.rounds.look_soon
        keeper.on_pod = self.rounds.note_pod
        self._loaded = loaded
        self._apply_settings()
        health.note("config", loaded.problem)
        health.warn("config", loaded.warnings)
        health.note("runtime", runtime_problem)

    def _configure_affinity(self) -> None:
        parts, config = self.parts, self.parts.config
        self.observer = AffinityClient(
            Path(config["affinity.socket"]), Path(config["state.directory"]), parts.log
        )
        mover = Mover(parts, Path(config["topology.cgroup_root"]))
        self.affinity = AffinityController(parts, self.observer, PlannerWorker(), mover)
        self.observer.on_change = self.affinity.follow
        self.assembly.on_engage = self.affinity.follow

    async def _serve(self) -> None:
        """Open the sockets; who connects waits for ``FrontEnd.start_behind``.

        :raises SocketTaken, OSError: what must be had cannot be, or the node has an owner already.
        """
        front = self.options.front_end(self.parts)
        self.ownership = Ownership(self.parts.config, front.name)
        await front.open()
        self.front = front
        if not self._own() and not front.must_serve:
            raise SocketTaken(self.health.reasons["owner"])
        await self._serve_control()
        await self._serve_metrics()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGUSR1, self._toggle_debug)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self.reload()))

    def _own(self) -> bool:
        """Be the one that places containers here, or say who is."""
        self.health.note("owner", self.ownership.take())
        self.health.warn("owner", filter(None, [self.ownership.problem]))
        return "owner" not in self.health.reasons

    async def _serve_control(self) -> None:
        control = ControlServer(Path(self.parts.config["control.socket"]), Commands(self).table(), self.log)
        try:
            await control.start()
        except (SocketTaken, OSError) as error:
            self.health.note("control", f"the command line cannot talk to this daemon: {error}")
        else:
            self.control = control
            self.health.note("control", "")

    async def _serve_metrics(self) -> None:
        self.health.note("metrics", await self.metrics_http.follow(self.parts.config["metrics.listen"]))

    def _signalled(self) -> None:
        if self._stopping.is_set():
            os._exit(1)  # asked twice
        self._stopping.set()

    def _toggle_debug(self) -> None:
        """Intel's daemon did that on SIGUSR1; a signal nobody handles would end us."""
        self._debugging = not self._debugging
        config = self.parts.config
        logs.set_up("debug" if self._debugging else config["log.level"], config["log.format"])
        self.log.info("debugging on" if self._debugging else "debugging off")

    async def _stop(self) -> None:
        parts = self.parts
        notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={longest_stop_us(parts.config['relay.drain'])}")
        assert self.front is not None
        await self.front.close(parts.config["relay.drain"])
        while tasks := tuple(self._tasks):
            # Once may not be enough: before Python 3.12, wait_for can swallow a cancellation (bpo-37658).
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
            await asyncio.sleep(0)  # the callbacks of those that are done
        if self.control is not None:
            await self.control.stop()
        await self.metrics_http.follow("")
        await self.affinity.close()
        await parts.keeper.updates.close()
        parts.keeper.save()
        parts.store.checkpoint()
        parts.store.close()
        await parts.runtime.close()
        self.ownership.give_up()

    def _start_tasks(self) -> None:
        parts, rounds = self.parts, self.rounds
        assert self.front is not None
        self._spawn(rounds.follow_runtime(self.front.runtime_returned))
        self._spawn(self.front.run())
        self._spawn(rounds.reconcile())
        self._spawn(rounds.read_events())
        self._spawn(self.observer.run())
        self._spawn(self.affinity.run())
        self.watch = TopologyWatch(
            parts.machine.signature,
            lambda: self._spawn(self.assembly.follow_machine()),
            parts.config["topology.interval"],
        )
        self._spawn(self.watch.run())
        period_s = watchdog_period_s()
        if period_s is not None:
            self._spawn(rounds.watchdog(period_s))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.error("a background task failed", exc_info=task.exception())
            self.health.note("task", f"a background task failed: {task.exception()}")

    # ------------------------------------------------------------------ configuration

    async def _bring_up(self) -> bool:
        """Get the engine to work, with a configuration if there was none. False: not yet."""
        if not self._own():
            return False
        if self.control is None:  # the owner before us had it
            await self._serve_control()
        if self._unconfigured:
            try:
                loaded = settings.load(self.options.files)
            except BadConfig as error:
                self.health.note("config", settings.default_problem(error))
                return False
            await self._take_over(loaded)
        is_up = await self.assembly.activate()
        if is_up and not self.health.reasons.get("config"):
            self._keep()
        return is_up

    def _keep(self) -> None:
        folder = Path(self.parts.config["state.directory"])
        problem = settings.keep(self._loaded, folder, self.parts.runtime.path)
        self.health.note("last config", problem or "")

    def _keep_again(self) -> None:
        if "last config" in self.health.reasons:
            self._keep()

    async def reload(self) -> None:
        """SIGHUP: read the files again; an invalid configuration leaves the running one in force."""
        async with self._reloading:
            # systemd's Type=notify-reload wants to know when it began.
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            notify(f"RELOADING=1\nMONOTONIC_USEC={now_us}")
            try:
                loaded = settings.load(self.options.files)
            except BadConfig as error:
                for sentence in error.errors:
                    self.log.error(sentence)
                self.health.note("config", settings.reload_problem(error, self._unconfigured))
            else:
                await self._take_over(loaded)
            self.health.tell(again=True)

    async def _take_over(self, loaded: settings.Settings) -> None:
        """Make a configuration the running one, as far as that is possible without a restart."""
        parts, old = self.parts, self.parts.config
        changed = old.differences(loaded.config)
        restart = old.restart_needed(loaded.config)
        # Endpoints and directories stay what they are until the next start.
        parts.config = old.taking_over(loaded.config)
        self._loaded, self._unconfigured = loaded, False
        self.health.warn("config", loaded.warnings)
        self.health.note("config", "")
        self.health.note("restart", f"a restart is needed for {', '.join(restart)}" if restart else "")
        self._apply_settings()
        if "relay.mode" in changed:
            self.assembly.set_mode(parts.config["relay.mode"], by_command=False)
        if "metrics.listen" in changed:
            await self._serve_metrics()
        if parts.keeper.engine is not None:
            await self.assembly.follow_config()
            self._keep()
        self.affinity.reconfigured()
        if self.front is not None:
            self.front.reconfigured()
        self.log.info("configuration loaded", changed=list(changed))
        parts.look.set()

    def _apply_settings(self) -> None:
        parts, config = self.parts, self.parts.config
        logs.set_up(config["log.level"], config["log.format"])
        parts.keeper.shrink_wait_s = config["placement.shrink_wait"]
        parts.keeper.fail_closed = tuple(config["placement.fail_closed_namespaces"])
        parts.machine.source = Path(config["topology.source"])
        parts.machine.kubelet = Path(config["kubelet.directory"])
        if self.watch is not None:
            self.watch.set_interval(config["topology.interval"])

    @property
    def mode(self) -> str:
        """The mode in force."""
        return self.assembly.mode


def main(options: RunOptions) -> int:
    """Run a daemon in a new event loop: uvloop's, where that is installed."""

    async def run() -> int:
        return await Daemon(options).run()

    if os.environ.get(UVLOOP_SWITCH) != "no":
        with contextlib.suppress(ImportError):
            import uvloop

            return int(uvloop.run(run()))
    return asyncio.run(run())
