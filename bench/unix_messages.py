"""What counting costs two programs on a unix socket: ``python -m bench.unix_messages [ROUNDS]`` (root).

CPU time of both ends for a request of 100 bytes and its answer of 300, on one connection and with one for each request, in
turns: nothing attached, wakes counted (as where the kernel lets no program count messages), messages counted, and back.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Optional

from bench.figures import machine_line
from bench.observer_load import inside
from bpf.sources.ebpf import EbpfProvider
from bpf.sources.samples import Peers
from tests.bpf.pods import Host, container_id, pod_uid
from tests.e2e.traffic_images import build_talk

ROUNDS, REQUESTS = 20, 30_000
SHARED = {
    "nothing": Peers(),
    "wakes": Peers(shared_memory={("client", "server")}),
    "messages": Peers(unix={("client", "server")}),
}


class Pair:
    """A server in one container, clients in another."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._talk = str(build_talk(folder))
        self._socket = str(folder / "socket")
        paths = [f"kubepods/burstable/pod{pod_uid()}/{container_id()}" for _ in range(2)]
        # The first of each is that of the v2 tree, which tells one container from the other.
        self._cgroups = [host.cgroups(path)[0] for path in paths]
        self._server = self._start(0, "serve")
        host.on_close(self._end)

    def call(self, per_connection: int) -> float:
        """CPU time of a request, s."""
        before_s = self._used_s()
        self._start(1, "call", f"count={REQUESTS}", f"per_connection={per_connection}").wait()
        return (self._used_s() - before_s) / REQUESTS

    def _used_s(self) -> float:
        """By the server, and by clients that have ended."""
        server_ns = int(Path(f"/proc/{self._server.pid}/schedstat").read_text().split()[0])
        clients = resource.getrusage(resource.RUSAGE_CHILDREN)
        return server_ns / 1e9 + clients.ru_utime + clients.ru_stime

    def _end(self) -> None:
        self._server.kill()
        self._server.wait()

    def _start(self, number: int, what: str, *words: str) -> subprocess.Popen[bytes]:
        command = [self._talk, what, "unix", self._socket, "100", "300", *words]
        return subprocess.Popen(inside(self._cgroups[number], number, *command), stdout=subprocess.DEVNULL)


def main(rounds: int) -> None:
    """Prints medians and quartiles of what each way costs beside nothing, round by round."""
    wanted: Optional[Peers] = None
    host = Host()
    provider = EbpfProvider(lambda number: "", peers=lambda: wanted or Peers())
    host.on_close(provider.close)
    print(machine_line())
    try:
        with tempfile.TemporaryDirectory() as folder:
            pair = Pair(host, Path(folder))
            for name, per_connection in (("one connection", 0), ("a connection a request", 1)):
                ratios: dict[str, list[float]] = {"wakes": [], "messages": []}
                for _ in range(rounds):
                    seen: dict[str, list[float]] = {}
                    for way in (*SHARED, *reversed(SHARED)):
                        wanted = SHARED[way]
                        provider.sample(0.0)
                        seen.setdefault(way, []).append(pair.call(per_connection))
                    for way, found in ratios.items():
                        found.append(sum(seen[way]) / sum(seen["nothing"]))
                for way, found in ratios.items():
                    low, middle, high = statistics.quantiles(found, n=4)
                    print(
                        f"{name}: {way} counted, CPU time a request: {middle:.3f} ({low:.3f} to {high:.3f})"
                    )
    finally:
        host.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
