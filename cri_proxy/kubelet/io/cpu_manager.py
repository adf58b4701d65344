"""Reads what kubelet says of CPUs: the static CPU manager's assignments, reserved CPUs, its topology manager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import yaml

from cri_proxy.bounded_files import read_bytes
from policies.machine.cpus import NO_CPUS, BadCpuList, parse_cpus

#: More than 110 pods' worth of assignments, or of kubelet's settings.
MOST_BYTES = 4 << 20


class NotUnderstood(Exception):
    """A file of kubelet's is there and cannot be used: which, why, and what is done without it."""


def read_exclusive(directory: Path) -> dict[tuple[str, str], frozenset[int]]:
    """Exclusive CPUs by (pod uid, container name), from ``cpu_manager_state``; only if its policy is static.

    :raises NotUnderstood: it cannot be read. It counts as none: requests then still show kubelet's own cpusets.
    """
    path = directory / "cpu_manager_state"
    try:
        document = json.loads(read_bytes(path, MOST_BYTES))
        if document.get("policyName") != "static":
            return {}
        return {
            (uid, name): parse_cpus(cpus)
            for uid, containers in (document.get("entries") or {}).items()
            for name, cpus in containers.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, BadCpuList) as error:
        raise NotUnderstood(_sentence(path, error, "no exclusive CPUs are known from it")) from None


def read_reserved(directory: Path) -> frozenset[int]:
    """``reservedSystemCPUs`` of kubelet's config.yaml; none if it is not set.

    :raises NotUnderstood: it cannot be read; then none are.
    """
    path = directory / "config.yaml"
    try:
        document = yaml.safe_load(read_bytes(path, MOST_BYTES)) or {}
        return parse_cpus(str(document.get("reservedSystemCPUs", "") or ""))
    except FileNotFoundError:
        return NO_CPUS
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError, BadCpuList) as error:
        raise NotUnderstood(_sentence(path, error, "no reserved CPUs are known from it")) from None


def read_topology_manager(directory: Path) -> Optional[dict[str, Any]]:
    """``policy``, ``scope`` and ``most_numa_nodes`` (0: kubelet's default) of config.yaml; None: there is no such file.

    What the file leaves out has kubelet's default.

    :raises NotUnderstood: it cannot be read.
    """
    path = directory / "config.yaml"
    try:
        document = yaml.safe_load(read_bytes(path, MOST_BYTES)) or {}
        options = document.get("topologyManagerPolicyOptions") or {}
        return {
            "policy": str(document.get("topologyManagerPolicy") or "none"),
            "scope": str(document.get("topologyManagerScope") or "container"),
            "most_numa_nodes": int(options.get("max-allowable-numa-nodes") or 0),
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise NotUnderstood(_sentence(path, error, "its topology manager is not known")) from None


def _sentence(path: Path, error: Exception, consequence: str) -> str:
    reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())[:200]
    return f"{path} cannot be used: {reason}; {consequence}"
