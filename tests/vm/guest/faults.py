"""What goes wrong on a node, and is right again by itself when the cause is gone."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import grpc
import grpc.aio

from cri_api import runtime_v1_pb2 as cri
from tests.vm.guest.installation import CONFIG, SERVICE, SOCKET_UNIT, STATE, run, unit
from tests.vm.guest.node import RUNTIME, Node, Running, until, until_served
from tests.vm.guest.placement import ladder
from tests.vm.guest.restarts import a_new_container_is_placed, residents, until_all_are_known

#: Less than an interpreter needs.
TOO_LITTLE = "MemoryMax=4M"
CONTAINERD = "containerd.service"
#: Room for the state of some containers, and soon full.
SMALL_DISK = "size=4m,mode=0700"
NUMA_NODES = Path("/sys/devices/system/node")


async def a_daemon_out_of_memory_is_back_when_there_is_some(node: Node) -> None:
    """By a real event of its cgroup, again and again; callers wait meanwhile, and the journal says why."""
    made = await residents(node)
    before = node.places(made)
    begun = int(unit(SERVICE)["NRestarts"])
    run("systemctl", "set-property", "--runtime", SERVICE, TOO_LITTLE)
    try:
        await until(lambda: int(unit(SERVICE)["NRestarts"]) >= begun + 2)
        waiting = asyncio.create_task(until_served(node.kubelet))
        assert node.places(made) == before
    finally:
        run("systemctl", "set-property", "--runtime", SERVICE, "MemoryMax=infinity")
    await waiting
    await until_all_are_known(node, made)
    assert node.places(made) == before
    said = _journal()
    killed = [line for line in said.splitlines() if "oom-kill" in line or "OOM killer" in line]
    assert killed, said
    print(killed[0])


async def a_boot_without_a_runtime_is_a_node_as_soon_as_there_is_one(node: Node) -> None:
    """READY comes all the same; calls are answered at once with what is wrong."""
    made = await residents(node)
    before = node.places(made)
    run("systemctl", "stop", SOCKET_UNIT, SERVICE, CONTAINERD)
    # As after a boot: /run is empty.
    RUNTIME.unlink(missing_ok=True)
    try:
        run("systemctl", "start", SOCKET_UNIT, SERVICE)
        state = unit(SERVICE)
        assert state["ActiveState"] == "active", state
        print(state["StatusText"])
        await _is_unavailable(node)
        told = node.ask("status")["runtime"]
        assert not told["connected"], told
    finally:
        run("systemctl", "start", CONTAINERD)
    await until_served(node.kubelet)
    await until_all_are_known(node, made)
    assert node.places(made) == before
    await a_new_container_is_placed(node)


async def wrong_permissions_stop_no_pod_and_are_said(node: Node) -> None:
    """The daemon is root without root's rights: what its owner has closed it may not read, at a start or later."""
    made = await residents(node)
    before, mode, aside = node.places(made), CONFIG.stat().st_mode, _set_aside()
    CONFIG.chmod(0)
    try:
        run("systemctl", "restart", SERVICE)
        await _goes_on_and_says(node, made, str(CONFIG))
    finally:
        CONFIG.chmod(mode)
    run("systemctl", "reload", SERVICE)
    await _until_all_is_well(node)
    STATE.chmod(0)
    try:
        await _goes_on_and_says(node, made, f"{STATE}: Permission denied")
    finally:
        STATE.chmod(0o700)
    await _until_all_is_well(node)
    # At a start systemd puts the folder right, and the daemon its file.
    (STATE / "state.db").chmod(0)
    STATE.chmod(0)
    run("systemctl", "restart", SERVICE)
    await until_all_are_known(node, made)
    await _until_all_is_well(node)
    assert STATE.stat().st_mode & 0o777 == 0o700
    assert _set_aside() == aside
    assert node.places(made) == before


async def a_sysfs_without_numa_nodes_moves_nobody_and_is_said(node: Node) -> None:
    """All memory would be taken to be in one node. Pods run unplaced until the nodes are shown again."""
    made = await residents(node)
    before = node.places(made)
    run("systemctl", "stop", SOCKET_UNIT, SERVICE)
    run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(NUMA_NODES))
    try:
        run("systemctl", "start", SOCKET_UNIT, SERVICE)
        await until_served(node.kubelet)
        said = await _until_said(f"{NUMA_NODES} names no NUMA node")
        print(said)
        free = await node.run("without-nodes", pod=await node.shared_pod(), cpu_limit=1000)
        assert node.cpus(free) == f"0-{node.shape.cpus - 1}"
        assert node.places(made) == before
    finally:
        run("umount", str(NUMA_NODES))
    await _until_all_is_well(node)
    await until_all_are_known(node, made)
    assert node.places(made) == before
    await a_new_container_is_placed(node)


async def a_full_disk_stops_no_pod_and_all_is_kept_when_there_is_room(node: Node) -> None:
    """The daemon starts on it, so not even its log has room; the journal says what is lost, and of which file."""
    made = await residents(node)
    before = node.places(made)
    run("systemctl", "stop", SOCKET_UNIT, SERVICE)
    _move_state_to_a_small_disk()
    filler = _fill(STATE)
    try:
        run("systemctl", "start", SOCKET_UNIT, SERVICE)
        await until_served(node.kubelet)
        await until_all_are_known(node, made)
        made.append(await node.run("on-a-full-disk", pod=await node.shared_pod(), cpu_limit=1000))
        assert node.cpus(made[-1]) in ladder(node.shape, 1)[1]
        before.append(node.place(made[-1]))
        said = await _until_said("full")
        assert f"{STATE}/state.db" in said, said
        print(said)
        assert node.places(made) == before
    finally:
        filler.unlink()
    await _until_all_is_well(node)
    run("systemctl", "restart", SERVICE)
    await until_all_are_known(node, made)
    assert node.places(made) == before


def _move_state_to_a_small_disk() -> None:
    """As it is, to a file system of its own from now on; nobody may use it."""
    kept = Path("/run/state-before")
    shutil.copytree(STATE, kept)
    run("mount", "-t", "tmpfs", "-o", SMALL_DISK, "tmpfs", str(STATE))
    shutil.copytree(kept, STATE, dirs_exist_ok=True)


def _fill(folder: Path) -> Path:
    """Not a byte is left; returns the file to remove."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 512):
            pass
    return filler


async def _goes_on_and_says(node: Node, made: list[Running], words: str) -> None:
    """Places are kept and given, and systemd's status names what is wrong."""
    before = node.places(made)
    await until_served(node.kubelet)
    await until_all_are_known(node, made)
    await a_new_container_is_placed(node)
    print(await _until_said(words))
    assert node.places(made) == before


async def _until_said(words: str) -> str:
    """The unit's status line once it has these words; the journal has it too."""
    said: str = await until(lambda: unit(SERVICE)["StatusText"], lambda text: words in text)
    reasons = said.partition(": ")[2].split("; ")
    assert any(words in reason and reason in _journal() for reason in reasons), said
    return said


def _set_aside() -> list[str]:
    return sorted(path.name for path in STATE.glob("*.aside-*"))


async def _until_all_is_well(node: Node) -> None:
    await until(
        lambda: node.ask("status"), lambda status: not status["degraded"] and status["mode"] == "enforce"
    )


def _journal() -> str:
    return run("journalctl", "--no-pager", "--output=cat", f"--unit={SERVICE}", "--lines=60").stdout


async def _is_unavailable(node: Node) -> None:
    try:
        reply = await node.kubelet.call("Version", cri.VersionRequest())
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        print(error.details())
        return
    raise AssertionError(f"a runtime that is not there has answered: {reply}")
