"""When the observer looks for unix sockets and shared memory."""

from __future__ import annotations

from bpf.sources.peer_search import BELIEVED, LOOK_EVERY, PeerSearch
from bpf.sources.samples import Peers


def test_what_was_found_is_believed_for_some_samples() -> None:
    found = [Peers(shared_memory={("a", "b")}), Peers()]
    search = PeerSearch(lambda: found.pop(0))
    assert [search.peers().shared_memory for _ in range(LOOK_EVERY)] == [{("a", "b")}] * LOOK_EVERY
    assert not search.peers()
    assert found == []


def test_a_pair_with_a_unix_socket_is_believed_for_some_looks_without_one() -> None:
    found = [Peers(unix={("a", "b")}), *[Peers()] * BELIEVED]
    search = PeerSearch(lambda: found.pop(0))
    seen = [search.peers().unix for _ in range((1 + BELIEVED) * LOOK_EVERY)]
    assert seen == [{("a", "b")}] * BELIEVED * LOOK_EVERY + [frozenset()] * LOOK_EVERY
