"""Every change of a placement is an entry of the history: when, by what, and for which container."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cri_proxy.cli.placement_text import explain_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Management
from cri_proxy.engine.report import explain, placement_rows
from cri_proxy.engine.snapshot import read_record, write_record
from cri_proxy.engine.state import HISTORY
from policies.hygon import Hygon, TopologyAware
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Topology, remember
from policies.model import NO_CONSTRAINT, Decision, Placement, PlacementRequest, Qos, Resources
from policies.node import Node
from policies.policy import Policy
from tests.machines import HYGON_7285_2S, machine, take_offline
from tests.scenes import (
    TOPOLOGY_AWARE,
    Number,
    Shadow,
    constraint,
    engine_on,
    host_of,
    make_container,
    milli,
    run,
    topology,
)

NODE_0 = "0-7,64-71"


def engine(usable: str = NODE_0) -> Engine:
    return engine_on(
        host_of(HYGON_7285_2S, usable=usable),
        policy=TopologyAware(topology(HYGON_7285_2S), TOPOLOGY_AWARE),
    )


def own(name: str, cpus: Number) -> Any:
    return make_container(name, limit=cpus, qos=Qos.GUARANTEED)


def entries(of: Engine, name: str) -> list[tuple[str, str, str, str, float]]:
    """Of a container's changes: the operation, the CPUs after it, for which container, by what, and when."""
    document = explain(of, name)
    assert document is not None
    keys = ("operation", "cpus", "for", "cause", "at_s")
    return [tuple(row[key] for key in keys) for row in document["history"] if row["cause"]]  # type: ignore[misc]


def why(of: Engine, key: str) -> str:
    return next(str(row["why"]) for row in placement_rows(of) if row["id"] == key)


def restored(of: Engine) -> Engine:
    """The daemon after this one, with what it has written down."""
    history = [read_record("record", write_record(record)) for record in of.history]
    assert history == list(of.history)
    heir = engine_on(of.host, policy=of.policy)
    heir.restore(of.grants.values(), of.tickets.values(), of.pods.values(), history, {})
    return heir


@pytest.fixture
def node() -> Engine:
    return engine()


# ---------------------------------------------------------------------- entries


def test_a_container_that_is_shrunk_and_grows_again_says_for_whom(node) -> None:
    run(node, make_container("web", limit=16, request=1), "web")
    first = why(node, "web")
    assert "one NUMA node (16 CPUs)" in first
    run(node, own("db", 4), "db", 10.0)
    assert len(node.grants["web"].cpus) == 12
    assert why(node, "web") == f"{first}; since then shrunk to 12 CPUs for default/pod-of-db/db (create)"
    node.tick(20.0)
    node.remove("db")
    assert why(node, "web") == f"{first}; since then grown to 16 CPUs for default/pod-of-db/db (removal)"
    assert entries(node, "web") == [
        ("shrunk", "2-7,66-71", "default/pod-of-db/db", "create", 10.0),
        ("grown", NODE_0, "default/pod-of-db/db", "removal", 20.0),
    ]


def test_a_refused_create_gives_back_what_it_took_and_both_are_told(node) -> None:
    run(node, make_container("web", limit=16, request=1), "web")
    admission = node.admit(own("db", 4), NO_CONSTRAINT, 10.0)
    node.cancel(admission.ticket, 11.0)
    found = [(what, by, at_s) for what, _, _, by, at_s in entries(node, "web")]
    assert found == [("shrunk", "create", 10.0), ("grown", "refused request", 11.0)]


def test_a_resize_of_an_owner_is_told_to_those_who_make_room(node) -> None:
    run(node, make_container("web", limit=16, request=1), "web")
    run(node, own("db", 2), "db", 1.0)
    admission = node.resize("db", Resources(milli(4), milli(4)), NO_CONSTRAINT, 10.0)
    assert admission is not None
    node.commit(admission.ticket, 11.0)
    assert entries(node, "web")[1:] == [("shrunk", "2-7,66-71", "default/pod-of-db/db", "resize", 10.0)]
    # Its own place is what its own entry says.
    assert entries(node, "db") == []
    document = explain(node, "db")
    assert document is not None
    assert [(row["operation"], row["changed"]) for row in document["history"]] == [
        ("create", 1),
        ("resize", 1),
    ]


def test_a_container_that_is_moved_has_the_reason_of_its_new_place() -> None:
    node = engine_on(host_of(HYGON_7285_2S, usable=NODE_0))
    for name, request in (("a", 5), ("b", 5), ("c", 1), ("d", 2)):
        run(node, make_container(name, limit=8, request=request), name)
    node.admit(make_container("new", limit=8, request=3), NO_CONSTRAINT, 10.0)
    assert entries(node, "c") == [("moved", "4-7,68-71", "default/pod-of-new/new", "create", 10.0)]
    assert why(node, "c").startswith("makes room for default/pod-of-new/new: ")


def test_a_container_that_is_being_resized_does_not_make_room() -> None:
    """Its request says where it is; it would go back with the reply."""
    node = engine_on(host_of(HYGON_7285_2S, usable=NODE_0))
    for name, request in (("a", 5), ("b", 5), ("c", 1), ("d", 2)):
        run(node, make_container(name, limit=8, request=request), name)
    before = node.grants["c"].cpus
    resize = node.resize("c", Resources(milli(1), milli(6)), NO_CONSTRAINT, 9.0)
    node.admit(make_container("new", limit=8, request=3), NO_CONSTRAINT, 10.0)
    assert resize is not None
    node.commit(resize.ticket, 11.0)
    assert node.grants["c"].cpus == before and entries(node, "c") == []


def test_a_resize_that_changes_nothing_keeps_the_reason_of_the_place() -> None:
    node = engine_on(HYGON_7285_2S)
    run(node, make_container("app", limit=2, request=1), "app")
    first = why(node, "app")
    for number, limit in enumerate((4, 8)):
        admission = node.resize("app", Resources(milli(1), milli(limit)), NO_CONSTRAINT, float(number))
        assert admission is not None
        node.commit(admission.ticket, float(number))
        assert why(node, "app") == f"{first}; stays with {limit} CPUs, on the same domain level"


def test_cpus_that_go_offline_are_a_cause_that_is_no_container() -> None:
    data = machine(HYGON_7285_2S)
    node = engine_on(HYGON_7285_2S)
    run(node, make_container("web", limit=8), "web")
    run(node, make_container("app", limit=8), "app", within=constraint("0-3,64-67"))
    first = why(node, "web")
    for gone in ([1], range(4)):
        tree = Topology(remember(node.host.topology, take_offline(data, gone)))
        node.rehost(host_of(tree), Hygon(tree, node.policy.settings))
    assert [(what, who, by) for what, _, who, by, _ in entries(node, "web")] == [
        ("shrunk", "", "machine or configuration")
    ] * 2
    assert why(node, "web") == f"{first}; since then shrunk to 4 CPUs (machine or configuration)"


def test_a_repair_and_a_release_are_entries_of_the_container_itself(node) -> None:
    run(node, make_container("web", limit=8), "web")
    node.tick(5.0)
    node.amend(replace(node.grants["web"], repairs=(5.0,)))
    node.release("web")
    found = [(what, who, by, at_s) for what, _, who, by, at_s in entries(node, "web")]
    assert found == [("repaired", "", "comparison", 5.0), ("released", "", "release", 5.0)]
    assert node.grants["web"].stance is Management.RELEASED


def test_what_happens_to_a_container_on_its_way_is_found_by_its_id(node) -> None:
    admission = node.admit(make_container("web", limit=16, request=1), NO_CONSTRAINT, 1.0)
    run(node, own("db", 4), "db", 2.0)
    node.bind(admission.ticket, "web", 3.0)
    assert [row[0] for row in entries(node, "web")] == ["shrunk"]
    assert why(node, "web").endswith("since then shrunk to 12 CPUs for default/pod-of-db/db (create)")
    assert not any(admission.ticket in change.keys for record in node.history for change in record.changes)


def test_what_changes_nothing_is_no_entry(node) -> None:
    run(node, make_container("web", limit=8), "web")
    run(node, make_container("app", limit=8), "app")
    before = len(node.history)
    node.started("web")
    node.exited("app", 1, 2.0)
    node.tick(1000.0)
    node.remove("web")
    assert len(node.history) == before


# ---------------------------------------------------------------------- bounds, restarts


def test_a_create_that_shrinks_ninety_containers_is_one_entry(node) -> None:
    for number in range(90):
        run(node, make_container(f"web{number}", limit=16), f"web{number}")
    before = len(node.history)
    run(node, own("db", 4), "db", 10.0)
    assert len(node.history) == before + 1
    [change] = node.history[-1].changes
    assert len(change.keys) == 90
    assert entries(node, "web17") == [("shrunk", "2-7,66-71", "default/pod-of-db/db", "create", 10.0)]
    document = explain(node, "db")
    assert document is not None and document["history"][-1]["changed"] == 90


def test_of_ever_more_changes_as_many_are_kept_as_of_decisions(node) -> None:
    run(node, make_container("web", limit=16), "web")
    for number in range(HISTORY):
        run(node, own("db", 2), f"db{number}")
        node.remove(f"db{number}")
    assert len(node.history) == HISTORY
    assert len(node.changed) == 1


def test_a_restart_keeps_the_entries_and_the_reasons(node) -> None:
    run(node, make_container("web", limit=16, request=1), "web")
    run(node, own("db", 4), "db", 10.0)
    heir = restored(node)
    assert why(heir, "web") == why(node, "web")
    assert entries(heir, "web") == entries(node, "web")
    assert len(heir.history) == len(node.history)


def test_what_a_restart_finds_changed_is_an_entry(node) -> None:
    run(node, make_container("web", limit=16, request=1), "web", 3.0)
    heir = engine("0-5,64-71")
    heir.restore(node.grants.values(), (), (), node.history, {})
    assert entries(heir, "web") == [("shrunk", "0-5,64-71", "", "restart", 3.0)]


def test_the_version_before_reads_entries_with_changes(node) -> None:
    """It knows ten fields of a record, and of a placement takes what it knows."""
    run(node, make_container("web", limit=16), "web")
    run(node, own("db", 4), "db")
    document = json.loads(write_record(node.history[-1]))
    assert set(document) == {
        *("number", "at_s", "operation", "path", "pod_uid", "id", "stance", "placement", "why", "outcome")
    }
    del document["placement"]["changes"]
    assert read_record("record", json.dumps(document)).changes == ()


def test_every_entry_is_written_down_as_it_is() -> None:
    node, shadow = engine(), Shadow()
    run(node, make_container("web", limit=16), "web")
    shadow.follow(node)
    for step in (
        lambda: run(node, own("db", 4), "db"),
        lambda: node.remove("db"),
        lambda: node.release("web"),
    ):
        step()
        shadow.follow(node)
        assert shadow.differs_from(node) == []


class Broken(Policy):
    """A policy that fails whenever it is asked."""

    name = "broken"

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        raise ZeroDivisionError

    def tidy(self, node: Node, now_s: float) -> Mapping[str, Placement]:
        raise ZeroDivisionError


def test_a_transition_that_fails_leaves_no_entry(node) -> None:
    run(node, make_container("web", limit=16), "web")
    before, changed = list(node.history), dict(node.changed)
    node.policy = Broken(node.host.topology, node.policy.settings)
    with pytest.raises(ZeroDivisionError):
        node.remove("web")
    assert (list(node.history), node.changed) == (before, changed)
    assert format_cpus(node.grants["web"].cpus) == NODE_0


# ---------------------------------------------------------------------- what people read


def test_the_text_says_when_and_for_whom(node) -> None:
    run(node, make_container("web", limit=16, request=1), "web")
    run(node, own("db", 4), "db", 10.0)
    document = explain(node, "web", 40.0)
    assert document is not None
    lines = explain_text(document).splitlines()
    assert lines[-1] == (
        "  #2 30 s ago shrunk default/pod-of-web/web: 2-7,66-71 (numa), for default/pod-of-db/db (create)"
    )
    assert lines[-2].startswith(
        "  #1 40 s ago create default/pod-of-web/web: 0-7,64-71 (numa), 16 CPUs wanted"
    )
    assert parse_cpus("2-7,66-71") == node.grants["web"].cpus
