"""What people are told of traffic: rows for JSON, tables for the terminal."""

from __future__ import annotations

import io
from typing import Any

import networkx
import pytest

from cri_proxy.affinity import report
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.moves import where_both
from policies.affinity.graph.traffic import Edge, Traffic
from policies.machine.cpus import parse_cpus
from policies.machine.topology import Topology
from tests.machines import HYGON_7285_2S, KUNPENG_48_2S, machine
from tests.scenes import constraint, engine_on, make_container, make_pod, run

OBSERVER = {
    "problem": "",
    "provider": "sock_diag",
    "detail": "TCP of each pod's network",
    "refused": ["ebpf: the kernel refuses the program"],
    "counters": {"resolved": 12345, "missed": 0},
    "age_s": 3.2,
    "resident_bytes": 22_400_000,
}


@pytest.fixture
def engine() -> Engine:
    """Three containers: web and db in one L3, far on the other socket."""
    engine = engine_on(HYGON_7285_2S)
    for name, cpus in (("web", "0-3,64-67"), ("db", "0-3,64-67"), ("far", "60-63,124-127")):
        container = make_container(name, limit=1, request=1, pod=make_pod(name))
        run(engine, container, f"id-{name}", within=constraint(cpus))
    return engine


WEB_DB = Edge("id-web", "id-db", 100.0, 6400.0, 5.0, ("tcp", "unix"))
WEB_FAR = Edge("id-web", "id-far", 300.0, 64e6, 0.0, ("tcp",))


def test_edges_are_listed_heaviest_first_with_where_both_ends_are(engine: Engine) -> None:
    rows = report.edge_rows(engine, [WEB_DB, WEB_FAR])
    assert [(r["container"], r["talks_to"], r["where"]) for r in rows] == [
        ("default/web/web", "default/far/far", "different sockets"),
        ("default/web/web", "default/db/db", "same L3"),
    ]


def test_an_end_without_a_place_is_named_by_its_id_and_its_place_is_not_known(engine: Engine) -> None:
    [row] = report.edge_rows(engine, [Edge("id-web", "0123456789abcdef0123", 1.0)])
    assert (row["talks_to"], row["where"]) == ("0123456789abc", "not known")


def test_a_pod_is_named_by_namespace_and_name_and_is_where_its_containers_are(engine: Engine) -> None:
    engine.add_pod(make_pod("far"))
    [row] = report.edge_rows(engine, [Edge("id-web", "pod:uid-far", 1.0, is_pod_level=True)])
    assert (row["talks_to"], row["where"]) == ("default/far", "different sockets")
    assert report.endpoint_name(engine, "pod:unknown-uid-1234567") == "pod:unknown-uid-1"


def test_what_is_remembered_of_owners_is_listed_once_for_each_pair() -> None:
    owners = {"a/x/c": {"a/y/c": 5.0, "a/x/c": 2.0}, "a/y/c": {"a/x/c": 5.0}}
    assert report.owner_rows(Traffic(owners=owners)) == [
        {"a": "a/x/c", "b": "a/y/c", "weight": 5.0},
        {"a": "a/x/c", "b": "a/x/c", "weight": 2.0},
    ]


def test_nearness_adds_up_what_crosses_what(engine: Engine) -> None:
    rows = report.nearness_rows(report.edge_rows(engine, [WEB_DB, WEB_FAR]))
    assert {row["where"]: (row["share"], row["bytes_per_s"]) for row in rows} == {
        "same L3": (0.25, 6400.0),
        "same NUMA node": (0.0, 0),
        "same socket": (0.0, 0),
        "different sockets": (0.75, 64e6),
    }


def test_clusters_of_cores_are_told_where_containers_are_in_one() -> None:
    tree = Topology(machine(KUNPENG_48_2S), to_clusters=True)
    assert where_both(tree, parse_cpus("0-1"), parse_cpus("2-3")) == "same cluster"
    assert where_both(tree, parse_cpus("0-3"), parse_cpus("4-7")) == "same L3"
    edge = {"where": "same cluster", "weight": 1.0, "bytes_per_s": 64}
    assert [(row["where"], row["share"]) for row in report.nearness_rows([edge])][:2] == [
        ("same cluster", 1.0),
        ("same L3", 0.0),
    ]


def document(engine: Engine, *edges: Edge, **more: Any) -> dict[str, Any]:
    rows = report.edge_rows(engine, edges)
    told = {"observer": OBSERVER, "edges": rows, "owner_edges": [], "groups": [], "frozen": ""}
    return {**told, "nearness": report.nearness_rows(rows), **more}


def test_the_graph_for_the_terminal(engine: Engine) -> None:
    assert report.affinity_text(document(engine, WEB_DB, WEB_FAR)) == (
        "observer   sock_diag: TCP of each pod's network; last sample 3 s ago; 22.4 MB resident\n"
        "           not used: ebpf: the kernel refuses the program\n"
        "           resolved 12,345\n"
        "graph      2 edges between containers, 0 between workloads remembered\n"
        "           same L3             25%  6.4 kB/s\n"
        "           different sockets   75%  64.0 MB/s\n"
        "\n"
        "CONTAINER        TALKS TO           TRAFFIC  MESSAGES/S  SEEN ON   WHERE\n"
        "default/web/web  default/far/far  64.0 MB/s           0  tcp       different sockets\n"
        "default/web/web  default/db/db     6.4 kB/s           5  tcp+unix  same L3"
    )


def test_light_edges_are_left_out_unless_all_are_asked_for(engine: Engine) -> None:
    edges = [Edge("id-web", f"id-{number:04}", 1.0 + number) for number in range(report.SHOWN + 5)]
    told = document(engine, *edges, owner_edges=[{"a": "a/x/c", "b": "a/y/c", "weight": 5000.0}])
    assert report.affinity_text(told).endswith("... and 5 lighter ones (--all)")
    text = report.affinity_text(told, show_all=True)
    assert len(text.splitlines()) > report.SHOWN + 5
    assert "5,000  a/x/c - a/y/c" in text


def test_an_observer_that_is_gone_and_a_graph_that_is_old_are_said_first(engine: Engine) -> None:
    gone = {**OBSERVER, "problem": "no observer answers at /run/a.sock"}
    old = {"traffic": {"since_s": 1764418984.0, "age_s": 241.0, "why": "no observer answers"}}
    lines = report.affinity_text(document(engine, observer=gone, old=old)).splitlines()
    assert lines[0] == "observer   no observer answers at /run/a.sock"
    assert lines[2] == "           old: traffic is of 4 min ago: no observer answers"
    assert lines[-2] == "of 4 min ago:"
    assert lines[-1] == "no traffic between containers is known"


def test_containers_that_were_partly_seen_are_told_with_the_counters() -> None:
    observer = {"provider": "ebpf", "counters": {"openers_evicted": 9}, "trust": {"a" * 64: 0.4}}
    assert report.observer_lines(observer)[1:] == [
        "           openers_evicted 9",
        "           partly seen, as tables were full: aaaaaaaaaaaa 40%; below 50% containers are not moved",
    ]


def test_datagrams_that_were_not_attributed_are_told_in_bytes() -> None:
    observer = {"provider": "ebpf", "counters": {"udp_unattributed_bytes": 12_345_678}}
    assert report.observer_lines(observer)[1:] == [
        "           udp_unattributed_bytes 12,345,678",
        "           not attributed: 12.3 MB of UDP, to other machines or to receivers that were not found",
    ]


def test_messages_of_unix_sockets_that_were_not_attributed_are_told() -> None:
    observer = {"provider": "ebpf", "counters": {"unix_unattributed_messages": 12_345}}
    assert report.observer_lines(observer)[-1] == (
        "           not attributed: 12,345 messages over unix sockets, to receivers that were not found"
    )


def test_a_table_that_fills_and_what_it_has_lost_are_told_with_the_pace_of_samples() -> None:
    observer = {"provider": "ebpf", "counters": {"dropped": 1234}, "pairs_fill": 0.61, "next_sample_s": 2.5}
    told = "ebpf; its table of pairs 61% full, a sample every 2.5 s; 1,234 times there was no room to count"
    assert report.observer_lines(observer)[0] == f"observer   {told}"
    assert report.status_lines({**STATUS, "observer": observer})[0] == f"  affinity   seen by {told}"
    assert report.observer_lines({**observer, "counters": {}, "pairs_fill": 0.01})[0] == "observer   ebpf"


def test_groups_are_listed_by_name(engine: Engine) -> None:
    groups = [{"members": ["default/db/db", "default/web/web"], "weight": 12345.6}]
    assert report.affinity_text(document(engine, WEB_DB, groups=groups), groups=True).endswith(
        "group 1: 2 containers\n  default/db/db\n  default/web/web"
    )
    assert report.affinity_text(document(engine), groups=True).endswith(
        "no group of containers is known: no edge matters to both of its ends"
    )


MOVE = {
    "container": "default/web/web",
    "from": "L3 1",
    "to": "L3 0",
    "gain": 0.0123,
    "why": "to be near db",
    "id": "1",
}


@pytest.mark.parametrize(
    ("told", "end"),
    [
        pytest.param({"moves": [], "dry_run": True}, ["nothing to move"], id="nothing to do"),
        pytest.param({"moves": [MOVE], "dry_run": True}, ["nothing was moved (--dry-run)"], id="dry run"),
        pytest.param({"moves": [MOVE], "moved": 1}, ["1 of 1 container moved"], id="done"),
        pytest.param(
            {"moves": [MOVE], "moved": 0, "failed": [{"container": "default/web/web", "error": "busy"}]},
            ["0 of 1 container moved", "NOT DONE: default/web/web: busy"],
            id="refused",
        ),
        pytest.param(
            {"moves": [MOVE, {**MOVE, "from": "L3 0", "to": "L3 2"}], "moved": 1},
            ["1 of 1 container moved"],
            id="by way of a third place",
        ),
    ],
)  # fmt: skip
def test_a_plan_ends_with_what_became_of_it(told: dict[str, Any], end: list[str]) -> None:
    text = report.rebalance_text(
        {"why": "1 move saves much", "notes": [], "failed": [], "dry_run": False, **told}
    )
    assert text.splitlines()[0] == "1 move saves much"
    assert text.splitlines()[-len(end) :] == end


def test_the_moves_of_a_plan_are_a_table() -> None:
    text = report.rebalance_text({"why": "w", "notes": ["old"], "moves": [MOVE], "dry_run": True})
    assert text.splitlines()[1:5] == [
        "note: old",
        "",
        "CONTAINER        FROM  TO         GAIN  WHY",
        "default/web/web  L3 1  L3 0  12.3 mCPU  to be near db",
    ]


STATUS = {
    "enabled": True,
    "observer": OBSERVER,
    "edges": 1,
    "frozen": "",
    "rebalance": "a plan every 60 s",
    "guard": "moves are guarded by pressure (PSI)",
    "waits_for": [],
    "last_plan": None,
}
LAST = {"age_s": 61.0, "why": "2 moves save much", "moves": 2, "moved": 1, "taken_back": 1}


def test_the_status_tells_provider_edges_pace_guard_and_the_last_plan() -> None:
    assert report.status_lines({**STATUS, "last_plan": LAST}) == [
        "  affinity   seen by sock_diag: TCP of each pod's network; last sample 3 s ago; 22.4 MB resident",
        "             not used: ebpf: the kernel refuses the program",
        "             1 edge, a plan every 60 s",
        "             moves are guarded by pressure (PSI)",
        "             last plan 61 s ago: 1 of 2 containers moved; 1 taken back; 2 moves save much",
    ]


@pytest.mark.parametrize("provider", ["sock_diag", "declared"])
def test_why_ebpf_is_not_used_is_told_also_where_another_provider_was_chosen(provider: str) -> None:
    observer = {**OBSERVER, "provider": provider, "refused": []}
    told = f"             not used: ebpf: affinity.provider is {provider}"
    assert report.status_lines({**STATUS, "observer": observer})[1] == told
    assert report.observer_lines(observer)[1].strip() == told.strip()


def test_where_ebpf_is_used_nothing_is_said_to_be_missing() -> None:
    observer = {**OBSERVER, "provider": "ebpf", "refused": []}
    told = [*report.status_lines({**STATUS, "observer": observer}), *report.observer_lines(observer)]
    assert not [line for line in told if "not used" in line]


def test_the_status_tells_what_a_better_placement_waits_for() -> None:
    waiting = ["for affinity.cooldown: 2 containers moved lately", "until it pays: 1 move saves little"]
    assert report.status_lines({**STATUS, "waits_for": waiting})[-2:] == [
        "             waits for affinity.cooldown: 2 containers moved lately",
        "             waits until it pays: 1 move saves little",
    ]


def test_a_status_without_an_observer_says_why_once() -> None:
    gone = {**OBSERVER, "problem": "no observer answers at /run/a.sock"}
    still = "containers are not moved: the picture of the traffic is old: no observer answers at /run/a.sock"
    assert report.status_lines({**STATUS, "observer": gone, "rebalance": still, "guard": ""}) == [
        "  affinity   no observer answers at /run/a.sock",
        "             1 edge, nothing moves by itself",
    ]


def test_affinity_that_is_off_is_one_line_and_none_where_there_is_no_status() -> None:
    assert report.status_lines({**STATUS, "enabled": False}) == ["  affinity   off (affinity.enabled)"]
    assert report.status_lines({}) == []


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert report.table(("A", "NUMBER"), [("long text", "7"), ("b", "1,000")], right=(1,)) == [
        "A          NUMBER",
        "long text       7",
        "b           1,000",
    ]


# ---------------------------------------------------------------------- the graph for other programs


def _edge(a: str, b: str, weight: float) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "container": f"shop/{a}/app",
        "talks_to": f"shop/{b}/app",
        "weight": weight,
        "bytes_per_s": weight * 64,
        "messages_per_s": 3,
        "kinds": ["tcp", "unix"],
        "pod_level": False,
        "where": "same L3",
    }


def test_what_is_written_is_read_back_with_names_weights_and_groups() -> None:
    document = {
        "edges": [_edge("web", "db", 5e6), _edge("web", "cache", 10.0)],
        "groups": [{"members": ["shop/db/app", "shop/web/app"], "ids": ["db", "web"], "weight": 5e6}],
    }
    graph = networkx.read_graphml(io.BytesIO(report.graphml_text(document).encode()))
    assert {node: data["group"] for node, data in graph.nodes(data=True)} == {"web": 1, "db": 1, "cache": 0}
    assert graph.nodes["db"]["label"] == "shop/db/app"
    assert graph.edges["web", "db"] == {
        "weight": 5e6, "bytes_per_s": 3.2e8, "messages_per_s": 3.0, "kinds": "tcp,unix", "where": "same L3"
    }  # fmt: skip


def test_no_traffic_is_an_empty_graph() -> None:
    assert (
        len(networkx.read_graphml(io.BytesIO(report.graphml_text({"edges": [], "groups": []}).encode()))) == 0
    )
