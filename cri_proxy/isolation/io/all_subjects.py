"""All subjects whose values are in files of the kernel's, or in its records of threads."""

from __future__ import annotations

from cri_proxy.isolation.io.clocks import Clocks
from cri_proxy.isolation.io.cpu_time import CpuTime
from cri_proxy.isolation.io.disks import Disks
from cri_proxy.isolation.io.interrupts import Interrupts
from cri_proxy.isolation.io.memory import Memory
from cri_proxy.isolation.io.scheduling import Scheduling
from cri_proxy.isolation.io.subjects import Subject
from cri_proxy.services.services import Services


def all_subjects(services: Services) -> list[Subject]:
    """Each subject of this node, in the order in which their values are written."""
    cgroups = services.cgroups
    return [CpuTime(cgroups), Interrupts(), Disks(services), Memory(cgroups), Scheduling(services), Clocks()]
