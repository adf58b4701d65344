"""CRI messages in, the vocabulary out; placements out as bytes that are appended and change nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Optional

import pytest
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri import messages
from policies.machine.cpus import parse_cpus
from policies.model import UNTOUCHED, Constraint, Placement, Pod, PodSize, Qos, Resources

GUARANTEED, BURSTABLE, BESTEFFORT = Qos.GUARANTEED, Qos.BURSTABLE, Qos.BESTEFFORT


def linux(**fields: Any) -> cri.LinuxContainerResources:
    return cri.LinuxContainerResources(**fields)


# ---------------------------------------------------------------------- QoS and the cgroup root

#: Cgroup parents of real nodes: the path, the QoS class it says ("" = none), the cgroup of all pods.
CGROUP_PARENTS = [
    # cgroupfs
    ("/kubepods/burstable/pod0a1b", "burstable", "/kubepods"),
    ("/kubepods/besteffort/pod0a1b", "besteffort", "/kubepods"),
    ("/kubepods/pod0a1b", "", "/kubepods"),
    # systemd, as kubelet sends it and as a unit name
    (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b.slice",
        "burstable",
        "/kubepods.slice",
    ),
    (
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a.slice",
        "besteffort",
        "/kubepods.slice",
    ),
    ("/kubepods.slice/kubepods-pod0a1b.slice", "", "/kubepods.slice"),
    ("kubepods-burstable-pod0a1b.slice", "burstable", "/kubepods.slice"),
    ("kubepods-besteffort-pod0a1b.slice", "besteffort", "/kubepods.slice"),
    ("kubepods-pod0a1b.slice", "", "/kubepods.slice"),
    # kind: kubelet's own cgroup above
    ("/kubelet/kubepods/burstable/pod0a1b", "burstable", "/kubelet/kubepods"),
    ("/kubelet/kubepods/pod0a1b", "", "/kubelet/kubepods"),
    (
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod0a.slice",
        "burstable",
        "/kubelet.slice/kubelet-kubepods.slice",
    ),
    (
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0a.slice",
        "",
        "/kubelet.slice/kubelet-kubepods.slice",
    ),
    ("kubelet-kubepods-besteffort-pod0a.slice", "besteffort", "/kubelet.slice/kubelet-kubepods.slice"),
    # --cgroup-root, deeper nesting
    ("/a/b/kubepods/besteffort/pod0a1b", "besteffort", "/a/b/kubepods"),
    ("/docker/1f2e/kubelet/kubepods/burstable/pod0a", "burstable", "/docker/1f2e/kubelet/kubepods"),
    # not kubelet's
    ("", "", ""),
    ("/", "", ""),
    ("/system.slice/foo", "", ""),
    ("/k8s.io/burstable/x", "", ""),
    ("/my-kubepodsx/burstable", "", ""),
]


@pytest.mark.parametrize(("parent", "says", "root"), CGROUP_PARENTS)
def test_the_cgroup_of_all_pods_is_found_at_any_nesting_and_for_both_drivers(
    parent: str, says: str, root: str
) -> None:
    assert messages.kubepods_root(parent) == root


@pytest.mark.parametrize(("parent", "says", "root"), CGROUP_PARENTS)
def test_the_qos_class_in_the_cgroup_parent_is_believed(parent: str, says: str, root: str) -> None:
    """W11 of the ancestor: kind's paths were not read, Burstable was taken for Guaranteed."""
    looks_guaranteed = linux(
        cpu_shares=2048, cpu_quota=200_000, memory_limit_in_bytes=1 << 30, oom_score_adj=-997
    )
    assert messages.read_qos(parent, looks_guaranteed) is (Qos(says) if says else GUARANTEED)


# A node-critical pod of any class has the oom score of a Guaranteed one, so the path goes before it.
WITHOUT_A_CLASS = [
    # cgroup parent, resources, class
    ("/kubepods/pod0a", linux(cpu_shares=1024, memory_limit_in_bytes=1, oom_score_adj=-997), GUARANTEED),
    ("/kubepods/pod0a", linux(cpu_shares=1024, memory_limit_in_bytes=1), GUARANTEED),
    ("/kubepods/pod0a", linux(cpu_shares=2, oom_score_adj=1000), BESTEFFORT),
    ("/kubepods/pod0a", linux(), BESTEFFORT),
    ("/kubepods/pod0a", linux(cpu_shares=512), BURSTABLE),
    ("", linux(), BESTEFFORT),
    ("", linux(cpu_shares=2), BESTEFFORT),
    ("", linux(cpu_shares=512), BURSTABLE),
    ("", linux(memory_limit_in_bytes=1 << 20), BURSTABLE),
    ("", linux(cpu_shares=1024, cpu_quota=100_000, cpu_period=100_000), BURSTABLE),
    ("", linux(cpu_shares=1024, cpu_quota=100_000, memory_limit_in_bytes=1 << 20), GUARANTEED),
    ("", linux(cpu_shares=512, cpu_quota=100_000, memory_limit_in_bytes=1 << 20), BURSTABLE),
    ("", linux(cpu_shares=512, oom_score_adj=-997), GUARANTEED),
    ("", linux(cpu_shares=512, oom_score_adj=1000), BESTEFFORT),
]


@pytest.mark.parametrize(("parent", "resources", "qos"), WITHOUT_A_CLASS)
def test_without_a_class_in_the_path_the_resources_tell(
    parent: str, resources: cri.LinuxContainerResources, qos: Qos
) -> None:
    assert messages.read_qos(parent, resources) is qos


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(alphabet="/-.akubepodslice0" + "\n\0é", max_size=60))
def test_any_cgroup_parent_has_a_root_and_a_class(parent: str) -> None:
    assert isinstance(messages.kubepods_root(parent), str)
    assert messages.read_qos(parent, linux()) in Qos


# ---------------------------------------------------------------------- resources

RESOURCES = [
    # what CRI shows, class, what it means
    (linux(), BESTEFFORT, Resources()),
    (linux(cpu_shares=2), BESTEFFORT, Resources()),
    (linux(cpu_shares=-5, cpu_quota=-1), BESTEFFORT, Resources()),
    (linux(cpu_shares=3), BURSTABLE, Resources(3)),
    (linux(cpu_shares=102), BURSTABLE, Resources(100)),
    (linux(cpu_shares=1024), BURSTABLE, Resources(1000)),
    (linux(cpu_shares=1536, cpu_quota=200_000, cpu_period=100_000), BURSTABLE, Resources(1500, 2000)),
    (linux(cpu_shares=1024, cpu_quota=50_000), BURSTABLE, Resources(1000, 500)),
    (linux(cpu_shares=10, cpu_quota=1000, cpu_period=100_000), BURSTABLE, Resources(10, 10)),
    (
        linux(cpu_shares=1024, cpu_quota=5_000, cpu_period=10_000),
        BURSTABLE,
        Resources(1000, 500, 0, 0, 10_000),
    ),
    (linux(cpu_shares=1024, cpu_quota=33_333, cpu_period=100_000), BURSTABLE, Resources(1000, 334)),
    # Kubelet with cpuCFSQuota off: a Guaranteed container's limit is its request, and no quota.
    (linux(cpu_shares=2048), GUARANTEED, Resources(2000, 2000, quota_period_us=0)),
    # Its quota was taken away; kubelet itself sends none, or a positive one.
    (linux(cpu_shares=2048, cpu_quota=-1), GUARANTEED, Resources(2000, 2000)),
    (linux(cpu_shares=2048), BURSTABLE, Resources(2000, None)),
    (linux(), GUARANTEED, Resources(0, None)),
    # 262144 shares are "256 CPUs or more".
    (
        linux(cpu_shares=262_144, cpu_quota=30_000_000, cpu_period=100_000),
        GUARANTEED,
        Resources(300_000, 300_000),
    ),
    (linux(cpu_shares=262_144), GUARANTEED, Resources(256_000, 256_000, quota_period_us=0)),
    (linux(cpu_shares=262_144, cpu_quota=100_000), BURSTABLE, Resources(256_000, 1000)),
    # memory
    (linux(cpu_shares=1024, memory_limit_in_bytes=5), GUARANTEED, Resources(1000, 1000, 5, 5, 0)),
    (linux(memory_limit_in_bytes=5), BURSTABLE, Resources(memory_limit_bytes=5)),
    (linux(memory_limit_in_bytes=-1), BURSTABLE, Resources()),
    (linux(oom_score_adj=900), BURSTABLE, Resources(memory_request_bytes=100)),
    # Kubelet names all sizes of huge pages that the machine has.
    (
        linux(
            hugepage_limits=[
                cri.HugepageLimit(page_size="2MB", limit=1 << 30),
                cri.HugepageLimit(page_size="1GB", limit=0),
                cri.HugepageLimit(page_size="64KB", limit=1),
                cri.HugepageLimit(page_size="large", limit=1),
            ]
        ),
        BURSTABLE,
        Resources(hugepage_sizes=frozenset([2 << 20, 1 << 16])),
    ),
    (linux(oom_score_adj=3), BURSTABLE, Resources()),
    (linux(oom_score_adj=999), BURSTABLE, Resources()),
]


@pytest.mark.parametrize(("shown", "qos", "meant"), RESOURCES)
def test_resources_as_cri_shows_them(shown: cri.LinuxContainerResources, qos: Qos, meant: Resources) -> None:
    assert messages.read_resources(shown, qos, memory_capacity_bytes=1000) == meant


def test_the_request_is_the_smallest_that_gives_these_shares() -> None:
    for milli in [*range(3, 3000), 64_000, 128_000, 255_999]:
        shares = milli * 1024 // 1000  # kubelet's MilliCPUToShares
        request = messages.read_resources(linux(cpu_shares=shares), BURSTABLE).milli_request
        assert request <= milli and request * 1024 // 1000 == shares
        assert request == milli or milli % 125


OLD = Resources(1000, 2000, 100, 200)
UPDATES = [
    # the update, class, the container's resources then
    (linux(), BURSTABLE, OLD),
    (linux(cpu_shares=2048), BURSTABLE, Resources(2000, 2000, 100, 200)),
    (linux(cpu_quota=300_000, cpu_period=100_000), BURSTABLE, Resources(1000, 3000, 100, 200)),
    (linux(cpu_quota=300_000), BURSTABLE, Resources(1000, 3000, 100, 200)),
    (linux(cpu_quota=-1), BURSTABLE, Resources(1000, None, 100, 200)),
    (linux(cpu_shares=2), BURSTABLE, Resources(0, 2000, 100, 200)),
    (linux(memory_limit_in_bytes=500), BURSTABLE, Resources(1000, 2000, 100, 500)),
    (linux(memory_limit_in_bytes=-1), BURSTABLE, Resources(1000, 2000, 100, 0)),
    (linux(cpuset_cpus="0-3"), BURSTABLE, OLD),
    (linux(cpu_shares=2048, cpu_quota=200_000), GUARANTEED, Resources(2000, 2000, 100, 200)),
]


@pytest.mark.parametrize(("update", "qos", "then"), UPDATES)
def test_an_update_changes_what_it_names(
    update: cri.LinuxContainerResources, qos: Qos, then: Resources
) -> None:
    assert messages.update_resources(OLD, update, qos) == then


def test_without_quota_a_guaranteed_containers_limit_follows_its_request() -> None:
    old = Resources(1000, 1000)
    assert messages.update_resources(old, linux(cpu_shares=3072), GUARANTEED) == Resources(3000, 3000)


def test_the_largest_shares_do_not_make_a_request_smaller_than_its_limit() -> None:
    old = Resources(300_000, 300_000)
    assert (
        messages.update_resources(old, linux(cpu_shares=messages.MAX_SHARES), BURSTABLE).milli_request
        == 300_000
    )
    more = linux(cpu_shares=messages.MAX_SHARES, cpu_quota=40_000_000)
    assert messages.update_resources(old, more, BURSTABLE) == Resources(400_000, 400_000)


# ---------------------------------------------------------------------- fences

FENCES = [
    ("", "", Constraint()),
    ("0-3,8", "", Constraint(parse_cpus("0-3,8"))),
    ("", "1", Constraint(None, parse_cpus("1"))),
    ("0-3", "0-1", Constraint(parse_cpus("0-3"), parse_cpus("0-1"))),
    # What cannot be read is the runtime's to refuse.
    ("zero", "3-1", Constraint()),
    ("0-15:2/4", "", Constraint()),
    ("0-99999999", "", Constraint()),
]


@pytest.mark.parametrize(("cpus", "mems", "constraint"), FENCES)
def test_the_callers_cpuset_is_a_fence(cpus: str, mems: str, constraint: Constraint) -> None:
    assert messages.read_fence(linux(cpuset_cpus=cpus, cpuset_mems=mems)) == constraint


# ---------------------------------------------------------------------- the size of a pod


def sandbox(
    resources: Optional[cri.LinuxContainerResources] = None,
    overhead: Optional[cri.LinuxContainerResources] = None,
    **annotations: Any,
) -> cri.PodSandboxConfig:
    named = {
        key.replace("__", "/").replace("_", "."): json.dumps(value) for key, value in annotations.items()
    }
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="web", uid="uid", namespace="default"),
        linux=cri.LinuxPodSandboxConfig(
            resources=resources, overhead=overhead, cgroup_parent="/kubepods/burstable/podX"
        ),
        annotations=named,
    )


def cpu(request: Optional[str] = None, limit: Optional[str] = None) -> dict[str, dict[str, str]]:
    item = {}
    if request is not None:
        item["requests"] = {"cpu": request}
    if limit is not None:
        item["limits"] = {"cpu": limit}
    return item


TWO = {"containers": {"app": cpu("500m", "2"), "sidecar": cpu("250m", "1")}}
ANNOTATED = [
    # the annotation, request, limit
    (TWO, 750, 3000),
    ({"containers": {"app": cpu("500m", "2"), "sidecar": cpu("250m")}}, 750, None),
    ({"containers": {"app": cpu(None, "2")}}, 2000, 2000),
    ({"containers": {"app": cpu()}}, 0, None),
    ({"containers": {"app": {"requests": {"cpu": None}, "limits": {"cpu": None}}}}, 0, None),
    ({"containers": {"app": {"requests": {"cpu": 1}, "limits": {"cpu": 2.5}}}}, 1000, 2500),
    # Init containers run one after another, before the others.
    ({**TWO, "initContainers": {"a": cpu("100m", "1"), "b": cpu("600m", "2")}}, 750, 3000),
    ({**TWO, "initContainers": {"a": cpu("4", "8")}}, 4000, 8000),
    ({**TWO, "initContainers": None}, 750, 3000),
]


@pytest.mark.parametrize(("document", "request_milli", "limit_milli"), ANNOTATED)
@pytest.mark.parametrize("key", ["intel_com__resources", "noderesource_dev__resources"])
def test_a_pods_size_from_the_annotations_of_others(
    key: str, document: Any, request_milli: int, limit_milli: Optional[int]
) -> None:
    size = messages.read_pod_size(sandbox(**{key: document}))
    assert size == PodSize(
        request_milli, limit_milli, f"annotation {key.replace('__', '/').replace('_', '.')}"
    )


@pytest.mark.parametrize(
    "document",
    [
        None,
        3,
        "text",
        [],
        {},
        {"containers": {}},
        {"containers": [1]},
        {"containers": {"app": 3}},
        {"containers": {"app": {"requests": {"cpu": "lots"}}}},
        {"containers": {"app": {"requests": "2"}}},
        {"containers": {"app": {"requests": {"cpu": ["2"]}}}},
    ],
)
def test_an_annotation_that_makes_no_sense_is_no_source(document: Any) -> None:
    assert messages.read_pod_size(sandbox(intel_com__resources=document)) is None
    # The next source is asked then.
    assert (
        messages.read_pod_size(sandbox(intel_com__resources=document, noderesource_dev__resources=TWO))
        is not None
    )


SPOILED = {
    "half of a document": "{",
    "brackets without end": "[" * 5_000,
    "a number of 5,000 digits": json.dumps({"containers": {"app": cpu("9" * 5_000)}}),
    "the same, not as a text": '{"containers": {"app": {"limits": {"cpu": %s}}}}' % ("9" * 5_000),
    "the same, behind a good one": json.dumps({"containers": {"app": cpu("1"), "b": cpu("9" * 5_000)}}),
    "more than any machine has": json.dumps({"containers": {"app": cpu("10E")}}),
    "longer than an annotation should be": json.dumps(TWO) + " " * 9_000,
}


@pytest.mark.parametrize("key", ["intel.com/resources", "noderesource.dev/resources"])
@pytest.mark.parametrize("text", SPOILED.values(), ids=SPOILED)
def test_an_annotation_that_cannot_be_understood_is_no_source_and_no_ones_trouble(
    key: str, text: str
) -> None:
    config = sandbox()
    config.annotations[key] = text
    assert messages.read_pod_size(config) is None


def test_the_sandboxs_own_resources_come_first() -> None:
    config = sandbox(linux(cpu_shares=2048, cpu_quota=400_000), intel_com__resources=TWO)
    assert messages.read_pod_size(config) == PodSize(2000, 4000, "sandbox resources")


@pytest.mark.parametrize(
    ("resources", "overhead", "size"),
    [
        (linux(cpu_shares=1024, cpu_quota=200_000), linux(), (1000, 2000, 0)),
        (
            linux(cpu_shares=1024, cpu_quota=200_000),
            linux(cpu_shares=256, cpu_quota=25_000),
            (1250, 2250, 250),
        ),
        (linux(cpu_shares=1024, cpu_quota=200_000), linux(cpu_shares=256), (1250, 2250, 250)),
        (linux(cpu_shares=1024), linux(cpu_shares=256, cpu_quota=25_000), (1250, None, 250)),
        (linux(cpu_quota=200_000), linux(), (0, 2000, 0)),
    ],
)
def test_resources_and_overhead_are_added(
    resources: cri.LinuxContainerResources,
    overhead: cri.LinuxContainerResources,
    size: tuple[int, Optional[int], int],
) -> None:
    request, limit, extra = size
    assert messages.sum_pod_size(resources, overhead) == PodSize(request, limit, "sandbox resources", extra)


@pytest.mark.parametrize("resources", [linux(), linux(cpu_shares=2), linux(memory_limit_in_bytes=1)])
def test_a_sandbox_that_tells_no_cpus_has_no_size(resources: cri.LinuxContainerResources) -> None:
    assert messages.sum_pod_size(resources, linux(cpu_shares=256)) is None


# ---------------------------------------------------------------------- requests


def create_request(**resources: Any) -> cri.CreateContainerRequest:
    return cri.CreateContainerRequest(
        pod_sandbox_id="sandbox-1",
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="app", attempt=3),
            labels={"l": "1"},
            annotations={"a": "2"},
            envs=[cri.KeyValue(key="B", value=b"1"), cri.KeyValue(key="A", value=b"2")],
            mounts=[cri.Mount(container_path="/data", uidMappings=[cri.IDMapping(host_id=7)])],
            linux=cri.LinuxContainerConfig(resources=linux(**resources)),
        ),
        sandbox_config=sandbox(),
    )


def test_a_create_request_is_a_container_and_a_fence() -> None:
    message = create_request(cpu_shares=1024, cpu_quota=200_000, cpuset_cpus="0-3").SerializeToString()
    request = messages.read_create(message, {})
    container = request.container
    assert (container.path, container.attempt, container.qos) == ("default/web/app", 3, BURSTABLE)
    assert container.resources == Resources(1000, 2000)
    assert (dict(container.labels), dict(container.annotations)) == ({"l": "1"}, {"a": "2"})
    assert (container.pod.id, container.pod.uid) == ("sandbox-1", "uid")
    assert request.constraint == Constraint(parse_cpus("0-3"))


def test_what_the_request_does_not_say_of_its_pod_is_known_from_before() -> None:
    known = Pod("sandbox-1", "uid", "web", "default", runtime_handler="kata", size=PodSize(9, 9, "resized"))
    request = create_request()
    full = messages.read_create(request.SerializeToString(), {"sandbox-1": known}).container.pod
    assert (full.runtime_handler, full.size) == ("kata", known.size)
    request.ClearField("sandbox_config")
    assert messages.read_create(request.SerializeToString(), {"sandbox-1": known}).container.pod is known


def test_containers_share_the_record_of_their_pod_and_the_strings_of_labels() -> None:
    request = create_request()
    known = messages.read_create(request.SerializeToString(), {}).container.pod
    request.config.labels["team"] = "shop-checkout"
    first, second = (
        messages.read_create(request.SerializeToString(), {"sandbox-1": known}).container for _ in range(2)
    )
    assert first.pod is known and second.pod is known
    assert first.labels["team"] is second.labels["team"]
    assert [id(key) for key in first.labels] == [id(key) for key in second.labels]
    request.sandbox_config.labels["new"] = "1"
    assert (
        messages.read_create(request.SerializeToString(), {"sandbox-1": known}).container.pod.labels["new"]
        == "1"
    )


@pytest.mark.parametrize("missing", ["config", "pod_sandbox_id", "sandbox_config"])
def test_a_request_without_identity_cannot_be_read(missing: str) -> None:
    request = create_request()
    request.ClearField(missing)  # type: ignore[arg-type]
    with pytest.raises(messages.UnreadableRequest):
        messages.read_create(request.SerializeToString(), {})


def test_a_pod_without_uid_is_its_sandbox() -> None:
    config = sandbox()
    config.metadata.uid = ""
    assert messages.read_pod(config, "sandbox-1", "").uid == "sandbox-1"


def test_a_restore_makes_containers_as_creates_of_their_own_would() -> None:
    create = create_request(cpu_quota=200_000, cpu_period=100_000, cpuset_cpus="0-3")
    request = cri.RestorePodRequest(
        config=create.sandbox_config, runtime_handler="kata", container_configs=[create.config]
    )
    reply = cri.RestorePodResponse(pod_sandbox_id=create.pod_sandbox_id)
    for name, key in ((create.config.metadata.name, "id-1"), ("unknown", "id-2")):
        reply.restored_containers.add(name=name, container_id=key)
    made = messages.read_restore(request.SerializeToString(), reply.SerializeToString())
    asked = messages.read_create(create.SerializeToString(), {})
    assert list(made) == ["id-1"]
    assert made["id-1"].container.pod.runtime_handler == "kata"
    pod = replace(made["id-1"].container.pod, runtime_handler="")
    assert replace(made["id-1"], container=replace(made["id-1"].container, pod=pod)) == asked


def test_a_restore_without_a_pods_identity_cannot_be_read() -> None:
    with pytest.raises(messages.UnreadableRequest):
        messages.read_restore(b"", b"")


def test_an_update_request_is_an_id_resources_and_a_fence() -> None:
    message = cri.UpdateContainerResourcesRequest(
        container_id="c1", linux=linux(cpu_shares=2048, cpuset_mems="1")
    ).SerializeToString()
    request = messages.read_update(message)
    assert (request.container_id, request.linux.cpu_shares) == ("c1", 2048)
    assert request.constraint == Constraint(None, frozenset([1]))


@pytest.mark.parametrize(
    ("annotations", "value"),
    [
        ({}, None),
        ({"k": "1"}, "1"),
        ({"k": "1", "k/pod": "2"}, "2"),
        ({"k": "1", "k/pod": "2", "k/container.app": "3"}, "3"),
        ({"k/container.other": "3"}, None),
        ({"k": ""}, ""),
    ],
)
def test_annotations_have_intels_scopes(annotations: dict[str, str], value: Optional[str]) -> None:
    assert messages.scoped_annotation(annotations, "k", "app") == value


# ---------------------------------------------------------------------- rule 2: deltas

PLACED = Placement(cpus=parse_cpus("0-3,64-67"), mems=frozenset([0]))


def unknown_fields() -> st.SearchStrategy[bytes]:
    """Encoded fields with numbers that no CRI version has: varint, fixed and length-delimited."""
    number = st.integers(3000, 3100)
    payload = st.binary(max_size=20)

    def encode(pair: tuple[int, bytes]) -> bytes:
        return varint(pair[0] << 3 | 2) + varint(len(pair[1])) + pair[1]

    return st.lists(st.tuples(number, payload).map(encode), max_size=3).map(b"".join)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def resources() -> st.SearchStrategy[cri.LinuxContainerResources]:
    return st.builds(
        cri.LinuxContainerResources,
        cpu_shares=st.integers(0, 5000),
        cpu_quota=st.integers(-1, 500_000),
        memory_limit_in_bytes=st.integers(0, 1 << 40),
        cpuset_cpus=st.sampled_from(["", "0-7", "junk"]),
        cpuset_mems=st.sampled_from(["", "0", "0-1"]),
        unified=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    )


placements = st.builds(
    Placement,
    cpus=st.frozensets(st.integers(0, 600), min_size=1, max_size=40),
    mems=st.frozensets(st.integers(0, 15), max_size=4),
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(resources(), placements, unknown_fields())
def test_rule_2_a_create_delta_sets_the_cpuset_and_changes_nothing_else(
    given_resources: cri.LinuxContainerResources, placement: Placement, unknown: bytes
) -> None:
    request = create_request()
    request.config.linux.resources.CopyFrom(given_resources)
    original = request.SerializeToString() + unknown
    sent = original + messages.write_create_delta(placement)
    assert sent.startswith(original)
    merged = cri.CreateContainerRequest.FromString(sent)
    expected = cri.CreateContainerRequest.FromString(original)
    fields = expected.config.linux.resources
    fields.cpuset_cpus = ",".join(str(c) for c in sorted(placement.cpus))
    assert parse_cpus(merged.config.linux.resources.cpuset_cpus) == placement.cpus
    merged.config.linux.resources.cpuset_cpus = fields.cpuset_cpus
    if placement.mems:
        assert parse_cpus(merged.config.linux.resources.cpuset_mems) == placement.mems
        fields.cpuset_mems = merged.config.linux.resources.cpuset_mems
    assert merged == expected
    assert unknown in sent


@settings(derandomize=True, deadline=None, max_examples=100)
@given(resources(), placements, unknown_fields())
def test_rule_2_an_update_delta_sets_the_cpuset_and_changes_nothing_else(
    given_resources: cri.LinuxContainerResources, placement: Placement, unknown: bytes
) -> None:
    request = cri.UpdateContainerResourcesRequest(
        container_id="c1", linux=given_resources, annotations={"k": "v"}
    )
    original = request.SerializeToString() + unknown
    merged = cri.UpdateContainerResourcesRequest.FromString(original + messages.write_update_delta(placement))
    assert parse_cpus(merged.linux.cpuset_cpus) == placement.cpus
    expected = cri.UpdateContainerResourcesRequest.FromString(original)
    expected.linux.cpuset_cpus, expected.linux.cpuset_mems = (
        merged.linux.cpuset_cpus,
        merged.linux.cpuset_mems,
    )
    assert merged == expected
    assert merged.linux.cpuset_mems == given_resources.cpuset_mems or placement.mems


def test_rule_2_order_of_envs_and_mounts_and_their_unknown_parts_survive() -> None:
    """W6 of the ancestor: envs and mounts in random order, uidMappings and unknown fields lost."""
    request = create_request()
    # A mount with a field of a later CRI, inside the repeated message.
    mount = request.config.mounts[0].SerializeToString() + b"\xfa\xff\x01\x03new"
    config = request.config.SerializeToString() + b"\x3a" + varint(len(mount)) + mount
    original = b"\x0a\x03s-1\x12" + varint(len(config)) + config
    merged = cri.CreateContainerRequest.FromString(original + messages.write_create_delta(PLACED))
    assert [e.key for e in merged.config.envs] == ["B", "A"]
    assert merged.config.mounts[-1].uidMappings[0].host_id == 7
    assert b"\xfa\xff\x01\x03new" in merged.config.mounts[-1].SerializeToString()
    assert merged.config.linux.resources.cpuset_cpus == "0-3,64-67"


def test_rule_2_a_delta_holds_only_what_is_set() -> None:
    assert messages.write_create_delta(UNTOUCHED) == messages.write_update_delta(UNTOUCHED) == b""
    only_cpus = cri.CreateContainerRequest.FromString(
        messages.write_create_delta(Placement(cpus=frozenset([1])))
    )
    assert [field.name for field, _ in only_cpus.config.linux.resources.ListFields()] == ["cpuset_cpus"]
    assert [field.name for field, _ in only_cpus.config.ListFields()] == ["linux"]
    assert [field.name for field, _ in only_cpus.ListFields()] == ["config"]


def test_rule_2_the_same_placement_gives_the_same_bytes() -> None:
    scrambled = Placement(cpus=frozenset([67, 0, 3, 66, 1, 65, 2, 64]), mems=frozenset([0]))
    assert messages.write_create_delta(PLACED) == messages.write_create_delta(scrambled)


# ---------------------------------------------------------------------- garbage

READERS = {
    "create": lambda data: messages.read_create(data, {}),
    "update": messages.read_update,
    "sandbox": lambda data: messages.read_pod(messages.parse(cri.PodSandboxConfig, data), "s", ""),
}
WHOLE: dict[str, Message] = {
    "create": create_request(cpu_shares=512, cpuset_cpus="0-3"),
    "update": cri.UpdateContainerResourcesRequest(container_id="c1", linux=linux(cpu_shares=2)),
    "sandbox": sandbox(intel_com__resources=TWO),
}


def outcome(kind: str, data: bytes) -> None:
    try:
        READERS[kind](data)
    except messages.UnreadableRequest as error:
        assert str(error)


@pytest.mark.parametrize("kind", READERS)
def test_a_truncated_message_is_unreadable_or_a_shorter_message(kind: str) -> None:
    data = WHOLE[kind].SerializeToString()
    for length in range(len(data)):
        outcome(kind, data[:length])


@pytest.mark.parametrize("kind", READERS)
@settings(derandomize=True, deadline=None, max_examples=300)
@given(data=st.data())
def test_a_damaged_message_raises_nothing_else(kind: str, data: st.DataObject) -> None:
    good = bytearray(WHOLE[kind].SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    outcome(kind, bytes(good))


@pytest.mark.parametrize("kind", READERS)
@settings(derandomize=True, deadline=None, max_examples=300)
@given(garbage=st.binary(max_size=200))
@example(garbage=b"\x0a\x02\xff\xfe")
def test_garbage_raises_nothing_else(kind: str, garbage: bytes) -> None:
    outcome(kind, garbage)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80"])
def test_text_that_is_not_utf8_is_unreadable(text: bytes) -> None:
    with pytest.raises(messages.UnreadableRequest, match="are not a UpdateContainerResourcesRequest"):
        messages.read_update(b"\x0a" + bytes([len(text)]) + text)


def test_the_error_says_what_it_was_and_how_long() -> None:
    with pytest.raises(messages.UnreadableRequest, match=r"^3 bytes are not a CreateContainerRequest"):
        messages.read_create(b"\xff\xff\xff", {})
