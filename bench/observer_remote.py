"""What it costs to see traffic with other nodes: ``python -m bench.observer_remote [ADDRESSES]`` (root).

A container accepts one short connection from each of many addresses, then sends a datagram to each; the same from one
address, and inside the node, for comparison. The other end is in a network namespace whose cgroup no program looks at, so
that it is as good as another machine. Without networks (``affinity.remote_networks: []``) and with them, in turns: the
kernel's own clock (``kernel.bpf_stats_enabled``) for a run of the egress program; then what a sample of it costs the
observer. Takes two minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable

from bench.figures import machine_line
from bench.observer_cost import kernel_statistics
from bpf.service.options import REMOTE_NETWORKS
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
from bpf.sources.ebpf import EbpfProvider
from bpf.kernel.syscalls import program_info
from policies.affinity.graph.remote import RemoteRates
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
    """Container ``near``; ``far`` has all addresses of a /16; ``other`` talks to a container at ``port`` of its loopback."""

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
        self.other, local = stage.start("other"), stage.start("local")
        self.port = int(local.do("serve_tcp(socket.AF_INET, '127.0.0.1', 0, 700, 300)"))
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


def works(scene: Scene, count: int) -> dict[str, Callable[[], object]]:
    """What is done while a program is measured, by name; the first two need a new entry for each address."""
    near, local = f"'{scene.address}', 8080, 700, 300", f"'127.0.0.1', {scene.port}, 700, 300"
    return {
        "a connection from each address": lambda: scene.far.do(
            f"from_each('{scene.first}', {count}, '{scene.address}', 8080)"
        ),
        "a datagram to each address": lambda: scene.near.do(f"to_each('{scene.first}', {count})"),
        "short connections from one": lambda: scene.far.do(f"call_tcp({near}, 2, {count // 5})"),
        "a long connection from one": lambda: scene.far.do(f"call_tcp({near}, {2 * count}, 1)"),
        "short connections inside the node": lambda: scene.other.do(f"call_tcp({local}, 2, {count // 5})"),
        "a long connection inside the node": lambda: scene.other.do(f"call_tcp({local}, {2 * count}, 1)"),
    }


def measure(scene: Scene, networks: tuple[str, ...], count: int) -> dict[str, tuple[float, list[float]]]:
    """Nanoseconds a run of the program, and what a sample then costs and holds, by work."""
    scene.open(networks)
    found = {}
    for at, (name, work) in enumerate(works(scene, count).items()):
        with kernel_statistics():
            before = scene.program()
            work()
            after = scene.program()
        a_run = (after[0] - before[0]) / max(1, after[1] - before[1])
        found[name] = a_run, json.loads(scene.observer.do(f"look({10.0 * (at + 1)})"))
    scene.observer.do("provider.close()")
    return found


def main(count: int) -> None:
    print(machine_line())
    host = Host()
    try:
        scene = Scene(host)
        turns = [(measure(scene, (), count), measure(scene, REMOTE_NETWORKS, count)) for _ in range(TURNS)]
    finally:
        host.close()
    print(f"\n| {count:,} addresses; ns a packet | without remote networks | with |\n|---|---|---|")
    for name in turns[0][0]:
        without, observed = (statistics.median(turn[n][name][0] for turn in turns) for n in (0, 1))
        print(f"| {name} | {without:.0f} | {observed:.0f} |")
    print(
        "\n| a sample | CPU ms | addresses | no room | told | left out | resident MiB |\n|---|---|---|---|---|---|---|"
    )
    for name, (_, (used, seen, full, told, left_out, resident)) in turns[-1][1].items():
        print(f"| {name} | {used * 1000:.0f} | {seen:.0f} | {full:.0f} | {told:.0f} | {left_out:.0f} "
              f"| {resident / 2**20:.1f} |")  # fmt: skip


if __name__ == "__main__":
    if sentence := missing() or ("" if os.geteuid() == 0 else "needs root"):
        sys.exit(f"observer_remote: {sentence}")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ADDRESSES)
