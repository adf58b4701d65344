"""SIGHUP: a valid configuration is taken over live, an invalid one changes nothing; what need not move stays."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, cpus_of, rows, until
from tests.functional.support import (
    compared,
    cpusets,
    eventually,
    new_agent,
    reloaded,
    run_pod_with,
    start,
    updates,
)
from tests.machines import HYGON_7285_2S, KUNPENG_64_2S, machine, take_offline


async def test_a_valid_change_is_for_the_next_containers_and_moves_none(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            await run_pod_with(client, "climbs", cpu_limit=12_000)
            before = cpusets(runtime)
            agent.write_config({"placement": {"besteffort": "ccx"}})
            assert (await reloaded(agent))["degraded"] == {}
            assert (updates(runtime), cpusets(runtime)) == (0, before)
            group = "/kubepods/besteffort/pod1"
            _, small = await run_pod_with(client, "small", qos="besteffort", pod_cgroup_parent=group)
            assert len(cpus_of(runtime, small)) == 8


async def test_the_fine_ladder_is_climbed_after_a_reload(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        agent.write_config({"placement": {"ladder": "fine"}})
        await reloaded(agent)
        shown = {row["key"]: row for row in await ask(agent, "config")}
        assert (shown["placement.ladder"]["value"], shown["placement.ladder"]["origin"]) == (
            "fine",
            f"{agent.config_file}:1",
        )
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=12_000)
        assert (await rows(agent))["web"]["level"] in ("nccx", "numa")
        assert len(cpus_of(runtime, container_id)) == 16


async def test_clusters_of_cores_are_a_rung_after_a_reload(runtime: FakeRuntime) -> None:
    async with Agent(runtime.socket, machine(KUNPENG_64_2S)) as agent:
        await compared(agent)
        agent.write_config({"placement": {"ladder": "fine"}})
        await reloaded(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=4_000)
        assert (await rows(agent))["web"]["level"] == "cluster"
        assert len(cpus_of(runtime, container_id)) == 4


async def test_another_policy_is_for_the_next_containers_and_moves_none(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            group = "/kubepods/pod1"
            _, first = await run_pod_with(
                client, "first", cpu_request=2000, cpu_limit=2000, qos="guaranteed", pod_cgroup_parent=group
            )
            before = runtime.cpuset(first)
            agent.write_config({"policy": {"Active": "topology-aware"}})
            assert (await reloaded(agent))["policy"] == "topology-aware"
            assert (updates(runtime), runtime.cpuset(first)) == (0, before)
            _, second = await run_pod_with(
                client, "second", cpu_request=2000, cpu_limit=2000, qos="guaranteed", pod_cgroup_parent=group
            )
            assert len(cpus_of(runtime, second)) == 2
            agent.write_config({"placement": {"cpus": "shared"}})
            await reloaded(agent)
            _, third = await run_pod_with(
                client, "third", cpu_request=2000, cpu_limit=2000, qos="guaranteed", pod_cgroup_parent=group
            )
            shared = runtime.cpuset(third)
            assert len(cpus_of(runtime, third)) > 2
            agent.write_config({"policy": {"Active": "none"}})
            assert (await reloaded(agent))["policy"] == "none"
            assert (len(cpus_of(runtime, second)), runtime.cpuset(third)) == (2, shared)


async def test_cpus_that_become_reserved_are_left_by_those_who_are_on_them_only(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            for name in ("first", "second"):
                await run_pod_with(client, name, cpu_limit=8000)
        before = {name: row["cpus"] for name, row in (await rows(agent)).items()}
        assert before == {"first": "0-3,64-67", "second": "4-7,68-71"}
        agent.write_config({"policy": {"ReservedResources": {"CPU": "cpuset:0,64"}}})
        status = await reloaded(agent)
        assert (status["reserved"], status["invariants"]) == ("0,64", [])
        await eventually(lambda: updates(runtime) == 1, "the one on reserved CPUs is told")
        after = {name: row["cpus"] for name, row in (await rows(agent)).items()}
        assert after == {"first": "1-3,65-67", "second": "4-7,68-71"}
        agent.write_config({"policy": {"ReservedResources": {"CPU": "0"}}})
        await reloaded(agent)
        await eventually(lambda: updates(runtime) == 2, "it is told again")
        assert {name: row["cpus"] for name, row in (await rows(agent)).items()} == before


async def test_reserved_cpus_may_be_those_of_a_cgroup(runtime: FakeRuntime) -> None:
    async with new_agent(runtime, policy={"ReservedResources": {"CPU": "/system.slice"}}) as agent:
        root = agent.folder / "cgroup"
        for folder, cpus in ((root, "0-127"), (root / "system.slice", "0,64")):
            folder.mkdir(exist_ok=True)
            (folder / "cpuset.cpus.effective").write_text(cpus)
            (folder / "cpuset.mems.effective").write_text("0-7")
        assert (await start(agent))["reserved"] == "0,64"
        assert (await compared(agent))["reserved"] == "0,64"
        agent.write_config({"policy": {"ReservedResources": {"CPU": "/nowhere.slice"}}})
        status = await reloaded(agent)
        assert status["reserved"] == ""
        key = "policy.ReservedResources.CPU"
        warning = f"{key} names the cgroup /nowhere.slice, which has no cpuset; it counts as not given"
        assert status["warnings"] == [warning]


async def test_an_invalid_change_leaves_the_running_configuration_with_the_reason_in_the_status(
    runtime: FakeRuntime,
) -> None:
    async with new_agent(runtime, placement={"ladder": "fine"}) as agent:
        await start(agent)
        agent.write_config({"placement": {"ladder": "rope", "unlimited": "here"}})
        status = await reloaded(agent)
        reason = (
            f'the running configuration stays: {agent.config_file}:1: placement.ladder is "rope", expected'
        )
        assert status["degraded"]["config"].startswith(reason)
        assert status["degraded"]["config"].endswith("(and 1 more; see: cri-resmgr config check)")
        assert status["mode"] == "enforce"
        assert agent.last_status().startswith("degraded: the running configuration stays")
        shown = {row["key"]: row["value"] for row in await ask(agent, "config")}
        assert shown["placement.ladder"] == "fine"
        agent.write_config({"placement": {"ladder": "manual", "unlimited": "numa"}})
        status = await reloaded(agent)
        assert status["degraded"] == {}
        assert agent.last_status() == "enforce, serving"


async def test_ready_is_said_once_a_reload_at_its_end(runtime: FakeRuntime) -> None:
    """systemd takes it for the end, whatever else is said meanwhile."""
    async with new_agent(runtime, placement={"ladder": "fine"}) as agent:
        await start(agent)
        for ladder in ("rope", "manual"):  # a reason comes, and goes
            agent.receive_all()
            agent.messages.clear()
            agent.write_config({"placement": {"ladder": ladder}})
            await reloaded(agent)
            agent.receive_all()
            said = [message.partition("=")[0] for message in agent.messages]
            assert said == ["RELOADING", "STATUS", "READY"]


async def test_what_needs_a_restart_is_named_and_stays_as_it_is(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        elsewhere = str(agent.folder / "elsewhere.sock")
        agent.write_config({"relay": {"socket": elsewhere}, "placement": {"ladder": "fine"}})
        status = await reloaded(agent)
        assert status["degraded"] == {"restart": "a restart is needed for relay.socket"}
        shown = {row["key"]: (row["value"], row["origin"]) for row in await ask(agent, "config")}
        assert shown["relay.socket"][0] == agent.socket
        assert shown["placement.ladder"][0] == "fine"
        await agent.terminate()
        status = await start(agent)
        assert (status["degraded"], status["sockets"]) == ({}, [elsewhere])


async def test_warnings_of_a_configuration_are_in_the_status_until_they_are_mended(
    runtime: FakeRuntime,
) -> None:
    async with new_agent(runtime, placement={"lader": "fine"}) as agent:
        status = await start(agent)
        warning = f"{agent.config_file}:1: unknown key placement.lader; did you mean placement.ladder?"
        assert status["warnings"] == [warning]
        await agent.logged(warning)
        agent.config["placement"] = {"ladder": "fine"}
        agent.write_config({})
        assert (await reloaded(agent))["warnings"] == []


async def test_metrics_move_to_another_address(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        for port in ("127.0.0.1:18891", "127.0.0.1:18892"):
            agent.write_config({"metrics": {"listen": port}})
            assert (await reloaded(agent))["degraded"] == {}
            text = await asyncio.to_thread(_get, f"http://{port}/metrics")
            assert "cri_resmgr_build_info" in text
        agent.write_config({"metrics": {"listen": ""}})
        await reloaded(agent)
        for port in ("127.0.0.1:18891", "127.0.0.1:18892"):
            try:
                await asyncio.to_thread(_get, f"http://{port}/metrics")
            except urllib.error.URLError:
                continue
            raise AssertionError(f"{port} is still served")


async def test_an_address_that_is_taken_is_said(runtime: FakeRuntime) -> None:
    async with (
        new_agent(runtime, metrics={"listen": "127.0.0.1:18893"}) as agent,
        new_agent(runtime) as second,
    ):
        await start(agent)
        await start(second)
        second.write_config({"metrics": {"listen": "127.0.0.1:18893"}})
        status = await reloaded(second)
        assert status["degraded"]["metrics"].startswith("metrics are not served on 127.0.0.1:18893: ")
        assert "in use" in status["degraded"]["metrics"]


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


async def test_a_change_of_the_machine_is_noticed_with_the_next_look(runtime: FakeRuntime) -> None:
    async with new_agent(runtime, constants={"topology_interval_s": 0.05}) as agent:
        await start(agent)
        agent.write_topology(take_offline(machine(HYGON_7285_2S), {1}))
        await until(agent, lambda status: status["usable"] == "0,2-127")


async def test_reloads_that_come_at_once_end_with_the_last(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        agent.write_config({"placement": {"ladder": "fine"}})
        for _ in range(5):
            agent.reload()
        assert (await reloaded(agent))["degraded"] == {}
        shown = {row["key"]: row["value"] for row in await ask(agent, "config")}
        assert shown["placement.ladder"] == "fine"
