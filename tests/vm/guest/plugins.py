"""An NRI plugin over a runtime without NRI, hosted by the installed daemon: what only cgroup v2 has, or its refusal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.io.connection import NriConnection
from tests.vm.guest.installation import SERVICE, run, unit
from tests.vm.guest.node import TASKS, UNTIL_TIMEOUT_S, Node, until

SOCKET = "/run/cri-resmgr/nri/nri.sock"
CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20
CREATE_ONLY = 1 << (nri.CREATE_CONTAINER - 1)
LAUNCHED = Path("/opt/nri/plugins/20-unit")
LAUNCHED_UNIT = "cri-resmgr-nri@20-unit.service"
#: A plugin that asks for nothing, in nothing but the standard library: under emulation imports take longer than the
#: registration may. Messages are written by hand: (field << 3 | 2), length, bytes; or (field << 3), a number.
PROGRAM = """\
#!/usr/bin/python3 -IS
import os, socket, struct

def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data

def frame(connection, stream, kind, message):
    message = struct.pack(">IIBB", len(message), stream, kind, 0) + message
    wire.sendall(struct.pack(">II", connection, len(message)) + message)

def exactly(count):
    data = b""
    while len(data) < count:
        more = wire.recv(count - len(data))
        if not more:
            raise SystemExit
        data += more
    return data

wire = socket.socket(fileno=int(os.environ["NRI_PLUGIN_SOCKET"]))
names = field(1, os.environ["NRI_PLUGIN_NAME"].encode()) + field(2, os.environ["NRI_PLUGIN_IDX"].encode())
frame(2, 1, 1, field(1, b"nri.pkg.api.v1alpha1.Runtime") + field(2, b"RegisterPlugin") + field(3, names))
waiting = b""
while True:
    connection, length = struct.unpack(">II", exactly(8))
    data = exactly(length)
    waiting += data if connection == 1 else b""
    while len(waiting) >= 10 and len(waiting) >= 10 + struct.unpack(">I", waiting[:4])[0]:
        length, stream = struct.unpack(">II", waiting[:8])
        request, waiting = waiting[10 : 10 + length], waiting[10 + length :]
        # Of creates only.
        frame(1, stream, 2, field(2, bytes([2 << 3, 8])) if b"Configure" in request[:60] else b"")
"""


@asynccontextmanager
async def plugin(adjust: nri.ContainerAdjustment, where: str = SOCKET) -> AsyncIterator[None]:
    """A plugin ``10-vm`` that asks for the same of every container; once it is synchronized."""
    is_synchronized = asyncio.Event()

    async def configure(message: bytes, timeout_s: float) -> bytes:
        return bytes(nri.ConfigureResponse(events=CREATE_ONLY).SerializeToString())

    async def synchronize(message: bytes, timeout_s: float) -> bytes:
        request = nri.SynchronizeRequest.FromString(message)
        if not request.more:
            is_synchronized.set()
        return bytes(nri.SynchronizeResponse(more=request.more).SerializeToString())

    async def create(message: bytes, timeout_s: float) -> bytes:
        return bytes(nri.CreateContainerResponse(adjust=adjust).SerializeToString())

    handlers = {"Configure": configure, "Synchronize": synchronize, "CreateContainer": create}
    connection = NriConnection(*await asyncio.open_unix_connection(where), "plugin", handlers)
    running = asyncio.ensure_future(connection.run())
    try:
        request = nri.RegisterPluginRequest(plugin_name="vm", plugin_idx="10")
        await connection.call("RegisterPlugin", request.SerializeToString(), UNTIL_TIMEOUT_S)
        await asyncio.wait_for(is_synchronized.wait(), UNTIL_TIMEOUT_S)
        yield
    finally:
        connection.close("the check is over")
        await running


def unified() -> nri.ContainerAdjustment:
    """What has no word of its own in NRI, and what has one."""
    adjust = nri.ContainerAdjustment()
    resources = adjust.linux.resources
    resources.unified["memory.high"] = str(96 * MIB)
    resources.memory.limit.value = 128 * MIB
    resources.pids.limit = 77
    return adjust


async def a_plugin_sets_what_only_cgroup_v2_has(node: Node) -> None:
    """With cgroup v1 it is refused, by the names of field and plugin."""
    await until(lambda: node.ask("status")["nri"], lambda told: told["host"] == "on")
    pod = await node.shared_pod()
    if not (CGROUPS / "cgroup.controllers").exists():
        async with plugin(unified()):
            try:
                await node.run("unified", pod=pod)
            except grpc.aio.AioRpcError as error:
                assert 'plugin "10-vm" asked for CgroupsUnified memory.high' in (error.details() or "")
            else:
                raise AssertionError("unified resources were taken on cgroup v1")
        return
    async with plugin(unified()):
        made = await node.run("unified", pod=pod)
    pid = (TASKS / made.id / "init.pid").read_text()
    path = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("::/")[2]
    found = {
        name: (CGROUPS / path / name).read_text().strip()
        for name in ("memory.high", "memory.max", "pids.max")
    }
    assert found == {"memory.high": str(96 * MIB), "memory.max": str(128 * MIB), "pids.max": "77"}, found


async def a_plugin_sets_hugepage_limits(node: Node) -> None:
    """Where the kernel has a controller for them; else it is refused."""
    adjust = nri.ContainerAdjustment()
    adjust.linux.resources.hugepage_limits.add(page_size="2MB", limit=4 * MIB)
    controllers = (CGROUPS / "cgroup.controllers").read_text().split()
    pod = await node.shared_pod()
    async with plugin(adjust):
        try:
            made = await node.run("hugepages", pod=pod)
        except grpc.aio.AioRpcError as error:
            assert "hugetlb" not in controllers and "HugepageLimits 2MB" in (error.details() or ""), error
            return
    pid = (TASKS / made.id / "init.pid").read_text()
    path = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("::/")[2]
    limit = (CGROUPS / path / "hugetlb.2MB.max").read_text().strip()
    assert limit == str(4 * MIB), limit


async def a_preregistered_plugin_is_a_unit_of_its_own(node: Node) -> None:
    """Outside the daemon's sandbox, bound to it: it comes with the daemon, ends with it, and is started again."""
    LAUNCHED.parent.mkdir(parents=True, exist_ok=True)
    LAUNCHED.write_text(PROGRAM)
    LAUNCHED.chmod(0o755)
    try:
        await asyncio.to_thread(run, "systemctl", "restart", SERVICE)
        await until(lambda: _launched(node), lambda told: told.get("state") == "connected")
        first = int(unit(LAUNCHED_UNIT)["MainPID"])
        assert LAUNCHED_UNIT in Path(f"/proc/{first}/cgroup").read_text()
        os.kill(first, 9)
        await until(lambda: unit(LAUNCHED_UNIT), lambda shown: int(shown["MainPID"]) not in (0, first))
        await until(lambda: _launched(node), lambda told: told.get("state") == "connected")
        await node.run("with-a-plugin", pod=await node.shared_pod())
        LAUNCHED.unlink()
        await asyncio.to_thread(run, "systemctl", "restart", SERVICE)
        await until(lambda: unit(LAUNCHED_UNIT), lambda shown: shown["ActiveState"] == "inactive")
    finally:
        LAUNCHED.unlink(missing_ok=True)


def _launched(node: Node) -> Mapping[str, Any]:
    """What ``nri status`` says of it."""
    plugins = node.ask("status")["nri"]["plugins"]
    return next((told for told in plugins if told["name"] == "unit"), {})
