"""The sources of plugins: launched ones, launched again when they end, and ones that connect by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.supervisor import Supervisor
from cri_proxy.nri.dispatch import MOST_PAUSE_S, Preregistered, pause_s
from cri_proxy.nri.io.host.launch import ChildLauncher, LaunchedPlugin, Launcher, UnitLauncher, discover
from cri_proxy.nri.io.host.peer import LAUNCHED, ConnectedPlugins, PluginIdentity
from cri_proxy.nri.io.host.registration import PluginListener, Registrar

#: How long a plugin's last words are waited for after its end.
LAST_WORDS_S = 1.0
#: How often the socket for plugins that connect is tried to be had, seconds.
LISTEN_AGAIN_S = 10.0
#: The most of a line, and of lines in so many seconds.
MOST_CHARACTERS = 500
MOST_LINES, PERIOD_S = 20, 10.0
_READ_BYTES = 1 << 14


def launcher_of(
    wanted: str,
    environment: Mapping[str, str],
    systemd: Path = Path("/run/systemd/system"),
    supervisor: Optional[Supervisor] = None,
) -> Launcher:
    """How plugins are launched: "unit", "child", or as we run ourselves."""
    is_unit = "INVOCATION_ID" in environment and systemd.exists()
    return (
        UnitLauncher(supervisor=supervisor)
        if wanted == "unit" or (wanted == "auto" and is_unit)
        else ChildLauncher()
    )


class PluginSupervisor:
    """Of one host."""

    def __init__(
        self,
        connected_plugins: ConnectedPlugins,
        registrar: Registrar,
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._connected_plugins = connected_plugins
        self._registrar = registrar
        self._log = connected_plugins.log
        self._launcher = launcher_of(
            connected_plugins.settings.launcher, os.environ, supervisor=self._supervisor
        )
        self._kept: list[_Kept] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: Optional[PluginListener] = None
        self._passed_over: list[str] = []
        self._socket_problem = ""

    async def start(self) -> None:
        """Return once every launched plugin is connected or has failed for the first time, and others can come."""
        settings = self._connected_plugins.settings
        found, passed_over = await asyncio.to_thread(discover, settings.plugin_path, settings.config_path)
        for passed in passed_over:
            self._note(f"{passed.path} is not launched: {passed.reason}")
        self._kept = [_Kept(plugin, self._registrar, self._launcher, self._log) for plugin in found]
        keep = self._supervisor.keep
        self._tasks = [keep(f"NRI plugin {kept.title}", kept.run, may_end=True) for kept in self._kept]
        await asyncio.gather(*(kept.settled.wait() for kept in self._kept))
        if settings.socket and not await self._listen(settings.socket):
            self._tasks.append(keep("NRI socket", lambda: self._listen_later(settings.socket), may_end=True))

    async def _listen(self, path: str) -> bool:
        """Let plugins connect; whether they can."""
        listener = PluginListener(Path(path), self._registrar, self._log)
        try:
            await listener.open()
        except OSError as error:
            self._note_socket(f"no NRI plugin can connect: {error}")
            return False
        self._listener = listener
        self._note_socket("")
        return True

    async def _listen_later(self, path: str) -> None:
        while not await self._listen(path):
            await asyncio.sleep(LISTEN_AGAIN_S)

    def _note_socket(self, problem: str) -> None:
        if problem != self._socket_problem:
            self._socket_problem = problem
            if problem:
                self._log.warning(problem)

    def stop_listening(self) -> None:
        """Accept no more plugins; a launched one that ends is not launched again."""
        if self._listener is not None:
            self._listener.stop()
        for kept in self._kept:
            kept.is_ending = True

    async def close(self) -> None:
        """End launched plugins, close connected ones."""
        self.stop_listening()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._launcher.close()
        if self._listener is not None:
            await self._listener.close()

    def absent(self) -> list[dict[str, Any]]:
        """The launched plugins that are not connected."""
        return [kept.document() for kept in self._kept if not kept.is_connected]

    @property
    def problems(self) -> list[str]:
        """Sentences about plugins that stay out."""
        return [*self._passed_over, *filter(None, [self._socket_problem])]

    def _note(self, problem: str) -> None:
        self._passed_over.append(problem)
        self._log.warning(problem)


class _Kept:
    """One launched plugin: it is launched again when it ends."""

    def __init__(self, plugin: Preregistered, registrar: Registrar, launcher: Launcher, log: Any) -> None:
        self.is_connected = False
        self.is_ending = False
        #: Set once it is connected, or has failed, for the first time.
        self.settled = asyncio.Event()
        self._plugin = plugin
        self._registrar = registrar
        self._launcher = launcher
        self._log = log
        self.title = plugin.title
        self._launches = 0
        self._problem = ""
        self._last_words = ""

    async def run(self) -> None:
        """Until it is cancelled; the plugin has ended then."""
        failures = 0
        while True:
            started_s = time.monotonic()
            try:
                self._problem = await self._launch_once()
            except OSError as error:
                self._problem = str(error)
            except Exception as error:
                # A bug of ours costs this plugin, not the others.
                self._log.exception("launching an NRI plugin failed", plugin=self._plugin.title)
                self._problem = f"{type(error).__name__}: {error}"
            self.settled.set()
            has_lived = time.monotonic() - started_s > MOST_PAUSE_S
            failures = 1 if has_lived else failures + 1
            if self.is_ending:
                return
            wait_s = pause_s(failures)
            self._log.warning(
                "a launched NRI plugin has ended",
                plugin=self._plugin.title,
                reason=self._problem,
                last_words=self._last_words,
                again_in_s=wait_s,
            )
            await asyncio.sleep(wait_s)

    async def _launch_once(self) -> str:
        self._launches += 1
        self._last_words = ""
        running = await self._launcher.launch(self._plugin)
        listening = asyncio.ensure_future(self._listen(running))
        origin = PluginIdentity(self._plugin.index, self._plugin.name, LAUNCHED, running.pid)
        try:
            return await self._registrar.serve(running.streams, origin, self._plugin.config, self._admitted)
        finally:
            self.is_connected = False
            # Also when we are cancelled: nothing is left behind.
            ending = asyncio.ensure_future(self._end(running, listening))
            while not ending.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([ending])

    async def _listen(self, running: LaunchedPlugin) -> None:
        if running.said is not None:
            words = PluginStderr(running.said, self._plugin.title, self._log)
            try:
                await words.run()
            finally:
                self._last_words = words.last

    async def _end(self, running: LaunchedPlugin, listening: asyncio.Future[None]) -> None:
        await running.end()
        # A process that it leaves behind may hold its standard error.
        await asyncio.wait([listening], timeout=LAST_WORDS_S)
        listening.cancel()
        await asyncio.wait([listening])

    def _admitted(self) -> None:
        self.is_connected = True
        self.settled.set()

    def document(self) -> dict[str, Any]:
        """For ``nri status``, while it is not connected."""
        return {
            "name": self._plugin.name,
            "index": self._plugin.index,
            "origin": LAUNCHED,
            "state": "starting" if not self.settled.is_set() else "ended",
            "launches": self._launches,
            "last_error": "; ".join(filter(None, [self._problem, self._last_words])),
        }


class PluginStderr:
    """Standard error of one run of a launched plugin, as lines of our log, bounded in length and number.

    A plugin that cannot start has no other way to say why. Under systemd the journal has it, with its own bounds.
    ``run`` closes ``descriptor``; ``last`` is the last line.
    """

    def __init__(
        self, descriptor: int, plugin: str, log: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.last = ""
        self._descriptor = descriptor
        self._plugin = plugin
        self._log = log
        self._clock = clock
        self._until_s = 0.0
        self._left = 0
        self._dropped = 0

    async def run(self) -> None:
        """Read until its last writer is gone. Excess lines are read too: the plugin must not wait for us."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._descriptor, "rb", 0)
        )
        try:
            begun = b""
            while data := await reader.read(_READ_BYTES):
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    self._take(line)
                # Of a line without an end no more is held than is shown.
                begun = begun[: 4 * MOST_CHARACTERS]
            self._take(begun)
        finally:
            transport.close()
            self._tell_dropped()

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()[:MOST_CHARACTERS]
        if not text:
            return
        self.last = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
        now_s = self._clock()
        if now_s >= self._until_s:
            self._tell_dropped()
            self._left, self._until_s = MOST_LINES, now_s + PERIOD_S
        if self._left:
            self._left -= 1
            self._log.info("an NRI plugin says", plugin=self._plugin, line=self.last)
        else:
            self._dropped += 1

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._log.warning(
                "an NRI plugin says too much", plugin=self._plugin, lines_left_out=self._dropped
            )
            self._dropped = 0
