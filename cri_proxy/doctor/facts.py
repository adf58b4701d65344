"""What ``cri-resmgr doctor`` knows of a node: facts as they were read, judged elsewhere.

A part that could not be found out is None, and ``Facts.failures`` may say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from cri_proxy.kubelet.status import KubeletStatus
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Cpu, TopologyData

#: How the daemon runs where it is no proxy, by the name of its front end.
RUNS_AS: Mapping[str, str] = {"nri-plugin": "as an NRI plugin", "standalone": "standalone"}


@dataclass(frozen=True)
class FileFacts:
    """One file. ``kind``: "file", "directory", "socket", "other", or "" where there is none."""

    path: str
    kind: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class ConfigFacts:
    """``files``: those that were read. ``changed``: keys the running daemon has another value of."""

    files: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    #: Files the running daemon reads and we do not.
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class DaemonFacts:
    """``status``: what the daemon answers, ``problem``: why it does not. ``control``: its socket's file.

    ``is_hidden``: it may not be asked, and may well run.
    """

    control: FileFacts
    status: Optional[Mapping[str, Any]] = None
    problem: str = ""
    hint: str = ""
    is_hidden: bool = False
    #: Whether the files of the sockets for kubelet are listened on, by any process.
    sockets: tuple[tuple[FileFacts, bool], ...] = ()


@dataclass(frozen=True)
class RuntimeFacts:
    """``problem``: why it does not answer. ``cgroup_driver``: "systemd", "cgroupfs" or "" = it does not say.

    ``gives_cdi``: whether containers may have CDI devices; None: it does not say, or was not asked.
    """

    path: str
    socket: FileFacts
    problem: str = ""
    name: str = ""
    version: str = ""
    api: str = ""
    cgroup_driver: str = ""
    nri_socket: str = ""
    gives_cdi: Optional[bool] = None


@dataclass(frozen=True)
class KubeletFacts:
    """``settings``: flags and keys of kubelet's configuration that matter here, the winning ones.

    ``is_there``: one runs, or has files here.
    ``connected``: whether the running kubelet holds a connection to what it points at; None: not known.
    """

    status: KubeletStatus
    settings: Mapping[str, str] = field(default_factory=dict)
    connected: Optional[bool] = None
    is_there: bool = True


@dataclass(frozen=True)
class MachineFacts:
    """``warnings``: the holes of sysfs. ``steal``: the share of CPU time since boot that the hypervisor kept.

    ``shown``: the CPUs as the kernel shows them, with sockets, dies and L3s that cannot be right.
    """

    data: TopologyData
    warnings: tuple[str, ...] = ()
    shown: tuple[Cpu, ...] = ()
    virtual: bool = False
    #: What the machine calls itself: DMI's vendor and product.
    product: str = ""
    family: int = 0
    cpu_flags: frozenset[str] = frozenset()
    steal: Optional[float] = None


@dataclass(frozen=True)
class KernelFacts:
    """``command_line``: words of /proc/cmdline. ``numa_balancing``: "" where the kernel has none."""

    release: str = ""
    command_line: tuple[str, ...] = ()
    numa_balancing: str = ""
    lockdown: str = ""
    bpf_config: str = ""
    boot_id: str = ""
    #: What resctrl needs and this kernel is built without; "": nothing, or its configuration is not here.
    resctrl_config: str = ""


@dataclass(frozen=True)
class CgroupFacts:
    """``version``: "v1", "v2", "hybrid" or "". ``kubepods``: kubelet's root cgroup, "" where there is none yet."""

    version: str
    has_cpuset: bool
    kubepods: str = ""
    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None


@dataclass(frozen=True)
class StateFacts:
    """``check``: what is wrong with the file, "ok" if nothing is, "" if there is none or it is ``unchecked``."""

    directory: FileFacts
    free_bytes: int = 0
    size_bytes: int = 0
    writable: bool = True
    check: str = ""
    #: How much later than now the file was written.
    ahead_s: float = 0.0
    file: FileFacts = FileFacts("")
    #: Why the file could not be checked.
    unchecked: str = ""


@dataclass(frozen=True)
class UnitFacts:
    """One unit as ``systemctl show`` has it."""

    name: str
    load: str = ""
    active: str = ""
    sub: str = ""
    enabled: str = ""
    restarts: int = 0
    result: str = ""


@dataclass(frozen=True)
class SystemFacts:
    """``has_systemd``: whether it runs here. ``programs``: names of running programs. ``hidden``: what hides others."""

    has_systemd: bool = False
    units: tuple[UnitFacts, ...] = ()
    programs: tuple[str, ...] = ()
    nri_plugins: tuple[str, ...] = ()
    has_bcc: Optional[bool] = None
    uid: int = 0
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class DiskFacts:
    """What there is for block I/O. ``root``: of the hierarchy that has it, "" = none. ``off_below``: of cgroup v2, the first
    cgroup on the way to containers that does not pass the controller on, "" = all do.

    ``schedulers``: by the disk's name. ``weighing``: disks that know weights. ``weighs``: classes have some.
    """

    root: str = ""
    is_v2: bool = True
    off_below: str = ""
    schedulers: Mapping[str, str] = field(default_factory=dict)
    weighing: frozenset[str] = frozenset()
    weighs: bool = False


@dataclass(frozen=True)
class IsolationFacts:
    """What there is for keeping neighbours apart. ``modes``: of each subject that is not off, by the option's name.

    ``is_offered``: the kernel has resctrl; ``mount``: where it is mounted, "" = nowhere. ``others``: groups that are not
    ours. ``problem``: why its folder could not be read. ``interrupts``: their names by number, as far as subjects are about
    them; ``managed``: those of them whose CPUs the kernel does not let be set. ``disks``: where that subject is not off.
    """

    modes: Mapping[str, str] = field(default_factory=dict)
    is_offered: bool = False
    mount: str = ""
    others: tuple[str, ...] = ()
    problem: str = ""
    interrupts: Mapping[int, str] = field(default_factory=dict)
    managed: frozenset[int] = frozenset()
    disks: Optional[DiskFacts] = None
    files: Optional[frozenset[str]] = None
    clocks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ClaimFacts:
    """Of claims of CPUs: the driver's name, and the ``others`` that serve kubelet under it, as ``NAME (process N)``."""

    is_enabled: bool = False
    driver: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All of it. ``failures``: what could not be found out, by what it is called, each with a sentence."""

    config: Optional[ConfigFacts] = None
    daemon: Optional[DaemonFacts] = None
    runtime: Optional[RuntimeFacts] = None
    kubelet: Optional[KubeletFacts] = None
    machine: Optional[MachineFacts] = None
    kernel: Optional[KernelFacts] = None
    cgroups: Optional[CgroupFacts] = None
    state: Optional[StateFacts] = None
    system: Optional[SystemFacts] = None
    isolation: Optional[IsolationFacts] = None
    claims: Optional[ClaimFacts] = None
    rows: tuple[Mapping[str, Any], ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> Optional[Mapping[str, Any]]:
        """What the daemon says of itself; None: it does not answer."""
        return self.daemon.status if self.daemon else None

    @property
    def front_end(self) -> str:
        """What the daemon runs as; one that does not answer is taken for the proxy."""
        return str((self.status or {}).get("front_end", "proxy"))

    @property
    def usable(self) -> frozenset[int]:
        """The CPUs that are online, as far as is known."""
        return (
            frozenset(c.cpu for c in self.machine.data.cpus) - self.machine.data.offline
            if self.machine
            else NO_CPUS
        )
