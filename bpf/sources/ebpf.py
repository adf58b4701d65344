"""The provider that sees most: bytes of TCP and UDP and wakes between containers, counted in the kernel (traffic.c).

Needs kernel 5.10, cgroup v2 with a cgroup for each container, and bcc for the system's Python. Every connection
counts once, at its acceptor, whatever NAT is between the two ends, also if it is older than the observer.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, Optional

from bpf.identity.networks import address_text, expression
from bpf.kernel import syscalls
from bpf.kernel.clock import boot_time_s
from bpf.kernel.compiler import Compiler
from bpf.kernel.ebpf_self_test import self_test
from bpf.kernel.kernel_types import VMLINUX
from bpf.kernel.loader import Attachment, LoadedPrograms, NotLoaded, attach, detach_leftovers, load
from bpf.service.log import log
from bpf.sources.samples import Flow, Peers, ProviderLost, RemoteFlow, Sample, with_presence
from bpf.sources.udp_paths import SearchPace, Translations, UdpPaths, hosts_conntrack
from bpf.sources.unix_messages import UnixMessages
from policies.machine.cpus import parse_cpus

SOURCE = Path(__file__).with_name("traffic.c")
#: Cgroups with one that they talk to, between two samples: 32,768 pairs that talk both ways. Takes 100 bytes for each that
#: is there, besides 1 MB.
EDGES = 65_536
#: Places of a bucket of traffic_openers.h, and the bytes of a place.
_PLACES, OPENER_BYTES = 4, 32
#: By memory: one TCP connection open at a time for each 64 KiB, so that they take 1/2,048 of it.
_OPENERS = (32_768, 524_288)
_BYTES_OF_MEMORY_PER_OPENER = 65_536
#: Pairs of a cgroup and a remote address between two samples; takes 1 MB.
REMOTES = 8192
#: In the order of traffic.c's enum. unmatched: connections whose other end is not in a cgroup here.
COUNTERS = (
    "resolved", "unmatched", "flushes", "edges_full", "wakes", "wakes_unknown", "wakes_full", "udp_waiting",
    "udp_claimed", "udp_by_ingress", "udp_given_up",
    "remotes_full", "remote_elsewhere", "openers_evicted", "udp_by_path", "udp_waiting_bytes",
    "udp_claimed_bytes",
)  # fmt: skip
#: Signed, as what waited on a unix socket is taken back when its receiver shows.
_EDGE_KEY, _EDGE = struct.Struct("=QQQ"), struct.Struct("=qqq")
_WAKE_KEY, _WAKE = struct.Struct("=QQ"), struct.Struct("=Q")
_LOST_KEY, _LOST = struct.Struct("=Q"), struct.Struct("=Q")
_REMOTE_KEY, _REMOTE = struct.Struct("=Q16s"), struct.Struct("=Q")
_INGRESS, _PATH = "crm_aff_ingress", "crm_aff_path"
#: struct task_owner of traffic_wakes.h, and how many there are.
_TASK, _TASKS = struct.Struct("=QQQ"), range(2 * 8192)
_KIND_OF_PROTOCOL = {1: "unix", 6: "tcp", 17: "udp"}
#: The receiver of a message on a unix socket that none has shown for yet.
_NOT_KNOWN = 0

#: Attached only while containers share memory, or a unix socket whose messages are not counted: they cost a short TCP
#: connection twice its counting.
WAKES = (
    Attachment("raw_tracepoint", "crm_aff_freed", "sched_process_free", at_once=False),
    Attachment("raw_tracepoint", "crm_aff_waking", "sched_waking", at_once=False),
)

Resolve = Callable[[int], Optional[str]]


@dataclass(frozen=True)
class CgroupFlow:
    """The traffic of two cgroups: the numbers of a Flow, the kernel's ids for ends."""

    a: int
    b: int
    kind: str
    bytes_ab: int = 0
    bytes_ba: int = 0
    messages: int = 0


@dataclass
class _Seen:
    """Sums by (a, b, kind) of endpoints."""

    sums: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)

    def add(self, a: str, b: str, flow: CgroupFlow) -> None:
        there, back = flow.bytes_ab, flow.bytes_ba
        if a > b:
            a, b, there, back = b, a, back, there
        total = self.sums.setdefault((a, b, flow.kind), [0, 0, 0])
        total[0] += there
        total[1] += back
        total[2] += flow.messages

    def flows(self) -> tuple[Flow, ...]:
        return tuple(Flow(a, b, kind, *numbers) for (a, b, kind), numbers in sorted(self.sums.items()))


class EbpfProvider:
    """Programs at the root of the v2 tree. Not safe to use from two threads at once."""

    name = "ebpf"

    def __init__(
        self,
        resolve: Resolve,
        cgroup_root: str = "",
        compiler: Optional[Compiler] = None,
        edges: int = EDGES,
        networks: Sequence[str] = (),
        remotes: int = REMOTES,
        openers: int = 0,
        peers: Callable[[], Peers] = Peers,
        translations: Callable[[], Translations] = hosts_conntrack,
        types: str = VMLINUX,
    ) -> None:
        """Load, attach and try it out; 0.2 s, and 0.3 s to two minutes more if it has to be compiled.

        ``resolve``: the container of a cgroup id, "" = the host's own, None = not known. ``cgroup_root``: "" =
        where cgroup v2 is mounted. ``compiler``: one that waits, unless given. ``networks``: traffic with addresses of other
        nodes counts if they are in one of these. ``openers``: TCP connections open at a time that are known, rounded up
        to a power of two; 0 = by the machine's memory. ``peers``: which containers share sockets or memory, asked once a
        sample; only while there are some is counted what they send over unix sockets, or their wakes. ``translations``:
        opens what lists the flows that NAT changes; asked while datagrams wait. ``types``: the kernel's description of its
        types.

        :raises ProviderLate: it is being compiled.
        :raises ProviderLost: it does not work here; the sentence says why.
        """
        self._resolve = resolve
        self._root = cgroup_root or cgroup_v2_root()
        self._unresolved: list[CgroupFlow] = []
        self._missed = 0
        self._edges = edges
        self._last_s = boot_time_s()
        self._possible_cpus = _possible_cpus()
        for name in detach_leftovers(self._root):
            log("warning", "detached what another version left behind", program=name, cgroup=self._root)
        self._ingress, self._ingress_link = SearchPace(), -1
        self._peers, self._wake_links = peers, list[int]()
        self._unix = UnixMessages(compiler, edges, types)
        self._unix_unattributed = {"unix_unattributed_bytes": 0, "unix_unattributed_messages": 0}
        defines: dict[str, object] = {
            "EDGES": edges,
            "REMOTES": remotes,
            "OPENER_BUCKETS": opener_buckets(openers, memory_bytes()),
        }
        if networks:
            defines["IN_NETWORKS"] = expression(networks)
        self._loaded = _load(self._root, compiler, defines)
        self._paths = UdpPaths(self._loaded.programs[_PATH], self._loaded.maps["udp_paths"], translations)
        try:
            self_test(self._root, self.drain)
        except BaseException:
            self.close()
            raise
        self.detail = self._told()

    @property
    def loaded(self) -> LoadedPrograms:
        """The programs and maps, for measurements."""
        return self._loaded

    def sample(self, now_s: float) -> Sample:
        """All that containers have exchanged since the last call.

        What cannot be resolved is kept until the next call, when it is asked for once more: the caller looks for new
        containers in between.

        :raises ProviderLost: the maps cannot be read.
        """
        self._paths.follow(now_s, *_search_state(self.counters(), "udp_by_path"))
        earlier, self._unresolved = self._unresolved, []
        seen = _Seen()
        self._add(seen, earlier, is_last_try=True)
        taken = self.drain()
        kinds = [flow.kind for flow in taken]
        fill = max(kinds.count("tcp") + kinds.count("udp"), kinds.count("unix")) / self._edges
        self._add(seen, taken, is_last_try=False)
        seconds, self._last_s = now_s - self._last_s, now_s
        remotes = self._remotes()
        counters = self.counters()
        self._follow_ingress(now_s, counters)
        peers = self._peers()
        # Their messages were counted: wakes between them are the same again.
        were_awake = replace(peers, unix=frozenset()) if self._unix.is_on else peers
        self._unix.follow(bool(peers.unix))
        self._follow_wakes(bool(peers.shared_memory or (peers.unix and not self._unix.is_on)))
        flows = with_presence(seen.flows(), were_awake)
        self.detail = self._told()
        return Sample(now_s, max(seconds, 0.0), flows, counters, remotes, self._lost(), fill)

    def drain(self) -> list[CgroupFlow]:
        """Take what the kernel has counted, between cgroups."""
        found = []
        for key, value in self._drained("edges", _EDGE_KEY.size, _EDGE.size):
            a, b, protocol = _EDGE_KEY.unpack(key)
            found.append(CgroupFlow(a, b, _KIND_OF_PROTOCOL[protocol], *_EDGE.unpack(value)))
        for key, value in self._drained("wakes", _WAKE_KEY.size, _WAKE.size):
            a, b = _WAKE_KEY.unpack(key)
            found.append(CgroupFlow(a, b, "wake", messages=_WAKE.unpack(value)[0]))
        return found

    def _told(self) -> str:
        """The kinds of traffic seen, and the missing ones."""
        seen = f"bytes of TCP, UDP and unix sockets and wakes between containers, counted at {self._root}"
        return "; ".join(filter(None, (seen, self._paths.problem, self._unix.problem)))

    def _remotes(self) -> tuple[RemoteFlow, ...]:
        """The traffic of containers with other nodes. A container that is not known yet has soon sent more."""
        found = []
        for key, value in self._drained("remotes", _REMOTE_KEY.size, _REMOTE.size):
            cgroup, address = _REMOTE_KEY.unpack(key)
            container = self._resolve(cgroup)
            if container:
                found.append(RemoteFlow(container, address_text(address), _REMOTE.unpack(value)[0]))
        return tuple(sorted(found, key=lambda flow: (flow.a, flow.address)))

    def _lost(self) -> dict[str, int]:
        """How often bytes of containers could not be counted."""
        found: dict[str, int] = {}
        for key, value in self._drained("lost", _LOST_KEY.size, _LOST.size):
            container = self._resolve(_LOST_KEY.unpack(key)[0])
            if container:
                found[container] = found.get(container, 0) + _LOST.unpack(value)[0]
        return found

    def _drained(self, name: str, key_bytes: int, value_bytes: int) -> list[tuple[bytes, bytes]]:
        """:raises ProviderLost: the map cannot be read."""
        try:
            found = syscalls.drain(self._loaded.maps[name], key_bytes, value_bytes)
            if name in self._unix.maps:
                found += syscalls.drain(self._unix.maps[name], key_bytes, value_bytes)
            return found
        except (OSError, KeyError) as error:
            raise ProviderLost(f"the maps of the eBPF programs cannot be read: {error}") from None

    def counters(self) -> dict[str, int]:
        """COUNTERS of the kernel's side, and ``missed``: flows of cgroups that are not known.

        ``udp_unattributed_bytes``: what was sent to other machines, or to receivers that were not found (yet).
        ``unix_unattributed_bytes`` and ``_messages``: what containers sent to receivers that were not found (yet).
        """
        maps = [each["counters"] for each in (self._loaded.maps, self._unix.maps) if "counters" in each]
        totals = {name: sum(self._counted(fd, index) for fd in maps) for index, name in enumerate(COUNTERS)}
        totals["missed"] = self._missed
        # Below zero: it was sent by one that was not known yet.
        totals.update({name: max(0, count) for name, count in self._unix_unattributed.items()})
        totals.update(self._paths.counters)
        totals["udp_unattributed_bytes"] = totals.pop("udp_waiting_bytes") - totals.pop("udp_claimed_bytes")
        totals["dropped"] = totals["edges_full"] + totals["wakes_full"] + totals["openers_evicted"]
        return totals

    def _counted(self, counters: int, index: int) -> int:
        raw = syscalls.lookup(counters, struct.pack("=I", index), 8 * self._possible_cpus)
        return sum(struct.unpack(f"={self._possible_cpus}Q", raw))

    def close(self) -> None:
        """Detach and unload; a second time does nothing."""
        self._detach_ingress()
        self._detach_wakes()
        self._paths.close()
        self._unix.close()
        self._loaded.close()

    def _follow_ingress(self, now_s: float, counters: Mapping[str, int]) -> None:
        waiting, found = _search_state(counters, "udp_by_ingress")
        if not self._ingress.decide(now_s, waiting, found, other_is_dear=self._paths.is_dear):
            self._detach_ingress()
        elif self._ingress_link < 0:
            try:
                self._ingress_link = attach(self._loaded.programs[_INGRESS], ingress_at(self._root))
            except (OSError, ProviderLost) as error:
                log("warning", "some receivers of datagrams stay unknown", reason=error)

    def _detach_ingress(self) -> None:
        if self._ingress_link >= 0:
            os.close(self._ingress_link)
            self._ingress_link = -1

    def _follow_wakes(self, are_wanted: bool) -> None:
        if not are_wanted:
            self._detach_wakes()
        elif not self._wake_links:
            try:
                # Of tasks that have ended since the programs were attached last the table does not know.
                syscalls.clear_array(self._loaded.maps["tasks"], _TASK.size, _TASKS)
                for wanted in WAKES:
                    self._wake_links.append(attach(self._loaded.programs[wanted.program], wanted))
            except (OSError, ProviderLost) as error:
                self._detach_wakes()
                log("warning", "unix sockets and shared memory are not seen", reason=error)

    def _detach_wakes(self) -> None:
        for link in self._wake_links:
            os.close(link)
        self._wake_links = []

    def _add(self, seen: _Seen, flows: Iterable[CgroupFlow], is_last_try: bool) -> None:
        for flow in flows:
            a, b = self._resolve(flow.a), self._resolve(flow.b)
            if flow.b == _NOT_KNOWN and flow.kind == "unix":
                # Of the host's own it says nothing; of a container that is not known yet a part is.
                if a:
                    self._unix_unattributed["unix_unattributed_bytes"] += flow.bytes_ab
                    self._unix_unattributed["unix_unattributed_messages"] += flow.messages
                continue
            if a == "" or b == "" or a == b is not None:
                continue  # the host's own, or inside one container
            if a is not None and b is not None:
                seen.add(a, b, flow)
            elif is_last_try:
                self._missed += 1
            else:
                self._unresolved.append(flow)


def _search_state(counters: Mapping[str, int], found: str) -> tuple[int, int]:
    """Messages whose receiver has not shown, and how often a search has found one."""
    return counters["udp_waiting"] - counters["udp_claimed"], counters[found]


def _load(root: str, compiler: Optional[Compiler], defines: Mapping[str, object]) -> LoadedPrograms:
    """Load traffic.c; first as for kernels that tell the network namespace of a packet (6.1 does not)."""
    attachments = attachments_at(root)
    try:
        return load(SOURCE, attachments, compiler, {**defines, "NETNS_COOKIE": 1})
    except NotLoaded as error:
        log("debug", "loading without network namespaces", reason=error)
    return load(SOURCE, attachments, compiler, defines)


def attachments_at(root: str) -> list[Attachment]:
    """Where the programs of traffic.c go: those of sockets to this cgroup and all below it."""
    return [
        Attachment("cgroup_egress", "crm_aff_egress", root),
        ingress_at(root),
        Attachment("cgroup_egress", _PATH, root, at_once=False),
        Attachment("cgroup_udp4", "crm_aff_udp4", root),
        Attachment("cgroup_udp6", "crm_aff_udp6", root),
        *WAKES,
    ]


def ingress_at(root: str) -> Attachment:
    """The program that is attached only now and then."""
    return Attachment("cgroup_ingress", _INGRESS, root, at_once=False)


def cgroup_v2_root(mountinfo: str = "/proc/self/mountinfo") -> str:
    """Where cgroup v2 is mounted: /sys/fs/cgroup, or /sys/fs/cgroup/unified on hosts with both.

    :raises ProviderLost: it is not.
    """
    with open(mountinfo, encoding="utf-8") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                return before.split()[4].replace("\\040", " ")
    raise ProviderLost("cgroup v2 is not mounted: the kernel's ids of cgroups are of its tree only")


def opener_buckets(openers: int, memory: int) -> int:
    """How many buckets hold so many entries, a power of two; ``openers`` 0: as many as go with so much memory."""
    least, most = _OPENERS
    wanted = openers or min(max(memory // _BYTES_OF_MEMORY_PER_OPENER, least), most)
    return max(1 << (-(-wanted // _PLACES) - 1).bit_length(), 1)


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _possible_cpus() -> int:
    """How many values a map per CPU has: those of CPUs that may come, too."""
    with open("/sys/devices/system/cpu/possible", encoding="utf-8") as file:
        return 1 + max(parse_cpus(file.read()))
