"""The vocabulary of placement: frozen values, shared by policies, engine and shell.

Units are in the names: ``milli_`` = thousandths of a CPU, ``_bytes``, ``_s`` = seconds. Sets of CPUs and of
NUMA nodes are ``frozenset[int]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Optional, Protocol

from policies.cpus import NO_CPUS

#: The levels a placement can have, in the order of the ladder; ``none`` = we set nothing.
PLACEMENT_LEVELS = (
    "core",
    "ccx",
    "nccx",
    "numa",
    "numa+ccx",
    "2numa",
    "socket",
    "machine",
    "reserved",
    "none",
)


class Qos(str, Enum):
    """The quality-of-service class of a pod, as Kubernetes spells it in cgroup paths."""

    GUARANTEED = "guaranteed"
    BURSTABLE = "burstable"
    BESTEFFORT = "besteffort"


@dataclass(frozen=True)
class Resources:
    """What a container asks for. ``milli_limit`` None = no CPU limit; a memory figure of 0 = none."""

    milli_request: int = 0
    milli_limit: Optional[int] = None
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0


@dataclass(frozen=True)
class PodSize:
    """The whole pod's CPUs: ``milli_request``, ``milli_limit`` (None: not all containers are limited), and its source."""

    milli_request: int
    milli_limit: Optional[int]
    source: str


@dataclass(frozen=True)
class Pod:
    """A pod sandbox. ``id`` is the runtime's sandbox id; ``size`` None = must be learnt from its containers."""

    id: str
    uid: str
    name: str = ""
    namespace: str = ""
    cgroup_parent: str = ""
    runtime_handler: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    size: Optional[PodSize] = None


@dataclass(frozen=True)
class Container:
    """A container as a policy sees it. ``attempt`` counts restarts; its id is known only to the engine."""

    pod: Pod
    name: str
    attempt: int = 0
    qos: Qos = Qos.BESTEFFORT
    resources: Resources = Resources()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """``namespace/pod/container``, what people call it."""
        return f"{self.pod.namespace}/{self.pod.name}/{self.name}"


@dataclass(frozen=True)
class Fence:
    """What the caller set itself: our sets must be subsets of it. None = the caller set nothing."""

    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None


NO_FENCE = Fence()


@dataclass(frozen=True)
class Placement:
    """Where a container runs.

    ``cpus`` and ``mems`` are what is sent (empty: not set). ``home`` holds all CPUs of the chosen domains,
    also those that are offline or taken just now: ``cpus`` is recomputed from it. ``exclusive`` is the part
    of ``cpus`` nobody else may use. ``memory_charge``: bytes of the memory limit by NUMA node.
    """

    cpus: frozenset[int] = NO_CPUS
    mems: frozenset[int] = NO_CPUS
    exclusive: frozenset[int] = NO_CPUS
    level: str = "none"
    home: frozenset[int] = NO_CPUS
    memory_charge: tuple[tuple[int, int], ...] = ()


UNTOUCHED = Placement()


@dataclass(frozen=True)
class Decision:
    """A policy's answer. ``fits`` False = it is placed, but no domain of its rung had room. ``why`` is for people."""

    placement: Placement
    why: str
    fits: bool = True


class PlacementRefused(Exception):
    """A policy cannot or may not place this container. The message says who wants what and what there is."""


class BudgetSpent(Exception):
    """A policy looked at more candidates than it may; the request then goes through untouched."""


class Affinity(Protocol):
    """How much a container is pulled to CPUs by its peers. The planner's graph implements it; lower is better."""

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        """Cost of running ``container`` on ``cpus``, in traffic units times distance; 0 = indifferent."""
        ...


class NoAffinity:
    """No graph: every place costs the same."""

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        return 0.0


@dataclass(frozen=True)
class PlacementSettings:
    """The options of the ``placement`` section that policies read. docs/configuration.md says what each does."""

    ladder: str = "manual"
    unlimited: str = "numa"
    besteffort: str = "numa"
    memory: str = "prefer"
    memory_only_nodes: frozenset[int] = NO_CPUS
    reserved_namespaces: tuple[str, ...] = ("kube-system",)
