"""The network namespaces of all pods, each with the sockets through which the kernel tells of its connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Optional

from bpf.identity.attribution import Attribution
from bpf.kernel.netlink import EndedTcp, InetSocket, SockDiag, local_addresses
from bpf.kernel.procfs import in_netns, namespace_of

#: A connection that ends takes about 1.3 KiB of it until it is read: 3,000 between two samples of one pod. The
#: kernel uses this memory only while it is needed.
_ENDED_BUFFER_BYTES = 4 << 20
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class PodNamespace:
    """One network namespace: ``containers`` in it; ``is_hosts``: the host's own processes are in it as well.

    Its netlink sockets keep the namespace alive until ``close``: at most one sample longer than its pod.
    """

    def __init__(self, proc: str, pid: int, is_hosts: bool) -> None:
        self.containers: set[str] = set()
        self.is_hosts = is_hosts
        with in_netns(proc, pid) as self.number:
            self.addresses = local_addresses()
            self._ended = EndedTcp(_ENDED_BUFFER_BYTES)
            try:
                self._diag = SockDiag()
            except OSError:
                self._ended.close()
                raise

    @property
    def lost(self) -> int:
        """How often news of ended connections were lost."""
        return self._ended.lost

    def sockets(self) -> Iterator[tuple[InetSocket, bool]]:
        """All TCP sockets as they are, then the ones ended since the last call (True).

        In this order: a socket that ends while they are listed is seen with its last counters.
        """
        for family in _FAMILIES:
            # A kernel without IPv6.
            with suppress(FileNotFoundError):
                for seen in self._diag.tcp(family):
                    yield seen, False
        for seen in self._ended.ended():
            yield seen, True

    def close(self) -> None:
        self._ended.close()
        self._diag.close()


class PodNamespaces:
    """All namespaces with a container in them, and the host's; as of the last ``refresh()``.

    ``passed_over``: pods whose namespace cannot be opened, by its number, each with the reason. They are tried again.
    """

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._by_number: dict[int, PodNamespace] = {}
        self._gone: set[int] = set()
        self.lost = 0
        self.passed_over: dict[int, str] = {}
        # Where the first process may not be looked at, we are taken as one of the host's own.
        self._hosts_pid = 1 if namespace_of(attribution.proc, 1) else os.getpid()

    def __iter__(self) -> Iterator[PodNamespace]:
        return iter(self._by_number.values())

    def get(self, number: int) -> Optional[PodNamespace]:
        return self._by_number.get(number)

    def refresh(self) -> None:
        """Open those of new pods. Those of pods that are gone can be read once more, until ``close_gone``.

        :raises OSError: not even the host's namespace can be entered.
        """
        present: dict[int, tuple[int, set[str]]] = {}
        for pid, containers in self._processes():
            number = namespace_of(self._attribution.proc, pid)
            if number is not None:
                present.setdefault(number, (pid, set()))[1].update(containers)
        self._gone = self._by_number.keys() - present.keys()
        self.passed_over = {}
        for number, (pid, containers) in present.items():
            try:
                namespace = self._by_number.get(number) or self._open(pid)
            except OSError as error:
                if pid == self._hosts_pid:
                    raise
                self.passed_over[number] = error.strerror or str(error)
                continue
            if namespace is not None:
                namespace.containers = containers

    def close_gone(self) -> None:
        """Let go of the namespaces whose pods are gone."""
        for number in self._gone:
            self._close(self._by_number.pop(number))
        self._gone = set()

    def close(self) -> None:
        """Close all; the kernel then keeps nothing for us."""
        for namespace in self._by_number.values():
            self._close(namespace)
        self._by_number.clear()

    def _open(self, pid: int) -> Optional[PodNamespace]:
        try:
            opened = PodNamespace(self._attribution.proc, pid, pid == self._hosts_pid)
        except (FileNotFoundError, ProcessLookupError):
            return None
        return self._by_number.setdefault(opened.number, opened)

    def _close(self, namespace: PodNamespace) -> None:
        self.lost += namespace.lost
        namespace.close()

    def _processes(self) -> Iterator[tuple[int, set[str]]]:
        """One process of each pod with the pod's containers, which share one namespace; and the host's first one."""
        yield self._hosts_pid, set()
        pods: dict[str, set[str]] = {}
        for container, pod in self._attribution.containers.items():
            pods.setdefault(pod or container, set()).add(container)
        for containers in pods.values():
            for container in sorted(containers):
                pids = self._attribution.pids_of(container)
                if pids:
                    yield pids[0], containers
                    break
