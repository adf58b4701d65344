"""What is done inside the virtual machine: pairs of pods under each placement, and the loads that are counted there.

A measurement is a line of JSON among what its check prints; the n-th of them belongs to the plugin's n-th pair of marks.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient
from tests.vm.guest.installation import OBSERVER, SERVICE, SOCKET_UNIT, run
from tests.vm.guest.node import RUNTIME, Node, Running, connect, until
from tests.vm.guest.table import Run

TRAFFIC = "docker.io/local/traffic:1"
#: The folder of the pods' programs and files, here and in the pods.
FILES, MOUNTED = Path("/run/cache"), "/cache"
PATIENCE_S = 900
IDLE_MS = "1000"
#: For the observer to see a pair, and for a plan that brings it together.
TOGETHER_S = 300
#: Frozen while a load counts: the runtime, its shims, daemon, observer, this program; and the cgroup of what does that.
HELD, HOLDER = "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/hold"
#: Of the daemon and the observer: moved only when told, and soon.
DAEMON_CONFIG = """\
affinity:
  provider: {provider}
  rebalance: manual
  cooldown: 1ms
"""
#: Besides: what is seen counts at once, and where the daemon sizes by demand it shrinks a set within seconds.
CONSTANTS = {
    "affinity_interval_s": 1,
    "affinity_half_life_s": 20,
    "affinity_minimum_age_s": 1,
    "affinity_least_weight": 10,
    "demand_interval_s": 1,
    "demand_window_s": 10,
    "demand_half_life_s": 10,
    "demand_shrinks_per_minute": 1000,
}
_NGINX = """\
daemon off;
worker_processes 1;
user root root;
error_log stderr warn;
pid /tmp/nginx.pid;
events { worker_connections 256; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000000;
  client_body_temp_path /tmp/body;
  proxy_temp_path /tmp/proxy;
  fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi;
  scgi_temp_path /tmp/scgi;
  server {
    listen 80;
    location / { root /cache/www; }
  }
}
"""


@dataclass(frozen=True)
class Load:
    """A client's fixed work for a server of this kind: ``warm`` requests, and ``count`` between the marks.

    ``words``: its program and the arguments before these numbers; ``{server}`` is the server's address, ``{own}`` the folder
    of its pair.
    """

    name: str
    server: str
    words: tuple[str, ...]
    warm: int
    count: int


#: Connections and threads of the client: with a server of one thread, as many as a CCX has CPUs are busy.
_FOUR_BY_ONE = ("4", "1")
#: The client's container: a line is a program, its output goes into files. An exec would have the runtime start programs.
_RUNNER = "cd {folder}; while read -r todo <{fifo}; do $todo >said 2>problem; echo $? >code; done"
#: By kind, from the folder of the pods' files and ``{own}``, that of the pair: two servers may be there at a time. The
#: linker is told where the libraries of the host's redis are.
_SERVERS = {
    "nginx": ("nginx", "-c", f"{MOUNTED}/nginx.conf"),
    "redis": (
        *(f"{MOUNTED}/redis/loader", "--library-path", f"{MOUNTED}/redis", f"{MOUNTED}/redis/redis-server"),
        *("--port", "0", "--unixsocket", "{own}/redis.socket", "--save", "", "--appendonly", "no"),
    ),
    "consumer": (f"{MOUNTED}/batches", "consume", "{own}/batches.memory", "64"),
}
#: Of `make bench-cache`, and of `make bench-cache-long`.
SHORT = (
    Load("nginx, 1 KiB", "nginx", ("load", "{server}:80", "/1k", *_FOUR_BY_ONE), 100, 300),
    Load("nginx, 64 KiB", "nginx", ("load", "{server}:80", "/64k", *_FOUR_BY_ONE), 50, 100),
)
LONG = (
    Load(
        "Redis, GET of 1 KiB, unix socket",
        "redis",
        ("load", "{own}/redis.socket", "key", *_FOUR_BY_ONE),
        500,
        3000,
    ),
    Load(
        "batches of 64 lines, shared memory",
        "consumer",
        ("batches", "produce", "{own}/batches.memory", "64"),
        200,
        2000,
    ),
)
LOADS = {load.name: load for load in (*SHORT, *LONG)}
#: Requests until it is ended.
_NO_END, _NO_MARKS = "1000000000", "0"


@dataclass(frozen=True)
class Pair:
    """Two containers, each in a pod of its own, that talk; ``loads`` are for this server."""

    server: Running
    client: Running
    address: str
    #: The name of its folder in that of the pods' files.
    own: str
    #: A FIFO from which the client takes what it is to run.
    todo: Path
    loads: tuple[Load, ...]

    @property
    def both(self) -> tuple[Running, Running]:
        return self.server, self.client


async def every_placement(node: Node) -> None:
    """One pair a kind of server lives through all placements; with demand, another one beside it."""
    job = job_of(node)
    write_files(node.job)
    pairs = []
    for kind in dict.fromkeys(LOADS[name].server for name in job["loads"]):
        pair = await pair_of(node, kind)
        if job["observer"]:
            await _by_limit_and_by_what_the_observer_has_seen(node, pair)
        pairs.append(pair)
        if job["demand"]:
            await _by_demand(node, kind)
    # A daemon that is stopped changes no cpuset: from here on there is none, and the runtime is told all of them.
    run("systemctl", "stop", OBSERVER, SOCKET_UNIT, SERVICE)
    nodes = node.shape.numa_nodes
    everything = f"0-{node.shape.cpus - 1}"
    async with connect(node.api, RUNTIME) as direct:
        direct.call_timeout_s = PATIENCE_S
        for pair in pairs:

            async def everywhere(pair: Pair = pair) -> None:
                """Each container on one CPU, at random, and then free: where a process begins decides where it stays for
                longer than a load lasts."""
                drawn = [str(random.randrange(node.shape.cpus)) for _ in pair.both]
                print(f"begin on CPUs: {' '.join(drawn)}")
                for cpusets in (drawn, (everything, everything)):
                    await _set_cpus(direct, pair, cpusets)

            await measure(node, pair, "no manager", everywhere)
            told = [("one L3", (node.shape.ccxs[0], node.shape.ccxs[0]))]
            if job["observer"]:
                told += [("a NUMA node each", (nodes[0], nodes[1])), ("one NUMA node", (nodes[0], nodes[0]))]
            for placement, cpusets in told:
                await _set_cpus(direct, pair, cpusets)
                await measure(node, pair, placement)


async def _set_cpus(runtime: CriClient, pair: Pair, cpusets: Sequence[str]) -> None:
    for container, cpus in zip(pair.both, cpusets):
        await runtime.update(container.id, cpuset_cpus=cpus)


async def _by_limit_and_by_what_the_observer_has_seen(node: Node, pair: Pair) -> None:
    """Each container has a CCX by its limit; then the pair is seen by the observer, and moved, or there is no such row."""
    await measure(node, pair, "limit")
    run("systemctl", "start", OBSERVER)
    try:
        async with _talking(node, pair):
            await _until_brought_together(node, pair)
    except AssertionError as error:
        print(f"not brought together: {error}")
        return
    print(f"observer: {node.ask('status')['affinity']['observer']['provider']}")
    await measure(node, pair, "observer")


async def _by_demand(node: Node, kind: str) -> None:
    """By their limit the containers have a NUMA node each; under load they shrink. What has come of it is measured."""
    more = {"cpu_limit": node.shape.cpus_per_node * 1000, "annotations": {"cri-resmgr.io/size": "demand"}}
    pair = await pair_of(node, kind, **more)
    try:
        async with _talking(node, pair):
            await until(
                lambda: [node.cpus(container) for container in pair.both],
                lambda found: all(cpus in node.shape.ccxs for cpus in found),
                TOGETHER_S,
            )
            if node.cpus(pair.server) != node.cpus(pair.client):
                await _until_brought_together(node, pair)
    except AssertionError as error:
        print(f"not shrunk, or not brought together: {error}")
    await measure(node, pair, "demand")
    await node.remove(*(container.pod for container in pair.both))


async def _until_brought_together(node: Node, pair: Pair) -> None:
    """Seen by the observer, and moved: while they talk."""
    ids = {container.id for container in pair.both}
    await until(
        lambda: node.ask("affinity"),
        lambda told: any({e["a"], e["b"]} == ids for e in told["edges"]),
        TOGETHER_S,
    )
    await until(lambda: node.ask("rebalance"), lambda told: told["accepted"], TOGETHER_S)


def job_of(node: Node) -> dict[str, Any]:
    job: dict[str, Any] = json.loads((node.job / "job.json").read_text())
    return job


async def pair_of(node: Node, kind: str, **more: Any) -> Pair:
    """``more``: as for ``Node.run``; by limit, both together fill a CCX: the planner brings no more into one."""
    mounts = (cri.Mount(container_path=MOUNTED, host_path=str(FILES)),)
    same: dict[str, Any] = {
        "image": TRAFFIC,
        "cpu_request": 500,
        "cpu_limit": node.shape.cpus_per_ccx * 500,
        "mounts": mounts,
        "host_network": False,
        **more,
    }
    # Of other names than the pair before: what is known to have talked is placed together from its start.
    own = uuid.uuid4().hex[:8]
    (FILES / own).mkdir()
    command = tuple(word.format(own=f"{MOUNTED}/{own}") for word in _SERVERS[kind])
    server = await node.run(f"{kind}-server", command=command, **same)
    todo = FILES / own / "todo"
    os.mkfifo(todo)
    runner = _RUNNER.format(folder=MOUNTED, fifo=f"{own}/todo")
    client = await node.run(f"{kind}-client", command=("sh", "-c", runner), **same)
    if kind == "redis":
        await until(lambda: _set_key(FILES / own / "redis.socket"))
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=server.pod.id)
    address = str((await node.kubelet.call("PodSandboxStatus", request)).status.network.ip)
    chosen = [LOADS[name] for name in job_of(node)["loads"]]
    return Pair(server, client, address, own, todo, tuple(load for load in chosen if load.server == kind))


async def measure(
    node: Node,
    pair: Pair,
    placement: str,
    before: Optional[Callable[[], Awaitable[None]]] = None,
    *,
    idle: bool = True,
) -> None:
    """The idle machine, and each load as often as the job says; ``before`` each.

    Without ``idle``: where a monitoring group keeps the machine's own lines apart.
    """
    if idle:
        await _counted(node, pair, placement, "idle", ["load", "idle", IDLE_MS])
    for _ in range(job_of(node)["repeats"]):
        for load in pair.loads:
            if before is not None:
                await before()
            await _counted(
                node, pair, placement, load.name, _words(pair, load, str(load.warm), str(load.count))
            )


def _words(pair: Pair, load: Load, *numbers: str) -> list[str]:
    own = f"{MOUNTED}/{pair.own}"
    return [*(word.format(server=pair.address, own=own) for word in load.words), *numbers]


async def _counted(node: Node, pair: Pair, placement: str, load: str, words: Sequence[str]) -> None:
    for name in ("ready", "go", "done"):
        (FILES / name).unlink(missing_ok=True)
    holder = await asyncio.create_subprocess_exec(FILES / "hold", FILES, HELD, HOLDER)
    try:
        said = await _run_in_client(pair, [*words, MOUNTED])
        assert await holder.wait() == 0
    finally:
        if holder.returncode is None:
            holder.kill()
    cpus = [node.cpus(container) for container in pair.both]
    told = json.dumps({"placement": placement, "load": load, "cpus": cpus, **json.loads(said)})
    print(told)
    # What the check prints is read when it has ended; this says how far it is.
    print(told, file=sys.__stdout__, flush=True)


async def _run_in_client(pair: Pair, words: Sequence[str]) -> str:
    """What a program of the pods' files says there, once it has ended; only one at a time."""
    (FILES / "code").unlink(missing_ok=True)
    await asyncio.to_thread(pair.todo.write_text, f"{MOUNTED}/{' '.join(words)}\n")
    code = await until(_code, timeout_s=PATIENCE_S)
    assert code == "0\n", f"{' '.join(words)}: exit code {code}: {(FILES / 'problem').read_text()}"
    return (FILES / "said").read_text()


def _code() -> str:
    """ "" until the program has ended."""
    path = FILES / "code"
    return path.read_text() if path.exists() else ""


@asynccontextmanager
async def _talking(node: Node, pair: Pair) -> AsyncIterator[None]:
    """The first of the loads without an end, meanwhile."""
    words = _words(pair, pair.loads[0], _NO_END, _NO_MARKS)
    ends = asyncio.create_task(_run_in_client(pair, words))
    try:
        yield
    finally:
        await until(
            lambda: run("pkill", "-f", f"^{MOUNTED}/{' '.join(words[:2])}", check=False).returncode == 0
        )
        await asyncio.gather(ends, return_exceptions=True)


def _set_key(path: Path) -> bool:
    """False as long as redis does not listen there."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1024\r\n" + b"x" * 1024 + b"\r\n")
        return connection.recv(16) == b"+OK\r\n"


def write_files(job: Path) -> None:
    """Into memory, as pods see them; and the pods' image."""
    shutil.copytree(job / "files", FILES)
    (FILES / "www").mkdir()
    (FILES / "nginx.conf").write_text(_NGINX)
    for name, size in (("1k", 1 << 10), ("64k", 64 << 10)):
        (FILES / "www" / name).write_text("x" * size)
    run("ctr", "--namespace", "k8s.io", "images", "import", str(job / "traffic.tar"))


RUNS = {
    # What the kernel would find out of its timer by waiting says nothing of it where others use the host's CPUs.
    "cores-8": Run(
        "cores-8", "bookworm", "3.11", "systemd", "runtime.v1", ("no_timer_check",), (every_placement,)
    )
}
