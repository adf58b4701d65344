"""A real observer process for tests: on a socket of its own, with replayed samples, asked by a real gRPC client."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import grpc

from cri_api import affinity_pb2 as pb

SERVICE = "/cri_resmgr.affinity.v1.Affinity"
WAIT_S = 30.0
#: Two that talk, in every tenth of a second.
TALK = [{"a": "shop/web/nginx", "b": "shop/db/pg", "bytes_ab": 6_400_000, "bytes_ba": 640, "messages": 10}]


def write_recording(path: Path, flows: Any = TALK, repeat: bool = True, seconds: float = 0.1) -> Path:
    """A replay file of one sample, again and again."""
    lines = [{"seconds": seconds, "flows": flows}, *([{"repeat": True}] if repeat else [])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@contextlib.contextmanager
def serving_observer(folder: Path) -> Iterator[ObserverProcess]:
    """One that serves a graph, until the end."""
    observer = ObserverProcess(folder)
    observer.start()
    try:
        observer.graph()
        yield observer
    finally:
        observer.close()


class ObserverProcess:
    """``python -m bpf`` in ``folder``. Without a provider in the options it plays ``TALK`` quickly, or ``recording``."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.socket = folder / "affinity.sock"
        self.state_file = folder / "graph.json"
        self.errors = folder / "observer.log"
        self.recording = recording = folder / "replay.jsonl"
        self.options = {
            "socket": str(self.socket),
            "state_file": str(self.state_file),
            "watch": str(folder / "cluster-policy.json"),
            "provider": "declared",
            "interval_s": 0.1,
            "half_life_s": 0.5,
            # On a busy machine, too, tests see by the provider that they are about.
            "compile_patience_s": 120,
            **options,
        }
        if not recording.exists():
            write_recording(recording)
        self._process: Optional[subprocess.Popen[bytes]] = None

    def start(self, argument: str = "", *prefix: str) -> None:
        """Start it; it may not be serving yet. ``prefix``: words of a command that executes it."""
        replays = self.options["provider"] == "declared"
        program = ["tests.replay", str(self.recording)] if replays else ["bpf"]
        command = [*prefix, sys.executable, "-m", *program, "--options", argument or json.dumps(self.options)]
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(command, stderr=errors)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A channel to it, as soon as it serves."""
        with grpc.insecure_channel(f"unix:{self.socket}", options=RECONNECT) as channel:
            yield channel

    def graph(self, least_weight: float = 0.0) -> pb.Graph:
        """What GetGraph says."""
        with self.channel() as channel:
            return call(channel, "GetGraph", pb.GetGraphRequest(least_weight=least_weight), pb.Graph)


#: The sockets of a process that is still starting are tried again at once.
RECONNECT = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]


def call(channel: grpc.Channel, method: str, request: Any, reply: Any) -> Any:
    """One unary call; waits until there is a server."""
    return channel.unary_unary(
        f"{SERVICE}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=reply.FromString,
    )(request, timeout=WAIT_S, wait_for_ready=True)


def watch(channel: grpc.Channel) -> Any:
    """WatchGraph: an iterator of deltas, to be cancelled."""
    return channel.unary_stream(
        f"{SERVICE}/WatchGraph",
        request_serializer=pb.WatchGraphRequest.SerializeToString,
        response_deserializer=pb.GraphDelta.FromString,
    )(pb.WatchGraphRequest(), timeout=WAIT_S, wait_for_ready=True)
