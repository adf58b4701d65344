"""What the simulated shell makes of a policy that says no or gives up: the same as the daemon's."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.simulator.daemon import CallResult, SimulatedShell
from cri_proxy.simulator.node import create_request, sandbox_request, update_request
from cri_proxy.simulator.scenario import read_scenario
from policies.model import BudgetSpent, Decision, PlacementRefused
from policies.policy import Policy
from policies.settings import PlacementSettings
from tests.machines import HYGON_7285_2S, machine
from tests.scenes import topology
from tests.simulator.simulations import CCX, config, create


class Failing(Policy):
    """A policy that cannot place anything."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        super().__init__(topology(HYGON_7285_2S), PlacementSettings())
        self.error = error

    def place(self, *_: Any, **__: Any) -> Decision:
        raise self.error


SPENT, REFUSED = BudgetSpent("too many places"), PlacementRefused("12 CPUs wanted, 8 free")


def run_on(shell: SimulatedShell, container: str, **fields: Any) -> CallResult:
    (step,) = read_scenario([create(container, 4, pod="p", **fields)])
    if "p" not in shell.runtime.sandboxes:
        shell.run_sandbox("p", sandbox_request(step))
    message = create_request(step, shell.runtime.sandboxes["p"].config, 0)
    return shell.create(container, message, step["result"])


def resize(shell: SimulatedShell, container: str, **fields: Any) -> CallResult:
    (step,) = read_scenario([{"op": "resize", "id": container, "cpu_limit": "12", **fields}])
    return shell.update(shell.runtime.containers[container], update_request(step), step["result"])


def shell_with(error: Exception, text: str = "{}") -> SimulatedShell:
    """A shell with a container "a" in its place, whose policy then fails."""
    shell = SimulatedShell(machine(HYGON_7285_2S), config(text))
    run_on(shell, "a")
    shell.engine.rehost(shell.engine.host, Failing(error))
    return shell


def test_a_refusal_is_an_error_and_nothing_is_created() -> None:
    shell = shell_with(REFUSED)
    assert run_on(shell, "b") == CallResult(error="12 CPUs wanted, 8 free")
    assert resize(shell, "a") == CallResult(error="12 CPUs wanted, 8 free")
    assert list(shell.runtime.containers) == ["a"]
    assert shell.runtime.containers["a"].linux.cpuset_cpus == CCX[0]


RESULTS = {"ok": "running", "doubt": "created", "start-fails": "exited"}


@pytest.mark.parametrize(("result", "state"), RESULTS.items())
def test_a_spent_budget_lets_the_request_through(result: str, state: str) -> None:
    shell = shell_with(SPENT)
    assert run_on(shell, "b", result=result) == CallResult("failed open: too many places")
    assert shell.runtime.containers["b"].state == state
    assert resize(shell, "a") == CallResult("failed open: too many places")
    assert shell.runtime.containers["a"].linux.cpu_quota == 1_200_000


def test_the_runtime_may_still_say_no() -> None:
    shell = shell_with(SPENT)
    refused = CallResult("failed open: too many places", error="refused by the runtime")
    assert run_on(shell, "b", result="refused") == resize(shell, "a", result="refused") == refused


def test_a_namespace_may_fail_closed() -> None:
    shell = shell_with(SPENT, "placement: {fail_closed_namespaces: [defaul*]}")
    assert run_on(shell, "b") == CallResult(error="too many places, and default fails closed")
