"""The requests of the simulated kubelet say what kubelet's would; the simulated runtime forgets nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import CreateRequest, read_create, read_pod, read_update
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.simulator.node import SimulatedRuntime, create_request, sandbox_request, update_request
from cri_proxy.simulator.scenario import ScenarioStep, read_scenario
from policies.machine.cpus import parse_cpus
from policies.model import Placement, Qos
from tests.machines import GIB

CAPACITY = 64 * GIB


def step(op: str, **fields: Any) -> ScenarioStep:
    return read_scenario([{"op": op, "id": "a", **fields}])[0]


def sandbox(**fields: Any) -> cri.RunPodSandboxRequest:
    return cri.RunPodSandboxRequest.FromString(sandbox_request(step("pod", **fields)))


def message(pod: dict[str, Any], **fields: Any) -> bytes:
    return create_request(step("create", pod="a", **fields), sandbox(**pod).config, CAPACITY)


def container(pod: dict[str, Any], **fields: Any) -> CreateRequest:
    return read_create(message(pod, **fields), {}, CAPACITY)


# ---------------------------------------------------------------- the class of a container

FULL = {"cpu_limit": "2", "memory_limit": "1Gi"}
NESTED = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"

CLASSES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "limits of both": ({}, FULL, "guaranteed", "/kubepods/poda"),
    "no memory limit": ({}, {"cpu_limit": "2"}, "burstable", "/kubepods/burstable/poda"),
    "a smaller request": ({}, {**FULL, "cpu_request": "1"}, "burstable", "/kubepods/burstable/poda"),
    "a smaller memory request": (
        {},
        {**FULL, "memory_request": "1Mi"},
        "burstable",
        "/kubepods/burstable/poda",
    ),
    "memory only": ({}, {"memory_limit": "1Gi"}, "burstable", "/kubepods/burstable/poda"),
    "nothing": ({}, {}, "besteffort", "/kubepods/besteffort/poda"),
    "as told": ({}, {"qos": "guaranteed"}, "guaranteed", "/kubepods/poda"),
    "as told, whatever it asks for": (
        {},
        {**FULL, "qos": "besteffort"},
        "besteffort",
        "/kubepods/besteffort/poda",
    ),
    "as its pod's cgroup says": ({"cgroup_parent": NESTED}, FULL, "burstable", NESTED),
    "Guaranteed, as its pod's cgroup says": (
        {"cgroup_parent": "/kubepods/podx"},
        {"cpu_limit": "2"},
        "guaranteed",
        "/kubepods/podx",
    ),
    "as told, against its pod's cgroup": (
        {"cgroup_parent": NESTED},
        {"qos": "guaranteed"},
        "guaranteed",
        "/kubepods/poda",
    ),
    "as told, and so does its cgroup": (
        {"cgroup_parent": NESTED},
        {**FULL, "qos": "burstable"},
        "burstable",
        NESTED,
    ),
    "in a cgroup that tells nothing": ({"cgroup_parent": "/machine"}, FULL, "guaranteed", "/machine"),
    "in a pod with a strange name": ({"id": "x-burstable"}, FULL, "guaranteed", "/kubepods/podx_burstable"),
}


@pytest.mark.parametrize(("pod", "fields", "qos", "parent"), CLASSES.values(), ids=CLASSES.keys())
def test_requests_and_cgroup_agree_on_the_class(
    pod: dict[str, Any], fields: dict[str, Any], qos: str, parent: str
) -> None:
    read = container(pod, **fields).container
    assert (read.qos, read.pod.cgroup_parent) == (Qos(qos), parent)


SCORES: dict[str, tuple[dict[str, Any], int]] = {
    "Guaranteed": (FULL, -997),
    "BestEffort": ({}, 1000),
    "Burstable by its memory request": ({"memory_request": "16Gi"}, 750),
    "Burstable with hardly any memory": ({"cpu_request": "1"}, 999),
    "Burstable with all of it": ({"memory_request": "64Gi"}, 3),
}


@pytest.mark.parametrize(("fields", "score"), SCORES.values(), ids=SCORES.keys())
def test_oom_scores_are_kubelets(fields: dict[str, Any], score: int) -> None:
    request = cri.CreateContainerRequest.FromString(message({}, **fields))
    assert request.config.linux.resources.oom_score_adj == score


def test_a_memory_request_is_read_back_from_the_score() -> None:
    assert container({}, memory_request="16Gi").container.resources.memory_request_bytes == 16 * GIB


# ---------------------------------------------------------------- the other fields


def test_a_request_carries_all_that_the_step_says() -> None:
    request = cri.CreateContainerRequest.FromString(
        message(
            {"namespace": "web", "labels": {"tier": "1"}, "annotations": {"note": "pod"}},
            name="app",
            attempt=3,
            labels={"x": "y"},
            annotations={"note": "container"},
            devices=["0000:41:00.0"],
            cpuset="8-11",
            mems="1",
        )
    )
    pod, config = request.sandbox_config, request.config
    meta, labels = pod.metadata, pod.labels
    assert (request.pod_sandbox_id, meta.name, meta.uid, meta.namespace) == ("a", "a", "a", "web")
    assert (labels["tier"], labels["io.kubernetes.pod.uid"], pod.annotations["note"]) == ("1", "a", "pod")
    assert (config.metadata.name, config.metadata.attempt) == ("app", 3)
    assert (config.labels["x"], config.labels["io.kubernetes.container.name"]) == ("y", "app")
    assert (config.labels["io.kubernetes.pod.namespace"], config.annotations["note"]) == ("web", "container")
    assert [device.host_path for device in config.devices] == ["0000:41:00.0"]
    assert (config.linux.resources.cpuset_cpus, config.linux.resources.cpuset_mems) == ("8-11", "1")


def test_a_container_without_a_name_is_called_app_unless_another_of_its_pod_is() -> None:
    assert container({}).container.name == "app"
    runtime, process = running({})
    assert runtime.default_name("a", "d") == "d"
    process.state = "exited"
    assert runtime.default_name("a", "d") == "app"


SIZES: dict[str, tuple[dict[str, Any], Any]] = {
    "not told": ({}, None),
    "memory only": ({"memory_limit": "1Gi"}, None),
    "both": ({"cpu_request": "6", "cpu_limit": "8"}, (6000, 8000)),
    "a limit is a request": ({"cpu_limit": "8"}, (8000, 8000)),
    "a request only": ({"cpu_request": "750m"}, (750, None)),
}


@pytest.mark.parametrize(("fields", "size"), SIZES.values(), ids=SIZES.keys())
def test_the_size_of_a_pod_is_that_of_its_sandbox(fields: dict[str, Any], size: Any) -> None:
    read = read_pod(sandbox(**fields).config, "a", "").size
    assert (read if read is None else (read.milli_request, read.milli_limit)) == size


def test_the_pod_that_a_create_makes_has_but_a_namespace() -> None:
    made = step("create", pod="p", namespace="web", annotations={"x": "y"})
    request = cri.RunPodSandboxRequest.FromString(sandbox_request(made))
    pod = read_pod(request.config, "p", request.runtime_handler)
    assert (pod.namespace, pod.name, pod.annotations, pod.size) == ("web", "p", {}, None)


UPDATES: dict[str, tuple[dict[str, Any], tuple[int, int, int, str]]] = {
    "an update has a cpuset and nothing else": ({"op": "update", "cpuset": "0-3"}, (0, 0, 0, "0-3")),
    "a resize of both": ({"cpu_request": "2", "cpu_limit": "4"}, (2048, 400000, 0, "")),
    "of the limit alone": ({"cpu_limit": "4"}, (0, 400000, 0, "")),
    "of memory alone": ({"memory_limit": "1Gi"}, (0, 0, GIB, "")),
    "away with the request": ({"cpu_request": "0"}, (2, 0, 0, "")),
    "away with the limit": ({"cpu_limit": "0"}, (0, -1, 0, "")),
}


@pytest.mark.parametrize(("fields", "linux"), UPDATES.values(), ids=UPDATES.keys())
def test_an_update_says_what_changes(fields: dict[str, Any], linux: tuple[int, int, int, str]) -> None:
    read = read_update(update_request(step(**{"op": "resize", **fields})))
    sent = read.linux
    assert read.container_id == "a"
    assert (sent.cpu_shares, sent.cpu_quota, sent.memory_limit_in_bytes, sent.cpuset_cpus) == linux


# ---------------------------------------------------------------- the runtime


def running(pod: dict[str, Any], **fields: Any) -> tuple[SimulatedRuntime, Any]:
    runtime = SimulatedRuntime()
    runtime.run_sandbox("a", sandbox(**pod))
    process = runtime.create("c", message(pod, **fields))
    process.state = "running"
    return runtime, process


def test_a_look_shows_what_runs() -> None:
    runtime, process = running({}, attempt=2, cpuset="8-11")
    process.give(CpusetUpdate("c1", Placement(cpus=parse_cpus("8-9"), mems=parse_cpus("1")), False, ""))
    seen = process.seen()
    assert (seen.id, seen.sandbox_id, seen.pod_uid, seen.name, seen.attempt) == ("c", "a", "a", "app", 2)
    assert (seen.running, seen.exited, seen.cpus, seen.mems) == (True, False, {8, 9}, {1})
    process.state, process.exit_code = "exited", 3
    gone = process.seen()
    assert (gone.running, gone.exited, gone.exit_code, gone.cpus) == (False, True, 3, None)
    assert runtime.remove_sandbox("a") == ["c"]


def test_a_container_without_a_cpuset_runs_everywhere() -> None:
    _, process = running({})
    assert (process.seen().cpus, process.seen().mems) == (frozenset(), None)


def test_the_details_of_a_container_are_those_of_its_request() -> None:
    pod = {"cpu_request": "6", "runtime_handler": "kata", "annotations": {"x": "y"}, "labels": {"l": "m"}}
    _, process = running(pod, cpu_limit="2", memory_limit="1Gi")
    details = process.details(CAPACITY)
    asked = container(pod, cpu_limit="2", memory_limit="1Gi").container
    assert (details.name, details.qos, details.resources) == (asked.name, asked.qos, asked.resources)
    assert (details.labels, details.annotations) == (asked.labels, asked.annotations)
    assert details.pod == replace(asked.pod, runtime_handler="kata")


def test_kubelet_has_written_down_what_it_gave_alone() -> None:
    runtime, asked = SimulatedRuntime(), message({}, **FULL, cpuset="4-5")
    runtime.run_sandbox("a", sandbox())
    runtime.give_alone(asked)
    assert runtime.kubelet_exclusive() == {("a", "app"): {4, 5}}
    process = runtime.create("c1", asked)
    runtime.coming.clear()
    process.give(CpusetUpdate("c1", Placement(cpus=parse_cpus("4-7")), False, ""))
    assert runtime.kubelet_exclusive() == {("a", "app"): {4, 5}}
    process.state = "exited"
    assert runtime.kubelet_exclusive() == {}


def test_as_many_cpus_as_it_asks_for_are_not_what_kubelet_gave() -> None:
    runtime, _ = running({}, **FULL, cpuset="4-5")
    assert runtime.kubelet_exclusive() == {}
