"""What runtimes tell of containers that no create request announced, read as a create request would be."""

from __future__ import annotations

import contextlib
import gc
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

import pytest
import pytest_asyncio
import structlog

from cri_api import runtime_v1_pb2 as cri
from cri_api.claims import cdi_device, claim_key, part_name, variable
from cri_proxy.config.config import read_config
from cri_proxy.engine.build import Machine, make_engine, make_host
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ClaimPart
from cri_proxy.engine.report import engine_status, placement_row
from cri_proxy.engine.resources import CgroupReading
from cri_proxy.metrics import Metrics
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.relay.status import RpcError
from cri_proxy.runtime import RuntimeClient
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.reconciler import AT_A_TIME, MANY, Reconciler, claims_of, declared_cgroup, uses_of
from cri_proxy.services.updates import Updates
from cri_proxy.state.store import Store
from cri_proxy.state.writer import StateWriter
from cri_proxy.text.sources import SettingsSource
from policies.hygon import Hygon
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, Container, Resources
from policies.settings import ClassSelectors, EngineOptions, PlacementSettings
from tests.cri_client import container_config
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S
from tests.scenes import topology

GPU, DATA = "/dev/nvidia0", "/mnt/nvme"
SPEC: dict[str, Any] = {"linux": {"devices": [{"path": GPU, "type": "c", "major": 195, "minor": 0}]}}
DEVICES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "containerd tells what was asked for": (
        {"config": {"devices": [{"host_path": GPU, "container_path": "/dev/gpu"}]}, "runtimeSpec": SPEC},
        [GPU],
    ),
    "containerd, and none was asked for": ({"config": {"image": {}}, "runtimeSpec": SPEC}, []),
    "others have the spec": ({"runtimeSpec": SPEC}, [GPU]),
    "a privileged container's lists the whole host": ({"privileged": True, "runtimeSpec": SPEC}, []),
    "iSulad tells nothing": ({}, []),
    "what cannot be understood is nothing": (
        {"config": {"devices": [{"host_path": 3}, "x", None, {}]}, "runtimeSpec": SPEC},
        [],
    ),
}


@pytest.mark.parametrize(("info", "devices"), DEVICES.values(), ids=DEVICES)
def test_devices_and_mounts_are_what_was_asked_for(info, devices) -> None:
    status = cri.ContainerStatus(
        mounts=[
            cri.Mount(container_path="/data", host_path=DATA),
            cri.Mount(container_path="/models", host_path="/models", readonly=True),
        ]
    )
    assert uses_of(status, info) == (*(("devices", path) for path in devices), ("mounts", DATA))


CLAIM = part_name("1111-aaaa", "cpus")
WITH_CLAIM: dict[str, Any] = {"process": {"env": ["A=b", variable(CLAIM)]}}
CLAIMS: dict[str, tuple[dict[str, Any], bool]] = {
    "containerd tells the devices that were asked for": (
        {"config": {"CDI_devices": [{"name": cdi_device(CLAIM)}, {"name": "vendor.example/disk=a"}]}},
        True,
    ),
    "a variable of the pod's own is none": ({"config": {}, "runtimeSpec": WITH_CLAIM}, False),
    "others show the variable": ({"runtimeSpec": WITH_CLAIM}, True),
    "iSulad tells nothing": ({}, False),
    "devices that are a number": ({"config": {"CDI_devices": 3}}, False),
    "names that are none": ({"config": {"CDI_devices": [3, {"name": 3}, None, {}]}}, False),
    "an environment that is a text": ({"runtimeSpec": {"process": {"env": variable(CLAIM)}}}, False),
    "a process that is a list": ({"runtimeSpec": {"process": [variable(CLAIM)]}}, False),
    "numbers for variables": ({"runtimeSpec": {"process": {"env": [3, None, variable(CLAIM)]}}}, True),
}


@pytest.mark.parametrize(("info", "has_it"), CLAIMS.values(), ids=CLAIMS)
def test_claims_are_those_that_the_runtime_tells_of(info, has_it) -> None:
    assert claims_of(cri.ContainerStatus(), info) == ((claim_key(CLAIM),) if has_it else ())
    annotated = cri.ContainerStatus(annotations={"cdi.k8s.io/x": cdi_device(CLAIM)})
    assert claims_of(annotated, info) == (claim_key(CLAIM),)


# ---------------------------------------------------------------------- what is told of a comparison


async def test_the_line_about_a_comparison_names_the_containers(found) -> None:
    seen, levels = structlog.testing.LogCapture(), structlog.make_filtering_bound_logger(0)
    found.node_state.log = structlog.wrap_logger(None, processors=[seen], wrapper_class=levels)
    await found.reconciler.run()
    for key in (found.good, found.odd):
        del found.runtime.containers[key]
    found.node_state.clock = lambda: 2000.0
    await found.reconciler.run()
    adopted, removed = [line for line in seen.entries if line["event"] == "resync"]
    both = ["ns/good/app", "ns/odd/app"]
    assert adopted["adopted"] == 2 and sorted(adopted["containers"]["adopted"]) == both
    assert removed["removed"] == 2 and sorted(removed["containers"]["removed"]) == both


# ---------------------------------------------------------------------- claims of what is known


async def test_a_record_without_the_claims_that_the_runtime_shows_gets_them_by_the_first_look(found) -> None:
    # As after a version that knew no claims: the container was made with one, and its record has none.
    engine = found.engine
    part = ClaimPart("cpus", 2, parse_cpus("0-3,64-67"), devices=("l3-0",))
    [record] = engine.prepare("1111-aaaa", "ns", "mine", [part], 1000.0)
    await found.reconciler.run()
    assert engine.grants[found.good].container.claims == ()
    asked = len(found.runtime.calls_of("ContainerStatus"))
    found.runtime.containers[found.good].config.CDI_devices.add(name=cdi_device(CLAIM))
    await Reconciler(found.client, found.cgroups, found.node_state).run()
    grant = engine.grants[found.good]
    assert grant.container.claims == (claim_key(CLAIM),)
    assert grant.placement.claimed == record.placement.exclusive == grant.cpus
    # What it costs is what a first look costs without claims: a call a container.
    assert len(found.runtime.calls_of("ContainerStatus")) - asked == 2
    # A look at which the runtime shows none takes none away.
    found.runtime.containers[found.good].config.ClearField("CDI_devices")
    await Reconciler(found.client, found.cgroups, found.node_state).run()
    assert engine.grants[found.good] == grant
    assert broken_invariants(engine) == []


# ---------------------------------------------------------------------- one that is odd

ODD_PODS: dict[str, Any] = {
    "a configuration that is a text": {"config": "none"},
    "a list in the place of the cgroup": {"config": {"linux": ["/kubepods"]}},
}
ODD_CONTAINERS: dict[str, Any] = {
    "a specification that is a text": {"runtimeSpec": "none"},
    "resources that are a list": {"runtimeSpec": {"linux": {"resources": [3], "devices": []}}},
    "devices that are a number": {"config": {"devices": 3}},
}


class Found:
    """A runtime with two pods of one container each that ran before us; what is told of the second is odd."""

    def __init__(self, runtime: FakeRuntime, folder: Path) -> None:
        log, metrics = structlog.get_logger(), Metrics("test")
        self.runtime = runtime
        self.client = RuntimeClient(runtime.socket)
        store = StateWriter(Store(folder / "state"), metrics, log)
        self.node_state = NodeState(store, Updates(self.client, metrics, log), metrics, log)
        self.node_state.clock = lambda: 1000.0
        config = read_config([SettingsSource("test", values={})]).config
        host, _ = make_host(config, Machine(topology(HYGON_7285_2S)))
        self.engine = self.node_state.engine = make_engine(config, host)
        self.cgroups = Cgroups(folder / "cgroup", folder / "proc")
        self.reconciler = Reconciler(self.client, self.cgroups, self.node_state)
        self.good, self.odd = self._add("good"), self._add("odd")

    def _add(self, name: str) -> str:
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="ns"),
            linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kubepods/burstable/podx"),
        )
        app = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="app"))
        return self.runtime.add_container(self.runtime.add_pod(config), app)

    def process(self, container_id: str, path: str) -> None:
        """Where the kernel says that the container's first process is (cgroup v2)."""
        folder = self.cgroups.proc / str(self.runtime.containers[container_id].pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::{path}\n")

    def cgroup(self, path: str, cpus: str, effective: str) -> None:
        """A cgroup with a cpuset."""
        folder = self.cgroups.base / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for kind, text, now in (("cpus", cpus, effective), ("mems", "", "0")):
            (folder / f"cpuset.{kind}").write_text(text + "\n")
            (folder / f"cpuset.{kind}.effective").write_text(now + "\n")

    def tell(self, method: str, reply: Any) -> None:
        """What the runtime says of the odd one from now on."""
        odd = self.runtime.containers[self.odd].sandbox_id if method == "PodSandboxStatus" else self.odd
        self.runtime.script(
            method, reply=reply.SerializeToString(), when=lambda request: odd.encode() in request
        )


@pytest_asyncio.fixture
async def found(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[Found]:
    found = Found(runtime, tmp_path)
    yield found
    await found.node_state.updates.close()
    await found.client.close()


@pytest.mark.parametrize("info", ODD_PODS.values(), ids=ODD_PODS)
async def test_a_pod_that_cannot_be_understood_is_known_by_its_name_and_the_others_by_all_there_is(
    found, info
) -> None:
    found.tell("PodSandboxStatus", cri.PodSandboxStatusResponse(info={"info": json.dumps(info)}))
    await found.reconciler.run()
    parents = {f"{pod.namespace}/{pod.name}": pod.cgroup_parent for pod in found.engine.pods.values()}
    assert parents == {"ns/good": "/kubepods/burstable/podx", "ns/odd": ""}
    assert set(found.engine.grants) == {found.good, found.odd}


@pytest.mark.parametrize("info", ODD_CONTAINERS.values(), ids=ODD_CONTAINERS)
async def test_a_container_that_cannot_be_understood_does_not_keep_others_from_being_known(
    found, info
) -> None:
    status = cri.ContainerStatus(id=found.odd, metadata=cri.ContainerMetadata(name="app"))
    found.tell("ContainerStatus", cri.ContainerStatusResponse(status=status, info={"info": json.dumps(info)}))
    await found.reconciler.run()
    assert found.good in found.engine.grants and len(found.engine.pods) == 2


class Information(dict[str, Any]):
    """What a runtime tells besides; it can be seen whether any of it is kept."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.parametrize("method", ["container_status", "sandbox_status"])
async def test_of_what_runtimes_tell_no_more_is_kept_than_is_asked_for_at_a_time(
    found, monkeypatch, method
) -> None:
    for number in range(40):
        found._add(f"more-{number}")
    alive, most, real = WeakSet[Information](), 0, getattr(found.client, method)

    async def told(*words: Any, **named: Any) -> tuple[Any, Information]:
        nonlocal most
        status, info = await real(*words, **named)
        information = Information(info)
        alive.add(information)
        most = max(most, len(alive))
        return status, information

    monkeypatch.setattr(found.client, method, told)
    await found.reconciler.run()
    assert len(found.engine.grants) == len(found.engine.pods) == 42 and 0 < most <= AT_A_TIME


#: What kubelet and a workload's controller put on every pod and container.
LABELS = {"app": "shop", "pod-template-hash": "5d4f8c7b9", "app.kubernetes.io/part-of": "shop"}
ANNOTATIONS = {
    "kubernetes.io/config.source": "api",
    "io.kubernetes.container.hash": "0a1b2c3d",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "kubectl.kubernetes.io/last-applied-configuration": "{}" * 5000,
}
#: Bytes that a record of a container may take with all that goes with it; with two pods and all annotations it took 8000.
KEPT_BYTES = 4500


def kept_bytes(*roots: Any) -> int:
    """What some objects take with all that they hold, but for what programs are made of."""
    seen, waiting, total = set[int](), list(roots), 0
    while waiting:
        item = waiting.pop()
        if id(item) not in seen and not isinstance(item, (type, ModuleType, FunctionType)):
            seen.add(id(item))
            total += sys.getsizeof(item)
            waiting += gc.get_referents(item)
    return total


async def test_an_adopted_container_takes_little_memory(found) -> None:
    def add(first: int, last: int) -> None:
        for number in range(first, last):
            uid = f"0a1b2c3d-0000-4000-8000-{number:012d}"
            own = {"io.kubernetes.pod.name": f"shop-{number}", "io.kubernetes.pod.uid": uid}
            config = cri.PodSandboxConfig(
                metadata=cri.PodSandboxMetadata(name=f"shop-{number}", uid=uid, namespace="default"),
                linux=cri.LinuxPodSandboxConfig(cgroup_parent=f"/kubepods/burstable/pod{uid}"),
                labels={**LABELS, **own},
                annotations=ANNOTATIONS,
            )
            app = container_config("app", cpu_request=100, cpu_limit=1000, memory_limit=1 << 28)
            app.labels.update(own)
            app.annotations.update(ANNOTATIONS)
            found.runtime.add_container(found.runtime.add_pod(config), app)

    async def kept() -> int:
        await found.reconciler.run()
        found.node_state.save()
        await found.node_state.store.settled()
        await found.node_state.store.checkpoint()
        return kept_bytes(found.engine, found.reconciler._paths, found.node_state.store.store)

    add(0, 40)
    before = await kept()
    add(40, 120)
    assert 0 < (await kept() - before) / 80 < KEPT_BYTES
    pods = {id(grant.container.pod) for grant in found.engine.grants.values()}
    assert pods == {id(pod) for pod in found.engine.pods.values()}


async def test_each_pod_is_asked_for_once(found, monkeypatch) -> None:
    asked, real = Counter[str](), found.client.sandbox_status

    async def told(sandbox_id: str) -> Any:
        asked[sandbox_id] += 1
        return await real(sandbox_id)

    monkeypatch.setattr(found.client, "sandbox_status", told)
    await found.reconciler.run()
    await found.reconciler.run()
    assert asked == dict.fromkeys(found.engine.pods, 1)


async def test_when_many_are_adopted_the_state_file_has_them_and_their_texts_are_let_go(found) -> None:
    for number in range(MANY):
        found._add(f"more-{number}")
    await found.reconciler.run()
    store = found.node_state.store.store
    with contextlib.closing(sqlite3.connect(store.path)) as db:
        keys = {key for (key,) in db.execute("SELECT key FROM records WHERE kind = 'grant'")}
    assert keys == found.engine.grants.keys() and not store._logged


def test_containers_that_run_on_one_set_of_cpus_share_it() -> None:
    assert parse_cpus("0-127") is parse_cpus("0-127")


DECLARED: dict[str, tuple[Any, str]] = {
    "cgroupfs driver": ({"linux": {"cgroupsPath": "/kubepods/podx/6b0f"}}, "/kubepods/podx/6b0f"),
    "systemd driver": (
        {"linux": {"cgroupsPath": "kubepods-podx.slice:cri-containerd:6b0f"}},
        "/kubepods.slice/kubepods-podx.slice/cri-containerd-6b0f.scope",
    ),
    "no specification": (None, ""),
    "a specification that is a text": ("none", ""),
    "resources alone": ({"linux": {"resources": {}}}, ""),
    "a path that is a number": ({"linux": {"cgroupsPath": 3}}, ""),
}


@pytest.mark.parametrize(("spec", "path"), DECLARED.values(), ids=DECLARED)
def test_the_specification_says_which_cgroup_a_container_was_to_have(spec, path) -> None:
    assert declared_cgroup({"runtimeSpec": spec}) == path


# ---------------------------------------------------------------------- containers that nest

POD_GROUP = "/kubepods.slice/kubepods-podx.slice"


async def test_what_a_container_does_below_its_cgroup_is_no_drift(found) -> None:
    own = f"{POD_GROUP}/cri-containerd-{found.good}.scope"
    found.process(found.good, f"{own}/init")
    found.cgroup(own, "2-3", "2-3")
    found.cgroup(f"{own}/init", "", "2-3")
    await found.reconciler.run()
    assert format_cpus(found.engine.grants[found.good].cpus) == "2-3"
    found.engine.manage(found.good)
    place = format_cpus(found.engine.grants[found.good].placement.cpus)
    for _ in range(4):
        found.cgroup(own, place, place)
        result = await found.reconciler.run()
        assert (result.drifted, result.foreign) == ((), ())
    assert found.reconciler.cgroup_of(found.good) == own


async def test_a_cpuset_that_was_emptied_is_drift_and_one_that_never_was_is_inherited(found) -> None:
    good, odd = (f"{POD_GROUP}/cri-containerd-{key}.scope" for key in (found.good, found.odd))
    found.process(found.good, f"{good}/init")
    found.process(found.odd, odd)
    found.cgroup(good, "", "4-7")
    found.cgroup(odd, "", "4-7")
    await found.reconciler.run()
    assert {format_cpus(grant.cpus) for grant in found.engine.grants.values()} == {"4-7"}
    found.engine.manage(found.good)
    found.engine.begin_update(found.good)
    found.engine.took(found.good)
    result = await found.reconciler.run()
    assert (result.drifted, result.foreign) == ((found.good,), ())


# ---------------------------------------------------------------------- memory


def numa_stat(found: Found, path: str, anon: int) -> None:
    (found.cgroups.base / path.lstrip("/") / "memory.numa_stat").write_text(f"anon N0={anon} N4=0\n")


@pytest.mark.parametrize("mode", ["prefer", "off"])
async def test_what_a_container_without_a_limit_holds_is_read_at_each_comparison(found, mode) -> None:
    own = f"{POD_GROUP}/cri-containerd-{found.good}.scope"
    found.process(found.good, own)
    found.cgroup(own, "", "0-127")
    found.engine.rehost(found.engine.host, Hygon(found.engine.host.topology, PlacementSettings(memory=mode)))
    for held_mib in (300, 3000, 200):
        numa_stat(found, own, held_mib << 20)
        await found.reconciler.run()
        charge = found.engine.grants[found.good].memory_charge
        assert charge == (((0, held_mib << 20),) if mode == "prefer" else ())


async def test_of_a_container_with_a_limit_it_is_not_read(found) -> None:
    own = f"{POD_GROUP}/cri-containerd-{found.good}.scope"
    found.process(found.good, own)
    found.cgroup(own, "", "0-127")
    numa_stat(found, own, 300 << 20)
    resources = cri.LinuxContainerResources(memory_limit_in_bytes=4 << 30)
    found.runtime.containers[found.good].resources.CopyFrom(resources)
    await found.reconciler.run()
    grant = found.engine.grants[found.good]
    assert sum(size for _, size in grant.memory_charge) == 4 << 30
    assert len(grant.memory_charge) == 8


async def test_the_limit_of_a_pod_is_found_in_its_cgroup(found) -> None:
    for key in (found.good, found.odd):
        resources = cri.LinuxContainerResources(memory_limit_in_bytes=4 << 30)
        found.runtime.containers[key].resources.CopyFrom(resources)
    pod = found.cgroups.base / "kubepods/burstable/podx"
    pod.mkdir(parents=True)
    (pod / "memory.max").write_text(f"{4 << 30}\n")
    await found.reconciler.run()
    await found.reconciler.run()
    pods = [grant.container.pod for grant in found.engine.grants.values()]
    assert [pod.memory_limit_bytes for pod in pods] == [4 << 30] * 2


# ---------------------------------------------------------------------- containers in a sandbox of their pod


async def test_a_container_whose_processes_are_outside_of_its_cgroup_is_said_to_be_bound_by_nothing(
    found,
) -> None:
    sandbox, own = f"{POD_GROUP}/sandbox", f"{POD_GROUP}/cri-containerd-{found.odd}.scope"
    specification = {"linux": {"cgroupsPath": f"kubepods-podx.slice:cri-containerd:{found.odd}"}}
    info = {"pid": found.runtime.containers[found.odd].pid, "runtimeSpec": specification}
    status = cri.ContainerStatus(id=found.odd, metadata=cri.ContainerMetadata(name="app"))
    found.tell("ContainerStatus", cri.ContainerStatusResponse(status=status, info={"info": json.dumps(info)}))
    found.process(found.odd, sandbox)
    found.cgroup(sandbox, "", "0-15")
    found.cgroup(own, "", "0-15")
    # Adopted it is charged where it runs; placed nothing is repaired that cannot be.
    await found.reconciler.run()
    grant = found.engine.grants[found.odd]
    assert (grant.runs_in, format_cpus(grant.cpus)) == (sandbox, "0-15")
    found.engine.manage(found.odd)
    for _ in range(4):
        assert (await found.reconciler.run()).drifted == ()
    assert placement_row(found.engine.host.topology, found.engine.grants[found.odd])["runs_in"] == sandbox
    assert list(engine_status(found.engine, "hygon")["not_bound"]) == ["ns/odd/app"]
    # Its runtime may put them there yet. What is on its way to a container is not judged.
    await found.node_state.updates.tried([found.odd], 10.0)
    (found.cgroups.base / own.lstrip("/") / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert (await found.reconciler.run()).drifted == (found.odd,)
    assert found.engine.grants[found.odd].runs_in == ""


# ---------------------------------------------------------------------- resources

OWN = "/kubepods/burstable/podx/"


def limits(found: Found, path: str, weight: int, quota: str, memory: str = "max") -> None:
    """The files of a cgroup (v2) that say what it may use."""
    folder = found.cgroups.base / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("cpu.weight", str(weight)), ("cpu.max", quota), ("memory.max", memory)):
        (folder / name).write_text(text + "\n")


async def on_its_cgroup(found: Found) -> str:
    """The good container, placed, with a cgroup that says what it was created with; its path."""
    path = OWN + found.good
    found.process(found.good, path)
    found.runtime.containers[found.good].resources.MergeFrom(
        cri.LinuxContainerResources(cpu_shares=512, cpu_quota=200_000, cpu_period=100_000)
    )
    found.cgroup(path, "0-127", "0-127")
    limits(found, path, 20, "200000 100000")
    await found.reconciler.run()
    found.engine.manage(found.good)
    found.node_state.save()
    await found.runtime.wait_for_call("UpdateContainerResources")
    found.cgroup(path, found.runtime.cpuset(found.good), "0-127")
    return path


def statuses(found: Found) -> int:
    return sum(call.message.container_id == found.good for call in found.runtime.calls_of("ContainerStatus"))


async def test_what_the_cgroup_says_is_followed_and_the_runtime_is_asked_only_where_it_is_news(found) -> None:
    path = await on_its_cgroup(found)
    before = statuses(found)
    assert (await found.reconciler.run()).resized == ()
    assert statuses(found) == before
    # 1. A resize past us: the files have it rounded, the runtime as it was asked for.
    runtimes = found.runtime.containers[found.good].resources
    runtimes.cpu_shares, runtimes.cpu_quota = 1638, 3_200_000
    limits(found, path, 63, "3200000 100000", str(1 << 30))
    assert (await found.reconciler.run()).resized == (found.good,)
    now = found.engine.grants[found.good].container.resources
    assert (now.milli_request, now.milli_limit, now.memory_limit_bytes) == (1600, 32_000, 1 << 30)
    assert statuses(found) == before + 1
    await found.runtime.wait_for_call("UpdateContainerResources", 2)
    found.cgroup(path, found.runtime.cpuset(found.good), "0-127")
    assert (await found.reconciler.run()).resized == ()
    # 2. A weight that nothing explains is asked for at the first look, the second, the fourth and so on.
    limits(found, path, 7000, "3200000 100000", str(1 << 30))
    for _ in range(9):
        assert (await found.reconciler.run()).resized == ()
    assert statuses(found) == before + 5


async def test_a_resize_that_the_runtime_notes_after_the_cgroup_has_it_is_followed(found) -> None:
    """CRI-O's status has what it was asked for once runc is done; a look between takes that for CPU time that is lent."""
    path = await on_its_cgroup(found)
    found.runtime.containers[found.good].resources.cpu_quota = 800_000
    limits(found, path, 20, "800000 100000")
    assert (await found.reconciler.run()).resized == (found.good,)
    limits(found, path, 20, "400000 100000")
    assert (await found.reconciler.run()).resized == ()
    found.runtime.containers[found.good].resources.cpu_quota = 400_000
    assert (await found.reconciler.run()).resized == (found.good,)
    assert found.engine.grants[found.good].container.resources.milli_limit == 4000


async def test_the_limits_of_a_container_in_a_child_of_its_cgroup_are_where_its_runtime_wrote_them(
    found,
) -> None:
    path = await on_its_cgroup(found)
    cpus = found.runtime.cpuset(found.good)
    found.cgroup(path, "", "0-127")
    found.cgroup(f"{path}/container", cpus, cpus)
    limits(found, f"{path}/container", 100, "max 100000")
    found.process(found.good, f"{path}/container")
    assert (await found.reconciler.run()).resized == ()
    found.runtime.containers[found.good].resources.cpu_quota = 800_000
    limits(found, path, 20, "800000 100000")
    assert (await found.reconciler.run()).resized == (found.good,)
    # What another program lends is no resize.
    limits(found, path, 20, "1600000 100000")
    assert (await found.reconciler.run()).resized == ()


async def test_annotations_of_classes_are_followed_where_the_runtime_lists_others(found) -> None:
    await found.reconciler.run()
    sandbox = found.runtime.containers[found.good].sandbox_id
    found.runtime.pods[sandbox].config.annotations["cri-resmgr.io/class"] = "batch"
    await found.reconciler.run()
    assert found.engine.grants[found.good].isolation == ""  # no subject of isolation is on
    found.engine.rehost(found.engine.host, options=EngineOptions(classes=ClassSelectors()))
    await found.reconciler.run()
    assert found.engine.grants[found.good].isolation == "batch"
    # A list that tells no annotations at all says nothing about them.
    found.runtime.pods[sandbox].config.annotations.clear()
    await found.reconciler.run()
    assert found.engine.grants[found.good].isolation == "batch"


async def test_a_pod_that_was_resized_past_us_has_the_size_that_its_cgroup_says(found) -> None:
    await found.reconciler.run()
    [sandbox] = [pod for pod in found.engine.pods if found.engine.pods[pod].name == "good"]
    assert found.engine.pods[sandbox].size is None
    limits(found, "/kubepods/burstable/podx", 79, "400000 100000")
    await found.reconciler.run()
    size = found.engine.pods[sandbox].size
    assert size is not None and (size.milli_limit, size.source) == (4000, "the pod's cgroup")
    limits(found, "/kubepods/burstable/podx", 79, "800000 100000")
    await found.reconciler.run()
    assert found.engine.pods[sandbox].size == replace(size, milli_limit=8000)
    assert 'cri_resmgr_drift_total{result="pod resized"} 2.0' in found.node_state.metrics.text()
    version = found.engine.version
    await found.reconciler.run()
    assert found.engine.version == version


async def test_files_of_cgroup_v1_are_followed(runtime, tmp_path) -> None:
    for mount in ("cpuset", "cpu,cpuacct", "memory"):
        (tmp_path / "cgroup" / mount).mkdir(parents=True)
    cgroups = Cgroups(tmp_path / "cgroup", tmp_path / "proc")
    path = tmp_path / "cgroup"
    for name, text in (
        ("cpu,cpuacct/c/cpu.shares", "512"),
        ("cpu,cpuacct/c/cpu.cfs_quota_us", "-1"),
        ("cpu,cpuacct/c/cpu.cfs_period_us", "100000"),
        ("memory/c/memory.limit_in_bytes", "9223372036854771712"),
    ):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text + "\n")
    assert cgroups.limits("/c") == CgroupReading(512, 0, -1, 100_000, -1)
    assert cgroups.limits("/gone") == CgroupReading()


# ---------------------------------------------------------------------- creates in doubt


def in_doubt(found: Found) -> str:
    """A create that got no answer, in the sandbox of the good one; returns that sandbox's id."""
    sandbox = found.runtime.containers[found.good].sandbox_id
    pod = found.engine.pods[sandbox]
    lost = Container(pod, "lost", resources=Resources(1000, 1000))
    found.engine.doubt(found.engine.admit(lost, NO_CONSTRAINT, 990.0).ticket)
    return sandbox


@pytest.mark.parametrize("with_cpusets", [False, True])
async def test_a_create_in_doubt_ends_with_its_sandbox(found, with_cpusets) -> None:
    await found.reconciler.run()
    sandbox = in_doubt(found)
    assert (await found.reconciler.run(with_cpusets)).cancelled == ()
    del found.runtime.containers[found.good], found.runtime.pods[sandbox]
    (cancelled,) = (await found.reconciler.run(with_cpusets)).cancelled
    assert not found.engine.tickets and cancelled not in found.engine.grants


async def test_and_not_while_the_runtime_does_not_say_which_there_are(found) -> None:
    await found.reconciler.run()
    in_doubt(found)
    found.runtime.script("ListPodSandbox", error=(14, "busy"))
    with pytest.raises(RpcError):
        await found.reconciler.run(with_cpusets=False)
    assert found.engine.tickets
