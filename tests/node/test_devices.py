"""The NUMA nodes of devices and of disks behind mounts, from a sysfs and a mountinfo like the kernel's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.node.devices import Devices
from policies.machine.topology import Topology
from policies.model import Hint
from tests.machines import HYGON_7285_2S, MONOLITHIC_2S, ONE_CPU, machine, write_sysfs

GPU, DISK, UNTOLD, LISTED = "0000:41:00.0", "0000:61:00.0", "0000:71:00.0", "0000:81:00.0"
NULL = "/dev/null"
NUMBER = os.stat(NULL).st_rdev
#: A create waits half a second for its hints and goes on without them; a busy machine takes longer.
HANG_S = 60.0


class Tree:
    """A sysfs in which GPU is near node 3 and DISK near node 5; UNTOLD and LISTED have -1."""

    def __init__(self, folder: Path, name: str = HYGON_7285_2S) -> None:
        data = replace(machine(name), devices={GPU: 3, DISK: 5, UNTOLD: -1, LISTED: -1})
        self.sys = write_sysfs(data, folder)
        self.proc = folder / "proc"
        # As read_sysfs does, whatever is known of PCI addresses apart, so that the files themselves are looked at.
        self.topology = Topology(replace(data, devices={}))
        (self.pci(LISTED) / "local_cpulist").write_text("8-11,72-75\n")
        (self.proc / "self").mkdir(exist_ok=True)
        (self.proc / "self/mountinfo").write_text("")

    def pci(self, address: str) -> Path:
        return self.sys / "devices/pci0000:00" / address

    def add(self, kind: str, number: str, place: str, **files: str) -> Path:
        """A device at ``place`` below sys/devices, found by its number."""
        folder = self.sys / "devices" / place
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
        for link in (self.sys / "dev" / kind / number, self.sys / f"class/{kind}" / folder.name):
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(folder)
        return folder

    def mount(self, point: str, number: str, source: str = "/dev/x", kind: str = "ext4") -> None:
        with (self.proc / "self/mountinfo").open("a") as file:
            file.write(f"36 35 {number} / {point} rw,noatime shared:1 - {kind} {source} rw\n")

    def devices(self) -> Devices:
        return Devices(self.sys, self.proc, HANG_S)

    def nodes(self, kind: str, path: str) -> set[int]:
        return set(self.devices().look_up([(kind, path)], self.topology)[kind, path])


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def char(tree: Tree, place: str, **files: str) -> None:
    """What /dev/null is here."""
    tree.add("char", f"{os.major(NUMBER)}:{os.minor(NUMBER)}", place, **files)


def vfio(tree: Tree, *addresses: str) -> None:
    for address in addresses:
        link = tree.sys / "kernel/iommu_groups/12/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tree.pci(address))


DEVICES: list[tuple[str, Callable[[Tree], Any], str, set[int]]] = [
    ("below a PCI device", lambda t: char(t, f"pci0000:00/{GPU}/drm/renderD128"), NULL, {3}),
    ("with a node of its own", lambda t: char(t, f"pci0000:00/{GPU}/x", numa_node="1"), NULL, {1}),
    ("the kernel was not told", lambda t: char(t, f"pci0000:00/{UNTOLD}/x"), NULL, set()),
    ("only its CPUs are told", lambda t: char(t, f"pci0000:00/{LISTED}/x"), NULL, {1}),
    ("virtual", lambda t: char(t, "virtual/mem/null"), NULL, set()),
    ("a node there is not", lambda t: char(t, "x", numa_node="99"), NULL, set()),
    ("garbage", lambda t: char(t, "x", numa_node="near"), NULL, set()),
    ("not in sysfs", lambda t: None, NULL, set()),
    ("not there", lambda t: None, "/dev/no-such-device", set()),
    ("a folder", lambda t: None, "/dev", set()),
    ("not below /dev", lambda t: None, "/mnt/device", set()),
    ("a VFIO group", lambda t: vfio(t, GPU), "/dev/vfio/12", {3}),
    ("of two devices", lambda t: vfio(t, GPU, DISK), "/dev/vfio/12", {3, 5}),
    ("a VFIO group there is not", lambda t: None, "/dev/vfio/13", set()),
    ("named by its address", lambda t: None, GPU, {3}),
    ("named by its path in sysfs", lambda t: None, f"/sys/bus/pci/devices/{GPU}", {3}),
    ("an address there is not", lambda t: None, "0000:99:00.0", set()),
]


@pytest.mark.parametrize(
    ("make", "path", "nodes"), [case[1:] for case in DEVICES], ids=[case[0] for case in DEVICES]
)
def test_what_a_device_is_near(tree: Tree, make: Callable[[Tree], Any], path: str, nodes: set[int]) -> None:
    make(tree)
    assert tree.nodes("devices", path) == nodes


def disk(tree: Tree, name: str = "nvme0n1", number: str = "259:0", address: str = DISK) -> str:
    place = f"pci0000:00/{address}/nvme/nvme0/{name}"
    tree.add("block", number, place)
    return place


def partition(tree: Tree) -> None:
    tree.add("block", "259:1", disk(tree) + "/nvme0n1p1", partition="1")
    tree.mount("/data", "259:1")


def mapped(tree: Tree, *addresses: str) -> None:
    """A logical volume on partitions of disks at these addresses."""
    for index, address in enumerate(addresses):
        place = disk(tree, f"sd{index}", f"8:{index}", address)
        tree.add("block", f"8:1{index}", f"{place}/sd{index}1", partition="1")
        link = tree.sys / f"devices/virtual/block/dm-0/slaves/sd{index}1"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tree.sys / "devices" / place / f"sd{index}1")
    tree.add("block", "253:0", "virtual/block/dm-0")
    tree.mount("/data", "253:0", "/dev/mapper/vg-data")


def multipath(tree: Tree) -> None:
    """NVMe as the kernel shows it with multipath: the disk is virtual, the controllers are beside it."""
    controller = tree.add("char", "250:0", f"pci0000:00/{DISK}/nvme/nvme0")
    folder = tree.add("block", "259:0", "virtual/nvme-subsystem/nvme-subsys0/nvme0n1")
    (folder.parent / "nvme0").symlink_to(controller)
    tree.mount("/data", "259:0")


def looped(tree: Tree) -> None:
    folder = tree.add("block", "253:0", "virtual/block/dm-0")
    (folder / "slaves").mkdir()
    (folder / "slaves/dm-0").symlink_to(folder)
    tree.mount("/data", "253:0")


def nested(tree: Tree) -> None:
    disk(tree)
    tree.add("block", "8:0", f"pci0000:00/{GPU}/sda")
    tree.mount("/", "8:0")
    tree.mount("/data", "8:0")
    tree.mount("/data/fast", "259:0")


def covered(tree: Tree) -> None:
    tree.add("block", "8:0", f"pci0000:00/{GPU}/sda")
    disk(tree)
    tree.mount("/data", "8:0")
    tree.mount("/data", "259:0")


MOUNTS: list[tuple[str, Callable[[Tree], Any], str, set[int]]] = [
    ("a disk", lambda t: (disk(t), t.mount("/data", "259:0")), "/data", {5}),
    ("a folder on it", lambda t: (disk(t), t.mount("/data", "259:0")), "/data/a/b", {5}),
    ("a neighbour of the same beginning", lambda t: (disk(t), t.mount("/data", "259:0")), "/database", set()),
    ("a partition", partition, "/data", {5}),
    ("the innermost mount", nested, "/data/fast/x", {5}),
    ("not the innermost", nested, "/data/slow", {3}),
    ("the root's disk", nested, "/srv", {3}),
    ("dots in the path", nested, "/data/slow/../fast/x", {5}),
    ("the mount on top of another", covered, "/data", {5}),
    ("a logical volume", lambda t: mapped(t, DISK), "/data", {5}),
    ("a volume over two disks", lambda t: mapped(t, GPU, DISK), "/data", {3, 5}),
    ("a volume on itself", looped, "/data", set()),
    ("NVMe multipath", multipath, "/data", {5}),
    ("btrfs", lambda t: (disk(t), t.mount("/data", "0:50", "/dev/nvme0n1", "btrfs")), "/data", {5}),
    ("memory", lambda t: t.mount("/data", "0:51", "tmpfs", "tmpfs"), "/data", set()),
    ("of another machine", lambda t: t.mount("/data", "0:52", "server:/nvme0n1", "nfs4"), "/data", set()),
    ("a blank in its name", lambda t: (disk(t), t.mount(r"/my\040data", "259:0")), "/my data/x", {5}),
    ("nothing is mounted", lambda t: None, "/data", set()),
    ("a line that is cut", lambda t: (t.proc / "self/mountinfo").write_text("36 35\n"), "/data", set()),
    ("no mountinfo", lambda t: (t.proc / "self/mountinfo").unlink(), "/data", set()),
]


@pytest.mark.parametrize(
    ("make", "path", "nodes"), [case[1:] for case in MOUNTS], ids=[case[0] for case in MOUNTS]
)
def test_what_a_mount_is_near(tree: Tree, make: Callable[[Tree], Any], path: str, nodes: set[int]) -> None:
    make(tree)
    assert tree.nodes("mounts", path) == nodes


@pytest.mark.parametrize(("name", "nodes"), [(ONE_CPU, set()), (MONOLITHIC_2S, {0})])
def test_where_there_is_one_node_everything_is_near_it_and_nothing_a_hint(
    name: str, nodes: set[int], tmp_path: Path
) -> None:
    tree = Tree(tmp_path, name)
    char(tree, "x", numa_node="0")
    assert tree.nodes("devices", NULL) == nodes


# ---------------------------------------------------------------------- on the way of a create


async def test_the_hints_of_a_container(tree: Tree) -> None:
    char(tree, f"pci0000:00/{GPU}/x")
    partition(tree)
    uses = (("devices", NULL), ("devices", "/dev/no-such-device"), ("mounts", "/data/x"))
    assert await tree.devices().hints(uses, tree.topology) == (
        Hint("devices", NULL, frozenset([3])),
        Hint("mounts", "/data/x", frozenset([5])),
    )


async def test_what_was_found_is_remembered_until_the_machine_changes(tree: Tree) -> None:
    char(tree, f"pci0000:00/{GPU}/x")
    uses, devices = (("devices", NULL),), tree.devices()
    first = await devices.hints(uses, tree.topology)
    (tree.pci(GPU) / "numa_node").write_text("4")
    assert await devices.hints(uses, tree.topology) == first
    [hint] = await devices.hints(uses, Topology(tree.topology.data))
    assert hint.nodes == {4}


@pytest.mark.parametrize("sysfs", [True, False])
async def test_what_the_topology_tells_of_an_address_needs_no_files(tree: Tree, sysfs: bool) -> None:
    devices = Devices(tree.sys / "nowhere" if sysfs else None, tree.proc, HANG_S)
    told = Topology(replace(tree.topology.data, devices={GPU: 6}))
    [hint] = await devices.hints((("devices", GPU), ("devices", NULL)), told)
    assert hint == Hint("devices", GPU, frozenset([6]))


async def test_a_create_does_not_wait_for_a_machine_that_hangs(tree: Tree) -> None:
    hang = threading.Event()

    class Hanging(Devices):
        def look_up(self, uses: Any, topology: Optional[Topology]) -> Any:
            hang.wait()
            return {}

    try:
        assert (
            await Hanging(tree.sys, tree.proc, wait_s=0.01).hints((("devices", NULL),), tree.topology) == ()
        )
    finally:
        hang.set()


async def test_not_more_is_remembered_than_a_node_needs(tree: Tree) -> None:
    devices = Devices(tree.sys, tree.proc, remembered=10)
    for number in range(50):
        await devices.hints((("mounts", f"/pods/{number}"),), tree.topology)
    assert len(devices._known) <= 10


# ---------------------------------------------------------------------- volumes have paths of their own and few mounts


class Counting(Devices):
    """Counts what it looks for in a thread."""

    looked_up = 0

    def look_up(self, uses: Any, topology: Topology) -> Any:
        self.looked_up += 1
        return super().look_up(uses, topology)


async def near(devices: Devices, tree: Tree, path: str) -> set[int]:
    return {node for hint in await devices.hints((("mounts", path),), tree.topology) for node in hint.nodes}


async def test_a_new_path_on_a_mount_that_is_known_takes_no_thread(tree: Tree) -> None:
    partition(tree)
    devices = Counting(tree.sys, tree.proc, HANG_S)
    assert [await near(devices, tree, f"/data/{number}") for number in range(5)] == [{5}] * 5
    assert devices.looked_up == 1


async def test_mounts_that_have_changed_are_looked_at_anew_and_no_others(tree: Tree) -> None:
    partition(tree)
    devices = Counting(tree.sys, tree.proc, HANG_S)
    assert await near(devices, tree, "/data/a") == {5}
    tree.mount("/else", "0:99", source="tmpfs")
    (tree.pci(DISK) / "numa_node").write_text("4")  # which is not looked at again: the mount is there
    assert await near(devices, tree, "/data/b") == {5}
    (tree.proc / "self/mountinfo").write_text("")
    assert await near(devices, tree, "/data/c") == set()
    partition(tree)
    assert await near(devices, tree, "/data/d") == {4}
    assert devices.looked_up == 4


async def test_of_another_machine_nothing_is_known(tree: Tree) -> None:
    partition(tree)
    devices = Counting(tree.sys, tree.proc, HANG_S)
    assert await near(devices, tree, "/data/a") == {5}
    (tree.pci(DISK) / "numa_node").write_text("4")
    tree.topology = Topology(tree.topology.data)
    assert await near(devices, tree, "/data/b") == {4}
