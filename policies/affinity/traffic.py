"""Traffic between containers as the rest of the program sees it: an immutable picture of a graph.

Weights are cache lines a second (bytes / 64 + K x messages), already smoothed, floored and capped
(policies/affinity/graph.py). An *owner* is the workload a container is a replica of:
``namespace/workload/container`` (policies/affinity/owners.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Weights = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Edge:
    """One undirected edge, for tables: rates in bytes and messages a second, ``weight`` in lines a second.

    ``kinds``: what it was seen on (tcp, udp, unix, shm, wake). ``is_pod_level``: an end is a pod, not a container.
    """

    a: str
    b: str
    weight: float
    bytes_per_s: float = 0.0
    messages_per_s: float = 0.0
    kinds: tuple[str, ...] = ()
    is_pod_level: bool = False


@dataclass(frozen=True)
class Traffic:
    """A graph at one moment.

    ``edges``: by container id, then by peer's container id; symmetric. ``owners``: the same between owners, all
    replicas of both together; it remembers owners whose containers are gone. ``version`` grows with every change.
    ``frozen``: why the picture is old ("" = it is fresh).
    """

    version: int = 0
    edges: Weights = field(default_factory=dict)
    owners: Weights = field(default_factory=dict)
    listed: tuple[Edge, ...] = ()
    frozen: str = ""
