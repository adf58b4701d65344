"""Pods whose resources are the pod's (``spec.resources``): charged once, in one domain, shared by their containers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from policies.machine.cpus import parse_cpus
from tests.e2e.node import until
from tests.kubelet.real.node import TIMEOUT_S, UNTIL_TOLD
from tests.kubelet.real.shared.node import EXCLUSIVE, SHARED, SharedNode, container, pod

pytestmark = SHARED

NAMES = ("first", "second", "third")
MEMORY = "64Mi"
TOLD_TO_END = ["sh", "-c", UNTIL_TOLD]


def sized(request: str, limit: str) -> dict[str, Any]:
    """Resources of a pod; "" is none."""
    wanted = {"requests": request, "limits": limit}
    return {kind: {"cpu": cpus, "memory": MEMORY} for kind, cpus in wanted.items() if cpus}


async def charged(node: SharedNode) -> int:
    """What all containers are charged, in milli-CPUs."""
    zones = (await node.daemon.ask("report"))["zones"]
    return sum(zone["charged_milli_cpus"] for zone in zones if zone["type"] == "Node")


async def domain(node: SharedNode, ids: Sequence[str]) -> tuple[str, int]:
    """The rung that all of these share, and how many CPUs it has; they are on the same."""
    levels = {await node.level(each) for each in ids}
    assert len({node.told(each) for each in ids}) == len(levels) == 1
    return levels.pop()


#: By name: request and limit of the pod, how many containers without their own; their rung, its CPUs, the charge.
PODS: dict[str, tuple[str, str, int, str, int, int]] = {
    "two of a small pod": ("2", "8", 2, "ccx", 8, 2000),
    "three of a large pod": ("2", "32", 3, "2numa", 32, 2000),
    "guaranteed": ("4", "4", 2, "ccx", 8, 4000),
    "limits only": ("", "8", 2, "ccx", 8, 8000),
}


@pytest.mark.parametrize("name", PODS)
async def test_a_pod_is_charged_once_in_one_domain(node: SharedNode, name: str) -> None:
    request, limit, count, level, cpus, milli_cpus = PODS[name]
    containers = [container(each) for each in NAMES[:count]]
    ids = await node.start(pod("web", *containers, resources=sized(request, limit)))
    assert await domain(node, list(ids.values())) == (level, cpus)
    assert await charged(node) == milli_cpus
    told = await node.agent.cli("explain", f"default/web/{NAMES[0]}")
    assert "the pod's" in told[1]
    await node.all_agree()


async def test_a_container_with_its_own_request_has_it_out_of_the_pods(node: SharedNode) -> None:
    ids = await node.start(
        pod("web", container("first", cpu="2", limit="4"), container("second"), resources=sized("4", "8"))
    )
    assert await node.level(ids["second"]) == ("ccx", 8)
    assert await node.level(ids["first"]) == ("ccx", 8)
    assert node.told(ids["first"]) == node.told(ids["second"])
    assert await charged(node) == 4000
    await node.all_agree()


async def test_containers_of_a_guaranteed_pod_own_its_cpus_together(node: SharedNode) -> None:
    containers = [container(each) for each in NAMES[:2]]
    ids = await node.start(pod("web", *containers, annotations=EXCLUSIVE, resources=sized("4", "4")))
    own = {await node.own(each) for each in ids.values()}
    assert [len(cpus) for cpus in own] == [4]
    await node.all_agree()


async def test_a_resize_of_the_pod_moves_its_containers_together(node: SharedNode) -> None:
    containers = [container(each) for each in NAMES[:2]]
    ids = await node.start(pod("web", *containers, resources=sized("2", "8")))
    assert await domain(node, list(ids.values())) == ("ccx", 8)
    for limit, level, count in (("16", "numa", 16), ("4", "ccx", 8)):
        body = json.dumps({"spec": {"resources": {"limits": {"cpu": limit}}}})
        words = ("patch", "pod", "web", "--subresource", "resize", "--patch", body)
        await asyncio.to_thread(node.kubectl.run, *words)
        for each in ids.values():
            await node.until_quota(each, int(limit) * 1000)
            await node.until_level(each, level, count)

        async def together() -> tuple[set[str], int]:
            return {node.told(each) for each in ids.values()}, await charged(node)

        await until(together, lambda found: len(found[0]) == 1 and found[1] == 2000, TIMEOUT_S)
        await node.all_agree()
    assert await node.ids("web", *NAMES[:2]) == ids


async def test_a_sidecar_and_an_app_are_together_once_the_init_container_is_over(node: SharedNode) -> None:
    sidecar = container("proxy", cpu="1", limit="1", restartPolicy="Always")
    init = container("init", cpu="1", limit="16", command=TOLD_TO_END)
    await node.create(pod("web", container("app", cpu="4", limit="4"), initContainers=[sidecar, init]))
    await node.end((await node.ids("web", "proxy", "init"))["init"], 0)
    ids = await node.ids("web", "proxy", "app")
    assert await domain(node, list(ids.values())) == ("ccx", 8)
    await node.all_agree()


async def test_an_exclusive_sidecar_that_grows_stays_in_one_l3(node: SharedNode) -> None:
    annotations = {"cpus.cri-resmgr.io/container.proxy": "exclusive"}
    sidecar = container("proxy", limit="2", restartPolicy="Always")
    whole = pod(
        "web", container("app", cpu="6", limit="6"), initContainers=[sidecar], annotations=annotations
    )
    await node.create(whole)
    proxy = (await node.ids("web", "proxy", "app"))["proxy"]
    body = {
        "spec": {
            "initContainers": [
                {"name": "proxy", "resources": {kind: {"cpu": "3"} for kind in ("requests", "limits")}}
            ]
        }
    }
    words = ("patch", "pod", "web", "--subresource", "resize", "--patch", json.dumps(body))
    await asyncio.to_thread(node.kubectl.run, *words)
    own = await node.until_own(proxy, 3)
    l3s = (await node.daemon.ask("report"))["machine"]["l3s"]
    assert len([l3 for l3 in l3s if parse_cpus(l3["cpus"]) & own]) == 1
    await node.all_agree()
