"""Every example of docs/dra.md is applied as it stands, but for its images, and does what it says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent import ROOT
from tests.cluster.real.node import PODS, found
from tests.cri_client import IMAGE
from tests.kubelet.real.dra.node import CLAIMS, DRIVER, L3_CPUS, ClaimNode
from tests.kubelet.real.dra.second_driver import OTHER, second_driver
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.shared.node import SHARED, WAITS
from tests.machines import machine

pytestmark = SHARED

FRONT_ENDS = ("proxy", "nri", pytest.param("standalone", marks=pytest.mark.long))

PAGE = ROOT / "docs" / "dra.md"
#: A heading, or a block of YAML.
PIECE = re.compile(r"^#+ (?P<heading>[^\n]+)$|^```yaml\n(?P<block>.*?)^```$", re.MULTILINE | re.DOTALL)
#: How many CPUs a device has, by the attribute that says what it is.
WHOLE = {
    "whole-l3": len(L3_CPUS[0]),
    "whole-numa": len(machine(MACHINE).cpus) // len(machine(MACHINE).memory),
}


def examples() -> Iterator[Any]:
    """The objects of each block that has pods, under the heading where it stands."""
    heading, count = "", 0
    for piece in PIECE.finditer(PAGE.read_text()):
        if piece["heading"]:
            heading, count = piece["heading"], 0
            continue
        objects = [each for each in yaml.safe_load_all(piece["block"]) if each]
        if any(each.get("kind") == "Pod" for each in objects):
            count += 1
            yield pytest.param(objects, id=f"{heading}-{count}".replace(" ", "-"))


def runnable(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with an image and a network that are there."""
    spec = pod["spec"]
    for each in (*spec["containers"], *spec.get("initContainers", ())):
        each.update(image=IMAGE, imagePullPolicy="Never", command=["sh", "-c", WAITS])
    spec.update(hostNetwork=True, terminationGracePeriodSeconds=1, automountServiceAccountToken=False)
    return pod


@pytest.mark.parametrize("objects", list(examples()))
async def test_an_example_does_what_it_says(
    node: ClaimNode, credentials: Path, objects: list[dict[str, Any]]
) -> None:
    if OTHER in json.dumps(objects):
        async with second_driver(node, credentials):
            await does_what_it_says(node, objects)
            await node.until_nothing_is_left()
    else:
        await does_what_it_says(node, objects)


async def does_what_it_says(node: ClaimNode, objects: list[dict[str, Any]]) -> None:
    pods = [runnable(each) for each in objects if each["kind"] == "Pod"]
    for each in objects:
        file = node.api.folder / "example.json"
        file.write_text(json.dumps(each))
        await asyncio.to_thread(node.kubectl.run, "apply", "-f", str(file))
    for each in pods:
        name = each["metadata"]["name"]
        await node.ids(name, *(one["name"] for one in each["spec"]["containers"]))
    await node.claims_agree()
    for each in pods:
        for claim in await claims_of(node, each["metadata"]["name"]):
            await has_what_it_asks_for(node, claim)


async def claims_of(node: ClaimNode, name: str) -> list[Mapping[str, Any]]:
    pod = await found(node.api, f"{PODS}/{name}")
    made = {
        each["name"]: each["resourceClaimName"] for each in pod["status"].get("resourceClaimStatuses") or ()
    }
    wanted = [each.get("resourceClaimName") or made[each["name"]] for each in pod["spec"]["resourceClaims"]]
    return [await found(node.api, f"{CLAIMS}/{each}") for each in wanted]


async def has_what_it_asks_for(node: ClaimNode, claim: Mapping[str, Any]) -> None:
    """As many CPUs as are asked for, and those of a device in that device."""
    devices = await node.devices()
    for result in claim["status"]["allocation"]["devices"]["results"]:
        if result["driver"] != DRIVER:
            continue
        device = devices[result["device"]]
        kind = device["attributes"]["kind"]["string"]
        own = await node.claimed(claim["metadata"]["name"], result["request"])
        assert len(own) == int(result.get("consumedCapacity", {}).get("cpu", WHOLE.get(kind, 0)))
        if kind != "whole-numa":
            assert own <= L3_CPUS[device["attributes"]["l3"]["int"]]


async def test_the_page_has_examples() -> None:
    assert len(list(examples())) >= 5
