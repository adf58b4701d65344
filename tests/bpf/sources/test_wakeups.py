"""What wakes mean beside bytes and peers."""

from __future__ import annotations

import pytest

from bpf.sources.samples import Flow, Peers, pair, with_presence

TCP = Flow("a", "b", "tcp", 10, 20, 3)
WAKE = Flow("b", "a", "wake", messages=50)
UNIX = Flow("a", "b", "unix", 100, 200, 10)
AB = frozenset({("a", "b")})

CASES = {
    "wakes of a pair with tcp are the same traffic again": ((TCP, WAKE), Peers(unix=AB), (TCP,)),
    "wakes of a pair with udp too": (
        (Flow("b", "a", "udp", 1), WAKE),
        Peers(shared_memory=AB),
        (Flow("b", "a", "udp", 1),),
    ),
    "wakes over a unix socket are its messages": (
        (WAKE,),
        Peers(unix=AB),
        (Flow("b", "a", "unix", messages=50),),
    ),
    "wakes beside shared memory are its messages": (
        (WAKE,),
        Peers(shared_memory=AB),
        (Flow("b", "a", "shm", messages=50),),
    ),
    "a unix socket comes before shared memory": (
        (WAKE,),
        Peers(unix=AB, shared_memory=AB),
        (Flow("b", "a", "unix", messages=50),),
    ),
    "wakes of two that share nothing are chance": ((WAKE,), Peers(unix=frozenset({("a", "c")})), ()),
    "wakes inside one container say nothing": (
        (Flow("a", "a", "wake", messages=9),),
        Peers(unix=frozenset({("a", "a")})),
        (),
    ),
    "peers without wakes are no traffic": ((), Peers(unix=AB, shared_memory=AB), ()),
    "beside messages that were counted on a unix socket, memory has what is more than two wakes for each": (
        (UNIX, WAKE),
        Peers(shared_memory=AB),
        (UNIX, Flow("b", "a", "shm", messages=30)),
    ),
    "no more wakes than such messages have are none of memory": (
        (UNIX, Flow("b", "a", "wake", messages=20)),
        Peers(shared_memory=AB),
        (UNIX,),
    ),
    "another pair's bytes do not matter": (
        (Flow("a", "c", "tcp", 1), WAKE),
        Peers(unix=AB),
        (Flow("a", "c", "tcp", 1), Flow("b", "a", "unix", messages=50)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_wakes_count_only_between_known_peers_without_bytes(name: str) -> None:
    flows, peers, expected = CASES[name]
    assert with_presence(flows, peers) == expected


def test_a_pair_has_one_spelling() -> None:
    assert pair("b", "a") == pair("a", "b") == ("a", "b")
