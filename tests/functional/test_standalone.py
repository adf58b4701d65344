"""Standalone: nobody asks us anything; containers are found at the runtime and placed once they run.

``direct`` is kubelet here: it talks to the runtime, as it does where it may not be touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.agent import Agent, kubelet_gives
from tests.cri_client import CPU_PERIOD_US, CriClient, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.functional import support
from tests.functional.conftest import ask, counter, cpus_of, until
from tests.machines import GIB

SIZE: dict[str, Any] = {"cpu_request": 500, "cpu_limit": 4000}
#: How containers are found, by the runtime's version: containerd has one queue of events before 2.0.
FOUND = {"polling": "1.7.0", "events": "2.1.0"}
OWN = "topology-aware"
OWNER: dict[str, Any] = {"qos": "guaranteed", "cpu_request": 2000, "cpu_limit": 2000, "memory_limit": GIB}


@pytest.fixture(params=FOUND)
def found_by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def runtime(folder: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(f"{folder}/r.sock", runtime_version=FOUND["polling"]) as runtime:
        yield runtime


@pytest_asyncio.fixture
async def agent(runtime: FakeRuntime) -> AsyncIterator[Agent]:
    """A standalone daemon that is not started yet."""
    async with support.new_agent(runtime) as agent:
        yield agent


async def standalone(agent: Agent) -> Any:
    """Start it; its status once it has taken over what runs."""
    return await support.start(agent, "--standalone")


async def placed(agent: Agent, container_id: str, **fields: Any) -> Any:
    """The row of a container once it is known, with these values."""
    wanted = {"id": container_id, **fields}

    def found(table: Any) -> list[Any]:
        return [row for row in table if all(row[key] == value for key, value in wanted.items())]

    return found(await until(agent, lambda table: bool(found(table)), "placements"))[0]


async def sent(runtime: FakeRuntime, container_id: str) -> str:
    """The cpuset of a container, once the daemon has sent one."""
    await runtime.wait_until(
        lambda: any(
            call.message.container_id == container_id and call.finished
            for call in runtime.calls_of(support.UPDATE)
        )
    )
    return runtime.cpuset(container_id)


# ---------------------------------------------------------------------- new containers


async def test_a_container_that_was_started_behind_our_back_is_placed(folder, found_by) -> None:
    runtime = FakeRuntime(f"{folder}/r.sock", runtime_version=FOUND[found_by])
    async with runtime, support.new_agent(runtime) as agent, CriClient(runtime.socket) as direct:
        await standalone(agent)
        if found_by == "events":
            await runtime.wait_until(lambda: runtime.subscribers == 1)
        _, container_id = await support.run_pod_with(direct, "web", **SIZE)
        cpuset = await sent(runtime, container_id)
        row = await placed(agent, container_id, stance="placed", state="running")
        status = await ask(agent, "status")
    assert row["cpus"] == cpuset != ""
    assert row["level"] == "ccx"
    assert counter(status, "requests_total{method=arrival,outcome=placed}") == 1
    # Where there is one queue of events, none is taken from whom they are for.
    streams = len(runtime.calls_of("GetContainerEvents"))
    assert (streams, status["exits"]) == ((1, "own event stream") if found_by == "events" else (0, "polling"))


async def test_what_was_created_is_waited_for_until_it_runs(runtime, agent, direct) -> None:
    await standalone(agent)
    pod = await direct.run_pod("web")
    created = await direct.create(pod, "created", **SIZE)
    _, running = await support.run_pod_with(direct, "other", **SIZE)
    await placed(agent, running)
    assert [row["id"] for row in await ask(agent, "placements")] == [running]
    await direct.start(created)
    assert await sent(runtime, created) == (await placed(agent, created, stance="placed"))["cpus"]
    # As by a proxy: each in an L3 of its own.
    assert cpus_of(runtime, created).isdisjoint(cpus_of(runtime, running))
    assert (await ask(agent, "status"))["invariants"] == []


async def test_who_makes_room_is_told_before_who_comes(runtime, agent, direct) -> None:
    agent.write_config({"policy": {"Active": OWN, "AvailableResources": {"CPU": "cpuset:0-3"}}})
    await standalone(agent)
    _, shared = await support.run_pod_with(direct, "shared", cpu_request=100)
    await sent(runtime, shared)
    parent = cgroup_parent("guaranteed", "uid-owner")
    _, owning = await support.run_pod_with(
        direct, "owner", pod_uid="uid-owner", pod_cgroup_parent=parent, **OWNER
    )
    row = await placed(agent, owning, stance="placed")
    assert await sent(runtime, owning) == row["cpus"] == row["exclusive"]
    told = [call.message.container_id for call in runtime.calls_of(support.UPDATE)]
    assert told == [shared, shared, owning]
    assert cpus_of(runtime, shared).isdisjoint(cpus_of(runtime, owning))


# ---------------------------------------------------------------------- what is left alone


async def test_what_ran_before_keeps_what_it_has_until_it_is_asked_for(runtime, agent, direct) -> None:
    before = support.run_without_us(runtime, "before", cpuset="0-63", **SIZE)
    assert (await standalone(agent))["containers"] == {"adopted": 1}
    _, after = await support.run_pod_with(direct, "after", **SIZE)
    await sent(runtime, after)
    assert runtime.cpuset(before) == "0-63"
    # A reset adopts all of them, also those that came after our start: it moves nothing.
    there = support.live_cpusets(runtime)
    assert (await ask(agent, "reset-policy"))["adopted"] == 2
    await support.run_pod_with(direct, "later", **SIZE)
    await until(agent, lambda status: status["containers"] == {"adopted": 2, "placed": 1})
    assert {key: runtime.cpuset(key) for key in there} == there
    await ask(agent, "reset-policy", replace=True)
    assert (await placed(agent, before, stance="placed"))["cpus"] == runtime.cpuset(before) != "0-63"


LEFT_ALONE: dict[str, tuple[dict[str, Any], str, str]] = {
    "opted out": ({"pod_annotations": {"cri-resmgr.io/manage": "false"}}, "opted out", ""),
    "kubelet's own CPUs": (
        {
            "pod_uid": "uid-own",
            "pod_cgroup_parent": cgroup_parent("guaranteed", "uid-own"),
            **OWNER,
            "cpuset": "4-5",
        },
        "kubelet-exclusive",
        "4-5",
    ),
    "a virtual machine": ({"runtime_handler": "kata-qemu"}, "opted out", ""),
}


async def test_what_is_not_ours_is_left_as_it_is(runtime, agent, direct) -> None:
    await standalone(agent)
    kubelet_gives(agent.folder, "uid-own", "p1", "4-5")
    made = {
        name: (await support.run_pod_with(direct, f"p{number}", **{**SIZE, **how}))[1]
        for number, (name, (how, _, _)) in enumerate(LEFT_ALONE.items())
    }
    for name, (_, stance, cpuset) in LEFT_ALONE.items():
        await placed(agent, made[name], stance=stance)
        assert runtime.cpuset(made[name]) == cpuset
    assert support.updates(runtime) == 0
    # A cpuset of the caller is a fence.
    _, container_id = await support.run_pod_with(direct, "fenced", cpuset="2-20", **SIZE)
    assert await sent(runtime, container_id)
    assert cpus_of(runtime, container_id) < frozenset(range(2, 21))
    assert (await ask(agent, "explain", container=container_id))["containers"][0]["fence_cpus"] == "2-20"


async def test_a_demand_that_cannot_be_met_leaves_the_container_as_it_is(runtime, agent, direct) -> None:
    await standalone(agent)
    asked = {"cri-resmgr.io/l3": "require"}
    _, container_id = await support.run_pod_with(direct, "g", pod_annotations=asked, cpu_limit=12_000)
    row = await placed(agent, container_id, stance="untouched")
    assert row["why"].startswith("not placed: ")
    # It is looked at once, and nobody is stopped.
    _, other = await support.run_pod_with(direct, "other", cpu_request=100)
    await sent(runtime, other)
    status = await ask(agent, "status")
    assert counter(status, "requests_total{method=arrival,outcome=untouched: refused}") == 1
    assert (status["degraded"], runtime.cpuset(container_id)) == ({}, "")


async def test_in_mode_observe_nothing_is_changed(runtime, agent, direct) -> None:
    agent.write_config({"relay": {"mode": "observe"}})
    await standalone(agent)
    _, container_id = await support.run_pod_with(direct, "web", **SIZE)
    await placed(agent, container_id, stance="observed")
    await ask(agent, "mode", mode="off")
    await support.run_pod_with(direct, "other", **SIZE)
    assert len(await ask(agent, "placements")) == 1
    assert support.updates(runtime) == 0


# ---------------------------------------------------------------------- life


async def test_a_restart_moves_nothing(runtime, agent, direct) -> None:
    await standalone(agent)
    made = [(await support.run_pod_with(direct, f"p{i}", **SIZE))[1] for i in range(3)]
    for container_id in made:
        await sent(runtime, container_id)
    await until(agent, lambda status: status["updates_waiting"] == 0)
    there, count = support.live_cpusets(runtime), support.updates(runtime)
    await agent.terminate()
    assert (await standalone(agent))["containers"] == {"placed": 3}
    assert (support.live_cpusets(runtime), support.updates(runtime)) == (there, count)


async def test_who_starts_during_a_restart_is_placed_and_who_ran_before_is_not(
    runtime, agent, direct
) -> None:
    before = support.run_without_us(runtime, "before", **SIZE)
    await standalone(agent)
    await until(agent, lambda status: (agent.state / "standalone.looked").exists())
    await agent.kill()
    _, meanwhile = await support.run_pod_with(direct, "meanwhile", **SIZE)
    await standalone(agent)
    assert await sent(runtime, meanwhile) == (await placed(agent, meanwhile, stance="placed"))["cpus"]
    # After a long pause it is as any other that ran before.
    await agent.terminate()
    _, late = await support.run_pod_with(direct, "late", **SIZE)
    long_ago_s = (agent.state / "standalone.looked").stat().st_mtime - 3600
    os.utime(agent.state / "standalone.looked", (long_ago_s, long_ago_s))
    assert (await standalone(agent))["containers"] == {"adopted": 2, "placed": 1}
    assert (runtime.cpuset(late), runtime.cpuset(before)) == ("", "")


async def test_the_next_attempt_gets_the_place_back(runtime, agent, direct) -> None:
    agent.write_config({"constants": {"reconcile_poll_s": 0.05}})
    await standalone(agent)
    pod, first = await support.run_pod_with(direct, "web", **SIZE)
    place = await sent(runtime, first)
    for number in range(9):  # by load alone its place would be another's by now
        await support.run_pod_with(direct, f"other{number}", **SIZE)
    runtime.exit_container(first, 3)
    await placed(agent, first, state="held")
    second = await direct.create(pod, "web", attempt=1, **SIZE)
    await direct.start(second)
    assert await sent(runtime, second) == place
    await direct.remove(first)
    await direct.stop_pod(pod.id)
    await direct.remove_pod(pod.id)
    await until(agent, lambda table: not {first, second} & {row["id"] for row in table}, "placements")


async def test_a_resize_by_kubelet_is_followed(runtime, agent, direct) -> None:
    agent.write_config({"constants": {"reconcile_poll_s": 0.05, "reconcile_interval_s": 0.1}})
    await standalone(agent)
    _, container_id = await support.run_pod_with(direct, "web", **SIZE)
    small = await sent(runtime, container_id)
    quota = 12 * CPU_PERIOD_US
    await direct.update(container_id, cpu_period=CPU_PERIOD_US, cpu_quota=quota, cpu_shares=6 * 1024)
    row = await placed(agent, container_id, cpu_limit_milli=12_000, cpu_request_milli=6000)
    assert row["level"] == "numa"
    await runtime.wait_until(lambda: runtime.cpuset(container_id) == row["cpus"] != small)
    assert runtime.containers[container_id].resources.cpu_quota == quota


async def test_an_update_that_fails_is_made_again(runtime, agent, direct) -> None:
    agent.write_config({"constants": {"reconcile_poll_s": 0.05, "reconcile_interval_s": 0.1}})
    runtime.script(support.UPDATE, error=(2, "not now"), times=2)
    await standalone(agent)
    _, container_id = await support.run_pod_with(direct, "web", **SIZE)
    row = await placed(agent, container_id, stance="placed")
    await runtime.wait_until(lambda: runtime.cpuset(container_id) == row["cpus"])


async def test_a_runtime_that_comes_back_is_followed_again(runtime, agent, direct) -> None:
    await standalone(agent)
    _, first = await support.run_pod_with(direct, "first", **SIZE)
    place = await sent(runtime, first)
    await runtime.stop()
    await runtime.start()
    await runtime.wait_for_call("Version", 2)
    async with CriClient(runtime.socket) as again:
        _, second = await support.run_pod_with(again, "second", **SIZE)
        await sent(runtime, second)
    assert runtime.cpuset(first) == place


# ---------------------------------------------------------------------- what it says


async def test_it_says_that_it_comes_late(runtime, agent) -> None:
    status = await standalone(agent)
    how = "standalone: containers are placed after they have started"
    assert (status["front_end"], status["sockets"]) == ("standalone", [])
    assert status["how"] == f"{how}, found by its list, read every 500 ms"
    assert agent.last_status() == f"enforce, {how}"
    await agent.logged(how)
    code, out, _ = await agent.cli("status")
    assert (code, f"  serving    {how}" in out) == (0, True)
    assert not Path(agent.socket).exists()
    code, out, _ = await agent.cli(
        "kubelet", "--root", str(agent.folder), "--proc", str(agent.folder), "status"
    )
    assert (code, "it need not: the daemon runs as standalone" in out, "type:" in out) == (1, True, False)
    await support.reloaded(agent)
    assert await agent.terminate() == 0


async def test_it_serves_no_socket_and_so_takes_no_name_of_one(runtime, agent) -> None:
    await agent.start("--standalone", "--relay-socket", "/tmp/k.sock", ready=False)
    assert await support.ended(agent) == 2
    assert "--standalone serves no socket" in agent.log()


async def test_where_it_cannot_be_imported_no_bytes_are_passed(runtime, agent, tmp_path) -> None:
    with support.broken_module(tmp_path, "structlog") as environment:
        await agent.start("--standalone", environment=environment, ready=False)
        assert await support.ended(agent) == 1
    assert agent.log().endswith("ImportError: it is broken\n")
    assert "passing bytes" not in agent.log()


# ---------------------------------------------------------------------- one owner a node


async def test_a_node_has_one_owner(runtime, agent) -> None:
    """Whoever comes second says who is there; a proxy passes bytes meanwhile, and takes over."""
    await standalone(agent)
    assert agent.process is not None
    owner = (
        f"process {agent.process.pid} (cri-resmgr run --standalone) places containers on this node already"
    )
    async with support.new_agent(runtime) as second:
        second.write_config({"control": {"socket": str(agent.control)}})
        await second.start("--standalone", ready=False)
        assert await support.ended(second) == 1
        assert f"{owner} ({agent.folder}/owner.lock is locked); stop it first" in second.log()
        # 1. kubelet, which points at the proxy, is served.
        await second.start()
        assert owner in second.last_status()
        async with CriClient(second.socket) as client:
            _, container_id = await support.run_pod_with(client, "web", **SIZE)
            assert runtime.containers[container_id].create_bytes
            await placed(agent, container_id, stance="placed")
            # 2. Once the other is gone, it places.
            await agent.terminate()
            second.control = agent.control
            second.reload()  # else it would be tried again in 5 s
            await until_placing(second)
            other = await client.create(await client.run_pod("other"), "other", **SIZE)
            assert runtime.cpuset(other) != ""


async def until_placing(agent: Agent) -> None:
    """Once it has the node, and an engine."""
    while agent.last_status() != "enforce, serving":
        await agent.wait_notified("STATUS=")


async def test_another_front_end_takes_over_from_one_that_was_killed_and_moves_nothing(
    runtime, agent, direct
) -> None:
    await standalone(agent)
    _, container_id = await support.run_pod_with(direct, "web", **SIZE)
    place = await sent(runtime, container_id)
    await until(agent, lambda status: status["updates_waiting"] == 0)
    await agent.kill()
    held_by = json.loads((agent.folder / "owner.lock").read_text())
    assert held_by["front_end"] == "standalone"
    count = support.updates(runtime)
    assert (await support.start(agent))["front_end"] == "proxy"
    assert (await placed(agent, container_id, stance="placed"))["cpus"] == place
    assert (support.updates(runtime), runtime.cpuset(container_id)) == (count, place)
