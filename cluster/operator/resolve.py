"""The policy of a node: among the policies that select it the highest priority, among equal ones the first by name.

Two policies of equal priority on one node are a conflict, and a conflict moves nothing: a node that has one of them
already keeps it. Both policies are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from cluster.operator.objects import KubernetesNode, NodePlacement, PlacementPolicy, selects


class PolicyConflict(NamedTuple):
    """Another policy of the same priority selects the same nodes."""

    policy: str
    priority: int
    nodes: int
    #: One of them.
    node: str


@dataclass(frozen=True)
class Resolution:
    """The policy of every node."""

    #: Node to the name of its policy; nodes that no policy selects are not in it.
    wanted: Mapping[str, str]
    #: Nodes whose policy cannot be told now, since the policy that they have does not say which nodes it means.
    held: frozenset[str] = frozenset()
    conflicts: Mapping[str, tuple[PolicyConflict, ...]] = field(default_factory=dict)


def resolve(
    policies: Iterable[PlacementPolicy],
    nodes: Iterable[KubernetesNode],
    placements: Mapping[str, NodePlacement],
) -> Resolution:
    """Every node's policy. A policy with a fault still has its nodes: it changes nothing there, and no other does."""
    policies = sorted(policies, key=lambda policy: policy.name)
    blind = {policy.name for policy in policies if policy.selector is None}
    wanted: dict[str, str] = {}
    held: set[str] = set()
    ties: dict[tuple[str, str], list[str]] = {}
    priorities = {policy.name: policy.priority for policy in policies}
    # Nodes that differ only in labels that no selector names are selected alike: in a large fleet nearly all.
    keys = sorted({each.key for policy in policies for each in policy.selector or ()})
    selected: dict[tuple[Optional[str], ...], list[PlacementPolicy]] = {}
    for node in nodes:
        state = placements.get(node.name)
        present = state.given.name if state and state.given else None
        if present in blind:
            held.add(node.name)
            continue
        # 1. The policies that select the node, best first.
        alike = tuple(node.labels.get(key) for key in keys)
        if alike not in selected:
            selected[alike] = [
                each for each in policies if each.selector is not None and selects(each.selector, node.labels)
            ]
        candidates = selected[alike]
        best = _best(candidates, present)
        if best is None:
            continue
        wanted[node.name] = best.name
        # 2. Equals of the best one are a conflict, told to each of them.
        equals = [each.name for each in candidates if each.priority == best.priority]
        for one in equals:
            for other in equals:
                if one != other:
                    ties.setdefault((one, other), []).append(node.name)
    conflicts: dict[str, tuple[PolicyConflict, ...]] = {}
    for (one, other), names in sorted(ties.items()):
        conflict = PolicyConflict(other, priorities[one], len(names), min(names))
        conflicts[one] = (*conflicts.get(one, ()), conflict)
    return Resolution(wanted, frozenset(held), conflicts)


def _best(candidates: list[PlacementPolicy], present: Optional[str]) -> Optional[PlacementPolicy]:
    return min(candidates, key=lambda each: (-each.priority, each.name != present, each.name), default=None)
