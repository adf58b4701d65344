"""The machines on which the sequences are played."""

from __future__ import annotations

from dataclasses import dataclass

from policies.machine.topology import Cpu, Topology, TopologyData

GIB = 1 << 30
#: The distances of a NUMA node to itself, to others of its socket, and to other sockets'.
OWN, NEAR, FAR = 10, 20, 32


@dataclass(frozen=True)
class Machine:
    """One machine. ``cores``: of each L3; ``clusters``: of cores, in each L3; 0 = none."""

    name: str
    sockets: int
    nodes: int
    l3s: int
    cores: int
    threads: int = 2
    clusters: int = 0

    def data(self, tells_clusters: bool = True) -> TopologyData:
        cpus = []
        count = self.l3s * self.cores
        for core in range(count):
            l3 = core // self.cores
            node, socket = l3 * self.nodes // self.l3s, l3 * self.sockets // self.l3s
            cluster = core * self.clusters // self.cores if self.clusters and tells_clusters else None
            cpus += [
                Cpu(core + t * count, core, l3, node, node, socket, cluster) for t in range(self.threads)
            ]
        sockets = [node * self.sockets // self.nodes for node in range(self.nodes)]
        distance = tuple(
            tuple(OWN if a == b else NEAR if sockets[a] == sockets[b] else FAR for b in range(self.nodes))
            for a in range(self.nodes)
        )
        return TopologyData(tuple(cpus), distance, memory=dict.fromkeys(range(self.nodes), 64 * GIB))

    def topology(self, tells_clusters: bool = True) -> Topology:
        return Topology(self.data(tells_clusters))


MACHINES = (
    Machine("2 sockets x 4 nodes x 2 CCXs of 4 cores", 2, 8, 16, 4),
    Machine("1 socket, NPS1, 8 CCXs of 8 cores", 1, 1, 8, 8),
    Machine("2 sockets, NPS1, 8 CCXs of 4 cores", 2, 2, 16, 4),
    Machine("2 sockets, NPS4, node = CCX of 8 cores", 2, 8, 8, 8),
    Machine("Kunpeng 920, 2 sockets of 48 cores", 2, 4, 4, 24, threads=1, clusters=6),
    Machine("Kunpeng 920, 2 sockets of 64 cores", 2, 4, 4, 32, threads=1, clusters=8),
)
