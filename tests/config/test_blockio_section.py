"""The option ``control.blockio``: Intel's section is read as it is, and what is wrong has its line."""

from __future__ import annotations

import pytest

from cri_proxy.isolation.disks import BlockIoSection, DiskCost, DiskShare
from tests.config.configs import errors_of, read

CLASSES = """\
  Classes:
    slow:
    - Weight: 80
    - devices: ["/dev/disk/by-id/*SSD*", "/dev/sd?"]
      ThrottleReadBps: 50M
      throttlewritebps: 1Gi
      ThrottleReadIOPS: 1.5k
      ThrottleWriteIOPS: 0
      Weight: "50"
    none:
"""
OURS, INTEL = f"control:\n blockio:\n{CLASSES}", f"blockio:\n{CLASSES}"
NRI = f"kind: BalloonsPolicy\nspec:\n control:\n  blockio:\n{CLASSES}".replace("\n  ", "\n    ").replace(
    "    blockio", "  blockio"
)
COSTS = """\
control:
 blockio:
  annotations: [volcano.sh/blkio-limit]
  costs:
  - dev: sda
    model: linear
    param: {rbps: 174M, rseqiops: 41708, rrandiops: 370, wbps: 178075866, wseqiops: 42705, wrandiops: 378}
  - devices: [/dev/nvme*n1, "8:16"]
    qos: {rpct: 95, rlat: 2500, min: 50, max: 150.5}
"""


def section(text: str) -> BlockIoSection:
    found = read(text).config["control.blockio"]
    assert isinstance(found, BlockIoSection)
    return found


@pytest.mark.parametrize("text", [OURS, INTEL, NRI], ids=["ours", "Intel's", "nri-plugins'"])
def test_classes_are_read_wherever_they_stand_and_shown_as_the_same(text: str) -> None:
    devices = ("/dev/disk/by-id/*SSD*", "/dev/sd?")
    limits = {"rbps": 50_000_000, "wbps": 1 << 30, "riops": 1500, "wiops": 0}
    assert section(text).classes == {
        "slow": (DiskShare(weight=80), DiskShare(devices, 50, limits)),
        "none": (),
    }
    shown = {key: value for key, value, _ in read(text).config.show()}["control.blockio"]
    assert section(f"control: {{blockio: {shown}}}") == section(text)
    assert read(f"{text}isolation: {{disks: observe}}\n", strict=True).warnings == ()


def test_costs_and_annotations_are_ours() -> None:
    found = section(COSTS)
    assert found.annotations == {"volcano.sh/blkio-limit"}
    assert found.costs == (
        DiskCost(
            ("/dev/sda",),
            {
                "rbps": 174_000_000,
                "rseqiops": 41708,
                "rrandiops": 370,
                "wbps": 178075866,
                "wseqiops": 42705,
                "wrandiops": 378,
            },
        ),
        DiskCost(
            ("/dev/nvme*n1", "8:16"), qos={"rpct": "95.00", "rlat": "2500", "min": "50.00", "max": "150.50"}
        ),
    )


@pytest.mark.parametrize("text", ["control: {blockio: {}}", "blockio:", ""])
def test_an_empty_section_is_none(text: str) -> None:
    assert read(text).config["control.blockio"] is None


def test_nri_plugins_switch_counts_and_its_section_has_no_classes() -> None:
    off = section(OURS.replace("Classes:", "enable: false\n  Classes:"))
    assert not off.has_classes
    named = section("spec: {control: {blockio: {enable: true, usePodQoSAsDefaultClass: false}}}")
    assert not named.has_classes and not named.by_qos


ODD = {
    "no quantity": ("{Weight: heavy}", 'Weight is "heavy", expected a number from 10 to 1000'),
    "too little weight": ("{Weight: 9}", 'Weight is "9", expected a number from 10 to 1000'),
    "too much weight": ("{Weight: 1001}", 'Weight is "1001", expected a number from 10 to 1000'),
    "a unit of time": (
        "{Devices: [/dev/sda], ThrottleReadBps: 10MB/s}",
        'ThrottleReadBps is "10MB/s", expected a number such as 10M or 1Gi',
    ),
    "a negative rate": (
        "{Devices: [/dev/sda], ThrottleReadBps: -1}",
        'ThrottleReadBps is "-1", expected a number such as 10M or 1Gi',
    ),
    "limits of all disks": ("{ThrottleReadBps: 1M}", " has limits and no Devices, expected both"),
    "no device": (
        "{Devices: [sda]}",
        'Devices is ["sda"], expected paths or globs below /dev, or numbers such as 8:0',
    ),
    "a path that leaves /dev": (
        "{Devices: [/dev/../mnt/x]}",
        'Devices is ["/dev/../mnt/x"], expected paths or globs below /dev, or numbers such as 8:0',
    ),
    "a list in a list": ("[]", " has empty, expected mappings"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_wrong_has_its_line(case: str) -> None:
    value, sentence = ODD[case]
    told = errors_of(f"blockio:\n Classes:\n  slow:\n  - {value}\n")
    separator = "" if sentence.startswith(" ") else "."
    assert len(told) == 1 and told[0].startswith("c.yaml:4: blockio.Classes.slow")
    assert told[0].endswith(f"blockio.Classes.slow{separator}{sentence}") or case == "a list in a list"


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        ("[{dev: sda, model: quadratic}]", 'model is "quadratic", expected linear, which is the only model'),
        ("[{model: linear}]", "costs has no dev or devices, expected one of them"),
        ("[{dev: sda, param: {rbps: 1}}]", "param has rbps, expected all of rbps, rseqiops"),
        ("[{dev: sda, param: {rbps: 0}}]", 'rbps is "0", expected a number'),
        ("[{dev: sda, qos: {rpct: 101}}]", 'rpct is "101", expected a number from 0 to 100'),
        ("[{dev: sda, qos: {min: nan}}]", 'min is "nan", expected a number from 0 to 10000'),
    ],
)
def test_costs_that_no_kernel_takes_are_refused(costs: str, sentence: str) -> None:
    told = errors_of(f"control: {{blockio: {{costs: {costs}}}}}")
    assert sentence in told[0]


def test_other_annotations_and_keys_are_told() -> None:
    assert errors_of("control: {blockio: {annotations: [a.b/c]}}") == (
        'c.yaml:1: control.blockio.annotations is ["a.b/c"], expected a list with volcano.sh/blkio-limit, or nothing in it',
    )
    assert errors_of("blockio: {Klasses: {}}", strict=True) == ("c.yaml:1: unknown key blockio.Klasses",)


def test_classes_that_nothing_writes_are_told_once() -> None:
    assert read(INTEL).warnings == (
        "c.yaml:1 (blockio): control.blockio has classes, and isolation.disks is off: nothing is written for them",
    )
