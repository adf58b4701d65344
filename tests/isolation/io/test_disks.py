"""Block I/O on this machine's kernel: real loop devices in real cgroups, devices that come and go, the way back."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy import effects
from cri_proxy.config.config import read_config
from cri_proxy.isolation.io.disks import Disks
from cri_proxy.isolation.io.originals import FILE_NAME, Originals, put_back
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.io.writer import Outcome, Writer
from cri_proxy.isolation.model import STANDARD, IsolatedContainer
from cri_proxy.isolation.plan import Plan
from cri_proxy.node.cgroups import Cgroups, own_cgroup
from cri_proxy.text.sources import SettingsSource
from policies.model import PlacementPreferences
from tests.daemon.parts import parts
from tests.e2e.cgroups import remove_cgroup
from tests.isolation.kernel import KernelModel
from tests.machines import HYGON_7285_2S
from tests.scenes import make_container, make_pod, topology

END_S = 20.0
#: linux/blkpg.h, linux/loop.h.
BLKPG = 0x1269
ADD, REMOVE, SET_FD, CLEAR_FD, SET_STATUS, PARTSCAN = 0x4C80, 0x4C81, 0x4C00, 0x4C01, 0x4C04, 8
MIB = 1 << 20
RATE, READ = MIB, MIB // 2
#: What a group may have at once beyond its rate: some slices of a tenth of a second (blk-throttle.c).
SLACK = RATE // 2

#: Reads a device past the page cache, in a cgroup; says how many seconds that took.
READER = """
import mmap, os, sys, time
device, procs, size = sys.argv[1:]
with open(procs, "w") as file:
    file.write("0")
block, file = mmap.mmap(-1, 4096), os.open(device, os.O_RDONLY | os.O_DIRECT)
begun = time.monotonic()
for at in range(0, int(size), 4096):
    os.preadv(file, [block], at)
print(time.monotonic() - begun)
"""


class Loop:
    """A loop device of its own number, with one partition; gone at the end."""

    def __init__(self, folder: Path) -> None:
        self._control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        self.number = 100 + os.getpid() % 900
        self._file = folder / "disk"
        with self._file.open("wb") as file:
            file.truncate(8 * MIB)
        self.add()

    @property
    def path(self) -> str:
        return f"/dev/loop{self.number}"

    @property
    def numbers(self) -> str:
        return (Path("/sys/block") / self.path[5:] / "dev").read_text().strip()

    def add(self) -> None:
        fcntl.ioctl(self._control, ADD, self.number)
        device, file = os.open(self.path, os.O_RDWR), os.open(self._file, os.O_RDWR)
        try:
            fcntl.ioctl(device, SET_FD, file)
            status = bytearray(232)  # struct loop_info64
            status[52:56] = PARTSCAN.to_bytes(4, sys.byteorder)
            fcntl.ioctl(device, SET_STATUS, bytes(status))
            # struct blkpg_partition: start, length, number; not every kernel reads a table of partitions.
            partition = ctypes.create_string_buffer(struct.pack("qqi", 4096, 4 * MIB, 1), 152)
            fcntl.ioctl(device, BLKPG, struct.pack("iiiP", 1, 0, 152, ctypes.addressof(partition)))
        finally:
            os.close(file)
            os.close(device)

    def remove(self) -> None:
        device = os.open(self.path, os.O_RDWR)
        fcntl.ioctl(device, CLEAR_FD)
        os.close(device)
        deadline_s = time.monotonic() + END_S
        while True:
            try:
                fcntl.ioctl(self._control, REMOVE, self.number)
                return
            except OSError:  # what opened it has not quite closed it
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.remove()
        os.close(self._control)


class Node:
    """One container's cgroup, and a daemon's subject and writer; ``restart``: another daemon."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, root: Path, is_v2: bool) -> None:
        self.folder, self.root, self.is_v2 = folder, root, is_v2
        self.services = parts(folder, monkeypatch)
        self.services = replace(self.services, cgroups=Cgroups(Path("/sys/fs/cgroup")))
        self.key = f"{os.getpid():064x}"
        self.cgroup = f"/crm-disks-{self.key}"
        (root / self.cgroup[1:]).mkdir()
        self.cls, self.section = "slow", {}
        self.now_s = 0.0
        self.restart()

    def restart(self) -> None:
        self.subject = Disks(self.services, Path("/"))
        self.originals = Originals(self.folder, "boot")
        self.originals.load()
        self.writer = Writer(KernelModel({}), self.originals, lambda: self.now_s, [self.subject])

    def look(self, section: Optional[Mapping[str, Any]] = None) -> Outcome:
        self.section = self.section if section is None else section
        self.now_s += 1000.0
        preferences = PlacementPreferences(blockio_class=self.cls)
        made = make_container("c", 1, pod=make_pod("c"), preferences=preferences)
        each = IsolatedContainer(self.key, made.path, STANDARD, "", frozenset({0}), container=made)
        source = SettingsSource("test", values={"control": {"blockio": self.section}})
        sight = Sight([each], {self.key: self.cgroup}, topology(HYGON_7285_2S), read_config([source]).config)
        return self.writer.apply(Plan(files=tuple(self.subject.settings(sight))))

    def lines(self, name: str) -> dict[str, str]:
        """A file of the cgroup's, by device."""
        text = (self.root / self.cgroup[1:] / name).read_text()
        return {line.split()[0]: line.partition(" ")[2] for line in text.splitlines()}

    @property
    def limits(self) -> dict[str, str]:
        """What is limited by reads of bytes."""
        if self.is_v2:
            return {
                number: words.split()[0].partition("=")[2] for number, words in self.lines("io.max").items()
            }
        return self.lines("blkio.throttle.read_bps_device")

    def write(self, number: str, rate: int) -> None:
        """Another program limits it."""
        name, value = (
            ("io.max", f"rbps={rate}") if self.is_v2 else ("blkio.throttle.read_bps_device", str(rate))
        )
        (self.root / self.cgroup[1:] / name).write_text(f"{number} {value}\n")

    def read(self, device: str, size: int) -> float:
        """Read so much of a device in the cgroup; how many seconds that took."""
        procs = str(self.root / self.cgroup[1:] / "cgroup.procs")
        done = subprocess.run(
            [sys.executable, "-S", "-c", READER, device, procs, str(size)],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return float(done.stdout)

    def read_bytes(self, number: str) -> int:
        """What the kernel has counted."""
        if self.is_v2:
            words = self.lines("io.stat").get(number, "").split()
            return sum(int(word[7:]) for word in words if word.startswith("rbytes="))
        text = (self.root / self.cgroup[1:] / "blkio.throttle.io_service_bytes").read_text()
        return sum(int(line.split()[2]) for line in text.splitlines() if line.startswith(f"{number} Read"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    root, is_v2 = Cgroups(Path("/sys/fs/cgroup")).block_io()
    if os.geteuid() or root is None:
        pytest.skip("It needs root and a hierarchy with block I/O.")
    if is_v2 and "io" not in (root / "cgroup.subtree_control").read_text().split():
        pytest.skip("The controller io is not on below the root.")
    made = Node(tmp_path, monkeypatch, root, is_v2)
    try:
        yield made
    finally:
        remove_cgroup(root / made.cgroup[1:], time.monotonic() + END_S)


@pytest.fixture
def loop(tmp_path: Path, node: Node) -> Iterator[Loop]:
    try:
        made = Loop(tmp_path)
    except OSError as reason:
        pytest.skip(f"There are no loop devices: {reason}.")
    try:
        yield made
    finally:
        made.close()


def slow(*devices: str, **limits: object) -> dict[str, Any]:
    return {"classes": {"slow": [{"devices": list(devices), **(limits or {"throttleReadBps": RATE})}]}}


def test_what_a_limited_container_reads_is_bounded_by_its_rate(node: Node, loop: Loop) -> None:
    free_s = node.read(loop.path, READ)
    assert node.look(slow(loop.path)).refusals == ()
    assert node.limits == {loop.numbers: str(RATE)}
    before = node.read_bytes(loop.numbers)
    limited_s = node.read(loop.path, READ + SLACK)
    assert node.read_bytes(loop.numbers) - before == READ + SLACK
    # However slow the machine is: more than its rate in that time no container has.
    assert RATE * limited_s + SLACK >= READ + SLACK
    print(f"{READ >> 10} KiB free in {free_s:.3f} s, {READ + SLACK >> 10} KiB limited in {limited_s:.3f} s")


def test_only_differences_are_written_and_drift_is_written_again(node: Node, loop: Loop) -> None:
    node.look(slow(loop.path))
    assert node.look().writes == {}
    node.write(loop.numbers, 7)
    outcome = node.look()
    assert node.limits == {loop.numbers: str(RATE)} and list(outcome.drift.values()) == [1]
    node.restart()
    assert node.look().writes == {}


@pytest.mark.parametrize("before", [0, 4096])
def test_all_is_as_before_when_a_class_ends_and_without_a_daemon(node: Node, loop: Loop, before: int) -> None:
    if before:
        node.write(loop.numbers, before)
    had = node.limits
    node.look(slow(loop.path))
    assert node.look({}).is_clean and node.limits == had
    node.look(slow(loop.path, throttleReadBps=RATE, throttleWriteIOPS=9))
    assert node.limits == {loop.numbers: str(RATE)}
    boot = node.folder / "boot_id"
    boot.write_text("boot\n")
    assert put_back(node.folder, KernelModel({}), boot) == []
    assert node.limits == had and not (node.folder / FILE_NAME).exists()


def test_a_limit_that_a_class_does_not_name_any_more_is_put_back_and_others_stay(
    node: Node, loop: Loop
) -> None:
    node.look(slow(loop.path, throttleReadBps="1M", throttleWriteBps="2M"))
    node.look(slow(loop.path, throttleWriteBps="2M", throttleReadIOPS=5))
    assert set(node.limits.values()) <= {"max"}
    node.write(loop.numbers, 77)
    node.look({})
    assert node.limits == {loop.numbers: "77"}  # what others have set in a place that was not ours


def test_devices_are_followed_as_they_come_and_go(node: Node, loop: Loop) -> None:
    section, numbers = slow(f"{loop.path[:-1]}?"), loop.numbers
    assert node.look(section).refusals == () and node.limits == {numbers: str(RATE)}
    loop.remove()
    outcome = node.look()
    assert outcome.refusals == () and outcome.drift == {} and outcome.is_clean
    loop.add()
    outcome = node.look()
    assert outcome.refusals == () and outcome.drift == {} and node.limits == {numbers: str(RATE)}
    assert node.look({}).is_clean and node.limits == {}


def test_a_device_or_a_cgroup_that_goes_between_look_and_write_is_no_refusal(node: Node, loop: Loop) -> None:
    def of(path: str) -> Plan:
        from cri_proxy.isolation.model import Setting

        place = f"file:{node.root}{path}#{loop.numbers}{' rbps' if node.is_v2 else ''}"
        return Plan(files=(Setting("disks", place, "77"),))

    name = "io.max" if node.is_v2 else "blkio.throttle.read_bps_device"
    plan, ended = of(f"{node.cgroup}/{name}"), of(f"{node.cgroup}-ended/{name}")
    loop.remove()
    for each in (plan, ended):
        outcome = node.writer.apply(each)
        assert outcome.refusals == () and outcome.drift == {}
    loop.add()
    node.now_s += 1
    assert node.writer.apply(plan).refusals == () and node.limits == {loop.numbers: "77"}


def test_a_partition_is_limited_with_its_disk_and_links_are_followed(
    node: Node, loop: Loop, tmp_path: Path
) -> None:
    partition = f"{loop.path}p1"
    link = Path(f"/dev/crm-disks-{os.getpid()}")
    link.symlink_to(partition)
    try:
        assert node.look(slow(f"{link}*")).refusals == ()
    finally:
        link.unlink()
    assert node.limits == {loop.numbers: str(RATE)}
    assert node.subject.notes() == (
        f"{partition} is a partition, which has no limits of its own: they are those of {loop.path}",
    )


def test_weights_are_set_where_the_scheduler_has_them(node: Node, loop: Loop) -> None:
    scheduler = Path(f"/sys/block/{loop.path[5:]}/queue/scheduler")
    weighted = {"classes": {"slow": [{"weight": 60}, {"devices": [loop.path], "weight": 50}]}}
    if "bfq" not in scheduler.read_text():
        pytest.skip("This kernel has no bfq.")
    name = "io.bfq.weight" if node.is_v2 else "blkio.bfq.weight_device"
    scheduler.write_text("none")
    assert node.look(weighted).refusals == ()
    assert node.subject.notes() == (
        f"{loop.path} has no weights: its scheduler is none, expected bfq, or costs for iocost",
    )
    scheduler.write_text("bfq")
    assert node.look().refusals == () and node.subject.notes() == ()
    assert node.lines(name)[loop.numbers] == "50"
    assert node.lines(name)["default"] == "60"
    assert node.look({}).is_clean
    assert node.lines(name) == {"default": "100"}


def test_weights_of_a_scheduler_that_is_gone_are_nothing_to_put_back(node: Node, loop: Loop) -> None:
    scheduler = Path(f"/sys/block/{loop.path[5:]}/queue/scheduler")
    if "bfq" not in scheduler.read_text():
        pytest.skip("This kernel has no bfq.")
    scheduler.write_text("bfq")
    name = "io.bfq.weight" if node.is_v2 else "blkio.bfq.weight_device"
    file = node.root / node.cgroup[1:] / name
    file.write_text(f"{loop.numbers} 300\n")
    node.look({"classes": {"slow": [{"devices": [loop.path], "weight": 50}]}})
    assert node.lines(name)[loop.numbers] == "50"
    scheduler.write_text("none")
    outcome = node.look({})
    assert outcome.refusals == () and outcome.is_clean
    scheduler.write_text("bfq")
    assert loop.numbers not in node.lines(name)


def test_what_is_no_block_device_is_none(node: Node) -> None:
    assert node.look(slow("/dev/null", "/dev/no-such*", "999:999", "/dev/disk/by-id/*")).refusals == ()
    assert node.limits == {} and node.subject.notes() == ()


def test_a_cgroup_without_the_controller_is_told_once_for_all(node: Node, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory\n")
    (tmp_path / node.cgroup[1:]).mkdir()
    node.services = replace(node.services, cgroups=Cgroups(tmp_path))
    node.restart()
    assert node.look(slow("/dev/null")).refusals == ()
    assert node.subject.notes() == (
        "default/c/c has no block I/O to limit: its cgroup has not the controller io (cri-resmgr doctor)",
    )


# ---------------------------------------------------------------------- whatever happens


SEEDS = int(os.environ.get("CRI_RESMGR_SEEDS", "3"))
STEPS = 40


class Killed(Exception):
    """The daemon ends just before an effect."""


class Story:
    """What happens to one container's limits of reads on one device. ``others``: what other programs have set there."""

    def __init__(self, node: Node, loop: Loop, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.loop, self.chance, self._monkeypatch = node, loop, random.Random(seed), monkeypatch
        self.numbers, self.others, self.is_there = loop.numbers, "", True

    def configure(self) -> None:
        rates = self.chance.sample(["throttleReadBps", "throttleWriteBps", "throttleReadIOPS"], 2)
        glob = self.chance.choice([self.loop.path, f"{self.loop.path[:-1]}[0-9]", f"{self.loop.path}p*"])
        entry = {rate: self.chance.choice(["1M", "3M", 0]) for rate in rates}
        self.node.cls = self.chance.choice(["slow", "slow", "other"])
        self.node.section = (
            {"classes": {"slow": [{"devices": [glob], **entry}]}} if self.chance.random() < 0.8 else {}
        )

    def plug(self) -> None:
        if self.is_there:
            self.loop.remove()
            self.others = ""
        else:
            self.loop.add()
        self.is_there = not self.is_there

    def write(self) -> None:
        """Another program writes: what is put back is what was there before ours."""
        if self.is_there:
            rate = self.chance.randrange(2, 1000)
            self.node.write(self.numbers, rate)
            is_ours = any(
                f"#{self.numbers}" in place and self._is_of_reads(place)
                for place in self.node.originals.values
            )
            self.others = self.others if is_ours else str(rate)

    def _is_of_reads(self, place: str) -> bool:
        return place.endswith(" rbps") or "read_bps" in place

    def look(self) -> None:
        """A round, in every third of which the daemon is killed before one of its effects."""
        left = self.chance.randrange(1, 6) if self.chance.random() < 0.33 else 0
        if left:

            def before(kind: str, about: str) -> None:
                nonlocal left
                left -= 1
                if left <= 0:
                    raise Killed

            self._monkeypatch.setattr(effects, "before", before)
            with contextlib.suppress(Killed):
                self.node.look()
            self._monkeypatch.setattr(effects, "before", lambda kind, about: None)
            self.node.restart()
        self.holds()

    def holds(self) -> None:
        outcome = self.node.look()
        assert outcome.refusals == ()
        wanted = self.wanted() if self.is_there else ""
        expected = wanted or self.others
        if self.is_there and expected not in ("0", ""):
            assert self.node.limits == {self.numbers: expected}
        else:
            assert self.node.limits.get(self.numbers, "max") == "max"

    def wanted(self) -> str:
        """What the class says of reads; "" = nothing."""
        entries = self.node.section.get("classes", {}).get("slow", []) if self.node.cls == "slow" else []
        rate = entries[0].get("throttleReadBps", "") if entries else ""
        return str(rate).replace("M", "000000")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_the_kernel_has_what_is_wanted_and_in_the_end_what_others_have_set(
    node: Node, loop: Loop, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(node, loop, seed, monkeypatch)
    for _ in range(STEPS):
        story.chance.choice([story.configure, story.plug, story.write])()
        story.look()
    boot = node.folder / "boot_id"
    boot.write_text("boot\n")
    assert put_back(node.folder, KernelModel({}), boot) == []
    assert {value for value in node.limits.values() if value != "max"} == ({story.others} - {""})
    assert not (node.folder / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/kubepods/pod1/abc", "/kubepods/pod1/abc"),
        ("/k/cri-containerd-abc.scope", "/k/cri-containerd-abc.scope"),
        ("/k/crio-abc.scope/container", "/k/crio-abc.scope"),
        ("/elsewhere/x", "/elsewhere/x"),
    ],
)
def test_limits_are_of_the_containers_own_cgroup(path: str, own: str) -> None:
    assert own_cgroup(path, "abc") == own
