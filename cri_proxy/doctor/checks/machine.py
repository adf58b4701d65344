"""What the doctor says of the machine: its CPUs, caches and memory, and the kernel settings that matter for them."""

from __future__ import annotations

from collections.abc import Iterator

from cri_proxy.doctor.facts import Facts, MachineFacts
from cri_proxy.doctor.findings import Finding, note, ok, problem, warning
from cri_proxy.version import DOCUMENTS
from policies.machine.cpus import format_cpus
from policies.machine.topology import BadTopology, Topology

LOOK = "cri-resmgr topology"
_REMOVE = "remove it from the kernel's command line"
_ISOLATED = f"{DOCUMENTS}/policies.md says who is placed on them"
#: More holes than this are not listed one by one.
_HOLES_SHOWN = 3


def check_machine(facts: Facts) -> Iterator[Finding]:
    """Is there a topology, and what is odd about it?"""
    machine = facts.machine
    if machine is None:
        return
    try:
        topology = Topology(machine.data)
    except BadTopology as error:
        yield problem("topology", f"the topology makes no sense: {error}", LOOK)
        return
    counts = [(level, len(topology.at(level))) for level in ("socket", "numa", "l3")]
    names = {"socket": "socket", "numa": "NUMA node", "l3": "L3 slice"}
    shown = ", ".join(f"{count} {names[level]}{'s' * (count > 1)}" for level, count in counts if count)
    vendor = f" {machine.data.vendor}" if machine.data.vendor else ""
    yield ok("topology", f"{len(topology.online)} CPUs online{vendor}: {shown}; {_threads(topology)}")
    yield from _holes(machine)
    yield from _caches(machine, topology)
    yield from _memory(topology)
    yield from _cpus(machine)


def threads_per_core(topology: Topology) -> int:
    """The most threads a core has."""
    return max((len(core) for core in topology.cores), default=1)


def _threads(topology: Topology) -> str:
    threads = threads_per_core(topology)
    return "one thread a core" if threads == 1 else f"{threads} threads a core"


def _holes(machine: MachineFacts) -> Iterator[Finding]:
    # That there is no L3 is said by the next check, once and better.
    holes = [w for w in machine.warnings if "the L3 is not known" not in w]
    for sentence in holes[:_HOLES_SHOWN]:
        yield warning("sysfs", sentence.rstrip("."))
    if len(holes) > _HOLES_SHOWN:
        more = f"{len(holes) - _HOLES_SHOWN} more files of sysfs do not tell what they should"
        yield warning("sysfs", more, LOOK)


def _caches(machine: MachineFacts, topology: Topology) -> Iterator[Finding]:
    blind = frozenset(c.cpu for c in machine.data.cpus if c.l3 is None) - machine.data.offline
    if blind == topology.online:
        if not machine.virtual:  # what a hypervisor should do about it is said with the virtual machine
            sentence = "no CPU tells its L3 cache: containers are kept in NUMA nodes, not in L3 slices"
            yield warning("l3", sentence, "ls /sys/devices/system/cpu/cpu0/cache/")
        return
    if blind:
        sentence = f"CPUs {format_cpus(blind)} tell no L3 cache, the others do"
        yield warning("l3", sentence, "cri-resmgr topology --ascii")
        return
    sizes = sorted({len(l3.cpus & topology.online) for l3 in topology.at("l3")} - {0})
    if len(sizes) > 1:
        shown = ", ".join(map(str, sizes))
        sentence = f"L3 slices differ in size: {shown} CPUs; each is used as large as it is"
        yield note("l3", sentence)
    else:
        yield ok("l3", f"every CPU tells its L3: slices of {sizes[0]} CPUs")


def _memory(topology: Topology) -> Iterator[Finding]:
    with_cpus = {topology.node_of(cpu) for cpu in topology.online}
    bare = sorted(with_cpus - topology.memory_nodes)
    if bare:
        sentence = f"NUMA node {_some(bare)} has CPUs and no memory: the nearest node's is used"
        yield note("memory", sentence, "fill its memory channels, if that is not on purpose")
    far = sorted(topology.memory_nodes - with_cpus)
    if far:
        sentence = f"NUMA node {_some(far)} has memory and no CPUs: used only if the configuration names it"
        yield note("memory", sentence)
    rows = topology.data.distance
    if rows is None:
        if len(topology.node_ids) > 1:
            yield warning("distances", "the NUMA distances are not known: 10, 20, 32 are taken")
        return
    span = range(len(rows))
    if any(rows[a][b] != rows[b][a] for a in span for b in span):
        yield note("distances", "NUMA distances differ by direction; both count")
    if any(rows[a][b] <= rows[a][a] for a in span for b in span if a != b):
        sentence = "a NUMA node is as near to another one as to itself: the firmware's SLIT is wrong"
        yield warning("distances", sentence, "numactl --hardware; look for a BIOS update")


def _some(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes))


def _cpus(machine: MachineFacts) -> Iterator[Finding]:
    if machine.data.offline:
        sentence = f"CPUs {format_cpus(machine.data.offline)} are offline: not used until they are back"
        yield note("offline", sentence, "chcpu -e LIST, or the SMT setting of the BIOS or kernel")
    if machine.data.isolated:
        sentence = (
            f"CPUs {format_cpus(machine.data.isolated)} are isolated: the kernel balances no load on them"
        )
        yield note("isolated", sentence, _ISOLATED)


# ---------------------------------------------------------------------- kernel settings


def check_kernel(facts: Facts) -> Iterator[Finding]:
    """Settings of the kernel that move tasks or memory, or keep load off CPUs."""
    kernel, machine = facts.kernel, facts.machine
    if kernel is None:
        return
    if kernel.numa_balancing not in ("", "0") and machine and len({c.numa for c in machine.data.cpus}) > 1:
        sentence = (
            "the kernel's NUMA balancing is on: it moves memory after containers that are moved, at some cost"
        )
        yield note("numa-balancing", sentence, "sysctl kernel.numa_balancing=0, where latency counts")
    for word in kernel.command_line:
        name, _, value = word.partition("=")
        if name == "isolcpus":
            sentence = f"the kernel was booted with {word}: containers that share these get no load balancing"
            yield note("isolcpus", sentence, _ISOLATED)
        if name == "nosmt" or (name, value) == ("noht", ""):
            yield note("nosmt", f"the kernel was booted with {word}: one thread of each core is used")
        if (name, value) == ("numa", "off"):
            yield warning(
                "numa-off", "the kernel was booted with numa=off: all memory counts as near", _REMOVE
            )
        if name == "cgroup_disable" and "cpuset" in value.split(","):
            yield problem(
                "cpuset-off", f"the kernel was booted with {word}: no container can be pinned", _REMOVE
            )
