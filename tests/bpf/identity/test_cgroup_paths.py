"""The place of a cgroup, by its path: all drivers, runtimes and nestings."""

from __future__ import annotations

import pytest

from bpf.identity.attribution import CgroupPlace, place_in_proc_cgroup, place_of

ID = "4f0c" * 16
INNER = "9ab1" * 16
SHORT = "0123456789abcdef" * 2
UID = "8f1b2c3d-11aa-4bcd-9e2f-0123456789ab"
SLICE_UID = UID.replace("-", "_")
STATIC_UID = "c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f6"

PATHS = {
    "cgroupfs, guaranteed": (f"/kubepods/pod{UID}/{ID}", ID, UID),
    "cgroupfs, burstable": (f"/kubepods/burstable/pod{UID}/{ID}", ID, UID),
    "cgroupfs, a static pod's UID has no dashes": (
        f"/kubepods/burstable/pod{STATIC_UID}/{ID}",
        ID,
        STATIC_UID,
    ),
    "cgroupfs, CRI-O": (f"/kubepods/besteffort/pod{UID}/crio-{ID}", ID, UID),
    "cgroupfs, CRI-O's monitor is no container": (f"/kubepods/besteffort/pod{UID}/crio-conmon-{ID}", "", UID),
    "systemd, containerd": (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        ID,
        UID,
    ),
    "systemd, guaranteed": (
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        ID,
        UID,
    ),
    "systemd, CRI-O": (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE_UID}.slice/crio-{ID}.scope",
        ID,
        UID,
    ),
    "systemd, CRI-O's container inside its scope": (
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-{ID}.scope/container",
        ID,
        UID,
    ),
    "systemd, CRI-O's monitor": (
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-conmon-{ID}.scope",
        "",
        UID,
    ),
    "kubelet below a cgroup root of its own": (
        f"/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        ID,
        UID,
    ),
    "a runtime with cgroupfs below a kubelet with systemd": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE_UID}.slice:cri-containerd:{ID}",
        ID,
        UID,
    ),
    "a runtime in kubelet's runtime slice": (
        f"/podruntime.slice/containerd.service/kubepods-pod{SLICE_UID}.slice:cri-containerd:{ID}",
        ID,
        UID,
    ),
    "systemd inside a container": (f"/kubepods/pod{UID}/{ID}/init.scope", ID, UID),
    "a service inside a container": (f"/kubepods/pod{UID}/{ID}/system.slice/nginx.service", ID, UID),
    "docker inside a container is the outer one's": (f"/kubepods/pod{UID}/{ID}/docker/{INNER}", ID, UID),
    "a node that is a container itself": (f"/docker/{INNER}/kubelet/kubepods/pod{UID}/{ID}", ID, UID),
    "seen from inside another cgroup namespace": (f"/../../../burstable/pod{UID}/{ID}", ID, UID),
    "docker without pods": (f"/system.slice/docker-{ID}.scope", ID, ""),
    "podman without pods": (f"/machine.slice/libpod-{ID}.scope/container", ID, ""),
    "podman's monitor": (f"/machine.slice/libpod-conmon-{ID}.scope", "", ""),
    "a short id below a pod": (f"/kubepods/pod{UID}/{SHORT}", SHORT, UID),
    "a short id elsewhere is somebody else's": (f"/process_api/{SHORT}", "", ""),
    "the pod itself": (f"/kubepods/burstable/pod{UID}", "", UID),
    "a host's service": ("/system.slice/containerd.service", "", ""),
    "a host's service whose name begins like a pod": ("/system.slice/podman.service", "", ""),
    "the root": ("/", "", ""),
}


@pytest.mark.parametrize("name", PATHS)
def test_the_place_of_a_cgroup_is_told_by_its_path(name: str) -> None:
    path, container, pod = PATHS[name]
    assert place_of(path) == CgroupPlace(container, pod)


PROCESSES = {
    "cgroup v2": (f"0::/kubepods/pod{UID}/{ID}\n", ID),
    "hybrid, in both": (f"4:memory:/\n3:cpuset:/kubepods/pod{UID}/{ID}\n0::/kubepods/pod{UID}/{ID}\n", ID),
    "hybrid, the v2 cgroup is the root": (f"3:cpuset:/kubepods/pod{UID}/{ID}\n0::/\n", ID),
    "v1 with joined controllers": (f"5:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n1:name=systemd:/\n", ID),
    "v1, a colon in the path": (
        f"3:cpuset:/system.slice/containerd.service/kubepods-pod{SLICE_UID}.slice:cri-containerd:{ID}\n",
        ID,
    ),
    "memory alone is not asked": (f"4:memory:/kubepods/pod{UID}/{ID}\n0::/\n", ""),
    "a host's process": ("12:pids:/system.slice/sshd.service\n0::/system.slice/sshd.service\n", ""),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_the_place_of_a_process_is_the_first_of_its_cgroups_that_names_one(name: str) -> None:
    text, container = PROCESSES[name]
    assert place_in_proc_cgroup(text).container == container
