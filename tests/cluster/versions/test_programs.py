"""Agent, operator and daemon beside programs of the version before and after, on the schemas of this one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api.crds import definitions
from cluster.operator.objects import ROLLOUT_ANNOTATION
from tests.agent import ROOT, Agent
from tests.cluster.agent.io.node import NAME, NodeAgent, policy
from tests.cluster.api_server import ApiServer
from tests.cluster.declared import schema_of
from tests.cluster.operator.cluster import node as kube_node
from tests.cluster.operator.cluster import policy as placement_policy
from tests.cluster.operator.cluster import well_status
from tests.cluster.operator.test_process import NODES, PLACEMENTS, POLICIES, given, phase
from tests.cluster.versions.trees import AFTER, BEFORE, LONG_BEFORE, NEW_OPTION, tree
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask
from tests.functional.support import new_agent, start

NEW = policy("new", config={"placement": {NEW_OPTION.partition(".")[2]: True}})
OVERRIDE = {"namespace": "default", "pod": "web", "container": "web", "zone": "node-3"}


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("after"), AFTER)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("before"), BEFORE)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        for definition in definitions():
            server.schemas[definition["spec"]["names"]["plural"]] = schema_of(definition)
        yield server


@pytest.fixture
async def node(api: ApiServer, runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[NodeAgent]:
    """A node whose daemon and agent were not started yet."""
    async with new_agent(runtime) as daemon:
        made = NodeAgent(api, daemon, tmp_path)
        made.create()
        try:
            yield made
        finally:
            await made.stop()
            print(made.log if (tmp_path / "log").exists() else "")


async def run(daemon: Agent, source: Path = ROOT) -> None:
    """Start a daemon of a version, in the place of the one that runs."""
    if daemon.process is not None:
        await daemon.kill()
    await start(daemon, environment={"PYTHONPATH": str(source)})


async def in_force(node: NodeAgent) -> Any:
    return (await ask(node.daemon, "cluster-policy"))["policy"]


# ---------------------------------------------------------------------- agent and daemon


async def test_a_newer_agent_tells_which_key_its_daemon_does_not_know(node, after) -> None:
    await run(node.daemon)
    await node.start(source=after)
    await node.until_condition("Ready", "True", "DaemonAnswers")
    node.ask(policy=NEW)
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert f"unknown key {NEW_OPTION}" in found["message"]
    assert await in_force(node) is None
    node.ask(policy=policy())
    await node.until_condition("ConfigApplied", "True", "Applied")
    assert node.condition("Degraded")["status"] == "False"
    assert await node.stop() == 0


async def test_an_agent_passes_over_what_a_newer_daemon_tells_and_names_a_newer_key(node, after) -> None:
    await run(node.daemon, after)
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    assert node.status["version"].startswith("9.") and "mood" not in node.status
    node.ask(policy=NEW)
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert NEW_OPTION in found["message"]
    assert await in_force(node) is None
    node.ask(policy=policy())
    await node.until_condition("ConfigApplied", "True", "Applied")
    assert await node.stop() == 0


async def test_a_newer_node_on_older_schemas_says_which_field_is_not_written(node, after) -> None:
    await run(node.daemon, after)
    await node.start(source=after)
    found = await node.until_condition("SchemaCurrent", "False", "FieldsNotWritten")
    assert "status.mood" in found["message"]
    assert node.status["version"].startswith("9.") and node.status["zones"]
    node.ask(policy=NEW)
    await node.until_condition("ConfigApplied", "True", "Applied")


async def test_a_command_that_an_older_daemon_does_not_know_is_a_condition_and_the_others_are_carried_out(
    node, before
) -> None:
    await run(node.daemon, before)
    node.ask(freeze=True, policy=policy(), overrides=[OVERRIDE])
    await node.start()
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert "freeze" in found["message"] and "overrides" in found["message"]
    await node.api.until(lambda: node.status["policy"]["state"] == "Applied")
    ready = await node.until_condition("Ready", "True", "DaemonAnswers")
    assert ready["status"] == "True" and "frontEnd" not in node.status
    await run(node.daemon)
    await node.until_condition("ConfigApplied", "True", "Applied")
    assert (await ask(node.daemon, "freeze"))["freeze"] is True
    assert await node.stop() == 0


async def test_a_daemon_from_before_the_cluster_is_one_sentence_until_it_is_another(
    node, tmp_path_factory
) -> None:
    await run(node.daemon, tree(tmp_path_factory.mktemp("long-before"), LONG_BEFORE))
    node.ask(policy=policy())
    await node.start()
    found = await node.until_condition("Ready", "False", "DaemonAway")
    assert "report" in found["message"] and "\n" not in found["message"]
    await node.until_condition("ConfigApplied", "False", "Pending")
    await run(node.daemon)
    await node.until_condition("Ready", "True", "DaemonAnswers")
    await node.until_condition("ConfigApplied", "True", "Applied")
    assert await node.stop() == 0


async def test_a_node_that_goes_back_keeps_what_it_knows_and_tells_the_rest(node, after) -> None:
    await run(node.daemon, after)
    node.ask(freeze=True, policy=NEW, overrides=[OVERRIDE])
    await node.start(source=after)
    await node.until_condition("ConfigApplied", "True", "Applied")
    assert await node.stop() == 0
    # The daemon first, alone: what it kept says what it is to do.
    await run(node.daemon)
    assert (await ask(node.daemon, "freeze"))["freeze"] is True
    assert [row["zone"] for row in (await ask(node.daemon, "overrides"))["overrides"]] == ["node-3"]
    told = await ask(node.daemon, "cluster-policy")
    assert told["state"] == "refused" and NEW_OPTION in told["sentence"]
    await node.start()
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert NEW_OPTION in found["message"] and node.condition("Ready")["status"] == "True"
    assert await node.stop() == 0
    # Forward again: nothing was lost.
    await run(node.daemon, after)
    assert (await in_force(node))["hash"] == "new"
    assert (await ask(node.daemon, "freeze"))["freeze"] is True


# ---------------------------------------------------------------------- the operator


class Operators:
    """Operators of several versions, one after another."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self._kubeconfig, self._log = api.kubeconfig(folder / "kubeconfig"), folder / "log"
        self._running: Any = None

    async def be(self, source: Path = ROOT) -> None:
        await self.kill()
        with self._log.open("ab") as log:
            self._running = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cluster.operator", f"--kubeconfig={self._kubeconfig}"),
                *("--quiet=0.02", "--identity=one"),
                stdout=log,
                stderr=log,
                cwd=source,
            )

    async def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            await self._running.wait()
            print(self._log.read_text())


@pytest.fixture
async def operators(api: ApiServer, tmp_path: Path) -> AsyncIterator[Operators]:
    made = Operators(api, tmp_path)
    yield made
    await made.kill()


def answer(api: ApiServer, name: str, state: str = "Applied", **fields: Any) -> None:
    """The agent of this node says what became of its policy, and more that an operator may not know."""
    found = api.object(PLACEMENTS, name) or {}
    status: dict[str, Any] = {**well_status(), **fields}
    wanted = given(api, name)
    if wanted:
        status["policy"] = {"name": wanted["name"], "hash": wanted["hash"], "state": state, "message": "no"}
    api.put(PLACEMENTS, {**found, "status": status}, manager="cri-resmgr-agent")


@pytest.mark.parametrize("newer_first", [True, False])
async def test_an_operator_goes_on_with_the_rollout_of_another_version_and_takes_it_back(
    api, operators, after, newer_first
) -> None:
    first, second = (after, ROOT) if newer_first else (ROOT, after)
    strange = {"mood": "fine"} if newer_first else {}
    api.put(NODES, {"apiVersion": "v1", "kind": "Node", **kube_node("n0")})
    good = placement_policy()
    api.put(POLICIES, good)
    await operators.be(first)
    await api.until(lambda: api.object(PLACEMENTS, "n0"))
    answer(api, "n0", **strange)
    await api.until(lambda: given(api, "n0"))
    answer(api, "n0", **strange)
    await api.until(lambda: phase(api) == "Complete")
    had = given(api, "n0")
    worse = {**(api.object(POLICIES, "p") or {})}
    worse["spec"] = {**worse["spec"], "config": {"placement": {"max_moves": 1}}}
    api.put(POLICIES, worse)
    await api.until(lambda: given(api, "n0")["hash"] != had["hash"])
    await operators.be(second)
    found = api.object(PLACEMENTS, "n0") or {}
    notes = json.loads(found["metadata"]["annotations"][ROLLOUT_ANNOTATION])
    assert ("wave" in notes) is newer_first
    answer(api, "n0", "Refused", **strange)
    await api.until(lambda: given(api, "n0") == had)
    answer(api, "n0", **strange)
    await api.until(lambda: phase(api) == "Aborted")


async def test_a_key_that_an_older_node_does_not_know_ends_the_rollout_and_reaches_no_other_node(
    api, node, operators, after
) -> None:
    others = ("node-2", "node-3")
    for name in (NAME, *others):
        api.put(NODES, {"apiVersion": "v1", "kind": "Node", **kube_node(name)})
    await run(node.daemon)
    await node.start()
    await operators.be(after)
    await api.until(lambda: all(api.object(PLACEMENTS, name) for name in others))
    for name in others:
        answer(api, name)
    await node.until_condition("Ready", "True", "DaemonAnswers")
    # This node's agent and daemon are of this version, the operator is of the next.
    api.put(POLICIES, placement_policy(config=NEW["config"]))
    await api.until(
        lambda: NEW_OPTION in ((api.object(POLICIES, "p") or {}).get("status") or {}).get("message", "")
    )
    # Its doctor finds no cgroups here: the node stays in change, so the phase says TakingBack.
    await api.until(lambda: given(api, NAME) is None)
    await api.until(lambda: node.status["policy"]["state"] == "None")
    await node.until_condition("ConfigApplied", "True", "NoPolicy")
    assert await in_force(node) is None
    assert not [call for call in api.calls if call.method == "PATCH" and call.path.endswith(others)]
