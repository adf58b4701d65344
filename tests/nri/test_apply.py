"""Adjustments written into create requests: what CRI can say, by which bytes, and what it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import text_format

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options import nri_capabilities
from cri_proxy.cri.messages import UnreadableRequest
from cri_proxy.nri.apply import Applied, apply, resources_of
from cri_proxy.nri.draft import MergedAdjustment
from cri_proxy.nri.merge import Merge

PLUGIN = "10-foo"
REQUEST = """
    pod_sandbox_id: "p1"
    config {
      metadata { name: "app" } image { image: "busybox" }
      command: "sleep" args: "1" args: "2"
      envs { key: "A" value: "1" } envs { key: "B" value: "2" }
      mounts { container_path: "/data" host_path: "/srv" readonly: true }
      mounts { container_path: "/logs/" host_path: "/var/log" }
      devices { container_path: "/dev/x" host_path: "/dev/null" permissions: "rw" }
      annotations { key: "a" value: "1" } annotations { key: "io.kubernetes.container.hash" value: "h" }
      linux {
        resources { cpu_period: 100000 cpu_quota: 50000 cpu_shares: 512 memory_limit_in_bytes: 1000 oom_score_adj: 900
                    hugepage_limits { page_size: "2MB" limit: 1 } unified { key: "memory.high" value: "5" } }
        security_context { run_as_user { value: 7 } seccomp { } }
      }
    }
    sandbox_config { metadata { name: "web" } }
"""
CONTAINER = """
    id: "c1" name: "app" args: "sleep" args: "1" args: "2"
    env: "PATH=/bin" env: "A=1" env: "B=2"
    mounts { destination: "/proc" type: "proc" source: "proc" }
    mounts { destination: "/data" type: "bind" source: "/srv" options: "rbind" options: "ro" }
    annotations { key: "a" value: "1" }
    rlimits { type: "RLIMIT_CORE" hard: 1 soft: 1 }
    linux {
      devices { path: "/dev/x" type: "c" major: 1 minor: 3 } devices { path: "/dev/fuse" type: "c" major: 10 minor: 229 }
      namespaces { type: "pid" } sysctl { key: "x.y" value: "1" } cgroups_path: "/k/c1"
      resources { memory { limit { value: 1000 } swap { value: 1000 } } devices { access: "rwm" } }
    }
"""


def host_node(device: nri.LinuxDevice) -> str:
    return "/dev/zero" if (device.type, device.major, device.minor) == ("c", 1, 5) else ""


V2 = nri_capabilities.NodeCapabilities(cgroup_v2=True, host_node=host_node)
V1 = replace(V2, cgroup_v2=False)


ISOLATED = replace(
    V2, isolated={"rdt_class": ("gold",), "blockio_class": ("slow",), "scheduler": (), "io_priority": ()}
)

HEARD: dict[str, tuple[str, dict[str, str]]] = {
    "classes": (
        'linux { resources { blockio_class { value: "slow" } rdt_class { value: "gold" } } }',
        {"blockio_class": "slow", "rdt_class": "gold"},
    ),
    "a nice value": ("linux { scheduler { nice: 3 } }", {"scheduling": "nice=3"}),
    "both of scheduling": (
        "linux { scheduler { policy: SCHED_BATCH nice: 5 flags: SCHED_FLAG_RESET_ON_FORK } "
        "io_priority { class: IOPRIO_CLASS_BE priority: 6 } }",
        {"scheduling": "batch nice=5 flags=reset-on-fork io=be:6"},
    ),
    "a realtime policy": (
        "linux { scheduler { policy: SCHED_FIFO priority: 42 } }",
        {"scheduling": "fifo priority=42"},
    ),
    "nanoseconds of a deadline": (
        "linux { scheduler { policy: SCHED_DEADLINE runtime: 5000000 deadline: 10000000 period: 20000000 } }",
        {"scheduling": "deadline runtime=5000 deadline=10000 period=20000"},
    ),
    "an I/O class": ("linux { io_priority { class: IOPRIO_CLASS_IDLE } }", {"scheduling": "io=idle:0"}),
}


@pytest.mark.parametrize("name", HEARD)
def test_what_isolation_does_is_heard_and_the_request_stays_as_it_is(name: str) -> None:
    answer, heard = HEARD[name]
    result = applied(answer, site=ISOLATED)
    assert (result.heard, result.request) == (heard, request().SerializeToString())
    assert not (result.rejected or result.warned or result.recreate)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("linux { scheduler { policy: SCHED_ISO } }", "scheduler"),
        ("linux { scheduler { policy: SCHED_RR } }", "scheduler"),
        ("linux { scheduler { nice: 20 } }", "scheduler"),
        ("linux { scheduler { policy: SCHED_DEADLINE deadline: 5 } }", "scheduler"),
        ("linux { io_priority { class: IOPRIO_CLASS_BE priority: 8 } }", "io_priority"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_name(answer: str, name: str) -> None:
    result = applied(answer, site=ISOLATED)
    assert ([each.name for each in result.rejected], result.heard) == ([name], {})


def test_a_class_that_is_not_configured_goes_to_the_runtime_as_without_isolation() -> None:
    answer = 'linux { resources { rdt_class { value: "silver" } } }'
    assert applied(answer, site=ISOLATED) == applied(answer)


def request(text: str = REQUEST) -> cri.CreateContainerRequest:
    return text_format.Parse(text, cri.CreateContainerRequest())


def asked(*answers: str, container: str = CONTAINER) -> MergedAdjustment:
    """What plugins 10-foo, 11-foo, ... ask for."""
    merge = Merge(text_format.Parse(container, nri.Container()))
    for number, answer in enumerate(answers):
        merge.add(f"1{number}-foo", text_format.Parse(answer, nri.ContainerAdjustment()))
    return MergedAdjustment(merge.pristine, merge.adjust, merge.owners)


def applied(*answers: str, site: nri_capabilities.NodeCapabilities = V2) -> Applied:
    return apply(request().SerializeToString(), asked(*answers), site)


def text_of(message: bytes) -> str:
    return str(text_format.MessageToString(cri.CreateContainerRequest.FromString(message), as_one_line=True))


# ---------------------------------------------------------------------- what a changed request says

#: What is asked for, and what of the request it takes the place of. ("", text): it is added to the config.
WRITTEN: dict[str, tuple[str, tuple[str, str]]] = {
    "a variable": ('env { key: "C" value: "3" }', ("", 'envs { key: "C" value: "3" }')),
    "a variable replaced": (
        'env { key: "A" value: "9" }',
        (
            'envs { key: "A" value: "1" } envs { key: "B" value: "2" }',
            'envs { key: "B" value: "2" } envs { key: "A" value: "9" }',
        ),
    ),
    "a variable of the image": ('env { key: "PATH" value: "/x" }', ("", 'envs { key: "PATH" value: "/x" }')),
    "a variable removed": ('env { key: "-A" }', ('envs { key: "A" value: "1" }', "")),
    "a variable removed and set": (
        'env { key: "B" value: "3" } env { key: "-B" }',
        ('envs { key: "B" value: "2" }', 'envs { key: "B" value: "3" }'),
    ),
    "a variable that is no ASCII": ('env { key: "C" value: "é" }', ("", 'envs { key: "C" value: "\\303\\251" }')),
    "arguments": ('args: "true"', ('command: "sleep" args: "1" args: "2"', 'command: "true"')),
    "an annotation": ('annotations { key: "b" value: "" }', ("", 'annotations { key: "b" value: "" }')),
    "an annotation replaced": (
        'annotations { key: "a" value: "2" }',
        ('annotations { key: "a" value: "1" }', 'annotations { key: "a" value: "2" }'),
    ),
    "an annotation removed": ('annotations { key: "-a" }', ('annotations { key: "a" value: "1" }', "")),
    "an annotation removed and set": (
        'annotations { key: "-a" } annotations { key: "a" value: "2" }',
        ('annotations { key: "a" value: "1" }', 'annotations { key: "a" value: "2" }'),
    ),
    "a mount": (
        'mounts { destination: "/m" type: "bind" source: "/s" options: "rbind" options: "rslave" options: "ro" }',
        ("", 'mounts { container_path: "/m" host_path: "/s" readonly: true propagation: PROPAGATION_HOST_TO_CONTAINER }'),
    ),
    "a mount without a type": (
        'mounts { destination: "/m" source: "/s" options: "bind" options: "rro" options: "shared" }',
        (
            "",
            'mounts { container_path: "/m" host_path: "/s" readonly: true recursive_read_only: true '
            "propagation: PROPAGATION_BIDIRECTIONAL }",
        ),
    ),
    "a mount replaced": (
        'mounts { destination: "/logs" type: "bind" source: "/s" options: "rw" }',
        (
            'mounts { container_path: "/logs/" host_path: "/var/log" }',
            'mounts { container_path: "/logs" host_path: "/s" propagation: PROPAGATION_HOST_TO_CONTAINER }',
        ),
    ),
    "a mount removed": (
        'mounts { destination: "-/data" }',
        ('mounts { container_path: "/data" host_path: "/srv" readonly: true }', ""),
    ),
    "a device": (
        'linux { devices { path: "/dev/z" type: "c" major: 1 minor: 5 } }',
        ("", 'devices { container_path: "/dev/z" host_path: "/dev/zero" permissions: "rw" }'),
    ),
    "a device with its rule": (
        """linux { devices { path: "/dev/z" type: "c" major: 1 minor: 5 }
             resources { devices { allow: true type: "c" major { value: 1 } minor { value: 5 } access: "r" } } }""",
        ("", 'devices { container_path: "/dev/z" host_path: "/dev/zero" permissions: "r" }'),
    ),
    "a device replaced": (
        'linux { devices { path: "/dev/x" type: "c" major: 1 minor: 5 } }',
        ('"/dev/null" permissions: "rw"', '"/dev/zero" permissions: "rw"'),
    ),
    "a device removed": (
        'linux { devices { path: "-/dev/x" } }',
        ('devices { container_path: "/dev/x" host_path: "/dev/null" permissions: "rw" }', ""),
    ),
    "CDI devices": ('CDI_devices { name: "v/d=0" }', ("", 'CDI_devices { name: "v/d=0" }')),
    "an OOM score": ("linux { oom_score_adj { value: 5 } }", ("oom_score_adj: 900", "oom_score_adj: 5")),
    "an OOM score of 0": ("linux { oom_score_adj { } }", ("oom_score_adj: 900", "")),
    "no quota": ("linux { resources { cpu { quota { value: 0 } } } }", ("cpu_quota: 50000", "")),
    "classes": (
        'linux { resources { blockio_class { value: "slow" } rdt_class { value: "gold" } } }',
        (
            "",
            'annotations { key: "io.kubernetes.cri.blockio-class" value: "slow" } '
            'annotations { key: "io.kubernetes.cri.rdt-class" value: "gold" }',
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "change"), WRITTEN.values(), ids=WRITTEN)
def test_what_only_a_create_can_carry_is_written_into_the_request(
    answer: str, change: tuple[str, str]
) -> None:
    result = applied(answer)
    before, after = change
    wanted = request(REQUEST.replace(before, after) if before else REQUEST)
    if not before:
        text_format.Merge(after, wanted.config)
    assert cri.CreateContainerRequest.FromString(result.request) == wanted
    assert (result.recreate, result.rejected, result.warned) == (True, (), ())


@pytest.mark.parametrize(("answer", "_change"), WRITTEN.values(), ids=WRITTEN)
def test_the_same_adjustment_applied_twice_changes_nothing_more(
    answer: str, _change: tuple[str, str]
) -> None:
    once = applied(answer).request
    assert applied(answer).request == once
    merge = Merge(text_format.Parse(CONTAINER, nri.Container()))
    merge.add(PLUGIN, text_format.Parse(answer, nri.ContainerAdjustment()))
    of_changed = MergedAdjustment(merge.container, merge.adjust, merge.owners)
    again = apply(once, of_changed, V2)
    assert (again.request, again.recreate) == (once, False)
    # Nor does it matter that the container has it all already.
    assert apply(request().SerializeToString(), of_changed, V2).request == once


#: What is asked for, and what an update must set; the rest of the request is as it was.
BY_UPDATE: dict[str, tuple[str, str]] = {
    "cpu": (
        'cpu { shares { value: 2 } quota { value: -1 } period { value: 50000 } cpus: "1-2" mems: "0" }',
        'cpu_shares: 2 cpu_quota: -1 cpu_period: 50000 cpuset_cpus: "1-2" cpuset_mems: "0"',
    ),
    "shares too many for CRI": (
        "cpu { shares { value: 18446744073709551615 } }",
        "cpu_shares: 9223372036854775807",
    ),
    "memory": (
        "memory { limit { value: 2000 } swap { value: 3000 } }",
        "memory_limit_in_bytes: 2000 memory_swap_limit_in_bytes: 3000",
    ),
    "a reservation": ("memory { reservation { value: 7 } }", 'unified { key: "memory.low" value: "7" }'),
    "pids": ("pids { limit: 9 }", 'unified { key: "pids.max" value: "9" }'),
    "pids without limit": ("pids { limit: -1 }", 'unified { key: "pids.max" value: "max" }'),
    "pids by both names": (
        'pids { limit: 9 } unified { key: "pids.max" value: "8" }',
        'unified { key: "pids.max" value: "8" }',
    ),
    "unified": (
        'unified { key: "memory.high" value: "6" } unified { key: "x" value: "y" }',
        'unified { key: "memory.high" value: "6" } unified { key: "x" value: "y" }',
    ),
    "another hugepage size": (
        'hugepage_limits { page_size: "1GB" limit: 2 }',
        'hugepage_limits { page_size: "1GB" limit: 2 }',
    ),
    "what it has": (
        'cpu { shares { value: 512 } } memory { limit { value: 1000 } } unified { key: "memory.high" value: "5" }'
        'hugepage_limits { page_size: "2MB" limit: 1 }',
        "",
    ),
}


@pytest.mark.parametrize(("answer", "update"), BY_UPDATE.values(), ids=BY_UPDATE)
def test_resources_alone_need_no_other_create(answer: str, update: str) -> None:
    result = applied(f"linux {{ resources {{ {answer} }} }}")
    linux = text_format.Parse(update, cri.LinuxContainerResources())
    assert (result.recreate, result.resources, result.rejected) == (False, linux, ())
    wanted = request()
    wanted.config.linux.resources.MergeFrom(linux)
    assert cri.CreateContainerRequest.FromString(result.request) == wanted


def test_a_hugepage_limit_takes_the_place_of_that_of_the_request() -> None:
    result = applied('linux { resources { hugepage_limits { page_size: "2MB" limit: 4 } } }')
    limits = cri.CreateContainerRequest.FromString(result.request).config.linux.resources.hugepage_limits
    assert (
        list(limits)
        == list(result.resources.hugepage_limits)
        == [cri.HugepageLimit(page_size="2MB", limit=4)]
    )
    assert not result.recreate


def test_a_swap_limit_of_the_request_outlives_an_update_of_the_memory_limit() -> None:
    with_swap = REQUEST.replace("oom_score_adj: 900", "memory_swap_limit_in_bytes: 5000")
    answer = asked("linux { resources { memory { limit { value: 2000 } } } }")
    result = apply(request(with_swap).SerializeToString(), answer, V2)
    assert result.resources.memory_limit_in_bytes == 2000
    assert (
        cri.CreateContainerRequest.FromString(
            result.request
        ).config.linux.resources.memory_swap_limit_in_bytes
        == 5000
    )


#: What the container has already as asked for.
NOTHING_NEW = [
    "",
    'env { key: "A" value: "1" }',
    'env { key: "-X" } annotations { key: "-x" } mounts { destination: "-/x" } linux { devices { path: "-/dev/y" } }',
    'args: "sleep" args: "1" args: "2"',
    'annotations { key: "a" value: "1" } annotations { key: "io.kubernetes.container.hash" value: "h" }',
    'mounts { destination: "/data" type: "bind" source: "/srv" options: "ro" options: "rprivate" }',
    'linux { resources { devices { access: "rwm" } } }',
    'linux { namespaces { type: "pid" } namespaces { type: "-user" } sysctl { key: "x.y" value: "1" } }',
    'linux { sysctl { key: "-z" } net_devices { key: "-eth1" value { } } cgroups_path: "/k/c1" rdt { remove: true } }',
    'rlimits { type: "RLIMIT_CORE" hard: 1 soft: 1 }',
    "linux { oom_score_adj { value: 900 } }",
]


@pytest.mark.parametrize("answer", NOTHING_NEW)
def test_what_is_so_already_leaves_the_request_the_same_bytes(answer: str) -> None:
    result = applied(answer)
    assert result.request == request().SerializeToString()
    assert result == Applied(result.request, False, cri.LinuxContainerResources(), (), (), None)


# ---------------------------------------------------------------------- seccomp

SECCOMP = """linux { seccomp_policy { default_action: "SCMP_ACT_ERRNO" default_errno { value: 1 }
    architectures: "SCMP_ARCH_X86_64" flags: "SECCOMP_FILTER_FLAG_LOG"
    syscalls { names: "read" action: "SCMP_ACT_ALLOW" errno_ret { value: 2 }
    args { index: 1 value: 2 value_two: 3 op: "SCMP_CMP_EQ" } } } }"""


def test_a_seccomp_policy_becomes_a_file_that_the_request_names() -> None:
    result = applied(SECCOMP)
    file = result.seccomp
    assert file is not None
    assert json.loads(file.content) == {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [
            {
                "names": ["read"],
                "action": "SCMP_ACT_ALLOW",
                "errnoRet": 2,
                "args": [{"index": 1, "value": 2, "valueTwo": 3, "op": "SCMP_CMP_EQ"}],
            }
        ],
    }
    assert file.path.startswith("/var/run/cri-resmgr/seccomp/nri-")
    context = cri.CreateContainerRequest.FromString(result.request).config.linux.security_context
    assert (context.seccomp.profile_type, context.seccomp.localhost_ref) == (
        cri.SecurityProfile.Localhost,
        file.path,
    )
    assert context.run_as_user.value == 7
    assert result.recreate


def test_the_same_policy_has_the_same_file_and_another_another() -> None:
    first, second, other = (
        applied(text).seccomp for text in (SECCOMP, SECCOMP, SECCOMP.replace("value: 1", "value: 3"))
    )
    assert first == second != other


def test_a_privileged_container_gets_no_policy() -> None:
    privileged = request(REQUEST.replace("run_as_user { value: 7 }", "privileged: true"))
    result = apply(privileged.SerializeToString(), asked(SECCOMP), V2)
    assert (result.seccomp, result.recreate, [each.name for each in result.rejected]) == (
        None,
        False,
        ["seccomp_policy"],
    )


# ---------------------------------------------------------------------- what CRI cannot express

#: What is asked for, the setting's name, and what is said.
INEXPRESSIBLE: dict[str, tuple[str, str, str]] = {
    "hooks": ('hooks { prestart { path: "/h" } }', "hooks", "OciHooks: CRI has no OCI hooks"),
    "rlimits": (
        'rlimits { type: "RLIMIT_CORE" hard: 2 }',
        "rlimits",
        "Rlimits RLIMIT_CORE: CRI has no resource limits of processes",
    ),
    "a namespace": (
        'linux { namespaces { type: "cgroup" path: "/n" } }',
        "namespaces",
        "Namespace cgroup: CRI has no namespaces of containers to choose",
    ),
    "a namespace removed": (
        'linux { namespaces { type: "-pid" } }',
        "namespaces",
        "Namespace pid: CRI has no namespaces of containers to choose",
    ),
    "a sysctl": ('linux { sysctl { key: "x.y" value: "2" } }', "sysctl", "Sysctl x.y: CRI has sysctls of pods only"),
    "a sysctl removed": ('linux { sysctl { key: "-x.y" } }', "sysctl", "Sysctl x.y: CRI has sysctls of pods only"),
    "a network device": (
        'linux { net_devices { key: "eth9" value { name: "n" } } }',
        "net_devices",
        "LinuxNetDevices eth9: CRI has no network devices",
    ),
    "a cgroup": ('linux { cgroups_path: "/x" }', "cgroups_path", "CgroupsPath: CRI has the cgroup of a pod only"),
    "kubelet's annotation": (
        'annotations { key: "io.kubernetes.container.hash" value: "i" }',
        "annotations",
        "Annotations io.kubernetes.container.hash: it is kubelet's own, which it reads back",
    ),
    "kubelet's annotation removed": (
        'annotations { key: "-io.kubernetes.container.hash" }',
        "annotations",
        "Annotations io.kubernetes.container.hash: it is kubelet's own, which it reads back",
    ),
    "a tmpfs": (
        'mounts { destination: "/m" type: "tmpfs" source: "tmpfs" }',
        "mounts",
        "Mounts /m: CRI has bind mounts only, not tmpfs",
    ),
    "a mount of no kind": ('mounts { destination: "/m" source: "/s" }', "mounts", "Mounts /m: CRI has bind mounts only"),
    "a mount of nothing": (
        'mounts { destination: "/m" type: "bind" source: "s" }',
        "mounts",
        'Mounts /m: a bind mount needs an absolute path on the host, not "s"',
    ),
    "mount options": (
        'mounts { destination: "/m" type: "bind" source: "/s" options: "noexec" options: "ro" options: "nosuid" }',
        "mounts",
        "Mounts /m: CRI has no mount option noexec, nosuid",
    ),
    "a mount of the runtime removed": (
        'mounts { destination: "-/proc" }',
        "mount_removal",
        "Mounts /proc: the runtime or the image brings it, not the request",
    ),
    "a variable of the image removed": (
        'env { key: "-PATH" }',
        "env_removal",
        "Env PATH: the image brings it; it is set to nothing instead",
    ),
    "a device without a node": (
        'linux { devices { path: "/dev/y" type: "b" major: 8 minor: 1 } }',
        "devices",
        "Devices /dev/y: this host has no node for b 8:1, and CRI takes one by its path",
    ),
    "a device without such a node": (
        'linux { devices { path: "/dev/y" type: "b" major: 8 minor: 1 file_mode { value: 384 } uid { value: 7 } } }',
        "devices",
        "Devices /dev/y: this host has no node for b 8:1 with the file_mode and uid asked for, and CRI takes one by its "
        "path",
    ),
    "a device of the runtime removed": (
        'linux { devices { path: "-/dev/fuse" } }',
        "device_removal",
        "Devices /dev/fuse: the runtime or CDI brings it, not the request",
    ),
    "a seccomp policy is fine, IO priority is not": (
        "linux { io_priority { priority: 3 } }",
        "io_priority",
        "IoPriority: CRI has no IO priority; isolation.scheduling: enforce does it",
    ),
    "a scheduler": (
        "linux { scheduler { nice: 3 } }",
        "scheduler",
        "LinuxSched: CRI has no scheduler; isolation.scheduling: enforce does it",
    ),
    "a memory policy": (
        "linux { memory_policy { mode: MPOL_LOCAL } }",
        "memory_policy",
        "MemoryPolicy: CRI has no memory policy",
    ),
    "RDT": ('linux { rdt { clos_id { value: "g" } } }', "rdt", "RdtClosID: CRI has RDT classes only"),
    "realtime": (
        "linux { resources { cpu { realtime_runtime { value: 1 } } } }",
        "cpu_realtime",
        "CPURealtimeRuntime: CRI has no cpu realtime_runtime",
    ),
    "kernel memory": (
        "linux { resources { memory { kernel { value: 1 } } } }",
        "memory_kernel",
        "MemKernelLimit: CRI has no memory kernel",
    ),
    "swappiness": (
        "linux { resources { memory { swappiness { value: 1 } } } }",
        "memory_swappiness",
        "MemSwappiness: CRI has no memory swappiness",
    ),
    "the OOM killer": (
        "linux { resources { memory { disable_oom_killer { value: true } } } }",
        "memory_oom_killer",
        "MemDisableOomKiller: CRI has no memory disable_oom_killer",
    ),
    "the hierarchy": (
        "linux { resources { memory { use_hierarchy { value: true } } } }",
        "memory_hierarchy",
        "MemUseHierarchy: CRI has no memory use_hierarchy",
    ),
}  # fmt: skip

#: As above, where it depends on the node or the runtime.
INEXPRESSIBLE_THERE: dict[str, tuple[nri_capabilities.NodeCapabilities, str, str, str]] = {
    "unified on cgroup v1": (
        V1,
        'linux { resources { unified { key: "memory.high" value: "6" } } }',
        "unified",
        "CgroupsUnified memory.high: this host has cgroup v1, which has no unified resources",
    ),
    "pids on cgroup v1": (
        V1,
        "linux { resources { pids { limit: 9 } } }",
        "pids_limit",
        "PidsLimit: this host has cgroup v1, on which CRI has no word for it",
    ),
    "a reservation on cgroup v1": (
        V1,
        "linux { resources { memory { reservation { value: 9 } } } }",
        "memory_reservation",
        "MemReservation: this host has cgroup v1, on which CRI has no word for it",
    ),
    "hugepages without their controller": (
        replace(V2, hugetlb=False),
        'linux { resources { hugepage_limits { page_size: "2MB" limit: 4 } } }',
        "hugepage_limits",
        "HugepageLimits 2MB: this host has no hugetlb controller",
    ),
    "CDI devices without CDI": (
        replace(V2, cdi=nri_capabilities.Cdi.NONE),
        'CDI_devices { name: "v/d=0" }',
        "cdi_devices",
        "CdiDevices v/d=0: the runtime knows no CDI devices",
    ),
    "an RDT class without annotations": (
        replace(V2, classes=()),
        'linux { resources { rdt_class { value: "gold" } } }',
        "rdt_class",
        'RdtClass: the runtime has no annotation for "gold", and CRI no field; isolation.caches: enforce, with a class of '
        "that name in control.rdt, does it",
    ),
    "a block IO class where there are only RDT's": (
        replace(V2, classes=("rdt_class",)),
        'linux { resources { blockio_class { value: "slow" } rdt_class { value: "gold" } } }',
        "blockio_class",
        'BlockioClass: the runtime has no annotation for "slow", and CRI no field; isolation.disks: enforce, with a class '
        "of that name in control.blockio, does it",
    ),
}


@pytest.mark.parametrize(
    ("site", "answer", "name", "said"),
    [*((V2, *case) for case in INEXPRESSIBLE.values()), *INEXPRESSIBLE_THERE.values()],
    ids=[*INEXPRESSIBLE, *INEXPRESSIBLE_THERE],
)
def test_what_cannot_be_expressed_names_plugin_and_field_and_does_as_set(
    site: nri_capabilities.NodeCapabilities, answer: str, name: str, said: str
) -> None:
    for reaction in nri_capabilities.Reaction:
        result = applied(answer, site=replace(site, reactions={name: reaction}))
        found = result.rejected if reaction is nri_capabilities.Reaction.REJECT else result.warned
        assert [(each.name, str(each)) for each in found] == [(name, f'plugin "10-foo" asked for {said}')]
        assert len(result.rejected) + len(result.warned) == 1
    default = applied(answer, site=site)
    assert bool(default.rejected) == (nri_capabilities.REACTIONS[name] is nri_capabilities.Reaction.REJECT)


def test_a_rule_for_devices_alone_is_nobodys_and_not_to_be_had() -> None:
    result = applied(
        'linux { resources { devices { allow: true type: "c" major { value: 4 } access: "rw" } } }'
    )
    (found,) = result.rejected
    assert str(found) == "a plugin asked for Devices c 4:*: CRI has no rules for devices"


def test_all_who_inject_hooks_are_named() -> None:
    (found,) = applied(*['hooks { prestart { path: "/h" } }'] * 2).rejected
    assert str(found) == 'plugins "10-foo,11-foo" asked for OciHooks: CRI has no OCI hooks'


def test_a_variable_of_the_image_is_set_to_nothing() -> None:
    config = cri.CreateContainerRequest.FromString(applied('env { key: "-PATH" }').request).config
    assert config.envs[-1] == cri.KeyValue(key="PATH", value=b"")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param('type: "bind" options: "bind" options: "rslave"', id="asked for"),
        pytest.param('type: "bind" options: "rbind" options: "ro"', id="without a word, as runc makes it"),
    ],
)
def test_a_mount_follows_the_host_where_the_hosts_is_not_private(options: str) -> None:
    answer = "".join(f'mounts {{ destination: "/m{s}" source: "/{s}" {options} }}' for s in "ab")
    result = applied(answer, site=replace(V2, is_followed="/a".__eq__))
    mounts = cri.CreateContainerRequest.FromString(result.request).config.mounts
    assert {
        mount.container_path: mount.propagation for mount in mounts if mount.host_path in ("/a", "/b")
    } == {"/ma": cri.PROPAGATION_HOST_TO_CONTAINER, "/mb": cri.PROPAGATION_PRIVATE}


def test_cdi_devices_are_an_annotation_where_the_runtime_has_no_field() -> None:
    answer = 'CDI_devices { name: "v/d=0" } CDI_devices { name: "v/d=1" }'
    result = applied(answer, site=replace(V2, cdi=nri_capabilities.Cdi.ANNOTATION))
    config = cri.CreateContainerRequest.FromString(result.request).config
    assert (config.annotations["cdi.k8s.io/nri"], len(config.CDI_devices)) == ("v/d=0,v/d=1", 0)


def test_a_class_of_nothing_takes_the_annotation_away() -> None:
    with_class = request()
    with_class.config.annotations["io.kubernetes.cri.rdt-class"] = "gold"
    answer = asked("linux { resources { rdt_class { } } }")
    result = apply(with_class.SerializeToString(), answer, V2)
    assert cri.CreateContainerRequest.FromString(result.request) == request()


def test_a_class_of_nothing_is_had_where_there_are_none() -> None:
    result = applied("linux { resources { blockio_class { } } }", site=replace(V2, classes=()))
    assert (result.rejected, result.warned, result.request) == ((), (), request().SerializeToString())


def test_bytes_that_are_no_request_are_not_applied_to() -> None:
    with pytest.raises(UnreadableRequest):
        apply(b"\xff\xff", asked(""), V2)


# ---------------------------------------------------------------------- updates


def test_an_update_is_what_cri_can_say_of_it_and_the_rest_is_reported() -> None:
    update = nri.ContainerUpdate(container_id="c2")
    text_format.Parse(
        'cpu { shares { value: 0 } quota { value: 7 } cpus: "0" realtime_period { value: 1 } } memory { limit { value: 5 } }'
        'pids { limit: 3 } rdt_class { value: "gold" } devices { allow: true }',
        update.linux.resources,
    )
    said: list[Any] = []
    linux = resources_of(update, V2, lambda name, *_rest: said.append(name))
    assert linux == cri.LinuxContainerResources(
        cpu_quota=7, cpuset_cpus="0", memory_limit_in_bytes=5, unified={"pids.max": "3"}
    )
    assert said == ["rdt_class", "device_rules", "cpu_realtime"]
    # What it has already is none of it.
    said.clear()
    resources_of(update, V2, lambda name, *_rest: said.append(name), update.linux.resources)
    assert said == []


def test_every_setting_has_a_default() -> None:
    names = {name for _, name, _ in INEXPRESSIBLE.values()} | {
        case[2] for case in INEXPRESSIBLE_THERE.values()
    }
    assert set(nri_capabilities.REACTIONS) - names == {"device_rules", "seccomp_policy"}
    assert nri_capabilities.Unsupported("hooks", "", "x", "y").plugin == ""
