"""What the doctor finds: one table per topic, on named machines and on nodes with one thing wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.cli.doctor import CHECKS, diagnose
from cri_proxy.config.options.table import BY_KEY, SECTIONS
from cri_proxy.doctor.checks.node import INTELS, UNITS
from cri_proxy.doctor.facts import (
    CgroupFacts,
    ClaimFacts,
    ConfigFacts,
    DaemonFacts,
    DiskFacts,
    Facts,
    FileFacts,
    IsolationFacts,
    KernelFacts,
    KubeletFacts,
    MachineFacts,
    RuntimeFacts,
    StateFacts,
    SystemFacts,
    UnitFacts,
)
from cri_proxy.doctor.findings import (
    NOTE,
    OK,
    PROBLEM,
    VERDICTS,
    WARNING,
    Finding,
    findings_document,
    findings_text,
    summary,
    worst,
)
from cri_proxy.kubelet.status import KubeletStatus
from cri_proxy.version import DOCUMENTS
from policies.machine.cpus import parse_cpus
from policies.machine.topology import Cpu, TopologyData
from tests import machines
from tests.config.configs import RESERVED, read

REPOSITORY = Path(__file__).resolve().parents[2]
SOCKET = FileFacts("/run/cri-resmgr.sock", "socket", 0o660, 0, 0)
CONTROL = FileFacts("/run/cri-resmgr/control.sock", "socket", 0o600, 0, 0)
FOLDER = FileFacts("/var/lib/cri-resmgr", "directory", 0o700, 0, 0)
STATE_FILE = FileFacts("/var/lib/cri-resmgr/state.db", "file", 0o600, 0, 0)
RUNTIME_SOCKET = FileFacts("/run/containerd/containerd.sock", "socket", 0o660, 0, 0)
STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "mode": "enforce",
    "mode_wanted": "enforce",
    "degraded": {},
    "warnings": [],
    "uptime_s": 600.0,
    "last_call_age_s": 3.0,
    "sockets": [SOCKET.path],
    "runtime": {"socket": RUNTIME_SOCKET.path, "connected": True},
    "updates_waiting": 0,
    "affinity": {
        "enabled": True,
        "observer": {"problem": "", "provider": "ebpf", "detail": "", "refused": []},
    },
    "counters": {},
    "policy": "hygon",
    "reserved": "",
    "containers": {"placed": 3},
    "in_doubt": 0,
    "foreign": [],
    "unusable_fences": [],
    "distrusted": [],
    "invariants": [],
}
KUBELET = KubeletStatus(
    endpoint=f"unix://{SOCKET.path}", written=f"unix://{SOCKET.path}", place="/var/lib/kubelet/config.yaml:3",
    points_at_us=True, written_by_us=True, dropped=False, restart_pending=False, pid=77, image_endpoint="",
    manager="", warnings=(), hint="",
)  # fmt: skip
HEALTHY_UNITS = (
    *(UnitFacts(name, "loaded", "active", "running", "enabled") for name in UNITS[:3]),
    UnitFacts(UNITS[3], "loaded", "inactive", "dead", "disabled"),
)
HEALTHY = Facts(
    config=ConfigFacts(files=("/etc/cri-resmgr/config.yaml",)),
    daemon=DaemonFacts(CONTROL, STATUS, sockets=((SOCKET, True),)),
    runtime=RuntimeFacts(
        RUNTIME_SOCKET.path, RUNTIME_SOCKET, "", "containerd", "1.7.1", "runtime.v1", "systemd"
    ),
    kubelet=KubeletFacts(KUBELET, {"cgroupDriver": "systemd"}, connected=True),
    machine=MachineFacts(machines.machine(machines.HYGON_7285_2S)),
    kernel=KernelFacts("6.1.0", (), "0", "none", "", "boot"),
    cgroups=CgroupFacts("v2", True, "/kubepods.slice", parse_cpus("0-127"), parse_cpus("0-7")),
    state=StateFacts(FOLDER, 1 << 32, 40960, True, "ok", 0.0, STATE_FILE),
    system=SystemFacts(True, HEALTHY_UNITS, ("kubelet", "bash"), (), True, 0),
    isolation=IsolationFacts(),
    claims=ClaimFacts(),
)


#: Topics that say nothing of a healthy bare machine.
SILENT = {"virtual machine", "claims"}


def findings_of(facts: Facts, verdicts: Iterable[str] = (WARNING, PROBLEM)) -> dict[str, str]:
    """Verdict by check, of the verdicts that are looked for."""
    return {f.check: f.verdict for f in diagnose(facts) if f.verdict in set(verdicts)}


def with_status(**changed: Any) -> Facts:
    assert HEALTHY.daemon is not None
    return replace(HEALTHY, daemon=replace(HEALTHY.daemon, status={**STATUS, **changed}))


def with_part(name: str, **changed: Any) -> Facts:
    return replace(HEALTHY, **{name: replace(getattr(HEALTHY, name), **changed)})


def with_kubelet(settings: Optional[dict[str, str]] = None, **changed: Any) -> Facts:
    return replace(HEALTHY, kubelet=KubeletFacts(replace(KUBELET, **changed), settings or {}, connected=True))


def with_claims(**changed: Any) -> Facts:
    """Claims of CPUs are on. ``changed``: of the runtime."""
    claims = ClaimFacts(True, "cpu.cri-resmgr.io")
    return replace(HEALTHY, runtime=replace(HEALTHY.runtime, **changed), claims=claims)


def with_unit(name: str, **changed: Any) -> Facts:
    units = tuple(replace(unit, **changed) if unit.name == name else unit for unit in HEALTHY_UNITS)
    return with_part("system", units=units)


# ---------------------------------------------------------------------- the whole


def test_a_healthy_node_has_nothing_but_ok() -> None:
    found = diagnose(HEALTHY)
    assert {f.verdict for f in found} == {OK}
    assert summary(found) == "all is well"


def test_every_topic_says_something_of_a_healthy_bare_machine() -> None:
    assert {f.topic for f in diagnose(HEALTHY)} == {topic for topic, _ in CHECKS} - SILENT


def test_of_nothing_there_is_nothing_to_say() -> None:
    assert [f for f in diagnose(Facts()) if f.verdict != NOTE] == []


def test_a_check_that_fails_by_itself_is_a_finding_and_the_others_go_on() -> None:
    def broken(facts: Facts) -> Iterable[Finding]:
        raise KeyError("gone")

    found = diagnose(HEALTHY, [("daemon", broken), *CHECKS])
    [own] = [f for f in found if f.check == "doctor"]
    assert (own.topic, own.verdict, own.sentence) == (
        "daemon",
        WARNING,
        "this could not be judged: KeyError: 'gone'",
    )
    assert len(found) == len(diagnose(HEALTHY)) + 1


def test_a_part_that_could_not_be_read_is_a_finding_of_its_topic() -> None:
    facts = replace(HEALTHY, kubelet=None, failures={"kubelet": "this could not be found out: line 3"})
    assert [(f.check, f.verdict) for f in diagnose(facts) if f.topic == "kubelet"] == [("doctor", WARNING)]


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
@pytest.mark.parametrize("virtual", [False, True])
def test_no_machine_is_a_problem_by_itself_and_none_breaks_a_check(name: str, virtual: bool) -> None:
    facts = with_part("machine", data=machines.machine(name), virtual=virtual)
    found = diagnose(facts)
    assert PROBLEM not in {f.verdict for f in found}
    assert "doctor" not in {f.check for f in found}


# ---------------------------------------------------------------------- one thing wrong

RESCTRL = "/sys/fs/resctrl"


def with_disks(**changed: Any) -> Facts:
    disks = DiskFacts(**{"root": "/sys/fs/cgroup", **changed})
    return with_part("isolation", modes={"isolation.disks": "enforce"}, disks=disks)


ENFORCED = {"isolation.caches": "enforce"}
WRONG: dict[str, tuple[Facts, dict[str, str]]] = {
    "config invalid": (with_part("config", errors=("f:3: what",)), {"config": PROBLEM}),
    "config warns": (with_part("config", warnings=("unknown key",)), {"config-warning": WARNING}),
    "config changed": (with_part("config", changed=("nri.request_timeout",)), {"config-changed": WARNING}),
    "daemon down": (
        with_part("daemon", status=None, problem="the daemon is not running", hint="start it"),
        {"daemon": PROBLEM},
    ),
    "the daemon that the runtime launches is down": (
        replace(
            with_part("daemon", status=None, problem="the daemon is not running", hint="start it"),
            system=replace(HEALTHY.system, nri_plugins=("10-cri-resmgr",)),
        ),
        {"daemon": PROBLEM, "launch": PROBLEM},
    ),
    "nobody listens": (with_part("daemon", sockets=((SOCKET, False),)), {"socket": PROBLEM}),
    "socket gone": (with_part("daemon", sockets=((FileFacts("/run/x"), False),)), {"socket": PROBLEM}),
    "socket open to all": (
        with_part("daemon", sockets=((replace(SOCKET, mode=0o666), True),)), {"socket": PROBLEM},
    ),
    "socket is a file": (
        with_part("daemon", sockets=((replace(SOCKET, kind="file"), False),)), {"socket": PROBLEM},
    ),
    "control socket open": (with_part("daemon", control=replace(CONTROL, mode=0o660)), {"control-socket": PROBLEM}),
    "observing": (with_status(mode="observe", mode_wanted="observe"), {"daemon": WARNING}),
    "off": (with_status(mode="off", mode_wanted="off"), {"daemon": WARNING}),
    "off against its will": (
        with_status(mode="off", degraded={"topology": "no CPU"}),
        {"daemon": WARNING, "degraded-topology": PROBLEM},
    ),
    "runtime lost": (with_status(runtime={"socket": "/r", "connected": False}), {"connection": PROBLEM}),
    "failed open": (
        with_status(counters={"cri_resmgr_failed_open_total{reason=bug}": 2.0}), {"failed-open": WARNING},
    ),
    "foreign": (with_status(foreign=["a/b/c"]), {"foreign": WARNING}),
    "not bound": (with_status(not_bound={"a/b/c": "/kubepods/podx"}), {"not-bound": WARNING}),
    "fence": (with_status(unusable_fences=["a/b/c"]), {"fence": WARNING}),
    "distrusted": (with_status(distrusted=["uid/c"]), {"distrusted": WARNING}),
    "updates wait": (with_status(updates_waiting=3), {"updates": WARNING}),
    "invariant": (with_status(invariants=["CPU 3 is owned twice"]), {"invariant": PROBLEM}),
    "runtime absent": (with_part("runtime", problem="not there"), {"runtime": PROBLEM}),
    "runtime open to all": (
        with_part("runtime", socket=replace(RUNTIME_SOCKET, mode=0o666)), {"runtime-mode": WARNING},
    ),
    "kubelet elsewhere": (with_kubelet(points_at_us=False, hint="enable"), {"kubelet": PROBLEM}),
    "kubeadm dropped it": (with_kubelet(points_at_us=False, dropped=True), {"kubelet": PROBLEM}),
    "kubelet not restarted": (with_kubelet(points_at_us=False, restart_pending=True), {"kubelet": PROBLEM}),
    "kubelet will leave": (with_kubelet(restart_pending=True), {"kubelet": WARNING}),
    "no kubelet": (with_kubelet(points_at_us=False, pid=None, place="default"), {"kubelet": WARNING}),
    "kubelet is down": (with_kubelet(pid=None), {"kubelet": WARNING}),
    "kubelet not connected": (with_part("kubelet", connected=False), {"kubelet": WARNING}),
    "kubelet has not called yet": (with_status(last_call_age_s=None), {"kubelet": WARNING}),
    "kubelet has gone silent": (with_status(last_call_age_s=300.0), {"kubelet": WARNING}),
    "static CPU manager": (with_kubelet({"cpuManagerPolicy": "static"}), {"cpu-manager": WARNING}),
    "strict topology manager": (
        with_kubelet({"topologyManagerPolicy": "single-numa-node"}), {"topology-manager": WARNING},
    ),
    "drivers differ": (with_kubelet({"cgroupDriver": "cgroupfs"}), {"cgroup-driver": PROBLEM}),
    "reserved is no list": (with_kubelet({"reservedSystemCPUs": "a-b"}), {"reserved": WARNING}),
    "no cgroups": (with_part("cgroups", version=""), {"cgroups": PROBLEM}),
    "no cpusets": (with_part("cgroups", has_cpuset=False), {"cpuset": PROBLEM}),
    "booted without cpusets": (
        with_part("kernel", command_line=("cgroup_disable=memory,cpuset",)), {"cpuset-off": PROBLEM},
    ),
    "booted without NUMA": (with_part("kernel", command_line=("numa=off",)), {"numa-off": WARNING}),
    "state folder is a file": (
        with_part("state", directory=replace(FOLDER, kind="file")), {"state": PROBLEM},
    ),
    "state folder open": (with_part("state", directory=replace(FOLDER, mode=0o755)), {"state-mode": WARNING}),
    "state folder another's": (with_part("state", directory=replace(FOLDER, uid=5)), {"state-mode": WARNING}),
    "state read-only": (with_part("state", writable=False), {"state-writable": PROBLEM}),
    "disk nearly full": (with_part("state", free_bytes=20 << 20), {"state-space": WARNING}),
    "disk full": (with_part("state", free_bytes=4096), {"state-space": PROBLEM}),
    "state corrupt": (with_part("state", check="database disk image is malformed"), {"state-file": PROBLEM}),
    "state file another's": (with_part("state", file=replace(STATE_FILE, uid=5)), {"state-owner": PROBLEM}),
    "state cannot be checked": (
        with_part("state", check="", unchecked="No space left on device"), {"state-file": WARNING},
    ),
    "state huge": (with_part("state", size_bytes=1 << 30), {"state-size": WARNING}),
    "clock set back": (with_part("state", ahead_s=7200.0), {"clock": WARNING}),
    "no boot id": (with_part("kernel", boot_id=""), {"boot-id": WARNING}),
    "Intel's runs": (with_part("system", programs=(INTELS,)), {"intel": PROBLEM}),
    "koordlet runs": (with_part("system", programs=("koordlet",)), {"writer": WARNING}),
    "another driver of CPUs, of another name": (with_part("system", programs=("dracpu",)), {"writer": WARNING}),
    "NRI plugin": (with_part("system", nri_plugins=("90-topology-aware",)), {"nri-plugin": WARNING}),
    "not root": (with_part("system", uid=1000), {"root": WARNING}),
    "resctrl is not mounted": (
        with_part("isolation", modes={"isolation.caches": "enforce"}, is_offered=True), {"resctrl": WARNING},
    ),
    "the kernel has no resctrl": (with_part("isolation", modes=ENFORCED), {"resctrl": WARNING}),
    "a subject without resctrl": (with_part("isolation", modes={"isolation.disks": "enforce"}), {}),
    "block I/O is in no cgroup": (with_disks(root=""), {"disks": WARNING}),
    "block I/O is off for containers": (with_disks(off_below="/kubepods.slice"), {"disks": WARNING}),
    "weights that no disk knows": (
        with_disks(weighs=True, schedulers={"sda": "mq-deadline"}), {"disk-weights": WARNING},
    ),
    "a disk knows weights": (with_disks(weighs=True, weighing=frozenset(["sda"])), {}),
    "resctrl cannot be looked at": (
        with_part("isolation", modes=ENFORCED, mount=RESCTRL, problem="/sys/fs/resctrl: Permission denied"),
        {"resctrl-folder": WARNING},
    ),
    "another writes to resctrl": (
        replace(
            with_part("isolation", modes=ENFORCED, mount=RESCTRL),
            system=replace(HEALTHY.system, programs=("pqos",)),
        ),
        {"resctrl-writer": WARNING},
    ),
    "pods have no weights of CPU time": (
        with_part("isolation", modes={"isolation.cpu": "enforce"}, files=frozenset({"memory.high"})),
        {"isolation-cpu": WARNING},
    ),
    "memory is cgroup v1's": (
        with_part(
            "isolation", modes={"isolation.memory": "observe"}, files=frozenset({"cpu.shares", "memory.limit_in_bytes"})
        ),
        {"isolation-memory": WARNING},
    ),
    "the kernel has no clocks": (
        with_part("isolation", modes={"isolation.clocks": "enforce"}), {"clocks": WARNING},
    ),
    "claims beside the static CPU manager": (
        replace(with_kubelet({"cpuManagerPolicy": "static"}), claims=with_claims().claims),
        {"cpu-manager": WARNING, "claims-cpu-manager": PROBLEM},
    ),
    "claims on a containerd without CDI": (with_claims(version="1.6.20~ds1"), {"claims-cdi": PROBLEM}),
    "claims with CDI switched off": (with_claims(version="2.1.0", gives_cdi=False), {"claims-cdi": PROBLEM}),
    "claims with CDI switched off in a containerd that leaves devices out": (
        with_claims(version="1.7.24", gives_cdi=False), {"claims-cdi": WARNING},
    ),
    "claims, and it is not known whether there is CDI": (with_claims(gives_cdi=None), {}),
    "claims on a runtime of another name": (with_claims(name="cri-o", version="1.28.0"), {}),
    "another driver of the claims' name": (
        with_part("claims", is_enabled=True, driver="dra.cpu", others=("dracpu (process 7)",)), {"claims-driver": PROBLEM},
    ),
    "claims are not prepared": (
        replace(with_status(claims={"reason": "dra.enabled is false", "count": 0}), claims=with_claims().claims),
        {"claims": WARNING},
    ),
    "start limit": (with_unit(UNITS[1], active="failed", result="start-limit-hit"), {UNITS[1]: PROBLEM}),
    "service failed": (with_unit(UNITS[0], active="failed", result="exit-code"), {UNITS[0]: PROBLEM}),
    "observer failed": (with_unit(UNITS[2], active="failed", result="exit-code"), {UNITS[2]: WARNING}),
    "masked": (with_unit(UNITS[0], load="masked"), {UNITS[0]: PROBLEM}),
    "not enabled": (with_unit(UNITS[0], enabled="disabled"), {UNITS[0]: WARNING}),
    "restarted": (with_unit(UNITS[0], restarts=4), {UNITS[0]: WARNING}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_thing_wrong_is_found_and_nothing_else(name: str) -> None:
    facts, expected = WRONG[name]
    assert findings_of(facts) == expected


@pytest.mark.parametrize("name", WRONG)
def test_what_is_a_problem_comes_with_what_to_do(name: str) -> None:
    facts, _ = WRONG[name]
    exceptions = {"runtime", "warning", "config-warning"}
    bare = [f for f in diagnose(facts) if f.verdict == PROBLEM and not f.hint and f.check not in exceptions]
    # What kubelet needs is known by who knows its files; here they are made up.
    assert [f for f in bare if f.check != "kubelet"] == []


#: Nobody looks at traffic.
UNSEEN = with_status(affinity={"enabled": True, "observer": {"problem": "nobody serves it"}})

#: What is right where the daemon serves no socket.
STANDALONE = replace(
    with_status(front_end="standalone", sockets=[]),
    kubelet=replace(HEALTHY.kubelet, status=replace(KUBELET, points_at_us=False, hint="enable")),
    system=with_unit(UNITS[1], load="masked", active="inactive").system,
)
PLUGIN = replace(
    with_status(front_end="nri-plugin", sockets=[]),
    kubelet=STANDALONE.kubelet,
    runtime=with_part("runtime", nri_socket="/run/nri/nri.sock").runtime,
    system=SystemFacts(
        True,
        (
            *(replace(unit, active="inactive") for unit in HEALTHY_UNITS[:2]),
            HEALTHY_UNITS[2],
            replace(HEALTHY_UNITS[0], name=UNITS[3]),
        ),
        nri_plugins=("10-cri-resmgr",),
        has_bcc=True,
    ),
)
OTHERWISE: dict[str, tuple[Facts, dict[str, str]]] = {
    "standalone": (STANDALONE, {}),
    "plugin": (PLUGIN, {}),
    "kubelet points at a standalone daemon": (replace(STANDALONE, kubelet=HEALTHY.kubelet), {"kubelet": PROBLEM}),
    "systemd listens for a standalone daemon": (
        replace(STANDALONE, system=HEALTHY.system), {UNITS[1]: WARNING},
    ),
    "claims with CDI switched off, of which the plugin hears by nothing else": (
        replace(
            PLUGIN,
            runtime=replace(PLUGIN.runtime, version="1.7.24", gives_cdi=False),
            claims=ClaimFacts(True, "cpu.cri-resmgr.io"),
        ),
        {"claims-cdi": PROBLEM},
    ),
    "a second plugin": (
        replace(PLUGIN, system=replace(PLUGIN.system, nri_plugins=("10-cri-resmgr", "90-balloons"))),
        {"nri-plugin": WARNING},
    ),
    "the plugin's proxy runs, too": (
        replace(PLUGIN, system=replace(PLUGIN.system, units=(*HEALTHY_UNITS[:3], PLUGIN.system.units[3]))),
        {UNITS[0]: WARNING, UNITS[1]: WARNING},
    ),
    "the plugin's unit has failed": (
        replace(PLUGIN, system=replace(PLUGIN.system, units=(replace(HEALTHY_UNITS[3], active="failed"),))),
        {UNITS[3]: PROBLEM},
    ),
    "the runtime launches the plugin": (
        replace(
            PLUGIN,
            daemon=with_status(front_end="nri-plugin", sockets=[], nri={"launched_by_runtime": True}).daemon,
            system=replace(PLUGIN.system, units=HEALTHY_UNITS[2:]),
        ),
        {"launch": NOTE},
    ),
    "a plugin runs beside the proxy": (with_unit(UNITS[3], active="active"), {UNITS[3]: WARNING}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_daemon_that_is_no_proxy_needs_neither_kubelet_nor_a_socket(name: str) -> None:
    facts, expected = OTHERWISE[name]
    assert findings_of(facts, [NOTE, WARNING, PROBLEM]) == expected


NOTED: dict[str, tuple[Facts, str]] = {
    "NUMA balancing": (with_part("kernel", numa_balancing="1"), "numa-balancing"),
    "isolcpus": (with_part("kernel", command_line=("isolcpus=8-15",)), "isolcpus"),
    "irqbalance": (with_part("system", programs=("irqbalance",)), "irqbalance"),
    "memory-less node": (with_part("machine", data=machines.machine(machines.MEMORYLESS_NODE)), "memory"),
    "CPU-less node": (with_part("machine", data=machines.machine(machines.CPULESS_MEMORY_NODE)), "memory"),
    "offline CPUs": (with_part("machine", data=machines.machine(machines.OFFLINE_CPUS)), "offline"),
    "uneven CCXs": (with_part("machine", data=machines.machine(machines.UNEVEN_CCX)), "l3"),
    "kubepods without some CPUs": (with_part("cgroups", cpus=parse_cpus("2-127")), "kubepods-cpus"),
    "kubepods without some memory": (with_part("cgroups", mems=parse_cpus("0-6")), "kubepods-mems"),
    "no pods yet": (with_part("cgroups", kubepods="", cpus=None, mems=None), "cgroups"),
    "kubelet reserves": (with_kubelet({"reservedSystemCPUs": "0-1"}), "reserved"),
    "no CFS quota": (with_kubelet({"cpuCFSQuota": "false"}), "cfs-quota"),
    "in doubt": (with_status(in_doubt=1), "in-doubt"),
    "runtime serves NRI": (with_part("runtime", nri_socket="/run/nri/nri.sock"), "nri"),
    "no bcc": (replace(UNSEEN, system=with_part("system", has_bcc=False).system), "ebpf"),
    "old kernel": (replace(UNSEEN, kernel=with_part("kernel", release="4.19.90-2003").kernel), "ebpf"),
    "kernel without BPF": (replace(UNSEEN, kernel=with_part("kernel", bpf_config="CONFIG_CGROUP_BPF").kernel), "ebpf"),
    "lockdown": (replace(UNSEEN, kernel=with_part("kernel", lockdown="confidentiality").kernel), "ebpf"),
    "observer absent": (UNSEEN, "observer"),
    "affinity off": (with_status(affinity={"enabled": False, "observer": {}}), "observer"),
    "no systemd": (with_part("system", has_systemd=False), "systemd"),
    "no observer unit": (with_unit(UNITS[2], load="not-found", active="inactive"), UNITS[2]),
    "runtime's socket is another group's": (
        with_part("daemon", sockets=((replace(SOCKET, gid=7), True),)), "socket",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_what_need_not_be_mended_is_a_note(name: str) -> None:
    facts, check = NOTED[name]
    assert findings_of(facts) == {}
    assert check in findings_of(facts, [NOTE])


def test_the_observers_own_word_counts_more_than_what_stands_against_ebpf() -> None:
    cgroups = with_part("cgroups", version="v1").cgroups
    assert findings_of(replace(UNSEEN, cgroups=cgroups), [NOTE]) == {"observer": NOTE, "ebpf": NOTE}
    assert findings_of(replace(HEALTHY, cgroups=cgroups), [NOTE]) == {}


NOT_RUNNING = with_kubelet(pid=None).kubelet
#: What follows "kubelet points at us", by what the daemon says of its calls.
CALLS: dict[str, tuple[Facts, str]] = {
    "a moment ago": (HEALTHY, ": unix:///run/cri-resmgr.sock (process 77), last call 3 s ago"),
    "not yet, after a start": (
        with_status(last_call_age_s=None, uptime_s=4.0),
        ": unix:///run/cri-resmgr.sock (process 77), no call since the start 4 s ago",
    ),
    "never": (
        with_status(last_call_age_s=None),
        ", no call since the start 10 min ago: a kubelet that is well calls every few seconds",
    ),
    "no more": (
        with_status(last_call_age_s=240.0),
        ", last call 4 min ago: a kubelet that is well calls every few seconds",
    ),
    "a stopped kubelet's": (
        replace(with_status(last_call_age_s=240.0), kubelet=NOT_RUNNING),
        ": unix:///run/cri-resmgr.sock (it does not run), last call 4 min ago",
    ),
    "of a daemon that is not there": (
        with_part("daemon", status=None), ": unix:///run/cri-resmgr.sock (process 77)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_time_since_kubelets_last_call_is_told(name: str) -> None:
    facts, expected = CALLS[name]
    [found] = [f.sentence for f in diagnose(facts) if f.check == "kubelet"]
    assert found.partition("points at us")[2] == expected


def test_kubelet_and_we_reserve_the_same_cpus() -> None:
    facts = replace(with_kubelet({"reservedSystemCPUs": "0,64"}), daemon=with_status(reserved="0,64").daemon)
    assert findings_of(facts, [NOTE, WARNING]) == {}


def test_cpus_owned_by_one_and_used_by_another_are_found() -> None:
    row = {"namespace": "n", "pod": "p", "state": "running", "cpus": "0-3", "exclusive": ""}
    owner = {**row, "container": "owner", "exclusive": "0-3"}
    other = {**row, "container": "other", "cpus": "3-7"}
    facts = replace(HEALTHY, rows=(owner, other))
    assert findings_of(facts) == {"exclusive": WARNING}
    assert "n/p/owner (0-3)" in summary_of(facts, "exclusive")
    assert findings_of(replace(HEALTHY, rows=(owner, {**other, "state": "exited"}))) == {}


def summary_of(facts: Facts, check: str) -> str:
    return next(f.sentence for f in diagnose(facts) if f.check == check and f.verdict != OK)


# ---------------------------------------------------------------------- virtual machines


def guest(
    sockets: int, nodes: int, slices: int, cores: int, threads: int = 1, vendor: str = "HygonGenuine"
) -> TopologyData:
    """A guest of ``cores`` per L3 slice, ``slices`` per node and ``nodes`` per socket; no slices: no caches."""
    cpus = []
    for index in range(sockets * nodes * max(slices, 1) * cores * threads):
        core = index // threads
        l3 = core // cores
        node = l3 // max(slices, 1)
        cpus.append(Cpu(index, core, l3 if slices else None, 0, node, node // nodes))
    count = sockets * nodes
    distance = tuple(
        tuple(10 if a == b else 16 if a // nodes == b // nodes else 28 for b in range(count))
        for a in range(count)
    )
    return TopologyData(tuple(cpus), distance, dict.fromkeys(range(count), 1 << 33), vendor=vendor)


GOOD_GUEST = guest(2, 2, 2, 4, 2)
FLAT = ((10, 20, 20, 20), (20, 10, 20, 20), (20, 20, 10, 20), (20, 20, 20, 10))

#: The guest, and the checks of its topic that are warnings, with words of their hints.
GUESTS: dict[str, tuple[TopologyData, dict[str, str]]] = {
    "two sockets, two nodes each, two CCX each, SMT": (GOOD_GUEST, {}),
    "one CCX": (guest(1, 1, 1, 4, 2), {}),
    "the host's own": (machines.machine(machines.HYGON_7285_2S), {}),
    "EPYC with CCXs of eight": (machines.machine(machines.EPYC_NPS4_1S), {}),
    "no caches": (
        machines.machine(machines.VM_NO_CACHE_INFO), {"cache": "<cache mode='passthrough'/>", "smt": "threads='2'"},
    ),
    "SMT hidden": (guest(1, 2, 2, 4, 1), {"smt": "dies='2' cores='4' threads='2'"}),
    "one L3 a NUMA node": (guest(1, 2, 1, 8, 2), {"cache": "dies='4' cores='4' threads='2'"}),
    "one L3 for the machine": (guest(1, 1, 1, 16, 2), {"cache": "<cache mode='passthrough'/>"}),
    "an L3 across sockets": (
        replace(guest(2, 1, 1, 2, 2), cpus=tuple(replace(c, l3=0) for c in guest(2, 1, 1, 2, 2).cpus)),
        {"cache": "sockets='1' dies='1' cores='4' threads='2'"},
    ),
    "an L3 for each core": (guest(1, 1, 8, 1, 2), {}),
    "an L3 for each vCPU": (guest(1, 1, 8, 1, 1), {"cache": "dies='1'", "smt": "threads='2'"}),
    "NUMA flat": (replace(guest(2, 1, 2, 4, 2), cpus=tuple(
        replace(c, numa=0) for c in guest(2, 1, 2, 4, 2).cpus), distance=((10,),), memory={0: 1 << 33}),
        {"numa": "<numa>"}),
    "distances flat": (replace(guest(2, 2, 2, 4, 2), distance=FLAT), {"distances": "<sibling id='1'"}),
    "not a multiple of a CCX": (replace(guest(1, 1, 4, 4, 2), cpus=guest(1, 1, 4, 4, 2).cpus[:-4]),
                                {"count": "<vcpu>"}),
    "a socket for each vCPU": (guest(8, 1, 1, 1, 1), {"sockets": "sockets='1'", "smt": "threads='2'", "cache": "dies="}),
    "Intel's with one thread": (guest(1, 1, 1, 8, 1, "GenuineIntel"), {}),
    "one vCPU": (machines.machine(machines.ONE_CPU), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", GUESTS)
def test_what_a_hypervisor_hides_is_found_with_the_line_that_shows_it(name: str) -> None:
    data, expected = GUESTS[name]
    facts = with_part(
        "machine", data=data, virtual=True, product="QEMU Standard PC", cpu_flags=frozenset(["topoext"])
    )
    found = [f for f in diagnose(facts) if f.topic == "virtual machine" and f.verdict in (WARNING, PROBLEM)]
    assert {f.check for f in found} == set(expected)
    for finding in found:
        assert expected[finding.check] in finding.hint


def test_of_a_guest_what_is_shown_counts_and_not_what_is_made_of_it() -> None:
    shown, made = tuple(replace(c, numa=0) for c in guest(8, 1, 1, 1, 1).cpus), guest(1, 1, 0, 8, 1)
    facts = with_part("machine", data=made, shown=shown, virtual=True)
    assert "each of the 8 vCPUs is a socket" in summary_of(facts, "sockets")
    assert "each vCPU has an L3 to itself" in summary_of(facts, "cache")


@pytest.mark.parametrize("name", GUESTS)
def test_on_bare_metal_nothing_is_said_of_hypervisors(name: str) -> None:
    facts = with_part("machine", data=GUESTS[name][0])
    assert [f for f in diagnose(facts) if f.topic == "virtual machine"] == []


@pytest.mark.parametrize(
    ("steal", "verdict"), [(0.0, OK), (0.004, OK), (0.01, NOTE), (0.2, WARNING)]
)  # fmt: skip
def test_time_that_the_hypervisor_keeps_tells_of_vcpus_that_share(steal: float, verdict: str) -> None:
    facts = with_part("machine", data=GOOD_GUEST, virtual=True, steal=steal)
    assert {f.verdict for f in diagnose(facts) if f.check == "pinning"} == {verdict}


def test_a_missing_topoext_is_named() -> None:
    facts = with_part("machine", data=guest(1, 2, 2, 4, 1), virtual=True, cpu_flags=frozenset(["fpu"]))
    assert "topoext is missing" in summary_of(facts, "smt")


@pytest.mark.parametrize(
    "name", [machines.HYGON_7285_2S, machines.EPYC_NPS1_1S, machines.MONOLITHIC_2S, machines.NODE_INTERLEAVED]
)
def test_a_real_machine_passed_through_whole_has_nothing_wrong(name: str) -> None:
    facts = with_part("machine", data=machines.machine(name), virtual=True)
    caches = [f for f in diagnose(facts) if f.check in ("cache", "smt", "count") and f.verdict == WARNING]
    assert caches == []


def test_the_shape_that_is_proposed_has_as_many_cpus_as_there_are() -> None:
    facts = with_part("machine", data=machines.machine(machines.VM_NO_CACHE_INFO), virtual=True)
    [finding] = [f for f in diagnose(facts) if f.check == "cache"]
    assert "<vcpu>8</vcpu>" in finding.hint and "-smp 8,sockets=1,dies=1,cores=4,threads=2" in finding.hint


def test_the_lines_that_are_proposed_are_those_of_the_documentation() -> None:
    text = (REPOSITORY / "docs/vm.md").read_text()
    facts = with_part("machine", data=guest(1, 2, 1, 8, 2), virtual=True)
    [finding] = [f for f in diagnose(facts) if f.check == "cache"]
    topology = next(line.strip() for line in finding.hint.splitlines() if "<topology" in line)
    assert topology in text
    qemu = finding.hint.splitlines()[-1].removeprefix("QEMU: ").split(" -smp ")
    assert qemu[0] in text and f"-smp {qemu[1]}" in text


# ---------------------------------------------------------------------- what the hints name

VIRTUAL = with_part("machine", data=guest(1, 1, 1, 16, 2), virtual=True)
TOLD = {
    finding.hint
    for facts in (*(row[0] for table in (WRONG, OTHERWISE, NOTED, CALLS) for row in table.values()), VIRTUAL)
    for finding in diagnose(facts)
}


def test_each_setting_that_a_hint_names_is_one_of_ours() -> None:
    sections = "|".join(key for key in SECTIONS if "." not in key)
    # Not control.sock in the name of a file, nor nri.service in that of a unit.
    setting = re.compile(rf"(?<![\w./-])(?:{sections})\.\w[\w.]*\w")
    named = {word for hint in TOLD for word in setting.findall(hint)}
    assert {"topology.cgroup_root", "relay.runtime_endpoint"} <= named
    assert {word for word in named if word not in BY_KEY and word not in SECTIONS} == set()


def test_each_configuration_that_a_hint_shows_is_valid() -> None:
    shown = [hint for hint in TOLD if hint.partition(":")[0] in SECTIONS]
    assert [read(hint, strict=True).config[RESERVED].cpus for hint in shown] == [frozenset((0, 1))]


def test_each_page_that_a_hint_names_is_where_packages_put_it() -> None:
    named = {word for hint in TOLD for word in hint.split() if word.endswith(".md")}
    assert {Path(word).name for word in named} == {"isolation.md", "vm.md", "policies.md"}
    assert {Path(word).parent for word in named} == {Path(DOCUMENTS)}
    assert {word for word in named if not (REPOSITORY / "docs" / Path(word).name).exists()} == set()


# ---------------------------------------------------------------------- how it is told


def test_the_first_line_is_the_first_problem_and_the_counts() -> None:
    found = diagnose(replace(with_status(foreign=["a/b/c"]), state=replace(HEALTHY.state, free_bytes=0)))
    assert findings_text(found).splitlines()[0] == (
        "cri-resmgr doctor: 1 problem, 1 warning: /var/lib/cri-resmgr has 0.0 MiB free"
    )


def test_the_text_is_grouped_by_topic_and_shows_what_to_do() -> None:
    lines = findings_text(diagnose(with_status(mode="off", mode_wanted="off"))).splitlines()
    topics = [line for line in lines[1:] if line and not line.startswith(" ")]
    assert topics == list(dict.fromkeys(topic for topic, _ in CHECKS if topic not in SILENT))
    assert "           -> cri-resmgr mode enforce" in lines


def test_the_document_is_json_and_counts_by_verdict() -> None:
    document = findings_document(diagnose(HEALTHY))
    assert json.loads(json.dumps(document)) == document
    assert document["verdict"] == OK
    assert sum(document["counts"].values()) == len(document["findings"])


def test_the_worst_verdict_counts() -> None:
    found = [Finding("t", v, v, "s") for v in VERDICTS]
    assert [worst(found[:n]) for n in range(5)] == [OK, *VERDICTS]


# ---------------------------------------------------------------------- isolation

HAS_IT = frozenset(("cat_l3", "mba", "cqm_llc"))


def resctrl_sentence(facts: Facts) -> tuple[str, str]:
    [found] = [f for f in diagnose(facts) if f.check == "resctrl"]
    return found.sentence, found.hint


def without_resctrl(machine: str, flags: frozenset[str], **kernel: Any) -> Facts:
    return replace(
        with_part("isolation", modes=ENFORCED),
        machine=MachineFacts(machines.machine(machine), cpu_flags=flags),
        kernel=replace(HEALTHY.kernel, **kernel),
    )


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (
            without_resctrl(machines.HYGON_7285_2S, frozenset()),
            "no control of caches, or the hypervisor hides it",
        ),
        (without_resctrl(machines.HYGON_7285_2S, HAS_IT), "this kernel does not use it on Hygon's"),
        (without_resctrl(machines.EPYC_NPS1_1S, HAS_IT), "this kernel does not offer it"),
        (
            without_resctrl(machines.EPYC_NPS1_1S, HAS_IT, command_line=("rdt=!l3cat",)),
            "was booted with rdt=!l3cat",
        ),
        (
            without_resctrl(machines.EPYC_NPS1_1S, HAS_IT, resctrl_config="CONFIG_X86_CPU_RESCTRL"),
            "is built without CONFIG_X86_CPU_RESCTRL",
        ),
    ],
)
def test_why_there_is_no_resctrl_is_said(facts: Facts, why: str) -> None:
    assert why in resctrl_sentence(facts)[0]


def test_what_mounts_resctrl_is_said() -> None:
    sentence, hint = resctrl_sentence(with_part("isolation", modes=ENFORCED, is_offered=True))
    assert sentence == "isolation.caches = enforce, and resctrl is not mounted: nothing is divided"
    assert "mount -t resctrl resctrl /sys/fs/resctrl" in hint


def test_subjects_that_can_do_their_work_are_fine_and_resctrl_is_not_asked_for() -> None:
    modes = {f"isolation.{name}": "enforce" for name in ("cpu", "memory", "clocks", "scheduling")}
    files = frozenset({"cpu.weight", "memory.high"})
    facts = with_part("isolation", modes=modes, files=files, clocks=frozenset({"cpufreq", "cpuidle"}))
    assert {each.verdict for each in diagnose(facts)} == {OK}
    told = {each.check: each.sentence for each in diagnose(facts)}
    assert "resctrl" not in told
    assert told["clocks"] == "isolation.clocks = enforce, and the kernel has cpufreq and cpuidle"


def test_interrupts_that_cannot_be_moved_are_named_once_and_irqbalance_is_told_which_cpus() -> None:
    modes = {"isolation.interrupts": "enforce"}
    names = {1: "PCI 1-edge nvme0q1", 2: "PCI 2-edge nvme0q2", 3: "PCI 3-edge eth0"}
    facts = replace(
        with_part("isolation", modes=modes, mount=RESCTRL, interrupts=names, managed=frozenset({1})),
        system=replace(HEALTHY.system, programs=("irqbalance",)),
        rows=({"exclusive": "4-7", "isolation": "protected", "state": "exited"},),
    )
    refused = ["file:/proc/irq/2/smp_affinity_list", "file:/proc/irq/9/smp_affinity_list"]
    assert facts.daemon is not None
    status = {**(facts.status or {}), "isolation": {"refused_for_good": refused}}
    facts = replace(facts, daemon=replace(facts.daemon, status=status))
    found = {each.check: each for each in diagnose(facts) if each.verdict != OK}
    assert found["interrupts"].verdict == NOTE and found["irqbalance"].verdict == WARNING
    assert "1 (PCI 1-edge nvme0q1); 2 (PCI 2-edge nvme0q2)" in found["interrupts"].sentence
    assert "nvme0q1" in found["interrupts"].sentence and "eth0" not in found["interrupts"].sentence
    assert "IRQBALANCE_BANNED_CPULIST=4-7" in found["irqbalance"].hint


def test_groups_of_others_and_irqbalance_are_notes() -> None:
    facts = replace(
        with_part("isolation", modes=ENFORCED, mount=RESCTRL, others=("a", "b", "c", "d", "e")),
        system=replace(HEALTHY.system, programs=("irqbalance",)),
    )
    assert findings_of(facts, [NOTE]) == {"resctrl-others": NOTE, "irqbalance": NOTE}
    [others] = [f.sentence for f in diagnose(facts) if f.check == "resctrl-others"]
    assert "(a, b, c and 2 more)" in others


# ---------------------------------------------------------------------- claims of CPUs


def test_claims_that_are_prepared_are_counted() -> None:
    facts = replace(with_status(claims={"reason": "", "count": 3}), claims=with_claims().claims)
    [found] = [f for f in diagnose(facts) if f.topic == "claims"]
    assert (found.verdict, found.sentence) == (
        OK,
        "claims of CPUs are prepared for the driver cpu.cri-resmgr.io; there are 3",
    )


def test_another_driver_of_the_same_name_is_named_with_its_process() -> None:
    facts = with_part("claims", is_enabled=True, driver="dra.cpu", others=("dracpu (process 7)",))
    [found] = [f for f in diagnose(facts) if f.check == "claims-driver"]
    assert found.sentence == (
        "the driver dra.cpu of this node is dracpu (process 7), and dra.driver_name has the same name"
    )
    assert found.hint == "remove that driver, or set another dra.driver_name"
