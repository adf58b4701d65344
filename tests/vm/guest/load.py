"""Kubelet's calls while the daemon is restarted, and while the package is upgraded: none fails.

Besides the short calls there are the two long ones that may be cut (docs/operations.md): the stream of events, and
the pull of an image. Whoever makes them calls again, as kubelet does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Callable

import grpc
import grpc.aio

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import container_resources
from tests.vm.guest.installation import PACKAGE, SERVICE, run, unit
from tests.vm.guest.node import Node, Running, connect, until
from tests.vm.guest.registry import SlowRegistry, slow_registry
from tests.vm.guest.restarts import SMALLEST, residents, until_all_are_known

CALLERS = 4
LEAST_CALLS = 1000
#: For all of them; emulation is slow.
CALLS_TIMEOUT_S = 600.0
PAUSE_S = 0.02  # else the calls have the CPUs for themselves, and nothing restarts
#: For a call that waits at the socket unit: of kubelet's two minutes (runtimeRequestTimeout).
CALL_TIMEOUT_S = 120.0
PULL_TIMEOUT_S = 900.0
CUT = "cri-resmgr is stopping; call again"


@dataclass
class _Load:
    """What was called, and what the long calls have seen."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    pulls_cut: int = 0
    subscriptions: int = 0
    exits_seen: set[str] = field(default_factory=set)
    failures: list[Exception] = field(default_factory=list)

    async def until(self, is_so: Callable[[], Any]) -> None:
        """As long as no call fails."""
        await until(lambda: self.failures or is_so(), timeout_s=CALLS_TIMEOUT_S)
        if self.failures:
            raise self.failures[0]

    async def run(self, calls: Awaitable[None]) -> None:
        """These calls; the first that fails is what the check fails of."""
        try:
            await calls
        except Exception as error:
            self.failures.append(error)


async def a_restart_under_load_fails_no_call_and_moves_nobody(node: Node) -> None:
    before = unit(SERVICE)["MainPID"]
    await _undisturbed(node, lambda: asyncio.to_thread(run, "systemctl", "restart", SERVICE))
    assert unit(SERVICE)["MainPID"] not in ("0", before)


async def an_upgrade_under_load_fails_no_call_and_moves_nobody(node: Node) -> None:
    version, newer = _version(), next(node.job.glob("upgrade/*.deb"))
    await _undisturbed(node, lambda: asyncio.to_thread(run, "dpkg", "--install", str(newer)))
    assert _version() != version
    assert unit(SERVICE)["ActiveState"] == "active"
    print(f"from {version} to {_version()}")


def _version() -> str:
    return run("dpkg-query", "--show", "--showformat=${Version}", PACKAGE).stdout


async def _undisturbed(node: Node, disturb: Callable[[], Awaitable[Any]]) -> None:
    """Calls of all kinds while that is done: no short one fails, a long one is cut once and then succeeds."""
    made = await residents(node)
    before = node.places(made)
    with slow_registry() as registry:
        async with _under_load(node, registry, made) as load:
            await load.until(lambda: registry.begun)
            await disturb()
            await load.until(lambda: load.calls >= LEAST_CALLS)
            await _an_exit_is_seen(node, load)
            registry.go.set()
    print(
        f"{load.calls} calls, none failed; pulled after {load.pulls_cut} cuts; {load.subscriptions} subscriptions"
    )
    assert load.pulls_cut == 1
    image = cri.ImageStatusRequest(image=cri.ImageSpec(image=registry.image))
    assert (await node.kubelet.call("ImageStatus", image)).image.id
    await node.kubelet.call("RemoveImage", cri.RemoveImageRequest(image=image.image))
    await until_all_are_known(node, made)
    assert node.places(made) == before


@asynccontextmanager
async def _under_load(node: Node, registry: SlowRegistry, made: Sequence[Running]) -> AsyncIterator[_Load]:
    """Callers on a connection they share and callers that make their own; their first failure ends the block."""
    load = _Load()
    callers = [_call(node, load, made[0], shared=number > 0) for number in range(CALLERS)]
    ending = [asyncio.create_task(load.run(calls)) for calls in (_pull(node, registry.image, load), *callers)]
    events = asyncio.create_task(load.run(_watch(node, load)))
    try:
        yield load
        load.stop.set()
        await asyncio.gather(*ending)
        if load.failures:
            raise load.failures[0]
    finally:
        for task in (*ending, events):
            task.cancel()
        await asyncio.gather(*ending, events, return_exceptions=True)


async def _call(node: Node, load: _Load, of: Running, shared: bool) -> None:
    """What kubelet asks all the time: lists and a status; one caller also sets resources as they are.

    Not all of them, for each time the runtime starts a program, which takes a second under emulation.
    """
    requests: list[tuple[str, Any]] = [
        ("Version", cri.VersionRequest()),
        ("ListPodSandbox", cri.ListPodSandboxRequest()),
        ("ListContainers", cri.ListContainersRequest()),
        ("ContainerStatus", cri.ContainerStatusRequest(container_id=of.id)),
    ]
    if not shared:
        update = cri.UpdateContainerResourcesRequest(
            container_id=of.id, linux=container_resources(**SMALLEST)
        )
        requests.append(("UpdateContainerResources", update))
    while not load.stop.is_set():
        for method, request in requests:
            if shared:
                await node.kubelet.call(method, request, timeout=CALL_TIMEOUT_S)
            else:
                async with connect(node.api) as new:
                    await new.call(method, request, timeout=CALL_TIMEOUT_S)
            load.calls += 1
            await asyncio.sleep(PAUSE_S)


async def _pull(node: Node, image: str, load: _Load) -> None:
    """Until it is there, as kubelet does, which pulls again after whatever error."""
    request = cri.PullImageRequest(image=cri.ImageSpec(image=image))
    while True:
        try:
            await node.kubelet.call("PullImage", request, timeout=PULL_TIMEOUT_S)
            return
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            load.pulls_cut += CUT in (error.details() or "")


async def _watch(node: Node, load: _Load) -> None:
    """Subscribes again whenever the stream was cut; not at all where the runtime has none (containerd 1.6)."""
    while True:
        try:
            async for event in node.kubelet.events():
                load.subscriptions = max(load.subscriptions, 1)
                if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
                    load.exits_seen.add(event.container_id)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
        load.subscriptions += 1


async def _an_exit_is_seen(node: Node, load: _Load) -> None:
    """By the stream as it is after it was cut."""
    if load.subscriptions == 0:
        print("this runtime has no stream of events")
        return
    made = await node.run("ends", pod=await node.shared_pod(), cpu_limit=1000)
    await node.kubelet.stop(made.id)
    await load.until(lambda: made.id in load.exits_seen)
