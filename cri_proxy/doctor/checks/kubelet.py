"""What the doctor says of kubelet: does it use us, does it still call, and do its settings fit ours?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cri_proxy.doctor.facts import RUNS_AS, Facts, KubeletFacts
from cri_proxy.doctor.findings import NOTE, WARNING, Finding, finding, note, ok, problem, warning
from cri_proxy.kubelet.status import ENABLE
from cri_proxy.text.terminal import duration_text
from policies.machine.cpus import BadCpuList, format_cpus, parse_cpus

_JOURNAL = "journalctl -u kubelet -n 50"
#: kubelet asks for the runtime's status every 5 s (syncLoop's updateRuntimeUp): this is a dozen of them missed.
_SILENT_S = 60.0


def check_kubelet(facts: Facts) -> Iterator[Finding]:
    """Does kubelet use us, and do its settings fit?"""
    kubelet = facts.kubelet
    if kubelet is None:
        return
    if facts.front_end == "proxy":
        yield _pointing(kubelet, facts.status or {})
    else:
        yield _not_pointing(kubelet, facts.front_end)
    yield from _managers(kubelet)
    yield from _drivers(facts, kubelet)
    yield from _reserved(facts, kubelet)


def _pointing(kubelet: KubeletFacts, daemon: Mapping[str, Any]) -> Finding:
    status = kubelet.status
    if status.points_at_us and status.restart_pending:
        sentence = "kubelet still uses us, but its files say otherwise: its next restart ends that"
        hint = "to stay: cri-resmgr kubelet enable; to leave: cri-resmgr kubelet disable --restart"
        return warning("kubelet", sentence, hint)
    if status.points_at_us:
        return _at_us(kubelet, daemon)
    where = "the default, nothing is set" if status.place == "default" else status.place
    if status.restart_pending:
        sentence = f"kubelet was started before its files were changed and still uses {status.endpoint}"
    elif status.dropped:
        sentence = "kubelet no longer points at us: what `kubelet enable` wrote is gone (a kubeadm upgrade does that)"
    elif not kubelet.is_there:
        sentence = "no kubelet runs here, and none of its files is here: nothing calls us"
        return warning("kubelet", sentence, f"start kubelet, then: {ENABLE}")
    elif status.pid is None and status.place == "default":
        sentence = "no kubelet runs here, and none is configured for us"
        if status.unseen:
            sentence = f"no kubelet is configured for us, and {status.unseen}"
        return warning("kubelet", sentence, status.hint)
    elif status.unseen:
        sentence = (
            f"kubelet's files do not point at us but at {status.endpoint} ({where}), and {status.unseen}"
        )
        return warning("kubelet", sentence, "cri-resmgr kubelet status, as root")
    else:
        sentence = f"kubelet does not point at us but at {status.endpoint} ({where})"
    return problem("kubelet", sentence, status.hint)


def _at_us(kubelet: KubeletFacts, daemon: Mapping[str, Any]) -> Finding:
    status = kubelet.status
    who = f"kubelet (process {status.pid})"
    if status.pid is not None and kubelet.connected is False:
        sentence = f"{who} points at {status.endpoint} and is not connected to it"
        return warning("kubelet", sentence, _JOURNAL)
    # A daemon that does not answer is a finding of its own.
    calls, is_silent = _calls(daemon) if "last_call_age_s" in daemon else ("", False)
    if status.pid is not None and is_silent:
        sentence = f"{who} points at us, {calls}: a kubelet that is well calls every few seconds"
        return warning("kubelet", sentence, _JOURNAL)
    runs = f"process {status.pid}" if status.pid is not None else "it does not run"
    if status.pid is None and status.unseen:
        runs = status.unseen
    sentence = ", ".join(filter(None, [f"kubelet points at us: {status.endpoint} ({runs})", calls]))
    # Its calls show that one runs that may not be seen.
    if status.pid is None and not (status.unseen and calls and not is_silent):
        return warning("kubelet", sentence, "systemctl status kubelet")
    return ok("kubelet", sentence)


def _calls(daemon: Mapping[str, Any]) -> tuple[str, bool]:
    """When the daemon was called last, and whether that is too long ago. Kubelet and crictl look alike to it."""
    age_s, uptime_s = daemon["last_call_age_s"], daemon["uptime_s"]
    if age_s is None:
        return f"no call since the start {duration_text(uptime_s)} ago", uptime_s >= _SILENT_S
    return f"last call {duration_text(age_s)} ago", age_s >= _SILENT_S


def _not_pointing(kubelet: KubeletFacts, front_end: str) -> Finding:
    """Where no socket of ours is served, kubelet belongs at the runtime's."""
    status, what = kubelet.status, RUNS_AS.get(front_end, front_end)
    if status.points_at_us:
        sentence = (
            f"kubelet points at us ({status.endpoint}), and the daemon runs {what}: nothing serves it there"
        )
        return problem("kubelet", sentence, "cri-resmgr kubelet disable --restart")
    sentence = f"kubelet's runtime is {status.endpoint}, as it should be: the daemon runs {what}"
    return ok("kubelet", sentence)


def _managers(kubelet: KubeletFacts) -> Iterator[Finding]:
    settings = kubelet.settings
    if settings.get("cpuManagerPolicy") == "static":
        sentence = "kubelet's CPU manager is static: its exclusive CPUs are left to it, we stay inside its shared CPUs"
        yield warning("cpu-manager", sentence, "cpuManagerPolicy: none, and drain the node first")
    manager = settings.get("topologyManagerPolicy", "")
    if manager not in ("", "none"):
        verdict = WARNING if manager in ("restricted", "single-numa-node") else NOTE
        sentence = f"kubelet's topology manager is {manager}: it may refuse pods that we would place"
        yield finding("topology-manager", verdict, sentence, "topologyManagerPolicy: none")
    if settings.get("memoryManagerPolicy") == "Static":
        sentence = "kubelet's memory manager is Static: we stay inside its memory nodes"
        yield note("memory-manager", sentence, "memoryManagerPolicy: None")
    if settings.get("cpuCFSQuota") == "false":
        sentence = (
            "kubelet sets no CFS quota: CPU limits are not seen, so Burstable containers count as unlimited"
        )
        yield note("cfs-quota", sentence, "cpuCFSQuota: true")


def _drivers(facts: Facts, kubelet: KubeletFacts) -> Iterator[Finding]:
    # kubelet asks the runtime since 1.28 where it serves RuntimeConfig; what its files say counts before that.
    kubelets = kubelet.settings.get("cgroupDriver", "")
    runtimes = facts.runtime.cgroup_driver if facts.runtime else ""
    if kubelets and runtimes and kubelets != runtimes:
        sentence = f"kubelet's cgroup driver is {kubelets} and the runtime's {runtimes}: pods may not start"
        hint = f"cgroupDriver: {runtimes} in kubelet's configuration, or SystemdCgroup in the runtime's"
        yield problem("cgroup-driver", sentence, hint)
    elif kubelets or runtimes:
        yield ok("cgroup-driver", f"cgroup driver {runtimes or kubelets}")


def _reserved(facts: Facts, kubelet: KubeletFacts) -> Iterator[Finding]:
    text = kubelet.settings.get("reservedSystemCPUs", "")
    if not text:
        return
    try:
        theirs = parse_cpus(text)
    except BadCpuList as error:
        yield warning("reserved", f"kubelet's reservedSystemCPUs {text!r}: {error}")
        return
    ours = str((facts.status or {}).get("reserved", ""))
    if not ours:
        sentence = (
            f"kubelet reserves CPUs {format_cpus(theirs)} for the system, and we place containers on them"
        )
        hint = f'policy: {{ReservedResources: {{CPU: "cpuset:{format_cpus(theirs)}"}}}}'
        if facts.status is not None:
            yield note("reserved", sentence, hint)
    elif parse_cpus(ours) != theirs:
        sentence = f"kubelet reserves CPUs {format_cpus(theirs)} and we {ours}"
        yield note("reserved", sentence, "policy.ReservedResources and reservedSystemCPUs, alike")
