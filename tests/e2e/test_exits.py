"""Exits are noticed by polling where no events can be read; the next attempt comes back to the same CPUs."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.e2e.node import Node, Running, until

pytestmark = pytest.mark.containerd

SMALL = {"cpu_request": 100, "cpu_limit": 1000}


@pytest.fixture
async def polling_node(stopped_node: Node) -> Node:
    stopped_node.agent.write_config({"constants": {"reconcile_poll_s": 0.1}})
    await stopped_node.agent.start()
    await stopped_node.until_runtime_is_known()
    return stopped_node


async def test_the_next_attempt_gets_the_same_cpus(polling_node: Node) -> None:
    node = polling_node
    first = await node.run("p", **SMALL)
    assert await node.cpus(first) == "0"
    await crash(node, first)
    assert (await node.until_known(first, state="held"))["cpus"] == "0"
    # By load alone the next would go to CPU 1: one is on 0 meanwhile.
    others = [await node.run(f"q{i}", **SMALL) for i in range(2)]
    assert [await node.cpus(other) for other in others] == ["1", "0"]
    second = await node.run(first.pod, attempt=1, **SMALL)
    assert await node.cpus(second) == "0"
    assert "attempt 0" in (await node.row(second))["why"]
    # As kubelet's garbage collector: the old attempt's end is not the new one's.
    await node.kubelet.remove(first.id)
    assert (await node.row(second))["cpus"] == "0"


async def test_an_exit_while_the_daemon_was_down_is_noticed_too(polling_node: Node) -> None:
    node = polling_node
    made = await node.run("p", **SMALL)
    await node.agent.kill()
    await crash(node, made)
    await node.agent.start()
    await node.until_known(made, state="held")
    assert await node.cpus(await node.run(made.pod, attempt=1, **SMALL)) == "0"


async def test_of_a_container_that_was_adopted_nothing_is_left(polling_node: Node) -> None:
    node = polling_node
    made = await node.run("p", by=node.direct, **SMALL)
    await node.agent.kill()
    await node.agent.start()
    await node.until_known(made, stance="adopted")
    await crash(node, made)
    await until(lambda: node.ask("placements"), lambda rows: rows == [])
    assert (await node.ask("status"))["degraded"] == {}


async def test_a_container_that_went_while_the_daemon_was_down_is_forgotten(polling_node: Node) -> None:
    node = polling_node
    made = await node.run("p", **SMALL)
    await node.agent.kill()
    await node.direct.stop_pod(made.pod.id)
    await node.direct.remove_pod(made.pod.id)
    await node.agent.start()
    await until(lambda: node.ask("placements"), lambda rows: rows == [])


async def test_an_end_with_code_0_holds_for_the_next_container_of_the_pod(polling_node: Node) -> None:
    """That is how init containers look: one after another, each on the same CPUs."""
    node = polling_node
    pod = await node.pod("p")
    places = []
    for name in ("init-1", "init-2", "app"):
        ended = await node.run(pod, name, command=("sh", "-c", "read line < /proc/1/comm"), **SMALL)
        places.append((await node.until_known(ended, state="held"))["cpus"])
    assert places == ["0", "0", "0"]


async def test_a_stopped_pod_holds_nothing(polling_node: Node) -> None:
    node = polling_node
    made = await node.run("p", **SMALL)
    await node.kubelet.stop_pod(made.pod.id)
    assert await node.ask("placements") == []
    assert await node.cpus(await node.run("q", **SMALL)) == "0"


async def crash(node: Node, made: Running) -> None:
    """As the kernel's OOM killer would; until the runtime says so."""
    os.kill(node.runtime.pid_of(made.id), signal.SIGKILL)

    async def state() -> Any:
        return (await node.direct.status(made.id)).status.state

    await until(state, lambda state: state == cri.CONTAINER_EXITED)
