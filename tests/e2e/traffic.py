"""Pods that talk, and the ways their packets can take: the bridge, a service address, a node port, IPv6."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient, Pod, cgroup_parent
from tests.e2e.runtime import RealRuntime
from tests.e2e.traffic_images import BYTES_LOG, TRAFFIC

BRIDGE_NETFILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


@dataclass(frozen=True)
class Exchanged:
    """What a client says it has done: payload bytes to the server, and back."""

    sent: int
    received: int
    connections: int = 0
    messages: int = 0


@dataclass(frozen=True)
class Talker:
    """A container that runs. ``address``: its pod's, "" on the host's network."""

    pod: Pod
    id: str
    address: str
    pid: int
    client: CriClient = field(repr=False)

    async def exec(self, *command: str, timeout_s: int = 60) -> str:
        """What a command in the container prints; it must succeed."""
        out, problem, code = await self.client.exec(self.id, *command, timeout_s=timeout_s)
        assert code == 0, f"{' '.join(command)}: {problem}"
        return out

    async def call(self, kind: str, address: str, request: int, response: int, **options: Any) -> Exchanged:
        """Run ``talk call``; ``options`` as in talk.c."""
        words = [f"{name}={value}" for name, value in options.items()]
        told = await self.exec("talk", "call", kind, address, str(request), str(response), *words)
        return Exchanged(**json.loads(told))

    async def counted_by_nginx(self) -> Exchanged:
        """What the clients of its nginx have sent and got so far, by its own count."""
        told = await self.exec("awk", "{i += $1; o += $2} END {print i + 0, o + 0, NR}", BYTES_LOG)
        received, sent, requests = (int(float(word)) for word in told.split())
        return Exchanged(received, sent, 0, requests)

    def in_network(self, *command: str) -> None:
        """Run a program of the machine in the pod's network namespace."""
        subprocess.run(["nsenter", f"--net=/proc/{self.pid}/ns/net", *command], check=True)


class Pods:
    """Makes talkers through one CRI socket, below the cgroup of this runtime."""

    def __init__(self, runtime: RealRuntime, client: CriClient) -> None:
        self.runtime = runtime
        self.client = client

    async def run(
        self, pod_name: str, *command: str, pod: Optional[Pod] = None, shared: str = "", **config: Any
    ) -> Talker:
        """A container of the traffic image in a pod of its own, or in ``pod`` under the name ``pod_name``.

        ``shared``: a folder of the machine that it sees as /shared. ``config``: labels, host_network of the pod;
        cpu_request, cpu_limit, annotations of the container.
        """
        of_pod = {key: config.pop(key) for key in ("labels", "host_network", "namespace") if key in config}
        if pod is None:
            uid = str(uuid.uuid4())
            parent = self.runtime.cgroup_parent + cgroup_parent("burstable", uid)
            pod = await self.client.run_pod(pod_name, uid=uid, cgroup_parent=parent, **of_pod)
        mounts = (cri.Mount(container_path="/shared", host_path=shared),) if shared else ()
        name = config.pop("name", "main")
        command = command or ("sleep", "2147483647")
        made = await self.client.create(pod, name, image=TRAFFIC, command=command, mounts=mounts, **config)
        await self.client.start(made)
        return Talker(pod, made, await self._address_of(pod), self.runtime.pid_of(made), self.client)

    async def serve(
        self, pod_name: str, kind: str, where: str, request: int, response: int, **config: Any
    ) -> Talker:
        """A container that answers for ever; it may take a moment until it listens."""
        return await self.run(pod_name, "talk", "serve", kind, where, str(request), str(response), **config)

    async def _address_of(self, pod: Pod) -> str:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
        return str((await self.client.call("PodSandboxStatus", request)).status.network.ip)


class Nat:
    """Rules as kube-proxy's, in chains of their own that end with ``close``."""

    def __init__(self, runtime: RealRuntime) -> None:
        self._number = runtime.number
        self._bridge = runtime.bridge
        self._jumps: list[tuple[str, ...]] = []
        self._chain = f"CRM-E2E-{self._number}"
        self._ports = 0
        # As on every Kubernetes node; only on this bridge, so it ends with that.
        self._set("forwarding")
        self._iptables("-N", self._chain)

    def cluster_ip(self, client: Talker, server: Talker, protocol: str, port: int) -> str:
        """An address that leads to the server by DNAT; the client's pod gets a route there."""
        self._ports += 1
        address = f"10.96.{self._number}.{self._ports}"
        self._translate("PREROUTING", f"{address}/32", protocol, port, f"{server.address}:{port}")
        client.in_network("ip", "route", "replace", f"10.96.{self._number}.0/24", "via", self._gateway)
        return f"{address}:{port}"

    def node_port(self, server: Talker, protocol: str, port: int) -> str:
        """A port of the machine that leads to the server: DNAT, and another source address and port."""
        self._ports += 1
        node_port = 30000 + 100 * self._number + self._ports
        self._set("route_localnet")  # as kube-proxy does for 127.0.0.1
        self._translate("OUTPUT", "127.0.0.1/32", protocol, node_port, f"{server.address}:{port}")
        self._jump("POSTROUTING", "-s", "127.0.0.1/32", "-d", f"{server.address}/32", "-p", protocol,
                   "-j", "MASQUERADE", "--random")  # fmt: skip
        return f"127.0.0.1:{node_port}"

    def close(self) -> None:
        for jump in reversed(self._jumps):
            self._iptables("-D", *jump)
        self._jumps.clear()
        self._iptables("-F", self._chain)
        self._iptables("-X", self._chain)

    @property
    def _gateway(self) -> str:
        return f"10.213.{self._number}.1"

    def _set(self, switch: str) -> None:
        Path(f"/proc/sys/net/ipv4/conf/{self._bridge}/{switch}").write_text("1")

    def _translate(self, hook: str, to: str, protocol: str, port: int, target: str) -> None:
        match = ("-d", to, "-p", protocol, "--dport", str(port))
        self._iptables("-A", self._chain, *match, "-j", "DNAT", "--to-destination", target)
        self._jump(hook, *match, "-j", self._chain)

    def _jump(self, *rule: str) -> None:
        self._iptables("-A", *rule)
        self._jumps.append(rule)

    def _iptables(self, *arguments: str) -> None:
        subprocess.run(["iptables", "-w", "60", "-t", "nat", *arguments], check=True)


@contextmanager
def nat(runtime: RealRuntime) -> Iterator[Nat]:
    """Rules that are gone afterwards."""
    rules = Nat(runtime)
    try:
        yield rules
    finally:
        rules.close()


def missing_for_nat() -> str:
    """What this machine lacks for address translation on a bridge, as a sentence for a skip; "" if nothing."""
    if not BRIDGE_NETFILTER.exists() or BRIDGE_NETFILTER.read_text().strip() != "1":
        return "The kernel does not show bridged packets to iptables (br_netfilter)."
    probe = ["iptables", "-w", "60", "-t", "nat", "-S", "OUTPUT"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        return "iptables has no nat table here."
    return ""


def give_ipv6(talkers: Sequence[Talker], number: int) -> list[str]:
    """IPv6 addresses for their pods, which can be used at once (no duplicate address detection)."""
    addresses = [f"fd00:213:{number}::{place}" for place in range(2, 2 + len(talkers))]
    for talker, address in zip(talkers, addresses):
        talker.in_network("ip", "-6", "address", "add", f"{address}/64", "dev", "eth0", "nodad")
    return addresses
