"""What the doctor reads of a host, on trees that are one; and that it leaves them as they are."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from cri_proxy.config.config import read_config
from cri_proxy.doctor.checks.node import INTELS, UNITS
from cri_proxy.doctor.facts import Facts, IsolationFacts, MachineFacts
from cri_proxy.doctor.io import host, parts
from cri_proxy.doctor.io.collect import examine, read_state_facts
from cri_proxy.engine.snapshot import FORMAT
from cri_proxy.state.file import FILE
from cri_proxy.state.store import Store
from policies.machine.cpus import parse_cpus
from tests.agent import ROOT
from tests.fake_runtime import FakeRuntime
from tests.kubelet_trees import CONFIG, KUBEADM
from tests.machines import VM_NO_CACHE_INFO, machine, write_sysfs

SYSTEMCTL = """#!/bin/sh
echo "$*" >> {log}
cat <<END
Id=cri-resource-manager.service
NRestarts=3
Result=success
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled

Id=cri-resource-manager.socket
Result=start-limit-hit
LoadState=loaded
ActiveState=failed
SubState=failed
UnitFileState=enabled

Id=cri-resmgr-observer.service
LoadState=not-found
ActiveState=inactive
SubState=dead
END
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder whose name leaves room for the 108 bytes of a socket's path."""
    path = Path(tempfile.mkdtemp(prefix="cre-"))
    (path / "proc").mkdir()
    yield path
    shutil.rmtree(path)


def write(root: Path, path: str, text: str, mode: int = 0o644) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def machine_facts(root: Path, name: str, flags: str = "") -> MachineFacts:
    shutil.rmtree(root / "proc")
    write_sysfs(name, root)
    text = (root / "proc/cpuinfo").read_text()
    write(root, "proc/cpuinfo", f"flags\t\t: {flags}\ncpu family\t: 24\n{text}")
    return host.read_machine_facts(root, root / "sys", root / "kubelet")


def places_of(root: Path, text: str = "") -> parts.Places:
    config_file = write(root, "etc/cri-resmgr/config.yaml", text)
    _, config = parts.read_config_facts(parts.find_files(root, config_file))
    places = parts.Places(root, root / "proc", config, Path("."))
    return replace(places, control=places.at("control.socket"))


def listen(path: Path, backlog: Optional[int] = 1) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    if backlog is not None:
        bound.listen(backlog)
    return bound


# ---------------------------------------------------------------------- machine


def test_a_machine_is_read_as_the_daemon_reads_it(root: Path) -> None:
    facts = machine_facts(root, VM_NO_CACHE_INFO, "fpu topoext")
    assert facts.data.cpus == machine(VM_NO_CACHE_INFO).cpus
    assert (facts.virtual, facts.family) == (False, 24)
    assert facts.cpu_flags == {"fpu", "topoext"}
    assert facts.shown == facts.data.cpus


@pytest.mark.parametrize(
    ("flags", "path", "text", "virtual"),
    [
        ("fpu", "sys/class/dmi/id/product_name", "H620-G30", False),
        ("fpu hypervisor", "sys/class/dmi/id/product_name", "Standard PC", True),
        ("fpu", "sys/class/dmi/id/sys_vendor", "QEMU", True),
        ("fpu", "sys/class/dmi/id/product_name", "VMware7,1", True),
        ("fpu", "sys/hypervisor/type", "xen\n", True),
    ],
)
def test_a_virtual_machine_is_known_by_its_flag_or_its_name(
    root: Path, flags: str, path: str, text: str, virtual: bool
) -> None:
    write(root, path, text)
    assert machine_facts(root, VM_NO_CACHE_INFO, flags).virtual is virtual


@pytest.mark.parametrize(
    ("stat", "steal"),
    [
        ("cpu  700 0 100 100 0 0 0 100 50 0\ncpu0 1 2\n", 0.1),
        ("cpu  0 0 0 0 0 0 0 0 0 0\n", None),
        ("cpu  1 2 3\n", None),
        ("", None),
    ],
)
def test_stolen_time_is_a_share_of_all_time(root: Path, stat: str, steal: Optional[float]) -> None:
    write_sysfs(VM_NO_CACHE_INFO, root)
    write(root, "proc/stat", stat)
    assert host.read_machine_facts(root, root / "sys", root).steal == steal


# ---------------------------------------------------------------------- kernel


def test_the_kernel_tells_its_settings(root: Path) -> None:
    write(root, "proc/sys/kernel/osrelease", "5.10.0-1\n")
    write(root, "proc/sys/kernel/numa_balancing", "1\n")
    write(root, "proc/sys/kernel/random/boot_id", "abc\n")
    write(root, "proc/cmdline", "quiet isolcpus=2-3\n")
    write(root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    facts = host.read_kernel_facts(root)
    assert (facts.release, facts.numa_balancing, facts.boot_id) == ("5.10.0-1", "1", "abc")
    assert (facts.command_line, facts.lockdown) == (("quiet", "isolcpus=2-3"), "integrity")
    assert facts.bpf_config == ""


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("CONFIG_BPF_SYSCALL=y\nCONFIG_CGROUP_BPF=y\n", ""),
        ("CONFIG_BPF_SYSCALL=y\n# CONFIG_CGROUP_BPF is not set\n", "CONFIG_CGROUP_BPF"),
        ("# CONFIG_BPF_SYSCALL is not set\n", "CONFIG_BPF_SYSCALL"),
    ],
)
def test_what_the_kernel_is_built_without_is_read_in_both_places(root: Path, text: str, missing: str) -> None:
    (root / "proc/config.gz").write_bytes(gzip.compress(text.encode()))
    assert host.read_kernel_facts(root).bpf_config == missing
    (root / "proc/config.gz").unlink()
    write(root, "proc/sys/kernel/osrelease", "6.1.0")
    write(root, "boot/config-6.1.0", text)
    assert host.read_kernel_facts(root).bpf_config == missing


def test_a_kernel_that_tells_nothing_is_no_error(root: Path) -> None:
    (root / "proc/config.gz").write_bytes(b"not gzip")
    assert host.read_kernel_facts(root).release == ""


# ---------------------------------------------------------------------- resctrl


def test_resctrl_is_found_with_the_groups_of_others(root: Path) -> None:
    write(root, "proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n")
    write(root, "proc/self/mounts", "sysfs /sys sysfs rw 0 0\nresctrl /sys/fs/resctrl resctrl rw,cdp 0 0\n")
    for group in ("info", "mon_groups", "mon_data", "cri-resmgr.batch", "theirs"):
        (root / "sys/fs/resctrl" / group).mkdir(parents=True)
    found = host.read_isolation_facts(root, {"isolation.caches": "observe"})
    assert found == IsolationFacts({"isolation.caches": "observe"}, True, "/sys/fs/resctrl", ("theirs",))


def test_a_kernel_without_resctrl_and_one_that_has_not_mounted_it_differ(root: Path) -> None:
    assert host.read_isolation_facts(root, {}) == IsolationFacts()
    write(root, "proc/filesystems", "nodev\tresctrl\n")
    assert host.read_isolation_facts(root, {}) == IsolationFacts(is_offered=True)


def test_a_folder_of_resctrl_that_cannot_be_read_is_said(root: Path) -> None:
    write(root, "proc/self/mounts", "resctrl /gone resctrl rw 0 0\n")
    assert host.read_isolation_facts(root, {}).problem == "/gone: No such file or directory"


def test_what_subjects_need_is_looked_for_in_the_cgroup_of_all_pods_and_below_sys(root: Path) -> None:
    modes = {"isolation.cpu": "enforce"}
    assert host.read_isolation_facts(root, modes).files is None
    for name in ("cpu.weight", "memory.high", "io.max"):
        write(root, f"sys/fs/cgroup/kubepods/{name}", "0")
    write(root, "sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave")
    write(root, "sys/devices/system/cpu/cpu0/cpuidle/state0/disable", "0")
    found = host.read_isolation_facts(root, modes)
    assert (found.files, found.clocks) == ({"cpu.weight", "memory.high"}, {"cpufreq", "cpuidle"})
    assert host.read_isolation_facts(root, {}) == IsolationFacts()


# ---------------------------------------------------------------------- cgroups

CGROUPS = {
    "v2": (
        {"cgroup.controllers": "cpuset", "kubepods.slice/cgroup.controllers": "cpuset"}, ("v2", True, "/kubepods.slice"),
    ),
    "v2, not delegated": (
        {"cgroup.controllers": "cpuset", "kubepods/cgroup.controllers": "memory"}, ("v2", False, "/kubepods"),
    ),
    "v2, no pods yet": ({"cgroup.controllers": "cpu cpuset"}, ("v2", True, "")),
    "v1": ({"cpuset/kubepods/cpuset.cpus": "0-3"}, ("v1", True, "/kubepods")),
    "v1 without cpuset": ({"cpu/tasks": ""}, ("v1", False, "")),
    "hybrid": ({"cpuset/cpuset.cpus": "0-3", "unified/cgroup.procs": ""}, ("hybrid", True, "")),
    "none": ({}, ("", False, "")),
}  # fmt: skip


@pytest.mark.parametrize("name", CGROUPS)
def test_cgroups_of_every_kind_are_told_apart(root: Path, name: str) -> None:
    files, expected = CGROUPS[name]
    for path, text in files.items():
        write(root, f"cg/{path}", text)
    facts = host.read_cgroup_facts(root, root / "cg")
    assert (facts.version, facts.has_cpuset, facts.kubepods) == expected


def test_what_kubepods_may_use_is_read(root: Path) -> None:
    write(root, "cg/cgroup.controllers", "cpuset")
    write(root, "cg/kubepods/cgroup.controllers", "cpuset")
    write(root, "cg/kubepods/cpuset.cpus.effective", "2-7\n")
    write(root, "cg/kubepods/cpuset.mems.effective", "0\n")
    facts = host.read_cgroup_facts(root, root / "cg")
    assert (facts.cpus, facts.mems) == (parse_cpus("2-7"), parse_cpus("0"))


# ---------------------------------------------------------------------- systemd, programs


def test_units_are_what_systemctl_shows(root: Path) -> None:
    (root / "run/systemd/system").mkdir(parents=True)
    systemctl = write(root, "systemctl", SYSTEMCTL.format(log=root / "log"), 0o755)
    service, listener, watcher = host.read_system_facts(root, root / "proc", str(systemctl)).units
    assert (service.name, service.active, service.restarts, service.enabled) == (
        UNITS[0],
        "active",
        3,
        "enabled",
    )
    assert (listener.name, listener.result) == (UNITS[1], "start-limit-hit")
    assert (watcher.name, watcher.load) == (UNITS[2], "not-found")
    [asked] = (root / "log").read_text().splitlines()
    assert asked.startswith("show ") and asked.endswith(" ".join(UNITS))


def test_systemctl_is_not_asked_where_systemd_does_not_run(root: Path) -> None:
    facts = host.read_system_facts(root, root / "proc", str(root / "absent"))
    assert (facts.has_systemd, facts.units) == (False, ())


def test_programs_are_known_by_name_and_intels_by_what_runs_it(root: Path) -> None:
    for pid, name, words in (("11", "koordlet", "/usr/bin/koordlet"), ("13", "cri-resmgr", "/usr/bin/cri-resmgr run"),
                             ("12", "cri-resmgr", "/usr/bin/python3 -I /usr/bin/cri-resmgr run")):  # fmt: skip
        write(root, f"proc/{pid}/comm", f"{name}\n")
        write(root, f"proc/{pid}/cmdline", words.replace(" ", "\0"))
    write(root, "opt/nri/plugins/90-policy", "", 0o755)
    write(root, "opt/nri/plugins/README", "")
    facts = host.read_system_facts(root, root / "proc", "systemctl")
    assert facts.programs == tuple(sorted(("cri-resmgr", INTELS, "koordlet")))
    assert facts.nri_plugins == ("90-policy",)


# ---------------------------------------------------------------------- files, sockets


def test_files_are_of_a_kind_and_have_a_mode(root: Path) -> None:
    with listen(root / "s"):
        kinds = {name: host.read_file_facts(root / name).kind for name in ("s", "proc", "absent")}
    assert kinds == {"s": "socket", "proc": "directory", "absent": ""}
    assert host.read_file_facts(write(root, "f", "", 0o640)).mode == 0o640


@pytest.mark.parametrize(("backlog", "expected"), [(1, True), (None, False)])
def test_whether_a_socket_is_listened_on_is_seen_without_a_connection(
    root: Path, backlog: Optional[int], expected: bool
) -> None:
    (root / "proc/net").mkdir()
    (root / "proc/net/unix").symlink_to("/proc/net/unix")
    with listen(root / "k.sock", backlog) as bound:
        facts = parts.read_daemon_facts(places_of(root, f"relay: {{socket: {root}/k.sock}}"))
        [(file, is_served)] = facts.sockets
        bound.setblocking(False)
        with pytest.raises(OSError):  # nobody came, or it does not listen
            bound.accept()
    assert (file.kind, is_served) == ("socket", expected)


def test_a_daemon_that_is_down_is_a_sentence(root: Path) -> None:
    facts = parts.read_daemon_facts(places_of(root))
    assert facts.status is None
    assert (
        facts.problem == f"the daemon is not running: nothing serves {root}/var/run/cri-resmgr/control.sock"
    )


# ---------------------------------------------------------------------- configuration


def test_an_invalid_configuration_is_told_and_its_paths_are_used(root: Path) -> None:
    file = write(
        root, "etc/cri-resmgr/config.yaml", f"state: {{directory: {root}/s}}\nrelay: {{mode: maybe}}\n"
    )
    facts, config = parts.read_config_facts(parts.find_files(root, None))
    assert len(facts.errors) == 1 and f"{file}:2" in facts.errors[0]
    assert config["state.directory"] == f"{root}/s"


def test_both_files_are_named(root: Path) -> None:
    write(root, "etc/cri-resmgr/config.yaml", "relay: {mode: observe}\n")
    write(root, "etc/cri-resmgr/fallback.cfg", "policy: {Active: none}\n")
    facts, config = parts.read_config_facts(parts.find_files(root, None))
    assert [Path(name).name for name in facts.files] == ["fallback.cfg", "config.yaml"]
    assert (config["relay.mode"], config["policy.Active"]) == ("observe", "none")


def test_defaults_hang_under_the_root_and_what_is_set_does_not(root: Path) -> None:
    places = places_of(root, f"state: {{directory: {root}/x}}")
    assert places.at("state.directory") == root / "x"
    assert places.at("control.socket") == root / "var/run/cri-resmgr/control.sock"
    assert read_config([]).config.origins["state.directory"] == "default"


# ---------------------------------------------------------------------- state


TABLES = "CREATE TABLE meta(key, value); CREATE TABLE records(a);"


def make_state(folder: Path, tables: str = TABLES, form: int = FORMAT) -> sqlite3.Connection:
    folder.mkdir(mode=0o700)
    db = sqlite3.connect(folder / FILE, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.executescript(
        tables + f"INSERT INTO meta VALUES ('format', '{form}');" if "meta" in tables else tables
    )
    (folder / FILE).chmod(0o600)
    return db


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_state_in_use_is_checked_beside_its_user(root: Path) -> None:
    db = make_state(root / "state")
    facts = read_state_facts(root / "state", is_up=True)
    db.close()
    assert (facts.check, facts.unchecked, facts.writable) == ("ok", "", True)
    assert (facts.directory.mode, facts.file.mode, facts.file.uid) == (0o700, 0o600, os.geteuid())
    assert facts.size_bytes > 0 and facts.free_bytes > 0


def test_state_that_a_killed_daemon_left_is_checked_and_left_as_it_is(root: Path) -> None:
    db = make_state(root / "live")
    shutil.copytree(root / "live", root / "state")  # with the log that a close would have taken in
    db.close()
    before = contents(root / "state")
    assert any(path.endswith("-wal") for path in before)
    assert read_state_facts(root / "state", is_up=False).check == "ok"
    assert contents(root / "state") == before


def test_the_log_is_checked_with_the_file(root: Path) -> None:
    store = Store(root / "live")
    store.load()
    for key in ("a", "b"):
        store.write({}, {key: "x"})
    for name in ("sound", "damaged", "gone"):
        shutil.copytree(root / "live", root / name)
    store.close()
    log = root / f"damaged/{FILE}-log"
    log.write_bytes(log.read_bytes().replace(b'"a"', b'"c"'))
    (root / f"gone/{FILE}-log").unlink()
    checks = {name: read_state_facts(root / name, is_up=False).check for name in ("sound", "damaged", "gone")}
    assert checks == {
        "sound": "ok",
        "damaged": f"1 of 2 changes in {FILE}-log could not be read",
        "gone": f"{FILE}-log is gone",
    }


@pytest.mark.parametrize("is_up", [True, False])
def test_a_file_that_is_no_database_is_told(root: Path, is_up: bool) -> None:
    write(root, f"state/{FILE}", "garbage " * 200)
    assert read_state_facts(root / "state", is_up).check == "file is not a database"


def test_a_damaged_page_is_found(root: Path) -> None:
    make_state(root / "state", f"{TABLES} CREATE INDEX i ON records(a);").close()
    file = root / "state" / FILE
    data = bytearray(file.read_bytes())
    data[4096:4196] = b"\xff" * 100
    file.write_bytes(data)
    assert read_state_facts(root / "state", is_up=False).check not in ("", "ok")


def test_another_programs_database_is_told(root: Path) -> None:
    make_state(root / "state", "CREATE TABLE theirs(a);").close()
    assert read_state_facts(root / "state", is_up=False).check == "it is another program's database"


def test_a_file_that_the_daemon_would_not_read_is_told(root: Path) -> None:
    write(root, f"empty/{FILE}", "")
    assert read_state_facts(root / "empty", is_up=False).check == "it is empty"


def test_a_file_of_a_later_version_is_as_good_as_any(root: Path) -> None:
    make_state(root / "later", form=999).close()
    assert read_state_facts(root / "later", is_up=False).check == "ok"


def test_what_cannot_be_copied_costs_the_check_only(root: Path) -> None:
    (root / "state" / FILE).mkdir(parents=True)
    facts = read_state_facts(root / "state", is_up=False)
    assert (facts.check, facts.writable, facts.free_bytes > 0) == ("", True, True)
    assert "Is a directory" in facts.unchecked


#: A state on the disk of /tmp, which is then filled to the last byte.
FULL = """
import sys, tempfile
from pathlib import Path
from cri_proxy.doctor.io.collect import read_state_facts
from cri_proxy.state.store import Store

tempfile.tempdir = sys.argv[1]
folder = Path(sys.argv[1]) / "state"
store = Store(folder)
store.load()
store.write({}, {str(number): "x" * 5000 for number in range(40)})
store.close()
with (folder / "filler").open("wb", buffering=0) as filler:
    try:
        while filler.write(bytes(512)):
            pass
    except OSError:
        pass
print(read_state_facts(folder, False).check)
"""


def test_on_a_full_disk_the_file_is_checked_all_the_same(root: Path) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    command = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, "sh", root, sys.executable, FULL],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize(("name", "kind"), [("absent", ""), ("file", "file")])
def test_a_state_directory_that_is_none_is_told(root: Path, name: str, kind: str) -> None:
    write(root, "file", "")
    assert read_state_facts(root / name, is_up=False).directory.kind == kind


def test_state_from_the_future_is_told(root: Path) -> None:
    make_state(root / "state").close()
    later = os.stat(root).st_mtime + 7200
    os.utime(root / "state" / FILE, (later, later))
    assert read_state_facts(root / "state", is_up=False).ahead_s > 3600


# ---------------------------------------------------------------------- runtime


def test_a_runtime_that_is_nowhere_is_a_sentence(root: Path) -> None:
    facts = parts.read_runtime_facts(places_of(root), "")
    assert facts.problem.startswith("no container runtime found")


def test_a_runtime_whose_socket_nobody_serves_is_a_sentence(root: Path) -> None:
    listen(root / "run/containerd/containerd.sock").close()
    facts = parts.read_runtime_facts(places_of(root), "")
    assert facts.problem.startswith(f"the runtime at {root}/run/containerd/containerd.sock does not answer")


def test_a_runtime_that_hangs_is_a_sentence(root: Path) -> None:
    with listen(root / "run/containerd/containerd.sock"):
        facts = parts.read_runtime_facts(places_of(root), "")
    assert facts.problem.endswith("has not answered within 1 s")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "has not answered within 1 s"),
        ((13, "its database is stuck"), "does not answer: its database is stuck"),
    ],
    ids=["hangs", "fails"],
)
async def test_a_runtime_that_only_says_who_it_is_is_a_problem(
    root: Path, error: Optional[tuple[int, str]], words: str
) -> None:
    runtime = FakeRuntime(root / "r.sock")
    await runtime.start()
    try:
        runtime.script("ListContainers", error=error, hold=None if error else asyncio.Event())
        facts = await asyncio.to_thread(parts.read_runtime_facts, places_of(root), str(runtime.socket))
    finally:
        await runtime.stop()
    assert facts.problem == f"ListContainers of the runtime at {runtime.socket} {words}"
    assert facts.name == "containerd"


async def test_a_runtime_may_take_a_fifth_of_a_longer_examination(root: Path) -> None:
    """`doctor --timeout` is more for a machine under load."""
    runtime = FakeRuntime(root / "r.sock")
    await runtime.start()
    write(root, "etc/cri-resmgr/config.yaml", f"relay: {{runtime_endpoint: {runtime.socket}}}")
    try:
        runtime.script("ListContainers", hold=asyncio.Event())
        facts = await asyncio.to_thread(examine, root=root, systemctl="false", limit_s=7.0)
    finally:
        await runtime.stop()
    assert facts.runtime is not None and facts.runtime.problem.endswith("has not answered within 1.4 s")


@pytest.mark.parametrize(("kind", "words"), [("", "is not there"), ("file", "is a file")])
def test_a_runtime_socket_that_is_none_is_a_sentence(root: Path, kind: str, words: str) -> None:
    if kind:
        write(root, "r.sock", "")
    assert parts.read_runtime_facts(places_of(root), f"{root}/r.sock").problem.endswith(words)


# ---------------------------------------------------------------------- all of it


def test_what_cannot_be_read_is_a_sentence_and_the_rest_is_there(root: Path) -> None:
    for path, text in {**KUBEADM, CONFIG: "a: [\n"}.items():
        write(root, path, text)
    facts = examine(root=root)
    assert facts.machine is None and facts.kubelet is None
    assert set(facts.failures) == {"machine", "kubelet"}
    assert CONFIG in facts.failures["kubelet"]
    assert None not in (facts.config, facts.daemon, facts.runtime, facts.kernel, facts.cgroups, facts.state)


def test_an_examination_changes_nothing(root: Path) -> None:
    write_sysfs(VM_NO_CACHE_INFO, root)
    for path, text in KUBEADM.items():
        write(root, path, text)
    make_state(root / "var-state").close()
    write(root, "etc/cri-resmgr/config.yaml", f"state: {{directory: {root}/var-state}}\n")
    before = contents(root)
    facts = examine(root=root)
    assert contents(root) == before
    assert facts.failures == {}
    assert isinstance(facts, Facts) and facts.state is not None and facts.state.check == "ok"


def test_a_systemctl_that_fails_costs_its_own_facts_only(root: Path) -> None:
    write_sysfs(VM_NO_CACHE_INFO, root)
    (root / "run/systemd/system").mkdir(parents=True)
    facts = examine(root=root, systemctl="/bin/false")
    assert set(facts.failures) == {"units"}
    assert facts.machine is not None


def test_a_systemctl_that_hangs_is_named(root: Path) -> None:
    write_sysfs(VM_NO_CACHE_INFO, root)
    (root / "run/systemd/system").mkdir(parents=True)
    hanging = root / "systemctl"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    facts = examine(root=root, systemctl=str(hanging))
    assert facts.failures == {"units": "this could not be found out: systemctl has not ended within 4 s"}


def test_a_configuration_that_is_no_file_is_said_and_the_rest_is_there(root: Path) -> None:
    write_sysfs(VM_NO_CACHE_INFO, root)
    file = root / "etc/cri-resmgr/config.yaml"
    file.parent.mkdir(parents=True)
    os.mkfifo(file)  # nothing will ever be written to it
    facts = examine(root=root)
    assert facts.failures == {}
    assert facts.config is not None
    assert facts.config.errors == (f"{file}: cannot be read: it is a FIFO, expected a regular file",)
    assert None not in (facts.daemon, facts.runtime, facts.machine, facts.state)


def test_a_path_that_cannot_be_looked_at_is_not_taken_for_one_that_is_not_there(root: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        host.read_file_facts(root / ("x" * 300))


def test_what_hangs_is_left_behind_and_said(root: Path) -> None:
    write_sysfs(VM_NO_CACHE_INFO, root)
    os.mkfifo(root / "proc/cmdline")  # nobody will ever write
    try:
        facts = examine(root=root)
        assert facts.failures == {"machine": "this could not be found out within 5 s: something hangs"}
        assert facts.kernel is None
        assert facts.machine is not None
    finally:
        with (root / "proc/cmdline").open("w"):  # the thread ends
            pass
