"""What keeps account of claims loses it, and has it again from the others; and the driver is switched off and on."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from tests.cluster.real.node import NOW, PODS
from tests.cluster.real.parts import delete
from tests.e2e.node import until
from tests.kubelet.real.dra.node import (
    CLAIMS,
    DRA_STATE,
    DRIVER,
    L3_CPUS,
    SLICES,
    ClaimNode,
    pod_of,
    share,
    user,
    whole_l3,
)
from tests.kubelet.real.node import TIMEOUT_S, UNTIL_TOLD
from tests.kubelet.real.shared.node import SHARED

pytestmark = SHARED

REQUESTS = {"few": share(3), "whole": whole_l3(), "mixed": share(2)}
TOLD_TO_END = ["sh", "-c", UNTIL_TOLD]


async def start(node: ClaimNode) -> dict[str, str]:
    """Pods with claims, one of which shares CPUs beside its own; the ids of their containers."""
    found = {}
    for name, request in REQUESTS.items():
        await node.claim(name, request)
        beside = {"cpu": "4"} if name == "mixed" else {}
        pod = pod_of(name, user("main", name, command=TOLD_TO_END, **beside), claims=[name])
        found[name] = (await node.start(pod))["main"]
    await node.claims_agree()
    return found


async def given(node: ClaimNode) -> dict[str, frozenset[int]]:
    return {name: await node.claimed(name) for name in REQUESTS}


async def until_given(node: ClaimNode, wanted: dict[str, frozenset[int]]) -> None:
    await until(lambda: given(node), lambda found: found == wanted, TIMEOUT_S)
    await node.claims_agree()


async def test_the_daemons_state_is_lost_and_kubelets_claims_are_prepared_again(node: ClaimNode) -> None:
    ids = await start(node)
    before = await given(node)
    await node.agent.kill()
    shutil.rmtree(node.agent.state)
    for file in (node.runtime.folder / "cdi").iterdir():
        file.unlink()
    await node.agent.start()
    await until(node.held, lambda held: held.is_one and len(held.books) == len(REQUESTS), TIMEOUT_S)
    await node.claims_agree()
    # As many CPUs of the same L3s; of one that is shared with other claims they may be others.
    now = await given(node)
    assert {name: (len(cpus), l3_of(cpus)) for name, cpus in now.items()} == {
        name: (len(cpus), l3_of(cpus)) for name, cpus in before.items()
    }
    assert {name: (await node.ids(name, "main"))["main"] for name in REQUESTS} == ids
    # A container that starts again finds its device.
    await node.end(ids["few"], 1)
    await node.ids("few", "main", but=[ids["few"]])
    await until_given(node, now)


def l3_of(cpus: frozenset[int]) -> int:
    return next(number for number, l3 in enumerate(L3_CPUS) if cpus <= l3)


@pytest.mark.long
async def test_kubelets_state_is_lost_and_what_it_forgot_ends_with_its_pods(node: ClaimNode) -> None:
    """It asks for claims before it makes a pod's sandbox, and gives back what it knows of: we look at the server."""
    ids = await start(node)
    before = await given(node)
    await asyncio.to_thread(node.host.stop)
    (node.kubelet_folder / DRA_STATE).unlink()
    await node.start_kubelet()
    await node.until_registered()
    await node.all_agree()
    held = await node.held()
    assert held.api == held.books == held.devices != held.kubelet
    assert await given(node) == before
    assert {name: (await node.ids(name, "main"))["main"] for name in REQUESTS} == ids
    for name in REQUESTS:
        await node.remove(name)
    await until(node.held, lambda held: not held.books | held.devices, 3 * TIMEOUT_S)


async def test_files_of_devices_that_are_removed_are_there_before_a_container_starts_again(
    node: ClaimNode,
) -> None:
    ids = await start(node)
    before = await given(node)
    for file in (node.runtime.folder / "cdi").iterdir():
        file.unlink()
    await until(node.held, lambda held: held.is_one, TIMEOUT_S)
    await node.end(ids["mixed"], 1)
    await node.ids("mixed", "main", but=[ids["mixed"]])
    await until_given(node, before)


async def test_slices_that_somebody_deletes_come_back(node: ClaimNode) -> None:
    before = await node.devices()
    listed = (await asyncio.to_thread(node.api.ask, "GET", SLICES))["items"]
    for each in listed:
        if each["spec"]["driver"] == DRIVER:
            await delete(node.api, f"{SLICES}/{each['metadata']['name']}")
    await until(node.devices, lambda found: found == before, TIMEOUT_S)


async def test_switched_off_nothing_is_offered_and_what_is_given_stays_until_its_pod_ends(
    node: ClaimNode,
) -> None:
    await start(node)
    before = await given(node)
    node.agent.write_config({"dra": {"enabled": False}})
    node.agent.reload()
    try:
        await until(node.slices, lambda found: not found, TIMEOUT_S)
        assert await given(node) == before
        for name in REQUESTS:
            await node.remove(name)
        await until(node.held, lambda held: not held.books | held.kubelet | held.devices, TIMEOUT_S)

        async def sockets() -> list[str]:
            return [
                str(path) for path in node.kubelet_folder.glob(f"plugins*/**/{DRIVER}*") if path.is_socket()
            ]

        await until(sockets, lambda found: not found, TIMEOUT_S)
    finally:
        node.agent.write_config({"dra": {"enabled": True}})
        node.agent.reload()
        await node.until_published()
    await node.start(pod_of("again", user("main", "few"), claims=["few"]))
    await node.claims_agree()


@pytest.mark.long
async def test_a_pod_that_goes_by_force_while_kubelet_is_away_leaves_no_claim(node: ClaimNode) -> None:
    await start(node)
    await asyncio.to_thread(node.host.stop)
    for name in REQUESTS:
        await asyncio.to_thread(node.api.ask, "DELETE", f"{PODS}/{name}", NOW)
        await delete(node.api, f"{CLAIMS}/{name}")
    (node.kubelet_folder / DRA_STATE).unlink()
    await node.start_kubelet()
    await node.until_registered()
    await until(node.held, lambda held: not held.books | held.kubelet | held.devices, 3 * TIMEOUT_S)
