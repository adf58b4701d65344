"""What the page is drawn from, of the daemon's own answers about named machines; what is sent of the next one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.affinity.report import edge_rows
from cri_proxy.engine.engine import Engine
from cri_proxy.history.entries import entry_row, write_entry
from cri_proxy.view.snapshot import read_snapshot
from cri_proxy.view.web.document import (
    MOST_DECISIONS,
    MOST_IDS,
    Decisions,
    delta,
    patched,
    read_document,
    rounded,
)
from policies.affinity.graph.traffic import Edge, traffic_of
from policies.machine.cpus import parse_cpus
from policies.machine.topology_json import write_topology
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S, VM_NO_CACHE_INFO, machine
from tests.view.nodes import busy_engine, edges_of, report_of, steady_loads


def document_of(engine: Engine, machine_name: str, edges: int = 20, **more: Any) -> dict[str, dict[str, Any]]:
    affinity = {"edges": edge_rows(engine, traffic_of(1, edges_of(engine, edges), {}).listed), "observer": {}}
    rows = [
        entry_row(n, write_entry(record, "boot", 1000.0 + n, {})) for n, record in enumerate(engine.history)
    ]
    decisions = Decisions().with_answer({"newest": len(rows), "entries": rows})
    given = {
        "affinity": affinity,
        "topology": write_topology(machine(machine_name)),
        "by_cpu": steady_loads(engine.host.topology),
        **more,
    }
    snapshot = read_snapshot(report_of(engine), given["affinity"], {}, given["by_cpu"])
    return read_document(snapshot, decisions, given["topology"], "node-1")


def hygon(count: int = 20, **more: Any) -> dict[str, dict[str, Any]]:
    return document_of(busy_engine(HYGON_7285_2S, count), HYGON_7285_2S, **more)


def _names(boxes: list[dict[str, Any]]) -> list[Any]:
    return [[box["names"], _names(box["inside"])] if box["inside"] else box["names"] for box in boxes]


def test_boxes_are_nested_as_the_machine_is_and_siblings_are_known() -> None:
    machine_row = hygon()["machine"]
    sockets = _names(machine_row["boxes"])
    assert [len(nodes) for _, nodes in sockets] == [4, 4]
    assert sockets[0][1][0] == [["numa-0"], [["l3-0"], ["l3-1"]]]
    assert len(machine_row["cores"]) == 64 and machine_row["cores"][0] == [0, 64]


def test_zones_with_the_same_cpus_are_one_box_and_containers_are_in_it_by_either_name() -> None:
    for name in (EPYC_NPS1_1S, VM_NO_CACHE_INFO):
        document = document_of(busy_engine(name, 6), name)
        ids = set(document["zones"])
        outer, *_ = document["machine"]["boxes"]
        assert len(outer["names"]) > 1 and outer["id"] in ids
        assert {row["box"] for row in document["containers"].values()} <= ids


def test_own_and_reserved_cpus_are_lists_of_the_whole_machine() -> None:
    engine = busy_engine(HYGON_7285_2S, 20)
    node = hygon()["node"]
    assert parse_cpus(node["exclusive"]) == engine.node.exclusive
    assert parse_cpus(node["reserved"]) == engine.node.reserved


def test_an_edge_of_a_pod_is_drawn_at_its_first_container_and_one_to_itself_is_not() -> None:
    engine = busy_engine(HYGON_7285_2S, 4)
    first, second = sorted(engine.grants)[:2]
    pod = engine.grants[second].container.pod.uid
    seen = [
        Edge(first, f"pod:{pod}", 1e6, 5e7, 10.0, ("tcp",)),
        Edge(second, f"pod:{pod}", 1e6, 5e7, 10.0, ("tcp",)),
    ]
    edges = document_of(engine, HYGON_7285_2S, affinity={"edges": edge_rows(engine, seen)})["edges"]
    assert list(edges) == [f"{first} {second}"]
    assert edges[f"{first} {second}"]["bytes"] == 50_000_000


def test_an_edge_says_how_far_it_goes() -> None:
    edges = hygon(edges=200)["edges"].values()
    far = {edge["where"]: edge["far"] for edge in edges}
    expected = {
        "same cluster": 0,
        "same L3": 0,
        "same NUMA node": 1,
        "same socket": 2,
        "different sockets": 3,
    }
    assert far and all(expected[where] == number for where, number in far.items())


def test_what_is_not_known_is_said() -> None:
    document = hygon(affinity={"observer": {"problem": "no observer answers"}}, by_cpu={}, topology={})
    assert document["node"]["traffic_note"] == "no observer answers"
    assert document["zones"]["l3-0"]["load"] is None and document["cpus"] == {}
    assert document["machine"]["cores"] == []
    assert document["machine"]["boxes"]


def test_a_daemon_without_a_machine_has_a_document_too() -> None:
    report = {"version": "1", "instance": "i", "mode": "off", "policy": "hygon", "degraded": {"topology": "no"},
              "warnings": ["w"], "zones": [], "placements": []}  # fmt: skip
    document = read_document(read_snapshot(report, {}, {}, {}), Decisions(), {})
    assert document["machine"]["boxes"] == [] and document["node"]["degraded"] == ["topology: no"]


def test_rates_are_rounded_to_two_digits() -> None:
    rates = (0.0, 0.04567, 1.26, 99.7, 123.4, 5_678_901.0)
    assert [rounded(rate) for rate in rates] == [0, 0.046, 1.3, 100, 120, 5_700_000]


# ---------------------------------------------------------------------- decisions, piece by piece


def _rows(*numbers: int, boot: str = "boot-one", outcome: str = "", changed: int = 0) -> list[dict[str, Any]]:
    changes = [{"containers": [{"id": "x"}] * changed}] if changed else []
    return [
        {
            "boot": boot,
            "number": n,
            "at_s": float(n),
            "time_s": 1000.0 + n,
            "outcome": outcome,
            "changes": changes,
        }
        for n in numbers
    ]


def test_an_entry_that_was_amended_takes_the_place_of_what_it_was() -> None:
    first = Decisions().with_answer({"newest": 40, "entries": _rows(*range(40, 0, -1))})
    second = first.with_answer({"newest": 42, "entries": _rows(40, outcome="refused") + _rows(41)})
    assert [row["number"] for row in second.rows.values()] == list(range(1, 42))
    assert [row["outcome"] for row in second.rows.values()][-2:] == ["refused", ""]
    assert second.newest == 42


def test_numbers_of_another_boot_are_other_entries_in_the_order_of_time() -> None:
    later = [{**row, "time_s": row["time_s"] + 500} for row in _rows(1, 2, boot="boot-two")]
    both = Decisions().with_answer({"newest": 5, "entries": _rows(1, 2, 3) + later})
    assert [(row["boot"], row["number"]) for row in both.rows.values()][2:4] == [
        ("boot-one", 3),
        ("boot-two", 1),
    ]


def test_another_file_forgets_the_old_and_is_asked_for_as_a_whole() -> None:
    first = Decisions().with_answer({"newest": 9, "entries": _rows(*range(1, 10))})
    after = first.with_answer({"newest": 2, "entries": []})
    assert (after.newest, after.rows) == (0, {})


def test_the_last_are_kept_bounded_by_their_number_and_by_the_containers_in_them() -> None:
    many = Decisions().with_answer({"newest": 5000, "entries": _rows(*range(1, 5001))})
    assert len(many.rows) == MOST_DECISIONS and min(row["number"] for row in many.rows.values()) == 4001
    heavy = Decisions().with_answer({"newest": 8, "entries": _rows(*range(1, 9), changed=MOST_IDS // 4)})
    assert [row["number"] for row in heavy.kept.values()] == [5, 6, 7, 8]


# ---------------------------------------------------------------------- deltas

_SECTIONS = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3), max_size=5)
_DOCUMENTS = st.fixed_dictionaries(dict.fromkeys(("cpus", "containers", "edges"), _SECTIONS))


@given(_DOCUMENTS, _DOCUMENTS)
def test_a_document_and_what_has_changed_make_the_next_one(before: Any, now: Any) -> None:
    change = delta(before, now)
    assert patched(before, change) == now
    assert json.loads(json.dumps(change)) == change
    assert (change == {}) == (before == now)


def test_only_what_has_changed_is_sent() -> None:
    before, now = hygon(20), hygon(20)
    assert delta(before, now) == {}
    now["zones"]["l3-0"] = {**now["zones"]["l3-0"], "load": 0.5}
    gone = next(iter(now["containers"]))
    del now["containers"][gone]
    assert delta(before, now) == {
        "set": {"zones": {"l3-0": now["zones"]["l3-0"]}},
        "gone": {"containers": [gone]},
    }
