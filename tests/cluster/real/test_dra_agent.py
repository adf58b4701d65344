"""An agent in a pod that is kubelet's DRA driver, with the rights that packaging/cluster/dra gives it, on a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.claims import ClaimName
from tests.cluster.dra.io.kubelet import Kubelet
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.parts import WAIT_S, DescribedNode, node_agent
from tests.cluster.real.test_dra_objects import DRIVER, RESOURCES, SLICES
from tests.cluster.real.test_dra_objects import claims as claims  # fixtures, of these tests too
from tests.e2e.node import until
from tests.functional.conftest import ask
from tests.machines import HYGON_7285_2S

pytestmark = pytest.mark.cluster

NAME = f"driver-{os.getpid()}"
WHERE = f"{RESOURCES}/namespaces/default/resourceclaims"


@pytest.fixture
async def node(claims: ControlPlane, folder: Path) -> AsyncIterator[DescribedNode]:
    """A node of 16 L3s whose daemon prepares claims; its agent has the token of a pod."""
    found = DescribedNode(claims, folder / "n", NAME, HYGON_7285_2S)
    found.daemon.write_config({"dra": {"enabled": True}})
    kubelet = f"--kubelet-dir={folder}/k"
    found.agent = node_agent(found.folder, NAME, found.daemon, found.folder / "kubeconfig", kubelet)
    try:
        await found.start()
        yield found
    finally:
        await found.close()


async def slices(api: ControlPlane) -> list[dict[str, Any]]:
    """Those of the node."""
    query = f"{SLICES}?fieldSelector=spec.nodeName%3D{NAME}"
    return list((await asyncio.to_thread(api.ask, "GET", query))["items"])


def is_whole(found: list[dict[str, Any]]) -> bool:
    return bool(found) and all(one["spec"]["pool"]["resourceSliceCount"] == len(found) for one in found)


async def allocated(api: ControlPlane, device: str) -> ClaimName:
    """A claim that was given a CPU of a device."""
    asked = {"deviceClassName": f"l3.{DRIVER}", "capacity": {"requests": {"cpu": "1"}}}
    body = {
        "metadata": {"name": "driver-claim"},
        "spec": {"devices": {"requests": [{"name": "cpus", "exactly": asked}]}},
    }
    made = await asyncio.to_thread(api.ask, "POST", WHERE, body)
    share = "a671734a-e8e5-11e4-8fde-42010af09327"
    result = {"request": "cpus", "driver": DRIVER, "pool": NAME, "device": device, "shareID": share}
    status = {"allocation": {"devices": {"results": [{**result, "consumedCapacity": {"cpu": "1"}}]}}}

    def give() -> None:
        kind = "application/merge-patch+json"
        api.ask("PATCH", f"{WHERE}/driver-claim/status", {"status": status}, content_type=kind)

    await asyncio.to_thread(give)
    return ClaimName("default", "driver-claim", made["metadata"]["uid"])


async def test_its_rights_are_enough_for_slices_and_claims(
    claims: ControlPlane, node: DescribedNode, folder: Path
) -> None:
    # 1. What the node has to give, owned by the node.
    found = await until(lambda: slices(claims), is_whole, WAIT_S)
    devices = {each["name"]: each for one in found for each in one["spec"].get("devices", ())}
    assert {one["spec"]["driver"] for one in found} == {DRIVER}
    assert {(o["kind"], o["name"]) for one in found for o in one["metadata"]["ownerReferences"]} == {
        ("Node", NAME)
    }
    # Its cgroups are this machine's, which has a few CPUs of the first L3.
    assert devices["l3-0"]["attributes"]["kind"] == {"string": "l3"}
    # 2. A claim is prepared, and what it was is asked of the server.
    claim = await allocated(claims, "l3-0")
    kubelet = Kubelet(folder / "k")
    await kubelet.register()
    answer = (await kubelet.prepare(claim))[claim.uid]
    assert answer.error == ""
    rows = (await ask(node.daemon, "claims"))["claims"]
    assert [(row["uid"], row["healthy"]) for row in rows] == [(claim.uid, True)]
    assert await kubelet.unprepare(claim) == {claim.uid: ""}
    await kubelet.close()
    await asyncio.to_thread(claims.ask, "DELETE", f"{WHERE}/driver-claim")
    # 3. One that is deleted comes back; where claims are off none is left.
    for one in found:
        await asyncio.to_thread(claims.ask, "DELETE", f"{SLICES}/{one['metadata']['name']}")
    await until(lambda: slices(claims), is_whole, WAIT_S)
    node.daemon.write_config({"dra": {"enabled": False}})
    node.reload_daemon()
    await until(lambda: slices(claims), lambda left: not left, WAIT_S)
    assert "orbidden" not in node.agent.log()
