"""What is read of the kernel's tree, and how a write is said. The tree is a folder here."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cri_proxy.isolation.io.resctrl import Resctrl
from cri_proxy.isolation.model import (
    EIGHTHS,
    MBPS,
    PERCENT,
    BandwidthInfo,
    CacheDomain,
    CacheInfo,
    read_schemata,
)

CCX0, CCX1 = frozenset(range(4)), frozenset(range(4, 8))
AMD_TREE = {
    "schemata": "    L3:0=ffff;1=0fff\n    MB:0=2048;1=2048\n",
    "tasks": "1\n2\n",
    "info/L3/cbm_mask": "ffff\n",
    "info/L3/min_cbm_bits": "0\n",
    "info/L3/num_closids": "16\n",
    "info/L3/shareable_bits": "0\n",
    "info/MB/min_bandwidth": "0\n",
    "info/MB/bandwidth_gran": "1\n",
    "info/MB/num_closids": "16\n",
    "info/L3_MON/num_rmids": "256\n",
    "info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\n",
    "info/last_cmd_status": "ok\n",
}
INTEL_TREE = {
    **AMD_TREE,
    "schemata": "L3CODE:0=7ff;1=7ff\nL3DATA:0=7ff;1=7ff\nMB:0= 100;1= 100\n",
    "info/L3CODE/cbm_mask": "7ff\n",
    "info/L3CODE/min_cbm_bits": "2\n",
    "info/L3CODE/num_closids": "8\n",
    "info/L3CODE/shareable_bits": "600\n",
    "info/L3CODE/sparse_masks": "0\n",
    "info/L3DATA/cbm_mask": "7ff\n",
    "info/L3DATA/min_cbm_bits": "2\n",
    "info/L3DATA/num_closids": "8\n",
    "info/MB/min_bandwidth": "10\n",
    "info/MB/bandwidth_gran": "10\n",
}


def lay_out(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def tree(tmp_path: Path, files: dict[str, str], vendor: str = "HygonGenuine", options: str = "rw") -> Resctrl:
    mount = tmp_path / "resctrl"
    lay_out(mount, files)
    lay_out(
        tmp_path / "proc",
        {
            "cpuinfo": f"processor\t: 0\nvendor_id\t: {vendor}\n",
            "filesystems": "nodev\tresctrl\n",
            "self/mounts": f"resctrl {mount} resctrl {options} 0 0\n",
        },
    )
    for cpu in range(8):
        cache = {
            "level": "3\n",
            "id": f"{cpu // 4}\n",
            "type": "Unified\n",
            "shared_cpu_list": f"{cpu // 4 * 4}-{cpu // 4 * 4 + 3}\n",
        }
        lay_out(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index3", cache)
    return Resctrl(mount, tmp_path / "sys", tmp_path / "proc")


def test_what_a_hygon_kernel_offers_is_read_with_the_rules_it_does_not_tell(tmp_path: Path) -> None:
    info = tree(tmp_path, AMD_TREE).info()
    assert info is not None
    assert info.caches == {"L3": CacheInfo(0xFFFF, 1, 16, 0, is_sparse=True)}
    assert info.bandwidth == BandwidthInfo(1, 1, 2048, EIGHTHS, 16)
    domains = (CacheDomain(0, CCX0), CacheDomain(1, CCX1))
    assert info.domains == {"L3": domains, "MB": domains, "L3_MON": domains}
    assert info.monitors == ("llc_occupancy", "mbm_total_bytes") and info.rmids == 256


def test_code_and_data_are_two_caches_and_intel_has_percentages(tmp_path: Path) -> None:
    info = tree(tmp_path, INTEL_TREE, "GenuineIntel").info()
    assert info is not None
    assert info.caches["L3CODE"] == CacheInfo(0x7FF, 2, 8, 0x600) and "L3" not in info.caches
    assert info.bandwidth == BandwidthInfo(10, 10, 100, PERCENT, 16)
    assert info.closids == 8


def test_the_mount_option_for_megabytes_changes_the_unit(tmp_path: Path) -> None:
    info = tree(tmp_path, INTEL_TREE, "GenuineIntel", "rw,mba_MBps").info()
    assert info is not None and info.bandwidth is not None
    assert info.bandwidth.unit == MBPS and info.bandwidth.no_limit == 2**32 - 1


def test_where_there_is_no_tree_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    resctrl = tree(tmp_path, {})
    assert resctrl.info() is None
    assert resctrl.missing == f"resctrl is not mounted: mount -t resctrl resctrl {tmp_path}/resctrl"
    (tmp_path / "proc/filesystems").write_text("nodev\tsysfs\n")
    assert resctrl.info() is None and "this kernel offers no resctrl" in resctrl.missing


def test_values_are_as_we_write_them_however_the_kernel_pads_them() -> None:
    assert read_schemata("    MB:0= 100;1=  50\n    L3:0=0003;1=ffff\n") == {
        "MB": {0: "100", 1: "50"},
        "L3": {0: "3", 1: "ffff"},
    }


def test_groups_of_others_are_counted_and_only_ours_are_read(tmp_path: Path) -> None:
    resctrl = tree(tmp_path, AMD_TREE)
    lay_out(tmp_path / "resctrl", {"cri-resmgr.batch/schemata": "L3:0=000f;1=ffff\n", "kepler/tasks": ""})
    (tmp_path / "resctrl/mon_groups/pod-1").mkdir(parents=True)
    (tmp_path / "resctrl/cri-resmgr.batch/mon_groups/cri-resmgr.a").mkdir(parents=True)
    seen = resctrl.seen()
    assert seen.schemata["cri-resmgr.batch"] == {"L3": {0: "f", 1: "ffff"}}
    assert seen.others == ("kepler",) and seen.other_monitors == 1
    assert set(seen.schemata) == {"", "cri-resmgr.batch"}


def test_a_write_is_one_line_and_a_refusal_has_the_kernels_words(tmp_path: Path) -> None:
    resctrl = tree(tmp_path, AMD_TREE)
    lay_out(tmp_path / "resctrl", {"cri-resmgr.batch/schemata": ""})
    resctrl.write("cri-resmgr.batch", "L3", {1: "f", 0: "3"})
    assert (tmp_path / "resctrl/cri-resmgr.batch/schemata").read_text() == "L3:0=3;1=f\n"
    (tmp_path / "resctrl/info/last_cmd_status").write_text("Mask out of range\n")
    with pytest.raises(OSError, match="No such file or directory: Mask out of range") as raised:
        resctrl.write("cri-resmgr.gone", "L3", {0: "0"})
    assert raised.value.errno == errno.ENOENT


def test_nothing_but_our_groups_and_the_root_is_written(tmp_path: Path) -> None:
    resctrl = tree(tmp_path, AMD_TREE)
    for act in (resctrl.make, resctrl.remove):
        with pytest.raises(ValueError, match="'kepler' is no group of ours"):
            act("kepler")
    with pytest.raises(ValueError, match="no group of ours"):
        resctrl.make("cri-resmgr.a/mon_groups")


def test_threads_of_a_group_are_read_and_moved(tmp_path: Path) -> None:
    resctrl = tree(tmp_path, AMD_TREE)
    lay_out(tmp_path / "resctrl", {"cri-resmgr.batch/tasks": ""})
    assert resctrl.tasks("") == {1, 2} and resctrl.tasks("cri-resmgr.gone") == frozenset()
    resctrl.move("cri-resmgr.batch", 17)
    assert (tmp_path / "resctrl/cri-resmgr.batch/tasks").read_text() == "17\n"


def test_a_group_is_made_and_removed_once_and_again(tmp_path: Path) -> None:
    resctrl = tree(tmp_path, AMD_TREE)
    for act in (resctrl.make, resctrl.make, resctrl.remove, resctrl.remove):
        act("cri-resmgr.batch")
    assert not (tmp_path / "resctrl/cri-resmgr.batch").exists()
