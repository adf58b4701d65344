"""Monitoring of caches in the daemon: none of it is imported where it is off and nothing of it is in the kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from cri_proxy.engine.engine import Engine
from cri_proxy.services.services import Services

if TYPE_CHECKING:
    from cri_proxy.isolation.io.monitor import CacheMonitor

OPTION = "isolation.monitoring"
#: The mark of monitoring groups in the state directory (``isolation.io.monitoring_groups``).
MARK = "monitoring.json"


class MonitoringHost:
    """Has a ``CacheMonitor`` where there is something to do.

    ``group_of``: the control group of a container, "" = the root's; ``mode``: the daemon's, in force.
    """

    def __init__(self, services: Services, group_of: Callable[[str], str], mode: Callable[[], str]) -> None:
        self.monitor: Optional[CacheMonitor] = None
        self._services, self._group_of, self._mode = services, group_of, mode
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """For as long as the daemon runs."""
        while True:
            self._changed.clear()
            if await self._has_work():
                await self._watch()
            if not self._services.config[OPTION]:
                await self._changed.wait()

    async def _has_work(self) -> bool:
        config = self._services.config
        if config[OPTION]:
            return True
        # It may wait for the disk.
        return await self._services.store.run((Path(config["state.directory"]) / MARK).exists)

    async def _watch(self) -> None:
        # On other nodes this is not imported.
        from cri_proxy.isolation.io.monitor import make_monitor

        self.monitor = monitor = make_monitor(self._services, self._group_of, self._mode)
        try:
            await monitor.run()
        finally:
            self.monitor = None
            monitor.close()

    def reconfigured(self) -> None:
        """The configuration is another one."""
        self._changed.set()
        if self.monitor is not None:
            self.monitor.reconfigured()

    def mode_changed(self) -> None:
        """The daemon's mode is another one."""
        if self.monitor is not None:
            self.monitor.wake()

    async def release(self) -> None:
        """Have no group of ours in the kernel, until the configuration is read again."""
        if self.monitor is not None:
            await self.monitor.release()

    def explained(self, engine: Engine, key: str) -> Optional[dict[str, Any]]:
        """As ``CacheMonitor.explained``."""
        return None if self.monitor is None else self.monitor.explained(engine, key)

    async def rows(self, engine: Engine) -> list[dict[str, Any]]:
        """As ``CacheMonitor.rows``; nothing is monitored: none."""
        return [] if self.monitor is None else await self.monitor.rows(engine)

    def status(self) -> dict[str, Any]:
        """As ``CacheMonitor.status``; where it is off that."""
        return {"is_on": False} if self.monitor is None else self.monitor.status()
