"""What people are told of containers and domains is what the engine has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cri_proxy.core.engine import Engine
from cri_proxy.core.report import (
    NotOne,
    domain_pools,
    domain_rows,
    explain,
    explain_text,
    find,
    find_one,
    placement_rows,
    placements_text,
    status_text,
)
from policies.model import NO_FENCE
from tests.machines import UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import engine_on, fence, host_of, make_container, make_pod, run


@pytest.fixture
def engine() -> Engine:
    """Containers web/app and db/app, of ids aa1 and ab2, and db/late on its way."""
    engine = engine_on(VM_NO_CACHE_INFO)
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "aa1")
    run(engine, make_container("app", pod=make_pod("db")), "ab2", within=fence("0-1"))
    engine.admit(make_container("late", limit=1, pod=make_pod("db")), NO_FENCE, 1.0)
    return engine


# ---------------------------------------------------------------------- containers


def test_rows_are_in_order_of_their_names(engine: Engine) -> None:
    names = [(row["pod"], row["container"], row["state"]) for row in placement_rows(engine)]
    assert names == [("db", "app", "running"), ("db", "late", "creating"), ("web", "app", "running")]


def test_the_table_has_a_line_for_each_container(engine: Engine) -> None:
    title, *lines = placements_text(placement_rows(engine)).splitlines()
    assert title.split() == ["CONTAINER", "STATE", "LEVEL", "CPUS", "MEMS", "REQUEST", "LIMIT", "MANAGED"]
    assert [line.split()[0] for line in lines] == ["default/db/app", "default/db/late", "default/web/app"]
    assert lines[2].split()[-3:] == ["1000m", "2000m", "placed"]
    assert lines[0].split()[-3:] == ["0m", "-", "placed"]


def test_a_container_outside_of_its_cgroup_is_told_apart(engine: Engine) -> None:
    engine.amend(replace(engine.grants["ab2"], runs_in="/kubepods/podx/sandbox"))
    lines = placements_text(placement_rows(engine)).splitlines()
    assert [line.endswith("placed, not bound") for line in lines[1:]] == [True, False, False]
    document = explain(engine, "db/app")
    assert document is not None
    said = "  not bound: its processes run in /kubepods/podx/sandbox, outside of its own cgroup"
    assert said in explain_text(document)


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
def test_containers_are_found_by_id_or_by_the_end_of_their_path(
    name: str, ids: list[str], engine: Engine
) -> None:
    assert sorted(grant.key for grant in find(engine, name)) == ids


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cat", "no container 'cat' is known; see: cri-resmgr placements"),
        ("late", "no container 'late' is known; see: cri-resmgr placements"),
        ("app", "'app' means 2 containers: default/web/app (aa1), default/db/app (ab2)"),
    ],
    ids=["unknown", "not created yet", "several"],
)
def test_a_name_that_is_not_one_containers_is_a_sentence(name: str, sentence: str, engine: Engine) -> None:
    with pytest.raises(NotOne) as caught:
        find_one(engine, name)
    assert str(caught.value) == sentence


def test_a_name_of_one_container_is_found(engine: Engine) -> None:
    assert find_one(engine, "web/app").key == "aa1"


# ---------------------------------------------------------------------- explanations


def test_an_explanation_holds_place_room_and_decisions(engine: Engine) -> None:
    document = explain(engine, "db/app")
    assert document is not None
    [row] = document["containers"]
    assert (row["id"], row["cpus"], row["fence_cpus"]) == ("ab2", "0-1", "0-1")
    assert {h["container"] for h in document["history"]} == {"default/db/app"}
    text = explain_text(document)
    assert text.startswith("default/db/app (attempt 0, ab2)\n")
    assert "the caller's own cpuset: 0-1" in text
    assert f"why: {row['why']}" in text
    assert "\ndecisions:\n" in text


def test_a_container_that_is_gone_is_explained_by_its_history(engine: Engine) -> None:
    engine.remove("aa1")
    document = explain(engine, "web/app")
    assert document is not None
    assert document["containers"] == []
    assert document["history"]
    assert explain_text(document).startswith("decisions:\n")


@pytest.mark.parametrize("name", ["cat", ""])
def test_what_is_unknown_has_no_explanation(name: str, engine: Engine) -> None:
    assert explain(engine, name) is None


# ---------------------------------------------------------------------- domains


def test_domains_add_up_to_the_machine() -> None:
    engine = engine_on(host_of(UNEVEN_CCX, reserved="0,14"))
    run(engine, make_container("a", limit=2, request=2), "a")
    pools = domain_pools(engine.node)
    by_level = {
        level: [p for p in pools if p.level == level] for level in ("machine", "socket", "numa", "l3")
    }
    assert [len(found) for found in by_level.values()] == [1, 1, 2, 4]
    for found in by_level.values():
        assert sum(p.counts["usable"] for p in found) == 28
        assert sum(p.counts["reserved"] for p in found) == 2
        assert sum(p.charged_milli for p in found) == 2000
        assert all(p.free_milli == p.counts["shared"] * 1000 - p.charged_milli for p in found)


def test_domain_rows_are_the_pools_as_plain_data(engine: Engine) -> None:
    first = domain_rows(engine.node)[0]
    assert (first["level"], first["cpus"], first["usable"]) == ("machine", "0-7", 8)
    assert first["free_milli"] == first["shared"] * 1000 - first["charged_milli"]


# ---------------------------------------------------------------------- status

STATUS: dict[str, Any] = {
    "version": "1",
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
}
LINES = {
    "at rest": ({}, "cri-resmgr 1: mode enforce"),
    "degraded": ({"degraded": {"state": "full"}}, "cri-resmgr 1: mode enforce, DEGRADED"),
    "why degraded": ({"degraded": {"state": "full"}}, "  degraded (state): full"),
    "connected": ({}, "  runtime    /run/c.sock (containerd 2, v1)"),
    "not connected": (
        {"runtime": {"connected": False, "socket": "/run/c.sock"}},
        "  runtime    /run/c.sock (NOT CONNECTED)",
    ),
    "sockets": ({}, "  serving    /run/a.sock, /run/b.sock"),
    "no sockets, and why": ({"sockets": [], "how": "late"}, "  serving    late"),
    "no sockets": ({"sockets": []}, "  serving    nobody"),
    "policy": (PLACING, "  policy     hygon, usable CPUs 0-3, reserved none"),
    "containers": (PLACING, "  containers 2 placed; 1 places held, 0 creates in doubt"),
    "no containers": ({**PLACING, "containers": {}}, "  containers none; 1 places held, 0 creates in doubt"),
    "foreign": (PLACING, "  foreign    default/web/app: another writer keeps changing its cpuset"),
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
def test_the_status_has_a_line_for(case: str) -> None:
    changes, line = LINES[case]
    assert line in status_text({**STATUS, **changes}).splitlines()
