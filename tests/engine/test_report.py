"""What people are told of containers and domains is what the engine has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cri_proxy.cli.placement_text import explain_text, placements_text, status_text
from cri_proxy.engine import report
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, Life, Management
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, Placement, Qos
from tests.machines import HYGON_7285_2S, OFFLINE_CPUS, ONE_CPU, UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import Owning, constraint, engine_on, host_of, make_container, make_pod, run, topology


@pytest.fixture
def engine() -> Engine:
    """Containers web/app and db/app, of ids aa1 and ab2, and db/late on its way."""
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "aa1")
    run(engine, make_container("app", pod=make_pod("db")), "ab2", within=constraint("0-1"))
    engine.admit(make_container("late", limit=1, pod=make_pod("db")), NO_CONSTRAINT, 1.0)
    return engine


# ---------------------------------------------------------------------- containers


def test_rows_are_in_order_of_their_names(engine) -> None:
    names = [(row["pod"], row["container"], row["state"]) for row in report.placement_rows(engine)]
    assert names == [("db", "app", "running"), ("db", "late", "creating"), ("web", "app", "running")]


def test_the_table_has_a_line_for_each_container(engine) -> None:
    title, *lines = placements_text(report.placement_rows(engine)).splitlines()
    columns = ["CONTAINER", "STATE", "LEVEL", "CPUS", "EXCLUSIVE", "MEMS", "REQUEST", "LIMIT", "MANAGED"]
    assert title.split() == columns
    assert [line.split()[0] for line in lines] == ["default/db/app", "default/db/late", "default/web/app"]
    assert lines[2].split()[-3:] == ["1000m", "2000m", "placed"]
    assert lines[0].split()[-3:] == ["0m", "-", "placed"]


def test_a_container_outside_of_its_cgroup_is_told_apart(engine) -> None:
    engine.amend(replace(engine.grants["ab2"], runs_in="/kubepods/podx/sandbox"))
    lines = placements_text(report.placement_rows(engine)).splitlines()
    assert [line.endswith("placed, not bound") for line in lines[1:]] == [True, False, False]
    document = report.explain(engine, "db/app")
    assert document is not None
    said = "  not bound: its processes run in /kubepods/podx/sandbox, outside of its own cgroup"
    assert said in explain_text(document)


def test_the_table_marks_cpus_that_are_exclusive() -> None:
    engine = engine_on(HYGON_7285_2S, policy=Owning(topology(HYGON_7285_2S)))
    own = run(engine, make_container("own", 2, qos=Qos.GUARANTEED), "own")
    run(engine, make_container("shared", 2), "shared")
    lines = placements_text(report.placement_rows(engine)).splitlines()
    assert [line.split()[4] for line in lines] == ["EXCLUSIVE", format_cpus(own.exclusive), "-"]


LEVELS = {
    "a part of one L3": (HYGON_7285_2S, "0-1", "ccx"),
    "an L3": (HYGON_7285_2S, "0-3,64-67", "ccx"),
    "a NUMA node": (HYGON_7285_2S, "0-7,64-71", "numa"),
    "parts of the L3s of a node": (HYGON_7285_2S, "0-5", "nccx"),
    "a node and an L3 of the next": (HYGON_7285_2S, "0-11,64-75", "numa+ccx"),
    "two nodes": (HYGON_7285_2S, "0-15,64-79", "2numa"),
    "three nodes": (HYGON_7285_2S, "0-23", "socket"),
    "both sockets": (HYGON_7285_2S, "0-127", "machine"),
    "no cache information": (VM_NO_CACHE_INFO, "0", "numa"),
    "one CPU": (ONE_CPU, "0", "ccx"),
    "all CPUs of one socket, some offline": (OFFLINE_CPUS, "0-127", "socket"),
}


@pytest.mark.parametrize("case", LEVELS)
def test_cpus_have_a_level(case) -> None:
    where, cpus, level = LEVELS[case]
    assert report.level_of(topology(where), parse_cpus(cpus)) == level


def test_an_adopted_container_has_the_level_of_its_cpus() -> None:
    engine = engine_on(HYGON_7285_2S)
    cpus = parse_cpus("0-1")
    place = Placement(home=cpus)
    engine.adopt(
        ContainerRecord("a1", make_container(), place, Management.ADOPTED, life=Life.RUNNING, runs_on=cpus)
    )
    assert report.placement_rows(engine)[0]["level"] == "ccx"
    engine.amend(replace(engine.grants["a1"], stance=Management.FOREIGN))
    assert report.placement_rows(engine)[0]["level"] == "none"


def test_containers_that_did_not_start_are_named_while_their_pods_are_there() -> None:
    engine = engine_on(HYGON_7285_2S)
    for name in ("web", "db"):
        pod = make_pod(name)
        engine.add_pod(pod)
        run(engine, make_container("app", 1, pod=pod), f"id-{name}")
        engine.start_failed(f"id-{name}", "cpuset.cpus: invalid argument", 10.0)
    assert report.distrusted_paths(engine, 20.0) == ["default/web/app", "default/db/app"]
    engine.end_pod("sandbox-web")
    assert report.distrusted_paths(engine, 20.0) == ["default/db/app"]
    assert list(engine.distrusted) == [("uid-db", "app")]
    assert report.distrusted_paths(engine, 610.0) == []


def test_a_sandbox_that_is_replaced_does_not_end_what_is_known_of_its_pod() -> None:
    engine = engine_on(HYGON_7285_2S)
    pod = make_pod("web")
    engine.add_pod(pod)
    run(engine, make_container("app", 1, pod=pod), "id-web")
    engine.start_failed("id-web", "cpuset.cpus: invalid argument", 10.0)
    engine.add_pod(replace(pod, id="sandbox-web-2"))
    engine.end_pod("sandbox-web")
    assert report.distrusted_paths(engine, 20.0) == ["default/web/app"]


def test_an_empty_table_says_so() -> None:
    assert placements_text([]) == "no containers"


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("aa1", ["aa1"]),
        ("a", ["aa1", "ab2"]),
        ("ab", ["ab2"]),
        ("default/web/app", ["aa1"]),
        ("web/app", ["aa1"]),
        ("app", ["aa1", "ab2"]),
        ("b/app", []),
        ("web", []),
        ("", []),
    ],
)
def test_containers_are_found_by_id_or_by_the_end_of_their_path(name, ids, engine) -> None:
    assert sorted(grant.key for grant in report.find(engine, name)) == ids


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cat", "no container 'cat' is known; see: cri-resmgr placements"),
        ("late", "no container 'late' is known; see: cri-resmgr placements"),
        ("app", "'app' means 2 containers: default/web/app (aa1), default/db/app (ab2)"),
    ],
    ids=["unknown", "not created yet", "several"],
)
def test_a_name_that_is_not_one_containers_is_a_sentence(name, sentence, engine) -> None:
    with pytest.raises(report.NotOne) as caught:
        report.find_one(engine, name)
    assert str(caught.value) == sentence


def test_a_name_of_one_container_is_found(engine) -> None:
    assert report.find_one(engine, "web/app").key == "aa1"


# ---------------------------------------------------------------------- explanations


def test_an_explanation_holds_place_room_and_decisions(engine) -> None:
    document = report.explain(engine, "db/app")
    assert document is not None
    [row] = document["containers"]
    assert (row["id"], row["cpus"], row["fence_cpus"]) == ("ab2", "0-1", "0-1")
    assert {h["container"] for h in document["history"]} == {"default/db/app"}
    text = explain_text(document)
    assert text.startswith("default/db/app (attempt 0, ab2)\n")
    assert "the caller's cpuset: 0-1" in text
    assert f"why: {row['why']}" in text
    assert "\ndecisions:\n" in text


def test_figures_of_the_search_are_told_only_where_they_are_asked_for_also_of_older_records() -> None:
    engine = engine_on(host_of(HYGON_7285_2S))
    for number in range(17):
        run(engine, make_container(f"c{number}", limit=2, request=0.5 + number / 100), f"id{number:02}")
    old = "by charged share (281m a CPU, next 312m)"
    engine.put(replace(engine.grants["id00"], why=f"2 CPUs wanted: one CCX (8 CPUs), L3 0, {old}"))
    for key, figures in (("id16", "allocated share 62m a CPU, next 63m"), ("id00", "281m a CPU, next 312m")):
        document = report.explain(engine, key)
        assert document is not None
        short, verbose = explain_text(document), explain_text(document, verbose=True)
        assert figures not in short and f"\n    {figures}\n" in verbose
        [row] = document["containers"]
        assert f"  why: {row['why']}\n" in short and "a CPU" not in row["why"]
    row = report.placement_rows(engine)[0]
    assert row["why"].endswith("the one with the smallest share requested") and "figures" not in row


def test_a_container_that_is_gone_is_explained_by_its_history(engine) -> None:
    engine.remove("aa1")
    document = report.explain(engine, "web/app")
    assert document is not None
    assert document["containers"] == []
    assert document["history"]
    assert explain_text(document).startswith("decisions:\n")


@pytest.mark.parametrize("name", ["db", "default/db"])
def test_a_pod_is_explained_by_all_its_containers(name, engine) -> None:
    document = report.explain(engine, name)
    assert document is not None
    assert {row["container"] for row in document["containers"]} == {"app", "late"}
    assert {row["container"] for row in document["history"]} == {"default/db/app", "default/db/late"}
    engine.remove("ab2")
    document = report.explain(engine, name)
    assert document is not None
    assert [row["container"] for row in document["containers"]] == ["late"]
    assert "default/db/app" in {row["container"] for row in document["history"]}


@pytest.mark.parametrize("name", ["cat", "", "default", "b", "default/d"])
def test_what_is_unknown_has_no_explanation(name, engine) -> None:
    assert report.explain(engine, name) is None


# ---------------------------------------------------------------------- domains


def test_domains_add_up_to_the_machine() -> None:
    engine = engine_on(host_of(UNEVEN_CCX, reserved="0,14"))
    run(engine, make_container("a", limit=2, request=2), "a")
    pools = report.domain_pools(engine.node)
    by_level = {
        level: [p for p in pools if p.level == level] for level in ("machine", "socket", "numa", "l3")
    }
    assert [len(found) for found in by_level.values()] == [1, 1, 2, 4]
    for found in by_level.values():
        assert sum(p.counts["usable"] for p in found) == 28
        assert sum(p.counts["reserved"] for p in found) == 2
        assert sum(p.charged_milli for p in found) == 2000
        assert all(p.free_milli == p.counts["shared"] * 1000 - p.charged_milli for p in found)


def test_domain_rows_are_the_pools_as_plain_data(engine) -> None:
    first = report.domain_rows(engine.node)[0]
    assert (first["level"], first["cpus"], first["usable"]) == ("machine", "0-7", 8)
    assert first["free_milli"] == first["shared"] * 1000 - first["charged_milli"]


# ---------------------------------------------------------------------- status

STATUS: dict[str, Any] = {
    "version": "1",
    "form": "compiled",
    "mode": "enforce",
    "degraded": {},
    "runtime": {
        "connected": True,
        "name": "containerd",
        "version": "2",
        "api": "v1",
        "socket": "/run/c.sock",
    },
    "sockets": ["/run/a.sock", "/run/b.sock"],
    "exits": "events",
    "updates_waiting": 0,
    "warnings": [],
}
PLACING = {
    "policy": "hygon",
    "usable": "0-3",
    "reserved": "",
    "containers": {"placed": 2},
    "held": 1,
    "in_doubt": 0,
    "foreign": ["default/web/app"],
    "unusable_fences": ["default/db/app"],
    "distrusted": ["uid/app"],
    "invariants": ["a sentence"],
    "not_bound": {"default/vm/app": "/kubepods/podx/sandbox"},
    "not_alone": {"default/db/own": ["default/a/x", "default/b/y"]},
}
LINES = {
    "at rest": ({"mode_from": "/c.yaml:3"}, "cri-resmgr 1, compiled: mode enforce (/c.yaml:3)"),
    "a daemon of the version before": ({}, "cri-resmgr 1, compiled: mode enforce"),
    "not in force": (
        {"mode": "off", "mode_wanted": "enforce", "mode_from": "x"},
        "cri-resmgr 1, compiled: mode off",
    ),
    "degraded": ({"degraded": {"state": "full"}}, "cri-resmgr 1, compiled: mode enforce, DEGRADED"),
    "why degraded": ({"degraded": {"state": "full"}}, "  degraded (state): full"),
    "connected": ({}, "  runtime    /run/c.sock (containerd 2, v1)"),
    "not connected": (
        {"runtime": {"connected": False, "socket": "/run/c.sock"}},
        "  runtime    /run/c.sock (NOT CONNECTED)",
    ),
    "sockets": ({}, "  serving    /run/a.sock, /run/b.sock"),
    "no sockets, and why": ({"sockets": [], "how": "late"}, "  serving    late"),
    "no sockets": ({"sockets": []}, "  serving    no socket"),
    "policy": (PLACING, "  policy     hygon, usable CPUs 0-3, reserved none"),
    "containers": (PLACING, "  containers 2 placed; 1 places held, 0 creates of unknown outcome"),
    "not alone": (
        PLACING,
        "  not alone  default/db/own: on its own CPUs default/a/x, default/b/y may still run",
    ),
    "no containers": (
        {**PLACING, "containers": {}},
        "  containers none; 1 places held, 0 creates of unknown outcome",
    ),
    "foreign": (PLACING, "  modified   default/web/app: its cpuset is modified externally, again and again"),
    "fences": (PLACING, "  untouched  default/db/app: the caller's cpuset holds no usable CPU"),
    "not bound": (
        PLACING,
        "  not bound  default/vm/app: its processes run in /kubepods/podx/sandbox, outside of its own cgroup,"
        " and no cpuset of ours reaches them",
    ),
    "broken": (PLACING, "  BROKEN     a sentence"),
    "warning": ({"warnings": ["careful"]}, "  warning    careful"),
    "hosted plugins": (
        {
            "nri": {
                "host": "on",
                "plugins": [
                    {"index": "10", "name": "foo", "state": "connected"},
                    {"index": "", "name": "bar", "state": "missing"},
                ],
            }
        },
        "  plugins    10-foo, bar (missing)",
    ),
    "no plugins": ({"nri": {"host": "on", "plugins": []}}, "  plugins    none"),
    "no host": (
        {"nri": {"host": "off", "why": "the runtime has NRI itself", "plugins": []}},
        "  plugins    not hosted: the runtime has NRI itself",
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_the_status_has_a_line_for(case) -> None:
    changes, line = LINES[case]
    assert line in status_text({**STATUS, **changes}).splitlines()


def test_a_daemon_from_before_that_was_asked_runs_from_source() -> None:
    before = {name: value for name, value in STATUS.items() if name != "form"}
    assert status_text(before).startswith("cri-resmgr 1, source: mode enforce\n")
