"""When the observer looks for unix sockets and shared memory."""

from __future__ import annotations

from bpf.sources.peer_search import LOOK_EVERY, PeerSearch
from bpf.sources.samples import Peers


def test_what_was_found_is_believed_for_some_samples() -> None:
    found = [Peers(unix={("a", "b")}), Peers()]
    search = PeerSearch(lambda: found.pop(0))
    assert [search.peers().unix for _ in range(LOOK_EVERY)] == [{("a", "b")}] * LOOK_EVERY
    assert not search.peers()
    assert found == []
