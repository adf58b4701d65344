"""What the doctor says of isolation: whether the kernel can do what is configured, and what else acts on the same things."""

from __future__ import annotations

from collections.abc import Iterator

from cri_proxy.doctor.checks.disks import SUBJECT as DISKS
from cri_proxy.doctor.checks.disks import check_disks
from cri_proxy.doctor.facts import Facts, IsolationFacts
from cri_proxy.doctor.findings import Finding, note, ok, warning
from cri_proxy.isolation.interrupts import INTERRUPTS, irqbalance_lines, number_of
from cri_proxy.isolation.model import ENFORCE, PROTECTED
from cri_proxy.version import DOCUMENTS
from policies.machine.cpus import parse_cpus

_MORE = f"{DOCUMENTS}/isolation.md"
_FLAGS = frozenset(("cat_l3", "cat_l2", "cdp_l3", "mba", "cqm", "cqm_llc"))
MOUNT = "mount -t resctrl resctrl /sys/fs/resctrl"
_FSTAB = f"{MOUNT}\nover restarts, in /etc/fstab: resctrl /sys/fs/resctrl resctrl defaults 0 0"
#: Programs that write to resctrl, by the first 15 letters of their names, as the kernel keeps them.
WRITERS = ("rubik", "koordlet", "pqos", "katalyst-agent", "nri-resource-po", "intel-cri-resmg")
#: What needs resctrl; other subjects have files elsewhere.
OF_RESCTRL = frozenset(f"isolation.{name}" for name in ("caches", "bandwidth", "monitoring", "protection"))
CLOCKS = "isolation.clocks"
#: Subjects of pods' cgroups: of which files one must be there, and what it means where none is.
_NEEDED = (
    (
        "isolation.cpu",
        ("cpu.weight", "cpu.shares"),
        "the controller of CPU time is off, batch does not yield",
    ),
    (
        "isolation.memory",
        ("memory.high",),
        "nothing of it is kept or slowed (cgroup v2 with the memory controller has it)",
    ),
)
#: As many groups of others are named.
_SHOWN = 3


def check_isolation(facts: Facts) -> Iterator[Finding]:
    """Can the kernel do what the subjects that are not off ask for, and is something else at work there?"""
    found = facts.isolation
    if found is None:
        return
    if not found.modes:
        can = "could be divided" if found.is_offered else "cannot be divided by this kernel"
        yield ok(
            "isolation", f"off; caches {can}", f"{_MORE} says what it would do" if found.is_offered else ""
        )
        return
    if found.mount or not OF_RESCTRL.isdisjoint(found.modes):
        yield from _kernel(found, facts)
    yield from _others(found, facts)
    yield from _interrupts(found, facts)
    if found.disks is not None:
        yield from check_disks(found.disks, found.modes.get(DISKS, ""))
    yield from _cgroups(found)
    yield from _clocks(found, facts)


def _cgroups(found: IsolationFacts) -> Iterator[Finding]:
    """CPU time and memory: what the cgroups of pods have of it."""
    if found.files is None:
        return
    for subject, missing, consequence in _NEEDED:
        mode = found.modes.get(subject)
        if mode is None:
            continue
        name = subject.partition(".")[2]
        if found.files.isdisjoint(missing):
            sentence = (
                f"{subject} = {mode}, and cgroups of pods have none of {', '.join(missing)}: {consequence}"
            )
            yield warning(f"isolation-{name}", sentence, _MORE)
        else:
            yield ok(f"isolation-{name}", f"{subject} = {mode}, and cgroups of pods have what it writes")


def _clocks(found: IsolationFacts, facts: Facts) -> Iterator[Finding]:
    mode = found.modes.get(CLOCKS)
    if mode is None:
        return
    if found.clocks:
        yield ok("clocks", f"{CLOCKS} = {mode}, and the kernel has {' and '.join(sorted(found.clocks))}")
    else:
        is_guest = facts.machine is not None and "hypervisor" in facts.machine.cpu_flags
        hint = (
            "a guest has the host's clocks: switch it off"
            if is_guest
            else "the driver of the firmware's clocks (acpi-cpufreq, amd-pstate)"
        )
        sentence = f"{CLOCKS} = {mode}, and this kernel has neither cpufreq nor cpuidle: nothing is set"
        yield warning("clocks", sentence, hint)


def _kernel(found: IsolationFacts, facts: Facts) -> Iterator[Finding]:
    modes = {name: mode for name, mode in found.modes.items() if name in OF_RESCTRL}
    named = ", ".join(f"{name} = {mode}" for name, mode in sorted(modes.items()))
    if found.mount:
        yield ok("resctrl", f"resctrl is mounted at {found.mount}" + (f" ({named})" if named else ""))
        if found.problem:
            yield warning(
                "resctrl-folder", f"its groups could not be listed: {found.problem}", "run doctor as root"
            )
        return
    if found.is_offered:
        yield warning("resctrl", f"{named}, and resctrl is not mounted: nothing is divided", _FSTAB)
        return
    kernel, machine = facts.kernel, facts.machine
    flags = machine.cpu_flags & _FLAGS if machine else frozenset()
    why, hint = "the processor has no control of caches, or the hypervisor hides it", _MORE
    switch = next((word for word in kernel.command_line if word.startswith("rdt=")), "") if kernel else ""
    if kernel and kernel.resctrl_config:
        why, hint = f"the kernel is built without {kernel.resctrl_config}", "a kernel that is built with it"
    elif flags and switch:
        why, hint = (
            f"the kernel was booted with {switch}",
            "remove what is switched off from the kernel's command line",
        )
    elif flags and machine and machine.data.vendor == "HygonGenuine":
        why = f"the processor has it ({', '.join(sorted(flags))}), and this kernel does not use it on Hygon's"
        hint = "the distribution's kernel for Hygon (openEuler, Anolis), or a stable kernel of late 2026"
    elif flags:
        why = f"the processor has it ({', '.join(sorted(flags))}), and this kernel does not offer it"
        hint = "dmesg | grep resctrl"
    yield warning("resctrl", f"{named}, and the kernel offers no resctrl: {why}", hint)


def _others(found: IsolationFacts, facts: Facts) -> Iterator[Finding]:
    if found.others:
        more = len(found.others) - _SHOWN
        names = ", ".join(found.others[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        sentence = (
            f"resctrl has groups of others ({names}): they are left alone, and each takes a class of service"
        )
        yield note("resctrl-others", sentence, "ls /sys/fs/resctrl")
    programs = facts.system.programs if facts.system else ()
    writers = sorted(name for name in programs if name in WRITERS)
    if writers and ENFORCE in found.modes.values():
        sentence = (
            f"{', '.join(writers)} runs, which may write to resctrl, too: each undoes what the other does"
        )
        yield warning("resctrl-writer", sentence, "one of the two should leave caches and bandwidth alone")
    if "irqbalance" in programs:
        hint = irqbalance_lines(_protected_cpus(facts))
        if found.modes.get(INTERRUPTS) == ENFORCE:
            sentence = (
                "irqbalance runs: it and isolation.interrupts move the same interrupts, each back again"
            )
            yield warning("irqbalance", sentence, hint)
        else:
            sentence = "irqbalance runs: interrupts may go to CPUs of protected containers"
            yield note("irqbalance", sentence, hint)


def _interrupts(found: IsolationFacts, facts: Facts) -> Iterator[Finding]:
    if INTERRUPTS not in found.modes:
        return
    told = ((facts.status or {}).get("isolation") or {}).get("refused_for_good") or ()
    refused = {number for place in told if (number := number_of(str(place))) is not None}
    fixed = sorted(found.managed | (refused & found.interrupts.keys()))
    if fixed:
        names = "; ".join(f"{number} ({found.interrupts[number]})" for number in fixed)
        sentence = (
            f"interrupts that the kernel keeps where they are, also on CPUs of protected containers: {names}"
        )
        yield note("interrupts", sentence, "a driver's option for fewer queues, or none of its queues there")


def _protected_cpus(facts: Facts) -> frozenset[int]:
    """The CPUs that protected containers own now."""
    owned = [parse_cpus(row["exclusive"]) for row in facts.rows if row.get("isolation") == PROTECTED]
    return frozenset().union(*owned)
