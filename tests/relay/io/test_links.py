"""Which connection is closed when there are too many."""

from __future__ import annotations

from typing import Optional

from cri_proxy.relay.io.links import Kind, Links


def filled(**counts: int) -> Links[str]:
    """So many of each kind, in the order of their numbers."""
    links: Links[str] = Links()
    for name, count in counts.items():
        for number in range(count):
            links.place(f"{name} {number}", Kind[name])
    return links


def closed(links: Links[str], most: int) -> Optional[str]:
    """The one to close, which is then gone."""
    surplus = links.surplus(most)
    if surplus is not None:
        links.discard(surplus)
    return surplus


def test_up_to_the_limit_all_stay_and_busy_ones_are_not_counted() -> None:
    links = filled(UNFINISHED=3, UNUSED=2, IDLE=3, BUSY=100, GOING=100)
    assert len(links) == 208 and closed(links, 8) is None


def test_those_without_a_preface_go_first_and_the_oldest_of_them() -> None:
    links = filled(UNFINISHED=4, UNUSED=4, IDLE=4)
    assert [closed(links, 8) for _ in range(5)] == [
        "UNFINISHED 0",
        "UNFINISHED 1",
        "UNUSED 0",
        "UNUSED 1",
        None,
    ]


def test_what_has_just_connected_is_not_closed_for_one_that_is_idle() -> None:
    links = filled(UNFINISHED=1, UNUSED=1, IDLE=8)
    assert [closed(links, 8) for _ in range(3)] == ["IDLE 0", "IDLE 1", None]


def test_one_that_had_a_call_again_is_the_youngest() -> None:
    links = filled(IDLE=9)
    links.place("IDLE 0", Kind.BUSY)
    links.place("IDLE 0", Kind.IDLE)
    assert closed(links, 8) == "IDLE 1"
