"""What the doctor says of block I/O: whether containers' cgroups have the controller, and whether a disk can weigh."""

from __future__ import annotations

from collections.abc import Iterator

from cri_proxy.doctor.facts import DiskFacts
from cri_proxy.doctor.findings import Finding, ok, warning

SUBJECT = "isolation.disks"
#: As many disks are named.
_SHOWN = 4


def check_disks(found: DiskFacts, mode: str) -> Iterator[Finding]:
    """Can limits and weights of block I/O be had here? ``mode``: of the subject, which is not off."""
    version = "cgroup v2" if found.is_v2 else "cgroup v1"
    if not found.root:
        sentence = (
            f"{SUBJECT} = {mode}, and no mounted hierarchy of cgroups has block I/O: nothing is limited"
        )
        yield warning("disks", sentence, "a kernel with CONFIG_BLK_CGROUP, or the mount of blkio")
    elif found.off_below:
        sentence = f"{SUBJECT} = {mode}, and the controller io is off below {found.off_below}: containers are not limited"
        slice_ = found.off_below.rpartition("/")[2]
        hint = f"systemctl set-property {slice_} IOAccounting=yes" if slice_.endswith(".slice") else ""
        yield warning(
            "disks", sentence, hint or f"echo +io > /sys/fs/cgroup{found.off_below}/cgroup.subtree_control"
        )
    else:
        yield ok("disks", f"{SUBJECT} = {mode}, and cgroups of containers have block I/O ({version})")
    if found.weighs and found.root and not found.weighing:
        named = [f"{name}: {scheduler}" for name, scheduler in sorted(found.schedulers.items())]
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        disks = f" ({', '.join(named[:_SHOWN])}{more})" if named else ""
        yield warning(
            "disk-weights",
            f"classes of block I/O have weights, and no disk has a scheduler that knows them{disks}",
            "echo bfq > /sys/block/DISK/queue/scheduler, or costs in control.blockio (iocost)",
        )
