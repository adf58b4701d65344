"""An entry keeps the names its containers had, and what is asked of the history is looked at first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cri_proxy.history.entries import MOST, USUAL, BadQuery, Query, entry_row, read_query, write_entry
from tests.history.records import id_of, moved_near, record, shrunk

WEB, DB = "default/web/app", "shop/db/db"


def test_an_entry_has_names_for_all_it_is_about() -> None:
    one = record(7, WEB, outcome="created", changes=(shrunk(DB, "a/b/gone"),))
    row = entry_row(3, write_entry(one, "boot", 1000.5, {id_of(DB): DB}))
    assert (row["place"], row["number"], row["time_s"], row["boot"]) == (3, 7, 1000.5, "boot")
    assert (row["container"], row["id"], row["operation"], row["outcome"]) == (
        WEB,
        id_of(WEB),
        "create",
        "created",
    )
    [change] = row["changes"]
    assert (change["operation"], change["cpus"], change["level"]) == ("shrunk", "1-7", "ccx")
    # Of one that was gone by then there is only the id.
    assert change["containers"] == [
        {"id": id_of(DB), "container": DB},
        {"id": id_of("a/b/gone"), "container": ""},
    ]
    json.dumps(row)


def test_an_entry_of_a_move_says_what_it_is_nearer_to() -> None:
    one = record(1, WEB, operation="rebalance", move=moved_near(WEB, DB))
    row = entry_row(1, write_entry(one, "", 0.0, {id_of(DB): DB}))
    assert row["move"] == {
        "gain": 0.5,
        "nearer": [{"id": id_of(DB), "container": DB}],
        "farther": [],
        "exchanged": [],
    }


def test_an_entry_about_an_l3_has_the_containers_in_it_without_a_change_of_their_places() -> None:
    one = record(-3, "", operation="isolation", id="", stance="")
    entry = write_entry(one, "", 0.0, {id_of(DB): DB}, about=(id_of(DB),))
    assert Query(name="shop/db").patterns[0] in entry.names
    row = entry_row(1, entry)
    assert (row["container"], row["changes"]) == ("", [])
    assert row["about"] == [{"id": id_of(DB), "container": DB}]


def test_names_that_were_known_stay_when_an_entry_is_written_again() -> None:
    one = record(1, WEB, changes=(shrunk(DB),))
    first = write_entry(one, "", 0.0, {id_of(DB): DB})
    assert write_entry(one, "", 0.0, {}, known=first.names) == first


def test_a_cause_that_is_no_container_has_an_entry() -> None:
    one = record(1, "", operation="restart", id="", stance="", changes=(shrunk(DB),))
    row = entry_row(1, write_entry(one, "", 0.0, {id_of(DB): DB}))
    assert (row["container"], row["id"]) == ("", "")
    assert row["changes"][0]["containers"] == [{"id": id_of(DB), "container": DB}]


@pytest.mark.parametrize(
    ("name", "is_about"),
    [
        ("web", True),
        ("default/web", True),
        ("default/web/app", True),
        ("/web/", True),
        ("web/app", True),
        (id_of(WEB)[:6], True),
        ("db", True),
        ("we", False),
        ("ault/web", False),
        ("b/db", False),
        ("d-default", False),
    ],
)
def test_a_name_is_a_container_a_pod_or_an_id(name: str, is_about: bool) -> None:
    entry = write_entry(record(1, WEB, changes=(shrunk(DB),)), "", 0.0, {id_of(DB): DB})
    assert any(pattern in entry.names for pattern in Query(name).patterns) is is_about


def test_what_is_not_said_is_everything_in_pages() -> None:
    assert read_query({}) == Query("", 0.0, None, None, USUAL)
    nothing = {"name": None, "since_s": None, "before": None, "after": None, "most": None}
    assert read_query(nothing) == read_query({})
    assert read_query({"most": 10**9}).most == MOST


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": 3}, "name is 3, expected a container, a pod or an id, or null"),
        ({"name": ""}, "name is '', expected a container"),
        ({"name": "//"}, "name is '//', expected a container"),
        ({"name": "a\nb"}, "expected a container"),
        ({"since_s": "1h"}, "since_s is '1h', expected seconds since 1970, or null"),
        ({"since_s": True}, "since_s is True"),
        ({"most": 0}, "most is 0, expected a whole number of 1 or more, or null"),
        ({"before": -1}, "before is -1, expected a whole number of 0 or more, or null"),
        ({"after": 1.5}, "after is 1.5, expected a whole number"),
        ({"after": 1 << 70}, "expected a whole number"),
        ({"after": 1, "before": 2}, "before and after are both given, expected one of them"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadQuery) as caught:
        read_query(arguments)
    assert sentence in str(caught.value)
