"""What was there before is on disk before the first write, and ``put_back`` needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cri_proxy import effects
from cri_proxy.isolation.io.originals import FILE_NAME, Originals, put_back
from tests.isolation.kernel import KernelModel

CPUS = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
BATCH = "cri-resmgr.batch"


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    (tmp_path / "boot_id").write_text("this boot\n")
    return tmp_path / "boot_id"


def remembered(directory: Path, values: dict[str, str], groups: bool = False) -> Originals:
    originals = Originals(directory, "this boot")
    originals.load()
    originals.remember(values, groups)
    return originals


def test_root_files_and_groups_are_as_before(tmp_path: Path, boot: Path) -> None:
    kernel, clock = KernelModel(CPUS), tmp_path / "scaling_max_freq"
    before = kernel.picture()
    remembered(tmp_path, {"resctrl:#L3:0": "ffff", f"file:{clock}": "3300000"}, groups=True)
    kernel.write("", "L3", {0: "f"})
    kernel.make(BATCH)
    clock.write_text("2500000\n")
    assert put_back(tmp_path, kernel, boot) == []
    assert kernel.picture() == before and clock.read_text() == "3300000\n"
    assert not (tmp_path / FILE_NAME).exists()


def test_the_first_value_of_a_place_stays_remembered(tmp_path: Path) -> None:
    remembered(tmp_path, {"file:/sys/a": "1"})
    assert remembered(tmp_path, {"file:/sys/a": "2", "file:/sys/b": "3"}).values == {
        "file:/sys/a": "1",
        "file:/sys/b": "3",
    }


def test_nothing_is_written_where_all_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals = remembered(tmp_path, {"file:/sys/a": "1"}, groups=True)
    told: list[str] = []
    monkeypatch.setattr(effects, "before", lambda kind, about: told.append(about))
    originals.remember({"file:/sys/a": "1"}, groups=True)
    originals.forget([])
    assert told == []


def test_a_file_of_another_boot_says_nothing_and_goes(tmp_path: Path, boot: Path) -> None:
    remembered(tmp_path, {"resctrl:#L3:0": "ff"}, groups=True)
    boot.write_text("the next boot\n")
    kernel = KernelModel(CPUS)
    assert put_back(tmp_path, kernel, boot) == []
    assert kernel.writes == [] and not (tmp_path / FILE_NAME).exists()


def test_without_a_file_the_kernel_is_not_even_read(tmp_path: Path) -> None:
    assert put_back(tmp_path, None, tmp_path / "no such file") == []


def test_what_is_refused_is_told_and_stays_in_the_file(tmp_path: Path, boot: Path) -> None:
    clock = tmp_path / "scaling_max_freq"
    clock.mkdir()
    remembered(tmp_path, {f"file:{clock}": "3300000", "resctrl:#MB:1": "2048"})
    assert put_back(tmp_path, KernelModel(CPUS), boot) == [
        f"file:{clock} is not as it was before: Is a directory"
    ]
    assert json.loads((tmp_path / FILE_NAME).read_text())["values"] == {f"file:{clock}": "3300000"}


def test_a_place_that_is_gone_is_forgotten(tmp_path: Path, boot: Path) -> None:
    kernel = KernelModel(CPUS)
    kernel.missing = "resctrl was unmounted"
    remembered(tmp_path, {"file:/no/such/file": "1", "resctrl:#L3:0": "ffff"}, groups=True)
    assert put_back(tmp_path, kernel, boot) == []
    assert not (tmp_path / FILE_NAME).exists()


def test_groups_of_others_stay(tmp_path: Path, boot: Path) -> None:
    kernel = KernelModel(CPUS)
    kernel.make_other("kepler")
    kernel.make(BATCH)
    remembered(tmp_path, {}, groups=True)
    put_back(tmp_path, kernel, boot)
    assert kernel.others() == ["kepler"] and set(kernel.seen().schemata) == {""}


def test_a_file_that_cannot_be_understood_has_our_groups_removed_all_the_same(
    tmp_path: Path, boot: Path
) -> None:
    kernel = KernelModel(CPUS)
    kernel.make(BATCH)
    (tmp_path / FILE_NAME).write_text("{")
    assert put_back(tmp_path, kernel, boot) == []
    assert set(kernel.seen().schemata) == {""} and not (tmp_path / FILE_NAME).exists()


def test_a_file_with_no_place_of_ours_is_never_made_by_writing(tmp_path: Path, boot: Path) -> None:
    remembered(tmp_path, {f"file:{tmp_path}/gone": "1"})
    put_back(tmp_path, KernelModel(CPUS), boot)
    assert not (tmp_path / "gone").exists()
