"""The agent's part "dra": where the daemon gives CPUs to claims, kubelet's plugin, the node's slices, and their recovery.

What it needs is imported when it begins: an agent of a node without claims has no gRPC in its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from cluster.agent.io.daemon import DaemonAway, DaemonClient
from cluster.agent.io.log import TroubleLog, log
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cri_api.control import ControlError
from cri_api.supervisor import Supervisor

KUBELET = Path("/var/lib/kubelet")
#: Where nothing is given to claims the daemon is asked this many times as rarely.
CALM = 6
#: Seconds until sockets that could not be made are tried again.
AGAIN_S = 30.0
#: The names of the supervised parts.
PLUGIN, SLICES = "dra plugin", "dra slices"


class Driver:
    """``run`` never ends by itself. With the process its sockets go, and its slices stay for the next one."""

    def __init__(
        self,
        daemon: DaemonClient,
        client: Client,
        node: str,
        kubelet_dir: Path,
        clock: Clock,
        poll_s: float = 5.0,
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        self._daemon, self._client, self._node, self._kubelet_dir = daemon, client, node, kubelet_dir
        self._clock, self._poll_s = clock, poll_s
        self._supervisor = supervisor or Supervisor()
        self._parts: Optional[_Parts] = None
        self._is_first = True
        self._daemon_said = TroubleLog("claims of CPUs", "the daemon answers", level="info")
        self._state = ""

    async def run(self) -> None:
        """Look at the daemon, and be what it says, until cancelled."""
        try:
            while True:
                await self.round()
                calm = CALM if self._parts is None else 1
                await self._clock.sleep(calm * self._poll_s * (0.9 + 0.2 * self._clock.random01()))
        finally:
            if self._parts is not None:
                await self._parts.end()
                self._parts = None

    async def round(self) -> None:
        """One look at the daemon. While it is away, or degraded, everything stays as it is."""
        try:
            document = await self._daemon.ask("claim-devices")
            await self._be(document)
            self._daemon_said.well()
        except (DaemonAway, ControlError) as error:
            self._daemon_said.trouble(str(error))

    async def _be(self, document: Mapping[str, Any]) -> None:
        driver, is_on = str(document.get("driver") or ""), bool(document.get("enabled"))
        self._tell(f"they are given as {driver}" if is_on else f"none: {document.get('reason', '')}")
        if self._parts is None and driver and (is_on or self._was_on(driver)):
            self._parts = self.begin(driver)
        self._is_first = False
        if self._parts is None:
            return
        # The daemon may have been given another name: the old one's slices and claims end first.
        is_on = is_on and driver == self._parts.driver
        if await self._parts.round(document if is_on else {}):
            await self._parts.end()
            self._parts = None
            with contextlib.suppress(OSError):
                self._folder(driver).rmdir()

    def _folder(self, driver: str) -> Path:
        return self._kubelet_dir / "plugins" / driver

    def _was_on(self, driver: str) -> bool:
        """Whether an earlier process was the driver: its slices, and claims that are still prepared, are to end."""
        return self._is_first and self._folder(driver).exists()

    def _tell(self, state: str) -> None:
        if state != self._state:
            log("info", "claims of CPUs", state=state)
        self._state = state

    def begin(self, driver: str) -> _Parts:
        """What runs for a driver's name."""
        from cluster.dra.io.plugin import Plugin
        from cluster.dra.io.publisher import Publisher
        from cluster.dra.io.recoverer import Recoverer

        plugin = Plugin(self._daemon, self._client, self._node, driver, self._kubelet_dir)
        publisher = Publisher(self._client, self._node, driver, self._clock)
        recoverer = Recoverer(
            self._daemon, self._client, self._node, driver, self._kubelet_dir, self._clock, plugin.preparing
        )
        said = TroubleLog("kubelet's plugin folder", "the plugin is served")
        parts = _Parts(driver, plugin, publisher, recoverer, said)

        async def serve() -> None:
            while True:
                try:
                    await plugin.run()
                except OSError as error:  # no kubelet yet, or another driver of this name
                    parts.trouble = str(error)
                    said.trouble(parts.trouble)
                await self._clock.sleep(AGAIN_S)

        parts.tasks = [self._supervisor.keep(PLUGIN, serve), self._supervisor.keep(SLICES, publisher.run)]
        return parts


@dataclass
class _Parts:
    """What runs for one driver's name."""

    driver: str
    plugin: Any
    publisher: Any
    recoverer: Any
    said: TroubleLog
    #: Why the plugin is not served, "" = it is, or will be at once.
    trouble: str = ""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def round(self, document: Mapping[str, Any]) -> bool:
        """Whether nothing is left to do: it is off ({}), no slice is there, and no claim is prepared.

        While another process serves the driver, its slices and its claims are not ours.
        """
        if not self.plugin.is_served:
            return bool(self.trouble) and not document
        self.trouble = ""
        self.said.well()
        self.publisher.want(document)
        has_claims = await self.recoverer.round()
        return not document and not has_claims and self.publisher.is_settled

    async def end(self) -> None:
        """End its tasks, which leave no socket."""
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
