"""What a cluster's install begins with: a new node observes, and one that ran before goes on as it did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cri_api.control import ControlError
from tests.agent import Agent
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask
from tests.functional.support import reloaded, start
from tests.machines import HYGON_7285_2S, machine

#: As the DaemonSets have it.
OBSERVE = ("--first-mode", "observe")
INSTALLED = "default of the install"


@pytest_asyncio.fixture
async def new(runtime: FakeRuntime) -> AsyncIterator[Agent]:
    """A node on which no daemon has run."""
    agent = Agent(runtime.socket, machine(HYGON_7285_2S))
    yield agent
    await agent.close()


async def began(agent: Agent, *arguments: str) -> tuple[str, str]:
    """Mode of a daemon that is started, and what has set it; a daemon that runs is ended before."""
    if agent.process is not None and agent.process.returncode is None:
        assert await agent.terminate() == 0
    status = await start(agent, *arguments)
    assert status["mode"] == status["mode_wanted"]
    return status["mode"], status["mode_from"]


async def test_a_new_node_observes_and_says_that_it_is_the_installs_default(new) -> None:
    assert await began(new, *OBSERVE) == ("observe", INSTALLED)
    assert await began(new, *OBSERVE) == ("observe", INSTALLED)
    _, out, _ = await new.cli("status")
    assert out.partition(": ")[2].startswith(f"mode observe ({INSTALLED})\n")


async def test_without_an_install_that_says_so_a_new_node_enforces(new) -> None:
    assert await began(new) == ("enforce", "default")
    assert not (new.state / "first-mode").exists()


async def test_a_node_that_enforced_before_goes_on_with_it(new) -> None:
    # A version before did not know the flag.
    assert (await began(new))[0] == "enforce"
    assert await began(new, *OBSERVE) == ("enforce", INSTALLED)
    assert await began(new, *OBSERVE) == ("enforce", INSTALLED)


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_a_node_that_was_configured_otherwise_before_goes_on_with_that(new, mode) -> None:
    new.write_config({"relay": {"mode": mode}})
    assert (await began(new))[0] == mode
    del new.config["relay"]["mode"]
    new.write_config({})
    assert await began(new, *OBSERVE) == (mode, INSTALLED)


async def test_a_mode_by_command_goes_on_over_an_upgrade(new) -> None:
    await began(new)
    await ask(new, "mode", mode="observe")
    assert await began(new, *OBSERVE) == ("observe", "command")
    await ask(new, "mode", mode="enforce")
    assert (await ask(new, "status"))["mode_from"] == INSTALLED


async def test_a_node_whose_last_configuration_is_lost_goes_on_with_what_was_the_default(new) -> None:
    await began(new)
    await new.terminate()
    (new.state / "last-config.json").unlink()
    assert await began(new, *OBSERVE) == ("enforce", INSTALLED)


async def test_the_nodes_file_and_a_policy_count_before_the_installs_default(new) -> None:
    await began(new, *OBSERVE)
    policy: dict[str, Any] = {"name": "over", "generation": 2, "config": {"relay": {"mode": "enforce"}}}
    assert (await ask(new, "cluster-policy", **policy))["changed"] == ["relay.mode"]
    status = await ask(new, "status")
    assert (status["mode"], status["mode_from"]) == ("enforce", "cluster policy over (generation 2)")
    assert await began(new, *OBSERVE) == ("enforce", "cluster policy over (generation 2)")
    await ask(new, "cluster-policy", name=None)
    status = await ask(new, "status")
    assert (status["mode"], status["mode_from"]) == ("observe", INSTALLED)
    new.write_config({"relay": {"mode": "enforce"}})
    mode, origin = await began(new, *OBSERVE)
    assert mode == "enforce"
    assert origin.startswith(f"{new.config_file}:")


async def test_files_that_make_no_configuration_let_no_observing_node_enforce(new) -> None:
    await began(new, *OBSERVE)
    new.config_file.write_text(new.config_file.read_text().replace("extra_sockets", "socket"))
    new.config_file.write_text("{" + new.config_file.read_text())
    assert await new.terminate() == 0
    await new.start(*OBSERVE, "--control-socket", str(new.control), "--state-dir", str(new.state))
    status = await ask(new, "status")
    assert (status["mode_wanted"], status["mode_from"]) == ("observe", INSTALLED)


async def test_doctor_finds_no_difference_between_the_files_and_the_daemon(new) -> None:
    await began(new, *OBSERVE)
    _, out, _ = await new.cli("doctor", "--config", str(new.config_file))
    assert "relay.mode" not in out


# ---------------------------------------------------------------------- a NodePlacement asks


async def test_what_a_nodeplacement_asks_for_holds_against_a_policy_until_it_no_longer_asks(new) -> None:
    await began(new)
    asked = {"by": "NodePlacement"}
    await ask(new, "mode", mode="observe", **asked)
    policy: dict[str, Any] = {"name": "over", "generation": 2, "config": {"relay": {"mode": "observe"}}}
    await ask(new, "cluster-policy", **policy)
    policy = {"name": "over", "generation": 3, "config": {"relay": {"mode": "enforce"}}}
    await ask(new, "cluster-policy", **policy)
    status = await ask(new, "status")
    assert (status["mode"], status["mode_from"]) == ("observe", "NodePlacement")
    assert await began(new) == ("observe", "NodePlacement")
    await ask(new, "mode", mode="", **asked)
    status = await ask(new, "status")
    assert (status["mode"], status["mode_from"]) == ("enforce", "cluster policy over (generation 3)")
    # 2. What a person has said on the node since is not taken back.
    await ask(new, "mode", mode="off")
    await ask(new, "mode", mode="", **asked)
    status = await ask(new, "status")
    assert (status["mode"], status["mode_from"]) == ("off", "command")


async def test_a_node_goes_back_to_observe_though_its_own_file_has_become_wrong_since(new) -> None:
    await began(new, *OBSERVE)
    policy: dict[str, Any] = {"name": "over", "generation": 2, "config": {"relay": {"mode": "enforce"}}}
    await ask(new, "cluster-policy", **policy)
    new.config_file.write_text("{" + new.config_file.read_text())
    status = await reloaded(new)
    assert "the running configuration stays" in status["degraded"]["config"]
    await ask(new, "cluster-policy", name=None)
    status = await ask(new, "status")
    assert (status["mode"], status["mode_from"]) == ("observe", INSTALLED)
    # The file is as wrong as it was, and that is still said.
    assert "the running configuration stays" in status["degraded"]["config"]
    # What is given now is not taken: it would be of files that cannot be read.
    with pytest.raises(ControlError, match="this node's own files make no configuration"):
        await ask(new, "cluster-policy", **policy)
