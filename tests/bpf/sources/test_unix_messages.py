"""Unix sockets on the real kernel: each message is its sender's and its receiver's, or is told to be none's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bpf.sources.ebpf import EbpfProvider
from bpf.sources.samples import Peers, Sample
from tests.bpf.pods import Talker
from tests.bpf.talkers import PROGRAMS, Stage, between, needs_bcc

pytestmark = needs_bcc

CONNECTED = Peers(unix={("client", "server")})
REQUEST, RESPONSE = 100, 300
#: Connects again and again to what answers with ``kind`` sockets; each of these is a way to send ``count`` requests.
KINDS = {
    "a connection for each request": ("SOCK_STREAM", 1, 8000),
    "one connection": ("SOCK_STREAM", 8000, 1),
    "packets, a connection for each": ("SOCK_SEQPACKET", 1, 8000),
    "packets on one connection": ("SOCK_SEQPACKET", 8000, 1),
}


def counting(stage: Stage, **options: object) -> EbpfProvider:
    """A provider that counts messages from now on."""
    provider = stage.provider(**{"peers": lambda: CONNECTED, **options})
    provider.sample(0.0)
    assert "wake-ups only" not in provider.detail, provider.detail
    return provider


def messages(sample: Sample) -> int:
    return sum(flow.messages for flow in sample.flows if flow.kind == "unix")


def unattributed(sample: Sample) -> tuple[int, int]:
    names = ("unix_unattributed_messages", "unix_unattributed_bytes")
    return sample.counters[names[0]], sample.counters[names[1]]


@pytest.mark.parametrize("name", KINDS)
def test_messages_and_bytes_count_both_ways(stage: Stage, tmp_path: Path, name: str) -> None:
    kind, requests, connections = KINDS[name]
    client, server = stage.start("client"), stage.start("server")
    server.do(f"serve_unix('{tmp_path}/s', {REQUEST}, {RESPONSE}, socket.{kind})")
    provider = counting(stage)
    client.do(f"call_unix('{tmp_path}/s', {REQUEST}, {RESPONSE}, {requests}, {connections}, socket.{kind})")
    sample = provider.sample(10.0)
    count = requests * connections
    assert messages(sample) == pytest.approx(2 * count, rel=0.05)
    assert between(sample.flows, "unix") == pytest.approx((count * REQUEST, count * RESPONSE), rel=0.05)
    left, left_bytes = unattributed(sample)
    # What is not counted is told.
    assert messages(sample) + left == 2 * count
    assert sum(between(sample.flows, "unix")) + left_bytes == count * (REQUEST + RESPONSE)


def test_many_at_once_on_all_cpus_are_told_apart(stage: Stage, tmp_path: Path) -> None:
    names = ["client", "server", "other", "another"]
    talkers = {name: stage.start(name) for name in names}
    for server, response in (("server", RESPONSE), ("another", 2 * RESPONSE)):
        talkers[server].do(f"serve_unix('{tmp_path}/{server}', {REQUEST}, {response})")
    provider = counting(stage)

    def call(client: Talker, server: str, response: int) -> None:
        client.do(f"call_unix('{tmp_path}/{server}', {REQUEST}, {response}, 1, 2000)")

    calls = [
        threading.Thread(target=call, args=(talkers[client], server, response))
        for client, server, response in (("client", "server", RESPONSE), ("other", "another", 2 * RESPONSE))
    ]
    for each in calls:
        each.start()
    for each in calls:
        each.join()
    sample = provider.sample(10.0)
    seen = {(flow.a, flow.b): flow.bytes_ab + flow.bytes_ba for flow in sample.flows if flow.kind == "unix"}
    assert seen.keys() == {("client", "server"), ("another", "other")}
    assert seen["client", "server"] == pytest.approx(2000 * (REQUEST + RESPONSE), rel=0.05)
    assert seen["another", "other"] == pytest.approx(2000 * (REQUEST + 2 * RESPONSE), rel=0.05)


def test_a_client_of_two_servers_in_turn_has_the_memory_of_one_connection_for_the_next(
    stage: Stage, tmp_path: Path
) -> None:
    client, server, other = (stage.start(name) for name in ("client", "server", "other"))
    for talker, name in ((server, "s"), (other, "o")):
        talker.do(f"serve_unix('{tmp_path}/{name}', {REQUEST}, {RESPONSE})")
    provider = counting(stage)
    client.do(
        "for _ in range(1000):\n"
        f"    call_unix('{tmp_path}/s', {REQUEST}, {RESPONSE}, 1)\n"
        f"    call_unix('{tmp_path}/o', {REQUEST}, {RESPONSE}, 1)\n"
    )
    sample = provider.sample(10.0)
    seen = {(flow.a, flow.b): flow.messages for flow in sample.flows if flow.kind == "unix"}
    assert seen == {
        ("client", "server"): pytest.approx(2000, rel=0.01),
        ("client", "other"): pytest.approx(2000, rel=0.01),
    }


def test_what_is_read_after_its_sender_has_closed_counts(stage: Stage, tmp_path: Path) -> None:
    client, server = stage.start("client"), stage.start("server")
    server.do(
        "import socket\nlistener = socket.socket(socket.AF_UNIX)\n"
        f"listener.bind('{tmp_path}/s')\nlistener.listen(200)\n"
    )
    provider = counting(stage)
    client.do(
        "for _ in range(200):\n"
        "    with socket.socket(socket.AF_UNIX) as connection:\n"
        f"        connection.connect('{tmp_path}/s')\n"
        f"        connection.sendall(bytes({REQUEST}))\n"
    )
    before = provider.sample(10.0)
    assert (between(before.flows, "unix"), unattributed(before)) == ((0, 0), (200, 200 * REQUEST))
    server.do(
        "for _ in range(200):\n    with listener.accept()[0] as connection:\n        connection.recv(1 << 16)\n"
    )
    after = provider.sample(20.0)
    assert (between(after.flows, "unix"), unattributed(after)) == ((200 * REQUEST, 0), (0, 0))


def test_datagrams_count_where_they_are_connected_and_are_told_of_where_not(
    stage: Stage, tmp_path: Path
) -> None:
    client, server = stage.start("client"), stage.start("server")
    server.do(f"read_unix('{tmp_path}/s')")
    provider = counting(stage)
    client.do(f"send_unix('{tmp_path}/s', {REQUEST}, 1000, True)")
    server.do("await_taken(1000)")
    connected = provider.sample(10.0)
    assert between(connected.flows, "unix") == pytest.approx((1000 * REQUEST, 0), rel=0.05)
    client.do(f"send_unix('{tmp_path}/s', {REQUEST}, 1000, False)")
    server.do("await_taken(1000)")
    by_name = provider.sample(20.0)
    assert between(by_name.flows, "unix") == (0, 0)
    told = [now - before for now, before in zip(unattributed(by_name), unattributed(connected))]
    assert told == [1000, 1000 * REQUEST]


def test_what_a_container_says_to_itself_or_to_the_hosts_own_is_no_flow_and_not_missing(
    stage: Stage, tmp_path: Path
) -> None:
    client, host = stage.start("client"), stage.host.start_outside()
    host.do(PROGRAMS)
    host.do(f"serve_unix('{tmp_path}/host', {REQUEST}, {RESPONSE})")
    client.do(f"serve_unix('{tmp_path}/own', {REQUEST}, {RESPONSE})")
    provider = counting(stage)
    for path in ("host", "own"):
        client.do(f"call_unix('{tmp_path}/{path}', {REQUEST}, {RESPONSE}, 1, 500)")
    sample = provider.sample(10.0)
    assert [flow for flow in sample.flows if flow.kind == "unix"] == []
    assert unattributed(sample)[0] <= 10


def test_a_socket_that_was_handed_on_is_that_ones_which_uses_it(stage: Stage, tmp_path: Path) -> None:
    client, parent, server = (stage.start(name) for name in ("client", "parent", "server"))
    path = f"'{tmp_path}/s'"
    server.do(f"listener = socket.socket(socket.AF_UNIX); listener.bind({path}); listener.listen()")
    parent.do(f"to = socket.socket(socket.AF_UNIX); to.connect({path})")
    server.do("at = listener.accept()[0]")
    parent.do(f"own = socket.socket(socket.AF_UNIX); own.bind('{tmp_path}/p'); own.listen()\n")
    client.do(f"c = socket.socket(socket.AF_UNIX); c.connect('{tmp_path}/p')")
    provider = counting(stage)
    parent.do("a = own.accept()[0]; socket.send_fds(to, [b'1'], [a.fileno()]); a.close()")
    server.do("handed = socket.socket(fileno=socket.recv_fds(at, 1, 1)[1][0])")
    client.do(f"c.sendall(bytes({REQUEST}))")
    server.do(f"assert read(handed, {REQUEST}); handed.sendall(bytes({RESPONSE}))")
    client.do(f"assert read(c, {RESPONSE})")
    sample = provider.sample(10.0)
    assert between(sample.flows, "unix") == (REQUEST, RESPONSE)


def test_they_run_only_while_containers_share_a_unix_socket_and_wakes_only_for_memory(
    stage: Stage, tmp_path: Path
) -> None:
    client, server = stage.start("client"), stage.start("server")
    server.do(f"serve_unix('{tmp_path}/s', {REQUEST}, {RESPONSE})")
    both = Peers(unix=CONNECTED.unix, shared_memory=CONNECTED.unix)
    shared = [Peers(), CONNECTED, both, Peers(), CONNECTED]
    provider = stage.provider(peers=lambda: shared.pop(0))
    seen, wakes = [], []
    for number in range(5):
        sample = provider.sample(10.0 * number)
        seen.append(messages(sample))
        wakes.append(sample.counters["wakes"])
        client.do(f"call_unix('{tmp_path}/s', {REQUEST}, {RESPONSE}, 1, 500)")
    assert seen == [0, 0, 1000, 1000, 0]
    assert wakes[0] == wakes[1] == wakes[2] < wakes[3] == wakes[4]


def test_where_the_ends_find_no_room_what_is_lost_is_told(stage: Stage, tmp_path: Path) -> None:
    client, server = stage.start("client"), stage.start("server")
    path = f"'{tmp_path}/s'"
    server.do(f"serve_unix({path}, {REQUEST}, {RESPONSE})")
    provider = counting(stage, edges=1)
    client.do(f"call_unix({path}, {REQUEST}, {RESPONSE}, 1, 100)")
    sample = provider.sample(10.0)
    assert sample.counters["edges_full"] > 0
    assert sample.lost.keys() & {"client", "server"}
