"""Two pods that talk: the observer's unit sees it, the daemon says so, and a rebalance brings them together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cri_api import runtime_v1_pb2 as cri
from tests.vm.guest.installation import CONFIG, OBSERVER, SERVICE, SLOW_CONFIG, run, set_constants, unit
from tests.vm.guest.node import Node, Running, until

PORT = 8080
#: Quick, so that a boot need not wait for minutes; moved only when told.
_CONFIG = """\
affinity:
  rebalance: manual
  cooldown: 1ms
"""
_CONSTANTS = {
    "affinity_interval_s": 1,
    "affinity_half_life_s": 20,
    "affinity_minimum_age_s": 1,
    "affinity_least_weight": 10,
}
COMPILE_TIMEOUT_S = 240.0
TALK = cri.Mount(container_path="/bin/talk", host_path="/run/talk")


async def the_observer_sees_by_ebpf(node: Node) -> None:
    await _observes(node, "ebpf")


async def the_observer_sees_without_ebpf(node: Node) -> None:
    await _observes(node, "sock_diag")


async def _observes(node: Node, provider: str) -> None:
    CONFIG.write_text(SLOW_CONFIG + _CONFIG)
    set_constants(**_CONSTANTS)
    run("systemctl", "restart", SERVICE)
    run("systemctl", "start", OBSERVER)
    # Another one sees first while bcc compiles, which takes half a minute under emulation.
    await until(
        lambda: node.ask("status")["affinity"]["observer"],
        lambda told: told["provider"] == provider,
        COMPILE_TIMEOUT_S,
    )
    print(unit(OBSERVER)["StatusText"])


async def who_talks_is_an_edge_and_a_rebalance_brings_them_together(node: Node) -> None:
    server, client = await _two_apart(node)
    where = f"{await _address(node, server)}:{PORT}"
    async with _calling(node, client, "tcp", where, "100", "10000"):
        pair = {server.id, client.id}
        told = await until(
            lambda: node.ask("affinity"), lambda told: any({e["a"], e["b"]} == pair for e in told["edges"])
        )
        assert all(edge["bytes_per_s"] > 0 for edge in told["edges"] if {edge["a"], edge["b"]} == pair)
        # Until there was enough traffic for a move to be worth its cost: at first its mean is that of a second or two.
        print(await until(lambda: node.ask("rebalance"), lambda told: told["accepted"]))
        assert node.cpus(server) == node.cpus(client)
        assert node.cpus(server) in node.shape.ccxs


async def messages_over_a_unix_socket_are_counted_where_functions_return(node: Node) -> None:
    folder = Path("/run/shared")
    folder.mkdir(exist_ok=True)
    mounts = (TALK, cri.Mount(container_path="/shared", host_path=str(folder)))
    serve, call = ("talk", "serve", "unix", "/shared/s", "100", "300"), ("unix", "/shared/s", "100", "300")
    server = await node.run("unix-server", command=serve, mounts=mounts)
    client = await node.run("unix-client", mounts=mounts)
    pair = {server.id, client.id}
    async with _calling(node, client, *call, "per_connection=1"):
        # By wakes alone an edge has no bytes.
        told = await until(
            lambda: node.ask("affinity"),
            lambda told: any({e["a"], e["b"]} == pair and e["bytes_per_s"] > 0 for e in told["edges"]),
            COMPILE_TIMEOUT_S,
        )
    detail = node.ask("status")["affinity"]["observer"]["detail"]
    assert "wake-ups only" not in detail, detail
    print(detail, [edge for edge in told["edges"] if {edge["a"], edge["b"]} == pair])


async def _two_apart(node: Node) -> tuple[Running, Running]:
    """They start in two CCXs, as the machine is empty then."""
    small: dict[str, Any] = {"cpu_request": 200, "cpu_limit": 1000, "mounts": (TALK,), "host_network": False}
    serve = ("talk", "serve", "tcp", str(PORT), "100", "10000")
    server = await node.run("server", command=serve, **small)
    client = await node.run("client", **small)
    assert node.cpus(server) != node.cpus(client)
    return server, client


@asynccontextmanager
async def _calling(node: Node, client: Running, *words: str) -> AsyncIterator[None]:
    command = ("talk", "call", *words, "count=10000000", "pause_ms=5")
    request = cri.ExecSyncRequest(container_id=client.id, cmd=command, timeout=600)
    call = asyncio.create_task(node.kubelet.call("ExecSync", request, timeout=600))
    try:
        yield
    finally:
        if call.done():
            print(f"the client has ended before: {call.exception() or call.result()}")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def _address(node: Node, container: Running) -> str:
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=container.pod.id)
    return str((await node.kubelet.call("PodSandboxStatus", request)).status.network.ip)
