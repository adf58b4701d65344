"""Reads what the doctor must know of block I/O: cgroups' controllers and disks' schedulers. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from cri_proxy.config.config import Config
from cri_proxy.doctor.facts import DiskFacts
from cri_proxy.isolation.disks import EMPTY, costed
from cri_proxy.isolation.io.disks import read_scheduler
from cri_proxy.node.cgroups import Cgroups

#: Names of devices that are made of others, or of memory: they have no schedulers of their own.
_MADE = ("loop", "ram", "zram", "dm-", "md")


def read_disk_facts(root: Path, cgroup_root: Path, config: Config) -> DiskFacts:
    """``root``: stands for /. ``cgroup_root``: where cgroups are mounted."""
    cgroups = Cgroups(cgroup_root)
    base, is_v2 = cgroups.block_io()
    section = config["control.blockio"] or EMPTY
    weighs = any(share.weight is not None for shares in section.classes.values() for share in shares)
    disks = [folder for folder in sorted(root.glob("sys/block/*")) if not folder.name.startswith(_MADE)]
    schedulers = {folder.name: read_scheduler(str(folder)) or "none" for folder in disks}
    on = frozenset[str]()
    if base is not None:
        on = costed(_text(base / f"{'io' if is_v2 else 'blkio'}.cost.qos"))
    weighing = frozenset(
        folder.name
        for folder in disks
        if schedulers[folder.name] in ("bfq", "cfq") or _text(folder / "dev") in on
    )
    off_below = _off_below(base, cgroups.kubepods()) if base is not None and is_v2 else ""
    return DiskFacts("" if base is None else str(base), is_v2, off_below, schedulers, weighing or on, weighs)


def _off_below(base: Path, kubepods: str) -> str:
    """The first cgroup on the way to containers that does not pass the controller on; "" = all do, or there are none."""
    path = ""
    for name in ("", *kubepods.strip("/").split("/")) if kubepods else ():
        path = f"{path}/{name}" if name else path
        if "io" not in _text(base / path.strip("/") / "cgroup.subtree_control").split():
            return path or "/"
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
