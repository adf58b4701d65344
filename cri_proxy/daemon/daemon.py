"""The daemon: builds the parts, runs them, takes them apart. The only place where everything is known.

Order of a start (design rule 7): settings, runtime, sockets; then the engine, and READY. Whatever fails on
the way, or takes too long, is a degraded reason, not an exit: the socket is served, bytes pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional, TextIO, cast

from bpf.kernel.notify import notify, watchdog_period_s
from cri_api.socket_paths import SocketTaken
from cri_api.supervisor import Supervisor
from cri_api.waiting import wait_within
from cri_proxy import event_loop
from cri_proxy.affinity.demand.io.sizer import DemandSizer
from cri_proxy.affinity.effect.io.effect_meter import EffectMeter
from cri_proxy.affinity.io.executor import Mover
from cri_proxy.affinity.io.observer_client import AffinityClient
from cri_proxy.affinity.io.planner_process import PlannerWorker
from cri_proxy.affinity.io.rebalancer import AffinityController
from cri_proxy.config.config import BadConfig, view_socket
from cri_proxy.config.io import files as settings
from cri_proxy.control import ControlServer
from cri_proxy.daemon import first_mode
from cri_proxy.daemon.claims_host import CALLS, ClaimsHost
from cri_proxy.daemon.cluster_layer import ClusterLayer
from cri_proxy.daemon.commands import Commands
from cri_proxy.daemon.engine_host import Assembly, read_boot_id
from cri_proxy.daemon.first_mode import FirstMode
from cri_proxy.daemon.isolation_host import IsolationHost
from cri_proxy.daemon.maintenance import Maintenance
from cri_proxy.daemon.metrics_http import MetricsEndpoint
from cri_proxy.daemon.monitoring_host import MonitoringHost
from cri_proxy.daemon.proxy import Proxy
from cri_proxy.daemon.standing_orders import StandingOrders
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, DecisionRecord
from cri_proxy.front_ends.protocol import FrontEnd, FrontEndMaker
from cri_proxy.history.io.keeper import HistoryKeeper
from cri_proxy.metrics import Metrics
from cri_proxy.node.lock import NodeLock
from cri_proxy.node.machine import TopologyWatch, read_memory_bytes
from cri_proxy.relay.io.drain import longest_stop_us
from cri_proxy.runtime import WELL_KNOWN, NoRuntime, RuntimeClient, discover
from cri_proxy.services import logs
from cri_proxy.services.logs import LogLines
from cri_proxy.services.services import Health, make_parts
from cri_proxy.unix_sockets import allow_descriptors, share_with
from cri_proxy.version import VERSION
from policies.frozen import frozen

if TYPE_CHECKING:
    from cri_proxy.isolation.io.resctrl import ResourceControl

#: What ``run --strict`` does not start without.
STRICT_TOPICS = ("config", "topology", "engine", "state")

#: How long READY waits for the engine, seconds. Calls do not wait as long, but kubelet, which is started after us, may:
#: its first containers are then placed. A disk that does not answer must not have the service manager give us up.
READY_BEHIND_S = 10.0
#: How long a configuration that no SIGHUP tells of must stay as it is to be taken for whole, in seconds.
WRITTEN_S = 0.5
STARTING = "it is starting: bytes only until machine and state are read, which takes long"


@frozen
class RunOptions:
    """What ``cri-resmgr run`` was given."""

    files: settings.Files
    strict: bool = False
    #: The mode of a node on which no daemon has run, where nothing sets one; "": that of the table of options.
    first_mode: str = ""
    #: How containers are learned of and reached; kubelet connects to a proxy.
    front_end: FrontEndMaker = Proxy
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    meminfo_file: Path = Path("/proc/meminfo")
    #: Where a runtime is looked for that is not configured.
    runtimes: tuple[str, ...] = WELL_KNOWN
    #: What makes the machine's resctrl; None: that of /sys/fs/resctrl.
    resource_control: Optional[Callable[[], ResourceControl]] = None


class Daemon:
    """One running daemon. ``run`` returns the exit code."""

    def __init__(self, options: RunOptions, supervisor: Optional[Supervisor] = None) -> None:
        self.options = options
        #: What begins all that lives as long as this daemon.
        self.supervisor = supervisor or Supervisor()
        self._front: Optional[FrontEnd] = None
        self.control: Optional[ControlServer] = None
        self.view: Optional[ControlServer] = None
        #: Another one in every life of a daemon.
        self.instance = os.urandom(8).hex()
        self.watch: Optional[TopologyWatch] = None
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self.reloading = asyncio.Lock()
        #: What this node was installed to begin with.
        self._first = FirstMode("")
        self._debugging = False
        #: What lines of one kind are counted by.
        self._repeats = logs.Repeats()

    @property
    def front(self) -> FrontEnd:
        """What learns of containers. Before it is open there is no control socket, and so nothing that asks for it."""
        assert self._front is not None
        return self._front

    # ------------------------------------------------------------------ start and stop

    async def run(self) -> int:
        """Serve until SIGTERM. 0: stopped in order; 1: not as ``strict`` asks, not at all, or to be started again.

        What else is raised leaves the sockets to the launcher, which passes bytes.
        """
        try:
            self._configure()
            await self._serve()
        except (SocketTaken, BadConfig) as error:
            await self._fail(str(error))
            return 1
        await self._start()
        missing = [self.health.reasons[topic] for topic in STRICT_TOPICS if topic in self.health.reasons]
        if self.options.strict and missing:
            await self._fail("\n".join(missing))
            return 1
        if not self._stopping.is_set():
            self._start_tasks()
            # What is there now stays. To go through all of it would stop every call for 20 ms now and then. What was
            # imported is not gone through even once: of its 70,000 objects 700 are garbage.
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
        return self._exit_code

    async def _start(self) -> None:
        """Return when the engine is up or why not is noted, when that takes too long, or when we are to stop."""
        starting = self.supervisor.begin("start", self._let_in())
        told = self.supervisor.begin("stop", self._stopping.wait())
        patience_s = None if self.options.strict else READY_BEHIND_S
        await asyncio.wait({starting, told}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        elif not told.done() and self.services.node_state.engine is None:
            self.health.note("start", STARTING)

    async def _let_in(self) -> None:
        try:
            await self.front.start_behind(self._bring_up())
        finally:
            self.health.note("start", "")

    def _announce(self) -> None:
        engine, front = self.services.node_state.engine, self.front
        self.log.info(
            f"cri-resmgr {VERSION}",
            runs_as=front.name,
            mode=self.mode,
            serving=front.status()["sockets"],
            runtime=self.services.runtime.path,
            cpus=len(engine.host.usable) if engine else 0,
            containers=engine.container_count if engine else 0,
        )

    async def _fail(self, sentences: str) -> None:
        log = logs.set_up("info", "console")
        for sentence in sentences.splitlines():
            log.error(sentence)
        notify(f"STATUS={sentences.splitlines()[0]}")
        if self._front is not None:
            await self._stop()

    def _configure(self) -> None:
        """:raises BadConfig: strict, and there is no valid configuration."""
        self._decide_first_mode()
        files = self.options.files
        loaded = settings.load(files, strict=True) if self.options.strict else settings.load_or_last(files)
        #: Whether placing waits for a configuration that can be read.
        self._loaded, self._unconfigured = loaded, loaded.is_default
        self.cluster = ClusterLayer(self)
        self.cluster.loaded(loaded)
        self.log = logs.set_up(loaded.config["log.level"], loaded.config["log.format"], self._repeats)
        metrics = Metrics(VERSION)
        if isinstance(sys.stderr, LogLines):
            sys.stderr.on_dropped = metrics.log_lines_dropped.inc
        self.health = Health(metrics, self.log, lambda: self.mode)
        self.metrics_http = MetricsEndpoint(
            metrics.pieces, partial(self.health.note, "metrics connections"), self.supervisor, self._is_busy
        )
        self.supervisor.told = self.health.supervised
        runtime_problem = ""
        try:
            runtime = RuntimeClient(discover(loaded.config["relay.runtime_endpoint"], self.options.runtimes))
        except NoRuntime as error:
            runtime, runtime_problem = RuntimeClient(self.options.runtimes[0], is_guess=True), str(error)
        self.services = make_parts(loaded.config, self.log, metrics, self.health, runtime, self.supervisor)
        self.services.reload = self.reload
        self.assembly = Assembly(self.services, read_boot_id(self.options.boot_id_file))
        self.rounds = Maintenance(self.services, self.assembly, self._bring_up, self._try_again)
        self.history = HistoryKeeper(
            Path(loaded.config["state.directory"]),
            metrics.history_dropped.inc,
            lambda why: self.health.warn("history", [why] if why else []),
            read_boot_id(self.options.boot_id_file),
            self.supervisor,
        )
        self.services.node_state.on_records = self._decided
        self.services.node_state.on_happening = self.history.tell
        self.isolation = IsolationHost(
            self.services,
            read_boot_id(self.options.boot_id_file),
            lambda cpus: self.affinity.ask_apart(cpus),
            self.options.resource_control,
        )
        self.claims = ClaimsHost(
            self.services, self.options.files.root, read_boot_id(self.options.boot_id_file)
        )
        self.monitoring = MonitoringHost(self.services, self.isolation.group_of, lambda: self.mode)
        self._configure_affinity()
        self.services.node_state.memory_bytes = read_memory_bytes(self.options.meminfo_file)
        self.services.node_state.on_doubt = self.rounds.look_soon
        self.services.node_state.on_pod = self.rounds.note_pod
        self.services.node_state.on_fence = self.assembly.follow_kubelet
        self._apply_settings()
        self.health.note("config", loaded.problem)
        self.health.warn("config", loaded.warnings)
        self.health.warn("cluster policy", filter(None, [loaded.cluster.problem]))
        self.health.warn("first mode", filter(None, [self._first.problem]))
        self.health.note("runtime", runtime_problem)

    def _decide_first_mode(self) -> None:
        options = self.options
        if options.first_mode:
            self._first = first_mode.decide(options.files, options.first_mode)
            self.options = replace(options, files=replace(options.files, first_mode=self._first.mode))

    def _configure_affinity(self) -> None:
        services, config = self.services, self.services.config
        self.observer = AffinityClient(
            Path(config["affinity.socket"]), Path(config["state.directory"]), services.log
        )
        self.observer.later = services.store.later
        mover = Mover(services, Path(config["topology.cgroup_root"]))
        meter = EffectMeter(services, Path(config["topology.cgroup_root"]))
        self.affinity = AffinityController(services, self.observer, PlannerWorker(), mover, meter)
        self.sizer = DemandSizer(services, Path(config["topology.cgroup_root"]))
        self.orders = StandingOrders(services, mover)
        self.observer.on_change = self.affinity.follow
        self.assembly.on_engage = self._engage
        self.assembly.on_mode = self._mode_changed
        self.assembly.on_meta = lambda meta: {**self.orders.recall(meta), **self.claims.recall(meta)}
        self.assembly.kept = lambda: {**self.orders.kept(), **self.claims.kept()}

    def _decided(self, records: list[DecisionRecord], grants: Mapping[str, ContainerRecord]) -> None:
        self.history.add(records, grants)
        self.claims.note(records)

    def _mode_changed(self) -> None:
        self.sizer.wake()
        self.isolation.mode_changed()
        self.monitoring.mode_changed()

    def _engage(self, engine: Engine) -> None:
        self.affinity.follow(engine)
        self.orders.engaged(engine)
        self.claims.engaged(engine)
        # What the daemon before had not entered by its end.
        self.history.add(engine.history, engine.grants)

    async def _serve(self) -> None:
        """Open the sockets; what connects waits for ``FrontEnd.start_behind``.

        :raises OSError: what must be had cannot be, or the node has an owner already.
        """
        front = self.options.front_end(self.services)
        self.ownership = NodeLock(self.services.config, front.name)
        try:
            await front.open()
        except OSError as error:
            if front.must_serve and not self.options.strict:
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise SocketTaken(f"{where}{error.strerror or error}") from None
        self._front = front
        if not self._own() and not front.must_serve:
            raise SocketTaken(self.health.reasons["owner"])
        self.commands = Commands(self)
        await self._serve_control()
        await self._serve_view()
        await self._serve_metrics()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGUSR1, self._toggle_debug)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.supervisor.begin("reload", self.reload()))

    def _own(self) -> bool:
        """Be the one that places containers here, or say which process is."""
        self.health.note("owner", self.ownership.take())
        self.health.warn("owner", filter(None, [self.ownership.problem]))
        return "owner" not in self.health.reasons

    async def _serve_control(self) -> None:
        path, commands = Path(self.services.config["control.socket"]), self.commands.table()
        note = partial(self.health.note, "control connections")
        control = ControlServer(
            path, commands, self.log, "control.socket", note, self.supervisor, self._is_busy, CALLS
        )
        try:
            await control.start()
        except OSError as error:
            self.health.note("control", f"the command line cannot talk to this daemon: {error}")
        else:
            self.control = control
            self.health.note("control", "")

    async def _serve_view(self) -> None:
        """Have questions answered on a socket of their own. Nothing else needs it: a failure is a warning."""
        path = view_socket(self.services.config)
        if path is None:
            return
        commands, key = self.commands.view_table(), "control.view_socket"
        note = partial(self.health.note, "view connections")
        view = ControlServer(path, commands, self.log, key, note, self.supervisor, self._is_busy)
        try:
            await view.start()
        except OSError as error:
            self.health.warn("view", [f"nothing answers on control.view_socket: {error}"])
        else:
            self.view = view
            problem = share_with(path, self.services.config["control.view_group"])
            # The plugin's unit has no right to do it: as long as the option is not set, that is no fault.
            is_asked = self.services.config.origins["control.view_group"] != "default"
            self.health.warn("view", [f"control.view_group: {problem}"] if problem and is_asked else [])

    def _is_busy(self) -> bool:
        """Whether calls pass, which answers to others would hold up."""
        return self._front is not None and self._front.is_busy

    async def _serve_metrics(self) -> None:
        self.health.note("metrics", await self.metrics_http.follow(self.services.config["metrics.listen"]))

    def _signalled(self) -> None:
        if self._stopping.is_set():
            os._exit(1)  # asked twice
        self._stopping.set()

    def _toggle_debug(self) -> None:
        """Intel's daemon did that on SIGUSR1; a signal without a handler would end us."""
        self._debugging = not self._debugging
        config = self.services.config
        logs.set_up("debug" if self._debugging else config["log.level"], config["log.format"], self._repeats)
        self.log.info("debugging on" if self._debugging else "debugging off")

    async def _stop(self) -> None:
        services = self.services
        constants = services.config.constants
        drain_s, stops_s = constants.relay_drain_s, constants.relay_drain_stops_s
        notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={longest_stop_us(drain_s)}")
        extending = asyncio.ensure_future(_go_on_stopping(drain_s, stops_s))
        await self.front.close(drain_s, stops_s)
        extending.cancel()
        for server in (self.control, self.view):
            if server is not None:
                await server.stop()
        await self.metrics_http.follow("")
        await self.supervisor.end()
        await self.affinity.close()
        self.sizer.close()
        await services.node_state.updates.close()
        if (
            services.node_state.engine is not None
        ):  # else there is nothing to keep, or a thread is still reading it
            services.node_state.save()
            services.node_state.save_derived()
            await services.store.close()
            self.assembly.end()
        await self.history.close()
        services.store.let_go()
        await services.runtime.close()
        self.ownership.give_up()

    def _start_tasks(self) -> None:
        services, rounds, front, keep = self.services, self.rounds, self.front, self.supervisor.keep
        keep("runtime", lambda: rounds.follow_runtime(front.runtime_returned))
        keep(front.name, front.run, may_end=True)
        keep("comparison", rounds.reconcile)
        keep("events", rounds.read_events)
        keep("observer", self.observer.run)
        keep("affinity", self.affinity.run)
        keep("demand", self.sizer.run)
        keep("orders", self.orders.run)
        keep("isolation", self.isolation.run)
        keep("monitoring", self.monitoring.run)
        self.watch = TopologyWatch(
            services.machine.signature,
            lambda: self.supervisor.begin("machine", self.assembly.follow_machine()),
            services.config.constants.topology_interval_s,
        )
        keep("watch", self.watch.run)
        keep("log", self._tell_repeats)
        if services.runtime.is_guess:
            search = partial(rounds.find_runtime, self.options.runtimes, self._found_runtime)
            keep("search", search, may_end=True)
        period_s = watchdog_period_s()
        if period_s is not None:
            keep("watchdog", lambda: rounds.watchdog(period_s))

    async def _tell_repeats(self) -> None:
        while True:
            await asyncio.sleep(logs.INTERVAL_S)
            self._repeats.tell(self.log)

    def _found_runtime(self, path: str) -> None:
        """There is a runtime now. Elsewhere than it was guessed to be, it takes a new start."""
        runtime = self.services.runtime
        if path == runtime.path:
            runtime.is_guess = False
            self.supervisor.begin("keep", self._keep())
        else:
            self.log.warning("a runtime has appeared; ending, to be started again with it", path=path)
            self._exit_code = 1
            self._stopping.set()

    # ------------------------------------------------------------------ configuration

    async def _bring_up(self) -> bool:
        """Get the engine to work, with a configuration if there was none. False: not yet."""
        if not self._own():
            return False
        if self._unconfigured or self._loaded.cluster.is_unread or self._first.is_unread:
            try:
                if self._first.is_unread:
                    await asyncio.to_thread(self._decide_first_mode)
                loaded = await asyncio.to_thread(settings.load, self.options.files)
                if self._unconfigured and not await self._is_whole(loaded):
                    return False
            except BadConfig as error:
                self.health.note("config", settings.default_problem(error))
                return False
            await self.take_over(loaded)
        is_up = await self.assembly.activate()
        await self._keep()
        return is_up

    async def _is_whole(self, loaded: settings.ConfigInForce) -> bool:
        """Whether the files stay as they were read: an editor may be at them, and the first half of a configuration, or
        none of it, can be valid.

        :raises BadConfig: as ``settings.load``.
        """
        await asyncio.sleep(WRITTEN_S)
        again = await asyncio.to_thread(settings.load, self.options.files)
        return again.sources == loaded.sources

    async def _keep(self) -> None:
        """Remember the configuration, if it is one that has brought the engine up."""
        services, store = self.services, self.services.store
        if services.node_state.engine is None or "config" in self.health.reasons:
            return
        loaded, folder = self._loaded, Path(services.config["state.directory"])
        runtime = "" if services.runtime.is_guess else services.runtime.path
        problem: Optional[str] = f"{folder}: the configuration is not kept: the disk does not answer"
        if not store.is_late:
            with contextlib.suppress(asyncio.TimeoutError):
                keeping = store.run(lambda: self._kept(loaded, folder, runtime))
                problem = await wait_within(store.wait_s, keeping)
        self.health.note("last config", problem or "")

    def _kept(self, loaded: settings.ConfigInForce, folder: Path, runtime: str) -> Optional[str]:
        # The mode first: a configuration that is kept without it is that of a version that enforced.
        if self._first.problem and not self._first.is_unread:
            self._first = FirstMode(self._first.mode, first_mode.keep(folder, self._first.mode))
            if self._first.problem:
                return self._first.problem
        return settings.keep(loaded, folder, runtime)

    async def _try_again(self) -> None:
        """Have what could not be had before."""
        reasons = self.health.reasons
        if "last config" in reasons:
            await self._keep()
        await self.claims.try_again()
        if "control" in reasons:
            await self._serve_control()
        if self.view is None:
            await self._serve_view()
        if "metrics" in reasons and not self.reloading.locked():
            await self._serve_metrics()

    async def reload(self) -> None:
        """SIGHUP: read the files again; an invalid configuration leaves the running one in force."""
        async with self.reloading:
            # systemd's Type=notify-reload wants to know when it began.
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            notify(f"RELOADING=1\nMONOTONIC_USEC={now_us}")
            running = self._loaded.cluster
            try:
                loaded = await asyncio.to_thread(settings.load, self.options.files, running=running)
            except BadConfig as error:
                for sentence in error.errors:
                    self.log.error(sentence)
                self.health.note("config", settings.reload_problem(error, self._unconfigured))
            else:
                await self.take_over(loaded)
            finally:  # whatever happens: systemd waits for it
                self.health.tell(again=True)

    async def take_over(self, loaded: settings.ConfigInForce) -> None:
        """Make a configuration the running one, as far as that is possible without a restart."""
        services, old = self.services, self.services.config
        changed = old.differences(loaded.config)
        restart = old.restart_needed(loaded.config)
        # Endpoints and directories stay what they are until the next start.
        services.config = old.taking_over(loaded.config)
        self._loaded, self._unconfigured = loaded, False
        self.cluster.loaded(loaded)
        self.health.warn("config", loaded.warnings)
        self.health.warn("cluster policy", filter(None, [loaded.cluster.problem]))
        self.health.note("config", loaded.problem)
        self.health.note("restart", f"a restart is needed for {', '.join(restart)}" if restart else "")
        self._apply_settings()
        if "relay.mode" in changed:
            self.assembly.configured_mode()
        if "metrics.listen" in changed:
            await self._serve_metrics()
        if services.node_state.engine is not None:
            await self.assembly.follow_config()
        await self._keep()
        self.affinity.reconfigured()
        self.sizer.reconfigured()
        self.isolation.reconfigured()
        self.monitoring.reconfigured()
        self.claims.told()
        if self._front is not None:
            self.front.reconfigured()
        await services.store.settled()  # a mode that was given by command does not come back
        self.log.info("configuration loaded", changed=list(changed))
        services.look.set()

    def _apply_settings(self) -> None:
        services, config = self.services, self.services.config
        logs.set_up(config["log.level"], config["log.format"], self._repeats)
        services.node_state.shrink_wait_s = config.constants.placement_shrink_wait_s
        services.store.wait_s = config.constants.state_wait_s
        self.history.entries, self.history.days = config["history.entries"], config.constants.history_days
        services.node_state.fail_closed = tuple(config["placement.fail_closed_namespaces"])
        services.machine.source = Path(config["topology.source"])
        services.machine.kubelet = Path(config["kubelet.directory"])

    @property
    def mode(self) -> str:
        """The mode in force."""
        return self.assembly.mode


async def _go_on_stopping(drain_s: float, stops_s: float) -> None:
    """Ask systemd for more time, each second, while containers' stops may be waited for.

    Little at a time: a daemon that hangs meanwhile is killed as soon as any other that is told to stop.
    """
    for _ in range(math.ceil(stops_s)):
        await asyncio.sleep(1)
        notify(f"EXTEND_TIMEOUT_USEC={longest_stop_us(drain_s)}")


def main(options: RunOptions) -> int:
    """Run a daemon in a new event loop."""

    allow_descriptors()

    async def run() -> int:  # what a daemon is made of belongs to a loop
        return await Daemon(options, supervisor).run()

    stderr = sys.stderr
    supervisor = Supervisor()
    lines = LogLines(stderr, supervisor=supervisor)
    sys.stderr = cast(TextIO, lines)
    try:
        return event_loop.run(run, lines.end)
    finally:
        lines.end()
        sys.stderr = stderr
