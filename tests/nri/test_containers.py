"""NRI messages in, the vocabulary out, the same as CRI's; placements out as adjustments and updates that are small."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_api.claims import cdi_device, claim_key, part_name, variable
from cri_proxy.cri.messages import UnreadableRequest, read_create
from cri_proxy.engine.model import ContainerRecord, CpusetUpdate, Life, Management
from cri_proxy.nri import containers
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, Constraint, Placement, Qos, Quota
from tests.cri_client import Pod as ClientPod
from tests.cri_client import container_config, create_request, pod_config
from tests.scenes import make_container, make_pod

GIB = 1 << 30


def optional(value: Optional[int], kind: Any) -> Any:
    return None if value is None else kind(value=value)


def linux(
    shares: Optional[int] = None,
    quota: Optional[int] = None,
    period: Optional[int] = None,
    cpus: str = "",
    mems: str = "",
    memory: Optional[int] = None,
) -> nri.LinuxResources:
    """Resources of which only what is given is there."""
    cpu = nri.LinuxCPU(
        shares=optional(shares, nri.OptionalUInt64),
        quota=optional(quota, nri.OptionalInt64),
        period=optional(period, nri.OptionalUInt64),
        cpus=cpus,
        mems=mems,
    )
    limit = nri.LinuxMemory(limit=optional(memory, nri.OptionalInt64))
    return nri.LinuxResources(cpu=cpu, memory=limit)


# ---------------------------------------------------------------------- the same as through CRI

#: What kubelet sends for containers: arguments of ``container_config``.
KUBELETS = [
    {"qos": "besteffort"},
    {"qos": "burstable", "cpu_request": 250, "memory_limit": GIB},
    {"qos": "burstable", "cpu_request": 500, "cpu_limit": 1500},
    {"qos": "guaranteed", "cpu_limit": 4000, "memory_limit": 2 * GIB},
    {"qos": "guaranteed", "cpu_limit": 4000, "memory_limit": 2 * GIB, "cpuset": "2-5", "mems": "0"},
]


@pytest.mark.parametrize("config", KUBELETS, ids=str)
@pytest.mark.parametrize("attempt", [0, 3])
def test_a_container_is_the_same_by_nri_as_by_cri(config: dict[str, Any], attempt: int) -> None:
    uid, qos = "0a1b", config["qos"]
    parent = f"/kubepods/pod{uid}" if qos == "guaranteed" else f"/kubepods/{qos}/pod{uid}"
    overhead = cri.LinuxContainerResources(cpu_shares=256)
    size = cri.LinuxContainerResources(cpu_shares=4096, cpu_quota=400_000, cpu_period=100_000)
    sandbox = pod_config(
        "web",
        uid=uid,
        cgroup_parent=parent,
        annotations={"cri-resmgr.io/l3": "prefer"},
        labels={"app": "web"},
        resources=size,
        overhead=overhead,
    )
    client_pod = ClientPod("s1", uid, "web", "default", sandbox)
    request = create_request(client_pod, container_config("main", attempt=attempt, **config))
    by_cri = read_create(request.SerializeToString(), {}, 64 * GIB)

    resources = request.config.linux.resources
    pod = nri.PodSandbox(
        id="s1",
        name="web",
        uid=uid,
        namespace="default",
        labels=sandbox.labels,
        annotations=sandbox.annotations,
        linux=nri.LinuxPodSandbox(
            cgroup_parent=parent,
            pod_resources=linux(4096, 400_000, 100_000),
            pod_overhead=linux(256),
        ),
    )
    container = nri.Container(
        id="c1",
        name="main",
        pod_sandbox_id="s1",
        labels=request.config.labels,
        annotations=request.config.annotations,
        linux=nri.LinuxContainer(
            resources=linux(
                resources.cpu_shares,
                resources.cpu_quota,
                resources.cpu_period,
                resources.cpuset_cpus,
                resources.cpuset_mems,
                resources.memory_limit_in_bytes,
            ),
            oom_score_adj=nri.OptionalInt(value=resources.oom_score_adj),
        ),
    )
    by_nri = containers.read_container(container, containers.read_pod(pod), 0, 64 * GIB)
    assert by_nri == by_cri
    assert by_nri.container.qos is Qos(qos)
    assert by_nri.container.attempt == attempt


CLAIM = part_name("1111-aaaa", "cpus")
CLAIMED = {
    "CDI devices": ({"CDI_devices": [nri.CDIDevice(name=cdi_device(CLAIM))]}, True),
    "an annotation": ({"annotations": {"cdi.k8s.io/x": cdi_device(CLAIM)}}, True),
    "the variable of a host that tells no devices": ({"env": ["A=b", variable(CLAIM)]}, True),
    "a variable beside devices": (
        {"env": [variable(CLAIM)], "CDI_devices": [nri.CDIDevice(name="vendor.example/disk=a")]},
        False,
    ),
    "nothing": ({}, False),
}


@pytest.mark.parametrize(("fields", "has_it"), CLAIMED.values(), ids=CLAIMED)
def test_a_containers_claims_are_told_by_its_devices_or_by_what_they_bring(
    fields: dict[str, Any], has_it: bool
) -> None:
    container = nri.Container(id="c", name="app", **fields)
    claims = (claim_key(CLAIM),) if has_it else ()
    assert containers.read_container(container, make_pod()).container.claims == claims
    # A Synchronize shows those of containers that are known, too.
    assert containers.read_seen([container], {}, {})["c"].claims == claims


def test_numbers_that_are_not_there_are_as_kubelets_zero() -> None:
    assert containers.cri_resources(nri.LinuxResources()) == cri.LinuxContainerResources()
    assert containers.cri_resources(linux(0, 0, 0, memory=0)) == cri.LinuxContainerResources()
    assert containers.cri_resources(linux(shares=(1 << 64) - 1)).cpu_shares == (1 << 63) - 1


def test_devices_and_writable_bind_mounts_may_hint() -> None:
    container = nri.Container(
        id="c",
        name="app",
        mounts=[
            nri.Mount(destination="/data", type="bind", source="/mnt/disk1", options=["rbind", "rw"]),
            nri.Mount(destination="/conf", type="bind", source="/srv/conf", options=["rbind", "ro"]),
            nri.Mount(destination="/proc", type="proc", source="proc"),
            nri.Mount(destination="/scratch", source="/mnt/disk2", options=["bind"]),
        ],
        linux=nri.LinuxContainer(devices=[nri.LinuxDevice(path="/dev/nvidia0", type="c", major=195)]),
    )
    read = containers.read_container(container, make_pod())
    assert read.uses == (("devices", "/dev/nvidia0"), ("mounts", "/mnt/disk1"), ("mounts", "/mnt/disk2"))


@pytest.mark.parametrize(
    ("rules", "hints"),
    [
        ([nri.LinuxDeviceCgroup(allow=False, access="rwm")], True),
        (
            [
                nri.LinuxDeviceCgroup(allow=False, access="rwm"),
                nri.LinuxDeviceCgroup(allow=True, access="rwm"),
            ],
            False,
        ),
        ([nri.LinuxDeviceCgroup(allow=True, type="a", access="rwm")], False),
        (
            [nri.LinuxDeviceCgroup(allow=True, type="c", major=nri.OptionalInt64(value=195), access="rwm")],
            True,
        ),
        ([nri.LinuxDeviceCgroup(allow=True, access="m")], True),
    ],
    ids=["nothing but its own", "privileged", "privileged, in words", "one driver's", "may make nodes"],
)
def test_the_devices_of_a_privileged_container_do_not_hint(
    rules: list[nri.LinuxDeviceCgroup], hints: bool
) -> None:
    linux = nri.LinuxContainer(devices=[nri.LinuxDevice(path="/dev/sda", type="b", major=8)])
    linux.resources.devices.extend(rules)
    read = containers.read_container(nri.Container(id="c", name="app", linux=linux), make_pod())
    assert bool(read.uses) is hints


@pytest.mark.parametrize("container", [nri.Container(name="x"), nri.Container(id="x")], ids=["id", "name"])
def test_a_container_without_id_or_name_is_not_understood(container: nri.Container) -> None:
    with pytest.raises(UnreadableRequest, match="without an id or a name"):
        containers.read_container(container, make_pod())


def test_a_pod_without_id_is_not_understood() -> None:
    with pytest.raises(UnreadableRequest, match="without an id"):
        containers.read_pod(nri.PodSandbox(name="p"))


@pytest.mark.parametrize(
    ("text", "attempt"), [("0", 0), ("17", 17), ("", None), ("-1", None), ("many", None), ("9" * 30, None)]
)
def test_the_attempt_is_kubelets_count_of_restarts(text: str, attempt: Optional[int]) -> None:
    container = nri.Container(annotations={"io.kubernetes.container.restartCount": text})
    assert containers.read_attempt(container) == attempt


def test_one_that_does_not_tell_its_attempt_is_the_next() -> None:
    pod = make_pod()
    grants = [
        ContainerRecord(str(n), make_container("app", pod=pod, attempt=n), Placement(), Management.PLACED)
        for n in (0, 4)
    ]
    assert containers.next_attempt(grants, pod.uid, "app") == 5
    assert (
        containers.next_attempt(grants, pod.uid, "other")
        == containers.next_attempt(grants, "other", "app")
        == 0
    )


def test_the_size_of_a_pod_is_resources_and_overhead() -> None:
    request = nri.UpdatePodSandboxRequest(
        linux_resources=linux(2048, 300_000, 100_000), overhead_linux_resources=linux(1024)
    )
    request.linux_resources.memory.limit.value = GIB
    size, memory_limit_bytes = containers.read_size(request)
    assert size is not None
    assert (size.milli_request, size.milli_limit, memory_limit_bytes) == (3000, 4000, GIB)
    assert containers.read_size(nri.UpdatePodSandboxRequest()) == (None, 0)


# ---------------------------------------------------------------------- Synchronize


def grant(key: str, life: Life, **fields: Any) -> ContainerRecord:
    container = make_container(key, pod=make_pod("p"))
    return ContainerRecord(key, container, Placement(), Management.PLACED, life=life, **fields)


def test_what_a_synchronize_lacks_has_ended_and_what_is_being_created_has_not() -> None:
    grants = {
        g.key: g
        for g in (grant("a", Life.RUNNING), grant("b", Life.HELD, exit_code=3), grant("t", Life.CREATING))
    }
    message = nri.Container(id="new", name="n", pod_sandbox_id="s", state=nri.CONTAINER_RUNNING)
    message.linux.resources.cpu.cpus = "0-3"
    seen = containers.read_seen([message], {}, grants)
    assert sorted(seen) == ["a", "b", "new"]
    assert [(seen[key].exited, seen[key].exit_code) for key in ("a", "b")] == [(True, None), (True, 3)]
    assert (seen["new"].running, seen["new"].cpus, seen["new"].pod_uid) == (True, parse_cpus("0-3"), "s")


@pytest.mark.parametrize(
    ("state", "running"),
    [("CONTAINER_CREATED", False), ("CONTAINER_RUNNING", True), ("CONTAINER_PAUSED", True)],
)
def test_states(state: str, running: bool) -> None:
    seen = containers.read_seen([nri.Container(id="a", state=state)], {}, {})
    assert (seen["a"].running, seen["a"].exited) == (running, False)


def test_an_exit_code_counts_only_where_an_end_is_told() -> None:
    assert containers.read_exit_code(nri.Container(state=nri.CONTAINER_STOPPED)) is None
    assert containers.read_exit_code(nri.Container(finished_at=5)) == 0
    assert containers.read_exit_code(nri.Container(finished_at=5, exit_code=137)) == 137


# ---------------------------------------------------------------------- placements out

TWO = Placement(cpus=parse_cpus("0-3"), mems=parse_cpus("0"))


def test_an_adjustment_holds_the_placement_and_nothing_else() -> None:
    adjust = containers.write_adjustment(TWO, NO_CONSTRAINT)
    assert adjust is not None
    expected = nri.ContainerAdjustment()
    expected.linux.resources.cpu.cpus, expected.linux.resources.cpu.mems = "0-3", "0"
    assert adjust == expected


def test_a_lifted_quota_goes_with_it() -> None:
    adjust = containers.write_adjustment(Placement(cpus=parse_cpus("1"), lift_quota=True), NO_CONSTRAINT)
    assert adjust is not None
    assert adjust.linux.resources.cpu.quota.value == -1


def test_what_it_has_already_is_not_set_again() -> None:
    adjust = containers.write_adjustment(TWO, Constraint(cpus=TWO.cpus))
    assert adjust is not None
    assert (adjust.linux.resources.cpu.cpus, adjust.linux.resources.cpu.mems) == ("", "0")
    assert containers.write_adjustment(TWO, Constraint(TWO.cpus, TWO.mems)) is None
    assert containers.write_adjustment(Placement(), NO_CONSTRAINT) is None


def test_an_update_gives_back_a_quota_with_its_period_and_may_fail() -> None:
    update = containers.write_update(CpusetUpdate("c", TWO, False, "", Quota(50_000, 100_000)))
    assert update is not None
    cpu = update.linux.resources.cpu
    assert (cpu.cpus, cpu.quota.value, cpu.period.value) == ("0-3", 50_000, 100_000)
    assert update.ignore_failure
    unasked = containers.write_update(CpusetUpdate("c", TWO, False, ""), may_fail=False)
    assert unasked is not None
    assert not unasked.ignore_failure
    assert containers.write_update(CpusetUpdate("c", Placement(), False, "")) is None


sets = st.frozensets(st.integers(0, 300), max_size=9)


@settings(max_examples=100)
@given(sets, sets, st.booleans(), st.none() | st.builds(Quota, st.integers(1, 10**9), st.integers(1, 10**6)))
def test_nothing_that_is_sent_says_anything_about_memory_limits(
    cpus: frozenset[int], mems: frozenset[int], lift: bool, quota: Optional[Quota]
) -> None:
    """iSulad takes the limit out of whatever memory it finds, also where there is none."""
    placement = Placement(cpus=cpus, mems=mems, lift_quota=lift)
    adjust = containers.write_adjustment(placement, NO_CONSTRAINT)
    update = containers.write_update(CpusetUpdate("c", placement, False, "", quota))
    assert adjust is None or not adjust.linux.resources.HasField("memory")
    assert update is None or not update.linux.resources.HasField("memory")
    if cpus:
        assert adjust is not None and parse_cpus(adjust.linux.resources.cpu.cpus) == cpus


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_reading_never_raises_anything_but_unreadable(data: bytes) -> None:
    try:
        container, pod = nri.Container.FromString(data), nri.PodSandbox.FromString(data)
    except Exception:
        return
    for read in (lambda: containers.read_pod(pod), lambda: containers.read_container(container, make_pod())):
        try:
            read()
        except UnreadableRequest:
            pass
    containers.read_seen([container], {}, {})


@pytest.mark.parametrize(
    ("words", "linux"),
    [
        ("", ""),
        ("nice=5", "scheduler { policy: SCHED_OTHER nice: 5 }"),
        ("idle io=idle", "scheduler { policy: SCHED_IDLE } io_priority { class: IOPRIO_CLASS_IDLE }"),
        (
            "batch nice=19 flags=reset-on-fork io=be:7",
            "scheduler { policy: SCHED_BATCH nice: 19 flags: SCHED_FLAG_RESET_ON_FORK } "
            "io_priority { class: IOPRIO_CLASS_BE priority: 7 }",
        ),
        ("io=be:3", "io_priority { class: IOPRIO_CLASS_BE priority: 3 }"),
        # What could fail a start is left to the moving of threads.
        ("nice=-5", ""),
        ("fifo priority=4 io=rt:0", ""),
        ("deadline runtime=1 period=9", ""),
        ("batch flags=keep-params", ""),
    ],
)
def test_an_adjustment_says_of_scheduling_what_no_runtime_can_fail_for(words: str, linux: str) -> None:
    wanted = text_format.Parse(linux, nri.LinuxContainerAdjustment())
    adjust = containers.with_scheduling(None, words, nri.Container())
    assert (adjust is None) if not linux else (adjust is not None and adjust.linux == wanted)
    both = containers.with_scheduling(containers.write_adjustment(TWO, NO_CONSTRAINT), words, nri.Container())
    assert both is not None and both.linux.resources.cpu.cpus == format_cpus(TWO.cpus)


def test_what_a_plugin_before_ours_has_set_is_not_set_again() -> None:
    set_already = nri.Container(linux=nri.LinuxContainer(scheduler=nri.LinuxScheduler(nice=1)))
    adjust = containers.with_scheduling(None, "nice=5 io=be:3", set_already)
    assert adjust is not None
    assert (adjust.linux.HasField("scheduler"), adjust.linux.HasField("io_priority")) == (False, True)
