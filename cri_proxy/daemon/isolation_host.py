"""Isolation in the daemon: none of it is imported where every subject is off and nothing of ours is in the kernel."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from cri_api.waiting import wait_within
from cri_proxy.config.config import RECONCILED
from cri_proxy.engine.model import ContainerRecord
from cri_proxy.services.services import Services

if TYPE_CHECKING:
    from cri_proxy.isolation.io.protector import Protector
    from cri_proxy.isolation.io.reconciler import Isolation
    from cri_proxy.isolation.io.resctrl import ResourceControl
    from cri_proxy.isolation.io.turbo import QuotaTurbo

#: How often it is looked whether there are records yet, seconds.
UNKNOWN_S = 5.0
#: Where the reconciler has what was there before (``isolation.io.originals``).
ORIGINALS = "isolation.json"


class IsolationHost:
    """Has an ``Isolation`` where there is something to do. ``resource_control`` None: the resctrl of this machine."""

    def __init__(
        self,
        services: Services,
        boot_id: str,
        ask_apart: Callable[[frozenset[int]], bool],
        resource_control: Optional[Callable[[], ResourceControl]] = None,
    ) -> None:
        """``ask_apart``: has the planner move a batch container away from a domain, by its CPUs; False: it cannot now."""
        self.isolation: Optional[Isolation] = None
        self.protector: Optional[Protector] = None
        self.turbo: Optional[QuotaTurbo] = None
        self._services = services
        self._boot_id = boot_id
        self._resource_control = resource_control
        self._ask_apart = ask_apart
        self._changed = asyncio.Event()
        self._protects = asyncio.Event()
        self._raises = asyncio.Event()

    async def run(self) -> None:
        """For as long as the daemon runs."""
        turbo = self._services.supervisor.keep("turbo", self._raise_quotas)
        try:
            await self._keep()
        finally:
            turbo.cancel()

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            if await self._has_work():
                await self._isolate()
            # It has ended, as all is off, or there was nothing to do.
            await self._changed.wait()

    async def _has_work(self) -> bool:
        config = self._services.config
        if any(config[key] != "off" for key in RECONCILED):
            return True
        # It may wait for the disk.
        return await self._services.store.run((Path(config["state.directory"]) / ORIGINALS).exists)

    async def _isolate(self) -> None:
        # On other nodes this is not imported.
        from cri_proxy.isolation.io.all_subjects import all_subjects
        from cri_proxy.isolation.io.reconciler import Isolation
        from cri_proxy.isolation.io.resctrl import machine_resctrl
        from cri_proxy.isolation.io.scheduling import Scheduling, threads_of
        from cri_proxy.isolation.io.starts import Starts
        from cri_proxy.isolation.io.tasks import Tasks

        services, node_state = self._services, self._services.node_state
        resctrl = (self._resource_control or machine_resctrl)()
        subjects = all_subjects(services)
        tasks = Tasks(resctrl, services.cgroups, scheduling=threads_of(subjects))
        isolation = Isolation(services, resctrl, self._boot_id, tasks, subjects)
        starts = Starts(services, tasks, isolation.settled, isolation.group_of)
        scheduling = next((each for each in subjects if isinstance(each, Scheduling)), None)

        def follow(is_enforced: bool) -> None:
            node_state.on_start = starts.before if is_enforced else None
            node_state.on_create = scheduling.words_for if scheduling is not None and is_enforced else None

        isolation.on_enforced = follow
        if scheduling is not None:  # also of creates before the first round, which waits for what runs
            node_state.on_create = scheduling.words_for
        self.isolation, node_state.on_change = isolation, isolation.wake
        node_state.on_quota = isolation.before_quota
        protection = services.supervisor.keep("protection", lambda: self._protect(isolation))
        try:
            await isolation.run()
        finally:
            protection.cancel()
            self.isolation, node_state.on_change, node_state.on_start = None, _nothing, None
            node_state.on_quota = node_state.on_create = None
            isolation.close()
            await starts.close()

    async def _protect(self, isolation: Isolation) -> None:
        """Have a ``Protector`` where protection is not off."""
        services = self._services
        while True:
            self._protects.clear()
            if services.config["isolation.protection"] == "off":
                await self._protects.wait()
                continue
            from cri_proxy.isolation.io.protector import Protector

            root = Path(services.config["topology.cgroup_root"])
            self.protector = Protector(services, root, isolation, self._ask_apart)
            try:
                await self.protector.run()
            finally:
                protector, self.protector = self.protector, None
                await protector.close()

    async def _raise_quotas(self) -> None:
        """Have a ``QuotaTurbo`` where it is not off, or a daemon before this one has raised quotas."""
        services, node_state = self._services, self._services.node_state
        while True:
            self._raises.clear()
            engine = node_state.engine
            if services.config["isolation.turbo_most"] == "off" and not (
                engine is not None and engine.raised
            ):
                # What was raised before is known once there are records.
                pause_s = None if node_state.has_compared else UNKNOWN_S
                with contextlib.suppress(asyncio.TimeoutError):
                    await wait_within(pause_s, self._raises.wait())
                continue
            from cri_proxy.isolation.io.turbo import QuotaTurbo, machine_proc

            root = Path(services.config["topology.cgroup_root"])
            self.turbo = QuotaTurbo(services, root, machine_proc())
            try:
                await self.turbo.run()
            finally:
                turbo, self.turbo = self.turbo, None
                await turbo.close()

    def _raises_anew(self) -> None:
        self._raises.set()
        if self.turbo is not None:
            self.turbo.reconfigured()

    def reconfigured(self) -> None:
        """The configuration is another one."""
        self._raises_anew()
        self._changed.set()
        self._protects.set()
        if self.isolation is not None:
            self.isolation.reconfigured()
        if self.protector is not None:
            self.protector.reconfigured()

    def mode_changed(self) -> None:
        """The daemon's mode is another one."""
        self._raises_anew()
        self._changed.set()
        if self.isolation is not None:
            self.isolation.wake()

    async def release(self) -> None:
        """Have the kernel as it was before isolation, until the configuration is read again."""
        if self.isolation is not None:
            await self.isolation.release()

    def group_of(self, key: str) -> str:
        """The name of the group that a container is in; "" = the root's."""
        return "" if self.isolation is None else self.isolation.group_of(key)

    def status(self, files_of: Optional[str] = None) -> dict[str, Any]:
        """``Isolation.status``; without one only its subjects."""
        if self.isolation is not None:
            protection = {"mode": "off"} if self.protector is None else self.protector.status()
            status = self.isolation.status(files_of)
            return {**status, "protection": protection, "turbo": self._turbo_status()}
        config = self._services.config
        return {
            "subjects": {
                key.partition(".")[2]: {"configured": config[key], "mode": "off"} for key in RECONCILED
            },
            "turbo": self._turbo_status(),
        }

    def _turbo_status(self) -> dict[str, Any]:
        return {"mode": "off"} if self.turbo is None else self.turbo.status()

    def summary(self) -> Optional[dict[str, Any]]:
        """What reports on this node are told; None: all of it is off."""
        if self.isolation is None:
            return None
        from cri_proxy.isolation.report import isolation_summary

        return isolation_summary(self.status(files_of=""))

    def explained(self, grant: ContainerRecord) -> list[str]:
        """What is done about a container, a sentence each."""
        if self.isolation is None and self.turbo is None:
            return []
        from cri_proxy.isolation.report import treatment_lines

        return treatment_lines(self.status(files_of=grant.key), grant.container.path)


def _nothing() -> None:
    pass
