"""The planner's question and answer: machine, containers, weights in; moves out. Frozen values only.

A *site* is a place a container can be given: one leaf (L3), one NUMA node, a socket, the machine. A container
stays at its level: one that fits one L3 moves between L3s, one that needs a NUMA node between NUMA nodes.
Its CPU demand is spread evenly over the CPUs of its site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from policies.frozen import dataclass
from policies.model import BATCH, PROTECTED

#: How a proposal's ``why`` begins that has found nothing to move for.
NOTHING_BETTER = "no better placement than the present one was found"


@dataclass(frozen=True)
class Leaf:
    """One L3, or cluster of cores (or the smallest domain there is). ``capacity_milli``: CPUs that shared containers may
    use, x 1000. ``cache``: the number of the L3 that it is in; -1 = it is one."""

    name: str
    capacity_milli: int
    node: int
    socket: int
    cache: int = -1


@dataclass(frozen=True)
class CandidateDomain:
    """A place of some level: ``leaves`` are indices into ``Tree.leaves``."""

    level: str
    name: str
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """The machine. ``distance_ns[i][j]``: what one cache line between leaf i and leaf j costs more than inside one
    leaf; 0 on the diagonal, symmetric. ``free_bytes``: memory by NUMA node, as ``Leaf.node`` names it; a node that is
    not in it bounds no move."""

    leaves: tuple[Leaf, ...]
    sites: tuple[CandidateDomain, ...]
    distance_ns: tuple[tuple[float, ...], ...]
    free_bytes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Vertex:
    """One container. ``at``: index of the site it is in now, -1 = nowhere yet. ``sites``: those it may have, at
    least the present one; exactly one = it is fixed. ``milli``: its CPU demand; ``memory_bytes``: what would
    have to follow it to another NUMA node. ``may_overlap``: it shares its CPUs, so that it can stand in one place with
    another container for the milliseconds of an exchange. ``fills``: cache lines a second that it fetches past its L3.
    ``isolation``: "protected" or "batch", where these are to be kept out of each other's L3s; else ""."""

    key: str
    milli: int
    at: int
    sites: tuple[int, ...]
    memory_bytes: int = 0
    may_overlap: bool = True
    fills: int = 0
    isolation: str = ""


@dataclass(frozen=True)
class HeldPair:
    """Two containers, indices of vertices, that annotations declare to be apart (in no L3 together) or, ``is_near``, that
    are required to be near (in one L3, else NUMA node, else socket). No plan makes it worse, whatever it saves."""

    a: int
    b: int
    weight: int
    is_near: bool = False


@dataclass(frozen=True)
class PlanSettings:
    """How the planner weighs. Times in seconds, rates per second.

    ``hysteresis``: the least part of the cost a plan must save, ``unrest`` times as much after many moves. ``kappa``:
    the CPU seconds that a moved container must be worth, in units of the mean cost of a container over ``horizon_s``;
    ``least_gain``: the same in CPUs, if that is more. ``refill_bytes``: cache that is read again after a move.
    ``fill``: how full leaves are packed while clustering. ``exchange_overcommit``: how far above its capacity, as a
    part of it, a leaf may be while containers that share CPUs change places; 0 = never. ``repel_ns``: what each line
    costs that the containers of an L3 fetch past it beyond ``saturated_fills`` a second, all together; 0 = they do
    not push each other apart. ``meeting_cpus``: what a protected container loses to batch containers in its L3, in
    CPUs, where there are many; to one it loses half of that.
    """

    starts: int = 6
    hysteresis: float = 0.10
    unrest: float = 1.0
    kappa: float = 0.3
    least_gain: float = 0.001
    fill: float = 0.9
    horizon_s: float = 600.0
    refill_bytes: int = 32 << 20
    migration_bytes_per_s: float = 1e9
    max_migrated_bytes: int = 8 << 30
    exchange_overcommit: float = 1.0
    repel_ns: float = 0.0
    saturated_fills: int = 100_000_000
    #: 20 times ``least_gain``, so that a meeting is worth a move within a NUMA node, and that of a container with 10 GiB.
    meeting_cpus: float = 0.02
    seed: int = 0
    #: How much the search may look at, four times as much in small problems; a unit takes about 1.5 microseconds.
    work: int = 40_000

    @property
    def least_saved(self) -> float:
        """The part of the cost that a plan must save."""
        return self.hysteresis * self.unrest


@dataclass(frozen=True)
class Problem:
    """``edges``: (index of vertex, index of vertex, lines a second), each pair once; negative = better far away."""

    tree: Tree
    vertices: tuple[Vertex, ...]
    edges: tuple[tuple[int, int, float], ...]
    settings: PlanSettings = field(default_factory=PlanSettings)
    held: tuple[HeldPair, ...] = ()

    @property
    def has_meetings(self) -> bool:
        """Whether there are containers that are to be kept out of each other's L3s."""
        return {PROTECTED, BATCH} <= {vertex.isolation for vertex in self.vertices}


@dataclass(frozen=True)
class ProposedMove:
    """``gain``: CPU-seconds a second that this move saves once all before it are made. ``exchange``: moves of one
    number above 0 are an exchange: they are made one right after another, all of them or none."""

    key: str
    source: int
    target: int
    gain: float
    exchange: int = 0


@dataclass(frozen=True)
class BlockedMove:
    """A move that a better placement needs and that cannot be made. ``behind``: the containers in its way, the largest
    first, none where there is room; ``why``: what keeps it from being made."""

    key: str
    source: int
    target: int
    behind: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Proposal:
    """The planner's answer. Costs in CPU-seconds a second. ``moves`` are in the order in which to make them: after
    each of them, and inside an exchange after its last, no leaf is fuller than it may be, or than it was, and, unless one
    was overfull, the cost is no higher than before. Empty if not accepted; ``why`` says it in words. ``out_of_reach``:
    what a placement that was found would save more, if the ``blocked`` moves could be made. ``held``: the moves that
    were found and do not pay."""

    accepted: bool
    moves: tuple[ProposedMove, ...]
    cost_before: float
    cost_after: float
    move_cost: float
    overfull_before: int
    overfull_after: int
    why: str
    out_of_reach: float = 0.0
    blocked: tuple[BlockedMove, ...] = ()
    held: tuple[ProposedMove, ...] = ()
