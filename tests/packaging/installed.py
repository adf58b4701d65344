"""The daemon of an installed package, in its root, between the tests' client and the tests' runtime."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from policies.machine.topology_json import write_topology
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine
from tests.packaging.roots import ENVIRONMENT, Root

READY_S = 60.0
SCENARIO = [{"op": "create", "id": "c1", "pod": "p1", "name": "app", "cpu_request": "8", "cpu_limit": "8"}]
CONFIG = "topology:\n  source: /var/tmp/machine.json\n  cgroup_root: /var/tmp/cgroup\n"


def simulated(root: Root) -> str:
    """The cpuset that the installed program gives a container of 8 CPUs on a Hygon."""
    root.write("/var/tmp/machine.json", json.dumps(write_topology(machine(HYGON_7285_2S))))
    root.write("/var/tmp/scenario.json", json.dumps(SCENARIO))
    said = root.run("cri-resmgr", "simulate", "--topology", "/var/tmp/machine.json", "/var/tmp/scenario.json")
    return str(json.loads(said.splitlines()[-1])["cpus"])


@contextlib.asynccontextmanager
async def served(root: Root) -> AsyncIterator[tuple[CriClient, FakeRuntime]]:
    """The package's daemon on a described Hygon: a client of it, and the runtime behind it."""
    root.write("/var/tmp/machine.json", json.dumps(write_topology(machine(HYGON_7285_2S))))
    root.write("/etc/cri-resmgr/config.yaml", CONFIG)
    (root.path / "var/tmp/cgroup").mkdir(exist_ok=True)
    (root.path / "run/containerd").mkdir(exist_ok=True)
    async with FakeRuntime(str(root.path / "run/containerd/containerd.sock")) as runtime:
        log = root.path / "var/tmp/daemon.log"
        with _notified(root.path / "run/notify") as ready, log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *root.command("/usr/bin/cri-resmgr"),
                env={**ENVIRONMENT, "NOTIFY_SOCKET": "/run/notify"},
                stdin=asyncio.subprocess.DEVNULL,
                stderr=stderr,
            )
            try:
                await asyncio.wait_for(_until_ready(ready), READY_S)
                async with CriClient(str(root.path / "run/cri-resmgr.sock")) as client:
                    yield client, runtime
            finally:
                process.send_signal(signal.SIGKILL)
                await process.wait()


@contextlib.contextmanager
def _notified(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notify:
        notify.bind(str(path))
        yield notify
    path.unlink()


async def _until_ready(notify: socket.socket) -> None:
    while b"READY=1" not in await asyncio.get_running_loop().sock_recv(notify, 65536):
        pass
