"""What the doctor says of the machine: its CPUs, caches and memory, and the kernel settings that matter for them.

Of a virtual one: whether the hypervisor shows the host's cores, caches and nodes; guests see what they are given. A CCX of
Hygon's C86 (family 0x18) and of AMD's Zen 1 and 2 has at most 4 cores, later ones 8, and 16 in the dense variants. Linux
takes the L3 of a Hygon CPU from its APIC id, eight of which are one CCX (arch/x86/kernel/cpu/cacheinfo.c,
cacheinfo_hygon_init_llc_id): a guest's CCX should be 4 cores of 2 threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cri_proxy.doctor.facts import Facts, MachineFacts
from cri_proxy.doctor.findings import NOTE, WARNING, Finding, finding, note, ok, problem, warning
from cri_proxy.version import DOCUMENTS
from policies.machine.cpus import format_cpus
from policies.machine.topology import BadTopology, Topology

LOOK = "cri-resmgr topology"
_REMOVE = "remove it from the kernel's command line"
_ISOLATED = f"{DOCUMENTS}/policies.md says which containers are placed on them"
#: More holes than this are not listed one by one.
_HOLES_SHOWN = 3
_CHIPLETS = ("HygonGenuine", "AuthenticAMD")
_MOST_CCX_CORES = {"HygonGenuine": 8, "AuthenticAMD": 16}
#: Cores of a CCX, for the hints: of Hygon and the first two Zens, and of AMD since family 0x19 (Zen 3).
_CCX_CORES, _CCX_CORES_ZEN3, _ZEN3 = 4, 8, 0x19
#: A guest with more CPUs than this should see more than one NUMA node: no CCX is so large.
_MANY_CPUS = 32
#: Of all CPU time since boot. Two of a hundred are felt in tail latencies; less is other work of the host.
_STEAL_NOTED, _STEAL_WARNED = 0.005, 0.02
_DISTANCES = "<cell id='0' ...><distances><sibling id='1' value='16'/><sibling id='2' value='28'/>...</distances></cell>"
_MORE = f"{DOCUMENTS}/vm.md has the whole of it"


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
        sentence = f"NUMA node {_some(bare)} has CPUs and no memory: the nearest NUMA node's is used"
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


def check_virtual(facts: Facts) -> Iterator[Finding]:
    """Does the hypervisor pass the host's topology through?"""
    machine = facts.machine
    if machine is None or not machine.virtual:
        return
    # What is shown, not what is made of it.
    machine = replace(machine, data=replace(machine.data, cpus=machine.shown or machine.data.cpus))
    try:
        topology = Topology(machine.data)
    except BadTopology:
        return  # said of the machine
    found = [
        *_sockets(machine, topology),
        *_siblings(machine, topology),
        *_guest_caches(machine, topology),
        *_nodes(machine, topology),
        *_steal(machine),
    ]
    what = f"this is a virtual machine{f' ({machine.product})' if machine.product else ''}"
    if any(finding.verdict == WARNING for finding in found):
        yield note("virtual", f"{what}: what it shows of the host is not right, see below", _MORE)
    else:
        yield ok("virtual", f"{what}; nothing that it shows is impossible on a real one")
    yield from found


def _is_chiplet(machine: MachineFacts) -> bool:
    return machine.data.vendor in _CHIPLETS


def _ccx_cores(machine: MachineFacts) -> int:
    is_zen3 = machine.data.vendor == "AuthenticAMD" and machine.family >= _ZEN3
    return _CCX_CORES_ZEN3 if is_zen3 else _CCX_CORES


def shape_line(machine: MachineFacts, topology: Topology, threads: int = 2) -> str:
    """libvirt's <topology> for as many CPUs as there are, each die one CCX; then the same for QEMU."""
    count = len(topology.online)
    # Sockets are those of the guest, if each holds a whole CCX: with fewer APIC ids to a socket than a CCX has, Linux
    # takes two sockets for one CCX.
    sockets = len(topology.at("socket")) or 1
    sockets = sockets if count // sockets // threads >= _ccx_cores(machine) else 1
    cores = max(count // sockets // threads, 1)
    dies = max(cores // _ccx_cores(machine), 1)
    cores //= dies
    total = sockets * dies * cores * threads
    return (
        f"libvirt: <vcpu>{total}</vcpu> <cpu mode='host-passthrough' check='none'>\n"
        f"  <topology sockets='{sockets}' dies='{dies}' cores='{cores}' threads='{threads}'/>\n"
        "  <cache mode='passthrough'/> <feature policy='require' name='topoext'/> </cpu>\n"
        "QEMU: -cpu host,topoext=on,host-cache-info=on,l3-cache=off "
        f"-smp {total},sockets={sockets},dies={dies},cores={cores},threads={threads}"
    )


def _sockets(machine: MachineFacts, topology: Topology) -> Iterator[Finding]:
    count = len(topology.at("socket"))
    if count == len(topology.online) and count > 2:
        sentence = f"each of the {count} vCPUs is a socket by itself, as libvirt has it without <topology>"
        yield warning("sockets", sentence, shape_line(machine, topology))


def _siblings(machine: MachineFacts, topology: Topology) -> Iterator[Finding]:
    if threads_per_core(topology) > 1 or not _is_chiplet(machine) or len(topology.online) < 2:
        return
    sentence = (
        "no SMT siblings are shown: if the host has two threads a core, halves are taken for whole cores"
    )
    is_hidden = bool(machine.cpu_flags) and "topoext" not in machine.cpu_flags
    if is_hidden:
        sentence += "; the CPU flag topoext is missing, without which none can be shown"
    # Every Hygon C86 has two threads a core; many run EPYCs without.
    verdict = WARNING if is_hidden or machine.data.vendor == "HygonGenuine" else NOTE
    yield finding("smt", verdict, sentence, shape_line(machine, topology))


def _guest_caches(machine: MachineFacts, topology: Topology) -> Iterator[Finding]:
    threads = max(threads_per_core(topology), 2 if _is_chiplet(machine) else 1)
    hint = shape_line(machine, topology, threads)
    if any(c.l3 is None for c in machine.data.cpus if c.cpu not in machine.data.offline):
        sentence = "cache information is missing: containers are kept in NUMA nodes, not in L3 slices"
        yield warning("cache", sentence, hint)
        return
    across = {c.l3 for c in machine.data.cpus if c.l3 is not None}
    if len(across) < len({(c.socket, c.l3) for c in machine.data.cpus if c.l3 is not None}):
        sentence = "an L3 is shown that spans sockets: a guest's socket is smaller than a CCX"
        yield warning("cache", sentence, hint)
        return
    slices = [l3.cpus & topology.online for l3 in topology.at("l3")]
    cores = [{topology.core_of[cpu] for cpu in cpus} for cpus in slices if cpus]
    largest, most = max(map(len, cores)), _MOST_CCX_CORES.get(machine.data.vendor)
    if most is not None and largest > most:
        sentence = f"an L3 of {largest} cores is shown, and a CCX of this vendor has at most {most}"
        yield warning("cache", sentence, hint)
    elif _is_chiplet(machine) and largest > _ccx_cores(machine) and len(slices) == len(topology.at("numa")):
        where = "the whole machine" if len(slices) == 1 else "each NUMA node"
        sentence = (
            f"one L3 of {largest} cores is shown for {where}: right only if the host's CCXs are that large"
        )
        yield warning("cache", sentence, hint)
    elif max(map(len, slices)) == 1 and len(topology.online) > 1:
        sentence = "each vCPU has an L3 to itself: nothing can be kept together"
        yield warning("cache", sentence, hint)
    sizes = {len(cpus) for cpus in slices if cpus}
    if len(sizes) > 1 and not machine.data.offline:
        sentence = f"{len(topology.online)} vCPUs are no multiple of a CCX: L3 slices of {_listed(sizes)} CPUs are shown"
        yield warning("count", sentence, hint)
    elif _is_chiplet(machine) and len(slices) > 1 and len(sizes) == 1 and len(topology.online) % 2:
        yield warning("count", f"{len(topology.online)} vCPUs are an odd number", hint)


def _listed(sizes: set[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _nodes(machine: MachineFacts, topology: Topology) -> Iterator[Finding]:
    nodes, sockets = len(topology.at("numa")), len(topology.at("socket"))
    count = len(topology.online)
    per = max(count // max(sockets, 2), 1)
    cells = "".join(
        f"<cell id='{n}' cpus='{n * per}-{(n + 1) * per - 1}' memory='8' unit='GiB'/>" for n in range(2)
    )
    hint = f"<cpu ...><numa>{cells}...</numa></cpu> <numatune><memnode cellid='0' mode='strict' nodeset='0'/>...</numatune>"
    if nodes == 1 and 1 < sockets < count:
        sentence = f"NUMA is flat: one NUMA node for {sockets} sockets"
        yield warning("numa", sentence, hint)
    elif nodes == 1 and count > _MANY_CPUS and _is_chiplet(machine):
        sentence = f"NUMA is flat: one NUMA node for {count} vCPUs; right only if the host has one there, too"
        yield note("numa", sentence, hint)
    rows = topology.data.distance
    if rows is not None and nodes > sockets > 1:
        different = {value for a, row in enumerate(rows) for b, value in enumerate(row) if a != b}
        if len(different) == 1:
            value = next(iter(different))
            sentence = (
                f"all NUMA distances are {value}: the nearest NUMA node cannot be told from the farthest"
            )
            yield warning("distances", sentence, _DISTANCES)


def _steal(machine: MachineFacts) -> Iterator[Finding]:
    if machine.steal is None:
        return
    hint = (
        "<cputune><vcpupin vcpu='0' cpuset='0'/><vcpupin vcpu='1' cpuset='64'/>...</cputune>: "
        "vCPUs of one CCX to the CPUs of one CCX of the host"
    )
    shown = f"the hypervisor kept back {machine.steal * 100:.1f} % of the CPU time since boot"
    if machine.steal >= _STEAL_WARNED:
        yield warning("pinning", f"{shown}: vCPUs share the host's CPUs, or are not pinned", hint)
    elif machine.steal >= _STEAL_NOTED:
        yield note("pinning", f"{shown}: vCPUs may share the host's CPUs", hint)
    else:
        sentence = f"{shown}; whether vCPUs are pinned a guest cannot see"
        yield ok("pinning", sentence)
