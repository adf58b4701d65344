"""Isolation in a running daemon, on a machine without resctrl: tests/isolation has one of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.config.config import RECONCILED
from cri_proxy.isolation.io.originals import FILE_NAME
from tests.agent import Agent
from tests.fake_runtime import FakeRuntime
from tests.functional import support
from tests.functional.conftest import ask, until

OFF = {
    "subjects": {key.partition(".")[2]: {"configured": "off", "mode": "off"} for key in RECONCILED},
    "turbo": {"mode": "off"},
}


async def test_isolation_that_is_off_is_told_as_such(agent: Agent) -> None:
    assert await ask(agent, "isolation") == OFF


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
    await until(agent, lambda status: status == OFF, "isolation")
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


def left_by_a_daemon(agent: Agent) -> Path:
    """A file of the kernel's that a daemon has written to, as the state directory tells."""
    clock = agent.folder / "scaling_max_freq"
    clock.write_text("2500000\n")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    document = {"boot_id": boot_id, "values": {f"file:{clock}": "3300000"}, "groups": False}
    (agent.state / FILE_NAME).write_text(json.dumps(document))
    return clock


async def test_a_daemon_with_isolation_off_puts_back_what_the_one_before_wrote(agent: Agent) -> None:
    await agent.kill()
    clock = left_by_a_daemon(agent)
    await support.start(agent)
    await support.eventually(lambda: clock.read_text() == "3300000\n", "the value of before")
    await support.eventually(lambda: not (agent.state / FILE_NAME).exists(), "nothing is remembered")


@pytest.mark.parametrize("has_runtime", [True, False])
async def test_a_release_without_a_daemon_puts_back_even_without_a_runtime(
    runtime: FakeRuntime, agent: Agent, has_runtime: bool
) -> None:
    await agent.kill()
    clock = left_by_a_daemon(agent)
    if not has_runtime:
        await runtime.stop()
    await agent.cli("release", "--all", "--config", str(agent.config_file))
    assert clock.read_text() == "3300000\n" and not (agent.state / FILE_NAME).exists()
