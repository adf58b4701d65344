"""Two containers that exchange known numbers of bytes, and what the eBPF provider should have seen of it.

The programs run in a ``Talker`` (pods.py), in a cgroup and a network namespace of their own.
"""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path
from typing import Any, Optional

import pytest

from bpf.service.options import SYSTEM_PYTHON
from bpf.sources.ebpf import EbpfProvider
from bpf.sources.samples import Flow, Sample
from tests.bpf.pods import UNIFIED, Host, Talker, container_id, pod_uid

#: Defined in every talker: servers run in threads, callers return when all is answered and closed.
PROGRAMS = """
import contextlib, os, selectors, socket, struct, threading

# Datagrams that were received.
taken = threading.Semaphore(0)

def read(connection, count):
    while count:
        got = len(connection.recv(min(count, 1 << 20)))
        if not got:
            return False
        count -= got
    return True

def answer(connection, request, response):
    with connection, contextlib.suppress(ConnectionResetError):
        while read(connection, request):
            connection.sendall(bytes(response))

def serve_tcp(family, address, port, request, response):
    listener = socket.create_server((address, port), family=family, backlog=1024)
    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection, request, response), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1])

def call_tcp(address, port, request, response, count, connections=1):
    for _ in range(connections):
        with socket.create_connection((address, port), timeout=30) as connection:
            for _ in range(count):
                connection.sendall(bytes(request))
                assert read(connection, response)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""

held = []

def hold_tcp(address, port, request, response, connections):
    # A request on each; they stay open.
    for _ in range(connections):
        held.append(socket.create_connection((address, port), timeout=30))
        held[-1].sendall(bytes(request))
        assert read(held[-1], response)

def release_tcp():
    while held:
        with held.pop() as connection:
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""

def serve_many(address, port, request, response):
    # More connections than there can be threads.
    listener = socket.create_server((address, port), backlog=1024)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    def serve():
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    ready.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                with contextlib.suppress(ConnectionResetError):
                    if read(key.fileobj, request):
                        key.fileobj.sendall(bytes(response))
                        continue
                ready.unregister(key.fileobj)
                key.fileobj.close()
    threading.Thread(target=serve, daemon=True).start()
    print(listener.getsockname()[1])

def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

def reset_tcp(address, port, request, response, count, connections=1):
    for _ in range(connections):
        connection = socket.create_connection((address, port), timeout=30)
        for _ in range(count):
            connection.sendall(bytes(request))
            assert read(connection, response)
        reset(connection)

def serve_resets(address, port, request, response, left_unread):
    # Ends each connection by a reset: because that is asked for, or because something is left unread.
    listener = socket.create_server((address, port), backlog=1024)
    def accept():
        while True:
            connection, _ = listener.accept()
            if read(connection, request - left_unread):
                connection.sendall(bytes(response))
            connection.close() if left_unread else reset(connection)
    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1])

def call_until_reset(address, port, request, response, connections):
    for _ in range(connections):
        with socket.create_connection((address, port), timeout=30) as connection:
            connection.sendall(bytes(request))
            assert read(connection, response)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""

def allow_fast_open():
    # At clients (1) and servers (2), without cookies (4, 0x200), for all listeners (0x400).
    with open("/proc/sys/net/ipv4/tcp_fastopen", "w") as file:
        file.write(str(0x607))

def call_fast(address, port, request, response, count, connections):
    for _ in range(connections):
        with socket.socket() as connection:
            connection.settimeout(30)
            connection.sendto(bytes(request), socket.MSG_FASTOPEN, (address, port))
            assert read(connection, response)
            for _ in range(count - 1):
                connection.sendall(bytes(request))
                assert read(connection, response)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""

def fast_opened():
    names, values = [line.split() for line in open("/proc/net/netstat") if line.startswith("TcpExt:")]
    print(dict(zip(names, values))["TCPFastOpenActive"])

def serve_udp(family, address, port, response):
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((address, port))
    def reply():
        while True:
            _, peer = server.recvfrom(65536)
            if response:
                server.sendto(bytes(response), peer)
            taken.release()
    threading.Thread(target=reply, daemon=True).start()
    print(server.getsockname()[1])

def read_udp(address, port):
    # Does not ask for the sender.
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, port))
    def read_on():
        while server.recv(65536):
            taken.release()
    threading.Thread(target=read_on, daemon=True).start()
    print(server.getsockname()[1])

def await_taken(count):
    for _ in range(count):
        assert taken.acquire(timeout=30)

def call_udp(family, address, port, request, response, count, connected):
    with socket.socket(family, socket.SOCK_DGRAM) as caller:
        caller.settimeout(30)
        if connected:
            caller.connect((address, port))
        for _ in range(count):
            caller.send(bytes(request)) if connected else caller.sendto(bytes(request), (address, port))
            if response:
                caller.recv(65536)

def call_udp_anew(address, port, request, response, count):
    # A socket for each message, as resolvers have it.
    for _ in range(count):
        call_udp(socket.AF_INET, address, port, request, response, 1, False)

def serve_unix(path, request, response, kind=socket.SOCK_STREAM):
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(path)
    listener.listen(1024)
    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection, request, response), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()

def call_unix(path, request, response, count, connections=1, kind=socket.SOCK_STREAM):
    for _ in range(connections):
        with socket.socket(socket.AF_UNIX, kind) as connection:
            connection.connect(path)
            for _ in range(count):
                connection.sendall(bytes(request))
                assert read(connection, response)

def read_unix(path):
    # Datagrams, which are not answered.
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(path)
    def read_on():
        while server.recv(65536):
            taken.release()
    threading.Thread(target=read_on, daemon=True).start()

def send_unix(path, bytes_each, count, connected):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        if connected:
            sender.connect(path)
        for _ in range(count):
            sender.send(bytes(bytes_each)) if connected else sender.sendto(bytes(bytes_each), path)
"""


def missing_bcc() -> str:
    """Why eBPF programs cannot be compiled here, as a sentence for a skip; "" if they can."""
    try:
        found = subprocess.run([SYSTEM_PYTHON, "-c", "import bcc"], capture_output=True, check=False)
    except FileNotFoundError:
        return f"{SYSTEM_PYTHON} is not here."
    return "" if found.returncode == 0 else f"{SYSTEM_PYTHON} has no bcc (Debian: python3-bpfcc)."


def missing() -> str:
    """Why eBPF cannot be tested here, "" if it can."""
    if not (UNIFIED / "cgroup.controllers").exists():
        return f"needs cgroup v2 at {UNIFIED} and root"
    return missing_bcc()


needs_bcc = pytest.mark.skipif(bool(missing()), reason=missing() or "bcc is here")


class Stage:
    """A client and a server in two pods (or one), a provider that knows them as "client" and "server"."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.names: dict[int, str] = {}
        #: Unique to this test: others make networks at the same time.
        self.net = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        #: As addresses are printed, so without leading zeros.
        self.net6 = f"fd{secrets.token_hex(1)}:{secrets.randbelow(0xFFFF) + 1:x}"

    def resolve(self, cgroup_id: int) -> str:
        """All cgroups but ours are the host's."""
        return self.names.get(cgroup_id, "")

    def provider(self, **options: Any) -> EbpfProvider:
        """A provider, closed with all the rest."""
        opened = EbpfProvider(self.resolve, **options)
        self.host.on_close(opened.close)
        return opened

    def start(self, name: str, netns: str = "", pod: str = "") -> Talker:
        """A container with the test programs in it."""
        pod, container = pod or pod_uid(), container_id()
        talker = self.host.start(container, pod, netns)
        line = next(
            line for line in Path(f"/proc/{talker.pid}/cgroup").read_text().splitlines() if line[:3] == "0::"
        )
        self.names[(UNIFIED / line[4:]).stat().st_ino] = name
        talker.do(PROGRAMS)
        return talker

    def bridged(self) -> tuple[Talker, Talker]:
        """Client at .2 and server at .3 of one bridge."""
        bridge = self.host.bridge(f"{self.net}.1/24", f"{self.net6}::1/64")
        talkers = []
        for number, name in ((2, "client"), (3, "server")):
            netns = self.host.namespace()
            self.host.join(netns, bridge, f"{self.net}.{number}/24", f"{self.net}.1")
            self.host.run(f"ip -n {netns} addr add {self.net6}::{number}/64 dev eth0 nodad")
            talkers.append(self.start(name, netns))
        return talkers[0], talkers[1]

    def one_pod(self) -> tuple[Talker, Talker]:
        """Two containers of one pod: they share its loopback."""
        netns, pod = self.host.namespace(), pod_uid()
        return self.start("client", netns, pod), self.start("server", netns, pod)

    def routed(self) -> tuple[Talker, Talker]:
        """Client at .2 and server at .130, each on a network of its own: all goes through the host."""
        self.host.run("sysctl -qw net.ipv4.ip_forward=1")
        talkers = []
        for first, name in ((0, "client"), (128, "server")):
            netns = self.host.namespace()
            outside = f"v{netns}"[:15]
            self.host.run(
                f"ip link add {outside} type veth peer name eth0 netns {netns}; "
                f"ip addr add {self.net}.{first + 1}/25 dev {outside}; ip link set {outside} up; "
                f"ip -n {netns} addr add {self.net}.{first + 2}/25 dev eth0; ip -n {netns} link set eth0 up; "
                f"ip -n {netns} route add default via {self.net}.{first + 1}"
            )
            talkers.append(self.start(name, netns))
        return talkers[0], talkers[1]

    def service(self, protocol: str, masquerade: bool = False) -> str:
        """The address of a service (as kube-proxy makes it) whose port 80 is the routed server's 8080."""
        # In a range of its own, which only the rule knows.
        virtual = f"10.99{self.net[self.net.rindex('.') :]}.{1 + secrets.randbelow(250)}"
        server = f"{self.net}.130"
        self.host.rewrite(
            f"PREROUTING -d {virtual} -p {protocol} --dport 80 -j DNAT --to-destination {server}:8080"
        )
        if masquerade:
            self.host.rewrite(f"POSTROUTING -d {server} -p {protocol} --dport 8080 -j MASQUERADE --random")
        return virtual


class StandingProvider:
    """One provider that many tests look at one after the other, as an observer sees one pair after the other.

    It compiles and loads once. A test calls ``follow`` and has samples of what is sent from then on.
    """

    def __init__(self) -> None:
        self._stage: Optional[Stage] = None
        self._now_s = 0.0
        self._provider = EbpfProvider(self._resolve)
        self.close = self._provider.close

    def _resolve(self, cgroup_id: int) -> str:
        return self._stage.resolve(cgroup_id) if self._stage else ""

    def follow(self, stage: Stage) -> StandingProvider:
        """What was before is told to none: two samples, for what the first one could not resolve."""
        self._stage = stage
        for _ in range(2):
            self.sample()
        return self

    def sample(self) -> Sample:
        self._now_s += 10.0
        return self._provider.sample(self._now_s)


def between(flows: tuple[Flow, ...], kind: str, a: str = "client", b: str = "server") -> tuple[int, int]:
    """Bytes from a to b and back, over ``kind``."""
    there = back = 0
    for flow in flows:
        if flow.kind == kind and {flow.a, flow.b} == {a, b}:
            there += flow.bytes_ab if flow.a == a else flow.bytes_ba
            back += flow.bytes_ba if flow.a == a else flow.bytes_ab
    return there, back
