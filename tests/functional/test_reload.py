"""SIGHUP: a valid configuration is taken over live, an invalid one changes nothing; what need not move stays."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.functional import support
from tests.functional.conftest import ask, cpus_of, rows, until
from tests.machines import HYGON_7285_2S, KUNPENG_64_2S, machine, take_offline


async def test_a_valid_change_is_for_the_next_containers_and_moves_none(runtime, agent, client) -> None:
    await support.run_pod_with(client, "climbs", cpu_limit=12_000)
    before = support.cpusets(runtime)
    agent.write_config({"placement": {"besteffort": "ccx"}})
    assert (await support.reloaded(agent))["degraded"] == {}
    assert (support.updates(runtime), support.cpusets(runtime)) == (0, before)
    group = "/kubepods/besteffort/pod1"
    _, small = await support.run_pod_with(client, "small", qos="besteffort", pod_cgroup_parent=group)
    assert len(cpus_of(runtime, small)) == 8


async def test_the_fine_ladder_is_climbed_after_a_reload(runtime, agent, client) -> None:
    agent.write_config({"placement": {"ladder": "fine"}})
    await support.reloaded(agent)
    shown = {row["key"]: row for row in await ask(agent, "config")}
    assert (shown["placement.ladder"]["value"], shown["placement.ladder"]["origin"]) == (
        "fine",
        f"{agent.config_file}:1",
    )
    _, container_id = await support.run_pod_with(client, "web", cpu_limit=12_000)
    assert (await rows(agent))["web"]["level"] in ("nccx", "numa")
    assert len(cpus_of(runtime, container_id)) == 16


async def test_clusters_of_cores_are_a_rung_after_a_reload(runtime) -> None:
    async with Agent(runtime.socket, machine(KUNPENG_64_2S)) as agent:
        await support.compared(agent)
        agent.write_config({"placement": {"ladder": "fine"}})
        await support.reloaded(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await support.run_pod_with(client, "web", cpu_limit=4_000)
        assert (await rows(agent))["web"]["level"] == "cluster"
        assert len(cpus_of(runtime, container_id)) == 4


async def test_another_policy_is_for_the_next_containers_and_moves_none(runtime, agent, client) -> None:
    group = "/kubepods/pod1"
    _, first = await support.run_pod_with(
        client, "first", cpu_request=2000, cpu_limit=2000, qos="guaranteed", pod_cgroup_parent=group
    )
    before = runtime.cpuset(first)
    agent.write_config({"policy": {"Active": "topology-aware"}})
    assert (await support.reloaded(agent))["policy"] == "topology-aware"
    assert (support.updates(runtime), runtime.cpuset(first)) == (0, before)
    _, second = await support.run_pod_with(
        client, "second", cpu_request=2000, cpu_limit=2000, qos="guaranteed", pod_cgroup_parent=group
    )
    assert len(cpus_of(runtime, second)) == 2
    agent.write_config({"placement": {"cpus": "shared"}})
    await support.reloaded(agent)
    _, third = await support.run_pod_with(
        client, "third", cpu_request=2000, cpu_limit=2000, qos="guaranteed", pod_cgroup_parent=group
    )
    shared = runtime.cpuset(third)
    assert len(cpus_of(runtime, third)) > 2
    agent.write_config({"policy": {"Active": "none"}})
    assert (await support.reloaded(agent))["policy"] == "none"
    assert (len(cpus_of(runtime, second)), runtime.cpuset(third)) == (2, shared)


async def test_cpus_that_become_reserved_are_left_by_those_who_are_on_them_only(
    runtime, agent, client
) -> None:
    # Six CPUs are enough for the first: with fewer than its limit it would be moved where it has them.
    for name in ("first", "second"):
        await support.run_pod_with(client, name, cpu_limit=6000)
    before = {name: row["cpus"] for name, row in (await rows(agent)).items()}
    assert before == {"first": "0-3,64-67", "second": "4-7,68-71"}
    agent.write_config({"policy": {"ReservedResources": {"CPU": "cpuset:0,64"}}})
    status = await support.reloaded(agent)
    assert (status["reserved"], status["invariants"]) == ("0,64", [])
    await support.eventually(lambda: support.updates(runtime) == 1, "the one on reserved CPUs is told")
    after = {name: row["cpus"] for name, row in (await rows(agent)).items()}
    assert after == {"first": "1-3,65-67", "second": "4-7,68-71"}
    agent.write_config({"policy": {"ReservedResources": {"CPU": "0"}}})
    await support.reloaded(agent)
    await support.eventually(lambda: support.updates(runtime) == 2, "it is told again")
    assert {name: row["cpus"] for name, row in (await rows(agent)).items()} == before


async def test_reserved_cpus_may_be_those_of_a_cgroup(runtime) -> None:
    async with support.new_agent(runtime, policy={"ReservedResources": {"CPU": "/system.slice"}}) as agent:
        root = agent.folder / "cgroup"
        for folder, cpus in ((root, "0-127"), (root / "system.slice", "0,64")):
            folder.mkdir(exist_ok=True)
            (folder / "cpuset.cpus.effective").write_text(cpus)
            (folder / "cpuset.mems.effective").write_text("0-7")
        assert (await support.start(agent))["reserved"] == "0,64"
        assert (await support.compared(agent))["reserved"] == "0,64"
        agent.write_config({"policy": {"ReservedResources": {"CPU": "/nowhere.slice"}}})
        status = await support.reloaded(agent)
        assert status["reserved"] == ""
        key = "policy.ReservedResources.CPU"
        warning = f"{key} names the cgroup /nowhere.slice, which has no cpuset; it counts as not given"
        assert status["warnings"] == [warning]


async def test_an_invalid_change_leaves_the_running_configuration_with_the_reason_in_the_status(
    start_agent,
) -> None:
    agent = await start_agent(placement={"ladder": "fine"})
    agent.write_config({"placement": {"ladder": "rope", "unlimited": "here"}})
    status = await support.reloaded(agent)
    reason = f'the running configuration stays: {agent.config_file}:1: placement.ladder is "rope", expected'
    assert status["degraded"]["config"].startswith(reason)
    assert status["degraded"]["config"].endswith("(and 1 more; see: cri-resmgr config check)")
    assert status["mode"] == "enforce"
    assert agent.last_status().startswith("degraded: the running configuration stays")
    shown = {row["key"]: row["value"] for row in await ask(agent, "config")}
    assert shown["placement.ladder"] == "fine"
    agent.write_config({"placement": {"ladder": "manual", "unlimited": "numa"}})
    status = await support.reloaded(agent)
    assert status["degraded"] == {}
    assert agent.last_status() == "enforce, serving"


async def test_ready_is_said_once_a_reload_at_its_end(start_agent) -> None:
    """systemd takes it for the end, whatever else is said meanwhile."""
    agent = await start_agent(placement={"ladder": "fine"})
    for ladder in ("rope", "manual"):  # a reason comes, and goes
        agent.receive_all()
        agent.messages.clear()
        agent.write_config({"placement": {"ladder": ladder}})
        await support.reloaded(agent)
        agent.receive_all()
        said = [message.partition("=")[0] for message in agent.messages]
        assert said == ["RELOADING", "STATUS", "READY"]


async def test_what_needs_a_restart_is_named_and_stays_as_it_is(agent) -> None:
    elsewhere = str(agent.folder / "elsewhere.sock")
    agent.write_config({"relay": {"socket": elsewhere}, "placement": {"ladder": "fine"}})
    status = await support.reloaded(agent)
    assert status["degraded"] == {"restart": "a restart is needed for relay.socket"}
    shown = {row["key"]: (row["value"], row["origin"]) for row in await ask(agent, "config")}
    assert shown["relay.socket"][0] == agent.socket
    assert shown["placement.ladder"][0] == "fine"
    await agent.terminate()
    status = await support.start(agent)
    assert (status["degraded"], status["sockets"]) == ({}, [elsewhere])


async def test_warnings_of_a_configuration_are_in_the_status_until_they_are_mended(runtime) -> None:
    async with support.new_agent(runtime, placement={"lader": "fine"}) as agent:
        status = await support.start(agent)
        warning = f"{agent.config_file}:1: unknown key placement.lader; did you mean placement.ladder?"
        assert status["warnings"] == [warning]
        await agent.logged(warning)
        agent.config["placement"] = {"ladder": "fine"}
        agent.write_config({})
        assert (await support.reloaded(agent))["warnings"] == []


async def test_metrics_move_to_another_address(agent) -> None:
    for port in ("127.0.0.1:18891", "127.0.0.1:18892"):
        agent.write_config({"metrics": {"listen": port}})
        assert (await support.reloaded(agent))["degraded"] == {}
        text = await asyncio.to_thread(_get, f"http://{port}/metrics")
        assert "cri_resmgr_build_info" in text
    agent.write_config({"metrics": {"listen": ""}})
    await support.reloaded(agent)
    for port in ("127.0.0.1:18891", "127.0.0.1:18892"):
        try:
            await asyncio.to_thread(_get, f"http://{port}/metrics")
        except urllib.error.URLError:
            continue
        raise AssertionError(f"{port} is still served")


async def test_an_address_that_is_taken_is_said(runtime) -> None:
    async with (
        support.new_agent(runtime, metrics={"listen": "127.0.0.1:18893"}) as agent,
        support.new_agent(runtime) as second,
    ):
        await support.start(agent)
        await support.start(second)
        second.write_config({"metrics": {"listen": "127.0.0.1:18893"}})
        status = await support.reloaded(second)
        assert status["degraded"]["metrics"].startswith("metrics are not served on 127.0.0.1:18893: ")
        assert "in use" in status["degraded"]["metrics"]


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


async def test_a_change_of_the_machine_is_noticed_with_the_next_look(start_agent) -> None:
    agent = await start_agent(constants={"topology_interval_s": 0.05})
    agent.write_topology(take_offline(machine(HYGON_7285_2S), {1}))
    await until(agent, lambda status: status["usable"] == "0,2-127")


async def test_reloads_that_come_at_once_end_with_the_last(agent) -> None:
    agent.write_config({"placement": {"ladder": "fine"}})
    for _ in range(5):
        agent.reload()
    assert (await support.reloaded(agent))["degraded"] == {}
    shown = {row["key"]: row["value"] for row in await ask(agent, "config")}
    assert shown["placement.ladder"] == "fine"
