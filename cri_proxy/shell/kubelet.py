"""Reads what kubelet says about CPUs: the static CPU manager's assignments and the reserved system CPUs."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from policies.cpus import NO_CPUS, BadCpuList, parse_cpus


def read_exclusive(directory: Path) -> dict[tuple[str, str], frozenset[int]]:
    """Exclusive CPUs by (pod uid, container name), from ``cpu_manager_state``; only if its policy is static.

    A file that cannot be read counts as none: requests then still show kubelet's own cpusets.
    """
    try:
        document = json.loads((directory / "cpu_manager_state").read_text())
        if document.get("policyName") != "static":
            return {}
        return {
            (uid, name): parse_cpus(cpus)
            for uid, containers in (document.get("entries") or {}).items()
            for name, cpus in containers.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, BadCpuList):
        return {}


def read_reserved(directory: Path) -> frozenset[int]:
    """``reservedSystemCPUs`` of kubelet's config.yaml; none if it is not set or cannot be read."""
    try:
        document = yaml.safe_load((directory / "config.yaml").read_text())
        return parse_cpus(str(document.get("reservedSystemCPUs", "") or ""))
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError, BadCpuList):
        return NO_CPUS
