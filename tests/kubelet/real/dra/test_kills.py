"""Every part that has to do with claims is killed while pods with claims come and go."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any, Callable

import pytest

from tests.kubelet.real.dra.node import ClaimNode, pod_of, share, user, whole_l3
from tests.kubelet.real.shared.node import SHARED, container
from tests.kubelet.real.shared.test_churn import (
    containerd_is_killed,
    daemon_is_killed,
    kubelet_is_killed,
    load_on,
)

pytestmark = SHARED

#: Templates of what comes and goes: two that share L3s, one that has two devices, one that must have one to itself.
TEMPLATES: dict[str, tuple[dict[str, Any], ...]] = {
    "one": (share(1),),
    "three": (share(3),),
    "two-of-two": (share(2, name="left"), share(2, name="right")),
    "whole": (whole_l3(),),
}
#: Claims of what stays, each of a pod of two containers.
STAY = {"stays-1": share(1), "stays-4": share(4), "stays-whole": whole_l3()}


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


async def staying(node: ClaimNode) -> dict[str, tuple[frozenset[int], dict[str, str]]]:
    """The CPUs of each claim that stays, and the ids of its containers."""
    return {name: (await node.claimed(name), await node.ids(name, "left", "right")) for name in STAY}


@pytest.mark.parametrize(
    ("workers", "rounds"), [(4, 1), pytest.param(8, 12, marks=pytest.mark.long, id="long")]
)
async def test_claims_outlive_every_part_and_none_is_left(node: ClaimNode, workers: int, rounds: int) -> None:
    for name, requests in TEMPLATES.items():
        await node.template(name, *requests)
    for name, request in STAY.items():
        await node.claim(name, request)
        await node.start(pod_of(name, user("left", name), user("right", name), claims=[name]))
    before = await staying(node)
    async with load_on(node, workers, numbered) as load:
        for kill in itertools.chain.from_iterable(itertools.repeat(KILLS, rounds)):
            await load.goes_on()
            await kill(node)
        await load.goes_on(workers)
    # 1. What stayed was neither restarted nor given other CPUs.
    assert await staying(node) == before
    # 2. Of what came and went nothing is left: books, cgroups, server, kubelet and CDI folder say the same.
    await node.claims_agree()
    assert {row["name"] for row in (await node.parts()).values()} == set(STAY)
    await asyncio.gather(*(node.remove(name) for name in STAY))
    await node.claims_agree()
    assert await node.parts() == {}
