"""The front end as a plugin of the runtime's own NRI: connects, is told of pods and containers, connects again.

It outlives each connection. A runtime that launches it gives it the first one; others, and all where a unit starts it,
are made at the runtime's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cri_api.supervisor import together
from cri_api.waiting import wait_within
from cri_proxy.config.config import Config, subjects_on
from cri_proxy.front_ends.late_placement import Arrivals
from cri_proxy.node.lock import FILE, NodeLock
from cri_proxy.nri.io.plugin import launched
from cri_proxy.nri.io.plugin.launched import SOCKET_VARIABLE, Taken
from cri_proxy.nri.io.plugin.placing import LATE_S, NriPlacing, NriSender
from cri_proxy.nri.io.plugin.session import (
    Hooks,
    HostFacts,
    NriSession,
    PluginName,
    Snapshot,
    follow_snapshot,
)
from cri_proxy.nri.subscription import MASK_CLASSIC
from cri_proxy.services.services import Services
from cri_proxy.text.sources import SettingsSource

#: How long to wait between attempts to connect: at first, and at most, seconds. A runtime restarts within a second.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
#: How long Configure may wait for the engine, or for a new configuration: half the time there is for it, seconds.
UP_S = 1.0
#: How often requests that never ended are looked for, seconds.
SWEEP_S = 10.0
#: How long the plugin before us may take to stop, seconds; the runtime is spoken to meanwhile (launched.py).
STOP_S, _LOOK_S = 3.0, 0.05


@dataclass
class ToldConfig:
    """The configuration that the runtime gives its plugin, as a source beside the files."""

    name: str
    text: str = ""

    def sources(self) -> list[SettingsSource]:
        return [SettingsSource(self.name, self.text)] if self.text.strip() else []


@dataclass(frozen=True)
class PluginOptions:
    """``descriptor``: of the connection from a runtime that launched us; None = none did.

    ``name``: the name it gave us; "" = none.
    """

    told: ToldConfig
    descriptor: Optional[int] = None
    name: str = ""


class NriPlugin:
    """A ``FrontEnd``."""

    name = "nri-plugin"
    must_serve = False
    exits = "the runtime's NRI events"
    #: An event's answer has its time; what asks on other sockets is not held up for it.
    is_busy = False

    def __init__(self, services: Services, options: PluginOptions) -> None:
        self._services = services
        self._options = options
        self._path = str(services.config["nri.plugin.socket"])
        name = options.name or services.config.constants.nri_plugin_name
        self._identity = PluginName(name, services.config["nri.plugin.index"])
        self._sender = NriSender(services.runtime, services.log)
        services.node_state.updates.deliver = self._sender.deliver
        self._placing = NriPlacing(services.node_state, self._sender)
        self._arrivals = Arrivals(services)
        self._placing.on_unasked = self._arrivals.unasked
        services.node_state.on_started = self._started
        self._session: Optional[NriSession] = None
        self._is_up = asyncio.Event()
        self._returned = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Hosts that have refused the larger subscription.
        self._small: set[tuple[str, str]] = set()
        self._connections = 0

    # ------------------------------------------------------------------ as a front end

    async def open(self) -> None:
        """Succeed the plugin before us; register on a given connection, if not yet done."""
        descriptor = self._options.descriptor
        if descriptor is None:
            return
        try:
            launched.begin_with(descriptor, self._identity.name, self._identity.index)
        except OSError as error:
            reason = f"descriptor {descriptor} is no socket: {error.strerror}"
            raise OSError(
                f"{SOCKET_VARIABLE}={descriptor}, the connection of a launched plugin: {reason}"
            ) from None
        await take_over(self._services.config, self._services.log)

    async def start_behind(self, work: Coroutine[Any, Any, object]) -> None:
        await work
        self._is_up.set()

    async def run(self) -> None:
        """Serve one connection after the other, until it is cancelled."""
        await together(self._connect(), self._sweep())

    async def _connect(self) -> None:
        wait_s = FIRST_WAIT_S
        taken = launched.take(self._has_starts())
        if taken is not None:
            self._lost(await self._serve(*await asyncio.open_unix_connection(sock=taken.connection), taken))
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
            except OSError as error:
                self._lost(f"{self._path}: {error.strerror or error}")
            else:
                self._lost(await self._serve(reader, writer))
                if self._is_told:
                    wait_s = FIRST_WAIT_S
            self._session = None
            self._returned.clear()
            try:
                await wait_within(wait_s, self._returned.wait())
                wait_s = FIRST_WAIT_S
            except asyncio.TimeoutError:
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def runtime_returned(self) -> None:
        """Its NRI is back with it, or is in a moment."""
        self._returned.set()

    def reconfigured(self) -> None:
        """Socket and name are read at the start only."""

    def status(self) -> dict[str, Any]:
        session = self._session
        host = session.host if session is not None else HostFacts()
        found = {
            "plugin": f"{self._identity.index}-{self._identity.name}",
            "socket": self._path,
            "launched_by_runtime": self._options.descriptor is not None,
            "connected": self._is_told,
            "connections": self._connections,
            "runtime": " ".join(filter(None, [host.runtime, host.version])),
            "nri_version": host.nri_version,
            "synchronize_ms": round(session.synchronize_s * 1000, 3) if session is not None else 0.0,
            "subscription": f"0x{session.mask:04x}" if session is not None else "",
            "events": session.events if session is not None else 0,
            "moves_by": "cri" if self._sender.caller is None else "nri",
        }
        serving = (
            "no socket: the runtime asks over its NRI"
            if found["connected"]
            else "no socket: its NRI is not there"
        )
        return {"sockets": [], "how": serving, "nri": found}

    async def close(self, drain_s: float, stops_s: float) -> None:
        """Events under way take milliseconds: nothing is drained."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._is_told:
            self._arrivals.end()
        taken = launched.take()
        if taken is not None:
            taken.connection.close()
        await self._placing.close()

    # ------------------------------------------------------------------ one connection

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, taken: Optional[Taken] = None
    ) -> str:
        hooks = Hooks(self._configured, self._synchronized, self._shut_down)
        session = NriSession(
            self._services.node_state, self._placing, hooks, self._is_small, self._has_starts
        )
        self._session = session
        try:
            return await session.run(reader, writer, self._identity, taken)
        except Exception as error:
            # A bug of ours: with the next connection it may go better.
            self._services.log.error("a connection to the runtime's NRI failed", exc_info=True)
            return f"{type(error).__name__}: {error}"
        finally:
            self._sender.caller = None
            if session.synchronized.is_set():
                self._services.events.add(-1)
            elif session.mask & ~MASK_CLASSIC:
                self._small.add((session.host.runtime, session.host.version))
            self._placing.lost()

    @property
    def _is_told(self) -> bool:
        """Whether the runtime tells what starts."""
        return self._session is not None and self._session.synchronized.is_set()

    def _started(self, container_id: str) -> None:
        """One that the engine does not know was created past it, or its answer was late: it is placed now."""
        engine = self._services.node_state.engine
        if engine is not None and container_id not in engine.grants:
            self._services.look.set()

    def _lost(self, reason: str) -> None:
        hint = "" if self._connections else f"; {self._hint()}"
        self._services.health.note("nri", f"not connected to the runtime's NRI: {reason}{hint}")

    def _hint(self) -> str:
        if self._options.descriptor is None:
            return "is NRI enabled in the runtime?"
        return "a launch that was missed is made up for where it lets plugins connect (disable_connections = false)"

    def _has_starts(self) -> bool:
        """Whether isolation is enforced: by the configuration, as its first round comes after the first connection."""
        return "enforce" in subjects_on(self._services.config).values()

    def _is_small(self, host: HostFacts) -> bool:
        return (host.runtime, host.version) in self._small

    async def _configured(self, host: HostFacts) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await wait_within(UP_S, self._is_up.wait())
        told = self._options.told
        if host.config != told.text:
            told.text = host.config
            await asyncio.wait([self._spawn(self._reload())], timeout=UP_S / 2)

    async def _reload(self) -> None:
        self._services.log.info("the runtime's configuration for this plugin has changed")
        await self._services.reload()

    def _synchronized(self, snapshot: Optional[Snapshot]) -> None:
        session, services = self._session, self._services
        assert session is not None
        if not session.synchronized.is_set():
            self._connections += 1
            services.events.add(1)
            services.health.note("nri", "")
        self._sender.caller = session.caller
        # Before any event: what runs was made.
        if snapshot is not None:
            self._placing.ended = snapshot.ended
            for container in snapshot.containers:
                self._placing.bind(container.id)
        found = (
            {} if snapshot is None else {"pods": len(snapshot.pods), "containers": len(snapshot.containers)}
        )
        host = session.host
        services.log.info(
            "connected to the runtime's NRI", runtime=host.runtime, version=host.version, **found
        )
        self._spawn(self._follow(snapshot))

    async def _follow(self, snapshot: Optional[Snapshot]) -> None:
        await self._is_up.wait()
        services = self._services
        # Records that are behind give way to what runs, and of that the runtime tells more, if it can be asked.
        is_next = services.node_state.books.are_behind and bool(services.runtime.api)
        try:
            if snapshot is not None and not is_next:
                await follow_snapshot(
                    services.node_state, snapshot, self._arrivals.welcome, self._arrivals.place_late
                )
        except Exception:
            self._services.log.error("what the runtime runs could not be gone through", exc_info=True)
        finally:
            if snapshot is not None and self._placing.ended is snapshot.ended:
                self._placing.ended = None
        self._services.look.set()

    def _shut_down(self) -> None:
        self._services.log.info("the runtime's NRI shuts down")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._placing.doubt(LATE_S)
            if self._is_told and self._services.node_state.active() is not None:
                self._arrivals.note_look()
            session = self._session
            # What a runtime has launched may have no way to connect again.
            if session is not None and session.lacks_starts and self._options.descriptor is None:
                session.end("it connects anew, to be told of starts")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._services.supervisor.begin("NRI session", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def take_over(config: Config, log: Any, proc: Path = Path("/proc")) -> None:
    """Have the plugin launched before us stop, if it owns the node: a new launch says that its runtime is gone.

    Any other owner of the node is asked nothing.
    """
    # Taken and given up again: the daemon takes it for itself in a moment.
    trial = NodeLock(config, "nri-plugin")
    if not trial.take():
        trial.give_up()
        return
    pid = launched_owner(Path(config["control.socket"]).with_name(FILE), proc)
    if not pid:
        return
    log.info("the plugin that was launched before is told to stop", pid=pid)
    os.kill(pid, signal.SIGTERM)
    deadline_s = asyncio.get_running_loop().time() + STOP_S
    while trial.take() and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(_LOOK_S)
    trial.give_up()


def launched_owner(lock: Path, proc: Path = Path("/proc")) -> int:
    """The process that holds the lock, if it is a plugin that a runtime has launched; else 0."""
    try:
        said = json.loads(lock.read_text())
        pid, is_plugin = int(said["pid"]), said["front_end"] == "nri-plugin"
        environment = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except (OSError, ValueError, LookupError, TypeError):
        return 0
    launched = any(entry.startswith(f"{SOCKET_VARIABLE}=".encode()) for entry in environment)
    return pid if is_plugin and launched and pid != os.getpid() else 0
