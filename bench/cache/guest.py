"""What is done inside the virtual machine: pairs of pods under each placement, and the loads that are counted there.

A measurement is a line of JSON among what its check prints; the n-th of them belongs to the plugin's n-th pair of marks.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cri_api import runtime_v1_pb2 as cri
from tests.vm.guest.installation import OBSERVER, SERVICE, SOCKET_UNIT, run
from tests.vm.guest.node import RUNTIME, Node, Running, connect, until
from tests.vm.guest.table import Run

TRAFFIC = "docker.io/local/traffic:1"
#: The folder of the pods' programs and files, here and in the pods.
FILES, MOUNTED = Path("/run/cache"), "/cache"
PATIENCE_S = 1800
IDLE_MS = "1000"
#: Frozen while a load counts: the runtime, its shims, daemon, observer, this program; and the cgroup of what does that.
HELD, HOLDER = "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/hold"
#: Of the daemon: moved only when told, and soon.
DAEMON_CONFIG = """\
affinity:
  rebalance: manual
  interval: 1s
  half_life: 20s
  minimum_age: 1s
  cooldown: 1ms
  least_weight: 10
"""
_NGINX = """\
daemon off;
worker_processes 2;
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

    ``words``: its program and the arguments before these numbers; ``{server}`` is the server's address.
    """

    name: str
    server: str
    words: tuple[str, ...]
    warm: int
    count: int


#: Connections and threads of the client.
_EIGHT_BY_TWO = ("8", "2")
#: By kind, from the folder of the pods' files; the linker is told where the libraries of the host's redis are.
_SERVERS = {
    "nginx": ("nginx", "-c", f"{MOUNTED}/nginx.conf"),
    "redis": (
        *(f"{MOUNTED}/redis/loader", "--library-path", f"{MOUNTED}/redis", f"{MOUNTED}/redis/redis-server"),
        *("--port", "0", "--unixsocket", f"{MOUNTED}/redis.socket", "--save", "", "--appendonly", "no"),
    ),
    "consumer": (f"{MOUNTED}/batches", "consume", f"{MOUNTED}/batches.memory", "64"),
}
#: Of `make bench-cache`, and of `make bench-cache-long`.
SHORT = (
    Load("nginx, 1 KiB", "nginx", ("load", "{server}:80", "/1k", *_EIGHT_BY_TWO), 300, 800),
    Load("nginx, 64 KiB", "nginx", ("load", "{server}:80", "/64k", *_EIGHT_BY_TWO), 100, 300),
)
LONG = (
    Load(
        "Redis, GET of 1 KiB, unix socket",
        "redis",
        ("load", f"{MOUNTED}/redis.socket", "key", *_EIGHT_BY_TWO),
        500,
        3000,
    ),
    Load(
        "batches of 64 lines, shared memory",
        "consumer",
        ("batches", "produce", f"{MOUNTED}/batches.memory", "64"),
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
    loads: tuple[Load, ...]

    @property
    def both(self) -> tuple[Running, Running]:
        return self.server, self.client


async def by_limit_and_then_by_what_the_observer_has_seen(node: Node) -> None:
    """The daemon: each container in a CCX by its limit; then the pair, seen by the observer and moved."""
    _write_files(node.job)
    for kind in _kinds(node):
        pair = await _pair(node, kind)
        await _measure(node, pair, "limit")
        run("systemctl", "start", OBSERVER)
        async with _talking(node, pair):
            ids = {container.id for container in pair.both}
            await until(
                lambda: node.ask("affinity"),
                lambda told, ids=ids: any({e["a"], e["b"]} == ids for e in told["edges"]),
                PATIENCE_S,
            )
            await until(lambda: node.ask("rebalance"), lambda told: told["accepted"], PATIENCE_S)
        print(f"observer: {node.ask('status')['affinity']['observer']['provider']}")
        await _idle(node, pair)
        await _measure(node, pair, "observer")
        await node.remove(*(container.pod for container in pair.both))


async def without_a_manager(node: Node) -> None:
    """The runtime alone: all CPUs, then a NUMA node for each, then one for both."""
    run("systemctl", "stop", OBSERVER, SOCKET_UNIT, SERVICE)
    nodes = node.shape.numa_nodes
    async with connect(node.api, RUNTIME) as direct:
        through, node.kubelet = node.kubelet, direct
        try:
            for kind in _kinds(node):
                pair = await _pair(node, kind)
                await _idle(node, pair)
                await _measure(node, pair, "no manager")
                for placement, cpusets in (
                    ("a NUMA node each", (nodes[0], nodes[1])),
                    ("one NUMA node", (nodes[0], nodes[0])),
                ):
                    for container, cpus in zip(pair.both, cpusets):
                        await direct.update(container.id, cpuset_cpus=cpus)
                    await _measure(node, pair, placement)
                await node.remove(*(container.pod for container in pair.both))
        finally:
            node.kubelet = through


def _loads(node: Node) -> list[Load]:
    return [LOADS[name] for name in json.loads((node.job / "job.json").read_text())["loads"]]


def _kinds(node: Node) -> list[str]:
    return list(dict.fromkeys(load.server for load in _loads(node)))


async def _pair(node: Node, kind: str) -> Pair:
    mounts = (cri.Mount(container_path=MOUNTED, host_path=str(FILES)),)
    same: dict[str, Any] = {
        "image": TRAFFIC,
        "cpu_request": 500,
        "cpu_limit": node.shape.cpus_per_ccx * 1000,
        "mounts": mounts,
        "host_network": False,
    }
    server = await node.run("server", command=_SERVERS[kind], **same)
    client = await node.run("client", **same)
    if kind == "redis":
        await until(lambda: _set_key(FILES / "redis.socket"))
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=server.pod.id)
    address = str((await node.kubelet.call("PodSandboxStatus", request)).status.network.ip)
    return Pair(server, client, address, tuple(load for load in _loads(node) if load.server == kind))


async def _measure(node: Node, pair: Pair, placement: str) -> None:
    for load in pair.loads:
        await _counted(node, pair, placement, load.name, _words(pair, load, str(load.warm), str(load.count)))


async def _idle(node: Node, pair: Pair) -> None:
    await _counted(node, pair, "", "idle", ("load", "idle", IDLE_MS))


def _words(pair: Pair, load: Load, *numbers: str) -> list[str]:
    return [*(word.format(server=pair.address) for word in load.words), *numbers]


async def _counted(node: Node, pair: Pair, placement: str, load: str, words: Sequence[str]) -> None:
    for name in ("ready", "go", "done"):
        (FILES / name).unlink(missing_ok=True)
    holder = await asyncio.create_subprocess_exec(FILES / "hold", FILES, HELD, HOLDER)
    try:
        out, problem, code = await _exec(node, pair.client, f"{MOUNTED}/{words[0]}", *words[1:], MOUNTED)
        assert code == 0, f"{' '.join(words)}: exit code {code}: {problem}"
        assert await holder.wait() == 0
    finally:
        if holder.returncode is None:
            holder.kill()
    cpus = [node.cpus(container) for container in pair.both]
    print(json.dumps({"placement": placement, "load": load, "cpus": cpus, **json.loads(out)}))


async def _exec(node: Node, container: Running, *words: str) -> tuple[str, str, int]:
    request = cri.ExecSyncRequest(container_id=container.id, cmd=words, timeout=PATIENCE_S)
    reply = await node.kubelet.call("ExecSync", request, timeout=PATIENCE_S)
    return reply.stdout.decode(), reply.stderr.decode(), reply.exit_code


@asynccontextmanager
async def _talking(node: Node, pair: Pair) -> AsyncIterator[None]:
    """The first of the loads without an end, meanwhile."""
    words = _words(pair, pair.loads[0], _NO_END, _NO_MARKS)
    call = asyncio.create_task(_exec(node, pair.client, f"{MOUNTED}/{words[0]}", *words[1:]))
    try:
        yield
    finally:
        await _exec(node, pair.client, "busybox", "killall", words[0])
        await asyncio.gather(call, return_exceptions=True)


def _set_key(path: Path) -> bool:
    """False as long as redis does not listen there."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1024\r\n" + b"x" * 1024 + b"\r\n")
        return connection.recv(16) == b"+OK\r\n"


def _write_files(job: Path) -> None:
    """Into memory, as pods see them; and the pods' image."""
    shutil.copytree(job / "files", FILES)
    (FILES / "www").mkdir()
    (FILES / "nginx.conf").write_text(_NGINX)
    for name, size in (("1k", 1 << 10), ("64k", 64 << 10)):
        (FILES / "www" / name).write_text("x" * size)
    run("ctr", "--namespace", "k8s.io", "images", "import", str(job / "traffic.tar"))


RUNS = {
    shape: Run(
        shape, "bookworm", "3.11", "systemd", "runtime.v1", (),
        (by_limit_and_then_by_what_the_observer_has_seen, without_a_manager),
    )
    for shape in ("cores-8", "cores-16")
}  # fmt: skip
