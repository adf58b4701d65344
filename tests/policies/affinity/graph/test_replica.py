"""What the daemon knows changes only by what the observer says, and never because one was restarted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from policies.affinity.graph.replica import GraphReplica, News
from policies.affinity.graph.traffic import Edge

AB, CD = Edge("a", "b", 10.0), Edge("c", "d", 5.0)
OLD = News((AB, CD), {("x", "y"): 3.0}, is_whole=True)
EMPTY = News(is_whole=True, half_lives=0.0)


def known(picture: GraphReplica) -> dict[tuple[str, str], float]:
    return {(edge.a, edge.b): edge.weight for edge in picture.traffic("").listed}


@pytest.fixture
def picture() -> GraphReplica:
    return GraphReplica()


def test_news_change_the_picture(picture) -> None:
    assert picture.take(OLD)
    assert picture.take(News((Edge("a", "b", 20.0),), gone_edges=(("c", "d"),), gone_owners=(("x", "y"),)))
    traffic = picture.traffic("")
    assert traffic.edges == {"a": {"b": 20.0}, "b": {"a": 20.0}}
    assert traffic.owners == {}


def test_no_news_are_no_new_version(picture) -> None:
    picture.take(OLD)
    before = picture.traffic("")
    assert not picture.take(News())
    assert picture.traffic("") is before


def test_what_was_lost_is_of_the_last_sample(picture) -> None:
    picture.take(replace(OLD, trust={"a": 0.4}))
    assert picture.traffic("").trust == {"a": 0.4}
    assert picture.take(News())
    assert picture.traffic("").trust == {}


def test_a_new_observer_takes_nothing_away_before_it_has_looked_for_a_half_life(picture) -> None:
    picture.take(OLD)
    picture.take(EMPTY)
    assert known(picture) == {("a", "b"): 10.0, ("c", "d"): 5.0}
    picture.take(News((Edge("a", "b", 12.0), Edge("e", "f", 1.0)), half_lives=0.9))
    assert known(picture) == {("a", "b"): 12.0, ("c", "d"): 5.0, ("e", "f"): 1.0}
    assert picture.is_waiting
    assert picture.take(News(half_lives=1.0))
    assert known(picture) == {("a", "b"): 12.0, ("e", "f"): 1.0}


def test_an_observer_that_restarts_over_and_over_takes_nothing_away(picture) -> None:
    picture.take(OLD)
    for _ in range(3):
        picture.take(EMPTY)
    assert known(picture) == {("a", "b"): 10.0, ("c", "d"): 5.0}


def test_an_observer_that_has_kept_its_graph_is_believed_at_once(picture) -> None:
    picture.take(OLD)
    picture.take(News((AB,), is_whole=True, half_lives=50.0))
    assert known(picture) == {("a", "b"): 10.0}


def test_the_reason_for_being_old_is_a_change(picture) -> None:
    picture.take(OLD)
    fresh, frozen = picture.traffic(""), picture.traffic("it is gone")
    assert frozen.version > fresh.version
    assert (frozen.edges, frozen.frozen) == (fresh.edges, "it is gone")


def test_a_picture_survives_a_restart_of_the_daemon() -> None:
    picture, again = GraphReplica(), GraphReplica()
    picture.take(OLD)
    again.restore(json.loads(json.dumps(picture.state())))
    assert (known(again), again.traffic("").owners) == (known(picture), picture.traffic("").owners)


@pytest.mark.parametrize(
    "state", [None, {}, [], {"edges": [[1]], "owners": []}, {"edges": [], "owners": [["a"]]}]
)
def test_rubbish_is_refused(state) -> None:
    with pytest.raises(ValueError):
        GraphReplica().restore(state)
