"""Kernel's and kubelet's files that hold rubbish or are no files: a sentence or a fallback, never a hang or a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cri_proxy import bounded_files
from cri_proxy.affinity.io.executor import PressureReader, memory_in_use
from cri_proxy.daemon.engine_host import read_boot_id
from cri_proxy.doctor.io.host import _first_paragraph
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.machine import MachineReader, NoMachine, read_memory_bytes
from cri_proxy.node.sysfs import SysfsError, read_free_memory, read_signature, read_sysfs

DIGITS = b"9" * 5000
#: What a file holds, by what it is; None: not a regular file.
RUBBISH: dict[str, Callable[[Path], None]] = {
    "5,000 digits": lambda path: put(path, DIGITS),
    "a line of 5,000 digits": lambda path: put(path, b"MemTotal: " + DIGITS + b" kB\n"),
    "a row of 5,000 digits": lambda path: put(path, b"some avg10=0 total=" + DIGITS + b"\nanon N0=" + DIGITS),
    "no text": lambda path: put(path, bytes(range(256))),
    "larger than any": lambda path: put(path, b"1 " * bounded_files.KERNEL_BYTES),
    "deeply nested": lambda path: put(path, b"[" * 100_000),
    "empty": lambda path: put(path, b""),
    "a FIFO": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
}


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A read that hangs ends the test, by a signal; what is right takes milliseconds."""
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _hangs(number: int, frame: Any) -> None:
    raise AssertionError("a read hangs")


# ---------------------------------------------------------------------- a machine, one file after the other

FILES = {
    "sys/devices/system/cpu/online": "0-1",
    "sys/devices/system/cpu/present": "0-1",
    "sys/devices/system/cpu/isolated": "",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0",
    "sys/devices/system/cpu/cpu0/topology/die_id": "0",
    "sys/devices/system/cpu/cpu0/cache/index3/level": "3",
    "sys/devices/system/cpu/cpu0/cache/index3/type": "Unified",
    "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list": "0-1",
    "sys/devices/system/cpu/cpu1/topology/core_cpus_list": "1",
    "sys/devices/system/node/online": "0",
    "sys/devices/system/node/has_memory": "0",
    "sys/devices/system/node/node0/cpulist": "0-1",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 1 kB\n",
    "sys/devices/system/node/node0/distance": "10",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "0",
    "sys/bus/pci/devices/0000:00:00.0/numa_node": "0",
    "proc/cpuinfo": "vendor_id : HygonGenuine\n\n",
    "proc/meminfo": "MemTotal: 1024 kB\n",
    "proc/self/status": "Mems_allowed_list: 0\n",
    "proc/7/cgroup": "0::/kubepods/c1\n",
    "cgroup/cpuset.cpus.effective": "0-1",
    "cgroup/cpuset.mems.effective": "0",
    "cgroup/kubepods/c1/cpuset.cpus": "0",
    "cgroup/kubepods/c1/cpuset.mems": "0",
    "cgroup/kubepods/c1/cpu.max": "max 100000",
    "cgroup/kubepods/c1/cpu.weight": "100",
    "cgroup/kubepods/c1/cpu.pressure": "some avg10=0.00 total=1\n",
    "cgroup/kubepods/c1/cpu.stat": "throttled_usec 1\n",
    "cgroup/kubepods/c1/memory.max": "max",
    "cgroup/kubepods/c1/memory.current": "1",
    "cgroup/kubepods/c1/memory.numa_stat": "anon N0=4096\n",
    "cgroup/kubepods/c1/cgroup.events": "populated 1\n",
    "kubelet/cpu_manager_state": '{"policyName": "static", "entries": {"u": {"c": "1"}}}',
    "kubelet/config.yaml": "reservedSystemCPUs: '0'\n",
    "boot_id": "x\n",
}


def write_machine(root: Path) -> None:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read_all(root: Path) -> tuple[str, ...]:
    """All that reads these files, and the sentences there are."""
    cgroups = Cgroups(root / "cgroup", root / "proc")
    reader = MachineReader(root / "sys", cgroups, root / "kubelet", root / "proc")
    said: tuple[str, ...] = ()
    try:
        reader.read(pods=["/kubepods/c1"])
        said = reader.warnings
    except NoMachine as error:
        said = (str(error),)
    read_signature(root / "sys")
    read_free_memory(root / "sys")
    for look in (cgroups.effective, cgroups.configured, cgroups.is_populated, cgroups.limits, cgroups.held):
        look("/kubepods/c1")
    cgroups.of_container(7, "c1")
    PressureReader(root / "cgroup").look({"c1": "/kubepods/c1"}, 0.0)
    memory_in_use(root / "cgroup", {"c1": "/kubepods/c1"})
    assert 0 <= read_memory_bytes(root / "proc/meminfo") < 1 << 80
    _first_paragraph(root / "proc/cpuinfo")
    read_boot_id(root / "boot_id")
    return said


def test_a_machine_without_rubbish_is_read_without_a_word(tmp_path: Path) -> None:
    write_machine(tmp_path)
    assert not [said for said in read_all(tmp_path) if "cannot be" in said]


@pytest.mark.parametrize("what", RUBBISH)
@pytest.mark.parametrize("name", FILES)
def test_rubbish_in_a_file_costs_what_the_file_would_have_told(tmp_path: Path, name: str, what: str) -> None:
    write_machine(tmp_path)
    (tmp_path / name).unlink()
    RUBBISH[what](tmp_path / name)
    said = read_all(tmp_path)
    assert all(len(sentence) < 1000 and "\n" not in sentence for sentence in said)
    if name.startswith("kubelet/") and what not in ("empty", "a line of 5,000 digits"):  # those may be YAML
        assert any(str(tmp_path / name) in sentence for sentence in said), said


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    data=st.binary(max_size=200) | st.text("0123456789-, \n:=N", max_size=200),
)
def test_any_bytes_in_any_file_are_borne(tmp_path: Path, name: str, data: Any) -> None:
    write_machine(tmp_path)
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    read_all(tmp_path)


@pytest.mark.parametrize("what", [what for what in RUBBISH if what != "a folder"])
def test_a_topology_that_is_rubbish_is_one_sentence(tmp_path: Path, what: str) -> None:
    source = tmp_path / "topology.json"
    RUBBISH[what](source)
    with pytest.raises(NoMachine) as caught:
        MachineReader(source, Cgroups(tmp_path, tmp_path), tmp_path, tmp_path).read()
    assert str(source) in str(caught.value)
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)


def test_a_sysfs_of_nothing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="no CPU found"):
        read_sysfs(tmp_path, tmp_path)


def test_a_number_has_no_more_digits_than_the_kernels() -> None:
    assert bounded_files.read_number(" 18446744073709551615\n") == (1 << 64) - 1
    with pytest.raises(ValueError, match="5000 characters"):
        bounded_files.read_number(DIGITS)


@pytest.mark.parametrize("path", ["/proc/sys/kernel/random/boot_id", "/proc/meminfo", "/proc/self/cgroup"])
def test_the_kernels_own_files_are_read_whole(path: str) -> None:
    """Below /proc/sys a read of more than 4 MiB at once fails."""
    assert bounded_files.read_text(path).endswith("\n")
    if path.endswith("boot_id"):
        assert read_boot_id() != ""


def test_a_file_of_many_reads_is_whole(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    put(tmp_path / "large", data)
    assert bounded_files.read_bytes(tmp_path / "large", len(data)) == data


def test_only_the_beginning_is_read_of_a_file_that_is_larger(tmp_path: Path) -> None:
    put(tmp_path / "large", b"x" * 100)
    assert bounded_files.read_beginning(tmp_path / "large", 7) == b"x" * 7
    assert bounded_files.read_beginning(tmp_path / "large", 200) == b"x" * 100
    with pytest.raises(bounded_files.NotRead, match="larger than 99 bytes"):
        bounded_files.read_bytes(tmp_path / "large", 99)
