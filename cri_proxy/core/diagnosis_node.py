"""What the doctor says of the rest of the node: runtime, kubelet, cgroups, systemd, and others who place containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cri_proxy.core.diagnosis_facts import Facts, KubeletFacts, UnitFacts
from cri_proxy.core.findings import NOTE, OK, PROBLEM, WARNING, Finding
from policies.cpus import BadCpuList, format_cpus, parse_cpus

SERVICE, SOCKET, OBSERVER = (
    "cri-resource-manager.service",
    "cri-resource-manager.socket",
    "cri-resmgr-observer.service",
)
NRI_SERVICE = "cri-resmgr-nri.service"
UNITS = (SERVICE, SOCKET, OBSERVER, NRI_SERVICE)
#: How the daemon runs where it is no proxy, by the name of its front end.
RUNS_AS: Mapping[str, str] = {"nri-plugin": "as an NRI plugin", "standalone": "standalone"}
#: The units that a daemon needs.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "proxy": (SERVICE, SOCKET, OBSERVER),
    "nri-plugin": (NRI_SERVICE, OBSERVER),
    "standalone": (SERVICE, OBSERVER),
}
_JOURNAL = "journalctl -u cri-resource-manager -n 50"

#: Programs, as the kernel names them (15 characters), that also give CPUs or memory nodes to containers.
WRITERS: Mapping[str, str] = {
    "nri-resource-po": "another resource policy (nri-plugins)",
    "koordlet": "koordinator's agent",
    "koord-runtime-p": "koordinator's CRI proxy",
    "rubik": "rubik, which sets quotas and cpusets",
    "katalyst-agent": "katalyst's agent",
    "crane-agent": "crane's agent",
    "numad": "numad, which moves processes between NUMA nodes",
}
#: Programs that are often beside us, and what there is to know of them.
NEIGHBOURS: Mapping[str, str] = {
    "irqbalance": "irqbalance runs: interrupts also go to CPUs that containers own",
    "tuned": "tuned runs: a profile of its may isolate CPUs or set numa_balancing",
}
#: Where Intel's program runs under our name, this is what it is called among the facts.
INTELS = "cri-resmgr (a binary, Intel's)"


# ---------------------------------------------------------------------- runtime


def check_runtime(facts: Facts) -> Iterator[Finding]:
    """Is the runtime there?"""
    runtime = facts.runtime
    if runtime is None:
        return
    if runtime.problem:
        hint = "systemctl status containerd; relay.runtime_endpoint names another"
        yield Finding("runtime", "runtime", PROBLEM, runtime.problem, hint)
        return
    sentence = f"{runtime.name} {runtime.version}, {runtime.api}, at {runtime.path}"
    yield Finding("runtime", "runtime", OK, sentence)
    if runtime.nri_socket and facts.front_end != "nri-plugin":
        sentence = f"the runtime serves NRI at {runtime.nri_socket}: plugins there may place containers, too"
        yield Finding("runtime", "nri", NOTE, sentence)
    if runtime.socket.mode & 0o002:  # to connect is to write
        sentence = (
            f"{runtime.path} has mode {runtime.socket.mode:04o}: everybody on this host may use the runtime"
        )
        yield Finding("runtime", "runtime-mode", WARNING, sentence, f"chmod 0660 {runtime.path}")


# ---------------------------------------------------------------------- kubelet


def check_kubelet(facts: Facts) -> Iterator[Finding]:
    """Does kubelet use us, and do its settings fit?"""
    kubelet = facts.kubelet
    if kubelet is None:
        return
    yield _pointing(kubelet) if facts.front_end == "proxy" else _not_pointing(kubelet, facts.front_end)
    yield from _managers(kubelet)
    yield from _drivers(facts, kubelet)
    yield from _reserved(facts, kubelet)


def _pointing(kubelet: KubeletFacts) -> Finding:
    status = kubelet.status
    if status.points_at_us and status.restart_pending:
        sentence = "kubelet still uses us, but its files say otherwise: its next restart ends that"
        return Finding("kubelet", "kubelet", WARNING, sentence, "cri-resmgr kubelet enable")
    if status.points_at_us:
        if status.pid is not None and kubelet.connected is False:
            sentence = (
                f"kubelet (process {status.pid}) points at {status.endpoint} and is not connected to it"
            )
            return Finding("kubelet", "kubelet", WARNING, sentence, "journalctl -u kubelet -n 50")
        runs = f"process {status.pid}" if status.pid is not None else "it does not run"
        return Finding("kubelet", "kubelet", OK, f"kubelet points at us: {status.endpoint} ({runs})")
    where = "the default, nothing is set" if status.place == "default" else status.place
    if status.restart_pending:
        sentence = f"kubelet was started before its files were changed and still uses {status.endpoint}"
    elif status.dropped:
        sentence = "kubelet no longer points at us: what `kubelet enable` wrote is gone (a kubeadm upgrade does that)"
    elif status.pid is None and status.place == "default":
        sentence = "no kubelet runs here, and none is configured for us"
        return Finding("kubelet", "kubelet", WARNING, sentence, status.hint)
    else:
        sentence = f"kubelet does not point at us but at {status.endpoint} ({where})"
    return Finding("kubelet", "kubelet", PROBLEM, sentence, status.hint)


def _not_pointing(kubelet: KubeletFacts, front_end: str) -> Finding:
    """Where no socket of ours is served, kubelet belongs at the runtime's."""
    status, what = kubelet.status, RUNS_AS.get(front_end, front_end)
    if status.points_at_us:
        sentence = (
            f"kubelet points at us ({status.endpoint}), and the daemon runs {what}: nobody serves it there"
        )
        return Finding("kubelet", "kubelet", PROBLEM, sentence, "cri-resmgr kubelet disable --restart")
    sentence = f"kubelet's runtime is {status.endpoint}, as it should be: the daemon runs {what}"
    return Finding("kubelet", "kubelet", OK, sentence)


def _managers(kubelet: KubeletFacts) -> Iterator[Finding]:
    settings = kubelet.settings
    if settings.get("cpuManagerPolicy") == "static":
        sentence = "kubelet's CPU manager is static: its exclusive CPUs are left to it, its shared set is a fence we stay in"
        yield Finding(
            "kubelet", "cpu-manager", WARNING, sentence, "cpuManagerPolicy: none, and drain the node first"
        )
    manager = settings.get("topologyManagerPolicy", "")
    if manager not in ("", "none"):
        verdict = WARNING if manager in ("restricted", "single-numa-node") else NOTE
        sentence = f"kubelet's topology manager is {manager}: it may refuse pods that we would place"
        yield Finding("kubelet", "topology-manager", verdict, sentence, "topologyManagerPolicy: none")
    if settings.get("memoryManagerPolicy") == "Static":
        sentence = "kubelet's memory manager is Static: its memory nodes are a fence that we stay in"
        yield Finding("kubelet", "memory-manager", NOTE, sentence, "memoryManagerPolicy: None")
    if settings.get("cpuCFSQuota") == "false":
        sentence = (
            "kubelet sets no CFS quota: CPU limits are not seen, so Burstable containers count as unlimited"
        )
        yield Finding("kubelet", "cfs-quota", NOTE, sentence, "cpuCFSQuota: true")


def _drivers(facts: Facts, kubelet: KubeletFacts) -> Iterator[Finding]:
    # kubelet asks the runtime since 1.28 where it serves RuntimeConfig; what its files say counts before that.
    kubelets = kubelet.settings.get("cgroupDriver", "")
    runtimes = facts.runtime.cgroup_driver if facts.runtime else ""
    if kubelets and runtimes and kubelets != runtimes:
        sentence = f"kubelet's cgroup driver is {kubelets} and the runtime's {runtimes}: pods may not start"
        yield Finding(
            "kubelet", "cgroup-driver", PROBLEM, sentence,
            f"cgroupDriver: {runtimes} in kubelet's configuration, or SystemdCgroup in the runtime's",
        )  # fmt: skip
    elif kubelets or runtimes:
        yield Finding("kubelet", "cgroup-driver", OK, f"cgroup driver {runtimes or kubelets}")


def _reserved(facts: Facts, kubelet: KubeletFacts) -> Iterator[Finding]:
    text = kubelet.settings.get("reservedSystemCPUs", "")
    if not text:
        return
    try:
        theirs = parse_cpus(text)
    except BadCpuList as error:
        yield Finding("kubelet", "reserved", WARNING, f"kubelet's reservedSystemCPUs {text!r}: {error}")
        return
    ours = str((facts.status or {}).get("reserved", ""))
    if not ours:
        sentence = (
            f"kubelet reserves CPUs {format_cpus(theirs)} for the system, and we place containers on them"
        )
        hint = f'policy: {{ReservedResources: {{cpu: "cpuset:{format_cpus(theirs)}"}}}}'
        if facts.status is not None:
            yield Finding("kubelet", "reserved", NOTE, sentence, hint)
    elif parse_cpus(ours) != theirs:
        sentence = f"kubelet reserves CPUs {format_cpus(theirs)} and we {ours}"
        yield Finding(
            "kubelet", "reserved", NOTE, sentence, "policy.ReservedResources and reservedSystemCPUs, alike"
        )


# ---------------------------------------------------------------------- cgroups


def check_cgroups(facts: Facts) -> Iterator[Finding]:
    """Can containers be pinned here, and to which CPUs?"""
    cgroups = facts.cgroups
    if cgroups is None:
        return
    if not cgroups.version:
        hint = "mount | grep cgroup; topology.cgroup_root names another place"
        sentence = "no cgroups are mounted: no container can be pinned"
        yield Finding("cgroups", "cgroups", PROBLEM, sentence, hint)
        return
    if not cgroups.has_cpuset:
        sentence = f"cgroup {cgroups.version} has no cpuset controller here: no container can be pinned"
        hint = (
            "cat /proc/cgroups; look for cgroup_disable in /proc/cmdline, and Delegate= of kubelet's slices"
        )
        yield Finding("cgroups", "cpuset", PROBLEM, sentence, hint)
        return
    if not cgroups.kubepods:
        yield Finding(
            "cgroups", "cgroups", NOTE, f"cgroup {cgroups.version}; kubelet has made no cgroup for pods yet"
        )
        return
    driver = "systemd" if cgroups.kubepods.endswith(".slice") else "cgroupfs"
    yield Finding(
        "cgroups", "cgroups", OK, f"cgroup {cgroups.version}, pods in {cgroups.kubepods} ({driver})"
    )
    left_out = facts.usable - cgroups.cpus if cgroups.cpus is not None else frozenset()
    if left_out:
        sentence = (
            f"{cgroups.kubepods} may not use CPUs {format_cpus(left_out)}: containers are kept off them"
        )
        hint = "if that is not on purpose: AllowedCPUs= of its slice, strict-cpu-reservation of kubelet"
        yield Finding("cgroups", "kubepods-cpus", NOTE, sentence, hint)
    if cgroups.mems is not None and facts.machine is not None:
        nodes = facts.machine.data.has_memory or frozenset(facts.machine.data.memory)
        if nodes - cgroups.mems:
            sentence = (
                f"{cgroups.kubepods} may not use the memory of NUMA node {format_cpus(nodes - cgroups.mems)}"
            )
            yield Finding("cgroups", "kubepods-mems", NOTE, sentence, "AllowedMemoryNodes= of its slice")


# ---------------------------------------------------------------------- others


def check_others(facts: Facts) -> Iterator[Finding]:
    """Does anybody else place containers?"""
    system = facts.system
    if system is None:
        return
    found = False
    if INTELS in system.programs:
        found = True
        sentence = "Intel's cri-resource-manager still runs: two would write every cpuset"
        yield Finding(
            "others",
            "intel",
            PROBLEM,
            sentence,
            "systemctl stop cri-resource-manager, and remove its package",
        )
    for name in sorted(set(WRITERS) & set(system.programs)):
        found = True
        sentence = f"{WRITERS[name]} runs: both would write cpusets, and containers it changes become foreign"
        yield Finding("others", "writer", WARNING, sentence, "run one of them; here: cri-resmgr mode off")
    for name in system.nri_plugins:
        if facts.front_end == "nri-plugin" and name.endswith("-cri-resmgr"):
            continue  # that is us
        found = True
        sentence = f"the runtime starts the NRI plugin {name}: it may write cpusets, too"
        yield Finding(
            "others", "nri-plugin", WARNING, sentence, f"see what it does; rm {name}, restart the runtime"
        )
    for name in sorted(set(NEIGHBOURS) & set(system.programs)):
        hint = (
            "IRQBALANCE_BANNED_CPULIST, where CPUs are exclusive"
            if name == "irqbalance"
            else "tuned-adm active"
        )
        yield Finding("others", name, NOTE, NEIGHBOURS[name], hint)
    if not found:
        yield Finding("others", "writer", OK, "nobody else who places containers is known to run here")
    if system.uid != 0:
        sentence = "the doctor does not run as root: some of this it could not see"
        yield Finding("others", "root", WARNING, sentence, "sudo cri-resmgr doctor")


# ---------------------------------------------------------------------- systemd


def check_units(facts: Facts) -> Iterator[Finding]:
    """Are the units there, enabled, and up?"""
    system = facts.system
    if system is None:
        return
    if not system.has_systemd:
        yield Finding(
            "units", "systemd", NOTE, "systemd does not run here: who starts the daemon again is not known"
        )
        return
    needed = _NEEDED.get(facts.front_end, UNITS)
    if ((facts.status or {}).get("nri") or {}).get("launched_by_runtime"):
        needed = (OBSERVER,)
    for unit in system.units:
        if unit.name not in needed:
            yield from _not_needed(unit, facts.front_end)
        elif unit.result == "start-limit-hit":
            sentence = f"{unit.name} was started too often and systemd has given up"
            hint = f"{_JOURNAL}; systemctl reset-failed {unit.name} && systemctl start {unit.name}"
            yield Finding("units", unit.name, PROBLEM, sentence, hint)
        elif unit.load == "masked":
            yield Finding(
                "units", unit.name, PROBLEM, f"{unit.name} is masked", f"systemctl unmask {unit.name}"
            )
        else:
            yield from _unit(unit, facts)


def _not_needed(unit: UnitFacts, front_end: str) -> Iterator[Finding]:
    runs = RUNS_AS.get(front_end, "as a proxy")
    if unit.active == "active":
        what = "who connects there is not served" if unit.name == SOCKET else "it places nothing"
        sentence = f"{unit.name} is active, and the daemon runs {runs}: {what}"
        hint = f"systemctl {'mask' if unit.name == SOCKET else 'disable'} --now {unit.name}"
        yield Finding("units", unit.name, WARNING, sentence, hint)
    elif unit.name != NRI_SERVICE:
        state = "masked" if unit.load == "masked" else unit.active or "not installed"
        sentence = f"{unit.name} is {state}, as it should be: the daemon runs {runs}"
        yield Finding("units", unit.name, OK, sentence)


def _unit(unit: UnitFacts, facts: Facts) -> Iterator[Finding]:
    state = f"{unit.active} ({unit.sub})" if unit.sub else unit.active
    is_optional = unit.name not in (SERVICE, NRI_SERVICE)
    if unit.load != "loaded":
        verdict = NOTE if is_optional or facts.status is not None else WARNING
        yield Finding("units", unit.name, verdict, f"{unit.name} is not installed")
    elif unit.active == "failed":
        hint = f"journalctl -u {unit.name} -n 50"
        verdict = WARNING if unit.name == OBSERVER else PROBLEM
        yield Finding("units", unit.name, verdict, f"{unit.name} has failed: {unit.result or unit.sub}", hint)
    elif unit.active != "active":
        verdict = NOTE if is_optional else WARNING
        yield Finding(
            "units", unit.name, verdict, f"{unit.name} is {state}", f"systemctl enable --now {unit.name}"
        )
    elif unit.enabled in ("disabled", "indirect"):
        sentence = f"{unit.name} is {state} and not enabled: after a boot it is not there"
        yield Finding("units", unit.name, WARNING, sentence, f"systemctl enable {unit.name}")
    elif unit.restarts:
        times = "once" if unit.restarts == 1 else f"{unit.restarts} times"
        sentence = f"{unit.name} is {state}, and was restarted {times} after it ended by itself"
        yield Finding("units", unit.name, WARNING, sentence, f"journalctl -u {unit.name} -p warning")
    else:
        yield Finding("units", unit.name, OK, f"{unit.name} is {state}, {unit.enabled}")
