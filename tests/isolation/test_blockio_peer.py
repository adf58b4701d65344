"""goresctrl itself beside our reading of a ``blockio`` section: the same numbers for classes made up by chance."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.config.config import BadConfig, read_config
from cri_proxy.isolation.disks import FILES, BlockIoSection, SeenDisks, Treatment, globs, settings_of
from cri_proxy.isolation.io.disks import Disks
from cri_proxy.text.sources import SettingsSource
from tests.daemon.parts import parts
from tests.peers.programs import Unavailable, find

SEEDS = range(300)
#: Of the devices of this machine; the one that has none is the last.
GLOBS = ("/dev/loop[0-3]", "/dev/loop?", "/dev/[^l]da", "/dev/v*", "/dev/loop1", "/dev/null", "/dev/no*")
RIGHT = ("0", "10", "100", "999", "1000", "0.5", "1.5k", "1e3", "1E2", ".5M", "7.", "512Ki", "10M", "1Gi", "2T", "1500m",
         "3P", "1Ei", "100Mi", "+5", "2000u", "3n")  # fmt: skip
NUMBERS = (*RIGHT, "1001", "9", "-1", "1K", "1kb", "10 M", "0x10", "1e", "ten", "")
RATES = {
    "ThrottleReadBps": ("blkio.throttle.read_bps_device", "throttleReadBpsDevice"),
    "ThrottleWriteBps": ("blkio.throttle.write_bps_device", "throttleWriteBpsDevice"),
    "ThrottleReadIOPS": ("blkio.throttle.read_iops_device", "throttleReadIOPSDevice"),
    "ThrottleWriteIOPS": ("blkio.throttle.write_iops_device", "throttleWriteIOPSDevice"),
}
#: Operations of so many bits and more are no limit; goresctrl leaves that to the kernel.
MOST_IOPS = (1 << 32) - 1


@pytest.fixture(scope="module")
def goresctrl() -> Path:
    try:
        return find("goresctrl")["goresctrl"]
    except Unavailable as reason:
        pytest.skip(f"The numbers are goresctrl's: {reason}.")


def test_classes_have_the_numbers_that_goresctrl_gives(
    goresctrl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = [section_of_chance(random.Random(seed)) for seed in SEEDS]
    folders = []
    for number, section in enumerate(sections):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        (folders[-1] / "blockio.json").write_text(json.dumps(section))
    done = subprocess.run([goresctrl, *folders], capture_output=True, text=True, timeout=120, check=True)
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    disks = Disks(parts(tmp_path, monkeypatch), Path("/"))
    differ, refused = {}, 0
    for section, answer in zip(sections, theirs):
        ours = numbers_of(disks, section)
        if ours is None or "error" in answer:
            refused += 1
            if ours is not None or "error" not in answer:
                differ[json.dumps(section)] = answer, ours
            continue
        wanted = {name: flat(found) for name, found in answer.get("blockio", {}).items()}
        if ours != wanted:
            differ[json.dumps(section)] = wanted, ours
    assert differ == {}
    assert len(SEEDS) / 4 < refused < 3 * len(SEEDS) / 4


def section_of_chance(chance: random.Random) -> dict[str, Any]:
    # Most sections are right in all of their numbers.
    numbers = NUMBERS if chance.random() < 0.3 else NUMBERS[1:5]
    rates = NUMBERS if chance.random() < 0.3 else RIGHT
    classes = {}
    for name in chance.sample(["slow", "BestEffort", "fast"], chance.randrange(1, 4)):
        classes[name] = [entry_of_chance(chance, numbers, rates) for _ in range(chance.randrange(4))]
    return {"Classes": classes}


def entry_of_chance(chance: random.Random, weights: Any, rates: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if chance.random() < 0.7:
        entry["Devices"] = chance.sample(GLOBS, chance.randrange(3))
    if chance.random() < 0.5:
        entry["Weight"] = chance.choice(weights)
    for name in RATES:
        if ("Devices" in entry or chance.random() < 0.03) and chance.random() < 0.4:
            entry[name] = chance.choice(rates)
    return entry


def numbers_of(disks: Disks, document: dict[str, Any]) -> Optional[dict[str, dict[str, int]]]:
    """By class what we write on cgroup v1 with a scheduler for weights; None: the section is refused."""
    try:
        config = read_config([SettingsSource("test", values={"blockio": document})]).config
    except BadConfig:
        return None
    section = config["control.blockio"] or BlockIoSection()
    found = {}
    for name, shares in section.classes.items():
        treatment = Treatment(name, name, shares, (name,))
        known: dict[str, Any] = {}
        devices = {
            each: tuple(replace(device, scheduler="cfq") for device in disks._devices(each, known))
            for each in globs(section, [treatment])
        }
        files = [
            each for each in FILES if each.startswith("blkio.") and "bfq" not in each and "cost" not in each
        ]
        settings = settings_of(treatment, "", files, SeenDisks("/", False, devices), set())
        found[name] = {each.place[6:]: int(each.value) for each in settings}
    return found


def flat(told: dict[str, Any]) -> dict[str, int]:
    """The same of goresctrl's."""
    found = {"blkio.weight": told["weight"]} if "weight" in told else {}
    for each in told.get("weightDevice", ()):
        found[f"blkio.weight_device#{each['major']}:{each['minor']}"] = each["weight"]
    for name, (file, field) in RATES.items():
        for each in told.get(field, ()):
            rate = 0 if "IOPS" in name and each["rate"] >= MOST_IOPS else each["rate"]
            found[f"{file}#{each['major']}:{each['minor']}"] = rate
    return found
