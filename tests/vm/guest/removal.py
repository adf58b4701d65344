"""The package goes: what runs has all its CPUs and memory back, and nothing of us is left."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.vm.guest.installation import CONSTANTS_UNITS, PACKAGE, RELAY, SERVICE, run, unit
from tests.vm.guest.kubelet import kubelet_is_as_it_was, switch_over
from tests.vm.guest.node import RUNTIME, Node, connect
from tests.vm.guest.placement import memory_of
from tests.vm.guest.restarts import residents

_NOT_OURS = ("/proc", "/sys", "/job", "/var/lib/containerd")


async def removal_gives_every_container_its_cpus_back(node: Node) -> None:
    """And kubelet its runtime."""
    made = await residents(node)
    everything = f"0-{node.shape.cpus - 1}"
    before = node.places(made)
    assert {cpus for cpus, _ in before} > {everything}, before
    switch_over()
    run("dpkg", "--remove", PACKAGE)
    kubelet_is_as_it_was()
    assert node.places(made) == [(everything, memory_of(node.shape, everything))] * len(made)
    assert unit(SERVICE)["ActiveState"] != "active"
    assert not RELAY.exists()


async def the_runtime_goes_on_without_us(node: Node) -> None:
    """Kubelet is pointed at the runtime again."""
    async with connect(node.api, RUNTIME) as node.kubelet:
        node.forget()
        await node.remove()
        made = await node.run("after", cpu_limit=1000)
        assert node.cpus(made) == f"0-{node.shape.cpus - 1}"
        await node.remove()


async def purge_leaves_nothing(node: Node) -> None:
    run("dpkg", "--purge", PACKAGE)
    for path in CONSTANTS_UNITS:
        shutil.rmtree(path.parent)
    skipped = [word for path in _NOT_OURS for word in ("-path", path, "-prune", "-o")]
    names = ["-iname", "*cri-res*", "-o", "-iname", "*cri_res*"]
    found = run("find", "/", *skipped, "(", *names, ")", "-print").stdout.split()
    assert found == [], found
    units = run("systemctl", "list-units", "--all", "--no-legend", "cri-res*", check=False).stdout
    assert units.strip() == "", units
    assert not Path("/var/lib/cri-resmgr").exists()
