"""The claims that are prepared, as rows and for people."""

from __future__ import annotations

from typing import Any

from cri_proxy.claims.report import claim_rows, claims_text, known_parts, l3_names
from cri_proxy.engine.model import ClaimPart
from policies.machine.cpus import parse_cpus
from policies.model import PlacementPreferences
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on, topology

OWNING = PlacementPreferences(ownership="exclusive")
ROW: dict[str, Any] = {
    "uid": "u", "namespace": "default", "name": "c", "request": "cpus", "devices": ["l3-0"], "cpus": "0-1", "l3s": ["l3-0"],
    "containers": ["default/a/a", "default/a/b"], "why": "", "moved": False, "healthy": True,
}  # fmt: skip


def test_rows_come_by_the_names_of_claims_a_row_each_part() -> None:
    engine = engine_on(HYGON_7285_2S)
    l3 = topology(HYGON_7285_2S).at("l3")
    for uid, name, devices in (("u-1", "z", (0, 1)), ("u-2", "a", (2,))):
        parts = [ClaimPart(f"r{n}", 2, l3[n].cpus, OWNING, (f"l3-{n}",)) for n in devices]
        engine.prepare(uid, "default", name, parts, 0.0)
    rows = claim_rows(engine)
    assert [(row["name"], row["request"], row["devices"], row["l3s"]) for row in rows] == [
        ("a", "r2", ["l3-2"], ["l3-2"]), ("z", "r0", ["l3-0"], ["l3-0"]), ("z", "r1", ["l3-1"], ["l3-1"]),
    ]  # fmt: skip
    assert all(row["healthy"] and not row["moved"] and len(parse_cpus(row["cpus"])) == 2 for row in rows)
    assert known_parts(engine) == {"u-1": ["u-1_r0", "u-1_r1"], "u-2": ["u-2_r2"]}


def test_l3s_are_named_as_zones_are() -> None:
    tree = topology(HYGON_7285_2S)
    assert l3_names(tree, tree.at("l3")[1].cpus | {min(tree.at("l3")[3].cpus)}) == ["l3-1", "l3-3"]


def test_the_table_has_a_line_for_each_part() -> None:
    whole = {**ROW, "name": "other", "request": "all", "devices": ["l3-1-whole"], "cpus": "", "l3s": [], "containers": [],
             "moved": True, "healthy": False}  # fmt: skip
    assert claims_text({"claims": [ROW, whole], "reason": ""}).splitlines() == [
        "CLAIM          REQUEST  DEVICES     CPUS  L3    CONTAINERS",
        "default/c      cpus     l3-0        0-1   l3-0  default/a/a, default/a/b",
        "default/other  all      l3-1-whole  -     -     -                         moved, unhealthy",
    ]


def test_without_claims_it_is_said_why_none_can_be_prepared() -> None:
    assert claims_text({"claims": [], "reason": ""}) == "no claims"
    assert claims_text({"claims": [], "reason": "dra.enabled is false on this node"}) == (
        "no claims; none can be prepared: dra.enabled is false on this node"
    )
