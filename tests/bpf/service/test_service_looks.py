"""What an observer makes of looks that see nothing, miss something or never end: nobody is said to be silent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import queue
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from bpf.identity.attribution import Attribution
from bpf.service import service
from bpf.service.options import Options
from bpf.service.server import ServiceSockets
from bpf.service.service import Observer
from bpf.sources.fallback import Owners, ProviderFallback, Rung
from bpf.sources.samples import Flow, Provider, Sample
from cri_api import affinity_pb2 as pb
from cri_api import runtime_v1_pb2 as cri
from tests.bpf.observer import SERVICE, WAIT_S, ObserverProcess, watch
from tests.fake_runtime import FakeRuntime

SAMPLE_S = 0.02


class Eyes:
    """A provider that sees two who talk, as long as ``may_end`` is set."""

    name, detail = "ebpf", "for tests"

    def __init__(self, a: str = "a", b: str = "b") -> None:
        self.flows = (Flow(a, b, "tcp", 10**9, 10**9, 100),)
        self.lost: dict[str, int] = {}
        self.fill = 0.0
        self.looks: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.may_end = threading.Event()
        self.may_end.set()

    def open(self, _now_s: float) -> Provider:
        return self

    def sample(self, now_s: float) -> Sample:
        self.looks.put(now_s)
        self.may_end.wait()
        return Sample(now_s, SAMPLE_S, self.flows, lost=self.lost, fill=self.fill)

    async def look(self, times: int) -> None:
        """Returns when it has looked so often from now on, and what it saw was taken in."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.looks.get_nowait()
        for _ in range(times + 1):
            await asyncio.to_thread(self.looks.get, True, WAIT_S)

    def close(self) -> None:
        """Nothing is open."""


@contextlib.asynccontextmanager
async def observing(options: Options, eyes: Eyes) -> AsyncIterator[None]:
    """An observer in this process, which looks through ``eyes`` and at the cgroups of the options."""
    ladder = ProviderFallback([Rung("ebpf", eyes.open)])
    ladder.open(0.0)
    observer = Observer(options, "", ladder, Owners(Attribution(options.cgroup_root, options.proc)))
    running = asyncio.create_task(observer.run(ServiceSockets(options)))
    try:
        yield
    finally:
        eyes.may_end.set()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        gc.unfreeze()


async def status_of(options: Options) -> pb.Status:
    """What the observer with these options says of itself."""
    async with grpc.aio.insecure_channel(f"unix:{options.socket}") as channel:
        ask = channel.unary_unary(
            f"{SERVICE}/GetGraph",
            request_serializer=pb.GetGraphRequest.SerializeToString,
            response_deserializer=pb.Graph.FromString,
        )
        graph = await ask(pb.GetGraphRequest(), timeout=WAIT_S, wait_for_ready=True)
    return graph.status


def test_where_no_provider_sees_the_graph_stays_as_it_was(folder: Path) -> None:
    observer = ObserverProcess(folder, half_life_s=20)
    observer.start()
    try:
        with observer.channel() as channel:
            deltas = watch(channel)
            next(delta for delta in deltas if delta.edges)
            deltas.cancel()
        observer.end()
        observer.options.update(provider="ebpf", python="/no/such/python")
        observer.start()
        with observer.channel() as channel:
            deltas = watch(channel)
            seen = [next(deltas) for _ in range(20)]
            deltas.cancel()
        graph = observer.graph()
    finally:
        observer.close()
    assert [edge.weight for edge in graph.edges] == [edge.weight for edge in seen[0].edges] != []
    # By these a reader tells how old it is, and why.
    assert {delta.status.sampled_at_s for delta in seen} == {graph.status.sampled_at_s}
    assert graph.status.provider == "declared"
    assert graph.status.refused[0] in graph.status.detail


@pytest.mark.parametrize("is_listed", [True, False], ids=["runs", "has ended"])
async def test_of_a_container_without_cgroup_the_runtime_says_whether_it_has_ended(
    folder: Path, runtime: FakeRuntime, is_listed: bool
) -> None:
    pod = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="web", uid="6b1e4c1e", namespace="shop"))
    config = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="nginx"))
    container = runtime.add_container(runtime.add_pod(pod), config) if is_listed else "5" * 64
    (folder / "cgroup.controllers").touch()
    cgroup = folder / "kubepods/pod6b1e4c1e" / container
    cgroup.mkdir(parents=True)
    options = Options(
        socket=str(folder / "o.sock"), state_file=str(folder / "graph.json"), interval_s=SAMPLE_S,
        proc=str(folder), cgroup_root=str(folder), runtime_sockets=(runtime.socket,),
    )  # fmt: skip
    eyes = Eyes(container, "b")
    async with observing(options, eyes):
        await eyes.look(2)
        eyes.flows = ()
        cgroup.rmdir()
        await eyes.look(5)
    edges = json.loads((folder / "graph.json").read_text())["graph"]["edges"]
    assert bool(edges) == is_listed


async def test_of_whom_a_provider_has_lost_more_than_seen_is_in_the_status(folder: Path) -> None:
    options = Options(
        socket=str(folder / "o.sock"), state_file="", interval_s=SAMPLE_S, cgroup_root=str(folder)
    )
    eyes = Eyes()
    eyes.lost = {"a": 150}
    async with observing(options, eyes):
        await eyes.look(2)
        status = await status_of(options)
    assert dict(status.trust) == {"a": pytest.approx(0.2, abs=0.1)}


async def test_samples_come_sooner_while_the_table_of_pairs_is_more_than_half_full(folder: Path) -> None:
    options = Options(
        socket=str(folder / "o.sock"), state_file="", interval_s=SAMPLE_S, cgroup_root=str(folder)
    )
    eyes = Eyes()
    told = []
    async with observing(options, eyes):
        for eyes.fill in (0.1, 0.6, 0.4, 0.1):
            await eyes.look(3)
            status = await status_of(options)
            told.append((status.pairs_fill, status.next_sample_s))
    assert told == [(0.1, SAMPLE_S), (0.6, SAMPLE_S / 4), (0.4, SAMPLE_S / 4), (0.1, SAMPLE_S)]


async def is_fed(manager: socket.socket) -> bool:
    """Whether systemd hears from the watchdog again, or nothing for as long as its socket waits."""
    with contextlib.suppress(OSError):
        while await asyncio.to_thread(manager.recv, 1000) != b"WATCHDOG=1":
            pass
        return True
    return False


async def test_the_watchdog_is_not_fed_while_a_look_hangs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LONGEST_LOOK_S", 0.5)
    options = Options(
        socket=str(folder / "o.sock"), state_file="", interval_s=SAMPLE_S, cgroup_root=str(folder)
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(2)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        eyes = Eyes()
        async with observing(options, eyes):
            assert await is_fed(manager)
            eyes.may_end.clear()
            # Fed for ever it would never be silent.
            meals = 0
            while meals < 1000 and await is_fed(manager):
                meals += 1
            assert meals < 1000
            eyes.may_end.set()
            assert await is_fed(manager)
