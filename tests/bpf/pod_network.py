"""Pods on a bridge that talk TCP to each other, and say how many bytes."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpf.identity.attribution import Attribution
from bpf.sources.samples import Sample
from bpf.sources.sock_diag import SockDiagProvider
from tests.bpf.pods import Host, Talker, container_id, pod_uid

SERVE = """
import socket, threading
def answer(c, answer_bytes):
    with c:
        while True:
            request = c.recv(1000, socket.MSG_WAITALL)
            if len(request) < 1000: return
            c.sendall(b'a' * answer_bytes)
def serve(family, address, port, answer_bytes):
    listener = socket.create_server((address, port), family=family, dualstack_ipv6=address == '::')
    def loop():
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0], answer_bytes), daemon=True).start()
    threading.Thread(target=loop, daemon=True).start()
"""
ASK = """
import socket
def connect(address, port):
    c = socket.create_connection((address, port))
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return c
def ask(c, times, answer_bytes):
    for _ in range(times):
        c.sendall(b'q' * 1000)
        assert len(c.recv(answer_bytes, socket.MSG_WAITALL)) == answer_bytes
def ask_short(address, port, times, answer_bytes):
    for _ in range(times):
        with connect(address, port) as c:
            ask(c, 1, answer_bytes)
            c.shutdown(socket.SHUT_WR)
            assert c.recv(1) == b''
"""
# The kernel tells of ended sockets a little later than they end.
WATCH = """
import sys, select
sys.path.insert(0, '.')
from bpf.kernel.netlink import EndedTcp
ended = EndedTcp(1 << 22)
def wait_ended(count, address):
    while count > 0:
        select.select([ended], [], [])
        for seen in ended.ended():
            count -= seen.remote[1] != 0 and socket.inet_aton(address) in (seen.local[0], seen.remote[0])
"""


@dataclass
class Pod:
    uid: str
    container: str
    talker: Talker
    netns: str
    address: str


class Looking:
    """A provider that is asked as the service asks it: after a look at the cgroups."""

    def __init__(self, attribution: Attribution) -> None:
        self.inner = SockDiagProvider(attribution)
        self._attribution = attribution

    def sample(self, now_s: float) -> Sample:
        self._attribution.refresh()
        return self.inner.sample(now_s)


class Pods:
    """Pods on a bridge, with addresses nobody else uses."""

    def __init__(self, v2: bool) -> None:
        if shutil.which("ip") is None or shutil.which("iptables") is None:
            pytest.skip("connects pods: needs iproute2 and iptables")
        self.host = Host(v2)
        # Of the range that is reserved for benchmarks of networks.
        self.net = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
        self.net6 = f"fd00:{secrets.token_hex(2)}:{secrets.token_hex(2)}:"
        self._bridge = self.host.bridge(f"{self.net}.1/24", f"{self.net6}:1/64")
        self._pods = 1

    def add(self) -> Pod:
        self._pods += 1
        name = self.host.namespace()
        self.host.join(name, self._bridge, f"{self.net}.{self._pods}/24", f"{self.net}.1")
        self.host.run(f"ip -n {name} addr add {self.net6}:{self._pods}/64 dev eth0 nodad")
        uid, container = pod_uid(), container_id()
        talker = self.host.start(container, uid, name)
        return Pod(uid, container, talker, name, f"{self.net}.{self._pods}")

    def second_container(self, pod: Pod) -> Pod:
        container = container_id()
        talker = self.host.start(container, pod.uid, pod.netns)
        return Pod(pod.uid, container, talker, pod.netns, pod.address)

    def service(self, client: Pod, server: Pod, masquerade: bool = False) -> str:
        """An address whose port 80 is the server's 8080 for the client. ``masquerade``: its own address is not seen."""
        virtual = f"{self.net}.200"
        self.host.rewrite(
            f"PREROUTING -d {virtual} -p tcp --dport 80 -j DNAT --to-destination {server.address}:8080"
        )
        if masquerade:
            self.host.rewrite(f"POSTROUTING -s {client.address} -d {server.address} -j MASQUERADE --random")
        self.host.run(
            f"sysctl -qw net.ipv4.ip_forward=1; ip -n {client.netns} route add {virtual} via {self.net}.1"
        )
        return virtual

    def provider(self, folder: Path) -> Looking:
        opened = Looking(Attribution(self.host.root(folder)))
        self.host.on_close(opened.inner.close)
        return opened


def ask_short(client: Talker, server: Pod, times: int) -> None:
    """Short connections, one after the other; all sockets have ended, and the kernel has said so, when it returns."""
    client.do(ASK)
    for talker in (client, server.talker):
        talker.do(WATCH)
    client.do(f"ask_short({server.address!r}, 80, {times}, 3000)")
    for talker in (client, server.talker):
        talker.do(f"wait_ended({times}, {server.address!r})")
        talker.do("ended.close()")


def serve(pod: Pod, port: int = 80, address: str = "0.0.0.0", answer_bytes: int = 3000) -> None:
    family = "AF_INET6" if ":" in address else "AF_INET"
    pod.talker.do(SERVE)
    pod.talker.do(f"serve(socket.{family}, {address!r}, {port}, {answer_bytes})")


def connect(pod: Pod, address: str, port: int = 80) -> None:
    pod.talker.do(ASK)
    pod.talker.do(f"c = connect({address!r}, {port})")


def is_close(measured: tuple[int, int], sent: tuple[int, int]) -> bool:
    return all(abs(m - s) <= 0.01 * s for m, s in zip(measured, sent))
