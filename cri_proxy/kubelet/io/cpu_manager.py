"""Reads what kubelet says of CPUs: the static CPU manager's assignments, reserved CPUs, its topology manager."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional

import yaml

from cri_proxy.bounded_files import read_bytes
from policies.machine.cpus import NO_CPUS, BadCpuList, parse_cpus

#: More than 110 pods' worth of assignments, or of kubelet's settings.
MOST_BYTES = 4 << 20
CPU_STATE = "cpu_manager_state"
_UNKNOWN = "which CPUs kubelet has given to single containers is not known"


class NotUnderstood(Exception):
    """A file of kubelet's is there and cannot be used: which, why, and what is done without it."""


class Assignments:
    """Whose CPUs are kubelet's static CPU manager's, read again once ``cpu_manager_state`` is another file.

    Kubelet writes it before it asks for the container, as a new file in the place of the old one.
    """

    def __init__(self) -> None:
        #: The file as it was when it was read last; None: there was none.
        self._seen: Optional[tuple[int, ...]] = None

    def is_news(self, directory: Path) -> bool:
        """Whether the file is not the one that was read last. Costs one stat."""
        return _signature(directory) != self._seen

    def read(self, directory: Path) -> dict[tuple[str, str], frozenset[int]]:
        """As ``read_exclusive``."""
        self._seen = _signature(directory)
        return read_exclusive(directory)


def _signature(directory: Path) -> Optional[tuple[int, ...]]:
    try:
        status = os.stat(directory / CPU_STATE)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def read_exclusive(directory: Path) -> dict[tuple[str, str], frozenset[int]]:
    """The CPUs that kubelet's static CPU manager has given away, from ``cpu_manager_state``; none by another policy.

    By (pod uid, container name); of a pod that shares its own among its containers by (pod uid, ""). Kubelet before 1.18
    names containers by their ids: ("", id). The formats are those of pkg/kubelet/cm/cpumanager/state/checkpoint.go.

    :raises NotUnderstood: it cannot be read, or is not there though kubelet is configured to keep one.
    """
    path = directory / CPU_STATE
    try:
        document = json.loads(read_bytes(path, MOST_BYTES))
        if document.get("policyName") != "static":
            return {}
        found: dict[tuple[str, str], frozenset[int]] = {}
        for key, given in (document.get("entries") or {}).items():
            of_pod = (
                {("", key): given} if isinstance(given, str) else {(key, name): given[name] for name in given}
            )
            found.update({name: parse_cpus(cpus) for name, cpus in of_pod.items()})
        for uid, pod in (document.get("podEntries") or {}).items():
            found[uid, ""] = parse_cpus(pod.get("cpuSet") or "")
        return {name: cpus for name, cpus in found.items() if cpus}
    except FileNotFoundError:
        if _is_static(directory):
            sentence = "kubelet's cpuManagerPolicy is static, and this file is not there"
            raise NotUnderstood(_sentence(path, ValueError(sentence), _UNKNOWN)) from None
        return {}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, BadCpuList) as error:
        raise NotUnderstood(_sentence(path, error, _UNKNOWN)) from None


def _is_static(directory: Path) -> bool:
    try:
        document = yaml.safe_load(read_bytes(directory / "config.yaml", MOST_BYTES))
        return bool(document["cpuManagerPolicy"] == "static")
    except (OSError, ValueError, TypeError, LookupError, RecursionError, yaml.YAMLError):
        return False


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
