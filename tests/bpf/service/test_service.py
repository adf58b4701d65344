"""The observer as a process: it serves a graph, survives what is done to it, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_api import affinity_pb2 as pb
from tests.bpf.observer import ObserverProcess, call, watch, write_recording

WEB, DB = "shop/web/nginx", "shop/db/pg"


@pytest.fixture
def observer(folder: Path) -> Iterator[ObserverProcess]:
    observer = ObserverProcess(folder)
    yield observer
    observer.close()


def until_seen(observer: ObserverProcess) -> pb.GraphDelta:
    """The first delta that has the edge of the recording."""
    with observer.channel() as channel:
        deltas = watch(channel)
        for delta in deltas:
            if delta.edges:
                deltas.cancel()
                return delta
    raise AssertionError("the observer has ended")


def test_it_serves_what_it_sees(observer: ObserverProcess) -> None:
    observer.start()
    until_seen(observer)
    graph = observer.graph()
    assert [(edge.a, edge.b, list(edge.kinds)) for edge in graph.edges] == [(DB, WEB, ["tcp"])]
    assert graph.edges[0].bytes_ba_per_s > 1000 * graph.edges[0].bytes_ab_per_s > 0
    assert [(edge.a, edge.b) for edge in graph.owner_edges] == [(DB, WEB)]
    assert {(e.namespace, e.pod, e.container) for e in graph.endpoints} == {
        ("shop", "web", "nginx"),
        ("shop", "db", "pg"),
    }
    assert (graph.status.provider, list(graph.status.refused)) == ("replay", [])
    assert graph.status.observed_s > 0
    assert not observer.graph(least_weight=1e12).edges


def test_it_stays_small(observer: ObserverProcess) -> None:
    observer.start()
    until_seen(observer)
    assert 0 < observer.graph().status.resident_bytes <= 25 * 1024 * 1024


def test_groups_topology_and_health_are_served(observer: ObserverProcess) -> None:
    observer.start()
    until_seen(observer)
    with observer.channel() as channel:
        groups = call(channel, "GetGroups", pb.GetGroupsRequest(), pb.Groups)
        topology = call(channel, "GetNodeTopology", pb.GetNodeTopologyRequest(), pb.NodeTopology)
        health = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
    assert [[member.id for member in group.members] for group in groups.groups] == [[DB, WEB]]
    assert topology.sockets and topology.sockets[0].cpus
    # status = SERVING
    assert health == b"\x08\x01"


def test_two_watchers_see_the_same_and_each_starts_with_everything(observer: ObserverProcess) -> None:
    observer.start()
    until_seen(observer)
    with observer.channel() as first, observer.channel() as second:
        for deltas in (watch(first), watch(second)):
            whole = next(deltas)
            assert whole.is_whole
            assert [(edge.a, edge.b) for edge in whole.edges] == [(DB, WEB)]
            assert not next(deltas).is_whole
            deltas.cancel()


def test_an_edge_that_is_gone_is_told(folder: Path, observer: ObserverProcess) -> None:
    write_recording(folder / "replay.jsonl", repeat=False)
    observer.options["half_life_s"] = 0.05
    observer.start()
    with observer.channel() as channel:
        deltas = watch(channel)
        gone = next(key for delta in deltas for key in delta.gone_edges)
        deltas.cancel()
    assert (gone.a, gone.b) == (DB, WEB)


def test_it_ends_in_order_and_remembers(observer: ObserverProcess) -> None:
    # Edges expire after ten of them, and a busy machine takes seconds from the end to the next start.
    observer.options["half_life_s"] = 20
    observer.start()
    until_seen(observer)
    assert observer.end() == 0
    assert not observer.socket.exists()
    assert json.loads(observer.state_file.read_text())["graph"]["edges"]
    observer.options["interval_s"] = 3600
    observer.start()
    assert [(edge.a, edge.b) for edge in observer.graph().edges] == [(DB, WEB)]


def test_after_kill_9_the_socket_that_is_left_is_replaced(observer: ObserverProcess) -> None:
    observer.start()
    until_seen(observer)
    observer.end(signal.SIGKILL)
    assert observer.socket.exists()
    observer.start()
    assert until_seen(observer).edges


def test_only_root_may_ask(observer: ObserverProcess) -> None:
    observer.start()
    observer.graph()
    assert observer.socket.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_is_served_is_not_taken(folder: Path, observer: ObserverProcess) -> None:
    observer.start()
    observer.graph()
    second = ObserverProcess(folder)
    second.start()
    assert second.wait() == 1
    assert "is served by another process" in second.errors.read_text()
    assert observer.graph().status.provider == "replay"


def test_a_file_in_the_place_of_the_socket_is_left_alone(observer: ObserverProcess) -> None:
    observer.socket.write_text("mine")
    observer.start()
    assert observer.wait() == 1
    assert "exists and is not a socket" in observer.errors.read_text()
    assert observer.socket.read_text() == "mine"


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"boot":"","at_s":0,"graph":{"version":1}}'])
def test_rubbish_in_the_state_file_is_set_aside(observer: ObserverProcess, text: str) -> None:
    observer.state_file.write_text(text)
    observer.start()
    until_seen(observer)
    assert Path(f"{observer.state_file}.bad").read_text() == text
    assert "set aside" in observer.errors.read_text()


def test_sighup_reads_the_file_of_options_again(folder: Path, observer: ObserverProcess) -> None:
    options = folder / "options.json"
    options.write_text(json.dumps(observer.options))
    observer.start(f"@{options}")
    until_seen(observer)
    options.write_text(json.dumps({**observer.options, "least_weight": 1e12}))
    os.kill(observer.pid, signal.SIGHUP)
    with observer.channel() as channel:
        deltas = watch(channel)
        assert any(not delta.edges if delta.is_whole else delta.gone_edges for delta in deltas)
        deltas.cancel()
    options.write_text("{")
    os.kill(observer.pid, signal.SIGHUP)
    assert observer.graph().status.provider == "replay"


def test_capabilities_are_given_up(observer: ObserverProcess) -> None:
    observer.start()
    observer.graph()
    status = dict(
        line.split(":\t")
        for line in Path(f"/proc/{observer.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert {status[name].strip("0") for name in ("CapEff", "CapPrm", "CapBnd")} <= {"", status["CapBnd"]}
    assert status["CapEff"].strip("0") == ""
    assert status["NoNewPrivs"] == "1"


def test_systemd_is_told(folder: Path, observer: ObserverProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        observer.start()
        told = set()
        while not {"READY=1", "WATCHDOG=1"} <= told:
            told |= set(manager.recv(1000).decode().splitlines())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown option": ({"sokcet": "x"}, "there is no option 'sokcet'"),
    "unknown provider": ({"provider": "magic"}, "'magic' is not one of auto"),
    "TCP without certificates": ({"listen": "127.0.0.1:7001"}, "TCP is with mutual TLS only"),
}


@pytest.mark.parametrize(("options", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_one_sentence(folder: Path, options: dict[str, Any], sentence: str) -> None:
    refused = ObserverProcess(folder, **options)
    refused.start()
    assert refused.wait() == 1
    assert sentence in refused.errors.read_text()
    assert "Traceback" not in refused.errors.read_text()
    assert not refused.socket.exists()


def test_on_this_host_the_best_provider_that_works_is_used(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    observer = ObserverProcess(folder, provider="auto")
    observer.start()
    try:
        status = observer.graph().status
        order = ["ebpf", "sock_diag", "declared"]
        above = order[: order.index(status.provider)]
        assert [sentence.partition(":")[0] for sentence in status.refused] == above
        assert observer.end() == 0
    finally:
        observer.close()


def test_without_rights_only_declared_affinities_count_and_status_says_why(folder: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    observer = ObserverProcess(folder, provider="auto")
    with observer.errors.open("ab") as errors:
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "bpf"]
        process = subprocess.Popen([*command, "--options", json.dumps(observer.options)], stderr=errors)
    try:
        status = observer.graph().status
        assert status.provider in ("sock_diag", "declared")
        assert status.refused[0].startswith("ebpf: ")
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_help_is_one_line() -> None:
    shown = subprocess.run([sys.executable, "-m", "bpf"], capture_output=True, text=True, timeout=30)
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
