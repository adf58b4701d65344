"""A real API server takes what the schemas say; what it took under older ones, or has no schema for, ends no operator."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.api.crds import definitions
from cluster.api.names import API_VERSION
from cluster.api.schema import RULES, faults
from tests.cluster.api.values import SCHEMAS, mutated, valid
from tests.cluster.declared import schema_of
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.test_operator import (
    GOOD,
    PLACEMENTS,
    POLICIES,
    Agents,
    Process,
    status,
    until,
    write_policy,
)
from tests.cluster.real.test_operator import agents as agents  # fixtures, of these tests too
from tests.cluster.real.test_operator import process as process

pytestmark = pytest.mark.cluster

MERGE = "application/merge-patch+json"
EVENTS = "/api/v1/namespaces/default/events"


# --- schemas


def rules(schema: Any) -> Iterator[str]:
    """The sentences of all rules in CEL, which are no part of what ``faults`` knows."""
    if isinstance(schema, Mapping):
        yield from (each["message"] for each in schema.get(RULES, ()))
        for inner in schema.values():
            yield from rules(inner)


PARTS = [
    (kind, part)
    for kind, schema in SCHEMAS.items()
    for part in ("spec", "status")
    if part in schema["properties"]
]
OTHER_RULES = ("Duplicate value", "ValidatingAdmissionPolicy")
RULED = {kind: list(rules(schema)) for kind, schema in SCHEMAS.items()}


def is_plain(value: Any) -> bool:
    """Whether JSON says the same to both: null is taken away by a server, numbers of more than 64 bits are others."""
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return value is not None and not (isinstance(value, (int, float)) and abs(value) >= 1 << 62)


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_the_server_takes_and_refuses_as_the_schema_says(crds: ControlPlane, kind: str, part: str) -> None:
    schema = SCHEMAS[kind]["properties"][part]
    path = f"/apis/{API_VERSION}/{kind.lower().replace('policy', 'policie')}s"
    base = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "fuzz"}}
    base.update({"spec": {"config": {}}} if kind == "PlacementPolicy" else {})
    stored = crds.ask("POST", path, base)
    seen = []

    def is_taken(value: Any) -> tuple[bool, str]:
        method, where = ("PUT", f"{path}/fuzz/status") if part == "status" else ("PUT", f"{path}/fuzz")
        try:
            crds.ask(method, f"{where}?dryRun=All", {**stored, part: value})
        except Refused as error:
            return False, str(error)
        return True, ""

    @settings(
        max_examples=60,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(valid(schema), mutated(schema)).filter(is_plain))
    def check(value: Any) -> None:
        # Fields that it does not know a server drops.
        told = [each for each in faults(value, schema, part) if " is not known" not in each]
        taken, why = is_taken(value)
        if taken == bool(told):
            # Only rules refuse what the schema takes: its own, the server's of a list with keys, and those of the admission
            # policy, where another test has left that in this control plane.
            assert not taken and any(rule in why for rule in (*RULED[kind], *OTHER_RULES)), (
                value,
                told,
                why,
            )
        seen.append(taken)

    try:
        check()
    finally:
        crds.ask("DELETE", f"{path}/fuzz")
    assert True in seen and False in seen


# --- the operator


def without_required(schema: Any) -> Any:
    """A schema as the version before had it: no field of a status is required but those of conditions."""
    if isinstance(schema, list):
        return [without_required(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    required = [
        name for name in schema.get("required", ()) if isinstance(name, str) and name in ("type", "status")
    ]
    found = {key: without_required(inner) for key, inner in schema.items() if key != "required"}
    return {**found, "required": required} if len(required) == 2 else found


@pytest.fixture
def before(rights: ControlPlane, kubectl: Kubectl, tmp_path: Path) -> Iterator[None]:
    """The server has the schemas of the version before; afterwards those of this one."""
    old = copy.deepcopy(list(definitions()))
    for definition in old:
        properties = schema_of(definition)["properties"]
        properties["status"] = without_required(properties["status"])
    file = tmp_path / "crds.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": old}))
    kubectl.run("apply", "-f", str(file))
    yield
    kubectl.apply_crds()


def broken(server: ControlPlane, name: str) -> bool:
    """Write a status that an old schema takes; whether the server goes by that one yet."""
    body = {"status": {"affinityGroups": [{}], "remoteTraffic": [{}], "placements": [{}]}}
    server.ask("PATCH", f"{PLACEMENTS}/{name}/status", body, content_type=MERGE)
    return True


def readable(server: ControlPlane, name: str) -> dict[str, Any]:
    conditions = server.ask("GET", f"{PLACEMENTS}/{name}").get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == "Readable"), {})


def deep_policy(levels: int) -> bytes:
    """Of the priority that no policy of a test has: it would get no node."""
    config = '{"affinity": {"repel": ' + '{"in": ' * levels + "1" + "}" * levels + "}}"
    head = '{"apiVersion": "' + API_VERSION + '", "kind": "PlacementPolicy", "metadata": {"name": "deep"}, '
    return (head + '"spec": {"priority": -5, "config": ' + config + "}}").encode()


def test_objects_that_cannot_be_read_are_left_and_told_of_and_the_rest_is_rolled_out(
    rights: ControlPlane, kubectl: Kubectl, before: None, agents: Agents, process: Process
) -> None:
    until(lambda: broken(rights, "roll-0"))
    rights.ask("POST", POLICIES, deep_policy(3000))
    try:
        kubectl.apply_crds()
        write_policy(rights, GOOD)
        until(lambda: [status(rights).get(key) for key in ("updated", "unread")] == [2, 1])
        sentence = "status.affinityGroups[0] has no bytesPerSecond, expected one"
        until(lambda: sentence in readable(rights, "roll-0").get("message", ""))
        until(lambda: any(sentence in each["message"] for each in rights.ask("GET", EVENTS)["items"]))
        until(lambda: rights.ask("GET", f"{POLICIES}/deep")["status"]["phase"] == "Invalid")
        assert "nested deeper" in rights.ask("GET", f"{POLICIES}/deep")["status"]["message"]
        # Mended, the node is as any other.
        mended = {"status": {"affinityGroups": None, "remoteTraffic": None, "placements": None}}
        rights.ask("PATCH", f"{PLACEMENTS}/roll-0/status", mended, content_type=MERGE)
        until(lambda: [status(rights).get(key) for key in ("updated", "unread")] == [3, 0])
        until(lambda: readable(rights, "roll-0")["status"] == "True")
    finally:
        rights.ask("DELETE", f"{POLICIES}/deep")
