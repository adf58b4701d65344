"""Modes, and the switch of kubelet's endpoint to us and back, while pods run."""

from __future__ import annotations

import pytest

from tests.e2e.node import until
from tests.kubelet.real.node import TIMEOUT_S, KubeletNode

pytestmark = pytest.mark.kubelet

ALL = "0-127"


async def set_mode(node: KubeletNode, mode: str) -> None:
    assert (await node.daemon.ask("mode", mode=mode)) is not None
    assert (await node.daemon.ask("status"))["mode"] == mode


async def test_modes_change_what_is_done_with_new_pods_only(node: KubeletNode) -> None:
    enforced = await node.run("enforced", cpu="1", limit="4")
    place, told = await node.cpus(enforced), node.told_so_far(enforced)

    await set_mode(node, "observe")
    observed = await node.run("observed", cpu="1", limit="4")
    row = await node.row(observed)
    assert (row["stance"], row["level"], node.told(observed)) == ("observed", "ccx", ALL)

    await set_mode(node, "off")
    passed = await node.run("passed", cpu="1", limit="4")
    assert node.told(passed) == ALL

    await set_mode(node, "enforce")
    await node.until_compared()
    late = await node.run("late", cpu="1", limit="4")
    assert len((await node.cpus(late)).split(",")) == 2
    assert (await node.cpus(enforced), node.told_so_far(enforced)) == (place, told)
    assert [node.told(container) for container in (observed, passed)] == [ALL, ALL]

    # Their next attempts are placed.
    for name, container in (("observed", observed), ("passed", passed)):
        await node.end(container)
        again = await node.running(name, attempt=1)
        assert await node.cpus(again) != ALL
        assert (await node.row(again))["stance"] == "placed"
    assert (await node.daemon.ask("status"))["invariants"] == []


async def test_kubelet_is_pointed_at_us_and_back(unmanaged_node: KubeletNode) -> None:
    node, host = unmanaged_node, unmanaged_node.host
    files = host.files()
    before = await node.run("before", cpu="1", limit="4")
    assert node.told_so_far(before) == []

    code, out, err = await host.cli(node.agent, "enable", "--restart", wait_s=60)
    assert (code, "connected to" in out) == (0, True), err
    await node.until_kubelet_is_well()
    assert host.status(node.agent).points_at_us
    ours = await node.run("ours", cpu="1", limit="4")
    assert await node.cpus(ours) != ALL
    assert await node.running("before", attempt=0) == before
    assert node.told_so_far(before) == []

    code, out, err = await host.cli(node.agent, "disable", "--restart", wait_s=60)
    assert code == 0, err
    # kubelet has files of its own there, too.
    assert {path: host.files()[path] for path in files} == files
    await node.until_kubelet_is_well()

    async def told() -> str:
        return node.told(ours)

    await until(told, lambda cpus: cpus == ALL)
    after = await node.run("after", cpu="1", limit="4")
    assert node.told_so_far(after) == []
    for name, container in (("before", before), ("ours", ours)):
        assert await node.running(name, attempt=0) == container

    # And there again, where what was released is placed if that is asked for.
    code, _, err = await host.cli(node.agent, "enable", "--restart", "--adopt", wait_s=60)
    assert code == 0, err
    await node.until_kubelet_is_well()
    for name, container in (("before", before), ("ours", ours), ("after", after)):
        assert await node.running(name, attempt=0) == container
        assert await node.cpus(container) != ALL
    await node.all_is_well()


@pytest.mark.long
async def test_kubelet_has_its_statistics_where_it_is_pointed_at_us(unmanaged_node: KubeletNode) -> None:
    """Of CRI-O's containers it reads them itself, and knows CRI-O by the end of the endpoint's name."""
    node = unmanaged_node
    code, _, err = await node.host.cli(node.agent, "enable", "--restart", wait_s=60)
    assert code == 0, err
    await node.until_kubelet_is_well()
    await node.run("busy", cpu="1", limit="4", command="while :; do :; done")
    first = await until(lambda: node.cpu_time("busy"), lambda used: used > 0, TIMEOUT_S)
    await until(lambda: node.cpu_time("busy"), lambda used: used > first, TIMEOUT_S)
