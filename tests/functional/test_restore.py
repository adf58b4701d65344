"""Pods made from a checkpoint: their containers come with RestorePod's reply and are placed before they start."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import grpc
import pytest
import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient, cgroup_parent, container_config, pod_config
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import StartAgent, ask, cpus_of, rows, until
from tests.functional.support import compared, cpusets, eventually, run_pod_with, updates

RESTORE = "/runtime.v1.RuntimeService/RestorePod"
BIG: dict[str, Any] = {"cpu_limit": 6000, "memory_limit": 1 << 30}


def request(name: str = "web") -> cri.RestorePodRequest:
    """A Guaranteed pod of two containers."""
    uid = f"uid-{name}"
    return cri.RestorePodRequest(
        checkpoint_path="/var/lib/kubelet/pod-checkpoints/web",
        config=pod_config(name, uid=uid, cgroup_parent=cgroup_parent("guaranteed", uid)),
        container_configs=[
            container_config("big", attempt=2, qos="guaranteed", **BIG),
            container_config("small", cpu_limit=500, memory_limit=1 << 30, qos="guaranteed"),
        ],
    )


async def restore(client: CriClient, timeout_s: Optional[float] = None) -> dict[str, str]:
    """The ids of the containers by name."""
    reply = await client.call("RestorePod", request(), timeout=timeout_s)
    return {item.name: item.container_id for item in reply.restored_containers}


def ids(runtime: FakeRuntime) -> dict[str, str]:
    return {record.name: key for key, record in runtime.containers.items()}


def is_alone(runtime: FakeRuntime, container_id: str) -> bool:
    """Whether no other container at the runtime has any of its CPUs."""
    others = [cpus_of(runtime, key) for key in runtime.containers if key != container_id]
    return cpus_of(runtime, container_id).isdisjoint(frozenset().union(*others))


@pytest_asyncio.fixture
async def agent(start_agent: StartAgent) -> Agent:
    return await start_agent(policy={"Active": "topology-aware"})


@pytest_asyncio.fixture
async def wide(runtime: FakeRuntime, agent: Agent, client: CriClient) -> str:
    """A container that shares all CPUs."""
    _, container_id = await run_pod_with(client, "wide", cpu_limit=120_000, cpu_request=1000)
    return container_id


async def test_restored_containers_have_their_places_when_the_client_hears_of_them(
    runtime, agent, client, wide
) -> None:
    made = await restore(client)
    assert made == {name: key for name, key in ids(runtime).items() if name != "wide"}
    assert len(cpus_of(runtime, made["big"])) == 6 and is_alone(runtime, made["big"])
    found = await rows(agent)
    for name in ("big", "small"):
        row = found[name]
        assert (row["id"], row["cpus"]) == (made[name], runtime.cpuset(made[name]))
        assert (row["state"], row["stance"]) == ("created", "placed")
    assert found["big"]["attempt"] == 2
    before = cpusets(runtime)
    for container_id in made.values():
        await client.start(container_id)
    status = await compared(agent)
    assert (status["invariants"], status["degraded"]) == ([], {})
    assert cpusets(runtime) == before
    assert (await rows(agent))["big"]["state"] == "running"


async def test_the_request_and_the_reply_pass_as_they_are(runtime, agent, client) -> None:
    unknown = b"\xfa\x7f\x03new"
    reply = cri.RestorePodResponse(pod_sandbox_id="p").SerializeToString() + unknown
    runtime.script("RestorePod", reply=reply, trailing_metadata=(("x-t", "1"),))
    sent = request().SerializeToString() + unknown
    got = await client.call_bytes(RESTORE, sent)
    assert (got.messages, got.code, dict(got.trailing_metadata)["x-t"]) == ((reply,), 0, "1")
    assert runtime.calls_of("RestorePod")[0].request == (sent,)


@pytest.mark.parametrize("how", ["lost", "with an unknown name"])
async def test_what_the_reply_does_not_tell_is_placed_by_the_next_look(
    runtime, agent, client, wide, how
) -> None:
    if how == "lost":
        runtime.script("RestorePod", act_before_error=True, then_hang=True)
        restoring = asyncio.ensure_future(restore(client))
        await runtime.wait_until(lambda: "small" in ids(runtime))
        # Nothing is adopted as it is while the reply may still come.
        assert set((await rows(agent)).keys()) == {"wide"}
        await compared(agent)
        assert set((await rows(agent)).keys()) == {"wide"}
        restoring.cancel()
    else:
        strange = cri.RestorePodResponse(pod_sandbox_id="p")
        strange.restored_containers.add(name="other", container_id="c")
        runtime.script("RestorePod", act_before_error=True, reply=strange.SerializeToString())
        assert await restore(client) == {"other": "c"}
    found = {row["container"]: row for row in await until(agent, lambda rows: len(rows) == 3, "placements")}
    assert (found["big"]["stance"], found["big"]["state"]) == ("placed", "created")
    big = ids(runtime)["big"]
    await eventually(
        lambda: len(cpus_of(runtime, big)) == 6 and is_alone(runtime, big), "it is told its place"
    )


async def test_a_runtime_that_will_not_be_told_before_the_start_is_told_later_and_explain_says_so(
    runtime, start_agent
) -> None:
    agent = await start_agent(policy={"Active": "topology-aware"}, constants={"placement_shrink_wait_s": 0.1})
    answering = asyncio.Event()
    runtime.script("UpdateContainerResources", hold=answering)
    async with CriClient(agent.socket) as client:
        made = await restore(client)
    explained = (await ask(agent, "explain", container=made["big"]))["containers"][0]
    assert explained["why"].endswith("; the runtime could not be told before its start")
    answering.set()
    await until(agent, lambda status: status["updates_waiting"] == 0)
    assert cpus_of(runtime, made["big"]) == parse_cpus(explained["cpus"])


async def test_an_update_that_fails_never_fails_the_call_and_is_made_again(runtime, agent, client) -> None:
    runtime.script("UpdateContainerResources", error=(grpc.StatusCode.UNKNOWN, "no"))
    made = await restore(client)
    assert [runtime.cpuset(key) for key in made.values()] == ["", ""]
    assert "could not be told" in (await rows(agent))["small"]["why"]
    runtime.scripts.clear()
    await compared(agent)
    await until(agent, lambda status: status["updates_waiting"] == 0)
    found = await rows(agent)
    assert all(runtime.cpuset(key) == found[name]["cpus"] for name, key in made.items())


async def test_a_restore_that_the_runtime_refuses_leaves_nothing(runtime, agent, client) -> None:
    runtime.script("RestorePod", error=(grpc.StatusCode.FAILED_PRECONDITION, "not compatible"), times=1)
    got = await client.call_bytes(RESTORE, request().SerializeToString())
    assert (got.code, got.details) == (9, "not compatible")
    assert await ask(agent, "placements") == []
    assert "big" in await restore(client)


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_nothing_is_written_unless_enforcing(runtime, agent, client, mode) -> None:
    await ask(agent, "mode", mode=mode)
    await restore(client)
    await compared(agent) if mode == "observe" else None
    assert updates(runtime) == 0


async def test_a_checkpoint_passes_as_bytes(runtime, agent, client) -> None:
    asked = cri.CheckpointPodRequest(pod_sandbox_id="p", output_path="/x", container_ids=["a"])
    sent = asked.SerializeToString() + b"\xfa\x7f\x03new"
    # The runtime here gives back what it gets, for it does not know the method.
    got = await client.call_bytes("/runtime.v1.RuntimeService/CheckpointPod", sent)
    assert (got.messages, got.code) == ((sent,), 0)
    assert runtime.calls_of("CheckpointPod")[0].request == (sent,)
