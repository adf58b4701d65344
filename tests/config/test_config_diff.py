"""What would move: exactly what a reload moves, and nothing is changed by asking."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_api.claims import claim_key, part_name
from cri_proxy.config.config import engine_options
from cri_proxy.engine.build import Machine, make_engine, make_host, make_policy
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ClaimPart
from cri_proxy.simulator.preview import Shift, diff_document, diff_text, records_of, what_would_move
from policies.machine.cpus import parse_cpus
from policies.model import Qos
from policies.registry import POLICIES
from tests.config.configs import AVAILABLE, RESERVED, read
from tests.machines import HYGON_7285_2S
from tests.scenes import constraint, dump, make_container, make_pod, run, topology

TREE = topology(HYGON_7285_2S)


def engine_by(text: str) -> Engine:
    """An engine with six containers on the two-socket Hygon, as this configuration has it."""
    config = read(text).config
    host, _ = make_host(config, Machine(TREE))
    engine = make_engine(config, host)
    for number, limit in enumerate((2, 4, 8, 16)):
        container = make_container(f"c{number}", limit, limit, qos=Qos.GUARANTEED, memory=1)
        run(engine, container, f"c{number}")
    run(engine, make_container("small", None, 0.5), "small")
    dns = make_container("dns", 1, 0.1, make_pod("dns", namespace="kube-system"))
    run(engine, dns, "dns")
    for update in engine.lacking():
        engine.begin_update(update.id)
        engine.took(update.id)
    return engine


def shifts(before: str, after: str, engine: Optional[Engine] = None) -> tuple[Shift, ...]:
    """What would move from one configuration to another."""
    wanted = read(after).config
    host, _ = make_host(wanted, Machine(TREE))
    return what_would_move(records_of(engine or engine_by(before)), read(before).config, wanted, host)


def reload(engine: Engine, text: str) -> dict[str, str]:
    """What the runtime is told when the engine really follows a configuration, by container."""
    config = read(text).config
    host, _ = make_host(config, Machine(TREE))
    engine.rehost(host, make_policy(config, TREE), engine_options(config))
    return {update.id: update.why for update in engine.lacking()}


CHANGES = {
    "nothing": "{}",
    "an option that concerns new containers only": "placement: {ladder: fine, max_moves: 0}",
    "topology-aware": "policy.Active: topology-aware",
    "balloons": "policy.Active: balloons",
    "none": "policy.Active: none",
    "reserved CPUs": f"{RESERVED}: cpuset:0-3,64-67",
    "fewer CPUs": f"{AVAILABLE}: exclude-cpuset:0-7,64-71",
    "only a few CPUs": f"{AVAILABLE}: cpuset:0-1",
    "memory": "placement: {memory: off}",
    "all at once": f"policy.Active: topology-aware\n{RESERVED}: 4\n{AVAILABLE}: 8-63,72-127",
}


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("case", CHANGES)
def test_what_would_move_is_what_a_reload_moves(policy: str, case: str) -> None:
    before = f"policy.Active: {policy}"
    engine = engine_by(before)
    state = dump(engine)
    found = shifts(before, CHANGES[case], engine)
    assert dump(engine) == state
    told = reload(engine, CHANGES[case])
    assert {shift.id: shift.why for shift in found} == told
    for shift in found:
        assert engine.grants[shift.id].cpus == parse_cpus(shift.cpus)


@pytest.mark.parametrize("policy", ["hygon", "topology-aware"])
@pytest.mark.parametrize("after", ["hygon", "topology-aware", "none"])
def test_another_policy_moves_nothing_that_need_not(policy: str, after: str) -> None:
    assert shifts(f"policy.Active: {policy}", f"policy.Active: {after}") == ()


@pytest.mark.parametrize("case", CHANGES)
def test_claims_move_as_a_reload_moves_them_and_their_containers_with_them(case: str) -> None:
    engine = engine_by("{}")
    part = ClaimPart("cpus", 4, parse_cpus("0-3,64-67"), devices=("l3-0",))
    engine.prepare("u", "default", "mine", [part], 0.0)
    key = claim_key(part_name("u", "cpus"))
    for name, request in (("whole", 4), ("more", 5)):
        run(engine, replace(make_container(name, request, request), claims=(key,)), name)
    for update in engine.lacking():
        engine.begin_update(update.id)
        engine.took(update.id)
    state = dump(engine)
    found = shifts("{}", CHANGES[case], engine)
    assert dump(engine) == state
    told = reload(engine, CHANGES[case])
    assert {shift.id: shift.why for shift in found} == told
    assert key not in told and broken_invariants(engine) == []
    document = diff_document(records_of(engine), read("{}").config, read("{}").config, engine.host)
    assert document["containers"] == 8


def test_each_row_says_from_where_to_where_and_why() -> None:
    [shift, *_] = shifts("{}", f"{AVAILABLE}: exclude-cpuset:0-7,64-71")
    assert shift.container == "default/pod-of-c0/c0"
    assert (shift.cpus_before, shift.mems_before) == ("0-3,64-67", "0")
    assert not parse_cpus(shift.cpus) & parse_cpus("0-7,64-71")
    assert shift.why.startswith("its CPUs are gone: ")


def test_a_container_that_is_being_created_is_in_the_way_and_is_not_told() -> None:
    engine = engine_by("{}")
    engine.admit(make_container("late", 2), constraint(None), 0.0)
    found = shifts("{}", f"{AVAILABLE}: exclude-cpuset:0-7,64-71", engine)
    assert found
    assert not any(shift.id.startswith("ticket") for shift in found)


# ---------------------------------------------------------------- the document and its text


def document_of(before: str, after: str) -> dict[str, Any]:
    wanted = read(after).config
    host, _ = make_host(wanted, Machine(TREE))
    return diff_document(records_of(engine_by(before)), read(before).config, wanted, host)


def test_the_document_is_plain_data_with_the_options_that_differ() -> None:
    document = document_of("{}", "relay.socket: /run/x.sock\nplacement.ladder: fine")
    assert json.loads(json.dumps(document)) == document
    assert document == {
        "containers": 6,
        "changed": [
            {"key": "placement.ladder", "from": "manual", "to": "fine"},
            {"key": "relay.socket", "from": "/var/run/cri-resmgr.sock", "to": "/run/x.sock"},
        ],
        "restart": ["relay.socket"],
        "moves": [],
    }
    assert diff_text(document).splitlines() == [
        "placement.ladder: manual -> fine",
        "relay.socket: /var/run/cri-resmgr.sock -> /run/x.sock",
        "a restart is needed for relay.socket",
        "nothing would move",
    ]


def test_the_same_configuration_is_one_sentence() -> None:
    assert diff_text(document_of("{}", "{}")) == "nothing would move"


def test_moves_are_a_line_each_and_counted() -> None:
    row = {"id": "1", "from": "0-3", "to": "8-11", "mems_from": "", "mems_to": "", "why": "its CPUs are gone"}
    moves = [{**row, "container": "a/b/c"}, {**row, "container": "default/web/app", "mems_from": "0"}]
    text = diff_text({"containers": 7, "changed": [], "restart": [], "moves": moves})
    assert text.splitlines() == [
        "a/b/c            0-3 -> 8-11                              its CPUs are gone",
        "default/web/app  0-3 -> 8-11 (memory nodes 0 -> not set)  its CPUs are gone",
        "2 of 7 containers would move",
    ]
