"""Limits of block I/O in cgroups of a real runtime's containers: they have them, keep them, lose them with the class."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.node.cgroups import Cgroups
from tests.cri_client import Pod
from tests.e2e.node import Node, Running, until

pytestmark = pytest.mark.containerd

LIMIT = "volcano.sh/blkio-limit"


def a_disk() -> str:
    """The number of a disk of this machine; nothing is read of it or written to it."""
    found = sorted(Path("/sys/block").glob("*/dev"))
    if not found or os.geteuid():
        pytest.skip("It needs root and a disk.")
    return found[0].read_text().strip()


def section(number: str, **more: Any) -> Mapping[str, Any]:
    classes = {
        "batch": [{"devices": [number], "throttleReadBps": "7M"}],
        "slow": [{"devices": [number], "throttleReadBps": "1M"}],
    }
    blockio = {"classes": classes, "annotations": [LIMIT], **more}
    return {"isolation": {"disks": "enforce"}, "control": {"blockio": blockio}}


def limits_of(node: Node, container: Running) -> dict[str, str]:
    """Limits of reads by device, as the kernel has them."""
    root, is_v2 = Cgroups(Path("/sys/fs/cgroup")).block_io()
    if root is None:
        pytest.skip("No mounted hierarchy of cgroups has block I/O.")
    lines = Path(f"/proc/{node.runtime.pid_of(container.id)}/cgroup").read_text().splitlines()
    names = "" if is_v2 else "blkio"
    path = next(
        path for _, found, path in (line.split(":", 2) for line in lines) if names in found.split(",")
    )
    text = (root / path.strip("/") / ("io.max" if is_v2 else "blkio.throttle.read_bps_device")).read_text()
    return {line.split()[0]: line.split()[1].rpartition("=")[2] for line in text.splitlines()}


async def until_limited(node: Node, container: Running, limits: Mapping[str, str]) -> None:
    async def limited() -> dict[str, str]:
        return limits_of(node, container)

    await until(limited, limits.__eq__)


async def start(node: Node, config: Optional[Mapping[str, Any]] = None) -> None:
    if config is not None:
        # Devices by number are looked up below the folder that stands for / of a daemon of the tests.
        (node.agent.folder / "root" / "sys").mkdir(parents=True, exist_ok=True)
        (node.agent.folder / "root" / "sys" / "dev").symlink_to("/sys/dev")
        node.agent.write_config(config)
    await node.agent.start()
    await node.until_runtime_is_known()


async def run(node: Node, name: str, qos: str = "burstable", **annotations: str) -> Running:
    pod: Pod = await node.pod(name, qos=qos, annotations=annotations)
    return await node.run(pod, qos=qos, annotations=annotations)


async def test_a_container_has_the_limits_of_its_class_and_of_its_annotation(stopped_node: Node) -> None:
    node, number = stopped_node, a_disk()
    await start(node, section(number))
    begun_s = time.monotonic()
    batch = await run(node, "batch", qos="besteffort")
    await until_limited(node, batch, {number: "7000000"})
    print(f"limited {time.monotonic() - begun_s:.3f} s after its pod was begun")
    slow = await run(node, "slow", **{"blockioclass.resource-policy.nri.io/pod": "slow"})
    wish = json.dumps({"device_read_bps": [{"device": number, "value": "4096"}]})
    asked, other = await run(node, "asked", **{LIMIT: wish}), await run(node, "other")
    await until_limited(node, slow, {number: "1000000"})
    await until_limited(node, asked, {number: "4096"})
    assert limits_of(node, other) == {}
    await node.kubelet.remove(asked.id)  # what ends leaves nothing
    told = await node.ask("isolation")
    assert told["refusals"] == [] and told["notes"] == [] and told["drift"] == {}


async def test_limits_outlive_the_daemon_and_end_with_their_subject(stopped_node: Node) -> None:
    node, number = stopped_node, a_disk()
    await start(node, section(number))
    batch = await run(node, "batch", qos="besteffort")
    await until_limited(node, batch, {number: "7000000"})
    await node.agent.kill()
    assert limits_of(node, batch) == {number: "7000000"}
    await start(node)
    await node.until_known(batch)
    assert limits_of(node, batch) == {number: "7000000"}
    node.agent.write_config({"isolation": {"disks": "off"}})
    node.agent.reload()
    await until_limited(node, batch, {})
