"""What the scheduler's plugin NodeResourceTopologyMatch does with a NodeResourceTopology: the rules that tests hold it to.

Written down from the behaviour of scheduler-plugins 0.35 (filter, pluginhelpers, least_numa, cache/overreserve). Lists of
zones are indexed by the id in a zone's name, as they are there: a gap is an IndexError here and a crash there.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import combinations
from typing import Any, Optional

from cluster.topology.resource_topology import pods_fingerprint

UNITS = {"m": Decimal("0.001"), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30)}
AFFINE = ("cpu", "memory")
ON_HOST = ("ephemeral-storage", "storage")
MOST_NODES = 64
FAR = 255

Amounts = dict[str, Decimal]


def quantity(text: str) -> Decimal:
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return Decimal(text[: -len(unit)]) * factor
    return Decimal(text)


def amounts(**texts: str) -> Amounts:
    """``amounts(cpu="2", memory="1Gi")``; underscores are hyphens."""
    return {name.replace("_", "-"): quantity(text) for name, text in texts.items()}


@dataclass(frozen=True)
class Pod:
    """``containers`` and ``init``: what each asks for. ``qos`` as Kubernetes would say it."""

    name: str
    containers: tuple[Amounts, ...]
    init: tuple[Amounts, ...] = ()
    qos: str = "Guaranteed"
    namespace: str = "default"

    @property
    def total(self) -> Amounts:
        """What the pod takes: its containers together, or its largest init container."""
        found: Amounts = {}
        for container in self.containers:
            for name, amount in container.items():
                found[name] = found.get(name, Decimal(0)) + amount
        for container in self.init:
            for name, amount in container.items():
                found[name] = max(found.get(name, Decimal(0)), amount)
        return found


@dataclass
class NumaNode:
    id: int
    resources: Amounts
    costs: dict[int, int]


@dataclass(frozen=True)
class Settings:
    policy: str = "none"
    scope: str = "container"
    most_numa_nodes: int = 8


def numa_nodes(nrt: dict[str, Any]) -> list[NumaNode]:
    """The zones that are read."""
    found = []
    for zone in nrt["zones"]:
        number = _number(zone["name"])
        if zone["type"] == "Node" and number is not None:
            available = {r["name"]: quantity(r["available"]) for r in zone.get("resources", [])}
            costs = {_number(cost["name"]): cost["value"] for cost in zone.get("costs", [])}
            found.append(NumaNode(number, available, {n: v for n, v in costs.items() if n is not None}))
    return found


def _number(name: str) -> Optional[int]:
    prefix, _, digits = name.partition("-")
    return int(digits) if prefix == "node" and digits.isdecimal() and int(digits) < MOST_NODES else None


def settings(nrt: dict[str, Any]) -> Settings:
    values = {a["name"]: a["value"] for a in nrt.get("attributes", [])}
    policy, scope = values.get("topologyManagerPolicy", ""), values.get("topologyManagerScope", "")
    most = values.get("topologyManagerMaxNUMANodes", "")
    return Settings(
        policy if policy in ("none", "best-effort", "restricted", "single-numa-node") else "none",
        scope if scope in ("container", "pod") else "container",
        int(most) if most.isdecimal() and int(most) > 1 else 8,
    )


def filtered(pod: Pod, nrt: Optional[dict[str, Any]]) -> str:
    """Why a pod is not put on the node; "" = the plugin has nothing against it."""
    if pod.qos == "BestEffort" or nrt is None:
        return ""
    found, nodes = settings(nrt), numa_nodes(nrt)
    if found.policy != "single-numa-node":
        return ""
    if found.scope == "pod":
        return "" if _fitting(nodes, pod.qos, pod.total) is not None else "cannot align pod"
    for container in pod.init:
        if _fitting(nodes, pod.qos, container) is None:
            return "cannot align init container"
    for container in pod.containers:
        node = _fitting(nodes, pod.qos, container)
        if node is None:
            return "cannot align container"
        if pod.qos == "Guaranteed":
            for name, amount in container.items():
                if name in node.resources:
                    node.resources[name] -= amount
    return ""


def _fitting(nodes: list[NumaNode], qos: str, wanted: Amounts) -> Optional[NumaNode]:
    """The lowest NUMA node that has all of it."""
    fitting = [True] * len(nodes)
    for name, amount in wanted.items():
        if not amount:
            continue
        with_it = [name in node.resources for node in nodes]
        if not any(with_it) and (name in ON_HOST or "/" in name):
            continue
        exempt = qos != "Guaranteed" and name in AFFINE
        for node in nodes:
            has = name in node.resources and (exempt or node.resources[name] >= amount)
            fitting[node.id] = fitting[node.id] and has
    return next((node for node in nodes if fitting[node.id]), None)


def least_numa_score(pod: Pod, nrt: dict[str, Any]) -> int:
    """The score of the strategy LeastNUMANodes, container by container: 0 to 100."""
    nodes, most = numa_nodes(nrt), settings(nrt).most_numa_nodes
    count, is_nearest = 0, True
    for container in (*pod.init, *pod.containers):
        used, nearest = _nodes_needed(nodes, container)
        if used is None:
            return 0
        count, is_nearest = max(count, len(used)), is_nearest and nearest
        for name, amount in container.items():
            for index in used:
                taken = min(amount, nodes[index].resources[name])
                nodes[index].resources[name] -= taken
                amount -= taken
    step = 100 // most
    return 100 - count * step + (step // 2 if is_nearest else 0)


def _nodes_needed(nodes: list[NumaNode], wanted: Amounts) -> tuple[Optional[tuple[int, ...]], bool]:
    for size in range(1, len(nodes) + 1):
        sets = list(combinations(range(len(nodes)), size))
        nearest = min(_distance(nodes, chosen) for chosen in sets)
        fitting = [
            chosen
            for chosen in sets
            if all(sum(nodes[i].resources[name] for i in chosen) >= amount for name, amount in wanted.items())
        ]
        if fitting:
            best = min(fitting, key=lambda chosen: _distance(nodes, chosen))
            return tuple(nodes[i].id for i in best), _distance(nodes, best) == nearest
    return None, False


def _distance(nodes: list[NumaNode], chosen: Iterable[int]) -> float:
    pairs = [(nodes[a], nodes[b]) for a in chosen for b in chosen]
    return sum(a.costs.get(b.id, FAR) for a, b in pairs) / len(pairs)


@dataclass
class OverReserve:
    """The scheduler's books of one node: an object it has taken over, less every pod it has sent there since."""

    nrt: dict[str, Any]
    assumed: list[Pod] = field(default_factory=list)

    def seen(self) -> dict[str, Any]:
        """The object as filters get it: each pod is taken off every zone, as it is not known which it will be in."""
        found = deepcopy(self.nrt)
        for zone in found["zones"]:
            for row in zone.get("resources", []):
                taken = sum((pod.total.get(row["name"], Decimal(0)) for pod in self.assumed), Decimal(0))
                row["available"] = str(max(Decimal(0), quantity(row["available"]) - taken))
        return found

    def resync(self, candidate: dict[str, Any], running: Iterable[Pod]) -> bool:
        """Take an object over if it counts the pods that run there as the API server has them."""
        values = {a["name"]: a["value"] for a in candidate["attributes"]}
        mine = pods_fingerprint((pod.namespace, pod.name) for pod in running)
        if values.get("nodeTopologyPodsFingerprintMethod") != "all":
            return False
        if values.get("nodeTopologyPodsFingerprint") != mine:
            return False
        self.nrt, self.assumed = candidate, []
        return True
