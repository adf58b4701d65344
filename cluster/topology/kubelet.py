"""The settings of kubelet's topology manager, from kubelet's own configuration. Pure.

The scheduler's plugin wants these words as kubelet has them. Where kubelet says nothing its own defaults hold
(policy ``none``, scope ``container``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

POLICY, SCOPE, OPTIONS = "topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"
MOST_NODES = "max-allowable-numa-nodes"

_TOP_LEVEL = re.compile(r"^(?P<key>[A-Za-z]+)\s*:\s*(?P<value>[^#\n]*?)\s*(?:#.*)?$", re.MULTILINE)
_MOST_NODES = re.compile(rf"^\s+['\"]?{MOST_NODES}['\"]?\s*:\s*['\"]?(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class TopologyManager:
    """``policy`` and ``scope`` in kubelet's words; ``most_numa_nodes`` 0 = kubelet's default, 8."""

    policy: str = "none"
    scope: str = "container"
    most_numa_nodes: int = 0


def read_topology_manager(config: str) -> TopologyManager:
    """The values of a KubeletConfiguration (YAML or JSON). A missing one has kubelet's default."""
    values = _json(config)
    if values is None:
        values = {match["key"]: match["value"].strip("'\"") for match in _TOP_LEVEL.finditer(config)}
        most = _MOST_NODES.search(config)
        values[OPTIONS] = {MOST_NODES: most[1]} if most and OPTIONS in values else {}
    options = values.get(OPTIONS) or {}
    most_nodes = str(options.get(MOST_NODES, "")) if isinstance(options, Mapping) else ""
    return TopologyManager(
        str(values.get(POLICY) or "none"),
        str(values.get(SCOPE) or "container"),
        int(most_nodes) if most_nodes.isdecimal() else 0,
    )


def reported_topology_manager(report: Mapping[str, Any]) -> Optional[TopologyManager]:
    """The settings in the daemon's report; None: the daemon cannot read kubelet's file either, or is an older one."""
    found = report.get("topology_manager")
    if not isinstance(found, Mapping):
        return None
    most_nodes = found.get("most_numa_nodes")
    return TopologyManager(
        str(found.get("policy") or "none"),
        str(found.get("scope") or "container"),
        most_nodes if isinstance(most_nodes, int) else 0,
    )


def _json(config: str) -> Optional[dict[str, Any]]:
    """The values of a file that is JSON; None = it is YAML."""
    try:
        document = json.loads(config)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
