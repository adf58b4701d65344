"""A container without quota runs at full speed only if its pod's cgroup has none either.

The containers' quotas are smaller than the CPUs they get, so that a loop is throttled for sure where there is one.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

from tests.cri_client import CPU_PERIOD_US, cgroup_parent
from tests.e2e.cgroups import cpu_quota, limit_cpu_time, throttled
from tests.e2e.node import GIB, Node, Running, until

pytestmark = pytest.mark.containerd

LIFTING = (sys.executable, "-m", "tests.lifting")
LOOP = ("sh", "-c", "while :; do :; done")
#: A tenth of a CPU: a loop has that on a busy machine too.
MILLI, QUOTA_US = 100, CPU_PERIOD_US // 10
#: CPU time after which a loop with that quota has been throttled many times, in clock ticks of 10 ms.
LONG_TICKS = 100


async def run_loop(node: Node, name: str) -> tuple[Running, Path]:
    """A Guaranteed pod as kubelet makes it, with a loop in it; and the pod's cgroup."""
    uid = str(uuid.uuid4())
    pod_cgroup = limit_cpu_time(
        node.runtime.cgroup_parent + cgroup_parent("guaranteed", uid), QUOTA_US, CPU_PERIOD_US
    )
    pod = await node.pod(name, qos="guaranteed", uid=uid)
    more = {"cpu_limit": MILLI, "memory_limit": GIB // 8, "command": LOOP}
    return await node.run(pod, qos="guaranteed", **more), pod_cgroup


async def used_ticks(node: Node, container: Running) -> int:
    """CPU time of the loop so far."""
    stat = Path(f"/proc/{node.runtime.pid_of(container.id)}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


async def throttled_in(cgroup: Path) -> int:
    return throttled(cgroup)


async def start_lifting(node: Node) -> None:
    await node.agent.start(command=LIFTING, environment={"LIFT_ALL": "1"})
    await node.until_runtime_is_known()


async def test_with_its_quota_a_loop_is_throttled(node: Node) -> None:
    """Else the tests below would show nothing."""
    made, pod_cgroup = await run_loop(node, "p")
    assert (node.runtime.quota_of(made.id), cpu_quota(pod_cgroup)) == (QUOTA_US, QUOTA_US)
    before = throttled(pod_cgroup)
    await until(lambda: throttled_in(pod_cgroup), lambda times: times > before + 3)


async def test_without_its_own_quota_alone_it_is_throttled_all_the_same(stopped_node: Node) -> None:
    node = stopped_node
    await start_lifting(node)
    made, pod_cgroup = await run_loop(node, "p")
    limit_cpu_time(node.runtime.cgroup_parent + f"/kubepods/pod{made.pod.uid}", QUOTA_US, CPU_PERIOD_US)
    assert node.runtime.quota_of(made.id) == -1
    before = throttled(pod_cgroup)
    await until(lambda: throttled_in(pod_cgroup), lambda times: times > before + 3)


async def test_a_lifted_container_is_never_throttled_until_it_is_released(stopped_node: Node) -> None:
    node = stopped_node
    await start_lifting(node)
    made, pod_cgroup = await run_loop(node, "p")
    assert (node.runtime.quota_of(made.id), cpu_quota(pod_cgroup)) == (-1, -1)
    before, used = throttled(pod_cgroup), await used_ticks(node, made)
    await until(lambda: used_ticks(node, made), lambda ticks: ticks > used + LONG_TICKS)
    assert throttled(pod_cgroup) == before
    await node.ask("release", all=True, container="")
    assert (node.runtime.quota_of(made.id), cpu_quota(pod_cgroup)) == (QUOTA_US, QUOTA_US)
    await until(lambda: throttled_in(pod_cgroup), lambda times: times > before + 3)


async def test_a_resize_leaves_it_lifted_and_the_way_back_knows_the_new_quota(stopped_node: Node) -> None:
    node = stopped_node
    await start_lifting(node)
    made, pod_cgroup = await run_loop(node, "p")
    # As kubelet grows a pod in place: its cgroup first, then the container.
    limit_cpu_time(node.runtime.cgroup_parent + f"/kubepods/pod{made.pod.uid}", 2 * QUOTA_US, CPU_PERIOD_US)
    await node.kubelet.update(made.id, cpu_period=CPU_PERIOD_US, cpu_quota=2 * QUOTA_US, cpu_shares=1024)
    assert (node.runtime.quota_of(made.id), cpu_quota(pod_cgroup)) == (-1, -1)
    await node.agent.kill()
    words = ["release", "--all", "--config", str(node.agent.config_file)]
    code, out, problem = await node.agent.cli(*words)
    assert code == 0, out + problem
    assert (node.runtime.quota_of(made.id), cpu_quota(pod_cgroup)) == (2 * QUOTA_US, 2 * QUOTA_US)
