"""CPU time of containers on a real kernel, of a real runtime and systemd: written, updated, put back."""

from __future__ import annotations

from pathlib import Path

from cri_proxy.node.cgroups import Cgroups
from tests.cri_client import CPU_PERIOD_US
from tests.vm.guest.installation import CONFIG, SERVICE, SLOW_CONFIG, run
from tests.vm.guest.node import TASKS, Node, Running, until, until_served

_ON = """\
isolation:
  cpu: enforce
  memory: enforce
control:
  memory:
    classes: [{name: batch, high: 64Mi, swap: off}]
"""
QUOTA_US = CPU_PERIOD_US // 2
WEIGHTS = {"cpu.weight": "1", "cpu.shares": "2"}


async def a_pod_of_batch_gives_way_and_the_runtime_updates_its_containers(node: Node) -> None:
    await _configured(node, _ON)
    batch = await node.run("batch", qos="besteffort")
    pod = Path(Cgroups().cpu_folder(_path(batch))).parent
    weight = next(name for name in WEIGHTS if (pod / name).exists())
    has_idle = (pod / "cpu.idle").exists()
    print(f"idle: {has_idle}, {weight}: {_text(pod / weight)}")
    written, value = (pod / "cpu.idle", "1") if has_idle else (pod / weight, WEIGHTS[weight])
    await until(lambda: _text(written), value.__eq__)
    for cpus in ("0", "1", "0-1"):
        await node.kubelet.update(batch.id, cpu_shares=2, cpuset_cpus=cpus)
    await node.kubelet.update(batch.id, cpu_shares=2, cpu_period=CPU_PERIOD_US, cpu_quota=QUOTA_US)
    second = await node.run("second", qos="besteffort", pod=batch.pod)
    await node.kubelet.update(second.id, cpu_shares=2, cpuset_cpus="1")
    assert _text(written) == value and node.ask("isolation")["refusals"] == []
    await _configured(node, "")
    if has_idle:
        await until(lambda: _text(written), "0".__eq__)
    # The runtime has made the pod's cgroup, with the weight that the kernel gives.
    await until(lambda: _text(pod / weight), {"cpu.weight": "100", "cpu.shares": "1024"}[weight].__eq__)


def _path(container: Running) -> str:
    pid = int((TASKS / container.id / "init.pid").read_text())
    found = Cgroups().of_container(pid, container.id)
    assert found is not None
    parts = found.split("/")
    return "/".join(parts[: next(i for i, part in enumerate(parts, 1) if container.id in part)])


def _text(file: Path) -> str:
    return file.read_text().strip()


async def _configured(node: Node, text: str) -> None:
    """The daemon has read this."""
    CONFIG.write_text(SLOW_CONFIG + text)
    run("systemctl", "reload-or-restart", SERVICE)
    await until_served(node.kubelet)
