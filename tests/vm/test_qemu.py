"""The QEMU with resctrl: the edit of its source, and where it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.machine import CORES_8, RESCTRL_8, cpu_arguments
from tests.vm.qemu import build
from tests.vm.qemu.edit import CPU, EDITS, Edit, edited

#: Each place that is looked for, as the source has it.
SOURCES = {name: "".join(f"{edit.before}\n" for edit in edits) for name, edits in EDITS.items()}


@pytest.mark.parametrize("name", SOURCES)
def test_every_place_gets_what_is_put_there(name: str) -> None:
    text = edited(name, SOURCES[name], EDITS[name])
    for edit in EDITS[name]:
        assert text.count(edit.put) == 1
        if edit.drop:
            assert edit.before not in text


def test_a_source_that_is_another_is_refused_in_a_sentence() -> None:
    other = SOURCES[CPU].replace("CPUID_7_0_ECX_PKU", "CPUID_OTHER")
    with pytest.raises(ValueError, match=f"{CPU} has .* 0 times, expected once"):
        edited(CPU, other, EDITS[CPU])


def test_a_place_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="2 times, expected once"):
        edited("a.c", "here\nhere\n", (Edit("here\n", "there\n"),))


def test_another_edit_is_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = build.kept(tmp_path)
    other = tmp_path / "resctrl.c"
    other.write_text(build.RESCTRL.read_text() + "\n")
    monkeypatch.setattr(build, "RESCTRL", other)
    assert build.kept(tmp_path) != kept


def test_what_is_not_built_is_said_in_a_sentence(tmp_path: Path) -> None:
    assert "make resctrl-qemu" in build.missing(tmp_path)
    build.kept(tmp_path).parent.mkdir()
    build.kept(tmp_path).write_text("")
    assert build.missing(tmp_path) == ""


def test_a_machine_has_resctrl_if_its_cpu_has_the_leaves() -> None:
    assert RESCTRL_8.has_resctrl
    assert not CORES_8.has_resctrl
    words = cpu_arguments(RESCTRL_8)
    assert words[1].endswith("level=16,xlevel=0x80000020")
