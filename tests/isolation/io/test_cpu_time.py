"""CPU time in real cgroups, with containers of a real runc: nothing of ours makes a write of runc's or kubelet's fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cri_proxy.config.config import read_config
from cri_proxy.isolation.io.cpu_time import ANNOUNCED_S, CpuTime
from cri_proxy.isolation.io.originals import FILE_NAME, Originals, put_back
from cri_proxy.isolation.io.readings import KEPT_S
from cri_proxy.isolation.io.subjects import QuotaFollower, Sight
from cri_proxy.isolation.io.writer import Outcome, Writer
from cri_proxy.isolation.model import BATCH, PROTECTED, STANDARD, IsolatedContainer
from cri_proxy.isolation.plan import Plan
from cri_proxy.node.cgroups import Cgroups
from policies.model import Qos
from tests.e2e.cgroups import cgroup_mounts, remove_cgroup
from tests.isolation.kernel import KernelModel
from tests.machines import HYGON_7285_2S
from tests.scenes import make_container, make_pod, topology

ROOT = Path("/sys/fs/cgroup")
END_S = 20.0
PERIOD_US = 100_000
PEERS = Path(__file__).parents[3] / ".cache" / "peers"


def find_runc() -> str:
    """A runc that is here already; "" = none."""
    built = sorted(str(path) for path in PEERS.glob("runc-*/runc"))
    return shutil.which("runc") or (built[0] if built else "")


class RuncNode:
    """Containers of one runc in one pod's cgroup, and what isolation writes there. ``now_s``: the subject's clock."""

    def __init__(self, folder: Path, runc: str) -> None:
        self.folder = folder
        self.cgroups = Cgroups(ROOT)
        self.parent = f"/crm-cpu-{os.getpid()}"
        self.pod = f"{self.parent}/pod"
        self.now_s = 0.0
        #: What the runtime limits below a container's own cgroup, "/NAME"; "" = nothing.
        self.child = ""
        self.subject = CpuTime(self.cgroups, lambda: self.now_s)
        self.originals = Originals(folder / "state", "boot")
        self.writer = Writer(KernelModel({}), self.originals, lambda: self.now_s, [self.subject])
        self.containers: list[IsolatedContainer] = []
        self._runc = [runc, "--root", str(folder / "runc")]
        self.cpu = Path(self.cgroups.cpu_folder(self.pod))
        for _, names in cgroup_mounts():
            if "cpu" in names or not names:
                self.cpu.mkdir(parents=True, exist_ok=True)
        if not self.cgroups.is_v1:
            for parent in (ROOT, self.cpu.parent):
                (parent / "cgroup.subtree_control").write_text("+cpu +cpuset")

    def start(self, name: str, cls: str, qos: Qos, quota_us: int = 0) -> IsolatedContainer:
        key = f"{name}-{os.getpid()}"
        bundle = self.folder / key
        (bundle / "rootfs" / "bin").mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "busybox", bundle / "rootfs" / "bin" / "sleep")
        subprocess.run([self._runc[0], "spec"], cwd=bundle, check=True)
        spec = json.loads((bundle / "config.json").read_text())
        spec["process"].update(args=["/bin/sleep", "1000"], terminal=False)
        kinds = ("pid", "mount", "ipc", "uts")
        spec["linux"]["namespaces"] = [{"type": kind if kind != "mount" else "mount"} for kind in kinds]
        spec["linux"]["cgroupsPath"] = f"{self.pod}/{key}"
        quota = {"quota": quota_us, "period": PERIOD_US} if quota_us else {}
        spec["linux"]["resources"]["cpu"] = {"shares": 2 if qos is Qos.BESTEFFORT else 512, **quota}
        (bundle / "config.json").write_text(json.dumps(spec))
        self.runc("run", "-d", "-b", str(bundle), key)
        described = make_container(name, None, qos=qos, pod=make_pod("p"))
        found = IsolatedContainer(key, f"default/p/{name}", cls, "", frozenset({0}), container=described)
        self.containers.append(found)
        return found

    def runc(self, *words: str) -> None:
        subprocess.run(
            [*self._runc, *words], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60
        )

    def update(self, each: IsolatedContainer, *words: str) -> None:
        """What a runtime does for UpdateContainerResources.

        :raises subprocess.CalledProcessError: the kernel has refused one of the writes.
        """
        self.runc("update", *words, each.key)

    def resize(self, each: IsolatedContainer, quota_us: int) -> None:
        """A CPU limit is resized through the daemon: what is before it, then runc, then the pod's cgroup by kubelet."""
        old_us, pod_us = self.cgroups.quota_us(self.path(each)), self.cgroups.quota_us(self.pod)
        self.announce(each, quota_us)
        self.round()  # one that was begun before, and one that comes before the runtime is there
        self.update(each, "--cpu-quota", str(quota_us))
        if pod_us > 0:
            self.pod_quota(pod_us - (old_us - quota_us))

    def announce(self, each: IsolatedContainer, quota_us: int) -> None:
        self.subject.before_quota(self.path(each), quota_us, self.originals.values.keys(), self.pod)

    def pod_quota(self, quota_us: int) -> None:
        if self.cgroups.is_v1:
            (self.cpu / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.cpu / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")

    def path(self, each: IsolatedContainer) -> str:
        return f"{self.pod}/{each.key}{self.child}"

    def round(self) -> Outcome:
        """One that is so late that all is read again."""
        self.now_s += KEPT_S
        paths = {each.key: self.path(each) for each in self.containers}
        config = read_config([]).config
        sight = Sight(self.containers, paths, topology(HYGON_7285_2S), config, dict(self.originals.values))
        return self.writer.apply(Plan(files=tuple(self.subject.settings(sight))))

    def value(self, name: str, each: str = "") -> str:
        return (self.cpu / each / name).read_text().strip()

    @property
    def burst(self) -> str:
        return "cpu.cfs_burst_us" if self.cgroups.is_v1 else "cpu.max.burst"

    @property
    def weight(self) -> str:
        return "cpu.shares" if self.cgroups.is_v1 else "cpu.weight"

    def end(self) -> None:
        for each in self.containers:
            self.runc("delete", "-f", each.key)
        for root, _ in cgroup_mounts():
            if (root / self.parent.strip("/")).is_dir():
                remove_cgroup(root / self.parent.strip("/"), time.monotonic() + END_S)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RuncNode]:
    runc = find_runc()
    if os.geteuid() or not runc or not shutil.which("busybox"):
        pytest.skip("it needs root, a runc and a static busybox")
    made = RuncNode(tmp_path, runc)
    try:
        yield made
    finally:
        made.end()


def test_a_pod_of_batch_is_idle_and_runc_updates_all_of_its_containers(node: RuncNode) -> None:
    each = node.start("a", BATCH, Qos.BESTEFFORT)
    if not (node.cpu / "cpu.idle").exists():
        pytest.skip("this kernel has no cpu.idle")
    before = node.value(node.weight)
    outcome = node.round()
    assert node.value("cpu.idle") == "1" and not outcome.refusals
    node.update(each, "--cpuset-cpus", "0", "--cpu-share", "2", "--memory", "100000000")
    node.update(each, "--cpu-quota", "20000")
    node.start("b", BATCH, Qos.BESTEFFORT)
    assert not node.round().refusals and node.value("cpu.idle") == "1"
    # All is as before, without a daemon.
    (node.folder / "boot").write_text("boot")
    assert put_back(node.folder / "state", KernelModel({}), node.folder / "boot") == []
    assert (node.value("cpu.idle"), node.value(node.weight)) == ("0", before)
    assert not (node.folder / "state" / FILE_NAME).exists()


def test_a_pod_in_which_another_container_starts_is_no_longer_idle_and_has_its_weight_again(
    node: RuncNode,
) -> None:
    node.start("a", BATCH, Qos.BESTEFFORT)
    if not (node.cpu / "cpu.idle").exists():
        pytest.skip("this kernel has no cpu.idle")
    (node.cpu / node.weight).write_text("7")
    node.round()
    node.start("b", STANDARD, Qos.BESTEFFORT)
    outcome = node.round()
    assert (node.value("cpu.idle"), node.value(node.weight)) == ("0", "7")
    assert outcome.is_clean and not outcome.drift


def test_kubelet_may_write_the_weight_of_a_pod_and_what_it_wrote_last_is_what_comes_back(
    node: RuncNode,
) -> None:
    each = node.start("a", BATCH, Qos.BURSTABLE)
    node.round()
    least = node.value(node.weight)
    for weight in ("300", "400", "500", "600"):
        (node.cpu / node.weight).write_text(weight)
        outcome = node.round()
        assert node.value(node.weight) == least and not outcome.drift
    node.containers[0] = replace(each, cls=STANDARD)
    node.round()
    assert node.value(node.weight) == "600"


def test_the_kernel_refuses_a_quota_below_the_burst_and_so_runc_fails(node: RuncNode) -> None:
    each = node.start("a", PROTECTED, Qos.GUARANTEED, 100_000)
    node.round()
    assert node.value(node.burst, each.key) == "100000"
    with pytest.raises(subprocess.CalledProcessError):
        node.update(each, "--cpu-quota", "50000")


def test_a_limit_goes_down_step_by_step_and_up_again_while_there_is_a_burst(node: RuncNode) -> None:
    each = node.start("a", PROTECTED, Qos.GUARANTEED, 200_000)
    node.pod_quota(200_000)
    node.round()
    for quota_us in (150_000, 149_999, 20_000, 1_000):
        node.resize(each, quota_us)
        assert not node.round().refusals
        assert node.value(node.burst, each.key) == node.value(node.burst) == str(quota_us)
    node.pod_quota(200_000)
    node.resize(each, 200_000)
    node.round()
    assert node.value(node.burst, each.key) == "200000"


def test_a_child_that_the_runtime_limits_as_well_has_the_burst_of_its_container(node: RuncNode) -> None:
    each = node.start("a", PROTECTED, Qos.GUARANTEED, 100_000)
    child, node.child = node.cpu / each.key / "container", "/container"  # as crun before 1.11 under systemd
    child.mkdir()
    name = "cpu.cfs_quota_us" if node.cgroups.is_v1 else "cpu.max"
    (child / name).write_text("100000")
    node.round()
    bursts = (node.burst, each.key), (node.burst, f"{each.key}/container")
    assert [node.value(*one) for one in bursts] == ["100000"] * 2
    node.announce(each, 40_000)
    node.round()
    (child / name).write_text("40000")
    node.update(each, "--cpu-quota", "40000")
    assert not node.round().refusals and [node.value(*one) for one in bursts] == ["40000"] * 2
    child.rmdir()


def test_a_pods_burst_goes_down_by_one_of_its_containers(node: RuncNode) -> None:
    one, other = (node.start(name, PROTECTED, Qos.GUARANTEED, 100_000) for name in "ab")
    node.pod_quota(200_000)
    node.round()
    assert node.value(node.burst) == "200000"
    node.resize(one, 30_000)
    node.round()
    assert (node.value(node.burst), node.value(node.burst, other.key)) == ("130000", "100000")


def test_kubelet_may_resize_all_containers_of_a_pod_before_the_pod(node: RuncNode) -> None:
    one, other, third = (node.start(name, PROTECTED, Qos.GUARANTEED, 100_000) for name in "abc")
    node.pod_quota(300_000)
    node.round()
    for each, quota_us in ((one, 40_000), (other, 70_000), (one, 40_000), (third, 110_000)):
        node.announce(each, quota_us)
        node.round()
    node.update(one, "--cpu-quota", "40000")
    node.update(other, "--cpu-quota", "70000")
    node.round()
    node.pod_quota(210_000)
    node.update(third, "--cpu-quota", "100000")
    node.subject.before_quota(node.pod, 150_000, node.originals.values.keys())
    node.pod_quota(150_000)
    assert not node.round().refusals and node.value(node.burst) == "150000"


def test_a_resize_that_does_not_come_leaves_the_burst_down_for_a_while_only(node: RuncNode) -> None:
    each = node.start("a", PROTECTED, Qos.GUARANTEED, 100_000)
    node.round()
    assert isinstance(node.subject, QuotaFollower)
    node.announce(each, 40_000)
    for _ in range(2):
        node.round()
        assert node.value(node.burst, each.key) == "40000"
    node.now_s += ANNOUNCED_S
    assert not node.round().drift and node.value(node.burst, each.key) == "100000"


def test_a_burst_of_another_program_is_left_alone(node: RuncNode) -> None:
    each = node.start("a", STANDARD, Qos.GUARANTEED, 100_000)
    (node.cpu / each.key / node.burst).write_text("70000")
    node.round()
    node.announce(each, 40_000)
    assert node.value(node.burst, each.key) == "70000"


def test_a_container_that_ends_leaves_nothing_to_be_put_back(node: RuncNode) -> None:
    each = node.start("a", PROTECTED, Qos.GUARANTEED, 100_000)
    node.round()
    node.runc("delete", "-f", each.key)
    outcome = node.round()  # what runs is known a little later
    assert not outcome.refusals and not outcome.drift
    node.containers.clear()
    assert node.round().is_clean
