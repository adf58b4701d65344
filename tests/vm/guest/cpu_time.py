"""CPU time and memory of containers on a real kernel, of a real runtime and systemd: written, updated, put back."""

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
MIB = 1 << 20
QUOTA_US = CPU_PERIOD_US // 2
BURSTS, WEIGHTS = ("cpu.max.burst", "cpu.cfs_burst_us"), {"cpu.weight": "1", "cpu.shares": "2"}


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


async def a_limit_goes_down_at_once_while_there_is_a_burst(node: Node) -> None:
    await _configured(node, _ON)
    made = await node.run("guaranteed", qos="guaranteed", cpu_limit=500, memory_limit=64 * MIB)
    path = _path(made, is_limited=True)
    own, pod = Path(Cgroups().cpu_folder(path)), Path(Cgroups().cpu_folder(_path(made))).parent
    name = next((name for name in BURSTS if (own / name).exists()), "")
    print(f"burst: {name or 'none'} of {path}")
    quotas = (QUOTA_US, QUOTA_US // 2, QUOTA_US // 5)
    if name:
        _limit_pod(pod, QUOTA_US)
        # The pod's quota is read again with the next look.
        await until(lambda: (_text(own / name), _text(pod / name)), ((str(QUOTA_US),) * 2).__eq__)
    for quota_us in quotas[1:]:
        await node.kubelet.update(made.id, cpu_shares=512, cpu_period=CPU_PERIOD_US, cpu_quota=quota_us)
        assert Cgroups().quota_us(path) == quota_us
        if name:
            _limit_pod(pod, quota_us)
            await until(lambda: (_text(own / name), _text(pod / name)), ((str(quota_us),) * 2).__eq__)
    await _configured(node, "")
    if name:
        await until(lambda: (_text(own / name), _text(pod / name)), ("0", "0").__eq__)


async def memory_is_kept_for_all_above_and_an_update_of_the_runtime_changes_it_for_a_moment_only(
    node: Node,
) -> None:
    await _configured(node, _ON)
    protected = await node.run("guaranteed", qos="guaranteed", cpu_limit=500, memory_limit=64 * MIB)
    batch = await node.run("batch", qos="besteffort")
    own, other = (Path(Cgroups().memory_folder(_path(each))) for each in (protected, batch))
    if not (own / "memory.low").exists():
        await until(lambda: [note for note in node.ask("isolation")["notes"] if "memory.low" in note])
        print(node.ask("isolation")["notes"])
        return
    above = [own, *[folder for folder in own.parents if "kubepods" in str(folder)]]
    kept = str(64 * MIB)
    await until(lambda: {_text(folder / "memory.low") for folder in above}, {kept}.__eq__)
    await until(lambda: _text(other / "memory.high"), kept.__eq__)
    print({str(folder): _text(folder / "memory.low") for folder in above}, _text(other / "memory.swap.max"))
    await until(lambda: _text(other / "memory.swap.max"), "0".__eq__)
    for quota_us in (QUOTA_US, QUOTA_US // 2, QUOTA_US):
        await node.kubelet.update(batch.id, cpu_shares=2, cpu_period=CPU_PERIOD_US, cpu_quota=quota_us)
        print("after an update:", _text(other / "memory.high"))
        await until(lambda: _text(other / "memory.high"), kept.__eq__)
    assert node.ask("isolation")["drift"] == {} and node.ask("isolation")["refusals"] == []
    await _configured(node, "")
    await until(lambda: {_text(folder / "memory.low") for folder in above}, {"0"}.__eq__)
    await until(
        lambda: (_text(other / "memory.high"), _text(other / "memory.swap.max")), ("max", "max").__eq__
    )


def _path(container: Running, is_limited: bool = False) -> str:
    """Its own cgroup, or the one that its runtime limits: crun before 1.11 limits a child of that."""
    pid = int((TASKS / container.id / "init.pid").read_text())
    found = Cgroups().of_container(pid, container.id)
    assert found is not None
    if is_limited:
        return found
    parts = found.split("/")
    return "/".join(parts[: next(i for i, part in enumerate(parts, 1) if container.id in part)])


def _text(file: Path) -> str:
    return file.read_text().strip()


def _limit_pod(cgroup: Path, quota_us: int) -> None:
    """As kubelet does it: it fails where the kernel refuses."""
    if (cgroup / "cpu.max").exists():
        (cgroup / "cpu.max").write_text(f"{quota_us} {CPU_PERIOD_US}")
    else:
        (cgroup / "cpu.cfs_quota_us").write_text(str(quota_us))


async def _configured(node: Node, text: str) -> None:
    """The daemon has read this."""
    CONFIG.write_text(SLOW_CONFIG + text)
    run("systemctl", "reload-or-restart", SERVICE)
    await until_served(node.kubelet)
