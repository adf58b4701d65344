"""What schedulers read of a node: written by its agent to a real API server, and renewed with the pods that run there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from cluster.topology.resource_topology import pods_fingerprint
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.node import found
from tests.cluster.real.parts import WAIT_S, DescribedNode
from tests.cluster.topology.scheduler import numa_nodes
from tests.cri_client import CriClient
from tests.e2e.node import until

pytestmark = pytest.mark.cluster

TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
GIB = 1 << 30


def counted(nrt: Mapping[str, Any]) -> str:
    """The fingerprint of the pods that an object counts."""
    values = {a["name"]: a["value"] for a in nrt.get("attributes", [])}
    return values.get("nodeTopologyPodsFingerprint", "")


async def test_an_agents_object_counts_the_pods_that_run_and_what_they_have_taken(
    rights: ControlPlane, described_nodes: list[DescribedNode]
) -> None:
    node = described_nodes[0]
    path = f"{TOPOLOGIES}/{node.name}"
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, rights.ask, "DELETE", path)
        # It may be written before the operator has made the NodePlacement that owns it.
        empty = await until(
            lambda: found(rights, path), lambda nrt: nrt["metadata"].get("ownerReferences"), WAIT_S
        )
        assert [owner["kind"] for owner in empty["metadata"]["ownerReferences"]] == ["NodePlacement"]
        assert counted(empty) == pods_fingerprint([])
        before = {n.id: n.resources for n in numa_nodes(dict(empty))}
        assert list(before) == list(range(8))
        client = await stack.enter_async_context(CriClient(str(node.daemon.socket)))
        pod = await client.run_pod("web")
        await client.start(await client.create(pod, "app", cpu_limit=1000, memory_limit=GIB))
        of_web = pods_fingerprint([("default", "web")])
        taken = await until(lambda: found(rights, path), lambda nrt: counted(nrt) == of_web, WAIT_S)
        after = {n.id: n.resources for n in numa_nodes(dict(taken))}
        assert sum(before[n]["cpu"] - after[n]["cpu"] for n in before) == Decimal(1)
        assert sum(before[n]["memory"] - after[n]["memory"] for n in before) >= GIB
