"""Containers whose processes are not in their own cgroup, as sandboxed runtimes have them: nothing is claimed of them."""

from __future__ import annotations

import pytest

from tests.e2e.node import Node, until

pytestmark = pytest.mark.containerd

SMALL = {"cpu_request": 100, "cpu_limit": 1000}
ROUNDS = "cri_resmgr_resyncs_total{result=ok}"


async def test_a_process_outside_of_its_containers_cgroup_is_said_and_nothing_is_repaired(
    stopped_node: Node,
) -> None:
    node = stopped_node
    node.agent.write_config({"constants": {"reconcile_interval_s": 0.1, "reconcile_poll_s": 0.1}})
    await node.agent.start()
    await node.until_runtime_is_known()
    made, other = await node.run("p", **SMALL), await node.run("q", **SMALL)
    await node.agent.kill()
    runs_in = node.runtime.sandbox(made.id)
    await node.agent.start()
    row = await node.until_known(made, runs_in=runs_in)
    assert (row["stance"], (await node.row(other))["runs_in"]) == ("placed", "")
    status = await node.ask("status")
    assert status["not_bound"] == {"default/p/main": runs_in}
    # The rest of the pod's CPUs are no drift of its cpuset.
    rounds = status["counters"][ROUNDS]
    status = await until(lambda: node.ask("status"), lambda now: now["counters"][ROUNDS] >= rounds + 4)
    assert [name for name in status["counters"] if "drift" in name] == []
