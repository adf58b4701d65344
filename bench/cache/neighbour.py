"""What is done inside the virtual machine whose kernel has resctrl: nginx and its client in one CCX, beside a container that
streams through four times the L3.

The two of nginx are in a monitoring group, so the plugin counts their tasks alone; the stream's group has the mask that the
product plans where a protected and a batch container meet.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cache import guest
from cri_api import runtime_v1_pb2 as cri
from tests.vm.guest.installation import OBSERVER, SERVICE, SOCKET_UNIT, run
from tests.vm.guest.node import RUNTIME, TASKS, Node, Running, connect
from tests.vm.guest.table import Run

RESCTRL = Path("/sys/fs/resctrl")
BATCH_GROUP = "cri-resmgr.batch"
#: Of 64 bytes: four times the 8 MiB of the modelled L3.
STREAM_LINES = 4 * (8 << 20) // 64


async def beside_a_streaming_neighbour(node: Node) -> None:
    """One pair lives through all four; the neighbour runs only while something is counted beside it."""
    guest.write_files(node.job)
    run("mount", "-t", "resctrl", "resctrl", str(RESCTRL))
    pair = await guest.pair_of(node, "nginx")
    mounts = (cri.Mount(container_path=guest.MOUNTED, host_path=str(guest.FILES)),)
    stream = (f"{guest.MOUNTED}/sweep", str(STREAM_LINES))
    neighbour = await node.run(
        "neighbour", qos="besteffort", image=guest.TRAFFIC, command=stream, mounts=mounts
    )
    os.kill(_pid(neighbour), signal.SIGSTOP)
    watched = RESCTRL / "mon_groups" / "nginx"
    watched.mkdir()
    for container in pair.both:
        move_threads(container, watched)
    run("systemctl", "stop", OBSERVER, SOCKET_UNIT, SERVICE)
    own, other = node.shape.ccxs[:2]
    async with connect(node.api, RUNTIME) as direct:
        direct.call_timeout_s = guest.PATIENCE_S
        for container, cpus in ((pair.server, own), (pair.client, own), (neighbour, own)):
            await direct.update(container.id, cpuset_cpus=cpus)
        await guest.measure(node, pair, "alone", idle=False)
        with _going_on(neighbour):
            await guest.measure(node, pair, "neighbour", idle=False)
        for share in guest.job_of(node)["batch_cache"]:
            group = RESCTRL / BATCH_GROUP
            group.mkdir()
            (group / "schemata").write_text(batch_schemata(share, own))
            move_threads(neighbour, group)
            print((group / "schemata").read_text())
            with _going_on(neighbour):
                await guest.measure(node, pair, f"isolation at {share}", idle=False)
            group.rmdir()
        await direct.update(neighbour.id, cpuset_cpus=other)
        with _going_on(neighbour):
            await guest.measure(node, pair, "neighbour in another CCX", idle=False)


def batch_schemata(share: str, cpus: str) -> str:
    """The line for the domain of these CPUs: the lowest ways, as many as the share is of all, rounded up."""
    first = cpus.split("-")[0]
    domain = Path(f"/sys/devices/system/cpu/cpu{first}/cache/index3/id").read_text().strip()
    ways = int((RESCTRL / "info" / "L3" / "cbm_mask").read_text(), 16).bit_count()
    chosen = -(-ways * int(share.rstrip("%")) // 100)
    return f"L3:{domain}={(1 << chosen) - 1:x}\n"


def move_threads(container: Running, group: Path) -> None:
    """All that a container has; it starts none meanwhile."""
    cgroup = Path(f"/proc/{_pid(container)}/cgroup").read_text().strip().rpartition("::")[2]
    for thread in Path(f"/sys/fs/cgroup{cgroup}/cgroup.threads").read_text().split():
        (group / "tasks").write_text(thread)


def _pid(container: Running) -> int:
    return int((TASKS / container.id / "init.pid").read_text())


@contextmanager
def _going_on(container: Running) -> Iterator[None]:
    """Its first process, which is stopped else: under emulation all CPUs wait for one that streams."""
    os.kill(_pid(container), signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(_pid(container), signal.SIGSTOP)


RUNS = {
    "resctrl-8": Run(
        *("resctrl-8", "bookworm", "3.11", "systemd", "runtime.v1", ("no_timer_check",)),
        (beside_a_streaming_neighbour,),
    )
}
