"""The table by which guests have clocks is one of ACPI's; what it says, the kernel of a guest shows (guest/clocks.py)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.vm.acpi import clocks_table
from tests.vm.machine import CLOCKS_8, SMT_16


def test_a_table_is_as_long_as_it_says_and_its_bytes_add_up_to_nothing() -> None:
    table = clocks_table(CLOCKS_8)
    assert int.from_bytes(table[4:8], "little") == len(table) and sum(table) % 256 == 0


def test_each_processor_has_frequencies_a_clock_domain_and_idle_states(tmp_path: Path) -> None:
    if shutil.which("iasl") is None:
        pytest.skip("iasl is not installed (acpica-tools).")
    (tmp_path / "clocks.aml").write_bytes(clocks_table(SMT_16))
    subprocess.run(["iasl", "-d", "clocks.aml"], cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "clocks.dsl").read_text()
    assert [text.count(f"Name ({name}") for name in ("_PCT", "_PSS", "_PSD", "_CST")] == [16] * 4
    assert text.count("Scope (\\_SB.CPUS.C") == 16
