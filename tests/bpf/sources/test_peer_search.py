"""When the observer looks for unix sockets and shared memory."""

from __future__ import annotations

from bpf.sources.peer_search import LOOK_EVERY, PeerSearch
from bpf.sources.wakeups import Peers

WAKERS = frozenset({"a", "b"})


class Finder:
    """Finds that all are connected, and remembers who was asked for."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []

    def __call__(self, among: frozenset[str]) -> Peers:
        self.asked.append(set(among))
        return Peers(unix={("a", "b")})


def test_nobody_is_looked_at_where_bytes_explain_the_wakes() -> None:
    find = Finder()
    assert PeerSearch(find).peers_of(frozenset()) == Peers()
    assert find.asked == []


def test_what_was_found_is_believed_for_some_samples() -> None:
    find = Finder()
    search = PeerSearch(find)
    assert [search.peers_of(WAKERS).unix for _ in range(LOOK_EVERY)] == [{("a", "b")}] * LOOK_EVERY
    assert find.asked == [{"a", "b"}]
    search.peers_of(WAKERS)
    assert find.asked == [{"a", "b"}] * 2


def test_somebody_new_is_looked_at_at_once() -> None:
    find = Finder()
    search = PeerSearch(find)
    search.peers_of(WAKERS)
    search.peers_of(WAKERS | {"c"})
    search.peers_of(WAKERS)
    assert find.asked == [{"a", "b"}, {"a", "b", "c"}]
