"""The virtual machines by name: what the guest's kernel shall see, and the QEMU arguments that make it so. Pure.

QEMU's plain ``-cpu Dhyana`` gives one L3 a NUMA node: without KVM it drops TOPOEXT, the leaves that say which CPUs
share a cache. ``x-force-features`` keeps it; what the emulation really lacks is switched off by name. Linux then
takes the APIC id without its three lowest bits for a Hygon's L3. So the APIC id gets the widths of the real machine
(a bit for the thread, two for the core, three for the CCX, one for the socket), and of these many places only the
wanted ones have a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from policies.machine.cpus import format_cpus

MODEL = "Dhyana-v1"
FEATURES = (
    "x-force-features=on",
    *("-rdseed", "-fxsr-opt", "-misalignsse", "-3dnowprefetch", "-osvw", "-ibpb", "-nrip-save", "-xsavec"),
    "+topoext",
)
#: Places of the APIC id, wanted or not: CCXs of a socket, cores of a CCX, threads of a core.
CCX_PLACES, CORE_PLACES, THREAD_PLACES = 8, 4, 2
#: What Debian's QEMU lacks of resctrl, and its guests are told of if the CPU has these leaves (tests/vm/qemu).
RESCTRL_LEAVES = ("level=16", "xlevel=0x80000020")
NEAR, FAR = 16, 28  # distances inside a socket and across
#: With 8 or fewer the kernel takes an interrupt driver that hangs with such APIC ids.
LEAST_POSSIBLE_CPUS = 9


@dataclass(frozen=True)
class Shape:
    """A machine. CPUs are numbered thread by thread, core by core, so neighbours share most."""

    name: str
    sockets: int = 2
    nodes_per_socket: int = 1
    ccx_per_node: int = 2
    cores_per_ccx: int = 2
    threads: int = 1
    memory_mib: int = 3072
    #: Shown by QEMU's plain words, as users write them (docs/vm.md), whatever guests make of it.
    smp: str = ""
    features: tuple[str, ...] = FEATURES
    model: str = MODEL
    #: As Debian calls it. Below: into how many clusters an L3's cores fall; 0 = the kernel is told of none.
    architecture: str = "amd64"
    clusters_per_ccx: int = 0
    #: Whether its firmware tells the kernel of frequencies and idle states (tests/vm/acpi.py).
    has_clocks: bool = False

    @property
    def has_resctrl(self) -> bool:
        """It needs a QEMU that is built for it."""
        return set(RESCTRL_LEAVES) <= set(self.features)

    @property
    def cpus_per_ccx(self) -> int:
        return self.cores_per_ccx * self.threads

    @property
    def cpus_per_cluster(self) -> int:
        """0 = there are none."""
        return self.cpus_per_ccx // self.clusters_per_ccx if self.clusters_per_ccx else 0

    @property
    def cpus_per_node(self) -> int:
        return self.ccx_per_node * self.cpus_per_ccx

    @property
    def nodes(self) -> int:
        return self.sockets * self.nodes_per_socket

    @property
    def cpus(self) -> int:
        return self.nodes * self.cpus_per_node

    def groups(self, size: int) -> list[str]:
        """The machine in runs of this many CPUs, as Linux writes them: "0-3", "4-7", ..."""
        return [format_cpus(frozenset(range(first, first + size))) for first in range(0, self.cpus, size)]

    @property
    def ccxs(self) -> list[str]:
        return self.groups(self.cpus_per_ccx)

    @property
    def clusters(self) -> list[str]:
        return self.groups(self.cpus_per_cluster) if self.cpus_per_cluster else []

    @property
    def numa_nodes(self) -> list[str]:
        return self.groups(self.cpus_per_node)


#: 8 CPUs, a core of two threads in each CCX: the smallest machine that has every rung of the ladder.
SMT_8 = Shape("smt-8", cores_per_ccx=1, threads=2)
#: 8 CPUs without SMT.
CORES_8 = Shape("cores-8")
#: 16 CPUs: whole cores can be told from CPUs, and CCXs from cores.
SMT_16 = Shape("smt-16", cores_per_ccx=2, threads=2)

#: 4 CPUs, for what is not about places: the fewer CPUs, the less emulation waits for itself.
CORES_4 = Shape("cores-4", ccx_per_node=1)

#: Kernels with resctrl, by the vendor whose rules they follow; the L3 of each CCX is a domain.
RESCTRL_8 = replace(CORES_8, name="resctrl-8", features=(*FEATURES, *RESCTRL_LEAVES))
RESCTRL_AMD_8 = replace(RESCTRL_8, name="resctrl-amd-8", model="EPYC-v1")
#: Of Skylake Linux takes the bandwidth alone, for its errata (__check_quirks_intel).
RESCTRL_INTEL_8 = replace(
    RESCTRL_8, name="resctrl-intel-8", model="Icelake-Server-v1", features=RESCTRL_LEAVES
)

#: CPUs whose clocks the kernel's cpufreq and cpuidle have.
CLOCKS_8 = replace(SMT_8, name="clocks-8", has_clocks=True)

#: What docs/vm.md asks for, on one socket: two CCXs of four cores with two threads, a NUMA node each.
DOCUMENTED = Shape(
    "documented", sockets=1, nodes_per_socket=2, ccx_per_node=1, cores_per_ccx=4, threads=2,
    smp="16,sockets=1,dies=2,cores=4,threads=2",
)  # fmt: skip
#: What it warns of; named by what was left out.
NO_TOPOEXT = replace(DOCUMENTED, name="no-topoext", features=())
NO_TOPOLOGY = Shape(
    "no-topology", nodes_per_socket=1, sockets=1, ccx_per_node=1, cores_per_ccx=8, smp="8,sockets=8"
)
NO_THREADS = replace(NO_TOPOLOGY, name="no-threads", smp="8,sockets=1,dies=2,cores=4,threads=1")

#: A small Kunpeng 920 (tests/vm/arm.py): two sockets, an L3 in each with two clusters of cores.
KUNPENG_8 = Shape("kunpeng-8", ccx_per_node=1, cores_per_ccx=4, architecture="arm64", clusters_per_ccx=2)
#: As kernels before 5.16 tell it.
KUNPENG_8_OLD = replace(KUNPENG_8, name="kunpeng-8-old", clusters_per_ccx=0)

SHAPES = {
    shape.name: shape
    for shape in (
        *(CLOCKS_8, SMT_8, CORES_8, SMT_16, CORES_4, DOCUMENTED, NO_TOPOEXT, NO_TOPOLOGY, NO_THREADS),
        *(KUNPENG_8, KUNPENG_8_OLD, RESCTRL_8, RESCTRL_AMD_8, RESCTRL_INTEL_8),
    )
}


def cpu_arguments(shape: Shape) -> list[str]:
    """-cpu, -smp, -m, -numa, and for places a -device for each CPU but the first, which is always there."""
    model = ",".join((shape.model, *shape.features))
    amounts = ["-m", f"{shape.memory_mib}M", *memory(shape)]
    if shape.smp:
        return ["-cpu", model, "-smp", shape.smp, *amounts, *plain_nodes(shape), *distances(shape)]
    most = shape.sockets * CCX_PLACES * CORE_PLACES * THREAD_PLACES
    places = f"sockets={shape.sockets},dies={CCX_PLACES},cores={CORE_PLACES},threads={THREAD_PLACES}"
    return [
        *("-cpu", model, "-smp", f"cpus=1,maxcpus={most},{places}"),
        *amounts,
        *_nodes(shape),
        *distances(shape),
        *_processors(shape),
    ]


def kernel_words(shape: Shape) -> list[str]:
    """What the kernel's command line must say: the places without a CPU are no CPUs to come."""
    if shape.smp or shape.architecture != "amd64":
        return []
    # On a busy machine an emulated timer can be too late for the kernel's check of it, which is a panic.
    return [f"possible_cpus={max(shape.cpus, LEAST_POSSIBLE_CPUS)}", "no_timer_check"]


def memory(shape: Shape) -> list[str]:
    """Every node's own."""
    size = shape.memory_mib // shape.nodes
    made = [f"memory-backend-ram,id=m{node},size={size}M" for node in range(shape.nodes)]
    return [word for backend in made for word in ("-object", backend)]


def _nodes(shape: Shape) -> list[str]:
    told = [f"node,nodeid={node},memdev=m{node}" for node in range(shape.nodes)]
    ccxs = shape.ccx_per_node * shape.nodes_per_socket
    for socket in range(shape.sockets):
        for place in range(CCX_PLACES):
            # Places that stay empty must be somewhere, too.
            node = socket * shape.nodes_per_socket + min(place, ccxs - 1) // shape.ccx_per_node
            told.append(f"cpu,node-id={node},socket-id={socket},die-id={place}")
    return [word for node in told for word in ("-numa", node)]


def plain_nodes(shape: Shape) -> list[str]:
    """The nodes, with their CPUs by number."""
    told = [f"node,nodeid={node},memdev=m{node},cpus={cpus}" for node, cpus in enumerate(shape.numa_nodes)]
    return [word for node in told for word in ("-numa", node)]


def distances(shape: Shape) -> list[str]:
    """Between every two nodes."""
    pairs = [(a, b) for a in range(shape.nodes) for b in range(a + 1, shape.nodes)]
    words = []
    for a, b in pairs:
        near = a // shape.nodes_per_socket == b // shape.nodes_per_socket
        words += ["-numa", f"dist,src={a},dst={b},val={NEAR if near else FAR}"]
    return words


def _processors(shape: Shape) -> list[str]:
    places = [
        f"socket-id={socket},die-id={ccx},core-id={core},thread-id={thread}"
        for socket in range(shape.sockets)
        for ccx in range(shape.ccx_per_node * shape.nodes_per_socket)
        for core in range(shape.cores_per_ccx)
        for thread in range(shape.threads)
    ]
    return [word for place in places[1:] for word in ("-device", f"{shape.model}-x86_64-cpu,{place}")]
