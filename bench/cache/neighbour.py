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
from cri_proxy.isolation import caches, treatment
from cri_proxy.isolation.io.resctrl import MOUNT, Resctrl
from cri_proxy.isolation.model import (
    BATCH,
    L3,
    PROTECTED,
    Group,
    IsolatedContainer,
)
from policies.machine.cpus import parse_cpus
from tests.vm.guest.installation import OBSERVER, SERVICE, SOCKET_UNIT, run
from tests.vm.guest.node import RUNTIME, TASKS, Node, Running, connect
from tests.vm.guest.table import Run

#: Of 64 bytes: four times the 8 MiB of the modelled L3.
STREAM_LINES = 4 * (8 << 20) // 64


async def beside_a_streaming_neighbour(node: Node) -> None:
    """One pair lives through all four; the neighbour runs only while something is counted beside it."""
    guest.write_files(node.job)
    run("mount", "-t", "resctrl", "resctrl", str(MOUNT))
    kernel = Resctrl()
    pair = await guest.pair_of(node, "nginx")
    mounts = (cri.Mount(container_path=guest.MOUNTED, host_path=str(guest.FILES)),)
    stream = (f"{guest.MOUNTED}/sweep", str(STREAM_LINES))
    neighbour = await node.run(
        "neighbour", qos="besteffort", image=guest.TRAFFIC, command=stream, mounts=mounts
    )
    os.kill(_pid(neighbour), signal.SIGSTOP)
    watched = MOUNT / "mon_groups" / "nginx"
    watched.mkdir()
    for container in pair.both:
        for thread in threads(container):
            (watched / "tasks").write_text(str(thread))
    run("systemctl", "stop", OBSERVER, SOCKET_UNIT, SERVICE)
    own, other = node.shape.ccxs[:2]
    async with connect(node.api, RUNTIME) as direct:
        direct.call_timeout_s = guest.PATIENCE_S
        for container, cpus in ((pair.server, own), (pair.client, own), (neighbour, own)):
            await direct.update(container.id, cpuset_cpus=cpus)
        await guest.measure(node, pair, "alone", idle=False)
        for share in guest.job_of(node)["batch_cache"]:
            group = batch_group(node, pair, neighbour, share)
            kernel.make(group.name)
            kernel.write(group.name, L3, group.schemata[L3])
            for thread in threads(neighbour):
                kernel.move(group.name, thread)
            print(f"{group.name}: {kernel.seen().schemata[group.name][L3]}: {group.why}")
            with _going_on(neighbour):
                await guest.measure(node, pair, f"isolation at {share}", idle=False)
            kernel.remove(group.name)
        with _going_on(neighbour):
            await guest.measure(node, pair, "neighbour", idle=False)
        await direct.update(neighbour.id, cpuset_cpus=other)
        with _going_on(neighbour):
            await guest.measure(node, pair, "neighbour in another CCX", idle=False)


def batch_group(node: Node, pair: guest.Pair, neighbour: Running, share: str) -> Group:
    """The group that the product plans for the neighbour, where the two of nginx are protected and in its L3."""
    chosen = treatment.TreatmentSettings(caches.read_part(share), divides_bandwidth=False)
    classes = [(neighbour, BATCH), *((each, PROTECTED) for each in pair.both)]
    containers = [
        IsolatedContainer(each.id, each.pod.id, cls, "", parse_cpus(node.cpus(each))) for each, cls in classes
    ]
    info = Resctrl().info()
    assert info is not None
    (group,) = treatment.wanted(containers, info, chosen).groups
    return group


def threads(container: Running) -> list[int]:
    """All that it has; it starts none meanwhile."""
    cgroup = Path(f"/proc/{_pid(container)}/cgroup").read_text().strip().rpartition("::")[2]
    return [int(word) for word in Path(f"/sys/fs/cgroup{cgroup}/cgroup.threads").read_text().split()]


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
