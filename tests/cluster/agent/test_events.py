"""What a daemon tells becomes Events on pods, each row once."""

from __future__ import annotations

from cluster.agent.events import EventCursor, add_row
from cluster.kube.events import Events
from tests.cluster.agent.reports import happened, report

NOW = "2026-11-22T10:00:00Z"


def test_an_event_names_its_pod_its_container_and_its_node() -> None:
    found = Events("cri-resmgr-agent", "abc", "node-1")
    add_row(found, happened(), NOW)
    write = found.next(0)
    assert write is not None and write.is_new
    involved = write.body["involvedObject"]
    assert (involved["uid"], involved["fieldPath"]) == ("uid-web", "spec.containers{main}")
    assert write.body["metadata"]["namespace"] == "shop"
    assert write.body["source"] == {"component": "cri-resmgr-agent", "host": "node-1"}
    assert write.body["reason"] == "LargerDomain"


def test_an_event_without_a_pod_is_of_no_object() -> None:
    found = Events("cri-resmgr-agent", "abc")
    add_row(found, happened(pod=""), NOW)
    assert found.next(0) is None


def test_a_cursor_takes_each_row_once() -> None:
    cursor = EventCursor()
    first = report(events=[happened(1), happened(2)], events_next=3)
    assert [row["seq"] for row in cursor.new_rows(first)] == [1, 2]
    assert cursor.since == 3
    assert cursor.new_rows(first) == []
    assert [row["seq"] for row in cursor.new_rows(report(events=[happened(3)], events_next=4))] == [3]


def test_another_life_of_the_daemon_begins_anew() -> None:
    cursor = EventCursor()
    cursor.new_rows(report(events_next=50))
    again = report(instance="b", events=[happened(1)], events_next=2)
    assert [row["seq"] for row in cursor.new_rows(again)] == [1]


def test_what_an_earlier_process_has_told_is_not_told_again() -> None:
    cursor = EventCursor()
    cursor.already_told("a")
    assert cursor.new_rows(report(events=[happened(1)], events_next=2)) == []
    later = report(events=[happened(1), happened(2)], events_next=3)
    assert [row["seq"] for row in cursor.new_rows(later)] == [2]
