"""A real kernel with firmware's table of bandwidths (HMAT): the node that reads faster than those with CPUs is HBM."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_proxy.node.sysfs import read_sysfs
from policies.machine.topology import Topology
from policies.memory import nodes_of_types
from tests.vm.conftest import CACHE
from tests.vm.image import BOOKWORM, image, missing

pytestmark = pytest.mark.vm

QEMU = "qemu-system-x86_64"
#: By node: MiB, and of which node's CPUs it is the nearest memory. The last two have no CPUs.
NODES = ((256, 0), (256, 1), (384, 0), (128, 1))
#: GB/s from the CPUs of each of the two nodes to each node: the third is HBM, though it is the largest.
BANDWIDTH = ((200, 100, 800, 40), (100, 200, 400, 60))
#: Prints the kernel's description of the machine, and ends it.
INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t sysfs s /sys
cd /sys
for file in $(/bin/busybox find devices/system/cpu/online devices/system/cpu/present devices/system/cpu/cpu?/topology \
  devices/system/node/online devices/system/node/has_memory devices/system/node/node?/cpulist \
  devices/system/node/node?/distance devices/system/node/node?/meminfo \
  devices/system/node/node?/access0/initiators/*_bandwidth -follow -type f); do
  echo "FILE $file"
  /bin/busybox cat $file
done
echo END
/bin/busybox poweroff -f
"""


def machine() -> Iterator[str]:
    """QEMU's words for it."""
    for node, (size, nearest) in enumerate(NODES):
        yield from ("-object", f"memory-backend-ram,size={size}M,id=m{node}")
        yield from ("-numa", f"node,nodeid={node},memdev=m{node},initiator={nearest}")
    for node, rates in enumerate(BANDWIDTH):
        yield from ("-numa", f"cpu,node-id={node},socket-id={node}")
        for target, rate in enumerate(rates):
            link = f"hmat-lb,initiator={node},target={target},hierarchy=memory"
            yield from ("-numa", f"{link},data-type=access-latency,latency={10_000 // rate}")
            yield from ("-numa", f"{link},data-type=access-bandwidth,bandwidth={rate}G")


def boot(folder: Path) -> str:
    """What it prints."""
    made = image(BOOKWORM, CACHE)
    tree = folder / "tree"
    for name in ("bin", "sys"):
        (tree / name).mkdir(parents=True)
    shutil.copy(made.busybox, tree / "bin/busybox")
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        ["cpio", "--create", "--format=newc", "--quiet"],
        cwd=tree, input=names.encode(), capture_output=True, check=True,
    )  # fmt: skip
    (folder / "initramfs").write_bytes(packed.stdout)
    command = [
        *(QEMU, "-machine", "q35,hmat=on", "-accel", "tcg", "-m", f"{sum(size for size, _ in NODES)}M"),
        *("-smp", "2,sockets=2,maxcpus=2", *machine()),
        *("-kernel", str(made.kernel), "-initrd", str(folder / "initramfs")),
        *("-append", "console=ttyS0 quiet panic=-1", "-net", "none", "-no-reboot", "-nographic"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_node_that_firmware_calls_the_fastest_is_high_bandwidth_memory(tmp_path: Path) -> None:
    if sentence := missing():
        pytest.skip(sentence)
    for part in boot(tmp_path).replace("\r", "").partition("\nEND")[0].split("FILE ")[1:]:
        name, _, text = part.partition("\n")
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    reading = read_sysfs(tmp_path / "sys", tmp_path)
    tree = Topology(reading.data)
    assert (tree.root.nodes, tree.memory_nodes) == ({0, 1}, {0, 1, 2, 3})
    # The kernel tells MiB/s to the nearest CPUs.
    assert reading.data.memory_bandwidth == {0: 204800, 1: 204800, 2: 819200, 3: 61440}
    assert nodes_of_types(tree, frozenset(["hbm"])) == {2}
    assert nodes_of_types(tree, frozenset(["pmem"])) == {3}
    assert nodes_of_types(tree, frozenset(["dram"])) == {0, 1}
