"""UpdateContainerResources: the client's own, and ours to those who must make room or may grow again."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from policies.machine.cpus import parse_cpus
from tests.agent import kubelet_gives
from tests.cri_client import CriClient
from tests.functional.conftest import (
    UPDATE,
    ask,
    charged_milli,
    counter,
    cpus_of,
    create_exclusive,
    resync,
    rows,
    run_guaranteed,
    until,
)

UNKNOWN = b"\xc2\x3e\x03new"


def cpuset_delta(cpus: str) -> bytes:
    linux = cri.LinuxContainerResources(cpuset_cpus=cpus)
    return cri.UpdateContainerResourcesRequest(linux=linux).SerializeToString()


# ---------------------------------------------------------------------- the client's updates


async def test_new_limits_reach_the_runtime_with_our_cpuset_behind_them(runtime, agent, client) -> None:
    app = await client.create(await client.run_pod("web"), "app", cpu_request=500, cpu_limit=2000)
    linux = cri.LinuxContainerResources(
        cpu_shares=1024, cpu_quota=400_000, cpu_period=100_000, memory_limit_in_bytes=3 << 30, oom_score_adj=7
    )
    linux = cri.LinuxContainerResources.FromString(linux.SerializeToString() + UNKNOWN)
    request = cri.UpdateContainerResourcesRequest(container_id=app, linux=linux, annotations={"a": "b"})
    sent = request.SerializeToString() + UNKNOWN
    assert (await client.call_bytes(UPDATE, sent)).code == 0
    [call] = runtime.calls_of("UpdateContainerResources")
    assert call.request == (sent + cpuset_delta(runtime.cpuset(app)),)
    resources = runtime.containers[app].resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes) == (
        1024,
        400_000,
        3 << 30,
    )
    row = (await rows(agent))["app"]
    assert (row["cpu_request_milli"], row["cpu_limit_milli"]) == (1000, 4000)
    assert charged_milli(await ask(agent, "status")) == 1000


@pytest.mark.parametrize(
    ("cpus", "level", "count"), [(3, "ccx", 8), (12, "numa", 16), (20, "numa+ccx", 24), (100, "machine", 128)]
)
async def test_a_container_climbs_to_the_rung_of_its_new_limit(
    runtime, agent, client, cpus, level, count
) -> None:
    app = await client.create(await client.run_pod("web"), "app", cpu_request=500, cpu_limit=2000)
    before = cpus_of(runtime, app)
    await client.update(app, cpu_quota=cpus * 100_000, cpu_period=100_000)
    assert (await rows(agent))["app"]["level"] == level
    assert len(cpus_of(runtime, app)) == count and cpus_of(runtime, app) >= before


@pytest.mark.parametrize("code", [2, 8, 9, 13])
async def test_what_the_runtime_refuses_has_not_happened(runtime, agent, client, code) -> None:
    pod = await client.run_pod("web")
    app = await client.create(pod, "app", cpu_request=500, cpu_limit=2000)
    await client.create(pod, "other", cpu_request=500, cpu_limit=2000)
    before, domains = await ask(agent, "placements"), (await ask(agent, "status"))["domains"]
    runtime.script("UpdateContainerResources", error=(code, "no"))
    place = cpus_of(runtime, app)
    with pytest.raises(grpc.aio.AioRpcError, match="no"):
        await client.update(app, cpu_shares=8192, cpu_quota=1_200_000, cpu_period=100_000)
    assert await ask(agent, "placements") == before
    assert (await ask(agent, "status"))["domains"] == domains
    # What of a refused update was made all the same, a runtime does not say: the place of before is told again.
    await runtime.wait_until(lambda: len(runtime.calls_of("UpdateContainerResources")) == 2)
    assert cpus_of(runtime, app) == place


async def test_a_cpuset_in_an_update_is_a_fence(runtime, agent, client) -> None:
    app = await client.create(await client.run_pod("web"), "app", cpu_request=500, cpu_limit=2000)
    await client.update(app, cpuset_cpus="20-31,84-95")
    assert cpus_of(runtime, app) == parse_cpus("20-23,84-87")
    assert (await rows(agent))["app"]["cpus"] == "20-23,84-87"
    await client.update(app, cpuset_cpus="21-22")
    assert cpus_of(runtime, app) == parse_cpus("21-22")


async def test_an_update_for_a_container_nobody_knows_passes_as_it_is(runtime, client) -> None:
    sent = cri.UpdateContainerResourcesRequest(
        container_id="nobody", linux=cri.LinuxContainerResources(cpu_shares=2, cpuset_cpus="0")
    ).SerializeToString()
    reply = await client.call_bytes(UPDATE, sent)
    assert reply.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert runtime.calls_of("UpdateContainerResources")[0].request == (sent,)


# ---------------------------------------------------------------------- ours


async def test_others_shrink_before_the_start_of_an_exclusive_one_and_grow_after_its_removal(
    runtime, agent, client
) -> None:
    pod = await client.run_pod("web")
    near = [await client.create(pod, name, cpu_request=100, cpu_limit=2000) for name in ("a", "b")]
    far = await client.create(await client.run_pod("far"), "c", cpu_request=100, cpu_limit=2000)
    whole = runtime.cpuset(near[0])
    assert [runtime.cpuset(i) for i in near] == [whole, whole] and runtime.cpuset(far) != whole
    own = whole.split(",")[0]
    owner = await create_exclusive(client, await run_guaranteed(client, "db"), "db", own)
    await client.start(owner)
    shrinks, create = runtime.calls_of("UpdateContainerResources"), runtime.calls_of("CreateContainer")[-1]
    assert sorted(call.message.container_id for call in shrinks) == sorted(near)
    [start] = runtime.calls_of("StartContainer")
    assert all(call.finished < start.sequence for call in shrinks)
    rest = parse_cpus(whole) - parse_cpus(own)
    assert all(call.message.linux == cri.LinuxContainerResources(cpuset_cpus="64-67") for call in shrinks)
    assert [cpus_of(runtime, i) for i in near] == [rest, rest]
    # The create itself is kubelet's to decide: it went through as it was.
    assert create.message.config.linux.resources.cpuset_cpus == own
    await client.remove(owner)
    kubelet_gives(agent.folder, "uid-of-db", "db", "")
    await resync(agent, runtime)
    await runtime.wait_until(lambda: [runtime.cpuset(i) for i in near] == [whole, whole])
    [removal] = runtime.calls_of("RemoveContainer")
    grows = runtime.calls_of("UpdateContainerResources")[2:]
    assert len(grows) == 2 and all(call.sequence > removal.finished for call in grows)


async def test_others_grow_only_after_the_create_that_leaves_them_more(runtime, client) -> None:
    victim = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=2000)
    assert runtime.cpuset(victim) == "0-3,64-67"
    pod = await run_guaranteed(client, "db")
    await create_exclusive(client, pod, "db", "0-3")
    await runtime.wait_until(lambda: runtime.cpuset(victim) == "64-67")
    # The next attempt has fewer CPUs; nobody has said that the one before has ended.
    await create_exclusive(client, pod, "db", "0-1", attempt=1)
    await runtime.wait_until(lambda: runtime.cpuset(victim) == "2-3,64-67")
    create, grow = runtime.calls_of("CreateContainer")[-1], runtime.calls_of("UpdateContainerResources")[-1]
    assert create.finished < grow.sequence


async def test_what_others_left_for_an_exclusive_create_that_fails_they_have_again_once_kubelet_says_so(
    runtime, agent, client
) -> None:
    victim = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=2000)
    whole = runtime.cpuset(victim)
    runtime.script("CreateContainer", error=(8, "no space"))
    with pytest.raises(grpc.aio.AioRpcError, match="no space"):
        await create_exclusive(client, await run_guaranteed(client, "db"), "db", whole.split(",")[0])
    await runtime.wait_until(
        lambda: runtime.cpuset(victim) == "64-67"
    )  # kubelet tries again with the same CPUs
    kubelet_gives(agent.folder, "uid-of-db", "db", "")
    # The next request that comes with a cpuset has kubelet's file looked at.
    await client.update(victim, cpuset_cpus=whole)
    assert runtime.cpuset(victim) == whole


async def test_a_failed_update_fails_no_create_and_is_sent_again(runtime, agent, client) -> None:
    victim = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=2000)
    runtime.script("UpdateContainerResources", error=(2, "device busy"), times=2)
    own = runtime.cpuset(victim).split(",")[0]
    owner = await create_exclusive(client, await run_guaranteed(client, "db"), "db", own)
    status = await until(agent, lambda status: counter(status, "updates_total{result=failed}") == 1)
    assert cpus_of(runtime, owner) & cpus_of(runtime, victim) and status["updates_waiting"] == 1
    await resync(agent, runtime)
    await until(agent, lambda status: counter(status, "updates_total{result=failed}") == 2)
    await resync(agent, runtime)
    status = await until(agent, lambda status: status["updates_waiting"] == 0)
    assert counter(status, "updates_total{result=retried}") == 2
    assert not cpus_of(runtime, owner) & cpus_of(runtime, victim)


async def test_a_failed_update_is_not_sent_again_once_the_clients_own_has_carried_a_newer_cpuset(
    runtime, agent, client
) -> None:
    victim = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=2000)
    runtime.script("UpdateContainerResources", error=(2, "device busy"), times=1)
    await create_exclusive(client, await run_guaranteed(client, "db"), "db", "0-3")
    await until(agent, lambda status: counter(status, "updates_total{result=failed}") == 1)
    assert (runtime.cpuset(victim), (await ask(agent, "status"))["updates_waiting"]) == ("0-3,64-67", 1)
    await client.update(victim, cpu_quota=1_000_000, cpu_period=100_000)
    assert runtime.cpuset(victim) == (await rows(agent))["a"]["cpus"] == "4-7,64-71"
    await resync(agent, runtime)
    await until(agent, lambda status: status["updates_waiting"] == 0)
    assert runtime.cpuset(victim) == "4-7,64-71"
    assert len(runtime.calls_of("UpdateContainerResources")) == 2


async def test_the_clients_update_overtakes_one_of_ours_that_hangs(runtime, start_agent) -> None:
    agent = await start_agent(constants={"placement_shrink_wait_s": 0.05})
    async with CriClient(agent.socket) as client:
        victim = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=2000)
        release = asyncio.Event()
        runtime.script("UpdateContainerResources", hold=release, times=1)
        await create_exclusive(client, await run_guaranteed(client, "db"), "db", "0-3")
        ours = await runtime.wait_for_call("UpdateContainerResources")
        await client.update(victim, cpu_quota=1_000_000, cpu_period=100_000)
        release.set()
        await runtime.wait_until(lambda: bool(ours.finished))
        # Ours came last, with the older cpuset; the newer one is sent once more.
        await until(agent, lambda status: status["updates_waiting"] == 0)
        assert runtime.cpuset(victim) == (await rows(agent))["a"]["cpus"] == "4-7,64-71"


async def test_an_update_for_a_container_that_has_ended_is_not_sent_again(runtime, agent, client) -> None:
    pod = await client.run_pod("web")
    stopped, exited = [await client.create(pod, name, cpu_request=100, cpu_limit=2000) for name in ("a", "b")]
    runtime.script("UpdateContainerResources", error=(2, "device busy"), times=2)
    await create_exclusive(client, await run_guaranteed(client, "db"), "db", "0-3")
    await until(agent, lambda status: counter(status, "updates_total{result=failed}") == 2)
    await client.stop(stopped)
    runtime.exit_container(exited, 1)
    assert (await ask(agent, "status"))["updates_waiting"] == 1
    await resync(agent, runtime)
    await until(agent, lambda status: status["updates_waiting"] == 0)


async def test_an_update_for_a_container_that_is_gone_is_not_sent_again(runtime, agent, client) -> None:
    victim = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=2000)
    own = runtime.cpuset(victim).split(",")[0]
    del runtime.containers[victim]
    await create_exclusive(client, await run_guaranteed(client, "db"), "db", own)
    await runtime.wait_for_call("UpdateContainerResources")
    await until(agent, lambda status: status["updates_waiting"] == 0)
    await resync(agent, runtime)
    assert len(runtime.calls_of("UpdateContainerResources")) == 1
    assert set(await rows(agent)) == {"db"}


async def test_a_cpuset_somebody_else_changed_is_repaired_once(runtime, agent, client) -> None:
    app = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=2000)
    ours = runtime.cpuset(app)
    runtime.set_cpuset(app, "0-127")
    await resync(agent, runtime)
    await runtime.wait_until(lambda: runtime.cpuset(app) == ours)
    await until(agent, lambda status: status["updates_waiting"] == 0)
    await resync(agent, runtime)
    assert len(runtime.calls_of("UpdateContainerResources")) == 1
