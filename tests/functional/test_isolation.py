"""Isolation in a running daemon, on a machine without resctrl: tests/isolation has one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent import Agent
from tests.functional import support
from tests.functional.conftest import ask, until

OFF = {name: {"configured": "off", "mode": "off"} for name in ("caches", "bandwidth")}


async def test_isolation_that_is_off_is_told_as_such(agent: Agent) -> None:
    assert await ask(agent, "isolation") == {"subjects": OFF}


@pytest.mark.skipif(Path("/sys/fs/resctrl/schemata").exists(), reason="a real resctrl would be written to")
async def test_isolation_begins_and_ends_with_a_reload(agent: Agent) -> None:
    agent.write_config({"isolation": {"caches": "enforce"}})
    await support.reloaded(agent)
    status = await until(agent, lambda status: status.get("missing"), "isolation")
    assert status["subjects"]["caches"] == {"configured": "enforce", "mode": "enforce"}
    assert "resctrl" in status["missing"] and status["groups"] == []
    assert f"isolation: {status['missing']}" in (await ask(agent, "status"))["warnings"]
    agent.write_config({"isolation": {"caches": "off"}})
    await support.reloaded(agent)
    await until(agent, lambda status: status == {"subjects": OFF}, "isolation")
    warnings = (await ask(agent, "status"))["warnings"]
    assert [sentence for sentence in warnings if "isolation" in sentence] == []


@pytest.mark.skipif(Path("/sys/fs/resctrl/schemata").exists(), reason="a real resctrl would be written to")
async def test_protection_is_measured_while_it_is_on(agent: Agent) -> None:
    agent.write_config({"isolation": {"caches": "enforce", "protection": "enforce"}})
    await support.reloaded(agent)

    def measures(status: dict[str, Any]) -> bool:
        return "first look" not in status.get("protection", {}).get("how", "first look")

    protection = (await until(agent, measures, "isolation"))["protection"]
    assert (protection["mode"], protection["domains"]) == ("enforce", [])
    assert "only the planner can be asked" in protection["how"]
    agent.write_config({"isolation": {"caches": "enforce", "protection": "off"}})
    await support.reloaded(agent)
    await until(agent, lambda status: status.get("protection") == {"mode": "off"}, "isolation")
    problems = [worker for worker in (await ask(agent, "status"))["warnings"] if "protection" in worker]
    assert problems == []


@pytest.mark.skipif(Path("/sys/fs/resctrl/schemata").exists(), reason="a real resctrl would be written to")
async def test_monitoring_begins_and_ends_with_a_reload(agent: Agent) -> None:
    assert (await ask(agent, "status"))["monitoring"] == {"is_on": False}
    agent.write_config({"isolation": {"monitoring": True}})
    await support.reloaded(agent)
    status = await until(agent, lambda status: status["monitoring"].get("why"))
    why = status["monitoring"]["why"]
    assert "resctrl" in why and f"isolation.monitoring: {why}" in status["warnings"]
    assert (await ask(agent, "report"))["caches"] == []
    agent.write_config({"isolation": {"monitoring": False}})
    await support.reloaded(agent)
    status = await until(agent, lambda status: status["monitoring"] == {"is_on": False})
    assert not any("monitoring" in sentence for sentence in status["warnings"])
