"""NRI both ways, on a real runtime: how plugins that we host want threads to be scheduled is done by isolation, and our own
plugin has the runtime do it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.placement import rivals
from bench.placement.machines import Machine
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.cgroups import cgroup_mounts
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES, Node, Running, problem_of, until
from tests.e2e.runtime import MakeRuntime
from tests.functional.nri.support import adjust, hosting, plugin
from tests.peers.programs import Unavailable, find

pytestmark = pytest.mark.containerd

ENFORCE = {"isolation": {"scheduling": "enforce"}}
#: The first that runs of the image says how it is scheduled: nice value and policy of proc_pid_stat(5).
SAYS = ("sh", "-c", 'read -r line < /proc/self/stat; echo "$line" > /stat; exec sleep 1000000')
SMALL: dict[str, Any] = {"cpu_request": 200, "cpu_limit": 1000}
BATCH_5, PLAIN = (5, os.SCHED_BATCH), (0, os.SCHED_OTHER)


def _scheduled(stat: str) -> tuple[int, int]:
    fields = stat.rpartition(")")[2].split()
    return int(fields[16]), int(fields[38])


def now(node: Node, container: Running) -> tuple[int, int]:
    """How the first process of a container is scheduled."""
    return _scheduled(Path(f"/proc/{node.runtime.pid_of(container.id)}/stat").read_text())


async def until_now(node: Node, container: Running, wanted: tuple[int, int]) -> None:
    await until(lambda: asyncio.to_thread(now, node, container), lambda found: found == wanted)


# ---------------------------------------------------------------------- as host


@pytest.fixture
async def hosting_node(stopped_node: Node) -> AsyncIterator[Node]:
    stopped_node.agent.write_config({"nri": hosting(), **ENFORCE})
    await stopped_node.agent.start()
    await stopped_node.until_runtime_is_known()
    return stopped_node


async def test_what_a_plugin_asks_for_is_the_containers_over_restarts_until_isolation_is_off(
    hosting_node: Node,
) -> None:
    node = hosting_node
    scheduler = {"policy": "SCHED_BATCH", "nice": 5}
    asked = adjust(linux={"scheduler": scheduler, "io_priority": {"class": "IOPRIO_CLASS_BE", "priority": 6}})
    async with plugin(node.agent, mask=0xFFF, CreateContainer=asked):
        container = await node.run("pod", **SMALL)
        await until_now(node, container, BATCH_5)
        assert "be:6" in (await node.agent.cli("isolation"))[1]
    await node.agent.kill()
    first = node.runtime.pid_of(container.id)
    os.setpriority(os.PRIO_PROCESS, first, 0)
    os.sched_setscheduler(first, os.SCHED_OTHER, os.sched_param(0))
    await node.agent.start()
    await until_now(node, container, BATCH_5)
    node.agent.write_config({"nri": hosting(), "isolation": {"scheduling": "off"}})
    node.agent.reload()
    await until_now(node, container, PLAIN)
    async with plugin(node.agent, mask=0xFFF, CreateContainer=asked):
        _, said = await problem_of(node.run("other", **SMALL))
        assert "LinuxSched: CRI has no scheduler; isolation.scheduling: enforce does it" in said


@contextlib.asynccontextmanager
async def balloons_of_nri_plugins(node: Node, folder: Path) -> AsyncIterator[None]:
    """Their program, which we host, with a balloon type that has a scheduling class."""
    try:
        program = find("nri-balloons")["nri-balloons"]
    except Unavailable as reason:
        pytest.skip(f"The plugin is nri-plugins': {reason}.")
    policy = {
        "apiVersion": "config.nri/v1alpha1",
        "kind": "BalloonsPolicy",
        "metadata": {"name": "default"},
        "spec": {
            "pinCPU": False,
            "reservedResources": {"cpu": "cpuset:0"},
            "balloonTypes": [{"name": "later", "namespaces": ["*"], "schedulingClass": "background"}],
            "schedulingClasses": [
                {"name": "background", "policy": "batch", "nice": 5, "ioClass": "be", "ioPriority": 6}
            ],
        },
    }
    (folder / "policy.json").write_text(json.dumps(policy))
    (folder / "cgroup").mkdir()
    machine = Machine("1 node x 2 L3s of 1 core", 1, 1, 2, 1, threads=1)
    rivals.write_root(machine.data(), folder / "root")
    words = {
        "host-root": folder / "root",
        "config-file": folder / "policy.json",
        "state-dir": folder / "state",
        "pid-file": folder / "pid",
        "cgroup-mount": folder / "cgroup",
        "nri-plugin-name": "balloons",
        "nri-socket": node.agent.config["nri"]["socket"],
    }
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, *(f"--{key}={value}" for key, value in words.items()), stdout=log, stderr=log
        )
    try:
        await until(
            lambda: node.ask("status"), lambda status: "balloons" in json.dumps(status.get("nri", {}))
        )
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.long("where it is not built yet that takes two minutes")
async def test_the_scheduling_class_of_nri_plugins_balloons_is_had(
    hosting_node: Node, tmp_path: Path
) -> None:
    async with balloons_of_nri_plugins(hosting_node, tmp_path):
        container = await hosting_node.run("pod", **SMALL)
        await until_now(hosting_node, container, BATCH_5)
        assert "as batch nice=5 io=be:6" in (await hosting_node.agent.cli("isolation"))[1]


# ---------------------------------------------------------------------- as plugin


@pytest.fixture
async def plugin_node(make_runtime: MakeRuntime, tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose kubelet does not know of us, and whose runtime asks us."""
    with make_runtime(tmp_path / "c", cpus=CPUS, has_nri=True) as runtime:
        async with CriClient(runtime.socket) as direct:
            agent = Agent(runtime.socket, TWO_NODES, REAL_CGROUPS)
            classes = [
                {"name": "Burstable", "policy": "batch", "nice": "5", "ioClass": "be", "ioPriority": "6"},
                {"name": "urgent", "policy": "fifo", "priority": "7"},
            ]
            socket = {"plugin": {"socket": str(runtime.nri_socket)}}
            agent.write_config(
                {"nri": socket, "control": {"scheduling": {"schedulingClasses": classes}}, **ENFORCE}
            )
            node = Node(runtime, agent, direct, direct)
            try:
                await agent.start(command=(sys.executable, "-m", "cri_proxy", "nri"))
                await until(lambda: node.ask("status"), lambda status: status["nri"]["connected"])
                await node.until_runtime_is_known()
                await until(
                    lambda: node.ask("isolation"),
                    lambda status: status["subjects"]["scheduling"]["mode"] == "enforce",
                )
                yield node
            finally:
                await agent.close()


async def test_the_first_instruction_of_an_image_is_scheduled_by_its_class(plugin_node: Node) -> None:
    node = plugin_node
    container = await node.run("pod", command=SAYS, **SMALL)

    async def said() -> str:
        out, _, _ = await node.kubelet.exec(container.id, "cat", "/stat")
        return out

    first = _scheduled(await until(said, bool))
    verbose = await node.direct.status(container.id, verbose=True)
    process = json.loads(verbose.info["info"])["runtimeSpec"]["process"]
    name, version = (await node.ask("status"))["nri"]["runtime"].split()[:2]
    if name == "containerd" and version.lstrip("v") >= "2":
        assert first == BATCH_5
        assert process["scheduler"] == {"policy": "SCHED_BATCH", "nice": 5}
        assert process["ioPriority"] == {"class": "IOPRIO_CLASS_BE", "priority": 6}
    else:
        # Its NRI has no such fields. Threads are given it before they run, if that takes no longer than a start waits.
        assert "scheduler" not in process and first in (BATCH_5, PLAIN)
        await until_now(node, container, BATCH_5)


async def test_a_realtime_class_that_the_kernel_refuses_fails_no_start_and_is_told(plugin_node: Node) -> None:
    """Where real-time threads are shared out by cgroup (CONFIG_RT_GROUP_SCHED on cgroup v1) a container's has no time for
    them; elsewhere the class is had. The runtime is not asked: it would fail the start."""
    node = plugin_node
    pod = await node.pod("pod", annotations={"scheduling-class.cri-resmgr.io": "urgent"})
    container = await node.run(pod, command=SAYS, **SMALL)
    has_budget = not any(
        (path / "cpu.rt_runtime_us").exists() for path, controllers in cgroup_mounts() if "cpu" in controllers
    )
    if has_budget:
        await until_now(node, container, (0, os.SCHED_FIFO))
    else:

        async def told() -> str:
            return (await node.agent.cli("isolation"))[1]

        text = await until(told, lambda text: "1 container cannot be scheduled" in text)
        assert (
            "as fifo priority=7; the policy fifo is refused: the container's cgroup has no time for it"
            in text
        )
        assert now(node, container) == PLAIN
    verbose = await node.direct.status(container.id, verbose=True)
    assert "scheduler" not in json.loads(verbose.info["info"])["runtimeSpec"]["process"]
