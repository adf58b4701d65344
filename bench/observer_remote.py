"""What it costs to see traffic with other nodes: ``python -m bench.observer_remote [ADDRESSES]`` (root).

A container accepts one short connection from each of many addresses, then sends a datagram to each. The other end is in a
network namespace whose cgroup no program looks at, so that it is as good as another machine. Without networks
(``affinity.remote_networks: []``) and with them, in turns: the kernel's own clock (``kernel.bpf_stats_enabled``) for a run
of the egress program; then what a sample of it costs the observer. Takes a minute.
"""

from __future__ import annotations

import json
import os
import statistics
import sys

from bench.figures import machine_line
from bench.observer_cost import kernel_statistics
from tests.bpf.pods import UNIFIED, Host, Talker
from tests.bpf.talkers import PROGRAMS, Stage, missing

ADDRESSES = 10_000
TURNS = 3
FAR = """
def from_each(first, count, address, port):
    for n in range(count):
        source = '%s.%d.%d' % (first, n // 250, 1 + n % 250)
        with socket.create_connection((address, port), timeout=30, source_address=(source, 0)) as connection:
            connection.sendall(bytes(700))
            assert read(connection, 300)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
"""
NEAR = """
def to_each(first, count):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        for n in range(count):
            caller.sendto(bytes(100), ('%s.%d.%d' % (first, n // 250, 1 + n % 250), 9))
"""
#: In the observer's process.
LOOK = """
import json, os, time
from bpf.ebpf import EbpfProvider
from bpf.syscalls import program_info
from policies.affinity.remote import RemoteRates
def rss():
    return int(open('/proc/self/statm').read().split()[1]) * 4096
def program():
    info = program_info(provider.loaded.programs['crm_aff_egress'])
    return info.run_ns, info.runs
def look(at):
    began = time.process_time(); sample = provider.sample(at); rates.observe(10.0, sample.remotes, 66.0)
    used = time.process_time() - began
    print(json.dumps([used, len(sample.remotes), sample.counters['remotes_full'], len(rates.told), rates.left_out, rss()]))
"""


class Scene:
    """Container ``near``; ``far`` has all addresses of a /16."""

    def __init__(self, host: Host) -> None:
        self._stage = stage = Stage(host)
        self.first = "10.66"
        bridge = host.bridge(f"{stage.net}.1/24")
        spaces = [host.namespace(), host.namespace()]
        for number, space in zip((2, 3), spaces):
            host.join(space, bridge, f"{stage.net}.{number}/24")
        host.run(
            f"ip -n {spaces[0]} route add local {self.first}.0.0/16 dev lo; "
            f"ip -n {spaces[1]} route add {self.first}.0.0/16 via {stage.net}.2"
        )
        self.address = f"{stage.net}.3"
        self.far = host.start_outside(spaces[0])
        self.far.do(PROGRAMS + FAR)
        self.near = stage.start("near", spaces[1])
        self.near.do(NEAR)
        self.near.do(f"serve_tcp(socket.AF_INET, '{self.address}', 8080, 700, 300)")
        self._root = next(path for path in host.cgroups("observer") if UNIFIED in path.parents).parent
        self.observer = Talker(host.cgroups("observer"))
        host.on_close(self.observer.close)
        self.observer.do(LOOK)

    def open(self, networks: tuple[str, ...]) -> None:
        self.observer.do(
            f"names = {self._stage.names!r}; rates = RemoteRates(); "
            f"provider = EbpfProvider(lambda n: names.get(n, ''), {str(self._root)!r}, networks={networks!r})"
        )

    def program(self) -> tuple[int, int]:
        run_ns, runs = json.loads(self.observer.do("print(json.dumps(program()))"))
        return run_ns, runs


def measure(scene: Scene, networks: tuple[str, ...], count: int) -> tuple[float, float, list[list[float]]]:
    """Nanoseconds a run: of connections, of datagrams. And what samples cost and hold."""
    scene.open(networks)
    found, looks = [], []
    for at, work in enumerate(
        (
            lambda: scene.far.do(f"from_each('{scene.first}', {count}, '{scene.address}', 8080)"),
            lambda: scene.near.do(f"to_each('{scene.first}', {count})"),
        )
    ):
        with kernel_statistics():
            before = scene.program()
            work()
            after = scene.program()
        found.append((after[0] - before[0]) / max(1, after[1] - before[1]))
        looks.append(json.loads(scene.observer.do(f"look({10.0 * (at + 1)})")))
    scene.observer.do("provider.close()")
    return found[0], found[1], looks


def main(count: int) -> None:
    print(machine_line())
    host = Host()
    try:
        scene = Scene(host)
        measured: dict[str, list[tuple[float, float, list[list[float]]]]] = {"without": [], "with": []}
        for _ in range(TURNS):
            measured["without"].append(measure(scene, (), count))
            measured["with"].append(measure(scene, ("10.0.0.0/8", "fd00::/8"), count))
    finally:
        host.close()
    print(f"\n| {count:,} addresses | ns a run, connections | ns a run, datagrams |\n|---|---|---|")
    for name, rows in measured.items():
        tcp, udp = (statistics.median(row[n] for row in rows) for n in (0, 1))
        print(f"| {name} remote networks | {tcp:.0f} | {udp:.0f} |")
    print(
        "\n| a sample | CPU ms | addresses | no room | told | left out | resident MiB |\n|---|---|---|---|---|---|---|"
    )
    for name, rows in measured.items():
        for kind, look in zip(("connections", "datagrams"), rows[-1][2]):
            used, seen, full, told, left_out, resident = look
            print(f"| {name}, {kind} | {used * 1000:.0f} | {seen:.0f} | {full:.0f} | {told:.0f} | {left_out:.0f} "
                  f"| {resident / 2**20:.1f} |")  # fmt: skip


if __name__ == "__main__":
    if sentence := missing() or ("" if os.geteuid() == 0 else "needs root"):
        sys.exit(f"observer_remote: {sentence}")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ADDRESSES)
