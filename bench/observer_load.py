"""What ``bench.observer_cost`` loads the machine with: nginx, wrk and many connections, in cgroups of their own.

As a program it is one end of the connections: ``python -m bench.observer_load echo PORT COUNT`` or
``speak PORT COUNT EVERY_S``.
"""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Optional

from tests.agent import ROOT
from tests.e2e.cgroups import cgroup_mounts, remove_cgroup

PORT = 18080
NGINX_CONFIG = """\
daemon off;
worker_processes 1;
user root root;
error_log stderr crit;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ return 200 '{body}'; }}
  }}
}}
"""


@dataclass(frozen=True)
class Run:
    """A run of wrk. ``cpu_s``: what a request costs both ends, in the kernel too; other loads disturb it little."""

    rate: float  # requests a second
    requests: int
    cpu_s: float


class Load:
    """Two cgroups that look like containers', with nginx in one; wrk and others run in the other as asked."""

    def __init__(self) -> None:
        root = next(path for path, controllers in cgroup_mounts() if not controllers)
        self.folder = Path(tempfile.mkdtemp(prefix="crb-"))
        self.parent = root / f"crm-bench-{os.getpid()}"
        self.server = self.parent / f"{os.getpid():064x}"
        self.client = self.parent / f"{os.getpid() | 1 << 40:064x}"
        self._nginx: Optional[subprocess.Popen[bytes]] = None

    def __enter__(self) -> Load:
        for cgroup in (self.server, self.client):
            cgroup.mkdir(parents=True)
        config = self.folder / "nginx.conf"
        config.write_text(NGINX_CONFIG.format(folder=self.folder, port=PORT, body="x" * 1000))
        self._nginx = subprocess.Popen(inside(self.server, 0, "nginx", "-c", str(config)))
        deadline_s = time.monotonic() + 30
        while not _answers(PORT):
            assert time.monotonic() < deadline_s and self._nginx.poll() is None, "nginx does not start"
            time.sleep(0.05)
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._nginx is not None:
            self._nginx.terminate()
            self._nginx.wait()
        remove_cgroup(self.parent, time.monotonic() + 30)
        shutil.rmtree(self.folder)

    def wrk(self, seconds: int, is_keep_alive: bool) -> Run:
        """One run."""
        header = () if is_keep_alive else ("-H", "Connection: close")
        command = ("wrk", "-t1", "-c32", f"-d{seconds}s", *header, f"http://127.0.0.1:{PORT}/")
        before_s = self._cpu_s()
        done = subprocess.run(inside(self.client, 1, *command), capture_output=True, text=True, check=True)
        used_s = self._cpu_s() - before_s
        rate = re.search(r"Requests/sec:\s*([\d.]+)", done.stdout)
        count = re.search(r"(\d+) requests in", done.stdout)
        assert rate and count, done.stdout
        return Run(float(rate[1]), int(count[1]), used_s / int(count[1]))

    def _cpu_s(self) -> float:
        """CPU time of nginx, and of all children of this process that have ended: wrk is one."""
        nginx_ns = sum(
            int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
            for pid in (self.server / "cgroup.procs").read_text().split()
        )
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return nginx_ns / 1e9 + ended.ru_utime + ended.ru_stime


def inside(cgroup: Path, cpu: int, *command: str) -> list[str]:
    """A command that runs in this cgroup, on one CPU if there are several: less noise."""
    pin = ["taskset", "-c", str(cpu)] if cpu in os.sched_getaffinity(0) and shutil.which("taskset") else []
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "cgroup.procs"), *pin, *command]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Connections:
    """``count`` open connections from one cgroup to the other, each of which speaks every ``every_s`` seconds."""

    def __init__(self, load: Load, count: int, every_s: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        module = (sys.executable, "-m", "bench.observer_load")
        self._processes = [
            subprocess.Popen(inside(load.server, 0, *module, "echo", port, str(count)), cwd=ROOT),
            subprocess.Popen(
                inside(load.client, 1, *module, "speak", port, str(count), str(every_s)),
                stdout=subprocess.PIPE,
                cwd=ROOT,
            ),
        ]
        ready = self._processes[1].stdout
        assert ready is not None
        if ready.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"{count} connections cannot be opened")

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def allow_descriptors(count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(hard, needed)))


def _echo(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
            elif message := connections[fd].recv(4096):
                connections[fd].send(message)
            else:
                poll.unregister(fd)
                connections.pop(fd).close()


def _speak(port: int, count: int, every_s: float) -> None:
    deadline_s = time.monotonic() + 30
    while not _answers(port):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    print("ready", flush=True)
    batch = max(count // 100, 1)
    while True:
        for start in range(0, count, batch):
            for connection in connections[start : start + batch]:
                connection.send(b"x" * 64)
            for connection in connections[start : start + batch]:
                connection.recv(4096)
            time.sleep(every_s / 100)


if __name__ == "__main__":
    allow_descriptors(int(sys.argv[3]))
    if sys.argv[1] == "echo":
        _echo(int(sys.argv[2]))
    _speak(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
