"""CRI v1alpha2, as kubelets before 1.26 speak it, on containerd 1.x: creates, resizes, restarts, adoption, events."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CPU_PERIOD_US, CriClient
from tests.e2e.node import Node, needs_api, problem_of, until

pytestmark = pytest.mark.containerd

API = "runtime.v1alpha2"
ONE_CPU = {"cpu_request": 250, "cpu_limit": 1000}


@pytest.fixture
async def old_node(stopped_node: Node) -> AsyncIterator[Node]:
    """A node whose daemon is configured, not started, and whose kubelet speaks v1alpha2."""
    node = stopped_node
    async with CriClient(str(node.runtime.socket), API) as direct:
        await needs_api(direct)
        version = await direct.call("Version", cri.VersionRequest())
    assert version.runtime_api_version == "v1alpha2"
    node.agent.write_config({"constants": {"reconcile_poll_s": 0.1, "reconcile_interval_s": 0.2}})
    async with CriClient(node.agent.socket, API) as kubelet:
        node.kubelet = kubelet
        yield node


@pytest.fixture
async def node(old_node: Node) -> Node:
    """The same with a daemon that runs."""
    await old_node.agent.start()
    await old_node.until_runtime_is_known()
    return old_node


async def test_a_create_is_placed_and_a_resize_moves_it(node: Node) -> None:
    small, wide = await node.run("small", **ONE_CPU), await node.run("wide", cpu_request=500, cpu_limit=2000)
    assert (await node.cpus(small), await node.cpus(wide)) == ("0", "0-1")
    await node.kubelet.update(wide.id, cpu_period=CPU_PERIOD_US, cpu_quota=CPU_PERIOD_US, cpu_shares=512)
    assert await node.cpus(wide) == "1"
    assert node.runtime.quota_of(wide.id) == CPU_PERIOD_US
    assert (await node.row(wide))["cpu_limit_milli"] == 1000


async def test_the_next_attempt_has_the_place_of_the_one_before(node: Node) -> None:
    first = await node.run("first", **ONE_CPU)
    other = await node.run("other", **ONE_CPU)
    await node.kubelet.stop(other.id)
    again = await node.run(other.pod, attempt=1, **ONE_CPU)
    assert (await node.cpus(first), await node.cpus(again)) == ("0", "1")
    await node.kubelet.remove(other.id)
    assert set(await _known(node)) == {first.id, again.id}


async def test_after_the_daemons_end_nothing_has_moved(node: Node) -> None:
    kept = [await node.run(name, **ONE_CPU) for name in ("one", "two")]
    places = [await node.cpus(each) for each in kept]
    await node.agent.kill()
    await node.agent.start()
    await node.until_runtime_is_known()
    assert [await node.cpus(each) for each in kept] == places
    for each in kept:
        await node.until_known(each, stance="placed")
    assert await node.cpus(await node.run("wide", cpu_request=100, cpu_limit=2000)) == "0-1"


async def test_what_ran_before_is_adopted_and_placed_by_its_next_resize(old_node: Node) -> None:
    node = old_node
    async with CriClient(str(node.runtime.socket), API) as before:
        made = await node.run("before", by=before, cpu_request=100, cpu_limit=2000)
    await node.agent.start()
    await node.until_known(made, stance="adopted", cpu_limit_milli=2000)
    await node.kubelet.update(made.id, cpu_period=CPU_PERIOD_US, cpu_quota=CPU_PERIOD_US, cpu_shares=256)
    row = await node.until_known(made, stance="placed", cpu_limit_milli=1000)
    assert await until(lambda: node.cpus(made), lambda cpus: cpus == row["cpus"]) in ("0", "1")


async def test_the_stream_of_events_has_the_runtimes_own_answer(node: Node) -> None:
    async with CriClient(str(node.runtime.socket), API) as direct:
        past = await problem_of(direct.events().next())
    assert await problem_of(node.kubelet.events().next()) == past
    # The daemon sees exits without it.
    made = await node.run("p", **ONE_CPU)
    await node.kubelet.stop(made.id)
    await node.until_known(made, state="held")


async def _known(node: Node) -> list[str]:
    return [row["id"] for row in await node.ask("placements")]
