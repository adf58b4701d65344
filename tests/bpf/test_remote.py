"""Traffic with other machines, on the real kernel: an end that no program looks at is as good as one elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_api import affinity_pb2 as pb
from tests.bpf.observer import ObserverProcess, watch
from tests.bpf.pods import UNIFIED, Talker
from tests.bpf.talkers import PROGRAMS, Stage, needs_bcc

pytestmark = needs_bcc


class Node:
    """A container at .3 and a process at .2 of one bridge that is in no cgroup of the node, and the node's observer."""

    def __init__(self, stage: Stage) -> None:
        host = stage.host
        bridge = host.bridge(f"{stage.net}.1/24", f"{stage.net6}::1/64")
        namespaces = []
        for number in (2, 3):
            namespaces.append(host.namespace())
            host.join(namespaces[-1], bridge, f"{stage.net}.{number}/24", f"{stage.net}.1")
            host.run(f"ip -n {namespaces[-1]} addr add {stage.net6}::{number}/64 dev eth0 nodad")
        self.stage = stage
        self.far = host.start_outside(namespaces[0])
        self.far.do(PROGRAMS)
        self.near = stage.start("near", namespaces[1])
        self._root = next(path for path in host.cgroups("observer") if UNIFIED in path.parents).parent
        self._observer = Talker(host.cgroups("observer"))
        host.on_close(self._observer.close)

    def containers(self) -> list[Path]:
        """Their cgroups."""
        return list(self._root.glob("kubepods/burstable/pod*/*"))

    def start(self, observer: ObserverProcess) -> None:
        """A whole observer, in a mount namespace in which this node's cgroups are all there are."""
        mount = f"umount -l {UNIFIED}; mount -t cgroup2 none {UNIFIED}"
        inside = f'{mount}; echo $$ > {UNIFIED}/observer/cgroup.procs; exec "$@"'
        join = f'echo $$ > {self._root}/cgroup.procs; exec "$@"'
        outside = ("sh", "-ec", join, "sh", "unshare", "--cgroup", "--mount")
        observer.start("", *outside, "sh", "-ec", inside, "sh")

    def look(self, *networks: str, remotes: int = 8192) -> None:
        """Begin to look, at the cgroups of this node only."""
        self._observer.do(
            "import json\nfrom bpf.sources.ebpf import EbpfProvider\n"
            f"names = {self.stage.names!r}\n"
            f"provider = EbpfProvider(lambda number: names.get(number, ''), {str(self._root)!r},"
            f" networks={networks!r}, remotes={remotes})"
        )

    def seen(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes by remote address since the last call, and the counters."""
        text = self._observer.do(
            "s = provider.sample(0.0)\n"
            "print(json.dumps([[[f.a, f.address, f.bytes] for f in s.remotes], dict(s.counters), len(s.flows)]))"
        )
        rows, counters, flows = json.loads(text)
        assert flows == 0
        assert all(name == "near" for name, _, _ in rows)
        return {address: count for _, address, count in rows}, counters


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[ObserverProcess]:
    made = ObserverProcess(tmp_path, provider="ebpf", interval_s=0.2, half_life_s=0.2)
    yield made
    made.close()


@pytest.fixture
def node(stage: Stage) -> Node:
    return Node(stage)


@pytest.mark.parametrize("load", [(1, 1), (2, 50), (500, 1)], ids=["short", "many short", "long"])
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_a_connection_from_another_machine_counts_both_ways_at_its_acceptor(
    node: Node, family: str, load: tuple[int, int]
) -> None:
    count, connections = load
    net = f"{node.stage.net}." if family == "AF_INET" else f"{node.stage.net6}::"
    port = int(node.near.do(f"serve_tcp(socket.{family}, '{net}3', 8080, 700, 300)"))
    node.look("10.0.0.0/8", "fd00::/8")
    node.far.do(f"call_tcp('{net}3', {port}, 700, 300, {count}, {connections})")
    assert node.seen()[0] == {f"{net}2": pytest.approx(1000 * count * connections, rel=0.01, abs=2)}


def test_an_acceptor_that_listens_on_all_addresses_names_an_ipv4_opener_as_such(node: Node) -> None:
    node.near.do(
        "both = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True)\n"
        "threading.Thread(target=lambda: answer(both.accept()[0], 700, 300), daemon=True).start()"
    )
    node.look("10.0.0.0/8")
    node.far.do(f"call_tcp('{node.stage.net}.3', 8080, 700, 300, 3, 1)")
    assert node.seen()[0] == {f"{node.stage.net}.2": 3000}


@pytest.mark.parametrize("load", [(2, 50), (500, 1)], ids=["many short", "long"])
def test_a_connection_to_another_machine_counts_there_and_not_here(node: Node, load: tuple[int, int]) -> None:
    count, connections = load
    node.far.do(f"serve_tcp(socket.AF_INET, '{node.stage.net}.2', 8080, 700, 300)")
    node.look("10.0.0.0/8")
    node.near.do(f"call_tcp('{node.stage.net}.2', 8080, 700, 300, {count}, {connections})")
    assert node.seen()[0] == {}


def test_a_connection_whose_opener_has_the_lower_port_and_closes_last_is_not_remote(node: Node) -> None:
    node.near.do(
        "closers = socket.create_server(('127.0.0.1', 60998))\n"
        "def end():\n"
        "    while True:\n"
        "        accepted, _ = closers.accept()\n"
        "        read(accepted, 700); accepted.sendall(bytes(300)); accepted.close()\n"
        "threading.Thread(target=end, daemon=True).start()"
    )
    node.look("127.0.0.0/8")
    for _ in range(10):
        node.near.do(
            "with socket.create_connection(('127.0.0.1', 60998)) as c:\n"
            "    c.sendall(bytes(700)); assert read(c, 300) and c.recv(1) == b''"
        )
    assert node.seen()[0] == {}


def test_a_connection_between_two_containers_of_the_node_is_not_remote(node: Node) -> None:
    other = node.stage.start("other", node.stage.host.namespace())
    node.near.do("serve_tcp(socket.AF_INET, '127.0.0.1', 8080, 700, 300)")
    node.look("10.0.0.0/8", "127.0.0.0/8")
    node.near.do("call_tcp('127.0.0.1', 8080, 700, 300, 500, 1)")
    node.near.do("call_tcp('127.0.0.1', 8080, 700, 300, 2, 50)")
    other.close()
    assert node.seen()[0] == {}


def test_a_connection_older_than_the_observer_counts_from_then_on(node: Node) -> None:
    node.near.do(f"serve_tcp(socket.AF_INET, '{node.stage.net}.3', 8080, 700, 300)")
    node.far.do(f"old = socket.create_connection(('{node.stage.net}.3', 8080), timeout=30)")
    ask = "for _ in range(500):\n    old.sendall(bytes(700)); assert read(old, 300)"
    node.far.do(ask)
    node.look("10.0.0.0/8")
    node.far.do(ask)
    node.far.do("old.shutdown(socket.SHUT_WR); assert old.recv(1) == b''; old.close()")
    assert node.seen()[0] == {f"{node.stage.net}.2": pytest.approx(500_000, rel=0.1)}


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_datagrams_count_at_their_sender(node: Node, family: str) -> None:
    net = f"{node.stage.net}." if family == "AF_INET" else f"{node.stage.net6}::"
    node.near.do(f"serve_udp(socket.{family}, '{net}3', 8080, 300)")
    node.look("10.0.0.0/8", "fd00::/8")
    node.far.do(f"call_udp(socket.{family}, '{net}3', 8080, 100, 300, 50, True)")
    assert node.seen()[0] == {f"{net}2": 50 * 300}
    node.near.do(f"call_udp(socket.{family}, '{net}2', 9, 100, 0, 50, False)")
    assert node.seen()[0] == {f"{net}2": 50 * 100}


def test_addresses_outside_the_networks_are_counted_only(node: Node) -> None:
    node.near.do(f"serve_tcp(socket.AF_INET, '{node.stage.net}.3', 8080, 700, 300)")
    node.look("192.168.0.0/16")
    node.far.do(f"call_tcp('{node.stage.net}.3', 8080, 700, 300, 2, 5)")
    found, counters = node.seen()
    assert (found, counters["remote_elsewhere"]) == ({}, 5)


def test_without_networks_nothing_remote_is_counted(node: Node) -> None:
    node.near.do(f"serve_tcp(socket.AF_INET, '{node.stage.net}.3', 8080, 700, 300)")
    node.look()
    node.far.do(f"call_tcp('{node.stage.net}.3', 8080, 700, 300, 2, 5)")
    found, counters = node.seen()
    assert (found, counters["remote_elsewhere"]) == ({}, 0)


def test_addresses_that_found_no_room_are_counted(node: Node) -> None:
    node.look("10.0.0.0/8", remotes=4)
    node.near.do(
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:\n"
        f"    for last in range(50, 60): caller.sendto(bytes(10), ('{node.stage.net}.%d' % last, 9))"
    )
    found, counters = node.seen()
    assert len(found) == 4
    assert counters["remotes_full"] == 6


def test_the_observer_tells_which_container_exchanges_how_much_with_which_address(
    node: Node, observer: ObserverProcess
) -> None:
    node.near.do(f"serve_tcp(socket.AF_INET, '{node.stage.net}.3', 8080, 700, 300)")
    node.start(observer)
    assert observer.graph().status.provider == "ebpf"
    node.far.do(f"call_tcp('{node.stage.net}.3', 8080, 700, 300, 2, 200)")
    with observer.channel() as channel:
        deltas = watch(channel)
        peers: Iterator[list[pb.RemotePeer]] = (list(delta.remote_peers) for delta in deltas)
        [peer] = next(told for told in peers if told)
        deltas.cancel()
    assert peer.address == f"{node.stage.net}.2"
    assert peer.bytes_per_s > 1000
    folders = {path.name for path in node.containers()}
    assert peer.id in folders
