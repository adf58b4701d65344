"""The device tree that an arm64 guest is given, held against dtc's reading of it and against QEMU's own tree."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.vm.arm import QEMU, overlay, write_device_tree
from tests.vm.machine import KUNPENG_8, KUNPENG_8_OLD

needs_programs = pytest.mark.skipif(
    shutil.which("dtc") is None or shutil.which(QEMU) is None, reason="Needs dtc and qemu-system-arm."
)


def test_every_cpu_has_an_l2_of_its_own_and_shares_the_l3_of_its_ccx() -> None:
    text = overlay(KUNPENG_8)
    assert len(re.findall(r"l2-\d+ \{", text)) == KUNPENG_8.cpus
    assert len(re.findall(r"l3-\d+ \{", text)) == len(KUNPENG_8.ccxs)
    below = re.findall(r"l2-(\d+) \{[^}]*next-level-cache = <&\{/cpus/l3-(\d+)\}>", text)
    assert {(int(cpu), int(l3)) for cpu, l3 in below} == {(cpu, cpu // 4) for cpu in range(KUNPENG_8.cpus)}


def test_old_kernels_are_told_of_packages_as_clusters() -> None:
    """They know no sockets in the map: it would be refused as a whole."""
    assert "socket0" in overlay(KUNPENG_8)
    assert "socket" not in overlay(KUNPENG_8_OLD)
    assert len(re.findall(r"cluster\d+ \{", overlay(KUNPENG_8_OLD))) == KUNPENG_8_OLD.sockets


@needs_programs
def test_qemus_own_tree_takes_it(tmp_path: Path) -> None:
    made = write_device_tree(KUNPENG_8, tmp_path)
    command = ["dtc", "--quiet", "--in-format", "dtb", "--out-format", "dts", str(made)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert text.count('compatible = "cache"') == KUNPENG_8.cpus + len(KUNPENG_8.ccxs)
    assert text.count("numa-node-id") == KUNPENG_8.cpus + KUNPENG_8.nodes
