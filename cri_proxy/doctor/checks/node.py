"""What the doctor says of the rest of the node: runtime, cgroups, systemd, and other programs that place containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cri_proxy.doctor.facts import RUNS_AS, Facts, UnitFacts
from cri_proxy.doctor.findings import NOTE, PROBLEM, WARNING, Finding, finding, note, ok, problem, warning
from policies.machine.cpus import format_cpus

SERVICE, SOCKET, OBSERVER = (
    "cri-resource-manager.service",
    "cri-resource-manager.socket",
    "cri-resmgr-observer.service",
)
NRI_SERVICE = "cri-resmgr-nri.service"
UNITS = (SERVICE, SOCKET, OBSERVER, NRI_SERVICE)
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
    "dracpu": "Kubernetes' driver of CPUs (dra.cpu), which sets the cpuset of every container",
    "numad": "numad, which moves processes between NUMA nodes",
}
#: Programs that are often beside us, and what there is to know of them.
NEIGHBOURS: Mapping[str, str] = {
    "irqbalance": "irqbalance runs: interrupts also go to exclusive CPUs",
    "tuned": "tuned runs: a profile of its may isolate CPUs or set numa_balancing",
}
#: How the link by which a runtime launches us ends, as `10-cri-resmgr`.
OUR_PLUGIN = "-cri-resmgr"
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
        yield problem("runtime", runtime.problem, hint)
        return
    sentence = f"{runtime.name} {runtime.version}, {runtime.api}, at {runtime.path}"
    yield ok("runtime", sentence)
    if runtime.nri_socket and facts.front_end != "nri-plugin":
        sentence = f"the runtime serves NRI at {runtime.nri_socket}: plugins there may place containers, too"
        yield note("nri", sentence)
    if runtime.socket.mode & 0o002:  # to connect is to write
        sentence = (
            f"{runtime.path} has mode {runtime.socket.mode:04o}: every user of this host may use the runtime"
        )
        yield warning("runtime-mode", sentence, f"chmod 0660 {runtime.path}")


# ---------------------------------------------------------------------- cgroups


def check_cgroups(facts: Facts) -> Iterator[Finding]:
    """Can containers be pinned here, and to which CPUs?"""
    cgroups = facts.cgroups
    if cgroups is None:
        return
    if not cgroups.version:
        hint = "mount | grep cgroup; topology.cgroup_root names another place"
        sentence = "no cgroups are mounted: no container can be pinned"
        yield problem("cgroups", sentence, hint)
        return
    if not cgroups.has_cpuset:
        sentence = f"cgroup {cgroups.version} has no cpuset controller here: no container can be pinned"
        hint = (
            "cat /proc/cgroups; look for cgroup_disable in /proc/cmdline, and Delegate= of kubelet's slices"
        )
        yield problem("cpuset", sentence, hint)
        return
    if not cgroups.kubepods:
        yield note("cgroups", f"cgroup {cgroups.version}; kubelet has made no cgroup for pods yet")
        return
    driver = "systemd" if cgroups.kubepods.endswith(".slice") else "cgroupfs"
    yield ok("cgroups", f"cgroup {cgroups.version}, pods in {cgroups.kubepods} ({driver})")
    left_out = facts.usable - cgroups.cpus if cgroups.cpus is not None else frozenset()
    if left_out:
        sentence = (
            f"{cgroups.kubepods} may not use CPUs {format_cpus(left_out)}: containers are kept off them"
        )
        hint = "if that is not on purpose: AllowedCPUs= of its slice, strict-cpu-reservation of kubelet"
        yield note("kubepods-cpus", sentence, hint)
    if cgroups.mems is not None and facts.machine is not None:
        nodes = facts.machine.data.has_memory or frozenset(facts.machine.data.memory)
        if nodes - cgroups.mems:
            sentence = (
                f"{cgroups.kubepods} may not use the memory of NUMA node {format_cpus(nodes - cgroups.mems)}"
            )
            yield note("kubepods-mems", sentence, "AllowedMemoryNodes= of its slice")


# ---------------------------------------------------------------------- others


def check_others(facts: Facts) -> Iterator[Finding]:
    """Does another program place containers?"""
    system = facts.system
    if system is None:
        return
    found = False
    if INTELS in system.programs:
        found = True
        sentence = "Intel's cri-resource-manager still runs: two would write every cpuset"
        yield problem("intel", sentence, "systemctl stop cri-resource-manager, and remove its package")
    for name in sorted(set(WRITERS) & set(system.programs)):
        found = True
        sentence = f"{WRITERS[name]} runs: both would write cpusets, and containers it changes are modified externally"
        yield warning("writer", sentence, "run one of them; here: cri-resmgr mode off")
    for name in system.nri_plugins:
        if name.endswith(OUR_PLUGIN) and (facts.status is None or facts.front_end == "nri-plugin"):
            continue  # that is us: check_launch
        found = True
        sentence = f"the runtime starts the NRI plugin {name}: it may write cpusets, too"
        yield warning("nri-plugin", sentence, f"see what it does; rm {name}, restart the runtime")
    for name in sorted(set(NEIGHBOURS) & set(system.programs)):
        if name == "irqbalance" and facts.isolation is not None and facts.isolation.modes:
            continue  # check_isolation
        hint = (
            "IRQBALANCE_BANNED_CPULIST, where CPUs are exclusive"
            if name == "irqbalance"
            else "tuned-adm active"
        )
        yield note(name, NEIGHBOURS[name], hint)
    if system.hidden:
        sentence = f"whether other programs place containers is not wholly known: {'; '.join(system.hidden)}"
        yield warning("writer", sentence, "sudo cri-resmgr doctor")
    elif not found:
        yield ok("writer", "no other program that places containers is known to run here")
    if system.uid != 0:
        sentence = "the doctor does not run as root: some of this it could not see"
        yield warning("root", sentence, "sudo cri-resmgr doctor")


def check_launch(facts: Facts) -> Iterator[Finding]:
    """Does the runtime launch the daemon, and is it there? No runtime launches a plugin again that has ended."""
    plugins = facts.system.nri_plugins if facts.system else ()
    ours = [name for name in plugins if name.endswith(OUR_PLUGIN)]
    if ours and facts.status is None:
        sentence = (
            f"the runtime launches {ours[0]}, and no daemon answers: one that has ended is not launched again"
        )
        yield problem("launch", sentence, "journalctl -t cri-resmgr; restart the runtime, which launches it")
    elif ((facts.status or {}).get("nri") or {}).get("launched_by_runtime"):
        sentence = "the runtime has launched the daemon, and does not launch it again if it ends"
        yield note("launch", sentence, f"{NRI_SERVICE} in place of the link: systemd starts that one again")


# ---------------------------------------------------------------------- systemd


def check_units(facts: Facts) -> Iterator[Finding]:
    """Are the units there, enabled, and up?"""
    system = facts.system
    if system is None:
        return
    if not system.has_systemd:
        yield note("systemd", "systemd does not run here: what starts the daemon again is not known")
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
            yield problem(unit.name, sentence, hint)
        elif unit.load == "masked":
            yield problem(unit.name, f"{unit.name} is masked", f"systemctl unmask {unit.name}")
        else:
            yield from _unit(unit, facts)


def _not_needed(unit: UnitFacts, front_end: str) -> Iterator[Finding]:
    runs = RUNS_AS.get(front_end, "as a proxy")
    if unit.active == "active":
        what = "connections there are not served" if unit.name == SOCKET else "it places nothing"
        sentence = f"{unit.name} is active, and the daemon runs {runs}: {what}"
        hint = f"systemctl {'mask' if unit.name == SOCKET else 'disable'} --now {unit.name}"
        yield warning(unit.name, sentence, hint)
    elif unit.name != NRI_SERVICE:
        state = "masked" if unit.load == "masked" else unit.active or "not installed"
        sentence = f"{unit.name} is {state}, as it should be: the daemon runs {runs}"
        yield ok(unit.name, sentence)


def _unit(unit: UnitFacts, facts: Facts) -> Iterator[Finding]:
    state = f"{unit.active} ({unit.sub})" if unit.sub else unit.active
    is_optional = unit.name not in (SERVICE, NRI_SERVICE)
    if unit.load != "loaded":
        verdict = NOTE if is_optional or facts.status is not None else WARNING
        yield finding(unit.name, verdict, f"{unit.name} is not installed")
    elif unit.active == "failed":
        hint = f"journalctl -u {unit.name} -n 50"
        verdict = WARNING if unit.name == OBSERVER else PROBLEM
        yield finding(unit.name, verdict, f"{unit.name} has failed: {unit.result or unit.sub}", hint)
    elif unit.active != "active":
        verdict = NOTE if is_optional else WARNING
        yield finding(unit.name, verdict, f"{unit.name} is {state}", f"systemctl enable --now {unit.name}")
    elif unit.enabled in ("disabled", "indirect"):
        sentence = f"{unit.name} is {state} and not enabled: after a boot it is not there"
        yield warning(unit.name, sentence, f"systemctl enable {unit.name}")
    elif unit.restarts:
        times = "once" if unit.restarts == 1 else f"{unit.restarts} times"
        sentence = f"{unit.name} is {state}, and was restarted {times} after it ended by itself"
        yield warning(unit.name, sentence, f"journalctl -u {unit.name} -p warning")
    else:
        yield ok(unit.name, f"{unit.name} is {state}, {unit.enabled}")
