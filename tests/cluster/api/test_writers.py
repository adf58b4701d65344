"""What agents and the operator write is what the schemas and the admission policies take."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.agent.commands import AgentMemory, Refusals, acknowledgement
from cluster.agent.events import add_row
from cluster.agent.spec import read_spec
from cluster.agent.status import AgentView, status_of
from cluster.api import node_placement
from cluster.api.fit import fit
from cluster.api.names import AGENT
from cluster.api.schema import faults, within
from cluster.kube.events import Events
from tests.cluster.agent.reports import cluster, group, happened, report
from tests.cluster.api.cel import admits
from tests.cluster.api.test_admission import POLICIES, agent, asked

STATUS = node_placement.schema()["properties"]["status"]
NOW = "2026-11-22T21:00:00Z"
OVERRIDE = {"namespace": "shop", "pod": "db-0", "container": "main", "zone": "node-1"}

SEEN = [
    ("a node", AgentView(report())),
    ("no answer yet", AgentView(None, "connection refused")),
    ("no machine yet", AgentView(report(machine=None, zones=[], placements=[]))),
    ("groups and warnings", AgentView(report(affinity_groups=[group("a", "b", bytes_per_s=1e6)], warnings=["w"]))),
    ("degraded", AgentView(report(degraded={"state": "the state cannot be written"}), is_report_only=True, asked=True)),
    ("doctor's findings", AgentView(report(), problems=[
        {"severity": severity, "check": "c", "sentence": "s", "hint": ""} for severity in ("error", "warning")
    ])),
]  # fmt: skip


@pytest.mark.parametrize("seen", [s[1] for s in SEEN], ids=[s[0] for s in SEEN])
def test_what_an_agent_reports_is_in_the_schema(seen: AgentView) -> None:
    assert list(faults(fit(status_of(seen, {}, NOW)), STATUS, "status")) == []


@pytest.mark.parametrize("state", ["applied", "waiting", "refused"])
@pytest.mark.parametrize("trouble", ["", "connection refused"])
def test_what_an_agent_says_of_its_spec_is_in_the_schema(state: str, trouble: str) -> None:
    policy = {"name": "p", "generation": 2, "hash": "h", "config": {}}
    asked_ = {"overrides": [OVERRIDE, {**OVERRIDE, "pod": "db-1"}], "policy": policy}
    spec = read_spec({"metadata": {"generation": 3}, "spec": asked_})
    told = report(cluster=cluster(overrides=[{**OVERRIDE, "state": state, "sentence": "no room"}]))
    for memory in (AgentMemory(), AgentMemory(taken_back="h", why_taken_back="Degraded")):
        status = acknowledgement(spec, None if trouble else told, trouble, memory, Refusals())
        assert list(faults(status, STATUS, "status")) == []


def test_the_events_of_an_agent_are_admitted_from_its_own_node_only() -> None:
    events = Events(AGENT, "0123", "a")
    add_row(events, happened(), NOW)
    write = events.next(0.0)
    assert write is not None
    body: dict[str, Any] = dict(write.body)
    assert admits(POLICIES, asked(agent("a"), "events", body, "CREATE")) == []
    assert admits(POLICIES, asked(agent("b"), "events", body, "CREATE")) != []
    events.written(write, 0.0)
    add_row(events, happened(2), NOW)
    again = events.next(1.0)
    assert again is not None
    assert not again.is_new
    assert admits(POLICIES, asked(agent("a"), "events", {**body, **again.body}, old=body)) == []


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"version": "1.0\x1b[2J\n"}, {"version": "1.0 [2J "}),
        ({"version": "x" * 9000}, {"version": "x" * 8189 + "..."}),
        ({"version": "\ud800"}, {"version": "\ufffd"}),
        ({"warnings": ["w"] * 40}, {"warnings": ["w"] * 32}),
        (
            {"zones": [{"type": "L3"}, {"name": "l3-0", "type": "L3"}]},
            {"zones": [{"name": "l3-0", "type": "L3"}]},
        ),
        (
            {"zones": [{"name": "l3-0", "type": "L3", "cpus": "0-3; rm"}]},
            {"zones": [{"name": "l3-0", "type": "L3"}]},
        ),
        (
            {"policy": {"state": "Refused", "message": "a\nb"}},
            {"policy": {"state": "Refused", "message": "a\nb"}},
        ),
        ({"of a newer version": ["\x1b"]}, {"of a newer version": ["\x1b"]}),
    ],
)
def test_what_a_server_would_refuse_the_whole_status_for_is_cut(written: Any, kept: Any) -> None:
    assert within(written, STATUS) == kept
