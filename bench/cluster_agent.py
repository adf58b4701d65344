"""What the node agent takes and sends: ``python -m bench.cluster_agent``.

The agent runs as a process of its own, both halves in it, against an API server over TLS, for what it keeps in memory;
for its CPU, and an hour of its rounds is run on a clock that jumps, for its bytes: a node on which nothing happens, and
one on which a container is replaced between any two looks, which is the most that its pace lets through. The daemon is
a socket that gives reports of as many containers on a two-socket machine of 16 L3s; what the API server answers is
counted as well. CPU is that of as many rounds as an hour has, each with a write where containers are replaced.
``AGENT_PYTHON`` (words): another Python for the process. ``AGENT_SIZES``: other numbers of containers.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import ssl
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.figures import cpu_s, machine_line, memory_mb, print_row
from cluster.agent.io.daemon import DaemonClient
from cluster.agent.io.reporter import Reporter, Reporting
from cluster.agent.io.written import PLACEMENTS
from cluster.api.names import API_VERSION, NODE_PLACEMENT
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cri_api.control import read_request, write_result
from tests.agent import ROOT
from tests.cluster.agent.reports import cluster, group, placement, zone
from tests.cluster.api_server import ApiServer, certificates

NODE = "node-1"
SIZES = [int(word) for word in os.environ.get("AGENT_SIZES", "100 500").split()]
PYTHON = shlex.split(os.environ.get("AGENT_PYTHON", sys.executable))
HOUR_S, LOOK_S = 3600, 5
NODES = 5000
#: Memory is looked at once so much was written and the commanding half has looked so often.
WRITES, LOOKS = 20, 3
#: A watch is begun anew every five minutes, and says once a minute that it lives.
WATCHES_AN_HOUR, BOOKMARKS_AN_HOUR = 12, 60
#: Both halves follow the node's object.
WATCHES = 2
L3S, NUMA_NODES = 16, 8
POLICY = {"name": "dense", "generation": 1, "hash": "h"}


class ReportingDaemon:
    """A socket with a report of ``containers``; ``churns``: a container is another with each look."""

    def __init__(self, containers: int, churns: bool) -> None:
        self._rows = [_row(number) for number in range(containers)]
        self._churns = churns
        self.reports = 0
        self.looks = 0
        self._bytes = b""

    async def serve(self, socket: Path) -> asyncio.AbstractServer:
        return await asyncio.start_unix_server(self._answer, str(socket))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command, arguments = read_request(await reader.readline())
        writer.write(
            self._reply(arguments.get("parts"), arguments)
            if command == "report"
            else write_result({"problems": []})
        )
        await writer.drain()
        writer.close()

    def _reply(self, parts: Any, arguments: Any) -> bytes:
        if parts is not None or (
            arguments.get("events_since", 0) and (arguments["events_since"] or 0) > 1 << 60
        ):
            self.looks += 1
            return write_result({key: value for key, value in self._report().items() if key in parts})
        self.reports += 1
        if self._churns:
            self._rows[self.reports % len(self._rows)] = _row(self.reports + 100_000)
        if self._churns or not self._bytes:
            self._bytes = write_result(self._report())
        return self._bytes

    def _report(self) -> dict[str, Any]:
        zones = [zone(name=f"node-{number}", cpus=_cpus(number, 16)) for number in range(NUMA_NODES)]
        zones += [zone(name=f"l3-{number}", type="L3", cpus=_cpus(number, 8)) for number in range(L3S)]
        numa = [
            {"id": number, "socket": number // 4, "cpus": _cpus(number, 16), "memory_bytes": 1 << 36,
             "distances": {str(other): 16 for other in range(NUMA_NODES)}}
            for number in range(NUMA_NODES)
        ]  # fmt: skip
        l3s = [{"id": n, "numa_node": n // 2, "cpus": _cpus(n, 8), "size_bytes": 0} for n in range(L3S)]
        return {
            "version": "0.1.0", "instance": "a", "mode": "enforce", "mode_wanted": "enforce", "front_end": "cri",
            "policy": "hygon", "degraded": {}, "warnings": [],
            "machine": {"sockets": [{"id": 0, "cpus": "0-63"}], "numa_nodes": numa, "l3s": l3s},
            "zones": zones,
            "placements": self._rows,
            "affinity_groups": [group("front-0", "back-0", bytes_per_s=1e8)],
            "cluster": cluster(policy=POLICY, state="applied"), "events": [], "events_next": 1, "events_lost": 0,
        }  # fmt: skip


def _cpus(number: int, count: int) -> str:
    return f"{number * count}-{number * count + count - 1}"


def _row(number: int) -> dict[str, Any]:
    """Names as a Deployment's pods have them."""
    pod = f"storefront-{number % 40:02}-7d9f8b6c5d-{number:05}"
    uid = f"0b7e2c4a-93d1-4f6e-8a57-{number:012}"
    cpus = _cpus(number % L3S, 8)
    return placement(pod, pod_uid=uid, container_id=f"{number:064x}", cpus=cpus, zone=f"l3-{number % L3S}")


async def main() -> None:
    print(machine_line())
    print_row("containers", "node", "resident MB", "proportional MB", "most MB", "writes an hour", "KB sent an hour",
              "KB received an hour", "CPU s an hour", f"{NODES} nodes send, MB/s")  # fmt: skip
    print_row(*["---"] * 10)
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        cert, key = certificates(Path(folder))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        for containers in SIZES:
            for churns in (False, True):
                await measure(Path(folder), containers, churns, tls, str(cert))


async def measure(folder: Path, containers: int, churns: bool, tls: ssl.SSLContext, cert: str) -> None:
    """One row of figures."""
    socket = folder / f"{containers}-{churns}.sock"
    async with ApiServer(tls) as api:
        _create(api)
        kubeconfig = api.kubeconfig(folder / "kubeconfig", ca_file=cert)
        daemon = ReportingDaemon(containers, churns)
        async with await daemon.serve(socket):
            (resident, proportional, most), cpu = await process(daemon, socket, kubeconfig)
            _create(api)
            writes, sent, received = await hour(api, socket, kubeconfig)
    print_row(
        str(containers), "churning" if churns else "steady",
        f"{resident:.1f}", f"{proportional:.1f}", f"{most:.1f}",
        str(writes), f"{sent / 1e3:,.0f}", f"{received / 1e3:,.0f}", f"{cpu:.1f}",
        f"{NODES * sent / HOUR_S / 1e6:,.2f}",
    )  # fmt: skip


def _create(api: ApiServer) -> None:
    spec = {"policy": {**POLICY, "config": {"placement": {"max_moves": 3}}, "abortOn": ["Degraded"]}}
    body = {"apiVersion": API_VERSION, "kind": NODE_PLACEMENT, "metadata": {"name": NODE}, "spec": spec}
    api.put(PLACEMENTS, body)


async def process(
    daemon: ReportingDaemon, socket: Path, kubeconfig: Path
) -> tuple[tuple[float, float, float], float]:
    """Of both halves in one process after ``WRITES`` rounds: MB (see ``memory_mb``), and seconds of CPU in an hour."""
    words = [f"--view-socket={socket}", f"--control-socket={socket}", f"--kubeconfig={kubeconfig}"]
    words += [f"--node={NODE}", f"--state-dir={socket.parent / 'state'}", "--poll=0.2", "--period=0.1"]
    agent = await asyncio.create_subprocess_exec(
        *PYTHON, "-m", "cluster.agent", *words, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL, env=os.environ
    )
    try:
        await until(agent, lambda: daemon.reports >= WRITES)
        began_s, began = cpu_s(agent.pid), daemon.reports
        await until(agent, lambda: daemon.reports >= 3 * WRITES and daemon.looks >= LOOKS)
        a_round_s = (cpu_s(agent.pid) - began_s) / (daemon.reports - began)
        return memory_mb(agent.pid), a_round_s * HOUR_S / LOOK_S
    finally:
        if agent.returncode is None:
            agent.terminate()
        await agent.wait()


async def until(agent: asyncio.subprocess.Process, is_so: Callable[[], bool]) -> None:
    while not is_so():
        if agent.returncode is not None:
            raise RuntimeError(f"the agent has ended with {agent.returncode}")
        await asyncio.sleep(0.2)


async def hour(api: ApiServer, socket: Path, kubeconfig: Path) -> tuple[int, int, int]:
    """Writes, bytes sent, bytes received, both with what the watches of the own object take."""
    now_s = 0.0

    async def no_sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    clock = Clock(lambda: now_s, lambda: now_s, no_sleep, lambda: 0.5)
    client = Client(Access.kubeconfig(kubeconfig), user_agent="cri-resmgr-agent")
    reporter = Reporter(DaemonClient(socket), client, Reporting(NODE), clock)
    try:
        # The first write is of the start, not of the hour.
        await reporter.round()
        await reporter.problems_known()
        now_s += 30
        await reporter.round()
        begun = client.bytes_sent, client.bytes_received, _writes(api)
        for _ in range(HOUR_S // LOOK_S):
            now_s += LOOK_S
            await reporter.round()
        sent, received = client.bytes_sent - begun[0], client.bytes_received - begun[1]
        writes = _writes(api) - begun[2]
        opened, spoken = await watch_bytes(api, client)
    finally:
        await client.close()
    sent += WATCHES * WATCHES_AN_HOUR * opened[0]
    received += WATCHES * (WATCHES_AN_HOUR * opened[1] + BOOKMARKS_AN_HOUR * spoken)
    return writes, sent, received


def _writes(api: ApiServer) -> int:
    return sum(call.method == "PATCH" for call in api.calls)


async def watch_bytes(api: ApiServer, client: Client) -> tuple[tuple[int, int], int]:
    """What a watch takes to begin (sent, received), and what one bookmark takes."""
    before = client.bytes_sent, client.bytes_received
    watch = client.watch(PLACEMENTS, field_selector=f"metadata.name={NODE}", metadata_only=True)
    await watch.__anext__()
    news = asyncio.ensure_future(watch.__anext__())
    await api.called(lambda call: call.is_watch)
    await asyncio.sleep(0.5)
    opened = client.bytes_sent - before[0], client.bytes_received - before[1]
    api.bookmark()
    await asyncio.sleep(0.5)
    spoken = client.bytes_received - before[1] - opened[1]
    news.cancel()
    return opened, spoken


if __name__ == "__main__":
    asyncio.run(main())
