"""Pods that are resized in place, as people do it: by kubectl, through the API server and kubelet."""

from __future__ import annotations

from typing import Any

from tests.e2e.node import until
from tests.kubelet.real.node import RUNNING, TIMEOUT_S
from tests.kubelet.real.shared.node import EXCLUSIVE, SHARED, SharedNode, container, pod

pytestmark = SHARED

#: By the name of a container: what happens to it where its CPUs are resized.
RESTARTS = {"goes-on": "NotRequired", "restarts": "RestartContainer"}


def resizable(name: str, **size: Any) -> dict[str, Any]:
    policy = [{"resourceName": "cpu", "restartPolicy": RESTARTS[name]}]
    return container(name, resizePolicy=policy, **size)


async def test_a_resize_changes_the_rung_with_and_without_a_restart(node: SharedNode) -> None:
    ids = await node.start(pod("web", *(resizable(name, cpu="500m", limit="4") for name in RESTARTS)))
    for attempt, (cpus, level, count) in enumerate(((12, "numa", 16), (4, "ccx", 8)), start=1):
        await node.resize("web", **{name: ("500m", str(cpus)) for name in RESTARTS})
        before, ids = ids, await node.ids("web", *RESTARTS, but=[ids["restarts"]])
        assert ids["goes-on"] == before["goes-on"]
        for each in ids.values():
            await node.until_level(each, level, count)
            await node.until_quota(each, cpus * 1000)
        limits = [str(cpus)] * len(RESTARTS)
        await until(lambda: said(node), lambda said, limits=limits: said == (limits, []), TIMEOUT_S)  # type: ignore[misc]
        attempts = {
            each.metadata.name: each.metadata.attempt for each in await node.containers("web", RUNNING)
        }
        assert attempts == {"goes-on": 0, "restarts": attempt}
        await node.all_agree()


async def test_what_a_container_owns_grows_and_shrinks_with_it(node: SharedNode) -> None:
    shared = await node.alone("shared", cpu="500m", limit="100")
    main = await node.alone("db", limit="2", annotations=EXCLUSIVE)
    first = await node.own(main)
    for count in (6, 2):
        await node.resize("db", main=(str(count), str(count)))
        own = await node.until_own(main, count)
        assert own >= first or own <= first
        await node.until_told(shared, lambda cpus, own=own: not cpus & own)  # type: ignore[misc]
        await node.all_agree()
    assert (await node.ids("db", "main"), await node.ids("shared", "main")) == (
        {"main": main},
        {"main": shared},
    )


async def said(node: SharedNode) -> tuple[list[str], list[str]]:
    """The limits that kubelet says the containers of the pod have, and what it says is still to do."""
    status = (await node.pod("web"))["status"]
    limits = [each["resources"]["limits"]["cpu"] for each in status["containerStatuses"]]
    return limits, [each["type"] for each in status["conditions"] if each["type"].startswith("PodResize")]
