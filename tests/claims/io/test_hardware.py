"""What devices tell beside the topology, from sysfs trees of named machines."""

from __future__ import annotations

from pathlib import Path

from cri_proxy.claims.devices import Hardware
from cri_proxy.claims.io.hardware import read_hardware
from tests.machines import EPYC_NPS4_1S, write_sysfs
from tests.scenes import topology


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_sizes_of_l3s_and_root_complexes_by_numa_node_are_read(tmp_path: Path) -> None:
    sys = write_sysfs(EPYC_NPS4_1S, tmp_path)
    tree = topology(EPYC_NPS4_1S)
    for l3 in tree.at("l3"):
        write(sys / f"devices/system/cpu/cpu{min(l3.cpus)}/cache/index3/size", "16384K\n")
    for root, device, node in (
        ("pci0000:00", "0000:00:01.0", 0),
        ("pci0000:20", "0000:20:01.0", 1),
        ("pci0000:20", "0000:20:02.0", 1),
        ("pci0000:40", "0000:40:01.0", 0),
        ("pci0000:60", "0000:60:01.0", -1),
    ):
        write(sys / "devices" / root / device / "numa_node", f"{node}\n")
    write(sys / "devices/pci0000:80/0000:80:01.0/numa_node", "rubbish")
    (sys / "devices/pci0000:a0/power").mkdir(parents=True)
    found = read_hardware(sys, tree)
    assert found.l3_bytes == dict.fromkeys(range(len(tree.at("l3"))), 16 << 20)
    assert found.pcie_roots == {0: ("pci0000:00", "pci0000:40"), 1: ("pci0000:20",)}


def test_the_highest_frequency_of_each_cpu_that_tells_one_is_read(tmp_path: Path) -> None:
    sys, tree = write_sysfs(EPYC_NPS4_1S, tmp_path), topology(EPYC_NPS4_1S)
    for cpu in tree.cpus:
        write(
            sys / f"devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq",
            f"{3_500_000 + cpu % 2 * 100_000}\n",
        )
    write(sys / "devices/system/cpu/cpu3/cpufreq/cpuinfo_max_freq", "<unsupported>\n")
    assert read_hardware(sys, tree).max_mhz == {cpu: 3500 + cpu % 2 * 100 for cpu in tree.cpus if cpu != 3}


def test_of_a_machine_without_files_nothing_is_known(tmp_path: Path) -> None:
    assert read_hardware(tmp_path, topology(EPYC_NPS4_1S)) == Hardware()
