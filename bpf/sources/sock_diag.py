"""The provider that needs no eBPF: the kernel's list of TCP sockets, in the network namespace of each pod.

For kernels that refuse BPF programs, and for hosts whose containers have no cgroup v2. It sees the bytes of every
TCP connection, also of connections that lived between two samples; it does not see UDP (the kernel keeps no counters of
it), unix sockets and shared memory.

A program on a tracepoint (``ConnectionHints``), where programs may be loaded, names the client of a connection whose
source was rewritten (NodePort, hairpin), and the container of a socket that lived too short to be listed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Optional

from bpf.identity.attribution import Attribution
from bpf.identity.pod_namespaces import PodNamespaces
from bpf.kernel import syscalls
from bpf.kernel.clock import boot_time_s
from bpf.kernel.compiler import Compiler
from bpf.kernel.loader import Attachment, load, read_tracepoint
from bpf.kernel.netlink import Address, InetSocket, plain_address
from bpf.kernel.procfs import socket_inodes
from bpf.sources.samples import Flow, ProviderLate, ProviderLost, Sample
from bpf.sources.tcp_pairs import Hints, TcpEnds, total
from policies.affinity.graph.traffic import POD_PREFIX

SOURCE = Path(__file__).with_name("connections.c")
_TRACEPOINT = "sock:inet_sock_set_state"
_FIELDS = {
    "skaddr": 8, "oldstate": 4, "newstate": 4, "sport": 2, "dport": 2, "protocol": 2, "saddr_v6": 16, "daddr_v6": 16
}  # fmt: skip
#: Connections remembered between two looks; the oldest give way. 16,384 take about 2 MiB of the kernel's memory.
MOST_CONNECTIONS = 16_384
_ENDS = struct.Struct("=16s16sHH")
_TASK = struct.Struct("=QI4x")
_Ends = tuple[Address, Address]


def open_sock_diag(attribution: Attribution, compiler: Compiler) -> SockDiagProvider:
    """The provider with the best hints that this host allows: where there is bcc and a program may be loaded.

    While that is being compiled it sees without, and takes the hints once they are there.

    :raises ProviderLost: as the provider itself; that there are no hints is said in its ``detail``.
    """
    # Not above: the loader is large, and not needed where another gives hints.
    from bpf.sources.sock_diag import ConnectionHints

    def opened() -> Hints:
        return ConnectionHints(attribution, compiler)

    try:
        hints = opened()
    except ProviderLate as late:
        return SockDiagProvider(attribution, why_no_hints=str(late), late_hints=opened)
    except ProviderLost as refused:
        return SockDiagProvider(attribution, why_no_hints=str(refused))
    try:
        return SockDiagProvider(attribution, hints)
    except ProviderLost:
        hints.close()
        raise


class SockDiagProvider:
    """Bytes between containers by sock_diag; where a socket's container is not known, between pods (``pod:UID``).

    The owner of a socket is told by its cgroup where containers have cgroup v2, else by being in a pod with one
    container, else by the process that has it open. ``hints`` help with what was rewritten twice and
    with short connections, and are closed with the provider. Needs CAP_SYS_ADMIN (to enter namespaces),
    CAP_SYS_PTRACE (to see which process has what open), CAP_NET_ADMIN (for a long queue of ended connections; else
    some are lost, and counted).

    A sample takes 7 us a socket (10,000 connections with both ends here: 0.15 s), and 0.6 KB of memory for each of the
    MOST_SOCKETS that are followed; containers of the others are told as partly seen.

    :raises ProviderLost: namespaces may not be entered, or sockets not be listed.
    """

    name = "sock_diag"

    def __init__(
        self,
        attribution: Attribution,
        hints: Optional[Hints] = None,
        why_no_hints: str = "not asked for",
        late_hints: Optional[Callable[[], Hints]] = None,
    ) -> None:
        self._attribution = attribution
        self._namespaces = PodNamespaces(attribution)
        self._hints = hints
        self._why_no_hints = why_no_hints
        self._late_hints = late_hints
        self._ends = TcpEnds(self._find_owner, hints)
        self._openers: dict[int, dict[int, str]] = {}
        self._last_at_s = boot_time_s()
        try:
            self._look()
        except ProviderLost:
            self._namespaces.close()
            raise
        self._ends.begin_here()
        self.detail = self._describe()

    def _describe(self) -> str:
        source = "their cgroups" if self._attribution.has_v2_ids else "their open files (no cgroup v2 here)"
        rewritten = "" if self._hints else f", none whose source address was rewritten ({self._why_no_hints})"
        reasons = self._namespaces.passed_over
        unseen = f"; pods not seen: {len(reasons)} ({next(iter(reasons.values()))})" if reasons else ""
        return (
            f"TCP connections of containers, told by {source}, short ones of pods with several containers by pod"
            f"{rewritten}{unseen}; no UDP, unix sockets or shared memory"
        )

    def sample(self, now_s: float) -> Sample:
        """The bytes sent since the last call, by containers that the attribution knows: refresh it before."""
        self._ask_for_hints()
        self._look()
        self.detail = self._describe()
        addresses = frozenset().union(*(namespace.addresses for namespace in self._namespaces))
        flows = tuple(
            Flow(a, b, "tcp", sent, received, segments)
            for (a, b), (sent, received, segments) in sorted(total(self._ends.exchanges(addresses)).items())
            if not (self._is_pod_of(a, b) or self._is_pod_of(b, a))
        )
        seconds = max(0.0, now_s - self._last_at_s)
        self._last_at_s = now_s
        lost = self._namespaces.lost + sum(namespace.lost for namespace in self._namespaces)
        counters = {**self._ends.counters, "dropped": lost + self._ends.not_followed}
        return Sample(now_s, seconds, flows, counters, lost=self._ends.lost)

    def close(self) -> None:
        """Close all netlink sockets, and the hints."""
        self._namespaces.close()
        if self._hints:
            self._hints.close()

    def _ask_for_hints(self) -> None:
        if self._late_hints is None:
            return
        try:
            self._hints = self._late_hints()
        except ProviderLate as late:
            self._why_no_hints = str(late)
            return
        except ProviderLost as refused:
            self._why_no_hints = str(refused)
        else:
            self._ends.take_hints_of(self._hints)
        self._late_hints = None

    def _is_pod_of(self, endpoint: str, container: str) -> bool:
        """Whether an endpoint is the pod of the other one: within one pod, by pod, says nothing."""
        return endpoint == POD_PREFIX + self._attribution.pod_of(container)

    def _look(self) -> None:
        self._openers.clear()
        try:
            self._namespaces.refresh()
            for namespace in self._namespaces:
                for seen, has_ended in namespace.sockets():
                    self._ends.see(namespace.number, seen, has_ended)
            self._namespaces.close_gone()
            if self._hints:
                # After the lists: their sockets have been seen connecting before.
                self._hints.refresh()
        except OSError as error:
            raise ProviderLost(f"sock_diag cannot list the sockets of pods: {error}") from error

    def _find_owner(self, number: int, seen: InetSocket) -> Optional[str]:
        # 1. Its cgroup, where that says something.
        if self._attribution.has_v2_ids and seen.cgroup_id:
            owner = self._attribution.container_of_cgroup(seen.cgroup_id)
            if owner is not None:
                return owner
        namespace = self._namespaces.get(number)
        containers = namespace.containers if namespace else set()
        if namespace is None or not containers:
            return ""
        # 2. The only one that can have it. (The host's namespace has the host's own processes as well.)
        if len(containers) == 1 and not namespace.is_hosts:
            return next(iter(containers))
        # 3. The one that has it open.
        if seen.inode:
            if number not in self._openers:
                self._openers[number] = self._sockets_of(containers)
            owner = self._openers[number].get(seen.inode)
            if owner is not None:
                return owner
        if namespace.is_hosts:
            return ""
        # 4. One of the pod's, which one is not known.
        pods = {self._attribution.pod_of(container) for container in containers}
        pod = pods.pop() if len(pods) == 1 else ""
        return POD_PREFIX + pod if pod else None

    def _sockets_of(self, containers: set[str]) -> dict[int, str]:
        """Every socket that a process of these containers has open. Up to 8 us a descriptor."""
        return {
            inode: container
            for container in containers
            for pid in self._attribution.pids_of(container)
            for inode in socket_inodes(self._attribution.proc, pid)
        }


class ConnectionHints:
    """Hints (tcp_pairs.py) from the kernel. ``refresh`` before asking; a hint holds for two refreshes.

    On hosts without cgroup ids a client must still run when ``refresh`` is called; looking more often than sampling
    finds more of the clients that end soon.

    :raises ProviderLost: no bcc, no tracefs, or the kernel refuses; one sentence says which.
    """

    def __init__(self, attribution: Attribution, compiler: Optional[Compiler] = None) -> None:
        self._attribution = attribution
        self._openers: list[dict[_Ends, str]] = [{}, {}]
        self._arrivals: list[dict[_Ends, str]] = [{}, {}]
        defines = {
            f"AT_{name}": offset
            for name, offset in parse_format(read_tracepoint(_TRACEPOINT, "format")).items()
        }
        defines["MOST_CONNECTIONS"] = MOST_CONNECTIONS
        self._loaded = load(
            SOURCE, [Attachment("tracepoint", "crm_aff_state", _TRACEPOINT)], compiler, defines
        )

    def refresh(self) -> None:
        """Take what the kernel has seen since the last time."""
        for name, kept in (("openers", self._openers), ("arrivals", self._arrivals)):
            entries = syscalls.drain(self._loaded.maps[name], _ENDS.size, _TASK.size)
            kept[:] = [kept[1], self._named(entries)]

    def opener(self, local: Address, remote: Address) -> Optional[str]:
        """The container that opened the connection with these addresses (its own view)."""
        return _find(self._openers, (local, remote))

    def client_behind(self, local: Address, remote: Address) -> Optional[str]:
        """The container in whose thread the connection arrived at the server's socket with these addresses."""
        return _find(self._arrivals, (local, remote))

    def close(self) -> None:
        """Unload the program."""
        self._loaded.close()

    def _named(self, entries: Iterable[tuple[bytes, bytes]]) -> dict[_Ends, str]:
        named = {}
        owners: dict[tuple[int, int], str] = {}
        for key, value in entries:
            task = _TASK.unpack(value)
            if task not in owners:
                owners[task] = self._owner(*task)
            if owners[task]:
                local, remote, local_port, remote_port = _ENDS.unpack(key)
                named[(plain_address(local), local_port), (plain_address(remote), remote_port)] = owners[task]
        return named

    def _owner(self, cgroup_id: int, pid: int) -> str:
        """The container of a task; "" for the host's own, threads of the kernel, and tasks that are gone."""
        owner = None
        if self._attribution.has_v2_ids:
            owner = self._attribution.container_of_cgroup(cgroup_id)
        return owner if owner is not None else self._attribution.container_of_pid(pid) or ""


def parse_format(text: str) -> dict[str, int]:
    """The offsets of the fields we need, from a tracepoint's format file.

    :raises ProviderLost: a field is missing, or has another size than we read.
    """
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip().split(";")]
        if len(parts) < 3 or not parts[0].startswith("field:"):
            continue
        name = parts[0].split()[-1].partition("[")[0]
        offset, size = (int(part.partition(":")[2]) for part in parts[1:3])
        if size == _FIELDS.get(name):
            found[name] = offset
    missing = sorted(_FIELDS.keys() - found.keys())
    if missing:
        raise ProviderLost(
            f"tracepoint {_TRACEPOINT} of this kernel has no field {', '.join(missing)} as expected"
        )
    return found


def _find(kept: list[dict[_Ends, str]], ends: _Ends) -> Optional[str]:
    for generation in reversed(kept):
        if ends in generation:
            return generation[ends]
    return None
