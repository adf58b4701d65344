"""Every part that has to do with claims is killed while pods with claims come and go."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable
from typing import Any, Callable

import pytest

from tests.e2e.node import until
from tests.kubelet.real.dra.node import L3_CPUS, ClaimNode, pod_of, share, user, whole_l3
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.crowd import Crowd, crowd_on, load_on
from tests.kubelet.real.shared.node import EXCLUSIVE, SHARED, container, pod
from tests.kubelet.real.shared.test_churn import (
    ONE_GOES,
    containerd_is_killed,
    daemon_is_killed,
    kubelet_is_killed,
)

pytestmark = SHARED

FRONT_ENDS = ("proxy", *(pytest.param(name, marks=pytest.mark.long) for name in ("nri", "standalone")))

#: Templates of what comes and goes: two that share L3s, one that has two devices, one that must have one to itself.
TEMPLATES: dict[str, tuple[dict[str, Any], ...]] = {
    "one": (share(1),),
    "three": (share(3),),
    "two-of-two": (share(2, name="left"), share(2, name="right")),
    "whole": (whole_l3(),),
}
#: Claims of what stays, each of a pod of two containers.
STAY = {"stays-1": share(1), "stays-4": share(4), "stays-whole": whole_l3()}
#: Of ten pods that stay so many have a CPU by a claim of their own, and so many share a claim; one of twenty owns a CPU
#: without a claim. The others own none.
ALONE, TOGETHER, OWNERS = 2, 2, 20
#: How the daemon's log tells of a claim that was prepared.
PREPARED = re.compile(r"claim prepared\b.*?\buid=([0-9a-f-]{36})")


def numbered(name: str, number: int) -> dict[str, Any]:
    """Every fifth has no claim."""
    template = [*TEMPLATES, ""][number % (len(TEMPLATES) + 1)]
    if not template:
        return pod_of(name, container(cpu="100m", limit="4"))
    return pod_of(name, user("main", "own"), own=template)


async def agent_is_killed(node: ClaimNode) -> None:
    async with node.without_agent():
        pass


async def agent_and_daemon_are_killed(node: ClaimNode) -> None:
    async with node.without_agent():
        await daemon_is_killed(node)


KILLS: tuple[Callable[[ClaimNode], Awaitable[None]], ...] = (
    agent_is_killed,
    daemon_is_killed,
    kubelet_is_killed,
    containerd_is_killed,
    agent_and_daemon_are_killed,
)


async def start_what_stays(node: ClaimNode, crowd: Crowd, count: int) -> None:
    """So many pods, by their names: owners without a claim, with a claim each, with one for four, and without any."""
    tens, owners = count // 10, count // OWNERS
    # 1. Where a container owns a CPU without a claim the scheduler is told, before it gives more away.
    await crowd.start(
        *(pod(f"stays-owner-{n}", container(limit="1"), annotations=EXCLUSIVE) for n in range(owners))
    )
    await until(lambda: offered(node), lambda cpus: cpus == sum(map(len, L3_CPUS)) - owners, TIMEOUT_S)
    # 2. Claims of one pod each, and of several.
    for name, request in STAY.items():
        await node.claim(name, request)
    await crowd.start(
        *(pod_of(name, user("left", name), user("right", name), claims=[name]) for name in STAY)
    )
    await crowd.start(
        *(pod_of(f"stays-alone-{n}", user("main", "own"), own="one") for n in range(tens * ALONE))
    )
    together = tens * TOGETHER
    for claim in range((together + 3) // 4):
        await node.claim(f"stays-of-four-{claim}", share(2))
    await crowd.start(
        *(
            pod_of(
                f"stays-together-{n}",
                user("main", f"stays-of-four-{n // 4}"),
                claims=[f"stays-of-four-{n // 4}"],
            )
            for n in range(together)
        )
    )
    # 3. All others.
    others = count - len(crowd.states)
    await crowd.start(*(pod(f"stays-without-{n}", container(cpu="100m", limit="4")) for n in range(others)))


async def offered(node: ClaimNode) -> int:
    """The CPUs that the scheduler may give in parts."""
    shared = [each for each in (await node.devices()).values() if each.get("allowMultipleAllocations")]
    return sum(int(each["capacity"]["cpu"]["value"]) for each in shared)


async def staying(node: ClaimNode) -> dict[str, Any]:
    """The CPUs of each claim that stays, and the containers that do, with those that own CPUs without one."""
    rows = {name: row["cpus"] for name, row in (await node.parts()).items() if "stays" in name}
    listed = await node.direct.list_containers()
    of_pods = [each for each in listed if each.labels["io.kubernetes.pod.name"].startswith("stays")]
    owners = {row["id"]: row["exclusive"] for row in await node.daemon.ask("placements") if row["exclusive"]}
    return {
        "claims": rows,
        "containers": {each.id: (each.state, each.metadata.attempt) for each in of_pods},
        "owners": {each.id: owners[each.id] for each in of_pods if each.id in owners},
    }


def prepared(node: ClaimNode) -> frozenset[str]:
    """The UIDs of all claims that were ever prepared on this node."""
    return frozenset(PREPARED.findall(node.agent.log()))


@pytest.mark.parametrize(
    ("count", "rounds", "between", "claims"),
    [
        (40, 1, 1, 15),
        pytest.param(200, 12, 5, 200, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="long"),
    ],
)
async def test_claims_outlive_every_part_and_none_is_left(
    node: ClaimNode, count: int, rounds: int, between: int, claims: int
) -> None:
    """``between``: pods that go between two kills. In all at least so many ``claims`` are prepared."""
    for name, requests in TEMPLATES.items():
        await node.template(name, *requests)
    earlier, going = prepared(node), count // ONE_GOES
    async with crowd_on(node) as crowd:
        await start_what_stays(node, crowd, count - going)
        await node.claims_agree()
        before = await staying(node)
        async with load_on(node, crowd, going, numbered) as load:
            for kill in itertools.chain.from_iterable(itertools.repeat(KILLS, rounds)):
                await load.goes_on(between)
                await kill(node)
            await load.goes_on(going)
        # 1. What stayed was neither restarted nor given other CPUs.
        assert await staying(node) == before
        # 2. Of what came and went nothing is left: books, cgroups, server, kubelet and CDI folder say the same.
        await node.claims_agree()
        assert {f"{row['name']}/{row['request']}" for row in (await node.parts()).values()} == set(
            before["claims"]
        )
        assert len(prepared(node) - earlier) >= claims, load.gone
        await crowd.remove(*crowd.states)
    await node.claims_agree()
    assert await node.parts() == {}
