"""What a spec asks for becomes commands, one after another, until the node is as it can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

import pytest

from cluster.agent import commands
from cluster.agent.commands import (
    AgentMemory,
    Command,
    Refusals,
    acknowledgement,
    config_applied,
    next_command,
    read_memory,
    write_memory,
)
from cluster.agent.spec import Spec, read_spec
from tests.cluster.agent.reports import cluster, report

NONE: frozenset[str] = frozenset()


def spec(**fields: Any) -> Spec:
    return read_spec({"metadata": {"generation": 3}, "spec": fields})


def policy(hash: str = "h1", **changes: Any) -> dict[str, Any]:
    return {
        "name": "dense",
        "generation": 1,
        "hash": hash,
        "config": {"placement": {"max_moves": 4}},
        "abortOn": ["Degraded"],
        **changes,
    }


class Node:
    """A daemon that does what it is told, or refuses what its ``refuses`` begins with; one that does not say what has
    set its mode, as in the version before, unless it is a ``NewNode``."""

    def __init__(self, **fields: Any) -> None:
        self.report = report(**self.more)
        self.refuses = ""
        self.sent: list[str] = []
        self.memory = AgentMemory()
        self.refusals = Refusals("a")
        self.signs = NONE
        self.asked(**fields)

    more: Mapping[str, Any] = {}

    def asked(self, **fields: Any) -> None:
        self.spec = read_spec({"metadata": {"generation": 3}, "spec": fields}, self.memory.spec)
        self.memory = commands.with_spec(self.memory, self.spec)

    def run(self) -> list[str]:
        """The commands that are sent until there is none to send."""
        self.sent = []
        for _ in range(20):
            self.memory = commands.settled(self.memory, self.spec, self.report)
            command = next_command(self.spec, self.report, self.memory, self.refusals)
            if command is None:
                return self.sent
            self.sent.append(command.name)
            sentence = commands.refused_here(command) or ("no" if command.name == self.refuses else "")
            if sentence:
                self.refusals = self.refusals.with_one(command, sentence)
                continue
            self.memory = commands.done(command, self.spec, self.report, self.memory, self.signs, 1000.0)
            self._carry_out(command)
        raise AssertionError(f"it never ends: {self.sent}")

    def _carry_out(self, command: Command) -> None:
        arguments, there = command.arguments, self.report["cluster"]
        if command.name == commands.MODE:
            self._set_mode(**arguments)
        elif command.name == commands.FREEZE:
            there["freeze"] = arguments["on"]
        elif command.name == commands.OVERRIDES:
            there["overrides"] = [
                {**row, "state": "applied", "sentence": ""} for row in arguments["overrides"]
            ]
        else:
            named = {key: arguments.get(key) for key in ("name", "generation", "hash")}
            there["policy"] = named if arguments["name"] else None

    def _set_mode(self, mode: str, by: str = "") -> None:
        assert mode
        self.report = {**self.report, "mode_wanted": mode}

    def told(self, trouble: str = "") -> dict[str, Any]:
        return acknowledgement(self.spec, self.report, trouble, self.memory, self.refusals)

    def condition(self) -> tuple[str, str, str]:
        found = config_applied(self.spec, self.told(), self.refusals)
        return found.status, found.reason, found.message

    @property
    def in_force(self) -> Optional[str]:
        there = self.report["cluster"]["policy"]
        return None if there is None else there["hash"]


class NewNode(Node):
    """Of this version; ``configured`` is what counts where nothing asks for another mode."""

    more = {"mode_from": "default"}
    configured = "enforce"

    def _set_mode(self, mode: str, by: str = "") -> None:
        origin = (by or "command") if mode else "default"
        self.report = {**self.report, "mode_wanted": mode or self.configured, "mode_from": origin}


OVERRIDE = {"namespace": "shop", "pod": "web", "container": "main", "zone": "node-0"}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, []),
        ({"mode": "enforce", "freeze": False}, []),
        ({"mode": "observe"}, ["mode"]),
        ({"freeze": True}, ["freeze"]),
        ({"policy": policy()}, ["cluster-policy"]),
        ({"overrides": [OVERRIDE]}, ["overrides"]),
        ({"overrides": [{**OVERRIDE, "zone": "numa-0"}]}, ["overrides"]),
        (
            {"mode": "observe", "freeze": True, "policy": policy(), "overrides": [OVERRIDE]},
            ["freeze", "mode", "cluster-policy", "overrides"],
        ),
        ({"weather": "fine"}, []),
    ],
)
def test_what_is_asked_is_sent_once(fields: dict[str, Any], sent: list[str]) -> None:
    node = Node(**fields)
    assert node.run() == sent
    assert node.run() == []


def test_what_is_no_longer_asked_goes_back_to_what_it_was() -> None:
    node = Node(mode="observe", freeze=True, policy=policy(), overrides=[OVERRIDE])
    node.run()
    node.asked()
    assert node.run() == ["mode", "cluster-policy", "overrides", "freeze"]
    assert node.report["mode_wanted"] == "enforce"
    assert node.report["cluster"] == cluster(policy=None)


def test_a_mode_that_a_person_has_set_is_not_touched_where_none_is_asked() -> None:
    node = Node()
    node.report["mode_wanted"] = "off"
    assert node.run() == []


def test_a_mode_that_went_back_by_itself_is_not_gone_back_to_later() -> None:
    node = Node(mode="observe")
    node.run()
    node.report["mode_wanted"] = "enforce"
    node.asked()
    assert node.run() == []
    node.report["mode_wanted"] = "off"
    assert node.run() == []


def test_a_mode_that_is_asked_for_holds_even_where_it_is_the_configured_one() -> None:
    node = NewNode(mode="enforce")
    assert node.run() == ["mode"]
    assert node.report["mode_from"] == "NodePlacement"
    assert node.run() == []


def test_a_mode_that_is_no_longer_asked_for_goes_back_to_what_is_configured_by_then() -> None:
    node = NewNode(mode="observe")
    node.run()
    node.configured = "off"
    node.asked()
    assert node.run() == ["mode"]
    assert (node.report["mode_wanted"], node.report["mode_from"]) == ("off", "default")
    node.report["mode_wanted"] = "observe"
    assert node.run() == []


def test_a_mode_by_command_is_left_alone_and_gives_way_while_another_is_asked_for() -> None:
    node = NewNode()
    node.report.update(mode_wanted="off", mode_from="command")
    assert node.run() == []
    node.asked(mode="observe")
    assert node.run() == ["mode"]
    assert (node.report["mode_wanted"], node.report["mode_from"]) == ("observe", "NodePlacement")


def test_a_mode_that_an_agent_of_the_version_before_has_asked_for_goes_back_to_the_one_before() -> None:
    node = NewNode()
    node.memory = replace(node.memory, mode_before="enforce")
    node.report.update(mode_wanted="observe", mode_from="command")
    assert node.run() == ["mode"]
    assert node.report["mode_wanted"] == "enforce"


def test_a_daemon_that_has_lost_what_it_was_told_is_told_again() -> None:
    node = Node(policy=policy())
    node.run()
    node.report = report(instance="b")
    assert node.run() == ["cluster-policy"]
    assert node.memory.previous is None


def test_a_key_that_is_not_allowed_is_refused_before_the_daemon_is_asked() -> None:
    node = Node(policy=policy(config={"relay": {"runtime_endpoint": "/evil.sock"}}))
    node.run()
    assert node.in_force is None
    told = node.told()["policy"]
    assert told["state"] == "Refused" and "relay" in told["message"]
    status, reason, message = node.condition()
    assert (status, reason) == ("False", "Refused") and "relay" in message


def test_a_refused_policy_leaves_the_one_before_in_force_and_is_not_sent_again() -> None:
    node = Node(policy=policy("good"))
    node.run()
    node.asked(policy=policy("bad"))
    node.refuses = "cluster-policy"
    assert node.run() == ["cluster-policy"]
    assert node.run() == []
    assert node.in_force == "good"
    assert node.told()["policy"]["hash"] == "bad"
    assert node.told()["policy"]["state"] == "Refused"


def test_another_life_of_the_daemon_may_take_what_was_refused() -> None:
    node = Node(policy=policy())
    node.refuses = "cluster-policy"
    node.run()
    node.refuses, node.refusals = "", node.refusals.of("b")
    assert node.run() == ["cluster-policy"]
    assert node.condition()[:2] == ("True", "Applied")


def test_a_refused_mode_is_a_condition_and_the_rest_is_carried_out() -> None:
    node = Node(mode="sideways", policy=policy())
    node.refuses = "mode"
    assert node.run() == ["mode", "cluster-policy"]
    assert node.condition() == ("False", "Refused", "mode: no")


def test_a_policy_that_is_taken_back_goes_to_the_one_before_and_stays_there() -> None:
    node = Node(policy=policy("good"))
    node.run()
    node.asked(policy=policy("bad"))
    node.run()
    node.memory = commands.taken_back(node.memory, "Degraded")
    assert node.run() == ["cluster-policy"]
    assert node.in_force == "good"
    assert node.run() == []
    node.asked(policy=policy("bad"))
    assert node.run() == []
    told = node.told()["policy"]
    assert (told["hash"], told["state"]) == ("bad", "TakenBack")
    assert "Degraded" in told["message"] and "policy dense is in force" in told["message"]


def test_a_policy_that_is_taken_back_without_one_before_leaves_none() -> None:
    node = Node(policy=policy("bad"))
    node.run()
    node.memory = commands.taken_back(node.memory, "Degraded")
    assert node.run() == ["cluster-policy"]
    assert node.in_force is None
    assert node.run() == []


def test_after_a_policy_was_taken_back_another_one_has_its_own_try() -> None:
    node = Node(policy=policy("bad"))
    node.run()
    node.memory = commands.taken_back(node.memory, "Degraded")
    node.run()
    node.asked(policy=policy("better"))
    assert node.run() == ["cluster-policy"]
    assert node.in_force == "better"


def test_a_policy_that_was_taken_back_is_remembered_over_a_restart() -> None:
    node = Node(policy=policy("good"), mode="observe", freeze=True)
    node.run()
    node.asked(policy=policy("bad"), mode="observe", freeze=True)
    node.run()
    node.memory = read_memory(write_memory(commands.taken_back(node.memory, "Degraded")))
    node.run()
    assert node.in_force == "good"


def test_without_its_file_the_agent_recalls_from_its_own_status_what_was_taken_back() -> None:
    placement = {
        "spec": {"policy": policy("bad")},
        "status": {"policy": {"hash": "bad", "state": "TakenBack", "message": "it degraded"}},
    }
    asked = read_spec(placement)
    memory = commands.with_spec(commands.recalled(AgentMemory(), placement), asked)
    assert next_command(asked, report(), memory, Refusals()) is None
    assert memory.why_taken_back == "it degraded"


def test_a_daemon_that_is_away_leaves_a_policy_pending() -> None:
    node = Node(policy=policy())
    told = acknowledgement(node.spec, None, "no such file", node.memory, node.refusals)
    assert told["policy"]["state"] == "Pending" and "no such file" in told["policy"]["message"]
    assert config_applied(node.spec, told, node.refusals).reason == "Pending"


def test_a_command_that_is_still_due_is_not_applied() -> None:
    node = Node(freeze=True)
    found = config_applied(node.spec, node.told(), node.refusals, waiting=commands.FREEZE)
    assert (found.status, found.reason) == ("False", "Pending")
    assert found.message.startswith("freeze:")


def test_a_daemon_that_is_away_has_still_what_it_was_given() -> None:
    node = Node(policy=policy())
    node.run()
    assert (
        acknowledgement(node.spec, None, "away", node.memory, node.refusals)["policy"]["state"] == "Applied"
    )


def test_without_a_policy_there_is_nothing_to_apply() -> None:
    node = Node()
    assert node.told() == {"observedGeneration": 3, "policy": {"state": "None"}}
    assert node.condition()[:2] == ("True", "NoPolicy")


def test_keys_that_count_after_a_restart_are_told() -> None:
    node = Node(policy=policy())
    node.run()
    node.report["cluster"]["needs_restart"] = ["policy.Active"]
    assert node.told()["policy"]["needsRestart"] == ["policy.Active"]


def test_an_override_that_was_refused_is_told_with_its_reason() -> None:
    node = Node(overrides=[OVERRIDE])
    node.run()
    node.report["cluster"]["overrides"] = [{**OVERRIDE, "state": "refused", "sentence": "numa-0 is full"}]
    assert node.told()["overrides"] == [
        {**OVERRIDE, "zone": "numa-0", "state": "Refused", "message": "numa-0 is full"}
    ]
    assert node.condition()[2] == "override of shop/web/main: numa-0 is full"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"mode": 5}, "spec.mode is 5, expected a text"),
        ({"freeze": "yes"}, 'spec.freeze is "yes", expected true or false'),
        ({"overrides": "all"}, 'spec.overrides is "all", expected a list'),
        ({"overrides": [{"pod": "web"}]}, "spec.overrides[0] has no zone, expected one"),
        ({"policy": {"config": {}}}, "spec.policy has no name, expected one"),
        ({"policy": policy(config=[1])}, "spec.policy.config is a list of 1, expected a mapping"),
    ],
)
def test_a_field_of_a_wrong_shape_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    assert spec(**fields).wrong == sentence


@pytest.mark.parametrize(
    "wrong", [{"policy": {"name": "x"}}, {"mode": 5}, {"overrides": [{}]}, {"freeze": "no"}]
)
def test_a_spec_that_cannot_be_read_changes_nothing_on_the_node(wrong: dict[str, Any]) -> None:
    node = Node(policy=policy(), mode="observe", freeze=True, overrides=[OVERRIDE])
    node.run()
    node.asked(**wrong)
    assert node.run() == []
    assert node.condition()[:2] == ("False", "Refused") and node.condition()[2].startswith("spec.")
    assert node.told()["policy"]["state"] == "Applied"


def test_an_agent_that_has_never_read_a_spec_leaves_the_node_as_it_finds_it() -> None:
    node = Node(policy=policy(), mode="observe", freeze=True, overrides=[OVERRIDE])
    node.run()
    node.memory = AgentMemory()
    node.asked(mode=5)
    assert node.run() == []
    assert node.told()["policy"] == {"state": "Pending", "message": "spec.mode is 5, expected a text"}
    # Nor does its next life know more.
    assert read_memory(write_memory(node.memory)).spec is None


def test_memory_of_another_version_is_read_by_what_it_has_in_common() -> None:
    assert read_memory('{"taken_back": "h", "weather": "fine"}').taken_back == "h"
    with pytest.raises(ValueError):
        read_memory("[]")
