"""Whose memory is charged: what the kernel says that containers hold, and limits that were pinned before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.node import GIB, Node, Running, until

pytestmark = pytest.mark.containerd

MIB = 1 << 20


async def explained(node: Node, container: Running) -> Any:
    [row] = (await node.ask("explain", container=container.id))["containers"]
    return row


async def charged_mib(node: Node, container: Running) -> float:
    return sum(size for _, size in (await explained(node, container))["memory_charge"]) / MIB


async def fill(node: Node, container: Running, file: str, mib: int) -> None:
    _, problem, code = await node.direct.exec(
        container.id, "dd", "if=/dev/zero", f"of={file}", "bs=1048576", f"count={mib}"
    )
    assert code == 0, problem


@pytest.mark.parametrize("is_ours", [True, False], ids=["placed", "adopted"])
async def test_a_container_without_a_limit_is_charged_what_it_holds_and_no_page_cache(
    stopped_node: Node, is_ours: bool
) -> None:
    node = stopped_node
    node.agent.write_config({"constants": {"reconcile_interval_s": 0.1, "reconcile_poll_s": 0.1}})
    if is_ours:
        await node.agent.start()
        await node.until_runtime_is_known()
    made = await node.run("p", by=None if is_ours else node.direct, cpu_request=100)
    # A file in the container's root is page cache; one in /dev/shm is memory that nothing can take back.
    await fill(node, made, "/file", 200)
    await fill(node, made, "/dev/shm/file", 40)
    if not is_ours:
        await node.agent.start()
        await node.until_runtime_is_known()
    # What has grown by less than 16 MiB since it was last charged is charged as it was.
    charged = await until(lambda: charged_mib(node, made), lambda mib: mib >= 40 - 16)
    assert charged < 40 + 30
    row = await explained(node, made)
    assert row["stance"] == ("placed" if is_ours else "adopted")
    [on_node] = row["memory"]
    assert (on_node["node"], on_node["charged_bytes"]) == (0, row["memory_charge"][0][1])
    assert on_node["room_bytes"] == GIB * 9 // 10 - on_node["charged_bytes"]


async def test_after_lost_state_what_was_pinned_is_charged_again(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000, memory_limit=256 * MIB)
    before = await explained(node, made)
    assert before["memory_charge"] == [[0, 256 * MIB]]
    await node.agent.kill()
    for file in node.agent.state.glob("state.db*"):
        file.unlink()
    await node.agent.start()
    await node.until_runtime_is_known()
    after = await explained(node, made)
    assert (after["stance"], after["mems"], after["memory_charge"]) == ("adopted", "0", [[0, 256 * MIB]])
