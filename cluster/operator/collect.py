"""NodePlacements of nodes: those that are missing, and those whose node is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Optional

from cluster.operator.objects import NodePlacement

#: Seconds that a Node may be away before its NodePlacement goes: kubelet registers a deleted Node again at its start.
GONE_S = 60.0


class Housekeeping(NamedTuple):
    """What is to be done so that every Node has a NodePlacement and nothing else has one."""

    create: tuple[str, ...]
    delete: tuple[NodePlacement, ...]
    #: When each orphan was first seen without its node; for the next call.
    missing_since: Mapping[str, float]
    wake_at: Optional[float]


def collect(
    nodes: Collection[str],
    placements: Iterable[NodePlacement],
    missing_since: Mapping[str, float],
    now: float,
) -> Housekeeping:
    """Where not one Node is known nothing is deleted: a cluster has nodes, an empty answer is a mistake."""
    placements = list(placements)
    present = {each.name for each in placements}
    create = tuple(sorted(set(nodes) - present))
    orphans = [each for each in placements if each.name not in nodes] if nodes else []
    since = {each.name: missing_since.get(each.name, now) for each in orphans}
    delete = tuple(each for each in orphans if now >= since[each.name] + GONE_S)
    waiting = [since[each.name] + GONE_S for each in orphans if each not in delete]
    return Housekeeping(create, delete, since, min(waiting, default=None))
