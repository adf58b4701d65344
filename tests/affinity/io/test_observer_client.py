"""The daemon's client of a real observer process: it follows, freezes, comes back, and forgets nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bpf.kernel.clock import boot_time_s
from bpf.service.options import Options
from bpf.service.server import AffinityService, ServiceSockets
from bpf.sources.samples import Flow
from cri_api import affinity_pb2 as pb
from cri_proxy.affinity.io.observer_client import FILE, AffinityClient, read_delta, read_remote
from policies.affinity.graph.graph import EndpointIdentity, Graph
from policies.affinity.graph.remote import RemotePeer
from policies.affinity.graph.traffic import Traffic
from tests.bpf.observer import ObserverProcess, write_recording

WEB, DB = "shop/web/nginx", "shop/db/pg"
WAIT_S = 30.0


class Log:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.events.append(f"{event} {fields}")

    def exception(self, event: str, **_: Any) -> None:
        self.events.append(event)


class Follower:
    """A client that runs, and whose changes can be waited for."""

    def __init__(self, folder: Path) -> None:
        self.log = Log()
        self.client = AffinityClient(folder / "affinity.sock", folder, self.log, self._changed)
        self._change = asyncio.Event()
        self._task = asyncio.create_task(self.client.run())

    def _changed(self) -> None:
        self._change.set()

    async def until(self, holds: Callable[[Traffic], bool]) -> Traffic:
        """Wait for a picture of which that holds."""

        async def wait() -> Traffic:
            while not holds(self.client.traffic):
                self._change.clear()
                await self._change.wait()
            return self.client.traffic

        return await asyncio.wait_for(wait(), WAIT_S)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture
def observer(folder: Path) -> Iterator[ObserverProcess]:
    observer = ObserverProcess(folder)
    yield observer
    observer.close()


@pytest.fixture
async def follower(folder: Path) -> AsyncIterator[Follower]:
    follower = Follower(folder)
    yield follower
    await follower.close()


def is_fresh(traffic: Traffic) -> bool:
    return bool(traffic.edges) and not traffic.frozen


async def test_it_follows_the_graph(observer, follower) -> None:
    assert follower.client.traffic.frozen == "the observer has not answered yet"
    observer.start()
    traffic = await follower.until(is_fresh)
    assert traffic.edges[WEB][DB] == traffic.edges[DB][WEB] > 0
    assert traffic.owners[WEB][DB] > 0
    assert [(edge.a, edge.b, edge.kinds) for edge in traffic.listed] == [(DB, WEB, ("tcp",))]
    status = follower.client.status()
    assert (status["problem"], status["provider"]) == ("", "replay")
    assert status["resident_bytes"] > 0
    assert status["age_s"] < WAIT_S


def test_edges_without_two_ends_or_a_weight_are_left_out() -> None:
    ends = [
        ("a", "b", 1.0),
        ("a", "c", 0.0),
        ("", "b", 1.0),
        ("a", "", 1.0),
        ("a", "d", -1.0),
        ("a", "e", math.nan),
    ]
    edges = [pb.Edge(a=a, b=b, weight=weight) for a, b, weight in ends]
    owners = [pb.OwnerEdge(a=a, b=b, weight=weight) for a, b, weight in ends[:2]]
    read = read_delta(pb.GraphDelta(edges=edges, owner_edges=owners))
    assert [(edge.a, edge.b) for edge in read.edges] == [("a", "b")]
    assert read.owners == {("a", "b"): 1.0}


def test_what_is_said_of_other_nodes_is_read_and_an_older_observer_says_nothing() -> None:
    peers = [
        pb.RemotePeer(id="a", address="10.244.7.3", bytes_per_s=5.0),
        pb.RemotePeer(id="", address="10.244.7.3", bytes_per_s=5.0),
        pb.RemotePeer(id="a", address="", bytes_per_s=5.0),
        pb.RemotePeer(id="a", address="10.244.7.4", bytes_per_s=math.nan),
    ]
    assert read_remote(pb.GraphDelta(remote_peers=peers)) == (RemotePeer("a", "10.244.7.3", 5.0),)
    assert read_remote(pb.GraphDelta()) == ()


async def test_an_observer_that_is_killed_leaves_the_picture_frozen(observer, follower) -> None:
    observer.start()
    await follower.until(is_fresh)
    observer.end(signal.SIGKILL)
    frozen = await follower.until(lambda traffic: bool(traffic.frozen))
    assert "observer" in frozen.frozen
    assert frozen.edges[WEB][DB] > 0
    assert follower.client.status()["problem"] == follower.client.traffic.frozen
    observer.start()
    await follower.until(is_fresh)


class AnsweringObserver:
    """Answers whoever asks, in this process; when it has looked last is what the test says."""

    def __init__(self, folder: Path) -> None:
        graph = Graph()
        identities = {key: EndpointIdentity(key, owner=f"shop/{key}/app") for key in ("a", "b")}
        graph.observe(100.0, [Flow("a", "b", "tcp", 10**9)], identities)
        self.looked_s_ago = 0.0
        self._listener = ServiceSockets(Options(socket=str(folder / "affinity.sock")))
        self._service = AffinityService(graph, self._status)

    def _status(self) -> pb.Status:
        return pb.Status(
            provider="ebpf",
            detail="counts at /; the last sample failed: no map",
            sample_s=1.0,
            sampled_at_s=boot_time_s() - self.looked_s_ago,
            observed_s=1000.0,
            half_life_s=66.0,
        )

    def says(self, looked_s_ago: float) -> None:
        """Tell those who watch, as after every sample, also one that has failed."""
        self.looked_s_ago = looked_s_ago
        self._service.announce()

    async def __aenter__(self) -> AnsweringObserver:
        await self._listener.start(self._service)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._listener.close()


NOT_LOOKED = (
    "the observer has not looked for more than 10 s; it says: counts at /; the last sample failed: no map"
)


async def test_an_observer_that_answers_and_does_not_look_leaves_the_picture_frozen(folder) -> None:
    async with AnsweringObserver(folder) as observer:
        follower = Follower(folder)
        await follower.until(is_fresh)
        observer.says(looked_s_ago=9.0)
        observer.says(looked_s_ago=11.0)
        frozen = await follower.until(lambda traffic: bool(traffic.frozen))
        assert frozen.frozen == NOT_LOOKED
        assert frozen.edges["a"]["b"] > 0
        assert follower.client.status()["problem"] == NOT_LOOKED
        observer.says(looked_s_ago=0.0)
        await follower.until(is_fresh)
        await follower.close()
    assert sum("affinity graph frozen" in event for event in follower.log.events) == 1


async def test_the_picture_is_old_since_the_observers_last_look(folder) -> None:
    async with AnsweringObserver(folder) as observer:
        follower = Follower(folder)
        await follower.until(is_fresh)
        for looked_s_ago in (2000.0, 1000.0, 3000.0):
            observer.says(looked_s_ago=looked_s_ago)

            def is_since_then(_: Traffic, looked_s: float = time.time() - looked_s_ago) -> bool:
                old = follower.client.old()
                return old is not None and abs((old.since_s or 0.0) - looked_s) < WAIT_S

            await follower.until(is_since_then)
        await follower.close()


async def test_a_graph_that_was_old_when_it_was_asked_for_is_not_new(folder) -> None:
    async with AnsweringObserver(folder) as observer:
        observer.looked_s_ago = 1000.0
        follower = Follower(folder)
        old = await follower.until(lambda traffic: bool(traffic.edges))
        assert old.frozen == NOT_LOOKED
        await follower.close()


async def test_a_new_observer_that_sees_nothing_yet_takes_nothing_away(folder, observer, follower) -> None:
    observer.start()
    await follower.until(is_fresh)
    observer.end(signal.SIGKILL)
    observer.state_file.unlink(missing_ok=True)
    write_recording(folder / "replay.jsonl", flows=[])
    observer.options["half_life_s"] = 3.0
    observer.start()
    waiting = await follower.until(lambda traffic: "just started" in traffic.frozen)
    assert waiting.edges[WEB][DB] > 0
    assert follower.client.status()["problem"] == ""
    # After one half-life it is believed.
    assert (await follower.until(lambda traffic: not traffic.frozen)).edges == {}


async def test_a_daemon_starts_with_the_last_picture(folder, observer) -> None:
    observer.start()
    first = Follower(folder)
    known = await first.until(is_fresh)
    await first.close()
    observer.end()
    second = Follower(folder)
    assert second.client.traffic.edges.keys() == known.edges.keys()
    assert second.client.traffic.frozen
    await second.close()


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"edges": 5, "owners": []}', "[" * 100_000])
def test_rubbish_on_disk_is_set_aside(folder, text) -> None:
    (folder / FILE).write_text(text)
    log = Log()
    client = AffinityClient(folder / "affinity.sock", folder, log)
    assert client.traffic.edges == {}
    assert (folder / f"{FILE}.bad").read_text() == text
    assert "set aside" in log.events[0]


async def test_a_listener_that_fails_does_not_end_it(observer, follower) -> None:
    def fail() -> None:
        changed()
        raise RuntimeError("a bug")

    changed, follower.client.on_change = follower._changed, fail
    observer.start()
    await follower.until(is_fresh)
    await follower.until(lambda traffic: traffic.version > 3)
    assert "affinity listener failed" in follower.log.events


async def test_a_state_directory_that_cannot_be_written_costs_a_line(folder, observer) -> None:
    follower = Follower(folder)
    observer.start()
    await follower.until(is_fresh)
    (folder / f"{FILE}.new").mkdir()
    await follower.close()
    assert any("affinity graph not saved" in event for event in follower.log.events)


async def test_what_is_kept_is_json(folder, observer) -> None:
    follower = Follower(folder)
    observer.start()
    await follower.until(is_fresh)
    await follower.close()
    kept = json.loads((folder / FILE).read_text())
    assert [row[:2] for row in kept["owners"]] == [[DB, WEB]]


async def test_it_is_kept_from_the_event_loop_while_it_goes_on(observer, follower) -> None:
    """What keeps files for the daemon belongs to its loop."""
    kept = asyncio.Event()

    def later(work: Callable[[], None]) -> None:
        asyncio.get_running_loop()
        work()
        kept.set()

    follower.client.later = later
    follower.client._saved_s = -math.inf
    observer.start()
    await asyncio.wait_for(kept.wait(), WAIT_S)
    assert not any("failed" in event for event in follower.log.events)
