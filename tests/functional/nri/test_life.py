"""What plugins are told of pods and containers, in which order, and what they may refuse or change on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient, Pod
from tests.functional.conftest import ask, counter, until
from tests.functional.nri.support import adjust, env, plugin, plugin_process, try_create, try_run, variables
from tests.nri.io.host.plugins import NO_VALIDATOR

pytestmark = pytest.mark.asyncio(loop_scope="module")
SANDBOX_STATUS = "/runtime.v1.RuntimeService/PodSandboxStatus"


async def sandboxes(client: CriClient) -> list[str]:
    listed = await client.call("ListPodSandbox", cri.ListPodSandboxRequest())
    return [item.id for item in listed.items]


# ---------------------------------------------------------------------- RunPodSandbox


async def test_nobody_sees_a_sandbox_or_creates_in_it_until_its_hooks_are_through(
    agent, client, runtime, go_on
) -> None:
    async with plugin(agent, RunPodSandbox={"until": str(go_on)}) as told:
        running = asyncio.ensure_future(client.run_pod("new"))
        await told.line("RunPodSandbox")
        [hidden] = runtime.pods
        assert await sandboxes(client) == []
        asked = cri.PodSandboxStatusRequest(pod_sandbox_id=hidden).SerializeToString()
        assert (await client.call_bytes(SANDBOX_STATUS, asked)).code == 5
        early = Pod(hidden, "u", "new", "default", runtime.pods[hidden].config)
        got = await try_create(client, early, "c")
        assert (got.code, got.details) == (5, f'failed to find sandbox id "{hidden}": not found')
        assert runtime.containers == {}
        go_on.touch()
        pod = await running
        assert await sandboxes(client) == [pod.id] == [hidden]
        assert await client.create(pod, "c") in runtime.containers


async def test_a_refused_pod_leaves_nothing_and_may_be_run_again_at_once(agent, client, runtime) -> None:
    async with (
        plugin(agent, "20-no", RunPodSandbox=[{"error": "not here"}, {}]),
        plugin(agent, "10-first", mask=NO_VALIDATOR) as first,
    ):
        got = await try_run(client, "p")
        assert (got.code, got.details) == (2, 'cri-resmgr: plugin "20-no" failed RunPodSandbox: not here')
        assert runtime.pods == {}
        await first.become("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox")
        assert (await try_run(client, "p")).code == 0
        assert len(runtime.pods) == 1


async def test_the_runtimes_refusal_of_a_pod_passes_and_tells_nobody(agent, client, runtime) -> None:
    runtime.script("RunPodSandbox", error=(14, "network plugin not ready"), times=1)
    async with plugin(agent) as told:
        got = await try_run(client, "p")
        assert (got.code, got.details) == (14, "network plugin not ready")
        assert told.events() == []
        # That code leaves open whether it is made: so it may be, until kubelet has it made once more.
        assert (await ask(agent, "status"))["nri"]["unfinished"] == 1
        assert (await try_run(client, "p")).code == 0
        assert (await ask(agent, "status"))["nri"]["unfinished"] == 0


# ---------------------------------------------------------------------- the end of a pod


async def test_containers_are_stopped_before_the_pods_hook_and_the_pod_after_it(
    agent, client, runtime, pod, go_on
) -> None:
    container = await client.create(pod, "c")
    await client.start(container)
    async with plugin(agent, mask=NO_VALIDATOR, StopPodSandbox={"until": str(go_on)}) as told:
        stopping = asyncio.ensure_future(client.stop_pod(pod.id))
        await told.line("StopPodSandbox")
        assert runtime.containers[container].state == cri.CONTAINER_EXITED
        status = await client.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id))
        assert status.status.state == cri.SANDBOX_READY
        assert runtime.calls_of("StopPodSandbox") == []
        go_on.touch()
        await stopping
        await client.stop_pod(pod.id)
        await told.become("StopContainer", "StopPodSandbox")
        await client.remove_pod(pod.id)
        await told.become("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")


async def test_a_pod_that_is_removed_at_once_has_all_its_events(agent, client, runtime, pod) -> None:
    await client.start(await client.create(pod, "c"))
    async with plugin(agent, mask=NO_VALIDATOR) as told:
        await client.remove_pod(pod.id)
        await told.become("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")


@pytest.mark.parametrize("event", ["RemoveContainer", "RemovePodSandbox"])
async def test_plugins_are_told_of_a_removal_before_the_client_and_no_other_call_waits_for_it(
    agent, client, runtime, pod, go_on, event
) -> None:
    container = await client.create(pod, "c")
    async with plugin(agent, mask=NO_VALIDATOR, **{event: {"until": str(go_on)}}) as told:
        remove = client.remove_pod(pod.id) if event == "RemovePodSandbox" else client.remove(container)
        removing = asyncio.ensure_future(remove)
        await told.line(event)
        assert container not in runtime.containers
        for _ in range(3):
            assert container not in [item.id for item in await client.list_containers()]
        assert not removing.done()
        go_on.touch()
        await removing


@pytest.mark.parametrize("mask", [0x0001, NO_VALIDATOR])
async def test_a_removal_that_the_runtime_refuses_is_told_to_no_plugin_and_one_of_what_is_gone_once(
    agent, client, runtime, pod, mask
) -> None:
    method = "/runtime.v1.RuntimeService/RemovePodSandbox"
    request = cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id).SerializeToString()
    runtime.script("RemovePodSandbox", error=(9, "it is busy"), times=1, when=bool)
    runtime.script("RemovePodSandbox", error=(5, "not found"), times=1, when=bool)
    async with plugin(agent, mask=mask) as told:
        answers = [await client.call_bytes(method, request) for _ in range(3)]
        assert [(got.code, got.details) for got in answers] == [(9, "it is busy"), (5, "not found"), (0, "")]
        await told.become(*(["StopPodSandbox", "RemovePodSandbox"] if mask == NO_VALIDATOR else []))


@pytest.mark.parametrize("how", ["event", "poll"])
async def test_an_exit_is_told_with_its_code_without_any_call(agent, client, runtime, pod, how) -> None:
    container = await client.create(pod, "c")
    await client.start(container)
    async with plugin(agent, mask=NO_VALIDATOR) as told:
        if how == "event":
            events = client.events()
            await runtime.wait_until(lambda: runtime.subscribers == 1)
        runtime.exit_container(container, 3)
        line = await told.line("StopContainer")
        shown = line["message"]["container"]
        assert (shown["id"], shown["state"], shown["exit_code"]) == (container, "CONTAINER_STOPPED", 3)
        if how == "event":
            events.cancel()
        # The call that comes after it tells nothing twice.
        await client.stop(container)
        await client.remove(container)
        await told.become("StopContainer", "RemoveContainer")


# ---------------------------------------------------------------------- StartContainer


async def test_a_refused_start_is_told_as_a_stop_and_blames_no_placement(agent, client, runtime, pod) -> None:
    container = await client.create(pod, "c", cpu_limit=1000)
    before = counter(await ask(agent, "status"), "start_failures_total{next_create=untouched}")
    async with plugin(agent, mask=NO_VALIDATOR, StartContainer={"error": "not now, cpuset"}) as told:
        request = cri.StartContainerRequest(container_id=container).SerializeToString()
        got = await client.call_bytes("/runtime.v1.RuntimeService/StartContainer", request)
        assert (got.code, got.details) == (
            2,
            'cri-resmgr: plugin "10-test" failed StartContainer: not now, cpuset',
        )
        assert runtime.calls_of("StartContainer") == []
        await told.become("StartContainer", "StopContainer")
    status = await ask(agent, "status")
    assert counter(status, "start_failures_total{next_create=untouched}") == before
    assert not [key for key in status["counters"] if "start_failures" in key]


async def test_a_start_that_the_runtime_refuses_is_told_as_a_stop(agent, client, runtime, pod) -> None:
    container = await client.create(pod, "c")
    runtime.script("StartContainer", error=(2, "no such file"))
    async with plugin(agent, mask=NO_VALIDATOR) as told:
        request = cri.StartContainerRequest(container_id=container).SerializeToString()
        got = await client.call_bytes("/runtime.v1.RuntimeService/StartContainer", request)
        assert (got.code, got.details) == (2, "no such file")
        await told.become("StartContainer", "StopContainer")


# ---------------------------------------------------------------------- updates


async def test_an_update_is_what_plugins_make_of_it_and_others_are_updated_too(
    agent, client, runtime, pod
) -> None:
    container = await client.create(pod, "c", cpu_limit=2000)
    other = await client.create(pod, "d", cpu_limit=2000)

    def update(key: str, **resources: Any) -> dict[str, Any]:
        return {"container_id": key, "linux": {"resources": resources}}

    changes = [
        update(container, memory={"limit": {"value": 7 << 20}}),
        update(other, cpu={"shares": {"value": 33}}),
    ]
    async with plugin(agent, mask=NO_VALIDATOR, UpdateContainer={"reply": {"update": changes}}) as told:
        await client.update(container, cpu_shares=512, memory_limit_in_bytes=1 << 30)
        asked = (await told.line("UpdateContainer"))["message"]["linux_resources"]
        assert (asked["cpu"]["shares"]["value"], asked["memory"]["limit"]["value"]) == ("512", str(1 << 30))
        resources = runtime.containers[container].resources
        assert (resources.cpu_shares, resources.memory_limit_in_bytes) == (512, 7 << 20)
        assert resources.cpu_quota == 200_000
        assert runtime.containers[other].resources.cpu_shares == 33
        await told.become("UpdateContainer", "PostUpdateContainer")


async def test_a_refused_update_reaches_nobody(agent, client, runtime, pod) -> None:
    container = await client.create(pod, "c")
    async with plugin(agent, UpdateContainer={"error": "no"}):
        linux = cri.LinuxContainerResources(cpu_shares=9)
        request = cri.UpdateContainerResourcesRequest(container_id=container, linux=linux)
        got = await client.call_bytes(
            "/runtime.v1.RuntimeService/UpdateContainerResources", request.SerializeToString()
        )
        assert (got.code, got.details) == (2, 'cri-resmgr: plugin "10-test" failed UpdateContainer: no')
        assert runtime.calls_of("UpdateContainerResources") == []


async def test_updates_that_nobody_asked_for_are_applied_and_the_failed_ones_told(
    agent, client, runtime, pod
) -> None:
    good, bad, may_fail = [await client.create(pod, name) for name in ("a", "b", "c")]
    runtime.script(
        "UpdateContainerResources",
        error=(2, "no"),
        when=lambda message: bad.encode() in message or may_fail.encode() in message,
    )
    shares = {"resources": {"cpu": {"shares": {"value": 44}}}}
    async with plugin_process(agent, "10-test") as told:
        updates = [{"container_id": key, "linux": shares} for key in (good, bad, "unknown")]
        updates.append({"container_id": may_fail, "linux": shares, "ignore_failure": True})
        # It has answered; that the host has heard it is another matter.
        await until(agent, lambda status: status["nri"]["plugins"])
        told.order("UpdateContainers", update=updates)
        assert (await told.log.line("UpdateContainers answered"))["failed"] == [bad]
        assert runtime.containers[good].resources.cpu_shares == 44


@pytest.mark.parametrize("reason", ["the engine refuses it", "CRI cannot say it"])
async def test_an_update_that_is_refused_here_is_a_failed_one_and_the_runtime_hears_nothing(
    agent, client, runtime, reason
) -> None:
    pod = await client.run_pod("p", annotations={"cri-resmgr.io/l3": "require"})
    container = await client.create(pod, "c", cpu_limit=1000)
    place = runtime.cpuset(container)
    wide = {"cpu": {"quota": {"value": 9_000_000}, "period": {"value": 100_000}, "cpus": "0-127"}}
    asked = wide if reason == "the engine refuses it" else {"memory": {"swappiness": {"value": 7}}}
    update = {"container_id": container, "linux": {"resources": asked}}
    async with plugin_process(agent, "10-test") as told:
        await until(agent, lambda status: status["nri"]["plugins"])
        told.order("UpdateContainers", update=[update])
        assert (await told.log.line("UpdateContainers answered"))["failed"] == [container]
        told.order("UpdateContainers", update=[{**update, "ignore_failure": True}])
        assert (await told.log.line("UpdateContainers answered", 2))["failed"] == []
    assert runtime.calls_of("UpdateContainerResources") == []
    [row] = await ask(agent, "placements")
    assert (row["cpus"], row["cpu_limit_milli"]) == (place, 1000) and runtime.cpuset(container) == place


async def test_an_answer_that_cri_cannot_carry_refuses_the_update_of_a_client_by_name(
    agent, client, runtime, pod
) -> None:
    container = await client.create(pod, "c", cpu_limit=1000)
    resources = {"memory": {"swappiness": {"value": 7}}}
    answer = {"reply": {"update": [{"container_id": container, "linux": {"resources": resources}}]}}
    async with plugin(agent, UpdateContainer=answer):
        linux = cri.LinuxContainerResources(cpu_shares=9)
        request = cri.UpdateContainerResourcesRequest(container_id=container, linux=linux)
        got = await client.call_bytes(
            "/runtime.v1.RuntimeService/UpdateContainerResources", request.SerializeToString()
        )
        said = "cri-resmgr: a plugin asked for MemSwappiness: CRI has no memory swappiness"
        assert (got.code, got.details) == (2, said)
        assert runtime.calls_of("UpdateContainerResources") == []


async def test_a_cpuset_that_a_plugin_sets_on_its_own_is_a_fence(agent, client, runtime, pod) -> None:
    container = await client.create(pod, "c", cpu_limit=1000)
    async with plugin_process(agent, "10-test") as told:
        await until(agent, lambda status: status["nri"]["plugins"])
        told.order(
            "UpdateContainers",
            update=[{"container_id": container, "linux": {"resources": {"cpu": {"cpus": "40-41"}}}}],
        )
        assert (await told.log.line("UpdateContainers answered"))["failed"] == []
        assert runtime.cpuset(container) == "40-41"
        [row] = await ask(agent, "placements")
        assert row["cpus"] == "40-41"


# ---------------------------------------------------------------------- who comes late


async def test_a_late_plugin_learns_of_all_that_lives_and_then_of_what_happens(
    agent, client, runtime, pod
) -> None:
    names = ("created", "running", "exited")
    created, running, exited = [await client.create(pod, name) for name in names]
    await client.start(running)
    await client.start(exited)
    runtime.exit_container(exited, 1)
    async with plugin(agent, mask=NO_VALIDATOR) as told:
        message = (await told.line("Synchronize"))["message"]
        assert [shown["id"] for shown in message["pods"]] == [pod.id]
        states = {shown["id"]: shown["state"] for shown in message["containers"]}
        assert states == {created: "CONTAINER_CREATED", running: "CONTAINER_RUNNING"}
        await client.stop(running)
        await client.remove(exited)
        await told.become("StopContainer", "RemoveContainer")


async def test_a_container_that_was_on_its_way_when_the_plugin_came_is_not_lost(
    agent, client, runtime, pod
) -> None:
    gate = asyncio.Event()
    runtime.script("CreateContainer", hold=gate, times=1)
    creating = asyncio.ensure_future(client.create(pod, "c"))
    await runtime.wait_for_call("CreateContainer")
    async with plugin(agent, mask=NO_VALIDATOR, wait=False) as told:
        await told.line("Configure")
        # Nothing is shown to it yet, whatever else the runtime's list is read for meanwhile.
        assert "Synchronize" not in [line["event"] for line in told.lines()]
        gate.set()
        container = await creating
        message = (await told.line("Synchronize"))["message"]
        assert [shown["id"] for shown in message["containers"]] == [container]
        assert told.events() == []


async def test_a_container_that_is_stopped_while_a_plugins_list_is_on_its_way_is_not_shown_as_running(
    agent, client, runtime, pod
) -> None:
    container = await client.create(pod, "c")
    await client.start(container)
    gate, lists = asyncio.Event(), len(runtime.calls_of("ListContainers"))
    runtime.script("ListContainers", act_before_error=True, hold=gate)
    async with plugin(agent, mask=NO_VALIDATOR, wait=False) as told:
        await told.line("Configure")
        await runtime.wait_until(lambda: len(runtime.calls_of("ListContainers")) > lists)
        await client.stop(container)
        gate.set()
        assert (await told.line("Synchronize"))["message"].get("containers", []) == []
        await client.remove(container)
        assert "StopContainer" not in told.events()


async def test_containers_from_before_during_and_after_a_synchronize_are_shown_once_each(
    agent, client, runtime, pod, go_on
) -> None:
    before = await client.create(pod, "before")
    async with plugin(agent, mask=NO_VALIDATOR, Synchronize={"until": str(go_on)}) as told:
        during = asyncio.ensure_future(client.create(pod, "during"))
        await runtime.wait_until(lambda: len(runtime.containers) == 2)
        assert told.events() == []
        go_on.touch()
        after = await client.create(pod, "after")
        await told.line("PostCreateContainer", 2)
        [synchronized] = [line for line in told.lines() if line["event"] == "Synchronize"]
        shown = [container["id"] for container in synchronized["message"]["containers"]]
        asked = [
            line["message"]["container"]["id"] for line in told.lines() if line["event"] == "CreateContainer"
        ]
        assert (shown, sorted(asked)) == ([before], sorted([await during, after]))


async def test_after_a_restart_of_the_daemon_ends_are_told_of_what_was_there_before(
    agent, client, runtime, pod
) -> None:
    container = await client.create(pod, "c", cpu_limit=1000)
    await client.start(container)
    cpus = runtime.cpuset(container)
    assert await agent.terminate() == 0
    await agent.start()
    async with plugin(agent, mask=NO_VALIDATOR) as told, CriClient(agent.socket) as kubelet:
        message = (await told.line("Synchronize"))["message"]
        assert [shown["id"] for shown in message["containers"]] == [container]
        assert runtime.cpuset(container) == cpus
        await kubelet.remove_pod(pod.id)
        await told.become("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")


async def test_what_went_while_the_runtime_was_away_is_told_when_it_is_back(
    agent, client, runtime, pod
) -> None:
    container = await client.create(pod, "c")
    await client.start(container)
    async with plugin(agent, mask=NO_VALIDATOR) as told:
        await runtime.stop()
        del runtime.containers[container]
        await runtime.start()
        await told.line("RemoveContainer")
        await told.become("StopContainer", "RemoveContainer")


async def test_a_pods_new_size_is_told_and_may_be_refused(agent, client, runtime, pod) -> None:
    method = "/runtime.v1.RuntimeService/UpdatePodSandboxResources"
    resources = cri.LinuxContainerResources(cpu_shares=2048)
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod.id, resources=resources)
    refusal = {"error": "too large"}
    async with plugin(agent, mask=NO_VALIDATOR, UpdatePodSandbox=[refusal, {}]) as told:
        got = await client.call_bytes(method, request.SerializeToString())
        assert (got.code, got.details) == (
            2,
            'cri-resmgr: plugin "10-test" failed UpdatePodSandbox: too large',
        )
        assert runtime.calls_of("UpdatePodSandboxResources") == []
        assert (await client.call_bytes(method, request.SerializeToString())).code == 0
        await told.become("UpdatePodSandbox", "UpdatePodSandbox", "PostUpdatePodSandbox")
        asked = (await told.line("UpdatePodSandbox"))["message"]["linux_resources"]
        assert asked["cpu"]["shares"]["value"] == "2048"


async def test_clients_of_the_older_cri_are_hosted_for_alike(agent, client, runtime) -> None:
    asked = adjust(env=env(A="1"))
    async with (
        CriClient(agent.socket, api="runtime.v1alpha2") as older,
        plugin(agent, mask=NO_VALIDATOR, CreateContainer=asked) as told,
    ):
        container = await older.create(await older.run_pod("p"), "c")
        assert variables(runtime.containers[container]) == {"A": "1"}
        assert {call.api for call in runtime.calls_of("CreateContainer")} == {"runtime.v1alpha2"}
        await told.line("PostCreateContainer")


async def test_many_pods_at_once_are_all_asked_about_and_nothing_is_left_over(agent, client, runtime) -> None:
    resources = {"resources": {"cpu": {"shares": {"value": 300}}}}
    async with (
        plugin(agent, "10-env", mask=NO_VALIDATOR, CreateContainer=adjust(env=env(A="1"))),
        plugin(agent, "20-res", mask=NO_VALIDATOR, CreateContainer=adjust(linux=resources)),
    ):

        async def live(number: int) -> str:
            pod = await client.run_pod(f"pod-{number}")
            container = await client.create(pod, f"c-{number}", cpu_limit=1000)
            await client.start(container)
            return container

        made = await asyncio.gather(*(live(number) for number in range(12)))
        assert set(runtime.containers) == set(made)
        assert all(variables(record) == {"A": "1"} for record in runtime.containers.values())
        assert all(record.resources.cpu_shares == 300 for record in runtime.containers.values())
        assert {row["id"] for row in await ask(agent, "placements")} == set(made)
        status = await ask(agent, "status")
        assert status["nri"]["unfinished"] == 0
        assert [item.id for item in await client.list_containers()] == [*runtime.containers]


@pytest.mark.parametrize(
    "method",
    [
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
        "UpdateContainerResources",
        "StopPodSandbox",
        "ContainerStatus",
    ],
)
async def test_what_is_no_request_is_the_runtimes_to_refuse(agent, client, direct, runtime, method) -> None:
    garbage, full_method = b"\x0a\xff\xff", f"/runtime.v1.RuntimeService/{method}"
    runtime.script(method, error=(13, "grpc: error unmarshalling request"))
    async with plugin(agent, mask=NO_VALIDATOR) as told:
        got, past = (
            await client.call_bytes(full_method, garbage),
            await direct.call_bytes(full_method, garbage),
        )
        assert (got.code, got.details) == (past.code, past.details)
        assert told.events() == []
