"""The front end without kubelet's and the runtime's help: follows what runs, and places it after it has started.

For nodes where neither kubelet may be given another socket nor the runtime a plugin. What runs when the daemon first
looks keeps what it has; what comes after is placed as if it were being created, with UpdateContainerResources. By
then it has allocated its first memory and counted its CPUs: late by design, which the status says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from typing import Any

from cri_api.waiting import wait_within
from cri_proxy.front_ends.late_placement import Arrivals
from cri_proxy.relay.status import RpcError
from cri_proxy.services.services import Services
from cri_proxy.unix_sockets import activated

#: How often the runtime's list is read where its events cannot be: a start is noticed within half a second.
POLL_S = 0.5
#: What an operator should know before anything else.
HOW = "standalone: containers are placed after they have started"
_SOCKETS_GIVEN = (
    "systemd hands over sockets, and in standalone mode nothing serves them: "
    "systemctl mask --now cri-resource-manager.socket"
)


class Standalone:
    """``Services.reconciler`` finds the containers; a start among the runtime's events has it look at once."""

    name = "standalone"
    must_serve = False
    #: No call waits for it.
    is_busy = False
    exits = "the runtime's events"

    def __init__(self, services: Services) -> None:
        self._services = services
        self._arrivals = Arrivals(services)
        self._hint = asyncio.Event()
        self._note_at = 0.0
        services.node_state.on_started = self._started

    # ------------------------------------------------------------------ as the daemon calls it

    async def open(self) -> None:
        given = activated(os.environ, os.getpid())
        for listener in given:
            listener.close()
        self._services.health.warn("standalone", [_SOCKETS_GIVEN] if given else [])
        self._services.health.doing = HOW

    async def start_behind(self, work: Coroutine[Any, Any, object]) -> None:
        self._services.log.info(HOW)
        await work

    async def run(self) -> None:
        """Look whenever a container has started, and every so often."""
        services, is_settled = self._services, False
        while True:
            # Where events tell, a look at each of them is enough, and one more: for what was not running yet in the
            # list, or had started before the stream was there.
            is_told = services.events.own_stream and is_settled
            poll_s = services.config.constants.reconcile_poll_s
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(poll_s if is_told else min(POLL_S, poll_s), self._hint.wait())
            is_settled = services.events.own_stream and not self._hint.is_set()
            self._hint.clear()
            problem = ""
            try:
                await self._look()
            except RpcError as error:
                services.log.debug("the runtime's list could not be had", error=error.details)
            except Exception as error:
                services.log.error("containers could not be looked for", exc_info=True)
                problem = f"looking for new containers fails: {type(error).__name__}: {error}"
            services.health.note("standalone", problem)

    def runtime_returned(self) -> None:
        """A full comparison is made by the daemon's rounds."""

    def reconfigured(self) -> None:
        """Nothing of it depends on the configuration."""

    def status(self) -> dict[str, Any]:
        told = self._services.events.own_stream
        found = "the runtime's events" if told else f"its list, read every {POLL_S * 1000:.0f} ms"
        return {"sockets": [], "how": f"{HOW}, found by {found}", "arrivals": self._arrivals.count}

    async def close(self, drain_s: float, stops_s: float) -> None:
        """No call waits for it."""
        self._arrivals.end()

    # ------------------------------------------------------------------ finding containers

    def _started(self, container_id: str) -> None:
        engine = self._services.node_state.engine
        if engine is None or container_id not in engine.grants:
            self._hint.set()

    async def _look(self) -> None:
        services, now_s = self._services, asyncio.get_running_loop().time()
        engine = services.node_state.active()
        if engine is None:
            self._arrivals.unasked()
            return
        if not services.runtime.is_connected:
            return
        await services.reconciler.run(with_cpusets=False)
        if now_s >= self._note_at:
            self._note_at = now_s + services.config.constants.reconcile_interval_s
            self._arrivals.note_look()
