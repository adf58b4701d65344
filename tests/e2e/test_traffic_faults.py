"""The observer dies, comes back, may not load its programs: pods go on, and the truth is told."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Callable

import pytest

from tests.e2e.node import until
from tests.e2e.observer import Observer, is_in_kernel, kernel_objects_of
from tests.e2e.traffic import Pods

pytestmark = pytest.mark.containerd

PORT = 8080
#: Runs a command that can never have CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON and CAP_BPF: what loading or
#: attaching a program needs on some kernel or other.
WITHOUT_BPF = """\
import ctypes, os, sys
for capability in (12, 21, 38, 39):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.argv[1], sys.argv[1:])
"""


async def until_gone(objects: set[tuple[str, int]]) -> None:
    """The kernel frees them a moment after their last user has ended."""

    async def left() -> set[tuple[str, int]]:
        return {one for one in objects if is_in_kernel(*one)}

    await until(left, lambda remaining: remaining == set())


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_nothing_of_it_stays_in_the_kernel(traffic_pods: Pods, observer: Observer, end: str) -> None:
    # Were the only containers others' that are in cgroup v1 alone, it would have nothing to see by eBPF.
    await traffic_pods.run("client")
    await observer.start()
    assert observer.process is not None
    objects = kernel_objects_of(observer.process.pid)
    assert {kind for kind, _ in objects} == {"prog", "link", "map"}
    assert all(is_in_kernel(*one) for one in objects)
    ended = observer.kill() if end == "kill" else observer.terminate()
    assert await ended in (None, 0)
    await until_gone(objects)


async def test_a_new_observer_sees_what_the_killed_one_cannot(traffic_pods: Pods, observer: Observer) -> None:
    server = await traffic_pods.serve("server", "tcp", str(PORT), 100, 1000)
    client = await traffic_pods.run("client")
    address = f"{server.address}:{PORT}"
    await observer.start()
    await observer.kill()
    await client.call("tcp", address, 100, 1000, count=10)
    await observer.start()
    told = await client.call("tcp", address, 100, 1000, count=1000, last_ms=150)
    await observer.until_bytes(client.id, server.id, (told.sent, told.received), 0.02)


async def test_two_observers_see_the_same(
    traffic_pods: Pods, observer: Observer, make_observer: Callable[..., Observer]
) -> None:
    """As while one version replaces another."""
    server = await traffic_pods.serve("server", "tcp", str(PORT), 100, 1000)
    client = await traffic_pods.run("client")
    other = make_observer(provider="ebpf")
    await observer.start()
    await other.start()
    told = await client.call("tcp", f"{server.address}:{PORT}", 100, 1000, count=1000, last_ms=150)
    for one in (observer, other):
        await one.until_bytes(client.id, server.id, (told.sent, told.received))
    await observer.kill()
    await other.until_sampled()


async def test_a_kernel_that_refuses_programs_is_said_and_the_next_way_is_taken(
    traffic_pods: Pods, make_observer: Callable[..., Observer]
) -> None:
    observer = make_observer(provider="auto")
    made = await traffic_pods.run("client")
    await observer.start(sys.executable, "-c", WITHOUT_BPF)
    status = (await observer.graph()).status
    assert status.provider in ("sock_diag", "declared")
    assert any("ebpf" in sentence.lower() for sentence in status.refused), status.refused
    # It goes on, and pods start as ever; what nobody looks at is no sample, but containers are known. Nobody sees
    # that there are new ones: the runtime is asked at first, and then once a minute.
    await traffic_pods.run("other")
    graph = await until(observer.graph, lambda graph: made.id in {one.id for one in graph.endpoints})
    assert graph.status.provider == status.provider
    assert await observer.terminate() == 0


async def test_sockets_alone_tell_who_talks_over_tcp(
    traffic_pods: Pods, make_observer: Callable[..., Observer]
) -> None:
    """What is left where no program can be loaded: connections that are open when a sample is taken."""
    observer = make_observer(provider="sock_diag")
    server = await traffic_pods.serve("server", "tcp", str(PORT), 100, 1000)
    client = await traffic_pods.run("client")
    await observer.start()
    assert (await observer.graph()).status.provider == "sock_diag"
    told = await client.call("tcp", f"{server.address}:{PORT}", 100, 1000, count=2000, pause_ms=1)
    await observer.until_bytes(client.id, server.id, (told.sent, told.received))


async def test_its_memory_stays_small_while_many_talk(traffic_pods: Pods, observer: Observer) -> None:
    server = await traffic_pods.serve("server", "tcp", str(PORT), 100, 1000)
    clients = [await traffic_pods.run(f"client-{number}") for number in range(4)]
    await observer.start()
    calls = [
        one.call("tcp", f"{server.address}:{PORT}", 100, 1000, count=500, per_connection=1) for one in clients
    ]
    await asyncio.gather(*calls)
    status = (await observer.until_sampled()).status
    assert 0 < status.resident_bytes <= 25 << 20
    assert os.path.exists(observer.socket)
