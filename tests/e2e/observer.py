"""The real observer as a process, and what it says over its socket."""

from __future__ import annotations

import asyncio
import ctypes
import json
import math
import os
import platform
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import grpc.aio
import pytest

from cri_api import affinity_pb2 as affinity
from tests.agent import ROOT
from tests.bpf.talkers import missing_bcc
from tests.e2e.cgroups import cgroup_mounts
from tests.e2e.node import until

#: So long that nothing decays while a test runs: a smoothed rate is then a sum (see ``bytes_between``).
HALF_LIFE_S = 100_000.0
INTERVAL_S = 0.2


class Observer:
    """One observer in one folder; starts and ends as often as a test wants."""

    def __init__(self, runtime: Path, **options: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cro-"))
        self.socket = self.folder / "a.sock"
        self.log_file = self.folder / "log"
        self.process: Optional[asyncio.subprocess.Process] = None
        self.options: dict[str, Any] = {
            "socket": str(self.socket),
            "runtime_sockets": [str(runtime)],
            "state_file": str(self.folder / "graph.json"),
            "interval_s": INTERVAL_S,
            # On a busy machine, too, tests see by the provider that they are about.
            "compile_patience_s": 120,
            "half_life_s": HALF_LIFE_S,
            "least_weight": 0,
            "least_share": 0,
            "message_lines": 0,
            **options,
        }

    # --- life

    async def start(self, *prefix: str) -> None:
        """Start it, by way of the program ``prefix`` if given; returns when it sees, by whatever provider."""
        command = [*prefix, sys.executable, "-m", "bpf", "--options", json.dumps(self.options)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        # As when it is installed: compiling its modules anew would leave a megabyte behind.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment, cwd=str(self.folder)
            )
        graph = await until(
            self._answer, lambda graph: isinstance(graph, affinity.Graph) and graph.status.provider != ""
        )
        wanted = self.options.get("provider", "auto")
        assert wanted in ("auto", graph.status.provider), graph.status.refused

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        return await self._end(signal.SIGTERM)

    async def close(self) -> None:
        """Ended in whatever state it is, and its folder removed."""
        if self.process is not None and self.process.returncode is None:
            await self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 30)

    # --- what it says

    async def graph(self) -> Any:
        """``GetGraph``."""
        # A pool of its own: in the shared one a refused connection is retried only after a second.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{self.socket}", options) as channel:
            call = channel.unary_unary(
                "/cri_resmgr.affinity.v1.Affinity/GetGraph",
                request_serializer=affinity.GetGraphRequest.SerializeToString,
                response_deserializer=affinity.Graph.FromString,
            )
            return await call(affinity.GetGraphRequest(), timeout=10)

    async def until_sampled(self) -> Any:
        """The graph once it has a sample that was taken after this call."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return await until(self.graph, lambda graph: graph.status.sampled_at_s > now_s)

    async def until_bytes(
        self,
        a: str,
        b: str,
        expected: tuple[float, float],
        tolerance: float = 0.01,
        before: tuple[float, float] = (0, 0),
    ) -> None:
        """Once it has seen so many payload bytes from a to b and back, besides those ``before``; and no more.

        Not at once: the last ones count when the server has closed its end too, which it does in its own time.
        """

        async def seen() -> tuple[float, float]:
            there, back = bytes_between(await self.until_sampled(), a, b)
            return there - before[0], back - before[1]

        try:
            await until(seen, lambda found: found == pytest.approx(expected, rel=tolerance), 5.0)
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}; expected {expected}; the observer says:\n{self.log()}") from None
        assert await seen() == pytest.approx(expected, rel=tolerance)

    async def _answer(self) -> Any:
        """The graph, or the problem while nobody answers yet."""
        assert self.process is not None and self.process.returncode is None, self.log()
        try:
            return await self.graph()
        except grpc.aio.AioRpcError as problem:
            return problem

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""


def edge_between(graph: Any, a: str, b: str) -> Any:
    """The edge of two endpoints, or None."""
    wanted = {a, b}
    return next((edge for edge in graph.edges if {edge.a, edge.b} == wanted), None)


def bytes_between(graph: Any, a: str, b: str) -> tuple[float, float]:
    """Payload bytes from a to b and from b to a, all that was seen so far.

    A sample of T seconds with x bytes adds (1 - 2^(-T / half life)) * x / T to the smoothed rate, which is
    x * ln 2 / half life where T is much shorter than that; and nothing decays in the time of a test.
    """
    edge = edge_between(graph, a, b)
    if edge is None:
        return 0.0, 0.0
    scale = HALF_LIFE_S / math.log(2)
    there, back = edge.bytes_ab_per_s * scale, edge.bytes_ba_per_s * scale
    return (there, back) if edge.a == a else (back, there)


def edges_among(graph: Any, names: Mapping[str, str]) -> dict[frozenset[str], float]:
    """Weights of the edges between these containers, by their names; ``names`` by id."""
    return {
        frozenset((names[edge.a], names[edge.b])): edge.weight
        for edge in graph.edges
        if edge.a in names and edge.b in names
    }


def missing_for_ebpf() -> str:
    """What this machine lacks to see traffic by eBPF, as a sentence for a skip; "" if nothing."""
    if not any(names == [] for _, names in cgroup_mounts()):
        return "No cgroup v2 hierarchy is mounted."
    return missing_bcc()


def kernel_objects_of(pid: int) -> set[tuple[str, int]]:
    """The BPF programs, links and maps that a process holds, directly or by a link: ("prog", 17), ..."""
    found = set()
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = path.read_text()
        except FileNotFoundError:
            continue  # it was closed meanwhile
        for kind, number in re.findall(r"^(prog|link|map)_id:\s*(\d+)$", text, re.MULTILINE):
            found.add((kind, int(number)))
    return found


def open_kernel_object(kind: str, number: int) -> int:
    """A descriptor of a program, link or map (bpf(2): BPF_*_GET_FD_BY_ID).

    :raises FileNotFoundError: there is none of this number.
    """
    command = {"prog": 13, "map": 14, "link": 30}[kind]
    attributes = struct.pack("=III", number, 0, 0).ljust(128, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    syscall = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    fd = int(libc.syscall(syscall, command, attributes, len(attributes)))
    if fd < 0:
        raise OSError(ctypes.get_errno(), f"{kind} {number}")
    return fd


def is_in_kernel(kind: str, number: int) -> bool:
    """Whether there is such a program, link or map."""
    try:
        os.close(open_kernel_object(kind, number))
    except FileNotFoundError:
        return False
    return True
