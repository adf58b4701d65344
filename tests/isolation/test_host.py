"""The daemon has isolation where there is something to do, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from cri_proxy.daemon.isolation_host import IsolationHost
from cri_proxy.isolation.io.originals import FILE_NAME, Originals
from tests.functional.support import eventually
from tests.isolation.kernel import KernelModel
from tests.isolation.node import IsolatedNode
from tests.isolation.test_report import protection

OFF = {"caches": "off", "bandwidth": "off"}


class Host:
    """A host on a node. ``begun``: how often it has begun to isolate."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = IsolatedNode(folder, monkeypatch)
        self.begun = 0
        self.host = IsolationHost(self.node.services, "boot", lambda cpus: False, self._control)
        self.running: asyncio.Future[None] = asyncio.ensure_future(asyncio.sleep(0))

    def _control(self) -> KernelModel:
        self.begun += 1
        return self.node.kernel

    def run(self) -> None:
        self.running = asyncio.ensure_future(self.host.run())

    def configure(self, **isolation: str) -> None:
        self.node.configure(**isolation)
        self.host.reconfigured()

    async def ends(self) -> None:
        await eventually(lambda: self.host.isolation is None and self.begun > 0, "isolation ends")


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    one = Host(tmp_path, monkeypatch)
    yield one
    one.running.cancel()
    await asyncio.wait({one.running})
    await one.node.services.supervisor.end()


async def test_what_another_boot_has_left_is_looked_at_once(host: Host) -> None:
    Originals(host.node.folder, "the boot before").remember({"file:/sys/a": "1"}, groups=True)
    host.configure(**OFF)
    host.run()
    await eventually(lambda: not (host.node.folder / FILE_NAME).exists(), "the file goes")
    await host.ends()
    host.configure()
    await eventually(lambda: host.host.isolation is not None, "isolation begins")
    assert host.begun == 2


async def test_in_the_mode_off_it_ends_and_begins_again_with_another_mode(host: Host) -> None:
    host.node.batch(), host.node.protected()
    host.run()
    await eventually(lambda: bool(host.node.masks), "batch gives way")
    host.node.services.node_state.switch("off")
    host.host.mode_changed()
    await host.ends()
    assert not host.node.masks and host.node.services.node_state.on_start is None
    host.node.services.node_state.switch("enforce")
    host.host.mode_changed()
    await eventually(lambda: bool(host.node.masks), "batch gives way again")
    assert host.begun <= 3 and host.node.services.node_state.on_start is not None


async def test_starts_wait_for_their_group_only_while_it_is_enforced(host: Host) -> None:
    host.run()
    await eventually(lambda: host.node.services.node_state.on_start is not None, "starts are looked at")
    host.configure(caches="observe", bandwidth="observe")
    await eventually(lambda: host.node.services.node_state.on_start is None, "starts are left alone")


async def test_a_container_is_told_what_protection_does_for_it(host: Host) -> None:
    node = host.node
    key, _ = node.protected(), node.batch()
    host.run()
    await eventually(lambda: bool(host.host.status().get("meetings")), "a round is over")
    assert [line for line in host.host.explained(node.engine.grants[key]) if "step" in line] == []
    told = protection()
    told["domains"][0]["domain"] = host.host.status()["meetings"][0]["l3"]

    class Protecting:
        def status(self) -> dict[str, Any]:
            return told

    host.host.protector = cast(Any, Protecting())
    [line] = [line for line in host.host.explained(node.engine.grants[key]) if "step" in line]
    assert line.startswith("L3 ") and "step 2 of 4" in line
    host.host.protector = None
