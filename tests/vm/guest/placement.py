"""Where containers come to run: the machine, the ladder, CPUs of their own, new sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from cri_api import runtime_v1_pb2 as cri
from policies.machine.cpus import format_cpus, parse_cpus
from tests.cri_client import CPU_PERIOD_US, Pod
from tests.vm.guest.installation import CONFIG, SERVICE, run
from tests.vm.guest.node import GIB, Node, Running, until, until_served
from tests.vm.machine import Shape

_CPU = Path("/sys/devices/system/cpu")
_NODE = Path("/sys/devices/system/node")
SMALL_MEMORY = GIB // 16


async def the_kernel_sees_this_machine(node: Node) -> None:
    """Else nothing below says anything about such a one."""
    shape = node.shape
    if shape.architecture == "amd64":
        vendors = re.findall(r"^vendor_id\s*: (\S+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        assert set(vendors) == {"HygonGenuine"}
    if shape.clusters:
        assert _lists("topology/cluster_cpus_list") == set(shape.clusters)
    assert _lists("cache/index3/shared_cpu_list") == set(shape.ccxs)
    assert _lists("topology/thread_siblings_list") == set(shape.groups(shape.threads))
    assert _lists("topology/package_cpus_list") == set(shape.groups(shape.cpus // shape.sockets))
    found = {path.read_text().strip() for path in _NODE.glob("node[0-9]*/cpulist")}
    assert found == set(shape.numa_nodes), found


def _lists(name: str) -> set[str]:
    return {path.read_text().strip() for path in _CPU.glob(f"cpu[0-9]*/{name}")}


async def the_daemon_sees_the_same_machine(node: Node) -> None:
    cpus = node.ask("topology")["cpus"]
    for key, wanted in (
        ("l3", node.shape.ccxs),
        ("numa", node.shape.numa_nodes),
        ("cluster", node.shape.clusters),
    ):
        groups: dict[int, set[int]] = {}
        for cpu in cpus:
            if key in cpu:
                groups.setdefault(cpu[key], set()).add(cpu["cpu"])
        assert {format_cpus(group) for group in groups.values()} == set(wanted), key


def ladder(shape: Shape, wanted: int) -> tuple[str, set[str]]:
    """The rung of so many CPUs by the Hygon manual, and the sets that lie on it."""
    everything = parse_cpus(f"0-{shape.cpus - 1}")
    ccxs = [parse_cpus(ccx) for ccx in shape.ccxs]
    nodes = [parse_cpus(numa) for numa in shape.numa_nodes]
    per_socket = shape.cpus // shape.sockets

    def near(a: frozenset[int], b: frozenset[int]) -> bool:
        """One node of a socket has nobody nearer than the other socket's."""
        return shape.nodes_per_socket == 1 or min(a) // per_socket == min(b) // per_socket

    if wanted <= shape.cpus_per_ccx:
        return "ccx", set(shape.ccxs)
    if wanted <= shape.cpus_per_node:
        return "numa", set(shape.numa_nodes)
    if wanted <= shape.cpus_per_node + shape.cpus_per_ccx:
        return "numa+ccx", {format_cpus(n | c) for n in nodes for c in ccxs if not c & n and near(n, c)}
    if wanted <= 2 * shape.cpus_per_node and len(nodes) > 2:
        return "2numa", {format_cpus(a | b) for a in nodes for b in nodes if a != b and near(a, b)}
    return "machine", {format_cpus(everything)}


def memory_of(shape: Shape, cpus: str) -> str:
    """The memory nodes of these CPUs."""
    return format_cpus(frozenset(cpu // shape.cpus_per_node for cpu in parse_cpus(cpus)))


async def every_size_from_one_cpu_to_the_machine_has_its_rung(node: Node) -> None:
    """The smallest in a pod of its own, the others as containers of one; the last is asked from inside, too."""
    await _sized(node, 1, None)
    shared = await node.shared_pod()
    made = [await _sized(node, wanted, shared) for wanted in range(2, node.shape.cpus + 1)]
    assert await node.place_inside(made[0]) == node.place(made[0])


async def _sized(node: Node, wanted: int, pod: Optional[Pod]) -> Running:
    """A container of so many CPUs, which must be where the ladder says."""
    made = await node.run(
        f"cpus-{wanted}", pod=pod, cpu_request=100, cpu_limit=wanted * 1000, memory_limit=SMALL_MEMORY
    )
    cpus, mems = node.place(made)
    rung, sets = ladder(node.shape, wanted)
    print(f"{wanted} CPUs: {rung} {cpus}, memory {mems}")
    assert cpus in sets, (rung, sets)
    assert mems == memory_of(node.shape, cpus)
    return made


async def pods_fill_every_ccx_before_they_share_one(node: Node) -> None:
    half = len(node.shape.ccxs) // 2
    pods = [await node.shared_pod(), await node.pod("fill")]
    made = [
        await node.run(
            f"fill-{number}",
            pod=pods[number // half],
            cpu_limit=node.shape.cpus_per_ccx * 1000,
            memory_limit=SMALL_MEMORY,
        )
        for number in range(len(node.shape.ccxs))
    ]
    assert sorted(map(node.cpus, made)) == sorted(node.shape.ccxs)


async def a_pod_without_limits_runs_in_one_numa_node_and_keeps_all_memory(node: Node) -> None:
    cpus, mems = node.place(await node.run("free", qos="besteffort"))
    assert cpus in node.shape.numa_nodes
    assert mems == memory_of(node.shape, f"0-{node.shape.cpus - 1}")


async def exclusive_cpus_are_nobody_elses_and_come_back(node: Node) -> None:
    """Asked for by annotation; the others of the machine make room before, and get it back after."""
    shape, size = node.shape, node.shape.cpus_per_node * 1000
    pod = await node.shared_pod()
    shared = [await node.run(f"shared-{number}", pod=pod, cpu_limit=size) for number in range(shape.nodes)]
    assert sorted(map(node.cpus, shared)) == sorted(shape.numa_nodes)
    own = await node.run(
        "own", qos="guaranteed", cpu_limit=shape.threads * 1000, memory_limit=SMALL_MEMORY,
        annotations={"cri-resmgr.io/cpus": "exclusive"},
    )  # fmt: skip
    mine = node.cpus(own)
    assert mine in shape.groups(shape.threads), f"{mine} is no whole core"
    assert node.row(own)["exclusive"] == mine
    await until(
        lambda: [parse_cpus(node.cpus(one)) & parse_cpus(mine) for one in shared], lambda f: not any(f)
    )
    await node.remove(own.pod)
    await until(lambda: sorted(map(node.cpus, shared)), lambda found: found == sorted(shape.numa_nodes))


async def a_resize_climbs_the_ladder(node: Node) -> None:
    made = await node.run("grows", pod=await node.shared_pod(), cpu_limit=1000, memory_limit=SMALL_MEMORY)
    assert node.cpus(made) in node.shape.ccxs
    for wanted in (node.shape.cpus_per_ccx + 1, node.shape.cpus):
        await node.kubelet.update(
            made.id, cpu_period=CPU_PERIOD_US, cpu_quota=wanted * CPU_PERIOD_US, cpu_shares=wanted * 1024
        )
        rung, sets = ladder(node.shape, wanted)
        print(f"{wanted} CPUs: {rung} {node.cpus(made)}")
        assert node.cpus(made) in sets


async def a_cluster_is_the_lowest_rung_of_the_fine_ladder(node: Node) -> None:
    """As many CPUs as a cluster has are one; one more is the L3."""
    before = CONFIG.read_text()
    CONFIG.write_text(before + "placement:\n  ladder: fine\n")
    run("systemctl", "restart", SERVICE)
    await until_served(node.kubelet)
    pod, size = await node.shared_pod(), node.shape.cpus_per_cluster
    small = await node.run("small", pod=pod, cpu_limit=size * 1000, memory_limit=SMALL_MEMORY)
    large = await node.run("large", pod=pod, cpu_limit=(size + 1) * 1000, memory_limit=SMALL_MEMORY)
    print(f"{size} CPUs: {node.cpus(small)}, {size + 1} CPUs: {node.cpus(large)}")
    assert node.cpus(small) in node.shape.clusters
    assert node.cpus(large) in node.shape.ccxs
    CONFIG.write_text(before)
    run("systemctl", "restart", SERVICE)
    await until_served(node.kubelet)


async def the_daemon_says_that_all_is_well(node: Node) -> None:
    status = node.ask("status")
    assert (status["mode"], status["degraded"]) == ("enforce", {}), status
    assert status["invariants"] == [], status["invariants"]
    assert status["runtime"]["connected"], status["runtime"]
    reply = await node.kubelet.call("Version", cri.VersionRequest())
    assert status["runtime"]["name"] == reply.runtime_name
    print(f"{reply.runtime_name} {reply.runtime_version}")
