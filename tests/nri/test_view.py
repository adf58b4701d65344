"""Pods and containers as plugins are shown them: from what real runtimes tell, and from the request alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri import view
from cri_proxy.nri.spec import read_container, read_pod

DATA = Path(__file__).parents[1] / "data" / "nri"


@dataclass(frozen=True)
class Captured:
    """What a runtime said of one pod and its container."""

    pod_id: str
    pod: cri.PodSandboxStatusResponse
    request: cri.CreateContainerRequest
    created: cri.ContainerStatusResponse
    running: cri.ContainerStatusResponse
    exited: cri.ContainerStatusResponse


def captured(name: str) -> Captured:
    said = json.loads((DATA / f"{name}.json").read_text())
    statuses = [
        ParseDict(said[state], cri.ContainerStatusResponse()) for state in ("created", "running", "exited")
    ]
    return Captured(
        said["pod_id"],
        ParseDict(said["pod_status"], cri.PodSandboxStatusResponse()),
        ParseDict(said["create_request"], cri.CreateContainerRequest()),
        *statuses,
    )


CONTAINERD = pytest.mark.parametrize(
    "said",
    [captured("containerd-1.6.20"), captured("containerd-1.7.24")],
    ids=["containerd 1.6", "containerd 1.7"],
)
POD_UID = "6a1c9c2e-0c5e-4d0b-8f0e-1b2c3d4e5f60"
CGROUP_PARENT = f"/cri-e2e-0/kubepods/burstable/pod{POD_UID}"


# ---------------------------------------------------------------------- pods


@CONTAINERD
def test_a_pod_is_what_cri_and_its_spec_say(said: Captured) -> None:
    pod = view.view_pod(said.pod_id, said.request.sandbox_config, said.pod)
    assert (pod.id, pod.name, pod.uid, pod.namespace) == (said.pod_id, "web-0", POD_UID, "default")
    assert pod.labels["app"] == "web"
    assert pod.annotations["noderesource.dev/x"] == "y"
    assert pod.annotations["io.kubernetes.cri.sandbox-id"] == said.pod_id
    assert pod.pid == json.loads(said.pod.info["info"])["pid"]
    assert list(pod.ips) == ["10.213.0.2"]
    assert pod.linux.cgroup_parent == CGROUP_PARENT
    assert pod.linux.cgroups_path == f"{CGROUP_PARENT}/{said.pod_id}"
    assert [n.type for n in pod.linux.namespaces] == ["pid", "ipc", "uts", "mount", "network"]
    assert pod.linux.namespaces[-1].path.startswith("/tmp/")
    assert (pod.linux.pod_resources.cpu.shares.value, pod.linux.pod_overhead.cpu.shares.value) == (512, 10)
    assert pod.linux.resources.cpu.shares.value == 2


@CONTAINERD
def test_a_pod_is_the_same_without_the_request_that_made_it(said: Captured) -> None:
    assert view.view_pod(said.pod_id, None, said.pod) == view.view_pod(
        said.pod_id, said.request.sandbox_config, said.pod
    )


def test_a_pod_without_a_status_is_its_config() -> None:
    config = captured("containerd-1.6.20").request.sandbox_config
    pod = view.view_pod("p1", config, runtime_handler="kata")
    assert (pod.id, pod.uid, pod.runtime_handler, pod.pid) == ("p1", POD_UID, "kata", 0)
    assert pod.linux.cgroup_parent == CGROUP_PARENT
    assert pod.linux.cgroups_path == ""


def test_a_pod_of_cri_o_has_its_cgroup_parent_in_an_annotation() -> None:
    spec = {"annotations": {"io.kubernetes.cri-o.CgroupParent": "/kubepods.slice/x.slice"}}
    status = cri.PodSandboxStatusResponse(info={"info": json.dumps({"runtimeSpec": spec})})
    status.status.annotations["its/own"] = "1"
    pod = view.view_pod("p1", None, status)
    assert pod.linux.cgroup_parent == "/kubepods.slice/x.slice"
    # Its notes in the spec are no annotations of the pod's.
    assert dict(pod.annotations) == {"its/own": "1"}


# ---------------------------------------------------------------------- containers


@CONTAINERD
def test_a_container_is_what_its_spec_says(said: Captured) -> None:
    container = view.view_container(said.pod_id, said.created, said.request.config)
    assert (container.pod_sandbox_id, container.name) == (said.pod_id, "main")
    assert list(container.args) == ["sleep", "1000000"]
    assert list(container.env) == ["PATH=/bin", "HOSTNAME=web-0", "GREETING=hello"]
    assert {"/proc", "/dev/shm", "/data", "/etc/resolv.conf"} <= {m.destination for m in container.mounts}
    assert container.annotations["io.kubernetes.container.hash"] == "abc"
    assert container.annotations["io.kubernetes.cri.sandbox-id"] == said.pod_id
    assert container.labels["io.kubernetes.container.name"] == "main"
    assert (container.user.uid, container.user.gid) == (1000, 1001)
    assert 2000 in container.user.additional_gids
    linux = container.linux
    assert linux.cgroups_path == f"{CGROUP_PARENT}/{container.id}"
    assert linux.oom_score_adj.value == 999
    assert [(d.path, d.type, d.major, d.minor, d.file_mode.value) for d in linux.devices] == [
        ("/dev/spare", "c", 1, 3, 0o666)
    ]
    assert (linux.resources.cpu.shares.value, linux.resources.cpu.cpus, linux.resources.cpu.mems) == (
        512,
        "0",
        "0",
    )
    assert linux.resources.memory.limit.value == linux.resources.memory.swap.value == 64 << 20
    assert not linux.resources.memory.HasField("reservation")
    assert [rule.access for rule in linux.resources.devices] == ["rwm", "rw"]
    assert linux.HasField("seccomp_profile")
    assert linux.seccomp_profile.profile_type == nri.SecurityProfile.RUNTIME_DEFAULT
    assert linux.seccomp_policy.default_action == "SCMP_ACT_ERRNO"
    assert container.image.name == "docker.io/local/busybox:1"
    assert container.image.config_digest.startswith("sha256:")
    assert container.image.digest == ""


@CONTAINERD
def test_a_container_is_the_same_without_the_request_that_made_it(said: Captured) -> None:
    with_it = view.view_container(said.pod_id, said.running, said.request.config)
    assert view.view_container(said.pod_id, said.running) == with_it


@CONTAINERD
def test_a_container_goes_through_its_states(said: Captured) -> None:
    created, running, exited = (
        view.view_container(said.pod_id, status) for status in (said.created, said.running, said.exited)
    )
    assert [c.state for c in (created, running, exited)] == [
        nri.CONTAINER_CREATED,
        nri.CONTAINER_RUNNING,
        nri.CONTAINER_STOPPED,
    ]
    assert (created.pid, exited.pid) == (0, 0)
    assert running.pid > 0
    assert (created.started_at, running.finished_at) == (0, 0)
    assert created.created_at == running.created_at < running.started_at < exited.finished_at
    assert (exited.exit_code, exited.status_reason) == (137, "Error")


def test_a_container_of_a_runtime_that_shows_no_spec_is_made_up_from_its_request() -> None:
    said = captured("containerd-1.6.20")
    said.created.info.clear()
    said.request.config.CDI_devices.add(name="vendor.com/gpu=0")
    container = view.view_container(said.pod_id, said.created, said.request.config, CGROUP_PARENT)
    assert container.id == said.created.status.id
    assert list(container.args) == ["sleep", "1000000"]
    assert list(container.env) == ["GREETING=hello"]
    assert [(m.destination, list(m.options)) for m in container.mounts] == [
        ("/data", ["rbind", "rprivate", "ro"])
    ]
    assert [device.path for device in container.linux.devices] == ["/dev/spare"]
    assert [device.name for device in container.CDI_devices] == ["vendor.com/gpu=0"]
    assert container.linux.resources.memory.limit.value == 64 << 20
    assert container.linux.oom_score_adj.value == 999
    assert container.linux.cgroups_path == f"{CGROUP_PARENT}/{container.id}"
    assert (container.user.uid, container.user.gid, list(container.user.additional_gids)) == (
        1000,
        1001,
        [2000],
    )


def test_without_spec_and_request_a_container_is_what_its_status_lists() -> None:
    said = captured("containerd-1.6.20")
    said.created.info.clear()
    container = view.view_container(said.pod_id, said.created)
    assert container.name == "main"
    assert [mount.destination for mount in container.mounts] == ["/data"]
    assert container.linux.resources.cpu.shares.value == 512
    assert container.linux.oom_score_adj.value == 999


def test_the_path_of_a_cgroup_of_systemd_is_not_guessed() -> None:
    status = cri.ContainerStatusResponse(status=cri.ContainerStatus(id="c1"))
    assert view.view_container("p1", status, cgroup_parent="/kubepods.slice/x.slice").linux.cgroups_path == ""


@CONTAINERD
def test_what_is_looked_at_again_is_as_if_it_were_looked_at_first(said: Captured) -> None:
    container = view.view_container(said.pod_id, said.created)
    for status in (said.running, said.exited):
        view.view_again(container, status)
        assert container == view.view_container(said.pod_id, status)


@CONTAINERD
def test_a_status_that_is_not_verbose_leaves_the_process_unless_it_has_ended(said: Captured) -> None:
    container = view.view_container(said.pod_id, said.running)
    view.view_again(container, cri.ContainerStatusResponse(status=said.running.status))
    assert container == view.view_container(said.pod_id, said.running) and container.pid
    view.view_again(container, cri.ContainerStatusResponse(status=said.exited.status))
    assert container == view.view_container(said.pod_id, said.exited) and not container.pid


@pytest.mark.parametrize(
    ("image_ref", "image_id", "asked", "digest", "config_digest"),
    [
        ("sha256:aa", "", "x", "", "sha256:aa"),
        ("repo/x@sha256:bb", "sha256:aa", "x", "sha256:bb", "sha256:aa"),
        # containerd 1.6 tells the id in nothing but the request, which kubelet fills with it.
        ("repo/x@sha256:bb", "", "sha256:aa", "sha256:bb", "sha256:aa"),
        ("repo/x@sha256:bb", "", "x", "sha256:bb", ""),
    ],
)
def test_an_image_has_the_digests_that_are_told(
    image_ref: str, image_id: str, asked: str, digest: str, config_digest: str
) -> None:
    status = cri.ContainerStatusResponse(
        status=cri.ContainerStatus(image=cri.ImageSpec(image="x"), image_ref=image_ref, image_id=image_id)
    )
    config = cri.ContainerConfig(image=cri.ImageSpec(image=asked))
    printed = {"info": json.dumps({"config": {"image": {"image": asked}}})}
    for container in (
        view.view_container("p1", status, config),
        view.view_container("p1", cri.ContainerStatusResponse(status=status.status, info=printed)),
    ):
        image = container.image
        assert (image.name, image.digest, image.config_digest) == ("x", digest, config_digest)


@CONTAINERD
def test_what_containerd_labels_by_itself_is_there(said: Captured) -> None:
    created = view.view_container(said.pod_id, said.created)
    assert created.labels["io.cri-containerd.kind"] == "container"
    assert view.view_pod(said.pod_id, status=said.pod).labels["io.cri-containerd.kind"] == "sandbox"


def test_who_is_asked_how_to_make_a_container_is_shown_one_without_a_state() -> None:
    made = nri.Container(id="c", name="n", state=nri.CONTAINER_CREATED, created_at=7, pid=8)
    assert view.view_unmade(made) == nri.Container(id="c", name="n")
    assert made.created_at == 7


# ---------------------------------------------------------------------- specs

#: All that a spec can say, and no runtime here does.
FULL_SPEC: dict[str, Any] = {
    "process": {
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": (1 << 64) - 1, "soft": 5}],
        "oomScoreAdj": 0,
        "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 4},
        "scheduler": {"policy": "SCHED_FIFO", "priority": 7, "flags": ["SCHED_FLAG_RESET_ON_FORK", "NEW"]},
    },
    "hooks": {
        "prestart": [{"path": "/a", "args": ["a"], "env": ["E=1"], "timeout": 3}],
        "createRuntime": [{"path": "/b"}],
        "createContainer": [{"path": "/c"}],
        "startContainer": [{"path": "/d"}],
        "poststart": [{"path": "/e"}],
        "poststop": [{"path": "/f"}],
    },
    "linux": {
        "sysctl": {"a.b": "1"},
        "netDevices": {"eth9": {"name": "net1"}},
        "intelRdt": {"closID": "gold", "schemata": ["L3:0=f"], "enableMonitoring": True},
        "resources": {
            "memory": {
                "reservation": 1,
                "kernel": 2,
                "kernelTCP": 3,
                "swappiness": 4,
                "disableOOMKiller": True,
            },
            "cpu": {"realtimeRuntime": 5, "realtimePeriod": 6},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 7}],
            "unified": {"memory.high": "8"},
            "pids": {"limit": 9},
        },
        "seccomp": {
            "defaultAction": "SCMP_ACT_ALLOW",
            "defaultErrnoRet": 1,
            "syscalls": [
                {
                    "names": ["x"],
                    "action": "SCMP_ACT_ERRNO",
                    "errnoRet": 2,
                    "args": [{"index": 1, "value": 2, "valueTwo": 3, "op": "SCMP_CMP_EQ"}],
                }
            ],
        },
    },
}


def test_everything_a_spec_can_say_is_shown() -> None:
    container = read_container(FULL_SPEC)
    assert container.rlimits[0] == nri.POSIXRlimit(type="RLIMIT_NOFILE", hard=(1 << 64) - 1, soft=5)
    assert container.linux.HasField("oom_score_adj")
    assert (getattr(container.linux.io_priority, "class"), container.linux.io_priority.priority) == (2, 4)
    assert container.linux.scheduler == nri.LinuxScheduler(
        policy=nri.SCHED_FIFO, priority=7, flags=[nri.SCHED_FLAG_RESET_ON_FORK]
    )
    hooks = container.hooks
    lists = (
        hooks.prestart, hooks.create_runtime, hooks.create_container, hooks.start_container, hooks.poststart, hooks.poststop
    )  # fmt: skip
    assert [hook.path for each in lists for hook in each] == ["/a", "/b", "/c", "/d", "/e", "/f"]
    assert (hooks.prestart[0].timeout.value, hooks.create_runtime[0].HasField("timeout")) == (3, False)
    assert dict(container.linux.sysctl) == {"a.b": "1"}
    assert container.linux.net_devices["eth9"].name == "net1"
    rdt = container.linux.rdt
    assert (rdt.clos_id.value, list(rdt.schemata.value), rdt.enable_monitoring.value) == (
        "gold",
        ["L3:0=f"],
        True,
    )
    resources = container.linux.resources
    memory = resources.memory
    assert [
        memory.reservation.value,
        memory.kernel.value,
        memory.kernel_tcp.value,
        memory.swappiness.value,
    ] == [1, 2, 3, 4]
    assert (memory.disable_oom_killer.value, memory.HasField("use_hierarchy")) == (True, False)
    assert (resources.cpu.realtime_runtime.value, resources.cpu.realtime_period.value) == (5, 6)
    assert (resources.pids.limit, dict(resources.unified)) == (9, {"memory.high": "8"})
    assert resources.hugepage_limits[0] == nri.HugepageLimit(page_size="2MB", limit=7)
    policy = container.linux.seccomp_policy
    assert (policy.default_errno.value, policy.syscalls[0].errno_ret.value) == (1, 2)
    assert policy.syscalls[0].args[0] == nri.LinuxSeccompArg(index=1, value=2, value_two=3, op="SCMP_CMP_EQ")


def _names(value: Any) -> set[str]:
    if isinstance(value, list):
        return {name for entry in value for name in _names(entry)}
    if not isinstance(value, dict):
        return set()
    return set(value) | {name for entry in value.values() for name in _names(entry)}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(_names(FULL_SPEC))) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def _replaced(value: Any, by: Any, left: list[int]) -> Any:
    """The value with its n-th part replaced."""
    left[0] -= 1
    if left[0] == 0:
        return by
    if isinstance(value, list):
        return [_replaced(entry, by, left) for entry in value]
    if isinstance(value, dict):
        return {key: _replaced(entry, by, left) for key, entry in value.items()}
    return value


@given(by=JSON, number=st.integers(1, 90))
def test_a_spec_of_any_shape_is_read_as_far_as_it_goes(by: Any, number: int) -> None:
    spec = _replaced(FULL_SPEC, by, [number])
    if isinstance(spec, dict):
        read_container(spec)
        read_pod(spec)


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "1", '{"pid": "1", "runtimeSpec": []}', '{"config": 1}', "[" * 99_999]
)
def test_info_that_cannot_be_read_is_not_there(text: str) -> None:
    info = view.read_info({"info": text})
    assert (info.pid, dict(info.spec), dict(info.config)) == (0, {}, {})
    status = cri.ContainerStatusResponse(info={"info": text}, status=cri.ContainerStatus(id="c1"))
    assert view.view_container("p1", status).id == "c1"


def test_resources_of_cri_are_shown_with_their_zeroes_as_containerd_shows_them() -> None:
    shown = view.view_resources(cri.LinuxContainerResources(cpuset_cpus="0-3", unified={"a": "b"}))
    assert all(shown.cpu.HasField(name) for name in ("shares", "quota", "period"))
    assert (shown.memory.HasField("limit"), shown.memory.HasField("swap")) == (True, False)
    assert (shown.cpu.cpus, dict(shown.unified)) == ("0-3", {"a": "b"})
