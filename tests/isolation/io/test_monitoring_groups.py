"""Monitoring groups as files: what is written and read below a mount, and the way back from a mark."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from cri_proxy import effects
from cri_proxy.daemon import monitoring_host
from cri_proxy.isolation.io import monitoring_groups
from cri_proxy.isolation.io.monitoring_groups import MARK, MonitoringGroups, is_marked, mark, put_back
from cri_proxy.isolation.monitoring import OCCUPANCY, TOTAL, Source
from tests.isolation.monitored import MonitoredKernel


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A mount with a control group of ours, one of another program, and what is no group."""
    root = tmp_path / "resctrl"
    for folder in (
        "info/L3_MON",
        "mon_groups/kepler",
        "mon_data",
        "cri-resmgr.batch/mon_groups",
        "theirs/mon_groups",
    ):
        (root / folder).mkdir(parents=True)
    return root


def described(folder: Path, values: Mapping[str, str]) -> None:
    """The files of a group, as the kernel makes them with its folder."""
    (folder / "tasks").write_text("")
    for path, text in values.items():
        (folder / "mon_data" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mon_data" / path).write_text(f"{text}\n")


def test_groups_are_folders_with_monitoring_groups_of_their_own(mount: Path) -> None:
    kernel = MonitoringGroups(mount)
    assert kernel.groups() == ("", "cri-resmgr.batch", "theirs")
    assert kernel.monitors("") == ("kepler",)
    kernel.make_monitor("cri-resmgr.batch", "cri-resmgr.1")
    assert (mount / "cri-resmgr.batch" / "mon_groups" / "cri-resmgr.1").is_dir()
    assert MonitoringGroups(mount / "nowhere").groups() == ()


def test_values_and_threads_go_through_files_that_stay_open_until_the_group_is_removed(mount: Path) -> None:
    kernel = MonitoringGroups(mount)
    kernel.make_monitor("", "cri-resmgr.1")
    folder = mount / "mon_groups" / "cri-resmgr.1"
    described(folder, {"mon_L3_03/llc_occupancy": "4096", "mon_L3_03/mbm_total_bytes": "Unavailable"})
    before = len(os.listdir("/proc/self/fd"))
    source = Source("", "cri-resmgr.1", 3, "1")
    for _ in range(3):
        assert kernel.read(source, OCCUPANCY) == b"4096\n"
        assert kernel.read(source, TOTAL) == b"Unavailable\n"
    kernel.move_monitored("", "cri-resmgr.1", 17)
    kernel.move_monitored("", "cri-resmgr.1", 18)
    assert kernel.monitored("", "cri-resmgr.1") == {17, 18}
    assert len(os.listdir("/proc/self/fd")) == before + 3
    with pytest.raises(OSError):  # a plain folder is not empty, but what was open is closed
        kernel.remove_monitor("", "cri-resmgr.1")
    assert len(os.listdir("/proc/self/fd")) == before


def test_beyond_the_bound_files_are_opened_for_each_read(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring_groups, "MOST_FILES", 1)
    described(mount, {f"mon_L3_{number:02d}/llc_occupancy": str(number) for number in range(4)})
    before = len(os.listdir("/proc/self/fd"))
    kernel = MonitoringGroups(mount)
    assert [kernel.read(Source("", "", number), OCCUPANCY) for number in range(4)] == [
        b"0\n",
        b"1\n",
        b"2\n",
        b"3\n",
    ]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    kernel.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_value_that_is_not_there_is_an_error_of_its_own(mount: Path) -> None:
    with pytest.raises(FileNotFoundError):
        MonitoringGroups(mount).read(Source("", "gone", 3, "1"), OCCUPANCY)


# ---------------------------------------------------------------------- the way back


def test_a_mark_is_on_disk_before_the_first_group_and_goes_with_the_last(tmp_path: Path) -> None:
    kernel = MonitoredKernel()
    kernel.make_foreign("", "kepler")
    assert put_back(tmp_path, kernel) == [] and not is_marked(tmp_path)
    mark(tmp_path)
    kernel.make_monitor("", "cri-resmgr.1")
    assert put_back(tmp_path, kernel) == []
    assert kernel.there == {"": {"kepler"}} and os.listdir(tmp_path) == []


def test_a_way_back_that_is_cut_anywhere_is_gone_to_its_end_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(Exception):
        pass

    for number in range(4):
        kernel, left = MonitoredKernel(), [number]
        mark(tmp_path)
        for name in ("cri-resmgr.1", "cri-resmgr.2"):
            kernel.make_monitor("", name)

        def cut(kind: str, about: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Cut

        monkeypatch.setattr(effects, "before", cut)
        try:
            put_back(tmp_path, kernel)
        except Cut:
            assert is_marked(tmp_path)
        monkeypatch.setattr(effects, "before", lambda kind, about: None)
        put_back(tmp_path, kernel)
        assert kernel.there == {"": set()} and not is_marked(tmp_path)


def test_a_group_that_stays_keeps_the_mark_and_is_told(tmp_path: Path) -> None:
    class Stubborn(MonitoredKernel):
        def remove_monitor(self, group: str, name: str) -> None:
            raise OSError(errno.EBUSY, "busy")

    kernel = Stubborn()
    kernel.make_monitor("", "cri-resmgr.1")
    mark(tmp_path)
    assert put_back(tmp_path, kernel) == ["the root group: cri-resmgr.1 is still there"]
    assert is_marked(tmp_path)


def test_without_resctrl_a_mark_of_the_boot_before_goes(tmp_path: Path) -> None:
    mark(tmp_path)
    assert put_back(tmp_path, MonitoringGroups(tmp_path / "nowhere")) == []
    assert not is_marked(tmp_path)


def test_the_daemon_knows_the_mark_without_what_makes_it() -> None:
    assert monitoring_host.MARK == MARK
