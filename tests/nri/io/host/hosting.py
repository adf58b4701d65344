"""A host of NRI plugins with a world that is a few lists."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Awaitable, Callable, Optional

import structlog

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.metrics import Metrics
from cri_proxy.nri.io.host.host import NriHost
from cri_proxy.nri.messages import Shown
from cri_proxy.nri.validate import DefaultRules, NriSettings
from tests.nri.io.host.plugins import HANG_S, Plugin, eventually, external

POD = Shown(nri.PodSandbox(id="p1", name="web", namespace="default", uid="u1"))
CONTAINER = Shown(nri.Container(id="c1", pod_sandbox_id="p1", name="app", args=["/app"], env=["A=1"]))
OTHER = Shown(nri.Container(id="c2", pod_sandbox_id="p1", name="other"))


class FakeWorld:
    """What plugins are told of; notes what they want."""

    def __init__(self) -> None:
        self.pods: list[Shown[nri.PodSandbox]] = [POD]
        self.containers: list[Shown[nri.Container]] = [OTHER]
        self.applied: list[tuple[str, list[nri.ContainerUpdate]]] = []
        self.failing: set[str] = set()
        self.pictures = 0
        self.problem: Optional[Exception] = None
        self.before_snapshot: Optional[Callable[[], Awaitable[None]]] = None

    async def snapshot(self) -> tuple[list[Shown[nri.PodSandbox]], list[Shown[nri.Container]]]:
        if self.before_snapshot is not None:
            await self.before_snapshot()
        if self.problem is not None:
            raise self.problem
        self.pictures += 1
        return list(self.pods), list(self.containers)

    async def apply(self, plugin: str, updates: list[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        self.applied.append((plugin, updates))
        return [update for update in updates if update.container_id in self.failing]


class Hosting:
    """A host that runs, and where plugins find it."""

    def __init__(self, host: NriHost, pod_view: FakeWorld, folder: Path, metrics: Metrics, log: Any) -> None:
        self.host = host
        self.pod_view = pod_view
        self.folder = folder
        self.socket = folder / "nri" / "nri.sock"
        self.metrics = metrics
        self.log = log

    async def has(self, *titles: str) -> None:
        """Return once exactly these plugins are connected, in this order."""
        await eventually(
            lambda: self.titles() == list(titles), lambda: f"{titles}, but {self.host.plugins()}"
        )

    def external(
        self, title: str, script: Optional[dict[str, Any]] = None, wait: bool = True
    ) -> contextlib.AbstractAsyncContextManager[Plugin]:
        """A plugin ``NN-name`` that connects to it; ``wait``: until it has been synchronized."""
        return external(self.folder, self.socket, title, script, wait)

    def set(self, **settings: Any) -> None:
        """Change settings while it runs."""
        self.host.settings = replace(self.host.settings, **settings)

    def titles(self) -> list[str]:
        """The plugins that are connected."""
        return [f"{p['index']}-{p['name']}" for p in self.host.plugins() if p["state"] == "connected"]

    def warnings(self) -> list[str]:
        """What the host has warned of."""
        return [
            " ".join(str(value) for key, value in entry.items() if key != "log_level")
            for entry in self.log.entries
            if entry["log_level"] in ("warning", "error")
        ]


@contextlib.asynccontextmanager
async def hosting(
    folder: Path, pod_view: Optional[FakeWorld] = None, rules: Optional[DefaultRules] = None, **settings: Any
) -> AsyncIterator[Hosting]:
    """A host with a socket below ``folder``; launched plugins are in ``folder``/plugins.

    Plugins have time, however busy the machine is: those that are to be too slow are given less by ``Hosting.set``.
    """
    pod_view = pod_view or FakeWorld()
    capture = structlog.testing.LogCapture()
    # Whatever level another test has set for all loggers.
    log = structlog.wrap_logger(
        structlog.PrintLogger(), processors=[capture], wrapper_class=structlog.BoundLogger
    )
    metrics = Metrics("test")
    chosen = {
        "socket": str(folder / "nri" / "nri.sock"),
        "plugin_path": str(folder / "plugins"),
        "config_path": str(folder / "conf.d"),
        "rules": rules or DefaultRules(),
        "registration_timeout_s": HANG_S,
        "request_timeout_s": HANG_S,
        "sync_timeout_s": HANG_S,
        **settings,
    }
    host = NriHost(NriSettings(**chosen), pod_view, log, metrics, lambda: ("containerd", "1.6.20"))
    try:
        await host.start()
        yield Hosting(host, pod_view, folder, metrics, capture)
    finally:
        await host.close()


def update(container_id: str, shares: int, ignore_failure: bool = False) -> nri.ContainerUpdate:
    """An update of one number."""
    asked = nri.ContainerUpdate(container_id=container_id, ignore_failure=ignore_failure)
    asked.linux.resources.cpu.shares.value = shares
    return asked


def shares(container_id: str, value: int, **more: Any) -> dict[str, Any]:
    """The same in a script."""
    resources = {"cpu": {"shares": {"value": value}}}
    return {"container_id": container_id, "linux": {"resources": resources}, **more}
