"""Our plugin in the NRI of a real containerd: kubelet talks to containerd itself, and we are asked by that.

The machine it pretends to be has two L3s of one CPU. What is asserted is what the containers' cgroups say.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_api.control import ControlError
from cri_proxy.control import DaemonAbsent
from cri_proxy.nri.dispatch import mask_of
from cri_proxy.nri.io.connection import CallFailed, NriConnection
from cri_proxy.nri.subscription import MASK_CLASSIC, subscription
from tests.agent import ROOT, Agent
from tests.cri_client import CPU_PERIOD_US, CriClient
from tests.e2e.node import (
    CPUS,
    REAL_CGROUPS,
    TWO_NODES,
    Node,
    problem_of,
    until,
)
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.observer import QUICK, ObserverProcess

pytestmark = pytest.mark.containerd

PLUGIN = (sys.executable, "-m", "cri_proxy", "nri")
SMALL: dict[str, Any] = {"cpu_request": 200, "cpu_limit": 1000}
MANY = 200


@pytest.fixture(scope="module")
def shared_runtime(
    make_runtime: MakeRuntime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path_factory.mktemp("nri") / "c", cpus=CPUS, has_nri=True) as running:
        yield running


@pytest.fixture
async def stopped_node(runtime: RealRuntime, direct: CriClient) -> AsyncIterator[Node]:
    """A node whose kubelet does not know of us."""
    agent = Agent(runtime.socket, TWO_NODES, REAL_CGROUPS)
    agent.write_config({"nri": {"plugin": {"socket": str(runtime.nri_socket)}}})
    try:
        yield Node(runtime, agent, direct, direct)
    finally:
        await agent.close()


@pytest.fixture
async def node(stopped_node: Node) -> Node:
    await start(stopped_node)
    return stopped_node


async def start(node: Node) -> None:
    """Start the plugin; returns once the runtime has synchronized with it, and the lists were compared."""
    await node.agent.start(command=PLUGIN)
    await until_connected(node)
    await node.until_runtime_is_known()


async def until_connected(node: Node, connections: int = 1) -> dict[str, Any]:
    def right(status: Any) -> bool:
        return bool(status["nri"]["connected"] and status["nri"]["connections"] >= connections)

    return dict((await until(lambda: node.ask("status"), right))["nri"])


async def test_new_containers_run_where_they_are_placed(node: Node) -> None:
    made = [await node.run(f"p{i}", **SMALL) for i in range(4)]
    assert [await node.cpus(container) for container in made] == ["0", "1", "0", "1"]
    rows = [await node.until_known(container, state="running", stance="placed") for container in made]
    assert {row["qos"] for row in rows} == {"burstable"}
    code, out, _ = await node.agent.cli("explain", "default/p1/main")
    assert code == 0
    assert "default/p1/main" in out


async def test_status_says_how_it_is_connected(node: Node) -> None:
    status = await node.ask("status")
    assert status["front_end"] == "nri-plugin"
    assert status["sockets"] == []
    assert status["exits"] == "the runtime's NRI events"
    found = status["nri"]
    # NRI says its version from 0.12 on, as containerd 2.2: from 0.12.1 on it takes updates at any time.
    by = "nri" if found["nri_version"] else "cri"
    events = "0x1fdf" if found["nri_version"] or found["runtime"].startswith("cri-o ") else "0x07df"
    assert (found["plugin"], found["moves_by"], found["subscription"]) == ("10-cri-resmgr", by, events)
    assert found["runtime"].split()[0] in ("containerd", "cri-o")
    assert status["degraded"] == {}
    assert (await node.agent.cli("status"))[0] == 0


async def test_a_restarted_container_gets_the_place_of_its_attempt_before(node: Node) -> None:
    first = await node.run("p", cpu_limit=1000)
    await node.run("q", **SMALL)
    await node.kubelet.stop(first.id)
    await node.until_known(first, state="held")
    second = await node.run(first.pod, attempt=1, cpu_limit=1000)
    await node.kubelet.remove(first.id)
    assert await node.cpus(second) == "0"
    assert (await node.until_known(second, state="running"))["attempt"] == 1
    assert await node.row(first) == {}


async def test_one_that_takes_cpus_for_itself_pushes_others_off_before_it_starts(stopped_node: Node) -> None:
    node = stopped_node
    node.agent.write_config({"policy": {"Active": "topology-aware"}})
    await start(node)
    shared = [await node.run(f"p{i}", qos="besteffort") for i in range(3)]
    exclusive = await node.run("x", qos="guaranteed", cpu_limit=1000, memory_limit=1 << 26)
    row = await node.until_known(exclusive, state="running")
    [own] = {row["cpus"]}
    assert row["exclusive"] == own
    assert await node.cpus(exclusive) == own
    places = [await node.cpus(container) for container in shared]
    assert set(places) == {"1" if own == "0" else "0"}
    # Its CPUs are theirs again once it has gone.
    await node.kubelet.stop(exclusive.id)
    await node.kubelet.remove(exclusive.id)
    assert (await node.ask("status"))["invariants"] == []


async def test_a_resize_gives_the_cpus_of_its_rung_and_what_was_asked_for(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000)
    places = [await node.cpus(made)]
    for limit in (2, 1):
        await node.kubelet.update(
            made.id, cpu_period=CPU_PERIOD_US, cpu_quota=limit * CPU_PERIOD_US, cpu_shares=1024 * limit
        )
        assert node.runtime.quota_of(made.id) == limit * CPU_PERIOD_US
        places.append(await node.cpus(made))
    assert places == ["0", "0-1", "0"]
    await until(lambda: node.ask("status"), lambda status: status["in_doubt"] == 0)
    assert (await node.row(made))["cpu_limit_milli"] == 1000


@asynccontextmanager
async def other_plugin(path: Path) -> AsyncIterator[None]:
    """One that is asked after ours, and does not want containers that are called bad."""
    synchronized = asyncio.Event()

    async def configure(message: bytes, timeout_s: float) -> bytes:
        return bytes(nri.ConfigureResponse(events=mask_of([nri.CREATE_CONTAINER])).SerializeToString())

    async def synchronize(message: bytes, timeout_s: float) -> bytes:
        synchronized.set()
        return b""

    async def create(message: bytes, timeout_s: float) -> bytes:
        if nri.CreateContainerRequest.FromString(message).container.name == "bad":
            raise CallFailed(2, "it is bad")
        return b""

    handlers = {"Configure": configure, "Synchronize": synchronize, "CreateContainer": create}
    connection = NriConnection(*await asyncio.open_unix_connection(str(path)), "plugin", handlers)
    running = asyncio.ensure_future(connection.run())
    register = nri.RegisterPluginRequest(plugin_name="other", plugin_idx="90")
    await connection.call("RegisterPlugin", register.SerializeToString(), 5)
    await asyncio.wait_for(synchronized.wait(), 5)
    try:
        yield
    finally:
        connection.close("done")
        await running


async def test_a_cpuset_of_kubelets_is_a_fence_also_when_it_changes(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000, cpuset="1")
    assert await node.cpus(made) == "1"
    await node.kubelet.update(made.id, cpuset_cpus="0")
    assert await node.cpus(made) == "0"
    await node.until_known(made, cpus="0", stance="placed")


async def test_a_create_that_the_runtime_takes_back_leaves_no_trace(node: Node) -> None:
    pod = await node.pod("p")
    async with other_plugin(node.runtime.nri_socket):
        code, details = await problem_of(node.kubelet.create(pod, "bad", cpu_limit=1000))
        assert details.endswith("it is bad"), (code, details)
        status = await node.ask("status")
        if status["nri"]["runtime"].startswith("cri-o"):
            pytest.skip("CRI-O does not tell of it.")
        assert status["counters"]["cri_resmgr_requests_total{method=StopContainer,outcome=cancelled}"] == 1
        assert (status["containers"], status["in_doubt"]) == ({}, 0)
        assert await node.cpus(await node.run(pod, "good", cpu_limit=1000)) == "0"


@pytest.mark.parametrize("until_s", [30, pytest.param(300, marks=pytest.mark.long)], ids=["ends", "stays"])
async def test_a_create_whose_refusal_no_event_tells_of_is_taken_over_by_the_next(
    node: Node, until_s: int
) -> None:
    """Its CPUs are free a moment after the end of its pod; where that stays, once the create would be over."""
    if not (await node.ask("status"))["nri"]["runtime"].startswith("cri-o"):
        pytest.skip("This runtime tells of it.")
    pod = await node.pod("p")
    async with other_plugin(node.runtime.nri_socket):
        for _ in range(3):
            _, details = await problem_of(node.kubelet.create(pod, "bad", cpu_limit=1000))
            assert details.endswith("it is bad")
            assert len(await node.ask("placements")) == 1
    if until_s == 30:
        await node.kubelet.stop_pod(pod.id)
        await node.kubelet.remove_pod(pod.id)
    await until(lambda: node.ask("placements"), lambda rows: rows == [], until_s)
    assert (await node.ask("status"))["in_doubt"] == 0


async def test_a_refusal_reaches_the_client_with_its_reason(node: Node) -> None:
    pod = await node.pod("p", annotations={"cri-resmgr.io/l3": "require"})
    code, details = await problem_of(node.kubelet.create(pod, "big", cpu_limit=2000))
    assert "default/p/big" in details, (code, details)


async def test_two_pods_that_talk_end_in_one_numa_node_and_that_is_no_clients_wish(
    stopped_node: Node,
) -> None:
    """The runtime tells us of an update of our own, too; it must not become a fence."""
    node = stopped_node
    affinity = {"rebalance": "manual", "cooldown": "1ms"}
    node.agent.write_config({"affinity": affinity, "constants": QUICK})
    await start(node)
    one, two, other = [await node.run(name, name="app", **SMALL) for name in ("a", "b", "c")]
    assert await node.cpus(one) != await node.cpus(two)
    flow = {"a": "default/a/app", "b": "default/b/app", "bytes_ab": 5e7, "bytes_ba": 1e6, "messages": 1000}
    async with ObserverProcess(node.agent, [flow]):
        await until(lambda: node.ask("affinity"), lambda told: len(told["edges"]) == 1 and not told["frozen"])
        code, out, err = await node.agent.cli("rebalance")
        assert code == 0, (out, err)
    assert await node.cpus(one) == await node.cpus(two)
    [found] = [(await node.ask("explain", container=one.id))["containers"][0]]
    assert found["fence_cpus"] is None
    # And each still grows beyond it.
    await node.kubelet.update(one.id, cpu_period=CPU_PERIOD_US, cpu_quota=2 * CPU_PERIOD_US, cpu_shares=2048)
    assert await node.cpus(one) == "0-1"
    assert await node.cpus(other) in ("0", "1")


async def test_what_runs_already_is_adopted_and_keeps_what_it_has(stopped_node: Node) -> None:
    node = stopped_node
    before = await node.run("old", cpu_limit=1000, cpuset="1")
    await start(node)
    row = await node.until_known(before, stance="adopted", state="running")
    assert (row["cpus"], await node.cpus(before)) == ("1", "1")


async def test_nothing_moves_when_the_runtime_comes_back(node: Node) -> None:
    made = [await node.run(f"p{i}", **SMALL) for i in range(4)]
    before = [await node.cpus(container) for container in made]
    node.runtime.kill()
    await until(lambda: node.ask("status"), lambda status: not status["nri"]["connected"])
    assert "nri" in (await node.ask("status"))["degraded"]
    await asyncio.to_thread(node.runtime.start)
    await until_connected(node, connections=2)
    for container in made:
        await node.until_known(container, state="running", stance="placed")
    assert [await node.cpus(container) for container in made] == before
    status = await until(lambda: node.ask("status"), lambda status: not status["degraded"])
    assert (status["containers"], status["in_doubt"], status["held"]) == ({"placed": 4}, 0, 0)
    assert not any(name.startswith("cri_resmgr_updates") for name in status["counters"])
    assert await node.cpus(await node.run("next", **SMALL)) in ("0", "1")


async def test_our_restart_moves_nothing_and_knows_what_happened_meanwhile(node: Node) -> None:
    kept, ended = await node.run("kept", **SMALL), await node.run("ended", **SMALL)
    before = await node.cpus(kept)
    await node.agent.kill()
    await node.kubelet.stop(ended.id)
    await node.kubelet.remove(ended.id)
    await start(node)
    await node.until_known(kept, state="running", stance="placed")
    assert await node.cpus(kept) == before
    await until(lambda: node.row(ended), lambda row: row == {})


async def test_what_started_while_we_were_away_is_placed_and_what_ran_before_us_is_not(
    stopped_node: Node,
) -> None:
    node = stopped_node
    before = await node.run("before", cpu_limit=1000)
    await start(node)
    await node.until_known(before, stance="adopted", state="running")
    await node.agent.terminate()
    away = await node.run("away", **SMALL)
    assert await node.cpus(away) == "0-1"
    await start(node)
    row = await node.until_known(away, stance="placed", state="running")
    assert row["cpus"] in ("0", "1")
    await until(lambda: node.cpus(away), lambda cpus: cpus == row["cpus"])
    assert await node.cpus(before) == "0-1"
    assert (await node.row(before))["stance"] == "adopted"


async def test_a_container_of_which_the_answer_was_late_is_placed_all_the_same(node: Node) -> None:
    pod = await node.pod("late")
    assert node.agent.process is not None
    node.agent.process.send_signal(signal.SIGSTOP)
    try:
        late = await node.run(pod, **SMALL)  # the runtime goes on without us after 2 s
    finally:
        node.agent.process.send_signal(signal.SIGCONT)
    row = await node.until_known(late, stance="placed", state="running")
    assert row["cpus"] in ("0", "1")
    await until(lambda: node.cpus(late), lambda cpus: cpus == row["cpus"])
    status = await until(lambda: node.ask("status"), lambda status: not status["in_doubt"])
    assert status["invariants"] == []


async def test_200_containers_are_synchronized_in_time(stopped_node: Node) -> None:
    """Created is enough: the runtime tells of them as of those that run."""
    node = stopped_node
    pods = [await node.pod(f"p{i}") for i in range(4)]
    for start_at in range(0, MANY, 8):
        numbers = range(start_at, start_at + 8)
        await asyncio.gather(*(node.kubelet.create(pods[i % 4], f"c{i}", cpu_limit=1000) for i in numbers))
    await start(node)
    await node.agent.logged(f"containers={MANY}")
    status = await node.ask("status")
    print(f"Synchronize of {MANY} containers: {status['nri']['synchronize_ms']} ms")
    assert (status["nri"]["connections"], status["degraded"]) == (1, {})


async def owner(node: Node) -> int:
    """The process that owns the node and can be asked; 0 = none yet."""
    try:
        await node.ask("status")
    except (ControlError, DaemonAbsent):  # there is none, or it has just ended
        return 0
    return int(json.loads(node.agent.control.with_name("owner.lock").read_text())["pid"])


@pytest.fixture
def patient_runtime(make_runtime: MakeRuntime, tmp_path: Path) -> Iterator[RealRuntime]:
    """One that waits for an answer longer than a plugin takes to be loaded here."""
    with make_runtime(tmp_path / "c", cpus=CPUS, has_nri=True, nri_timeout_s=20) as running:
        yield running


async def crash(node: Node, pid: int) -> None:
    """Kill a launched plugin: containerd goes on without it, and does not launch it again."""
    os.kill(pid, signal.SIGKILL)
    await until(lambda: owner(node), lambda pid: pid == 0)
    for number in range(2):
        assert await node.cpus(await node.run(f"unplaced-{number}", **SMALL)) == "0-1"
    assert await owner(node) == 0


async def test_a_runtime_may_launch_it_and_again_after_a_restart_and_the_first_create_is_placed(
    patient_runtime: RealRuntime,
) -> None:
    runtime = patient_runtime
    agent = Agent(runtime.socket, TWO_NODES, REAL_CGROUPS)
    agent.write_config({"nri": {"plugin": {"socket": str(runtime.nri_socket)}}})
    for folder in (runtime.nri_plugins, runtime.nri_config):
        folder.mkdir(exist_ok=True)
    program, config = runtime.nri_plugins / "10-cri-resmgr", runtime.nri_config / "10-cri-resmgr.conf"
    command = f"{sys.executable} -m cri_proxy nri run --config {agent.config_file}"
    program.write_text(f"#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {command} 2>>{agent.folder}/log\n")
    program.chmod(0o755)
    config.write_text("placement:\n  unlimited: ccx\n")
    try:
        async with CriClient(str(runtime.socket)) as kubelet:
            node = Node(runtime, agent, kubelet, kubelet)
            # Of a pod that is there before, no other event comes first.
            pod = await node.pod("p")
            # The second takes the place of the first, which still waits for its runtime.
            for launch in ("first", "second", "after-a-crash"):
                before = await owner(node)
                if launch == "after-a-crash":
                    await crash(node, before)
                runtime.kill()
                await asyncio.to_thread(runtime.start)
                made = await node.run(pod, launch, **SMALL)
                assert await node.cpus(made) in ("0", "1")
                await until(lambda: owner(node), lambda pid, before=before: pid not in (0, before))
                found = await until_connected(node)
                assert found["launched_by_runtime"] is True
                # What the runtime's configuration of the plugin says counts.
                rows = {row["key"]: row for row in await node.ask("config")}
                assert rows["placement.unlimited"]["value"] == "ccx"
    finally:
        await agent.close()


REQUIRED = """\
[plugins."io.containerd.nri.v1.nri".default_validator]
  enable = true
  required_plugins = ["cri-resmgr"]
"""


@pytest.fixture
def strict_runtime(make_runtime: MakeRuntime, tmp_path: Path) -> Iterator[RealRuntime]:
    """One that creates nothing without our plugin."""
    with make_runtime(tmp_path / "c", cpus=CPUS, has_nri=True, more_config=REQUIRED) as running:
        yield running


async def test_a_runtime_that_requires_the_plugin_creates_nothing_without_it(
    strict_runtime: RealRuntime,
) -> None:
    """As docs/nri.md says for where a container must not start unplaced."""
    runtime = strict_runtime
    async with CriClient(str(runtime.socket)) as kubelet:
        version = await kubelet.call("Version", cri.VersionRequest())
        if not subscription(version.runtime_name, version.runtime_version, "") & ~MASK_CLASSIC:
            pytest.skip(f"{version.runtime_name} {version.runtime_version} has no validators.")
        if version.runtime_name == "cri-o":
            pytest.skip("The plugin is required by containerd's configuration here.")
        config = {**REAL_CGROUPS, "nri": {"plugin": {"socket": str(runtime.nri_socket)}}}
        agent = Agent(runtime.socket, TWO_NODES, config)
        try:
            node = Node(runtime, agent, kubelet, kubelet)
            pod = await node.pod("p")
            await start(node)
            assert await node.cpus(await node.run(pod, "with", **SMALL)) in ("0", "1")
            await agent.kill()
            # The runtime finds it gone with its next event; a create that is this event has counted it among those asked.
            other = await node.pod("q")
            _, details = await problem_of(kubelet.create(other, "without", **SMALL))
            assert 'required plugin "cri-resmgr" not present' in details
            await start(node)
            assert await node.cpus(await node.run(pod, "again", **SMALL)) in ("0", "1")
        finally:
            await agent.close()
