"""CreateContainer while NRI plugins are connected: what they ask for, and what becomes of it when they fail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.pod_cache import PLUGIN_ID
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, pod_config
from tests.functional.conftest import ask, counter
from tests.functional.nri.support import (
    adjust,
    env,
    hosting,
    only,
    plugin,
    plugin_process,
    try_create,
    variables,
)
from tests.functional.support import eventually
from tests.nri.io.host.plugins import NO_VALIDATOR

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_plugins_are_told_the_whole_life_of_a_pod(agent, client, runtime) -> None:
    async with plugin(agent) as told:
        pod = await client.run_pod("p", annotations={"a": "b"})
        container = await client.create(pod, "c", cpu_limit=1000)
        await client.start(container)
        await client.update(container, cpu_shares=512)
        await client.stop(container)
        await client.remove(container)
        await client.stop_pod(pod.id)
        await client.remove_pod(pod.id)
        await told.become(
            "RunPodSandbox",
            "CreateContainer",
            "ValidateContainerAdjustment",
            "PostCreateContainer",
            "StartContainer",
            "PostStartContainer",
            "UpdateContainer",
            "PostUpdateContainer",
            "StopContainer",
            "RemoveContainer",
            "StopPodSandbox",
            "RemovePodSandbox",
        )
        run = (await told.line("RunPodSandbox"))["message"]["pod"]
        assert (run["id"], run["name"], run["annotations"]) == (pod.id, "p", {"a": "b"})
        create = (await told.line("CreateContainer"))["message"]["container"]
        assert (create["id"], create["pod_sandbox_id"], create["name"]) == (container, pod.id, "c")
        # As without plugins: nothing is made twice, nothing is updated but by the client.
        assert len(runtime.calls_of("CreateContainer")) == 1
        assert len(runtime.calls_of("UpdateContainerResources")) == 1


# ---------------------------------------------------------------------- adjustments


async def test_what_only_a_create_can_carry_is_there_and_nothing_else_is_left(
    agent, client, runtime, pod
) -> None:
    mount = {"destination": "/data", "source": "/srv", "type": "bind", "options": ["bind", "ro"]}
    asked = adjust(env=env(ADDED="1"), mounts=[mount], annotations={"k": "v"})
    async with plugin(agent, mask=0xFFF, CreateContainer=asked) as told:
        container = await client.create(pod, "c", cpu_limit=2000, envs=(("OWN", "2"),))
        record = only(runtime)
        assert record.id == container
        assert variables(record) == {"OWN": "2", "ADDED": "1"}
        assert [(m.container_path, m.host_path, m.readonly) for m in record.config.mounts] == [
            ("/data", "/srv", True)
        ]
        assert record.annotations["k"] == "v"
        # The engine's part in it is there, too.
        assert parse_cpus(record.resources.cpuset_cpus)
        assert [row["id"] for row in await ask(agent, "placements")] == [container]
        # Of the container that was made to ask them plugins see nothing; they go on with its id.
        await told.become("CreateContainer", "PostCreateContainer")
        asked_about, made = told.containers()
        assert asked_about["id"] == made["id"] == record.annotations[PLUGIN_ID] != container
        assert made["annotations"] == {**asked_about["annotations"], "k": "v"}
        assert "k" not in asked_about["annotations"]


async def test_a_claim_that_a_plugin_gives_to_a_container_is_one_that_it_has(
    shared_runtime, start_agent
) -> None:
    agent = await start_agent(nri=hosting(), dra={"enabled": True})
    results = [{"request": "cpus", "device": "l3-0", "cpus": 2}]
    about = {"uid": "u", "namespace": "default", "name": "c", "results": results}
    [part] = (await ask(agent, "claim-prepare", **about))["parts"]
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("with-a-claim")
        async with plugin(agent, CreateContainer=adjust(CDI_devices=[{"name": part["cdi"]}])):
            container = await client.create(pod, "c", cpu_limit=2000)
        record = shared_runtime.containers[container]
        given = [
            *[device.name for device in record.config.CDI_devices],
            *[text for key, text in record.config.annotations.items() if key.startswith("cdi.k8s.io/")],
        ]
        assert given == [part["cdi"]]
        assert parse_cpus(record.resources.cpuset_cpus) == parse_cpus(part["cpus"])
        await client.remove_pod(pod.id)


async def test_resources_are_given_to_the_container_that_was_made(agent, client, runtime, pod) -> None:
    resources = {"memory": {"limit": {"value": 123 << 20}}, "cpu": {"shares": {"value": 2048}}}
    async with plugin(agent, CreateContainer=adjust(linux={"resources": resources})):
        container = await client.create(pod, "c", cpu_limit=2000)
        record = only(runtime)
        assert (record.id, record.resources.memory_limit_in_bytes, record.resources.cpu_shares) == (
            container,
            123 << 20,
            2048,
        )
        assert record.resources.cpu_quota == 200_000
        assert len(runtime.calls_of("CreateContainer")) == 1


async def test_a_cpuset_of_a_plugins_is_a_fence_for_the_engine(agent, client, runtime, pod) -> None:
    constraint = "40-47"
    asked = adjust(linux={"resources": {"cpu": {"cpus": constraint}}})
    async with plugin(agent, CreateContainer=[asked, {}]):
        container = await client.create(pod, "c", cpu_limit=2000)
        given = parse_cpus(only(runtime).resources.cpuset_cpus)
        assert given and given <= parse_cpus(constraint)
        [row] = await ask(agent, "placements")
        assert (row["id"], parse_cpus(row["cpus"])) == (container, given)
        # A larger one, and the next container is placed as ever.
        other = await client.create(pod, "d", cpu_limit=2000)
        assert parse_cpus(runtime.cpuset(other))


async def test_other_containers_are_updated_before_the_create_returns(agent, client, runtime, pod) -> None:
    first = await client.create(pod, "first", cpu_limit=1000)
    update = {"container_id": first, "linux": {"resources": {"cpu": {"shares": {"value": 77}}}}}
    nobody = {"container_id": "nobody", "linux": {"resources": {"cpu": {"shares": {"value": 78}}}}}
    async with plugin(agent, CreateContainer={"reply": {"update": [nobody, update]}}):
        await client.create(pod, "second", cpu_limit=1000)
        assert runtime.containers[first].resources.cpu_shares == 77
        assert len(runtime.calls_of("UpdateContainerResources")) == 1


# ---------------------------------------------------------------------- refusals


async def test_two_plugins_in_conflict_leave_nothing_and_the_next_try_may_succeed(
    agent, client, runtime, pod
) -> None:
    async with (
        plugin(agent, "10-foo", CreateContainer=adjust(env=env(A="1"))),
        plugin(agent, "20-bar", mask=0xFFF, CreateContainer=[adjust(env=env(A="2")), {}]) as bar,
    ):
        got = await try_create(client, pod, "c")
        assert got.code == 2
        assert got.details == 'cri-resmgr: plugins "20-bar" and "10-foo" both tried to set Env A'
        assert runtime.containers == {}
        assert await ask(agent, "placements") == []
        await bar.become("CreateContainer", "StopContainer", "RemoveContainer")
        container = await client.create(pod, "c")
        assert (only(runtime).id, variables(only(runtime))) == (container, {"A": "1"})


async def test_what_cri_cannot_express_is_refused_by_field_and_plugin(agent, client, runtime, pod) -> None:
    hook = adjust(rlimits=[{"type": "RLIMIT_NOFILE", "hard": 10, "soft": 10}])
    async with plugin(agent, "10-foo", CreateContainer=hook):
        got = await try_create(client, pod, "c")
        assert got.code == 2
        assert got.details.startswith('cri-resmgr: plugin "10-foo" asked for Rlimits RLIMIT_NOFILE: ')
        assert runtime.containers == {}


async def test_what_is_only_warned_of_is_left_out(start_agent, runtime) -> None:
    agent = await start_agent(nri=hosting(warn=["rlimits"]))
    rlimit = adjust(rlimits=[{"type": "RLIMIT_NOFILE", "hard": 10, "soft": 10}])
    async with CriClient(agent.socket) as client, plugin(agent, "10-foo", CreateContainer=rlimit):
        pod = await client.run_pod("p")
        await client.create(pod, "c")
        await agent.logged("Rlimits RLIMIT_NOFILE")


async def test_an_answer_that_is_another_one_each_time_is_asked_for_once(agent, client, runtime, pod) -> None:
    async with plugin(agent, CreateContainer=adjust(env=env(A="{count}"))) as told:
        for number in range(2):
            container = await client.create(pod, f"c{number}")
            assert variables(runtime.containers[container]) == {"A": str(number)}
        assert told.events().count("CreateContainer") == 2
        # One is made to ask about it, one is made as it is wanted.
        assert len(runtime.calls_of("CreateContainer")) == 4
        assert len(runtime.containers) == 2


async def test_a_missing_required_plugin_refuses_by_name_and_leaves_nothing(start_agent, runtime) -> None:
    agent = await start_agent(nri=hosting(required_plugins=["needed"]))
    async with CriClient(agent.socket) as client:
        config = pod_config("p", uid="u")
        pod = Pod(runtime.add_pod(config), "u", "p", "default", config)
        got = await try_create(client, pod, "c")
        assert got.code == 2 and 'required plugin "needed" not present' in got.details
        assert runtime.containers == {}
        async with plugin(agent, "10-needed"):
            assert await client.create(pod, "c") == only(runtime).id


# ---------------------------------------------------------------------- plugins that fail


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param({"exit": 1}, id="dies in the middle of the request"),
        pytest.param({"close": True}, id="closes its connection in the middle of it"),
        pytest.param({"hang": True}, id="does not answer in time"),
        pytest.param({"raw": "ffff"}, id="answers with garbage"),
    ],
)
async def test_a_plugin_that_fails_takes_no_container_with_it(agent, client, runtime, pod, failure) -> None:
    start = plugin_process if "exit" in failure else plugin
    async with (
        start(agent, "10-bad", mask=NO_VALIDATOR, CreateContainer=failure),
        plugin(agent, "20-good", CreateContainer=adjust(env=env(A="1"))) as good,
    ):
        container = await client.create(pod, "c")
        assert (only(runtime).id, variables(only(runtime))) == (container, {"A": "1"})
        await client.start(container)
        await good.line("PostStartContainer")


async def test_an_error_of_a_plugins_refuses_the_create(agent, client, runtime, pod) -> None:
    async with plugin(agent, "10-no", CreateContainer={"error": "not today", "code": 7}):
        got = await try_create(client, pod, "c")
        assert (got.code, got.details) == (2, 'cri-resmgr: plugin "10-no" failed CreateContainer: not today')
        assert runtime.containers == {}


# ---------------------------------------------------------------------- the runtime's errors


async def test_the_runtimes_own_error_passes_as_it_is(agent, client, runtime, direct, pod) -> None:
    trailers = (("grpc-status-details-bin", b"\x08\x05"),)
    runtime.script("CreateContainer", error=(5, "no such image", trailers))
    async with plugin(agent) as told:
        got, past = await try_create(client, pod, "c"), await try_create(direct, pod, "c")
        assert (got.code, got.details) == (past.code, past.details) == (5, "no such image")
        assert trailers[0] in got.trailing_metadata
        assert told.events() == []
        assert await ask(agent, "placements") == []


async def test_a_create_in_a_sandbox_that_was_stopped_fails_without_an_event(
    agent, client, runtime, pod
) -> None:
    async with plugin(agent) as told:
        await client.stop_pod(pod.id)
        before = told.events()
        got = await try_create(client, pod, "c")
        assert (got.code, "no running task found" in got.details) == (2, True)
        assert told.events() == before == ["StopPodSandbox"]


async def test_resources_that_the_runtime_does_not_update_are_made_with_the_container(
    agent, client, runtime, pod
) -> None:
    runtime.script("UpdateContainerResources", error=(2, "container is not running"))
    asked = adjust(linux={"resources": {"memory": {"limit": {"value": 99 << 20}}}})
    async with plugin(agent, CreateContainer=asked):
        container = await client.create(pod, "c")
        assert (only(runtime).id, only(runtime).resources.memory_limit_in_bytes) == (container, 99 << 20)


# ---------------------------------------------------------------------- what clients see meanwhile


async def test_nobody_sees_the_container_until_plugins_agree(agent, client, runtime, pod, go_on) -> None:
    async with plugin(agent, CreateContainer={"until": str(go_on), **adjust(env=env(A="1"))}) as told:
        events = client.events()
        await runtime.wait_until(lambda: runtime.subscribers == 1)
        creating = asyncio.ensure_future(client.create(pod, "c"))
        await told.line("CreateContainer")
        first = only(runtime).id
        assert await client.list_containers() == []
        assert await client.list_containers(id=first) == []
        status = cri.ContainerStatusRequest(container_id=first).SerializeToString()
        got = await client.call_bytes("/runtime.v1.RuntimeService/ContainerStatus", status)
        assert (got.code, "not found" in got.details) == (5, True)
        # The daemon's own comparison takes it for one that is on its way.
        go_on.touch()
        second = await creating
        assert [item.id for item in await client.list_containers()] == [second]
        assert second != first
        await client.start(second)
        event = await events.next()
        assert (event.container_id, event.container_event_type) == (second, cri.CONTAINER_STARTED_EVENT)
        assert [status.id for status in event.containers_statuses] == [second]
        events.cancel()


async def test_a_client_that_goes_away_leaves_a_whole_container(agent, client, runtime, pod, go_on) -> None:
    async with plugin(agent, CreateContainer={"until": str(go_on), **adjust(env=env(A="1"))}) as told:
        creating = asyncio.ensure_future(client.create(pod, "c", cpu_limit=1000))
        await told.line("CreateContainer")
        creating.cancel()
        go_on.touch()
        await told.line("PostCreateContainer")
        [listed] = await client.list_containers()
        assert (listed.id, variables(only(runtime))) == (only(runtime).id, {"A": "1"})
        await eventually(lambda: _is_bound(agent, listed.id), "bound")


async def _is_bound(agent: Agent, container_id: str) -> bool:
    return any(row["id"] == container_id for row in await ask(agent, "placements"))


async def test_of_two_creates_of_one_name_the_second_fails_as_at_the_runtime(
    agent, client, runtime, pod, go_on
) -> None:
    async with plugin(agent, CreateContainer={"until": str(go_on)}) as told:
        creating = asyncio.ensure_future(client.create(pod, "c"))
        await told.line("CreateContainer")
        got = await try_create(client, pod, "c")
        assert (got.code, "failed to reserve container name" in got.details) == (2, True)
        go_on.touch()
        assert await creating == only(runtime).id


# ---------------------------------------------------------------------- kill -9


async def test_what_a_killed_daemon_has_left_half_made_is_removed(
    agent, client, runtime, pod, direct
) -> None:
    running = await client.create(pod, "running")
    await client.start(running)
    async with plugin(agent, CreateContainer={"hang": True}) as told:
        creating = asyncio.ensure_future(try_create(client, pod, "c"))
        await told.line("CreateContainer")
        await agent.kill()
        assert (await creating).code == 14
    assert len(await direct.list_containers()) == 2
    await agent.start()
    async with CriClient(agent.socket) as kubelet:
        assert [item.id for item in await kubelet.list_containers()] == [running]
        again = await kubelet.create(pod, "c")
        assert set(runtime.containers) == {running, again}
    assert not list(Path(agent.config["state"]["directory"]).glob("nri-unfinished*"))


async def test_a_stop_in_the_middle_ends_in_time_and_is_cleared_up(start_agent, runtime) -> None:
    agent = await start_agent(nri=hosting(request_timeout="1h"), constants={"relay_drain_s": 0.1})
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("p")
        async with plugin(agent, CreateContainer={"hang": True}) as told:
            creating = asyncio.ensure_future(try_create(client, pod, "c", cpu_limit=1000))
            await told.line("CreateContainer")
            assert await agent.terminate() == 0
            got = await creating
            assert (got.code, got.details) == (14, "cri-resmgr is stopping; call again")
        # It may be gone already: this daemon has begun with that itself.
        await agent.start()
        container = await client.create(pod, "c", cpu_limit=1000)
        assert set(runtime.containers) == {container}


async def test_mode_off_asks_no_plugin(agent, client, runtime, pod) -> None:
    async with plugin(agent, CreateContainer={"error": "no"}) as told:
        await ask(agent, "mode", mode="off")
        try:
            assert await client.create(pod, "c") == only(runtime).id
            assert told.events() == []
        finally:
            await ask(agent, "mode", mode="enforce")


async def test_a_request_that_is_decided_twice_counts_once(agent, client, pod) -> None:
    asked = adjust(linux={"resources": {"cpu": {"shares": {"value": 512}}}})
    name = "requests_total{method=CreateContainer,outcome=placed}"
    before = counter(await ask(agent, "status"), name)
    async with plugin(agent, CreateContainer=asked):
        await client.create(pod, "c", cpu_limit=1000)
        status = await ask(agent, "status")
        assert counter(status, name) == before + 1
        assert status["nri"]["host"] == "on"
        assert [told["name"] for told in status["nri"]["plugins"]] == ["test"]


async def test_a_seccomp_policy_reaches_the_runtime_as_a_file(agent, client, runtime, pod) -> None:
    policy = {
        "default_action": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}],
    }
    async with plugin(agent, CreateContainer=adjust(linux={"seccomp_policy": policy})):
        await client.create(pod, "c")
        profile = only(runtime).config.linux.security_context.seccomp
        assert profile.profile_type == cri.SecurityProfile.Localhost
        written = json.loads(Path(profile.localhost_ref).read_text())
        assert written["syscalls"][0]["names"] == ["mkdir"]
        assert Path(profile.localhost_ref).is_relative_to(agent.control.parent)


async def test_the_log_has_one_line_for_a_create_that_says_what_plugins_did(
    agent, client, runtime, pod
) -> None:
    async with plugin(agent, CreateContainer=adjust(env=env(A="1"))):
        container = await client.create(pod, "told-of", cpu_limit=1000)
        # Lines are written in their order: with one of the next create, those of this are there.
        next_one = await client.create(pod, "next")
        await agent.logged(next_one)
        [line] = [line for line in await agent.logged("told-of") if "CreateContainer" in line]
        assert "had it made anew" in line and container in line
        assert runtime.containers[container].annotations[PLUGIN_ID] in line
