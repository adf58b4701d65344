"""Containers that have claims of CPUs, before a daemon as a process: what a create becomes, and who follows whom."""

from __future__ import annotations

from typing import Any, Optional

import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from cri_api.claims import cdi_device, part_name, variable
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient, container_config, create_request
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import CREATE, StartAgent, ask, resync, until

CLAIMED = {"dra": {"enabled": True}}
FULL_CORES = {"apiVersion": "cpu.cri-resmgr.io/v1alpha1", "kind": "CpuParameters", "smt": "full-core"}


@pytest_asyncio.fixture
async def agent(start_agent: StartAgent) -> Agent:
    """A daemon that prepares claims."""
    return await start_agent(**CLAIMED)


async def prepare(
    agent: Agent, uid: str, cpus: int, device: str = "l3-0", parameters: Optional[Any] = None
) -> frozenset[int]:
    """Have a claim prepared, as the node's agent does; its CPUs."""
    results = [{"request": "cpus", "device": device, "cpus": cpus}]
    entries = [] if parameters is None else [{"requests": [], "value": parameters}]
    about = {"uid": uid, "namespace": "default", "name": f"claim-{uid}", "results": results}
    [part] = (await ask(agent, "claim-prepare", **about, parameters=entries))["parts"]
    return parse_cpus(part["cpus"])


def having(*uids: str) -> tuple[str, ...]:
    return tuple(cdi_device(part_name(uid, "cpus")) for uid in uids)


async def test_a_create_gets_the_cpus_of_its_claims_and_is_else_what_it_was(agent, client, runtime) -> None:
    first, second = await prepare(agent, "a", 2), await prepare(agent, "b", 4, "l3-3")
    pod = await client.run_pod("p")
    config = container_config(
        "c", cpu_request=6000, cpu_limit=7500, cdi=("vendor.example/disk=x", *having("b", "a"))
    )
    asked = create_request(pod, config).SerializeToString() + b"\xa2\x06\x03new"  # a field of tomorrow's
    await client.call_bytes(CREATE, asked)
    [call] = runtime.calls_of("CreateContainer")
    assert call.request[0].startswith(asked)
    got = cri.CreateContainerRequest.FromString(call.request[0])
    assert parse_cpus(got.config.linux.resources.cpuset_cpus) == first | second
    # But for its cpuset it is the request: shares, quota and other vendors' devices are kubelet's.
    got.config.linux.resources.cpuset_cpus = got.config.linux.resources.cpuset_mems = ""
    assert got == cri.CreateContainerRequest.FromString(asked)


async def test_a_claim_that_is_not_prepared_here_stops_no_container(agent, client, runtime) -> None:
    pod = await client.run_pod("p")
    container = await client.create(pod, "c", cpu_limit=2000, cdi=having("gone"))
    assert parse_cpus(runtime.cpuset(container))
    [row] = await ask(agent, "placements")
    assert "its claim gone_cpus is not prepared here" in row["why"]
    # It has its CPUs once it is, and is told without being asked about.
    mine = await prepare(agent, "gone", 2)
    await runtime.wait_until(lambda: parse_cpus(runtime.cpuset(container)) == mine)


async def test_containers_follow_claims_that_are_moved_to_make_room(agent, client, runtime) -> None:
    # 1. Two claims of a thread each, on two cores: a third one, which is beside one of them or not, has gone.
    places = {uid: await prepare(agent, uid, 1) for uid in "abc"}
    first, second, third = ({cpu % 64 for cpu in cpus} for cpus in places.values())
    gone = "c" if first != second else "b" if first != third else "a"
    await ask(agent, "claim-unprepare", uid=gone)
    left = {uid: cpus for uid, cpus in places.items() if uid != gone}
    pod = await client.run_pod("p")
    made = {uid: await client.create(pod, uid, cpu_limit=1000, cdi=having(uid)) for uid in left}
    assert {uid: parse_cpus(runtime.cpuset(key)) for uid, key in made.items()} == left
    # 2. Three whole cores of the four: they must share the fourth.
    whole = await prepare(agent, "d", 6, parameters=FULL_CORES)
    claims = {row["uid"]: row for row in (await ask(agent, "claims"))["claims"]}
    now = {uid: parse_cpus(claims[uid]["cpus"]) for uid in left}
    assert now != left and all(whole.isdisjoint(cpus) for cpus in now.values())
    assert any(claims[uid]["moved"] for uid in left)
    await runtime.wait_until(
        lambda: {uid: parse_cpus(runtime.cpuset(key)) for uid, key in made.items()} == now
    )


async def test_standalone_a_container_that_comes_with_a_claim_gets_its_cpus_after_its_start(
    runtime: FakeRuntime, direct: CriClient, start_agent: StartAgent
) -> None:
    agent = await start_agent(**CLAIMED)
    await agent.kill()
    await agent.start("--standalone")
    await until(agent, lambda status: not status["books"])
    mine = await prepare(agent, "a", 2)
    pod = await direct.run_pod("p")
    container = await direct.create(pod, "c", cpu_limit=2000, cdi=having("a"))
    await direct.start(container)
    await runtime.wait_until(lambda: parse_cpus(runtime.cpuset(container)) == mine)


async def test_a_container_that_was_made_past_the_daemon_has_the_cpus_of_its_claims(
    agent, direct, runtime
) -> None:
    mine = await prepare(agent, "a", 2)
    container = await direct.create(await direct.run_pod("p"), "c", cpu_limit=2000, cdi=having("a"))
    await direct.start(container)
    await resync(agent, runtime)
    await runtime.wait_until(lambda: parse_cpus(runtime.cpuset(container)) == mine)
    [claim] = (await ask(agent, "claims"))["claims"]
    assert claim["containers"] == ["default/p/c"]


async def test_the_next_attempt_of_a_container_has_the_cpus_of_its_claims(agent, client, runtime) -> None:
    mine, pod = await prepare(agent, "a", 2), await client.run_pod("p")
    for attempt in range(3):
        container = await client.create(pod, "c", attempt=attempt, cpu_limit=2000, cdi=having("a"))
        await client.start(container)
        assert parse_cpus(runtime.cpuset(container)) == mine
        await client.stop(container)
    assert (await ask(agent, "status"))["invariants"] == []


async def test_a_pods_own_variable_is_no_claim(agent, client, direct, runtime) -> None:
    mine = await prepare(agent, "a", 2)
    name, _, value = variable(part_name("a", "cpus")).partition("=")
    container = await client.create(
        await client.run_pod("p"), "c", cpu_limit=2000, envs=((name, value),), qos="guaranteed"
    )
    assert mine.isdisjoint(parse_cpus(runtime.cpuset(container)))
    await resync(agent, runtime)
    assert mine.isdisjoint(parse_cpus(runtime.cpuset(container)))
