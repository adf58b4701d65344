"""Many pods: kubelet is pointed away and back, and every part ends and starts again while pods come and go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import Any, Callable

import pytest

from tests.e2e.node import until
from tests.kubelet.real.node import RUNNING, TIMEOUT_S
from tests.kubelet.real.shared.crowd import Crowd, crowd_on, load_on
from tests.kubelet.real.shared.node import EXCLUSIVE, SHARED, SharedNode, container, pod
from tests.kubelet.real.shared.test_pods import ALL

pytestmark = SHARED

#: Of the pods, every second owns a CPU; of the others each has another size.
LIMITS = ("500m", "2", "4", "12", "24")
#: One of so many comes and goes.
ONE_GOES = 10


def numbered(name: str, number: int) -> dict[str, Any]:
    if number % 2:
        return pod(name, container(limit="1"), annotations=EXCLUSIVE)
    return pod(name, container(cpu="100m", limit=LIMITS[number // 2 % len(LIMITS)]))


async def start_all(node: SharedNode, crowd: Crowd, count: int) -> dict[str, str]:
    """The container of each of so many pods, by pod, once all run and everything agrees on where."""
    await crowd.start(*(numbered(f"pod-{number}", number) for number in range(count)))
    found = await running(node, count)
    await node.all_agree()
    return found


async def running(node: SharedNode, count: int, prefix: str = "pod-") -> dict[str, str]:
    """The containers that run, by pod, once there are so many of these pods."""

    async def ids() -> dict[str, str]:
        listed = [each for each in await node.direct.list_containers() if each.state == RUNNING]
        names = {each.labels["io.kubernetes.pod.name"]: each.id for each in listed}
        return {name: each for name, each in names.items() if name.startswith(prefix)}

    return await until(ids, lambda found: len(found) == count, 2 * TIMEOUT_S)


async def owners(node: SharedNode) -> dict[str, str]:
    """The CPUs of each container that owns some, by its id."""
    rows = await node.daemon.ask("placements")
    return {row["id"]: row["exclusive"] for row in rows if row["exclusive"]}


async def test_twenty_pods_are_given_back_and_taken_over_by_the_switch(node: SharedNode) -> None:
    count = 20
    # Where kubelet was before we were there.
    node.host.point_at(str(node.runtime.socket))
    code, *said = await node.host.cli(node.agent, "enable", "--restart", wait_s=60)
    assert code == 0, said
    await node.until_registered()
    async with crowd_on(node) as crowd:
        ids = await start_all(node, crowd, count)
    own = await owners(node)
    assert len(own) == count // 2

    code, *said = await node.host.cli(node.agent, "disable", "--restart", wait_s=60)
    assert code == 0, said

    async def told() -> set[str]:
        return {node.told(each) for each in ids.values()}

    await until(told, lambda cpus: cpus == {ALL}, TIMEOUT_S)
    await node.until_registered()
    after = await node.alone("after", cpu="1", limit="4")
    assert node.told_so_far(after) == []

    code, *said = await node.host.cli(node.agent, "enable", "--restart", "--adopt", wait_s=60)
    assert code == 0, said
    await node.until_registered()
    assert await running(node, count) == ids
    await until(lambda: owners(node), lambda found: set(found) == set(own), TIMEOUT_S)
    await node.all_agree()
    node.host.point_at(node.agent.socket)


async def kubelet_is_killed(node: SharedNode) -> None:
    await node.start_kubelet()


async def kubelet_is_stopped(node: SharedNode) -> None:
    await asyncio.to_thread(node.host.stop)
    await node.start_kubelet()


async def containerd_is_killed(node: SharedNode) -> None:
    await asyncio.to_thread(node.runtime.kill)
    await asyncio.to_thread(node.runtime.start)


async def containerd_is_stopped(node: SharedNode) -> None:
    await asyncio.to_thread(node.runtime.kill, signal.SIGTERM)
    await asyncio.to_thread(node.runtime.start)


async def daemon_is_killed(node: SharedNode) -> None:
    await node.agent.kill()
    await node.agent.start()


async def daemon_is_stopped(node: SharedNode) -> None:
    await node.agent.terminate()
    await node.agent.start()


OUTAGES: tuple[Callable[[SharedNode], Awaitable[None]], ...] = (
    daemon_is_killed,
    kubelet_is_killed,
    containerd_is_killed,
    daemon_is_stopped,
    kubelet_is_stopped,
    containerd_is_stopped,
)


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
async def test_every_part_ends_and_starts_again_while_pods_come_and_go(node: SharedNode, count: int) -> None:
    going = count // ONE_GOES
    async with crowd_on(node) as crowd:
        lasting = await start_all(node, crowd, count - going)
        own = await owners(node)
        assert len(own) == (count - going) // 2
        async with load_on(node, crowd, going, numbered) as load:
            for outage in OUTAGES:
                await load.goes_on()
                await outage(node)
            await load.goes_on(going)
        # 1. No container of those that stayed was restarted, and none that owned CPUs was moved.
        assert await running(node, count - going) == lasting
        listed = {each.id: each.metadata.attempt for each in await node.direct.list_containers()}
        assert {listed[each] for each in lasting.values()} == {0}
        now = await owners(node)
        assert {each: now[each] for each in own} == own
        # 2. What was going is gone.
        await node.all_agree()
        await crowd.remove(*lasting)
