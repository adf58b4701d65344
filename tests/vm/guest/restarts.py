"""The daemon and the runtime end and come back: no container notices, no call fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

from cri_api import runtime_v1_pb2 as cri
from tests.vm.guest.installation import SERVICE, run, unit
from tests.vm.guest.node import GIB, Node, Running, until, until_served
from tests.vm.guest.placement import ladder

CALLERS = 4
PAUSE_S = 0.05  # else the calls have the CPUs for themselves, and nothing restarts
#: The first of the residents.
SMALLEST: dict[str, Any] = {"cpu_request": 100, "cpu_limit": 1000, "memory_limit": GIB // 16}


async def a_killed_daemon_comes_back_and_moves_nobody(node: Node) -> None:
    made = await residents(node)
    before = node.places(made)
    pid = int(unit(SERVICE)["MainPID"])
    os.kill(pid, signal.SIGKILL)
    # What was under way is lost with the daemon; whoever asks again waits at the socket unit until it is back.
    await until_served(node.kubelet)
    state = await until(lambda: unit(SERVICE), lambda shown: shown["ActiveState"] == "active")
    assert int(state["MainPID"]) not in (0, pid)
    await until_all_are_known(node, made)
    assert node.places(made) == before
    await a_new_container_is_placed(node)


async def a_restart_fails_no_call_and_moves_nobody(node: Node) -> None:
    made = await residents(node)
    before = node.places(made)
    stop = asyncio.Event()
    callers = [asyncio.create_task(_call_until(node, stop)) for _ in range(CALLERS)]
    for _ in range(2):
        await asyncio.to_thread(run, "systemctl", "restart", SERVICE)
    stop.set()
    counts = await asyncio.gather(*callers)
    print(f"{sum(counts)} calls during two restarts")
    assert min(counts) > 0
    await until_all_are_known(node, made)
    assert node.places(made) == before


async def a_reload_moves_nobody(node: Node) -> None:
    made = await residents(node)
    before = node.places(made)
    pid = unit(SERVICE)["MainPID"]
    run("systemctl", "reload", SERVICE)
    await a_new_container_is_placed(node)
    assert node.places(made) == before
    assert unit(SERVICE)["MainPID"] == pid


async def a_restart_of_the_runtime_moves_nobody(node: Node) -> None:
    made = await residents(node)
    before = node.places(made)
    await asyncio.to_thread(run, "systemctl", "restart", "containerd.service")
    await until_served(node.kubelet)
    await until(lambda: node.ask("status")["runtime"]["connected"])
    assert node.places(made) == before
    await a_new_container_is_placed(node)
    assert node.places(made) == before


async def a_newer_runtime_moves_nobody(node: Node) -> None:
    """The job's containerd in the place of the distribution's; it has a stream of events. Goes on without, if none."""
    newer = node.job / "containerd"
    if not newer.exists():
        print("there is no other containerd in this job")
        return
    made = await residents(node)
    before = node.places(made)
    for program in newer.iterdir():
        shutil.copy(program, "/usr/local/bin")
    override = Path("/etc/systemd/system/containerd.service.d/newer.conf")
    override.write_text("[Service]\nExecStart=\nExecStart=/usr/local/bin/containerd\n")
    run("systemctl", "daemon-reload")
    await a_restart_of_the_runtime_moves_nobody(node)
    reply = await node.kubelet.call("Version", cri.VersionRequest())
    print(reply.runtime_name, reply.runtime_version)
    assert node.places(made) == before


async def mode_off_leaves_new_pods_alone(node: Node) -> None:
    node.ask("mode", mode="off")
    try:
        free = await node.run("free", pod=await node.shared_pod(), cpu_limit=1000)
        assert node.cpus(free) == f"0-{node.shape.cpus - 1}"
        await node.kubelet.remove(free.id)
    finally:
        node.ask("mode", mode="enforce")
    await a_new_container_is_placed(node)


async def residents(node: Node) -> list[Running]:
    """Containers of three sizes in a pod, made once: they live through all of this."""
    if not node.residents:
        pod = await node.shared_pod()
        for size in (1, node.shape.cpus_per_node, node.shape.cpus):
            resources = {**SMALLEST, "cpu_limit": size * 1000}
            node.residents.append(await node.run(f"resident-{size}", pod=pod, **resources))
    return node.residents


async def until_all_are_known(node: Node, made: list[Running]) -> None:
    wanted = {container.id: node.cpus(container) for container in made}

    def known() -> bool:
        rows = {row["id"]: row["cpus"] for row in node.ask("placements") if row["stance"] == "placed"}
        return wanted.items() <= rows.items()

    await until(known)


async def a_new_container_is_placed(node: Node) -> None:
    made = await node.run("new", pod=await node.shared_pod(), cpu_limit=1000)
    assert node.cpus(made) in ladder(node.shape, 1)[1]
    await node.kubelet.remove(made.id)


async def _call_until(node: Node, stop: asyncio.Event) -> int:
    count = 0
    while not stop.is_set():
        await node.kubelet.call("ListPodSandbox", cri.ListPodSandboxRequest())
        count += 1
        await asyncio.sleep(PAUSE_S)
    return count
