"""Borders that no machine has: of sockets, dies and L3s that a kernel shows, those that can be are kept.

Hypervisors invent sockets and dies, and old arm64 kernels call clusters packages; caches are shown as the host has them. Cut
at such a border an L3 may be a single CPU, and a container with a limit of one CPU is nailed to it. So a core, a cluster, an
L3 and a NUMA node lie in one socket. A node may also hold whole sockets (interleaved memory), and an L3 whole nodes
(sub-NUMA clustering).

A level is given by the name of the group of each CPU that is in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from policies.frozen import dataclass
from policies.machine.cpus import format_cpus
from policies.machine.topology import Cpu, TopologyData

#: The name of the group that a CPU is in.
Level = Mapping[int, int]


@dataclass(frozen=True)
class Doubt:
    """``file``, below the folder of each CPU, ``shows`` what cannot be; what is taken ``instead``. Parts of a sentence."""

    file: str
    shows: str
    instead: str


def settled(data: TopologyData) -> tuple[TopologyData, tuple[str, ...]]:
    """A machine that a file describes, with the borders that can be; and a sentence on each that cannot."""
    nodes, shown = {c.cpu: c.numa for c in data.cpus}, {c.cpu: c.socket for c in data.cpus}
    cores, l3s, clusters = (_numbered(data.cpus, name) for name in ("core", "l3", "cluster"))
    l3s, doubts = whole_l3s(l3s, nodes, shown, cores)
    sockets, more = whole_sockets(shown, cores, clusters, l3s, nodes)
    near = clusters, l3s, nodes
    dies, others = whole_dies({c.cpu: c.die for c in data.cpus}, shown, sockets, cores, near)
    found = (*doubts, *more, *others)
    if not found:
        return data, ()
    cpus = [
        Cpu(c.cpu, cores[c.cpu], l3s.get(c.cpu), dies[c.cpu], c.numa, sockets[c.cpu], clusters.get(c.cpu))
        for c in data.cpus
    ]
    sentences = tuple(f"the machine's description {doubt.shows}; {doubt.instead}." for doubt in found)
    return replace(data, cpus=tuple(cpus)), sentences


def _numbered(cpus: Iterable[Cpu], level: str) -> dict[int, int]:
    """What is unique in its socket, as numbers that are unique on the machine."""
    names = {c.cpu: (c.socket, getattr(c, level)) for c in cpus if getattr(c, level) is not None}
    numbers: dict[tuple[int, int], int] = {}
    return {cpu: numbers.setdefault(name, len(numbers)) for cpu, name in names.items()}


def whole_l3s(l3s: Level, nodes: Level, sockets: Level, cores: Level) -> tuple[dict[int, int], list[Doubt]]:
    """The L3s without those that are none: of a socket of one core each, and with parts of several NUMA nodes.

    A hypervisor's default is a socket for each CPU, with an L3 of its own. ``sockets``: as the kernel shows them.
    """
    left, doubts = dict(l3s), []
    if are_single_cores(sockets, cores) and are_single_cores(l3s, cores):
        left.clear()
        doubts.append(Doubt("cache", "shows an L3 for each socket of one core", "no L3 is known"))
    cut = frozenset().union(*_cut(left, nodes))
    if cut:
        doubts.append(
            Doubt("cache", "shows L3s of parts of several NUMA nodes", "these L3s count as not known")
        )
    return {cpu: l3 for cpu, l3 in left.items() if cpu not in cut}, doubts


def whole_sockets(
    shown: Level, cores: Level, clusters: Level, l3s: Level, nodes: Level
) -> tuple[dict[int, int], list[Doubt]]:
    """The sockets, those taken for one, by the lowest number, that a core, a cluster, an L3 or a part of a NUMA node spans.

    Of sockets of one core each those of one node are one.
    """
    sockets, doubts = dict(shown), list[Doubt]()
    # 1. What lies in one socket.
    for what, level in (("core", cores), ("cluster", clusters), ("L3", l3s)):
        doubts += _join(sockets, _groups(level), f"one {what} spans")
    # 2. Sockets of one core.
    if are_single_cores(sockets, cores):
        doubts += _join(sockets, _groups(nodes), "are one core each, in one NUMA node,")
    # 3. A node that neither lies in one socket nor holds whole ones; a larger socket may make another node such.
    while cut := _cut(nodes, sockets):
        doubts += _join(sockets, cut, "one NUMA node has parts of")
    return sockets, doubts


def whole_dies(
    shown: Level, shown_sockets: Level, sockets: Level, cores: Level, others: Sequence[Level]
) -> tuple[dict[int, int], list[Doubt]]:
    """The dies, numbered in each socket; all are 0 where they are one core each, or cut a core or a group of ``others``.

    What was several sockets has none.
    """
    numbers: dict[tuple[int, int], int] = {}
    dies = {cpu: numbers.setdefault((sockets[cpu], die), len(numbers)) for cpu, die in sorted(shown.items())}
    # Kernels of other architectures than x86 list each core as a die.
    if are_single_cores(dies, cores):
        return dict.fromkeys(shown, 0), []
    if any(_cut(level, dies) for level in (cores, *others)):
        doubt = Doubt("topology/die_id", "cuts cores, caches or NUMA nodes", "dies are not told apart")
        return dict.fromkeys(shown, 0), [doubt]
    joined = {socket for cpu, socket in sockets.items() if socket != shown_sockets[cpu]}
    return {cpu: 0 if sockets[cpu] in joined else die for cpu, die in shown.items()}, []


def are_single_cores(level: Level, cores: Level) -> bool:
    """Whether there are several groups, and each is one core."""
    pairs = {(name, cores[cpu]) for cpu, name in level.items()}
    return len(pairs) == len(set(level.values())) > 1


def _join(sockets: dict[int, int], groups: Iterable[frozenset[int]], which: str) -> list[Doubt]:
    """Take the sockets of each group of CPUs for one."""
    spanned: set[int] = set()
    for group in groups:
        numbers = {sockets[cpu] for cpu in group}
        if len(numbers) > 1:
            spanned |= numbers
            sockets.update({cpu: min(numbers) for cpu, number in sockets.items() if number in numbers})
    instead = f"those that {which} are taken for one socket"
    return [Doubt("topology", f"shows sockets {format_cpus(spanned)}", instead)] if spanned else []


def _groups(level: Level) -> list[frozenset[int]]:
    """The CPUs that go by one name, those with the lowest CPU first."""
    found: dict[int, set[int]] = {}
    for cpu, name in sorted(level.items()):
        found.setdefault(name, set()).add(cpu)
    return [frozenset(cpus) for cpus in found.values()]


def _cut(inner: Level, outer: Level) -> list[frozenset[int]]:
    """The groups of ``inner`` that lie in several of ``outer`` and do not hold these whole."""
    around = {cpu: group for group in _groups(outer) for cpu in group}
    found = []
    for group in _groups(inner):
        touched = {around[cpu] for cpu in group}
        if len(touched) > 1 and not all(other <= group for other in touched):
            found.append(group)
    return found
