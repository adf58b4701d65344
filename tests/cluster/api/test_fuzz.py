"""Objects that are valid by the CRDs' own schemas, and such with something else in some places: nothing that reads them
ends by it. Each is read, or there is one sentence that says why not; what a schema takes whole is read.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings

from cluster.agent import commands
from cluster.agent.commands import AgentMemory, Refusals, read_memory, write_memory
from cluster.agent.spec import read_spec
from cluster.agent.status import conditions_of, written_before
from cluster.api.allowed import refused
from cluster.api.names import AFFINITY_ADVICE, NODE_PLACEMENT, PLACEMENT_POLICY
from cluster.api.reader import Skipped, read
from cluster.api.schema import faults, within
from cluster.kubectl import (
    WIDTH,
    complaints,
    doctor_text,
    explain_text,
    explained,
    node_row,
    placement_rows,
    placements_text,
    table,
    top_text,
)
from cluster.operator.advice import advise, between, observed, read_published
from cluster.operator.objects import read_node, read_node_placement, read_policy
from cluster.operator.plan import changed, merge_patch, plan
from cluster.rollouts import node_row as mode_row
from cluster.rollouts import policy_row, rollout_text
from tests.cluster.agent.reports import report
from tests.cluster.api.values import SCHEMAS, mutated, valid, whole
from tests.cluster.operator.cluster import node, policy

FUZZ = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
NODE_SCHEMA, POLICY_SCHEMA = SCHEMAS[NODE_PLACEMENT], SCHEMAS[PLACEMENT_POLICY]
NOW = 1_800_000_000.0
STAMP = "2026-11-22T21:00:00Z"


def named(found: Any, name: str, **metadata: Any) -> dict[str, Any]:
    body = found if isinstance(found, dict) else {}
    return {
        **body,
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 3, "resourceVersion": "7", **metadata},
    }


def is_sentence(text: str) -> bool:
    return bool(text) and len(text) < 2000 and text.isprintable()


def operate(bad: dict[str, Any], bad_policy: dict[str, Any]) -> None:
    """One plan of an operator for this node and a good one, and every write of it; all can be sent."""
    nodes = {name: node(name) for name in ("bad", "good")}
    placements = {"bad": bad, "good": named({}, "good")}
    states = {name: read(found, read_node_placement) for name, found in placements.items()}
    unread = {name: state for name, state in states.items() if isinstance(state, Skipped)}
    known = {name: state for name, state in states.items() if not isinstance(state, Skipped)}
    assert "good" in known and all(is_sentence(each.sentence) for each in unread.values())
    policies = {
        each["metadata"]["name"]: read_policy(each, refused)
        for each in (bad_policy, policy("fine", {"policy": {"Active": "hygon"}}, priority=5))
    }
    assert not policies["fine"].fault
    made = plan(policies, {name: read_node(found) for name, found in nodes.items()}, known, {}, NOW, unread)
    assert made.create == () and made.delete == ()
    for status in made.statuses:
        json.dumps(status.status)
        # What is foreign in it is cut to what the server takes.
        assert list(faults(within(dict(status.status), STATUS), STATUS, "status")) == []
    for by, change in made.changes:
        found = placements[change.seen.name]
        json.dumps(merge_patch(found, changed(change, by, found, NOW, True)))


STATUS = POLICY_SCHEMA["properties"]["status"]


def advise_on(found: dict[str, Any]) -> None:
    traffic = read(found, observed)
    if isinstance(traffic, Skipped):
        assert is_sentence(traffic.sentence)
    else:
        advise([traffic], between([traffic], {}).rates, dict.fromkeys(traffic.pods, "app=x"), {}, {}, 0.0)


def command(found: dict[str, Any]) -> None:
    """An agent that has carried out another spec before finds this one."""
    before = read_spec({"metadata": {"generation": 2}, "spec": {"mode": "observe"}})
    for memory in (AgentMemory(), AgentMemory(spec=before, mode_before="enforce")):
        spec = read_spec(found, memory.spec)
        assert not spec.wrong or is_sentence(spec.wrong)
        memory = commands.with_spec(commands.recalled(memory, found), spec)
        wanted = commands.next_command(spec, report(), memory, Refusals())
        if wanted is not None:
            commands.refused_here(wanted)
            json.dumps(dict(wanted.arguments))
        if spec.wrong:
            assert (spec.mode, spec.freeze) == (("observe", None) if memory.mode_before else ("", None))
        told = commands.acknowledgement(spec, report(), "", memory, Refusals())
        commands.config_applied(spec, told, Refusals())
        conditions_of(found)
        assert read_memory(write_memory(memory)).taken_back == memory.taken_back


def show(found: dict[str, Any], asked: dict[str, Any]) -> None:
    """Every command of the kubectl plugin."""
    for make, text in (
        (node_row, lambda row: top_text([row])),
        (placement_rows, placements_text),
        (lambda one: [*explained(one, "shop", "web-0"), *explained(one, *of(one))], explain_text),
    ):
        rows: Any = read(found, make)
        if isinstance(rows, Skipped):
            assert is_sentence(rows.sentence)
        else:
            text(rows)
            json.dumps(rows)
    doctor_text(complaints(found), 1)
    rollout_text([policy_row(asked)], [mode_row(found)], table, WIDTH)


def of(found: dict[str, Any]) -> tuple[str, str]:
    """Namespace and pod of the first container there is."""
    for row in placement_rows(found):
        return str(row.get("namespace")), str(row.get("pod"))
    return "", ""


@FUZZ
@given(whole(NODE_PLACEMENT, mutated), whole(PLACEMENT_POLICY, mutated))
def test_no_object_ends_operator_agent_or_plugin(placement: Any, asked: Any) -> None:
    found = named(placement, "bad")
    operate(found, named(asked, "strange"))
    advise_on(found)
    command(found)
    show(found, named(asked, "strange"))
    written_before(found)


@FUZZ
@given(whole(NODE_PLACEMENT, valid))
def test_a_nodeplacement_that_the_schema_takes_is_read_by_all(placement: Any) -> None:
    for how in (read_node_placement, observed, placement_rows, explained_of_any):
        made: Any = read(named(placement, "n"), how)
        assert not isinstance(made, Skipped), made.sentence


def explained_of_any(found: Any) -> Any:
    return explained(found, "shop", "web-0")


@FUZZ
@given(whole(AFFINITY_ADVICE, mutated))
def test_an_advice_that_cannot_be_read_is_as_none(advice: Any) -> None:
    assert read_published(named(advice, "a")) is not None


@FUZZ
@given(mutated(NODE_SCHEMA["properties"]["status"]))
def test_what_is_cut_to_a_schema_keeps_its_lengths_forms_counts_and_required_fields(status: Any) -> None:
    schema = NODE_SCHEMA["properties"]["status"]
    if isinstance(status, dict):
        told = list(faults(within(status, schema), schema, "status"))
        assert [
            each for each in told if any(word in each for word in ("at most", "of the form", "has no"))
        ] == []
