"""What was squeezed, and what has fewer CPUs than its limit, is moved by the daemon when there is room, and told why."""

from __future__ import annotations

from tests.cri_client import CriClient
from tests.functional.conftest import ask, run_guaranteed, until
from tests.functional.support import run_pod_with


async def test_what_was_squeezed_goes_back_to_its_smallest_domain_when_the_owner_has_gone(
    runtime, start_agent
) -> None:
    agent = await start_agent(policy={"Active": "topology-aware"}, constants={"reconcile_poll_s": 0.05})
    async with CriClient(agent.socket) as client:
        pod = await run_guaranteed(client, "all")
        owner = await client.create(pod, "all", cpu_limit=124_000, memory_limit=1 << 30, qos="guaranteed")
        await client.start(owner)
        _, small = await run_pod_with(client, "small", cpu_limit=8000, cpu_request=100)
        (row,) = [row for row in await ask(agent, "placements") if row["id"] == small]
        assert (row["level"], "squeezed" in row["why"]) == ("machine", True)
        await client.stop(owner)
        await client.remove(owner)
    rows = await until(agent, lambda rows: [row["level"] for row in rows] == ["ccx"], "placements")
    assert rows[0]["why"].startswith("squeezed no more, there is room again: ")
    await runtime.wait_until(lambda: runtime.cpuset(small) == rows[0]["cpus"])
