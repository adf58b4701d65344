"""The thirteen bugs found by running Intel's cri-resource-manager (W1 to W13), one test or two for each.

The docstrings say what it did. Where it was about exclusive CPUs, a container of kubelet's static CPU manager
stands for their owner.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from policies.machine.cpus import parse_cpus
from tests.agent import kubelet_gives
from tests.cri_client import CriClient, container_config, create_request, pod_config
from tests.functional.conftest import (
    HANG_S,
    ask,
    charged_milli,
    cpus_of,
    create_exclusive,
    resync,
    resyncs,
    rows,
    run_guaranteed,
    until,
)
from tests.functional.support import unlisted
from tests.machines import HYGON_7285_2S, MEMORYLESS_NODE, OFFLINE_CPUS, ONE_CPU, machine

CCX_2 = "8-11,72-75"


async def test_w1_removing_an_old_attempt_keeps_the_exclusive_cpus_of_the_new_one(
    runtime, client, agent
) -> None:
    """Its records were keyed by pod and name: kubelet's clean-up of attempt 0 freed the CPUs of attempt 2."""
    pod = await run_guaranteed(client, "db")
    attempts = []
    for attempt in range(3):
        attempts.append(await create_exclusive(client, pod, "db", "8-9,72-73", attempt))
        await client.start(attempts[-1])
        if attempt < 2:
            await client.stop(attempts[-1])
    await client.remove(attempts[0])
    web = await client.run_pod("web")
    victim = await client.create(web, "victim", cpu_request=500, cpuset=CCX_2)
    assert cpus_of(runtime, victim) == parse_cpus("10-11,74-75")
    await client.remove(attempts[1])
    assert runtime.calls_of("UpdateContainerResources") == []
    await client.remove(attempts[2])
    kubelet_gives(agent.folder, pod.uid, "db", "")
    await resync(agent, runtime)
    await runtime.wait_until(lambda: cpus_of(runtime, victim) == parse_cpus(CCX_2))


async def test_w1_removing_an_old_attempt_keeps_the_charge_of_the_new_one(runtime, client, agent) -> None:
    """The same for a container on shared CPUs."""
    pod = await client.run_pod("web")
    attempts = []
    for attempt in range(3):
        attempts.append(await client.create(pod, "app", attempt=attempt, cpu_request=1500, cpu_limit=2000))
        await client.start(attempts[-1])
        if attempt < 2:
            await client.stop(attempts[-1])
    assert len({runtime.cpuset(container_id) for container_id in attempts}) == 1
    await client.remove(attempts[0])
    await client.remove(attempts[1])
    row = (await rows(agent))["app"]
    assert (row["id"], row["state"], row["attempt"]) == (attempts[2], "running", 2)
    assert charged_milli(await ask(agent, "status")) == 1500


async def test_w2_who_loses_all_its_cpus_gets_others_and_never_an_empty_cpuset(runtime, client) -> None:
    """It sent "" to those whose pool was empty, for containerd no change: they stayed where they were."""
    pod = await client.run_pod("web")
    victims = [await client.create(pod, name, cpu_request=500, cpu_limit=2000) for name in ("a", "b")]
    victims.append(await client.create(pod, "c"))
    taken = cpus_of(runtime, victims[0])
    assert cpus_of(runtime, victims[2]) > taken
    owner = await create_exclusive(
        client, await run_guaranteed(client, "db"), "db", runtime.cpuset(victims[0])
    )
    assert cpus_of(runtime, owner) == taken
    await client.start(owner)
    for victim in victims:
        assert cpus_of(runtime, victim) and not cpus_of(runtime, victim) & taken
    assert all(call.message.linux.cpuset_cpus for call in runtime.calls_of("UpdateContainerResources"))


async def test_w2_where_no_cpu_is_left_nothing_is_sent(runtime, start_agent) -> None:
    """The end of it: every CPU of the machine is somebody's own."""
    agent = await start_agent(ONE_CPU)
    async with CriClient(agent.socket) as client:
        victim = await client.create(await client.run_pod("web"), "victim", cpu_request=100)
        await create_exclusive(client, await run_guaranteed(client, "db"), "db", "0")
        late = await client.create(await client.run_pod("late"), "late", cpu_request=100)
    assert (runtime.cpuset(victim), runtime.cpuset(late)) == ("0", "")
    assert runtime.calls_of("UpdateContainerResources") == []
    assert (await ask(agent, "status"))["invariants"] == []


async def test_w3_a_create_that_hangs_holds_up_no_other_call(runtime, client) -> None:
    """One lock was held across calls to the runtime, and even Version waited for it."""
    pod = await client.run_pod("web")
    other = await client.create(pod, "other", cpu_request=100)
    release = asyncio.Event()
    runtime.script("CreateContainer", hold=release)
    held = asyncio.ensure_future(client.create(pod, "held", cpu_request=100))
    call = await runtime.wait_for_call("CreateContainer", 2)
    questions = (
        client.call("Version", cri.VersionRequest()),
        client.call("Status", cri.StatusRequest()),
        client.status(other),
        client.call("ListPodSandbox", cri.ListPodSandboxRequest()),
        client.stop(other),
    )
    await asyncio.wait_for(asyncio.gather(*questions), HANG_S)
    assert not call.finished
    release.set()
    assert await held


async def test_w4_the_fiftieth_create_updates_nobody(runtime, client) -> None:
    """Every create and stop sent an update to every shared container, though nothing had changed."""
    pods = [await client.run_pod(f"web-{number}") for number in range(50)]
    ids = [await client.create(pod, "app", cpu_request=100, cpu_limit=500) for pod in pods]
    for container_id in ids[::2]:
        await client.start(container_id)
        await client.stop(container_id)
        await client.remove(container_id)
    assert runtime.calls_of("UpdateContainerResources") == []


async def test_w5_a_resize_reaches_the_runtime_and_no_later_update_undoes_it(runtime, client) -> None:
    """It said OK and did nothing; its own updates then sent the limits of the creation again."""
    pod = await client.run_pod("web")
    app = await client.create(pod, "app", cpu_request=500, cpu_limit=2000, memory_limit=1 << 30)
    await client.update(
        app, cpu_shares=2048, cpu_quota=300_000, cpu_period=100_000, memory_limit_in_bytes=2 << 30
    )
    first, *_ = runtime.cpuset(app).split(",")
    owner = await create_exclusive(client, await run_guaranteed(client, "db"), "db", first)
    await client.start(owner)
    assert not cpus_of(runtime, app) & cpus_of(runtime, owner)
    resources = runtime.containers[app].resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes) == (
        2048,
        300_000,
        2 << 30,
    )


async def test_w6_environment_mounts_and_what_nobody_knows_arrive_as_sent(runtime, client) -> None:
    """It rebuilt the request from its own model: order at random, id mappings and unknown fields gone."""
    pod = await client.run_pod("web")
    mapping = cri.IDMapping(host_id=100_000, container_id=0, length=65_536)
    mounts = [
        cri.Mount(
            container_path=path,
            host_path="/h",
            uidMappings=[mapping],
            gidMappings=[mapping],
            recursive_read_only=True,
        )
        for path in ("/z", "/b", "/a", "/y")
    ]
    envs = tuple((name, "value") for name in ("Z", "A", "Y", "B"))
    config = container_config("app", cpu_request=500, cpu_limit=2000, envs=envs, mounts=tuple(mounts))
    config.mounts[0].CopyFrom(cri.Mount.FromString(config.mounts[0].SerializeToString() + b"\xc2\x3e\x03new"))
    sent = create_request(pod, config).SerializeToString()
    reply = await client.call_bytes("/runtime.v1.RuntimeService/CreateContainer", sent)
    record = runtime.containers[cri.CreateContainerResponse.FromString(reply.messages[0]).container_id]
    assert record.create_bytes.startswith(sent) and record.resources.cpuset_cpus
    assert list(record.config.envs) == list(config.envs)
    assert list(record.config.mounts) == list(config.mounts)


@pytest.mark.parametrize("name", [MEMORYLESS_NODE, OFFLINE_CPUS])
async def test_w7_nodes_without_memory_and_cpus_that_are_off_are_served(runtime, start_agent, name) -> None:
    """It did not start: "Unknown memory type for node", "sockets share NUMA node(s)"."""
    data = machine(name)
    agent = await start_agent(name)
    status = await ask(agent, "status")
    assert (status["mode"], status["degraded"]) == ("enforce", {})
    async with CriClient(agent.socket) as client:
        for number in range(8):
            pod = await client.run_pod(f"web-{number}")
            app = await client.create(pod, f"app-{number}", cpu_limit=2000, memory_limit=1 << 30)
            resources = runtime.containers[app].resources
            assert parse_cpus(resources.cpuset_cpus) and not parse_cpus(resources.cpuset_cpus) & data.offline
            assert parse_cpus(resources.cpuset_mems) and all(
                data.memory[n] for n in parse_cpus(resources.cpuset_mems)
            )


async def test_w8_a_corrupt_state_file_is_set_aside_and_rebuilt(runtime, agent, client) -> None:
    """It exited with 1, for ever."""
    app = await client.create(await client.run_pod("web"), "app", cpu_request=500, cpu_limit=2000)
    await client.start(app)
    await agent.kill()
    for file in agent.state.glob("state.db*"):
        file.write_bytes(b"no database" * 1000)
    await agent.start()
    await until(agent, lambda found: [row["id"] for row in found] == [app], "placements")
    assert list(agent.state.glob("*aside*"))
    assert runtime.calls_of("UpdateContainerResources") == []


async def test_w8_a_runtime_with_much_to_tell_is_listened_to(runtime, start_agent) -> None:
    """A reply of more than 4 MiB was RESOURCE_EXHAUSTED, at the start and for kubelet."""
    pod = runtime.add_pod(pod_config("web"))
    for number in range(6):
        runtime.add_container(pod, container_config(f"app-{number}", annotations={"long": "x" * (1 << 20)}))
    agent = await start_agent()
    assert len(await rows(agent)) == 6
    async with CriClient(agent.socket) as client:
        assert len(await client.list_containers()) == 6


async def test_w9_without_its_state_the_daemon_takes_over_what_runs_as_it_runs(
    runtime, agent, client
) -> None:
    """A lost cache made Guaranteed containers shared, with shares of 2, and forgot the newest."""
    pod = await run_guaranteed(client, "db")
    owner = await create_exclusive(client, pod, "db", "8-9,72-73")
    web = await client.run_pod("web")
    app = await client.create(web, "app", cpu_request=500, cpu_limit=2000)
    for container_id in (owner, app):
        await client.start(container_id)
    before = {i: record.resources.SerializeToString() for i, record in runtime.containers.items()}
    await agent.kill()
    for file in agent.state.glob("state.db*"):
        file.unlink()
    await agent.start()
    await until(agent, lambda status: resyncs(status) > 0)
    assert set(await rows(agent)) == {"db", "app"}
    assert {i: record.resources.SerializeToString() for i, record in runtime.containers.items()} == before
    async with CriClient(agent.socket) as again:
        late = await again.create(web, "late", cpu_request=500, cpuset=CCX_2)
    assert cpus_of(runtime, late) == parse_cpus("10-11,74-75")


async def test_w10_memory_is_that_of_the_cpus_given(runtime, client) -> None:
    """A container on the CPUs of one node got the memory of four: the pool's, not the grant's."""
    data = machine(HYGON_7285_2S)
    for number in range(4):
        pod = await run_guaranteed(client, f"db-{number}")
        app = await client.create(pod, "app", cpu_limit=16_000, memory_limit=8 << 30, qos="guaranteed")
        nodes = {cpu.numa for cpu in data.cpus if cpu.cpu in cpus_of(runtime, app)}
        assert len(nodes) == 1
        assert parse_cpus(runtime.containers[app].resources.cpuset_mems) == nodes


async def test_w11_burstable_is_burstable_in_kinds_nested_cgroups(agent, client) -> None:
    """It did not know nested cgroup roots, and took Burstable for Guaranteed."""
    root = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
    parent = f"{root}/kubelet-kubepods-burstable-podu1.slice"
    pod = await client.run_pod("web", uid="u1", cgroup_parent=parent)
    await client.create(pod, "app", cpu_limit=2000, memory_limit=1 << 30)
    assert (await rows(agent))["app"]["qos"] == "burstable"


async def test_w12_the_runtimes_error_is_the_clients_error(runtime, client) -> None:
    """Every error of CreateContainer became UNKNOWN."""
    pod = await client.run_pod("web")
    runtime.script("CreateContainer", error=(8, "disk quota", (("retry-after", "1"),)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.create(pod, "app", cpu_request=500)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "disk quota")
    assert ("retry-after", "1") in tuple(caught.value.trailing_metadata())


async def test_w12_after_kubelets_deadline_the_container_that_exists_keeps_its_cpus(
    runtime, agent, client
) -> None:
    """The deadline released the grant, while the runtime went on and created the container."""
    pod = await client.run_pod("web")
    runtime.script("CreateContainer", act_before_error=True, then_hang=True, times=1)
    with unlisted(runtime):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(pod, "app", cpu_request=1500, cpu_limit=2000, timeout=3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        [existing] = runtime.containers
        assert charged_milli(await until(agent, lambda status: status["in_doubt"] == 1)) == 1500
    status = await resync(agent, runtime)
    assert (status["in_doubt"], charged_milli(status)) == (0, 1500)
    assert (await rows(agent))["app"]["id"] == existing


async def test_w13_whole_cores_are_given_and_reserved(runtime, start_agent) -> None:
    """Lone threads were given away, their siblings stayed shared; the sibling of a reserved CPU did too."""
    agent = await start_agent(policy={"ReservedResources": {"CPU": "1"}})
    assert (await ask(agent, "status"))["reserved"] == "0,64"
    core_of = {cpu.cpu: (cpu.socket, cpu.core) for cpu in machine(HYGON_7285_2S).cpus}
    threads_of: dict[tuple[int, int], set[int]] = {}
    for cpu, core in core_of.items():
        threads_of.setdefault(core, set()).add(cpu)
    async with CriClient(agent.socket) as client:
        for number in range(1, 40, 3):
            pod = await client.run_pod(f"web-{number}")
            app = await client.create(pod, f"app-{number}", cpu_request=500, cpu_limit=number * 1000)
            cpus = cpus_of(runtime, app)
            assert cpus and not cpus & {0, 64}
            assert all(threads_of[core_of[cpu]] <= cpus for cpu in cpus)
