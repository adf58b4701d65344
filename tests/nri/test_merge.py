"""Adjustments of several plugins in index order: what comes of them, what the next plugin sees, and conflicts."""

from __future__ import annotations

from typing import Any, Union

import pytest
from google.protobuf import text_format

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.merge import AdjustmentConflict, Merge, owner_of

FIRST, SECOND, THIRD = "00-bar", "10-foo", "20-baz"
ORIGINAL = """
    id: "c1" name: "app" args: "sleep" args: "1"
    env: "PATH=/bin" env: "KEPT=1"
    annotations { key: "old" value: "pod's" }
    mounts { destination: "/proc" type: "proc" source: "proc" }
    mounts { destination: "/data" type: "bind" source: "/srv" options: "rbind" }
    linux {
      devices { path: "/dev/null" type: "c" major: 1 minor: 3 }
      namespaces { type: "pid" } namespaces { type: "network" path: "/proc/7/ns/net" }
      resources { cpu { shares { value: 1024 } cpus: "0-7" } memory { limit { value: 100 } } }
      sysctl { key: "net.core.somaxconn" value: "128" }
    }
"""


def container(text: str = ORIGINAL) -> nri.Container:
    return text_format.Parse(text, nri.Container())


def asked(text: str) -> nri.ContainerAdjustment:
    return text_format.Parse(text, nri.ContainerAdjustment())


def merged(*answers: str) -> Merge:
    """The plugins 00-bar, 10-foo, ... in turn."""
    merge = Merge(container())
    for plugin, answer in zip((FIRST, SECOND, THIRD), answers):
        merge.add(plugin, asked(answer))
    return merge


# ---------------------------------------------------------------------- one plugin

#: What one plugin asks for is what comes of it.
ALONE = {
    "annotations": 'annotations { key: "k" value: "v" }',
    "mounts": 'mounts { destination: "/mnt" type: "bind" source: "/s" options: "rbind" options: "ro" }',
    "a mount removed": 'mounts { destination: "-/data" }',
    "env": 'env { key: "K" value: "v" }',
    "args": 'args: "true" args: "x"',
    "hooks": 'hooks { prestart { path: "/h" args: "h" } poststop { path: "/i" timeout { value: 3 } } }',
    "devices": 'linux { devices { path: "/dev/x" type: "c" major: 5 minor: 6 file_mode { value: 432 } } }',
    "a namespace": 'linux { namespaces { type: "cgroup" path: "/n" } }',
    "rlimits": 'rlimits { type: "RLIMIT_NOFILE" hard: 9 soft: 8 }',
    "CDI devices": 'CDI_devices { name: "vendor.com/gpu=0" } CDI_devices { name: "vendor.com/gpu=1" }',
    "IO priority": "linux { io_priority { class: IOPRIO_CLASS_BE priority: 5 } }",
    "net devices": 'linux { net_devices { key: "eth9" value { name: "net1" } } }',
    "the scheduler": "linux { scheduler { policy: SCHED_FIFO priority: 10 flags: SCHED_FLAG_RESET_ON_FORK } }",
    "sysctl": 'linux { sysctl { key: "net.ipv4.ip_forward" value: "1" } }',
    "a memory policy": 'linux { memory_policy { mode: MPOL_INTERLEAVE nodes: "0,1" flags: MPOL_F_STATIC_NODES } }',
    "cpu": """linux { resources { cpu { shares { value: 2 } quota { value: 3 } period { value: 4 } cpus: "1" mems: "0"
                     realtime_runtime { value: 5 } realtime_period { value: 6 } } } }""",
    "memory": """linux { resources { memory { limit { value: 1 } reservation { value: 2 } swap { value: 3 }
                     kernel { value: 4 } kernel_tcp { value: 5 } swappiness { value: 6 } disable_oom_killer { value: true }
                     use_hierarchy { value: true } } } }""",
    "classes": 'linux { resources { blockio_class { value: "slow" } rdt_class { value: "gold" } } }',
    "hugepages": """linux { resources { hugepage_limits { page_size: "2MB" limit: 4 }
                     hugepage_limits { page_size: "1GB" limit: 5 } } }""",
    "unified": 'linux { resources { unified { key: "memory.high" value: "9" } } }',
    "pids": "linux { resources { pids { limit: 12 } } }",
    "device rules": 'linux { resources { devices { allow: true type: "c" access: "rw" } } }',
    "the cgroups path": 'linux { cgroups_path: "/a/b" }',
    "the OOM score": "linux { oom_score_adj { value: 123 } }",
    "an OOM score of 0": "linux { oom_score_adj { } }",
    "seccomp": """linux { seccomp_policy { default_action: "SCMP_ACT_ALLOW"
                     syscalls { names: "x" action: "SCMP_ACT_ERRNO" } } }""",
    "RDT": 'linux { rdt { clos_id { value: "g" } schemata { value: "L3:0=f" } enable_monitoring { value: true } } }',
    "RDT cleared": "linux { rdt { remove: true } }",
    "nothing": "",
}


@pytest.mark.parametrize("answer", ALONE.values(), ids=ALONE)
def test_what_one_plugin_asks_for_is_what_comes_of_it(answer: str) -> None:
    assert merged(answer).adjust == asked(answer)


def test_an_empty_answer_changes_nothing() -> None:
    merge = merged("linux { resources { } }")
    assert (merge.container, merge.adjust.linux.HasField("resources")) == (container(), False)


#: What one plugin asks for, and the lines that its container gets in place of others, as the next plugin sees it.
SEEN = {
    "env replaced": ('env { key: "KEPT" value: "2" }', ('env: "KEPT=1"', 'env: "KEPT=2"')),
    "env removed": ('env { key: "-KEPT" }', ('env: "KEPT=1"', "")),
    "args": ('args: "true"', ('args: "sleep" args: "1"', 'args: "true"')),
    "an annotation removed": (
        'annotations { key: "-old" }',
        ('annotations { key: "old" value: "pod\'s" }', ""),
    ),
    "an annotation set anew": (
        'annotations { key: "-old" } annotations { key: "old" value: "new" }',
        ("pod's", "new"),
    ),
    "a mount removed": (
        'mounts { destination: "-/data" }',
        ('mounts { destination: "/data" type: "bind" source: "/srv" options: "rbind" }', ""),
    ),
    "a mount replaced": (
        'mounts { destination: "/data" type: "bind" source: "/s2" options: "rbind" }',
        ("/srv", "/s2"),
    ),
    "a device removed": (
        'linux { devices { path: "-/dev/null" } }',
        ('devices { path: "/dev/null" type: "c" major: 1 minor: 3 }', ""),
    ),
    "a namespace removed": ('linux { namespaces { type: "-pid" } }', ('namespaces { type: "pid" }', "")),
    "a namespace replaced": ('linux { namespaces { type: "network" path: "/n" } }', ("/proc/7/ns/net", "/n")),
    "a sysctl removed": (
        'linux { sysctl { key: "-net.core.somaxconn" } }',
        ('sysctl { key: "net.core.somaxconn" value: "128" }', ""),
    ),
    "a cpuset": ('linux { resources { cpu { cpus: "2" } } }', ('cpus: "0-7"', 'cpus: "2"')),
    "a memory limit": ("linux { resources { memory { limit { value: 7 } } } }", ("value: 100", "value: 7")),
    "hooks": (
        'hooks { poststart { path: "/h" } }',
        ('id: "c1"', 'id: "c1" hooks { poststart { path: "/h" } }'),
    ),
    "an rlimit": (
        'rlimits { type: "RLIMIT_CORE" hard: 1 }',
        ('id: "c1"', 'id: "c1" rlimits { type: "RLIMIT_CORE" hard: 1 }'),
    ),
    "a CDI device": ('CDI_devices { name: "a/b=c" }', ('id: "c1"', 'id: "c1" CDI_devices { name: "a/b=c" }')),
    "a memory policy, which containers do not show": (
        "linux { memory_policy { mode: MPOL_LOCAL } }",
        ("", ""),
    ),
}


@pytest.mark.parametrize(("answer", "change"), SEEN.values(), ids=SEEN)
def test_the_next_plugin_sees_the_container_as_it_was_changed(answer: str, change: tuple[str, str]) -> None:
    merge = merged(answer)
    assert merge.container == container(ORIGINAL.replace(*change))
    assert merge.pristine == container()


#: Entries of lists that have a key, by the list's path in a container: twice the same key, other values.
KEYED = {
    "linux.resources.hugepage_limits": ('page_size: "2MB" limit: 1', 'page_size: "2MB" limit: 4'),
    "linux.devices": ('path: "/dev/x" type: "c" major: 1', 'path: "/dev/x" type: "c" major: 2'),
    "linux.namespaces": ('type: "ipc" path: "/1"', 'type: "ipc" path: "/2"'),
    "mounts": ('destination: "/m" source: "/1"', 'destination: "/m" source: "/2"'),
    "rlimits": ('type: "RLIMIT_CORE" hard: 1', 'type: "RLIMIT_CORE" hard: 2'),
}


def at(path: str, *entries: str) -> str:
    """Entries of a list, as an answer or a container has them."""
    *around, name = path.split(".")
    text = " ".join(f"{name} {{ {entry} }}" for entry in entries)
    for outer in reversed(around):
        text = f"{outer} {{ {text} }}"
    return text


def listed(shown: nri.Container, path: str) -> list[str]:
    value: Any = shown
    for name in path.split("."):
        value = getattr(value, name)
    return [text_format.MessageToString(entry, as_one_line=True) for entry in value]


@pytest.mark.parametrize("path", KEYED)
def test_what_is_there_already_is_replaced_and_not_there_twice(path: str) -> None:
    first, second = KEYED[path]
    merge = Merge(container(at(path, first)))
    merge.add(FIRST, asked(at(path, second)))
    assert listed(merge.container, path) == listed(container(at(path, second)), path)


def test_an_answer_that_names_a_huge_page_size_twice_is_in_conflict_with_itself() -> None:
    first, second = KEYED["linux.resources.hugepage_limits"]
    with pytest.raises(AdjustmentConflict, match="HugepageLimits 2MB"):
        merged(at("linux.resources.hugepage_limits", first, second))


# ---------------------------------------------------------------------- two plugins

#: What two plugins set both, and the owner's word of the conflict.
CONFLICTS = {
    "annotations": (ALONE["annotations"], "Annotations k"),
    "mounts": (ALONE["mounts"], "Mounts /mnt"),
    "env": (ALONE["env"], "Env K"),
    "args": (ALONE["args"], "Args "),
    "devices": (ALONE["devices"], "Devices /dev/x"),
    "CDI devices": (ALONE["CDI devices"], "CdiDevices vendor.com/gpu=0"),
    "net devices": (ALONE["net devices"], "LinuxNetDevices eth9"),
    "a namespace": (ALONE["a namespace"], "Namespace cgroup"),
    "sysctl": (ALONE["sysctl"], "Sysctl net.ipv4.ip_forward"),
    "rlimits": (ALONE["rlimits"], "Rlimits RLIMIT_NOFILE"),
    "memory": ("linux { resources { memory { limit { value: 1 } } } }", "MemLimit "),
    "cpu shares": ("linux { resources { cpu { shares { value: 1 } } } }", "CPUShares "),
    "cpusets": ('linux { resources { cpu { cpus: "1" } } }', "CPUSetCPUs "),
    "hugepages": (ALONE["hugepages"], "HugepageLimits 2MB"),
    "unified": (ALONE["unified"], "CgroupsUnified memory.high"),
    "pids": (ALONE["pids"], "PidsLimit "),
    "the block IO class": (ALONE["classes"], "BlockioClass "),
    "the RDT class": ('linux { resources { rdt_class { value: "gold" } } }', "RdtClass "),
    "the cgroups path": (ALONE["the cgroups path"], "CgroupsPath "),
    "the OOM score": (ALONE["the OOM score"], "OomScoreAdj "),
    "IO priority": (ALONE["IO priority"], "IoPriority "),
    "seccomp": (ALONE["seccomp"], "SeccompPolicy "),
    "the scheduler": (ALONE["the scheduler"], "LinuxSched "),
    "RDT": (ALONE["RDT"], "RdtClosID "),
    "a memory policy": (ALONE["a memory policy"], "MemoryPolicy "),
}


@pytest.mark.parametrize(("answer", "field"), CONFLICTS.values(), ids=CONFLICTS)
def test_two_plugins_that_set_the_same_are_in_conflict(answer: str, field: str) -> None:
    merge = merged(answer)
    before = (str(merge.adjust), str(merge.container), str(merge.owners))
    with pytest.raises(AdjustmentConflict) as conflict:
        merge.add(SECOND, asked('env { key: "OTHER" value: "1" }' + answer))
    assert str(conflict.value) == f'plugins "10-foo" and "00-bar" both tried to set {field}'
    # Nothing of the answer is left.
    assert (str(merge.adjust), str(merge.container), str(merge.owners)) == before


#: What a second plugin removes of a first one's and sets anew, and what comes of both.
REMOVED_AND_SET = {
    "annotations": (
        ALONE["annotations"],
        'annotations { key: "-k" } annotations { key: "k" value: "w" }',
        'annotations { key: "-k" } annotations { key: "k" value: "w" }',
    ),
    "mounts, the removal last": (
        ALONE["mounts"],
        'mounts { destination: "/mnt" type: "bind" source: "/t" } mounts { destination: "-/mnt" }',
        'mounts { destination: "-/mnt" } mounts { destination: "/mnt" type: "bind" source: "/t" }',
    ),
    "env": (
        ALONE["env"] + 'env { key: "L" value: "l" }',
        'env { key: "K" value: "w" } env { key: "-K" }',
        'env { key: "L" value: "l" } env { key: "-K" } env { key: "K" value: "w" }',
    ),
    "args": (ALONE["args"], 'args: "" args: "false"', 'args: "false"'),
    "devices": (
        ALONE["devices"],
        'linux { devices { path: "-/dev/x" } devices { path: "/dev/x" type: "b" major: 7 } }',
        'linux { devices { path: "-/dev/x" } devices { path: "/dev/x" type: "b" major: 7 } }',
    ),
    "net devices": (
        ALONE["net devices"],
        'linux { net_devices { key: "-eth9" value { } } net_devices { key: "eth9" value { name: "n2" } } }',
        'linux { net_devices { key: "-eth9" value { } } net_devices { key: "eth9" value { name: "n2" } } }',
    ),
    "a namespace": (
        ALONE["a namespace"],
        'linux { namespaces { type: "-cgroup" } namespaces { type: "cgroup" path: "/o" } }',
        'linux { namespaces { type: "-cgroup" } namespaces { type: "cgroup" path: "/o" } }',
    ),
    "sysctl": (
        ALONE["sysctl"],
        'linux { sysctl { key: "-net.ipv4.ip_forward" } sysctl { key: "net.ipv4.ip_forward" value: "0" } }',
        'linux { sysctl { key: "-net.ipv4.ip_forward" } sysctl { key: "net.ipv4.ip_forward" value: "0" } }',
    ),
    "RDT": (
        ALONE["RDT"],
        'linux { rdt { remove: true clos_id { value: "h" } } }',
        'linux { rdt { clos_id { value: "h" } } }',
    ),
}


@pytest.mark.parametrize(("first", "second", "result"), REMOVED_AND_SET.values(), ids=REMOVED_AND_SET)
def test_who_removes_first_may_set_what_another_has_set(first: str, second: str, result: str) -> None:
    assert merged(first, second).adjust == asked(result)


#: What a second plugin only removes of a first one's, and what comes of both.
REMOVED_ONLY = {
    "annotations": (ALONE["annotations"], 'annotations { key: "-k" }', 'annotations { key: "-k" }'),
    "mounts": (ALONE["mounts"], 'mounts { destination: "-/mnt" }', 'mounts { destination: "-/mnt" }'),
    "env": (ALONE["env"], 'env { key: "-K" }', 'env { key: "-K" }'),
    "args": (ALONE["args"], 'args: ""', ""),
    "devices": (
        ALONE["devices"],
        'linux { devices { path: "-/dev/x" } }',
        'linux { devices { path: "-/dev/x" } }',
    ),
    "net devices": (
        ALONE["net devices"],
        'linux { net_devices { key: "-eth9" value { } } }',
        'linux { net_devices { key: "-eth9" value { } } }',
    ),
    "a namespace": (
        ALONE["a namespace"],
        'linux { namespaces { type: "-cgroup" } }',
        'linux { namespaces { type: "-cgroup" } }',
    ),
    "sysctl": (
        ALONE["sysctl"],
        'linux { sysctl { key: "-net.ipv4.ip_forward" } }',
        'linux { sysctl { key: "-net.ipv4.ip_forward" } }',
    ),
    "RDT": (ALONE["RDT"], "linux { rdt { remove: true } }", "linux { rdt { remove: true } }"),
}


@pytest.mark.parametrize(("first", "second", "result"), REMOVED_ONLY.values(), ids=REMOVED_ONLY)
def test_a_removal_takes_out_what_another_has_set_and_stays_for_the_request(
    first: str, second: str, result: str
) -> None:
    merge = merged(first, second)
    assert merge.adjust == asked(result)
    assert merge.container == container()


def test_what_was_removed_by_one_cannot_be_set_by_another() -> None:
    with pytest.raises(
        AdjustmentConflict, match='plugins "20-baz" and "10-foo" both tried to set Annotations k'
    ):
        merged(ALONE["annotations"], 'annotations { key: "-k" }', ALONE["annotations"])


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        ('mounts { destination: "/x" } mounts { destination: "/x" }', "Mounts /x"),
        ('env { key: "A" } env { key: "A" }', "Env A"),
        ('CDI_devices { name: "a" } CDI_devices { name: "a" }', "CdiDevices a"),
        ('rlimits { type: "R" } rlimits { type: "R" }', "Rlimits R"),
    ],
)
def test_one_plugin_that_sets_the_same_twice_is_in_conflict_with_itself(answer: str, field: str) -> None:
    with pytest.raises(AdjustmentConflict) as conflict:
        merged(answer)
    assert str(conflict.value) == f'plugins "00-bar" and "00-bar" both tried to set {field}'


def test_one_plugin_may_not_answer_a_second_time_what_it_has_set() -> None:
    merge = merged(ALONE["env"])
    with pytest.raises(AdjustmentConflict, match='plugins "00-bar" and "00-bar" both tried to set Env K'):
        merge.add(FIRST, asked(ALONE["env"]))


def test_hooks_add_up_in_index_order() -> None:
    merge = merged(*(f'hooks {{ prestart {{ path: "/{n}" }} }}' for n in "abc"))
    assert [hook.path for hook in merge.adjust.hooks.prestart] == ["/a", "/b", "/c"]
    assert owner_of(merge.owners, "c1", nri.OciHooks) == "00-bar,10-foo,20-baz"


def test_rules_for_devices_add_up_and_are_nobodys() -> None:
    merge = merged(ALONE["device rules"], ALONE["device rules"])
    assert len(merge.adjust.linux.resources.devices) == len(merge.container.linux.resources.devices) == 2
    assert merge.owners.owners["c1"] == nri.FieldOwners()


def test_plugins_that_set_different_things_agree() -> None:
    merge = merged(
        *(f'env {{ key: "{n}" value: "{n}" }} annotations {{ key: "{n}" value: "1" }}' for n in "abc")
    )
    assert [entry.key for entry in merge.adjust.env] == ["a", "b", "c"]
    assert dict(merge.adjust.annotations) == {"a": "1", "b": "1", "c": "1"}
    assert list(merge.container.env) == ["PATH=/bin", "KEPT=1", "a=a", "b=b", "c=c"]


def test_owners_are_told_key_by_key_for_validators() -> None:
    merge = merged(
        ALONE["env"] + ALONE["the OOM score"], 'env { key: "-K" } annotations { key: "a" value: "" }'
    )
    seen: list[tuple[Union[str, Any], str]] = [
        (merge.owners.owners["c1"].compound[nri.Env].owners["K"], "-10-foo"),
        (merge.owners.owners["c1"].compound[nri.Annotations].owners["a"], "10-foo"),
        (merge.owners.owners["c1"].simple[nri.OomScoreAdj], "00-bar"),
    ]
    assert [got for got, _ in seen] == [wanted for _, wanted in seen]
