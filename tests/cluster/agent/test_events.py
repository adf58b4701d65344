"""Events on pods are counted, bounded, and written once."""

from __future__ import annotations

from cluster.agent.events import BURST, FORGOTTEN_AFTER_S, MOST_WAITING, REFILL_S, EventCursor, PodEvents
from tests.cluster.agent.reports import happened, report

NOW = "2026-11-22T10:00:00Z"


def events() -> PodEvents:
    return PodEvents("node-1", "abc")


def drained(found: PodEvents, now_s: float = 0) -> list[tuple[str, bool, int]]:
    """Every write that is due, carried out: name, whether it is new, count."""
    made = []
    while True:
        write = found.next(now_s)
        if write is None:
            return made
        made.append((write.name, write.is_new, write.body["count"]))
        found.written(write, now_s)


def test_an_event_names_its_pod_its_container_and_its_node() -> None:
    found = events()
    found.add(happened(), NOW)
    write = found.next(0)
    assert write is not None and write.is_new
    involved = write.body["involvedObject"]
    assert (involved["uid"], involved["fieldPath"]) == ("uid-web", "spec.containers{main}")
    assert write.body["metadata"]["namespace"] == "shop"
    assert write.body["source"] == {"component": "cri-resmgr-agent", "host": "node-1"}
    assert write.body["reason"] == "LargerDomain"


def test_the_same_reason_on_the_same_container_counts_in_one_event() -> None:
    found = events()
    found.add(happened(), NOW)
    [(name, _, _)] = drained(found)
    for _ in range(3):
        found.add(happened(message="another message"), NOW)
    assert drained(found) == [(name, False, 4)]


def test_another_reason_or_another_container_is_an_event_of_its_own() -> None:
    found = events()
    found.add(happened(), NOW)
    found.add(happened(reason="Refused", type="Warning"), NOW)
    found.add(happened(container="side"), NOW)
    assert [is_new for _, is_new, _ in drained(found)] == [True, True, True]


def test_what_happens_while_a_request_is_under_way_is_counted_by_the_next() -> None:
    found = events()
    found.add(happened(), NOW)
    write = found.next(0)
    assert write is not None
    found.add(happened(), NOW)
    found.written(write, 0)
    assert drained(found) == [(write.name, False, 2)]


def test_an_event_that_has_expired_on_the_server_is_made_anew() -> None:
    found = events()
    found.add(happened(), NOW)
    [(name, _, _)] = drained(found)
    found.add(happened(), NOW)
    write = found.next(0)
    assert write is not None and not write.is_new
    found.gone(write)
    [(other, is_new, count)] = drained(found)
    assert is_new and other != name and count == 1


def test_an_event_that_must_have_expired_is_not_patched() -> None:
    found = events()
    found.add(happened(), NOW)
    drained(found)
    found.add(happened(), NOW)
    assert [is_new for _, is_new, _ in drained(found, FORGOTTEN_AFTER_S)] == [True]


def test_an_object_has_a_budget_and_others_have_theirs() -> None:
    found = events()
    for number in range(100):
        found.add(happened(), NOW)
        if number == 50:
            found.add(happened(pod="other", pod_uid="uid-other"), NOW)
        drained(found)
    found.add(happened(pod="other", pod_uid="uid-other"), NOW)
    assert len(drained(found)) == 1
    assert found.lost == 100 - BURST
    found.add(happened(), NOW)
    assert len(drained(found, REFILL_S)) == 1


def test_without_an_api_server_what_waits_is_bounded_and_the_newest_is_kept() -> None:
    found = events()
    for number in range(MOST_WAITING * 3):
        found.add(happened(pod=f"web-{number}", pod_uid=f"uid-{number}"), NOW)
    assert len(found) == MOST_WAITING
    assert found.lost == MOST_WAITING * 2
    write = found.next(0)
    assert write is not None and write.happened.pod == f"web-{MOST_WAITING * 2}"


def test_a_request_that_failed_is_made_again() -> None:
    found = events()
    found.add(happened(), NOW)
    assert found.next(0) is not None
    assert len(drained(found)) == 1


def test_an_event_without_a_pod_is_of_no_object() -> None:
    found = events()
    found.add(happened(pod=""), NOW)
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
