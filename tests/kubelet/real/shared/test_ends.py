"""Pods that the node itself ends: its disk is full, or it goes down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.e2e.node import until
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.logind import Logind
from tests.kubelet.real.shared.node import EXCLUSIVE, SHARED, SharedNode, container, pod

pytestmark = SHARED

#: Most of kubelet's folder.
FILLS = "dd if=/dev/zero of=/own/file bs=1M count=52; trap exit TERM; sleep 1000000 & wait"


def _has_room(node: Mapping[str, Any]) -> bool:
    """The node says that its disk is not full."""
    conditions = node["status"]["conditions"]
    return any((each["type"], each["status"]) == ("DiskPressure", "False") for each in conditions)


def _is_over(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def _finished(pod: Mapping[str, Any]) -> str:
    """When its container has ended."""
    return str(pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"])


async def test_a_pod_that_fills_the_nodes_disk_is_evicted_and_its_cpus_are_free(node: SharedNode) -> None:
    stays = await node.alone("stays", limit="2", annotations=EXCLUSIVE)
    own = await node.own(stays)
    main = container(
        cpu="1",
        limit="4",
        # Its folder is in memory, which is charged to it.
        memory="128Mi",
        command=["sh", "-c", FILLS],
        volumeMounts=[{"name": "own", "mountPath": "/own"}],
    )
    await node.create(pod("fills", main, volumes=[{"name": "own", "emptyDir": {}}]))
    evicted = await node.until_pod("fills", lambda found: found.get("status", {}).get("phase") == "Failed")
    assert evicted["status"]["reason"] == "Evicted"
    await node.until_ended("fills")
    rows = await until(lambda: node.daemon.ask("placements"), lambda rows: len(rows) == 1, TIMEOUT_S)
    assert (rows[0]["id"], await node.own(stays)) == (stays, own)
    await until(node.object, _has_room, TIMEOUT_S)
    await node.all_agree()


async def test_a_shutdown_ends_pods_in_order_and_leaves_nothing_in_the_books(
    node: SharedNode, logind: Logind
) -> None:
    await asyncio.to_thread(logind.start)
    grace = {"shutdownGracePeriod": "5s", "shutdownGracePeriodCriticalPods": "2s"}
    async with node.kubelet_with(**grace):
        await until(lambda: _inhibitors(logind), lambda held: "kubelet" in held, TIMEOUT_S)
        assert len(await node.own(await node.alone("usual", limit="4", annotations=EXCLUSIVE))) == 4
        critical = pod("critical", container(cpu="1", limit="4"), priorityClassName="system-node-critical")
        await node.start(critical)
        await node.all_agree()

        await asyncio.to_thread(logind.prepare_for_shutdown)
        ended = [await node.until_pod(name, _is_over) for name in ("usual", "critical")]
        assert [each["status"]["reason"] for each in ended] == ["Terminated"] * 2
        finished = [_finished(each) for each in ended]
        assert finished == sorted(finished)
        # Kubelet is done, and lets the machine go down.
        await until(lambda: _inhibitors(logind), lambda held: "kubelet" not in held, TIMEOUT_S)
        await until(lambda: node.daemon.ask("placements"), lambda rows: rows == [], TIMEOUT_S)
        await node.create(pod("late", container(cpu="1", limit="4")))
        assert (await node.until_pod("late", _is_over))["status"]["reason"] == "NodeShutdown"
    # The machine is up again.
    assert len(await node.own(await node.alone("again", limit="4", annotations=EXCLUSIVE))) == 4
    await node.all_agree()


async def _inhibitors(logind: Logind) -> str:
    return await asyncio.to_thread(logind.inhibitors)
