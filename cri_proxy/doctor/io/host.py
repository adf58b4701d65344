"""Reads what the doctor must know of the host: machine, kernel, cgroups, systemd's units, programs. Changes nothing."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Optional

from cri_proxy.bounded_files import read_beginning
from cri_proxy.doctor.checks.node import INTELS, UNITS
from cri_proxy.doctor.facts import (
    CgroupFacts,
    FileFacts,
    IsolationFacts,
    KernelFacts,
    MachineFacts,
    SystemFacts,
    UnitFacts,
)
from cri_proxy.isolation.interrupts import INTERRUPTS, read_interrupts
from cri_proxy.isolation.model import NO_GROUPS, is_ours
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.machine import MachineReader
from cri_proxy.processes import Processes

_SYSTEMCTL_S = 4.0  # against 20 ms: systemd is slow where an incident keeps the node busy
_PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,NRestarts,Result"
#: What DMI says on hypervisors whose guests have no CPU flag that tells (arm64).
_VIRTUAL = re.compile(r"QEMU|KVM|VMware|VirtualBox|Virtual Machine|Xen|Bochs|OpenStack|Bhyve", re.I)
#: Of a kernel's configuration, what our programs need.
_BPF_CONFIG = ("CONFIG_BPF_SYSCALL", "CONFIG_CGROUP_BPF")
#: And resctrl, by the machine's architecture.
_RESCTRL_CONFIG = {"x86_64": ("CONFIG_X86_CPU_RESCTRL",), "aarch64": ("CONFIG_ARM64_MPAM",)}
NRI_PLUGINS = "opt/nri/plugins"


def read_file_facts(path: Path) -> FileFacts:
    """What there is at a path; a link counts as what it leads to.

    :raises OSError: that cannot be told.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return FileFacts(str(path))
    kinds = ((stat.S_ISSOCK, "socket"), (stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"))
    kind = next((name for is_kind, name in kinds if is_kind(status.st_mode)), "other")
    return FileFacts(str(path), kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


# ---------------------------------------------------------------------- machine and kernel


def read_machine_facts(root: Path, source: Path, kubelet: Path) -> MachineFacts:
    """:raises NoMachine: there is nothing usable at ``source``."""
    proc = root / "proc"
    reader = MachineReader(source, Cgroups(root / "nowhere", proc), kubelet, proc)
    data = reader.read().topology.data
    lines = _first_paragraph(proc / "cpuinfo")
    flags = frozenset(lines.get("flags", "").split())
    family = lines.get("cpu family", "")
    dmi = root / "sys/class/dmi/id"
    product = " ".join(filter(None, (_text(dmi / "sys_vendor"), _text(dmi / "product_name"))))
    is_xen = _text(root / "sys/hypervisor/type") == "xen"
    return MachineFacts(
        data,
        reader.warnings,
        reader.shown,
        virtual="hypervisor" in flags or is_xen or bool(_VIRTUAL.search(product)),
        product=product or ("Xen" if is_xen else ""),
        family=int(family) if family.isdigit() else 0,
        cpu_flags=flags,
        steal=_steal(_text(proc / "stat")),
    )


def _first_paragraph(cpuinfo: Path) -> dict[str, str]:
    # For 1,024 CPUs the file has more than a megabyte, and takes the kernel its time.
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in read_beginning(cpuinfo, 1 << 14).decode(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if not name.strip():
                break
            found[name.strip()] = value.strip()
    return found


def _steal(stat_text: str) -> Optional[float]:
    """The eighth number of the first line, of the first eight: guests' time is in the users' (proc(5))."""
    words = stat_text.partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:9]):
        return None
    times = [int(word) for word in words[1:9]]
    return times[7] / sum(times) if sum(times) else None


def read_kernel_facts(root: Path) -> KernelFacts:
    settings = root / "proc/sys/kernel"
    release = _text(settings / "osrelease")
    lines = _config_lines(root, release)
    lockdown = re.search(r"\[(\w+)\]", _text(root / "sys/kernel/security/lockdown"))
    return KernelFacts(
        release=release,
        command_line=tuple(_text(root / "proc/cmdline").split()),
        numa_balancing=_text(settings / "numa_balancing"),
        lockdown=lockdown[1] if lockdown else "",
        bpf_config=_missing(lines, _BPF_CONFIG),
        boot_id=_text(settings / "random/boot_id"),
        resctrl_config=_missing(lines, _RESCTRL_CONFIG.get(os.uname().machine, ())),
    )


def _config_lines(root: Path, release: str) -> list[str]:
    """The configuration that the kernel was built with; none where it is not here."""
    text = _text(root / "boot" / f"config-{release}")
    if not text:
        with contextlib.suppress(OSError, EOFError):
            text = gzip.decompress((root / "proc/config.gz").read_bytes()).decode(errors="replace")
    return text.splitlines()


def _missing(lines: list[str], names: Iterable[str]) -> str:
    """The first of these that the kernel is built without; "": it has all, or its configuration is not known."""
    return next((name for name in names if lines and f"{name}=y" not in lines), "")


# ---------------------------------------------------------------------- cgroups


def read_cgroup_facts(root: Path, cgroup_root: Path) -> CgroupFacts:
    cgroups = Cgroups(cgroup_root, root / "proc")
    if cgroups.is_v1:
        version = "hybrid" if (cgroup_root / "unified").is_dir() else "v1"
    else:
        version = "v2" if (cgroup_root / "cgroup.controllers").exists() else ""
        version = version or (
            "v1" if (cgroup_root / "cpu").is_dir() or (cgroup_root / "memory").is_dir() else ""
        )
    kubepods = cgroups.kubepods()
    base = cgroups.base / kubepods.lstrip("/")
    has_cpuset = cgroups.is_v1 or "cpuset" in _text(base / "cgroup.controllers").split()
    found = cgroups.effective(kubepods) if kubepods else None
    return CgroupFacts(
        version, has_cpuset, kubepods, found.cpus if found else None, found.mems if found else None
    )


# ---------------------------------------------------------------------- resctrl


def read_isolation_facts(root: Path, modes: Mapping[str, str]) -> IsolationFacts:
    """``modes``: of the subjects that are not off."""
    mount = next(
        (
            words[1]
            for line in _text(root / "proc/self/mounts").splitlines()
            if (words := line.split())[2:3] == ["resctrl"]
        ),
        "",
    )
    others, problem = [], ""
    if mount:
        try:
            others = sorted(
                each.name
                for each in os.scandir(root / mount.lstrip("/"))
                if each.is_dir() and each.name not in NO_GROUPS and not is_ours(each.name)
            )
        except OSError as error:
            problem = f"{mount}: {error.strerror}"
    is_offered = "resctrl" in _text(root / "proc/filesystems").split()
    interrupts = read_interrupts(_text(root / "proc/interrupts")) if INTERRUPTS in modes else {}
    managed = frozenset(number for number in interrupts if not _is_writable(root, number))
    return IsolationFacts(
        modes,
        is_offered,
        mount,
        tuple(others),
        problem,
        interrupts,
        managed,
        files=_files_of_pods(root) if modes else None,
        clocks=_clocks(root) if modes else frozenset(),
    )


def _files_of_pods(root: Path) -> Optional[frozenset[str]]:
    """The files of CPU time and memory of the cgroup of all pods."""
    cgroups = Cgroups(root / "sys/fs/cgroup")
    pods = cgroups.kubepods()
    if not pods:
        return None
    folders = [Path(cgroups.cpu_folder(pods)), Path(cgroups.memory_folder(pods))]
    return frozenset(
        path.name for folder in folders for name in ("cpu.*", "memory.*") for path in folder.glob(name)
    )


def _clocks(root: Path) -> frozenset[str]:
    cpu = root / "sys/devices/system/cpu"
    found = {"cpufreq": cpu.glob("cpufreq/policy*"), "cpuidle": cpu.glob("cpu*/cpuidle/state*")}
    return frozenset(name for name, paths in found.items() if any(paths))


def _is_writable(root: Path, number: int) -> bool:
    """Whether an interrupt's file says so, as kernels since 6.9 have it; else a write tells."""
    try:
        return bool((root / f"proc/irq/{number}/smp_affinity_list").stat().st_mode & 0o222)
    except OSError:
        return True


# ---------------------------------------------------------------------- systemd, programs


def read_system_facts(root: Path, proc: Path, systemctl: str) -> SystemFacts:
    """:raises OSError, subprocess.SubprocessError: systemctl does not do its work."""
    has_systemd = (root / "run/systemd/system").is_dir()
    plugins = root / NRI_PLUGINS
    processes, hidden = Processes(proc), ""
    try:
        found = sorted(name for name in os.listdir(plugins) if os.access(plugins / name, os.X_OK))
    except (FileNotFoundError, NotADirectoryError):
        found = []
    except OSError as error:
        found, hidden = [], f"{plugins}: {error.strerror}"
    programs = tuple(sorted(set(_programs(processes))))
    return SystemFacts(
        has_systemd,
        read_units(systemctl) if has_systemd else (),
        programs,
        tuple(found),
        _has_bcc(root),
        os.getuid(),
        tuple(filter(None, (processes.hidden, hidden))),
    )


def read_units(systemctl: str) -> tuple[UnitFacts, ...]:
    """:raises OSError, subprocess.SubprocessError: it does not do its work."""
    command = [systemctl, "show", "--no-pager", f"--property={_PROPERTIES}", *UNITS]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SYSTEMCTL_S, check=True
    )
    units = []
    for block in done.stdout.split("\n\n"):
        of = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in of:
            restarts = of.get("NRestarts", "")
            units.append(
                UnitFacts(
                    of["Id"], of.get("LoadState", ""), of.get("ActiveState", ""), of.get("SubState", ""),
                    of.get("UnitFileState", ""), int(restarts) if restarts.isdigit() else 0, of.get("Result", ""),
                )
            )  # fmt: skip
    return tuple(units)


def _programs(processes: Processes) -> Iterator[str]:
    """Names of running programs; one of our name that no Python runs goes by another."""
    for folder, name in processes.named():
        if name == "cri-resmgr":
            interpreter = (processes.read(folder / "cmdline") or b"").split(b"\0")[0]
            name = name if not interpreter or b"python" in interpreter else INTELS
        yield name


def _has_bcc(root: Path, python: str = "/usr/bin/python3") -> Optional[bool]:
    """Whether the system's Python could import it; None: not known."""
    code = "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec('bcc') is None else 0)"
    if root != Path("/"):
        return None
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, timeout=_SYSTEMCTL_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {0: True, 3: False}.get(done.returncode)
