"""Events are counted, bounded, and written once."""

from __future__ import annotations

from cluster.kube.events import (
    BURST,
    FORGOTTEN_AFTER_S,
    MOST_WAITING,
    NORMAL,
    REFILL_S,
    WARNING,
    About,
    Events,
)

NOW = "2026-11-22T10:00:00Z"


def events() -> Events:
    return Events("tests", "abc", "node-1")


def add(
    found: Events, pod: str = "web", container: str = "main", reason: str = "Refused", said: str = "no room"
) -> None:
    about = About("v1", "Pod", pod, f"uid-{pod}", "shop", f"spec.containers{{{container}}}")
    found.add(about, reason, WARNING, said, NOW)


def drained(found: Events, now_s: float = 0) -> list[tuple[str, bool, int]]:
    """Every write that is due, carried out: name, whether it is new, count."""
    made = []
    while True:
        write = found.next(now_s)
        if write is None:
            return made
        made.append((write.name, write.is_new, write.body["count"]))
        found.written(write, now_s)


def test_the_same_reason_on_the_same_container_counts_in_one_event() -> None:
    found = events()
    add(found)
    [(name, _, _)] = drained(found)
    for _ in range(3):
        add(found, said="another message")
    assert drained(found) == [(name, False, 4)]


def test_another_reason_or_another_container_is_an_event_of_its_own() -> None:
    found = events()
    add(found)
    add(found, reason="LargerDomain")
    add(found, container="side")
    assert [is_new for _, is_new, _ in drained(found)] == [True, True, True]


def test_what_happens_while_a_request_is_under_way_is_counted_by_the_next() -> None:
    found = events()
    add(found)
    write = found.next(0)
    assert write is not None
    add(found)
    found.written(write, 0)
    assert drained(found) == [(write.name, False, 2)]


def test_an_event_that_has_expired_on_the_server_is_made_anew() -> None:
    found = events()
    add(found)
    [(name, _, _)] = drained(found)
    add(found)
    write = found.next(0)
    assert write is not None and not write.is_new
    found.gone(write)
    [(other, is_new, count)] = drained(found)
    assert is_new and other != name and count == 1


def test_an_event_that_must_have_expired_is_not_patched() -> None:
    found = events()
    add(found)
    drained(found)
    add(found)
    assert [is_new for _, is_new, _ in drained(found, FORGOTTEN_AFTER_S)] == [True]


def test_an_object_has_a_budget_and_others_have_theirs() -> None:
    found = events()
    for number in range(100):
        add(found)
        if number == 50:
            add(found, pod="other")
        drained(found)
    add(found, pod="other")
    assert len(drained(found)) == 1
    assert found.lost == 100 - BURST
    add(found)
    assert len(drained(found, REFILL_S)) == 1


def test_without_an_api_server_what_waits_is_bounded_and_the_newest_is_kept() -> None:
    found = events()
    for number in range(MOST_WAITING * 3):
        add(found, pod=f"web-{number}")
    assert len(found) == MOST_WAITING
    assert found.lost == MOST_WAITING * 2
    write = found.next(0)
    assert write is not None and write.happened.about.name == f"web-{MOST_WAITING * 2}"


def test_of_a_flood_what_warns_is_lost_last() -> None:
    found = events()
    add(found, pod="bad")
    for number in range(MOST_WAITING * 3):
        found.add(
            About("v1", "Node", f"n{number}", f"uid-{number}"), "PolicyGiven", NORMAL, "it is given", NOW
        )
    write = found.next(0)
    assert write is not None and write.happened.about.name == "bad"
    assert len(found) == MOST_WAITING


def test_a_request_that_failed_is_made_again() -> None:
    found = events()
    add(found)
    assert found.next(0) is not None
    assert len(drained(found)) == 1


def test_an_event_on_an_object_without_a_namespace_is_where_kubernetes_has_those_of_nodes() -> None:
    found = Events("tests", "abc")
    found.add(About("v1", "Node", "n1", "uid-n1"), "PolicyRefused", WARNING, "no", NOW)
    write = found.next(0)
    assert write is not None
    assert (write.body["metadata"]["namespace"], write.happened.namespace) == ("default", "default")
    assert write.body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}
    assert write.body["source"] == {"component": "tests"}
