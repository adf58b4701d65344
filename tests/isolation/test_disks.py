"""What containers should have of block I/O: which class, which disks, which files; on disks that are described."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cri_proxy.cri.annotations.keys import BLKIO_LIMIT
from cri_proxy.isolation.disks import (
    FILES,
    BlockIoSection,
    Device,
    DiskCost,
    DiskShare,
    SeenDisks,
    cost_settings,
    is_same,
    read_limits,
    settings_of,
    treatments,
)
from cri_proxy.isolation.model import BATCH, STANDARD, IsolatedContainer
from policies.model import PlacementPreferences, Qos
from tests.scenes import make_container, make_pod

SDA = Device("/dev/sda", "8:0", scheduler="bfq")
SDA1 = Device("/dev/sda1", "8:0", "/dev/sda", "bfq")
NVME = Device("/dev/nvme0n1", "259:0")
DEVICES = {"/dev/sd?": (SDA,), "/dev/sda1": (SDA1,), "/dev/*": (NVME, SDA, SDA1), "/dev/nvme*": (NVME,)}
V2 = SeenDisks("/cg", True, DEVICES, frozenset(["259:0"]), True)
V1 = SeenDisks("/cg/blkio", False, DEVICES)
V2_FILES = ("io.max", "io.weight", "io.bfq.weight")
V1_FILES = ("blkio.throttle.read_bps_device", "blkio.bfq.weight", "blkio.bfq.weight_device")


def container(
    qos: Qos = Qos.BURSTABLE, cls: str = STANDARD, asked: str = "", limits: str = ""
) -> IsolatedContainer:
    pod = make_pod("c", annotations={BLKIO_LIMIT: limits})
    made = make_container("c", 1, qos=qos, pod=pod, preferences=PlacementPreferences(blockio_class=asked))
    return IsolatedContainer("c", "default/c/c", cls, "", frozenset({0}), container=made)


def wanted(
    shares: tuple[DiskShare, ...], seen: SeenDisks = V2, files: tuple[str, ...] = V2_FILES
) -> tuple[dict[str, str], set[str]]:
    notes: set[str] = set()
    (treatment,) = treatments(BlockIoSection({"slow": shares}), [container(asked="slow")], []).values()
    found = settings_of(treatment, "/cg/c", files, seen, notes)
    return {each.place.replace("file:/cg/c/", ""): each.value for each in found}, notes


# ---------------------------------------------------------------------- which class


ALL = BlockIoSection({name: (DiskShare(weight=10),) for name in ("slow", "Burstable", "batch", "BestEffort")})


@pytest.mark.parametrize(
    ("each", "cls"),
    [
        (container(asked="slow"), "slow"),
        (container(), "Burstable"),
        (container(Qos.GUARANTEED), None),
        (container(Qos.GUARANTEED, BATCH), "batch"),
        (container(Qos.BESTEFFORT, BATCH), "BestEffort"),
        (container(asked="Burstable"), "Burstable"),
    ],
)
def test_a_container_has_the_class_that_says_most_of_it(each: IsolatedContainer, cls: Any) -> None:
    found = treatments(ALL, [each], [])
    assert [one.why for one in found.values()] == (
        [f"default/c/c has the class {cls} of block I/O"] if cls else []
    )


def test_where_qos_classes_are_no_default_they_are_for_those_that_ask() -> None:
    section = BlockIoSection(ALL.classes, by_qos=False)
    assert treatments(section, [container()], []) == {}
    assert len(treatments(section, [container(asked="Burstable")], [])) == 1
    assert len(treatments(section, [container(Qos.BESTEFFORT, BATCH)], [])) == 1


def test_a_class_that_is_not_configured_is_told_and_the_rest_of_the_rule_counts() -> None:
    notes: list[str] = []
    (found,) = treatments(ALL, [container(asked="fast")], notes).values()
    assert found.names == ("the class Burstable of block I/O",)
    assert notes == [
        'the block I/O class "fast" is not configured: its containers are treated as if they did not ask for it'
    ]


# ---------------------------------------------------------------------- which values


def test_of_several_entries_the_last_counts_value_by_value() -> None:
    shares = (
        DiskShare(weight=100),
        DiskShare(("/dev/*",), 200, {"rbps": 5, "wiops": 7}),
        DiskShare(("/dev/sd?",), 300, {"rbps": 0}),
        DiskShare(weight=1000),
    )
    values, notes = wanted(shares)
    assert values == {
        "io.weight#default": "10000",
        "io.bfq.weight#default": "1000",
        "io.weight#259:0": "1920",
        "io.bfq.weight#8:0": "300",
        "io.max#259:0 rbps": "5",
        "io.max#259:0 wiops": "7",
        "io.max#8:0 rbps": "max",
        "io.max#8:0 wiops": "7",
    }
    assert notes == {"/dev/sda1 is a partition, which has no limits of its own: they are those of /dev/sda"}


def test_v1_has_a_file_a_limit_and_no_limit_is_zero() -> None:
    shares = (
        DiskShare(weight=50),
        DiskShare(("/dev/sd?",), 60, {"rbps": 5, "wbps": 6, "riops": 7, "wiops": 0}),
    )
    assert wanted(shares, V1, V1_FILES)[0] == {
        "blkio.bfq.weight": "50",
        "blkio.bfq.weight_device#8:0": "60",
        "blkio.throttle.read_bps_device#8:0": "5",
        "blkio.throttle.write_bps_device#8:0": "6",
        "blkio.throttle.read_iops_device#8:0": "7",
        "blkio.throttle.write_iops_device#8:0": "0",
    }


def test_operations_of_32_bits_are_no_limit_as_the_kernel_has_it() -> None:
    shares = (DiskShare(("/dev/sd?",), limits={"riops": 1 << 40, "rbps": 1 << 40}),)
    assert wanted(shares)[0] == {"io.max#8:0 riops": "max", "io.max#8:0 rbps": str(1 << 40)}
    assert wanted(shares, V1, V1_FILES)[0]["blkio.throttle.read_iops_device#8:0"] == "0"


def test_a_disk_without_a_scheduler_for_weights_has_none_and_it_is_told() -> None:
    values, notes = wanted((DiskShare(("/dev/nvme*",), 500),), SeenDisks("/cg", True, DEVICES))
    assert values == {}
    assert notes == {"/dev/nvme0n1 has no weights: its scheduler is none, expected bfq, or costs for iocost"}


def test_a_weight_of_blkios_is_given_to_io_weight_as_runc_does() -> None:
    # runc, libcontainer/cgroups: ConvertBlkIOToIOWeightValue.
    for weight, io in ((10, "1"), (11, "11"), (100, "910"), (500, "4950"), (1000, "10000")):
        assert wanted((DiskShare(weight=weight),), files=("io.weight",))[0] == {"io.weight#default": io}


def test_a_glob_that_names_nothing_now_sets_nothing() -> None:
    assert wanted((DiskShare(("/dev/vd*",), 50, {"rbps": 5}),)) == ({}, set())


# ---------------------------------------------------------------------- rubik's annotation


def test_the_annotation_counts_before_the_class_where_the_section_lists_it() -> None:
    text = json.dumps(
        {
            "device_read_bps": [{"device": "/dev/sda", "value": "10485760"}],
            "device_write_iops": [{"device": "259:0", "value": "100"}],
        }
    )
    each = container(asked="slow", limits=text)
    shares = (DiskShare(("/dev/sda",), limits={"rbps": 5, "wbps": 6}),)
    assert treatments(BlockIoSection({"slow": shares}), [each], [])["c"].shares == shares
    section = BlockIoSection({"slow": shares}, frozenset([BLKIO_LIMIT]))
    found = treatments(section, [each], [])["c"]
    assert found.why == f"default/c/c has the class slow of block I/O and the annotation {BLKIO_LIMIT}"
    seen = SeenDisks("/cg", True, {"/dev/sda": (SDA,), "259:0": (NVME,)})
    assert {each.place[11:]: each.value for each in settings_of(found, "/cg/c", V2_FILES, seen, set())} == {
        "io.max#8:0 rbps": "10485760",
        "io.max#8:0 wbps": "6",
        "io.max#259:0 wiops": "100",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "[]",
        "{",
        "[" * 100_000,
        '{"device_read_bps": 1}',
        '{"device_read_bps": [1]}',
        '{"device_read_bps": [{"device": "/dev/sda"}]}',
        '{"device_read_bps": [{"device": "/dev/sda", "value": "-1"}]}',
        '{"device_read_bps": [{"device": "/dev/sda", "value": true}]}',
        '{"device_read_bps": [{"device": "/dev/sda", "value": {}}]}',
        '{"device_read_bps": [{"device": "/dev/*", "value": "1"}]}',
        '{"device_read_bps": [{"device": "/dev/../mnt/nfs", "value": "1"}]}',
        '{"device_read_bps": [{"device": "/dev/a\\u0000b", "value": "1"}]}',
        '{"device_read_bps": [{"device": "8:", "value": "1"}]}',
        '{"weight": 10}',
        json.dumps({"device_read_bps": [{"device": "8:0", "value": "1"}] * 65}),
    ],
)
def test_an_annotation_that_says_something_else_is_one_sentence_and_nothing_of_it_counts(text: str) -> None:
    with pytest.raises(ValueError, match="^(a|no|in) "):
        read_limits(text)
    notes: list[str] = []
    each = container(limits=text)
    assert treatments(BlockIoSection(annotations=frozenset([BLKIO_LIMIT])), [each], notes) == {}
    assert len(notes) == (1 if text else 0) and all(len(note) < 400 for note in notes)


def test_of_annotations_that_are_wrong_a_few_are_told_and_the_rest_counted() -> None:
    notes: list[str] = []
    many = [
        replace(container(limits="x", asked=f"c{number}"), key=str(number), path=f"default/p{number}/c")
        for number in range(100)
    ]
    treatments(BlockIoSection(annotations=frozenset([BLKIO_LIMIT])), many, notes)
    assert len(notes) == 18 and notes[8] == notes[17] == "and 92 more like these"


# ---------------------------------------------------------------------- iocost


def test_costs_are_a_model_and_its_switch_and_the_kernel_writes_them_in_its_own_words() -> None:
    model = dict.fromkeys(("rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"), 7)
    section = BlockIoSection(costs=(DiskCost(("/dev/sda1",), model), DiskCost(("/dev/nvme*",))))
    found = {each.place: each.value for each in cost_settings(section, V2, set())}
    assert found == {
        "file:/cg/io.cost.model#8:0": "ctrl=user model=linear rbps=7 rseqiops=7 rrandiops=7 wbps=7 wseqiops=7 wrandiops=7",
        "file:/cg/io.cost.qos#8:0": "enable=1 ctrl=user min=100.00 max=100.00",
        "file:/cg/io.cost.qos#259:0": "enable=1 ctrl=user min=100.00 max=100.00",
    }
    shown = "enable=1 ctrl=user rpct=0.00 rlat=0 wpct=0.00 wlat=0 min=100.00 max=100.00"
    assert is_same(shown, found["file:/cg/io.cost.qos#8:0"])
    assert not is_same(shown.replace("min=100.00", "min=1.00"), found["file:/cg/io.cost.qos#8:0"])
    assert not is_same("enable=1 ctrl=auto", found["file:/cg/io.cost.qos#8:0"])


def test_a_kernel_without_iocost_is_told() -> None:
    notes: set[str] = set()
    assert list(cost_settings(BlockIoSection(costs=(DiskCost(("/dev/sda1",)),)), V1, notes)) == []
    assert notes == {"this kernel has no iocost: costs are not set (CONFIG_BLK_CGROUP_IOCOST)"}


def test_every_file_of_a_containers_is_known() -> None:
    assert set(V2_FILES) | set(V1_FILES) <= set(FILES)
