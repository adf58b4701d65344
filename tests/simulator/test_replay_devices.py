"""A simulated container runs near the devices that its step names by their PCI address."""

from __future__ import annotations

import pytest

from tests.simulator.simulations import CCX, create, run

GPU = "0000:41:00.0"  # near node 3 of the Hygon
NODE_3 = CCX[6:8]

NAMES = [
    ("its address", GPU, True),
    ("its path in sysfs", f"/sys/devices/pci0000:40/0000:40:01.1/{GPU}", True),
    ("a name in /dev that has it", f"/dev/dri/by-path/pci-{GPU}-render", True),
    ("another device", "0000:99:00.0", False),
    ("a device without address", "/dev/fuse", False),
]


@pytest.mark.parametrize(("device", "is_near"), [case[1:] for case in NAMES], ids=[case[0] for case in NAMES])
def test_a_device_draws_its_container(device: str, is_near: bool) -> None:
    [line] = run(create("c1", 2, devices=[device]))
    assert (line["cpus"] in NODE_3) is is_near


def test_with_hints_for_each_of_two_devices_the_container_is_near_one_of_them() -> None:
    [line] = run(create("c1", 2, devices=[GPU, "0000:a1:00.0"]))
    assert line["cpus"] in (*NODE_3, *CCX[12:14])


def test_several_containers_take_the_ccxs_near_the_device_in_turn() -> None:
    lines = run(*[create(f"c{i}", 2, devices=[GPU]) for i in range(4)])
    assert [line["cpus"] for line in lines] == [*NODE_3, *NODE_3]
