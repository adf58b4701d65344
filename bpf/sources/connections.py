"""The container that makes a TCP connection, by a program on a tracepoint: hints for the provider that lists sockets.

For hosts whose containers have no cgroup v2, where the eBPF provider knows no owners, but programs may be loaded.
It names the client of a connection whose source was rewritten (NodePort, hairpin), and the container of a socket
that lived too short to be listed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from bpf.identity.attribution import Attribution
from bpf.kernel import syscalls
from bpf.kernel.loader import Attachment, load, read_tracepoint
from bpf.kernel.netlink import Address, plain_address
from bpf.sources.samples import ProviderLost

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


class ConnectionHints:
    """Hints (tcp_pairs.py) from the kernel. ``refresh`` before asking; a hint holds for two refreshes.

    On hosts without cgroup ids a client must still run when ``refresh`` is called; looking more often than sampling
    finds more of the clients that end soon.

    :raises ProviderLost: no bcc, no tracefs, or the kernel refuses; one sentence says which.
    """

    def __init__(self, attribution: Attribution, python: str) -> None:
        self._attribution = attribution
        self._openers: list[dict[_Ends, str]] = [{}, {}]
        self._arrivals: list[dict[_Ends, str]] = [{}, {}]
        defines = {
            f"AT_{name}": offset
            for name, offset in parse_format(read_tracepoint(_TRACEPOINT, "format")).items()
        }
        defines["MOST_CONNECTIONS"] = MOST_CONNECTIONS
        self._loaded = load(SOURCE, [Attachment("tracepoint", "crm_aff_state", _TRACEPOINT)], python, defines)

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
