"""The checks of a run that need the package's own modules: from the start of the daemon to its purge."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Callable

from tests.vm.guest import installation
from tests.vm.guest.node import UNTIL_TIMEOUT_S, Node, connect, start_runtime, until_served
from tests.vm.guest.table import Check
from tests.vm.machine import SHAPES

VerdictOf = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[bool]]


async def check_all(job: Mapping[str, Any], folder: Path, verdict_of: VerdictOf) -> bool:
    """Make the checks of the job's run that it names; returns whether all passed.

    The run is one of ``RUNS`` of this folder's table, or of the module's that the job names; ``patience_s``: of calls.
    """
    planned = importlib.import_module(job.get("table", "tests.vm.guest.table")).RUNS[job["run"]]
    async with connect(planned.api) as kubelet:
        kubelet.call_timeout_s = job.get("patience_s", kubelet.call_timeout_s)
        node = Node(SHAPES[planned.shape], planned.driver, planned.api, kubelet, folder)

        async def runtime() -> None:
            await asyncio.to_thread(start_runtime, node)

        async def service() -> None:
            await the_service_starts_and_serves(node, job.get("config", ""), job.get("constants", {}))

        if not await verdict_of("the_runtime_starts", runtime):
            return False
        if not await verdict_of("the_service_starts_and_serves", service):
            return False
        passed = [
            await verdict_of(check.__name__, _on(node, check))
            for check in planned.checks
            if check.__name__ in job["checks"]
        ]
        return all(passed)


async def the_service_starts_and_serves(node: Node, config: str, constants: dict[str, float]) -> None:
    """As an operator starts it; kubelet's first call is answered by the runtime.

    ``config``, ``constants``: YAML, and constants that differ, besides the guest's.
    """
    installation.CONFIG.write_text(installation.SLOW_CONFIG + config)
    installation.SLOW_UNIT.parent.mkdir(parents=True, exist_ok=True)
    installation.SLOW_UNIT.write_text(installation.SLOW_LIMITS)
    installation.set_constants(**constants)
    installation.run("systemctl", "start", installation.SERVICE)
    shown = installation.unit(installation.SERVICE)
    assert (shown["ActiveState"], shown["SubState"]) == ("active", "running"), shown
    print(shown["StatusText"])
    reply = await until_served(node.kubelet, max(UNTIL_TIMEOUT_S, node.kubelet.call_timeout_s))
    print(f"{reply.runtime_name} {reply.runtime_version}, CRI {reply.runtime_api_version}")


def _on(node: Node, check: Check) -> Callable[[], Awaitable[None]]:
    async def made() -> None:
        try:
            await check(node)
        finally:
            # What a check leaves would be in the way of the next.
            if installation.RELAY.exists():
                await node.remove()

    return made
