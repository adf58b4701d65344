"""Our plugin as a process of its own, against a host of NRI that does as it is told, and a runtime to call by CRI."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
import pytest_asyncio

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.io.connection import CallFailed
from cri_proxy.nri.subscription import MASK_ALL, MASK_CLASSIC, STARTS
from policies.machine.cpus import parse_cpus
from tests.agent import ROOT, Agent
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import UPDATE, ask, until
from tests.functional.nri_host import ScriptedHost, make_container, make_pod, running
from tests.functional.support import run_without_us
from tests.machines import EPYC_NPS1_1S, machine
from tests.nri.io.host.plugins import eventually
from tests.nri.io.host.test_launched import is_alive

PLUGIN = (sys.executable, "-m", "cri_proxy", "nri")
StartPlugin = Callable[..., Awaitable[Agent]]


@pytest_asyncio.fixture
async def host(folder: Path) -> AsyncIterator[ScriptedHost]:
    async with ScriptedHost(f"{folder}/nri.sock") as host:
        yield host


@pytest_asyncio.fixture
async def start_plugin(folder: Path, runtime: FakeRuntime) -> AsyncIterator[StartPlugin]:
    """Starts our plugin on a machine with CCXs of eight CPUs; it ends with the test."""
    started: list[Agent] = []

    async def start(
        connected: bool = True, listed: bool = False, start: Optional[dict[str, Any]] = None, **config: Any
    ) -> Agent:
        # What the host says is not compared with a list that the runtime gives: it has nothing to do with it.
        if not listed:
            runtime.script("ListContainers", error=(14, "asked too early"))
        agent = Agent(runtime.socket, machine(EPYC_NPS1_1S), config)
        started.append(agent)
        agent.write_config({"nri": {"plugin": {"socket": f"{folder}/nri.sock"}}})
        await agent.start(**{"command": PLUGIN, **(start or {})})
        if connected:
            await until(agent, lambda status: status["nri"]["connected"])
        return agent

    yield start
    for agent in started:
        await agent.close()


async def row(agent: Agent, container: nri.Container) -> dict[str, Any]:
    """What is known of a container; {} if nothing is."""
    rows = await ask(agent, "placements")
    return next((dict(found) for found in rows if found["id"] == container.id), {})


async def until_row(agent: Agent, container: nri.Container, **fields: Any) -> dict[str, Any]:
    def right(rows: Any) -> bool:
        return any(r["id"] == container.id and all(r[k] == v for k, v in fields.items()) for r in rows)

    await until(agent, right, "placements")
    return await row(agent, container)


async def counted(agent: Agent, name: str) -> float:
    return float((await ask(agent, "status"))["counters"].get(f"cri_resmgr_{name}", 0))


# ---------------------------------------------------------------------- the handshake


async def test_it_waits_for_a_host_and_names_itself_and_what_it_wants_to_hear_of(
    folder, start_plugin
) -> None:
    agent = await start_plugin(connected=False)
    status = await until(agent, lambda status: "nri" in status["degraded"])
    assert f"{folder}/nri.sock: No such file or directory" in status["degraded"]["nri"]
    async with ScriptedHost(f"{folder}/nri.sock") as host:
        await host.ready()
        status = await until(
            agent, lambda status: status["nri"]["connected"] and "nri" not in status["degraded"]
        )
        assert status["exits"] == "the runtime's NRI events"
        [registered] = host.registered
        assert (registered.plugin_name, registered.plugin_idx) == ("cri-resmgr", "10")
        [mask] = host.masks
        assert 0 < mask & MASK_CLASSIC == mask
        assert host.replies == [nri.SynchronizeResponse()]


async def test_a_host_that_knows_fewer_events_is_asked_for_fewer(host, start_plugin) -> None:
    host.configure.runtime_version = "2.2.0"  # or so it says
    await start_plugin()
    assert len(host.masks) == 2
    assert host.masks[0] & ~MASK_CLASSIC
    assert host.masks[1] == host.masks[0] & MASK_CLASSIC


async def test_a_large_synchronize_comes_in_pieces_and_what_it_tells_is_adopted(host, start_plugin) -> None:
    host.pods = [make_pod(f"p{i}") for i in range(9)]
    host.containers = [running(make_container(pod)) for pod in host.pods]
    host.containers[3].linux.resources.cpu.cpus = "4-7"
    host.chunks = 3
    agent = await start_plugin()
    await host.ready()
    assert [reply.more for reply in host.replies] == [True, True, False]
    rows = await until(agent, lambda rows: len(rows) == 9, "placements")
    assert {found["stance"] for found in rows} == {"adopted"}
    assert (await row(agent, host.containers[3]))["cpus"] == "4-7"


async def test_the_hosts_configuration_counts_after_the_files_and_a_bad_one_changes_nothing(
    host, start_plugin
) -> None:
    host.configure.config = "placement:\n  unlimited: ccx\n"
    agent = await start_plugin(placement={"unlimited": "machine"})

    async def value() -> tuple[str, str]:
        rows = {found["key"]: found for found in await ask(agent, "config")}
        return rows["placement.unlimited"]["value"], rows["placement.unlimited"]["origin"]

    assert (await value())[0] == "ccx"
    assert "the runtime's configuration of this plugin" in (await value())[1]
    host.configure.config = "placement:\n  unlimited: everywhere\n"
    host.drop()
    status = await until(agent, lambda status: status["nri"]["connections"] == 2)
    status = await until(agent, lambda status: "config" in status["degraded"])
    assert "everywhere" in status["degraded"]["config"]
    assert (await value())[0] == "ccx"


# ---------------------------------------------------------------------- the life of a container


async def test_a_container_is_placed_and_followed_to_its_end(host, start_plugin) -> None:
    agent = await start_plugin()
    for by_rpc in (True, False):
        await follow_to_its_end(agent, host, by_rpc)
    assert (await ask(agent, "status"))["invariants"] == []
    assert await agent.terminate() == 0  # a thread writes the log, to its end
    line = next(line for line in agent.log().splitlines() if "CreateContainer" in line)
    assert " cpus=" in line and " rung=ccx " in line and " why=" in line


async def follow_to_its_end(agent: Agent, host: ScriptedHost, by_rpc: bool) -> None:
    """``by_rpc``: each event is its own call, as from NRI 0.12 on; else StateChange."""

    async def tell(event: str, container: Optional[nri.Container] = None) -> None:
        if by_rpc:
            await host.tell("".join(part.capitalize() for part in event.split("_")), pod, container)
        else:
            await host.call("StateChange", nri.StateChangeEvent(event=event, pod=pod, container=container))

    pod = make_pod("p")
    container = make_container(pod, cpu_limit=4000)
    await tell("RUN_POD_SANDBOX")
    reply = await host.create(pod, container)
    cpus = reply.adjust.linux.resources.cpu.cpus
    assert len(parse_cpus(cpus)) >= 4
    assert list(reply.update) == []
    # 1. It has its place before it exists, under no id; then under its own.
    assert await row(agent, container) == {}
    await tell("POST_CREATE_CONTAINER", container)
    assert (await row(agent, container))["state"] == "created"
    await tell("POST_START_CONTAINER", container)
    found = await row(agent, container)
    assert (found["state"], found["cpus"], found["stance"]) == ("running", cpus, "placed")
    # 2. It ends, and its place is held; the next attempt gets it.
    await host.tell("StopContainer", pod, container)
    assert (await row(agent, container))["state"] == "held"
    again = make_container(pod, cpu_limit=4000, attempt=1)
    assert (await host.create(pod, again)).adjust.linux.resources.cpu.cpus == cpus
    await tell("POST_CREATE_CONTAINER", again)
    await tell("REMOVE_CONTAINER", container)
    assert await row(agent, container) == {}
    # 3. With the pod all is free.
    await tell("STOP_POD_SANDBOX")
    await tell("REMOVE_POD_SANDBOX")
    assert await row(agent, again) == {}


async def test_creates_that_come_to_nothing_leave_no_place_behind(host, start_plugin) -> None:
    agent = await start_plugin()
    pod, other = make_pod("p"), make_pod("q")
    await host.run(other, make_container(other))
    # 1. One that the runtime takes back.
    container = make_container(pod, "undone")
    await host.create(pod, container)
    await host.tell("StopContainer", pod, container)
    await host.tell("RemoveContainer", pod, container)
    assert [found["pod"] for found in await ask(agent, "placements")] == ["q"]
    assert await counted(agent, "requests_total{method=StopContainer,outcome=cancelled}") == 1
    # 2. Two attempts that never started: the next goes untouched.
    given = []
    for attempt in range(3):
        container = make_container(pod, attempt=attempt)
        reply = await host.create(pod, container)
        given.append(reply.adjust.linux.resources.cpu.cpus)
        await host.tell("PostCreateContainer", pod, container)
    assert given[0] == given[1] != "" == given[2]
    assert (await ask(agent, "status"))["distrusted"] == ["default/p/app"]


async def test_a_create_whose_end_nobody_tells_is_bound_by_what_the_host_runs(host, start_plugin) -> None:
    agent = await start_plugin()
    pod = make_pod("p")
    made, never = make_container(pod, "made"), make_container(pod, "never")
    cpus = (await host.create(pod, made)).adjust.linux.resources.cpu.cpus
    await host.create(pod, never)
    host.pods, host.containers = [pod], [running(made)]
    host.drop()
    found = await until_row(agent, made, state="running")
    assert (found["cpus"], found["stance"]) == (cpus, "placed")
    status = await ask(agent, "status")
    # The other may still come: its place is kept for it.
    assert (status["in_doubt"], status["containers"]) == (1, {"placed": 2})


async def test_kill_9_between_the_answer_and_the_container_loses_nothing(host, start_plugin) -> None:
    agent = await start_plugin()
    pod = make_pod("p")
    container = make_container(pod)
    cpus = (await host.create(pod, container)).adjust.linux.resources.cpu.cpus
    await agent.kill()
    host.drop()
    host.pods, host.containers = [pod], [running(container)]
    await agent.start(command=PLUGIN)
    found = await until_row(agent, container, state="running")
    assert (found["cpus"], found["stance"]) == (cpus, "placed")
    status = await ask(agent, "status")
    assert (status["in_doubt"], status["containers"]) == (0, {"placed": 1})


async def test_an_update_is_answered_with_the_place_of_the_new_size(host, start_plugin) -> None:
    agent = await start_plugin()
    pod = make_pod("p")
    container = make_container(pod, cpu_limit=2000)
    before = await host.run(pod, container)
    larger = make_container(pod, cpu_limit=12_000).linux.resources
    request = nri.UpdateContainerRequest(pod=pod, container=container, linux_resources=larger)
    [update] = (await host.call("UpdateContainer", request)).update
    assert update.container_id == container.id
    assert update.ignore_failure
    cpus = update.linux.resources.cpu.cpus
    assert len(parse_cpus(cpus)) >= 12 > len(parse_cpus(before))
    # The old place is its own until the host says that it is done.
    assert (await row(agent, container))["cpus"] == before
    await host.tell("PostUpdateContainer", pod, container)
    assert (await row(agent, container))["cpus"] == cpus


async def test_others_make_room_in_the_answer(host, start_plugin) -> None:
    available = {"AvailableResources": {"CPU": "cpuset:0-7"}}
    agent = await start_plugin(policy={"Active": "topology-aware", **available})
    pods = [make_pod(f"p{i}") for i in range(8)]
    small = [make_container(pod, cpu_limit=500) for pod in pods]
    for pod, container in zip(pods, small):
        await host.run(pod, container)
    pod = make_pod("x")
    pod.linux.cgroup_parent = "/kubepods/poduid-x"
    container = make_container(pod, cpu_limit=4000)
    container.linux.oom_score_adj.value = -997
    container.linux.resources.memory.limit.value = 1 << 30
    reply = await host.create(pod, container)
    own = parse_cpus(reply.adjust.linux.resources.cpu.cpus)
    assert len(own) == 4
    assert reply.update
    for update in reply.update:
        assert update.ignore_failure
        assert not update.linux.resources.HasField("memory")
        assert own.isdisjoint(parse_cpus(update.linux.resources.cpu.cpus))
    rows = await ask(agent, "placements")
    assert all(own.isdisjoint(parse_cpus(found["cpus"])) for found in rows if found["pod"] != "x")


# ---------------------------------------------------------------------- what comes past it


def as_told(runtime: FakeRuntime, container_id: str, **fields: Any) -> tuple[nri.PodSandbox, nri.Container]:
    """A container of the runtime and its pod, as its NRI shows them."""
    record = runtime.containers[container_id]
    pod = make_pod(record.config.metadata.name)
    pod.id = record.sandbox_id
    container = make_container(pod, pod.name, cpu_limit=4000, **fields)
    container.id = container_id
    return pod, container


@pytest.mark.parametrize("away", ["the daemon", "the connection"])
@pytest.mark.parametrize("is_told", [True, False], ids=["the host tells when", "by CRI"])
async def test_what_started_while_no_events_came_is_placed_and_what_ran_before_is_not(
    host, start_plugin, runtime, away, is_told
) -> None:
    before = as_told(runtime, run_without_us(runtime, "before", cpu_limit=4000))
    host.pods, host.containers = [before[0]], [running(before[1])]
    agent = await start_plugin()
    await until_row(agent, before[1], stance="adopted")
    if away == "the daemon":
        await agent.terminate()
        # Nothing is left of what was known of it: that it ran before is told by when it started.
        (agent.state / "state.db").unlink()
    meanwhile = as_told(runtime, run_without_us(runtime, "meanwhile", cpu_limit=4000))
    host.pods.append(meanwhile[0])
    host.containers.append(running(meanwhile[1]))
    if is_told:
        for container in host.containers:
            container.started_at = runtime.containers[container.id].started_at
    host.drop()
    if away == "the daemon":
        await agent.start(command=PLUGIN)
    found = await until_row(agent, meanwhile[1], stance="placed", state="running")
    await runtime.wait_until(lambda: runtime.cpuset(meanwhile[1].id) == found["cpus"])
    assert (await row(agent, before[1]))["stance"] == "adopted"
    assert runtime.cpuset(before[1].id) == ""


async def test_what_starts_in_mode_off_is_adopted_after_it(host, start_plugin, runtime) -> None:
    agent = await start_plugin()
    runtime.scripts.clear()
    pod, known = as_told(runtime, run_without_us(runtime, "known", cpu_limit=4000))
    await until_row(agent, known, stance="adopted")
    await ask(agent, "mode", mode="off")
    pod, container = as_told(runtime, run_without_us(runtime, "off", cpu_limit=4000, running=False))
    assert await host.run(pod, container) == ""
    runtime.containers[container.id].state = cri.CONTAINER_RUNNING
    await ask(agent, "mode", mode="enforce")
    await until_row(agent, container, stance="adopted")
    assert runtime.cpuset(container.id) == ""


# ---------------------------------------------------------------------- what goes wrong


async def test_only_a_demand_that_cannot_be_met_fails_a_pod_and_a_namespace_that_fails_closed(
    host, start_plugin
) -> None:
    agent = await start_plugin(placement={"fail_closed_namespaces": ["strict"]})
    # 1. A container without a name cannot be understood.
    reply = await host.create(make_pod("p"), nri.Container(id="x"))
    assert reply == nri.CreateContainerResponse()
    with pytest.raises(CallFailed, match="could not be decided .unreadable. and strict fails closed"):
        await host.create(make_pod("q", "strict"), nri.Container(id="y"))
    # 2. Bytes that are no message at all; and an event nobody has heard of.
    assert host.connection is not None
    assert await host.connection.call("PostStartContainer", b"\xff\xff", 2.0) == b""
    await host.call("StateChange", nri.StateChangeEvent(event="LAST"))
    assert await counted(agent, "failed_open_total{reason=unreadable}") == 3
    # 3. A demand.
    pod = make_pod("d", annotations={"cri-resmgr.io/l3": "require"})
    with pytest.raises(CallFailed, match="^cri-resmgr: default/d/app wants 12 CPUs") as caught:
        await host.create(pod, make_container(pod, cpu_limit=12_000))
    assert caught.value.code == 9
    assert (await ask(agent, "status"))["nri"]["connected"]


async def test_in_other_modes_nothing_is_changed(host, start_plugin) -> None:
    agent = await start_plugin()
    for mode, stances in (("off", []), ("observe", ["observed"])):
        await ask(agent, "mode", mode=mode)
        pod = make_pod(mode)
        assert await host.run(pod, make_container(pod)) == ""
        assert [found["stance"] for found in await ask(agent, "placements")] == stances


# ---------------------------------------------------------------------- moves


async def test_moves_go_by_nri_where_that_is_safe_and_else_by_cri(runtime, host, start_plugin) -> None:
    host.known = MASK_ALL
    agent = await start_plugin()
    for number, (version, by) in enumerate([("", "cri"), ("v0.12.0", "cri"), ("v0.12.1", "nri")], 1):
        host.configure.NRI_version = version
        host.drop()
        await until(agent, lambda status, wanted=number + 1: status["nri"]["connections"] == wanted)
        assert (await ask(agent, "status"))["nri"]["moves_by"] == by
        pod = make_pod(f"p{number}")
        container = make_container(pod)
        await host.run(pod, container)
        await ask(agent, "release", container=container.id)
        sent = [update.container_id for update in host.updates]
        called = [call.message.container_id for call in runtime.calls_of(UPDATE)]
        assert [container.id in sent, container.id in called] == [by == "nri", by == "cri"]
    host.fails = True
    pod = make_pod("last")
    container = make_container(pod)
    await host.run(pod, container)
    [update] = (await ask(agent, "release", container=container.id))["updates"]
    assert not update["done"]
    assert (await ask(agent, "status"))["updates_waiting"] == 1


# ---------------------------------------------------------------------- who runs it


async def test_one_that_is_launched_takes_the_connection_it_is_given_and_then_the_socket(
    host, start_plugin
) -> None:
    host.chunks = 0  # as hosts before NRI 0.7: they do not synchronize those they launch
    given = await host.launch()
    environment = {
        "NRI_PLUGIN_SOCKET": str(given.fileno()),
        "NRI_PLUGIN_NAME": "mine",
        "NRI_PLUGIN_IDX": "42",
    }
    with given:
        starting = {"environment": environment, "keep": [given.fileno()]}
        agent = await start_plugin(connected=False, listed=True, start=starting)
    await host.ready()
    pod = make_pod("p")
    assert await host.run(pod, make_container(pod)) != ""
    status = await ask(agent, "status")
    assert (status["nri"]["connected"], status["nri"]["plugin"]) == (True, "42-mine")
    host.chunks = 1
    host.drop()
    await until(agent, lambda status: status["nri"]["connections"] == 2)
    assert [(found.plugin_name, found.plugin_idx) for found in host.registered] == [("mine", "42")] * 2


def script_of(folder: Path) -> Path:
    """The package's program for runtimes, with our command."""
    text = (ROOT / "packaging/files/10-cri-resmgr").read_text()
    script = folder / "10-mine"
    script.write_text(text.replace("/usr/bin/cri-resmgr nri run", f'{" ".join(PLUGIN)} "$@"'))
    return script


async def test_what_a_launched_one_is_told_and_asked_while_it_is_loaded_counts(host, start_plugin) -> None:
    host.configure.config = "placement:\n  unlimited: ccx\n"
    host.pods = [make_pod("old")]
    host.containers = [running(make_container(host.pods[0]))]
    host.chunks = 2
    given = await host.launch()
    start = {"environment": {"NRI_PLUGIN_SOCKET": str(given.fileno())}, "keep": [given.fileno()]}
    with given:
        starting = asyncio.ensure_future(start_plugin(start=start))
        await host.ready()
    # Long before it has an engine.
    pod = make_pod("p")
    request = nri.CreateContainerRequest(pod=pod, container=make_container(pod)).SerializeToString()
    assert host.connection is not None
    reply = nri.CreateContainerResponse.FromString(
        await host.connection.call("CreateContainer", request, 60.0)
    )
    assert reply.adjust.linux.resources.cpu.cpus != ""
    agent = await starting
    rows = {found["key"]: found["value"] for found in await ask(agent, "config")}
    assert rows["placement.unlimited"] == "ccx"
    await until_row(agent, host.containers[0], stance="adopted")
    assert (len(host.registered), len(host.masks), len(host.replies)) == (1, 1, 2)


async def test_a_launch_that_was_missed_kills_the_shell_and_the_plugin_connects_to_the_socket(
    host, start_plugin, tmp_path
) -> None:
    script = script_of(tmp_path)
    ours, given = socket.socketpair()
    ours.close()
    environment = {"NRI_PLUGIN_SOCKET": str(given.fileno()), "NRI_PLUGIN_IDX": "42"}
    with given:
        start = {"environment": environment, "keep": [given.fileno()], "command": ("/bin/sh", str(script))}
        agent = await start_plugin(connected=False, start=start)
    plugin = json.loads((agent.control.parent / "owner.lock").read_text())["pid"]
    try:
        assert agent.process is not None and agent.process.pid != plugin
        await agent.kill()  # as the runtime does it
        await host.ready()
        status = await until(agent, lambda status: status["nri"]["connected"])
        assert (status["nri"]["plugin"], status["nri"]["connections"]) == ("42-cri-resmgr", 1)
        await agent.logged("42-cri-resmgr: the launch was missed")
    finally:
        os.kill(plugin, signal.SIGTERM)
        await eventually(lambda: not is_alive(plugin), lambda: "the plugin ends")


async def test_the_shell_of_a_launched_one_ends_with_it_in_order(host, start_plugin, tmp_path) -> None:
    script = script_of(tmp_path)
    agent = await start_plugin(start={"command": ("/bin/sh", str(script))})
    plugin = json.loads((agent.control.parent / "owner.lock").read_text())["pid"]
    await agent.terminate()
    assert not is_alive(plugin)


async def test_a_resize_while_it_was_not_asked_is_followed(host, start_plugin, runtime) -> None:
    agent = await start_plugin()
    runtime.scripts.clear()  # the runtime's list can be had, and says what runs
    old = run_without_us(runtime, "old", cpu_request=1000, cpu_limit=8000)
    await ask(agent, "mode", mode="enforce")
    await until(agent, lambda rows: [r["stance"] for r in rows] == ["adopted"], "placements")
    await ask(agent, "mode", mode="off")
    runtime.containers[old].resources.cpu_quota = 200_000
    await ask(agent, "mode", mode="enforce")
    [known] = await until(agent, lambda rows: [r["stance"] for r in rows] == ["placed"], "placements")
    assert (known["cpu_limit_milli"], known["level"]) == (2000, "ccx")
    assert await counted(agent, "drift_total{result=resized}") == 1
    await until(agent, lambda status: status["counters"].get("cri_resmgr_updates_total{result=sent}") == 1)


@pytest.mark.parametrize("mode", ["off", "enforce"])
async def test_the_event_before_each_start_is_asked_for_where_isolation_is_on(
    host, start_plugin, mode: str
) -> None:
    await start_plugin(isolation={"caches": mode})
    await host.ready()
    assert bool(host.masks[-1] & STARTS) is (mode == "enforce")
