"""Which CPUs a container that owns its CPUs gets: whole cores, whole L3s, best fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

from policies.cpus import NO_CPUS
from policies.topology import Topology


@dataclass(frozen=True)
class Claim:
    """CPUs wanted for one container alone.

    ``count``: whole CPUs. ``l3``: prefer (as few L3s as can be), require (one L3 or nothing), exclusive (the
    L3s it gets are nobody else's), spread (one thread a core over many L3s). ``numa_required``: one NUMA node
    or nothing. ``smt``: "" (whole cores first), full-core (nothing but whole cores; an odd thread leaves its
    core's other thread idle), hide (whole cores, of which one thread each runs: ``count`` is then the number
    of CPUs that are owned), spread (one thread a core, the others stay free). ``keep``: CPUs it has and should
    keep. ``cost``: what makes one place better than another that is equally large; a tuple, lowest first.
    """

    count: int
    l3: str = "prefer"
    numa_required: bool = False
    smt: str = ""
    keep: frozenset[int] = NO_CPUS
    cost: Optional[Callable[[frozenset[int]], tuple[float, ...]]] = None


@dataclass(frozen=True)
class Pick:
    """CPUs to own; ``hidden``: those of them that nobody runs on. ``level`` as in PLACEMENT_LEVELS; ``why`` in words."""

    cpus: frozenset[int]
    hidden: frozenset[int]
    level: str
    why: str


def pick(topology: Topology, free: frozenset[int], claim: Claim) -> Optional[Pick]:
    """The CPUs of ``free`` for a claim; None where it cannot be met. Same input, same answer.

    ``free`` are the CPUs that may be owned now (``claim.keep`` included).
    """
    raise NotImplementedError
