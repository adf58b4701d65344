"""What is counted around a plan: what moves, then what it talks to, as far as descriptors go."""

from __future__ import annotations

from cri_proxy.affinity.effect.comparison import Subject, fitting, in_order

KEYS = ("web", "db", "cache", "batch", "queue")
#: web - db 5, web - cache 9, db - queue 1, batch is kept apart from web.
NEAR = ([(5.0, 1), (9.0, 2), (-3.0, 3)], [(5.0, 0), (1.0, 4)], [(9.0, 0)], [(-3.0, 0)], [(1.0, 1)])


def test_moved_containers_come_first_then_their_peers_each_by_weight() -> None:
    assert in_order(KEYS, {"db", "web"}, NEAR) == ("web", "db", "cache", "queue")
    assert in_order(KEYS, {"cache"}, NEAR) == ("cache", "web")
    assert in_order(KEYS, set(), NEAR) == ()


def test_the_first_ones_are_counted_as_far_as_descriptors_go() -> None:
    four = frozenset(range(4))
    subjects = [
        Subject("nowhere", "", frozenset()),
        Subject("wide", "", frozenset(range(64))),
        Subject("narrow", "", four),
        Subject("last", "", four),
    ]
    assert [subject.key for subject in fitting(subjects, 3, 24)] == ["narrow", "last"]
    assert [subject.key for subject in fitting(subjects, 3, 12)] == ["narrow"]
    assert [subject.key for subject in fitting(subjects, 3, 192)] == ["wide"]
    assert fitting(subjects, 3, 0) == ()
