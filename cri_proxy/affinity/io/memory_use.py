"""Reads how much memory containers have in use: what would have to follow one to another NUMA node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cri_proxy.bounded_files import read_number, read_text

#: Where it is told: cgroup v2, and v1 with its own mount for memory. Page cache is part of it; it moves as well.
_FILES = (("", "memory.current"), ("memory", "memory.usage_in_bytes"))


def memory_in_use(root: Path, paths: Mapping[str, str]) -> dict[str, int]:
    """Bytes by id for the cgroups of ``paths`` below ``root``; those that tell nothing are left out. Blocks."""
    found = {}
    for key, path in paths.items():
        for mount, name in _FILES:
            try:
                found[key] = read_number(read_text(root / mount / path.lstrip("/") / name))
            except (OSError, ValueError):
                continue
            break
    return found
