"""``cri-resmgr nri status``: who is hosted, and how it does."""

from __future__ import annotations

import pytest

from tests.functional.nri.support import plugin

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_it_shows_the_plugins_in_order_with_their_calls(agent, client, runtime) -> None:
    async with plugin(agent, "20-late", mask=0x8), plugin(agent, "10-early", mask=0x1):
        await client.run_pod("p")
        shown = await agent.ask("nri", "status")
        assert shown["host"] == "on" and shown["socket"] == agent.config["nri"]["socket"]
        early, late = shown["plugins"]
        assert [(p["index"], p["name"], p["state"], p["origin"]) for p in (early, late)] == [
            ("10", "early", "connected", "external"),
            ("20", "late", "connected", "external"),
        ]
        assert (early["events"], late["events"]) == (["RunPodSandbox"], ["CreateContainer"])
        # Configure, Synchronize, RunPodSandbox.
        assert (early["calls"], late["calls"]) == (3, 2)
        assert early["failures"] == {} and 0 < early["mean_ms"] <= early["most_ms"]
        code, text, _ = await agent.cli("nri", "status")
        assert code == 0
        assert text.splitlines()[0].startswith("host: on")
        assert [line.split()[0] for line in text.splitlines()[2:]] == ["PLUGIN", "10-early", "20-late"]


async def test_without_plugins_it_says_so(agent, runtime) -> None:
    code, text, _ = await agent.cli("nri", "status")
    assert code == 0 and text.splitlines()[-1] == "no plugins"
