"""The provider that needs no eBPF: the kernel's list of TCP sockets, in the network namespace of each pod.

For kernels that refuse BPF programs, and for hosts whose containers have no cgroup v2. It sees the bytes of every
TCP connection, also of connections that lived between two samples; it does not see UDP (the kernel keeps no counters of
it), unix sockets and shared memory.
"""

from __future__ import annotations

from typing import Optional

from bpf.identity.attribution import Attribution
from bpf.identity.pod_namespaces import PodNamespaces
from bpf.kernel.clock import boot_time_s
from bpf.kernel.netlink import InetSocket
from bpf.kernel.procfs import socket_inodes
from bpf.sources.samples import Flow, ProviderLost, Sample
from bpf.sources.tcp_pairs import Hints, TcpEnds, total
from policies.affinity.graph.traffic import POD_PREFIX


def open_sock_diag(attribution: Attribution, python: str) -> SockDiagProvider:
    """The provider with the best hints that this host allows: where ``python`` has bcc and a program may be loaded.

    :raises ProviderLost: as the provider itself; that there are no hints is said in its ``detail``.
    """
    # Not above: the loader is large, and not needed where another gives hints.
    from bpf.sources.connections import ConnectionHints

    try:
        hints = ConnectionHints(attribution, python)
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
    container, else by the process that has it open. ``hints`` (connections.py) help with what was rewritten twice and
    with short connections, and are closed with the provider. Needs CAP_SYS_ADMIN (to enter namespaces),
    CAP_SYS_PTRACE (to see which process has what open), CAP_NET_ADMIN (for a long queue of ended connections; else
    some are lost, and counted).

    A sample takes 7 us a socket (10,000 connections with both ends here: 0.15 s), and 0.6 KB of memory.

    :raises ProviderLost: namespaces may not be entered, or sockets not be listed.
    """

    name = "sock_diag"

    def __init__(
        self, attribution: Attribution, hints: Optional[Hints] = None, why_no_hints: str = "not asked for"
    ) -> None:
        self._attribution = attribution
        self._namespaces = PodNamespaces(attribution)
        self._hints = hints
        self._why_no_hints = why_no_hints
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
        return Sample(now_s, seconds, flows, {**self._ends.counters, "dropped": lost})

    def close(self) -> None:
        """Close all netlink sockets, and the hints."""
        self._namespaces.close()
        if self._hints:
            self._hints.close()

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
