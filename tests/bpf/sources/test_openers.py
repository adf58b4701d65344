"""The table of what has opened connections, on the real kernel: what it holds, what leaves it, what it tells of losses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bpf.sources.ebpf import opener_buckets
from tests.bpf.pods import Talker, pod_uid
from tests.bpf.talkers import Stage, between, needs_bcc

REQUEST, RESPONSE = 100, 1000
HELD = 600
MANY, PAIRS = 50_000, 4


def listen(stage: Stage, server: Talker) -> str:
    """The address and port of a server in this pod, as arguments."""
    port = server.do(f"serve_tcp(socket.AF_INET, '127.0.0.1', 0, {REQUEST}, {RESPONSE})")
    return f"'127.0.0.1', {port}, {REQUEST}, {RESPONSE}"


@needs_bcc
def test_of_connections_that_are_open_at_once_none_is_lost_where_the_table_holds_them(stage: Stage) -> None:
    client, server = stage.one_pod()
    at = listen(stage, server)
    provider = stage.provider(openers=4 * HELD)
    client.do(f"hold_tcp({at}, {HELD}); release_tcp()")
    sample = provider.sample(0.0)
    assert between(sample.flows, "tcp") == (HELD * REQUEST, HELD * RESPONSE)
    assert (sample.counters["openers_evicted"], sample.lost) == (0, {})


@needs_bcc
def test_what_the_table_does_not_hold_is_told_with_both_ends(stage: Stage) -> None:
    client, server = stage.one_pod()
    at = listen(stage, server)
    provider = stage.provider(openers=HELD // 4)
    client.do(f"hold_tcp({at}, {HELD}); release_tcp()")
    sample = provider.sample(0.0)
    seen = between(sample.flows, "tcp")[0] // REQUEST
    # Connections of the rest of the machine may have given way to these, and these to them.
    assert sample.lost.keys() == {"client", "server"}
    assert HELD - seen <= sample.lost["client"] <= sample.counters["openers_evicted"]
    assert sample.counters["dropped"] >= sample.counters["openers_evicted"]
    assert provider.sample(10.0).lost == {}


@needs_bcc
@pytest.mark.parametrize("end", ["call_tcp({}, 1, 2000)", "reset_tcp({}, 1, 2000)"], ids=["closed", "reset"])
def test_connections_that_have_ended_take_no_room_from_idle_ones(stage: Stage, end: str) -> None:
    idle, busy = stage.one_pod(), (stage.start("busy"), stage.start("sink"))
    kept, ended = listen(stage, idle[1]), listen(stage, busy[1])
    provider = stage.provider(openers=1024)
    idle[0].do(f"hold_tcp({kept}, 100)")
    busy[0].do(end.format(ended))
    idle[0].do("release_tcp()")
    sample = provider.sample(0.0)
    assert between(sample.flows, "tcp") == (100 * REQUEST, 100 * RESPONSE)
    assert {"client", "server"}.isdisjoint(sample.lost)


@needs_bcc
def test_a_long_connection_whose_opener_gave_way_is_found_again_when_it_speaks(stage: Stage) -> None:
    client, server = stage.one_pod()
    crowd, sink = stage.start("crowd"), stage.start("sink")
    at, crowded = listen(stage, server), listen(stage, sink)
    provider = stage.provider(openers=64)
    client.do(f"hold_tcp({at}, 1)")
    crowd.do(f"hold_tcp({crowded}, {HELD})")
    client.do(
        f"for _ in range(2000):\n    held[0].sendall(bytes({REQUEST})); assert read(held[0], {RESPONSE})\n"
    )
    sample = provider.sample(0.0)
    crowd.do("release_tcp()")
    client.do("release_tcp()")
    last = provider.sample(10.0)
    seen = [sum(two) for two in zip(*(between(each.flows, "tcp") for each in (sample, last)))]
    assert seen == pytest.approx([2001 * REQUEST, 2001 * RESPONSE], rel=0.02)


@needs_bcc
@pytest.mark.parametrize("end", ["release_tcp()", "while held: reset(held.pop())"], ids=["closed", "reset"])
def test_fifty_thousand_connections_that_are_all_opened_again_count_each_time(stage: Stage, end: str) -> None:
    # As many of each as a process may have files open here.
    netns, pod = stage.host.namespace(), pod_uid()
    pairs = [(stage.start("client", netns, pod), stage.start("server", netns, pod)) for _ in range(PAIRS)]
    each = MANY // PAIRS
    places = [server.do(f"serve_many('127.0.0.1', 0, {REQUEST}, {RESPONSE})") for _, server in pairs]
    # As a machine with 8 GiB has it. What the rest of this one has open meanwhile is little beside it.
    provider = stage.provider(openers=131_072)
    asked = f"{REQUEST}, {RESPONSE}, {each}"
    for number in range(3):
        with ThreadPoolExecutor() as at_once:
            list(
                at_once.map(
                    lambda of: of[0][0].do(f"hold_tcp('127.0.0.1', {of[1]}, {asked})"), zip(pairs, places)
                )
            )
            list(at_once.map(lambda pair: pair[0].do(end), pairs))
        sample = provider.sample(10.0 * number)
        seen = between(sample.flows, "tcp")[0]
        assert seen >= 0.99 * each * PAIRS * REQUEST
        assert seen + sample.lost.get("client", 0) * REQUEST >= each * PAIRS * REQUEST


SIZES = {
    "as many as asked for": (65_536, 1 << 30, 65_536),
    "rounded up": (65_537, 1 << 30, 131_072),
    "a small machine": (0, 1 << 30, 32_768),
    "one for each 64 KiB": (0, 8 << 30, 131_072),
    "a large machine": (0, 1 << 40, 524_288),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_table_follows_memory_unless_its_size_is_given(name: str) -> None:
    openers, memory, entries = SIZES[name]
    assert 4 * opener_buckets(openers, memory) == entries
